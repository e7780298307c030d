//! Checks what must hold in a spec beyond the form of single values: one pure function for each rule.
//!
//! Rules also run on a spec that was only partly decoded and check the parts that are present.

mod needs;
mod profiles;
mod steps;

use std::collections::BTreeMap;

use super::diagnostic::{Code, Diagnostic, quoted};
use super::report::Report;
use super::span::{Span, Spanned};
use super::written::{Profile, Skill, Spec, Step, Table, ToolCheck};
use crate::names::{ProfileName, SkillName, TOOLCHAIN_ARTIFACT};
use crate::plan::RelPath;
use crate::tier::Tier;
pub(super) use profiles::unknown_skill;
pub(super) use steps::bad_command;

/// The supported version of the format.
const VERSION: u64 = 1;

type Rule = fn(&Facts<'_>, &mut Report);

const RULES: &[Rule] = &[
    version_is_one,
    toolchains_check_something,
    version_ranges_parse,
    profiles::include_something,
    profiles::name_known_skills,
    profiles::include_a_skill_once,
    profiles::include_what_is_needed,
    profiles::run_in_parallel_where_that_can_be,
    profiles::use_every_skill,
    tiers_can_be_declared,
    artifacts_do_not_clash,
    caches_leave_the_repository,
    needs::are_known,
    needs::stand_once,
    needs::have_no_cycle,
    steps::are_there,
    steps::have_unique_names,
    steps::have_a_command_or_sql,
    steps::have_commands_that_run,
    steps::judge_some_sql,
    steps::have_globs_for_inputs,
    steps::expect_what_can_be,
    steps::report_into_the_tree,
    bounds_let_something_run,
];

/// A spec with an index of its skills by name.
struct Facts<'a> {
    spec: &'a Spec,
    skills: BTreeMap<&'a str, &'a Skill>,
}

/// Runs all rules and adds the problems to `found`, unsorted.
pub(super) fn check(spec: &Spec, found: &mut Report) {
    let skills = spec.skills.iter().map(|(name, skill)| (name.value.as_str(), skill)).collect();
    let facts = Facts { spec, skills };
    RULES.iter().for_each(|rule| rule(&facts, found));
}

impl<'a> Facts<'a> {
    fn has_skill(&self, name: &SkillName) -> bool {
        self.skills.contains_key(name.as_str())
    }

    fn checks(&self) -> impl Iterator<Item = &'a ToolCheck> {
        let toolchains = self.spec.toolchains.iter().flat_map(Table::iter);
        toolchains.flat_map(|(_, toolchain)| toolchain.required.iter().flatten())
    }

    fn profiles(&self) -> impl Iterator<Item = (&'a Spanned<ProfileName>, &'a Profile)> {
        self.spec.profiles.iter()
    }

    fn skills(&self) -> impl Iterator<Item = (&'a Spanned<SkillName>, &'a Skill)> {
        self.spec.skills.iter()
    }

    fn steps(&self) -> impl Iterator<Item = &'a Step> {
        self.skills().flat_map(|(_, skill)| &skill.steps.value)
    }
}

/// Returns whether the spec orders its skills by `needs`.
pub(super) fn uses_needs(spec: &Spec) -> bool {
    spec.skills.iter().any(|(_, skill)| skill.needs.is_some())
}

/// Calls `each` with every value that repeats an earlier one, and with the span of the first occurrence.
fn repeated<'a, T: Ord + 'a>(
    values: impl IntoIterator<Item = &'a Spanned<T>>,
    mut each: impl FnMut(&'a Spanned<T>, Span),
) {
    let mut first: BTreeMap<&T, Span> = BTreeMap::new();
    for value in values {
        match first.get(&value.value) {
            Some(span) => each(value, *span),
            None => {
                first.insert(&value.value, value.span);
            }
        }
    }
}

fn version_is_one(facts: &Facts<'_>, found: &mut Report) {
    let version = facts.spec.version;
    if version.value != VERSION {
        let message = format!("version {} of the format is not known; 1 is", version.value);
        found.add(Diagnostic::error(Code::UnsupportedVersion, version.span, message));
    }
}

fn toolchains_check_something(facts: &Facts<'_>, found: &mut Report) {
    for (name, toolchain) in facts.spec.toolchains.iter().flat_map(Table::iter) {
        if toolchain.required.as_ref().is_none_or(Vec::is_empty) {
            found.warn_with(|| {
                let message = format!("the toolchain {} checks nothing", quoted(name.value.as_str()));
                let hint = "write `required: [{ cmd: [\"tool\", \"--version\"] }]`";
                Diagnostic::warning(Code::NoChecks, name.span, message).hint(hint)
            });
        }
    }
}

fn version_ranges_parse(facts: &Facts<'_>, found: &mut Report) {
    for range in facts.checks().filter_map(|check| check.version.as_ref()) {
        if let Err(error) = semver::VersionReq::parse(&range.value) {
            found.add_with(|| {
                let message = format!("{} is not a version range: {error}", quoted(&range.value));
                let hint = "write a range such as `>=1.80, <2`";
                Diagnostic::error(Code::BadVersionRange, range.span, message).hint(hint)
            });
        }
    }
}

fn tiers_can_be_declared(facts: &Facts<'_>, found: &mut Report) {
    let tiers = facts.skills().filter_map(|(_, skill)| skill.tier.as_ref());
    for tier in tiers.filter(|tier| tier.value == Tier::THREE) {
        let message = "tier 3 cannot be declared; it is the result of a violation";
        found.add_with(|| Diagnostic::error(Code::TierThree, tier.span, message).hint("write 1 or 2"));
    }
}

/// Rejects skills whose evidence files would overwrite each other or the evidence of the toolchain checks.
fn artifacts_do_not_clash(facts: &Facts<'_>, found: &mut Report) {
    let mut seen: BTreeMap<String, &Spanned<SkillName>> = BTreeMap::new();
    for (name, _) in facts.skills() {
        let artifact = name.value.artifact();
        let other = seen.get(&artifact).copied();
        if other.is_some() || artifact == TOOLCHAIN_ARTIFACT {
            found.add_with(|| clash(name, &artifact, other));
        }
        seen.entry(artifact).or_insert(name);
    }
}

fn clash(name: &Spanned<SkillName>, artifact: &str, other: Option<&Spanned<SkillName>>) -> Diagnostic {
    let of = other.map_or_else(|| "the toolchain checks".to_owned(), |skill| quoted(skill.value.as_str()));
    let (skill, artifact) = (quoted(name.value.as_str()), quoted(artifact));
    let message = format!("the evidence of {skill} and of {of} would be one file, {artifact}");
    let problem = Diagnostic::error(Code::ArtifactClash, name.span, message).hint("rename one of them");
    match other {
        Some(other) => problem.label(other.span, "the other one"),
        None => problem,
    }
}

fn caches_leave_the_repository(facts: &Facts<'_>, found: &mut Report) {
    let caches = facts.skills().flat_map(|(_, skill)| skill.caches.iter().flatten());
    let hides = |path: &RelPath| matches!(path.as_str().split('/').next(), Some("." | ".git" | "changes"));
    for cache in caches.filter(|cache| hides(&cache.value)) {
        found.add_with(|| {
            let message = format!("{} cannot be a cache", quoted(cache.value.as_str()));
            let hint =
                "caches are directories of build output, such as `target`; not the repository, `.git` or `changes`";
            Diagnostic::error(Code::BadCache, cache.span, message).hint(hint)
        });
    }
}

fn bounds_let_something_run(facts: &Facts<'_>, found: &mut Report) {
    let mut positive = |name: &str, bound: Option<Spanned<u64>>| {
        if let Some(Spanned { value: 0, span }) = bound {
            found.add_with(|| {
                let message = format!("`{name}` is 0, and nothing can run with that");
                Diagnostic::error(Code::Zero, span, message).hint("omit it to use the default")
            });
        }
    };
    positive("timeout_ms", facts.spec.defaults.as_ref().and_then(|defaults| defaults.timeout_ms));
    for (_, profile) in facts.profiles() {
        positive("parallel", profile.parallel.map(|parallel| Spanned::new(parallel.value.into(), parallel.span)));
    }
    for (_, skill) in facts.skills() {
        positive("timeout_ms", skill.timeout_ms);
    }
    for step in facts.steps() {
        positive("timeout_ms", step.timeout_ms);
        let Some(limits) = &step.limits else { continue };
        for (name, size) in [("memory", limits.memory), ("disk", limits.disk), ("output", limits.output)] {
            positive(name, size.map(|size| Spanned::new(size.value.0, size.span)));
        }
        positive("pids", limits.pids);
        positive("cpu_seconds", limits.cpu_seconds);
        positive("open_files", limits.open_files);
    }
}

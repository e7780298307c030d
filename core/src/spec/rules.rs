//! Checks the rules for a spec that go beyond the form of single values: one pure function for each rule.
//!
//! Rules also run on a spec that was only partly decoded and check the parts that are present.

mod file_rules;
mod need_rules;
mod path_rules;
mod profile_rules;
pub(crate) mod spec_index;
mod step_rules;

use std::collections::BTreeMap;

use super::diagnostic::{Code, Diagnostic};
use super::diagnostic_collector::DiagnosticCollector;
use super::span::Spanned;
use super::spec_types::{SpannedMap, Spec};
use crate::model::names::{SkillName, TOOLCHAIN_ARTIFACT};
use crate::model::tier::Tier;
use crate::spec::rules::spec_index::SpecIndex;
use crate::text::escape::quoted;

pub(super) use profile_rules::unknown_skill;
pub(super) use step_rules::bad_command;

/// The supported version of the format.
const VERSION: u64 = 1;

type Rule = fn(&SpecIndex<'_>, &mut DiagnosticCollector);

const RULES: &[Rule] = &[
    check_format_version,
    check_toolchains_not_empty,
    check_version_ranges,
    profile_rules::check_includes_not_empty,
    profile_rules::check_includes_known,
    profile_rules::check_includes_unique,
    profile_rules::check_needs_included,
    profile_rules::warn_about_idle_parallel,
    profile_rules::warn_about_unused_skills,
    check_declared_tiers,
    check_artifact_names,
    path_rules::check_cache_paths,
    path_rules::check_cache_declarations,
    path_rules::check_needed_paths,
    path_rules::check_preparing_commands,
    path_rules::check_needed_paths_disjoint,
    path_rules::check_skill_toolchains,
    need_rules::check_needs_known,
    need_rules::check_needs_unique,
    need_rules::check_needs_acyclic,
    step_rules::check_steps_not_empty,
    step_rules::check_step_names_unique,
    step_rules::check_command_xor_sql,
    step_rules::check_commands,
    step_rules::check_sql_steps,
    step_rules::check_input_globs,
    file_rules::check_file_rules,
    file_rules::check_files_placeholder,
    step_rules::check_expected_exits,
    step_rules::check_report_paths,
    check_nonzero_limits,
];

/// Runs all rules and adds the problems to `found`, unsorted.
pub(super) fn check(spec: &Spec, problems: &mut DiagnosticCollector) {
    let skills = spec.skills.iter().map(|(name, skill)| (name.value.as_str(), skill)).collect();
    let index = SpecIndex { spec, skills };
    RULES.iter().for_each(|rule| rule(&index, problems));
}

fn check_format_version(index: &SpecIndex<'_>, problems: &mut DiagnosticCollector) {
    let version = index.spec.version;
    if version.value != VERSION {
        let message = format!("version {} of the format is unknown; only 1 is supported", version.value);
        problems.add(Diagnostic::error(Code::UnsupportedVersion, version.span, message));
    }
}

fn check_toolchains_not_empty(index: &SpecIndex<'_>, problems: &mut DiagnosticCollector) {
    for (name, toolchain) in index.spec.toolchains.iter().flat_map(SpannedMap::iter) {
        if toolchain.required.as_ref().is_none_or(Vec::is_empty) {
            problems.warn_with(|| {
                let message = format!("the toolchain {} checks nothing", quoted(name.value.as_str()));
                let hint = "write `required: [{ cmd: [\"tool\", \"--version\"] }]`";
                Diagnostic::warning(Code::NoChecks, name.span, message).hint(hint)
            });
        }
    }
}

fn check_version_ranges(index: &SpecIndex<'_>, problems: &mut DiagnosticCollector) {
    for range in index.checks().filter_map(|check| check.version.as_ref()) {
        if let Err(error) = semver::VersionReq::parse(&range.value) {
            problems.add_with(|| {
                let message = format!("{} is not a version range: {error}", quoted(&range.value));
                let hint = "write a range such as `>=1.80, <2`";
                Diagnostic::error(Code::BadVersionRange, range.span, message).hint(hint)
            });
        }
    }
}

fn check_declared_tiers(index: &SpecIndex<'_>, problems: &mut DiagnosticCollector) {
    let default = index.spec.defaults.as_ref().and_then(|defaults| defaults.tier.as_ref());
    let tiers = default.into_iter().chain(index.skills().filter_map(|(_, skill)| skill.tier.as_ref()));
    for tier in tiers.filter(|tier| tier.value == Tier::THREE) {
        let message = "tier 3 cannot be declared; it is the result of a violation";
        problems.add_with(|| Diagnostic::error(Code::TierThree, tier.span, message).hint("write 1 or 2"));
    }
}

/// Rejects skills whose evidence files would overwrite each other or the evidence of the toolchain checks.
fn check_artifact_names(index: &SpecIndex<'_>, problems: &mut DiagnosticCollector) {
    let mut seen: BTreeMap<String, &Spanned<SkillName>> = BTreeMap::new();
    for (name, _) in index.skills() {
        let artifact = name.value.artifact();
        let other = seen.get(&artifact).copied();
        if other.is_some() || artifact == TOOLCHAIN_ARTIFACT {
            problems.add_with(|| artifact_clash(name, &artifact, other));
        }
        seen.entry(artifact).or_insert(name);
    }
}

fn artifact_clash(name: &Spanned<SkillName>, artifact: &str, other: Option<&Spanned<SkillName>>) -> Diagnostic {
    let other_owner = other.map_or_else(|| "the toolchain checks".to_owned(), |skill| quoted(skill.value.as_str()));
    let (skill, artifact) = (quoted(name.value.as_str()), quoted(artifact));
    let message = format!("the evidence of {skill} and of {other_owner} would be one file, {artifact}");
    let problem = Diagnostic::error(Code::ArtifactClash, name.span, message).hint("rename one of them");
    match other {
        Some(other) => problem.label(other.span, "the other one"),
        None => problem,
    }
}

fn check_nonzero_limits(index: &SpecIndex<'_>, problems: &mut DiagnosticCollector) {
    let mut require_nonzero = |name: &str, bound: Option<Spanned<u64>>| {
        if let Some(Spanned { value: 0, span }) = bound {
            problems.add_with(|| {
                let message = format!("`{name}` is 0, so nothing could run");
                Diagnostic::error(Code::Zero, span, message).hint("omit it to use the default")
            });
        }
    };
    require_nonzero("timeout_ms", index.spec.defaults.as_ref().and_then(|defaults| defaults.timeout_ms));
    for (_, profile) in index.profiles() {
        require_nonzero(
            "parallel",
            profile.parallel.map(|parallel| Spanned::new(parallel.value.into(), parallel.span)),
        );
    }
    for (_, skill) in index.skills() {
        require_nonzero("timeout_ms", skill.timeout_ms);
    }
    for prepare in path_rules::preparing_commands(index) {
        require_nonzero("timeout_ms", prepare.timeout_ms);
    }
    for step in index.steps() {
        require_nonzero("timeout_ms", step.timeout_ms);
        require_nonzero("parallel", step.parallel.map(|parallel| Spanned::new(parallel.value.into(), parallel.span)));
        let Some(limits) = &step.limits else { continue };
        let numbers = limits.map(|_, size| size.map(|size| Spanned::new(size.value.0, size.span)), |_, number| number);
        for (definition, number) in numbers.entries() {
            require_nonzero(definition.key, number);
        }
    }
}

//! What must hold in a spec beyond the form of its values: one named, pure check for each rule.
//!
//! A rule sees what could be read of the spec, and says what it can say of that.

use std::collections::{BTreeMap, BTreeSet};

use globset::GlobBuilder;

use super::command::{BadCommand, Command};
use super::diagnostic::{Code, Diagnostic, listed, quoted};
use super::span::{Span, Spanned};
use super::written::{Defaults, Skill, Spec, Step, Table};
use crate::names::{SkillName, StepName};
use crate::plan::RelPath;
use crate::tier::Tier;

/// The version of the format.
const VERSION: u64 = 1;

type Rule = fn(&Spec, &mut Vec<Diagnostic>);

const RULES: &[Rule] = &[
    version_is_one,
    toolchains_check_something,
    version_ranges_parse,
    profiles_include_something,
    profiles_name_known_skills,
    profiles_include_a_skill_once,
    profiles_include_what_is_needed,
    parallel_has_an_effect,
    skills_have_steps,
    step_names_are_unique,
    tiers_can_be_declared,
    commands_can_run,
    bounds_let_something_run,
    needs_are_known,
    needs_have_no_cycle,
    artifacts_do_not_clash,
    caches_leave_the_repository,
    inputs_are_globs,
    expectations_can_be_met,
    skills_are_used,
];

/// Everything that breaks a rule, in no order.
pub(super) fn check(spec: &Spec) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    RULES.iter().for_each(|rule| rule(spec, &mut found));
    found
}

/// Whether the spec orders its skills by what they need.
pub(super) fn uses_needs(spec: &Spec) -> bool {
    spec.skills.iter().any(|(_, skill)| skill.needs.is_some())
}

fn steps(spec: &Spec) -> impl Iterator<Item = &Step> {
    spec.skills.iter().flat_map(|(_, skill)| &skill.steps.value)
}

fn needs(skill: &Skill) -> impl Iterator<Item = &Spanned<SkillName>> {
    skill.needs.iter().flat_map(|needs| &needs.value)
}

fn version_is_one(spec: &Spec, found: &mut Vec<Diagnostic>) {
    if spec.version.value != VERSION {
        let message = format!("version {} of the format is not known; 1 is", spec.version.value);
        found.push(Diagnostic::error(Code::UnsupportedVersion, spec.version.span, message));
    }
}

fn toolchains_check_something(spec: &Spec, found: &mut Vec<Diagnostic>) {
    for (name, toolchain) in spec.toolchains.iter().flat_map(Table::iter) {
        if toolchain.required.as_ref().is_none_or(Vec::is_empty) {
            let message = format!("the toolchain {} checks nothing", quoted(name.value.as_str()));
            let hint = "write `required: [{ cmd: [\"tool\", \"--version\"] }]`";
            found.push(Diagnostic::warning(Code::NoChecks, name.span, message).hint(hint));
        }
    }
}

fn version_ranges_parse(spec: &Spec, found: &mut Vec<Diagnostic>) {
    let toolchains = spec.toolchains.iter().flat_map(Table::iter);
    let checks = toolchains.flat_map(|(_, toolchain)| toolchain.required.iter().flatten());
    for range in checks.filter_map(|check| check.version.as_ref()) {
        if let Err(error) = semver::VersionReq::parse(&range.value) {
            let message = format!("{} is not a version range: {error}", quoted(&range.value));
            let hint = "write a range such as `>=1.80, <2`";
            found.push(Diagnostic::error(Code::BadVersionRange, range.span, message).hint(hint));
        }
    }
}

fn profiles_include_something(spec: &Spec, found: &mut Vec<Diagnostic>) {
    for (name, profile) in spec.profiles.iter().filter(|(_, profile)| profile.include.value.is_empty()) {
        let message = format!("the profile {} includes no skill", quoted(name.value.as_str()));
        found.push(Diagnostic::error(Code::EmptyProfile, profile.include.span, message));
    }
}

fn profiles_name_known_skills(spec: &Spec, found: &mut Vec<Diagnostic>) {
    for (_, profile) in spec.profiles.iter() {
        let unknown = profile.include.value.iter().filter(|name| spec.skills.get(name.value.as_str()).is_none());
        found.extend(unknown.map(|name| unknown_skill(spec, name)));
    }
}

/// What is said of the name of a skill that is not there.
pub(super) fn unknown_skill(spec: &Spec, name: &Spanned<SkillName>) -> Diagnostic {
    let message = format!("there is no skill {}", quoted(name.value.as_str()));
    let problem = Diagnostic::error(Code::UnknownSkill, name.span, message);
    problem.did_you_mean(name.value.as_str(), spec.skills.names())
}

fn profiles_include_a_skill_once(spec: &Spec, found: &mut Vec<Diagnostic>) {
    for (_, profile) in spec.profiles.iter() {
        repeated(&profile.include.value, |name, first| {
            let message = format!("the profile includes {} twice", quoted(name.value.as_str()));
            found.push(Diagnostic::error(Code::DuplicateInclude, name.span, message).label(first, "first here"));
        });
    }
}

/// Calls `each` for every name that stood in the list before, with where it first stood.
fn repeated<'a, T: Ord + 'a>(
    names: impl IntoIterator<Item = &'a Spanned<T>>,
    mut each: impl FnMut(&'a Spanned<T>, Span),
) {
    let mut first: BTreeMap<&T, Span> = BTreeMap::new();
    for name in names {
        match first.get(&name.value) {
            Some(span) => each(name, *span),
            None => {
                first.insert(&name.value, name.span);
            }
        }
    }
}

fn profiles_include_what_is_needed(spec: &Spec, found: &mut Vec<Diagnostic>) {
    for (profile_name, profile) in spec.profiles.iter() {
        let included: BTreeSet<&str> = profile.include.value.iter().map(|name| name.value.as_str()).collect();
        for name in &profile.include.value {
            let Some(skill) = spec.skills.get(name.value.as_str()) else { continue };
            let known = needs(skill).filter(|need| spec.skills.get(need.value.as_str()).is_some());
            for need in known.filter(|need| !included.contains(need.value.as_str())) {
                let (profile, skill) = (quoted(profile_name.value.as_str()), quoted(name.value.as_str()));
                let need_name = quoted(need.value.as_str());
                let message = format!("the profile {profile} includes {skill}, but not {need_name}, which it needs");
                let problem = Diagnostic::error(Code::NeedNotIncluded, name.span, message);
                found.push(problem.label(need.span, "needed here").hint(format!("add {need_name} to `include`")));
            }
        }
    }
}

fn parallel_has_an_effect(spec: &Spec, found: &mut Vec<Diagnostic>) {
    if uses_needs(spec) {
        return;
    }
    for parallel in spec.profiles.iter().filter_map(|(_, profile)| profile.parallel.as_ref()) {
        let message = "`parallel` changes nothing, because no skill uses `needs`";
        let hint = "skills without `needs` run one after the other; `needs: []` makes one independent";
        found.push(Diagnostic::warning(Code::IdleParallel, parallel.span, message).hint(hint));
    }
}

fn skills_have_steps(spec: &Spec, found: &mut Vec<Diagnostic>) {
    for (name, skill) in spec.skills.iter().filter(|(_, skill)| skill.steps.value.is_empty()) {
        let message = format!("the skill {} has no steps", quoted(name.value.as_str()));
        found.push(Diagnostic::error(Code::NoSteps, skill.steps.span, message));
    }
}

fn step_names_are_unique(spec: &Spec, found: &mut Vec<Diagnostic>) {
    for (_, skill) in spec.skills.iter() {
        let names = skill.steps.value.iter().map(|step| &step.name);
        repeated(names, |name: &Spanned<StepName>, first| {
            let message = format!("the skill has two steps {}", quoted(name.value.as_str()));
            found.push(Diagnostic::error(Code::DuplicateStep, name.span, message).label(first, "first here"));
        });
    }
}

fn tiers_can_be_declared(spec: &Spec, found: &mut Vec<Diagnostic>) {
    let tiers = spec.skills.iter().filter_map(|(_, skill)| skill.tier.as_ref());
    for tier in tiers.filter(|tier| tier.value == Tier::THREE) {
        let message = "tier 3 cannot be declared; it is the result of a violation";
        found.push(Diagnostic::error(Code::TierThree, tier.span, message).hint("write 1 or 2"));
    }
}

fn commands_can_run(spec: &Spec, found: &mut Vec<Diagnostic>) {
    let checks = spec.toolchains.iter().flat_map(Table::iter).flat_map(|(_, t)| t.required.iter().flatten());
    for cmd in checks.map(|check| &check.cmd).chain(steps(spec).map(|step| &step.cmd)) {
        if let Err(bad) = cmd.value.argv() {
            found.push(bad_command(cmd, &bad));
        }
    }
}

/// What is said of a command that cannot be run.
pub(super) fn bad_command(cmd: &Spanned<Command>, bad: &BadCommand) -> Diagnostic {
    let code = match bad {
        BadCommand::Empty => Code::EmptyCommand,
        BadCommand::Nul | BadCommand::OpenQuote => Code::BadCommand,
        BadCommand::NeedsShell { .. } => Code::NeedsShell,
    };
    let problem = Diagnostic::error(code, cmd.span, bad.to_string());
    match (bad, &cmd.value) {
        (BadCommand::NeedsShell { .. }, Command::Line(line)) => {
            let line = serde_json::Value::from(line.as_str());
            problem
                .hint(format!("to run it in a shell, write `[\"sh\", \"-c\", {line}]`"))
                .hint("to mean the characters themselves, quote them or write a list of words")
        }
        (BadCommand::Empty, _) => problem.hint("write the program and its arguments, such as `[\"cargo\", \"test\"]`"),
        (BadCommand::OpenQuote, _) => problem.hint("close the quote, or write a list of words"),
        _ => problem,
    }
}

fn bounds_let_something_run(spec: &Spec, found: &mut Vec<Diagnostic>) {
    let mut bounds: Vec<(&str, Spanned<u64>)> = Vec::new();
    let mut push = |name, bound: Option<Spanned<u64>>| bounds.extend(bound.map(|bound| (name, bound)));
    push("timeout_ms", spec.defaults.as_ref().and_then(|defaults: &Defaults| defaults.timeout_ms));
    for (_, skill) in spec.skills.iter() {
        push("timeout_ms", skill.timeout_ms);
    }
    for (_, profile) in spec.profiles.iter() {
        push("parallel", profile.parallel.map(|parallel| Spanned::new(parallel.value.into(), parallel.span)));
    }
    for step in steps(spec) {
        push("timeout_ms", step.timeout_ms);
        let Some(limits) = &step.limits else { continue };
        for (name, size) in [("memory", limits.memory), ("disk", limits.disk), ("output", limits.output)] {
            push(name, size.map(|size| Spanned::new(size.value.0, size.span)));
        }
        push("pids", limits.pids);
        push("cpu_seconds", limits.cpu_seconds);
        push("open_files", limits.open_files);
    }
    for (name, bound) in bounds.into_iter().filter(|(_, bound)| bound.value == 0) {
        let message = format!("`{name}` is 0, and nothing can run with that");
        found.push(Diagnostic::error(Code::Zero, bound.span, message).hint("leave it out for the default"));
    }
}

fn needs_are_known(spec: &Spec, found: &mut Vec<Diagnostic>) {
    for (name, skill) in spec.skills.iter() {
        for need in needs(skill) {
            let shown = quoted(need.value.as_str());
            if need.value == name.value {
                found.push(Diagnostic::error(Code::SelfNeed, need.span, format!("{shown} needs itself")));
            } else if spec.skills.get(need.value.as_str()).is_none() {
                let problem = Diagnostic::error(Code::UnknownNeed, need.span, format!("there is no skill {shown}"));
                found.push(problem.did_you_mean(need.value.as_str(), spec.skills.names()));
            }
        }
        repeated(needs(skill), |need, first| {
            let message = format!("{} is needed twice", quoted(need.value.as_str()));
            found.push(Diagnostic::error(Code::DuplicateNeed, need.span, message).label(first, "first here"));
        });
    }
}

/// Takes skills away whose needs are all away, until none is left or those that are left need
/// each other (Kahn's algorithm); then shows one cycle among them.
fn needs_have_no_cycle(spec: &Spec, found: &mut Vec<Diagnostic>) {
    let mut left: BTreeMap<&str, &Skill> =
        spec.skills.iter().map(|(name, skill)| (name.value.as_str(), skill)).collect();
    loop {
        let free: Vec<&str> = left
            .iter()
            .filter(|(name, skill)| {
                needs(skill).all(|n| n.value.as_str() == **name || !left.contains_key(n.value.as_str()))
            })
            .map(|(name, _)| *name)
            .collect();
        if free.is_empty() {
            break;
        }
        for name in free {
            left.remove(name);
        }
    }
    if let Some(cycle) = a_cycle(&left) {
        let path: Vec<String> = cycle.iter().map(|need| quoted(need.value.as_str())).collect();
        let message = format!("skills need each other: {}", path.join(" needs "));
        let mut problem = Diagnostic::error(Code::NeedCycle, cycle[0].span, message);
        for need in cycle.iter().skip(1) {
            problem = problem.label(need.span, "and here");
        }
        found.push(problem);
    }
}

/// A cycle among skills of which each needs another one of them.
fn a_cycle<'a>(left: &BTreeMap<&'a str, &'a Skill>) -> Option<Vec<&'a Spanned<SkillName>>> {
    let mut path: Vec<&Spanned<SkillName>> = Vec::new();
    let (mut name, mut skill) = left.iter().next().map(|(name, skill)| (*name, *skill))?;
    loop {
        let need = needs(skill).find(|need| need.value.as_str() != name && left.contains_key(need.value.as_str()))?;
        let before = path.iter().position(|earlier| earlier.value == need.value);
        if let Some(at) = before {
            return Some(path.split_off(at));
        }
        path.push(need);
        name = need.value.as_str();
        skill = left.get(name)?;
    }
}

fn artifacts_do_not_clash(spec: &Spec, found: &mut Vec<Diagnostic>) {
    let mut seen: Vec<&Spanned<SkillName>> = Vec::new();
    for (name, _) in spec.skills.iter() {
        let names = seen.iter().map(|earlier| &earlier.value).chain([&name.value]);
        match crate::names::artifact_clash(names) {
            None => seen.push(name),
            Some((earlier, _)) => found.push(clash(name, earlier, &seen)),
        }
    }
}

fn clash(name: &Spanned<SkillName>, earlier: Option<&SkillName>, seen: &[&Spanned<SkillName>]) -> Diagnostic {
    let artifact = quoted(&name.value.artifact());
    let of = earlier.map_or_else(|| "the toolchain checks".to_owned(), |skill| quoted(skill.as_str()));
    let message = format!("the evidence of {} and of {of} would be one file, {artifact}", quoted(name.value.as_str()));
    let problem = Diagnostic::error(Code::ArtifactClash, name.span, message).hint("rename one of them");
    match seen.iter().find(|skill| Some(&skill.value) == earlier) {
        Some(skill) => problem.label(skill.span, "the other one"),
        None => problem,
    }
}

fn caches_leave_the_repository(spec: &Spec, found: &mut Vec<Diagnostic>) {
    let caches = spec.skills.iter().flat_map(|(_, skill)| skill.caches.iter().flatten());
    let hides = |path: &RelPath| matches!(path.as_str().split('/').next(), Some("." | ".git" | "changes"));
    for cache in caches.filter(|cache| hides(&cache.value)) {
        let message = format!("{} cannot be a cache", quoted(cache.value.as_str()));
        let hint = "caches are directories of build output, such as `target`; not the repository, `.git` or `changes`";
        found.push(Diagnostic::error(Code::BadCache, cache.span, message).hint(hint));
    }
}

fn inputs_are_globs(spec: &Spec, found: &mut Vec<Diagnostic>) {
    for globs in steps(spec).filter_map(|step| step.inputs.as_ref()) {
        if globs.value.is_empty() {
            let problem = Diagnostic::error(Code::EmptyList, globs.span, "`inputs` names no file");
            found.push(problem.hint("leave it out where the result depends on the whole tree"));
        }
        for glob in &globs.value {
            let text = glob.value.as_str();
            if let Err(error) = GlobBuilder::new(text).literal_separator(true).build() {
                let message = format!("{} is not a glob: {}", quoted(text), error.kind());
                found.push(Diagnostic::error(Code::BadGlob, glob.span, message));
            } else if let Err(bad) = RelPath::new(text) {
                let message = format!("the glob {} {}", quoted(text), bad.problem);
                found.push(Diagnostic::error(Code::BadPath, glob.span, message));
            }
        }
    }
}

fn expectations_can_be_met(spec: &Spec, found: &mut Vec<Diagnostic>) {
    let exits = steps(spec).filter_map(|step| step.expect.as_ref()?.exit.as_ref());
    for exit in exits.filter(|exit| exit.value.is_empty()) {
        let problem = Diagnostic::error(Code::EmptyList, exit.span, "`exit` lists no exit code, so nothing could pass");
        found.push(problem.hint("leave it out for `[0]`"));
    }
}

fn skills_are_used(spec: &Spec, found: &mut Vec<Diagnostic>) {
    if spec.profiles.0.is_empty() {
        return;
    }
    let used: BTreeSet<&str> =
        spec.profiles.iter().flat_map(|(_, profile)| &profile.include.value).map(|name| name.value.as_str()).collect();
    for (name, _) in spec.skills.iter().filter(|(name, _)| !used.contains(name.value.as_str())) {
        let message = format!("no profile includes the skill {}", quoted(name.value.as_str()));
        let hint = format!("the profiles are {}", listed(spec.profiles.names()));
        found.push(Diagnostic::warning(Code::UnusedSkill, name.span, message).hint(hint));
    }
}

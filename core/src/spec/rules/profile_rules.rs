//! Rules for the skills that profiles include.

use std::collections::BTreeSet;

use super::super::diagnostic::{Code, Diagnostic};
use super::super::diagnostic_collector::DiagnosticCollector;
use super::super::span::Spanned;
use super::super::spec_types::{Profile, Spec};
use crate::model::names::{ProfileName, SkillName};
use crate::spec::rules::spec_index::{SpecIndex, for_each_repeated, uses_needs};
use crate::text::escape::{list_names, quoted};

pub(super) fn check_includes_not_empty(index: &SpecIndex<'_>, problems: &mut DiagnosticCollector) {
    for (name, profile) in index.profiles().filter(|(_, profile)| profile.include.value.is_empty()) {
        problems.add_with(|| {
            let message = format!("the profile {} includes no skill", quoted(name.value.as_str()));
            Diagnostic::error(Code::EmptyProfile, profile.include.span, message)
        });
    }
}

pub(super) fn check_includes_known(index: &SpecIndex<'_>, problems: &mut DiagnosticCollector) {
    let included = index.profiles().flat_map(|(_, profile)| &profile.include.value);
    for name in included.filter(|name| !index.has_skill(&name.value)) {
        problems.add_with(|| unknown_skill(index.spec, name));
    }
}

/// Builds the diagnostic for the name of a skill that does not exist.
pub(in super::super) fn unknown_skill(spec: &Spec, name: &Spanned<SkillName>) -> Diagnostic {
    let message = format!("there is no skill {}", quoted(name.value.as_str()));
    let problem = Diagnostic::error(Code::UnknownSkill, name.span, message);
    problem.did_you_mean(name.value.as_str(), spec.skills.keys())
}

pub(super) fn check_includes_unique(index: &SpecIndex<'_>, problems: &mut DiagnosticCollector) {
    for (_, profile) in index.profiles() {
        for_each_repeated(&profile.include.value, |name, first| {
            problems.add_with(|| {
                let message = format!("the profile includes {} twice", quoted(name.value.as_str()));
                Diagnostic::error(Code::DuplicateInclude, name.span, message).label(first, "first here")
            });
        });
    }
}

pub(super) fn check_needs_included(index: &SpecIndex<'_>, problems: &mut DiagnosticCollector) {
    for (profile_name, profile) in index.profiles() {
        let included: BTreeSet<&str> = profile.include.value.iter().map(|name| name.value.as_str()).collect();
        for name in &profile.include.value {
            // The number of profiles times needs can exceed the number of values in the file by far.
            if problems.is_full() {
                return;
            }
            let needs = index.skills.get(name.value.as_str()).into_iter().flat_map(|skill| skill.needs());
            for need in needs.filter(|need| index.has_skill(&need.value) && !included.contains(need.value.as_str())) {
                problems.add_with(|| need_not_included(profile_name, name, need));
            }
        }
    }
}

fn need_not_included(
    profile: &Spanned<ProfileName>,
    name: &Spanned<SkillName>,
    need: &Spanned<SkillName>,
) -> Diagnostic {
    let (profile, skill) = (quoted(profile.value.as_str()), quoted(name.value.as_str()));
    let needed = quoted(need.value.as_str());
    let message = format!("the profile {profile} includes {skill}, but not {needed}, which it needs");
    Diagnostic::error(Code::NeedNotIncluded, name.span, message)
        .label(need.span, "needed here")
        .hint(format!("add {needed} to `include`"))
}

pub(super) fn warn_about_idle_parallel(index: &SpecIndex<'_>, problems: &mut DiagnosticCollector) {
    if uses_needs(index.spec) {
        return;
    }
    let idle = index.profiles().filter_map(|(_, profile): (_, &Profile)| profile.parallel.as_ref());
    for parallel in idle {
        problems.warn_with(|| {
            let message = "`parallel` has no effect, because no skill uses `needs`";
            let hint = "skills without `needs` run one after the other; `needs: []` makes one independent";
            Diagnostic::warning(Code::IdleParallel, parallel.span, message).hint(hint)
        });
    }
}

pub(super) fn warn_about_unused_skills(index: &SpecIndex<'_>, problems: &mut DiagnosticCollector) {
    if index.spec.profiles.0.is_empty() {
        return;
    }
    let included = index.profiles().flat_map(|(_, profile)| &profile.include.value);
    let included: BTreeSet<&str> = included.map(|name| name.value.as_str()).collect();
    for (name, _) in index.skills().filter(|(name, _)| !included.contains(name.value.as_str())) {
        problems.warn_with(|| {
            let message = format!("no profile includes the skill {}", quoted(name.value.as_str()));
            let hint = format!("the profiles are {}", list_names(index.spec.profiles.keys()));
            Diagnostic::warning(Code::UnusedSkill, name.span, message).hint(hint)
        });
    }
}

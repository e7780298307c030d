//! Rules for the skills that profiles include.

use std::collections::BTreeSet;

use super::super::diagnostic::{Code, Diagnostic, listed, quoted};
use super::super::report::Report;
use super::super::span::Spanned;
use super::super::written::{Profile, Spec};
use super::{Facts, repeated, uses_needs};
use crate::names::{ProfileName, SkillName};

pub(super) fn include_something(facts: &Facts<'_>, found: &mut Report) {
    for (name, profile) in facts.profiles().filter(|(_, profile)| profile.include.value.is_empty()) {
        found.add_with(|| {
            let message = format!("the profile {} includes no skill", quoted(name.value.as_str()));
            Diagnostic::error(Code::EmptyProfile, profile.include.span, message)
        });
    }
}

pub(super) fn name_known_skills(facts: &Facts<'_>, found: &mut Report) {
    let included = facts.profiles().flat_map(|(_, profile)| &profile.include.value);
    for name in included.filter(|name| !facts.has_skill(&name.value)) {
        found.add_with(|| unknown_skill(facts.spec, name));
    }
}

/// Builds the diagnostic for the name of a skill that does not exist.
pub(in super::super) fn unknown_skill(spec: &Spec, name: &Spanned<SkillName>) -> Diagnostic {
    let message = format!("there is no skill {}", quoted(name.value.as_str()));
    let problem = Diagnostic::error(Code::UnknownSkill, name.span, message);
    problem.did_you_mean(name.value.as_str(), spec.skills.names())
}

pub(super) fn include_a_skill_once(facts: &Facts<'_>, found: &mut Report) {
    for (_, profile) in facts.profiles() {
        repeated(&profile.include.value, |name, first| {
            found.add_with(|| {
                let message = format!("the profile includes {} twice", quoted(name.value.as_str()));
                Diagnostic::error(Code::DuplicateInclude, name.span, message).label(first, "first here")
            });
        });
    }
}

pub(super) fn include_what_is_needed(facts: &Facts<'_>, found: &mut Report) {
    for (profile_name, profile) in facts.profiles() {
        let included: BTreeSet<&str> = profile.include.value.iter().map(|name| name.value.as_str()).collect();
        for name in &profile.include.value {
            // The number of profiles times needs can exceed the number of values in the file by far.
            if found.is_full() {
                return;
            }
            let needs = facts.skills.get(name.value.as_str()).into_iter().flat_map(|skill| skill.needs());
            for need in needs.filter(|need| facts.has_skill(&need.value) && !included.contains(need.value.as_str())) {
                found.add_with(|| not_included(profile_name, name, need));
            }
        }
    }
}

fn not_included(profile: &Spanned<ProfileName>, name: &Spanned<SkillName>, need: &Spanned<SkillName>) -> Diagnostic {
    let (profile, skill) = (quoted(profile.value.as_str()), quoted(name.value.as_str()));
    let needed = quoted(need.value.as_str());
    let message = format!("the profile {profile} includes {skill}, but not {needed}, which it needs");
    Diagnostic::error(Code::NeedNotIncluded, name.span, message)
        .label(need.span, "needed here")
        .hint(format!("add {needed} to `include`"))
}

pub(super) fn run_in_parallel_where_that_can_be(facts: &Facts<'_>, found: &mut Report) {
    if uses_needs(facts.spec) {
        return;
    }
    let idle = facts.profiles().filter_map(|(_, profile): (_, &Profile)| profile.parallel.as_ref());
    for parallel in idle {
        found.warn_with(|| {
            let message = "`parallel` changes nothing, because no skill uses `needs`";
            let hint = "skills without `needs` run one after the other; `needs: []` makes one independent";
            Diagnostic::warning(Code::IdleParallel, parallel.span, message).hint(hint)
        });
    }
}

pub(super) fn use_every_skill(facts: &Facts<'_>, found: &mut Report) {
    if facts.spec.profiles.0.is_empty() {
        return;
    }
    let included = facts.profiles().flat_map(|(_, profile)| &profile.include.value);
    let included: BTreeSet<&str> = included.map(|name| name.value.as_str()).collect();
    for (name, _) in facts.skills().filter(|(name, _)| !included.contains(name.value.as_str())) {
        found.warn_with(|| {
            let message = format!("no profile includes the skill {}", quoted(name.value.as_str()));
            let hint = format!("the profiles are {}", listed(facts.spec.profiles.names()));
            Diagnostic::warning(Code::UnusedSkill, name.span, message).hint(hint)
        });
    }
}

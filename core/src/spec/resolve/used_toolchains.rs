//! Determines the toolchains that skills use.

use crate::model::plan::{PlannedCheck, PlannedSkill, SkillToolchains};
use crate::spec::spec_types::Skill;

/// Returns the toolchains that a skill uses: all, unless it names some.
pub(super) fn of_skill(skill: &Skill) -> SkillToolchains {
    match &skill.toolchains {
        None => SkillToolchains::All,
        Some(named) => SkillToolchains::Named(named.value.iter().map(|name| name.value.clone()).collect()),
    }
}

/// Returns the checks of the toolchains that at least one of the skills uses.
pub(super) fn used_checks(mut checks: Vec<PlannedCheck>, skills: &[PlannedSkill]) -> Vec<PlannedCheck> {
    checks.retain(|check| skills.iter().any(|skill| skill.toolchains.includes(&check.toolchain)));
    checks
}

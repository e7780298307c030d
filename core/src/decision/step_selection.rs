//! Restricts a plan to selected skills and steps, and adds the steps that fix what checks report. The digest of such a
//! plan differs from that of the whole plan, so its results never answer a request for the whole plan.

use std::collections::{BTreeMap, BTreeSet};

use crate::decision::rerun::with_needs;
use crate::model::names::{SkillName, StepName};
use crate::model::plan::{Plan, PlannedSkill, PlannedStep, ReadOnly};
use crate::model::run_scope::RunScope;
use crate::record::evidence::step_path;
use crate::spec::closest_match;
use crate::text::escape::{list_names, quoted};

/// The reason why a selection cannot be applied to a plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    /// The plan has no such skill or step.
    #[error("the profile `{profile}` has no skill or step {}", quoted(name))]
    Unknown {
        /// The profile.
        profile: String,
        /// The name as given.
        name: String,
        /// A hint with a similar name, or with the names of the skills.
        hint: String,
    },
    /// No step that would run has a `fix` command.
    #[error("no selected step of the profile `{profile}` has a `fix` command")]
    NothingToFix {
        /// The profile.
        profile: String,
    },
}

impl SelectionError {
    /// Returns what the caller can do.
    pub fn hint(&self) -> String {
        match self {
            Self::Unknown { hint, .. } => hint.clone(),
            Self::NothingToFix { .. } => {
                "add `fix`, such as `fix: [ruff, check, --fix, \"{files}\"]`, to a step of the spec".to_owned()
            }
        }
    }
}

/// Restricts a plan to the selected skills and steps, given as `SKILL` or `SKILL/STEP`, and the skills that they need.
///
/// # Errors
/// The plan has no skill or step of a name.
pub fn select_steps(plan: Plan, selected: &[String]) -> Result<Plan, SelectionError> {
    if selected.is_empty() {
        return Ok(plan);
    }
    let mut steps: BTreeMap<&SkillName, BTreeSet<&StepName>> = BTreeMap::new();
    for name in selected {
        if !is_known(&plan, name) {
            return Err(unknown_name(&plan, name));
        }
        for skill in &plan.skills {
            let is_selected =
                |step: &&PlannedStep| skill.name.as_str() == name || step_path(&skill.name, &step.name) == *name;
            let chosen = skill.steps.iter().filter(is_selected).map(|step| &step.name);
            let chosen: BTreeSet<&StepName> = chosen.collect();
            if !chosen.is_empty() {
                steps.entry(&skill.name).or_default().extend(chosen);
            }
        }
    }
    let wanted: Vec<SkillName> = steps.keys().map(|skill| (*skill).clone()).collect();
    let kept = with_needs(&plan, &wanted);
    let restrict = |skill: &PlannedSkill| {
        let mut skill = skill.clone();
        // A needed skill that is not selected itself runs as a whole.
        if let Some(chosen) = steps.get(&skill.name) {
            skill.steps.retain(|step| chosen.contains(&step.name));
        }
        skill
    };
    let skills = plan.skills.iter().filter(|skill| kept.contains(&skill.name)).map(restrict).collect();
    let left_out = plan.skills.iter().map(|skill| &skill.name).filter(|name| !kept.contains(*name)).cloned().collect();
    let scope = RunScope { selected: selected.to_vec(), ..plan.scope.clone().unwrap_or_default() };
    Ok(Plan { skills, left_out, scope: Some(scope), ..plan })
}

fn names(plan: &Plan) -> impl Iterator<Item = String> {
    plan.skills.iter().flat_map(|skill| {
        let steps = skill.steps.iter().map(|step| step_path(&skill.name, &step.name));
        std::iter::once(skill.name.to_string()).chain(steps)
    })
}

fn is_known(plan: &Plan, name: &str) -> bool {
    names(plan).any(|known| known == name)
}

fn unknown_name(plan: &Plan, name: &str) -> SelectionError {
    let all: Vec<String> = names(plan).collect();
    let hint = match closest_match(name, all.iter().map(String::as_str)) {
        Some(close) => format!("did you mean {}?", quoted(close)),
        None => format!("its skills are {}", list_names(plan.skills.iter().map(|skill| skill.name.as_str()))),
    };
    SelectionError::Unknown { profile: plan.profile.to_string(), name: name.to_owned(), hint }
}

/// Adds, before each step with a `fix` command, a step that runs this command and may change the tree.
///
/// # Errors
/// No step has such a command.
pub fn add_fixes(plan: Plan) -> Result<Plan, SelectionError> {
    if plan.skills.iter().flat_map(|skill| &skill.steps).all(|step| step.fix.is_none()) {
        return Err(SelectionError::NothingToFix { profile: plan.profile.to_string() });
    }
    let skills = plan.skills.into_iter().map(skill_with_fixes).collect();
    let scope = RunScope { fix: true, ..plan.scope.unwrap_or_default() };
    Ok(Plan { skills, scope: Some(scope), ..plan })
}

fn skill_with_fixes(skill: PlannedSkill) -> PlannedSkill {
    let taken: BTreeSet<String> = skill.steps.iter().map(|step| step.name.to_string()).collect();
    let steps = skill.steps.into_iter().flat_map(|step| [fix_step(&step, &taken), Some(step)]).flatten().collect();
    PlannedSkill { steps, ..skill }
}

/// Returns the step that runs the `fix` command of a step. It passes like the step itself.
fn fix_step(step: &PlannedStep, taken: &BTreeSet<String>) -> Option<PlannedStep> {
    let cmd = step.fix.clone()?;
    let candidates = (1..).map(|number| match number {
        1 => format!("{}.fix", step.name),
        number => format!("{}.fix{number}", step.name),
    });
    let free = candidates.into_iter().find(|name| !taken.contains(name));
    let name = StepName::new(free.unwrap_or_default()).ok()?;
    Some(PlannedStep {
        name,
        cmd,
        fix: None,
        fixes: Some(step.name.clone()),
        read_only: ReadOnly::Off,
        reports: Vec::new(),
        retries: 0,
        ..step.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::names::ProfileName;
    use crate::spec::{self, OperatorConfig};
    use crate::text::digest::Sha256Hex;

    const SPEC: &str = r#"
version: 1
profiles: { pr: { include: [build, lint, test] } }
skills:
  build: { needs: [], steps: [{ name: make, cmd: make }] }
  lint:
    needs: []
    steps:
      - { name: ruff, cmd: [ruff, check], fix: [ruff, check, --fix] }
      - { name: ruff.fix, cmd: [ruff, format] }
      - { name: mypy, cmd: mypy }
  test: { needs: [build], steps: [{ name: unit, cmd: "make test" }] }
"#;

    fn plan() -> Plan {
        let parsed = spec::parse(SPEC.as_bytes()).expect("a valid spec");
        let profile = ProfileName::new("pr").expect("a name");
        let digest = Sha256Hex::digest(SPEC.as_bytes());
        spec::resolve(&parsed.spec, &profile, &OperatorConfig::default(), digest, 2).expect("resolves").plan
    }

    fn selected(names: &[&str]) -> Result<Plan, SelectionError> {
        select_steps(plan(), &names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
    }

    fn steps(plan: &Plan) -> Vec<String> {
        let path = |skill: &PlannedSkill, step: &PlannedStep| step_path(&skill.name, &step.name);
        plan.skills.iter().flat_map(|skill| skill.steps.iter().map(move |step| path(skill, step))).collect()
    }

    #[test]
    fn selects_skills_and_steps_with_their_needs() {
        let plan = selected(&["test"]).expect("known");
        assert_eq!(steps(&plan), ["build/make", "test/unit"]);
        assert_eq!(plan.left_out.len(), 1);
        let plan = selected(&["lint/mypy", "lint/ruff"]).expect("known");
        assert_eq!(steps(&plan), ["lint/ruff", "lint/mypy"], "in the order of the plan");
        assert_eq!(plan.scope.expect("a scope").selected, ["lint/mypy", "lint/ruff"]);
        assert_eq!(steps(&selected(&["lint", "lint/mypy"]).expect("known")).len(), 3);
    }

    #[test]
    fn partial_plan_has_another_digest() {
        let whole = plan();
        let all = selected(&["build", "lint", "test"]).expect("known");
        assert_eq!(all.skills, whole.skills);
        assert_ne!(all.digest(), whole.digest());
    }

    #[test]
    fn suggests_similar_name() {
        let Err(error) = selected(&["lint/mypi"]) else { panic!("unknown") };
        assert_eq!(error.hint(), "did you mean `lint/mypy`?");
        let Err(error) = selected(&["lint", "zzzzzz"]) else { panic!("unknown") };
        assert_eq!(error.hint(), "its skills are `build`, `lint`, `test`");
    }

    #[test]
    fn adds_fixes_before_their_checks() {
        let plan = add_fixes(selected(&["lint"]).expect("known")).expect("fixes");
        assert_eq!(steps(&plan), ["lint/ruff.fix2", "lint/ruff", "lint/ruff.fix", "lint/mypy"]);
        let fix = &plan.skills[0].steps[0];
        assert_eq!((fix.cmd.to_string().as_str(), fix.read_only), ("ruff check --fix", ReadOnly::Off));
        assert!(matches!(add_fixes(selected(&["test"]).expect("known")), Err(SelectionError::NothingToFix { .. })));
    }
}

//! Runs toolchain checks. Each check runs like a step on the unchanged tree, in a layer that no step sees. If a
//! check fails, no skill starts.

use std::sync::Arc;

use proctor_core::event::RunEvent;
use proctor_core::evidence::CheckEvidence;
use proctor_core::leak::LeakedProcesses;
use proctor_core::names::SkillName;
use proctor_core::outcome::{Outcome, Termination};
use proctor_core::plan::{Determinism, Plan, PlannedCheck, PlannedSkill, VersionDemand};
use proctor_core::tier::Tier;
use proctor_core::verdict::Doubt;

use crate::context::Context;
use crate::stack::Stack;
use crate::{record, step, toolchain};

/// Runs the checks of `plan` in order, up to the first that is cancelled. Returns their evidence, and the reasons
/// why no skill may start.
pub(crate) async fn run(context: &Arc<Context>, plan: &Plan) -> (Vec<CheckEvidence>, Vec<(Doubt, String)>) {
    let stack = Stack::new(Arc::clone(&context.tree.snapshot));
    let mut checks = Vec::new();
    let mut doubts = Vec::new();
    for planned in &plan.toolchain {
        let evidence = if context.cancel.is_cancelled() {
            unsatisfied(planned, step::cancelled(&planned.run))
        } else {
            run_one(context, &stack, planned, &mut doubts).await
        };
        if !evidence.satisfied && evidence.step.outcome != Outcome::Cancelled {
            doubts.push((Doubt::Toolchain, complaint(&evidence)));
        }
        context.emit(RunEvent::CheckFinished { check: evidence.clone() }).await;
        checks.push(evidence);
    }
    (checks, doubts)
}

async fn run_one(
    context: &Arc<Context>,
    stack: &Stack,
    planned: &PlannedCheck,
    doubts: &mut Vec<(Doubt, String)>,
) -> CheckEvidence {
    let skill = match SkillName::new(planned.toolchain.as_str()) {
        Ok(name) => as_skill(name, planned),
        Err(error) => {
            doubts.push((Doubt::Internal, error.to_string()));
            return unsatisfied(planned, record::skipped(&planned.run, "its toolchain has no usable name"));
        }
    };
    let run = step::run(context, stack, &skill, &planned.run).await;
    doubts.extend(run.doubts);
    let reading = toolchain::read(&planned.version, &run.evidence.stdout.preview, &run.evidence.stderr.preview);
    let satisfied = reading.satisfied && run.evidence.outcome == Outcome::Passed;
    CheckEvidence {
        toolchain: planned.toolchain.clone(),
        demand: planned.version.clone(),
        version_read: reading.version,
        satisfied,
        step: run.evidence,
    }
}

fn unsatisfied(planned: &PlannedCheck, step: proctor_core::evidence::StepEvidence) -> CheckEvidence {
    let (toolchain, demand) = (planned.toolchain.clone(), planned.version.clone());
    CheckEvidence { toolchain, demand, version_read: None, satisfied: false, step }
}

/// Returns an undeclared skill whose only step is the check.
fn as_skill(name: SkillName, planned: &PlannedCheck) -> PlannedSkill {
    PlannedSkill {
        name,
        description: String::new(),
        determinism: Determinism::D1,
        declared_tier: Tier::ONE,
        needs: vec![],
        caches: vec![],
        platform: Default::default(),
        container: String::new(),
        steps: vec![planned.run.clone()],
    }
}

fn complaint(check: &CheckEvidence) -> String {
    let command = &check.step.planned.cmd;
    let what = match (&check.step.outcome, &check.demand, &check.version_read) {
        (Outcome::Passed, VersionDemand::Range { range }, Some(version)) => {
            let pre = if version.contains('-') { " (a pre-release satisfies only a range that names one)" } else { "" };
            format!("`{command}` says {version}, and `{range}` is required{pre}")
        }
        (Outcome::Passed, VersionDemand::Range { range }, None) => {
            format!("`{command}` names no version, and `{range}` is required")
        }
        (Outcome::Failed, ..) if check.step.forbidden_leak().is_some() => {
            let leaked = check.step.forbidden_leak().map(LeakedProcesses::phrase).unwrap_or_default();
            format!("`{command}` {leaked} (leaks: fail)")
        }
        (Outcome::Drifted, ..) => format!("`{command}` changed {}, which it must not", changed(check)),
        _ => match &check.step.termination {
            Termination::NotStarted { reason, .. } => format!("`{command}` did not start: {reason}"),
            Termination::Exited { code } => format!("`{command}` ended with exit code {code}"),
            Termination::TimedOut { .. } => format!("`{command}` ran out of time"),
            _ => format!("`{command}` did not pass"),
        },
    };
    format!("toolchain `{}`: {what}; no skill was started", check.toolchain)
}

fn changed(check: &CheckEvidence) -> String {
    let found = &check.step.drift.found;
    let first = found.changes.first().map_or("something", |change| change.path.as_str());
    match (found.changes.len() as u64).saturating_add(found.omitted) {
        0 | 1 => format!("`{first}`"),
        count => format!("`{first}` and {} more", count - 1),
    }
}

//! Runs toolchain checks. Each check runs like a step on the unchanged tree, in a layer that no step sees. If a
//! check fails, no skill starts.

use std::sync::Arc;

use proctor_core::decision::verdict::{InconclusiveDetail, InconclusiveReason};
use proctor_core::model::event::RunEvent;
use proctor_core::model::leak::LeakedProcesses;
use proctor_core::model::names::SkillName;
use proctor_core::model::outcome::{Outcome, Termination};
use proctor_core::model::plan::{Determinism, Plan, PlannedCheck, PlannedSkill, VersionDemand};
use proctor_core::model::tier::Tier;
use proctor_core::record::evidence::CheckEvidence;

use crate::run::evidence_builder;
use crate::run::run_context::RunContext;
use crate::step::layer_stack::LayerStack;
use crate::step::step_runner;
use crate::step::toolchain_version;

/// Runs the checks of `plan` in order, up to the first that is cancelled. Returns their evidence, and the reasons
/// why no skill may start.
pub(crate) async fn run_checks(
    context: &Arc<RunContext>,
    plan: &Plan,
) -> (Vec<CheckEvidence>, Vec<InconclusiveDetail>) {
    let stack = LayerStack::new(Arc::clone(&context.tree.snapshot));
    let mut checks = Vec::new();
    let mut doubts = Vec::new();
    for planned in &plan.toolchain {
        let evidence = if context.cancel.is_cancelled() {
            unsatisfied_check(planned, evidence_builder::cancelled_evidence(context.redactor(), &planned.run))
        } else {
            run_check(context, &stack, planned, &mut doubts).await
        };
        if !evidence.satisfied && evidence.step.outcome != Outcome::Cancelled {
            doubts.push(InconclusiveReason::Toolchain.with_message(failure_message(&evidence)));
        }
        context.emit(RunEvent::CheckFinished { check: evidence.clone() }).await;
        checks.push(evidence);
    }
    (checks, doubts)
}

async fn run_check(
    context: &Arc<RunContext>,
    stack: &LayerStack,
    planned: &PlannedCheck,
    doubts: &mut Vec<InconclusiveDetail>,
) -> CheckEvidence {
    let skill = match SkillName::new(planned.toolchain.as_str()) {
        Ok(name) => skill_for_check(name, planned),
        Err(error) => {
            doubts.push(InconclusiveReason::Internal.with_message(error.to_string()));
            return unsatisfied_check(
                planned,
                evidence_builder::skipped_evidence(
                    context.redactor(),
                    &planned.run,
                    "its toolchain has no usable name",
                ),
            );
        }
    };
    let run = step_runner::run(context, stack, &skill, &planned.run).await;
    doubts.extend(run.inconclusive_reasons);
    let reading =
        toolchain_version::check_version(&planned.version, &run.evidence.stdout.preview, &run.evidence.stderr.preview);
    let satisfied = reading.satisfied && run.evidence.outcome == Outcome::Passed;
    CheckEvidence {
        toolchain: planned.toolchain.clone(),
        demand: planned.version.clone(),
        version_read: reading.version,
        satisfied,
        step: run.evidence,
    }
}

fn unsatisfied_check(planned: &PlannedCheck, step: proctor_core::record::evidence::StepEvidence) -> CheckEvidence {
    let (toolchain, demand) = (planned.toolchain.clone(), planned.version.clone());
    CheckEvidence { toolchain, demand, version_read: None, satisfied: false, step }
}

/// Returns an undeclared skill whose only step is the check.
fn skill_for_check(name: SkillName, planned: &PlannedCheck) -> PlannedSkill {
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

fn failure_message(check: &CheckEvidence) -> String {
    let command = &check.step.planned.cmd;
    let problem = match (&check.step.outcome, &check.demand, &check.version_read) {
        (Outcome::Passed, VersionDemand::Range { range }, Some(version)) => {
            let pre = if version.contains('-') { " (a pre-release satisfies only a range that names one)" } else { "" };
            format!("`{command}` reports version {version}, but `{range}` is required{pre}")
        }
        (Outcome::Passed, VersionDemand::Range { range }, None) => {
            format!("`{command}` reports no version, but `{range}` is required")
        }
        (Outcome::Failed, ..) if check.step.forbidden_leak().is_some() => {
            let leaked = check.step.forbidden_leak().map(LeakedProcesses::phrase).unwrap_or_default();
            format!("`{command}` {leaked} (leaks: fail)")
        }
        (Outcome::Drifted, ..) => {
            format!("`{command}` changed {}, which it must not change change", changed_paths(check))
        }
        _ => match &check.step.termination {
            Termination::NotStarted { reason, .. } => format!("`{command}` did not start: {reason}"),
            Termination::Exited { code } => format!("`{command}` ended with exit code {code}"),
            Termination::TimedOut { .. } => format!("`{command}` ran out of time"),
            _ => format!("`{command}` did not pass"),
        },
    };
    format!("toolchain `{}`: {problem}; no skill was started", check.toolchain)
}

fn changed_paths(check: &CheckEvidence) -> String {
    let found = &check.step.drift.found;
    let first = found.changes.first().map_or("something", |change| change.path.as_str());
    match (found.changes.len() as u64).saturating_add(found.omitted) {
        0 | 1 => format!("`{first}`"),
        count => format!("`{first}` and {} more", count - 1),
    }
}

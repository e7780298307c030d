//! Builds the events of a run that are not about one of its steps.

use std::sync::Arc;
use std::time::Duration;

use proctor_core::model::event::{PlannedOutline, RunEvent};
use proctor_core::model::names::StepName;
use proctor_core::model::plan::{Plan, PlannedSkill};
use proctor_core::record::run_reuse::RunReuse;

use crate::run::evidence_builder::{self, RunFacts};
use crate::run::request::FinishedRun;
use crate::run::run_context::RunContext;

/// Returns the event with the plan and the tree of a run.
pub(super) fn run_started_event(context: &RunContext, at: String, plan: &Plan, facts: &RunFacts) -> RunEvent {
    let names = |skill: &PlannedSkill| -> Vec<StepName> { skill.steps.iter().map(|step| step.name.clone()).collect() };
    RunEvent::RunStarted {
        run_id: facts.run_id.clone(),
        at,
        profile: plan.profile.clone(),
        changeset_id: facts.changeset.clone(),
        spec_sha256: plan.spec_sha256.clone(),
        plan_sha256: facts.plan_sha256.clone(),
        snapshot: context.tree.snapshot.id.clone(),
        source: context.tree.source.clone(),
        git: Some(context.tree.tree_facts().git),
        unverified_inputs_sha256: context.tree.unverified.as_ref().map(|inputs| inputs.sha256.clone()),
        sandbox: facts.sandbox,
        checks: u32::try_from(plan.toolchain.len()).unwrap_or(u32::MAX),
        skills: plan
            .skills
            .iter()
            .map(|skill| PlannedOutline { skill: skill.name.clone(), steps: names(skill) })
            .collect(),
        rerun: facts.rerun.clone(),
        scope: plan.scope.clone(),
    }
}

/// Emits an event when the run is cancelled.
pub(super) async fn announce_cancellation(context: Arc<RunContext>) {
    context.cancel.cancelled().await;
    context.emit(RunEvent::Cancelling { by: "the caller".to_owned() }).await;
}

/// Returns the last event of a run.
pub(super) fn run_finished_event(report: &FinishedRun, reuse: RunReuse, duration: Duration) -> RunEvent {
    RunEvent::RunFinished {
        verdict: report.verdict,
        tier: report.tier,
        exit_code: report.exit_code,
        duration_ms: evidence_builder::whole_millis(duration),
        evidence_dir: Some(report.evidence_dir.display().to_string()),
        reuse: Some(reuse),
    }
}

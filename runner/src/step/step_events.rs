//! Makes the events of the attempts of a step.

use proctor_core::model::event::{EndReason, RunEvent};
use proctor_core::model::outcome::Outcome;
use proctor_core::model::plan::{PlannedSkill, PlannedStep};

use crate::run::run_context::RunContext;

pub(crate) fn step_started_event(
    context: &RunContext,
    skill: &PlannedSkill,
    step: &PlannedStep,
    attempt: u32,
) -> RunEvent {
    let expected_ms = context.durations.get().and_then(|known| known.get(&skill.name, &step.name));
    let (skill, timeout_ms) = (skill.name.clone(), step.timeout_ms);
    RunEvent::StepStarted { skill, step: step.name.clone(), attempt, timeout_ms, expected_ms }
}

pub(crate) fn step_retrying_event(
    skill: &PlannedSkill,
    step: &PlannedStep,
    attempt: u32,
    outcome: Outcome,
) -> RunEvent {
    RunEvent::StepRetrying { skill: skill.name.clone(), step: step.name.clone(), attempt, outcome }
}

/// Sends the event without waiting, because the attempt must go on. If the channel is full, the event is dropped;
/// the step's record contains the same information.
pub(crate) fn emit_terminating(context: &RunContext, skill: &PlannedSkill, step: &PlannedStep, reason: EndReason) {
    let (skill, name, grace_ms) = (skill.name.clone(), step.name.clone(), step.grace_ms);
    let event = RunEvent::StepTerminating { skill, step: name, reason, grace_ms };
    if context.events.try_send(event).is_err() {
        tracing::debug!("an event was dropped: the channel is full or closed");
    }
}

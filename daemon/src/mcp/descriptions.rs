//! Describes the result of a run in Proctor's own words, which contain no text from the repository except sanitized
//! names.

use proctor_core::api::{RunState, RunView, StepView, SubmissionOutcome, all_passed_message};
use proctor_core::decision::rerun::Rerun;
use proctor_core::decision::verdict::{InconclusiveReason, Verdict};
use proctor_core::model::outcome::{Outcome, StartFault, Termination};
use proctor_core::model::run_scope::RunScope;
use proctor_core::record::evidence::CACHED;

use super::tool_answer::StepCounts;
use super::untrusted::safe_name;
use crate::service::OutputUnit;

/// Returns the headline of a run.
pub(super) fn headline(run: &RunView) -> String {
    match (run.state, run.verdict) {
        (RunState::Queued, _) => "NOT VERIFIED YET: the run waits for its turn".to_owned(),
        (RunState::Running, _) => format!("NOT VERIFIED YET: {}", progress(run)),
        (RunState::Finished, Some(Verdict::Passed)) if run.is_partial() => {
            format!("PASSED IN PART (the whole profile is not verified): {}", reason(run))
        }
        (RunState::Finished, Some(Verdict::Passed)) => format!("PASSED: {}", reason(run)),
        (RunState::Finished, Some(Verdict::Failed)) => format!("FAILED: {}", reason(run)),
        (RunState::Finished, _) => format!("INCONCLUSIVE (not verified): {}", reason(run)),
    }
}

/// Returns the reason for the verdict, or the state of a run without a verdict.
pub(super) fn reason(run: &RunView) -> String {
    let partial = run.rerun.as_ref().and_then(Rerun::phrase).or(run.scope.as_ref().map(RunScope::phrase));
    match partial.filter(|_| run.state == RunState::Finished) {
        Some(partial) => format!("{}; {partial}", result_reason(run)),
        None => result_reason(run),
    }
}

fn result_reason(run: &RunView) -> String {
    match (run.state, run.verdict) {
        (RunState::Queued, _) => "the run waits for its turn".to_owned(),
        (RunState::Running, _) => progress(run),
        (RunState::Finished, Some(Verdict::Passed)) => {
            all_passed_message(run.steps.len(), StepCounts::from_run(run).cached)
        }
        (RunState::Finished, Some(Verdict::Failed)) => failure(run),
        (RunState::Finished, _) => inconclusive_reason(run),
    }
}

fn progress(run: &RunView) -> String {
    let ended = run.steps.iter().filter(|step| step.outcome.is_some()).count();
    format!("the run is in progress, {ended} of {} steps have ended", run.steps.len())
}

fn failure(run: &RunView) -> String {
    let failed: Vec<&StepView> = units(run).map(|(_, step)| step).filter(|step| has_failed(step)).collect();
    match failed.as_slice() {
        [] => "a check failed".to_owned(),
        [step] => format!("{} {}", step_name(step), describe_end(step)),
        [step, others @ ..] => format!("{} {}; {} more failed", step_name(step), describe_end(step), others.len()),
    }
}

fn inconclusive_reason(run: &RunView) -> String {
    let doubt = run.doubts.first().map(|record| describe_doubt(record.doubt).to_owned());
    let problem = run.problem.as_ref().map(|problem| problem.kind.title().to_owned());
    let unsure = units(run).map(|(_, step)| step).find(|step| is_unsuccessful(step));
    let unsure = || unsure.map(|step| format!("{} {}", step_name(step), describe_end(step)));
    problem.or(doubt).or_else(unsure).unwrap_or_else(|| "the result is uncertain".to_owned())
}

/// Describes a doubt.
pub(super) fn describe_doubt(doubt: InconclusiveReason) -> &'static str {
    match doubt {
        InconclusiveReason::Toolchain => "a toolchain check did not pass, so no step ran",
        InconclusiveReason::TreeChanged => "the tree was edited during the run",
        InconclusiveReason::Interrupted => "the run was cancelled or interrupted",
        InconclusiveReason::Sandbox => "the sandbox could not be set up as required",
        InconclusiveReason::TierAboveLimit => "the tier of a skill is above the accepted maximum",
        InconclusiveReason::LayerConflict => "two skills that a third skill needs changed the same path",
        InconclusiveReason::ApplyFailed => "a step's changes could not be applied to the work tree",
        InconclusiveReason::ChangedCommit => "a step changed files of the commit, so later steps saw other files",
        InconclusiveReason::NeededPath => "a path that a skill needs and that no commit contains is not available",
        InconclusiveReason::RemoteExecution => "a step passed on a worker whose reports the operator does not trust",
        InconclusiveReason::Internal => "an internal operation failed",
    }
}

/// Describes how a request was answered, if that is worth mentioning.
pub(super) fn describe_how(how: SubmissionOutcome) -> Option<&'static str> {
    match how {
        SubmissionOutcome::Queued => None,
        SubmissionOutcome::Joined => Some("an identical request was already active; this is its run"),
        SubmissionOutcome::Verified => {
            Some("nothing had to run: this exact tree has passed, and its evidence is still valid")
        }
        SubmissionOutcome::Repeated => Some("this is the run of an earlier request"),
    }
}

/// Returns the checks of a run, then its steps.
pub(super) fn units(run: &RunView) -> impl Iterator<Item = (OutputUnit, &StepView)> {
    run.checks
        .iter()
        .map(|check| (OutputUnit::Check, check))
        .chain(run.steps.iter().map(|step| (OutputUnit::Step, step)))
}

/// Returns whether the result of a step counts against the tree.
pub(super) fn has_failed(step: &StepView) -> bool {
    step.outcome.is_some_and(Outcome::is_failure)
}

/// Returns whether a step ended without passing, other than by being skipped.
pub(super) fn is_unsuccessful(step: &StepView) -> bool {
    step.outcome.is_some_and(|outcome| outcome != Outcome::Passed && !outcome.is_left_out())
}

/// Returns the name of a step as `skill/step`.
pub(super) fn step_name(step: &StepView) -> String {
    format!("{}/{}", safe_name(&step.skill), safe_name(&step.name))
}

/// Describes how a step ended, as a phrase that follows its name.
pub(super) fn describe_end(step: &StepView) -> String {
    match (step.outcome, &step.termination) {
        (None, _) => "has not ended".to_owned(),
        (Some(Outcome::Passed), _) => match &step.cached_from {
            Some(run) => format!("passed, {CACHED} from run {run}"),
            None => "passed".to_owned(),
        },
        (Some(Outcome::Drifted), _) => {
            let paths = step.changed.len() as u64 + step.changed_more;
            format!("changed {paths} path{} that it must not change", if paths == 1 { "" } else { "s" })
        }
        (_, Some(Termination::NotStarted { fault, .. })) => {
            format!("{}: {}", step.termination_phrase(), describe_start_fault(*fault))
        }
        _ => step.termination_phrase(),
    }
}

fn describe_start_fault(fault: StartFault) -> &'static str {
    match fault {
        StartFault::NotReached => "it did not start because of an earlier failure",
        StartFault::NoFiles => "there is no file that it checks",
        StartFault::ProgramMissing => "its program does not exist",
        StartFault::NotAnInput => "a file that it checks is not one of its `inputs`",
        StartFault::Sandbox => "the sandbox could not be set up",
        StartFault::Workdir => "its work directory does not exist",
        StartFault::Remote => "the cluster did not execute it, or the report of its worker is not valid",
        StartFault::Internal => "an internal operation failed",
    }
}

/// Formats a duration for humans.
pub(super) fn format_duration(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        _ => format!("{}m{:02}s", ms / 60_000, ms / 1000 % 60),
    }
}

//! Describes the result of a run in Proctor's own words, which contain no text from the repository except sanitized
//! names.

use proctor_core::api::{How, RunState, RunView, StepView, all_passed};
use proctor_core::outcome::{Outcome, StartFault, Termination};
use proctor_core::rerun::Rerun;
use proctor_core::verdict::{Doubt, Verdict};

use super::untrusted::name;
use crate::service::Unit;

/// Returns the headline of a run.
pub(super) fn headline(run: &RunView) -> String {
    match (run.state, run.verdict) {
        (RunState::Queued, _) => "NOT VERIFIED YET: the run waits for its turn".to_owned(),
        (RunState::Running, _) => format!("NOT VERIFIED YET: {}", under_way(run)),
        (RunState::Finished, Some(Verdict::Passed)) if run.is_partial() => {
            format!("PASSED IN PART (not verified as a whole): {}", reason(run))
        }
        (RunState::Finished, Some(Verdict::Passed)) => format!("PASSED: {}", reason(run)),
        (RunState::Finished, Some(Verdict::Failed)) => format!("FAILED: {}", reason(run)),
        (RunState::Finished, _) => format!("INCONCLUSIVE (not verified): {}", reason(run)),
    }
}

/// Returns the reason for the verdict, or the state of a run without a verdict.
pub(super) fn reason(run: &RunView) -> String {
    match run.rerun.as_ref().and_then(Rerun::phrase).filter(|_| run.state == RunState::Finished) {
        Some(partial) => format!("{}; {partial}", of_what_ran(run)),
        None => of_what_ran(run),
    }
}

fn of_what_ran(run: &RunView) -> String {
    match (run.state, run.verdict) {
        (RunState::Queued, _) => "the run waits for its turn".to_owned(),
        (RunState::Running, _) => under_way(run),
        (RunState::Finished, Some(Verdict::Passed)) => all_passed(run.steps.len()),
        (RunState::Finished, Some(Verdict::Failed)) => failure(run),
        (RunState::Finished, _) => uncertainty(run),
    }
}

fn under_way(run: &RunView) -> String {
    let ended = run.steps.iter().filter(|step| step.outcome.is_some()).count();
    format!("the run is under way, {ended} of {} steps have ended", run.steps.len())
}

fn failure(run: &RunView) -> String {
    let failed: Vec<&StepView> = units(run).map(|(_, step)| step).filter(|step| has_failed(step)).collect();
    match failed.as_slice() {
        [] => "a check failed".to_owned(),
        [step] => format!("{} {}", named(step), manner(step)),
        [step, others @ ..] => format!("{} {}; {} more failed", named(step), manner(step), others.len()),
    }
}

fn uncertainty(run: &RunView) -> String {
    let doubt = run.doubts.first().map(|record| doubt(record.doubt).to_owned());
    let problem = run.problem.as_ref().map(|problem| problem.kind.title().to_owned());
    let unsure = units(run).map(|(_, step)| step).find(|step| is_wanting(step));
    let unsure = || unsure.map(|step| format!("{} {}", named(step), manner(step)));
    problem.or(doubt).or_else(unsure).unwrap_or_else(|| "the result is uncertain".to_owned())
}

/// Describes a doubt.
pub(super) fn doubt(doubt: Doubt) -> &'static str {
    match doubt {
        Doubt::Toolchain => "a toolchain check did not pass, so no step ran",
        Doubt::TreeChanged => "the tree was edited during the run",
        Doubt::Interrupted => "the run was cancelled or interrupted",
        Doubt::Sandbox => "the sandbox could not be set up as required",
        Doubt::TierAboveLimit => "a skill is above the tier that may run",
        Doubt::LayerConflict => "two skills that a third skill needs changed the same path",
        Doubt::ApplyFailed => "a step's changes could not be applied to the work tree",
        Doubt::Internal => "an internal operation failed",
    }
}

/// Describes how a request was answered, if that is worth mentioning.
pub(super) fn met(how: How) -> Option<&'static str> {
    match how {
        How::Queued => None,
        How::Joined => Some("an identical request was already active; this is its run"),
        How::Verified => Some("nothing had to run: this exact tree has passed, and its evidence is still valid"),
        How::Repeated => Some("this is the run of an earlier request"),
    }
}

/// Returns the checks of a run, then its steps.
pub(super) fn units(run: &RunView) -> impl Iterator<Item = (Unit, &StepView)> {
    run.checks.iter().map(|check| (Unit::Check, check)).chain(run.steps.iter().map(|step| (Unit::Step, step)))
}

/// Returns whether the result of a step counts against the tree.
pub(super) fn has_failed(step: &StepView) -> bool {
    step.outcome.is_some_and(Outcome::is_failure)
}

/// Returns whether a step ended without passing, other than by being skipped.
pub(super) fn is_wanting(step: &StepView) -> bool {
    step.outcome.is_some_and(|outcome| !matches!(outcome, Outcome::Passed | Outcome::Skipped))
}

/// Returns the name of a step as `skill/step`.
pub(super) fn named(step: &StepView) -> String {
    format!("{}/{}", name(&step.skill), name(&step.name))
}

/// Describes how a step ended, as a phrase that follows its name.
pub(super) fn manner(step: &StepView) -> String {
    match (step.outcome, &step.termination) {
        (None, _) => "has not ended".to_owned(),
        (Some(Outcome::Passed), _) => "passed".to_owned(),
        (Some(Outcome::Drifted), _) => {
            let paths = step.changed.len() as u64 + step.changed_more;
            format!("changed {paths} path{} that it must not change", if paths == 1 { "" } else { "s" })
        }
        (_, Some(Termination::NotStarted { fault, .. })) => format!("{}: {}", step.manner(), unstarted(*fault)),
        _ => step.manner(),
    }
}

fn unstarted(fault: StartFault) -> &'static str {
    match fault {
        StartFault::NotReached => "it did not start because of an earlier failure",
        StartFault::ProgramMissing => "its program does not exist",
        StartFault::Sandbox => "the sandbox could not be set up",
        StartFault::Workdir => "its work directory does not exist",
        StartFault::Internal => "an internal operation failed",
    }
}

/// Formats a duration for humans.
pub(super) fn duration(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        _ => format!("{}m{:02}s", ms / 60_000, ms / 1000 % 60),
    }
}

//! Explains the outcome of a step or toolchain check as a human-readable phrase, for the terminal and the HTML
//! page.
//!
//! Reasons from the system or from files are included unescaped; the caller must escape the phrase for display.
//! Machine-readable formats use `report/text.rs` instead, whose phrases are predicates without figures that differ
//! from run to run.

use crate::model::enforcement::{Control, ControlState};
use crate::model::outcome::{Outcome, StartFault, Termination};
use crate::model::plan::VersionDemand;
use crate::record::evidence::{CheckEvidence, StepEvidence};
use crate::text::humanize::{count, duration, exact_duration, signal_name};

/// Returns the reason for a step's outcome.
pub fn step_reason(step: &StepEvidence) -> String {
    let end = termination_reason(step);
    match step.outcome {
        Outcome::Drifted => format!("{}; {end}", drift_phrase(step)),
        Outcome::Inconclusive if step.termination.exit_code().is_some() => {
            format!("no reliable result, although {end}")
        }
        _ => match step.forbidden_leak() {
            Some(leaked) => format!("{} (leaks: fail); {end}", leaked.phrase()),
            None => end,
        },
    }
}

/// Returns the reason why a toolchain check failed.
pub fn check_reason(check: &CheckEvidence) -> String {
    match (&check.demand, &check.version_read) {
        _ if check.step.outcome != Outcome::Passed => step_reason(&check.step),
        (VersionDemand::Range { range }, Some(version)) => format!("version {version} is not in `{range}`"),
        (VersionDemand::Range { range }, None) => format!("no version could be read; `{range}` is required"),
        (VersionDemand::Any, _) => "the check failed".to_owned(),
    }
}

fn drift_phrase(step: &StepEvidence) -> String {
    let found = &step.drift.found;
    let paths = found.changes.len().saturating_add(usize::try_from(found.omitted).unwrap_or(usize::MAX));
    let mode = step.planned.read_only.as_str();
    format!("tier 3, changed {} that it must not change (read_only: {mode})", count(paths, "path"))
}

/// Returns how the process of a step ended.
pub fn termination_reason(step: &StepEvidence) -> String {
    let planned = &step.planned;
    let after = format!("after {}", duration(step.duration_ms));
    match &step.termination {
        Termination::Exited { code } if planned.expect_exit.contains(code) => format!("exit code {code} {after}"),
        Termination::Exited { code } => {
            let expected: Vec<String> = planned.expect_exit.iter().map(u8::to_string).collect();
            format!("exit code {code} {after}, expected {}", expected.join(" or "))
        }
        Termination::Signaled { signal } => format!("ended by signal {} {after}", signal_name(*signal)),
        Termination::TimedOut { .. } => {
            format!("did not end within {}; {}", exact_duration(planned.timeout_ms), timeout_phrase(step))
        }
        Termination::LimitHit { limit, .. } => {
            format!("hit its limit of {} {after}", planned.limits.hit_phrase(*limit))
        }
        Termination::Cancelled if !step.was_started() => "the run was cancelled before it started".to_owned(),
        Termination::Cancelled => format!("the run was cancelled while it ran, {after}"),
        Termination::NotStarted { reason, fault: StartFault::NotReached } => reason.clone(),
        Termination::NotStarted { reason, .. } => format!("not started: {reason}"),
    }
}

/// Returns what was done at the deadline. It claims that all processes were ended only if the kernel enforced a pid
/// namespace.
fn timeout_phrase(step: &StepEvidence) -> String {
    let contained = matches!(step.enforcement.0.get(&Control::PidNamespace), Some(ControlState::Enforced { .. }));
    let what = if contained { "it and all processes that it had started were ended" } else { "it was ended" };
    let grace = exact_duration(step.planned.grace_ms);
    let how = if step.duration_ms >= step.planned.timeout_ms.saturating_add(step.planned.grace_ms) {
        format!("SIGTERM, then SIGKILL after {grace}")
    } else {
        "SIGTERM".to_owned()
    };
    format!("{what} after {} ({how})", duration(step.duration_ms))
}

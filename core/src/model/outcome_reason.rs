//! Explains the outcome of a step or toolchain check as a human-readable phrase, for the terminal and the HTML
//! page.
//!
//! Reasons from the system or from files are included unescaped; the caller must escape the phrase for display.
//! Machine-readable formats use `report/text.rs` instead, whose phrases are predicates without figures that differ
//! from run to run.

use crate::model::outcome::{Outcome, StartFault, Termination};
use crate::model::plan::VersionDemand;
use crate::record::evidence::{CheckEvidence, StepEvidence};
use crate::text::humanize::{exact_duration, signal_name};

/// Returns the reason for a step's outcome.
pub fn step_reason(step: &StepEvidence) -> String {
    let end = termination_reason(step);
    match step.outcome {
        Outcome::Drifted => format!("{} ({end})", step.drift.found.summary()),
        Outcome::Inconclusive if step.termination.exit_code().is_some() => format!("no reliable result ({end})"),
        _ => match step.forbidden_leak() {
            Some(leaked) => format!("{} (leaks: fail; {end})", leaked.phrase()),
            None => end,
        },
    }
}

/// Returns whether the reason for a step's outcome is only how its process ended.
pub fn is_plain_end(step: &StepEvidence) -> bool {
    let ended = matches!(
        step.termination,
        Termination::Exited { .. }
            | Termination::Signaled { .. }
            | Termination::TimedOut { .. }
            | Termination::LimitHit { .. }
    );
    ended && !matches!(step.outcome, Outcome::Drifted | Outcome::Inconclusive) && step.forbidden_leak().is_none()
}

/// Returns the program that a failed toolchain check did not find; `None` if the check failed for another reason.
pub fn missing_program(check: &CheckEvidence) -> Option<&str> {
    let words = check.step.planned.cmd.words();
    match &check.step.termination {
        _ if check.satisfied => None,
        Termination::NotStarted { fault: StartFault::ProgramMissing, .. } => words.first().map(String::as_str),
        Termination::Exited { code: 1 | 127 } => match words {
            [_, option, script] if option == "-c" => searched_program(script),
            _ => None,
        },
        _ => None,
    }
}

/// Returns `x` of a shell command `command -v x`.
fn searched_program(script: &str) -> Option<&str> {
    let program = script.trim().strip_prefix("command -v ")?.trim();
    let is_name = |c: char| c.is_ascii_alphanumeric() || "._-+/".contains(c);
    (!program.is_empty() && program.chars().all(is_name)).then_some(program)
}

/// Returns the headline for a toolchain check that failed: `missing tool: lychee`.
pub fn check_headline(check: &CheckEvidence) -> String {
    let toolchain = &check.toolchain;
    match (missing_program(check), &check.demand, &check.version_read) {
        (Some(program), ..) if program == toolchain.as_str() => format!("missing tool: {program}"),
        (Some(program), ..) => format!("missing tool: {toolchain} (`{program}`)"),
        _ if check.step.outcome != Outcome::Passed => format!("toolchain {toolchain}: {}", step_reason(&check.step)),
        (None, VersionDemand::Range { range }, Some(version)) => {
            format!("wrong version: {toolchain} {version}, `{range}` is required")
        }
        (None, VersionDemand::Range { range }, None) => {
            format!("unknown version: {toolchain} printed none, `{range}` is required")
        }
        (None, VersionDemand::Any, _) => format!("toolchain {toolchain}: the check failed"),
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

/// Returns how the process of a step ended: `exit 1, 16 ms`.
pub fn termination_reason(step: &StepEvidence) -> String {
    let planned = &step.planned;
    let time = step.time_text();
    match &step.termination {
        Termination::Exited { code } if planned.expect_exit.contains(code) || planned.expect_exit == [0] => {
            format!("exit {code}, {time}")
        }
        Termination::Exited { code } => {
            let expected: Vec<String> = planned.expect_exit.iter().map(u8::to_string).collect();
            format!("exit {code}, expected {}, {time}", expected.join(" or "))
        }
        Termination::Signaled { signal } => format!("ended by signal {}, {time}", signal_name(*signal)),
        Termination::TimedOut { .. } => {
            format!("did not end within {}; {}", exact_duration(planned.timeout_ms), timeout_phrase(step))
        }
        Termination::LimitHit { limit, .. } => {
            format!("hit its limit of {}, {time}", planned.limits.hit_phrase(*limit))
        }
        Termination::Cancelled if !step.was_started() => "the run was cancelled before it started".to_owned(),
        Termination::Cancelled => format!("the run was cancelled while it ran, {time}"),
        Termination::NotStarted { reason, fault: StartFault::NotReached } => reason.clone(),
        Termination::NotStarted { reason, .. } => format!("not started: {reason}"),
    }
}

/// Returns the signals that were sent at the deadline.
fn timeout_phrase(step: &StepEvidence) -> String {
    match step.duration_ms >= step.planned.timeout_ms.saturating_add(step.planned.grace_ms) {
        true => format!("ended by SIGTERM, then SIGKILL after {}", exact_duration(step.planned.grace_ms)),
        false => "ended by SIGTERM".to_owned(),
    }
}

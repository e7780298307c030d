//! Words for readers of the page: durations, sizes, counts, how a step ended and why it has its outcome.

use serde::Serialize;

use crate::evidence::{CheckEvidence, StepEvidence};
use crate::outcome::{Outcome, StartFault, Termination};
use crate::plan::{PlannedStep, VersionDemand};
use crate::verdict::Verdict;
use crate::words::{limit_words, signal_name};

pub(super) use crate::words::{bound, count, duration, size};

/// How many characters of a name or a path are shown.
const NAME_CHARS: usize = 300;
/// How many characters of a reason are shown.
const REASON_CHARS: usize = 1_000;
/// How many characters of a command are shown.
const COMMAND_CHARS: usize = 4_000;

/// A text, cut where it is longer than a page has use for.
pub(super) fn cut(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// A name or a path, cut where it is longer than a reader has use for.
pub(super) fn name(text: &str) -> String {
    cut(text, NAME_CHARS)
}

/// A sentence of ours that has words of others in it, or a reason.
pub(super) fn sentence(text: &str) -> String {
    cut(text.trim_end(), REASON_CHARS)
}

/// A command as a shell would have to be told it.
pub(super) fn command(step: &PlannedStep) -> String {
    cut(&step.cmd.to_string(), COMMAND_CHARS)
}

/// The word that a value of ours has in the documents, with spaces in it.
pub(super) fn word<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word.replace('_', " "),
        Ok(other) => other.to_string(),
        Err(error) => error.to_string(),
    }
}

/// What a verdict means, as a sentence.
pub(super) fn meaning(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Passed => "Every step ran to its end on the tree that is named here, and did what was expected.",
        Verdict::Failed => "A check speaks against the tree.",
        Verdict::Inconclusive => "There is no honest answer, and it passes no gate.",
    }
}

/// What a verdict on several runs means, as a sentence.
pub(super) fn meaning_together(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Passed => "Each of these runs passed.",
        Verdict::Failed => "In one of these runs at least, a check speaks against the tree.",
        Verdict::Inconclusive => "There is no honest answer to all of them together, and that passes no gate.",
    }
}

/// A sign for an outcome, for eyes alone: a word stands beside it.
pub(super) fn sign(outcome: Option<Outcome>) -> &'static str {
    match outcome {
        Some(Outcome::Passed) => "✓",
        Some(Outcome::Failed) => "✕",
        Some(Outcome::TimedOut) => "◔",
        Some(Outcome::Drifted) => "±",
        Some(Outcome::Skipped) => "–",
        Some(Outcome::Cancelled) => "⊘",
        Some(Outcome::Inconclusive) | None => "?",
    }
}

/// An outcome as people say it; a step without one did not end.
pub(super) fn outcome(outcome: Option<Outcome>) -> String {
    outcome.map_or_else(|| "did not end".to_owned(), |outcome| word(&outcome))
}

/// Whether there was a process: its sandbox says what was enforced.
pub(super) fn was_started(step: &StepEvidence) -> bool {
    !step.enforcement.0.is_empty()
}

/// Why a step has its outcome, as a phrase.
pub(super) fn why(step: &StepEvidence) -> String {
    let end = manner_of_end(step);
    match step.outcome {
        Outcome::Drifted => format!("{}; {end}", what_drifted(step)),
        Outcome::Inconclusive if step.termination.exit_code().is_some() => format!("no honest answer, although {end}"),
        _ => end,
    }
}

/// Why a toolchain check does not hold, as a phrase.
pub(super) fn why_unsatisfied(check: &CheckEvidence) -> String {
    match (&check.demand, &check.version_read) {
        _ if check.step.outcome != Outcome::Passed => why(&check.step),
        (VersionDemand::Range { range }, Some(version)) => format!("version {version} is not in {range}"),
        (VersionDemand::Range { range }, None) => format!("no version could be read; {range} is demanded"),
        (VersionDemand::Any, _) => "the check does not hold".to_owned(),
    }
}

fn what_drifted(step: &StepEvidence) -> String {
    let omitted = usize::try_from(step.drift.found.omitted).unwrap_or(usize::MAX);
    let paths = step.drift.found.changes.len().saturating_add(omitted);
    format!("changed {} that it must not (read_only: {})", count(paths, "path"), step.planned.read_only.as_str())
}

/// How the process of a step ended, as a phrase.
fn manner_of_end(step: &StepEvidence) -> String {
    let planned = &step.planned;
    let after = format!("after {}", duration(step.duration_ms));
    match &step.termination {
        Termination::Exited { code } if planned.expect_exit.contains(code) => format!("exit code {code} {after}"),
        Termination::Exited { code } => {
            let expected: Vec<String> = planned.expect_exit.iter().map(u8::to_string).collect();
            format!("exit code {code} {after}, {} was expected", expected.join(" or "))
        }
        Termination::Signaled { signal } => format!("ended by signal {} {after}", signal_name(*signal)),
        Termination::TimedOut { .. } => format!("did not end within {}; stopped {after}", bound(planned.timeout_ms)),
        Termination::LimitHit { limit, .. } => {
            format!("hit its limit of {} {after}", limit_words(*limit, &planned.limits))
        }
        Termination::Cancelled if !was_started(step) => "the run was cancelled before it started".to_owned(),
        Termination::Cancelled => format!("the run was cancelled while it ran, {after}"),
        Termination::NotStarted { reason, fault: StartFault::NotReached } => sentence(reason),
        Termination::NotStarted { reason, .. } => format!("not started: {}", sentence(reason)),
    }
}

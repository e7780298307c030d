//! Words for readers of the page: names, commands, outcomes, what a verdict means. Why a step has its outcome is said
//! by `reason.rs`.

use serde::Serialize;

use crate::outcome::Outcome;
use crate::plan::PlannedStep;
use crate::verdict::Verdict;

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
        Verdict::Inconclusive => "The result is uncertain, and it passes no gate.",
    }
}

/// What a verdict on several runs means, as a sentence.
pub(super) fn meaning_together(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Passed => "Each of these runs passed.",
        Verdict::Failed => "In one of these runs at least, a check speaks against the tree.",
        Verdict::Inconclusive => "The result of all of them together is uncertain, and it passes no gate.",
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

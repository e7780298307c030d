//! Formats names, commands, outcomes and verdicts for readers of the page. The reasons for outcomes are in
//! `reason.rs`.

use serde::Serialize;

use crate::outcome::Outcome;
use crate::plan::PlannedStep;
use crate::verdict::Verdict;

pub(super) use crate::words::{bound, count, duration, size};

/// Maximum number of characters that are shown of a name or a path.
const NAME_CHARS: usize = 300;
/// Maximum number of characters that are shown of a reason.
const REASON_CHARS: usize = 1_000;
/// Maximum number of characters that are shown of a command.
const COMMAND_CHARS: usize = 4_000;

/// Truncates a text to a number of characters.
pub(super) fn cut(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// Truncates a name or a path.
pub(super) fn name(text: &str) -> String {
    cut(text, NAME_CHARS)
}

/// Truncates a reason or a sentence that contains untrusted text.
pub(super) fn sentence(text: &str) -> String {
    cut(text.trim_end(), REASON_CHARS)
}

/// Formats a command in shell syntax.
pub(super) fn command(step: &PlannedStep) -> String {
    cut(&step.cmd.to_string(), COMMAND_CHARS)
}

/// Returns the serialized name of an enum value, with spaces instead of underscores.
pub(super) fn word<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word.replace('_', " "),
        Ok(other) => other.to_string(),
        Err(error) => error.to_string(),
    }
}

/// Returns a sentence that explains a verdict.
pub(super) fn meaning(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Passed => "Every step ran to its end on the tree that is named here, and did what was expected.",
        Verdict::Failed => "A check speaks against the tree.",
        Verdict::Inconclusive => "The result is uncertain, and it passes no gate.",
    }
}

/// Returns a sentence that explains the combined verdict of several runs.
pub(super) fn meaning_together(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Passed => "Each of these runs passed.",
        Verdict::Failed => "In one of these runs at least, a check speaks against the tree.",
        Verdict::Inconclusive => "The result of all of them together is uncertain, and it passes no gate.",
    }
}

/// Returns a sign for an outcome. It is decorative: a word is always shown next to it.
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

/// Returns an outcome in words; a step without one did not end.
pub(super) fn outcome(outcome: Option<Outcome>) -> String {
    outcome.map_or_else(|| "did not end".to_owned(), |outcome| word(&outcome))
}

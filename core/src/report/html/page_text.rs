//! Formats names, commands, outcomes and verdicts for readers of the page. The reasons for outcomes are in
//! `outcome_reason.rs`.

use serde::Serialize;

use crate::decision::verdict::Verdict;
use crate::model::outcome::Outcome;
use crate::model::plan::PlannedStep;

pub(super) use crate::text::humanize::{count, duration, exact_duration, size};

/// Maximum number of characters that are shown of a name or a path.
const NAME_CHARS: usize = 300;
/// Maximum number of characters that are shown of a reason.
const REASON_CHARS: usize = 1_000;
/// Maximum number of characters that are shown of a command.
const COMMAND_CHARS: usize = 4_000;

/// Truncates a text to a number of characters.
pub(super) fn truncate_chars(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// Truncates a name or a path.
pub(super) fn truncated_name(text: &str) -> String {
    truncate_chars(text, NAME_CHARS)
}

/// Truncates a reason or a sentence that contains untrusted text.
pub(super) fn truncated_sentence(text: &str) -> String {
    truncate_chars(text.trim_end(), REASON_CHARS)
}

/// Formats a command in shell syntax.
pub(super) fn command_line(step: &PlannedStep) -> String {
    truncate_chars(&step.cmd.to_string(), COMMAND_CHARS)
}

/// Returns the serialized name of an enum value, with spaces instead of underscores.
pub(super) fn enum_value_text<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word.replace('_', " "),
        Ok(other) => other.to_string(),
        Err(error) => error.to_string(),
    }
}

/// Returns a sentence that explains a verdict.
pub(super) fn verdict_explanation(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Passed => "Every step ran to completion on the tree named here, with the expected result.",
        Verdict::Failed => "A check reports a problem in the tree.",
        Verdict::Inconclusive => "The result is uncertain, so it passes no gate.",
    }
}

/// Returns a sentence that explains the combined verdict of several runs.
pub(super) fn combined_verdict_explanation(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Passed => "Each of these runs passed.",
        Verdict::Failed => "In at least one of these runs, a check reports a problem in the tree.",
        Verdict::Inconclusive => "The combined result is uncertain, so it passes no gate.",
    }
}

/// Returns a sign for an outcome. It is decorative: a word is always shown next to it.
pub(super) fn outcome_symbol(outcome: Option<Outcome>) -> &'static str {
    match outcome {
        Some(Outcome::Passed) => "✓",
        Some(Outcome::Failed) => "✕",
        Some(Outcome::TimedOut) => "◔",
        Some(Outcome::Drifted) => "±",
        Some(Outcome::Skipped | Outcome::NoFiles) => "–",
        Some(Outcome::Cancelled) => "⊘",
        Some(Outcome::Inconclusive) | None => "?",
    }
}

/// Returns an outcome in words; a step without one did not end.
pub(super) fn outcome_text(outcome: Option<Outcome>) -> String {
    outcome.map_or_else(|| "did not end".to_owned(), |outcome| enum_value_text(&outcome))
}

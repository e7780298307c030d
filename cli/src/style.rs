//! Defines the colours of the output. Colour only repeats what a word says, and the screen removes it if it is not
//! wanted.

use std::fmt::Display;

use anstyle::{AnsiColor, Style};
use proctor_core::code::ErrorCode;
use proctor_core::decision::verdict::{EXIT_DRIFT, EXIT_FAILED, EXIT_TIMEOUT, Verdict};
use proctor_core::model::outcome::Outcome;

/// A negative result.
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
/// A positive result.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default().bold();
/// An inconclusive result.
pub(crate) const UNSURE: Style = AnsiColor::Yellow.on_default().bold();
/// Secondary text.
pub(crate) const DIM: Style = Style::new().dimmed();
/// Emphasised text.
pub(crate) const STRONG: Style = Style::new().bold();
/// The word `hint:`.
pub(crate) const HINT: Style = AnsiColor::Cyan.on_default().bold();
/// A removed line of a diff.
pub(crate) const REMOVED: Style = AnsiColor::Red.on_default();
/// An added line of a diff.
pub(crate) const ADDED: Style = AnsiColor::Green.on_default();

/// Wraps `text` in the escape sequences of `style`.
pub(crate) fn paint(style: Style, text: impl Display) -> String {
    format!("{style}{text}{style:#}")
}

/// Returns the style of an outcome.
pub(crate) fn outcome_style(outcome: Outcome) -> Style {
    match outcome {
        Outcome::Passed => GOOD,
        Outcome::Failed | Outcome::TimedOut | Outcome::Drifted => BAD,
        Outcome::Skipped | Outcome::NoFiles => DIM,
        Outcome::Cancelled | Outcome::Inconclusive => UNSURE,
    }
}

/// Returns the style of a verdict.
pub(crate) fn verdict_style(verdict: Verdict) -> Style {
    match verdict {
        Verdict::Passed => GOOD,
        Verdict::Failed => BAD,
        Verdict::Inconclusive => UNSURE,
    }
}

/// Returns the style of an exit code.
pub(crate) fn exit_code_style(code: u8) -> Style {
    match code {
        0 => GOOD,
        EXIT_FAILED | EXIT_DRIFT | EXIT_TIMEOUT => BAD,
        _ => UNSURE,
    }
}

/// Formats `error[P0123]: message`, followed by a `hint:` line for each hint.
pub(crate) fn error(code: ErrorCode, message: &str, hints: &[String]) -> String {
    format!("{} {message}\n", paint(BAD, format!("error[{code}]:"))) + &hint_lines(hints)
}

/// Formats `error: message`, for an error without a code.
pub(crate) fn plain_error(message: &str) -> String {
    format!("{} {message}\n", paint(BAD, "error:"))
}

/// Formats `warning: message`, followed by a `hint:` line for each hint.
pub(crate) fn warning_with_hints(message: &str, hints: &[String]) -> String {
    warning(message) + &hint_lines(hints)
}

/// Formats a `hint:` line for each hint.
pub(crate) fn hint_lines(hints: &[String]) -> String {
    hints.iter().map(|hint| format!("{} {hint}\n", paint(HINT, "hint:"))).collect()
}

/// Formats `warning: message`.
pub(crate) fn warning(message: &str) -> String {
    format!("{} {message}\n", paint(UNSURE, "warning:"))
}

//! The colours of our words. Colour never carries anything that a word beside it does not say;
//! the screen takes it out where none is wanted.

use std::fmt::Display;

use anstyle::{AnsiColor, Style};
use proctor_core::code::Code;
use proctor_core::outcome::Outcome;
use proctor_core::verdict::{EXIT_DRIFT, EXIT_FAILED, EXIT_TIMEOUT, Verdict};

/// What speaks against the tree.
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
/// What is as it should be.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default().bold();
/// What has no honest answer.
pub(crate) const UNSURE: Style = AnsiColor::Yellow.on_default().bold();
/// What matters less.
pub(crate) const DIM: Style = Style::new().dimmed();
/// What matters more.
pub(crate) const STRONG: Style = Style::new().bold();
/// What to do next.
pub(crate) const HINT: Style = AnsiColor::Cyan.on_default().bold();
/// A line that a change took away.
pub(crate) const REMOVED: Style = AnsiColor::Red.on_default();
/// A line that a change brought.
pub(crate) const ADDED: Style = AnsiColor::Green.on_default();

/// `text` in `style`.
pub(crate) fn paint(style: Style, text: impl Display) -> String {
    format!("{style}{text}{style:#}")
}

/// The style of an outcome.
pub(crate) fn of_outcome(outcome: Outcome) -> Style {
    match outcome {
        Outcome::Passed => GOOD,
        Outcome::Failed | Outcome::TimedOut | Outcome::Drifted => BAD,
        Outcome::Skipped => DIM,
        Outcome::Cancelled | Outcome::Inconclusive => UNSURE,
    }
}

/// The style of a verdict.
pub(crate) fn of_verdict(verdict: Verdict) -> Style {
    match verdict {
        Verdict::Passed => GOOD,
        Verdict::Failed => BAD,
        Verdict::Inconclusive => UNSURE,
    }
}

/// The style of an exit code.
pub(crate) fn of_exit_code(code: u8) -> Style {
    match code {
        0 => GOOD,
        EXIT_FAILED | EXIT_DRIFT | EXIT_TIMEOUT => BAD,
        _ => UNSURE,
    }
}

/// `error[P0123]: message`, and a `hint:` line for each thing that can be done.
pub(crate) fn error(code: Code, message: &str, hints: &[String]) -> String {
    format!("{} {message}\n", paint(BAD, format!("error[{code}]:"))) + &lines_of(hints)
}

/// `warning: message`, and a `hint:` line for each thing that can be done.
pub(crate) fn warning_with(message: &str, hints: &[String]) -> String {
    warning(message) + &lines_of(hints)
}

/// A `hint:` line for each thing that can be done.
pub(crate) fn lines_of(hints: &[String]) -> String {
    hints.iter().map(|hint| format!("{} {hint}\n", paint(HINT, "hint:"))).collect()
}

/// `warning: message`.
pub(crate) fn warning(message: &str) -> String {
    format!("{} {message}\n", paint(UNSURE, "warning:"))
}

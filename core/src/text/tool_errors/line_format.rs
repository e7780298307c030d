//! Recognises errors that one line is enough to identify.

use super::location::{SourceLocation, is_number, parse_prefix};
use super::tool_error::{ErrorKind, ToolError};

/// Starts of lines that report an error.
const ERROR_HEADS: [&str; 9] =
    ["error:", "error[", "error ts", "fatal:", "fatal error:", "[error]", "npm err!", "npm error", "panic:"];
/// Starts of lines after `error: ` that only refer to other errors.
const REFERRING_ERRORS: [&str; 8] = [
    "could not compile",
    "aborting due to",
    "test failed, to rerun",
    "doctest failed, to rerun",
    "process didn't exit",
    "recipe ",
    "build failed",
    "command failed",
];
/// Starts of lines that report that a part failed.
const SUMMARY_HEADS: [&str; 5] = ["FAILED ", "FAIL\t", "FAIL ", "ERROR ", "npm err"];
/// Starts of lines that report the failure of a test or a problem.
const FAILURE_HEADS: [&str; 6] = ["FAIL:", "--- FAIL", "not ok ", "✖ ", "✗ ", "● "];
/// Words in lines that probably report an error.
const KEYWORDS: [&str; 10] =
    ["error", "failed", "failure", "fatal", "panic", "not found", "no such file", "denied", "cannot ", "could not "];
/// Words for errors that follow a number in a line that counts them.
const COUNTED_WORDS: [&str; 5] = ["error", "fail", "problem", "issue", "warning"];
/// Maximum number of words between a number and the word for what it counts.
const MAX_WORDS_BETWEEN: usize = 2;

/// Returns the error in a line, if the line looks like one.
pub(super) fn parse(line: &str, at: usize) -> Option<ToolError> {
    let trimmed = line.trim_start();
    if let Some((location, message)) = error_after_location(trimmed) {
        return Some(ToolError::new(at, ErrorKind::Detail, message).at([location]));
    }
    classify(trimmed).map(|kind| ToolError::new(at, kind, trimmed))
}

fn classify(line: &str) -> Option<ErrorKind> {
    let is_make = line
        .split_once(": *** ")
        .is_some_and(|(program, _)| program.split('[').next().is_some_and(|program| program.ends_with("make")));
    let lower = line.to_ascii_lowercase();
    if is_make || is_referring(&lower) {
        return Some(ErrorKind::Summary);
    }
    if has_error_prefix(&lower) || is_exception(line) || is_panic(line) {
        return Some(ErrorKind::Detail);
    }
    if counts_errors(&lower) || lower.ends_with("failing tests:") {
        return None;
    }
    let is_rust_result = line.starts_with("test ") && line.ends_with("... FAILED");
    if is_rust_result || SUMMARY_HEADS.iter().any(|head| line.starts_with(head)) {
        return Some(ErrorKind::Summary);
    }
    if FAILURE_HEADS.iter().any(|head| line.starts_with(head)) && line != "● Console" {
        return Some(ErrorKind::Detail);
    }
    has_keyword(&lower).then_some(ErrorKind::Keyword)
}

fn has_keyword(lower: &str) -> bool {
    let reports_no_errors = ["0 error", "0 fail", "no error", "without error"].iter().any(|word| lower.contains(word));
    !reports_no_errors && KEYWORDS.iter().any(|word| lower.contains(word))
}

/// Matches `error: …`, `error[E0308]: …`, `fatal: …`, `npm ERR! …`, `panic: …`.
pub(super) fn has_error_prefix(lower: &str) -> bool {
    ERROR_HEADS.iter().any(|head| lower.starts_with(head))
}

/// Matches `error: could not compile …` and other lines that only refer to errors above them.
fn is_referring(lower: &str) -> bool {
    let Some(rest) = lower.strip_prefix("error: ") else {
        return lower.starts_with("npm err! a complete log") || lower.starts_with("npm error a complete log");
    };
    REFERRING_ERRORS.iter().any(|start| rest.starts_with(start)) || counts_errors(rest) && rest.starts_with(is_digit)
}

fn is_digit(c: char) -> bool {
    c.is_ascii_digit()
}

/// Matches lines that only count errors: `Found 15 errors.`, `✖ 6 problems (5 errors)`, `Tests: 3 failed, 2 passed`.
pub(super) fn counts_errors(lower: &str) -> bool {
    let words: Vec<&str> =
        lower.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).take(40).collect();
    words.iter().enumerate().any(|(at, word)| {
        let behind = words.iter().skip(at + 1).take(1 + MAX_WORDS_BETWEEN);
        is_number(word) && behind.take_while(|word| !is_number(word)).any(|word| is_counted(word))
    })
}

fn is_counted(word: &str) -> bool {
    COUNTED_WORDS.iter().any(|start| word.starts_with(start))
}

/// Matches `thread 'main' panicked at …`.
pub(super) fn is_panic(line: &str) -> bool {
    line.starts_with("thread '") && line.contains("panicked at")
}

/// Matches `ValueError: …`, `AssertionError`, `AssertionError [ERR_ASSERTION]: …`,
/// `java.lang.IllegalStateException: …`: a dotted name that ends in `Error` or `Exception`.
pub(super) fn is_exception(line: &str) -> bool {
    let line = line.strip_prefix("Uncaught ").unwrap_or(line);
    let word = line.split([':', ' ']).next().unwrap_or_default();
    let is_word = word.len() > 5 && word.starts_with(|c: char| c.is_ascii_alphabetic());
    let is_name = word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_'));
    let ends = word.ends_with("Error") || word.ends_with("Exception");
    let rest = &line[word.len()..];
    is_word && is_name && ends && (rest.is_empty() || rest.starts_with(':') || rest.starts_with(" ["))
}

/// Returns the location and the message of an error that starts with its location. Warnings, notes, frames of stack
/// traces, and locations without a message do not match.
fn error_after_location(line: &str) -> Option<(SourceLocation, &str)> {
    if line.starts_with("--> ") || line.starts_with("at ") {
        return None;
    }
    let line = line.strip_prefix("vet: ").unwrap_or(line);
    let (location, rest) = parse_prefix(line)?;
    let message = match rest.trim_start_matches(':').strip_prefix(" - ") {
        // In tsc's long form, a location without the word `error` belongs to the error above it.
        Some(message) => Some(message).filter(|message| message.starts_with("error"))?,
        None => rest.strip_prefix(':').or_else(|| rest.strip_prefix(' '))?,
    };
    let message = message.trim_start_matches([':', ' ']);
    (!message.is_empty() && !is_note(message)).then_some((location, message))
}

/// Returns whether a message is less than an error, or is a frame of a Python stack trace.
pub(super) fn is_note(message: &str) -> bool {
    let lower = message.to_ascii_lowercase();
    ["warning", "note", "info", "help", "hint", "style", "in "].iter().any(|word| lower.starts_with(word))
}

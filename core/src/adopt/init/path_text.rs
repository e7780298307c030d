//! Joins and quotes paths.

use crate::spec;

/// Joins a directory and a name; `""` is the root of the repository.
pub(crate) fn join(dir: &str, name: &str) -> String {
    if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") }
}

/// Formats text from the repository for a message or a comment: in backticks, on one line.
pub(crate) fn quoted(text: &str) -> String {
    spec::quoted(text)
}

/// Returns whether a character is visible: a letter, a digit, or ASCII punctuation.
pub(crate) fn is_visible(c: char) -> bool {
    c.is_ascii_graphic() || (!c.is_ascii() && c.is_alphanumeric())
}

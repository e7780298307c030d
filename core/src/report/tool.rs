//! Reads the reports of the steps' tools. They are untrusted input from the repository: their size is bounded, and
//! an unreadable report is always reported, never dropped.

pub(super) mod junit_reader;
pub(super) mod sarif_reader;

use std::fmt;

/// Returns the message for an unreadable report.
pub(super) fn unreadable_report_message(path: &str, problem: &dyn fmt::Display) -> String {
    format!(
        "the report `{}` could not be read: {}",
        super::report_text::single_line(path),
        super::report_text::single_line(&problem.to_string())
    )
}

/// A line of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SourceLocation {
    /// The path relative to the repository, with `/`.
    pub path: String,
    /// The line number, starting at 1.
    pub line: Option<u64>,
    /// The column number, starting at 1.
    pub column: Option<u64>,
}

/// Normalizes a path that a tool reports, relative to the repository; `None` if it is outside.
pub(super) fn normalize_repository_path(path: &str) -> Option<String> {
    let path = path.strip_prefix("./").unwrap_or(path);
    let parts_are_plain = path.split('/').all(|part| !matches!(part, "" | "." | ".."));
    let is_plain = parts_are_plain && !path.contains(['\\', ':', '\0']);
    is_plain.then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_paths_inside_the_repository() {
        assert_eq!(normalize_repository_path("./src/a.rs").as_deref(), Some("src/a.rs"));
        for other in ["/etc/passwd", "../a", "a/../b", "a//b", "", "C:\\a", "https://a/b", "a/."] {
            assert_eq!(normalize_repository_path(other), None, "{other}");
        }
    }
}

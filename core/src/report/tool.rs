//! Reads the reports of the steps' tools. They are untrusted input from the repository: their size is bounded, and
//! an unreadable report is always reported, never dropped.

pub(super) mod junit;
pub(super) mod sarif;

/// Returns the message for an unreadable report.
pub(super) fn unreadable(path: &str, problem: &str) -> String {
    format!("the report `{}` could not be read: {}", super::text::line(path), super::text::line(problem))
}

/// A line of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// The path relative to the repository, with `/`.
    pub path: String,
    /// The line number, starting at 1.
    pub line: Option<u64>,
    /// The column number, starting at 1.
    pub column: Option<u64>,
}

/// Normalizes a path that a tool reports, relative to the repository; `None` if it is outside.
pub(super) fn below_repository(path: &str) -> Option<String> {
    let path = path.strip_prefix("./").unwrap_or(path);
    let parts_are_plain = path.split('/').all(|part| !matches!(part, "" | "." | ".."));
    let is_plain = parts_are_plain && !path.contains(['\\', ':', '\0']);
    is_plain.then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_path_below_the_repository_is_one() {
        assert_eq!(below_repository("./src/a.rs").as_deref(), Some("src/a.rs"));
        for other in ["/etc/passwd", "../a", "a/../b", "a//b", "", "C:\\a", "https://a/b", "a/."] {
            assert_eq!(below_repository(other), None, "{other}");
        }
    }
}

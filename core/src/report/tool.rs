//! Reports of the steps' own tools, read back. They are the repository's bytes and as hostile as any: what is
//! read is bounded, and what cannot be read is told in its place, never left out.

pub(super) mod junit;
pub(super) mod sarif;

/// How a tool's file is named in a message: its path on one line.
pub(super) fn unreadable(path: &str, problem: &str) -> String {
    format!("the report `{}` could not be read: {}", super::text::line(path), super::text::line(problem))
}

/// A line of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// Its path relative to the repository, with `/`.
    pub path: String,
    /// The line, from 1.
    pub line: Option<u64>,
    /// The column, from 1.
    pub column: Option<u64>,
}

/// A path that a tool names, as one below the repository; `None` where it is none.
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

//! The expressions of the hooks of `pre-commit/pygrep-hooks`. Each version of a hook has its own expression, because a step
//! must find what the hook finds.

use super::known_hooks::parse_version;

/// The repository of these hooks.
pub(super) const PYGREP_REPO: &str = "pre-commit/pygrep-hooks";

/// A version of the repository.
type Version = [u32; 3];

/// The expression of a hook from a version on, and the type of the files that it searches.
type Expression = (Version, &'static str, &'static str);

/// A hook that searches for a regular expression of Python.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PygrepHook {
    /// The expression.
    pub(super) expression: &'static str,
    /// The type of the files.
    pub(super) file_type: &'static str,
    /// True if the version is not known, so that the expression is that of the newest known version.
    pub(super) is_newest: bool,
}

const PYTHON: &str = "python";
const RST: &str = "rst";

/// The hooks with their expressions, oldest first.
const HOOKS: &[(&str, &[Expression])] = &[
    ("python-check-blanket-noqa", &[([1, 2, 0], "# noqa(?!: )", PYTHON), ([1, 4, 2], "(?i)# noqa(?!: )", PYTHON)]),
    ("python-check-blanket-type-ignore", &[([1, 9, 0], r"# type:? *ignore(?![\w\[])", PYTHON)]),
    (
        "python-check-mock-methods",
        &[
            ([0, 0, 0], r"assert .*\.(not_called|called_)", PYTHON),
            (
                [1, 3, 0],
                r"assert.*\.(not_called|called_)|\.assert_(any_call|called(_once)?(_with)?|has_calls|not_called)($|[^(\w])",
                PYTHON,
            ),
            (
                [1, 4, 3],
                r"assert.*\.(not_called|called_)|(?<!\bAsyncMock)(?<!\bPropertyMock)(?<!\bMagicMock)(?<!\bMock)(?<!\bNonCallableMock)(?<!\bNonCallableMagicMock)\.assert_(any_call|called(_once)?(_with)?|has_calls|not_called)($|[^(\w])",
                PYTHON,
            ),
        ],
    ),
    ("python-no-eval", &[([1, 4, 0], r"\beval\(", PYTHON)]),
    ("python-no-log-warn", &[([0, 0, 0], r"\.warn\(", PYTHON), ([1, 4, 1], r"(?<!warnings)\.warn\(", PYTHON)]),
    (
        "python-use-type-annotations",
        &[
            ([0, 0, 0], "# type.*(?<!: ignore)$", PYTHON),
            ([1, 1, 0], "# type(?!: *ignore *(#|$))", PYTHON),
            ([1, 5, 1], "# type(?!: *ignore($|[^0-9A-Za-z]))", PYTHON),
        ],
    ),
    (
        "rst-backticks",
        &[
            ([1, 0, 0], " `[^`]+[^_]`([^_]|$)", RST),
            ([1, 4, 4], "(^| )`[^`]+[^_]`([^_]|$)", RST),
            ([1, 5, 2], "(^| )`[^`]+`([^_]|$)", RST),
            ([1, 7, 1], "^(?! {4}).*(^| )`[^`]+`([^_]|$)", RST),
        ],
    ),
    (
        "rst-directive-colons",
        &[
            ([1, 7, 0], r"^\s*\.\. [a-z]+:$", "text"),
            ([1, 8, 0], r"^\s*\.\. [a-z]+:$", RST),
            ([1, 10, 0], r"^\s*\.\. [a-z]+(| | :):$", RST),
        ],
    ),
    ("rst-inline-touching-normal", &[([1, 6, 0], r"\w``\w", RST)]),
    // The character U+FFFD in UTF-8. A spec must not contain the character itself.
    ("text-unicode-replacement-char", &[([1, 5, 0], r"\xef\xbf\xbd", "text")]),
];

/// Returns the hook with this id at a revision of the repository.
pub(super) fn find(id: &str, rev: Option<&str>) -> Option<PygrepHook> {
    let (_, expressions) = HOOKS.iter().find(|(known, _)| *known == id)?;
    let version = rev.and_then(parse_version);
    let fits = |(since, ..): &&Expression| version.is_none_or(|version| *since <= version);
    // A hook has no expression for versions that do not contain it.
    let (_, expression, file_type) = expressions.iter().rev().find(fits)?;
    Some(PygrepHook { expression, file_type, is_newest: version.is_none() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_decides_about_the_expression() {
        let expression = |id, rev| find(id, Some(rev)).map(|hook| hook.expression);
        assert_eq!(expression("python-check-blanket-noqa", "v1.4.1"), Some("# noqa(?!: )"));
        assert_eq!(expression("python-check-blanket-noqa", "v1.10.0"), Some("(?i)# noqa(?!: )"));
        assert_eq!(expression("python-no-eval", "v1.3.0"), None);
        assert_eq!(find("rst-directive-colons", Some("v1.7.1")).map(|hook| hook.file_type), Some("text"));
        let newest = find("rst-directive-colons", Some("deadbeef")).expect("known");
        assert!(newest.is_newest && newest.expression.contains("(| | :)"));
        assert_eq!(find("no-such-hook", None), None);
    }

    #[test]
    fn expressions_are_ordered_by_version() {
        for (id, expressions) in HOOKS {
            assert!(expressions.is_sorted_by(|one, next| one.0 < next.0), "{id}");
        }
    }
}

//! Where in an output the reader should begin: the first line that says what is wrong, as the tools of the trade
//! say it. A guess about a text, for where a page opens; nothing is decided by it.

/// How sure a line is the one that matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Weight {
    /// A word that is often there: `error`, `failed`.
    Word,
    /// The form in which a tool names its error.
    Form,
}

/// The first line with the heaviest sign of an error.
pub(super) fn find(lines: &[&str]) -> Option<usize> {
    let weighed = lines.iter().enumerate().filter_map(|(at, line)| weight(line).map(|weight| (weight, at)));
    weighed.max_by_key(|(weight, at)| (*weight, std::cmp::Reverse(*at))).map(|(_, at)| at)
}

fn weight(line: &str) -> Option<Weight> {
    let plain = without_colours(line);
    let line = plain.trim();
    if has_form(line) {
        return Some(Weight::Form);
    }
    let lower = line.to_lowercase();
    let is_count_of_none = lower.contains("0 error") || lower.contains("0 fail") || lower.contains("no error");
    let has_word = ["error", "failed", "failure", "fatal", "broken", "missing", "cannot"];
    let found = has_word.iter().any(|word| lower.split(|c: char| !c.is_alphanumeric()).any(|it| it.starts_with(word)));
    (found && !is_count_of_none).then_some(Weight::Word)
}

/// The forms of compilers, linters, test runners and interpreters.
fn has_form(line: &str) -> bool {
    const STARTS: [&str; 20] = [
        "error:",
        "error[",
        "error ",
        "Error:",
        "ERROR:",
        "ERROR ",
        "fatal:",
        "fatal error:",
        "FATAL",
        "E   ",
        "FAIL:",
        "FAILED ",
        "FAIL ",
        "--- FAIL",
        "not ok ",
        "npm ERR!",
        "npm error",
        "make: ***",
        "panic:",
        "AssertionError",
    ];
    const PARTS: [&str; 9] = [
        ": error:",
        ": error ",
        ": fatal error:",
        "panicked at",
        ": error TS",
        "] error:",
        "Segmentation fault",
        " *** [",
        "  error  ",
    ];
    STARTS.iter().any(|start| line.starts_with(start))
        || PARTS.iter().any(|part| line.contains(part))
        || is_exception(line)
        || is_place_of_linter(line)
}

/// `ValueError: text`, as the last line of a Python traceback and many others have it.
fn is_exception(line: &str) -> bool {
    let Some((name, _)) = line.split_once(':') else { return false };
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.'));
    is_name && name.len() > 5 && (name.ends_with("Error") || name.ends_with("Exception"))
}

/// `path:12:3: text` of ruff, mypy, staticcheck, clang-tidy and their like: two numbers between colons after something
/// that has a dot, and no word that makes it less than an error.
fn is_place_of_linter(line: &str) -> bool {
    let mut parts = line.splitn(4, ':');
    let (Some(path), Some(row), Some(column), Some(rest)) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let is_path = path.contains('.') && !path.contains(char::is_whitespace);
    let is_less = ["warning", "note", "info", "help"].iter().any(|word| rest.trim_start().starts_with(word));
    is_path && is_number(row) && is_number(column) && !is_less
}

/// A line without the colours that previews show as `\x1b[…m`.
fn without_colours(line: &str) -> String {
    let mut parts = line.split("\\x1b[");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once('m') {
            Some((codes, rest)) if codes.bytes().all(|b| b.is_ascii_digit() || b == b';') => text.push_str(rest),
            _ => {
                text.push_str("\\x1b[");
                text.push_str(part);
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tool_has_its_form() {
        let cases: &[(&str, Option<usize>)] = &[
            (
                "   Compiling a v0.1.0\nwarning: unused\nerror[E0425]: cannot find value `x`\n --> src/main.rs:1:1\nerror: aborting",
                Some(2),
            ),
            ("main.c: In function 'main':\nmain.c:3:5: warning: unused\nmain.c:4:9: error: 'x' undeclared", Some(2)),
            ("a.ts(1,2): error TS2322: Type 'string'", Some(0)),
            ("\n/src/a.js\n  1:7  error  'a' is assigned  no-unused-vars\n\n✖ 1 problem (1 error)", Some(2)),
            ("src/a.py:3:8: F401 [*] `os` imported but unused\nFound 1 error.", Some(0)),
            ("Traceback (most recent call last):\n  File \"a.py\", line 1\nKeyError: 'x'", Some(2)),
            (
                "=== FAILURES ===\n    def test_a():\n>       assert 1 == 2\nE       assert 1 == 2\n\nFAILED a.py::test_a",
                Some(3),
            ),
            ("=== RUN   TestA\n    a_test.go:7: got 1\n--- FAIL: TestA (0.00s)\nFAIL", Some(2)),
            ("test a ... FAILED\n\nthread 'a' panicked at src/lib.rs:3:5:", Some(2)),
            ("\\x1b[1m\\x1b[31merror\\x1b[0m: no\n", Some(0)),
            ("ok\nsomething is broken here\nand failed", Some(1)),
            ("all good\n0 errors, 0 failures\n", None),
            ("", None),
        ];
        for (text, expected) in cases {
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(find(&lines), *expected, "{text}");
        }
    }

    #[test]
    fn colours_are_left_out_and_nothing_else() {
        assert_eq!(without_colours("a\\x1b[1;31mb\\x1b[0mc\\x1b[2Jd\\x1b[zm"), "abc\\x1b[2Jd\\x1b[zm");
    }
}

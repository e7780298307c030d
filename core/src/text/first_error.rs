//! Finds the first error in the output of a step, by the usual formats of compilers, linters and test runners. The
//! result only selects which lines are shown first; it decides nothing.

use std::ops::Range;

use crate::text::safe_text::strip_colours;

/// Maximum number of lines that are searched.
const MAX_LINES: usize = 200_000;
/// Maximum number of bytes of a line that are searched.
const MAX_LINE_BYTES: usize = 2_000;

/// The part of an output to show first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorExcerpt {
    /// The range of lines to show, counted from 0.
    pub lines: Range<usize>,
    /// The line of the error, counted from 0.
    pub error_line: usize,
    /// The number of lines in the output.
    pub total_lines: usize,
    /// True if the line has the format of an error, and does not just contain a word such as `failed`.
    pub has_error_format: bool,
}

/// The number of lines to show around an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExcerptContext {
    /// Lines before the error.
    pub before: usize,
    /// Lines after the error.
    pub after: usize,
}

/// Returns the part of `text` around its first error; `None` if no line looks like an error.
pub fn error_excerpt(text: &str, context: ExcerptContext) -> Option<ErrorExcerpt> {
    let lines: Vec<&str> = text.lines().take(MAX_LINES).collect();
    let (error, is_shaped) = find_error_line(&lines)?;
    let start = error.saturating_sub(context.before);
    let end = error.saturating_add(context.after).saturating_add(1).min(lines.len());
    Some(ErrorExcerpt { lines: start..end, error_line: error, total_lines: lines.len(), has_error_format: is_shaped })
}

/// Returns the first line with the format of an error, or else the first one that contains a word such as `failed`.
pub fn first_error(lines: &[&str]) -> Option<usize> {
    find_error_line(lines).map(|(index, _)| index)
}

/// Returns the same line, and whether it has the format of an error.
fn find_error_line(lines: &[&str]) -> Option<(usize, bool)> {
    let mut keyword_line = None;
    let mut traceback: Option<usize> = None;
    for (index, line) in lines.iter().enumerate() {
        let line = strip_colours(truncate_line(line));
        let line = line.trim_end();
        if line.starts_with("Traceback (most recent call last):") {
            traceback = Some(index);
            continue;
        }
        if let Some(begun) = traceback {
            // The frames are indented, and the error follows them. The output may end before that.
            if index > begun && !line.is_empty() && !line.starts_with(char::is_whitespace) {
                return Some((index, true));
            }
            continue;
        }
        match classify_line(line) {
            LineMatch::ErrorFormat => return Some((index, true)),
            LineMatch::ErrorKeyword => keyword_line = keyword_line.or(Some(index)),
            LineMatch::NoMatch => {}
        }
    }
    traceback.map(|index| (index, true)).or(keyword_line.map(|index| (index, false)))
}

/// How much a line looks like an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineMatch {
    /// The line has the format of a tool's error.
    ErrorFormat,
    /// The line contains a word for a failure.
    ErrorKeyword,
    NoMatch,
}

fn classify_line(line: &str) -> LineMatch {
    let trimmed = line.trim_start();
    if has_error_prefix(trimmed) || is_test_failure(line) || has_error_location(trimmed) || is_eslint_row(trimmed) {
        return LineMatch::ErrorFormat;
    }
    let lower = trimmed.to_ascii_lowercase();
    let reports_no_errors = ["0 error", "0 fail", "no error", "without error"].iter().any(|word| lower.contains(word));
    let keywords = ["error", "failed", "failure", "fatal", "panic", "not found", "no such file", "denied", "cannot "];
    if !reports_no_errors && keywords.iter().any(|word| lower.contains(word)) {
        LineMatch::ErrorKeyword
    } else {
        LineMatch::NoMatch
    }
}

/// Matches `error: …`, `error[E0308]: …`, `ERROR: …`, `fatal: …`, `npm ERR! …`, `make: *** …`, `[error] …`,
/// `TypeError: …`, `thread 'main' panicked at …`, `panic: …`.
fn has_error_prefix(line: &str) -> bool {
    let lower = line.to_ascii_lowercase();
    let heads =
        ["error:", "error[", "error ts", "fatal:", "fatal error:", "[error]", "npm err!", "npm error", "panic:"];
    if heads.iter().any(|head| lower.starts_with(head)) {
        return true;
    }
    let make =
        line.split_once(": *** ").is_some_and(|(program, _)| program.starts_with("make") || program.ends_with("make"));
    let panicked = line.starts_with("thread '") && line.contains("panicked at");
    make || panicked || is_exception(line)
}

/// Matches `ValueError: …`, `AssertionError`, `java.lang.IllegalStateException: …`: a dotted name that ends in
/// `Error` or `Exception`.
fn is_exception(line: &str) -> bool {
    let line = line.strip_prefix("Uncaught ").unwrap_or(line);
    let word = line.split([':', ' ']).next().unwrap_or_default();
    let is_word = word.len() > 5 && word.starts_with(|c: char| c.is_ascii_alphabetic());
    let is_name = word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_'));
    let ends = word.ends_with("Error") || word.ends_with("Exception");
    is_word && is_name && ends && (line.len() == word.len() || line[word.len()..].starts_with(':'))
}

/// Matches pytest's `E   …` and `FAILED …`, Go's `--- FAIL: …`, the Rust test harness's `---- x stdout ----` and
/// `test x ... FAILED`, TAP's `not ok …`, and the crosses of JavaScript test runners.
fn is_test_failure(line: &str) -> bool {
    let trimmed = line.trim_start();
    let heads = ["FAILED ", "FAIL:", "FAIL\t", "FAIL ", "ERROR ", "--- FAIL", "not ok ", "✖ ", "✗ ", "● "];
    let is_cargo = trimmed.starts_with("---- ") && trimmed.ends_with(" stdout ----");
    let is_result = trimmed.starts_with("test ") && trimmed.ends_with("... FAILED");
    line.starts_with("E   ") || is_cargo || is_result || heads.iter().any(|head| trimmed.starts_with(head))
}

/// Matches `1:7  error  …` of eslint, which prints the file name on a separate line.
fn is_eslint_row(line: &str) -> bool {
    let mut words = line.split_ascii_whitespace();
    let place = words.next().and_then(|place| place.split_once(':'));
    place.is_some_and(|(row, column)| is_number(row) && is_number(column)) && words.next() == Some("error")
}

/// Matches `file:line: …` and `file:line:column: …` of gcc, clang, mypy, ruff, shellcheck, eslint and others, and
/// `file(line,column): error …` of tsc and msbuild. Warnings and notes do not match.
fn has_error_location(line: &str) -> bool {
    let Some(rest) = text_after_location(line).filter(|_| !line.starts_with("-->")) else { return false };
    let rest = rest.trim_start_matches([':', ' ', '-']).to_ascii_lowercase();
    let is_lower_severity =
        ["warning", "note", "info", "help", "hint", "style"].iter().any(|word| rest.starts_with(word));
    !rest.is_empty() && !is_lower_severity
}

/// Returns the text after a location in a file.
fn text_after_location(line: &str) -> Option<&str> {
    if let Some((file, rest)) = line.split_once('(')
        && let Some((place, rest)) = rest.split_once("):")
        && is_file_name(file)
        && place.split(',').all(is_number)
    {
        return Some(rest);
    }
    let (file, rest) = line.split_once(':')?;
    let (number, rest) = rest.split_once(':')?;
    if !is_file_name(file) || !is_number(number) {
        return None;
    }
    match rest.split_once([':', ' ']) {
        Some((column, behind)) if is_number(column) => Some(behind),
        // A location without a text belongs to a warning or to the error above it.
        None if is_number(rest) => None,
        _ => Some(rest),
    }
}

/// Returns whether a name contains a `.` or a `/` and no spaces at its ends, unlike a time of day or `key: 1: value`.
fn is_file_name(name: &str) -> bool {
    let is_named = name.contains(['.', '/']) && name.chars().any(|c| c.is_ascii_alphabetic());
    is_named
        && !name.contains("://")
        && !name.ends_with(' ')
        && name.matches(' ').count() <= 2
        && !name.starts_with("at ")
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.len() <= 7 && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn truncate_line(line: &str) -> &str {
    let mut end = line.len().min(MAX_LINE_BYTES);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    &line[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn first_error_line(text: &str) -> Option<&str> {
        let lines: Vec<&str> = text.lines().collect();
        first_error(&lines).map(|index| lines[index])
    }

    #[test]
    fn finds_first_error_of_each_tool() {
        let cases: &[(&str, &str)] = &[
            (
                "   Compiling x\nwarning: unused\n --> a.rs:1:1\nerror[E0308]: mismatched types\n --> src/main.rs:3:5",
                "error[E0308]: mismatched types",
            ),
            ("\\x1b[1m\\x1b[91merror\\x1b[0m: unused import", "\\x1b[1m\\x1b[91merror\\x1b[0m: unused import"),
            ("cc -c a.c\na.c:1:5: warning: unused\na.c:3:9: error: 'x' undeclared", "a.c:3:9: error: 'x' undeclared"),
            ("src/a.ts(4,7): error TS2322: Type 'x'", "src/a.ts(4,7): error TS2322: Type 'x'"),
            ("src/a.ts:4:7 - error TS2322: Type 'x'", "src/a.ts:4:7 - error TS2322: Type 'x'"),
            (
                "Success in 3 files\npkg/a.py:3: error: Incompatible types  [assignment]",
                "pkg/a.py:3: error: Incompatible types  [assignment]",
            ),
            ("pkg/a.py:1:8: F401 [*] `os` imported but unused", "pkg/a.py:1:8: F401 [*] `os` imported but unused"),
            (
                "collected 2 items\n\ntest_a.py .F\n    def test():\n>       assert 1 == 2\nE       assert 1 == 2\n",
                "E       assert 1 == 2",
            ),
            ("=== RUN   TestA\n    a_test.go:9: boom\n--- FAIL: TestA (0.00s)", "    a_test.go:9: boom"),
            ("=== RUN   TestA\n--- FAIL: TestA (0.00s)\n    a_test.go:9: boom", "--- FAIL: TestA (0.00s)"),
            (
                "start\nTraceback (most recent call last):\n  File \"a.py\", line 1\n    x\nKeyError: 'a'\n",
                "KeyError: 'a'",
            ),
            ("running 2 tests\ntest a ... ok\ntest b ... FAILED\n", "test b ... FAILED"),
            ("thread 'main' panicked at src/main.rs:2:5:\nboom", "thread 'main' panicked at src/main.rs:2:5:"),
            ("cc a.c\nmake: *** [Makefile:2: all] Error 1", "make: *** [Makefile:2: all] Error 1"),
            ("npm WARN old\nnpm ERR! code ELIFECYCLE", "npm ERR! code ELIFECYCLE"),
            ("1..2\nok 1\nnot ok 2 - x", "not ok 2 - x"),
            (
                "/a/b.js:3\n  throw new Error('x')\n\nTypeError: x is not a function\n    at b.js:3:1",
                "TypeError: x is not a function",
            ),
            (
                "\n/src/a.js\n  1:7  error  'a' is assigned  no-unused-vars\n\n✖ 1 problem (1 error)",
                "  1:7  error  'a' is assigned  no-unused-vars",
            ),
            ("sh: 1: nope: not found", "sh: 1: nope: not found"),
            ("all is well\n2 of 3 failed\nbye", "2 of 3 failed"),
            ("fatal: not a git repository", "fatal: not a git repository"),
        ];
        for (text, expected) in cases {
            assert_eq!(first_error_line(text), Some(*expected), "{text}");
        }
    }

    #[test]
    fn ignores_output_without_errors() {
        for text in [
            "",
            "a\nb\n",
            "0 errors, 0 failures",
            "12:30:01: started",
            "see https://example.org:80: there",
            "a.c:1:5: warning: unused\na.c:1:5: note: here",
            "12:3:4",
        ] {
            assert_eq!(first_error_line(text), None, "{text}");
        }
    }

    #[test]
    fn excerpt_contains_context_lines() {
        let text: String =
            (1..=50).map(|n| if n == 20 { "error: x\n".to_owned() } else { format!("line {n}\n") }).collect();
        let context = ExcerptContext { before: 3, after: 5 };
        assert_eq!(
            error_excerpt(&text, context),
            Some(ErrorExcerpt { lines: 16..25, error_line: 19, total_lines: 50, has_error_format: true })
        );
        assert_eq!(
            error_excerpt("error: x", context),
            Some(ErrorExcerpt { lines: 0..1, error_line: 0, total_lines: 1, has_error_format: true })
        );
        assert_eq!(error_excerpt("fine", context), None);
    }

    proptest! {
        #[test]
        fn first_error_index_is_within_output(text in "(?s).{0,200}") {
            let lines: Vec<&str> = text.lines().collect();
            if let Some(index) = first_error(&lines) {
                prop_assert!(index < lines.len());
            }
        }
    }
}

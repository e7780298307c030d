//! Tests that find the errors in real outputs of tools.

use super::*;
use crate::text::excerpt::{Excerpt, ExcerptLimits};
use proptest::prelude::*;

fn first_error(text: &str) -> Option<&str> {
    let lines: Vec<&str> = text.lines().collect();
    find_errors(&lines).first().map(|error| lines[error.line])
}

/// Returns `line: location: message` of each error, for a comparison in a test.
fn describe(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let place = |error: &ToolError| {
        error.locations.first().map_or(String::new(), |SourceLocation { path, line, column }| {
            format!("{path}:{line}{}: ", column.map_or(String::new(), |column| format!(":{column}")))
        })
    };
    find_errors(&lines)
        .iter()
        .map(|error| format!("{}| {}{}", strip_colours(lines[error.line]).trim(), place(error), error.message))
        .collect()
}

macro_rules! fixture {
    ($path:literal) => {
        ($path, include_str!(concat!("../../../../fixtures/tool_outputs/", $path)))
    };
}

const FIXTURES: [(&str, &str); 32] = [
    fixture!("cargo/build.stderr"),
    fixture!("cargo/clippy.stderr"),
    fixture!("cargo/colour.stderr"),
    fixture!("cargo/short.stderr"),
    fixture!("cargo/test.stderr"),
    fixture!("cargo/test.stdout"),
    fixture!("eslint/stylish.stdout"),
    fixture!("go/build.stderr"),
    fixture!("go/panic.stdout"),
    fixture!("go/test.stdout"),
    fixture!("go/test_v.stdout"),
    fixture!("go/vet.stderr"),
    fixture!("golangci_lint/v1.stdout"),
    fixture!("golangci_lint/v2.stdout"),
    fixture!("jest/default.stderr"),
    fixture!("mocha/dot.stdout"),
    fixture!("mocha/spec.stdout"),
    fixture!("mypy/default.stdout"),
    fixture!("mypy/pretty.stdout"),
    fixture!("node/crash.stderr"),
    fixture!("node/tap.stdout"),
    fixture!("pytest/access_log.stdout"),
    fixture!("pytest/collection_error.stdout"),
    fixture!("pytest/colour.stdout"),
    fixture!("pytest/failures.stdout"),
    fixture!("pytest/short.stdout"),
    fixture!("python/unittest.stderr"),
    fixture!("ruff/concise.stdout"),
    fixture!("ruff/format_check.stdout"),
    fixture!("ruff/full.stdout"),
    fixture!("tsc/default.stdout"),
    fixture!("tsc/pretty.stdout"),
];
const MANY_ERRORS: &str = include_str!("../../../../fixtures/tool_outputs/ruff/many.stdout");

#[test]
fn finds_every_error_of_each_tool() {
    let found: Vec<String> =
        FIXTURES.iter().map(|(name, text)| format!("== {name}\n{}\n", describe(text).join("\n"))).collect();
    insta::assert_snapshot!(found.join("\n"));
}

#[test]
fn excerpt_contains_the_first_line_of_every_error_and_the_end() {
    for (name, text) in FIXTURES {
        let lines: Vec<&str> = text.lines().collect();
        let excerpt = Excerpt::select(&lines, ExcerptLimits::SCREEN);
        let shown: BTreeSet<usize> = excerpt.segments.iter().cloned().flatten().collect();
        assert_eq!(excerpt.hidden_errors, 0, "{name}");
        for error in find_errors(&lines) {
            assert!(error.lines().all(|line| shown.contains(&line)), "{name}: {error:?}");
        }
        assert!((lines.len().saturating_sub(12)..lines.len()).all(|line| shown.contains(&line)), "{name}");
        assert!(shown.len() <= ExcerptLimits::SCREEN.lines, "{name}: {}", shown.len());
    }
}

#[test]
fn excerpt_of_many_errors_counts_the_hidden_ones() {
    let lines: Vec<&str> = MANY_ERRORS.lines().collect();
    let errors = find_errors(&lines).len();
    let excerpt = Excerpt::select(&lines, ExcerptLimits::SCREEN);
    assert_eq!((errors, excerpt.error_lines.len(), excerpt.hidden_errors), (55, 24, 31));
    let text: Vec<&str> =
        excerpt.segments.iter().cloned().flat_map(|lines_shown| &lines[lines_shown]).copied().collect();
    assert!(text.iter().any(|line| line.starts_with("Found ")), "{text:?}");
}

#[test]
fn finds_first_error_of_other_formats() {
    let cases: &[(&str, &str)] = &[
        ("cc -c a.c\na.c:1:5: warning: unused\na.c:3:9: error: 'x' undeclared", "a.c:3:9: error: 'x' undeclared"),
        ("src/a.ts:4:7 - error TS2322: Type 'x'", "src/a.ts:4:7 - error TS2322: Type 'x'"),
        ("start\nTraceback (most recent call last):\n  File \"a.py\", line 1\n    x\nKeyError: 'a'\n", "KeyError: 'a'"),
        ("running 2 tests\ntest a ... ok\ntest b ... FAILED\n", "test b ... FAILED"),
        ("thread 'main' panicked at src/main.rs:2:5:\nboom", "thread 'main' panicked at src/main.rs:2:5:"),
        ("cc a.c\nmake: *** [Makefile:2: all] Error 1", "make: *** [Makefile:2: all] Error 1"),
        ("cc a.c\nmake[1]: *** [Makefile:2: all] Error 1", "make[1]: *** [Makefile:2: all] Error 1"),
        ("npm WARN old\nnpm ERR! code ELIFECYCLE", "npm ERR! code ELIFECYCLE"),
        ("1..2\nok 1\nnot ok 2 - x", "not ok 2 - x"),
        ("In a.sh line 3:\necho $1\n     ^-- SC2086 (info): Double quote", "In a.sh line 3:"),
        ("sh: 1: nope: not found", "sh: 1: nope: not found"),
        ("fatal: not a git repository", "fatal: not a git repository"),
        ("FAILED tests/a.py::test_a - assert 1\n1 failed in 0.1s", "FAILED tests/a.py::test_a - assert 1"),
        ("\\x1b[1m\\x1b[91merror\\x1b[0m: unused import", "\\x1b[1m\\x1b[91merror\\x1b[0m: unused import"),
    ];
    for (text, expected) in cases {
        assert_eq!(first_error(text), Some(*expected), "{text}");
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
        "warning: unused\n --> a.rs:1:1",
        "127.0.0.1 - - [27/Nov/2026 00:44:07] \"GET / HTTP/1.1\" 500 -",
    ] {
        assert_eq!(first_error(text), None, "{text}");
    }
}

#[test]
fn line_that_counts_errors_is_not_an_error() {
    for text in [
        "Found 15 errors.",
        "Found 6 errors in 2 files.",
        "  4 failing",
        "✖ 6 problems (5 errors, 1 warning)",
        "test result: FAILED. 1 passed; 3 failed; 0 ignored",
        "Tests:       3 failed, 2 passed, 5 total",
        "===== 4 failed, 3 passed, 1 error in 0.60s =====",
        "3 issues:",
        "12 errors generated.",
        "all is well\n2 of 3 failed\nbye",
    ] {
        assert_eq!(first_error(text), None, "{text}");
    }
}

proptest! {
    #[test]
    fn error_lines_are_within_output(text in "(?s).{0,200}") {
        let lines: Vec<&str> = text.lines().collect();
        for error in find_errors(&lines) {
            prop_assert!(error.lines().all(|line| line < lines.len()));
        }
    }

    #[test]
    fn error_lines_of_mixed_formats_are_within_output(
        parts in prop::collection::vec(prop::sample::select(FIXTURES.to_vec()), 1..4),
        from in 0..60_usize,
        take in 0..60_usize,
    ) {
        let lines: Vec<&str> = parts.iter().flat_map(|(_, text)| text.lines().skip(from).take(take)).collect();
        for error in find_errors(&lines) {
            prop_assert!(error.lines().all(|line| line < lines.len()), "{error:?}");
        }
    }
}

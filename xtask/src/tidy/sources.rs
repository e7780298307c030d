//! Rules for the text of Rust sources.

use super::source_texts::{SourceTexts, TidyFindings, rust_sources};

/// Maximum number of lines of a source without a stated reason.
const MAX_LINES: usize = 600;

/// A source below this number of lines must not have a stated reason any more.
const MIN_EXPLAINED_LINES: usize = 500;

/// Longer sources with their reasons.
const LONG_SOURCES: [(&str, &str); 2] = [
    (
        "sandbox/src/setup.rs",
        "one ordered list of operations, with the reason for each position, and tests of the order",
    ),
    ("sandbox/tests/sandbox.rs", "one test program, which sets up its roles once for all trials"),
];

/// Forbidden words in a source, each with an alternative. They are written in two halves, so that this file does
/// not violate the rule.
const FORBIDDEN_WORDS: [(&str, &str, &str); 7] = [
    ("TO", "DO", "finish the work, or record it in an issue"),
    ("FIX", "ME", "fix it, or record it in an issue"),
    ("dbg", "!(", "remove it"),
    ("todo", "!(", "implement it"),
    ("unimplemented", "!(", "implement it"),
    ("#[ign", "ore", "run the test, or let the harness report why it is skipped"),
    ("#[al", "low(", "use `#[expect(lint, reason = \"…\")]`"),
];

/// The first words of code blocks in doc comments that rustdoc compiles. It also compiles blocks without a word.
const RUST_BLOCKS: [&str; 6] = ["rust", "no_run", "should_panic", "compile_fail", "ignore", "edition"];

/// Paths that the core must not use, because it does no I/O.
const IO_PATHS: [&str; 10] = [
    "std::fs",
    "std::io",
    "std::net",
    "std::os",
    "std::process",
    "std::thread",
    "std::env",
    "std::time::Instant",
    "std::time::SystemTime",
    "println!(",
];

/// The start of unsafe code, and the attribute that permits it. They are written in two halves, so that this file
/// does not violate the rule.
const UNSAFE_MARKERS: [&str; 5] = [
    concat!("un", "safe {"),
    concat!("un", "safe fn"),
    concat!("un", "safe impl"),
    concat!("un", "safe extern"),
    concat!("expect(un", "safe_code"),
];

/// The sources that may contain unsafe code: the system calls of the sandbox, and the bindings of DuckDB.
const UNSAFE_SOURCES: [&str; 3] = ["sandbox/src/sys.rs", "duckdb/src/ffi.rs", "duckdb/src/ffi/chunk.rs"];

/// Checks that every source starts with a doc comment about its responsibility.
pub(super) fn source_headers(texts: &SourceTexts) -> TidyFindings {
    rust_sources(texts)
        .filter(|(_, text)| !text.starts_with("//! "))
        .map(|(path, _)| format!("{path}:1: a source must start with a `//!` comment about its responsibility"))
        .collect()
}

/// Checks that long sources have a stated reason, and that every reason is still needed.
pub(super) fn source_lengths(texts: &SourceTexts) -> TidyFindings {
    check_lengths(texts, &LONG_SOURCES)
}

fn check_lengths(texts: &SourceTexts, reasons: &[(&str, &str)]) -> TidyFindings {
    let too_long = |text: &str| text.lines().count() > MAX_LINES;
    let has_reason = |path: &str| reasons.iter().any(|(long, _)| *long == path);
    let unexplained =
        rust_sources(texts).filter(|(path, text)| too_long(text) && !has_reason(path)).map(|(path, text)| {
            format!(
                "{path}: {} lines; split it by topic, or add a reason in xtask/src/tidy/sources.rs",
                text.lines().count()
            )
        });
    let is_short = |text: &String| text.lines().count() < MIN_EXPLAINED_LINES;
    let stale = reasons.iter().filter(|(path, _)| texts.get(*path).is_none_or(is_short));
    unexplained
        .chain(
            stale.map(|(path, _)| {
                format!("{path}: the source is short enough; remove it from xtask/src/tidy/sources.rs")
            }),
        )
        .collect()
}

/// Checks for unfinished code and silenced lints.
pub(super) fn forbidden_words(texts: &SourceTexts) -> TidyFindings {
    let words = FORBIDDEN_WORDS.map(|(head, tail, instead)| (format!("{head}{tail}"), instead));
    lines(texts)
        .flat_map(|(path, number, line)| {
            let found = words.iter().filter(move |(word, _)| line.contains(word.as_str()));
            found.map(move |(word, instead)| format!("{path}:{number}: `{word}`: {instead}"))
        })
        .collect()
}

/// Checks that no doc comment contains an example that `cargo test` would have to compile: `doctest = false` in the
/// manifests saves a run of rustdoc for each library.
pub(super) fn no_doctests(texts: &SourceTexts) -> TidyFindings {
    let mut findings = TidyFindings::new();
    for (path, text) in rust_sources(texts) {
        let mut is_inside = false;
        for (index, line) in text.lines().enumerate() {
            let line = line.trim_start();
            let comment = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
            let Some(language) = comment.and_then(|comment| comment.trim().strip_prefix("```")) else { continue };
            if !is_inside && (language.is_empty() || RUST_BLOCKS.iter().any(|word| language.starts_with(word))) {
                findings.push(format!("{path}:{}: write a unit test instead of an example in a comment", index + 1));
            }
            is_inside = !is_inside;
        }
    }
    findings
}

/// Checks that the core uses no file, clock, process or environment. Its tests may.
pub(super) fn pure_core(texts: &SourceTexts) -> TidyFindings {
    rust_sources(texts)
        .filter(|(path, _)| path.starts_with("core/src/") && !is_test(path))
        .flat_map(|(path, text)| {
            let body = text.split("#[cfg(test)]").next().unwrap_or_default();
            IO_PATHS
                .iter()
                .filter(|word| body.contains(**word))
                .map(move |word| format!("{path}: the pure core must not use `{word}`"))
        })
        .collect()
}

/// Checks that `unsafe`, and the attribute that permits it, occurs only in [`UNSAFE_SOURCES`].
pub(super) fn unsafe_only_where_allowed(texts: &SourceTexts) -> TidyFindings {
    lines(texts)
        .filter(|(path, _, line)| !UNSAFE_SOURCES.contains(path) && mentions_unsafe(line))
        .map(|(path, number, _)| format!("{path}:{number}: `unsafe` outside `{}`", UNSAFE_SOURCES.join("`, `")))
        .collect()
}

fn mentions_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    UNSAFE_MARKERS.iter().any(|word| code.contains(word))
}

fn is_test(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/")
}

/// Returns the lines of every source, numbered from 1.
fn lines(texts: &SourceTexts) -> impl Iterator<Item = (&str, usize, &str)> {
    rust_sources(texts).flat_map(|(path, text)| text.lines().enumerate().map(move |(at, line)| (path, at + 1, line)))
}

#[cfg(test)]
mod tests {
    use super::super::source_texts::texts;
    use super::*;

    #[test]
    fn reports_source_without_header() {
        let texts = texts(&[("a/b.rs", "use x;\n"), ("c.rs", "//! What.\n"), ("d.txt", "free")]);
        assert_eq!(source_headers(&texts).len(), 1);
        assert!(source_headers(&texts)[0].starts_with("a/b.rs:1: "));
    }

    #[test]
    fn long_sources_require_reason() {
        let text = "x\n".repeat(MAX_LINES + 1);
        let long_one = texts(&[("a.rs", &text)]);
        assert_eq!(check_lengths(&long_one, &[]).len(), 1);
        assert_eq!(check_lengths(&long_one, &[("a.rs", "a table")]), TidyFindings::new());
        assert_eq!(check_lengths(&texts(&[("a.rs", "")]), &[("a.rs", "a table")]).len(), 1);
        assert_eq!(check_lengths(&texts(&[]), &[("a.rs", "a table")]).len(), 1);
    }

    #[test]
    fn reports_forbidden_words_with_line() {
        for (head, tail, _) in FORBIDDEN_WORDS {
            let text = format!("//! x\n    {head}{tail}\n");
            let found = forbidden_words(&texts(&[("a.rs", &text)]));
            assert!(found.len() == 1 && found[0].starts_with("a.rs:2: "), "{head}{tail}: {found:?}");
        }
    }

    #[test]
    fn reports_io_in_core_outside_tests() {
        let bad = texts(&[("core/src/a.rs", "use std::fs;"), ("core/src/b.rs", "let t = std::time::Instant::now();")]);
        assert_eq!(pure_core(&bad).len(), 2);
        let good = texts(&[
            ("core/src/a.rs", "use std::fmt;\n#[cfg(test)]\nmod tests { use std::fs; }"),
            ("core/src/a/tests.rs", "use std::fs;"),
            ("runner/src/a.rs", "use std::fs;"),
        ]);
        assert_eq!(pure_core(&good), TidyFindings::new());
    }

    #[test]
    fn reports_examples_that_rustdoc_would_compile() {
        let text = "//! x\n//! ```text\n//! a\n//! ```\n\n/// ```sh\n/// b\n/// ```\nfn f() {}\n";
        assert_eq!(no_doctests(&texts(&[("a.rs", text)])), TidyFindings::new());
        for language in ["", "rust", "no_run"] {
            let text = format!("{text}    /// ```{language}\n    /// f();\n    /// ```\n");
            let found = no_doctests(&texts(&[("a.rs", &text)]));
            assert!(found.len() == 1 && found[0].starts_with("a.rs:10: "), "{language}: {found:?}");
        }
    }

    #[test]
    fn reports_unsafe_outside_allowed_sources() {
        let comment = format!("// {} y() }} would be wrong", UNSAFE_MARKERS[0]);
        for word in UNSAFE_MARKERS {
            let line = format!("let x = {word} y() }};");
            let texts = texts(&[("cli/src/a.rs", &line), (UNSAFE_SOURCES[0], &line), ("cli/src/b.rs", &comment)]);
            let found = unsafe_only_where_allowed(&texts);
            assert!(found.len() == 1 && found[0].starts_with("cli/src/a.rs:1: "), "{word}: {found:?}");
        }
    }
}

//! Rules for the text of Rust sources.

use super::{Findings, Texts, rust};

/// Maximum number of lines of a source without a stated reason.
const MAX_LINES: usize = 600;

/// A source below this number of lines must not have a stated reason any more.
const SHORT_AGAIN: usize = 500;

/// Longer sources with their reasons.
const LONG: [(&str, &str); 3] = [
    (
        "sandbox/src/setup.rs",
        "one list in its one order: each operation, the reason for its place, and the tests of the order",
    ),
    ("sandbox/src/helper/outer.rs", "carries out that list, an arm for each operation"),
    ("sandbox/tests/sandbox.rs", "one program, so that its roles are set up once for every trial"),
];

/// Forbidden words in a source, each with an alternative. They are written in two halves, so that this file does
/// not violate the rule.
const WORDS: [(&str, &str, &str); 7] = [
    ("TO", "DO", "do it, or say in the issue that it is left"),
    ("FIX", "ME", "fix it, or record in the issue that it remains"),
    ("dbg", "!(", "take it out"),
    ("todo", "!(", "write it"),
    ("unimplemented", "!(", "write it"),
    ("#[ign", "ore", "a test runs, or its harness says by name why it cannot"),
    ("#[al", "low(", "say `#[expect(lint, reason = \"…\")]`"),
];

/// Paths that the core must not use, because it does no I/O.
const WORLD: [&str; 10] = [
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
const UNSAFE: [&str; 5] = [
    concat!("un", "safe {"),
    concat!("un", "safe fn"),
    concat!("un", "safe impl"),
    concat!("un", "safe extern"),
    concat!("expect(un", "safe_code"),
];

/// The sources that may contain unsafe code: the system calls of the sandbox, and the bindings of DuckDB.
const UNSAFE_PLACES: [&str; 3] = ["sandbox/src/sys.rs", "duckdb/src/ffi.rs", "duckdb/src/ffi/chunk.rs"];

/// Checks that every source starts with a doc comment about its responsibility.
pub(super) fn headers(texts: &Texts) -> Findings {
    rust(texts)
        .filter(|(_, text)| !text.starts_with("//! "))
        .map(|(path, _)| format!("{path}:1: a source begins with `//!` and what it is responsible for"))
        .collect()
}

/// Checks that long sources have a stated reason, and that every reason is still needed.
pub(super) fn lengths(texts: &Texts) -> Findings {
    long(texts, &LONG)
}

fn long(texts: &Texts, reasons: &[(&str, &str)]) -> Findings {
    let too_long = |text: &str| text.lines().count() > MAX_LINES;
    let has_reason = |path: &str| reasons.iter().any(|(long, _)| *long == path);
    let unexplained = rust(texts).filter(|(path, text)| too_long(text) && !has_reason(path)).map(|(path, text)| {
        format!(
            "{path}: {} lines; split it by noun, or give the reason in xtask/src/tidy/sources.rs",
            text.lines().count()
        )
    });
    let is_short = |text: &String| text.lines().count() < SHORT_AGAIN;
    let stale = reasons.iter().filter(|(path, _)| texts.get(*path).is_none_or(is_short));
    unexplained
        .chain(stale.map(|(path, _)| format!("{path}: no longer long; take it off xtask/src/tidy/sources.rs")))
        .collect()
}

/// Checks for unfinished code and silenced lints.
pub(super) fn words(texts: &Texts) -> Findings {
    let words = WORDS.map(|(head, tail, instead)| (format!("{head}{tail}"), instead));
    lines(texts)
        .flat_map(|(path, number, line)| {
            let found = words.iter().filter(move |(word, _)| line.contains(word.as_str()));
            found.map(move |(word, instead)| format!("{path}:{number}: `{word}`: {instead}"))
        })
        .collect()
}

/// Checks that the core uses no file, clock, process or environment. Its tests may.
pub(super) fn pure_core(texts: &Texts) -> Findings {
    rust(texts)
        .filter(|(path, _)| path.starts_with("core/src/") && !is_test(path))
        .flat_map(|(path, text)| {
            let body = text.split("#[cfg(test)]").next().unwrap_or_default();
            WORLD
                .iter()
                .filter(|word| body.contains(**word))
                .map(move |word| format!("{path}: `{word}` in the pure core"))
        })
        .collect()
}

/// Checks that `unsafe`, and the attribute that permits it, occurs only in [`UNSAFE_PLACES`].
pub(super) fn unsafe_has_its_places(texts: &Texts) -> Findings {
    lines(texts)
        .filter(|(path, _, line)| !UNSAFE_PLACES.contains(path) && mentions_unsafe(line))
        .map(|(path, number, _)| format!("{path}:{number}: `unsafe` outside `{}`", UNSAFE_PLACES.join("`, `")))
        .collect()
}

fn mentions_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    UNSAFE.iter().any(|word| code.contains(word))
}

fn is_test(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/")
}

/// Returns the lines of every source, numbered from 1.
fn lines(texts: &Texts) -> impl Iterator<Item = (&str, usize, &str)> {
    rust(texts).flat_map(|(path, text)| text.lines().enumerate().map(move |(at, line)| (path, at + 1, line)))
}

#[cfg(test)]
mod tests {
    use super::super::texts;
    use super::*;

    #[test]
    fn a_source_without_a_header_is_named() {
        let texts = texts(&[("a/b.rs", "use x;\n"), ("c.rs", "//! What.\n"), ("d.txt", "free")]);
        assert_eq!(headers(&texts).len(), 1);
        assert!(headers(&texts)[0].starts_with("a/b.rs:1: "));
    }

    #[test]
    fn long_sources_need_a_reason_and_reasons_need_a_long_source() {
        let text = "x\n".repeat(MAX_LINES + 1);
        let long_one = texts(&[("a.rs", &text)]);
        assert_eq!(long(&long_one, &[]).len(), 1);
        assert_eq!(long(&long_one, &[("a.rs", "a table")]), Findings::new());
        assert_eq!(long(&texts(&[("a.rs", "")]), &[("a.rs", "a table")]).len(), 1);
        assert_eq!(long(&texts(&[]), &[("a.rs", "a table")]).len(), 1);
    }

    #[test]
    fn unfinished_and_silenced_code_is_found_with_its_line() {
        for (head, tail, _) in WORDS {
            let text = format!("//! x\n    {head}{tail}\n");
            let found = words(&texts(&[("a.rs", &text)]));
            assert!(found.len() == 1 && found[0].starts_with("a.rs:2: "), "{head}{tail}: {found:?}");
        }
    }

    #[test]
    fn the_core_touches_nothing_but_in_its_tests() {
        let bad = texts(&[("core/src/a.rs", "use std::fs;"), ("core/src/b.rs", "let t = std::time::Instant::now();")]);
        assert_eq!(pure_core(&bad).len(), 2);
        let good = texts(&[
            ("core/src/a.rs", "use std::fmt;\n#[cfg(test)]\nmod tests { use std::fs; }"),
            ("core/src/a/tests.rs", "use std::fs;"),
            ("runner/src/a.rs", "use std::fs;"),
        ]);
        assert_eq!(pure_core(&good), Findings::new());
    }

    #[test]
    fn unsafe_is_found_outside_its_places() {
        let comment = format!("// {} y() }} would be wrong", UNSAFE[0]);
        for word in UNSAFE {
            let line = format!("let x = {word} y() }};");
            let texts = texts(&[("cli/src/a.rs", &line), (UNSAFE_PLACES[0], &line), ("cli/src/b.rs", &comment)]);
            let found = unsafe_has_its_places(&texts);
            assert!(found.len() == 1 && found[0].starts_with("cli/src/a.rs:1: "), "{word}: {found:?}");
        }
    }
}

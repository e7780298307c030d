//! Diagnostics for a screen, in the manner of rustc, and as JSON. All of them at once, with a
//! closing line that counts them. The source is somebody else's text and is made safe first.

use std::path::Path;

use annotate_snippets::renderer::DEFAULT_TERM_WIDTH;
use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use proctor_core::drift::display_path;
use proctor_core::spec::{Diagnostic, Severity, Span};
use schemars::JsonSchema;
use serde::Serialize;

use crate::style::{self, BAD, UNSURE, paint};
use crate::text::{count, shown, shown_line};

/// A file and what is wrong with it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Problems<'a> {
    /// The file, as the caller knows it.
    pub file: &'a Path,
    /// Its text, as far as it is text.
    pub source: &'a str,
    /// What is wrong.
    pub diagnostics: &'a [Diagnostic],
}

/// One diagnostic in JSON. Lines and columns count from 1, columns in characters; offsets are
/// bytes. The place is `null` where there is none in the text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct DiagnosticRecord {
    /// What kind of thing is wrong, such as `spec::unknown_key`.
    pub code: String,
    /// `error` or `warning`.
    pub severity: String,
    /// One line.
    pub message: String,
    /// The file.
    pub file: String,
    /// The line on which it starts.
    pub line: Option<usize>,
    /// The column at which it starts.
    pub column: Option<usize>,
    /// The line on which it ends.
    pub end_line: Option<usize>,
    /// The column behind its last character.
    pub end_column: Option<usize>,
    /// The offset of its first byte.
    pub start: Option<usize>,
    /// The offset after its last byte.
    pub end: Option<usize>,
    /// Other places that matter.
    pub labels: Vec<LabelRecord>,
    /// What to do, one line each.
    pub hints: Vec<String>,
}

/// Another place that matters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct LabelRecord {
    /// The line on which it starts.
    pub line: usize,
    /// The column at which it starts.
    pub column: usize,
    /// What is to be seen there.
    pub text: String,
}

/// All of them for a screen.
pub(crate) fn render(problems: Problems<'_>) -> String {
    let source = safe_source(problems.source);
    let path = display_path(problems.file.as_os_str().as_encoded_bytes());
    let renderer = Renderer::styled().term_width(DEFAULT_TERM_WIDTH);
    let mut text = String::new();
    for diagnostic in problems.diagnostics {
        text.push_str(&renderer.render(&[group(diagnostic, &source, &path)]));
        text.push('\n');
        for hint in &diagnostic.hints {
            text.push_str(&format!("   {} {} {}\n", paint(style::DIM, "="), paint(style::HINT, "hint:"), shown(hint)));
        }
        text.push('\n');
    }
    text + &closing_line(problems.diagnostics, &path)
}

fn group<'a>(diagnostic: &'a Diagnostic, source: &'a str, path: &'a str) -> Group<'a> {
    let level = match diagnostic.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let title = level.primary_title(shown_line(&diagnostic.message)).id(diagnostic.code.as_str());
    let Some(span) = diagnostic.span else {
        return Group::with_title(title);
    };
    let labels = diagnostic
        .labels
        .iter()
        .map(|label| AnnotationKind::Context.span(range(label.span, source)).label(shown_line(&label.text)));
    let snippet = Snippet::source(source).path(path).annotation(AnnotationKind::Primary.span(range(span, source)));
    title.element(snippet.annotations(labels))
}

/// The bytes of a span, inside the text and at the borders of characters whatever it says.
fn range(span: Span, source: &str) -> std::ops::Range<usize> {
    let inside = |offset: u32| floor(source, usize::try_from(offset).unwrap_or(usize::MAX));
    let start = inside(span.start);
    start..inside(span.end).max(start)
}

fn floor(source: &str, offset: usize) -> usize {
    source.floor_char_boundary(offset.min(source.len()))
}

/// The source with each control or bidirectional character replaced by one that can be seen
/// and takes as many bytes, so that every offset still means the same.
fn safe_source(source: &str) -> String {
    let safe = |c: char| match c {
        '\n' | '\t' => c,
        c if proctor_core::evidence::escape_output(c.to_string().as_bytes()).starts_with('\\') && c != '\\' => {
            match c.len_utf8() {
                1 => '?',
                2 => '¿',
                _ => '\u{fffd}',
            }
        }
        c => c,
    };
    source.chars().map(safe).collect()
}

fn closing_line(diagnostics: &[Diagnostic], path: &str) -> String {
    let of = |severity| diagnostics.iter().filter(|diagnostic| diagnostic.severity == severity).count();
    let (errors, warnings) = (of(Severity::Error), of(Severity::Warning));
    let also = if errors > 0 && warnings > 0 { format!(", {}", count(warnings, "warning")) } else { String::new() };
    match (errors, warnings) {
        (0, 0) => String::new(),
        (0, _) => format!("{} {} in {path}\n", paint(UNSURE, "warning:"), count(warnings, "warning")),
        _ => format!("{} {}{also} in {path}\n", paint(BAD, "error:"), count(errors, "problem")),
    }
}

/// All of them as values for JSON.
pub(crate) fn records(problems: Problems<'_>) -> Vec<DiagnosticRecord> {
    problems.diagnostics.iter().map(|diagnostic| to_record(diagnostic, problems)).collect()
}

fn to_record(diagnostic: &Diagnostic, problems: Problems<'_>) -> DiagnosticRecord {
    let place = diagnostic.span.map(|span| (span, range(span, problems.source)));
    let end = place.as_ref().map(|(_, range)| line_and_column(problems.source, range.end));
    let labels = diagnostic.labels.iter().map(|label| LabelRecord {
        line: wide(label.span.line),
        column: wide(label.span.column),
        text: label.text.clone(),
    });
    DiagnosticRecord {
        code: diagnostic.code.to_string(),
        severity: diagnostic.severity.as_str().to_owned(),
        message: diagnostic.message.clone(),
        file: display_path(problems.file.as_os_str().as_encoded_bytes()),
        line: place.as_ref().map(|(span, _)| wide(span.line)),
        column: place.as_ref().map(|(span, _)| wide(span.column)),
        end_line: end.map(|(line, _)| line),
        end_column: end.map(|(_, column)| column),
        start: place.as_ref().map(|(_, range)| range.start),
        end: place.as_ref().map(|(_, range)| range.end),
        labels: labels.collect(),
        hints: diagnostic.hints.clone(),
    }
}

fn wide(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn line_and_column(source: &str, offset: usize) -> (usize, usize) {
    let before = &source[..offset];
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proctor_core::spec::Code;

    const SOURCE: &str = "version: 1\nskills:\n  a:\n    timout_ms: 5\n    tier: 3\n    ü: \"\u{202e}\"\n";

    fn span(text: &str) -> Span {
        let start = SOURCE.find(text).expect("in the source");
        let (line, column) = line_and_column(SOURCE, start);
        let small = |number: usize| u32::try_from(number).expect("small");
        Span { start: small(start), end: small(start + text.len()), line: small(line), column: small(column) }
    }

    fn diagnostics() -> Vec<Diagnostic> {
        vec![
            Diagnostic::unplaced(Code::UnknownProfile, "there is no profile `x`").hint("there is: `pr`"),
            Diagnostic::error(Code::UnknownKey, span("timout_ms"), "`timout_ms` means nothing in a skill")
                .label(span("a:"), "in this skill")
                .hint("did you mean `timeout_ms`?"),
            Diagnostic::error(Code::TierThree, span("3"), "tier 3 is never declared"),
            Diagnostic::warning(Code::UnusedSkill, span("ü"), "no profile includes it"),
        ]
    }

    fn problems(diagnostics: &[Diagnostic]) -> Problems<'_> {
        Problems { file: Path::new("spec/verification.yaml"), source: SOURCE, diagnostics }
    }

    #[test]
    fn all_are_shown_with_place_and_caret() {
        let text = render(problems(&diagnostics()));
        insta::assert_snapshot!(anstream::adapter::strip_str(&text).to_string());
    }

    #[test]
    fn the_json_form_has_every_place() {
        insta::assert_json_snapshot!(records(problems(&diagnostics()[..2])));
    }

    #[test]
    fn a_span_that_lies_cannot_make_us_panic() {
        let bad = Span { start: 70, end: 9_999, line: 99, column: 99 };
        let backwards = Span { start: 20, end: 3, line: 1, column: 1 };
        for span in [bad, backwards] {
            let diagnostics = [Diagnostic::error(Code::Syntax, span, "x")];
            assert!(render(problems(&diagnostics)).contains("spec::syntax"));
            assert_eq!(records(problems(&diagnostics)).len(), 1);
        }
    }

    #[test]
    fn the_source_keeps_its_offsets_and_loses_its_controls() {
        let source = "a\x1b\u{9b}\u{202e}\u{feff}\tb\\\n";
        let safe = safe_source(source);
        assert_eq!(safe.len(), source.len());
        assert_eq!(safe, "a?¿\u{fffd}\u{fffd}\tb\\\n");
    }
}

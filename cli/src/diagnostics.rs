//! Renders spec diagnostics for a screen, in the style of rustc, and as JSON. It shows all of them, followed by a
//! line with the counts. The source is untrusted text and is escaped first.

mod excerpt;

use std::ops::Range;
use std::path::Path;

use annotate_snippets::renderer::DEFAULT_TERM_WIDTH;
use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};
use proctor_core::code::{Coded as _, ErrorCode as MessageCode};
use proctor_core::model::drift::display_path;
use proctor_core::spec::{Diagnostic, Label, Severity, Span};
use schemars::JsonSchema;
use serde::Serialize;

use self::excerpt::ExcerptSource;
use crate::style::{self, BAD, UNSURE, paint};
use crate::text::{count, escape_line};

/// A file and its diagnostics.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileDiagnostics<'a> {
    /// The path in the form that the caller used.
    pub file: &'a Path,
    /// The text of the file; invalid UTF-8 is replaced.
    pub source: &'a str,
    /// The diagnostics.
    pub diagnostics: &'a [Diagnostic],
}

/// A diagnostic in JSON. Lines and columns count from 1, columns in characters; offsets are in bytes. The position is
/// `null` if the diagnostic has no position in the text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct DiagnosticRecord {
    /// The code of the message, such as `P0116`; `proctor explain P0116` says more.
    pub code: MessageCode,
    /// The kind of problem, such as `spec::unknown_key`.
    pub name: String,
    /// `error` or `warning`.
    pub severity: String,
    /// The message, on one line.
    pub message: String,
    /// The file.
    pub file: String,
    /// The line of the start.
    pub line: Option<usize>,
    /// The column of the start.
    pub column: Option<usize>,
    /// The line of the end.
    pub end_line: Option<usize>,
    /// The column after the last character.
    pub end_column: Option<usize>,
    /// The offset of the first byte.
    pub start: Option<usize>,
    /// The offset after the last byte.
    pub end: Option<usize>,
    /// Related positions.
    pub labels: Vec<LabelRecord>,
    /// Suggested actions, one line each.
    pub hints: Vec<String>,
}

/// A related position.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct LabelRecord {
    /// The line of the start.
    pub line: usize,
    /// The column of the start.
    pub column: usize,
    /// A description of the position.
    pub text: String,
}

/// Largest distance in lines between a label and the primary span for both to be drawn in one snippet.
const MAX_SNIPPET_DISTANCE: usize = 20;

/// Renders all diagnostics for a screen.
pub(crate) fn render(problems: FileDiagnostics<'_>) -> String {
    let lines = ExcerptSource::new(problems.source);
    let path = display_path(problems.file.as_os_str().as_encoded_bytes());
    let mut text = String::new();
    for diagnostic in problems.diagnostics {
        text.push_str(&render_diagnostic(diagnostic, &lines, &path));
        text.push('\n');
        for note in far_labels(diagnostic, &lines) {
            text.push_str(&note_line(style::STRONG, "note:", &note));
        }
        for hint in &diagnostic.hints {
            text.push_str(&note_line(style::HINT, "hint:", &escape_line(hint)));
        }
        text.push('\n');
    }
    text + &summary_line(problems.diagnostics, &path)
}

/// Renders one finding about a text in another language, such as SQL, in the same style.
pub(crate) fn render_snippet(
    level: Level<'_>,
    code: &str,
    message: &str,
    span: Option<Range<usize>>,
    text: SnippetSource<'_>,
) -> String {
    let renderer = Renderer::styled().term_width(DEFAULT_TERM_WIDTH);
    let title = level.primary_title(escape_line(message)).id(code);
    let Some(place) = span else {
        let origin = Origin::path(text.path);
        return renderer.render(&[title.element(origin)]);
    };
    let lines = ExcerptSource::new(text.source);
    let excerpt = lines.excerpt(line_range(std::slice::from_ref(&place), &lines), &[place.start]);
    let mut snippet = Snippet::source(&excerpt.text).line_start(excerpt.first_line + 1);
    if let Some(place) = excerpt.translate_range(&place) {
        snippet = snippet.annotation(AnnotationKind::Primary.span(place));
    }
    renderer.render(&[title.element(snippet.path(text.path))])
}

/// A source text and its displayed name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SnippetSource<'a> {
    /// The text.
    pub source: &'a str,
    /// The displayed name.
    pub path: &'a str,
}

/// Renders a hint that belongs below a drawn finding.
pub(crate) fn render_hint(text: &str) -> String {
    note_line(style::HINT, "hint:", &escape_line(text))
}

fn note_line(style: anstyle::Style, word: &str, text: &str) -> String {
    format!("   {} {} {text}\n", paint(style::DIM, "="), paint(style, word))
}

/// Renders the message and the source lines, with the spans marked.
fn render_diagnostic(diagnostic: &Diagnostic, lines: &ExcerptSource<'_>, path: &str) -> String {
    let level = match diagnostic.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let renderer = Renderer::styled().term_width(DEFAULT_TERM_WIDTH);
    let code = diagnostic.code.code().to_string();
    let title = level.primary_title(escape_line(&diagnostic.message)).id(code.as_str());
    let Some(span) = diagnostic.span else {
        return renderer.render(&[Group::with_title(title)]);
    };
    let near: Vec<&Label> = diagnostic.labels.iter().filter(|label| is_near_span(label.span, span, lines)).collect();
    let places: Vec<Range<usize>> =
        std::iter::once(span).chain(near.iter().map(|label| label.span)).map(|span| span_range(span, lines)).collect();
    let excerpt =
        lines.excerpt(line_range(&places, lines), &places.iter().map(|place| place.start).collect::<Vec<_>>());
    let mut snippet = Snippet::source(&excerpt.text).line_start(excerpt.first_line + 1);
    for (index, place) in places.iter().enumerate() {
        let Some(place) = excerpt.translate_range(place) else { continue };
        snippet = snippet.annotation(match index.checked_sub(1).and_then(|index| near.get(index)) {
            None => AnnotationKind::Primary.span(place),
            Some(label) => AnnotationKind::Context.span(place).label(escape_line(&label.text)),
        });
    }
    // If the excerpt is cut at its left, the renderer would count columns from the cut, so state the position
    // explicitly.
    if excerpt.is_cut_left() {
        let origin = Origin::path(path).line(to_usize(span.line)).char_column(to_usize(span.column));
        return renderer.render(&[title.element(origin).element(snippet)]);
    }
    renderer.render(&[title.element(snippet.path(path))])
}

/// Returns the range of lines on which the spans start.
fn line_range(places: &[Range<usize>], lines: &ExcerptSource<'_>) -> Range<usize> {
    let starts = || places.iter().map(|place| lines.line_number(place.start));
    starts().min().unwrap_or(0)..starts().max().unwrap_or(0) + 1
}

fn is_near_span(other: Span, span: Span, lines: &ExcerptSource<'_>) -> bool {
    lines.line_number(span_range(other, lines).start).abs_diff(lines.line_number(span_range(span, lines).start))
        <= MAX_SNIPPET_DISTANCE
}

/// Returns a note for each label that is too far away to be drawn.
fn far_labels(diagnostic: &Diagnostic, lines: &ExcerptSource<'_>) -> Vec<String> {
    let Some(span) = diagnostic.span else { return Vec::new() };
    let far = diagnostic.labels.iter().filter(|label| !is_near_span(label.span, span, lines));
    far.map(|label| format!("{} at {}", escape_line(&label.text), label.span)).collect()
}

fn span_range(span: Span, lines: &ExcerptSource<'_>) -> Range<usize> {
    lines.clamp_range(span.start, span.end)
}

fn summary_line(diagnostics: &[Diagnostic], path: &str) -> String {
    let number_of = |severity| diagnostics.iter().filter(|diagnostic| diagnostic.severity == severity).count();
    let (errors, warnings) = (number_of(Severity::Error), number_of(Severity::Warning));
    let also = if errors > 0 && warnings > 0 { format!(", {}", count(warnings, "warning")) } else { String::new() };
    match (errors, warnings) {
        (0, 0) => String::new(),
        (0, _) => format!("{} {} in {path}\n", paint(UNSURE, "warning:"), count(warnings, "warning")),
        _ => format!("{} {}{also} in {path}\n", paint(BAD, "error:"), count(errors, "problem")),
    }
}

/// Converts all diagnostics to JSON records.
pub(crate) fn records(problems: FileDiagnostics<'_>) -> Vec<DiagnosticRecord> {
    let lines = ExcerptSource::new(problems.source);
    problems.diagnostics.iter().map(|diagnostic| to_record(diagnostic, problems, &lines)).collect()
}

fn to_record(diagnostic: &Diagnostic, problems: FileDiagnostics<'_>, lines: &ExcerptSource<'_>) -> DiagnosticRecord {
    let place = diagnostic.span.map(|span| (span, span_range(span, lines)));
    let end = place.as_ref().map(|(span, range)| end_position(*span, &problems.source[range.clone()]));
    let labels = diagnostic.labels.iter().map(|label| LabelRecord {
        line: to_usize(label.span.line),
        column: to_usize(label.span.column),
        text: label.text.clone(),
    });
    DiagnosticRecord {
        code: diagnostic.code.code(),
        name: diagnostic.code.as_str().to_owned(),
        severity: diagnostic.severity.as_str().to_owned(),
        message: diagnostic.message.clone(),
        file: display_path(problems.file.as_os_str().as_encoded_bytes()),
        line: place.as_ref().map(|(span, _)| to_usize(span.line)),
        column: place.as_ref().map(|(span, _)| to_usize(span.column)),
        end_line: end.map(|(line, _)| line),
        end_column: end.map(|(_, column)| column),
        start: place.as_ref().map(|(_, range)| range.start),
        end: place.as_ref().map(|(_, range)| range.end),
        labels: labels.collect(),
        hints: diagnostic.hints.clone(),
    }
}

fn to_usize(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Returns the line and column just after `text`, which starts at `span`.
fn end_position(span: Span, text: &str) -> (usize, usize) {
    match text.rfind('\n') {
        Some(last) => (to_usize(span.line) + text.matches('\n').count(), text[last + 1..].chars().count() + 1),
        None => (to_usize(span.line), to_usize(span.column) + text.chars().count()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proctor_core::spec::Code;

    const SOURCE: &str = "version: 1\nskills:\n  a:\n    timout_ms: 5\n    tier: 3\n    ü: \"\u{202e}\"\n";

    fn span(text: &str) -> Span {
        let start = SOURCE.find(text).expect("in the source");
        let begin = Span { start: 0, end: 0, line: 1, column: 1, file: 0 };
        let (line, column) = end_position(begin, &SOURCE[..start]);
        let small = |number: usize| u32::try_from(number).expect("small");
        Span { start: small(start), end: small(start + text.len()), line: small(line), column: small(column), file: 0 }
    }

    fn diagnostics() -> Vec<Diagnostic> {
        vec![
            Diagnostic::without_span(Code::UnknownProfile, "there is no profile `x`").hint("there is: `pr`"),
            Diagnostic::error(Code::UnknownKey, span("timout_ms"), "`timout_ms` means nothing in a skill")
                .label(span("a:"), "in this skill")
                .hint("did you mean `timeout_ms`?"),
            Diagnostic::error(Code::TierThree, span("3"), "tier 3 is never declared"),
            Diagnostic::warning(Code::UnusedSkill, span("ü"), "no profile includes it"),
        ]
    }

    fn file_diagnostics(diagnostics: &[Diagnostic]) -> FileDiagnostics<'_> {
        FileDiagnostics { file: Path::new("spec/verification.yaml"), source: SOURCE, diagnostics }
    }

    #[test]
    fn renders_all_diagnostics_with_position_and_caret() {
        let text = render(file_diagnostics(&diagnostics()));
        insta::assert_snapshot!(anstream::adapter::strip_str(&text).to_string());
    }

    #[test]
    fn json_records_have_every_position() {
        insta::assert_json_snapshot!(records(file_diagnostics(&diagnostics()[..2])));
    }

    #[test]
    fn wrong_span_does_not_panic() {
        let bad = Span { start: 70, end: 9_999, line: 99, column: 99, file: 0 };
        let backwards = Span { start: 20, end: 3, line: 1, column: 1, file: 0 };
        for span in [bad, backwards] {
            let diagnostics = [Diagnostic::error(Code::Syntax, span, "x")];
            assert!(render(file_diagnostics(&diagnostics)).contains("error[P0104]"));
            assert_eq!(records(file_diagnostics(&diagnostics)).len(), 1);
        }
    }

    #[test]
    fn distant_label_becomes_a_note() {
        let source = format!("a: 1\n{}a: 2\n", "#\n".repeat(30));
        let at = |start: usize, line| Span {
            start: u32::try_from(start).expect("small"),
            end: u32::try_from(start + 1).expect("small"),
            line,
            column: 1,
            file: 0,
        };
        let second = source.rfind('a').expect("there");
        let diagnostics =
            [Diagnostic::error(Code::DuplicateKey, at(second, 32), "twice").label(at(0, 1), "first here")];
        let text = render(FileDiagnostics { file: Path::new("f"), source: &source, diagnostics: &diagnostics });
        let text = anstream::adapter::strip_str(&text).to_string();
        assert!(text.contains("f:32:1") && text.contains("note: first here at 1:1"), "{text}");
    }

    #[test]
    fn output_for_a_huge_line_is_bounded() {
        let source = "*a, ".repeat(1 << 18);
        let at = |index: u32| Span { start: index * 4, end: index * 4 + 2, line: 1, column: index * 4 + 1, file: 0 };
        let diagnostics: Vec<Diagnostic> =
            (0..256).map(|index| Diagnostic::error(Code::Alias, at(index * 1000), "an alias")).collect();
        let text = render(FileDiagnostics { file: Path::new("f"), source: &source, diagnostics: &diagnostics });
        assert!(text.len() < 256 * 1024, "{}", text.len());
        assert!(text.contains("f:1:1004001"), "{}", &text[text.len() - 2000..]);
    }
}

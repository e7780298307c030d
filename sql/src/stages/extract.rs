//! Whether the text is SQL and nothing else: no Markdown fence, no words around it, not empty. Nothing is taken out of a
//! text silently: what would be judged must be what would be run. The fix has the statement alone.

use std::ops::Range;

use proctor_core::sql::{Applicability, Diagnostic, Fix, SqlCode, StageName};

use crate::stage::{Case, Stage};
use crate::text::{self, Piece};

/// See the file.
pub(super) struct Extract;

impl Stage for Extract {
    fn name(&self) -> StageName {
        StageName::Extract
    }

    fn run(&self, case: &mut Case<'_>) -> Result<(), String> {
        let text = case.text();
        let limit = usize::try_from(case.request.limits.input).unwrap_or(usize::MAX);
        if text.len() > limit {
            let message = format!("the text has {} bytes, and may have {limit}", text.len());
            case.found(Diagnostic::error(StageName::Extract, SqlCode::TextTooLong, message));
            return Ok(());
        }
        if text::statements(text, case.request.dialect).is_empty() {
            let found = Diagnostic::error(StageName::Extract, SqlCode::EmptyText, "the text holds no statement");
            case.found(found.advice("Give one statement."));
            return Ok(());
        }
        if let Some(inner) = fenced(text) {
            let found = around(case, SqlCode::FencedText, "the statement stands in a Markdown fence", inner);
            case.found(found);
        } else if let Some(inner) = behind_prose(case) {
            let found = around(case, SqlCode::ProseAroundSql, "words stand before the statement", inner);
            case.found(found);
        }
        Ok(())
    }
}

fn around(case: &Case<'_>, code: SqlCode, message: &str, inner: Range<usize>) -> Diagnostic {
    let text = case.text();
    let fix =
        Fix { start: 0, end: text.len(), replacement: text[inner].to_owned(), applicability: Applicability::Likely };
    Diagnostic::error(StageName::Extract, code, message)
        .at(Some(case.span(0..text.len())))
        .advice("Answer with the statement alone, without Markdown and without words around it.")
        .fix(Some(fix))
}

/// What stands in the first fence of a text that has one at the beginning of a line.
fn fenced(text: &str) -> Option<Range<usize>> {
    let open = if text.trim_start().starts_with("```") {
        text.find("```")?
    } else {
        let at = text.find("\n```")? + 1;
        // Within a string or a comment it is no fence.
        let first = text[..at].split_whitespace().next()?.to_ascii_lowercase();
        if is_start(&first) {
            return None;
        }
        at
    };
    let begin = open + text[open..].find('\n').map_or(3, |line| line + 1);
    let end = text.get(begin..)?.find("```").map_or(text.len(), |at| begin + at);
    Some(begin..end).map(|range| trimmed(text, range))
}

/// The statement behind some words, where the text begins with none that begins a statement.
fn behind_prose(case: &Case<'_>) -> Option<Range<usize>> {
    let text = case.text();
    let pieces = text::pieces(text, case.request.dialect);
    let mut solid = pieces.iter().filter(|(piece, _)| !matches!(piece, Piece::Space | Piece::Comment));
    let (first, range) = solid.next()?;
    if *first != Piece::Word || is_start(&text[range.clone()].to_ascii_lowercase()) {
        return None;
    }
    let is_wordy =
        solid.next().is_some_and(|(piece, _)| matches!(piece, Piece::Word | Piece::Sign | Piece::Open | Piece::String));
    let begin = pieces.iter().find(|(piece, range)| {
        *piece == Piece::Word
            && ["select", "with", "insert", "update", "delete"]
                .iter()
                .any(|word| text[range.clone()].eq_ignore_ascii_case(word))
    })?;
    // `SELEC name … (SELECT …)` is a slip, and not prose: prose ends in a colon, a stop or a line.
    let before = text[..begin.1.start].trim_end_matches([' ', '\t']);
    (is_wordy && before.ends_with([':', '.', '!', '\n'])).then(|| trimmed(text, begin.1.start..text.len()))
}

fn trimmed(text: &str, range: Range<usize>) -> Range<usize> {
    let part = &text[range.clone()];
    let start = range.start + (part.len() - part.trim_start().len());
    start..(start + part.trim().len())
}

/// Whether a statement of either dialect begins with that word.
fn is_start(word: &str) -> bool {
    const STARTS: &[&str] = &[
        "alter",
        "analyze",
        "attach",
        "begin",
        "call",
        "checkpoint",
        "comment",
        "commit",
        "copy",
        "create",
        "deallocate",
        "delete",
        "desc",
        "describe",
        "detach",
        "drop",
        "end",
        "execute",
        "explain",
        "export",
        "force",
        "from",
        "grant",
        "import",
        "insert",
        "install",
        "load",
        "merge",
        "pivot",
        "pivot_wider",
        "pragma",
        "prepare",
        "reindex",
        "release",
        "replace",
        "reset",
        "rollback",
        "savepoint",
        "select",
        "set",
        "show",
        "start",
        "summarize",
        "table",
        "truncate",
        "unpivot",
        "update",
        "use",
        "vacuum",
        "values",
        "with",
        "abort",
        "revoke",
        "lock",
        "do",
        "kill",
        "optimize",
    ];
    STARTS.contains(&word)
}

//! Checks that the text is only SQL: no Markdown fence, no prose around it, not empty. No part of a text is removed
//! silently, since the judged text must be the text that runs. The fix contains the statement alone.
//!
//! Fences and prose that are uncertain are reported only if the engine refuses the syntax of the whole text and accepts
//! that of the part between them.

use std::ops::Range;
use std::time::Instant;

use proctor_core::sql::{Applicability, Diagnostic, Fix, SqlCode, StageName};

use crate::stage::{Case, Stage};
use crate::stages::{answers, slips};
use crate::text::{self, Piece};

/// The maximum size of a text that is searched for prose around a statement, in bytes.
const MOST_BYTES: usize = 64 << 10;
/// The maximum number of positions that are tried as the start, and as the end, of the statement.
const MOST_PLACES: usize = 6;

/// The stage `extract`.
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
            let found = Diagnostic::error(StageName::Extract, SqlCode::EmptyText, "the text contains no statement");
            case.found(found.advice("Send one statement."));
            return Ok(());
        }
        if let Some(found) = in_answer(case) {
            case.found(found);
        } else if let Some(inner) = fenced(case.text()) {
            let found = around(case, SqlCode::FencedText, "the statement is in a Markdown fence", inner);
            case.found(found);
        } else if let Some((message, inner)) = behind_prose(case) {
            let found = around(case, SqlCode::ProseAroundSql, message, inner);
            case.found(found);
        } else if let Some((code, message, inner)) = between(case) {
            let found = around(case, code, message, inner);
            case.found(found);
        }
        Ok(())
    }
}

/// Returns a finding if a text, or its fence, is JSON or YAML that contains a statement.
fn in_answer(case: &mut Case<'_>) -> Option<Diagnostic> {
    let text = case.text().to_owned();
    let inner = fenced(&text).unwrap_or(0..text.len());
    let wrapped = answers::wrapped(&text[inner])?;
    let is_statement = is_start(&first_word(&wrapped.sql)) && slips::refused_form(case, &wrapped.sql).is_none();
    if !is_statement || slips::refused_form(case, &text).is_none() {
        return None;
    }
    let message = format!("the text is {}, and the statement is a value in it", wrapped.form);
    let fix = Fix { start: 0, end: text.len(), replacement: wrapped.sql, applicability: Applicability::Likely };
    let found = Diagnostic::error(StageName::Extract, SqlCode::ProseAroundSql, message);
    let found = found.at(Some(case.span(0..text.len()))).fix(Some(fix));
    Some(found.advice(format!("Answer with the statement alone, without {} around it.", wrapped.form)))
}

/// Returns the statement of a text with a fence or prose after it, or with prose before it that starts like a
/// statement.
fn between(case: &mut Case<'_>) -> Option<(SqlCode, &'static str, Range<usize>)> {
    let text = case.text().to_owned();
    if text.len() > MOST_BYTES {
        return None;
    }
    let (begins, ends) = (begins(&text), ends(&text));
    if begins.len() + ends.len() < 3 || slips::refused_form(case, &text).is_none() {
        return None;
    }
    // The longest part comes first, so that no part of a statement is left out.
    for begin in &begins {
        for end in ends.iter().filter(|end| **end > *begin) {
            let inner = trimmed(&text, *begin..*end);
            let is_whole = inner == trimmed(&text, 0..text.len());
            if is_whole || inner.is_empty() || Instant::now() > case.deadline {
                continue;
            }
            if text::statements(&text[inner.clone()], case.request.dialect).is_empty()
                || slips::refused_form(case, &text[inner.clone()]).is_some()
            {
                continue;
            }
            let (before, behind) = (text[..inner.start].trim(), text[inner.end..].trim());
            return Some(match (before.is_empty(), behind.is_empty()) {
                _ if before.contains("```") || behind.contains("```") => {
                    (SqlCode::FencedText, "there is a Markdown fence around the statement", inner)
                }
                (true, _) => (SqlCode::ProseAroundSql, "words stand behind the statement", inner),
                (false, true) => (SqlCode::ProseAroundSql, "words stand before the statement", inner),
                (false, false) => (SqlCode::ProseAroundSql, "words stand around the statement", inner),
            });
        }
    }
    None
}

/// Returns the positions where a statement may start: the start of the text, and each line that starts like a
/// statement.
fn begins(text: &str) -> Vec<usize> {
    let lines = text.match_indices('\n').map(|(at, _)| at + 1);
    std::iter::once(0).chain(lines.filter(|at| is_start(&first_word(&text[*at..])))).take(MOST_PLACES).collect()
}

/// Returns the positions where a statement may end, the last first: the end of the text, before a fence, before a line
/// that looks like prose, and after a semicolon that no statement follows.
fn ends(text: &str) -> Vec<usize> {
    let fences = text.match_indices("```").map(|(at, _)| at);
    let lines = text.match_indices('\n').map(|(at, _)| at).filter(|at| is_prose(text[at + 1..].trim_start()));
    let stops = text.match_indices(';').map(|(at, _)| at + 1).filter(|at| {
        let word = first_word(&text[*at..]);
        !word.is_empty() && !is_start(&word)
    });
    let mut all: Vec<usize> = fences.chain(lines).chain(stops).take(MOST_PLACES * 4).collect();
    all.sort_unstable();
    all.dedup();
    all.truncate(MOST_PLACES);
    all.push(text.len());
    all.reverse();
    all
}

/// Returns the first word of a text, in lower case.
fn first_word(text: &str) -> String {
    let text = text.trim_start();
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>().to_lowercase()
}

/// Reports whether a line looks like prose or Markdown: a capitalized word, a heading, a list, emphasis.
fn is_prose(line: &str) -> bool {
    const MARKS: [&str; 6] = ["```", "**", "#", "> ", "* ", "1. "];
    let mut letters = line.chars();
    let is_sentence = letters.next().is_some_and(char::is_uppercase)
        && letters.next().is_some_and(|c| c.is_lowercase() || matches!(c, ' ' | '\''));
    is_sentence || MARKS.iter().any(|mark| line.starts_with(mark))
}

fn around(case: &Case<'_>, code: SqlCode, message: &str, inner: Range<usize>) -> Diagnostic {
    let text = case.text();
    let fix =
        Fix { start: 0, end: text.len(), replacement: text[inner].to_owned(), applicability: Applicability::Likely };
    Diagnostic::error(StageName::Extract, code, message)
        .at(Some(case.span(0..text.len())))
        .advice("Send only the statement, without Markdown and without surrounding text.")
        .fix(Some(fix))
}

/// Returns the content of the first fence of a text. The fence must start a line or follow prose.
fn fenced(text: &str) -> Option<Range<usize>> {
    let open = if text.trim_start().starts_with("```") {
        text.find("```")?
    } else {
        // A fence may follow prose on the same line, but not a comment.
        let is_wordy = text.trim_start().starts_with(char::is_alphabetic);
        let at = if is_wordy { text.find("```")? } else { text.find("\n```")? + 1 };
        // Within the string or the comment of a statement, the marker is not a fence.
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

/// Returns the statement after prose, if the text does not start like a statement, and a description of the prose
/// around it.
fn behind_prose(case: &mut Case<'_>) -> Option<(&'static str, Range<usize>)> {
    let inner = after_words(case)?;
    let text = case.text().to_owned();
    // Prose may also follow the statement.
    let is_taken = |case: &mut Case<'_>, range: &Range<usize>| {
        Instant::now() < case.deadline && slips::refused_form(case, &text[range.clone()]).is_none()
    };
    if text.len() > MOST_BYTES || is_taken(case, &inner) {
        return Some(("words stand before the statement", inner));
    }
    let ends = ends(&text[inner.clone()]).into_iter().map(|end| trimmed(&text, inner.start..inner.start + end));
    let mut shorter = ends.filter(|range| !range.is_empty() && *range != inner);
    match shorter.find(|range| is_taken(case, range)) {
        Some(range) => Some(("words stand around the statement", range)),
        None => Some(("words stand before the statement", inner)),
    }
}

/// Returns the text from the first statement on, if prose precedes it.
fn after_words(case: &Case<'_>) -> Option<Range<usize>> {
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
    // `SELEC name … (SELECT …)` is a typing error and not prose. Prose ends in a colon, a full stop, an exclamation
    // mark or a line break; a prompt ends in `>`.
    let before = text[..begin.1.start].trim_end_matches([' ', '\t']);
    (is_wordy && before.ends_with([':', '.', '!', '\n', '>'])).then(|| trimmed(text, begin.1.start..text.len()))
}

fn trimmed(text: &str, range: Range<usize>) -> Range<usize> {
    let part = &text[range.clone()];
    let start = range.start + (part.len() - part.trim_start().len());
    start..(start + part.trim().len())
}

/// Reports whether a word starts a statement of either dialect.
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

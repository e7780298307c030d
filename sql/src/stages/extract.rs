//! Checks that the text is only SQL: no Markdown fence, no prose around it, not empty. No part of a text is removed
//! silently, since the judged text must be the text that runs. The fix contains the statement alone.
//!
//! Fences and prose that are uncertain are reported only if the engine refuses the syntax of the whole text and accepts
//! that of the part between them.

use std::ops::Range;
use std::time::Instant;

use proctor_core::sql::{Applicability, SqlCode, SqlDiagnostic, SqlFix, StageName};

use crate::lexer::{self, SqlTokenKind};
use crate::stage::{ChainContext, SqlStage, StageError};
use crate::stages::{misspelt_keywords, wrapped_answer};

/// The maximum size of a text that is searched for prose around a statement, in bytes.
const MAX_SEARCHED_BYTES: usize = 64 << 10;
/// The maximum number of positions that are tried as the start, and as the end, of the statement.
const MAX_POSITIONS: usize = 6;

/// The stage `extract`.
pub(super) struct ExtractStage;

impl SqlStage for ExtractStage {
    fn name(&self) -> StageName {
        StageName::Extract
    }

    fn run(&self, case: &mut ChainContext<'_>) -> Result<(), StageError> {
        let text = case.text();
        let limit = usize::try_from(case.request.limits.input).unwrap_or(usize::MAX);
        if text.len() > limit {
            let message = format!("the text has {} bytes, but at most {limit} are allowed", text.len());
            case.add_finding(SqlDiagnostic::error(StageName::Extract, SqlCode::TextTooLong, message));
            return Ok(());
        }
        if lexer::statement_ranges(text, case.request.dialect).is_empty() {
            let found = SqlDiagnostic::error(StageName::Extract, SqlCode::EmptyText, "the text contains no statement");
            case.add_finding(found.with_advice("Send one statement."));
            return Ok(());
        }
        if let Some(found) = wrapped_answer_finding(case) {
            case.add_finding(found);
        } else if let Some(inner) = fenced_range(case.text()) {
            let found = surrounded_finding(case, SqlCode::FencedText, "the statement is in a Markdown fence", inner);
            case.add_finding(found);
        } else if let Some((message, inner)) = statement_after_prose(case) {
            let found = surrounded_finding(case, SqlCode::ProseAroundSql, message, inner);
            case.add_finding(found);
        } else if let Some((code, message, inner)) = statement_within_prose(case) {
            let found = surrounded_finding(case, code, message, inner);
            case.add_finding(found);
        }
        Ok(())
    }
}

/// Returns a finding if a text, or its fence, is JSON or YAML that contains a statement.
fn wrapped_answer_finding(case: &mut ChainContext<'_>) -> Option<SqlDiagnostic> {
    let text = case.text().to_owned();
    let inner = fenced_range(&text).unwrap_or(0..text.len());
    let wrapped = wrapped_answer::find_wrapped_statement(&text[inner])?;
    let is_statement = is_statement_start(&first_word(&wrapped.sql))
        && misspelt_keywords::syntax_refusal(case, &wrapped.sql).is_none();
    if !is_statement || misspelt_keywords::syntax_refusal(case, &text).is_none() {
        return None;
    }
    let message = format!("the text is {}, and the statement is a value in it", wrapped.format);
    let fix = SqlFix { start: 0, end: text.len(), replacement: wrapped.sql, applicability: Applicability::Likely };
    let found = SqlDiagnostic::error(StageName::Extract, SqlCode::ProseAroundSql, message);
    let found = found.with_span(Some(case.span(0..text.len()))).with_fix(Some(fix));
    Some(found.with_advice(format!("Answer with only the statement, without {} around it.", wrapped.format)))
}

/// Returns the statement of a text with a fence or prose after it, or with prose before it that starts like a
/// statement.
fn statement_within_prose(case: &mut ChainContext<'_>) -> Option<(SqlCode, &'static str, Range<usize>)> {
    let text = case.text().to_owned();
    if text.len() > MAX_SEARCHED_BYTES {
        return None;
    }
    let (begins, ends) = (possible_starts(&text), possible_ends(&text));
    if begins.len() + ends.len() < 3 || misspelt_keywords::syntax_refusal(case, &text).is_none() {
        return None;
    }
    // The longest part comes first, so that no part of a statement is left out.
    for begin in &begins {
        for end in ends.iter().filter(|end| **end > *begin) {
            let inner = trim_range(&text, *begin..*end);
            let is_whole = inner == trim_range(&text, 0..text.len());
            if is_whole || inner.is_empty() || Instant::now() > case.deadline {
                continue;
            }
            if lexer::statement_ranges(&text[inner.clone()], case.request.dialect).is_empty()
                || misspelt_keywords::syntax_refusal(case, &text[inner.clone()]).is_some()
            {
                continue;
            }
            let (before, behind) = (text[..inner.start].trim(), text[inner.end..].trim());
            return Some(match (before.is_empty(), behind.is_empty()) {
                _ if before.contains("```") || behind.contains("```") => {
                    (SqlCode::FencedText, "there is a Markdown fence around the statement", inner)
                }
                (true, _) => (SqlCode::ProseAroundSql, "text follows the statement", inner),
                (false, true) => (SqlCode::ProseAroundSql, "text precedes the statement", inner),
                (false, false) => (SqlCode::ProseAroundSql, "text surrounds the statement", inner),
            });
        }
    }
    None
}

/// Returns the positions where a statement may start: the start of the text, and each line that starts like a
/// statement.
fn possible_starts(text: &str) -> Vec<usize> {
    let lines = text.match_indices('\n').map(|(at, _)| at + 1);
    std::iter::once(0)
        .chain(lines.filter(|at| is_statement_start(&first_word(&text[*at..]))))
        .take(MAX_POSITIONS)
        .collect()
}

/// Returns the positions where a statement may end, the last first: the end of the text, before a fence, before a line
/// that looks like prose, and after a semicolon that no statement follows.
fn possible_ends(text: &str) -> Vec<usize> {
    let fences = text.match_indices("```").map(|(at, _)| at);
    let lines = text.match_indices('\n').map(|(at, _)| at).filter(|at| is_prose(text[at + 1..].trim_start()));
    let stops = text.match_indices(';').map(|(at, _)| at + 1).filter(|at| {
        let word = first_word(&text[*at..]);
        !word.is_empty() && !is_statement_start(&word)
    });
    let mut all: Vec<usize> = fences.chain(lines).chain(stops).take(MAX_POSITIONS * 4).collect();
    all.sort_unstable();
    all.dedup();
    all.truncate(MAX_POSITIONS);
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

fn surrounded_finding(case: &ChainContext<'_>, code: SqlCode, message: &str, inner: Range<usize>) -> SqlDiagnostic {
    let text = case.text();
    let fix =
        SqlFix { start: 0, end: text.len(), replacement: text[inner].to_owned(), applicability: Applicability::Likely };
    SqlDiagnostic::error(StageName::Extract, code, message)
        .with_span(Some(case.span(0..text.len())))
        .with_advice("Send only the statement, without Markdown and without surrounding text.")
        .with_fix(Some(fix))
}

/// Returns the content of the first fence of a text. The fence must start a line or follow prose.
fn fenced_range(text: &str) -> Option<Range<usize>> {
    let open = if text.trim_start().starts_with("```") {
        text.find("```")?
    } else {
        // A fence may follow prose on the same line, but not a comment.
        let is_wordy = text.trim_start().starts_with(char::is_alphabetic);
        let at = if is_wordy { text.find("```")? } else { text.find("\n```")? + 1 };
        // Within the string or the comment of a statement, the marker is not a fence.
        let first = text[..at].split_whitespace().next()?.to_ascii_lowercase();
        if is_statement_start(&first) {
            return None;
        }
        at
    };
    let begin = open + text[open..].find('\n').map_or(3, |line| line + 1);
    let end = text.get(begin..)?.find("```").map_or(text.len(), |at| begin + at);
    Some(begin..end).map(|range| trim_range(text, range))
}

/// Returns the statement after prose, if the text does not start like a statement, and a description of the prose
/// around it.
fn statement_after_prose(case: &mut ChainContext<'_>) -> Option<(&'static str, Range<usize>)> {
    let inner = range_after_prose(case)?;
    let text = case.text().to_owned();
    // Prose may also follow the statement.
    let is_accepted = |case: &mut ChainContext<'_>, range: &Range<usize>| {
        Instant::now() < case.deadline && misspelt_keywords::syntax_refusal(case, &text[range.clone()]).is_none()
    };
    if text.len() > MAX_SEARCHED_BYTES || is_accepted(case, &inner) {
        return Some(("text precedes the statement", inner));
    }
    let ends =
        possible_ends(&text[inner.clone()]).into_iter().map(|end| trim_range(&text, inner.start..inner.start + end));
    let mut shorter = ends.filter(|range| !range.is_empty() && *range != inner);
    match shorter.find(|range| is_accepted(case, range)) {
        Some(range) => Some(("text surrounds the statement", range)),
        None => Some(("text precedes the statement", inner)),
    }
}

/// Returns the text from the first statement on, if prose precedes it.
fn range_after_prose(case: &ChainContext<'_>) -> Option<Range<usize>> {
    let text = case.text();
    let pieces = lexer::tokenize(text, case.request.dialect);
    let mut solid =
        pieces.iter().filter(|(piece, _)| !matches!(piece, SqlTokenKind::Whitespace | SqlTokenKind::Comment));
    let (first, range) = solid.next()?;
    if *first != SqlTokenKind::Word || is_statement_start(&text[range.clone()].to_ascii_lowercase()) {
        return None;
    }
    let is_wordy = solid.next().is_some_and(|(piece, _)| {
        matches!(piece, SqlTokenKind::Word | SqlTokenKind::Symbol | SqlTokenKind::Unterminated | SqlTokenKind::String)
    });
    let begin = pieces.iter().find(|(piece, range)| {
        *piece == SqlTokenKind::Word
            && ["select", "with", "insert", "update", "delete"]
                .iter()
                .any(|word| text[range.clone()].eq_ignore_ascii_case(word))
    })?;
    // `SELEC name … (SELECT …)` is a typing error and not prose. Prose ends in a colon, a full stop, an exclamation
    // mark or a line break; a prompt ends in `>`.
    let before = text[..begin.1.start].trim_end_matches([' ', '\t']);
    (is_wordy && before.ends_with([':', '.', '!', '\n', '>'])).then(|| trim_range(text, begin.1.start..text.len()))
}

fn trim_range(text: &str, range: Range<usize>) -> Range<usize> {
    let part = &text[range.clone()];
    let start = range.start + (part.len() - part.trim_start().len());
    start..(start + part.trim().len())
}

/// Reports whether a word starts a statement of either dialect.
fn is_statement_start(word: &str) -> bool {
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

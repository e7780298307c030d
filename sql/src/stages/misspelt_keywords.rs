//! Finds misspelt keywords in a statement whose syntax the engine refuses, and the position where an unfinished
//! statement stops. The engine checks each suggestion.

use std::ops::Range;
use std::time::Instant;

use proctor_core::sql::{Applicability, Dialect, SqlCode, SqlDiagnostic, SqlFix, StageName};
use strsim::damerau_levenshtein;

use crate::engine::{EngineRefusal, INCOMPLETE_STATEMENT};
use crate::lexer::{self, SqlTokenKind};
use crate::stage::{ChainContext, execution_bounds};
use crate::stages::edited_text::EditedText;

/// The maximum number of misspelt keywords that are searched for in one statement.
const MAX_MISSPELT: usize = 6;
/// The number of words before an error that may be its cause.
const MAX_WORDS_BEFORE_ERROR: usize = 12;

/// Keywords of both engines. Among equally close keywords the first one is suggested.
const KEYWORDS: &[&str] = &[
    "SELECT",
    "FROM",
    "WHERE",
    "GROUP",
    "ORDER",
    "BY",
    "HAVING",
    "LIMIT",
    "OFFSET",
    "JOIN",
    "INNER",
    "LEFT",
    "RIGHT",
    "FULL",
    "OUTER",
    "CROSS",
    "NATURAL",
    "ON",
    "USING",
    "UNION",
    "INTERSECT",
    "EXCEPT",
    "ALL",
    "DISTINCT",
    "AS",
    "AND",
    "OR",
    "NOT",
    "NULL",
    "IN",
    "IS",
    "LIKE",
    "BETWEEN",
    "EXISTS",
    "CASE",
    "WHEN",
    "THEN",
    "ELSE",
    "END",
    "INSERT",
    "INTO",
    "VALUES",
    "UPDATE",
    "SET",
    "DELETE",
    "CREATE",
    "TABLE",
    "DROP",
    "ALTER",
    "ADD",
    "COLUMN",
    "RENAME",
    "VIEW",
    "INDEX",
    "WITH",
    "RECURSIVE",
    "ASC",
    "DESC",
    "CAST",
    "PRIMARY",
    "KEY",
    "FOREIGN",
    "REFERENCES",
    "UNIQUE",
    "DEFAULT",
    "CHECK",
    "CONSTRAINT",
    "RETURNING",
    "OVER",
    "PARTITION",
    "WINDOW",
    "REPLACE",
    "EXPLAIN",
    "CONFLICT",
    "FILTER",
];

/// Returns the keywords of which `word` may be a misspelling, the closest first, in the case of `word`.
pub(super) fn similar_keywords(word: &str) -> Vec<String> {
    let upper = word.to_ascii_uppercase();
    if KEYWORDS.contains(&upper.as_str()) || !word.is_ascii() {
        return Vec::new();
    }
    let mut found: Vec<(usize, usize, &str)> = KEYWORDS
        .iter()
        .enumerate()
        .filter(|(_, keyword)| upper.len().abs_diff(keyword.len()) <= 2)
        .map(|(rank, keyword)| (damerau_levenshtein(&upper, keyword), rank, *keyword))
        .filter(|(distance, _, keyword)| is_likely_misspelling(*distance, &upper, keyword))
        .collect();
    found.sort_unstable();
    let is_lower = word.chars().all(|c| !c.is_ascii_uppercase());
    let cased = |keyword: &str| if is_lower { keyword.to_ascii_lowercase() } else { keyword.to_owned() };
    found.into_iter().take(3).map(|(_, _, keyword)| cased(keyword)).collect()
}

/// Reports whether a word is close enough to a keyword: two exchanged letters in a short one, up to two changes in a
/// long one.
fn is_likely_misspelling(distance: usize, word: &str, keyword: &str) -> bool {
    match keyword.len() {
        0..=2 => distance == 1 && word.len() == 2 && word.bytes().all(|byte| keyword.as_bytes().contains(&byte)),
        3..=4 => distance <= 1,
        _ => distance <= 2,
    }
}

/// Returns the reason why the engine refuses the syntax of a text, with a position in the text; `None` if it accepts
/// the syntax.
pub(super) fn syntax_refusal(case: &mut ChainContext<'_>, sql: &str) -> Option<EngineRefusal> {
    /// The number of statements that are checked: enough to see whether a statement follows the first.
    const STATEMENTS: usize = 4;
    let ranges = match case.engine.split(sql) {
        Ok(ranges) => ranges,
        Err(refusal) => return Some(refusal),
    };
    let bounds = case.limits_and_deadline();
    ranges.into_iter().take(STATEMENTS).find_map(|range| {
        let refusal = case.engine.bind(&sql[range.clone()], execution_bounds(&bounds)).err()?;
        let place = refusal.range.clone().map(|place| range.start + place.start..range.start + place.end);
        is_syntax_code(refusal.code).then_some(EngineRefusal { range: place, ..refusal })
    })
}

/// Reports whether a refusal is about the syntax of a statement, not about names.
pub(super) fn is_syntax_code(code: SqlCode) -> bool {
    matches!(code, SqlCode::SyntaxError | SqlCode::UnterminatedToken | SqlCode::TooDeep | SqlCode::NulByte)
}

/// Returns a finding for each misspelt keyword of a statement that starts at `from` in the text, and for the engine's
/// remaining refusal; empty if no keyword is the cause.
pub(super) fn find_misspelt_keywords(
    case: &mut ChainContext<'_>,
    sql: &str,
    refusal: &EngineRefusal,
    from: usize,
) -> Vec<SqlDiagnostic> {
    if refusal.code != SqlCode::SyntaxError {
        return Vec::new();
    }
    let mut edited = EditedText::new(sql);
    let mut left = Some(refusal.clone());
    let mut found = Vec::new();
    while let Some(refusal) = left.clone().filter(|_| found.len() < MAX_MISSPELT && Instant::now() < case.deadline) {
        let Some((word, keyword, next)) = correct_keyword(case, edited.text(), &refusal) else { break };
        let written = edited.text()[word.clone()].to_owned();
        let (Some(place), Some(replaced)) = (edited.original_range(&word), edited.with_replacement(&word, &keyword))
        else {
            break;
        };
        found.push(misspelling_finding(case, &written, &keyword, from + place.start..from + place.end));
        (edited, left) = (replaced, next);
    }
    // The remaining error is reported too if its position is known.
    if let (false, Some(rest)) = (found.is_empty(), left)
        && let Some(place) = rest.range.as_ref().and_then(|place| edited.original_range(place))
    {
        found.push(case.refusal_finding(StageName::Parse, &EngineRefusal { range: Some(place), ..rest }, from));
    }
    found
}

fn misspelling_finding(case: &ChainContext<'_>, written: &str, keyword: &str, place: Range<usize>) -> SqlDiagnostic {
    let fix = SqlFix {
        start: place.start,
        end: place.end,
        replacement: keyword.to_owned(),
        applicability: Applicability::Likely,
    };
    let message = format!("`{written}` is not a keyword; `{keyword}` is similar");
    SqlDiagnostic::error(StageName::Parse, SqlCode::SyntaxError, message)
        .with_span(Some(case.span(place)))
        .with_subject(written)
        .with_candidates(vec![keyword.to_owned()])
        .with_advice(format!("Write `{keyword}`."))
        .with_fix(Some(fix))
}

/// Returns the range of the misspelt word, the keyword, and the engine's next syntax error: none, or a later one.
fn correct_keyword(
    case: &mut ChainContext<'_>,
    sql: &str,
    refusal: &EngineRefusal,
) -> Option<(Range<usize>, String, Option<EngineRefusal>)> {
    let error = refusal.range.as_ref().map_or(sql.len(), |place| place.start);
    let words: Vec<Range<usize>> = lexer::tokenize(sql, case.request.dialect)
        .into_iter()
        .filter(|(piece, _)| *piece == SqlTokenKind::Word)
        .map(|(_, range)| range)
        .collect();
    let until = words.iter().position(|word| word.start > error).map_or(words.len(), |behind| behind + 1);
    let mut best: Option<(usize, Range<usize>, String, EngineRefusal)> = None;
    for word in words[..until].iter().rev().take(MAX_WORDS_BEFORE_ERROR) {
        for keyword in similar_keywords(&sql[word.clone()]) {
            if Instant::now() > case.deadline {
                return None;
            }
            let mut corrected_sql = sql.to_owned();
            corrected_sql.replace_range(word.clone(), &keyword);
            let Some(next) = syntax_refusal(case, &corrected_sql) else { return Some((word.clone(), keyword, None)) };
            let length_change = keyword.len().cast_signed() - word.len().cast_signed();
            let old_error = error.saturating_add_signed(if word.start < error { length_change } else { 0 });
            let new_error = next.range.as_ref().map_or(corrected_sql.len(), |place| place.start);
            let behind_word = word.start + keyword.len();
            let is_further =
                new_error > old_error.max(behind_word) || (word.start == error && new_error >= behind_word);
            if next.code == SqlCode::SyntaxError && is_further && best.as_ref().is_none_or(|(at, ..)| new_error > *at) {
                best = Some((new_error, word.clone(), keyword, next));
            }
        }
    }
    best.map(|(_, word, keyword, next)| (word, keyword, Some(next)))
}

/// Reports whether a refusal means that a statement ends too early.
fn is_unfinished(refusal: &EngineRefusal, sql: &str) -> bool {
    refusal.code == SqlCode::SyntaxError
        && (refusal.range.is_none() && refusal.message == INCOMPLETE_STATEMENT
            || refusal.message.contains("end of input")
            || refusal.range.as_ref().is_some_and(|place| place.start >= sql.trim_end().len()))
}

/// Adds the position where an unfinished statement stops, and what is missing there.
pub(super) fn with_end_position(
    found: SqlDiagnostic,
    case: &ChainContext<'_>,
    sql: &str,
    refusal: &EngineRefusal,
    from: usize,
) -> SqlDiagnostic {
    if !is_unfinished(refusal, sql) {
        return found;
    }
    let (place, message, advice) = statement_end(sql, case.request.dialect);
    let span = case.span(from + place.start..from + place.end);
    SqlDiagnostic { message, ..found.with_span(Some(span)).with_advice(advice) }
}

/// Returns the position where an unfinished statement stops: an open parenthesis, an open CASE, or its last word.
fn statement_end(sql: &str, dialect: Dialect) -> (Range<usize>, String, String) {
    let mut open: Vec<(Range<usize>, &str)> = Vec::new();
    let mut last = 0..0;
    for (piece, range) in lexer::tokenize(sql, dialect) {
        if matches!(piece, SqlTokenKind::Whitespace | SqlTokenKind::Comment) {
            continue;
        }
        let part = &sql[range.clone()];
        match piece {
            SqlTokenKind::Symbol if part == "(" => open.push((range.clone(), "(")),
            SqlTokenKind::Symbol if part == ")" => open.truncate(open.len().saturating_sub(1)),
            SqlTokenKind::Word if part.eq_ignore_ascii_case("case") => open.push((range.clone(), "CASE")),
            SqlTokenKind::Word
                if part.eq_ignore_ascii_case("end") && open.last().is_some_and(|(_, what)| *what == "CASE") =>
            {
                open.truncate(open.len() - 1);
            }
            _ => {}
        }
        last = range;
    }
    let word = sql[last.clone()].to_owned();
    let is_complete_word = !KEYWORDS.contains(&word.to_ascii_uppercase().as_str()) && !word.ends_with([',', '=', '(']);
    match open.pop() {
        Some((place, "CASE")) if is_complete_word => {
            (place, "this `CASE` has no `END`".to_owned(), "Close it with `END`.".to_owned())
        }
        Some((place, _)) if is_complete_word => {
            (place, "this bracket is not closed".to_owned(), "Close it with `)`.".to_owned())
        }
        _ => {
            let advice = format!("Complete the statement after `{word}`, or remove `{word}`.");
            (last, format!("the statement ends after `{word}`"), advice)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_keywords_for_misspellings_only() {
        let cases = [
            ("SELEC", Some("SELECT")),
            ("form", Some("from")),
            ("WEHRE", Some("WHERE")),
            ("GRUOP", Some("GROUP")),
            ("YB", Some("BY")),
            ("JION", Some("JOIN")),
            ("DISTNCT", Some("DISTINCT")),
            ("customers", None),
            ("SELECT", None),
            ("id", None),
            ("x", None),
        ];
        for (word, keyword) in cases {
            assert_eq!(similar_keywords(word).first().map(String::as_str), keyword, "{word}");
        }
    }

    #[test]
    fn locates_end_of_unfinished_statement() {
        let cases = [
            ("SELECT name FROM t WHERE", "WHERE"),
            ("SELECT name FROM t WHERE  -- and\n", "WHERE"),
            ("SELECT (1 + 2", "("),
            ("SELECT CASE WHEN a THEN 1", "CASE"),
            ("SELECT max(a,", ","),
            ("SELECT a FROM t ORDER BY", "BY"),
        ];
        for (sql, place) in cases {
            assert_eq!(&sql[statement_end(sql, Dialect::Sqlite).0], place, "{sql}");
        }
    }
}

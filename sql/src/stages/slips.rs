//! Finds misspelt keywords in a statement whose syntax the engine refuses, and the position where an unfinished
//! statement stops. The engine checks each suggestion.

use std::ops::Range;
use std::time::Instant;

use proctor_core::sql::{Applicability, Diagnostic, Dialect, Fix, SqlCode, StageName};
use strsim::damerau_levenshtein;

use crate::engine::Refusal;
use crate::stage::{Case, on};
use crate::stages::edited::Edited;
use crate::text::{self, Piece};

/// The maximum number of misspelt keywords that are searched for in one statement.
const MOST: usize = 6;
/// The number of words before an error that may be its cause.
const FAR: usize = 12;

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
pub(super) fn keywords_near(word: &str) -> Vec<String> {
    let upper = word.to_ascii_uppercase();
    if KEYWORDS.contains(&upper.as_str()) || !word.is_ascii() {
        return Vec::new();
    }
    let mut found: Vec<(usize, usize, &str)> = KEYWORDS
        .iter()
        .enumerate()
        .filter(|(_, keyword)| upper.len().abs_diff(keyword.len()) <= 2)
        .map(|(rank, keyword)| (damerau_levenshtein(&upper, keyword), rank, *keyword))
        .filter(|(distance, _, keyword)| is_slip(*distance, &upper, keyword))
        .collect();
    found.sort_unstable();
    let is_lower = word.chars().all(|c| !c.is_ascii_uppercase());
    let cased = |keyword: &str| if is_lower { keyword.to_ascii_lowercase() } else { keyword.to_owned() };
    found.into_iter().take(3).map(|(_, _, keyword)| cased(keyword)).collect()
}

/// Reports whether a word is close enough to a keyword: two exchanged letters in a short one, up to two changes in a
/// long one.
fn is_slip(distance: usize, word: &str, keyword: &str) -> bool {
    match keyword.len() {
        0..=2 => distance == 1 && word.len() == 2 && word.bytes().all(|byte| keyword.as_bytes().contains(&byte)),
        3..=4 => distance <= 1,
        _ => distance <= 2,
    }
}

/// Returns the reason why the engine refuses the syntax of a text, with a position in the text; `None` if it accepts
/// the syntax.
pub(super) fn refused_form(case: &mut Case<'_>, sql: &str) -> Option<Refusal> {
    /// The number of statements that are checked: enough to see whether a statement follows the first.
    const STATEMENTS: usize = 4;
    let ranges = match case.engine.split(sql) {
        Ok(ranges) => ranges,
        Err(refusal) => return Some(refusal),
    };
    let bounds = case.bounds();
    ranges.into_iter().take(STATEMENTS).find_map(|range| {
        let refusal = case.engine.bind(&sql[range.clone()], on(&bounds)).err()?;
        let place = refusal.place.clone().map(|place| range.start + place.start..range.start + place.end);
        is_of_form(refusal.code).then_some(Refusal { place, ..refusal })
    })
}

/// Reports whether a refusal is about the syntax of a statement, not about names.
pub(super) fn is_of_form(code: SqlCode) -> bool {
    matches!(code, SqlCode::SyntaxError | SqlCode::UnterminatedToken | SqlCode::TooDeep | SqlCode::NulByte)
}

/// Returns a finding for each misspelt keyword of a statement that starts at `from` in the text, and for the engine's
/// remaining refusal; empty if no keyword is the cause.
pub(super) fn misspelt(case: &mut Case<'_>, sql: &str, refusal: &Refusal, from: usize) -> Vec<Diagnostic> {
    if refusal.code != SqlCode::SyntaxError {
        return Vec::new();
    }
    let mut edited = Edited::new(sql);
    let mut left = Some(refusal.clone());
    let mut found = Vec::new();
    while let Some(refusal) = left.clone().filter(|_| found.len() < MOST && Instant::now() < case.deadline) {
        let Some((word, keyword, next)) = corrected(case, edited.text(), &refusal) else { break };
        let written = edited.text()[word.clone()].to_owned();
        let (Some(place), Some(replaced)) = (edited.original(&word), edited.with(&word, &keyword)) else { break };
        found.push(finding(case, &written, &keyword, from + place.start..from + place.end));
        (edited, left) = (replaced, next);
    }
    // The remaining error is reported too if its position is known.
    if let (false, Some(rest)) = (found.is_empty(), left)
        && let Some(place) = rest.place.as_ref().and_then(|place| edited.original(place))
    {
        found.push(case.refused(StageName::Parse, &Refusal { place: Some(place), ..rest }, from));
    }
    found
}

fn finding(case: &Case<'_>, written: &str, keyword: &str, place: Range<usize>) -> Diagnostic {
    let fix = Fix {
        start: place.start,
        end: place.end,
        replacement: keyword.to_owned(),
        applicability: Applicability::Likely,
    };
    let message = format!("`{written}` is not a keyword; `{keyword}` is similar");
    Diagnostic::error(StageName::Parse, SqlCode::SyntaxError, message)
        .at(Some(case.span(place)))
        .about(written)
        .candidates(vec![keyword.to_owned()])
        .advice(format!("Write `{keyword}`."))
        .fix(Some(fix))
}

/// Returns the range of the misspelt word, the keyword, and the engine's next syntax error: none, or a later one.
fn corrected(case: &mut Case<'_>, sql: &str, refusal: &Refusal) -> Option<(Range<usize>, String, Option<Refusal>)> {
    let error = refusal.place.as_ref().map_or(sql.len(), |place| place.start);
    let words: Vec<Range<usize>> = text::pieces(sql, case.request.dialect)
        .into_iter()
        .filter(|(piece, _)| *piece == Piece::Word)
        .map(|(_, range)| range)
        .collect();
    let until = words.iter().position(|word| word.start > error).map_or(words.len(), |behind| behind + 1);
    let mut best: Option<(usize, Range<usize>, String, Refusal)> = None;
    for word in words[..until].iter().rev().take(FAR) {
        for keyword in keywords_near(&sql[word.clone()]) {
            if Instant::now() > case.deadline {
                return None;
            }
            let mut mended = sql.to_owned();
            mended.replace_range(word.clone(), &keyword);
            let Some(next) = refused_form(case, &mended) else { return Some((word.clone(), keyword, None)) };
            let grown = keyword.len().cast_signed() - word.len().cast_signed();
            let was = error.saturating_add_signed(if word.start < error { grown } else { 0 });
            let is = next.place.as_ref().map_or(mended.len(), |place| place.start);
            let behind_word = word.start + keyword.len();
            let is_further = is > was.max(behind_word) || (word.start == error && is >= behind_word);
            if next.code == SqlCode::SyntaxError && is_further && best.as_ref().is_none_or(|(at, ..)| is > *at) {
                best = Some((is, word.clone(), keyword, next));
            }
        }
    }
    best.map(|(_, word, keyword, next)| (word, keyword, Some(next)))
}

/// Reports whether a refusal says that a statement ends too early.
fn is_unfinished(refusal: &Refusal, sql: &str) -> bool {
    refusal.code == SqlCode::SyntaxError
        && (refusal.place.is_none() && refusal.message.contains("stops in its middle")
            || refusal.message.contains("end of input")
            || refusal.place.as_ref().is_some_and(|place| place.start >= sql.trim_end().len()))
}

/// Adds the position where an unfinished statement stops, and what is missing there.
pub(super) fn unfinished(found: Diagnostic, case: &Case<'_>, sql: &str, refusal: &Refusal, from: usize) -> Diagnostic {
    if !is_unfinished(refusal, sql) {
        return found;
    }
    let (place, message, advice) = ending(sql, case.request.dialect);
    let span = case.span(from + place.start..from + place.end);
    Diagnostic { message, ..found.at(Some(span)).advice(advice) }
}

/// Returns the position where an unfinished statement stops: an open parenthesis, an open CASE, or its last word.
fn ending(sql: &str, dialect: Dialect) -> (Range<usize>, String, String) {
    let mut open: Vec<(Range<usize>, &str)> = Vec::new();
    let mut last = 0..0;
    for (piece, range) in text::pieces(sql, dialect) {
        if matches!(piece, Piece::Space | Piece::Comment) {
            continue;
        }
        let part = &sql[range.clone()];
        match piece {
            Piece::Sign if part == "(" => open.push((range.clone(), "(")),
            Piece::Sign if part == ")" => open.truncate(open.len().saturating_sub(1)),
            Piece::Word if part.eq_ignore_ascii_case("case") => open.push((range.clone(), "CASE")),
            Piece::Word if part.eq_ignore_ascii_case("end") && open.last().is_some_and(|(_, what)| *what == "CASE") => {
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
            let advice = format!("Write what belongs behind `{word}`, or leave `{word}` out.");
            (last, format!("the statement stops behind `{word}`"), advice)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keywords_are_suggested_for_slips_only() {
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
            assert_eq!(keywords_near(word).first().map(String::as_str), keyword, "{word}");
        }
    }

    #[test]
    fn an_unfinished_statement_has_a_place() {
        let cases = [
            ("SELECT name FROM t WHERE", "WHERE"),
            ("SELECT name FROM t WHERE  -- and\n", "WHERE"),
            ("SELECT (1 + 2", "("),
            ("SELECT CASE WHEN a THEN 1", "CASE"),
            ("SELECT max(a,", ","),
            ("SELECT a FROM t ORDER BY", "BY"),
        ];
        for (sql, place) in cases {
            assert_eq!(&sql[ending(sql, Dialect::Sqlite).0], place, "{sql}");
        }
    }
}

//! Decides by position and spelling whether a double-quoted text can only be a string.

use std::ops::Range;

use proctor_core::sql::Dialect;

use crate::lexer::{SqlTokenKind, tokenize};

/// Reports whether the text at `place` is a value: it is compared with a column, or it is a branch of CASE.
///
/// A misspelt column would appear where a column is expected. In `division != "Division 1"` the column is on the other
/// side.
pub(super) fn is_string_value(sql: &str, text_range: &Range<usize>, is_column: impl Fn(&str) -> bool) -> bool {
    let before: Vec<(SqlTokenKind, &str)> = tokenize(sql, Dialect::Sqlite)
        .into_iter()
        .take_while(|(_, range)| range.end <= text_range.start)
        .filter(|(piece, _)| !matches!(piece, SqlTokenKind::Whitespace | SqlTokenKind::Comment))
        .map(|(piece, range)| (piece, &sql[range]))
        .collect();
    let mut left = before.iter().rev().copied().peekable();
    // Skips the preceding members of a list, up to its parenthesis.
    let mut rest = left.clone();
    let is_member = |(piece, text): &(SqlTokenKind, &str)| {
        matches!(piece, SqlTokenKind::Quoted | SqlTokenKind::String | SqlTokenKind::Number) || *text == ","
    };
    while rest.next_if(is_member).is_some() {}
    if rest.next().is_some_and(|(_, text)| text == "(")
        && rest.next().is_some_and(|(_, text)| text.eq_ignore_ascii_case("in"))
    {
        rest.next_if(|(_, text)| text.eq_ignore_ascii_case("not"));
        return rest.next().is_some_and(|(piece, text)| is_column_token(piece, text, &is_column));
    }
    let Some((_, operator)) = left.next() else { return false };
    match operator.to_ascii_lowercase().as_str() {
        "then" | "else" => true,
        "=" | "<" | ">" | "like" | "glob" | "is" | "not" | "between" => {
            let is_operator = |(_, text): &(SqlTokenKind, &str)| {
                matches!(text.to_ascii_lowercase().as_str(), "=" | "<" | ">" | "!" | "not" | "like" | "is")
            };
            while left.next_if(is_operator).is_some() {}
            left.next().is_some_and(|(piece, text)| is_column_token(piece, text, &is_column))
        }
        _ => false,
    }
}

/// Reports whether a token is a column, or the end of a function call.
fn is_column_token(piece: SqlTokenKind, text: &str, is_column: &impl Fn(&str) -> bool) -> bool {
    match piece {
        SqlTokenKind::Word => true,
        SqlTokenKind::Quoted => is_column(&crate::lexer::unquote(text)),
        _ => text == ")",
    }
}

/// Reports whether a text is the name of a column with two adjacent letters exchanged. A value does not have this form
/// by chance.
pub(super) fn is_transposition(text: &str, column: &str) -> bool {
    let plain = |name: &str| -> Vec<char> {
        name.chars().filter(|sign| sign.is_alphanumeric()).flat_map(char::to_lowercase).collect()
    };
    let (one, other) = (plain(text), plain(column));
    let different: Vec<usize> = (0..one.len().min(other.len())).filter(|at| one[*at] != other[*at]).collect();
    matches!(different.as_slice(), [first, second]
        if one.len() == other.len() && second - first == 1 && one[*first] == other[*second] && one[*second] == other[*first])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinguishes_values_from_names_by_position() {
        let cases = [
            ("SELECT a FROM t WHERE division != \"division 1\"", true),
            ("SELECT a FROM t WHERE status = \"operational\"", true),
            ("SELECT a FROM t WHERE t.region == \"region0\"", true),
            ("SELECT a FROM t WHERE region NOT LIKE \"region0\"", true),
            ("SELECT a FROM t WHERE \"region\" IS NOT \"region0\"", true),
            ("SELECT a FROM t WHERE region IN ('x', \"region1\", \"region0\")", true),
            ("SELECT a FROM t WHERE region NOT IN (\"region0\")", true),
            ("SELECT a FROM t WHERE lower(region) = \"region0\"", true),
            ("SELECT CASE WHEN a THEN \"region0\" END FROM t", true),
            ("SELECT \"region0\" FROM t", false),
            ("SELECT a FROM t WHERE \"region0\" = 'x'", false),
            ("SELECT a FROM t WHERE 'x' = \"region0\"", false),
            ("SELECT a FROM t WHERE 1 < \"region0\"", false),
            ("SELECT a FROM t ORDER BY \"region0\"", false),
            ("SELECT a FROM t WHERE \"regoin\" = \"region0\"", false),
            ("SELECT max(\"region0\") FROM t", false),
            ("SELECT a, \"region0\" FROM t", false),
        ];
        for (sql, expected) in cases {
            let text = ["\"division 1\"", "\"operational\"", "\"region0\""]
                .iter()
                .find_map(|text| sql.find(text).map(|at| at..at + text.len()));
            let found = text.map(|place| is_string_value(sql, &place, |name| name == "region"));
            assert_eq!(found, Some(expected), "{sql}");
        }
    }

    #[test]
    fn detects_transposed_letters_only() {
        for (text, column, expected) in
            [("teir", "tier", true), ("region0", "region", false), ("Tire", "tier", true), ("tier", "tier", false)]
        {
            assert_eq!(is_transposition(text, column), expected, "{text} {column}");
        }
    }

    #[test]
    fn accepts_values_similar_to_columns_but_not_misspellings() {
        use crate::sqlite::Sqlite;
        use proctor_core::sql::{SqlCode, SqlRequest, SqlVerdict, StageName};
        let schema = "CREATE TABLE school (name TEXT, division TEXT, operational_to TEXT, region TEXT)";
        for (sql, is_ok) in [
            ("SELECT name FROM school WHERE division != \"Division 1\"", true),
            ("SELECT name FROM school WHERE name = \"Operational\"", true),
            ("SELECT name FROM school WHERE region IN (\"region0\", \"region1\")", true),
            ("SELECT name FROM school WHERE \"regoin\" = 'x'", false),
            ("SELECT \"divisoin\" FROM school", false),
            ("SELECT name FROM school WHERE region = \"regoin\"", false),
        ] {
            let request = SqlRequest {
                schema: vec![schema.to_owned()],
                stages: Some(vec![StageName::Bind]),
                ..SqlRequest::new(Dialect::Sqlite, sql)
            };
            let mut engine = Sqlite::open(&request).expect("a schema");
            let judgement = crate::judge(&request, &mut engine);
            assert_eq!(judgement.verdict == SqlVerdict::Ok, is_ok, "{sql}: {:#?}", judgement.diagnostics);
            let is_slip = judgement.diagnostics.iter().any(|found| found.code == SqlCode::MisspeltIdentifier);
            assert_eq!(is_slip, !is_ok, "{sql}");
        }
    }
}

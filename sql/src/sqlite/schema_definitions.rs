//! Parses definitions of a schema, as far as the lists of a request depend on them.

use std::collections::BTreeSet;
use std::ops::Range;

use proctor_core::sql::Dialect;

use crate::lexer::{self, SqlTokenKind};

/// Returns the tokens of a text without spaces and comments.
pub(super) fn significant_tokens(sql: &str) -> Vec<(SqlTokenKind, Range<usize>)> {
    let mut pieces = lexer::tokenize(sql, Dialect::Sqlite);
    pieces.retain(|(piece, _)| !matches!(piece, SqlTokenKind::Whitespace | SqlTokenKind::Comment));
    pieces
}

/// Returns the tables that the foreign keys of a text refer to.
pub(super) fn referenced_tables(sql: &str) -> Vec<String> {
    let solid = significant_tokens(sql);
    let keys = solid
        .windows(2)
        .filter(|pair| pair[0].0 == SqlTokenKind::Word && sql[pair[0].1.clone()].eq_ignore_ascii_case("references"));
    keys.map(|pair| lexer::unquote(&sql[pair[1].1.clone()])).collect()
}

/// Returns the index of the token before the arguments of a virtual table.
pub(super) fn virtual_table_arguments_start(solid: &[(SqlTokenKind, Range<usize>)], sql: &str) -> Option<usize> {
    let is = |at: usize, word: &str| {
        solid
            .get(at)
            .is_some_and(|(piece, range)| *piece == SqlTokenKind::Word && sql[range.clone()].eq_ignore_ascii_case(word))
    };
    (is(0, "create") && is(1, "virtual")).then(|| (2..solid.len()).find(|at| is(*at, "using")))?
}

/// Returns the tables in which a virtual table keeps its content. FTS5 accepts abbreviations of the option `content`.
pub(super) fn content_tables(sql: &str) -> Vec<String> {
    let solid = significant_tokens(sql);
    let Some(begin) = virtual_table_arguments_start(&solid, sql) else { return Vec::new() };
    let word = |at: usize| solid.get(at).map_or("", |(_, range)| &sql[range.clone()]);
    let options = (begin + 1..solid.len()).filter(|at| word(*at) == "=");
    let names_content = |at: &usize| "content".starts_with(&lexer::unquote(word(at - 1)).to_ascii_lowercase());
    let values = options.filter(names_content).map(|at| lexer::unquote(word(at + 1)));
    values.filter(|value| !value.is_empty() && value != "," && value != ")").collect()
}

/// Returns the query of a view.
pub(super) fn view_query(sql: &str) -> Option<&str> {
    let solid = significant_tokens(sql);
    let mut depth = 0_usize;
    for (at, (piece, range)) in solid.iter().enumerate() {
        match &sql[range.clone()] {
            "(" => depth += 1,
            ")" => depth = depth.saturating_sub(1),
            word if depth == 0 && *piece == SqlTokenKind::Word && word.eq_ignore_ascii_case("as") => {
                return solid.get(at + 1).map(|(_, next)| &sql[next.start..]);
            }
            _ => {}
        }
    }
    None
}

/// Reports whether the definition of a generated column names one of the given columns. Returns `true` if the
/// definition is not found.
pub(super) fn is_computed_from(sql: &str, column: &str, others: &BTreeSet<String>) -> bool {
    let solid = significant_tokens(sql);
    let word = |at: usize| solid.get(at).map_or("", |(_, range)| &sql[range.clone()]);
    let mut depth = 0_usize;
    let mut begin = None;
    for at in 0..solid.len() {
        match word(at) {
            "(" => depth += 1,
            ")" => depth = depth.saturating_sub(1),
            _ => {}
        }
        let is_start = depth == 1 && at > 0 && matches!(word(at - 1), "(" | ",");
        if is_start && lexer::unquote(word(at)).eq_ignore_ascii_case(column) {
            begin = Some(at + 1);
            break;
        }
    }
    let Some(begin) = begin else { return true };
    let mut depth = 0_usize;
    for at in begin..solid.len() {
        match word(at) {
            "(" => depth += 1,
            ")" if depth == 0 => break,
            ")" => depth -= 1,
            "," if depth == 0 => break,
            other if others.contains(&lexer::unquote(other).to_ascii_lowercase()) => return true,
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_content_of_virtual_tables() {
        let cases: &[(&str, &[&str])] = &[
            ("CREATE VIRTUAL TABLE x USING fts5(a, content='secret', content_rowid='id')", &["secret"]),
            ("create virtual table x using fts5(a, CONT = \"Secret\")", &["Secret"]),
            ("CREATE VIRTUAL TABLE x USING fts4(content=[secret], a)", &["secret"]),
            ("CREATE VIRTUAL TABLE x USING fts5(a, content='')", &[]),
            ("CREATE TABLE content (a DEFAULT 1, CHECK (content = 'x'))", &[]),
        ];
        for (sql, expected) in cases {
            assert_eq!(content_tables(sql), *expected, "{sql}");
        }
    }

    #[test]
    fn finds_referenced_tables() {
        let sql = "CREATE TABLE x (a REFERENCES \"sec ret\"(id) ON DELETE CASCADE, FOREIGN KEY (a) references t (b))";
        assert_eq!(referenced_tables(sql), ["sec ret", "t"]);
        assert!(referenced_tables("SELECT 'references t'").is_empty());
    }

    #[test]
    fn finds_source_columns_of_generated_columns() {
        let sql =
            "CREATE TABLE t (id, ssn TEXT, \"masked\" AS (substr(ssn, -4)), twice INT GENERATED ALWAYS AS (id * 2))";
        let off: BTreeSet<String> = ["ssn".to_owned()].into();
        assert!(is_computed_from(sql, "masked", &off));
        assert!(!is_computed_from(sql, "twice", &off));
        assert!(is_computed_from(sql, "missing", &off), "fails closed");
    }
}

//! Parses definitions of a schema, as far as the lists of a request depend on them.

use std::collections::BTreeSet;
use std::ops::Range;

use proctor_core::sql::Dialect;

use crate::text::{self, Piece};

/// Returns the tokens of a text without spaces and comments.
pub(super) fn solid(sql: &str) -> Vec<(Piece, Range<usize>)> {
    let mut pieces = text::pieces(sql, Dialect::Sqlite);
    pieces.retain(|(piece, _)| !matches!(piece, Piece::Space | Piece::Comment));
    pieces
}

/// Returns the tables that the foreign keys of a text refer to.
pub(super) fn referenced(sql: &str) -> Vec<String> {
    let solid = solid(sql);
    let keys = solid
        .windows(2)
        .filter(|pair| pair[0].0 == Piece::Word && sql[pair[0].1.clone()].eq_ignore_ascii_case("references"));
    keys.map(|pair| text::unquoted(&sql[pair[1].1.clone()])).collect()
}

/// Returns the index of the token before the arguments of a virtual table.
pub(super) fn contents_begin(solid: &[(Piece, Range<usize>)], sql: &str) -> Option<usize> {
    let is = |at: usize, word: &str| {
        solid
            .get(at)
            .is_some_and(|(piece, range)| *piece == Piece::Word && sql[range.clone()].eq_ignore_ascii_case(word))
    };
    (is(0, "create") && is(1, "virtual")).then(|| (2..solid.len()).find(|at| is(*at, "using")))?
}

/// Returns the tables in which a virtual table keeps its content. FTS5 accepts abbreviations of the option `content`.
pub(super) fn contents(sql: &str) -> Vec<String> {
    let solid = solid(sql);
    let Some(begin) = contents_begin(&solid, sql) else { return Vec::new() };
    let word = |at: usize| solid.get(at).map_or("", |(_, range)| &sql[range.clone()]);
    let options = (begin + 1..solid.len()).filter(|at| word(*at) == "=");
    let names_content = |at: &usize| "content".starts_with(&text::unquoted(word(at - 1)).to_ascii_lowercase());
    let values = options.filter(names_content).map(|at| text::unquoted(word(at + 1)));
    values.filter(|value| !value.is_empty() && value != "," && value != ")").collect()
}

/// Returns the query of a view.
pub(super) fn behind_as(sql: &str) -> Option<&str> {
    let solid = solid(sql);
    let mut depth = 0_usize;
    for (at, (piece, range)) in solid.iter().enumerate() {
        match &sql[range.clone()] {
            "(" => depth += 1,
            ")" => depth = depth.saturating_sub(1),
            word if depth == 0 && *piece == Piece::Word && word.eq_ignore_ascii_case("as") => {
                return solid.get(at + 1).map(|(_, next)| &sql[next.start..]);
            }
            _ => {}
        }
    }
    None
}

/// Reports whether the definition of a generated column names one of the given columns. Returns `true` if the
/// definition is not found.
pub(super) fn is_computed_of(sql: &str, column: &str, others: &BTreeSet<String>) -> bool {
    let solid = solid(sql);
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
        if is_start && text::unquoted(word(at)).eq_ignore_ascii_case(column) {
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
            other if others.contains(&text::unquoted(other).to_ascii_lowercase()) => return true,
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
            assert_eq!(contents(sql), *expected, "{sql}");
        }
    }

    #[test]
    fn finds_referenced_tables() {
        let sql = "CREATE TABLE x (a REFERENCES \"sec ret\"(id) ON DELETE CASCADE, FOREIGN KEY (a) references t (b))";
        assert_eq!(referenced(sql), ["sec ret", "t"]);
        assert!(referenced("SELECT 'references t'").is_empty());
    }

    #[test]
    fn finds_columns_that_generated_columns_are_computed_of() {
        let sql =
            "CREATE TABLE t (id, ssn TEXT, \"masked\" AS (substr(ssn, -4)), twice INT GENERATED ALWAYS AS (id * 2))";
        let off: BTreeSet<String> = ["ssn".to_owned()].into();
        assert!(is_computed_of(sql, "masked", &off));
        assert!(!is_computed_of(sql, "twice", &off));
        assert!(is_computed_of(sql, "missing", &off), "fails closed");
    }
}

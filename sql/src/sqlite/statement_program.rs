//! Reads the program that SQLite prepares for a statement (`EXPLAIN`), and the root pages of the tables.
//!
//! Source: <https://sqlite.org/opcode.html>.

use std::collections::BTreeMap;

use proctor_core::sql::Dialect;
use rusqlite::Connection;
use rusqlite::types::ValueRef;

use crate::lexer::{self, SqlTokenKind};

/// One instruction of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Instruction {
    pub(super) opcode: String,
    pub(super) operands: [i64; 3],
    pub(super) p4: String,
    pub(super) p5: i64,
}

/// The table that owns each root page, by database and page.
pub(super) type RootPages = BTreeMap<(i64, i64), String>;

/// Reports whether a statement can use tables that the authorizer does not report.
pub(super) fn may_hide_tables(sql: &str, inserts: bool) -> bool {
    has_word(sql, "using") || has_word(sql, "natural") || (inserts && has_word(sql, "select"))
}

/// Reports whether a text contains `word`, ignoring case.
fn has_word(text: &str, word: &str) -> bool {
    text.as_bytes().windows(word.len()).any(|window| window.eq_ignore_ascii_case(word.as_bytes()))
}

/// Returns a statement without a leading `EXPLAIN` or `EXPLAIN QUERY PLAN`.
pub(super) fn strip_explain(sql: &str) -> &str {
    let mut words = lexer::tokenize(sql, Dialect::Sqlite)
        .into_iter()
        .filter(|(piece, _)| !matches!(piece, SqlTokenKind::Whitespace | SqlTokenKind::Comment))
        .map(|(_, range)| range);
    let mut next = words.next();
    for word in ["explain", "query", "plan"] {
        match next.clone() {
            Some(range) if sql[range.clone()].eq_ignore_ascii_case(word) => next = words.next(),
            _ if word == "explain" => return sql,
            _ => break,
        }
    }
    next.map_or("", |range| &sql[range.start..])
}

pub(super) fn read_instructions(connection: &Connection, sql: &str) -> rusqlite::Result<Vec<Instruction>> {
    let mut statement = connection.prepare(sql)?;
    // Parameters stay unbound, since nothing runs.
    let mut rows = statement.raw_query();
    let mut program = Vec::new();
    while let Some(row) = rows.next()? {
        let p4 = match row.get_ref(5)? {
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => String::new(),
        };
        let operands = [row.get(2)?, row.get(3)?, row.get(4)?];
        program.push(Instruction { opcode: row.get(1)?, operands, p4, p5: row.get(6).unwrap_or(0) });
    }
    Ok(program)
}

pub(super) fn read_root_pages(connection: &Connection) -> rusqlite::Result<RootPages> {
    let mut roots = RootPages::new();
    for (database, account) in [(0, "main.sqlite_master"), (1, "temp.sqlite_temp_master")] {
        let query = format!("SELECT rootpage, tbl_name FROM {account} WHERE rootpage > 0");
        let mut statement = connection.prepare(&query)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            roots.insert((database, row.get(0)?), row.get(1)?);
        }
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strips_explain() {
        let cases = [
            ("SELECT 1", "SELECT 1"),
            ("EXPLAIN SELECT 1", "SELECT 1"),
            ("explain /* x */ Query plan -- y\n SELECT 1", "SELECT 1"),
            ("EXPLAIN", ""),
        ];
        for (sql, expected) in cases {
            assert_eq!(strip_explain(sql), expected, "{sql}");
        }
    }
}

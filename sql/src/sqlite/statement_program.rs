//! Reads the program that SQLite prepares for a statement (`EXPLAIN`), and the tables that it opens.
//!
//! The authorizer does not report every table. It misses a table that is named only by `USING` or `NATURAL JOIN`, and a
//! table that `INSERT INTO t SELECT * FROM u` copies page by page. The program opens the root page of each of them.
//!
//! Source: <https://sqlite.org/opcode.html>.

use std::collections::{BTreeMap, BTreeSet};

use proctor_core::sql::Dialect;
use rusqlite::Connection;
use rusqlite::types::ValueRef;

use super::statement_observer::StatementOrigin;
use super::{Sqlite, sqlite_errors};
use crate::engine::{Action, BoundStatement, EngineRefusal, ExecutionBounds, StatementKind};
use crate::lexer::{self, SqlTokenKind};

/// The flag of an instruction whose second operand is a register instead of a root page.
const P5_IS_REGISTER: i64 = 0x10;
/// The root page of the schema table.
const SCHEMA_PAGE: i64 = 1;

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

impl Sqlite {
    /// Adds the tables that the program of a statement opens and that the authorizer did not report.
    pub(super) fn with_opened_tables(
        &mut self,
        mut bound: BoundStatement,
        sql: &str,
        on: ExecutionBounds<'_>,
    ) -> Result<BoundStatement, EngineRefusal> {
        let inserts = bound.actions.iter().any(|action| matches!(action, Action::Insert(_)));
        if bound.kind() > StatementKind::Schema
            || !(self.has_bodies_with_unreported_tables || may_hide_tables(sql, inserts))
        {
            return Ok(bound);
        }
        let known: BTreeSet<String> = bound.tables().into_iter().map(str::to_ascii_lowercase).collect();
        let is_read = bound.kind() == StatementKind::Read;
        for table in self.opened_tables(sql, on)? {
            // A write may open SQLite's internal tables, such as `sqlite_sequence`.
            let is_internal_write = !is_read && table.get(..7).is_some_and(|head| head.eq_ignore_ascii_case("sqlite_"));
            if !is_internal_write && !known.contains(&table.to_ascii_lowercase()) {
                bound.actions.insert(Action::Read { table, column: None });
            }
        }
        Ok(bound)
    }

    /// Returns the tables that the program of a statement opens.
    fn opened_tables(&mut self, sql: &str, on: ExecutionBounds<'_>) -> Result<BTreeSet<String>, EngineRefusal> {
        let program = self.program(sql, on)?;
        let roots = self.root_pages()?;
        let mut tables = BTreeSet::new();
        let mut virtual_tables = BTreeSet::new();
        for Instruction { opcode, operands: [_, page, database], p4, p5 } in &program {
            match opcode.as_str() {
                "OpenRead" | "OpenWrite" | "ReopenIdx" if p5 & P5_IS_REGISTER == 0 => {
                    match roots.get(&(*database, *page)) {
                        Some(table) => drop(tables.insert(table.clone())),
                        None if *page == SCHEMA_PAGE => drop(tables.insert("sqlite_master".to_owned())),
                        // Fails closed: no list contains this name.
                        None => drop(tables.insert(format!("sqlite_page_{page}"))),
                    }
                }
                "VOpen" => drop(virtual_tables.insert(p4.clone())),
                _ => {}
            }
        }
        if !virtual_tables.is_empty() {
            tables.extend(self.named_virtual_tables(sql, &virtual_tables, on));
        }
        Ok(tables)
    }

    /// Returns the virtual tables of the schema that a text names and whose handle is one of `handles`.
    fn named_virtual_tables(
        &mut self,
        sql: &str,
        handles: &BTreeSet<String>,
        on: ExecutionBounds<'_>,
    ) -> BTreeSet<String> {
        let names = lexer::possible_names(sql, Dialect::Sqlite);
        let tables = self.catalog.tables.iter().filter(|table| !table.is_view);
        let named = tables.map(|table| table.name.clone()).filter(|name| names.contains(&name.to_ascii_lowercase()));
        let named: Vec<String> = named.collect();
        let is_opened = |engine: &mut Self, name: &String| {
            let program = engine.program(&format!("SELECT 1 FROM \"{}\"", name.replace('"', "\"\"")), on);
            let opens = |one: &Instruction| one.opcode == "VOpen" && handles.contains(&one.p4);
            program.is_ok_and(|program| program.iter().any(opens))
        };
        named.into_iter().filter(|name| is_opened(self, name)).collect()
    }

    /// Returns the program of a statement; for an EXPLAIN, the program of its inner statement.
    pub(super) fn program(&mut self, sql: &str, on: ExecutionBounds<'_>) -> Result<Vec<Instruction>, EngineRefusal> {
        self.observer.begin_statement(StatementOrigin::PrepareOnly, on.limits.steps, on.deadline);
        read_instructions(&self.connection, &format!("EXPLAIN {}", strip_explain(sql)))
            .map_err(|error| sqlite_errors::refusal_from_error(&error, sql, self.observer.interrupt_reason()))
    }

    fn root_pages(&mut self) -> Result<&RootPages, EngineRefusal> {
        if self.root_pages.is_none() {
            self.observer.begin_internal();
            self.root_pages = Some(read_root_pages(&self.connection).map_err(|error| self.internal_refusal(&error))?);
        }
        Ok(self.root_pages.get_or_insert_default())
    }
}

/// Reports whether a statement can use tables that the authorizer does not report.
pub(super) fn may_hide_tables(sql: &str, inserts: bool) -> bool {
    has_word(sql, "using") || has_word(sql, "natural") || (inserts && has_word(sql, "select"))
}

/// Reports whether a text contains `word`, ignoring case.
fn has_word(text: &str, word: &str) -> bool {
    text.as_bytes().windows(word.len()).any(|window| window.eq_ignore_ascii_case(word.as_bytes()))
}

/// Returns a statement without a leading `EXPLAIN` or `EXPLAIN QUERY PLAN`.
fn strip_explain(sql: &str) -> &str {
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

fn read_instructions(connection: &Connection, sql: &str) -> rusqlite::Result<Vec<Instruction>> {
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

fn read_root_pages(connection: &Connection) -> rusqlite::Result<RootPages> {
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

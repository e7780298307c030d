//! Finds the tables that the program of a statement opens.
//!
//! The authorizer does not report every table. It misses a table that is named only by `USING` or `NATURAL JOIN`, and a
//! table that `INSERT INTO t SELECT * FROM u` copies page by page. The program opens the root page of each of them.

use std::collections::BTreeSet;

use proctor_core::sql::Dialect;

use super::statement_observer::StatementOrigin;
use super::statement_program::{
    Instruction, RootPages, may_hide_tables, read_instructions, read_root_pages, strip_explain,
};
use super::{Sqlite, sqlite_errors};
use crate::engine::{Action, BoundStatement, EngineRefusal, ExecutionBounds, StatementKind};
use crate::lexer;

/// The flag of an instruction whose second operand is a register instead of a root page.
const P5_IS_REGISTER: i64 = 0x10;
/// The root page of the schema table.
const SCHEMA_PAGE: i64 = 1;

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

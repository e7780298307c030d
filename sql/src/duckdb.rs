//! Runs DuckDB, whose shared library is loaded if it is available. The plan that DuckDB binds shows what a statement
//! does. A statement cannot access anything of the machine: see `duckdb/open.rs`.
//!
//! A C++ exception that leaves the library ends the process. Therefore only workers open DuckDB.
//!
//! Sources: <https://duckdb.org/docs/stable/operations_manual/securing_duckdb/overview>,
//! <https://duckdb.org/docs/stable/data/json/sql_to_and_from_json>,
//! <https://duckdb.org/docs/stable/clients/c/overview>.

mod builtin_allowlist;
mod catalog_reader;
mod cell_values;
mod content_refresh;
mod deadline_guard;
mod duckdb_errors;
mod enum_types;
mod generated_columns;
mod internal_queries;
mod keyed_update;
mod list_checks;
mod locked_database;
mod plan_actions;
mod plan_json;
mod query_error;
mod schema_parts;
mod special_statements;
mod statement_classification;

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Instant;

use proctor_core::sql::{Dialect, SqlCode, SqlPolicy};
use proctor_duckdb::api_constants::StatementType;
use proctor_duckdb::{Connection, PreparedStatement, Rows};
use serde_json::Value;

use crate::allow_lists::NameLists;
use crate::catalog::{Catalog, CatalogTable, SchemaComment};
use crate::engine::{BoundStatement, EngineRefusal, ExecutionBounds, SqlEngine, StatementKind, StatementOutcome};
use crate::lexer;
use crate::row_buffer::RowBuffer;
use crate::scratch_rows;
use crate::scratch_value::ScratchValue;
use catalog_reader::{ContentPart, DatabaseContent};
use duckdb_errors::ParsedError;
use internal_queries::{execute, query_first_text, query_prepared_text};
use query_error::QueryError;

pub use proctor_duckdb::find as find_library;

/// A DuckDB database in memory, or a file that is opened read-only.
pub struct DuckDb {
    connection: Connection,
    /// The prepared queries that return the plan and the tree of a statement.
    planner: PreparedStatement,
    parser: PreparedStatement,
    version: String,
    /// The name of the database.
    database_name: String,
    /// True if the database is a file that is opened read-only.
    is_readonly: bool,
    content: DatabaseContent,
    /// The statements that were written since the last `begin`; `None` outside of a transaction.
    written_statements: Option<Vec<String>>,
    /// True if statements since the last `begin` changed the schema.
    has_schema_changes: bool,
    /// True if the effects on the database file may be kept.
    is_for_commit: bool,
}

/// A part of DuckDB's message about a parameter of unknown type.
const UNTYPED_PARAMETER: &str = "unique_ptr that is NULL";
/// The JSON of a plan or a tree, or DuckDB's error about the statement.
type DuckDbJsonResult = Result<Value, ParsedError>;

impl DuckDb {
    fn from_connection(connection: Connection, version: String, is_readonly: bool) -> Result<Self, EngineRefusal> {
        let failed = |error: QueryError| ParsedError::from_error(&error, "").to_refusal("");
        let prepare =
            |sql: &str| connection.extract(sql).and_then(|one| one.prepare(0)).map_err(|error| failed(error.into()));
        let planner = prepare("SELECT CAST(json_serialize_plan(CAST($1 AS VARCHAR)) AS VARCHAR)")?;
        let parser = prepare("SELECT CAST(json_serialize_sql(CAST($1 AS VARCHAR)) AS VARCHAR)")?;
        let home = query_first_text(&connection, "SELECT current_database()").map_err(failed)?;
        let held = DatabaseContent::default();
        let mut engine = Self {
            connection,
            planner,
            parser,
            version,
            database_name: home,
            is_readonly,
            content: held,
            written_statements: None,
            has_schema_changes: false,
            is_for_commit: false,
        };
        engine.refresh(ContentPart::All)?;
        Ok(engine)
    }

    fn run_statement(
        &self,
        sql: &str,
        bound: &BoundStatement,
        on: ExecutionBounds<'_>,
        mut stored: Option<&mut RowBuffer>,
    ) -> Result<StatementOutcome, QueryError> {
        let is_untyped = bound.parameters > 0
            && query_json(&self.planner, sql).is_err_and(|said| said.message.contains(UNTYPED_PARAMETER));
        let typed = if is_untyped { self.with_typed_parameters(sql) } else { None };
        let extracted = self.connection.extract(typed.as_deref().unwrap_or(sql))?;
        let mut ran = StatementOutcome::default();
        for index in 0..extracted.count() {
            let prepared = extracted.prepare(index)?;
            if extracted.count() > 1 && is_wrapper_step(prepared.statement_type()) {
                continue;
            }
            (1..=prepared.parameter_count()).try_for_each(|parameter| prepared.bind_null(parameter))?;
            ran = match &mut stored {
                Some(stored) => store_rows(prepared.run()?, bound, stored)?,
                None => fetch_rows(prepared.run()?, bound, on)?,
            };
        }
        Ok(ran)
    }

    /// Restores the transaction after an error: a failed statement ends DuckDB's transaction, so it begins again and
    /// repeats the statements that succeeded.
    fn restore_transaction(&mut self) {
        let Some(written) = &self.written_statements else { return };
        if execute(&self.connection, "SELECT 1").is_err() {
            let again = ["ROLLBACK", "BEGIN TRANSACTION"].into_iter().chain(written.iter().map(String::as_str));
            again.for_each(|sql| drop(execute(&self.connection, sql)));
        }
    }
}

/// Reports whether a step only wraps the other steps of a statement. They run in the engine's transaction already.
fn is_wrapper_step(kind: StatementType) -> bool {
    matches!(kind, StatementType::Transaction | StatementType::Set)
}

/// Runs one of the two prepared queries for a text.
fn query_json(query: &PreparedStatement, sql: &str) -> DuckDbJsonResult {
    let text = query_prepared_text(query, sql).map_err(|error| ParsedError::from_error(&error, sql))?;
    let json = plan_json::parse_plan(&text).map_err(|error| ParsedError::from_error(&error, sql))?;
    ParsedError::from_json(&json).map_or(Ok(json), Err)
}

/// Reads a result within the limits.
fn fetch_rows(mut rows: Rows, bound: &BoundStatement, on: ExecutionBounds<'_>) -> Result<StatementOutcome, QueryError> {
    let is_count = rows.is_changed_row_count();
    let mut ran = StatementOutcome::default();
    let mut bytes = 0_u64;
    while let Some(chunk) = rows.next_chunk()? {
        if is_count {
            ran.changed += chunk.number(0, 0).and_then(|count| u64::try_from(count).ok()).unwrap_or(0);
            continue;
        }
        if ran.truncated {
            continue;
        }
        bytes = bytes.saturating_add(chunk.byte_size());
        if bytes > on.limits.result {
            return Err(QueryError::ResultTooLarge(on.limits.result));
        }
        ran.rows += chunk.row_count();
        // The rows that a write returns must all be read; otherwise DuckDB does not complete the write.
        if ran.rows > on.limits.rows && bound.is_readonly {
            ran.rows = on.limits.rows;
            ran.truncated = true;
            if !on.continues_past_row_limit {
                break;
            }
        }
    }
    if !is_count && bound.kind() == StatementKind::Write {
        ran.changed = ran.rows;
    }
    Ok(ran)
}

/// Stores a result, as far as the buffer permits.
fn store_rows(mut rows: Rows, bound: &BoundStatement, stored: &mut RowBuffer) -> Result<StatementOutcome, QueryError> {
    let is_count = rows.is_changed_row_count();
    let mut ran = StatementOutcome { is_report: !rows.is_query_result(), ..StatementOutcome::default() };
    while let Some(chunk) = rows.next_chunk()? {
        if is_count {
            ran.changed += chunk.number(0, 0).and_then(|count| u64::try_from(count).ok()).unwrap_or(0);
            continue;
        }
        if ran.is_report {
            continue;
        }
        ran.rows += chunk.row_count();
        let columns = chunk.columns();
        for row in 0..chunk.row_count() {
            if stored.is_full() {
                stored.leave_out();
                break;
            }
            stored.push(columns.iter().map(|column| cell_values::to_json(column.cell(row))).collect());
        }
        // The rows that a write returns must all be read; otherwise DuckDB does not complete the write.
        if stored.is_truncated() && bound.is_readonly {
            break;
        }
    }
    ran.truncated = stored.is_truncated();
    if !is_count && bound.kind() == StatementKind::Write {
        ran.changed = ran.rows;
    }
    Ok(ran)
}

impl SqlEngine for DuckDb {
    fn dialect(&self) -> Dialect {
        Dialect::Duckdb
    }

    fn version(&self) -> String {
        format!("DuckDB {}", self.version.trim_start_matches('v'))
    }

    fn catalog(&self) -> &Catalog {
        &self.content.catalog
    }

    fn comments(&mut self, deadline: Instant) -> Result<Vec<SchemaComment>, EngineRefusal> {
        let read = || catalog_reader::read_comments(&self.connection);
        let comments = deadline_guard::run_until(deadline, self.connection.interrupter(), read);
        comments.map_err(|error| ParsedError::from_error(&error, "").to_internal_refusal())
    }

    fn functions(&self) -> &BTreeSet<String> {
        &self.content.functions
    }

    fn is_harmless_function(&self, function: &str) -> bool {
        let name = function.to_ascii_lowercase();
        if matches!(
            builtin_allowlist::table_function_access(&name),
            builtin_allowlist::TableFunctionAccess::ArgumentsOnly | builtin_allowlist::TableFunctionAccess::Catalog
        ) {
            return true;
        }
        builtin_allowlist::is_harmless_function(&name) && self.content.functions.contains(&name)
    }

    fn is_harmless_table(&self, _table: &str) -> bool {
        // Views of the catalog are reported as the table functions that they call.
        false
    }

    fn check_lists(
        &mut self,
        sql: &str,
        bound: &BoundStatement,
        allow: &NameLists,
        _on: ExecutionBounds<'_>,
    ) -> Result<(), EngineRefusal> {
        list_checks::check(&self.content, sql, bound, allow)?;
        self.check_enum_types(sql, bound, allow)?;
        self.check_generated_columns(sql, bound, allow)
    }

    fn split(&mut self, sql: &str) -> Result<Vec<Range<usize>>, EngineRefusal> {
        let ranges = lexer::statement_ranges(sql, Dialect::Duckdb);
        let count = |text: &str| self.connection.extract(text).map(|found| found.count());
        let all = match count(sql) {
            Ok(all) => all,
            Err(error) => {
                let duckdb_error = ParsedError::from_error(&error, sql);
                // DuckDB refuses some statements, such as IMPORT, before it parses them; `bind` reports those.
                return if duckdb_error.is_syntax_error() {
                    Err(self.syntax_refusal(sql, &duckdb_error))
                } else {
                    Ok(ranges)
                };
            }
        };
        let each: u64 = ranges.iter().map(|range| count(&sql[range.clone()]).unwrap_or(0)).sum();
        if all == each {
            return Ok(ranges);
        }
        let message = format!("DuckDB finds {all} statements, but the text seems to have {}", ranges.len());
        Err(EngineRefusal::new(SqlCode::SyntaxError, message))
    }

    fn bind(&mut self, sql: &str, on: ExecutionBounds<'_>) -> Result<BoundStatement, EngineRefusal> {
        deadline_guard::run_until(on.deadline, self.connection.interrupter(), || self.classify(sql))
    }

    fn begin(&mut self) -> Result<(), EngineRefusal> {
        execute(&self.connection, "BEGIN TRANSACTION")
            .map_err(|error| ParsedError::from_error(&error, "").to_engine_failure())?;
        self.written_statements = Some(Vec::new());
        Ok(())
    }

    fn rollback(&mut self) -> Result<(), EngineRefusal> {
        if self.written_statements.take().is_none() {
            return Ok(());
        }
        execute(&self.connection, "ROLLBACK")
            .map_err(|error| ParsedError::from_error(&error, "").to_engine_failure())?;
        if std::mem::take(&mut self.has_schema_changes) { self.refresh(ContentPart::All) } else { Ok(()) }
    }

    fn commit(&mut self) -> Result<(), EngineRefusal> {
        if !self.is_for_commit {
            return Err(EngineRefusal::new(SqlCode::EngineFailed, "the database is not open for lasting changes"));
        }
        execute(&self.connection, "COMMIT").map_err(|error| ParsedError::from_error(&error, "").to_engine_failure())?;
        self.written_statements = None;
        Ok(())
    }

    fn extend_schema(&mut self, schema: &[String], deadline: Instant) -> Result<(), EngineRefusal> {
        schema_parts::apply_schema(&self.connection, schema, deadline)?;
        self.refresh(ContentPart::All)
    }

    fn is_restored(&self) -> bool {
        // A rollback does not undo `nextval`.
        query_first_text(&self.connection, "SELECT CAST(count(*) AS VARCHAR) FROM duckdb_sequences()")
            .is_ok_and(|count| count == "0")
    }

    fn run_into(
        &mut self,
        sql: &str,
        bound: &BoundStatement,
        policy: SqlPolicy,
        on: ExecutionBounds<'_>,
        rows: Option<&mut RowBuffer>,
    ) -> Result<StatementOutcome, EngineRefusal> {
        bound.check_policy(policy)?;
        if bound.kind() > StatementKind::Read && self.is_readonly {
            return Err(EngineRefusal::new(SqlCode::EngineFailed, "the database is open only for reading"));
        }
        let is_alone = self.written_statements.is_none();
        if is_alone {
            self.begin()?;
        }
        let ran = deadline_guard::run_until(on.deadline, self.connection.interrupter(), || {
            self.run_statement(sql, bound, on, rows)
        });
        match (&ran, &mut self.written_statements) {
            (Ok(_), Some(written)) if bound.kind() > StatementKind::Read => written.push(sql.to_owned()),
            (Err(_), _) => self.restore_transaction(),
            _ => {}
        }
        self.has_schema_changes |= bound.kind() >= StatementKind::Schema;
        if is_alone {
            self.rollback()?;
        } else if bound.kind() == StatementKind::Schema && ran.is_ok() {
            self.update_content(bound)?;
        }
        ran.map_err(|error| ParsedError::from_error(&error, sql).to_refusal(sql))
    }

    fn query_number(&mut self, sql: &str, on: ExecutionBounds<'_>) -> Result<i64, EngineRefusal> {
        let fetch_number = || -> Result<Option<i64>, QueryError> {
            let mut rows = self.connection.extract(sql)?.prepare(0)?.run()?;
            Ok(rows.next_chunk()?.and_then(|chunk| chunk.number(0, 0)))
        };
        let number = deadline_guard::run_until(on.deadline, self.connection.interrupter(), fetch_number);
        if number.is_err() {
            self.restore_transaction();
        }
        number
            .map_err(|error| ParsedError::from_error(&error, sql).to_internal_refusal())?
            .ok_or_else(|| EngineRefusal::new(SqlCode::EngineFailed, "the engine returned no number"))
    }

    fn execute_internal(&mut self, sql: &str, on: ExecutionBounds<'_>) -> Result<bool, EngineRefusal> {
        // A duplicate key would end the whole transaction, so conflicts are ignored first.
        let without_conflicts = sql.strip_prefix("INSERT INTO ").map(|rest| format!("INSERT OR IGNORE INTO {rest}"));
        let sqls = without_conflicts.iter().map(String::as_str).chain([sql]);
        let mut refused = Ok(false);
        for sql in sqls {
            let put = deadline_guard::run_until(on.deadline, self.connection.interrupter(), || {
                execute(&self.connection, sql)
            });
            let Err(error) = put else {
                self.written_statements.iter_mut().for_each(|written| written.push(sql.to_owned()));
                return Ok(true);
            };
            // For a table without a key DuckDB refuses OR IGNORE before it changes anything.
            let error = ParsedError::from_error(&error, "");
            if error.kind == "binder" {
                continue;
            }
            let refusal = error.to_internal_refusal();
            if refusal.code == SqlCode::TimeLimit {
                refused = Err(refusal);
            }
            break;
        }
        self.restore_transaction();
        refused
    }

    fn insert_scratch_rows(
        &mut self,
        table: &CatalogTable,
        rows: &[Vec<ScratchValue>],
        on: ExecutionBounds<'_>,
    ) -> Result<(), EngineRefusal> {
        scratch_rows::insert_with_sql(self, table, rows, on)
    }

    fn quote_name(&self, name: &str) -> String {
        self.content.quoted_names.get(name).cloned().unwrap_or_else(|| catalog_reader::quote_identifier(name))
    }
}

impl DuckDb {
    /// Returns a syntax error, with its position if DuckDB reports one in JSON.
    fn syntax_refusal(&self, sql: &str, duckdb_error: &ParsedError) -> EngineRefusal {
        match query_json(&self.planner, sql) {
            Err(json_error) if json_error.kind == "parser" => json_error.to_refusal(sql),
            _ => duckdb_error.to_refusal(sql),
        }
    }
}

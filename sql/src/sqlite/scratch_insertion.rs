//! Inserts scratch rows with statements that stay prepared between requests. The statements contain no text of a
//! request; its values are bound as parameters and cleared again.

use std::collections::BTreeSet;

use rusqlite::types::{ToSqlOutput, Value as Bindable, ValueRef};
use rusqlite::{ToSql, params_from_iter};

use super::statement_observer::{StatementInterrupt, StatementOrigin};
use super::{Sqlite, builtin_allowlist, sqlite_errors};
use crate::catalog::CatalogTable;
use crate::engine::{Action, BoundStatement, EngineRefusal, ExecutionBounds, SqlEngine as _};
use crate::scratch_rows;
use crate::scratch_value::ScratchValue;

/// The maximum number of instructions for one insertion.
const MAX_INSERT_STEPS: u64 = 10_000_000;
/// Functions whose result depends on earlier statements of the connection, on any table.
const CONNECTION_FUNCTIONS: [&str; 3] = ["changes", "last_insert_rowid", "total_changes"];

impl ToSql for ScratchValue {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Self::Integer(number) => ToSqlOutput::Owned(Bindable::Integer(*number)),
            Self::Real(number) => ToSqlOutput::Owned(Bindable::Real(*number)),
            Self::Boolean(value) => ToSqlOutput::Owned(Bindable::Integer(i64::from(*value))),
            Self::Text(text) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
            Self::Byte(byte) => ToSqlOutput::Borrowed(ValueRef::Blob(std::slice::from_ref(byte))),
        })
    }
}

/// Returns the maximum number of instructions for one insertion of a request.
fn max_steps(on: ExecutionBounds<'_>) -> u64 {
    MAX_INSERT_STEPS.min(on.limits.steps)
}

impl Sqlite {
    /// Runs an internal statement that returns no rows.
    pub(super) fn execute_cached(&self, sql: &str) -> Result<(), EngineRefusal> {
        let done = self.connection.prepare_cached(sql).and_then(|mut statement| statement.execute([]));
        done.map(drop).map_err(|error| sqlite_errors::engine_failure(&error))
    }

    /// Reports whether a table has no rows.
    pub(super) fn has_no_rows(&self, table: &CatalogTable, on: ExecutionBounds<'_>) -> Result<bool, EngineRefusal> {
        self.observer.begin_statement(StatementOrigin::Internal, on.limits.steps, on.deadline);
        let sql = format!("SELECT EXISTS (SELECT 1 FROM {})", self.quote_name(&table.name));
        let found = self.connection.prepare_cached(&sql).and_then(|mut query| query.query_row([], |row| row.get(0)));
        match self.observer.interrupt_reason() {
            Some(interrupt) => Err(sqlite_errors::limit_refusal(interrupt)),
            None => Ok(found == Ok(false)),
        }
    }

    /// Inserts those of the rows that break no constraint.
    pub(super) fn insert_rows(
        &self,
        table: &CatalogTable,
        rows: &[Vec<ScratchValue>],
        on: ExecutionBounds<'_>,
    ) -> Result<(), EngineRefusal> {
        let Some(columns) = rows.first().map(Vec::len).filter(|columns| *columns > 0) else { return Ok(()) };
        let places = vec!["?"; columns].join(", ");
        let sql = format!("{}({places})", scratch_rows::insert_prefix(self, table));
        self.observer.begin_statement(StatementOrigin::Internal, max_steps(on), on.deadline);
        let Ok(mut statement) = self.connection.prepare_cached(&sql) else { return Ok(()) };
        for row in rows {
            self.observer.begin_statement(StatementOrigin::Internal, max_steps(on), on.deadline);
            // A row that breaks a constraint is left out.
            if statement.execute(params_from_iter(row)).is_err() {
                self.rejected_insertion()?;
            }
        }
        Ok(())
    }

    /// Runs an insertion of scratch rows. Returns whether SQLite accepted it.
    pub(super) fn execute_insertion(&self, sql: &str, on: ExecutionBounds<'_>) -> Result<bool, EngineRefusal> {
        self.observer.begin_statement(StatementOrigin::Internal, max_steps(on), on.deadline);
        self.connection.execute_batch(sql).map_or_else(|_| self.rejected_insertion(), |()| Ok(true))
    }

    /// Returns false for an insertion that failed, because a constraint refuses the row or a trigger takes too many
    /// steps.
    ///
    /// # Errors
    /// The deadline of the request passed.
    fn rejected_insertion(&self) -> Result<bool, EngineRefusal> {
        match self.observer.interrupt_reason() {
            Some(interrupt @ StatementInterrupt::Time) => Err(sqlite_errors::limit_refusal(interrupt)),
            Some(StatementInterrupt::Steps) | None => Ok(false),
        }
    }

    /// Returns the tables that these statements name, in lower case; `None` if rows of other tables can affect them.
    pub(super) fn row_source_tables(&self, statements: &[&BoundStatement]) -> Option<BTreeSet<String>> {
        let mut sources = BTreeSet::new();
        let actions = statements.iter().flat_map(|bound| &bound.actions);
        for action in actions.filter(|_| !self.has_derived_rows) {
            match action {
                Action::Read { table, .. } if builtin_allowlist::is_pure_table(table) => {}
                Action::Read { table, .. }
                | Action::Insert(table)
                | Action::Delete(table)
                | Action::Update { table, .. } => {
                    self.catalog.table(table)?;
                    sources.insert(table.to_ascii_lowercase());
                }
                Action::Call(function) if !CONNECTION_FUNCTIONS.contains(&function.as_str()) => {}
                Action::Recursion => {}
                _ => return None,
            }
        }
        (!self.has_derived_rows).then_some(sources)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use proctor_core::sql::{Dialect, SqlRequest, SqlResourceLimits};

    use super::*;

    fn engine(schema: &str) -> Sqlite {
        let request = SqlRequest { schema: vec![schema.to_owned()], ..SqlRequest::new(Dialect::Sqlite, "SELECT 1") };
        Sqlite::open(&request).expect("a schema")
    }

    fn bounds(limits: &SqlResourceLimits) -> ExecutionBounds<'_> {
        ExecutionBounds { limits, deadline: Instant::now() + limits.wall_time(), continues_past_row_limit: false }
    }

    fn read_rows(engine: &Sqlite, table: &str) -> Vec<Vec<Bindable>> {
        engine.observer.begin_internal();
        let mut statement = engine.connection.prepare(&format!("SELECT rowid, * FROM {table}")).expect("a table");
        let columns = statement.column_count();
        let row = |row: &rusqlite::Row<'_>| (0..columns).map(|at| row.get(at)).collect();
        statement.query_map([], row).expect("rows").collect::<rusqlite::Result<_>>().expect("values")
    }

    #[test]
    fn bound_insert_matches_literal_insert() {
        const TABLE: &str = "CREATE TABLE t (a INTEGER PRIMARY KEY, b REAL, c BOOLEAN, d TEXT UNIQUE CHECK (d <> 'no'), \
                             e BLOB, f NUMERIC, g TEXT AS (d || 'g') STORED)";
        let text = |text: &str| ScratchValue::Text(text.to_owned());
        let row = |key, text| {
            vec![
                ScratchValue::Integer(key),
                ScratchValue::Real(0.5),
                ScratchValue::Boolean(true),
                text,
                ScratchValue::Byte(7),
                ScratchValue::Real(3.0),
            ]
        };
        let given = [
            row(1, text("it's \"\u{e4}\"")),
            row(2, text("no")),
            row(3, text("")),
            row(4, text("")),
            row(1, text("x")),
        ];
        let (mut bound, mut written) = (engine(TABLE), engine(TABLE));
        let table = bound.catalog.table("t").expect("the table").clone();
        let limits = SqlResourceLimits::default();
        let on = bounds(&limits);
        assert_eq!(bound.has_no_rows(&table, on), Ok(true));
        bound.insert_scratch_rows(&table, &given, on).expect("inserts");
        scratch_rows::insert_with_sql(&mut written, &table, &given, on).expect("inserts");
        assert_eq!(read_rows(&bound, "t").len(), 2, "three rows break a constraint");
        assert_eq!(read_rows(&bound, "t"), read_rows(&written, "t"));
        assert_eq!(bound.has_no_rows(&table, on), Ok(false));
    }

    #[test]
    fn cached_statements_keep_no_values() {
        let mut engine = engine("CREATE TABLE t (a TEXT)");
        let table = engine.catalog.table("t").expect("the table").clone();
        let limits = SqlResourceLimits::default();
        let on = bounds(&limits);
        for _ in 0..2 {
            engine.begin().expect("begins");
            let rows = [vec![ScratchValue::Text("secret".to_owned())]];
            engine.insert_scratch_rows(&table, &rows, on).expect("inserts");
            assert_eq!(read_rows(&engine, "t").len(), 1);
            engine.rollback().expect("rolls back");
            assert_eq!(engine.has_no_rows(&table, on), Ok(true));
        }
        let sql = format!("{}(?)", scratch_rows::insert_prefix(&engine, &table));
        let mut kept = engine.connection.prepare_cached(&sql).expect("it is kept");
        assert!(!kept.expanded_sql().expect("its text").contains("secret"));
        kept.raw_execute().expect("inserts");
        drop(kept);
        assert_eq!(read_rows(&engine, "t")[0][1], Bindable::Null);
    }

    #[test]
    fn row_sources_are_unknown_with_derived_rows() {
        let plain = "CREATE TABLE a (x); CREATE TABLE b (x); CREATE VIEW v AS SELECT x FROM a;";
        let sources = |schema: &str, sql: &str| {
            let mut engine = engine(schema);
            let limits = SqlResourceLimits::default();
            let bound = engine.bind(sql, bounds(&limits)).expect("binds");
            engine.source_tables(&[&bound]).map(|sources| sources.into_iter().collect::<Vec<_>>().join(" "))
        };
        assert_eq!(sources(plain, "SELECT x FROM A").as_deref(), Some("a"));
        assert_eq!(sources(plain, "SELECT x FROM v").as_deref(), Some("a v"));
        assert_eq!(sources(plain, "SELECT 1 FROM a JOIN b USING (x), json_each('[1]')").as_deref(), Some("a b"));
        assert_eq!(sources(plain, "INSERT INTO b SELECT * FROM a").as_deref(), Some("a b"));
        assert_eq!(sources(plain, "SELECT x FROM a WHERE x = last_insert_rowid()"), None);
        assert_eq!(sources(plain, "SELECT name FROM sqlite_master"), None);
        let triggered = format!("{plain} CREATE TRIGGER t AFTER INSERT ON b BEGIN INSERT INTO a VALUES (1); END;");
        assert_eq!(sources(&triggered, "SELECT x FROM a"), None);
        let with_virtual = format!("{plain} CREATE VIRTUAL TABLE f USING fts5(x, content='a');");
        assert_eq!(sources(&with_virtual, "SELECT x FROM f"), None);
    }
}

//! Runs a statement of a request, and reads its result.

use proctor_core::sql::{SqlCode, SqlPolicy, SqlResourceLimits};
use rusqlite::types::ValueRef;
use serde_json::Value;

use super::statement_observer::StatementOrigin;
use super::{Sqlite, sqlite_errors};
use crate::engine::{EngineRefusal, ExecutionBounds, StatementOutcome};
use crate::row_buffer::RowBuffer;
use crate::row_values;

impl Sqlite {
    /// Runs a statement, and counts the rows of its result or stores them.
    pub(super) fn execute_under_policy(
        &mut self,
        sql: &str,
        policy: SqlPolicy,
        on: ExecutionBounds<'_>,
        mut stored: Option<&mut RowBuffer>,
    ) -> Result<StatementOutcome, EngineRefusal> {
        self.observer.begin_statement(StatementOrigin::Policy(policy), on.limits.steps, on.deadline);
        let refused =
            |error: &rusqlite::Error| sqlite_errors::refusal_from_error(error, sql, self.observer.interrupt_reason());
        let before = self.connection.total_changes();
        let mut statement = self.connection.prepare(sql).map_err(|error| refused(&error))?;
        let is_readonly = statement.readonly();
        let columns = statement.column_count();
        let mut ran = StatementOutcome::default();
        let mut bytes = 0_u64;
        let mut rows = statement.raw_query();
        // The rows that a write returns must all be read; otherwise SQLite does not complete the write.
        while let Some(row) = rows.next().map_err(|error| refused(&error))? {
            match &mut stored {
                Some(stored) => {
                    if !stored.is_truncated() {
                        stored.push((0..columns).map(|at| json_value(row, at)).collect());
                    }
                    ran.truncated = stored.is_truncated();
                }
                None if ran.rows == on.limits.rows && is_readonly => ran.truncated = true,
                None => {
                    ran.rows += 1;
                    bytes += row_size(row, columns);
                    if bytes > on.limits.result {
                        return Err(result_too_large(on.limits));
                    }
                }
            }
            if ran.truncated && is_readonly && !on.continues_past_row_limit {
                break;
            }
        }
        drop(rows);
        drop(statement);
        let changed = self.connection.total_changes().saturating_sub(before);
        ran.changed = if is_readonly || changed == 0 { 0 } else { self.connection.changes() };
        Ok(ran)
    }
}

fn result_too_large(limits: &SqlResourceLimits) -> EngineRefusal {
    EngineRefusal::new(SqlCode::ResultLimit, format!("the result is larger than {} bytes", limits.result))
}

/// Returns the size of the values of a row, in bytes.
fn row_size(row: &rusqlite::Row<'_>, columns: usize) -> u64 {
    (0..columns)
        .map(|at| match row.get_ref(at) {
            Ok(ValueRef::Text(bytes) | ValueRef::Blob(bytes)) => bytes.len() as u64,
            Ok(_) => 8,
            Err(_) => 0,
        })
        .sum()
}

/// Returns a value of a row.
pub(super) fn json_value(row: &rusqlite::Row<'_>, column: usize) -> Value {
    match row.get_ref(column) {
        Ok(ValueRef::Integer(number)) => row_values::integer(number),
        Ok(ValueRef::Real(number)) => row_values::real(number),
        Ok(ValueRef::Text(text)) => row_values::text(text),
        Ok(ValueRef::Blob(bytes)) => row_values::bytes(bytes),
        // The row has this column.
        Ok(ValueRef::Null) | Err(_) => Value::Null,
    }
}

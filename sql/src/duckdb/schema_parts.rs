//! Executes the parts of a request's schema.

use std::time::Instant;

use proctor_core::sql::SqlCode;
use proctor_duckdb::Connection;

use super::deadline_guard;
use super::duckdb_errors::ParsedError;
use super::internal_queries::execute;
use crate::engine::EngineRefusal;

/// Executes the parts of a schema, and commits a transaction that the schema left open.
pub(super) fn apply_schema(connection: &Connection, schema: &[String], deadline: Instant) -> Result<(), EngineRefusal> {
    for (number, text) in schema.iter().enumerate() {
        let made = deadline_guard::run_until(deadline, connection.interrupter(), || execute(connection, text));
        if let Err(error) = made {
            let refusal = ParsedError::from_error(&error, text).to_refusal(text);
            let message = format!("the schema (part {}) cannot be set up: {}", number + 1, refusal.message);
            return Err(EngineRefusal { code: SqlCode::SchemaBroken, message, range: None, ..refusal });
        }
    }
    let _ = execute(connection, "COMMIT");
    Ok(())
}

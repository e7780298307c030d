//! Executes statements and reads their texts.

use proctor_duckdb::{Connection, PreparedStatement};

use super::query_error::QueryError;

pub(super) fn query_prepared_text(query: &PreparedStatement, parameter: &str) -> Result<String, QueryError> {
    query.bind(1, parameter)?;
    let mut rows = query.run()?;
    let chunk = rows.next_chunk()?.ok_or(QueryError::NoAnswer)?;
    chunk.text(0, 0).ok_or(QueryError::NoAnswer)
}

/// Runs internal statements to completion.
pub(super) fn execute(connection: &Connection, sql: &str) -> Result<(), QueryError> {
    let extracted = connection.extract(sql)?;
    for index in 0..extracted.count() {
        let mut rows = extracted.prepare(index)?.run()?;
        while rows.next_chunk()?.is_some() {}
    }
    Ok(())
}

/// Returns the rows of an internal query whose columns are texts.
pub(super) fn query_texts(connection: &Connection, sql: &str) -> Result<Vec<Vec<Option<String>>>, QueryError> {
    let prepared = connection.extract(sql)?.prepare(0)?;
    let columns = prepared.columns().len() as u64;
    let mut rows = prepared.run()?;
    let mut found = Vec::new();
    while let Some(chunk) = rows.next_chunk()? {
        found.extend((0..chunk.row_count()).map(|row| (0..columns).map(|column| chunk.text(column, row)).collect()));
    }
    Ok(found)
}

pub(super) fn query_first_text(connection: &Connection, sql: &str) -> Result<String, QueryError> {
    let rows = query_texts(connection, sql)?;
    rows.into_iter().flatten().flatten().next().ok_or(QueryError::NoAnswer)
}

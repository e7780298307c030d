//! Generates rows from a schema. Empty tables get a few ordinary rows, so that a statement has data to run on. The
//! table of a write gets unusual rows too, so that an effective filter excludes at least one of them.

use std::collections::{BTreeMap, BTreeSet};

use proctor_core::sql::Dialect;

use crate::catalog::{Catalog, CatalogColumn, CatalogTable};
use crate::engine::{EngineRefusal, ExecutionBounds, SqlEngine, is_limit_code};
use crate::literals::{Literal, collect_literals};
use crate::scratch_value::{ScratchValue, string_literal};

/// The number of ordinary rows in a table.
const ORDINARY_ROW_COUNT: usize = 8;
/// The start of the replacement keys. It is above all generated keys except literals of the text.
const FIRST_FREE_KEY: usize = 2_000_000;
/// The maximum number of tables that are filled.
const MAX_TABLES: usize = 200;

/// The kind of values in a column, derived from its declared type and its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScratchValueKind {
    Integer,
    Real,
    Text,
    Date,
    Timestamp,
    Time,
    Boolean,
    Blob,
}

/// Inserts ordinary rows into each empty table, into referenced tables first. `only` contains the names of the tables
/// that matter, in lower case; with `None` every table matters.
///
/// # Errors
/// The deadline passed, or a query of the rows exceeds a limit.
pub fn fill_empty_tables(
    engine: &mut dyn SqlEngine,
    text: &str,
    only: Option<&BTreeSet<String>>,
    on: ExecutionBounds<'_>,
) -> Result<(), EngineRefusal> {
    let dialect = engine.dialect();
    let values = collect_literals(text, dialect);
    for table in in_reference_order(engine.catalog(), only).into_iter().take(MAX_TABLES) {
        if engine.is_table_empty(&table, on)? {
            let of = |row| {
                insertable_columns(&table)
                    .map(|(at, column)| ordinary_value(at, column, &table, row, &values, dialect))
                    .collect()
            };
            let rows: Vec<Vec<ScratchValue>> = (0..ORDINARY_ROW_COUNT).map(of).collect();
            engine.insert_scratch_rows(&table, &rows, on)?;
        }
    }
    Ok(())
}

/// Inserts those of the rows that break no constraint, with SQL statements.
pub(crate) fn insert_with_sql(
    engine: &mut (impl SqlEngine + ?Sized),
    table: &CatalogTable,
    rows: &[Vec<ScratchValue>],
    on: ExecutionBounds<'_>,
) -> Result<(), EngineRefusal> {
    let dialect = engine.dialect();
    let listed = |row: &Vec<ScratchValue>| {
        format!("({})", row.iter().map(|value| value.to_sql_literal(dialect)).collect::<Vec<_>>().join(", "))
    };
    let rows: Vec<String> = rows.iter().map(listed).collect();
    // If a row breaks a constraint, the statement inserts none. Each row is then inserted separately.
    if !insert_all_rows(engine, table, &rows, on)? {
        for row in &rows {
            insert_all_rows(engine, table, std::slice::from_ref(row), on)?;
        }
    }
    Ok(())
}

/// Returns an INSERT statement for all columns that take a value, up to and including `VALUES`.
pub(crate) fn insert_prefix(engine: &(impl SqlEngine + ?Sized), table: &CatalogTable) -> String {
    let names: Vec<String> = insertable_columns(table).map(|(_, column)| engine.quote_name(&column.name)).collect();
    format!("INSERT INTO {} ({}) VALUES ", engine.quote_name(&table.name), names.join(", "))
}

/// Inserts unusual rows into a table: NULL, zero, negative, huge, empty, and each literal of the text, in every column.
///
/// # Errors
/// The deadline passed, or a query of the rows exceeds a limit.
pub fn insert_unusual_rows(
    engine: &mut dyn SqlEngine,
    table: &CatalogTable,
    text: &str,
    on: ExecutionBounds<'_>,
) -> Result<(), EngineRefusal> {
    let dialect = engine.dialect();
    let values = collect_literals(text, dialect);
    let lists: Vec<Vec<String>> = table.columns.iter().map(|column| unusual_values(column, &values, dialect)).collect();
    let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
    for row in 0..longest {
        // Each column starts at another offset in its list of values, so that the same two values do not always occur
        // together.
        let of = |at: usize, _: &CatalogColumn| {
            lists[at].get((row + at) % lists[at].len().max(1)).cloned().unwrap_or_else(null_literal)
        };
        // An engine that ignores a row with an existing key reports success, so the rows are counted.
        let before = count_rows(engine, table, on)?;
        if insert_row(engine, table, of, on)? && count_rows(engine, table, on)? > before {
            continue;
        }
        // The row has an existing key, or its foreign key refers to no row. It is inserted with another key, so that
        // its other values are in the table.
        let free = |at: usize, column: &CatalogColumn| match column {
            column if is_foreign_key(table, column) && column.primary_key_position == 0 && !column.is_not_null => {
                null_literal()
            }
            column if column.primary_key_position > 0 && value_kind(column) == ScratchValueKind::Text => {
                string_literal(&format!("key {row}"), dialect)
            }
            column if column.primary_key_position > 0 => (FIRST_FREE_KEY + row).to_string(),
            column => of(at, column),
        };
        insert_row(engine, table, free, on)?;
    }
    Ok(())
}

/// Returns the number of rows of a table, or zero if the engine cannot read it.
///
/// # Errors
/// The query exceeds a limit.
fn count_rows(engine: &mut dyn SqlEngine, table: &CatalogTable, on: ExecutionBounds<'_>) -> Result<i64, EngineRefusal> {
    let name = engine.quote_name(&table.name);
    match engine.query_number(&format!("SELECT count(*) FROM {name}"), on) {
        Err(refusal) if is_limit_code(refusal.code) => Err(refusal),
        counted => Ok(counted.unwrap_or(0)),
    }
}

fn is_foreign_key(table: &CatalogTable, column: &CatalogColumn) -> bool {
    table.foreign_keys.iter().any(|key| key.column.eq_ignore_ascii_case(&column.name))
}

/// Inserts one row. Returns whether it was inserted.
fn insert_row(
    engine: &mut dyn SqlEngine,
    table: &CatalogTable,
    value: impl Fn(usize, &CatalogColumn) -> String,
    on: ExecutionBounds<'_>,
) -> Result<bool, EngineRefusal> {
    let row = row_literal(table, value);
    insert_all_rows(engine, table, &[row], on)
}

/// Returns the columns of a table that take a value, with their positions.
fn insertable_columns(table: &CatalogTable) -> impl Iterator<Item = (usize, &CatalogColumn)> {
    table.columns.iter().enumerate().filter(|(_, column)| !column.is_generated)
}

/// Returns the values of one row, in parentheses.
fn row_literal(table: &CatalogTable, value: impl Fn(usize, &CatalogColumn) -> String) -> String {
    let values: Vec<String> = insertable_columns(table).map(|(at, column)| value(at, column)).collect();
    format!("({})", values.join(", "))
}

/// Inserts all rows with one statement, or none. Returns whether they were inserted.
fn insert_all_rows(
    engine: &mut (impl SqlEngine + ?Sized),
    table: &CatalogTable,
    rows: &[String],
    on: ExecutionBounds<'_>,
) -> Result<bool, EngineRefusal> {
    let insertion = insert_prefix(engine, table);
    engine.execute_internal(&(insertion + &rows.join(", ")), on)
}

/// Adds the tables that rows of the wanted tables refer to, directly or indirectly. The names are in lower case.
pub(crate) fn with_referenced_tables(catalog: &Catalog, mut wanted: BTreeSet<String>) -> BTreeSet<String> {
    loop {
        let referencing = catalog.tables.iter().filter(|table| wanted.contains(&table.name.to_ascii_lowercase()));
        let keys = referencing.flat_map(|table| &table.foreign_keys);
        let more: BTreeSet<String> = keys.map(|key| key.referenced_table.to_ascii_lowercase()).collect();
        let count = wanted.len();
        wanted.extend(more);
        if wanted.len() == count {
            return wanted;
        }
    }
}

/// Returns the tables so that each comes after those that it references, as far as possible.
fn in_reference_order(catalog: &Catalog, only: Option<&BTreeSet<String>>) -> Vec<CatalogTable> {
    let matters = |table: &&CatalogTable| only.is_none_or(|only| only.contains(&table.name.to_ascii_lowercase()));
    let mut rest: Vec<&CatalogTable> = catalog.tables.iter().filter(|table| !table.is_view).filter(matters).collect();
    let mut ordered: Vec<CatalogTable> = Vec::new();
    while !rest.is_empty() {
        let is_free = |table: &&CatalogTable| {
            table.foreign_keys.iter().all(|key| {
                key.referenced_table.eq_ignore_ascii_case(&table.name)
                    || !rest.iter().any(|other| other.name.eq_ignore_ascii_case(&key.referenced_table))
            })
        };
        // A cycle of references is broken at its first table.
        let at = rest.iter().position(is_free).unwrap_or(0);
        ordered.push(rest.remove(at).clone());
    }
    ordered
}

fn value_kind(column: &CatalogColumn) -> ScratchValueKind {
    let kind = column.declared_type.to_ascii_lowercase();
    let name = column.name.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| kind.contains(word));
    if has(&["timestamp", "datetime"]) {
        ScratchValueKind::Timestamp
    } else if has(&["date"]) {
        ScratchValueKind::Date
    } else if has(&["time"]) {
        ScratchValueKind::Time
    } else if has(&["bool"]) {
        ScratchValueKind::Boolean
    } else if has(&["int"]) && !has(&["interval", "point"]) {
        ScratchValueKind::Integer
    } else if has(&["char", "text", "clob", "string", "enum", "json", "uuid"]) {
        if name.ends_with("date") || name.ends_with("_at") {
            ScratchValueKind::Timestamp
        } else {
            ScratchValueKind::Text
        }
    } else if has(&["real", "floa", "doub", "num", "dec", "money"]) {
        ScratchValueKind::Real
    } else if has(&["blob", "bytea", "binary"]) {
        ScratchValueKind::Blob
    } else {
        ScratchValueKind::Text
    }
}

fn null_literal() -> String {
    "NULL".to_owned()
}

fn ordinary_value(
    at: usize,
    column: &CatalogColumn,
    table: &CatalogTable,
    row: usize,
    values: &[Literal],
    dialect: Dialect,
) -> ScratchValue {
    let whole = |number: usize| ScratchValue::Integer(i64::try_from(number).unwrap_or(i64::MAX));
    let number = row + 1;
    let points = is_foreign_key(table, column);
    let texts: Vec<&str> = values
        .iter()
        .filter_map(|value| match value {
            Literal::Text(text) => Some(text.as_str()),
            Literal::Number(_) => None,
        })
        .collect();
    match value_kind(column) {
        _ if points && value_kind(column) != ScratchValueKind::Text => whole(number),
        ScratchValueKind::Integer if column.primary_key_position > 0 => whole(number),
        ScratchValueKind::Integer => whole((row * 3 + at) % 11),
        ScratchValueKind::Real => ScratchValue::Real(f64::from(u8::try_from((row * 7 + at) % 23).unwrap_or(0)) + 0.5),
        ScratchValueKind::Boolean => ScratchValue::Boolean(row.is_multiple_of(2)),
        ScratchValueKind::Date => ScratchValue::Text(format!("2024-0{}-1{}", row % 9 + 1, at % 9)),
        ScratchValueKind::Timestamp => {
            ScratchValue::Text(format!("2024-0{}-1{} 0{}:00:00", row % 9 + 1, at % 9, row % 9))
        }
        ScratchValueKind::Time => ScratchValue::Text(format!("0{}:30:00", row % 9)),
        ScratchValueKind::Blob if dialect == Dialect::Sqlite => ScratchValue::Byte(u8::try_from(row).unwrap_or(0)),
        ScratchValueKind::Blob => ScratchValue::Text(format!("b{row}")),
        ScratchValueKind::Text if column.primary_key_position > 0 || points => ScratchValue::Text(format!("k{number}")),
        // Every other row has a literal of the text, so that the filters of the text match something.
        ScratchValueKind::Text if row.is_multiple_of(2) && !texts.is_empty() => {
            ScratchValue::Text(texts[(row / 2 + at) % texts.len()].to_owned())
        }
        ScratchValueKind::Text => ScratchValue::Text(format!("word {number}")),
    }
}

/// Returns unusual values for a column; an effective filter matches some of them and not others.
fn unusual_values(column: &CatalogColumn, values: &[Literal], dialect: Dialect) -> Vec<String> {
    let mut list: BTreeMap<String, ()> = BTreeMap::new();
    let mut ordered: Vec<String> = Vec::new();
    let mut add = |value: String| {
        if list.insert(value.clone(), ()).is_none() {
            ordered.push(value);
        }
    };
    if !column.is_not_null && column.primary_key_position == 0 {
        add(null_literal());
    }
    let numbers: Vec<&str> = values
        .iter()
        .filter_map(|value| match value {
            Literal::Number(number) => Some(number.as_str()),
            Literal::Text(_) => None,
        })
        .collect();
    match value_kind(column) {
        ScratchValueKind::Integer => {
            ["0", "1", "-1", "2", "-1000003", "1000003"].into_iter().for_each(|number| add(number.to_owned()));
            for number in numbers.iter().filter_map(|number| number.parse::<i32>().ok()).take(8) {
                [number, number.saturating_add(1), number.saturating_sub(1)]
                    .iter()
                    .for_each(|near| add(near.to_string()));
            }
        }
        ScratchValueKind::Real => {
            ["0", "0.5", "-0.5", "-1000003", "1000003"].into_iter().for_each(|number| add(number.to_owned()));
            numbers
                .iter()
                .filter(|number| number.parse::<f64>().is_ok())
                .take(8)
                .for_each(|number| add((*number).to_owned()));
        }
        ScratchValueKind::Boolean => ["TRUE", "FALSE"].into_iter().for_each(|value| add(value.to_owned())),
        ScratchValueKind::Date => {
            ["0001-01-01", "1969-12-31", "2024-02-29", "9999-12-31"]
                .into_iter()
                .for_each(|day| add(string_literal(day, dialect)));
        }
        ScratchValueKind::Timestamp => {
            ["0001-01-01 00:00:00", "1969-12-31 23:59:59", "2024-02-29 12:00:00", "9999-12-31 23:59:59"]
                .into_iter()
                .for_each(|time| add(string_literal(time, dialect)));
        }
        ScratchValueKind::Time => {
            ["00:00:00", "23:59:59"].into_iter().for_each(|time| add(string_literal(time, dialect)));
        }
        ScratchValueKind::Blob if dialect == Dialect::Sqlite => {
            ["x''", "x'00'", "x'ff'"].into_iter().for_each(|blob| add(blob.to_owned()));
        }
        ScratchValueKind::Blob => ["", "b"].into_iter().for_each(|blob| add(string_literal(blob, dialect))),
        ScratchValueKind::Text => {
            ["", "a", "ZZZ", "~", "0"].into_iter().for_each(|text| add(string_literal(text, dialect)));
            for value in values.iter().take(16) {
                let (Literal::Text(text) | Literal::Number(text)) = value;
                add(string_literal(text, dialect));
                add(string_literal(&format!("{text}~"), dialect));
            }
        }
    }
    ordered
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use proctor_core::sql::{SqlRequest, SqlResourceLimits};

    use super::*;
    use crate::sqlite::Sqlite;

    #[test]
    fn skips_only_rows_that_break_constraints() {
        let schema = "CREATE TABLE plain (a INTEGER); CREATE TABLE checked (a INTEGER CHECK (a <> 3))".to_owned();
        let request = SqlRequest { schema: vec![schema], ..SqlRequest::new(Dialect::Sqlite, "SELECT 1") };
        let mut engine = Sqlite::open(&request).expect("a schema");
        let limits = SqlResourceLimits::default();
        let deadline = Instant::now() + limits.wall_time();
        let on = ExecutionBounds { limits: &limits, deadline, continues_past_row_limit: false };
        fill_empty_tables(&mut engine, "SELECT 1", None, on).expect("fills");
        let rows = ["plain", "checked"].map(|table| engine.query_number(&format!("SELECT count(*) FROM {table}"), on));
        assert_eq!(rows, [Ok(8), Ok(7)]);
    }
}

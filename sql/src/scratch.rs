//! Generates rows from a schema. Empty tables get a few ordinary rows, so that a statement has data to run on. The
//! table of a write gets unusual rows too, so that an effective filter excludes at least one of them.

use std::collections::{BTreeMap, BTreeSet};

use proctor_core::sql::Dialect;

use crate::catalog::{Catalog, Column, Table};
use crate::engine::Engine;
use crate::literals::{Literal, literals};

/// The number of ordinary rows in a table.
const ORDINARY: usize = 8;
/// The start of the replacement keys. It is above all generated keys except literals of the text.
const FREE_KEY: usize = 2_000_000;
/// The maximum number of tables that are filled.
const MOST_TABLES: usize = 200;

/// The kind of values in a column, derived from its declared type and its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sort {
    Integer,
    Real,
    Text,
    Date,
    Timestamp,
    Time,
    Boolean,
    Blob,
}

/// A value of an ordinary row.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// An integer.
    Integer(i64),
    /// A floating-point number.
    Real(f64),
    /// A boolean.
    Boolean(bool),
    /// A text, a date or a time.
    Text(String),
    /// A blob of one byte.
    Byte(u8),
}

impl Value {
    /// Returns the value as an SQL literal.
    fn literal(&self) -> String {
        match self {
            Self::Integer(number) => number.to_string(),
            Self::Real(number) => number.to_string(),
            Self::Boolean(true) => "TRUE".to_owned(),
            Self::Boolean(false) => "FALSE".to_owned(),
            Self::Text(text) => string(text),
            Self::Byte(byte) => format!("x'{byte:02x}'"),
        }
    }
}

/// Inserts ordinary rows into each empty table, into referenced tables first. `only` contains the names of the tables
/// that matter, in lower case; with `None` every table matters.
pub fn fill(engine: &mut dyn Engine, text: &str, only: Option<&BTreeSet<String>>) {
    let dialect = engine.dialect();
    let values = literals(text, dialect);
    for table in in_order(engine.catalog(), only).into_iter().take(MOST_TABLES) {
        if engine.is_empty(&table) {
            let of =
                |row| columns(&table).map(|(at, column)| ordinary(at, column, &table, row, &values, dialect)).collect();
            let rows: Vec<Vec<Value>> = (0..ORDINARY).map(of).collect();
            engine.insert(&table, &rows);
        }
    }
}

/// Inserts those of the rows that break no constraint, with SQL statements.
pub(crate) fn insert_by_text(engine: &mut (impl Engine + ?Sized), table: &Table, rows: &[Vec<Value>]) {
    let listed = |row: &Vec<Value>| format!("({})", row.iter().map(Value::literal).collect::<Vec<_>>().join(", "));
    let rows: Vec<String> = rows.iter().map(listed).collect();
    // If a row breaks a constraint, the statement inserts none. Each row is then inserted separately.
    if !put(engine, table, &rows) {
        for row in &rows {
            let _ = put(engine, table, std::slice::from_ref(row));
        }
    }
}

/// Returns an INSERT statement for all columns that take a value, up to and including `VALUES`.
pub(crate) fn insertion(engine: &(impl Engine + ?Sized), table: &Table) -> String {
    let names: Vec<String> = columns(table).map(|(_, column)| engine.quoted(&column.name)).collect();
    format!("INSERT INTO {} ({}) VALUES ", engine.quoted(&table.name), names.join(", "))
}

/// Inserts unusual rows into a table: NULL, zero, negative, huge, empty, and each literal of the text, in every column.
pub fn probe(engine: &mut dyn Engine, table: &Table, text: &str) {
    let dialect = engine.dialect();
    let values = literals(text, dialect);
    let lists: Vec<Vec<String>> = table.columns.iter().map(|column| odd(column, &values, dialect)).collect();
    let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
    for row in 0..longest {
        // Each column starts at another offset in its list of values, so that the same two values do not always occur
        // together.
        let of =
            |at: usize, _: &Column| lists[at].get((row + at) % lists[at].len().max(1)).cloned().unwrap_or_else(null);
        // An engine that ignores a row with an existing key reports success, so the rows are counted.
        let before = rows(engine, table);
        if insert(engine, table, of) && rows(engine, table) > before {
            continue;
        }
        // The row has an existing key, or its foreign key refers to no row. It is inserted with another key, so that
        // its other values are in the table.
        let free = |at: usize, column: &Column| match column {
            column if points(table, column) && column.key == 0 && !column.is_not_null => null(),
            column if column.key > 0 && sort(column) == Sort::Text => string(&format!("key {row}")),
            column if column.key > 0 => (FREE_KEY + row).to_string(),
            column => of(at, column),
        };
        let _ = insert(engine, table, free);
    }
}

fn rows(engine: &mut dyn Engine, table: &Table) -> i64 {
    let name = engine.quoted(&table.name);
    engine.number(&format!("SELECT count(*) FROM {name}")).unwrap_or(0)
}

fn points(table: &Table, column: &Column) -> bool {
    table.foreign_keys.iter().any(|key| key.column.eq_ignore_ascii_case(&column.name))
}

/// Inserts one row. Returns whether it was inserted.
fn insert(engine: &mut dyn Engine, table: &Table, value: impl Fn(usize, &Column) -> String) -> bool {
    let row = row_of(table, value);
    put(engine, table, &[row])
}

/// Returns the columns of a table that take a value, with their positions.
fn columns(table: &Table) -> impl Iterator<Item = (usize, &Column)> {
    table.columns.iter().enumerate().filter(|(_, column)| !column.is_generated)
}

/// Returns the values of one row, in parentheses.
fn row_of(table: &Table, value: impl Fn(usize, &Column) -> String) -> String {
    let values: Vec<String> = columns(table).map(|(at, column)| value(at, column)).collect();
    format!("({})", values.join(", "))
}

/// Inserts all rows with one statement, or none. Returns whether they were inserted.
fn put(engine: &mut (impl Engine + ?Sized), table: &Table, rows: &[String]) -> bool {
    let insertion = insertion(engine, table);
    engine.put(&(insertion + &rows.join(", ")))
}

/// Returns the tables so that each comes after those that it references, as far as possible.
fn in_order(catalog: &Catalog, only: Option<&BTreeSet<String>>) -> Vec<Table> {
    let matters = |table: &&Table| only.is_none_or(|only| only.contains(&table.name.to_ascii_lowercase()));
    let mut rest: Vec<&Table> = catalog.tables.iter().filter(|table| !table.is_view).filter(matters).collect();
    let mut ordered: Vec<Table> = Vec::new();
    while !rest.is_empty() {
        let is_free = |table: &&Table| {
            table.foreign_keys.iter().all(|key| {
                key.table.eq_ignore_ascii_case(&table.name)
                    || !rest.iter().any(|other| other.name.eq_ignore_ascii_case(&key.table))
            })
        };
        // A cycle of references is broken at its first table.
        let at = rest.iter().position(is_free).unwrap_or(0);
        ordered.push(rest.remove(at).clone());
    }
    ordered
}

fn sort(column: &Column) -> Sort {
    let kind = column.kind.to_ascii_lowercase();
    let name = column.name.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| kind.contains(word));
    if has(&["timestamp", "datetime"]) {
        Sort::Timestamp
    } else if has(&["date"]) {
        Sort::Date
    } else if has(&["time"]) {
        Sort::Time
    } else if has(&["bool"]) {
        Sort::Boolean
    } else if has(&["int"]) && !has(&["interval", "point"]) {
        Sort::Integer
    } else if has(&["char", "text", "clob", "string", "enum", "json", "uuid"]) {
        if name.ends_with("date") || name.ends_with("_at") { Sort::Timestamp } else { Sort::Text }
    } else if has(&["real", "floa", "doub", "num", "dec", "money"]) {
        Sort::Real
    } else if has(&["blob", "bytea", "binary"]) {
        Sort::Blob
    } else {
        Sort::Text
    }
}

fn null() -> String {
    "NULL".to_owned()
}

fn string(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn ordinary(at: usize, column: &Column, table: &Table, row: usize, values: &[Literal], dialect: Dialect) -> Value {
    let whole = |number: usize| Value::Integer(i64::try_from(number).unwrap_or(i64::MAX));
    let number = row + 1;
    let points = points(table, column);
    let texts: Vec<&str> = values
        .iter()
        .filter_map(|value| match value {
            Literal::Text(text) => Some(text.as_str()),
            Literal::Number(_) => None,
        })
        .collect();
    match sort(column) {
        _ if points && sort(column) != Sort::Text => whole(number),
        Sort::Integer if column.key > 0 => whole(number),
        Sort::Integer => whole((row * 3 + at) % 11),
        Sort::Real => Value::Real(f64::from(u8::try_from((row * 7 + at) % 23).unwrap_or(0)) + 0.5),
        Sort::Boolean => Value::Boolean(row.is_multiple_of(2)),
        Sort::Date => Value::Text(format!("2024-0{}-1{}", row % 9 + 1, at % 9)),
        Sort::Timestamp => Value::Text(format!("2024-0{}-1{} 0{}:00:00", row % 9 + 1, at % 9, row % 9)),
        Sort::Time => Value::Text(format!("0{}:30:00", row % 9)),
        Sort::Blob if dialect == Dialect::Sqlite => Value::Byte(u8::try_from(row).unwrap_or(0)),
        Sort::Blob => Value::Text(format!("b{row}")),
        Sort::Text if column.key > 0 || points => Value::Text(format!("k{number}")),
        // Every other row has a literal of the text, so that the filters of the text match something.
        Sort::Text if row.is_multiple_of(2) && !texts.is_empty() => {
            Value::Text(texts[(row / 2 + at) % texts.len()].to_owned())
        }
        Sort::Text => Value::Text(format!("word {number}")),
    }
}

/// Returns unusual values for a column; an effective filter matches some of them and not others.
fn odd(column: &Column, values: &[Literal], dialect: Dialect) -> Vec<String> {
    let mut list: BTreeMap<String, ()> = BTreeMap::new();
    let mut ordered: Vec<String> = Vec::new();
    let mut add = |value: String| {
        if list.insert(value.clone(), ()).is_none() {
            ordered.push(value);
        }
    };
    if !column.is_not_null && column.key == 0 {
        add(null());
    }
    let numbers: Vec<&str> = values
        .iter()
        .filter_map(|value| match value {
            Literal::Number(number) => Some(number.as_str()),
            Literal::Text(_) => None,
        })
        .collect();
    match sort(column) {
        Sort::Integer => {
            ["0", "1", "-1", "2", "-1000003", "1000003"].into_iter().for_each(|number| add(number.to_owned()));
            for number in numbers.iter().filter_map(|number| number.parse::<i32>().ok()).take(8) {
                [number, number.saturating_add(1), number.saturating_sub(1)]
                    .iter()
                    .for_each(|near| add(near.to_string()));
            }
        }
        Sort::Real => {
            ["0", "0.5", "-0.5", "-1000003", "1000003"].into_iter().for_each(|number| add(number.to_owned()));
            numbers
                .iter()
                .filter(|number| number.parse::<f64>().is_ok())
                .take(8)
                .for_each(|number| add((*number).to_owned()));
        }
        Sort::Boolean => ["TRUE", "FALSE"].into_iter().for_each(|value| add(value.to_owned())),
        Sort::Date => {
            ["0001-01-01", "1969-12-31", "2024-02-29", "9999-12-31"].into_iter().for_each(|day| add(string(day)));
        }
        Sort::Timestamp => ["0001-01-01 00:00:00", "1969-12-31 23:59:59", "2024-02-29 12:00:00", "9999-12-31 23:59:59"]
            .into_iter()
            .for_each(|time| add(string(time))),
        Sort::Time => ["00:00:00", "23:59:59"].into_iter().for_each(|time| add(string(time))),
        Sort::Blob if dialect == Dialect::Sqlite => {
            ["x''", "x'00'", "x'ff'"].into_iter().for_each(|blob| add(blob.to_owned()));
        }
        Sort::Blob => ["", "b"].into_iter().for_each(|blob| add(string(blob))),
        Sort::Text => {
            ["", "a", "ZZZ", "~", "0"].into_iter().for_each(|text| add(string(text)));
            for value in values.iter().take(16) {
                let (Literal::Text(text) | Literal::Number(text)) = value;
                add(string(text));
                add(string(&format!("{text}~")));
            }
        }
    }
    ordered
}

#[cfg(test)]
mod tests {
    use proctor_core::sql::Request;

    use super::*;
    use crate::sqlite::Sqlite;

    #[test]
    fn a_row_that_breaks_a_constraint_keeps_no_other_row_out() {
        let schema = "CREATE TABLE plain (a INTEGER); CREATE TABLE checked (a INTEGER CHECK (a <> 3))".to_owned();
        let request = Request { schema: vec![schema], ..Request::new(Dialect::Sqlite, "SELECT 1") };
        let mut engine = Sqlite::open(&request).expect("a schema");
        fill(&mut engine, "SELECT 1", None);
        let rows = ["plain", "checked"].map(|table| engine.number(&format!("SELECT count(*) FROM {table}")));
        assert_eq!(rows, [Ok(8), Ok(7)]);
    }
}

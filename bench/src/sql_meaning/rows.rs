//! Fills databases with random rows, so that the results of two queries can be compared.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use anyhow::Result;
use rusqlite::Connection;
use rusqlite::types::ValueRef;
use sqlparser::ast::{Expr, Statement, Value, Visit as _, Visitor};

use super::sets::{Column, Database, quoted};

/// Maximum number of rows of a query; the comparison stops at more.
const MOST_ROWS: usize = 5_000;
/// Number of different values in a group of keys.
const KEYS: u64 = 18;
/// Maximum number of instructions of a query, in thousands.
const MOST_STEPS: u32 = 3_000;

/// A small generator of pseudo-random numbers (SplitMix64); equal seeds give equal rows.
pub(super) struct Random(pub u64);

impl Random {
    /// Returns a number below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end.max(1)
    }
}

/// The values that queries compare each column with, by the column's name in lower case.
pub(super) type Literals = BTreeMap<String, Vec<String>>;

/// Adds the literals of a statement.
pub(super) fn literals(statement: &Statement, found: &mut Literals) {
    let mut reader = Reader(found);
    let _ = statement.visit(&mut reader);
}

struct Reader<'a>(&'a mut Literals);

impl Reader<'_> {
    fn compared(&mut self, column: &Expr, value: &Expr) {
        let name = match column {
            Expr::Identifier(ident) => &ident.value,
            Expr::CompoundIdentifier(parts) => match parts.last() {
                Some(last) => &last.value,
                None => return,
            },
            _ => return,
        };
        let text = match value {
            Expr::Value(value) => match &value.value {
                Value::Number(number, _) => number.to_string(),
                other => other.clone().into_string().unwrap_or_default(),
            },
            Expr::Identifier(ident) if ident.quote_style == Some('"') => ident.value.clone(),
            _ => return,
        };
        self.0.entry(name.to_lowercase()).or_default().push(text.trim_matches('%').to_owned());
    }
}

impl Visitor for Reader<'_> {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        match expr {
            Expr::BinaryOp { left, right, .. } => {
                self.compared(left, right);
                self.compared(right, left);
            }
            Expr::Like { expr, pattern, .. } => self.compared(expr, pattern),
            Expr::Between { expr, low, high, .. } => {
                self.compared(expr, low);
                self.compared(expr, high);
            }
            Expr::InList { expr, list, .. } => list.iter().for_each(|value| self.compared(expr, value)),
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

/// Opens a database in memory with random rows.
pub(super) fn filled(database: &Database, literals: &Literals, random: &mut Random) -> Result<Connection> {
    let connection = Connection::open_in_memory()?;
    connection.execute_batch("PRAGMA foreign_keys = OFF")?;
    connection.execute_batch(&database.ddl())?;
    let mut sizes: BTreeMap<usize, usize> = BTreeMap::new();
    for column in database.tables.iter().flat_map(|table| &table.columns) {
        *sizes.entry(column.group).or_default() += 1;
    }
    for table in &database.tables {
        let rows = 8 + random.below(14);
        let marks = vec!["?"; table.columns.len()].join(", ");
        let mut insert =
            connection.prepare(&format!("INSERT OR IGNORE INTO {} VALUES ({marks})", quoted(&table.name)))?;
        for row in 0..rows {
            let values: Vec<String> = table
                .columns
                .iter()
                .map(|column| {
                    let is_linked = sizes[&column.group] > 1;
                    let keys = table.columns.iter().filter(|column| column.is_key).count();
                    match column.is_key && keys == 1 {
                        true => (row + 1).to_string(),
                        false => value(column, is_linked, literals, random),
                    }
                })
                .collect();
            insert.execute(rusqlite::params_from_iter(values))?;
        }
    }
    Ok(connection)
}

fn value(column: &Column, is_linked: bool, literals: &Literals, random: &mut Random) -> String {
    const WORDS: [&str; 12] = ["ann", "bob", "Cid", "dora", "Eve", "fay", "gus", "hal", "Ida", "joe", "kim", "lea"];
    let named = literals.get(&column.name.to_lowercase()).filter(|named| !named.is_empty());
    if let Some(named) = named
        && random.below(100) < 45
    {
        return pick(named, random).clone();
    }
    if is_linked || column.is_key {
        return (1 + random.below(KEYS)).to_string();
    }
    match column.kind {
        "NUMERIC" => random.below(60).to_string(),
        "BOOLEAN" => random.below(2).to_string(),
        "DATETIME" => format!("20{:02}-0{}-1{}", 5 + random.below(15), 1 + random.below(9), random.below(9)),
        _ => format!("{}{}", pick(&WORDS, random), random.below(3)),
    }
}

fn pick<'a, T>(list: &'a [T], random: &mut Random) -> &'a T {
    &list[usize::try_from(random.below(list.len() as u64)).unwrap_or(0)]
}

/// Returns the rows of a query: in order if the query sorts them, otherwise sorted; `None` if it fails or returns
/// too many.
pub(super) fn result(connection: &mut Connection, sql: &str, is_sorted: bool) -> Option<Vec<String>> {
    let mut steps = 0;
    let is_over = move || {
        steps += 1;
        steps > MOST_STEPS
    };
    connection.progress_handler(1_000, Some(is_over)).ok()?;
    let mut statement = connection.prepare(sql).ok()?;
    let columns = statement.column_count();
    let mut rows = statement.query([]).ok()?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().ok()? {
        let values: Vec<String> = (0..columns)
            .map(|at| match row.get_ref(at) {
                Ok(ValueRef::Null) | Err(_) => "NULL".to_owned(),
                Ok(ValueRef::Integer(number)) => number.to_string(),
                Ok(ValueRef::Real(number)) => number.to_string(),
                Ok(ValueRef::Text(text) | ValueRef::Blob(text)) => String::from_utf8_lossy(text).into_owned(),
            })
            .collect();
        found.push(values.join("|"));
        if found.len() > MOST_ROWS {
            return None;
        }
    }
    if !is_sorted {
        found.sort();
    }
    Some(found)
}

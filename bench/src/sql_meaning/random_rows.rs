//! Fills databases with random rows, so that the results of two queries can be compared.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use anyhow::Result;
use rusqlite::Connection;
use rusqlite::types::ValueRef;
use sqlparser::ast::{Expr, Statement, Value, Visit as _, Visitor};

use super::question_sets::{SetColumn, SetDatabase, quote_name};

/// Maximum number of rows of a query; the comparison stops at more.
const MAX_ROWS: usize = 5_000;
/// Number of different values in a group of keys.
const KEY_VALUES: u64 = 18;
/// Maximum number of instructions of a query, in thousands.
const MAX_STEPS: u32 = 3_000;

/// A small generator of pseudo-random numbers (SplitMix64); equal seeds give equal rows.
pub(super) struct SplitMix64(pub u64);

impl SplitMix64 {
    /// Returns a number below `end`.
    pub(super) fn next_below(&mut self, end: u64) -> u64 {
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
pub(super) fn collect_literals(statement: &Statement, found: &mut Literals) {
    let mut reader = LiteralCollector(found);
    let _ = statement.visit(&mut reader);
}

struct LiteralCollector<'a>(&'a mut Literals);

impl LiteralCollector<'_> {
    fn add_comparison(&mut self, column: &Expr, value: &Expr) {
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

impl Visitor for LiteralCollector<'_> {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        match expr {
            Expr::BinaryOp { left, right, .. } => {
                self.add_comparison(left, right);
                self.add_comparison(right, left);
            }
            Expr::Like { expr, pattern, .. } => self.add_comparison(expr, pattern),
            Expr::Between { expr, low, high, .. } => {
                self.add_comparison(expr, low);
                self.add_comparison(expr, high);
            }
            Expr::InList { expr, list, .. } => list.iter().for_each(|value| self.add_comparison(expr, value)),
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

/// Opens a database in memory with random rows.
pub(super) fn fill_database(
    database: &SetDatabase,
    literals: &Literals,
    random: &mut SplitMix64,
) -> Result<Connection> {
    let connection = Connection::open_in_memory()?;
    connection.execute_batch("PRAGMA foreign_keys = OFF")?;
    connection.execute_batch(&database.ddl())?;
    let mut sizes: BTreeMap<usize, usize> = BTreeMap::new();
    for column in database.tables.iter().flat_map(|table| &table.columns) {
        *sizes.entry(column.group).or_default() += 1;
    }
    for table in &database.tables {
        let rows = 8 + random.next_below(14);
        let marks = vec!["?"; table.columns.len()].join(", ");
        let mut insert =
            connection.prepare(&format!("INSERT OR IGNORE INTO {} VALUES ({marks})", quote_name(&table.name)))?;
        for row in 0..rows {
            let values: Vec<String> = table
                .columns
                .iter()
                .map(|column| {
                    let is_linked = sizes[&column.group] > 1;
                    let keys = table.columns.iter().filter(|column| column.is_key).count();
                    match column.is_key && keys == 1 {
                        true => (row + 1).to_string(),
                        false => random_value(column, is_linked, literals, random),
                    }
                })
                .collect();
            insert.execute(rusqlite::params_from_iter(values))?;
        }
    }
    Ok(connection)
}

fn random_value(column: &SetColumn, is_linked: bool, literals: &Literals, random: &mut SplitMix64) -> String {
    const WORDS: [&str; 12] = ["ann", "bob", "Cid", "dora", "Eve", "fay", "gus", "hal", "Ida", "joe", "kim", "lea"];
    let named = literals.get(&column.name.to_lowercase()).filter(|named| !named.is_empty());
    if let Some(named) = named
        && random.next_below(100) < 45
    {
        return pick(named, random).clone();
    }
    if is_linked || column.is_key {
        return (1 + random.next_below(KEY_VALUES)).to_string();
    }
    match column.kind {
        "NUMERIC" => random.next_below(60).to_string(),
        "BOOLEAN" => random.next_below(2).to_string(),
        "DATETIME" => {
            format!("20{:02}-0{}-1{}", 5 + random.next_below(15), 1 + random.next_below(9), random.next_below(9))
        }
        _ => format!("{}{}", pick(&WORDS, random), random.next_below(3)),
    }
}

fn pick<'a, T>(list: &'a [T], random: &mut SplitMix64) -> &'a T {
    &list[usize::try_from(random.next_below(list.len() as u64)).unwrap_or(0)]
}

/// Returns the rows of a query: in order if the query sorts them, otherwise sorted; `None` if it fails or returns
/// too many.
pub(super) fn query_rows(connection: &mut Connection, sql: &str, is_sorted: bool) -> Option<Vec<String>> {
    let mut steps = 0;
    let is_over = move || {
        steps += 1;
        steps > MAX_STEPS
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
        if found.len() > MAX_ROWS {
            return None;
        }
    }
    if !is_sorted {
        found.sort();
    }
    Some(found)
}

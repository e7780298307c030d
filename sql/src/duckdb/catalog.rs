//! What a DuckDB database holds, as DuckDB tells: `duckdb_columns()`, `duckdb_constraints()`, `duckdb_functions()`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::catalog::{Catalog, Column, ForeignKey, Table};

/// Asks one question of ours: rows of texts.
pub(super) type Ask<'a> = dyn FnMut(&str) -> Result<Vec<Vec<Option<String>>>, String> + 'a;

const COLUMNS: &str = "
    SELECT c.schema_name, c.table_name, CAST(v.view_name IS NOT NULL AS VARCHAR), c.column_name, c.data_type,
        CAST(c.is_nullable AS VARCHAR), CAST(c.column_default IS NOT NULL AS VARCHAR)
    FROM duckdb_columns() c
    LEFT JOIN duckdb_views() v ON v.database_name = c.database_name AND v.schema_name = c.schema_name
        AND v.view_name = c.table_name
    WHERE NOT c.internal AND c.database_name = current_database()
    ORDER BY c.table_oid, c.column_index";

const CONSTRAINTS: &str = "
    SELECT schema_name, table_name, constraint_type, CAST(to_json(constraint_column_names) AS VARCHAR),
        referenced_table, CAST(to_json(referenced_column_names) AS VARCHAR)
    FROM duckdb_constraints()
    WHERE database_name = current_database() AND constraint_type IN ('PRIMARY KEY', 'FOREIGN KEY')
    ORDER BY table_oid, constraint_index";

const FUNCTIONS: &str = "
    SELECT DISTINCT lower(function_name), CAST(function_type IN ('table', 'table_macro') AS VARCHAR)
    FROM duckdb_functions() WHERE function_type <> 'pragma' AND (internal OR function_type <> 'table_macro')";

/// What a database holds.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Its tables and views.
    pub(super) catalog: Catalog,
    /// How names of tables outside of `main` are written.
    pub(super) quoted: BTreeMap<String, String>,
    /// Its functions that make a value.
    pub(super) functions: BTreeSet<String>,
    /// Its functions that make a table.
    pub(super) table_functions: BTreeSet<String>,
}

/// Reads it. `generated` tells which columns of a table the engine computes, for tables that have defaults.
pub(super) fn read(ask: &mut Ask<'_>, generated: &dyn Fn(&str) -> BTreeSet<String>) -> Result<Held, String> {
    let mut held = Held::default();
    let mut with_defaults = BTreeSet::new();
    for row in ask(COLUMNS)? {
        let field = |at: usize| row.get(at).cloned().flatten().unwrap_or_default();
        let name = named(&field(0), &field(1));
        let tables = &mut held.catalog.tables;
        if tables.last().is_none_or(|table| table.name != name) {
            if name != field(1) {
                held.quoted.insert(name.clone(), format!("{}.{}", quoted(&field(0)), quoted(&field(1))));
            }
            tables.push(Table { name: name.clone(), is_view: field(2) == "true", ..Table::default() });
        }
        let column = Column { name: field(3), kind: field(4), is_not_null: field(5) == "false", ..Column::default() };
        tables.last_mut().into_iter().for_each(|table| table.columns.push(column.clone()));
        if field(6) == "true" {
            with_defaults.insert(name);
        }
    }
    for row in ask(CONSTRAINTS)? {
        let field = |at: usize| row.get(at).cloned().flatten().unwrap_or_default();
        let name = named(&field(0), &field(1));
        if let Some(table) = held.catalog.tables.iter_mut().find(|table| table.name == name) {
            constrain(table, &field(2), &names(&field(3)), &named(&field(0), &field(4)), &names(&field(5)));
        }
    }
    for table in held.catalog.tables.iter_mut().filter(|table| with_defaults.contains(&table.name)) {
        let computed = generated(held.quoted.get(&table.name).unwrap_or(&quoted(&table.name)));
        table.columns.iter_mut().for_each(|column| column.is_generated = computed.contains(&column.name));
    }
    for row in ask(FUNCTIONS)? {
        let [Some(name), Some(makes_table)] = row.as_slice() else { continue };
        let list = if makes_table == "true" { &mut held.table_functions } else { &mut held.functions };
        list.insert(name.clone());
    }
    Ok(held)
}

fn constrain(table: &mut Table, kind: &str, columns: &[String], other: &str, to: &[String]) {
    if kind == "PRIMARY KEY" {
        for (place, name) in columns.iter().enumerate() {
            let key = u32::try_from(place + 1).unwrap_or(u32::MAX);
            table.columns.iter_mut().filter(|column| column.name == *name).for_each(|column| column.key = key);
        }
        return;
    }
    table.foreign_keys.extend(columns.iter().enumerate().map(|(at, column)| ForeignKey {
        column: column.clone(),
        table: other.to_owned(),
        to: to.get(at).cloned(),
    }));
}

/// The columns that a plan over a table says are computed.
pub(super) fn generated(plan: &Value) -> BTreeSet<String> {
    let columns = plan.pointer("/plans/0/table_info/columns/columns").and_then(Value::as_array);
    let computed = columns.into_iter().flatten().filter(|column| column["category"] == "GENERATED");
    computed.filter_map(|column| column["name"].as_str()).map(str::to_owned).collect()
}

fn names(json: &str) -> Vec<String> {
    serde_json::from_str(json).unwrap_or_default()
}

fn named(schema: &str, table: &str) -> String {
    if schema.eq_ignore_ascii_case("main") { table.to_owned() } else { format!("{schema}.{table}") }
}

pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

//! Reads the content of a DuckDB database from `duckdb_columns()`, `duckdb_constraints()` and `duckdb_functions()`.

use std::collections::{BTreeMap, BTreeSet};

use proctor_duckdb::Connection;
use serde_json::Value;

use super::internal_queries::query_texts;
use super::plan_actions::MacroActions;
use super::query_error::QueryError;
use crate::catalog::{Catalog, CatalogColumn, CatalogTable, EnumType, ForeignKey, SchemaComment, joined_name};

/// Runs an internal query and returns its rows as texts.
pub(super) type TextQuery<'a> = dyn FnMut(&str) -> Result<Vec<Vec<Option<String>>>, QueryError> + 'a;

const COLUMNS_QUERY: &str = "
    SELECT c.schema_name, c.table_name, CAST(v.view_name IS NOT NULL AS VARCHAR), c.column_name, c.data_type,
        CAST(c.is_nullable AS VARCHAR), CAST(c.column_default IS NOT NULL AS VARCHAR)
    FROM duckdb_columns() c
    LEFT JOIN duckdb_views() v ON v.database_name = c.database_name AND v.schema_name = c.schema_name
        AND v.view_name = c.table_name
    WHERE NOT c.internal AND c.database_name = current_database()";
const COLUMNS_ORDER: &str = " ORDER BY c.table_oid, c.column_index";

const CONSTRAINTS_QUERY: &str = "
    SELECT schema_name, table_name, constraint_type, CAST(to_json(constraint_column_names) AS VARCHAR),
        referenced_table, CAST(to_json(referenced_column_names) AS VARCHAR)
    FROM duckdb_constraints()
    WHERE database_name = current_database() AND constraint_type IN ('PRIMARY KEY', 'FOREIGN KEY')";
const CONSTRAINTS_ORDER: &str = " ORDER BY table_oid, constraint_index";

const FUNCTIONS_QUERY: &str = "
    SELECT DISTINCT lower(function_name), CAST(function_type IN ('table', 'table_macro') AS VARCHAR)
    FROM duckdb_functions() WHERE function_type <> 'pragma' AND (internal OR function_type <> 'table_macro')";

const ENUM_TYPES_QUERY: &str = "
    SELECT type_name, CAST(to_json(labels) AS VARCHAR) FROM duckdb_types()
    WHERE NOT internal AND database_name = current_database() AND labels IS NOT NULL ORDER BY ALL";

/// The content of a database.
#[derive(Debug, Default)]
pub(super) struct DatabaseContent {
    /// The tables and views.
    pub(super) catalog: Catalog,
    /// The quoted form of the names of tables outside of `main`.
    pub(super) quoted_names: BTreeMap<String, String>,
    /// The functions that return a value.
    pub(super) functions: BTreeSet<String>,
    /// The functions that return a table.
    pub(super) table_functions: BTreeSet<String>,
    /// The actions of the macros.
    pub(super) macros: MacroActions,
}

/// The query for the macros of the database: name, whether it returns a table, and its definition.
pub(super) const MACROS_QUERY: &str = "
    SELECT lower(function_name), CAST(function_type = 'table_macro' AS VARCHAR), macro_definition
    FROM duckdb_functions() WHERE NOT internal AND macro_definition IS NOT NULL ORDER BY ALL";

/// The part of the content to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContentPart<'a> {
    /// Everything.
    All,
    /// All tables and views.
    Tables,
    /// One new table or view in `main`.
    NewTable(&'a str),
    /// The functions.
    Functions,
}

impl DatabaseContent {
    /// Reads a part of the content. `generated` returns the generated columns of a table; it is called for tables with
    /// defaults.
    pub(super) fn read_part(
        &mut self,
        part: ContentPart<'_>,
        run_query: &mut TextQuery<'_>,
        generated: &dyn Fn(&str) -> BTreeSet<String>,
    ) -> Result<(), QueryError> {
        if let ContentPart::All | ContentPart::Functions = part {
            self.read_functions(run_query)?;
        }
        if part == ContentPart::Functions {
            return Ok(());
        }
        let (columns, constraints) = match part {
            ContentPart::NewTable(name) => {
                let name = name.replace('\'', "''");
                let only = |of: &str| format!(" AND {of}schema_name = 'main' AND {of}table_name = '{name}'");
                (only("c."), only(""))
            }
            _ => {
                self.catalog = Catalog::default();
                self.quoted_names.clear();
                self.catalog.enum_types = run_query(ENUM_TYPES_QUERY)?.into_iter().filter_map(enum_type).collect();
                (String::new(), String::new())
            }
        };
        let from = self.catalog.tables.len();
        let with_defaults = self.read_columns(&run_query(&format!("{COLUMNS_QUERY}{columns}{COLUMNS_ORDER}"))?);
        let new = &mut self.catalog.tables[from..];
        for row in run_query(&format!("{CONSTRAINTS_QUERY}{constraints}{CONSTRAINTS_ORDER}"))? {
            let field = |at: usize| row.get(at).cloned().flatten().unwrap_or_default();
            let name = qualified_name(&field(0), &field(1));
            if let Some(table) = new.iter_mut().find(|table| table.name == name) {
                add_constraint(
                    table,
                    &field(2),
                    &parse_names(&field(3)),
                    &qualified_name(&field(0), &field(4)),
                    &parse_names(&field(5)),
                );
            }
        }
        for table in new.iter_mut().filter(|table| with_defaults.contains(&table.name)) {
            let computed = generated(self.quoted_names.get(&table.name).unwrap_or(&quote_identifier(&table.name)));
            table.columns.iter_mut().for_each(|column| column.is_generated = computed.contains(&column.name));
        }
        Ok(())
    }

    /// Adds the tables of these rows, and returns the names of those with defaults.
    fn read_columns(&mut self, rows: &[Vec<Option<String>>]) -> BTreeSet<String> {
        let mut with_defaults = BTreeSet::new();
        for row in rows {
            let field = |at: usize| row.get(at).cloned().flatten().unwrap_or_default();
            let name = qualified_name(&field(0), &field(1));
            let tables = &mut self.catalog.tables;
            if tables.last().is_none_or(|table| table.name != name) {
                if name != field(1) {
                    self.quoted_names.insert(
                        name.clone(),
                        format!("{}.{}", quote_identifier(&field(0)), quote_identifier(&field(1))),
                    );
                }
                tables.push(CatalogTable {
                    name: name.clone(),
                    is_view: field(2) == "true",
                    ..CatalogTable::default()
                });
            }
            let column = CatalogColumn {
                name: field(3),
                declared_type: field(4),
                is_not_null: field(5) == "false",
                ..CatalogColumn::default()
            };
            tables.last_mut().into_iter().for_each(|table| table.columns.push(column.clone()));
            if field(6) == "true" {
                with_defaults.insert(name);
            }
        }
        with_defaults
    }

    fn read_functions(&mut self, run_query: &mut TextQuery<'_>) -> Result<(), QueryError> {
        self.functions.clear();
        self.table_functions.clear();
        for row in run_query(FUNCTIONS_QUERY)? {
            let [Some(name), Some(makes_table)] = row.as_slice() else { continue };
            let list = if makes_table == "true" { &mut self.table_functions } else { &mut self.functions };
            list.insert(name.clone());
        }
        Ok(())
    }
}

fn add_constraint(table: &mut CatalogTable, kind: &str, columns: &[String], other: &str, to: &[String]) {
    if kind == "PRIMARY KEY" {
        for (place, name) in columns.iter().enumerate() {
            let key = u32::try_from(place + 1).unwrap_or(u32::MAX);
            table
                .columns
                .iter_mut()
                .filter(|column| column.name == *name)
                .for_each(|column| column.primary_key_position = key);
        }
        return;
    }
    table.foreign_keys.extend(columns.iter().enumerate().map(|(at, column)| ForeignKey {
        column: column.clone(),
        referenced_table: other.to_owned(),
        referenced_column: to.get(at).cloned(),
    }));
}

/// Returns the generated columns according to the plan of a statement on the table.
pub(super) fn generated_columns(plan: &Value) -> BTreeSet<String> {
    let columns = plan.pointer("/plans/0/table_info/columns/columns").and_then(Value::as_array);
    let computed = columns.into_iter().flatten().filter(|column| column["category"] == "GENERATED");
    computed.filter_map(|column| column["name"].as_str()).map(str::to_owned).collect()
}

/// Converts a row of [`ENUM_TYPES_QUERY`].
fn enum_type(row: Vec<Option<String>>) -> Option<EnumType> {
    let [name, labels] = <[Option<String>; 2]>::try_from(row).ok()?;
    let quoted = |label: &String| format!("'{}'", label.replace('\'', "''"));
    let labels = parse_names(&labels?).iter().map(quoted).collect::<Vec<_>>().join(", ");
    Some(EnumType { name: name?, definition: format!("ENUM({labels})") })
}

fn parse_names(json: &str) -> Vec<String> {
    serde_json::from_str(json).unwrap_or_default()
}

/// The query for comments: schema, table, column, comment.
const COMMENTS_QUERY: &str = "
    SELECT schema_name, table_name, NULL, comment FROM duckdb_tables()
    WHERE NOT internal AND database_name = current_database() AND comment IS NOT NULL
    UNION ALL SELECT schema_name, view_name, NULL, comment FROM duckdb_views()
    WHERE NOT internal AND database_name = current_database() AND comment IS NOT NULL
    UNION ALL SELECT schema_name, table_name, column_name, comment FROM duckdb_columns()
    WHERE NOT internal AND database_name = current_database() AND comment IS NOT NULL";

/// Reads the comments of tables and columns.
pub(super) fn read_comments(connection: &Connection) -> Result<Vec<SchemaComment>, QueryError> {
    let rows = query_texts(connection, COMMENTS_QUERY)?.into_iter();
    let comment = |row: Vec<Option<String>>| {
        let [schema, table, column, text] = <[Option<String>; 4]>::try_from(row).ok()?;
        Some(SchemaComment { table: qualified_name(&schema?, &table?), column, text: text? })
    };
    Ok(rows.filter_map(comment).collect())
}

fn qualified_name(schema: &str, table: &str) -> String {
    if schema.eq_ignore_ascii_case("main") { joined_name(&[table]) } else { joined_name(&[schema, table]) }
}

pub(super) fn quote_identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

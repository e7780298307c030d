//! Reads sets of questions with their queries, in the format of Spider and its successors.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Deserialize;

/// A question and the query that answers it.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct QuestionQuery {
    #[serde(rename = "db_id")]
    pub database: String,
    pub question: String,
    pub query: String,
}

/// A column of a database.
#[derive(Debug, Clone)]
pub(super) struct SetColumn {
    pub name: String,
    pub kind: &'static str,
    pub is_key: bool,
    /// The group of columns that foreign keys connect; values within a group match.
    pub group: usize,
}

/// A table of a database.
#[derive(Debug, Clone)]
pub(super) struct SetTable {
    pub name: String,
    pub columns: Vec<SetColumn>,
    /// Column, referenced table, referenced column.
    pub foreign_keys: Vec<(String, String, String)>,
}

/// A database without rows.
#[derive(Debug, Clone)]
pub(super) struct SetDatabase {
    pub tables: Vec<SetTable>,
}

impl SetDatabase {
    /// Returns the statements that create its tables.
    pub(super) fn ddl(&self) -> String {
        self.tables.iter().map(SetTable::ddl).collect()
    }

    /// Returns the table of that name.
    pub(super) fn table(&self, name: &str) -> Option<&SetTable> {
        self.tables.iter().find(|table| table.name.eq_ignore_ascii_case(name))
    }
}

impl SetTable {
    fn ddl(&self) -> String {
        let columns = self.columns.iter().map(|column| format!("{} {}", quote_name(&column.name), column.kind));
        let keys: Vec<String> =
            self.columns.iter().filter(|column| column.is_key).map(|column| quote_name(&column.name)).collect();
        let key = (!keys.is_empty()).then(|| format!("PRIMARY KEY ({})", keys.join(", ")));
        let foreign = self.foreign_keys.iter().map(|(column, table, to)| {
            format!("FOREIGN KEY ({}) REFERENCES {}({})", quote_name(column), quote_name(table), quote_name(to))
        });
        let parts: Vec<String> = columns.chain(key).chain(foreign).collect();
        format!("CREATE TABLE {} ({});\n", quote_name(&self.name), parts.join(", "))
    }
}

/// Quotes a name with double quotes.
pub(super) fn quote_name(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A database as `tables.json` describes it.
#[derive(Deserialize)]
struct DatabaseDescription {
    db_id: String,
    table_names_original: Vec<String>,
    column_names_original: Vec<(i64, String)>,
    column_types: Vec<String>,
    primary_keys: Vec<serde_json::Value>,
    foreign_keys: Vec<(usize, usize)>,
}

/// Reads the pairs of a file.
pub(super) fn read_pairs(path: &Path) -> Result<Vec<QuestionQuery>> {
    read_json(path)
}

/// Reads every database of a `tables.json`.
pub(super) fn read_databases(path: &Path) -> Result<BTreeMap<String, SetDatabase>> {
    let described: Vec<DatabaseDescription> = read_json(path)?;
    Ok(described.into_iter().map(|one| (one.db_id.clone(), to_database(&one))).collect())
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}

fn to_database(described: &DatabaseDescription) -> SetDatabase {
    let number = |value: &serde_json::Value| value.as_u64().and_then(|number| usize::try_from(number).ok());
    let keys: Vec<usize> = described
        .primary_keys
        .iter()
        .flat_map(|key| match key {
            serde_json::Value::Array(list) => list.iter().filter_map(number).collect(),
            other => number(other).into_iter().collect::<Vec<_>>(),
        })
        .collect();
    let mut groups: Vec<usize> = (0..described.column_names_original.len()).collect();
    for (from, to) in &described.foreign_keys {
        let (old, new) = (groups[*from], groups[*to]);
        groups.iter_mut().filter(|group| **group == old).for_each(|group| *group = new);
    }
    let mut tables: Vec<SetTable> = described
        .table_names_original
        .iter()
        .map(|name| SetTable { name: name.clone(), columns: Vec::new(), foreign_keys: Vec::new() })
        .collect();
    let table_of = |at: usize| usize::try_from(described.column_names_original[at].0).ok();
    let name_of = |at: usize| described.column_names_original[at].1.clone();
    for (at, group) in groups.iter().enumerate() {
        let Some(table) = table_of(at).and_then(|table| tables.get_mut(table)) else { continue };
        let is_key = keys.contains(&at);
        let kind = match described.column_types.get(at).map(String::as_str) {
            Some("number") => "NUMERIC",
            Some("time") => "DATETIME",
            Some("boolean") => "BOOLEAN",
            _ => "TEXT",
        };
        table.columns.push(SetColumn { name: name_of(at), kind, is_key, group: *group });
    }
    for (from, to) in &described.foreign_keys {
        let (Some(own), Some(other)) = (table_of(*from), table_of(*to)) else { continue };
        let other = described.table_names_original[other].clone();
        tables[own].foreign_keys.push((name_of(*from), other, name_of(*to)));
    }
    SetDatabase { tables }
}

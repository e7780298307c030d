//! Reads the tables, views, triggers and foreign key actions of a schema.

use std::collections::BTreeSet;

use rusqlite::Connection;

use crate::allow_lists::{self, NameLists};
use crate::catalog::Catalog;

/// A row of `sqlite_schema`.
pub(super) struct SchemaEntry {
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) table: String,
    pub(super) sql: String,
}

/// A foreign key whose actions change rows of the child table when rows of the parent table change.
pub(super) struct ForeignKeyCascade {
    pub(super) parent: String,
    /// The referenced columns of the parent table.
    pub(super) referenced_columns: Vec<String>,
    pub(super) child: String,
    pub(super) column: String,
    /// True if deleting a parent row deletes its child rows.
    pub(super) deletes_children: bool,
    /// True if deleting a parent row changes the column.
    pub(super) changes_on_delete: bool,
    /// True if updating a parent row changes the column.
    pub(super) changes_on_update: bool,
}

pub(super) fn read_entries(connection: &Connection) -> rusqlite::Result<Vec<SchemaEntry>> {
    let mut statement = connection.prepare(
        "SELECT type, name, tbl_name, sql FROM main.sqlite_master \
         WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY rowid",
    )?;
    let entry = |row: &rusqlite::Row<'_>| {
        Ok(SchemaEntry { kind: row.get(0)?, name: row.get(1)?, table: row.get(2)?, sql: row.get(3)? })
    };
    statement.query_map([], entry)?.collect()
}

/// Returns the shadow tables of virtual tables, in lower case.
pub(super) fn read_shadow_tables(connection: &Connection) -> rusqlite::Result<BTreeSet<String>> {
    let mut statement = connection.prepare("SELECT lower(name) FROM pragma_table_list WHERE type = 'shadow'")?;
    statement.query_map([], |row| row.get(0))?.collect()
}

pub(super) fn read_cascades(connection: &Connection, catalog: &Catalog) -> rusqlite::Result<Vec<ForeignKeyCascade>> {
    let mut statement = connection
        .prepare("SELECT \"from\", \"table\", \"to\", on_update, on_delete FROM pragma_foreign_key_list(?1)")?;
    let mut cascades = Vec::new();
    for table in catalog.tables.iter().filter(|table| !table.is_view) {
        let mut rows = statement.query([&table.name])?;
        while let Some(row) = rows.next()? {
            let (parent, to): (String, Option<String>) = (row.get(1)?, row.get(2)?);
            let (on_update, on_delete): (String, String) = (row.get(3)?, row.get(4)?);
            let changes = |action: &str| matches!(action, "SET NULL" | "SET DEFAULT");
            let keys = catalog
                .table(&parent)
                .map(|table| table.columns.iter().filter(|column| column.primary_key_position > 0));
            let keys = keys.into_iter().flatten().map(|column| column.name.clone());
            cascades.push(ForeignKeyCascade {
                referenced_columns: to.map_or_else(|| keys.collect(), |to| vec![to]),
                parent,
                child: table.name.clone(),
                column: row.get(0)?,
                deletes_children: on_delete == "CASCADE",
                changes_on_delete: changes(&on_delete),
                changes_on_update: changes(&on_update) || on_update == "CASCADE",
            });
        }
    }
    Ok(cascades)
}

/// Returns the tables and views of a database, each with its columns if the list of columns mentions it.
pub(super) fn read_tables(connection: &Connection, allow: &NameLists) -> rusqlite::Result<Vec<(String, Vec<String>)>> {
    let mut statement = connection.prepare(
        "SELECT name FROM pragma_table_list WHERE type <> 'shadow' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'",
    )?;
    let names: Vec<String> = statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    let columns = |name: &String| -> rusqlite::Result<Vec<String>> {
        if allow_lists::allowed_columns(allow, name).is_none() {
            return Ok(Vec::new());
        }
        let mut statement = connection.prepare("SELECT name FROM pragma_table_xinfo(?1) WHERE hidden <> 1")?;
        statement.query_map([name], |row| row.get(0))?.collect()
    };
    names.into_iter().map(|name| columns(&name).map(|columns| (name, columns))).collect()
}

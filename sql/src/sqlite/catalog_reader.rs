//! Reads the content of an SQLite database from its pragmas.

use rusqlite::Connection;

use crate::catalog::{Catalog, CatalogColumn, CatalogTable, ForeignKey};

/// Reads all tables and views.
pub(super) fn read_catalog(connection: &Connection) -> rusqlite::Result<Catalog> {
    let mut listed = connection.prepare(
        "SELECT name, type = 'view' FROM pragma_table_list \
         WHERE schema = 'main' AND type IN ('table', 'view', 'virtual') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name",
    )?;
    let names: Vec<(String, bool)> =
        listed.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<rusqlite::Result<_>>()?;
    let tables = names.into_iter().map(|(name, is_view)| read_table(connection, name, is_view));
    Ok(Catalog { tables: tables.collect::<rusqlite::Result<_>>()?, ..Catalog::default() })
}

/// Reads one table or view.
pub(super) fn read_table(connection: &Connection, name: String, is_view: bool) -> rusqlite::Result<CatalogTable> {
    let mut columns = connection
        .prepare_cached("SELECT name, type, \"notnull\", pk, hidden FROM pragma_table_xinfo(?1) WHERE hidden <> 1")?;
    // A view of a missing table has no columns, but it still exists.
    let columns: Vec<CatalogColumn> = columns
        .query_map([&name], |row| {
            Ok(CatalogColumn {
                name: row.get(0)?,
                declared_type: row.get(1)?,
                is_not_null: row.get(2)?,
                primary_key_position: row.get(3)?,
                is_generated: row.get::<_, i64>(4)? >= 2,
            })
        })?
        .collect::<rusqlite::Result<_>>()
        .or_else(|error| if is_view { Ok(Vec::new()) } else { Err(error) })?;
    let mut keys = connection.prepare_cached("SELECT \"from\", \"table\", \"to\" FROM pragma_foreign_key_list(?1)")?;
    let foreign_keys = keys
        .query_map([&name], |row| {
            Ok(ForeignKey { column: row.get(0)?, referenced_table: row.get(1)?, referenced_column: row.get(2)? })
        })?
        .collect::<rusqlite::Result<_>>()?;
    Ok(CatalogTable { name, is_view, columns, foreign_keys })
}

/// Returns the definitions of views and triggers.
pub(super) fn read_bodies(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection
        .prepare_cached("SELECT sql FROM sqlite_schema WHERE type IN ('view', 'trigger') AND sql IS NOT NULL")?;
    statement.query_map([], |row| row.get(0))?.collect()
}

/// Returns the names and definitions of tables.
pub(super) fn read_table_definitions(connection: &Connection) -> rusqlite::Result<Vec<(String, String)>> {
    let mut statement =
        connection.prepare_cached("SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND sql IS NOT NULL")?;
    statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
}

/// Returns the names and definitions of the tables that may replace rows.
pub(super) fn read_replacing_definitions(connection: &Connection) -> rusqlite::Result<Vec<(String, String)>> {
    let mut statement = connection
        .prepare_cached("SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND sql LIKE '%conflict%replace%'")?;
    statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
}

/// Reports whether the schema has a trigger or a virtual table. A virtual table has no root page.
pub(super) fn has_derived_rows(connection: &Connection) -> rusqlite::Result<bool> {
    let mut statement = connection.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'trigger' OR type = 'table' AND rootpage = 0) \
         OR EXISTS (SELECT 1 FROM sqlite_temp_schema)",
    )?;
    statement.query_row([], |row| row.get(0))
}

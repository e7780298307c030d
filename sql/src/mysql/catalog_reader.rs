//! Reads the content of a database from `information_schema`: tables, views and their definitions, keys, triggers and
//! routines.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::builtin_allowlist;
use super::session::{Session, SessionError};
use super::statement_form;
use crate::catalog::{Catalog, CatalogColumn, CatalogTable, ForeignKey, SchemaComment};
use crate::engine::Action;

/// The content of a database.
#[derive(Debug, Default)]
pub(super) struct DatabaseContent {
    pub(super) catalog: Catalog,
    /// The columns of the keys of each table without NULL. Each key identifies a row.
    pub(super) keys: BTreeMap<String, Vec<Vec<String>>>,
    /// The definitions of the views, by name.
    pub(super) views: BTreeMap<String, String>,
    /// The generated columns of each table.
    pub(super) generated: BTreeMap<String, Vec<GeneratedColumn>>,
    /// The triggers of each table: the event in upper case, and the name.
    pub(super) triggers: BTreeMap<String, Vec<(String, String)>>,
    /// The names of the stored routines, in lower case.
    pub(super) routines: BTreeSet<String>,
    /// The names of all functions, in lower case.
    pub(super) functions: BTreeSet<String>,
    /// The keys whose changes change rows of other tables.
    pub(super) cascades: Vec<Cascade>,
    /// The tables without transactions: a rollback does not undo the changes of their rows.
    pub(super) lasting_tables: BTreeSet<String>,
    /// True if a rollback does not undo the use of a counter, such as that of `AUTO_INCREMENT`.
    pub(super) has_counters: bool,
}

/// A generated column.
#[derive(Debug)]
pub(super) struct GeneratedColumn {
    pub(super) name: String,
    /// The names in the expression of the generated column.
    pub(super) sources: BTreeSet<String>,
    /// The functions that the expression of the generated column calls.
    pub(super) calls: BTreeSet<Action>,
}

/// A foreign key that changes rows of the referencing table.
#[derive(Debug)]
pub(super) struct Cascade {
    pub(super) referenced: String,
    pub(super) referencing: String,
    /// The referencing column.
    pub(super) column: String,
    pub(super) on_delete: bool,
    pub(super) on_update: bool,
}

impl DatabaseContent {
    /// Reads everything.
    pub(super) fn read(session: &mut Session, deadline: Instant) -> Result<Self, SessionError> {
        let mut content = Self::default();
        content.read_tables(session, deadline)?;
        content.read_columns(session, deadline)?;
        content.read_keys(session, deadline)?;
        content.read_programs(session, deadline)?;
        content.functions = builtin_allowlist::harmless_functions().map(str::to_owned).collect();
        content.functions.extend(content.routines.iter().cloned());
        Ok(content)
    }

    /// Reads the comments of tables and columns.
    pub(super) fn read_comments(session: &mut Session, deadline: Instant) -> Result<Vec<SchemaComment>, SessionError> {
        // The server itself stores the word `VIEW` as the comment of a view.
        let query = "SELECT TABLE_NAME, '', TABLE_COMMENT FROM information_schema.TABLES \
            WHERE TABLE_SCHEMA = database() AND TABLE_TYPE = 'BASE TABLE' AND TABLE_COMMENT <> '' \
            UNION ALL SELECT TABLE_NAME, COLUMN_NAME, COLUMN_COMMENT FROM information_schema.COLUMNS \
            WHERE TABLE_SCHEMA = database() AND COLUMN_COMMENT <> ''";
        let rows = session.query_texts(query, deadline)?;
        let comment = |row: &Vec<Option<String>>| {
            let [table, column, text] = fields(row);
            let column = Some(column.to_owned()).filter(|column| !column.is_empty());
            SchemaComment { table: table.to_owned(), column, text: text.to_owned() }
        };
        Ok(rows.iter().map(comment).collect())
    }

    fn read_tables(&mut self, session: &mut Session, deadline: Instant) -> Result<(), SessionError> {
        let query = "SELECT TABLE_NAME, TABLE_TYPE, ENGINE, AUTO_INCREMENT FROM information_schema.TABLES \
            WHERE TABLE_SCHEMA = database() ORDER BY TABLE_NAME";
        for row in session.query_texts(query, deadline)? {
            let [name, kind, engine, counter] = fields(&row);
            self.has_counters |= !counter.is_empty() || kind == "SEQUENCE";
            if kind == "SEQUENCE" {
                continue;
            }
            let is_view = kind.ends_with("VIEW");
            if !is_view && !engine.eq_ignore_ascii_case("InnoDB") {
                self.lasting_tables.insert(name.to_owned());
            }
            self.catalog.tables.push(CatalogTable { name: name.to_owned(), is_view, ..CatalogTable::default() });
        }
        if self.catalog.tables.iter().any(|table| table.is_view) {
            let query =
                "SELECT TABLE_NAME, VIEW_DEFINITION FROM information_schema.VIEWS WHERE TABLE_SCHEMA = database()";
            for row in session.query_texts(query, deadline)? {
                let [name, definition] = fields(&row);
                self.views.insert(name.to_owned(), definition.to_owned());
            }
        }
        Ok(())
    }

    fn read_columns(&mut self, session: &mut Session, deadline: Instant) -> Result<(), SessionError> {
        let query = "SELECT TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, GENERATION_EXPRESSION \
            FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = database() ORDER BY TABLE_NAME, ORDINAL_POSITION";
        for row in session.query_texts(query, deadline)? {
            let [table, column, declared_type, is_nullable, expression] = fields(&row);
            if !expression.is_empty() {
                let (calls, sources) = statement_form::expression_parts(expression);
                let generated = GeneratedColumn { name: column.to_owned(), sources, calls };
                self.generated.entry(table.to_owned()).or_default().push(generated);
            }
            if let Some(table) = self.table_mut(table) {
                table.columns.push(CatalogColumn {
                    name: column.to_owned(),
                    declared_type: declared_type.to_owned(),
                    is_not_null: is_nullable == "NO",
                    primary_key_position: 0,
                    is_generated: !expression.is_empty(),
                });
            }
        }
        Ok(())
    }

    fn read_keys(&mut self, session: &mut Session, deadline: Instant) -> Result<(), SessionError> {
        let query = "SELECT TABLE_NAME, COLUMN_NAME, CONSTRAINT_NAME, ORDINAL_POSITION, REFERENCED_TABLE_NAME, \
            REFERENCED_COLUMN_NAME FROM information_schema.KEY_COLUMN_USAGE WHERE TABLE_SCHEMA = database() \
            ORDER BY TABLE_NAME, CONSTRAINT_NAME, ORDINAL_POSITION";
        let mut references: Vec<(String, String, String, String)> = Vec::new();
        let mut keys: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
        for row in session.query_texts(query, deadline)? {
            let [name, column, constraint, position, referenced, referenced_column] = fields(&row);
            let Some(table) = self.table_mut(name) else { continue };
            if constraint == "PRIMARY"
                && let Some(column) = table.columns.iter_mut().find(|known| known.name == column)
            {
                column.primary_key_position = position.parse().unwrap_or_default();
            }
            if referenced.is_empty() {
                keys.entry((name.to_owned(), constraint.to_owned())).or_default().push(column.to_owned());
            } else {
                table.foreign_keys.push(ForeignKey {
                    column: column.to_owned(),
                    referenced_table: referenced.to_owned(),
                    referenced_column: Some(referenced_column.to_owned()),
                });
                references.push((name.to_owned(), constraint.to_owned(), column.to_owned(), referenced.to_owned()));
            }
        }
        for ((name, _), columns) in keys {
            let table = self.table(&name);
            let is_not_null =
                |column: &String| table.and_then(|table| table.column(column)).is_some_and(|column| column.is_not_null);
            if columns.iter().all(is_not_null) {
                self.keys.entry(name).or_default().push(columns);
            }
        }
        if references.is_empty() {
            return Ok(());
        }
        let query = "SELECT TABLE_NAME, CONSTRAINT_NAME, DELETE_RULE, UPDATE_RULE \
            FROM information_schema.REFERENTIAL_CONSTRAINTS WHERE CONSTRAINT_SCHEMA = database()";
        for row in session.query_texts(query, deadline)? {
            let [table, constraint, on_delete, on_update] = fields(&row);
            let changes = |rule: &str| matches!(rule, "CASCADE" | "SET NULL" | "SET DEFAULT");
            if !changes(on_delete) && !changes(on_update) {
                continue;
            }
            let columns = references.iter().filter(|(name, key, ..)| name == table && key == constraint);
            self.cascades.extend(columns.map(|(referencing, _, column, referenced)| Cascade {
                referenced: referenced.clone(),
                referencing: referencing.clone(),
                column: column.clone(),
                on_delete: changes(on_delete),
                on_update: changes(on_update),
            }));
        }
        Ok(())
    }

    fn read_programs(&mut self, session: &mut Session, deadline: Instant) -> Result<(), SessionError> {
        let query = "SELECT EVENT_OBJECT_TABLE, EVENT_MANIPULATION, TRIGGER_NAME FROM information_schema.TRIGGERS \
            WHERE TRIGGER_SCHEMA = database()";
        for row in session.query_texts(query, deadline)? {
            let [table, event, name] = fields(&row);
            self.triggers.entry(table.to_owned()).or_default().push((event.to_ascii_uppercase(), name.to_owned()));
        }
        let query = "SELECT ROUTINE_NAME FROM information_schema.ROUTINES WHERE ROUTINE_SCHEMA = database()";
        for row in session.query_texts(query, deadline)? {
            let [name] = fields(&row);
            self.routines.insert(name.to_lowercase());
        }
        Ok(())
    }

    /// Returns the table or view with exactly this name: names are case-sensitive in this engine.
    pub(super) fn table(&self, name: &str) -> Option<&CatalogTable> {
        self.catalog.tables.iter().find(|table| table.name == name)
    }

    fn table_mut(&mut self, name: &str) -> Option<&mut CatalogTable> {
        self.catalog.tables.iter_mut().find(|table| table.name == name)
    }

    /// Reports whether a trigger has this name, in lower case. A change of rows calls its triggers by name.
    pub(super) fn has_trigger(&self, name: &str) -> bool {
        self.triggers.values().flatten().any(|(_, trigger)| trigger.to_lowercase() == name)
    }

    /// Returns the generated column with this name.
    pub(super) fn generated_column(&self, table: &str, column: &str) -> Option<&GeneratedColumn> {
        self.generated.get(table)?.iter().find(|generated| generated.name.eq_ignore_ascii_case(column))
    }
}

/// Returns the first fields of a row; a missing field or NULL is empty.
fn fields<const N: usize>(row: &[Option<String>]) -> [&str; N] {
    std::array::from_fn(|at| row.get(at).and_then(Option::as_deref).unwrap_or_default())
}

pub(super) fn quote_identifier(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

//! Checks statements against the lists of a request. It prepares them in copies of the schema where nothing off the
//! lists exists.
//!
//! There are two copies, both without rows. In the first copy, tables and views off the list are missing. In the second
//! copy, columns off the list are renamed as well: a statement that names such a column cannot be prepared there, and a
//! statement that uses it without a name (`*`, `NATURAL JOIN`) reports the new name or has another program. The check
//! therefore finds a name however the statement uses it: through a view, a trigger, `USING`, `IN`, or a page by page
//! copy.
//!
//! SQLite's internal tables exist in every database; under a list, no text may name them.

use std::collections::BTreeSet;
use std::time::Instant;

use proctor_core::sql::{Allow, Dialect, Limits, Policy, SqlCode};
use rusqlite::Connection;

use super::definitions::{behind_as, contents, contents_begin, is_computed_of, referenced, solid};
use super::program::Instruction;
use super::watch::Mode;
use super::{OURS, Sqlite, functions, messages};
use crate::engine::{Action, Bound, Engine as _, Refusal, RunOn};
use crate::lists;
use crate::stage::is_limit;
use crate::text::{self, Piece};

/// The prefix of the new names of hidden columns.
const PREFIX: &str = "proctor_off_list_";

/// Copies of an engine's schema that contain only what the lists of a request allow.
pub(super) struct Restricted {
    allow: Allow,
    /// A copy with the tables and views on the list.
    listed: Sqlite,
    /// The same copy with hidden columns renamed; `None` if no column is hidden.
    renamed: Option<Sqlite>,
    hidden: Vec<Hidden>,
    /// The shadow tables that are not on the list of tables, in lower case.
    shadows: BTreeSet<String>,
    cascades: Vec<Cascade>,
}

/// A column that is off the list.
#[derive(Debug, Clone)]
struct Hidden {
    table: String,
    column: String,
    /// The name of the column in the second copy.
    name: String,
}

/// A row of `sqlite_schema`.
struct Entry {
    kind: String,
    name: String,
    table: String,
    sql: String,
}

/// A foreign key whose actions change rows of the child table when rows of the parent table change.
struct Cascade {
    parent: String,
    /// The referenced columns of the parent table.
    to: Vec<String>,
    child: String,
    column: String,
    /// True if deleting a parent row deletes its child rows.
    removes: bool,
    /// True if deleting a parent row changes the column.
    changes_on_delete: bool,
    /// True if updating a parent row changes the column.
    changes_on_update: bool,
}

/// The use of names by a statement in one of the copies.
struct Used {
    bounds: Vec<Bound>,
    programs: Vec<Vec<Instruction>>,
    /// The tables and views after the statement, each with its columns if the list of columns mentions it.
    tables: Vec<(String, Vec<String>)>,
}

impl Restricted {
    /// Copies the part of an engine's schema that the lists allow.
    pub(super) fn open(source: &Sqlite, allow: &Allow, limits: &Limits) -> Result<Self, Refusal> {
        source.watch.begin(Mode::Ours, u64::MAX, Instant::now() + OURS);
        let failed = |error: rusqlite::Error| messages::failed(&error);
        let all = entries(&source.connection).map_err(failed)?;
        let shadows = shadows(&source.connection).map_err(failed)?;
        let cascades = cascades(source).map_err(failed)?;
        let hidden = hidden(source, allow, &all);
        let forbids = |sql: &str| internal(sql, source, allow, &BTreeSet::new()).is_some();
        // A trigger that names an internal table cannot be checked, so its table is left out of the copies.
        let broken: BTreeSet<&str> =
            all.iter().filter(|one| one.kind == "trigger" && forbids(&one.sql)).map(|one| one.table.as_str()).collect();
        let is_listed = |one: &&Entry| {
            let is_plain = lists::allow_table(allow, &one.table) && !shadows.contains(&one.name.to_ascii_lowercase());
            let points_away = contents(&one.sql).iter().any(|content| !lists::allow_table(allow, content));
            let shows_metadata = one.kind == "view" && forbids(&one.sql);
            is_plain && !(points_away || shows_metadata || broken.contains(one.table.as_str()))
        };
        let entries: Vec<&Entry> = all.iter().filter(is_listed).collect();
        let listed = copy(source, &entries, allow, limits, &[])?;
        let renamed = if hidden.is_empty() { None } else { Some(copy(source, &entries, allow, limits, &hidden)?) };
        Ok(Self {
            allow: allow.clone(),
            listed,
            renamed,
            hidden,
            shadows: shadows.into_iter().filter(|name| !lists::allow_table(allow, name)).collect(),
            cascades,
        })
    }

    /// Reports whether the copies were made for these lists.
    pub(super) fn is_for(&self, allow: &Allow) -> bool {
        self.allow == *allow
    }

    /// Checks a statement against the lists; `bound` is what it does in the whole schema.
    pub(super) fn check(&mut self, sql: &str, bound: &Bound, on: RunOn<'_>) -> Result<(), Refusal> {
        if let Some(name) = internal(sql, &self.listed, &self.allow, &self.shadows) {
            let message = format!("`{name}` shows objects outside the lists");
            return Err(Refusal { subject: Some(name), ..Refusal::new(SqlCode::MetadataRefused, message) });
        }
        if sql.to_ascii_lowercase().contains(PREFIX) {
            return Err(Refusal::new(SqlCode::ColumnRefused, format!("names that begin with `{PREFIX}` are reserved")));
        }
        self.check_cascades(bound)?;
        self.check_form(sql, bound)?;
        let probes = self.probes(sql, bound)?;
        let listed = uses(&mut self.listed, sql, bound, &probes, &self.allow, on).map_err(off_list)?;
        self.check_tables(&listed)?;
        let Some(renamed) = &mut self.renamed else { return Ok(()) };
        let used = uses(renamed, sql, bound, &probes, &self.allow, on).map_err(|refusal| self.real_names(refusal))?;
        self.check_columns(&listed, &used)
    }

    /// Repeats a change of the schema in the copies. Returns whether that succeeded.
    pub(super) fn follow(&mut self, sql: &str) -> bool {
        let done = |engine: &mut Sqlite| {
            engine.watch.begin(Mode::Ours, u64::MAX, Instant::now() + OURS);
            engine.connection.execute_batch(sql).is_ok() && engine.refresh().is_ok()
        };
        // If columns are listed, a new table may have columns that must be hidden.
        self.allow.columns.is_empty() && done(&mut self.listed)
    }

    /// Checks the changes that foreign key actions make in other tables.
    fn check_cascades(&self, bound: &Bound) -> Result<(), Refusal> {
        let mut reached: BTreeSet<(String, Option<String>)> = BTreeSet::new();
        let start = bound.actions.iter().flat_map(|action| match action {
            Action::Delete(table) => vec![(table.clone(), None)],
            Action::Update { table, column } if column == "*" => vec![(table.clone(), None)],
            Action::Update { table, column } => vec![(table.clone(), Some(column.clone()))],
            _ => Vec::new(),
        });
        let mut open: Vec<(String, Option<String>)> = start.collect();
        while let Some((table, column)) = open.pop() {
            if !reached.insert((table.to_ascii_lowercase(), column.clone())) {
                continue;
            }
            for edge in self.cascades.iter().filter(|edge| edge.parent.eq_ignore_ascii_case(&table)) {
                let is_pointed_at = |column: &String| edge.to.iter().any(|to| to.eq_ignore_ascii_case(column));
                let is_changed = match &column {
                    None => edge.changes_on_delete,
                    Some(column) => edge.changes_on_update && is_pointed_at(column),
                };
                let is_removed = column.is_none() && edge.removes;
                if !is_removed && !is_changed {
                    continue;
                }
                if !lists::allow_table(&self.allow, &edge.child) {
                    let message = format!("a foreign key changes rows of `{}`, which is not on the list", edge.child);
                    return Err(refused(SqlCode::TableRefused, message, &edge.child));
                }
                if is_changed && !lists::allow_column(&self.allow, &edge.child, &edge.column) {
                    let name = format!("{}.{}", edge.child, edge.column);
                    let message = format!("a foreign key changes the column `{name}`, which is not on the list");
                    return Err(refused(SqlCode::ColumnRefused, message, &name));
                }
                open.push((edge.child.clone(), is_changed.then(|| edge.column.clone())));
            }
        }
        Ok(())
    }

    /// Checks the names in a change of the schema that SQLite resolves only later: tables that foreign keys refer to,
    /// and content tables of virtual tables.
    fn check_form(&self, sql: &str, bound: &Bound) -> Result<(), Refusal> {
        let mut changes = bound.schema_changes().peekable();
        if changes.peek().is_none() {
            return Ok(());
        }
        let names = referenced(sql).into_iter().chain(contents(sql));
        for name in names {
            if !lists::allow_table(&self.allow, &name) {
                let message = format!("it refers to `{name}`, which is not on the list");
                return Err(refused(SqlCode::TableRefused, message, &name));
            }
        }
        let words: Vec<String> = solid(sql).into_iter().map(|(_, range)| sql[range].to_ascii_lowercase()).collect();
        let renames = words.windows(2).any(|pair| pair == ["rename", "to"]);
        match changes.find(|(what, name)| *what == "alter table" && lists::columns_of(&self.allow, name).is_some()) {
            Some((_, name)) if renames => {
                let message = format!("it renames `{name}`, and the list of columns would no longer hold for it");
                Err(refused(SqlCode::TableRefused, message, name))
            }
            _ => Ok(()),
        }
    }

    /// Returns statements that make SQLite resolve the names in the body of a new view or trigger.
    fn probes(&self, sql: &str, bound: &Bound) -> Result<Vec<String>, Refusal> {
        let mut probes = Vec::new();
        for (what, name) in bound.schema_changes() {
            match what {
                "create view" | "create temporary view" => {
                    probes.push(format!("SELECT * FROM {}", self.listed.quoted(name)));
                }
                "create trigger" | "create temporary trigger" => probes.push(self.firing(sql).ok_or_else(|| {
                    let message = format!("the trigger `{name}` belongs to a table that is not on the list");
                    refused(SqlCode::TableRefused, message, name)
                })?),
                _ => {}
            }
        }
        Ok(probes)
    }

    /// Returns a statement that fires the trigger that a text creates.
    fn firing(&self, sql: &str) -> Option<String> {
        let solid = solid(sql);
        let word = |at: usize| solid.get(at).map_or("", |(_, range)| &sql[range.clone()]);
        let is_word = |at: usize, words: &[&str]| {
            solid.get(at).is_some_and(|(piece, _)| *piece == Piece::Word)
                && words.iter().any(|one| word(at).eq_ignore_ascii_case(one))
        };
        let event = (0..solid.len()).find(|at| is_word(*at, &["delete", "insert", "update"]))?;
        let on = (event..solid.len()).find(|at| is_word(*at, &["on"]))?;
        let name = if word(on + 2) == "." { on + 3 } else { on + 1 };
        let name = text::unquoted(word(name));
        let table = self.listed.catalog.table(&name)?;
        let quoted = self.listed.quoted(&name);
        Some(match word(event).to_ascii_lowercase().as_str() {
            "delete" => format!("DELETE FROM {quoted}"),
            "insert" => format!("INSERT INTO {quoted} DEFAULT VALUES"),
            _ => {
                let of = is_word(event + 1, &["of"]).then(|| text::unquoted(word(event + 2)));
                let is_free = |column: &&crate::catalog::Column| {
                    !column.is_generated && lists::allow_column(&self.allow, &table.name, &column.name)
                };
                let column = of.or_else(|| Some(table.columns.iter().find(is_free)?.name.clone()))?;
                format!("UPDATE {quoted} SET {} = NULL", self.listed.quoted(&column))
            }
        })
    }

    /// Checks the tables and columns that exist after a change of the schema.
    fn check_tables(&self, used: &Used) -> Result<(), Refusal> {
        for (table, columns) in &used.tables {
            if !lists::allow_table(&self.allow, table) {
                let message = format!("the table `{table}` is not on the list");
                return Err(refused(SqlCode::TableRefused, message, table));
            }
            let was_there = |column: &String| {
                let is_it = |hidden: &&Hidden| {
                    hidden.table.eq_ignore_ascii_case(table) && hidden.column.eq_ignore_ascii_case(column)
                };
                self.hidden.iter().any(|hidden| is_it(&hidden))
            };
            let is_new = |column: &&String| !lists::allow_column(&self.allow, table, column) && !was_there(column);
            if let Some(column) = columns.iter().find(is_new) {
                let name = format!("{table}.{column}");
                return Err(refused(SqlCode::ColumnRefused, format!("the column `{name}` is not on the list"), &name));
            }
        }
        Ok(())
    }

    /// Checks that hidden columns have no effect: none is reported, and both copies run the same program.
    fn check_columns(&self, listed: &Used, renamed: &Used) -> Result<(), Refusal> {
        let of_actions = renamed.bounds.iter().flat_map(|bound| &bound.actions).filter_map(|action| match action {
            Action::Read { column: Some(column), .. } | Action::Update { column, .. } => Some(column.as_str()),
            _ => None,
        });
        let of_result = renamed.bounds.iter().flat_map(|bound| &bound.columns).map(|column| column.name.as_str());
        let mut names = of_actions.chain(of_result);
        if let Some(hidden) = names.find_map(|name| self.hidden.iter().find(|hidden| name.contains(&hidden.name))) {
            let name = format!("{}.{}", hidden.table, hidden.column);
            return Err(refused(SqlCode::ColumnRefused, format!("the column `{name}` is not on the list"), &name));
        }
        let same = |one: &Vec<Instruction>, other: &Vec<Instruction>| {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| self.are_same(one, other))
        };
        let are_same = listed.programs.len() == renamed.programs.len()
            && listed.programs.iter().zip(&renamed.programs).all(|(one, other)| same(one, other));
        if are_same {
            return Ok(());
        }
        Err(Refusal::new(
            SqlCode::ColumnRefused,
            "it depends on columns that are not on the list, as `NATURAL JOIN` does",
        ))
    }

    fn are_same(&self, one: &Instruction, other: &Instruction) -> bool {
        // The schema version and the handles of virtual tables differ between any two databases.
        let differs = ["Transaction", "VOpen", "VUpdate", "VBegin", "VCreate", "VDestroy"];
        one.opcode == other.opcode
            && (differs.contains(&one.opcode.as_str())
                || (one.operands == other.operands && one.p5 == other.p5 && one.p4 == self.real(&other.p4)))
    }

    /// Replaces the new names of hidden columns in a text by their original names.
    fn real(&self, text: &str) -> String {
        if !text.contains(PREFIX) {
            return text.to_owned();
        }
        // The longest number comes first, so that no name matches the beginning of a longer one.
        self.hidden.iter().rev().fold(text.to_owned(), |text, hidden| text.replace(&hidden.name, &hidden.column))
    }

    fn real_names(&self, refusal: Refusal) -> Refusal {
        let refusal = Refusal {
            message: self.real(&refusal.message),
            subject: refusal.subject.as_deref().map(|subject| self.real(subject)),
            ..refusal
        };
        off_list(refusal)
    }
}

fn refused(code: SqlCode, message: String, name: &str) -> Refusal {
    Refusal { subject: Some(name.to_owned()), ..Refusal::new(code, message) }
}

/// Converts an error of a copy to a finding about the lists.
fn off_list(refusal: Refusal) -> Refusal {
    if refusal.code.is_ours() || is_limit(refusal.code) {
        return refusal;
    }
    let code = match refusal.code {
        SqlCode::UnknownColumn | SqlCode::AmbiguousColumn | SqlCode::ColumnCount => SqlCode::ColumnRefused,
        _ => SqlCode::TableRefused,
    };
    let message = match &refusal.subject {
        Some(subject) => format!("it needs `{subject}`, which is not on the lists"),
        None => format!("without what is not on the lists, SQLite refuses it: {}", refusal.message),
    };
    Refusal { code, message, ..refusal }
}

/// Prepares a statement and its probes in a copy, and undoes the effects.
fn uses(
    engine: &mut Sqlite,
    sql: &str,
    bound: &Bound,
    probes: &[String],
    allow: &Allow,
    on: RunOn<'_>,
) -> Result<Used, Refusal> {
    let mut used =
        Used { bounds: vec![engine.prepared(sql, on)?], programs: vec![engine.program(sql, on)?], tables: Vec::new() };
    if bound.schema_changes().next().is_none() {
        return Ok(used);
    }
    engine.begin()?;
    let outcome = made(engine, sql, probes, allow, on, &mut used);
    engine.rollback()?;
    outcome.map(|()| used)
}

/// Executes a change of the schema in a copy, and records what exists afterwards.
fn made(
    engine: &mut Sqlite,
    sql: &str,
    probes: &[String],
    allow: &Allow,
    on: RunOn<'_>,
    used: &mut Used,
) -> Result<(), Refusal> {
    engine.stepped(sql, Policy::Migrate, on)?;
    for probe in probes {
        used.bounds.push(engine.prepared(probe, on)?);
        used.programs.push(engine.program(probe, on)?);
    }
    engine.watch.begin(Mode::Ours, u64::MAX, Instant::now() + OURS);
    used.tables = tables(&engine.connection, allow).map_err(|error| messages::failed(&error))?;
    Ok(())
}

/// Returns the tables and views of a database, each with its columns if the list of columns mentions it.
fn tables(connection: &Connection, allow: &Allow) -> rusqlite::Result<Vec<(String, Vec<String>)>> {
    let mut statement = connection.prepare(
        "SELECT name FROM pragma_table_list WHERE type <> 'shadow' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'",
    )?;
    let names: Vec<String> = statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    let columns = |name: &String| -> rusqlite::Result<Vec<String>> {
        if lists::columns_of(allow, name).is_none() {
            return Ok(Vec::new());
        }
        let mut statement = connection.prepare("SELECT name FROM pragma_table_xinfo(?1) WHERE hidden <> 1")?;
        statement.query_map([name], |row| row.get(0))?.collect()
    };
    names.into_iter().map(|name| columns(&name).map(|columns| (name, columns))).collect()
}

fn entries(connection: &Connection) -> rusqlite::Result<Vec<Entry>> {
    let mut statement = connection.prepare(
        "SELECT type, name, tbl_name, sql FROM main.sqlite_master \
         WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY rowid",
    )?;
    let entry = |row: &rusqlite::Row<'_>| {
        Ok(Entry { kind: row.get(0)?, name: row.get(1)?, table: row.get(2)?, sql: row.get(3)? })
    };
    statement.query_map([], entry)?.collect()
}

/// Returns the shadow tables of virtual tables, in lower case.
fn shadows(connection: &Connection) -> rusqlite::Result<BTreeSet<String>> {
    let mut statement = connection.prepare("SELECT lower(name) FROM pragma_table_list WHERE type = 'shadow'")?;
    statement.query_map([], |row| row.get(0))?.collect()
}

fn cascades(source: &Sqlite) -> rusqlite::Result<Vec<Cascade>> {
    let mut statement = source
        .connection
        .prepare("SELECT \"from\", \"table\", \"to\", on_update, on_delete FROM pragma_foreign_key_list(?1)")?;
    let mut cascades = Vec::new();
    for table in source.catalog.tables.iter().filter(|table| !table.is_view) {
        let mut rows = statement.query([&table.name])?;
        while let Some(row) = rows.next()? {
            let (parent, to): (String, Option<String>) = (row.get(1)?, row.get(2)?);
            let (on_update, on_delete): (String, String) = (row.get(3)?, row.get(4)?);
            let changes = |action: &str| matches!(action, "SET NULL" | "SET DEFAULT");
            let keys = source.catalog.table(&parent).map(|table| table.columns.iter().filter(|column| column.key > 0));
            let keys = keys.into_iter().flatten().map(|column| column.name.clone());
            cascades.push(Cascade {
                to: to.map_or_else(|| keys.collect(), |to| vec![to]),
                parent,
                child: table.name.clone(),
                column: row.get(0)?,
                removes: on_delete == "CASCADE",
                changes_on_delete: changes(&on_delete),
                changes_on_update: changes(&on_update) || on_update == "CASCADE",
            });
        }
    }
    Ok(cascades)
}

/// Creates a database in memory from the given entries. Hidden columns are renamed before views and triggers are
/// created, so that their bodies keep the original names.
fn copy(
    source: &Sqlite,
    entries: &[&Entry],
    allow: &Allow,
    limits: &Limits,
    hidden: &[Hidden],
) -> Result<Sqlite, Refusal> {
    let failed = |error: rusqlite::Error| messages::failed(&error);
    let mut engine = Sqlite::over(Connection::open_in_memory().map_err(failed)?, limits)?;
    engine.watch.begin(Mode::Ours, u64::MAX, Instant::now() + OURS);
    let of = |kind: &'static str| entries.iter().filter(move |entry| entry.kind == kind);
    let is_virtual = |entry: &Entry| contents_begin(&solid(&entry.sql), &entry.sql).is_some();
    // An entry that cannot be created is missing in the copy; statements that need it are refused.
    let make = |engine: &Sqlite, sql: &str| engine.connection.execute_batch(sql);
    for entry in of("table") {
        let of_table: Vec<&Hidden> = hidden.iter().filter(|one| one.table.eq_ignore_ascii_case(&entry.name)).collect();
        let sql = if is_virtual(entry) { with_names(&entry.sql, &of_table) } else { entry.sql.clone() };
        let _ = make(&engine, &sql);
    }
    of("index").for_each(|entry| drop(make(&engine, &entry.sql)));
    for one in hidden {
        let is_renamed = of("table").any(|entry| entry.name.eq_ignore_ascii_case(&one.table) && !is_virtual(entry));
        if is_renamed {
            let rename = |one: &Hidden| {
                let (table, column) = (engine.quoted(&one.table), engine.quoted(&one.column));
                format!("ALTER TABLE {table} RENAME COLUMN {column} TO {}", one.name)
            };
            make(&engine, &rename(one)).map_err(failed)?;
        }
    }
    for entry in of("view") {
        let named = lists::columns_of(allow, &entry.name).and_then(|_| source.catalog.table(&entry.name));
        let _ = make(&engine, &entry.sql);
        let Some(view) = named else { continue };
        // The list of columns also restricts the columns of a view.
        let name = |column: &crate::catalog::Column| {
            let is_it = |one: &&Hidden| {
                one.table.eq_ignore_ascii_case(&view.name) && one.column.eq_ignore_ascii_case(&column.name)
            };
            engine.quoted(hidden.iter().find(is_it).map_or(&column.name, |one| &one.name))
        };
        let columns = view.columns.iter().map(name).collect::<Vec<_>>().join(", ");
        let (view, inner) = (engine.quoted(&view.name), engine.quoted(&format!("{PREFIX}{}", view.name)));
        let inner_sql = format!("CREATE VIEW {inner} AS {}", behind_as(&entry.sql).unwrap_or("SELECT NULL"));
        let outer_sql = format!("CREATE VIEW {view}({columns}) AS SELECT * FROM {inner}");
        let _ = make(&engine, &format!("DROP VIEW {view}; {inner_sql}; {outer_sql}"));
    }
    // Without its trigger, a write of the table would look harmless, so the table is dropped.
    for entry in of("trigger").filter(|entry| make(&engine, &entry.sql).is_err()) {
        let table = engine.quoted(&entry.table);
        let _ = make(&engine, &format!("DROP TABLE {table}")).or_else(|_| make(&engine, &format!("DROP VIEW {table}")));
    }
    engine.refresh()?;
    engine.trust(false)?;
    Ok(engine)
}

/// Returns the columns that are off the list, including generated columns that are computed from them.
fn hidden(source: &Sqlite, allow: &Allow, entries: &[Entry]) -> Vec<Hidden> {
    let mut found: Vec<(String, String)> = Vec::new();
    for table in &source.catalog.tables {
        if lists::columns_of(allow, &table.name).is_none() || !lists::allow_table(allow, &table.name) {
            continue;
        }
        let mut off: BTreeSet<String> = BTreeSet::new();
        let sql = entries.iter().find(|one| one.kind == "table" && one.name == table.name).map(|one| one.sql.as_str());
        loop {
            let is_off = |column: &&crate::catalog::Column| {
                !lists::allow_column(allow, &table.name, &column.name)
                    || (column.is_generated && sql.is_none_or(|sql| is_computed_of(sql, &column.name, &off)))
            };
            let columns = table.columns.iter().filter(is_off).map(|column| column.name.to_ascii_lowercase());
            let now: BTreeSet<String> = columns.collect();
            if now == off {
                break;
            }
            off = now;
        }
        let columns = table.columns.iter().filter(|column| off.contains(&column.name.to_ascii_lowercase()));
        found.extend(columns.map(|column| (table.name.clone(), column.name.clone())));
    }
    let of = |(at, (table, column))| Hidden { table, column, name: format!("{PREFIX}{at}") };
    found.into_iter().enumerate().map(of).collect()
}

/// Returns the first name in a text that belongs to an internal table, a pragma or a shadow table.
fn internal(sql: &str, engine: &Sqlite, allow: &Allow, shadows: &BTreeSet<String>) -> Option<String> {
    let is_listed = |name: &str| lists::hold(&allow.tables, name);
    let is_module = |name: &str| {
        engine.modules.contains(name) && !functions::is_pure_table(name) && !functions::is_harmless_module(name)
    };
    let is_internal = |name: &String| {
        let is_own = name.starts_with("sqlite_") && !engine.functions.contains(name);
        is_own || name.starts_with("pragma_") || is_module(name) || shadows.contains(name)
    };
    text::names(sql, Dialect::Sqlite).into_iter().find(|name| is_internal(name) && !is_listed(name))
}

/// Returns the definition of a virtual table with some of its columns renamed.
fn with_names(sql: &str, hidden: &[&Hidden]) -> String {
    let solid = solid(sql);
    let word = |at: usize| solid.get(at).map_or("", |(_, range)| &sql[range.clone()]);
    let mut text = sql.to_owned();
    for at in (1..solid.len()).rev().filter(|at| matches!(word(at - 1), "(" | ",")) {
        let name = text::unquoted(word(at));
        if let Some(one) = hidden.iter().find(|one| one.column.eq_ignore_ascii_case(&name)) {
            text.replace_range(solid[at].1.clone(), &one.name);
        }
    }
    text
}

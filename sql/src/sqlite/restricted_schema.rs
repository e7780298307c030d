//! Checks statements against the lists of a request. It prepares them in copies of the schema where nothing off the
//! lists exists.
//!
//! There are two copies, both without rows. In the first copy, tables and views off the list are missing. In the second
//! copy, columns off the list are renamed as well: a statement that names such a column cannot be prepared there, and a
//! statement that uses it without a name (`*`, `NATURAL JOIN`) reports the new name or has a different program. The
//! check therefore finds a name however the statement uses it: through a view, a trigger, `USING`, `IN`, or a page by
//! page copy.
//!
//! SQLite's internal tables exist in every database; under a list, no text may name them.

mod schema_reader;
mod unreported_uses;

use std::collections::BTreeSet;

use proctor_core::sql::{Dialect, SqlCode, SqlPolicy};
use rusqlite::Connection;

use super::schema_definitions::{
    content_tables, is_computed_from, referenced_tables, significant_tokens, view_query, virtual_table_arguments_start,
};
use super::statement_observer::StatementOrigin;
use super::statement_program::Instruction;
use super::{Sqlite, builtin_allowlist, sqlite_errors};
use crate::allow_lists::{self, NameLists};
use crate::engine::{Action, BoundStatement, EngineRefusal, ExecutionBounds, SqlEngine as _, is_limit_code};
use crate::lexer::{self, SqlTokenKind};
use schema_reader::{ForeignKeyCascade, SchemaEntry, read_cascades, read_entries, read_shadow_tables, read_tables};
use unreported_uses::UnreportedUses;

/// The prefix of the new names of hidden columns.
const HIDDEN_COLUMN_PREFIX: &str = "proctor_off_list_";

/// Copies of an engine's schema that contain only what the lists of a request allow.
pub(super) struct RestrictedSchema {
    allow: NameLists,
    /// A copy with the tables and views on the list.
    listed_copy: Sqlite,
    /// The same copy with hidden columns renamed; `None` if no column is hidden.
    renamed_copy: Option<Sqlite>,
    hidden: Vec<HiddenColumn>,
    unreported: UnreportedUses,
    /// The shadow tables that are not on the list of tables, in lower case.
    shadow_tables: BTreeSet<String>,
    cascades: Vec<ForeignKeyCascade>,
}

/// A column that is off the list.
#[derive(Debug, Clone)]
struct HiddenColumn {
    table: String,
    column: String,
    /// The name of the column in the second copy.
    masked_name: String,
}

/// The use of names by a statement in one of the copies.
struct CopyUse {
    bounds: Vec<BoundStatement>,
    programs: Vec<Vec<Instruction>>,
    /// The tables and views after the statement, each with its columns if the list of columns mentions it.
    tables: Vec<(String, Vec<String>)>,
}

impl RestrictedSchema {
    /// Copies the part of an engine's schema that the lists allow.
    pub(super) fn from_schema(
        source: &Sqlite,
        allow: &NameLists,
        on: ExecutionBounds<'_>,
    ) -> Result<Self, EngineRefusal> {
        source.observer.begin_statement(StatementOrigin::Internal, u64::MAX, on.deadline);
        let failed = |error: rusqlite::Error| source.internal_refusal(&error);
        let all = read_entries(&source.connection).map_err(failed)?;
        let shadows = read_shadow_tables(&source.connection).map_err(failed)?;
        let cascades = read_cascades(&source.connection, &source.catalog).map_err(failed)?;
        let hidden = hidden_columns(source, allow, &all);
        let forbids = |sql: &str| internal_name(sql, source, allow, &BTreeSet::new()).is_some();
        // A trigger that names an internal table cannot be checked, so its table is left out of the copies.
        let broken: BTreeSet<&str> =
            all.iter().filter(|one| one.kind == "trigger" && forbids(&one.sql)).map(|one| one.table.as_str()).collect();
        let is_listed = |one: &&SchemaEntry| {
            let is_plain =
                allow_lists::is_table_allowed(allow, &one.table) && !shadows.contains(&one.name.to_ascii_lowercase());
            let points_away =
                content_tables(&one.sql).iter().any(|content| !allow_lists::is_table_allowed(allow, content));
            let shows_metadata = one.kind == "view" && forbids(&one.sql);
            is_plain && !(points_away || shows_metadata || broken.contains(one.table.as_str()))
        };
        let entries: Vec<&SchemaEntry> = all.iter().filter(is_listed).collect();
        let listed = copy_schema(source, &entries, allow, on, &[])?;
        let renamed = if hidden.is_empty() { None } else { Some(copy_schema(source, &entries, allow, on, &hidden)?) };
        Ok(Self {
            allow: allow.clone(),
            listed_copy: listed,
            renamed_copy: renamed,
            unreported: UnreportedUses::new(
                &entries,
                hidden.iter().map(|one| one.table.as_str()).collect(),
                &source.catalog,
            ),
            hidden,
            shadow_tables: shadows.into_iter().filter(|name| !allow_lists::is_table_allowed(allow, name)).collect(),
            cascades,
        })
    }

    /// Reports whether the copies were made for these lists.
    pub(super) fn is_for_lists(&self, allow: &NameLists) -> bool {
        self.allow == *allow
    }

    /// Checks a statement against the lists; `bound` is what it does in the whole schema.
    pub(super) fn check(
        &mut self,
        sql: &str,
        bound: &BoundStatement,
        on: ExecutionBounds<'_>,
    ) -> Result<(), EngineRefusal> {
        if let Some(name) = internal_name(sql, &self.listed_copy, &self.allow, &self.shadow_tables) {
            let message = format!("`{name}` shows objects outside the lists");
            return Err(EngineRefusal { subject: Some(name), ..EngineRefusal::new(SqlCode::MetadataRefused, message) });
        }
        if sql.to_ascii_lowercase().contains(HIDDEN_COLUMN_PREFIX) {
            return Err(EngineRefusal::new(
                SqlCode::ColumnRefused,
                format!("names that begin with `{HIDDEN_COLUMN_PREFIX}` are reserved"),
            ));
        }
        self.check_cascades(bound)?;
        self.check_late_names(sql, bound)?;
        let probes = self.body_probes(sql, bound)?;
        let listed =
            observe_uses(&mut self.listed_copy, sql, bound, &probes, &self.allow, on).map_err(off_list_refusal)?;
        self.check_tables(&listed)?;
        let Some(renamed) = &mut self.renamed_copy else { return Ok(()) };
        if let Some(refusal) = self.unreported.refusal(sql, bound, &listed.programs) {
            return Err(refusal);
        }
        let used = observe_uses(renamed, sql, bound, &probes, &self.allow, on)
            .map_err(|refusal| self.refusal_with_original_names(refusal))?;
        self.check_columns(&listed, &used)
    }

    /// Repeats a change of the schema in the copies. Returns whether that succeeded; if not, the copies must be dropped.
    pub(super) fn apply_schema_change(&mut self, sql: &str, on: ExecutionBounds<'_>) -> bool {
        let done = |engine: &mut Sqlite| {
            engine.observer.begin_statement(StatementOrigin::Internal, on.limits.steps, on.deadline);
            engine.connection.execute_batch(sql).is_ok() && engine.refresh().is_ok()
        };
        // If columns are listed, a new table may have columns that must be hidden.
        self.allow.columns.is_empty() && done(&mut self.listed_copy)
    }

    /// Checks the changes that foreign key actions make in other tables.
    fn check_cascades(&self, bound: &BoundStatement) -> Result<(), EngineRefusal> {
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
                let is_pointed_at =
                    |column: &String| edge.referenced_columns.iter().any(|to| to.eq_ignore_ascii_case(column));
                let is_changed = match &column {
                    None => edge.changes_on_delete,
                    Some(column) => edge.changes_on_update && is_pointed_at(column),
                };
                let is_removed = column.is_none() && edge.deletes_children;
                if !is_removed && !is_changed {
                    continue;
                }
                if !allow_lists::is_table_allowed(&self.allow, &edge.child) {
                    let message = format!("a foreign key changes rows of `{}`, which is not on the list", edge.child);
                    return Err(refusal_about(SqlCode::TableRefused, message, &edge.child));
                }
                if is_changed && !allow_lists::is_column_allowed(&self.allow, &edge.child, &edge.column) {
                    let name = format!("{}.{}", edge.child, edge.column);
                    let message = format!("a foreign key changes the column `{name}`, which is not on the list");
                    return Err(refusal_about(SqlCode::ColumnRefused, message, &name));
                }
                open.push((edge.child.clone(), is_changed.then(|| edge.column.clone())));
            }
        }
        Ok(())
    }

    /// Checks the names in a change of the schema that SQLite resolves only later: tables that foreign keys refer to,
    /// and content tables of virtual tables.
    fn check_late_names(&self, sql: &str, bound: &BoundStatement) -> Result<(), EngineRefusal> {
        let mut changes = bound.schema_changes().peekable();
        if changes.peek().is_none() {
            return Ok(());
        }
        let names = referenced_tables(sql).into_iter().chain(content_tables(sql));
        for name in names {
            if !allow_lists::is_table_allowed(&self.allow, &name) {
                let message = format!("it refers to `{name}`, which is not on the list");
                return Err(refusal_about(SqlCode::TableRefused, message, &name));
            }
        }
        let words: Vec<String> =
            significant_tokens(sql).into_iter().map(|(_, range)| sql[range].to_ascii_lowercase()).collect();
        let renames = words.windows(2).any(|pair| pair == ["rename", "to"]);
        match changes
            .find(|(what, name)| *what == "alter table" && allow_lists::allowed_columns(&self.allow, name).is_some())
        {
            Some((_, name)) if renames => {
                let message = format!("it renames `{name}`, so the list of columns would no longer match");
                Err(refusal_about(SqlCode::TableRefused, message, name))
            }
            _ => Ok(()),
        }
    }

    /// Returns statements that make SQLite resolve the names in the body of a new view or trigger.
    fn body_probes(&self, sql: &str, bound: &BoundStatement) -> Result<Vec<String>, EngineRefusal> {
        let mut probes = Vec::new();
        for (what, name) in bound.schema_changes() {
            match what {
                "create view" | "create temporary view" => {
                    probes.push(format!("SELECT * FROM {}", self.listed_copy.quote_name(name)));
                }
                "create trigger" | "create temporary trigger" => {
                    probes.push(self.firing_statement(sql).ok_or_else(|| {
                        let message = format!("the trigger `{name}` belongs to a table that is not on the list");
                        refusal_about(SqlCode::TableRefused, message, name)
                    })?);
                }
                _ => {}
            }
        }
        Ok(probes)
    }

    /// Returns a statement that fires the trigger that a text creates.
    fn firing_statement(&self, sql: &str) -> Option<String> {
        let solid = significant_tokens(sql);
        let word = |at: usize| solid.get(at).map_or("", |(_, range)| &sql[range.clone()]);
        let is_word = |at: usize, words: &[&str]| {
            solid.get(at).is_some_and(|(piece, _)| *piece == SqlTokenKind::Word)
                && words.iter().any(|one| word(at).eq_ignore_ascii_case(one))
        };
        let event = (0..solid.len()).find(|at| is_word(*at, &["delete", "insert", "update"]))?;
        let on = (event..solid.len()).find(|at| is_word(*at, &["on"]))?;
        let name = if word(on + 2) == "." { on + 3 } else { on + 1 };
        let name = lexer::unquote(word(name));
        let table = self.listed_copy.catalog.table(&name)?;
        let quoted = self.listed_copy.quote_name(&name);
        Some(match word(event).to_ascii_lowercase().as_str() {
            "delete" => format!("DELETE FROM {quoted}"),
            "insert" => format!("INSERT INTO {quoted} DEFAULT VALUES"),
            _ => {
                let of = is_word(event + 1, &["of"]).then(|| lexer::unquote(word(event + 2)));
                let is_free = |column: &&crate::catalog::CatalogColumn| {
                    !column.is_generated && allow_lists::is_column_allowed(&self.allow, &table.name, &column.name)
                };
                let column = of.or_else(|| Some(table.columns.iter().find(is_free)?.name.clone()))?;
                format!("UPDATE {quoted} SET {} = NULL", self.listed_copy.quote_name(&column))
            }
        })
    }

    /// Checks the tables and columns that exist after a change of the schema.
    fn check_tables(&self, used: &CopyUse) -> Result<(), EngineRefusal> {
        for (table, columns) in &used.tables {
            if !allow_lists::is_table_allowed(&self.allow, table) {
                let message = format!("the table `{table}` is not on the list");
                return Err(refusal_about(SqlCode::TableRefused, message, table));
            }
            let was_there = |column: &String| {
                let is_it = |hidden: &&HiddenColumn| {
                    hidden.table.eq_ignore_ascii_case(table) && hidden.column.eq_ignore_ascii_case(column)
                };
                self.hidden.iter().any(|hidden| is_it(&hidden))
            };
            let is_new =
                |column: &&String| !allow_lists::is_column_allowed(&self.allow, table, column) && !was_there(column);
            if let Some(column) = columns.iter().find(is_new) {
                let name = format!("{table}.{column}");
                return Err(refusal_about(
                    SqlCode::ColumnRefused,
                    format!("the column `{name}` is not on the list"),
                    &name,
                ));
            }
        }
        Ok(())
    }

    /// Checks that hidden columns have no effect: none is reported, and both copies run the same program.
    fn check_columns(&self, listed: &CopyUse, renamed: &CopyUse) -> Result<(), EngineRefusal> {
        let of_actions = renamed.bounds.iter().flat_map(|bound| &bound.actions).filter_map(|action| match action {
            Action::Read { column: Some(column), .. } | Action::Update { column, .. } => Some(column.as_str()),
            _ => None,
        });
        let of_result = renamed.bounds.iter().flat_map(|bound| &bound.columns).map(|column| column.name.as_str());
        let mut names = of_actions.chain(of_result);
        if let Some(hidden) =
            names.find_map(|name| self.hidden.iter().find(|hidden| name.contains(&hidden.masked_name)))
        {
            let name = format!("{}.{}", hidden.table, hidden.column);
            return Err(refusal_about(
                SqlCode::ColumnRefused,
                format!("the column `{name}` is not on the list"),
                &name,
            ));
        }
        let same = |one: &Vec<Instruction>, other: &Vec<Instruction>| {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| self.is_same_instruction(one, other))
        };
        let are_same = listed.programs.len() == renamed.programs.len()
            && listed.programs.iter().zip(&renamed.programs).all(|(one, other)| same(one, other));
        if are_same {
            return Ok(());
        }
        Err(EngineRefusal::new(
            SqlCode::ColumnRefused,
            "it depends on columns that are not on the list, as `NATURAL JOIN` does",
        ))
    }

    fn is_same_instruction(&self, one: &Instruction, other: &Instruction) -> bool {
        // The schema version and the handles of virtual tables differ between any two databases.
        let differs = ["Transaction", "VOpen", "VUpdate", "VBegin", "VCreate", "VDestroy"];
        one.opcode == other.opcode
            && (differs.contains(&one.opcode.as_str())
                || (one.operands == other.operands
                    && one.p5 == other.p5
                    && one.p4 == self.with_original_names(&other.p4)))
    }

    /// Replaces the new names of hidden columns in a text by their original names.
    fn with_original_names(&self, text: &str) -> String {
        if !text.contains(HIDDEN_COLUMN_PREFIX) {
            return text.to_owned();
        }
        // The longest number comes first, so that no name matches the beginning of a longer one.
        self.hidden.iter().rev().fold(text.to_owned(), |text, hidden| text.replace(&hidden.masked_name, &hidden.column))
    }

    fn refusal_with_original_names(&self, refusal: EngineRefusal) -> EngineRefusal {
        let refusal = EngineRefusal {
            message: self.with_original_names(&refusal.message),
            subject: refusal.subject.as_deref().map(|subject| self.with_original_names(subject)),
            ..refusal
        };
        off_list_refusal(refusal)
    }
}

fn refusal_about(code: SqlCode, message: String, name: &str) -> EngineRefusal {
    EngineRefusal { subject: Some(name.to_owned()), ..EngineRefusal::new(code, message) }
}

/// Converts an error of a copy to a finding about the lists.
fn off_list_refusal(refusal: EngineRefusal) -> EngineRefusal {
    if refusal.code.is_engine_problem() || is_limit_code(refusal.code) {
        return refusal;
    }
    let code = match refusal.code {
        SqlCode::UnknownColumn | SqlCode::AmbiguousColumn | SqlCode::ColumnCount => SqlCode::ColumnRefused,
        _ => SqlCode::TableRefused,
    };
    let message = match &refusal.subject {
        Some(subject) => format!("it needs `{subject}`, which is not on the lists"),
        None => format!("SQLite refuses it without the objects that are not on the lists: {}", refusal.message),
    };
    EngineRefusal { code, message, ..refusal }
}

/// Prepares a statement and its probes in a copy, and undoes the effects.
fn observe_uses(
    engine: &mut Sqlite,
    sql: &str,
    bound: &BoundStatement,
    probes: &[String],
    allow: &NameLists,
    on: ExecutionBounds<'_>,
) -> Result<CopyUse, EngineRefusal> {
    let mut used = CopyUse {
        bounds: vec![engine.bind_statement(sql, on)?],
        programs: vec![engine.program(sql, on)?],
        tables: Vec::new(),
    };
    if bound.schema_changes().next().is_none() {
        return Ok(used);
    }
    engine.begin()?;
    let outcome = apply_change(engine, sql, probes, allow, on, &mut used);
    engine.rollback()?;
    outcome.map(|()| used)
}

/// Executes a change of the schema in a copy, and records what exists afterwards.
fn apply_change(
    engine: &mut Sqlite,
    sql: &str,
    probes: &[String],
    allow: &NameLists,
    on: ExecutionBounds<'_>,
    used: &mut CopyUse,
) -> Result<(), EngineRefusal> {
    engine.execute_under_policy(sql, SqlPolicy::Migrate, on, None)?;
    for probe in probes {
        used.bounds.push(engine.bind_statement(probe, on)?);
        used.programs.push(engine.program(probe, on)?);
    }
    engine.observer.begin_statement(StatementOrigin::Internal, u64::MAX, on.deadline);
    used.tables = read_tables(&engine.connection, allow).map_err(|error| engine.internal_refusal(&error))?;
    Ok(())
}

/// Creates a database in memory from the given entries. Hidden columns are renamed before views and triggers are
/// created, so that their bodies keep the original names.
fn copy_schema(
    source: &Sqlite,
    entries: &[&SchemaEntry],
    allow: &NameLists,
    on: ExecutionBounds<'_>,
    hidden: &[HiddenColumn],
) -> Result<Sqlite, EngineRefusal> {
    let failed = |error: rusqlite::Error| sqlite_errors::engine_failure(&error);
    let mut engine = Sqlite::from_connection(Connection::open_in_memory().map_err(failed)?, on.limits)?;
    engine.observer.begin_statement(StatementOrigin::Internal, u64::MAX, on.deadline);
    let of = |kind: &'static str| entries.iter().filter(move |entry| entry.kind == kind);
    let is_virtual =
        |entry: &SchemaEntry| virtual_table_arguments_start(&significant_tokens(&entry.sql), &entry.sql).is_some();
    // An entry that cannot be created is missing in the copy; statements that need it are refused.
    let make = |engine: &Sqlite, sql: &str| engine.connection.execute_batch(sql);
    for entry in of("table") {
        let of_table: Vec<&HiddenColumn> =
            hidden.iter().filter(|one| one.table.eq_ignore_ascii_case(&entry.name)).collect();
        let sql = if is_virtual(entry) { rename_virtual_columns(&entry.sql, &of_table) } else { entry.sql.clone() };
        let _ = make(&engine, &sql);
    }
    of("index").for_each(|entry| drop(make(&engine, &entry.sql)));
    for one in hidden {
        let is_renamed = of("table").any(|entry| entry.name.eq_ignore_ascii_case(&one.table) && !is_virtual(entry));
        if is_renamed {
            let rename = |one: &HiddenColumn| {
                let (table, column) = (engine.quote_name(&one.table), engine.quote_name(&one.column));
                format!("ALTER TABLE {table} RENAME COLUMN {column} TO {}", one.masked_name)
            };
            make(&engine, &rename(one)).map_err(|error| engine.internal_refusal(&error))?;
        }
    }
    for entry in of("view") {
        let named = allow_lists::allowed_columns(allow, &entry.name).and_then(|_| source.catalog.table(&entry.name));
        let _ = make(&engine, &entry.sql);
        let Some(view) = named else { continue };
        // The list of columns also restricts the columns of a view.
        let name = |column: &crate::catalog::CatalogColumn| {
            let is_it = |one: &&HiddenColumn| {
                one.table.eq_ignore_ascii_case(&view.name) && one.column.eq_ignore_ascii_case(&column.name)
            };
            engine.quote_name(hidden.iter().find(is_it).map_or(&column.name, |one| &one.masked_name))
        };
        let columns = view.columns.iter().map(name).collect::<Vec<_>>().join(", ");
        let (view, inner) =
            (engine.quote_name(&view.name), engine.quote_name(&format!("{HIDDEN_COLUMN_PREFIX}{}", view.name)));
        let inner_sql = format!("CREATE VIEW {inner} AS {}", view_query(&entry.sql).unwrap_or("SELECT NULL"));
        let outer_sql = format!("CREATE VIEW {view}({columns}) AS SELECT * FROM {inner}");
        let _ = make(&engine, &format!("DROP VIEW {view}; {inner_sql}; {outer_sql}"));
    }
    // Without its trigger, a write of the table would look harmless, so the table is dropped.
    for entry in of("trigger").filter(|entry| make(&engine, &entry.sql).is_err()) {
        let table = engine.quote_name(&entry.table);
        let _ = make(&engine, &format!("DROP TABLE {table}")).or_else(|_| make(&engine, &format!("DROP VIEW {table}")));
    }
    // An interrupted copy lacks entries that exist, so nothing may be judged with it.
    if let Some(interrupt) = engine.observer.interrupt_reason() {
        return Err(sqlite_errors::limit_refusal(interrupt));
    }
    engine.refresh()?;
    engine.set_trusted(false)?;
    Ok(engine)
}

/// Returns the columns that are off the list, including generated columns that are computed from them.
fn hidden_columns(source: &Sqlite, allow: &NameLists, entries: &[SchemaEntry]) -> Vec<HiddenColumn> {
    let mut found: Vec<(String, String)> = Vec::new();
    for table in &source.catalog.tables {
        if allow_lists::allowed_columns(allow, &table.name).is_none()
            || !allow_lists::is_table_allowed(allow, &table.name)
        {
            continue;
        }
        let mut off: BTreeSet<String> = BTreeSet::new();
        let sql = entries.iter().find(|one| one.kind == "table" && one.name == table.name).map(|one| one.sql.as_str());
        loop {
            let is_off = |column: &&crate::catalog::CatalogColumn| {
                !allow_lists::is_column_allowed(allow, &table.name, &column.name)
                    || (column.is_generated && sql.is_none_or(|sql| is_computed_from(sql, &column.name, &off)))
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
    let of = |(at, (table, column))| HiddenColumn { table, column, masked_name: format!("{HIDDEN_COLUMN_PREFIX}{at}") };
    found.into_iter().enumerate().map(of).collect()
}

/// Returns the first name in a text that belongs to an internal table, a pragma or a shadow table.
fn internal_name(sql: &str, engine: &Sqlite, allow: &NameLists, shadows: &BTreeSet<String>) -> Option<String> {
    let is_listed = |name: &str| allow_lists::contains_object(allow, name);
    let is_module = |name: &str| {
        engine.modules.contains(name)
            && !builtin_allowlist::is_pure_table(name)
            && !builtin_allowlist::is_harmless_module(name)
    };
    let is_internal = |name: &String| {
        let is_own = name.starts_with("sqlite_") && !engine.functions.contains(name);
        is_own || name.starts_with("pragma_") || is_module(name) || shadows.contains(name)
    };
    lexer::possible_names(sql, Dialect::Sqlite).into_iter().find(|name| is_internal(name) && !is_listed(name))
}

/// Returns the definition of a virtual table with some of its columns renamed.
fn rename_virtual_columns(sql: &str, hidden: &[&HiddenColumn]) -> String {
    let solid = significant_tokens(sql);
    let word = |at: usize| solid.get(at).map_or("", |(_, range)| &sql[range.clone()]);
    let mut text = sql.to_owned();
    for at in (1..solid.len()).rev().filter(|at| matches!(word(at - 1), "(" | ",")) {
        let name = lexer::unquote(word(at));
        if let Some(one) = hidden.iter().find(|one| one.column.eq_ignore_ascii_case(&name)) {
            text.replace_range(solid[at].1.clone(), &one.masked_name);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use proctor_core::sql::{SqlAllow, SqlRequest, SqlResourceLimits};

    use super::*;

    #[test]
    fn copy_that_exceeds_the_deadline_is_an_error_and_is_not_kept() {
        let tables = |number: usize| format!("CREATE TABLE t{number} (a INTEGER, b INTEGER, c INTEGER);");
        let schema: String = (0..200).map(tables).collect();
        let sql = "SELECT a FROM t7";
        let request = SqlRequest { schema: vec![schema], ..SqlRequest::new(Dialect::Sqlite, sql) };
        let mut engine = Sqlite::open(&request).expect("a schema");
        let limits = SqlResourceLimits::default();
        let until = |deadline| ExecutionBounds { limits: &limits, deadline, continues_past_row_limit: false };
        let in_time = until(Instant::now() + limits.wall_time());
        let late = until(Instant::now().checked_sub(Duration::from_secs(1)).expect("an instant"));
        let allow =
            SqlAllow { columns: (0..200).map(|number| format!("t{number}.a")).collect(), ..SqlAllow::default() };
        let allow = NameLists::new(&allow, Dialect::Sqlite);
        let bound = engine.bind(sql, in_time).expect("binds");
        let refusal = engine.check_lists(sql, &bound, &allow, late).expect_err("the deadline passed");
        assert_eq!(refusal.code, SqlCode::TimeLimit, "{refusal:?}");
        assert_eq!(engine.check_lists(sql, &bound, &allow, in_time), Ok(()));
    }
}

//! Runs SQLite, which is linked in. SQLite's authorizer reports what a statement does while SQLite prepares it. The
//! same authorizer refuses at run time what the policy does not allow.
//!
//! Sources: <https://sqlite.org/c3ref/set_authorizer.html>, <https://sqlite.org/c3ref/c_dbconfig_defensive.html>,
//! <https://sqlite.org/security.html>, <https://sqlite.org/quirks.html#dblquote>.

mod catalog;
mod definitions;
mod functions;
mod messages;
mod open;
mod program;
mod restricted;
mod rows;
mod strings;
mod watch;

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proctor_core::sql::{Allow, Column, Dialect, Limits, Policy, Request, SqlCode};
use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, OpenFlags};

use crate::catalog::{Catalog, Table};
use crate::engine::{Action, Bound, Engine, Ran, Refusal, RunOn};
use crate::nearest;
use crate::scratch::Value;
use crate::text::{self, Piece};
use restricted::Restricted;
use watch::{Mode, Watch};

/// The number of instructions between two checks of the deadline.
const LOOK: i32 = 1_000;
/// The deadline that is set for an internal statement. [`Watch::is_over`] does not enforce deadlines of internal
/// statements.
const OURS: Duration = Duration::from_secs(60);
/// The maximum number of double-quoted strings in a statement.
const MOST_STRINGS: usize = 128;

/// An SQLite database in memory, or a file that is opened read-only.
pub struct Sqlite {
    connection: Connection,
    watch: Arc<Watch>,
    catalog: Catalog,
    functions: BTreeSet<String>,
    /// The registered modules of virtual tables. A statement may read some of them without `CREATE VIRTUAL TABLE`.
    modules: BTreeSet<String>,
    /// True if statements since the last `begin` changed the schema.
    has_other_tables: bool,
    /// The maximum number of instructions for one part of the schema.
    steps: u64,
    /// The table that owns each root page; `None` until it is needed.
    roots: Option<program::Roots>,
    /// True if the body of a view or a trigger can use tables that the authorizer does not report.
    has_hiding_bodies: bool,
    /// True if rows of one table can come from rows of another: through a trigger or a virtual table.
    has_derived_rows: bool,
    /// The tables that replace existing rows with the same key.
    replacing: BTreeSet<String>,
    /// The schema as restricted by the lists of the last request.
    restricted: Option<Box<Restricted>>,
}

impl Sqlite {
    /// Opens a database for a request: its file, if it names one, then its schema.
    ///
    /// # Errors
    /// The file is not a database or is too large, or the schema cannot be set up.
    pub fn open(request: &Request) -> Result<Self, Refusal> {
        let on = request.limits;
        let deadline = Instant::now() + on.time();
        let connection = match &request.database {
            Some(file) => open::opened(Path::new(file), request)?,
            None => Connection::open_in_memory().map_err(|error| messages::failed(&error))?,
        };
        let mut engine = Self::over(connection, &on)?;
        engine.set_up(&request.schema, deadline)?;
        engine.trust(false)?;
        Ok(engine)
    }

    fn over(mut connection: Connection, limits: &Limits) -> Result<Self, Refusal> {
        let watch = Arc::new(Watch::new());
        let refused = |error: rusqlite::Error| messages::failed(&error);
        let clamp = |value: u64| i32::try_from(value).unwrap_or(i32::MAX);
        let bounds = [
            (Limit::SQLITE_LIMIT_LENGTH, clamp(limits.result.max(limits.input))),
            (Limit::SQLITE_LIMIT_SQL_LENGTH, clamp(limits.input.max(1 << 20))),
            (Limit::SQLITE_LIMIT_EXPR_DEPTH, clamp(u64::from(limits.depth))),
            (Limit::SQLITE_LIMIT_TRIGGER_DEPTH, clamp(u64::from(limits.depth))),
            (Limit::SQLITE_LIMIT_PARSER_DEPTH, clamp(u64::from(limits.depth))),
            (Limit::SQLITE_LIMIT_ATTACHED, 0),
            (Limit::SQLITE_LIMIT_WORKER_THREADS, 0),
            (Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 5_000),
        ];
        for (limit, value) in bounds {
            connection.set_limit(limit, value).map_err(refused)?;
        }
        // The heap limit applies to the whole process; a worker uses one engine at a time.
        let memory = format!(
            "PRAGMA hard_heap_limit = {}; PRAGMA temp_store = MEMORY; PRAGMA foreign_keys = OFF",
            limits.memory
        );
        connection.execute_batch(&memory).map_err(refused)?;
        connection.set_prepared_statement_cache_capacity(rows::KEPT_STATEMENTS);
        let authorizer = Arc::clone(&watch);
        connection
            .authorizer(Some(move |context: rusqlite::hooks::AuthContext<'_>| authorizer.authorize(&context)))
            .map_err(refused)?;
        let progress = Arc::clone(&watch);
        connection.progress_handler(LOOK, Some(move || progress.is_over(LOOK))).map_err(refused)?;
        for config in [DbConfig::SQLITE_DBCONFIG_DEFENSIVE, DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER] {
            connection.set_db_config(config, true).map_err(refused)?;
        }
        for config in [DbConfig::SQLITE_DBCONFIG_ENABLE_FTS3_TOKENIZER, DbConfig::SQLITE_DBCONFIG_WRITABLE_SCHEMA] {
            connection.set_db_config(config, false).map_err(refused)?;
        }
        Ok(Self {
            connection,
            watch,
            catalog: Catalog::default(),
            functions: BTreeSet::new(),
            modules: BTreeSet::new(),
            has_other_tables: false,
            steps: limits.steps,
            roots: None,
            has_hiding_bodies: false,
            has_derived_rows: false,
            replacing: BTreeSet::new(),
            restricted: None,
        })
    }

    /// Executes the parts of a schema. Their statements may do what SQLite allows by default.
    fn set_up(&mut self, schema: &[String], deadline: Instant) -> Result<(), Refusal> {
        for (number, text) in schema.iter().enumerate() {
            self.watch.begin(Mode::Schema, self.steps, deadline);
            let done = self.connection.execute_batch(text);
            if let Err(error) = done {
                let refusal = messages::refusal(&error, text, self.watch.stopped());
                let message = format!("the schema (part {}) cannot be set up: {}", number + 1, refusal.message);
                return Err(Refusal { code: SqlCode::SchemaBroken, message, place: None, ..refusal });
            }
        }
        self.watch.begin(Mode::Ours, u64::MAX, deadline);
        if !self.connection.is_autocommit() {
            let _ = self.connection.execute_batch("COMMIT");
        }
        self.refresh()
    }

    /// Sets whether SQLite trusts schemas and accepts double-quoted strings. Both are off while statements of a request
    /// are judged.
    fn trust(&mut self, is_trusted: bool) -> Result<(), Refusal> {
        for config in [
            DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA,
            DbConfig::SQLITE_DBCONFIG_DQS_DML,
            DbConfig::SQLITE_DBCONFIG_DQS_DDL,
        ] {
            self.connection.set_db_config(config, is_trusted).map_err(|error| messages::failed(&error))?;
        }
        Ok(())
    }

    /// Updates the catalog after a statement that changed the schema.
    fn follow(&mut self, sql: &str, bound: &Bound) -> Result<(), Refusal> {
        if bound.schema_changes().next().is_none() {
            return Ok(());
        }
        self.roots = None;
        self.has_other_tables = true;
        self.has_hiding_bodies |= program::may_hide_tables(sql, true);
        self.has_derived_rows = true;
        if self.restricted.as_mut().is_some_and(|restricted| !restricted.follow(sql)) {
            self.restricted = None;
        }
        if bound.schema_changes().any(|(what, _)| what == "create table") && replaces_on_conflict(sql) {
            self.replacing.extend(bound.schema_changes().map(|(_, name)| name.to_ascii_lowercase()));
        }
        let mut changes =
            bound.schema_changes().filter(|(what, _)| !matches!(*what, "create index" | "create trigger"));
        let (first, second) = (changes.next(), changes.next());
        match (first, second) {
            (None, _) => return Ok(()),
            // With IF NOT EXISTS the table may have existed before, with another spelling of its name.
            (Some((what @ ("create table" | "create view"), name)), None) if self.catalog.table(name).is_none() => {
                self.watch.begin(Mode::Ours, u64::MAX, Instant::now() + OURS);
                let made = catalog::table(&self.connection, name.to_owned(), what == "create view");
                self.catalog.put(made.map_err(|error| messages::failed(&error))?);
            }
            _ => self.read_schema()?,
        }
        Ok(())
    }

    /// Reads the whole schema again, and drops everything that was derived from it.
    fn refresh(&mut self) -> Result<(), Refusal> {
        self.restricted = None;
        self.roots = None;
        self.read_schema()
    }

    fn read_schema(&mut self) -> Result<(), Refusal> {
        self.watch.begin(Mode::Ours, u64::MAX, Instant::now() + OURS);
        let failed = |error| messages::failed(&error);
        self.catalog = catalog::read(&self.connection).map_err(failed)?;
        let bodies = catalog::bodies(&self.connection).map_err(failed)?;
        self.has_hiding_bodies = bodies.iter().any(|sql| program::may_hide_tables(sql, true));
        self.has_derived_rows = catalog::has_derived_rows(&self.connection).map_err(failed)?;
        let definitions = catalog::definitions(&self.connection).map_err(failed)?;
        let replacing = definitions.into_iter().filter(|(_, sql)| replaces_on_conflict(sql));
        self.replacing = replacing.map(|(name, _)| name.to_ascii_lowercase()).collect();
        if self.functions.is_empty() {
            self.functions = functions::read(&self.connection).map_err(|error| messages::failed(&error))?;
            self.modules = functions::modules(&self.connection).map_err(|error| messages::failed(&error))?;
        }
        Ok(())
    }

    fn prepared(&mut self, sql: &str, on: RunOn<'_>) -> Result<Bound, Refusal> {
        let bound = self.authorized(sql, on)?;
        self.with_opened(bound, sql, on)
    }

    /// Prepares a statement and collects what the authorizer reports.
    fn authorized(&mut self, sql: &str, on: RunOn<'_>) -> Result<Bound, Refusal> {
        self.watch.begin(Mode::Collect, on.limits.steps, on.deadline);
        let prepared = self.connection.prepare(sql);
        let mut noted = self.watch.noted();
        noted.actions.retain(|action| !self.is_of_the_statement(action));
        let bound = match prepared {
            Ok(statement) => Bound {
                actions: noted.actions,
                columns: statement
                    .columns()
                    .map(|column| Column {
                        name: column.name().to_owned(),
                        kind: column.decl_type().map(str::to_owned),
                    })
                    .collect(),
                parameters: statement.parameter_count(),
                is_explain: statement.is_explain() > 0,
                is_readonly: statement.readonly(),
                is_query: noted.is_query,
                strings: Vec::new(),
            },
            // SQLite refused to prepare the statement because of a forbidden action; the actions so far describe it.
            Err(_) if noted.is_denied => return Ok(Bound { actions: noted.actions, ..Bound::default() }),
            Err(error) => return Err(messages::refusal(&error, sql, self.watch.stopped())),
        };
        Ok(self.with_replaced(bound, sql))
    }

    /// Adds the deletion of rows that a statement replaces because their keys exist already. The authorizer reports
    /// only the insertion.
    fn with_replaced(&self, mut bound: Bound, sql: &str) -> Bound {
        let written: BTreeSet<String> = bound
            .actions
            .iter()
            .filter_map(|action| match action {
                Action::Insert(table) | Action::Update { table, .. } => Some(table.clone()),
                _ => None,
            })
            .collect();
        let is_said = !written.is_empty() && replaces_by_its_words(sql);
        let replaced =
            written.into_iter().filter(|table| is_said || self.replacing.contains(&table.to_ascii_lowercase()));
        bound.actions.extend(replaced.map(|table| Action::Update { table, column: "*".to_owned() }));
        bound
    }

    /// Reports whether an action reads a common table expression of the statement itself. SQLite reports only its name,
    /// as it does for a table of which no column is read.
    fn is_of_the_statement(&self, action: &Action) -> bool {
        match action {
            Action::Read { table, column: None } => {
                let name = table.to_ascii_lowercase();
                self.catalog.table(table).is_none()
                    && !self.modules.contains(&name)
                    && !name.starts_with("sqlite_")
                    && !name.starts_with("pragma_")
            }
            _ => false,
        }
    }

    /// Classifies a double-quoted text that is not a name: a misspelt column, or a string that SQLite accepts for
    /// compatibility. Returns `None` if the refusal is about something else.
    fn quoted_string(&self, sql: &str, refusal: &Refusal) -> Option<Result<Range<usize>, Refusal>> {
        let (SqlCode::UnknownColumn, Some(place)) = (refusal.code, refusal.place.clone()) else { return None };
        let token = sql.get(place.clone()).filter(|token| token.starts_with('"') && token.ends_with('"'))?;
        let name = text::unquoted(token);
        let in_scope = self.columns_of_text(sql);
        let near: Vec<String> = nearest::slips(&name, in_scope.iter().map(String::as_str));
        let is_column = |name: &str| in_scope.iter().any(|column| column.eq_ignore_ascii_case(name));
        // A value may resemble the name of a column: `region = "region0"`.
        let is_value = strings::is_value(sql, &place, is_column)
            && !near.iter().any(|column| strings::is_exchanged(&name, column));
        if near.is_empty() || is_value {
            return Some(Ok(place));
        }
        let message =
            format!("\"{name}\" is not a column here, and SQLite would silently compare with the string '{name}'");
        Some(Err(Refusal {
            code: SqlCode::MisspeltIdentifier,
            message,
            engine_code: refusal.engine_code.clone(),
            place: Some(place),
            subject: Some(name),
            candidates: near,
        }))
    }

    /// Returns the columns of all tables that a text mentions.
    fn columns_of_text(&self, sql: &str) -> Vec<String> {
        let words: BTreeSet<String> = text::pieces(sql, Dialect::Sqlite)
            .into_iter()
            .filter(|(piece, _)| matches!(piece, Piece::Word | Piece::Quoted))
            .map(|(_, range)| text::unquoted(&sql[range]).to_ascii_lowercase())
            .collect();
        let named = self.catalog.tables.iter().filter(|table| words.contains(&table.name.to_ascii_lowercase()));
        named.flat_map(|table| table.columns.iter().map(|column| column.name.clone())).collect()
    }
}

impl Engine for Sqlite {
    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    fn version(&self) -> String {
        format!("SQLite {}", rusqlite::version())
    }

    fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    fn functions(&self) -> &BTreeSet<String> {
        &self.functions
    }

    fn is_harmless(&self, function: &str) -> bool {
        functions::is_harmless(function)
    }

    fn is_harmless_table(&self, table: &str) -> bool {
        functions::is_harmless_table(table)
    }

    fn is_pure_table(&self, table: &str) -> bool {
        functions::is_pure_table(table)
    }

    fn check_lists(&mut self, sql: &str, bound: &Bound, allow: &Allow, on: RunOn<'_>) -> Result<(), Refusal> {
        let mut restricted = match self.restricted.take() {
            Some(restricted) if restricted.is_for(allow) => restricted,
            _ => Box::new(Restricted::open(self, allow, on.limits)?),
        };
        let mut plain = sql.to_owned();
        for place in &bound.strings {
            let string = single_quoted(&plain[place.clone()]);
            plain.replace_range(place.clone(), &string);
        }
        let checked = restricted.check(&plain, bound, on);
        self.restricted = Some(restricted);
        checked
    }

    fn split(&mut self, sql: &str) -> Result<Vec<Range<usize>>, Refusal> {
        Ok(text::statements(sql, Dialect::Sqlite))
    }

    fn bind(&mut self, sql: &str, on: RunOn<'_>) -> Result<Bound, Refusal> {
        let mut plain = sql.to_owned();
        let mut strings = Vec::new();
        loop {
            // Each string in double quotes makes SQLite prepare the whole text again.
            if Instant::now() > on.deadline {
                return Err(Refusal::new(SqlCode::TimeLimit, "it did not end in its time"));
            }
            match self.prepared(&plain, on) {
                Ok(bound) => return Ok(Bound { strings, ..bound }),
                Err(refusal) => match self.quoted_string(&plain, &refusal) {
                    Some(Ok(place)) if strings.len() < MOST_STRINGS => {
                        // The replacement has the same length, so that other positions stay valid.
                        let string = single_quoted(&plain[place.clone()]);
                        plain.replace_range(place.clone(), &string);
                        strings.push(place);
                    }
                    Some(Err(slip)) => return Err(slip),
                    _ => return Err(refusal),
                },
            }
        }
    }

    fn begin(&mut self) -> Result<(), Refusal> {
        self.watch.begin(Mode::Ours, u64::MAX, Instant::now() + OURS);
        rows::execute(&self.connection, "BEGIN")
    }

    fn rollback(&mut self) -> Result<(), Refusal> {
        self.watch.begin(Mode::Ours, u64::MAX, Instant::now() + OURS);
        // A failed statement may already have rolled back.
        if self.connection.is_autocommit() {
            return Ok(());
        }
        rows::execute(&self.connection, "ROLLBACK")?;
        if std::mem::take(&mut self.has_other_tables) { self.refresh() } else { Ok(()) }
    }

    fn extend(&mut self, schema: &[String], deadline: Instant) -> Result<(), Refusal> {
        self.trust(true)?;
        self.set_up(schema, deadline)?;
        self.trust(false)
    }

    fn is_restored(&self) -> bool {
        true
    }

    fn run(&mut self, sql: &str, bound: &Bound, policy: Policy, on: RunOn<'_>) -> Result<Ran, Refusal> {
        let has_strings = !bound.strings.is_empty();
        let habit = |connection: &Connection, is_on| {
            let set = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DML, is_on);
            set.map_err(|error| messages::failed(&error))
        };
        if has_strings {
            habit(&self.connection, true)?;
        }
        let ran = self.stepped(sql, policy, on);
        if has_strings {
            habit(&self.connection, false)?;
        }
        if policy == Policy::Migrate && ran.is_ok() {
            self.follow(sql, bound)?;
        }
        ran
    }

    fn number(&mut self, sql: &str) -> Result<i64, Refusal> {
        self.watch.begin(Mode::Ours, u64::MAX, Instant::now() + Duration::from_secs(5));
        self.connection.query_row(sql, [], |row| row.get(0)).map_err(|error| messages::failed(&error))
    }

    fn put(&mut self, sql: &str) -> bool {
        self.watch.begin(Mode::Ours, 10_000_000, Instant::now() + Duration::from_secs(5));
        self.connection.execute_batch(sql).is_ok()
    }

    fn is_empty(&mut self, table: &Table) -> bool {
        self.has_no_rows(table)
    }

    fn insert(&mut self, table: &Table, rows: &[Vec<Value>]) {
        self.insert_rows(table, rows);
    }

    fn sources(&self, statements: &[&Bound]) -> Option<BTreeSet<String>> {
        self.row_sources(statements)
    }
}

impl Sqlite {
    fn stepped(&mut self, sql: &str, policy: Policy, on: RunOn<'_>) -> Result<Ran, Refusal> {
        self.watch.begin(Mode::Policy(policy), on.limits.steps, on.deadline);
        let refused = |error: &rusqlite::Error, watch: &Watch| messages::refusal(error, sql, watch.stopped());
        let before = self.connection.total_changes();
        let mut statement = self.connection.prepare(sql).map_err(|error| refused(&error, &self.watch))?;
        let is_readonly = statement.readonly();
        let columns = statement.column_count();
        let mut ran = Ran::default();
        let mut bytes = 0_u64;
        let mut rows = statement.raw_query();
        loop {
            match rows.next() {
                Ok(None) => break,
                Ok(Some(row)) => {
                    // The rows that a write returns must all be read; otherwise SQLite does not complete the write.
                    if ran.rows == on.limits.rows && is_readonly {
                        ran.truncated = true;
                        if on.is_to_end {
                            continue;
                        }
                        break;
                    }
                    ran.rows += 1;
                    bytes += size(row, columns);
                    if bytes > on.limits.result {
                        return Err(too_large(on.limits));
                    }
                }
                Err(error) => return Err(refused(&error, &self.watch)),
            }
        }
        drop(rows);
        drop(statement);
        let changed = self.connection.total_changes().saturating_sub(before);
        ran.changed = if is_readonly || changed == 0 { 0 } else { self.connection.changes() };
        Ok(ran)
    }
}

fn too_large(limits: &Limits) -> Refusal {
    Refusal::new(SqlCode::ResultLimit, format!("the result is larger than {} bytes", limits.result))
}

/// Returns the size of the values of a row, in bytes.
fn size(row: &rusqlite::Row<'_>, columns: usize) -> u64 {
    use rusqlite::types::ValueRef;
    (0..columns)
        .map(|at| match row.get_ref(at) {
            Ok(ValueRef::Text(bytes) | ValueRef::Blob(bytes)) => bytes.len() as u64,
            Ok(_) => 8,
            Err(_) => 0,
        })
        .sum()
}

/// Reports whether a statement contains `REPLACE INTO`, `INSERT OR REPLACE` or `UPDATE OR REPLACE`.
fn replaces_by_its_words(sql: &str) -> bool {
    has_pair(sql, &[("replace", "into"), ("or", "replace")])
}

/// Reports whether the definition of a table contains `ON CONFLICT REPLACE`.
fn replaces_on_conflict(sql: &str) -> bool {
    has_pair(sql, &[("conflict", "replace")])
}

/// Reports whether a text contains one of these pairs of adjacent words.
fn has_pair(sql: &str, pairs: &[(&str, &str)]) -> bool {
    let pieces = text::pieces(sql, Dialect::Sqlite);
    let solid: Vec<&(Piece, Range<usize>)> =
        pieces.iter().filter(|(piece, _)| !matches!(piece, Piece::Space | Piece::Comment)).collect();
    let is =
        |at: &(Piece, Range<usize>), word: &str| at.0 == Piece::Word && sql[at.1.clone()].eq_ignore_ascii_case(word);
    solid.windows(2).any(|two| pairs.iter().any(|(first, second)| is(two[0], first) && is(two[1], second)))
}

/// Returns a single-quoted string for a double-quoted text, padded to the same length if it is shorter.
fn single_quoted(token: &str) -> String {
    let plain = token[1..token.len() - 1].replace("\"\"", "\"").replace('\'', " ");
    let mut string = format!("'{plain}'");
    while string.len() < token.len() {
        string.push(' ');
    }
    string
}

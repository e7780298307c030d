//! Runs SQLite, which is linked in. SQLite's authorizer reports what a statement does while SQLite prepares it. The
//! same authorizer refuses at run time what the policy does not allow.
//!
//! Sources: <https://sqlite.org/c3ref/set_authorizer.html>, <https://sqlite.org/c3ref/c_dbconfig_defensive.html>,
//! <https://sqlite.org/security.html>, <https://sqlite.org/quirks.html#dblquote>.

mod builtin_allowlist;
mod catalog_reader;
mod database_file;
mod definition_comments;
mod opened_tables;
mod quoted_strings;
mod restricted_schema;
mod schema_definitions;
mod scratch_insertion;
mod sqlite_errors;
mod statement_execution;
mod statement_observer;
mod statement_program;

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use proctor_core::sql::{Dialect, SqlCode, SqlColumn, SqlPolicy, SqlRequest, SqlResourceLimits};
use rusqlite::Connection;
use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;

use crate::allow_lists::NameLists;
use crate::catalog::{Catalog, CatalogTable, SchemaComment};
use crate::engine::{Action, BoundStatement, EngineRefusal, ExecutionBounds, SqlEngine, StatementOutcome};
use crate::lexer::{self, SqlTokenKind};
use crate::name_suggestions;
use crate::row_buffer::RowBuffer;
use crate::scratch_value::ScratchValue;
use restricted_schema::RestrictedSchema;
use statement_observer::{StatementObserver, StatementOrigin};

/// The number of instructions between two checks of the deadline.
const PROGRESS_INTERVAL: i32 = 1_000;
/// The number of statements that stay prepared.
const MAX_CACHED_STATEMENTS: usize = 64;
/// The maximum number of double-quoted strings in a statement.
const MAX_STRINGS: usize = 128;

/// An SQLite database in memory, or a file that is opened read-only.
pub struct Sqlite {
    connection: Connection,
    observer: Arc<StatementObserver>,
    catalog: Catalog,
    functions: BTreeSet<String>,
    /// The registered modules of virtual tables. A statement may read some of them without `CREATE VIRTUAL TABLE`.
    modules: BTreeSet<String>,
    /// True if statements since the last `begin` changed the schema.
    has_schema_changes: bool,
    /// The maximum number of instructions for one part of the schema.
    max_schema_steps: u64,
    /// The table that owns each root page; `None` until it is needed.
    root_pages: Option<statement_program::RootPages>,
    /// True if the body of a view or a trigger can use tables that the authorizer does not report.
    has_bodies_with_unreported_tables: bool,
    /// True if rows of one table can come from rows of another: through a trigger or a virtual table.
    has_derived_rows: bool,
    /// The tables that replace existing rows with the same key.
    replacing_tables: BTreeSet<String>,
    /// The schema as restricted by the lists of the last request.
    restricted: Option<Box<RestrictedSchema>>,
    /// True if the effects on the database file may be kept.
    is_for_commit: bool,
}

impl Sqlite {
    /// Opens a database for a request: its file, if it names one, then its schema.
    ///
    /// # Errors
    /// The file is not a database or is too large, or the schema cannot be set up.
    pub fn open(request: &SqlRequest) -> Result<Self, EngineRefusal> {
        let limits = request.limits;
        let deadline = Instant::now() + limits.wall_time();
        let connection = match &request.database {
            Some(file) => database_file::open_database_file(Path::new(file), request)?,
            None => Connection::open_in_memory().map_err(|error| sqlite_errors::engine_failure(&error))?,
        };
        let mut engine = Self::from_connection(connection, &limits)?;
        engine.apply_schema(&request.schema, deadline)?;
        engine.set_trusted(false)?;
        Ok(engine)
    }

    /// Opens the database file of a request to change it, and begins a transaction during which other programs cannot
    /// write.
    ///
    /// # Errors
    /// The file cannot be opened for writing, or another program keeps its lock.
    pub fn open_for_commit(request: &SqlRequest) -> Result<Self, EngineRefusal> {
        let file = Path::new(request.database.as_deref().unwrap_or_default());
        let connection = database_file::open_for_writing(file, &request.limits)?;
        let mut engine = Self::from_connection(connection, &request.limits)?;
        engine.observer.begin_internal();
        engine.connection.execute_batch("BEGIN IMMEDIATE").map_err(|error| sqlite_errors::engine_failure(&error))?;
        engine.refresh()?;
        engine.set_trusted(false)?;
        engine.is_for_commit = true;
        Ok(engine)
    }

    /// Copies the database to memory, as its current transaction sees it, with the settings of a request.
    ///
    /// # Errors
    /// The database is too large.
    pub fn copy(&mut self, request: &SqlRequest) -> Result<Self, EngineRefusal> {
        self.observer.begin_internal();
        let file = Path::new(request.database.as_deref().unwrap_or_default());
        let connection = database_file::copy_to_memory(&mut self.connection, file, &request.limits)?;
        let mut copy = Self::from_connection(connection, &request.limits)?;
        copy.refresh()?;
        copy.set_trusted(false)?;
        Ok(copy)
    }

    fn from_connection(mut connection: Connection, limits: &SqlResourceLimits) -> Result<Self, EngineRefusal> {
        let watch = Arc::new(StatementObserver::new());
        let refused = |error: rusqlite::Error| sqlite_errors::engine_failure(&error);
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
        connection.set_prepared_statement_cache_capacity(MAX_CACHED_STATEMENTS);
        let authorizer = Arc::clone(&watch);
        connection
            .authorizer(Some(move |context: rusqlite::hooks::AuthContext<'_>| authorizer.authorize(&context)))
            .map_err(refused)?;
        let progress = Arc::clone(&watch);
        connection
            .progress_handler(PROGRESS_INTERVAL, Some(move || progress.should_interrupt(PROGRESS_INTERVAL)))
            .map_err(refused)?;
        for config in [DbConfig::SQLITE_DBCONFIG_DEFENSIVE, DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER] {
            connection.set_db_config(config, true).map_err(refused)?;
        }
        for config in [DbConfig::SQLITE_DBCONFIG_ENABLE_FTS3_TOKENIZER, DbConfig::SQLITE_DBCONFIG_WRITABLE_SCHEMA] {
            connection.set_db_config(config, false).map_err(refused)?;
        }
        Ok(Self {
            connection,
            observer: watch,
            catalog: Catalog::default(),
            functions: BTreeSet::new(),
            modules: BTreeSet::new(),
            has_schema_changes: false,
            max_schema_steps: limits.steps,
            root_pages: None,
            has_bodies_with_unreported_tables: false,
            has_derived_rows: false,
            replacing_tables: BTreeSet::new(),
            restricted: None,
            is_for_commit: false,
        })
    }

    /// Executes the parts of a schema. Their statements may do what SQLite allows by default.
    fn apply_schema(&mut self, schema: &[String], deadline: Instant) -> Result<(), EngineRefusal> {
        for (number, text) in schema.iter().enumerate() {
            self.observer.begin_statement(StatementOrigin::Schema, self.max_schema_steps, deadline);
            let done = self.connection.execute_batch(text);
            if let Err(error) = done {
                let refusal = sqlite_errors::refusal_from_error(&error, text, self.observer.interrupt_reason());
                let message = sqlite_errors::schema_message(number + 1, &refusal.message);
                return Err(EngineRefusal { code: SqlCode::SchemaBroken, message, range: None, ..refusal });
            }
        }
        self.observer.begin_internal();
        if !self.connection.is_autocommit() {
            let _ = self.connection.execute_batch("COMMIT");
        }
        self.refresh()
    }

    /// Sets whether SQLite trusts schemas and accepts double-quoted strings. Both are off while statements of a request
    /// are judged.
    fn set_trusted(&mut self, is_trusted: bool) -> Result<(), EngineRefusal> {
        for config in [
            DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA,
            DbConfig::SQLITE_DBCONFIG_DQS_DML,
            DbConfig::SQLITE_DBCONFIG_DQS_DDL,
        ] {
            self.connection.set_db_config(config, is_trusted).map_err(|error| sqlite_errors::engine_failure(&error))?;
        }
        Ok(())
    }

    /// Updates the catalog after a statement that changed the schema.
    fn update_catalog(
        &mut self,
        sql: &str,
        bound: &BoundStatement,
        on: ExecutionBounds<'_>,
    ) -> Result<(), EngineRefusal> {
        if bound.schema_changes().next().is_none() {
            return Ok(());
        }
        self.root_pages = None;
        self.has_schema_changes = true;
        self.has_bodies_with_unreported_tables |= statement_program::may_hide_tables(sql, true);
        self.has_derived_rows = true;
        if self.restricted.as_mut().is_some_and(|restricted| !restricted.apply_schema_change(sql, on)) {
            self.restricted = None;
        }
        if bound.schema_changes().any(|(what, _)| what == "create table") && has_replace_on_conflict(sql) {
            self.replacing_tables.extend(bound.schema_changes().map(|(_, name)| name.to_ascii_lowercase()));
        }
        let mut changes =
            bound.schema_changes().filter(|(what, _)| !matches!(*what, "create index" | "create trigger"));
        let (first, second) = (changes.next(), changes.next());
        match (first, second) {
            (None, _) => return Ok(()),
            // With IF NOT EXISTS the table may have existed before, with another spelling of its name.
            (Some((what @ ("create table" | "create view"), name)), None) if self.catalog.table(name).is_none() => {
                self.observer.begin_internal();
                let made = catalog_reader::read_table(&self.connection, name.to_owned(), what == "create view");
                self.catalog.insert_sorted(made.map_err(|error| self.internal_refusal(&error))?);
            }
            _ => self.read_schema()?,
        }
        Ok(())
    }

    /// Reads the whole schema again, and drops everything that was derived from it.
    fn refresh(&mut self) -> Result<(), EngineRefusal> {
        self.restricted = None;
        self.root_pages = None;
        self.read_schema()
    }

    fn read_schema(&mut self) -> Result<(), EngineRefusal> {
        self.observer.begin_internal();
        let observer = Arc::clone(&self.observer);
        let failed = |error| sqlite_errors::refusal_from_internal_error(&error, observer.interrupt_reason());
        self.catalog = catalog_reader::read_catalog(&self.connection).map_err(failed)?;
        let bodies = catalog_reader::read_bodies(&self.connection).map_err(failed)?;
        self.has_bodies_with_unreported_tables = bodies.iter().any(|sql| statement_program::may_hide_tables(sql, true));
        self.has_derived_rows = catalog_reader::has_derived_rows(&self.connection).map_err(failed)?;
        let definitions = catalog_reader::read_replacing_definitions(&self.connection).map_err(failed)?;
        let replacing = definitions.into_iter().filter(|(_, sql)| has_replace_on_conflict(sql));
        self.replacing_tables = replacing.map(|(name, _)| name.to_ascii_lowercase()).collect();
        if self.functions.is_empty() {
            self.functions = builtin_allowlist::read_functions(&self.connection).map_err(failed)?;
            self.modules = builtin_allowlist::read_modules(&self.connection).map_err(failed)?;
        }
        Ok(())
    }

    /// Converts the error of an internal statement: a limit, if the statement was interrupted, or a failure of the
    /// engine.
    fn internal_refusal(&self, error: &rusqlite::Error) -> EngineRefusal {
        sqlite_errors::refusal_from_internal_error(error, self.observer.interrupt_reason())
    }

    fn bind_statement(&mut self, sql: &str, on: ExecutionBounds<'_>) -> Result<BoundStatement, EngineRefusal> {
        let bound = self.collect_actions(sql, on)?;
        self.with_opened_tables(bound, sql, on)
    }

    /// Prepares a statement and collects what the authorizer reports.
    fn collect_actions(&mut self, sql: &str, on: ExecutionBounds<'_>) -> Result<BoundStatement, EngineRefusal> {
        self.observer.begin_statement(StatementOrigin::PrepareOnly, on.limits.steps, on.deadline);
        let prepared = self.connection.prepare(sql);
        let mut noted = self.observer.take_observed();
        noted.actions.retain(|action| !self.is_local_cte_read(action));
        let bound = match prepared {
            Ok(statement) => BoundStatement {
                actions: noted.actions,
                columns: statement
                    .columns()
                    .map(|column| SqlColumn {
                        name: column.name().to_owned(),
                        kind: column.decl_type().map(str::to_owned),
                    })
                    .collect(),
                parameters: statement.parameter_count(),
                writes_in_with: false,
                is_explain: statement.is_explain() > 0,
                is_readonly: statement.readonly(),
                is_query: noted.is_query,
                double_quoted_strings: Vec::new(),
            },
            // SQLite refused to prepare the statement because of a forbidden action; the actions so far describe it.
            Err(_) if noted.is_denied => {
                return Ok(BoundStatement { actions: noted.actions, ..BoundStatement::default() });
            }
            Err(error) => return Err(sqlite_errors::refusal_from_error(&error, sql, self.observer.interrupt_reason())),
        };
        Ok(self.with_replaced_rows(bound, sql))
    }

    /// Adds the deletion of rows that a statement replaces because their keys exist already. The authorizer reports
    /// only the insertion.
    fn with_replaced_rows(&self, mut bound: BoundStatement, sql: &str) -> BoundStatement {
        let written: BTreeSet<String> = bound
            .actions
            .iter()
            .filter_map(|action| match action {
                Action::Insert(table) | Action::Update { table, .. } => Some(table.clone()),
                _ => None,
            })
            .collect();
        let has_clause = !written.is_empty() && has_replace_clause(sql);
        let replaced = written
            .into_iter()
            .filter(|table| has_clause || self.replacing_tables.contains(&table.to_ascii_lowercase()));
        bound.actions.extend(replaced.map(|table| Action::Update { table, column: "*".to_owned() }));
        bound
    }

    /// Reports whether an action reads a common table expression of the statement itself. SQLite reports only its name,
    /// as it does for a table of which no column is read.
    fn is_local_cte_read(&self, action: &Action) -> bool {
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
    fn classify_quoted_string(
        &self,
        sql: &str,
        refusal: &EngineRefusal,
    ) -> Option<Result<Range<usize>, EngineRefusal>> {
        let (SqlCode::UnknownColumn, Some(place)) = (refusal.code, refusal.range.clone()) else { return None };
        let token = sql.get(place.clone()).filter(|token| token.starts_with('"') && token.ends_with('"'))?;
        let name = lexer::unquote(token);
        let in_scope = self.mentioned_columns(sql);
        let near: Vec<String> = name_suggestions::typo_candidates(&name, in_scope.iter().map(String::as_str));
        let is_column = |name: &str| in_scope.iter().any(|column| column.eq_ignore_ascii_case(name));
        // A value may resemble the name of a column: `region = "region0"`.
        let is_value = quoted_strings::is_string_value(sql, &place, is_column)
            && !near.iter().any(|column| quoted_strings::is_transposition(&name, column));
        if near.is_empty() || is_value {
            return Some(Ok(place));
        }
        let message =
            format!("\"{name}\" is not a column here, and SQLite would silently compare with the string '{name}'");
        Some(Err(EngineRefusal {
            code: SqlCode::MisspeltIdentifier,
            message,
            engine_code: refusal.engine_code.clone(),
            range: Some(place),
            subject: Some(name),
            candidates: near,
        }))
    }

    /// Returns the columns of all tables that a text mentions.
    fn mentioned_columns(&self, sql: &str) -> Vec<String> {
        let words: BTreeSet<String> = lexer::tokenize(sql, Dialect::Sqlite)
            .into_iter()
            .filter(|(piece, _)| matches!(piece, SqlTokenKind::Word | SqlTokenKind::Quoted))
            .map(|(_, range)| lexer::unquote(&sql[range]).to_ascii_lowercase())
            .collect();
        let named = self.catalog.tables.iter().filter(|table| words.contains(&table.name.to_ascii_lowercase()));
        named.flat_map(|table| table.columns.iter().map(|column| column.name.clone())).collect()
    }
}

impl SqlEngine for Sqlite {
    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    fn version(&self) -> String {
        format!("SQLite {}", rusqlite::version())
    }

    fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    fn comments(&mut self, _deadline: Instant) -> Result<Vec<SchemaComment>, EngineRefusal> {
        self.observer.begin_internal();
        let definitions = catalog_reader::read_table_definitions(&self.connection);
        let definitions = definitions.map_err(|error| self.internal_refusal(&error))?;
        Ok(definitions.iter().flat_map(|(table, sql)| definition_comments::find(table, sql)).collect())
    }

    fn functions(&self) -> &BTreeSet<String> {
        &self.functions
    }

    fn is_harmless_function(&self, function: &str) -> bool {
        builtin_allowlist::is_harmless_function(function)
    }

    fn is_harmless_table(&self, table: &str) -> bool {
        builtin_allowlist::is_harmless_table(table)
    }

    fn is_pure_table(&self, table: &str) -> bool {
        builtin_allowlist::is_pure_table(table)
    }

    fn check_lists(
        &mut self,
        sql: &str,
        bound: &BoundStatement,
        allow: &NameLists,
        on: ExecutionBounds<'_>,
    ) -> Result<(), EngineRefusal> {
        let mut restricted = match self.restricted.take() {
            Some(restricted) if restricted.is_for_lists(allow) => restricted,
            _ => Box::new(RestrictedSchema::from_schema(self, allow, on)?),
        };
        let mut plain = sql.to_owned();
        for place in &bound.double_quoted_strings {
            let string = to_single_quoted(&plain[place.clone()]);
            plain.replace_range(place.clone(), &string);
        }
        let checked = restricted.check(&plain, bound, on);
        self.restricted = Some(restricted);
        checked
    }

    fn split(&mut self, sql: &str) -> Result<Vec<Range<usize>>, EngineRefusal> {
        Ok(lexer::statement_ranges(sql, Dialect::Sqlite))
    }

    fn bind(&mut self, sql: &str, on: ExecutionBounds<'_>) -> Result<BoundStatement, EngineRefusal> {
        let mut plain = sql.to_owned();
        let mut strings = Vec::new();
        loop {
            // Each string in double quotes makes SQLite prepare the whole text again.
            if Instant::now() > on.deadline {
                return Err(EngineRefusal::new(SqlCode::TimeLimit, "it did not end within its time limit"));
            }
            match self.bind_statement(&plain, on) {
                Ok(bound) => return Ok(BoundStatement { double_quoted_strings: strings, ..bound }),
                Err(refusal) => match self.classify_quoted_string(&plain, &refusal) {
                    Some(Ok(place)) if strings.len() < MAX_STRINGS => {
                        // The replacement has the same length, so that other positions stay valid.
                        let string = to_single_quoted(&plain[place.clone()]);
                        plain.replace_range(place.clone(), &string);
                        strings.push(place);
                    }
                    Some(Err(slip)) => return Err(slip),
                    _ => return Err(refusal),
                },
            }
        }
    }

    fn begin(&mut self) -> Result<(), EngineRefusal> {
        self.observer.begin_internal();
        self.execute_cached("BEGIN")
    }

    fn rollback(&mut self) -> Result<(), EngineRefusal> {
        self.observer.begin_internal();
        // A failed statement may already have rolled back.
        if self.connection.is_autocommit() {
            return Ok(());
        }
        self.execute_cached("ROLLBACK")?;
        if std::mem::take(&mut self.has_schema_changes) { self.refresh() } else { Ok(()) }
    }

    fn commit(&mut self) -> Result<(), EngineRefusal> {
        if !self.is_for_commit {
            return Err(EngineRefusal::new(SqlCode::EngineFailed, "the database is not open for lasting changes"));
        }
        self.observer.begin_internal();
        self.connection.execute_batch("COMMIT").map_err(|error| sqlite_errors::engine_failure(&error))
    }

    fn extend_schema(&mut self, schema: &[String], deadline: Instant) -> Result<(), EngineRefusal> {
        self.set_trusted(true)?;
        self.apply_schema(schema, deadline)?;
        self.set_trusted(false)
    }

    fn is_restored(&self) -> bool {
        true
    }

    fn run_into(
        &mut self,
        sql: &str,
        bound: &BoundStatement,
        policy: SqlPolicy,
        on: ExecutionBounds<'_>,
        rows: Option<&mut RowBuffer>,
    ) -> Result<StatementOutcome, EngineRefusal> {
        let has_strings = !bound.double_quoted_strings.is_empty();
        let set_string_compatibility = |connection: &Connection, is_on| {
            let set = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DML, is_on);
            set.map_err(|error| sqlite_errors::engine_failure(&error))
        };
        if has_strings {
            set_string_compatibility(&self.connection, true)?;
        }
        let ran = self.execute_under_policy(sql, policy, on, rows);
        if has_strings {
            set_string_compatibility(&self.connection, false)?;
        }
        if policy == SqlPolicy::Migrate && ran.is_ok() {
            self.update_catalog(sql, bound, on)?;
        }
        ran
    }

    fn query_number(&mut self, sql: &str, on: ExecutionBounds<'_>) -> Result<i64, EngineRefusal> {
        self.observer.begin_statement(StatementOrigin::Internal, on.limits.steps, on.deadline);
        self.connection.query_row(sql, [], |row| row.get(0)).map_err(|error| self.internal_refusal(&error))
    }

    fn execute_internal(&mut self, sql: &str, on: ExecutionBounds<'_>) -> Result<bool, EngineRefusal> {
        self.execute_insertion(sql, on)
    }

    fn is_table_empty(&mut self, table: &CatalogTable, on: ExecutionBounds<'_>) -> Result<bool, EngineRefusal> {
        self.has_no_rows(table, on)
    }

    fn insert_scratch_rows(
        &mut self,
        table: &CatalogTable,
        rows: &[Vec<ScratchValue>],
        on: ExecutionBounds<'_>,
    ) -> Result<(), EngineRefusal> {
        self.insert_rows(table, rows, on)
    }

    fn source_tables(&self, statements: &[&BoundStatement]) -> Option<BTreeSet<String>> {
        self.row_source_tables(statements)
    }
}

/// Reports whether a statement contains `REPLACE INTO`, `INSERT OR REPLACE` or `UPDATE OR REPLACE`.
fn has_replace_clause(sql: &str) -> bool {
    has_word_pair(sql, &[("replace", "into"), ("or", "replace")])
}

/// Reports whether the definition of a table contains `ON CONFLICT REPLACE`.
fn has_replace_on_conflict(sql: &str) -> bool {
    has_word_pair(sql, &[("conflict", "replace")])
}

/// Reports whether a text contains one of these pairs of adjacent words.
fn has_word_pair(sql: &str, pairs: &[(&str, &str)]) -> bool {
    let pieces = lexer::tokenize(sql, Dialect::Sqlite);
    let solid: Vec<&(SqlTokenKind, Range<usize>)> =
        pieces.iter().filter(|(piece, _)| !matches!(piece, SqlTokenKind::Whitespace | SqlTokenKind::Comment)).collect();
    let is = |at: &(SqlTokenKind, Range<usize>), word: &str| {
        at.0 == SqlTokenKind::Word && sql[at.1.clone()].eq_ignore_ascii_case(word)
    };
    solid.windows(2).any(|two| pairs.iter().any(|(first, second)| is(two[0], first) && is(two[1], second)))
}

/// Returns a single-quoted string for a double-quoted text, padded to the same length if it is shorter.
fn to_single_quoted(token: &str) -> String {
    let plain = token[1..token.len() - 1].replace("\"\"", "\"").replace('\'', " ");
    let mut string = format!("'{plain}'");
    while string.len() < token.len() {
        string.push(' ');
    }
    string
}

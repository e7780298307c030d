//! Runs PostgreSQL, whose server programs are started in the sandbox of the worker if they are installed. The server
//! resolves every name of a statement; the resolved tree shows what the statement does.
//!
//! To get the tree, the statement becomes the body of a temporary function, which is never called. The server parses
//! such a body when the function is created, and stores the tree (`CREATE FUNCTION … BEGIN ATOMIC … END`).
//!
//! Sources: <https://www.postgresql.org/docs/current/sql-createfunction.html>,
//! <https://www.postgresql.org/docs/current/protocol-flow.html>.

mod affected_relations;
mod builtin_allowlist;
mod catalog_reader;
mod command_tokens;
mod commands;
mod definitions;
pub(crate) mod external_database;
mod list_checks;
mod node_tree;
mod postgres_errors;
mod row_values;
mod server;
mod session;
mod statement_actions;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use proctor_core::sql::{Dialect, SqlCode, SqlColumn, SqlPolicy, SqlRequest};
use tokio_postgres::Statement;
use tokio_postgres::types::Type;

use crate::allow_lists::NameLists;
use crate::catalog::{Catalog, CatalogTable, SchemaComment};
use crate::engine::{
    Action, BoundStatement, EngineRefusal, ExecutionBounds, SqlEngine, StatementKind, StatementOutcome,
};
use crate::lexer;
use crate::provisioner::{Provisioned, Provisioner};
use crate::row_buffer::RowBuffer;
use crate::scratch_rows;
use crate::scratch_value::ScratchValue;
use crate::server_files;
use crate::server_files::{ServerError, ServerFiles};
use catalog_reader::{DatabaseContent, RelationKind};
use definitions::DefiningQuery;
use session::{Effects, RowCount, Session, SessionError};

pub use server::{PostgresPrograms, Server, write_template};

/// The name of the function whose body is the statement.
const ANALYSIS_FUNCTION: &str = "pg_temp.proctor_statement";
/// The savepoint before the creation of the function.
const ANALYSIS_SAVEPOINT: &str = "proctor_analysis";
/// The end of the server's message about a command that cannot be the body of a function. The name of the command
/// precedes it.
const NOT_IN_BODY: &str = " is not yet supported in unquoted SQL function body";
/// The time for operations that end a judgement.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(10);

/// The server of a worker, for all of its databases.
pub type PostgresServer = Provisioned<LocalPostgres>;

/// Starts servers of the installed version.
pub struct LocalPostgres {
    programs: Result<PostgresPrograms, ServerError>,
    files: ServerFiles,
}

/// A database on a server.
pub struct Postgres {
    session: Option<Session>,
    server: Arc<Server>,
    database: String,
    version: String,
    content: DatabaseContent,
    /// True if statements since the last `begin` changed the schema.
    has_schema_changes: bool,
}

impl LocalPostgres {
    /// Creates the value; no server is started yet.
    pub fn new(programs: Result<PostgresPrograms, ServerError>, files: ServerFiles) -> Self {
        Self { programs, files }
    }
}

/// Returns the URL of the first database of a server whose socket is in a directory.
pub(crate) fn first_database_url(directory: &std::path::Path) -> String {
    let database = server_files::database_name(0);
    format!("postgresql://{}@/{database}?host={}", server::owner_of(&database), directory.display())
}

impl Provisioner for LocalPostgres {
    type Server = Arc<Server>;

    fn provision(&self) -> Result<Arc<Server>, ServerError> {
        match &self.programs {
            Ok(programs) => Server::start(programs, &self.files),
            Err(_) => Err(server::NOT_INSTALLED),
        }
    }

    fn is_usable(&self, server: &Arc<Server>) -> bool {
        !server.has_ended()
    }
}

impl Postgres {
    /// Creates a database for a request, with its schema.
    ///
    /// # Errors
    /// No server is installed or runs, or the schema cannot be set up.
    pub fn open(server: &mut PostgresServer, request: &SqlRequest) -> Result<Self, EngineRefusal> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let deadline = Instant::now() + request.limits.wall_time();
        if request.database.is_some() {
            let message = "PostgreSQL judges no database file; send the schema instead";
            return Err(EngineRefusal::new(SqlCode::SchemaBroken, message));
        }
        let database = server_files::database_name(NEXT.fetch_add(1, Ordering::Relaxed));
        let running =
            server.prepared_server(|running| running.create_database(&database)).map_err(|error| match error {
                ServerError::NotInstalled { .. } => EngineRefusal::new(SqlCode::EngineMissing, error.to_string()),
                other => EngineRefusal::new(SqlCode::EngineFailed, format!("the server cannot be used: {other}")),
            })?;
        // From this point on, dropping the engine removes the database.
        let mut engine = Self {
            session: None,
            server: running,
            database,
            version: String::new(),
            content: DatabaseContent::default(),
            has_schema_changes: false,
        };
        engine.apply_schema(&request.schema, deadline)?;
        Ok(engine)
    }

    fn connect(&self) -> Result<Session, EngineRefusal> {
        let owner = server::owner_of(&self.database);
        let connected = Session::connect(&self.server.socket_directory(), &owner, &self.database);
        connected.map_err(|error| postgres_errors::to_internal_refusal(&error))
    }

    /// Sets up parts of a schema on a separate connection, since they may change its settings, and reads the
    /// content of the database on a new one.
    fn apply_schema(&mut self, schema: &[String], deadline: Instant) -> Result<(), EngineRefusal> {
        let setup = self.connect()?;
        for part in schema {
            setup.execute_batch(part, deadline).map_err(|error| {
                let refusal = postgres_errors::to_refusal(&error, part);
                let code =
                    if crate::engine::is_limit_code(refusal.code) { refusal.code } else { SqlCode::SchemaBroken };
                EngineRefusal::new(code, format!("the schema cannot be set up: {}", refusal.message))
            })?;
        }
        drop(setup);
        let session = self.connect()?;
        session.reset_meaning(deadline).map_err(|error| postgres_errors::to_internal_refusal(&error))?;
        let version = session.query_texts("SHOW server_version", deadline);
        let version = version.map_err(|error| postgres_errors::to_internal_refusal(&error))?;
        let version = version.into_iter().flatten().flatten().next().unwrap_or_default();
        self.version = version.split(' ').next().unwrap_or_default().to_owned();
        self.session = Some(session);
        self.refresh(deadline)
    }

    fn refresh(&mut self, deadline: Instant) -> Result<(), EngineRefusal> {
        let read = self.session()?;
        self.content =
            DatabaseContent::read(read, deadline).map_err(|error| postgres_errors::to_internal_refusal(&error))?;
        Ok(())
    }

    fn session(&self) -> Result<&Session, EngineRefusal> {
        self.session.as_ref().ok_or_else(|| EngineRefusal::new(SqlCode::EngineFailed, "there is no connection"))
    }

    /// Does some work on the session in a savepoint or a transaction.
    fn isolated<T>(
        &mut self,
        effects: Effects,
        deadline: Instant,
        work: impl FnOnce(&Session, &DatabaseContent) -> Result<T, SessionError>,
    ) -> Result<T, SessionError> {
        let content = &self.content;
        // The session is only missing while an engine is opened.
        let Some(session) = &mut self.session else { return Err(SessionError::TimedOut) };
        session.isolated(effects, deadline, |session| work(session, content))
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.session = None;
        // A database that remains ends with its server.
        let _ = self.server.drop_database(&self.database);
    }
}

/// Prepares a statement, and finds out what it does.
fn bind_statement(
    session: &Session,
    content: &DatabaseContent,
    sql: &str,
    deadline: Instant,
) -> Result<BoundStatement, SessionError> {
    let prepared = session.prepare(sql, deadline)?;
    let mut bound = BoundStatement {
        columns: result_columns(&prepared),
        parameters: prepared.params().len(),
        ..BoundStatement::default()
    };
    match read_tree(session, sql, &prepared, deadline)? {
        StatementTree::Tree(tree) => {
            bound.actions = match node_tree::read(&tree) {
                Some(facts) if facts.uses_cursor => return Err(SessionError::NoCursor),
                Some(facts) => {
                    bound.writes_in_with = facts.writes_in_with;
                    statement_actions::from_facts(&facts, content, session, deadline)?
                }
                None => BTreeSet::from([Action::Other("the tree of the statement cannot be read".to_owned())]),
            };
            bound.is_query = !bound.columns.is_empty();
            bound.is_readonly = !bound.actions.iter().any(is_change);
        }
        StatementTree::Command(command) if command == "EXPLAIN" => {
            let explained = commands::explained(sql);
            bound.actions = match &explained {
                Some(found) => bind_statement(session, content, found.inner, deadline)?.actions,
                None => BTreeSet::from([Action::Other("`EXPLAIN`".to_owned())]),
            };
            bound.is_explain = explained.is_some_and(|found| !found.is_run);
            bound.is_readonly = !bound.actions.iter().any(is_change);
            bound.is_query = true;
        }
        StatementTree::Command(command) => {
            bound.actions = commands::actions(&command, sql, &content.functions);
            if bound.kind() == StatementKind::Schema {
                match definitions::defining_query(&command, sql) {
                    DefiningQuery::None => {}
                    DefiningQuery::Query(query) => {
                        bound.actions.extend(bind_statement(session, content, &query, deadline)?.actions);
                    }
                    DefiningQuery::Unreadable => {
                        bound.actions.insert(Action::Other("a definition whose query cannot be read".to_owned()));
                    }
                }
                let called = statement_actions::truncation_calls(content, sql, &bound);
                bound.actions.extend(called);
            }
        }
    }
    Ok(bound)
}

fn is_change(action: &Action) -> bool {
    matches!(action, Action::Insert(_) | Action::Update { .. } | Action::Delete(_) | Action::Schema { .. })
}

fn result_columns(prepared: &Statement) -> Vec<SqlColumn> {
    let columns = prepared.columns().iter();
    columns
        .map(|column| SqlColumn {
            name: column.name().to_owned(),
            kind: Some(column.type_().name().to_owned()).filter(|name| name != "unknown"),
        })
        .collect()
}

/// The server's description of a statement, which it parsed as the body of a function.
enum StatementTree {
    /// The resolved tree of a query or a change of rows.
    Tree(String),
    /// The name of any other command.
    Command(String),
}

fn read_tree(
    session: &Session,
    sql: &str,
    prepared: &Statement,
    deadline: Instant,
) -> Result<StatementTree, SessionError> {
    let parameters: Vec<String> = prepared.params().iter().map(|kind| kind.oid().to_string()).collect();
    let types = if parameters.is_empty() {
        String::new()
    } else {
        let values = parameters.iter().enumerate().map(|(at, oid)| format!("({at}, {oid}::oid)"));
        let query = format!(
            "SELECT string_agg(pg_catalog.format_type(t.oid, NULL), ', ' ORDER BY t.at) FROM (VALUES {}) AS t(at, oid)",
            values.collect::<Vec<_>>().join(", ")
        );
        session.query_texts(&query, deadline)?.into_iter().flatten().flatten().next().unwrap_or_default()
    };
    // The statement has been prepared, so it is one statement. The server refuses a text with more than one here too.
    let body = sql.trim_end().trim_end_matches(';');
    let create =
        format!("CREATE FUNCTION {ANALYSIS_FUNCTION}({types}) RETURNS void LANGUAGE sql BEGIN ATOMIC\n{body}\n;\nEND");
    session.execute_batch(&format!("SAVEPOINT {ANALYSIS_SAVEPOINT}"), deadline)?;
    let tree = match session.execute(&create, deadline) {
        Ok(_) => StatementTree::Tree(read_body(session, deadline)?),
        Err(SessionError::Server(error)) => {
            let message = error.as_db_error().map(|reported| reported.message().to_owned()).unwrap_or_default();
            StatementTree::Command(match message.strip_suffix(NOT_IN_BODY) {
                Some(command) => command.to_owned(),
                None if message.starts_with("SELECT ... INTO is not allowed") => "SELECT INTO".to_owned(),
                None => format!("a statement that cannot be analysed ({message})"),
            })
        }
        Err(other) => return Err(other),
    };
    session.execute_batch(&format!("ROLLBACK TO SAVEPOINT {ANALYSIS_SAVEPOINT}"), deadline)?;
    Ok(tree)
}

/// Reads the tree of the function whose body is the statement.
fn read_body(session: &Session, deadline: Instant) -> Result<String, SessionError> {
    let query = "SELECT prosqlbody::text FROM pg_catalog.pg_proc \
        WHERE proname = 'proctor_statement' AND pronamespace = pg_catalog.pg_my_temp_schema()";
    Ok(session.query_texts(query, deadline)?.into_iter().flatten().flatten().next().unwrap_or_default())
}

impl SqlEngine for Postgres {
    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    fn version(&self) -> String {
        format!("PostgreSQL {}", self.version)
    }

    fn catalog(&self) -> &Catalog {
        &self.content.catalog
    }

    fn comments(&mut self, deadline: Instant) -> Result<Vec<SchemaComment>, EngineRefusal> {
        let comments = self.content.read_comments(self.session()?, deadline);
        comments.map_err(|error| postgres_errors::to_internal_refusal(&error))
    }

    fn functions(&self) -> &BTreeSet<String> {
        &self.content.functions
    }

    fn is_harmless_function(&self, function: &str) -> bool {
        self.content.harmless_functions.contains(&function.to_ascii_lowercase())
    }

    fn is_harmless_table(&self, _table: &str) -> bool {
        // Catalogs are reported as metadata.
        false
    }

    fn check_lists(
        &mut self,
        sql: &str,
        bound: &BoundStatement,
        allow: &NameLists,
        on: ExecutionBounds<'_>,
    ) -> Result<(), EngineRefusal> {
        list_checks::check_cascades(&self.content, bound, allow)?;
        list_checks::check_definition(&self.content, sql, bound, allow)?;
        if bound.kind() > StatementKind::Write {
            return Ok(());
        }
        // The server cannot prepare an `EXPLAIN`, but it can prepare the explained statement.
        let sql = commands::explained(sql).map_or(sql, |found| found.inner);
        let checked = self.isolated(Effects::Undo, on.deadline, |session, content| {
            list_checks::check_privileges(session, content, sql, bound.parameters, allow, on.deadline)
        });
        match checked {
            Ok(()) => Ok(()),
            Err(error) => Err(list_checks::refusal(&error, sql)),
        }
    }

    fn split(&mut self, sql: &str) -> Result<Vec<Range<usize>>, EngineRefusal> {
        let ranges = lexer::statement_ranges(sql, Dialect::Postgres);
        // The server refuses a range with several statements when it prepares it.
        Ok(ranges)
    }

    fn bind(&mut self, sql: &str, on: ExecutionBounds<'_>) -> Result<BoundStatement, EngineRefusal> {
        let bound = self.isolated(Effects::Undo, on.deadline, |session, content| {
            bind_statement(session, content, sql, on.deadline)
        });
        bound.map_err(|error| postgres_errors::to_refusal(&error, sql))
    }

    fn begin(&mut self) -> Result<(), EngineRefusal> {
        let Some(session) = &mut self.session else { return self.session().map(drop) };
        session.begin(Instant::now() + CLEANUP_TIMEOUT).map_err(|error| postgres_errors::to_internal_refusal(&error))
    }

    fn rollback(&mut self) -> Result<(), EngineRefusal> {
        let deadline = Instant::now() + CLEANUP_TIMEOUT;
        let Some(session) = &mut self.session else { return Ok(()) };
        if !session.is_in_transaction() {
            return Ok(());
        }
        session.rollback(deadline).map_err(|error| postgres_errors::to_internal_refusal(&error))?;
        if std::mem::take(&mut self.has_schema_changes) { self.refresh(deadline) } else { Ok(()) }
    }

    fn extend_schema(&mut self, schema: &[String], deadline: Instant) -> Result<(), EngineRefusal> {
        self.apply_schema(schema, deadline)
    }

    fn is_restored(&self) -> bool {
        // A rollback does not undo `nextval`.
        self.content.relations.values().all(|relation| relation.kind != RelationKind::Sequence)
    }

    fn run_into(
        &mut self,
        sql: &str,
        bound: &BoundStatement,
        policy: SqlPolicy,
        on: ExecutionBounds<'_>,
        rows: Option<&mut RowBuffer>,
    ) -> Result<StatementOutcome, EngineRefusal> {
        bound.check_policy(policy)?;
        let ran = self.isolated(Effects::Keep, on.deadline, |session, _| {
            let prepared = session.prepare(sql, on.deadline)?;
            let count = RowCount::of_statement(bound);
            let Some(rows) = rows else { return session.run(&prepared, count, on) };
            let columns: Vec<Type> = prepared.columns().iter().map(|column| column.type_().clone()).collect();
            session.run_into(sql, &columns, count, on.deadline, rows)
        });
        let ran = ran.map_err(|error| postgres_errors::to_refusal(&error, sql))?;
        if bound.kind() == StatementKind::Schema && self.session()?.is_in_transaction() {
            self.has_schema_changes = true;
            self.refresh(on.deadline)?;
        }
        Ok(ran)
    }

    fn query_number(&mut self, sql: &str, on: ExecutionBounds<'_>) -> Result<i64, EngineRefusal> {
        let query = format!("SELECT CAST(q.n AS text) FROM ({sql}) AS q(n)");
        let rows = self.isolated(Effects::Undo, on.deadline, |session, _| session.query_texts(&query, on.deadline));
        let rows = rows.map_err(|error| postgres_errors::to_internal_refusal(&error))?;
        let number = rows.into_iter().flatten().flatten().next().and_then(|text| text.parse().ok());
        number.ok_or_else(|| EngineRefusal::new(SqlCode::EngineFailed, "the engine returned no number"))
    }

    fn execute_internal(&mut self, sql: &str, on: ExecutionBounds<'_>) -> Result<bool, EngineRefusal> {
        match self.isolated(Effects::Keep, on.deadline, |session, _| session.execute(sql, on.deadline)) {
            Ok(_) => Ok(true),
            Err(error) => {
                let refusal = postgres_errors::to_internal_refusal(&error);
                if refusal.code == SqlCode::TimeLimit { Err(refusal) } else { Ok(false) }
            }
        }
    }

    fn insert_scratch_rows(
        &mut self,
        table: &CatalogTable,
        rows: &[Vec<ScratchValue>],
        on: ExecutionBounds<'_>,
    ) -> Result<(), EngineRefusal> {
        scratch_rows::insert_with_sql(self, table, rows, on)
    }

    fn source_tables(&self, statements: &[&BoundStatement]) -> Option<BTreeSet<String>> {
        if self.content.relations.values().any(|relation| relation.has_rules || !relation.triggers.is_empty()) {
            return None;
        }
        let wanted = statements.iter().flat_map(|bound| bound.tables()).map(str::to_ascii_lowercase).collect();
        Some(scratch_rows::with_referenced_tables(&self.content.catalog, wanted))
    }

    fn quote_name(&self, name: &str) -> String {
        self.content.quoted_names.get(name).cloned().unwrap_or_else(|| catalog_reader::quote_identifier(name))
    }
}

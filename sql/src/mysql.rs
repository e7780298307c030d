//! Judges MySQL with a MariaDB server, whose programs are started in the sandbox of the worker if they are installed.
//! The server resolves every name of a statement when it prepares it. It also checks all privileges then, which shows
//! the tables, columns and routines that the statement uses. The words of the statement show everything else.
//!
//! Sources: <https://mariadb.com/kb/en/com_stmt_prepare/>, <https://mariadb.com/kb/en/grant/>.

mod builtin_allowlist;
mod catalog_reader;
mod database_users;
pub(crate) mod external_database;
mod function_calls;
mod functional_dependence;
mod list_checks;
mod mysql8_forms;
mod mysql_errors;
mod privilege_probe;
mod row_values;
mod server;
mod server_flavor;
mod session;
mod statement_binding;
mod statement_form;
mod statement_tokens;
mod unchecked_reads;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use proctor_core::sql::{Dialect, SqlCode, SqlPolicy, SqlRequest};

use crate::allow_lists::NameLists;
use crate::catalog::{Catalog, CatalogTable, SchemaComment};
use crate::engine::{BoundStatement, EngineRefusal, ExecutionBounds, SqlEngine, StatementKind, StatementOutcome};
use crate::provisioner::{Provisioned, Provisioner};
use crate::row_buffer::RowBuffer;
use crate::scratch_value::ScratchValue;
use crate::server_files::{ServerError, ServerFiles};
use crate::{lexer, scratch_rows, server_files};
use catalog_reader::DatabaseContent;
use privilege_probe::{GivenPrivileges, PrivilegeProbe};
use session::{Session, SessionError, SqlMode};
use statement_binding::{Equivalents, StatementBinder, ViewActions};

pub use server::{MariadbPrograms, Server, write_template};

/// The time for operations that end a judgement.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(10);

/// The number of statements of MySQL 8 whose equivalents are kept. A statement is run soon after it was bound.
const MAX_EQUIVALENTS: usize = 256;

/// The server of a worker, for all of its databases.
pub type MariadbServer = Provisioned<LocalMariadb>;

/// Starts servers of the installed version.
pub struct LocalMariadb {
    programs: Result<MariadbPrograms, ServerError>,
    files: ServerFiles,
}

/// A database on a server.
pub struct Mysql {
    session: Option<Session>,
    probe: Option<PrivilegeProbe>,
    server: Arc<Server>,
    database: String,
    version: String,
    /// The parts from which the database was created.
    schema: Vec<String>,
    /// The memory that a connection may use, in bytes.
    memory: u64,
    content: DatabaseContent,
    view_actions: ViewActions,
    equivalents: Equivalents,
    is_in_transaction: bool,
    /// True if a rollback cannot restore the database.
    has_lasting_changes: bool,
    /// True if counters such as that of `AUTO_INCREMENT` may have moved.
    has_moved_counters: bool,
}

impl LocalMariadb {
    /// Creates the value; no server is started yet.
    pub fn new(programs: Result<MariadbPrograms, ServerError>, files: ServerFiles) -> Self {
        Self { programs, files }
    }
}

/// Returns the URL of the first database of a server whose socket is in a directory.
pub(crate) fn first_database_url(directory: &std::path::Path) -> String {
    let database = server_files::database_name(0);
    let (user, socket) = (database_users::owner_of(&database), server::socket_file(directory));
    format!("mysql://{user}@localhost/{database}?socket={}", socket.display())
}

impl Provisioner for LocalMariadb {
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

impl Mysql {
    /// Creates a database for a request, with its schema.
    ///
    /// # Errors
    /// No server is installed or runs, or the schema cannot be set up.
    pub fn open(server: &mut MariadbServer, request: &SqlRequest) -> Result<Self, EngineRefusal> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let deadline = Instant::now() + request.limits.wall_time();
        if request.database.is_some() {
            let message = "MySQL judges no database file; send the schema instead";
            return Err(EngineRefusal::new(SqlCode::SchemaBroken, message));
        }
        let database = server_files::database_name(NEXT.fetch_add(1, Ordering::Relaxed));
        let running =
            server.prepared_server(|running| Ok(running.create_database(&database)?)).map_err(|error| match error {
                ServerError::NotInstalled { .. } => EngineRefusal::new(SqlCode::EngineMissing, error.to_string()),
                other => EngineRefusal::new(SqlCode::EngineFailed, format!("the server cannot be used: {other}")),
            })?;
        // From this point on, dropping the engine removes the database.
        let mut engine = Self {
            session: None,
            probe: None,
            server: running,
            database,
            version: String::new(),
            schema: Vec::new(),
            memory: request.limits.memory,
            content: DatabaseContent::default(),
            view_actions: ViewActions::new(),
            equivalents: Equivalents::new(),
            is_in_transaction: false,
            has_lasting_changes: false,
            has_moved_counters: false,
        };
        engine.apply_schema(&request.schema, deadline)?;
        Ok(engine)
    }

    fn to_internal_refusal(&self, error: &SessionError) -> EngineRefusal {
        mysql_errors::to_internal_refusal(error, &self.database)
    }

    fn connect(&self, deadline: Instant) -> Result<Session, SessionError> {
        let mut session = self.server.connect(&database_users::owner_of(&self.database), &self.database)?;
        session.execute_batch(&format!("SET max_session_mem_used = {}", self.memory), deadline)?;
        Ok(session)
    }

    /// Sets up parts of a schema on a separate connection, since they may change its settings, and reads the
    /// content of the database on a new one.
    fn apply_schema(&mut self, schema: &[String], deadline: Instant) -> Result<(), EngineRefusal> {
        let mut setup = self.connect(deadline).map_err(|error| self.to_internal_refusal(&error))?;
        for part in schema.iter().filter(|part| !lexer::statement_ranges(part, Dialect::Mysql).is_empty()) {
            setup.execute_batch(part, deadline).map_err(|error| {
                let refusal = mysql_errors::to_refusal(&error, part, &self.database);
                let code =
                    if crate::engine::is_limit_code(refusal.code) { refusal.code } else { SqlCode::SchemaBroken };
                EngineRefusal::new(code, format!("the schema cannot be set up: {}", refusal.message))
            })?;
        }
        drop(setup);
        self.schema.extend_from_slice(schema);
        if self.version.is_empty() {
            let version = self.with_session(deadline, |session| session.query_texts("SELECT version()", deadline));
            let version = version.map_err(|error| self.to_internal_refusal(&error))?;
            let version = version.into_iter().flatten().flatten().next().unwrap_or_default();
            self.version = version.split('-').next().unwrap_or_default().to_owned();
        }
        self.refresh(deadline)
    }

    fn refresh(&mut self, deadline: Instant) -> Result<(), EngineRefusal> {
        self.view_actions.clear();
        let content = self.with_session(deadline, |session| DatabaseContent::read(session, deadline));
        self.content = content.map_err(|error| self.to_internal_refusal(&error))?;
        Ok(())
    }

    /// Does some work on the connection of the owner, which is made anew if a statement on it was ended from outside.
    fn with_session<T>(
        &mut self,
        deadline: Instant,
        work: impl FnOnce(&mut Session) -> Result<T, SessionError>,
    ) -> Result<T, SessionError> {
        let kept = self.session.take().filter(|session| !session.is_cancelled());
        let session = match kept {
            Some(session) => session,
            None => {
                let mut session = self.connect(deadline)?;
                if self.is_in_transaction {
                    session.execute_batch("START TRANSACTION", deadline)?;
                }
                session
            }
        };
        work(self.session.insert(session))
    }

    /// Creates the content of the database anew.
    fn rebuild(&mut self, deadline: Instant) -> Result<(), EngineRefusal> {
        // Open connections would hold locks on tables.
        self.session = None;
        self.probe = None;
        self.server.clear_database(&self.database).map_err(|error| self.to_internal_refusal(&error))?;
        let schema = std::mem::take(&mut self.schema);
        self.has_lasting_changes = false;
        self.has_moved_counters = false;
        self.apply_schema(&schema, deadline)
    }

    /// Records that a statement changes rows of some tables.
    fn note_changes<'t>(&mut self, mut tables: impl Iterator<Item = &'t str>) {
        // The changes of a trigger are unknown.
        let has_triggers = !self.content.triggers.is_empty();
        let lasting = &self.content.lasting_tables;
        self.has_lasting_changes |= !lasting.is_empty() && (has_triggers || tables.any(|name| lasting.contains(name)));
        self.has_moved_counters |= self.content.has_counters;
    }

    fn bind_statement(&mut self, sql: &str, deadline: Instant) -> Result<BoundStatement, EngineRefusal> {
        if self.probe.is_none() {
            let probe = PrivilegeProbe::connect(&self.server, &self.database, deadline);
            self.probe = Some(probe.map_err(|error| self.to_internal_refusal(&error))?);
        }
        // Opens a new session if necessary.
        self.with_session(deadline, |_| Ok(())).map_err(|error| self.to_internal_refusal(&error))?;
        let (Some(session), Some(probe)) = (&mut self.session, &mut self.probe) else {
            return Err(EngineRefusal::new(SqlCode::EngineFailed, "there is no connection"));
        };
        let mut binder = StatementBinder {
            session,
            probe,
            server: &self.server,
            content: &self.content,
            database: &self.database,
            view_actions: &mut self.view_actions,
            equivalents: &mut self.equivalents,
            deadline,
        };
        binder.bind(sql)
    }
}

impl Drop for Mysql {
    fn drop(&mut self) {
        self.session = None;
        self.probe = None;
        // A database that remains ends with its server.
        let _ = self.server.drop_database(&self.database);
    }
}

impl SqlEngine for Mysql {
    fn dialect(&self) -> Dialect {
        Dialect::Mysql
    }

    fn version(&self) -> String {
        format!("MariaDB {}", self.version)
    }

    fn catalog(&self) -> &Catalog {
        &self.content.catalog
    }

    fn comments(&mut self, deadline: Instant) -> Result<Vec<SchemaComment>, EngineRefusal> {
        let comments = self.with_session(deadline, |session| DatabaseContent::read_comments(session, deadline));
        comments.map_err(|error| self.to_internal_refusal(&error))
    }

    fn functions(&self) -> &BTreeSet<String> {
        &self.content.functions
    }

    fn is_harmless_function(&self, function: &str) -> bool {
        let function = function.to_lowercase();
        let is_stored = self.content.routines.contains(&function) || self.content.has_trigger(&function);
        builtin_allowlist::is_harmless(&function) && !is_stored
    }

    fn is_harmless_table(&self, _table: &str) -> bool {
        // Tables of `information_schema` are reported as metadata.
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
        list_checks::check_definition(sql, bound, allow)?;
        // Metadata is checked by name.
        if bound.kind() > StatementKind::Write || bound.tables().is_empty() {
            return Ok(());
        }
        let called = self.content.routines.iter().filter(|name| bound.functions().contains(name.as_str()));
        let privileges = GivenPrivileges {
            tables: list_checks::listed_privileges(&self.content, allow),
            routines: called.cloned().collect(),
        };
        let Some(probe) = &mut self.probe else { return Ok(()) };
        // `EXPLAIN` of a view needs more privileges than the statement that it explains.
        let sql = statement_form::explained(sql).unwrap_or(sql);
        let accepted = self.equivalents.get(sql).map_or(sql, String::as_str);
        let reading = unchecked_reads::reading_equivalent(accepted);
        let statements: Vec<&str> = [accepted].into_iter().chain(reading.as_deref()).collect();
        match probe.check_privileges(&self.server, &privileges, &statements, on.deadline) {
            Ok(()) => Ok(()),
            Err(error) => Err(list_checks::refusal(&error, sql, &self.database)),
        }
    }

    fn split(&mut self, sql: &str) -> Result<Vec<Range<usize>>, EngineRefusal> {
        // The server refuses a range with several statements when it prepares it.
        Ok(lexer::statement_ranges(sql, Dialect::Mysql))
    }

    fn bind(&mut self, sql: &str, on: ExecutionBounds<'_>) -> Result<BoundStatement, EngineRefusal> {
        if self.equivalents.len() > MAX_EQUIVALENTS {
            self.equivalents.clear();
        }
        self.bind_statement(sql, on.deadline)
    }

    fn begin(&mut self) -> Result<(), EngineRefusal> {
        let deadline = Instant::now() + CLEANUP_TIMEOUT;
        let begun = self.with_session(deadline, |session| session.execute_batch("START TRANSACTION", deadline));
        begun.map_err(|error| self.to_internal_refusal(&error))?;
        self.is_in_transaction = true;
        Ok(())
    }

    fn rollback(&mut self) -> Result<(), EngineRefusal> {
        let deadline = Instant::now() + CLEANUP_TIMEOUT;
        if !std::mem::take(&mut self.is_in_transaction) {
            return Ok(());
        }
        // A connection that was closed instead has no transaction any more.
        let rolled_back = self.with_session(deadline, |session| session.execute_batch("ROLLBACK", deadline));
        rolled_back.map_err(|error| self.to_internal_refusal(&error))?;
        // A definition commits, and ends the transaction.
        if self.has_lasting_changes { self.rebuild(deadline) } else { Ok(()) }
    }

    fn extend_schema(&mut self, schema: &[String], deadline: Instant) -> Result<(), EngineRefusal> {
        self.apply_schema(schema, deadline)
    }

    fn is_restored(&self) -> bool {
        !self.has_moved_counters
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
        let is_definition = bound.kind() == StatementKind::Schema;
        self.has_lasting_changes |= is_definition;
        if !bound.is_readonly {
            self.note_changes(bound.tables().into_iter());
        }
        let is_readonly = bound.is_readonly;
        let accepted = self.equivalents.get(sql).cloned().unwrap_or_else(|| sql.to_owned());
        let ran = self.with_session(on.deadline, |session| match rows {
            Some(rows) => session.run_into(&accepted, SqlMode::Strict, is_readonly, on.deadline, rows),
            None => session.run(&accepted, SqlMode::Strict, is_readonly, on),
        });
        let mut ran = ran.map_err(|error| mysql_errors::to_refusal(&error, sql, &self.database))?;
        if is_readonly || is_definition {
            ran.changed = 0;
        }
        if is_definition {
            self.refresh(on.deadline)?;
        }
        Ok(ran)
    }

    fn query_number(&mut self, sql: &str, on: ExecutionBounds<'_>) -> Result<i64, EngineRefusal> {
        let number = self.with_session(on.deadline, |session| session.query_number(sql, on));
        let number = number.map_err(|error| self.to_internal_refusal(&error))?;
        number.ok_or_else(|| EngineRefusal::new(SqlCode::EngineFailed, "the engine returned no number"))
    }

    fn execute_internal(&mut self, sql: &str, on: ExecutionBounds<'_>) -> Result<bool, EngineRefusal> {
        // The table is the first name of the insertion.
        let tokens = lexer::tokenize(sql, Dialect::Mysql);
        let table = tokens.iter().find(|(kind, _)| *kind == lexer::SqlTokenKind::Quoted);
        let table = table.map(|(_, range)| lexer::unquote(&sql[range.clone()]));
        self.note_changes(table.as_deref().into_iter());
        match self.with_session(on.deadline, |session| session.run(sql, SqlMode::Lenient, false, on)) {
            Ok(_) => Ok(true),
            Err(error) => {
                let refusal = self.to_internal_refusal(&error);
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
        if !self.content.triggers.is_empty() {
            return None;
        }
        let wanted = statements.iter().flat_map(|bound| bound.tables()).map(str::to_ascii_lowercase).collect();
        Some(scratch_rows::with_referenced_tables(&self.content.catalog, wanted))
    }

    fn quote_name(&self, name: &str) -> String {
        catalog_reader::quote_identifier(name)
    }
}

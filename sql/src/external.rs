//! A database on a server outside of Proctor, which a URL names. Statements are judged on a local copy of its schema.
//! Only statements whose verdict is `ok` run on the server itself.
//!
//! The functions block, until their deadline at the latest.

pub mod dsn;
pub mod tidb_zero;
pub mod trusted_roots;

use std::time::Instant;

use proctor_core::sql::{Dialect, Judgement, ResultRows, SqlCode, SqlPolicy, SqlRequest, SqlRunRequest, SqlVerdict};

use crate::engine::EngineRefusal;
use crate::{lexer, mysql, postgres, statement_run};
use dsn::Dsn;

/// The reason why an external database cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ExternalError {
    /// The server cannot be reached, refuses the login, or ends the connection.
    #[error("`{dsn}` cannot be used: {message}")]
    Server {
        /// The URL without the password.
        dsn: String,
        /// The message of the server or the system.
        message: String,
    },
    /// The server refuses a statement.
    #[error("{0}")]
    Statement(String),
    /// The schema cannot be read.
    #[error("the schema of `{dsn}` cannot be read: {message}")]
    Schema {
        /// The URL without the password.
        dsn: String,
        /// The reason.
        message: String,
    },
    /// The request cannot be run on this database.
    #[error("{0}")]
    Request(String),
    /// The connection broke while the effects were being made lasting.
    #[error("the connection broke during the commit, so the effects may have been kept or not: {0}")]
    CommitUnknown(String),
}

/// A database on an external server.
#[derive(Debug, Clone)]
pub struct ExternalDatabase {
    dsn: Dsn,
}

/// A statement to run, with what its judgement found out.
pub(crate) struct JudgedStatement<'a> {
    pub(crate) sql: &'a str,
    /// True if the statement only reads.
    pub(crate) is_readonly: bool,
}

/// The effects of statements on an external database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TransactionEnd {
    /// The statements only read.
    ReadOnly,
    /// The effects are undone.
    Rollback,
    /// The effects are kept.
    Commit,
}

impl ExternalDatabase {
    /// Creates a value without a connection.
    pub fn new(dsn: Dsn) -> Self {
        Self { dsn }
    }

    /// Returns the dialect of the server.
    pub fn dialect(&self) -> Dialect {
        self.dsn.dialect()
    }

    /// Returns the URL without the password.
    pub fn name(&self) -> String {
        self.dsn.to_string()
    }

    /// Reads the statements that create the schema of the database, without its rows.
    ///
    /// # Errors
    /// The server cannot be reached, or a definition cannot be read.
    pub fn read_schema(&self, deadline: Instant) -> Result<Vec<String>, ExternalError> {
        let read = match self.dialect() {
            Dialect::Postgres => postgres::external_database::read_schema(&self.dsn, deadline),
            Dialect::Mysql => mysql::external_database::read_schema(&self.dsn, deadline),
            Dialect::Sqlite | Dialect::Duckdb => Ok(Vec::new()),
        };
        read.map_err(|message| ExternalError::Schema { dsn: self.name(), message: self.dsn.redact(&message) })
    }

    /// Runs the statements of a request in a transaction, and returns the rows of the last one. `judgement` is that of
    /// the request. The transaction only reads under the policy `read`, and is undone unless the request says that its
    /// effects are kept.
    ///
    /// # Errors
    /// The request was not judged `ok`, or the server refuses a statement.
    pub fn run(&self, run: &SqlRunRequest, judgement: &Judgement) -> Result<ResultRows, ExternalError> {
        let request = &run.request;
        check_run(run, judgement, self.dialect()).map_err(ExternalError::Request)?;
        let ranges = lexer::statement_ranges(&request.sql, request.dialect);
        if ranges.len() != judgement.statements.len() {
            return Err(ExternalError::Request("the judgement belongs to other statements".to_owned()));
        }
        let judged = ranges.into_iter().zip(&judgement.statements);
        let statements: Vec<JudgedStatement<'_>> = judged
            .map(|(range, view)| JudgedStatement { sql: &request.sql[range], is_readonly: view.kind == "read" })
            .collect();
        let end = match (request.policy, run.commit) {
            (SqlPolicy::Read, _) => TransactionEnd::ReadOnly,
            (_, false) => TransactionEnd::Rollback,
            (_, true) => TransactionEnd::Commit,
        };
        let deadline = Instant::now() + request.limits.wall_time();
        let ran = match self.dialect() {
            Dialect::Postgres => postgres::external_database::run(&self.dsn, request, &statements, end, deadline),
            _ => mysql::external_database::run(&self.dsn, request, &statements, end, deadline),
        };
        ran.map_err(|failure| self.to_error(failure, request))
    }

    fn to_error(&self, failure: RunFailure, request: &SqlRequest) -> ExternalError {
        match failure {
            RunFailure::Connection(message) => {
                ExternalError::Server { dsn: self.name(), message: self.dsn.redact(&message) }
            }
            RunFailure::Refused(refusal) => ExternalError::Statement(refusal_message(&refusal, request)),
            RunFailure::NotUndoable(tables) => {
                let tables = tables.into_iter().collect::<Vec<_>>().join("`, `");
                ExternalError::Request(format!(
                    "the effects could not be undone, because the database has tables without transactions: `{tables}`"
                ))
            }
            RunFailure::CommitUnknown(message) => ExternalError::CommitUnknown(self.dsn.redact(&message)),
        }
    }
}

/// The reason why statements did not run to the end.
#[derive(Debug)]
pub(crate) enum RunFailure {
    /// The server cannot be reached.
    Connection(String),
    /// The server refuses a statement.
    Refused(EngineRefusal),
    /// The effects of a write on these tables cannot be undone.
    NotUndoable(Vec<String>),
    /// Nobody knows whether the effects were kept.
    CommitUnknown(String),
}

impl From<EngineRefusal> for RunFailure {
    fn from(refusal: EngineRefusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Returns the message of an error with those of its causes, none of them twice.
pub(crate) fn message_with_causes(error: &dyn std::error::Error) -> String {
    let mut messages: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let message = error.to_string();
        // Some errors repeat the message of their cause.
        messages.retain(|known| !message.contains(known.as_str()));
        if !messages.iter().any(|known| known.contains(&message)) {
            messages.push(message);
        }
        next = error.source();
    }
    messages.join(": ")
}

/// Checks that a request may run on an external database.
fn check_run(run: &SqlRunRequest, judgement: &Judgement, dialect: Dialect) -> Result<(), String> {
    let request = &run.request;
    if judgement.verdict != SqlVerdict::Ok || !judgement.is_intact() {
        return Err("only a statement whose verdict is `ok` is run".to_owned());
    }
    if !judgement.covers(request) {
        return Err("the judgement belongs to another request".to_owned());
    }
    statement_run::check_stages(request)?;
    if run.commit && request.policy == SqlPolicy::Read {
        return Err(statement_run::COMMIT_NEEDS_POLICY.to_owned());
    }
    if request.policy == SqlPolicy::Migrate && !run.commit && dialect == Dialect::Mysql {
        return Err("MySQL cannot undo a change of the schema; add `--commit` to keep it, or only judge it".to_owned());
    }
    Ok(())
}

/// Returns a message that names nothing off the lists of the request. The local copy of the schema already reported
/// everything that a message of the server could, except for what changed since.
fn refusal_message(refusal: &EngineRefusal, request: &SqlRequest) -> String {
    let allow = &request.allow;
    let has_lists = !allow.tables.is_empty() || !allow.columns.is_empty();
    let is_limit = crate::engine::is_limit_code(refusal.code) || refusal.code == SqlCode::EngineDied;
    match &refusal.engine_code {
        Some(code) if has_lists && !is_limit => format!("the server refuses the statement with the code {code}"),
        Some(code) => format!("{} (code {code})", refusal.message),
        None => refusal.message.clone(),
    }
}

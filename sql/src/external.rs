//! A database on a server outside of Proctor, which a URL names. Statements are judged on a local copy of its schema.
//! Only statements whose verdict is `ok` run on the server itself.
//!
//! The connection is made by a process of `proctor-sql`, which has the drivers. It runs as the current user, outside of
//! a sandbox, for one operation. The functions block until it has ended, at their deadline at the latest.

pub mod dsn;
pub mod external_operations;
pub(crate) mod external_run;
pub mod tidb_zero;
pub mod trusted_roots;

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use proctor_core::sql::{Dialect, Judgement, ResultRows, SqlDiagnostic, SqlRequest, SqlRunRequest};
use serde::{Deserialize, Serialize};

use crate::server_files;
use dsn::Dsn;

/// The argument of `proctor-sql` for these operations.
pub const COMMAND: &str = "external";

/// The reason why an external database cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
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
    /// The connection broke while the effects were being committed.
    #[error("the connection broke during the commit, so the effects may have been kept or not: {0}")]
    CommitUnknown(String),
    /// The process with the drivers failed.
    #[error("`{}` failed: {message}", program.display())]
    Process {
        /// The program.
        program: PathBuf,
        /// The reason.
        message: String,
    },
}

/// A database on an external server.
#[derive(Debug, Clone)]
pub struct ExternalDatabase {
    dsn: Dsn,
    /// The path of `proctor-sql`.
    program: PathBuf,
}

/// The document on standard input of the process with the drivers.
#[derive(Debug, Serialize, Deserialize)]
pub struct ExternalRequest {
    dsn: Dsn,
    operation: Operation,
}

#[derive(Debug, Serialize, Deserialize)]
enum Operation {
    ReadSchema { time_ms: u64 },
    Run { run: Box<SqlRunRequest>, judgement: Box<Judgement> },
    RunInScratchDatabase { request: Box<SqlRequest>, keeps_database: bool },
}

/// The document on standard output of the process with the drivers.
#[derive(Debug, Serialize, Deserialize)]
pub enum ExternalAnswer {
    /// The statements that create the schema.
    Schema(Vec<String>),
    /// The rows of a statement that ran.
    Rows(ResultRows),
    /// The result of a check in a temporary database.
    Scratch(ScratchOutcome),
    /// The operation failed.
    Failed(ExternalError),
}

/// The result of a check in a temporary database.
#[derive(Debug, Serialize, Deserialize)]
pub struct ScratchOutcome {
    /// The finding about a statement that the server refuses.
    finding: Option<Box<SqlDiagnostic>>,
    /// The name of the database, if it is kept.
    database: Option<String>,
}

impl ExternalDatabase {
    /// Creates a value without a connection. `program` is the path of `proctor-sql`.
    pub fn new(dsn: Dsn, program: PathBuf) -> Self {
        Self { dsn, program }
    }

    /// Returns the dialect of the server.
    pub fn dialect(&self) -> Dialect {
        self.dsn.dialect()
    }

    /// Reads the statements that create the schema of the database, without its rows.
    ///
    /// # Errors
    /// The server cannot be reached, or a definition cannot be read.
    pub fn read_schema(&self, time: Duration) -> Result<Vec<String>, ExternalError> {
        let time_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        match self.call(Operation::ReadSchema { time_ms })? {
            ExternalAnswer::Schema(schema) => Ok(schema),
            other => Err(self.unexpected(other)),
        }
    }

    /// Runs the statements of a request in a transaction, and returns the rows of the last one. `judgement` is that of
    /// the request. The transaction only reads under the policy `read`, and is undone unless the request says that its
    /// effects are kept.
    ///
    /// # Errors
    /// The request was not judged `ok`, or the server refuses a statement.
    pub fn run(&self, run: SqlRunRequest, judgement: Judgement) -> Result<ResultRows, ExternalError> {
        match self.call(Operation::Run { run: Box::new(run), judgement: Box::new(judgement) })? {
            ExternalAnswer::Rows(rows) => Ok(rows),
            other => Err(self.unexpected(other)),
        }
    }

    /// Runs the statements of a request in a new database with its schema.
    ///
    /// # Errors
    /// The server cannot be used, or does not accept the schema.
    fn run_in_scratch_database(
        &self,
        request: SqlRequest,
        keeps_database: bool,
    ) -> Result<ScratchOutcome, ExternalError> {
        match self.call(Operation::RunInScratchDatabase { request: Box::new(request), keeps_database })? {
            ExternalAnswer::Scratch(outcome) => Ok(outcome),
            other => Err(self.unexpected(other)),
        }
    }

    fn call(&self, operation: Operation) -> Result<ExternalAnswer, ExternalError> {
        let failed = |error: io::Error| self.process_error(error.to_string());
        let input = serde_json::to_vec(&ExternalRequest { dsn: self.dsn.clone(), operation })
            .map_err(|error| failed(error.into()))?;
        let mut command = server_files::server_command(&self.program);
        command.arg(COMMAND).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().map_err(failed)?;
        // The process reads all of its input before it writes.
        let written = child.stdin.take().map(|mut stdin| stdin.write_all(&input));
        let output = child.wait_with_output().map_err(failed)?;
        written.transpose().map_err(failed)?;
        if !output.status.success() {
            return Err(self.process_error(output.status.to_string()));
        }
        serde_json::from_slice(&output.stdout).map_err(|error| failed(error.into()))
    }

    fn unexpected(&self, answer: ExternalAnswer) -> ExternalError {
        match answer {
            ExternalAnswer::Failed(error) => error,
            _ => self.process_error("it answered a different request".to_owned()),
        }
    }

    fn process_error(&self, message: String) -> ExternalError {
        ExternalError::Process { program: self.program.clone(), message }
    }
}

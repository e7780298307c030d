//! Implements the operations on external servers, in the process that has the drivers.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use proctor_core::sql::{
    Dialect, Judgement, ResultRows, SqlCode, SqlDiagnostic, SqlLineIndex, SqlPolicy, SqlRequest, SqlRunRequest,
    SqlVerdict, StageName,
};

use super::dsn::Dsn;
use super::external_run::{JudgedStatement, RunFailure, TransactionEnd};
use super::{ExternalAnswer, ExternalError, ExternalRequest, Operation, ScratchOutcome};
use crate::engine::{EngineRefusal, is_limit_code};
use crate::mysql::external_database::ScratchDatabase;
use crate::stage::refusal_diagnostic;
use crate::{lexer, mysql, postgres, statement_run};

/// The time for the creation of a database with its schema.
const SCHEMA_TIMEOUT: Duration = Duration::from_secs(60);

/// Performs the operation that a document names, and writes its answer.
///
/// # Errors
/// The document is malformed, or a stream is closed.
pub fn serve(mut input: impl Read, mut output: impl Write) -> io::Result<()> {
    let mut document = Vec::new();
    input.read_to_end(&mut document)?;
    let ExternalRequest { dsn, operation } = serde_json::from_slice(&document)?;
    let answer = match operation {
        Operation::ReadSchema { time_ms } => {
            read_schema(&dsn, Instant::now() + Duration::from_millis(time_ms)).map(ExternalAnswer::Schema)
        }
        Operation::Run { run: request, judgement } => run(&dsn, &request, &judgement).map(ExternalAnswer::Rows),
        Operation::RunInScratchDatabase { request, keeps_database } => {
            run_in_scratch_database(&dsn, &request, keeps_database).map(ExternalAnswer::Scratch)
        }
    };
    serde_json::to_writer(&mut output, &answer.unwrap_or_else(ExternalAnswer::Failed))?;
    output.flush()
}

fn read_schema(dsn: &Dsn, deadline: Instant) -> Result<Vec<String>, ExternalError> {
    let read = match dsn.dialect() {
        Dialect::Postgres => postgres::external_database::read_schema(dsn, deadline),
        Dialect::Mysql => mysql::external_database::read_schema(dsn, deadline),
        Dialect::Sqlite | Dialect::Duckdb => Ok(Vec::new()),
    };
    read.map_err(|message| ExternalError::Schema { dsn: dsn.to_string(), message: dsn.redact(&message) })
}

fn run(dsn: &Dsn, run: &SqlRunRequest, judgement: &Judgement) -> Result<ResultRows, ExternalError> {
    let request = &run.request;
    check_run(run, judgement, dsn.dialect()).map_err(ExternalError::Request)?;
    let ranges = lexer::statement_ranges(&request.sql, request.dialect);
    if ranges.len() != judgement.statements.len() {
        return Err(ExternalError::Request("the judgement belongs to other statements".to_owned()));
    }
    let end = match (request.policy, run.commit) {
        (SqlPolicy::Read, _) => TransactionEnd::ReadOnly,
        (_, false) => TransactionEnd::Rollback,
        (_, true) => TransactionEnd::Commit,
    };
    let last = ranges.len().saturating_sub(1);
    let judged = ranges.into_iter().zip(&judgement.statements).enumerate();
    let statements: Vec<JudgedStatement<'_>> = judged
        .map(|(at, (range, view))| JudgedStatement {
            sql: &request.sql[range],
            is_readonly: view.kind == "read",
            is_definition: view.kind == "schema",
            may_stop_early: view.kind == "read" && at == last && end != TransactionEnd::Commit,
        })
        .collect();
    let deadline = Instant::now() + request.limits.wall_time();
    let ran = match dsn.dialect() {
        Dialect::Postgres => postgres::external_database::run(dsn, request, &statements, end, deadline),
        _ => mysql::external_database::run(dsn, request, &statements, end, deadline),
    };
    ran.map_err(|failure| to_error(failure, dsn, request))
}

/// Runs the statements of a request in a new database with its schema. A slow server does not speak against a statement.
fn run_in_scratch_database(
    dsn: &Dsn,
    request: &SqlRequest,
    keeps_database: bool,
) -> Result<ScratchOutcome, ExternalError> {
    let created = ScratchDatabase::create(dsn, &request.schema, Instant::now() + SCHEMA_TIMEOUT);
    let mut database = created.map_err(|failure| to_error(failure, dsn, request))?;
    let ran = database.run(request);
    let name = keeps_database.then(|| database.name().to_owned());
    if !keeps_database {
        // Remaining connections end with the server.
        database.drop_database();
    }
    let finding = match ran {
        Ok(()) => None,
        Err((from, RunFailure::Refused(refusal)))
            if !refusal.code.is_engine_problem() && !is_limit_code(refusal.code) =>
        {
            Some(Box::new(refused_statement(request, from, &refusal)))
        }
        Err((_, failure)) => return Err(to_error(failure, dsn, request)),
    };
    Ok(ScratchOutcome { finding, database: name })
}

/// Returns the finding about a statement that starts at byte `from`.
fn refused_statement(request: &SqlRequest, from: usize, refusal: &EngineRefusal) -> SqlDiagnostic {
    let mut found = refusal_diagnostic(request, StageName::Custom, refusal, |place| {
        SqlLineIndex::new(&request.sql).span(&request.sql, from + place.start, from + place.end)
    });
    found.message = refusal_message(refusal, request);
    found
}

fn to_error(failure: RunFailure, dsn: &Dsn, request: &SqlRequest) -> ExternalError {
    match failure {
        RunFailure::Connection(message) => {
            ExternalError::Server { dsn: dsn.to_string(), message: dsn.redact(&message) }
        }
        RunFailure::Refused(refusal) => ExternalError::Statement(refusal_message(&refusal, request)),
        RunFailure::NotUndoable(tables) => {
            let tables = tables.join("`, `");
            ExternalError::Request(format!(
                "the effects could not be undone, because the database has tables without transactions: `{tables}`"
            ))
        }
        RunFailure::CommitUnknown(message) => ExternalError::CommitUnknown(dsn.redact(&message)),
    }
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

//! Runs a text whose verdict is `ok`, and returns its rows. The text is judged first, by the same engine on the same
//! database.

use std::time::Instant;

use proctor_core::sql::{
    Dialect, ResultRows, SqlCode, SqlPolicy, SqlRequest, SqlRunAnswer, SqlRunRequest, SqlVerdict, StageName, VERSION,
};

use crate::allow_lists::NameLists;
use crate::chain::Chain;
use crate::duckdb::DuckDb;
use crate::engine::{EngineRefusal, ExecutionBounds, SqlEngine};
use crate::engine_sources::EngineSources;
use crate::external::external_run;
use crate::hidden_names::HiddenNames;
use crate::row_buffer::RowBuffer;
use crate::sqlite::Sqlite;
use crate::stage::Statement;
use crate::stages::run::is_run_allowed;
use crate::worker_request::{Unanswered, WorkerRequest as _};

/// The stages without which no text is run.
const REQUIRED_STAGES: [StageName; 2] = [StageName::Bind, StageName::Safety];

/// The message for a request that keeps effects although its policy permits no effects.
pub(crate) const COMMIT_NEEDS_POLICY: &str = "effects are kept only under the policy `write` or `migrate`";

/// The reason why a text whose verdict is `ok` has no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// The engine refused a statement.
    #[error(transparent)]
    Engine(#[from] EngineRefusal),
    /// The effects of the statements could not be undone, so the engine cannot be used again.
    #[error("the effects could not be undone: {0}")]
    NotUndone(#[source] EngineRefusal),
    /// A statement has parameters.
    #[error("the statement has {0} parameters, and no values are given for them")]
    Parameters(usize),
    /// The statements changed more rows than when they were judged.
    #[error("it would change {changed} rows instead of the {judged} rows that were judged")]
    MoreRows {
        /// The number of changed rows.
        changed: u64,
        /// The number of rows that the same statements changed in the transaction that was undone.
        judged: u64,
    },
    /// The time limit passed before the end of the transaction.
    #[error("it did not end within {0} ms")]
    Late(u64),
    /// A statement differs in its actions from the statement that was judged.
    #[error("the engine now reports different actions for the statement than during its judgement")]
    OtherActions,
}

/// Checks that a request may be run at all.
///
/// # Errors
/// The request leaves out a required stage, or keeps the effects of a statement that may not change a database.
pub(crate) fn check_request(run: &SqlRunRequest) -> Result<(), String> {
    let request = &run.request;
    check_stages(request)?;
    if !run.commit {
        return Ok(());
    }
    if request.policy == SqlPolicy::Read {
        return Err(COMMIT_NEEDS_POLICY.to_owned());
    }
    if request.database.is_none() || !matches!(request.dialect, Dialect::Sqlite | Dialect::Duckdb) {
        return Err("effects are kept only in a database file of SQLite or DuckDB".to_owned());
    }
    if !request.schema.is_empty() {
        return Err("effects are kept only in a database without an additional schema".to_owned());
    }
    Ok(())
}

/// Checks that a request has the stages without which no statement is run.
///
/// # Errors
/// A stage is missing.
pub(crate) fn check_stages(request: &SqlRequest) -> Result<(), String> {
    match REQUIRED_STAGES.into_iter().find(|stage| !request.stages().contains(stage)) {
        None => Ok(()),
        Some(missing) => {
            Err(format!("a statement is run only after the stage `{}`, which was not requested", missing.as_str()))
        }
    }
}

/// Judges a text whose time limit started at `begun`, and runs it if the verdict is `ok`. Undoes its effects. Also
/// reports whether the engine may be used again.
pub(crate) fn judge_and_run(begun: Instant, request: &SqlRequest, engine: &mut dyn SqlEngine) -> (SqlRunAnswer, bool) {
    let (judgement, statements) = Chain::new(request.stages()).judge_statements(begun, request, engine);
    let mut answer = SqlRunAnswer { version: VERSION, judgement, result: None, error: None };
    if answer.judgement.verdict != SqlVerdict::Ok {
        return (answer, true);
    }
    let deadline = begun + request.limits.wall_time();
    let ran = run_undone(request, &statements, engine, deadline);
    let is_sound = !matches!(ran, Err(RunError::NotUndone(_)));
    match ran {
        Ok(result) => answer.result = Some(result),
        Err(error) => answer.error = Some(error_message(&error, request, engine)),
    }
    (answer, is_sound)
}

/// Judges a text, and runs it if the verdict is `ok`. Keeps its effects on the database file, unless anything fails.
/// The file is locked from before the judgement until the end of the transaction.
pub(crate) fn judge_and_commit(begun: Instant, run: &SqlRunRequest, sources: &mut EngineSources) -> SqlRunAnswer {
    let request = &run.request;
    let opened = match (request.dialect, &sources.duckdb) {
        (Dialect::Sqlite, _) => SqliteTransaction::open(request).map(|open| Box::new(open) as Box<dyn CommitDatabase>),
        (Dialect::Duckdb, Ok(library)) => {
            DuckDb::open_for_commit(library, request).map(|open| Box::new(open) as Box<dyn CommitDatabase>)
        }
        (Dialect::Duckdb, Err(missing)) => Err(EngineRefusal::new(SqlCode::EngineMissing, missing.to_string())),
        (Dialect::Postgres | Dialect::Mysql, _) => {
            Err(EngineRefusal::new(SqlCode::EngineFailed, "effects are kept only in a database file"))
        }
    };
    match opened {
        Ok(mut database) => commit_in(begun, request, database.as_mut()),
        Err(refusal) => run.unanswered(Unanswered::Failed(refusal.code, refusal.message)),
    }
}

/// A database file that is open for lasting changes.
trait CommitDatabase {
    /// Returns the engine that judges: it has the same content, and undoes all effects.
    fn judge(&mut self) -> &mut dyn SqlEngine;

    /// Begins the transaction whose effects can be kept, and returns its engine.
    ///
    /// # Errors
    /// The engine cannot begin a transaction.
    fn begin_kept(&mut self) -> Result<&mut dyn SqlEngine, EngineRefusal>;
}

/// A file of SQLite in a transaction, and a copy of it in memory.
struct SqliteTransaction {
    file: Sqlite,
    copy: Sqlite,
}

impl SqliteTransaction {
    fn open(request: &SqlRequest) -> Result<Self, EngineRefusal> {
        let mut file = Sqlite::open_for_commit(request)?;
        let copy = file.copy(request)?;
        Ok(Self { file, copy })
    }
}

impl CommitDatabase for SqliteTransaction {
    fn judge(&mut self) -> &mut dyn SqlEngine {
        &mut self.copy
    }

    fn begin_kept(&mut self) -> Result<&mut dyn SqlEngine, EngineRefusal> {
        // The transaction began when the file was opened.
        Ok(&mut self.file)
    }
}

impl CommitDatabase for DuckDb {
    fn judge(&mut self) -> &mut dyn SqlEngine {
        self
    }

    fn begin_kept(&mut self) -> Result<&mut dyn SqlEngine, EngineRefusal> {
        self.begin()?;
        Ok(self)
    }
}

fn commit_in(begun: Instant, request: &SqlRequest, database: &mut dyn CommitDatabase) -> SqlRunAnswer {
    let judge = database.judge();
    let (judgement, statements) = Chain::new(request.stages()).judge_statements(begun, request, judge);
    let mut answer = SqlRunAnswer { version: VERSION, judgement, result: None, error: None };
    if answer.judgement.verdict != SqlVerdict::Ok {
        return answer;
    }
    let deadline = begun + request.limits.wall_time();
    let kept = run_undone(request, &statements, judge, deadline)
        .and_then(|judged| run_kept(request, &statements, database, deadline, judged.changed.unwrap_or_default()));
    match kept {
        Ok(result) => answer.result = Some(result),
        Err(error) => answer.error = Some(error_message(&error, request, database.judge())),
    }
    answer
}

/// Runs the statements, and keeps their effects if they changed at most `judged` rows.
fn run_kept(
    request: &SqlRequest,
    statements: &[Statement],
    database: &mut dyn CommitDatabase,
    deadline: Instant,
    judged: u64,
) -> Result<ResultRows, RunError> {
    let engine = database.begin_kept()?;
    let done = run_statements(request, statements, engine, deadline).and_then(|result| {
        // An unknown number could be any.
        let changed = result.changed.unwrap_or(u64::MAX);
        if changed > judged {
            return Err(RunError::MoreRows { changed, judged });
        }
        // A caller that gets no answer in time must not find the effects later.
        if Instant::now() > deadline {
            return Err(RunError::Late(request.limits.time_ms));
        }
        engine.commit()?;
        Ok(ResultRows { committed: true, ..result })
    });
    if done.is_err() {
        // If this fails, the engine undoes the transaction when it closes the file, or when the file is opened next.
        let _ = engine.rollback();
    }
    done
}

/// Runs the statements in a transaction that is undone.
fn run_undone(
    request: &SqlRequest,
    statements: &[Statement],
    engine: &mut dyn SqlEngine,
    deadline: Instant,
) -> Result<ResultRows, RunError> {
    engine.begin()?;
    let ran = run_statements(request, statements, engine, deadline);
    engine.rollback().map_err(RunError::NotUndone)?;
    ran
}

/// Runs the statements in order in the current transaction. Returns the rows of the last one, and the number of rows
/// that all of them changed.
pub(crate) fn run_statements(
    request: &SqlRequest,
    statements: &[Statement],
    engine: &mut dyn SqlEngine,
    deadline: Instant,
) -> Result<ResultRows, RunError> {
    let on = ExecutionBounds { limits: &request.limits, deadline, continues_past_row_limit: false };
    let mut result = ResultRows { changed: Some(0), ..ResultRows::default() };
    for statement in statements {
        let text = &request.sql[statement.range.clone()];
        let bound = engine.bind(text, on)?;
        // A statement of a migration may name what an earlier one creates, so only its actions at this point count.
        let is_judged = request.policy == SqlPolicy::Migrate || Some(&bound) == statement.bound();
        if !is_judged || !is_run_allowed(&bound, request.policy) {
            return Err(RunError::OtherActions);
        }
        if bound.parameters > 0 {
            return Err(RunError::Parameters(bound.parameters));
        }
        let mut rows = RowBuffer::new(&request.limits);
        let ran = engine.run_into(text, &bound, request.policy, on, Some(&mut rows))?;
        result.changed = external_run::add_changed(result.changed, &ran, bound.is_explain);
        result.truncated = rows.is_truncated();
        result.rows = rows.into_rows();
        result.columns = match ran.is_report {
            true => Vec::new(),
            false if bound.columns.is_empty() => ran.columns,
            false => bound.columns,
        };
    }
    Ok(result)
}

/// Returns the message of an error without the names that are off the lists of the request.
pub(crate) fn error_message(error: &RunError, request: &SqlRequest, engine: &dyn SqlEngine) -> String {
    let message = error.to_string();
    let hidden = HiddenNames::new(
        engine.catalog(),
        &NameLists::new(&request.allow, request.dialect),
        &request.sql,
        request.dialect,
    );
    match (hidden, error) {
        (Some(hidden), RunError::Engine(refusal)) => hidden.mask_refusal(refusal, &message),
        (Some(hidden), _) => hidden.mask_text(&message),
        (None, _) => message,
    }
}

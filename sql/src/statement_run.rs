//! Runs a text whose verdict is `ok`, and returns its rows. The text is judged first, by the same engine on the same
//! database.

use std::time::Instant;

use proctor_core::sql::{
    Dialect, ResultRows, SqlPolicy, SqlRequest, SqlRunAnswer, SqlRunRequest, SqlVerdict, StageName, VERSION,
};

use crate::chain::Chain;
use crate::engine::{EngineRefusal, ExecutionBounds, SqlEngine};
use crate::hidden_names::HiddenNames;
use crate::row_buffer::RowBuffer;
use crate::stage::Statement;
use crate::stages::run::is_run_allowed;

/// The stages without which no text is run.
const REQUIRED_STAGES: [StageName; 2] = [StageName::Bind, StageName::Safety];

/// The reason why a text whose verdict is `ok` has no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// The engine refused a statement.
    #[error(transparent)]
    Engine(#[from] EngineRefusal),
    /// A statement has parameters.
    #[error("the statement has {0} parameters, and no values are given for them")]
    Parameters(usize),
    /// A statement does something else than the statement that was judged.
    #[error("the engine reports other actions for the statement than when it was judged")]
    OtherActions,
}

/// Checks that a request may be run at all.
///
/// # Errors
/// The request leaves out a required stage, or keeps the effects of a statement that may not change a database.
pub(crate) fn check_request(run: &SqlRunRequest) -> Result<(), String> {
    let request = &run.request;
    if let Some(missing) = REQUIRED_STAGES.into_iter().find(|stage| !request.stages().contains(stage)) {
        return Err(format!("a statement is run only after the stage `{}`, which was not requested", missing.as_str()));
    }
    if !run.commit {
        return Ok(());
    }
    if request.policy == SqlPolicy::Read {
        return Err("effects are kept only under the policy `write` or `migrate`".to_owned());
    }
    if request.database.is_none() || !matches!(request.dialect, Dialect::Sqlite | Dialect::Duckdb) {
        return Err("effects are kept only in a database file of SQLite or DuckDB".to_owned());
    }
    if !request.schema.is_empty() {
        return Err("effects are kept only in a database without an additional schema".to_owned());
    }
    Ok(())
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
    let ran =
        engine.begin().map_err(RunError::from).and_then(|()| run_statements(request, &statements, engine, deadline));
    let undone = engine.rollback();
    let is_sound = undone.is_ok();
    match ran.and_then(|result| Ok(undone.map(|()| result)?)) {
        Ok(result) => answer.result = Some(result),
        Err(error) => answer.error = Some(error_message(&error, request, engine)),
    }
    (answer, is_sound)
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
    let mut result = ResultRows::default();
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
        result.changed += ran.changed;
        result.truncated = rows.is_truncated();
        result.rows = rows.into_rows();
        result.columns = if ran.is_report { Vec::new() } else { bound.columns };
    }
    Ok(result)
}

/// Returns the message of an error without the names that are off the lists of the request.
pub(crate) fn error_message(error: &RunError, request: &SqlRequest, engine: &dyn SqlEngine) -> String {
    let message = error.to_string();
    match HiddenNames::new(engine.catalog(), &request.allow, &request.sql, request.dialect) {
        Some(hidden) => hidden.mask_text(&message),
        None => message,
    }
}

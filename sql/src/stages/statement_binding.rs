//! Asks the engine about every statement of the text. Each statement is prepared once, by the first stage that needs
//! the result. In a migration each statement builds on those before it: all of them run in one transaction that is
//! rolled back at the end. The cost of a statement therefore does not depend on its position.

use proctor_core::sql::{SqlBatch, SqlCode, SqlPolicy, StageName};

use crate::allow_lists;
use crate::engine::{BoundStatement, EngineRefusal, StatementKind};
use crate::stage::{ChainContext, StageError, Statement, execution_bounds};
use crate::stages::name_errors;

/// The maximum number of statements that are examined if the request allows only one. This is enough to show what
/// follows the first statement.
const MAX_EXAMINED_STATEMENTS: usize = 64;

/// Splits the text into statements, unless an earlier stage did.
///
/// # Errors
/// The text cannot be split, or it has far more than one statement where only one is allowed.
pub(super) fn split_statements(case: &mut ChainContext<'_>) -> Result<(), EngineRefusal> {
    if case.statements.is_empty() {
        let ranges = case.engine.split(&case.request.sql)?;
        if case.request.batch() == SqlBatch::One && ranges.len() > MAX_EXAMINED_STATEMENTS {
            let message = format!("there are {} statements, but only one is allowed", ranges.len());
            return Err(EngineRefusal {
                range: ranges.get(1).cloned(),
                ..EngineRefusal::new(SqlCode::StackedStatements, message)
            });
        }
        let statement =
            |range| Statement { range, tree: None, prepared: None, name_findings: Vec::new(), off_list_refusal: None };
        case.statements = ranges.into_iter().map(statement).collect();
    }
    Ok(())
}

/// Prepares each statement, unless an earlier stage did. Stops when the deadline passes; `stage` then reports the time
/// limit.
///
/// # Errors
/// The engine cannot begin or undo a migration.
pub(super) fn bind_statements(case: &mut ChainContext<'_>, stage: StageName) -> Result<(), StageError> {
    if case.statements.iter().all(|statement| statement.prepared.is_some()) {
        return Ok(());
    }
    let is_migration = case.request.policy == SqlPolicy::Migrate
        && case.request.batch() == SqlBatch::Many
        && case.statements.len() > 1;
    if is_migration {
        case.engine.begin()?;
    }
    for index in 0..case.statements.len() {
        if case.check_deadline(stage) {
            break;
        }
        bind_statement(case, index, is_migration);
    }
    if is_migration {
        case.engine.rollback()?;
    }
    Ok(())
}

fn bind_statement(case: &mut ChainContext<'_>, index: usize, is_migration: bool) {
    let bounds = case.limits_and_deadline();
    let text = case.statement_text(&case.statements[index]).to_owned();
    let prepared = case.engine.bind(&text, execution_bounds(&bounds));
    if let Ok(bound) = &prepared
        && allow_lists::has_name_lists(&case.lists)
        && is_kind_allowed(bound.kind(), case.request.policy)
    {
        let checked = case.engine.check_lists(&text, bound, &case.lists, execution_bounds(&bounds));
        case.statements[index].off_list_refusal = checked.err();
    }
    match &prepared {
        Ok(bound) if is_migration && bound.kind() == StatementKind::Schema => {
            // The stage `run` reports a statement that fails here.
            let _ = case.engine.run(&text, bound, SqlPolicy::Migrate, execution_bounds(&bounds));
        }
        Err(refusal) if !refusal.code.is_engine_problem() => {
            case.statements[index].name_findings = name_errors::find_name_errors(case, index, refusal.clone());
        }
        _ => {}
    }
    case.statements[index].prepared = Some(prepared);
}

/// Reports whether a policy allows statements of a kind at all.
fn is_kind_allowed(kind: StatementKind, policy: SqlPolicy) -> bool {
    match kind {
        StatementKind::Read => true,
        StatementKind::Write => policy != SqlPolicy::Read,
        StatementKind::Schema => policy == SqlPolicy::Migrate,
        StatementKind::Transaction | StatementKind::Setting | StatementKind::Attach | StatementKind::Other => false,
    }
}

/// Returns what the engine reported about a statement.
///
/// # Errors
/// The engine refused the statement, or was not asked about it.
pub(super) fn bound_statement<'c>(
    case: &'c ChainContext<'_>,
    index: usize,
) -> Result<&'c BoundStatement, EngineRefusal> {
    match &case.statements[index].prepared {
        Some(prepared) => prepared.as_ref().map_err(Clone::clone),
        None => Err(EngineRefusal::new(SqlCode::EngineFailed, "the engine did not check the statement")),
    }
}

//! Asks the engine about every statement of the text. Each statement is prepared once, by the first stage that needs
//! the result. In a migration each statement builds on those before it: all of them run in one transaction that is
//! rolled back at the end. The cost of a statement therefore does not depend on its position.

use proctor_core::sql::{Batch, Policy, SqlCode, StageName};

use crate::engine::{Bound, Kind, Refusal};
use crate::lists;
use crate::stage::{Case, Statement, on};
use crate::stages::names;

/// The maximum number of statements that are examined if the request allows only one. This is enough to show what
/// follows the first statement.
const MOST_BEHIND: usize = 64;

/// Splits the text into statements, unless an earlier stage did.
///
/// # Errors
/// The text cannot be split, or it has far more than one statement where only one is allowed.
pub(super) fn split(case: &mut Case<'_>) -> Result<(), Refusal> {
    if case.statements.is_empty() {
        let ranges = case.engine.split(&case.request.sql)?;
        if case.request.batch() == Batch::One && ranges.len() > MOST_BEHIND {
            let message = format!("there are {} statements, but only one is allowed", ranges.len());
            return Err(Refusal { place: ranges.get(1).cloned(), ..Refusal::new(SqlCode::StackedStatements, message) });
        }
        let statement = |range| Statement { range, tree: None, prepared: None, names: Vec::new(), off_list: None };
        case.statements = ranges.into_iter().map(statement).collect();
    }
    Ok(())
}

/// Prepares each statement, unless an earlier stage did. Stops when the deadline passes; `stage` then reports the time
/// limit.
///
/// # Errors
/// The engine cannot begin or undo a migration.
pub(super) fn ask(case: &mut Case<'_>, stage: StageName) -> Result<(), String> {
    if case.statements.iter().all(|statement| statement.prepared.is_some()) {
        return Ok(());
    }
    let is_migration =
        case.request.policy == Policy::Migrate && case.request.batch() == Batch::Many && case.statements.len() > 1;
    if is_migration {
        case.engine.begin().map_err(|refusal| refusal.message)?;
    }
    for index in 0..case.statements.len() {
        if case.is_late(stage) {
            break;
        }
        one(case, index, is_migration);
    }
    if is_migration {
        case.engine.rollback().map_err(|refusal| refusal.message)?;
    }
    Ok(())
}

fn one(case: &mut Case<'_>, index: usize, is_migration: bool) {
    let bounds = case.bounds();
    let text = case.text_of(&case.statements[index]).to_owned();
    let prepared = case.engine.bind(&text, on(&bounds));
    if let Ok(bound) = &prepared
        && lists::are_given(&case.request.allow)
        && may_do(bound.kind(), case.request.policy)
    {
        let checked = case.engine.check_lists(&text, bound, &case.request.allow, on(&bounds));
        case.statements[index].off_list = checked.err();
    }
    match &prepared {
        Ok(bound) if is_migration && bound.kind() == Kind::Schema => {
            // The stage `run` reports a statement that fails here.
            let _ = case.engine.run(&text, bound, Policy::Migrate, on(&bounds));
        }
        Err(refusal) if !refusal.code.is_ours() => {
            case.statements[index].names = names::names(case, index, refusal.clone());
        }
        _ => {}
    }
    case.statements[index].prepared = Some(prepared);
}

/// Reports whether a policy allows statements of a kind at all.
fn may_do(kind: Kind, policy: Policy) -> bool {
    match kind {
        Kind::Read => true,
        Kind::Write => policy != Policy::Read,
        Kind::Schema => policy == Policy::Migrate,
        Kind::Transaction | Kind::Setting | Kind::Attach | Kind::Other => false,
    }
}

/// Returns what the engine reported about a statement.
///
/// # Errors
/// The engine refused the statement, or was not asked about it.
pub(super) fn prepared<'c>(case: &'c Case<'_>, index: usize) -> Result<&'c Bound, Refusal> {
    match &case.statements[index].prepared {
        Some(prepared) => prepared.as_ref().map_err(Clone::clone),
        None => Err(Refusal::new(SqlCode::EngineFailed, "the engine was not asked")),
    }
}

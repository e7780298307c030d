//! The engine's word on every statement of the text. Each is asked about once, whichever stage needs it first. In a
//! migration each stands on what those before it make: the walk goes on in one database and undoes all of it at its end,
//! so that a statement costs the same wherever it stands, and nothing of it is left.

use proctor_core::sql::{Batch, Policy, SqlCode, StageName};

use crate::engine::{Bound, Kind, Refusal};
use crate::lists;
use crate::stage::{Case, Statement, on};
use crate::stages::names;

/// How many statements are looked at where there was to be one: enough to tell what stands behind it.
const MOST_BEHIND: usize = 64;

/// Finds the statements of the text, where no stage has.
///
/// # Errors
/// The text does not fall into statements, or into far more than one where there was to be one.
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

/// Asks the engine about each statement, where no stage has. One that `stage` finds to be too late is left out.
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
            // One that cannot run is told when it is run.
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

/// What the engine said of a statement.
pub(super) fn prepared(case: &Case<'_>, index: usize) -> Result<Bound, Refusal> {
    match &case.statements[index].prepared {
        Some(prepared) => prepared.clone(),
        None => Err(Refusal::new(SqlCode::EngineFailed, "the engine was not asked")),
    }
}

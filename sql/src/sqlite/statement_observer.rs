//! Handles SQLite's callbacks: the authorizer, which reports each action of a statement, and the progress handler,
//! which SQLite calls at regular numbers of instructions. Refuses what the policy does not allow, and interrupts
//! statements that exceed their limits.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use proctor_core::sql::SqlPolicy;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization, TransactionOperation};

use super::builtin_allowlist;
use crate::engine::Action;

/// The time limit of internal statements that contain no text of a request.
const INTERNAL_TIMEOUT: Duration = Duration::from_secs(60);

/// The origin of the current statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StatementOrigin {
    /// An internal statement of Proctor. It may perform any action.
    Internal,
    /// A statement of the schema: it creates tables and rows, and may access nothing else.
    Schema,
    /// A statement that is prepared but not run. All of its actions are recorded. Actions that SQLite performs during
    /// preparation are refused.
    PrepareOnly,
    /// A statement that runs under a policy.
    Policy(SqlPolicy),
}

/// The reason why a statement was interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StatementInterrupt {
    /// The deadline of the statement passed.
    Time,
    /// The statement ran too many instructions.
    Steps,
}

/// The recorded facts about a statement.
#[derive(Debug, Default)]
pub(super) struct ObservedStatement {
    pub(super) actions: BTreeSet<Action>,
    /// True if an action was refused.
    pub(super) is_denied: bool,
    /// True if the statement is a query.
    pub(super) is_query: bool,
}

#[derive(Debug)]
struct ObserverState {
    origin: StatementOrigin,
    observed: ObservedStatement,
    steps: u64,
    max_steps: u64,
    deadline: Instant,
    interrupt: Option<StatementInterrupt>,
}

/// The observer of one connection.
#[derive(Debug)]
pub(super) struct StatementObserver(Mutex<ObserverState>);

impl StatementObserver {
    pub(super) fn new() -> Self {
        Self(Mutex::new(ObserverState {
            origin: StatementOrigin::Internal,
            observed: ObservedStatement::default(),
            steps: 0,
            max_steps: u64::MAX,
            deadline: Instant::now() + INTERNAL_TIMEOUT,
            interrupt: None,
        }))
    }

    fn state(&self) -> MutexGuard<'_, ObserverState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resets the state for the next statement.
    pub(super) fn begin_statement(&self, mode: StatementOrigin, max_steps: u64, deadline: Instant) {
        *self.state() = ObserverState {
            origin: mode,
            observed: ObservedStatement::default(),
            steps: 0,
            max_steps,
            deadline,
            interrupt: None,
        };
    }

    /// Resets the state for internal statements that contain no text of a request, such as `BEGIN` and queries of the
    /// catalog. They must also succeed after the deadline of a request.
    pub(super) fn begin_internal(&self) {
        self.begin_statement(StatementOrigin::Internal, u64::MAX, Instant::now() + INTERNAL_TIMEOUT);
    }

    /// Returns the recorded facts about the statement.
    pub(super) fn take_observed(&self) -> ObservedStatement {
        let mut noted = std::mem::take(&mut self.state().observed);
        remove_internal_actions(&mut noted.actions);
        noted
    }

    /// Returns the reason why the statement was interrupted, if it was.
    pub(super) fn interrupt_reason(&self) -> Option<StatementInterrupt> {
        self.state().interrupt
    }

    /// Reports whether the statement must end, after `steps` more instructions.
    pub(super) fn should_interrupt(&self, steps: i32) -> bool {
        let mut state = self.state();
        state.steps = state.steps.saturating_add(u64::try_from(steps).unwrap_or(0));
        let stopped = if state.steps > state.max_steps {
            Some(StatementInterrupt::Steps)
        } else if Instant::now() > state.deadline {
            Some(StatementInterrupt::Time)
        } else {
            None
        };
        if stopped.is_some() {
            state.interrupt = stopped;
        }
        stopped.is_some()
    }

    /// Decides whether the statement may perform an action.
    pub(super) fn authorize(&self, context: &AuthContext<'_>) -> Authorization {
        let mut state = self.state();
        let Some(action) = convert_action(&context.action) else {
            state.observed.is_query = true;
            return Authorization::Allow;
        };
        if state.origin == StatementOrigin::PrepareOnly {
            state.observed.actions.extend(pragma_metadata(&context.action));
        }
        let answer = match state.origin {
            StatementOrigin::Internal => return Authorization::Allow,
            StatementOrigin::Schema => authorize_schema_action(&action),
            StatementOrigin::PrepareOnly if matches!(&action, Action::Setting(name) if !builtin_allowlist::is_harmless_pragma(name)) => {
                Authorization::Deny
            }
            StatementOrigin::PrepareOnly => Authorization::Allow,
            StatementOrigin::Policy(policy) if is_allowed_by_policy(&action, policy) => Authorization::Allow,
            StatementOrigin::Policy(_) => Authorization::Deny,
        };
        if matches!(state.origin, StatementOrigin::PrepareOnly | StatementOrigin::Policy(_)) {
            state.observed.actions.insert(action);
            state.observed.is_denied |= answer == Authorization::Deny;
        }
        answer
    }
}

/// Decides about an action of a schema. Dumps contain transactions and pragmas: transactions are allowed, pragmas are
/// ignored. FTS3, FTS4 and R*Tree read the size of a page when they create a table, and fail without an answer.
fn authorize_schema_action(action: &Action) -> Authorization {
    match action {
        Action::Setting(name) if name == "page_size" => Authorization::Allow,
        Action::Setting(_) => Authorization::Ignore,
        Action::Attach(_) | Action::File(_) | Action::Other(_) => Authorization::Deny,
        Action::Call(function) if !builtin_allowlist::is_harmless_function(function) => Authorization::Deny,
        _ => Authorization::Allow,
    }
}

/// Reports whether a running statement may perform an action. This check does not depend on the findings of earlier
/// stages.
fn is_allowed_by_policy(action: &Action, policy: SqlPolicy) -> bool {
    match action {
        Action::Read { .. } | Action::Metadata { .. } | Action::Recursion => true,
        Action::Call(function) => {
            builtin_allowlist::is_harmless_function(function)
                || (policy == SqlPolicy::Migrate && is_alter_function(function))
        }
        Action::Setting(name) => builtin_allowlist::is_harmless_pragma(name),
        Action::Insert(table) | Action::Delete(table) | Action::Update { table, .. } => {
            policy == SqlPolicy::Migrate || (policy == SqlPolicy::Write && !is_internal_table(table))
        }
        Action::Schema { .. } => policy == SqlPolicy::Migrate,
        Action::Transaction(_) | Action::Attach(_) | Action::File(_) | Action::Other(_) => false,
    }
}

/// Reports whether a table is one of SQLite's internal tables.
fn is_internal_table(table: &str) -> bool {
    table.get(..7).is_some_and(|head| head.eq_ignore_ascii_case("sqlite_"))
}

/// Removes the actions on internal tables that a change of the schema implies.
fn remove_internal_actions(actions: &mut BTreeSet<Action>) {
    if !actions.iter().any(|action| matches!(action, Action::Schema { .. })) {
        return;
    }
    actions.retain(|action| match action {
        Action::Insert(table) | Action::Delete(table) | Action::Update { table, .. } => !is_internal_table(table),
        Action::Read { table, .. } => !is_internal_table(table),
        Action::Call(function) => !is_alter_function(function) && function != "printf",
        _ => true,
    });
}

/// Reports whether `ALTER TABLE` uses a function internally to rewrite the schema. No other statement can call these
/// functions.
fn is_alter_function(function: &str) -> bool {
    const ALTER_FUNCTION_PREFIXES: [&str; 5] =
        ["sqlite_rename_", "sqlite_drop_", "sqlite_add_", "sqlite_find_", "sqlite_fail"];
    ALTER_FUNCTION_PREFIXES.iter().any(|begin| function.starts_with(begin))
}

/// Converts an action of the authorizer; returns `None` for one that carries no information.
fn convert_action(action: &AuthAction<'_>) -> Option<Action> {
    let schema = |what: &str, name: &str| Action::Schema { operation: what.to_owned(), name: name.to_owned() };
    Some(match *action {
        AuthAction::Select => return None,
        AuthAction::Read { table_name, column_name } => Action::Read {
            table: table_name.to_owned(),
            column: Some(column_name).filter(|name| !name.is_empty()).map(str::to_owned),
        },
        AuthAction::Function { function_name } => Action::Call(function_name.to_ascii_lowercase()),
        AuthAction::Recursive => Action::Recursion,
        AuthAction::Insert { table_name } => Action::Insert(table_name.to_owned()),
        AuthAction::Delete { table_name } => Action::Delete(table_name.to_owned()),
        AuthAction::Update { table_name, column_name } => {
            Action::Update { table: table_name.to_owned(), column: column_name.to_owned() }
        }
        AuthAction::CreateIndex { index_name, .. } => schema("create index", index_name),
        AuthAction::CreateTable { table_name } => schema("create table", table_name),
        AuthAction::CreateTempIndex { index_name, .. } => schema("create temporary index", index_name),
        AuthAction::CreateTempTable { table_name } => schema("create temporary table", table_name),
        AuthAction::CreateTempTrigger { trigger_name, .. } => schema("create temporary trigger", trigger_name),
        AuthAction::CreateTempView { view_name } => schema("create temporary view", view_name),
        AuthAction::CreateTrigger { trigger_name, .. } => schema("create trigger", trigger_name),
        AuthAction::CreateView { view_name } => schema("create view", view_name),
        AuthAction::DropIndex { index_name, .. } => schema("drop index", index_name),
        AuthAction::DropTable { table_name } => schema("drop table", table_name),
        AuthAction::DropTempIndex { index_name, .. } => schema("drop temporary index", index_name),
        AuthAction::DropTempTable { table_name } => schema("drop temporary table", table_name),
        AuthAction::DropTempTrigger { trigger_name, .. } => schema("drop temporary trigger", trigger_name),
        AuthAction::DropTempView { view_name } => schema("drop temporary view", view_name),
        AuthAction::DropTrigger { trigger_name, .. } => schema("drop trigger", trigger_name),
        AuthAction::DropView { view_name } => schema("drop view", view_name),
        AuthAction::AlterTable { table_name, .. } => schema("alter table", table_name),
        AuthAction::CreateVtable { table_name, module_name } => {
            match builtin_allowlist::is_harmless_module(module_name) {
                true => schema("create virtual table", table_name),
                false => Action::Other(format!("a virtual table of the module `{module_name}`")),
            }
        }
        AuthAction::DropVtable { table_name, .. } => schema("drop virtual table", table_name),
        AuthAction::Reindex { index_name } => schema("reindex", index_name),
        AuthAction::Analyze { table_name } => schema("analyze", table_name),
        AuthAction::Transaction { operation } => Action::Transaction(transaction_name(operation, "").to_owned()),
        AuthAction::Savepoint { operation, .. } => {
            Action::Transaction(transaction_name(operation, " (savepoint)").to_owned())
        }
        AuthAction::Pragma { pragma_name, pragma_value } => {
            // A pragma with a value may change a setting, unless its value is a name.
            let name = pragma_name.to_ascii_lowercase();
            match pragma_value {
                Some(_) if !builtin_allowlist::takes_object_name(&name) => Action::Setting(format!("{name} = …")),
                _ => Action::Setting(name),
            }
        }
        AuthAction::Attach { filename } => Action::Attach(format!("attach `{filename}`")),
        AuthAction::Detach { database_name } => Action::Attach(format!("detach `{database_name}`")),
        // `ATTACH` and `VACUUM INTO` report a database without a name if the file is an expression.
        AuthAction::Unknown { code, .. } => Action::Other(format!("SQLite's action {code}")),
        _ => Action::Other("an unknown action".to_owned()),
    })
}

/// Returns the metadata of the schema that a pragma shows.
fn pragma_metadata(action: &AuthAction<'_>) -> Option<Action> {
    let AuthAction::Pragma { pragma_name, pragma_value } = *action else { return None };
    let name = pragma_name.to_ascii_lowercase();
    let table = pragma_value.filter(|_| builtin_allowlist::describes_single_table(&name)).map(str::to_owned);
    (!builtin_allowlist::is_engine_pragma(&name))
        .then(|| Action::Metadata { source: format!("the pragma `{name}`"), table })
}

fn transaction_name(operation: TransactionOperation, savepoint: &'static str) -> &'static str {
    match (operation, savepoint.is_empty()) {
        (TransactionOperation::Begin, true) => "BEGIN",
        (TransactionOperation::Rollback, true) => "ROLLBACK",
        (TransactionOperation::Begin, false) => "SAVEPOINT",
        (TransactionOperation::Release, _) => "RELEASE",
        (TransactionOperation::Rollback, false) => "ROLLBACK TO",
        _ => "COMMIT",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_internal_statement_after_deadline() {
        let observer = StatementObserver::new();
        let past = Instant::now().checked_sub(Duration::from_secs(1)).expect("an instant");
        observer.begin_statement(StatementOrigin::Internal, u64::MAX, past);
        assert!(observer.should_interrupt(1));
        assert_eq!(observer.interrupt_reason(), Some(StatementInterrupt::Time));
        observer.begin_internal();
        assert!(!observer.should_interrupt(i32::MAX), "the end of a transaction must not depend on a request");
    }
}

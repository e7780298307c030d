//! Binds a statement: the owner of the database prepares it, the probe finds out which objects it uses, and its tokens
//! show everything else. A view runs with the privileges of the owner, so that its definition is bound too.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use proctor_core::sql::SqlCode;

use super::catalog_reader::DatabaseContent;
use super::functional_dependence;
use super::mysql_errors::{self, MissingPrivilege};
use super::mysql8_forms;
use super::privilege_probe::{ColumnPrivilege, PrivilegeProbe, StatementNeeds, TableNeeds};
use super::server::Server;
use super::session::{Prepared, Session, SessionError, SqlMode};
use super::statement_form::{self, FormKind};
use super::unchecked_reads;
use crate::engine::{Action, BoundStatement, EngineRefusal};

/// The maximum nesting of views.
const MAX_VIEW_DEPTH: usize = 64;
/// The maximum number of columns that a grouped query may return besides the grouped ones.
const MAX_DEPENDENT_COLUMNS: usize = 64;
/// The databases of the server itself.
const SYSTEM_DATABASES: &[&str] = &["information_schema", "mysql", "performance_schema", "sys"];

/// The actions of the definition of each view.
pub(super) type ViewActions = BTreeMap<String, BTreeSet<Action>>;

/// The statements of MySQL 8 that the server refuses, and the equivalents that it accepts.
pub(super) type Equivalents = BTreeMap<String, String>;

/// The connections and the content of a database.
pub(super) struct StatementBinder<'a> {
    pub(super) session: &'a mut Session,
    pub(super) probe: &'a mut PrivilegeProbe,
    pub(super) server: &'a Server,
    pub(super) content: &'a DatabaseContent,
    pub(super) database: &'a str,
    pub(super) view_actions: &'a mut ViewActions,
    pub(super) equivalents: &'a mut Equivalents,
    pub(super) deadline: Instant,
}

impl StatementBinder<'_> {
    /// Prepares a statement, and finds out what it does.
    pub(super) fn bind(&mut self, sql: &str) -> Result<BoundStatement, EngineRefusal> {
        let form = statement_form::classify(sql);
        let mut bound = BoundStatement { actions: form.actions, ..BoundStatement::default() };
        let (prepared, rows) = match self.prepare_grouped(sql) {
            Ok(prepared) => (prepared, sql.to_owned()),
            Err(error) => match self.prepare_equivalent(sql) {
                Some(accepted) if form.kind == FormKind::Rows => accepted,
                _ => return self.refused_statement(sql, bound, &error),
            },
        };
        bound.is_query = !prepared.columns.is_empty();
        bound.columns = prepared.columns;
        bound.parameters = prepared.parameters;
        match form.kind {
            FormKind::Rows => bound.actions.extend(self.row_actions(&rows)?),
            FormKind::Explain { inner, is_run } => {
                bound.actions.extend(self.row_actions(inner)?);
                bound.is_explain = !is_run;
                bound.is_query = true;
            }
            FormKind::Definition { query: Some(query) } => bound.actions.extend(self.row_actions(query)?),
            FormKind::Definition { query: None } | FormKind::Command => {}
        }
        if rows != sql {
            self.equivalents.insert(sql.to_owned(), rows);
        }
        bound.is_readonly = !bound.actions.iter().any(is_change);
        Ok(bound)
    }

    /// Prepares a statement by the rules of MySQL 8 for grouped queries: a column that the grouped columns determine
    /// counts as grouped.
    fn prepare_grouped(&mut self, sql: &str) -> Result<Prepared, SessionError> {
        let first = match self.session.prepare(sql, SqlMode::Grouped, self.deadline) {
            Err(error) => error,
            prepared => return prepared,
        };
        let mut text = sql.to_owned();
        let mut refused = self.ungrouped_column(&first);
        for _ in 0..MAX_DEPENDENT_COLUMNS {
            let next = refused.and_then(|column| functional_dependence::grouped_by(&text, &column, self.content));
            let Some(next) = next else { return Err(first) };
            text = next;
            match self.session.prepare(&text, SqlMode::Grouped, self.deadline) {
                Ok(_) => return self.session.prepare(sql, SqlMode::Strict, self.deadline),
                Err(error) => refused = self.ungrouped_column(&error),
            }
        }
        Err(first)
    }

    /// Prepares an equivalent of a statement of MySQL 8 that the server refuses. Returns it with the text.
    fn prepare_equivalent(&mut self, sql: &str) -> Option<(Prepared, String)> {
        let text = mysql8_forms::equivalent(sql)?;
        Some((self.prepare_grouped(&text).ok()?, text))
    }

    /// Returns the column that a query may not return, since it is grouped by others.
    fn ungrouped_column(&self, error: &SessionError) -> Option<String> {
        let is_ungrouped =
            matches!(error, SessionError::Server(reported) if reported.code == mysql_errors::UNGROUPED_COLUMN);
        is_ungrouped.then(|| mysql_errors::to_refusal(error, "", self.database).subject)?
    }

    /// Judges a statement that the owner of the database cannot prepare. A statement that no policy allows stays one,
    /// unless its syntax is wrong.
    fn refused_statement(
        &self,
        sql: &str,
        mut bound: BoundStatement,
        error: &SessionError,
    ) -> Result<BoundStatement, EngineRefusal> {
        let refusal = mysql_errors::to_refusal(error, sql, self.database);
        let is_syntax = matches!(refusal.code, SqlCode::SyntaxError | SqlCode::UnterminatedToken);
        let is_refused = bound.actions.iter().any(is_never_allowed);
        if is_syntax || refusal.code.is_engine_problem() || crate::engine::is_limit_code(refusal.code) {
            return Err(refusal);
        }
        if mysql_errors::is_denial(error) {
            if let Some(missing) = self.missing_database(error) {
                return Err(missing);
            }
            bound.actions.insert(Action::Other(format!("the server denies it ({})", refusal.message)));
            return Ok(bound);
        }
        if is_refused { Ok(bound) } else { Err(refusal) }
    }

    /// Returns the refusal of a table in a database that does not exist. The server denies access to it.
    fn missing_database(&self, error: &SessionError) -> Option<EngineRefusal> {
        let Some(MissingPrivilege::Table { database, table, .. }) = mysql_errors::missing_privilege(error) else {
            return None;
        };
        let is_system = SYSTEM_DATABASES.iter().any(|system| system.eq_ignore_ascii_case(&database));
        (!is_system && database != self.database).then(|| {
            let message = format!("there is no database `{database}`, and no table `{database}.{table}`");
            let refusal = EngineRefusal::new(SqlCode::UnknownTable, message);
            EngineRefusal {
                subject: Some(format!("{database}.{table}")),
                engine_code: Some(mysql_errors::UNKNOWN_TABLE.to_string()),
                ..refusal
            }
        })
    }

    /// Returns the actions of a query or a change of rows that reach tables, columns and routines.
    fn row_actions(&mut self, sql: &str) -> Result<BTreeSet<Action>, EngineRefusal> {
        self.row_actions_at(sql, 0)
    }

    fn row_actions_at(&mut self, sql: &str, depth: usize) -> Result<BTreeSet<Action>, EngineRefusal> {
        let mut actions = BTreeSet::new();
        for text in [sql].into_iter().chain(unchecked_reads::reading_equivalent(sql).as_deref()) {
            let needs = self.probe.find_needs(self.server, self.content, text, self.deadline);
            let mut needs = needs.map_err(|error| mysql_errors::to_internal_refusal(&error, self.database))?;
            unchecked_reads::add_to(&mut needs, text, self.content);
            actions.extend(direct_actions(&needs, self.content));
            for view in needs.tables.keys().filter(|table| self.content.views.contains_key(*table)) {
                actions.extend(self.view_actions(view, depth)?);
            }
        }
        Ok(actions)
    }

    /// Returns everything that the definition of a view does.
    fn view_actions(&mut self, view: &str, depth: usize) -> Result<BTreeSet<Action>, EngineRefusal> {
        if let Some(known) = self.view_actions.get(view) {
            return Ok(known.clone());
        }
        let definition = self.content.views.get(view).map(String::as_str).unwrap_or_default();
        let form = statement_form::classify(definition);
        if depth > MAX_VIEW_DEPTH || form.kind != FormKind::Rows {
            return Ok(BTreeSet::from([Action::Other(format!("the definition of the view `{view}` cannot be read"))]));
        }
        let mut actions = form.actions;
        actions.extend(self.row_actions_at(definition, depth + 1)?);
        self.view_actions.insert(view.to_owned(), actions.clone());
        Ok(actions)
    }
}

fn is_change(action: &Action) -> bool {
    matches!(action, Action::Insert(_) | Action::Update { .. } | Action::Delete(_) | Action::Schema { .. })
}

/// Reports whether no policy allows an action.
fn is_never_allowed(action: &Action) -> bool {
    matches!(
        action,
        Action::Transaction(_) | Action::Setting(_) | Action::Attach(_) | Action::File(_) | Action::Other(_)
    )
}

/// Converts needs to actions, without the definitions of views.
fn direct_actions(needs: &StatementNeeds, content: &DatabaseContent) -> BTreeSet<Action> {
    let mut actions: BTreeSet<Action> = needs.others.iter().cloned().map(Action::Other).collect();
    actions.extend(needs.routines.iter().map(|name| Action::Call(name.to_lowercase())));
    for (table, needs) in &needs.tables {
        actions.extend(table_actions(table, needs, content));
    }
    actions
}

fn table_actions(table: &str, needs: &TableNeeds, content: &DatabaseContent) -> BTreeSet<Action> {
    let mut actions = BTreeSet::new();
    let name = || table.to_owned();
    let updates = needs.columns.contains_key(&ColumnPrivilege::Update);
    for (privilege, columns) in &needs.columns {
        let all = || content.table(table).map(|table| table.columns.iter().map(|column| column.name.clone()).collect());
        let used = if columns.is_whole { all().unwrap_or_default() } else { columns.named.clone() };
        match privilege {
            ColumnPrivilege::Select => {
                actions.extend(used.iter().flat_map(|column| generated_actions(table, column, content)));
                if used.is_empty() {
                    actions.insert(Action::Read { table: name(), column: None });
                }
                actions.extend(used.into_iter().map(|column| Action::Read { table: name(), column: Some(column) }));
            }
            ColumnPrivilege::Update => {
                let used = if used.is_empty() { BTreeSet::from(["*".to_owned()]) } else { used };
                actions.extend(used.into_iter().map(|column| Action::Update { table: name(), column }));
            }
        }
    }
    if needs.inserts {
        actions.insert(Action::Insert(name()));
    }
    if needs.deletes {
        actions.insert(Action::Delete(name()));
    }
    if needs.inserts && needs.deletes {
        // `REPLACE` rewrites whole rows.
        actions.insert(Action::Update { table: name(), column: "*".to_owned() });
    }
    if content.views.contains_key(table) && (needs.inserts || needs.deletes || updates) {
        actions.insert(Action::Other(format!("it changes rows through the view `{table}`")));
    }
    let events = [("INSERT", needs.inserts), ("UPDATE", updates), ("DELETE", needs.deletes)];
    for (event, name) in content.triggers.get(table).into_iter().flatten() {
        if events.contains(&(event.as_str(), true)) {
            // The effects of a trigger are unknown.
            actions.insert(Action::Call(name.clone()));
        }
    }
    actions
}

/// Returns what a generated column reads and calls.
fn generated_actions(table: &str, column: &str, content: &DatabaseContent) -> BTreeSet<Action> {
    let Some(generated) = content.generated_column(table, column) else { return BTreeSet::new() };
    let columns = content.table(table).map(|table| table.columns.as_slice()).unwrap_or_default();
    let sources = columns.iter().filter(|column| generated.sources.contains(&column.name));
    let reads = sources.map(|column| Action::Read { table: table.to_owned(), column: Some(column.name.clone()) });
    generated.calls.iter().cloned().chain(reads).collect()
}

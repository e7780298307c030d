//! Checks lists of tables and columns a second time: the server prepares the statement for a user who has privileges
//! on the lists alone. The rows that foreign keys change are checked too.

use proctor_core::sql::SqlCode;

use super::catalog_reader::{DatabaseContent, quote_identifier};
use super::mysql_errors::{self, MissingPrivilege};
use super::session::SessionError;
use super::statement_form;
use crate::allow_lists::{self, NameLists};
use crate::engine::{Action, BoundStatement, EngineRefusal, StatementKind};

/// Returns the privileges that lists allow, with the tables that they are for.
pub(super) fn listed_privileges(content: &DatabaseContent, allow: &NameLists) -> Vec<(String, String)> {
    let mut privileges = Vec::new();
    for table in content.catalog.tables.iter().filter(|table| allow_lists::is_table_allowed(allow, &table.name)) {
        let Some(listed) = allow_lists::allowed_columns(allow, &table.name) else {
            privileges.push(("SELECT, INSERT, UPDATE, DELETE".to_owned(), table.name.clone()));
            continue;
        };
        let is_listed = |name: &str| listed.iter().any(|listed| listed.eq_ignore_ascii_case(name));
        // A generated column shows the columns that it is computed from.
        let is_shown = |name: &str| {
            let generated = content.generated_column(&table.name, name);
            is_listed(name)
                && generated.is_none_or(|generated| {
                    let sources = generated.sources.iter().filter(|source| table.column(source).is_some());
                    sources.into_iter().all(|source| is_listed(source))
                })
        };
        let shown = table.columns.iter().filter(|column| is_shown(&column.name));
        let columns = shown.map(|column| quote_identifier(&column.name)).collect::<Vec<_>>().join(", ");
        if !columns.is_empty() {
            let on_columns = ["SELECT", "INSERT", "UPDATE"].map(|right| format!("{right} ({columns})"));
            privileges.push((on_columns.join(", "), table.name.clone()));
        }
        privileges.push(("DELETE".to_owned(), table.name.clone()));
    }
    privileges
}

/// Converts the refusal of a statement that was prepared with the privileges of the lists.
pub(super) fn refusal(error: &SessionError, sql: &str, database: &str) -> EngineRefusal {
    let found = mysql_errors::to_refusal(error, sql, database);
    let (code, subject) = match mysql_errors::missing_privilege(error) {
        Some(MissingPrivilege::Table { table, .. }) => (SqlCode::TableRefused, table),
        Some(MissingPrivilege::Column { table, column, .. }) => (SqlCode::ColumnRefused, format!("{table}.{column}")),
        // The functions of a statement are checked against another list.
        Some(MissingPrivilege::Routine(name)) => (SqlCode::FunctionRefused, name),
        None => return found,
    };
    let subject = subject.strip_prefix(&format!("{database}.")).map_or(subject.clone(), str::to_owned);
    let message = format!("the statement needs `{subject}`, which is not on the lists");
    EngineRefusal { subject: Some(subject), ..EngineRefusal::new(code, message) }
}

/// Checks the tables whose rows a foreign key changes.
///
/// # Errors
/// Such a table or column is not on the lists.
pub(super) fn check_cascades(
    content: &DatabaseContent,
    bound: &BoundStatement,
    allow: &NameLists,
) -> Result<(), EngineRefusal> {
    let mut reached: Vec<(&str, bool)> = Vec::new();
    for action in &bound.actions {
        match action {
            Action::Delete(table) => reached.push((table, true)),
            Action::Update { table, .. } => reached.push((table, false)),
            _ => {}
        }
    }
    let mut at = 0;
    // A change of one table may reach another one through several keys.
    while let Some((referenced, deletes)) = reached.get(at).copied() {
        at += 1;
        for cascade in content.cascades.iter().filter(|cascade| cascade.referenced == referenced) {
            if !(if deletes { cascade.on_delete } else { cascade.on_update }) {
                continue;
            }
            let table = &cascade.referencing;
            if !allow_lists::is_table_allowed(allow, table)
                || (!deletes && !allow_lists::is_column_allowed(allow, table, &cascade.column))
            {
                let message = format!("a foreign key changes rows of `{table}`, which is not on the list");
                let refusal = EngineRefusal::new(SqlCode::TableRefused, message);
                return Err(EngineRefusal { subject: Some(table.clone()), ..refusal });
            }
            for next in [(table.as_str(), true), (table.as_str(), false)] {
                if !reached.contains(&next) {
                    reached.push(next);
                }
            }
        }
    }
    Ok(())
}

/// Checks the tables that the definition of a new object names besides those that it reads.
///
/// # Errors
/// Such a table is not on the list.
pub(super) fn check_definition(sql: &str, bound: &BoundStatement, allow: &NameLists) -> Result<(), EngineRefusal> {
    if bound.kind() != StatementKind::Schema {
        return Ok(());
    }
    let mut names = statement_form::defined_references(sql).into_iter();
    match names.find(|name| !allow_lists::is_table_allowed(allow, name)) {
        Some(name) => {
            let message = format!("the definition uses `{name}`, which is not on the list");
            Err(EngineRefusal { subject: Some(name), ..EngineRefusal::new(SqlCode::TableRefused, message) })
        }
        None => Ok(()),
    }
}

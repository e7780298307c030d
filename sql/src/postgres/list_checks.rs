//! Checks lists of tables and columns a second time: the server plans the statement for a role that has privileges on
//! the lists alone. The rows that foreign keys change are checked too.

use std::collections::BTreeSet;
use std::time::Instant;

use proctor_core::sql::{Dialect, SqlCode};

use super::affected_relations;
use super::catalog_reader::{DatabaseContent, RelationKind, quote_identifier};
use super::definitions;
use super::postgres_errors;
use super::server::LISTED_ROLE;
use super::session::{Session, SessionError};
use crate::allow_lists::{self, NameLists};
use crate::catalog::split_name;
use crate::engine::{Action, BoundStatement, EngineRefusal, StatementKind};
use crate::lexer;

/// The SQLSTATE of a missing privilege.
const INSUFFICIENT_PRIVILEGE: &str = "42501";

/// Plans a statement for a role with the privileges of the lists.
///
/// # Errors
/// A privilege is missing, or the statement cannot be planned.
pub(super) fn check_privileges(
    session: &Session,
    content: &DatabaseContent,
    sql: &str,
    parameters: usize,
    allow: &NameLists,
    deadline: Instant,
) -> Result<(), SessionError> {
    let mut grants = Vec::new();
    for relation in content.relations.values().filter(|relation| relation.kind != RelationKind::Sequence) {
        if !allow_lists::is_table_allowed(allow, &relation.name) {
            continue;
        }
        let name =
            content.quoted_names.get(&relation.name).cloned().unwrap_or_else(|| quote_identifier(&relation.name));
        match allow_lists::allowed_columns(allow, &relation.name) {
            None => grants.push(format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {name} TO {LISTED_ROLE}")),
            Some(listed) => {
                let is_listed = |number: &i32| {
                    let column = relation.columns.get(number);
                    column.is_some_and(|column| listed.iter().any(|listed| listed.eq_ignore_ascii_case(column)))
                };
                // A generated column shows the columns that it is computed from.
                let is_shown = |number: &i32| {
                    is_listed(number)
                        && relation.generated.get(number).is_none_or(|sources| sources.iter().all(is_listed))
                };
                let columns = relation
                    .columns
                    .iter()
                    .filter(|(number, _)| is_shown(number))
                    .map(|(_, column)| quote_identifier(column))
                    .collect::<Vec<_>>()
                    .join(", ");
                if !columns.is_empty() {
                    let on_columns = ["SELECT", "INSERT", "UPDATE"].map(|right| format!("{right} ({columns})"));
                    grants.push(format!("GRANT {} ON {name} TO {LISTED_ROLE}", on_columns.join(", ")));
                }
                grants.push(format!("GRANT DELETE ON {name} TO {LISTED_ROLE}"));
            }
        }
    }
    for name in content.quoted_names.keys() {
        if let [schema, _] = split_name(name, &['"']).as_slice() {
            grants.push(format!("GRANT USAGE ON SCHEMA {} TO {LISTED_ROLE}", quote_identifier(schema)));
        }
    }
    // A rollback does not undo PREPARE, so that an earlier check may have left its statement.
    let left = "SELECT name FROM pg_catalog.pg_prepared_statements WHERE name = 'proctor_listed'";
    if !session.query_texts(left, deadline)?.is_empty() {
        session.execute_batch("DEALLOCATE proctor_listed", deadline)?;
    }
    session.execute_batch(&grants.join(";\n"), deadline)?;
    session.execute_batch(&format!("SET LOCAL ROLE {LISTED_ROLE}"), deadline)?;
    // A statement with parameters can only be planned with values for them.
    session.execute(&format!("PREPARE proctor_listed AS {sql}"), deadline)?;
    let values = vec!["NULL"; parameters].join(", ");
    let values = if parameters == 0 { String::new() } else { format!("({values})") };
    session.execute(&format!("EXPLAIN EXECUTE proctor_listed{values}"), deadline).map(drop)
}

/// Converts the result of [`check_privileges`] to a refusal.
pub(super) fn refusal(error: &SessionError, sql: &str) -> EngineRefusal {
    let refusal = postgres_errors::to_refusal(error, sql);
    if refusal.engine_code.as_deref() != Some(INSUFFICIENT_PRIVILEGE) {
        return refusal;
    }
    // `permission denied for table secret`
    let subject = refusal.message.rsplit(' ').next().map(lexer::unquote);
    let message = format!("the server needs more than the lists allow: {}", refusal.message);
    EngineRefusal { subject, ..EngineRefusal::new(SqlCode::TableRefused, message) }
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
    let name_of = |oid: u32| content.relations.get(&oid).map_or("", |relation| relation.name.as_str());
    let is_changed = |table: &str, deletes: bool| {
        bound.actions.iter().any(|action| match action {
            Action::Delete(of) => deletes && of == table,
            Action::Update { table: of, .. } => !deletes && of == table,
            _ => false,
        })
    };
    // A change of one table may reach another one through several keys.
    let mut reached: Vec<(u32, bool)> = Vec::new();
    for cascade in &content.cascades {
        for deletes in [true, false] {
            let applies = if deletes { cascade.on_delete } else { cascade.on_update };
            if applies && is_changed(name_of(cascade.referenced), deletes) {
                reached.push((cascade.referenced, deletes));
            }
        }
    }
    let mut at = 0;
    while let Some((referenced, deletes)) = reached.get(at).copied() {
        at += 1;
        for cascade in content.cascades.iter().filter(|cascade| cascade.referenced == referenced) {
            if !(if deletes { cascade.on_delete } else { cascade.on_update }) {
                continue;
            }
            let table = name_of(cascade.referencing);
            if !allow_lists::is_table_allowed(allow, table)
                || (!deletes && !allow_lists::is_column_allowed(allow, table, &cascade.column))
            {
                let message = format!("a foreign key changes rows of `{table}`, which is not on the list");
                return Err(EngineRefusal {
                    subject: Some(table.to_owned()),
                    ..EngineRefusal::new(SqlCode::TableRefused, message)
                });
            }
            for next in [(cascade.referencing, true), (cascade.referencing, false)] {
                if !reached.contains(&next) {
                    reached.push(next);
                }
            }
        }
    }
    Ok(())
}

/// Checks a change of the schema: each of its words that is the name of a table must be on the list. References,
/// parents, types of columns and bodies are thus covered, whatever their syntax. So must new names, the tables that the
/// change affects without naming them, and those to which indexes and sequences belong.
///
/// # Errors
/// Such a table is not on the list.
pub(super) fn check_definition(
    content: &DatabaseContent,
    sql: &str,
    bound: &BoundStatement,
    allow: &NameLists,
) -> Result<(), EngineRefusal> {
    if bound.kind() != StatementKind::Schema {
        return Ok(());
    }
    let is_hidden = |name: &str| !allow_lists::is_table_allowed(allow, name);
    let words = lexer::possible_names(sql, Dialect::Postgres);
    for relation in content.relations.values().filter(|relation| relation.kind != RelationKind::Sequence) {
        // A table outside of `public` is named with its schema.
        let is_named = split_name(&relation.name.to_ascii_lowercase(), &['"']).iter().all(|part| words.contains(part));
        if is_named && is_hidden(&relation.name) {
            return Err(table_refusal("the definition contains the name", &relation.name));
        }
    }
    let names: BTreeSet<&str> = bound.schema_changes().map(|(_, name)| name).collect();
    let affected = affected_relations::find(content, sql, &names);
    let mut affected = affected.into_iter().filter(|relation| relation.kind != RelationKind::Sequence);
    if let Some(relation) = affected.find(|relation| is_hidden(&relation.name)) {
        return Err(table_refusal("the definition also changes", &relation.name));
    }
    for (what, name) in bound.schema_changes() {
        let belongs_to_table = what.ends_with("index") || what.ends_with("sequence");
        let owner = content.owners.get(name).and_then(|oid| content.relations.get(oid));
        if let Some(owner) = owner.filter(|owner| belongs_to_table && is_hidden(&owner.name)) {
            return Err(table_refusal(&format!("`{name}` belongs to"), &owner.name));
        }
        let new_name = definitions::new_name(sql, name).filter(|_| !belongs_to_table);
        if let Some(new_name) = new_name.filter(|new_name| is_hidden(new_name)) {
            return Err(table_refusal("the new name is", &new_name));
        }
    }
    Ok(())
}

fn table_refusal(what: &str, table: &str) -> EngineRefusal {
    let message = format!("{what} `{table}`, which is not on the list");
    EngineRefusal { subject: Some(table.to_owned()), ..EngineRefusal::new(SqlCode::TableRefused, message) }
}

//! Checks lists of tables and columns a second time: the server plans the statement for a role that has privileges on
//! the lists alone. The rows that foreign keys change are checked too.

use std::time::Instant;

use proctor_core::sql::{Dialect, SqlAllow, SqlCode};

use super::catalog_reader::{DatabaseContent, RelationKind, quote_identifier};
use super::postgres_errors;
use super::server::LISTED_ROLE;
use super::session::{Session, SessionError};
use crate::allow_lists;
use crate::engine::{Action, BoundStatement, EngineRefusal, StatementKind};
use crate::lexer::{self, SqlTokenKind};

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
    allow: &SqlAllow,
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
                let columns = relation
                    .columns
                    .values()
                    .filter(|column| listed.iter().any(|listed| listed.eq_ignore_ascii_case(column)))
                    .map(|column| quote_identifier(column))
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
    for schema in content.quoted_names.values().filter_map(|quoted| quoted.split_once("\".\"")) {
        grants.push(format!("GRANT USAGE ON SCHEMA {}\" TO {LISTED_ROLE}", schema.0));
    }
    session.execute_batch(&grants.join(";\n"), deadline)?;
    session.execute_batch(&format!("SET LOCAL ROLE {LISTED_ROLE}"), deadline)?;
    // A statement with parameters can only be planned with values for them.
    session.execute(&format!("PREPARE proctor_listed AS {sql}"), deadline)?;
    let values = vec!["NULL"; parameters].join(", ");
    let values = if parameters == 0 { String::new() } else { format!("({values})") };
    session.execute(&format!("EXPLAIN EXECUTE proctor_listed{values}"), deadline)?;
    session.execute_batch("DEALLOCATE proctor_listed", deadline)
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
    allow: &SqlAllow,
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

/// Checks the tables that the definition of a new object names besides those that it reads.
///
/// # Errors
/// Such a table is not on the list.
pub(super) fn check_definition(sql: &str, bound: &BoundStatement, allow: &SqlAllow) -> Result<(), EngineRefusal> {
    if bound.kind() != StatementKind::Schema {
        return Ok(());
    }
    for name in defined_references(sql) {
        if !allow_lists::is_table_allowed(allow, &name) {
            let message = format!("the definition uses `{name}`, which is not on the list");
            return Err(EngineRefusal { subject: Some(name), ..EngineRefusal::new(SqlCode::TableRefused, message) });
        }
    }
    Ok(())
}

/// Returns the tables after `REFERENCES`, `LIKE`, `INHERITS (`, `PARTITION OF`, and `ON` of an index.
fn defined_references(sql: &str) -> Vec<String> {
    let mut tokens = lexer::tokenize(sql, Dialect::Postgres);
    tokens.retain(|(kind, _)| !matches!(kind, SqlTokenKind::Whitespace | SqlTokenKind::Comment));
    let text = |at: usize| tokens.get(at).map_or("", |(_, range)| &sql[range.clone()]);
    let is_word = |at: usize, word: &str| text(at).eq_ignore_ascii_case(word);
    let is_index = (0..4).any(|at| is_word(at, "index"));
    let mut names = Vec::new();
    for at in 0..tokens.len() {
        let start = if is_word(at, "references") || is_word(at, "like") {
            at + 1
        } else if (is_word(at, "partition") && is_word(at + 1, "of"))
            || (is_word(at, "inherits") && text(at + 1) == "(")
        {
            at + 2
        } else if is_index && is_word(at, "on") {
            at + 1 + usize::from(is_word(at + 1, "only"))
        } else {
            continue;
        };
        if !matches!(tokens.get(start), Some((SqlTokenKind::Word | SqlTokenKind::Quoted, _))) {
            continue;
        }
        let part = |at: usize| match text(at) {
            quoted if quoted.starts_with('"') => lexer::unquote(quoted),
            plain => plain.to_ascii_lowercase(),
        };
        let (mut name, mut end) = (part(start), start);
        while text(end + 1) == "." {
            name = if name == "public" { part(end + 2) } else { format!("{name}.{}", part(end + 2)) };
            end += 2;
        }
        names.push(name);
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_tables_in_definitions() {
        let sql = "CREATE TABLE t (a int REFERENCES public.\"Se cret\"(id), LIKE b) INHERITS (c)";
        assert_eq!(defined_references(sql), ["Se cret", "b", "c"]);
        assert_eq!(defined_references("CREATE UNIQUE INDEX i ON ONLY old.orders (a)"), ["old.orders"]);
        assert!(defined_references("CREATE TABLE t (a int CHECK (a > 0))").is_empty());
    }
}

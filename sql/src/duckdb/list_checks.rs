//! Checks the uses of names off the lists that DuckDB's plan does not show.

use std::ops::Range;

use proctor_core::sql::{Dialect, SqlCode};

use super::catalog_reader::DatabaseContent;
use crate::allow_lists::{self, NameLists};
use crate::catalog::{self, CatalogTable, joined_name};
use crate::engine::{Action, BoundStatement, EngineRefusal};
use crate::lexer::{self, SqlTokenKind};

/// Checks a statement against the lists. `bound` is what its plan and its tree show.
pub(super) fn check(
    content: &DatabaseContent,
    sql: &str,
    bound: &BoundStatement,
    allow: &NameLists,
) -> Result<(), EngineRefusal> {
    check_views(content, sql, allow)?;
    check_schema_changes(sql, bound, allow)?;
    check_returning(content, sql, bound, allow)
}

/// Checks the views that a text names. A plan shows them expanded, and a write has no tree that names them.
fn check_views(content: &DatabaseContent, sql: &str, allow: &NameLists) -> Result<(), EngineRefusal> {
    let names = lexer::possible_names(sql, Dialect::Duckdb);
    let is_named = |view: &&CatalogTable| names.contains(&bare_name(&view.name).to_ascii_lowercase());
    for view in content.catalog.tables.iter().filter(|table| table.is_view).filter(is_named) {
        if !allow_lists::is_table_allowed(allow, &view.name) {
            let message = format!("the view `{}` is not on the list", view.name);
            return Err(refusal_about(SqlCode::TableRefused, message, &view.name));
        }
        if let Some(column) = hidden_columns(view, allow).next() {
            let name = format!("{}.{column}", view.name);
            let message = format!(
                "the column `{name}` is not on the list, and DuckDB does not report which columns of a view are read"
            );
            return Err(refusal_about(SqlCode::ColumnRefused, message, &name));
        }
    }
    Ok(())
}

/// Checks the names that a change of the schema refers to: tables that foreign keys refer to, new names of tables, and
/// indexes, whose table DuckDB does not report.
fn check_schema_changes(sql: &str, bound: &BoundStatement, allow: &NameLists) -> Result<(), EngineRefusal> {
    if bound.schema_changes().next().is_none() {
        return Ok(());
    }
    let solid = significant_tokens(sql);
    let word = |at: usize| solid.get(at).map_or("", |(_, range)| &sql[range.clone()]);
    let is = |at: usize, expected: &str| word(at).eq_ignore_ascii_case(expected);
    for at in 0..solid.len() {
        let is_key = is(at, "references");
        let is_new_name = is(at, "rename") && is(at + 1, "to");
        if !is_key && !is_new_name {
            continue;
        }
        let first = if is_key { at + 1 } else { at + 2 };
        let parts = (first..).step_by(2).take_while(|at| *at == first || word(at - 1) == ".");
        let mut parts: Vec<String> = parts.map(|at| lexer::unquote(word(at))).collect();
        if parts.len() > 1 && parts[0].eq_ignore_ascii_case("main") {
            parts.remove(0);
        }
        let name = joined_name(&parts);
        if !allow_lists::is_table_allowed(allow, &name) {
            let message = format!("it refers to `{name}`, which is not on the list");
            return Err(refusal_about(SqlCode::TableRefused, message, &name));
        }
    }
    for (what, name) in bound.schema_changes() {
        if what == "drop index" && allow_lists::has_name_lists(allow) {
            let message = format!("DuckDB does not report the table of the index `{name}`");
            return Err(refusal_about(SqlCode::TableRefused, message, name));
        }
        if what.starts_with("alter") && allow_lists::allowed_columns(allow, name).is_some() {
            let message = format!("it changes `{name}`, but only some of its columns are on the list");
            return Err(refusal_about(SqlCode::ColumnRefused, message, name));
        }
    }
    Ok(())
}

/// Checks the columns that a write returns, which the plan does not show. If a table has columns off the list, only
/// explicitly named columns may be returned.
fn check_returning(
    content: &DatabaseContent,
    sql: &str,
    bound: &BoundStatement,
    allow: &NameLists,
) -> Result<(), EngineRefusal> {
    let written = bound.actions.iter().filter_map(|action| match action {
        Action::Insert(table) | Action::Delete(table) | Action::Update { table, .. } => content.catalog.table(table),
        _ => None,
    });
    let Some(table) = written.into_iter().find(|table| hidden_columns(table, allow).next().is_some()) else {
        return Ok(());
    };
    let solid = significant_tokens(sql);
    let word = |at: usize| &sql[solid[at].1.clone()];
    let Some(returning) = (0..solid.len()).find(|at| word(*at).eq_ignore_ascii_case("returning")) else {
        return Ok(());
    };
    for at in returning + 1..solid.len() {
        let name = lexer::unquote(word(at));
        let is_column = table.column(&name).is_some() && allow_lists::is_column_allowed(allow, &table.name, &name);
        let is_table =
            name.eq_ignore_ascii_case(&bare_name(&table.name)) && solid.get(at + 1).is_some() && word(at + 1) == ".";
        if !is_column && !is_table && !matches!(word(at), "," | "." | ";") {
            let message = format!("`RETURNING` may only name columns of `{}` that are on the list", table.name);
            return Err(refusal_about(SqlCode::ColumnRefused, message, &table.name));
        }
    }
    Ok(())
}

/// Returns the columns of a table that are off the list.
fn hidden_columns<'a>(table: &'a CatalogTable, allow: &'a NameLists) -> impl Iterator<Item = &'a str> {
    let names = table.columns.iter().map(|column| column.name.as_str());
    names.filter(|column| !allow_lists::is_column_allowed(allow, &table.name, column))
}

pub(super) fn bare_name(name: &str) -> String {
    catalog::bare_name(name, Dialect::Duckdb)
}

pub(super) fn refusal_about(code: SqlCode, message: String, name: &str) -> EngineRefusal {
    EngineRefusal { subject: Some(name.to_owned()), ..EngineRefusal::new(code, message) }
}

pub(super) fn significant_tokens(sql: &str) -> Vec<(SqlTokenKind, Range<usize>)> {
    let mut pieces = lexer::tokenize(sql, Dialect::Duckdb);
    pieces.retain(|(piece, _)| !matches!(piece, SqlTokenKind::Whitespace | SqlTokenKind::Comment));
    pieces
}

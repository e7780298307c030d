//! Checks the uses of names off the lists that DuckDB's plan does not show.

use std::ops::Range;

use proctor_core::sql::{Allow, Dialect, SqlCode};

use super::catalog::Held;
use crate::catalog::Table;
use crate::engine::{Action, Bound, Refusal};
use crate::lists;
use crate::text::{self, Piece};

/// Checks a statement against the lists. `bound` is what its plan and its tree show.
pub(super) fn check(held: &Held, sql: &str, bound: &Bound, allow: &Allow) -> Result<(), Refusal> {
    check_views(held, sql, allow)?;
    check_changes(sql, bound, allow)?;
    check_returning(held, sql, bound, allow)
}

/// Checks the views that a text names. A plan shows them expanded, and a write has no tree that names them.
fn check_views(held: &Held, sql: &str, allow: &Allow) -> Result<(), Refusal> {
    let names = text::names(sql, Dialect::Duckdb);
    let is_named = |view: &&Table| names.contains(&bare(&view.name).to_ascii_lowercase());
    for view in held.catalog.tables.iter().filter(|table| table.is_view).filter(is_named) {
        if !lists::allow_table(allow, &view.name) {
            let message = format!("the view `{}` is not on the list", view.name);
            return Err(refused(SqlCode::TableRefused, message, &view.name));
        }
        if let Some(column) = hidden(view, allow).next() {
            let name = format!("{}.{column}", view.name);
            let message = format!(
                "the column `{name}` is not on the list, and DuckDB does not report which columns of a view are read"
            );
            return Err(refused(SqlCode::ColumnRefused, message, &name));
        }
    }
    Ok(())
}

/// Checks the names that a change of the schema refers to: tables that foreign keys refer to, new names of tables, and
/// indexes, whose table DuckDB does not report.
fn check_changes(sql: &str, bound: &Bound, allow: &Allow) -> Result<(), Refusal> {
    if bound.schema_changes().next().is_none() {
        return Ok(());
    }
    let solid = solid(sql);
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
        let name = parts.map(|at| text::unquoted(word(at))).collect::<Vec<_>>().join(".");
        if !lists::allow_table(allow, &name) {
            let message = format!("it refers to `{name}`, which is not on the list");
            return Err(refused(SqlCode::TableRefused, message, &name));
        }
    }
    for (what, name) in bound.schema_changes() {
        if what == "drop index" && lists::are_given(allow) {
            let message = format!("DuckDB does not report the table of the index `{name}`");
            return Err(refused(SqlCode::TableRefused, message, name));
        }
        if what.starts_with("alter") && lists::columns_of(allow, name).is_some() {
            let message = format!("it changes `{name}`, of which only some columns are on the list");
            return Err(refused(SqlCode::ColumnRefused, message, name));
        }
    }
    Ok(())
}

/// Checks the columns that a write returns, which the plan does not show. If a table has columns off the list, only
/// explicitly named columns may be returned.
fn check_returning(held: &Held, sql: &str, bound: &Bound, allow: &Allow) -> Result<(), Refusal> {
    let written = bound.actions.iter().filter_map(|action| match action {
        Action::Insert(table) | Action::Delete(table) | Action::Update { table, .. } => held.catalog.table(table),
        _ => None,
    });
    let Some(table) = written.into_iter().find(|table| hidden(table, allow).next().is_some()) else { return Ok(()) };
    let solid = solid(sql);
    let word = |at: usize| &sql[solid[at].1.clone()];
    let Some(returning) = (0..solid.len()).find(|at| word(*at).eq_ignore_ascii_case("returning")) else {
        return Ok(());
    };
    for at in returning + 1..solid.len() {
        let name = text::unquoted(word(at));
        let is_column = table.column(&name).is_some() && lists::allow_column(allow, &table.name, &name);
        let is_table =
            name.eq_ignore_ascii_case(bare(&table.name)) && solid.get(at + 1).is_some() && word(at + 1) == ".";
        if !is_column && !is_table && !matches!(word(at), "," | "." | ";") {
            let message = format!("`RETURNING` may only name columns of `{}` that are on the list", table.name);
            return Err(refused(SqlCode::ColumnRefused, message, &table.name));
        }
    }
    Ok(())
}

/// Returns the columns of a table that are off the list.
fn hidden<'a>(table: &'a Table, allow: &'a Allow) -> impl Iterator<Item = &'a str> {
    let names = table.columns.iter().map(|column| column.name.as_str());
    names.filter(|column| !lists::allow_column(allow, &table.name, column))
}

pub(super) fn bare(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(_, bare)| bare)
}

pub(super) fn refused(code: SqlCode, message: String, name: &str) -> Refusal {
    Refusal { subject: Some(name.to_owned()), ..Refusal::new(code, message) }
}

pub(super) fn solid(sql: &str) -> Vec<(Piece, Range<usize>)> {
    let mut pieces = text::pieces(sql, Dialect::Duckdb);
    pieces.retain(|(piece, _)| !matches!(piece, Piece::Space | Piece::Comment));
    pieces
}

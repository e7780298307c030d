//! Finds uses of generated columns that are off the list. DuckDB replaces a generated column by its expression before
//! it shows a plan, so the plan reads only the columns that the expression names. The expression keeps the name of the
//! column as an alias, except below an aggregate and where the statement renames it. For these cases the texts are
//! searched.

use std::collections::{BTreeMap, BTreeSet};

use proctor_core::sql::{Allow, Dialect, SqlCode};

use super::restricted::{bare, refused, solid};
use super::{DuckDb, catalog, forms, one_text, says, texts};
use crate::catalog::Table;
use crate::engine::{Action, Bound, Refusal};
use crate::lists;
use crate::text::{self, Piece};

const VIEWS: &str = "SELECT lower(view_name), sql FROM duckdb_views() WHERE NOT internal";

/// Keywords that may follow the name of a table and precede an opening parenthesis. They are not aliases.
const NO_ALIAS: &[&str] = &[
    "except",
    "group",
    "having",
    "intersect",
    "join",
    "limit",
    "offset",
    "on",
    "order",
    "qualify",
    "returning",
    "set",
    "union",
    "using",
    "values",
    "where",
];

/// A generated column that is off the list, of a table that the statement reads.
struct Hidden<'a> {
    table: &'a Table,
    column: &'a str,
}

/// Checks that a statement uses no generated column that is off the list. `bound` is what its plan and its tree show.
pub(super) fn check(engine: &DuckDb, sql: &str, bound: &Bound, allow: &Allow) -> Result<(), Refusal> {
    let hidden = hidden(engine, bound, allow);
    if hidden.is_empty() {
        return Ok(());
    }
    let texts = reachable_texts(engine, sql)?;
    let aliases = aliases(engine, sql);
    for one in hidden {
        let reason = if texts.iter().any(|text| text::names(text, Dialect::Duckdb).contains(&lower(one.column))) {
            "is not on the list"
        } else if texts.iter().any(|text| may_rename(text, one.table)) {
            "is not on the list, and DuckDB does not report which columns `COLUMNS`, `PIVOT`, positions and new names of columns refer to"
        } else {
            match &aliases {
                Some(plans) if !plans.iter().any(|plan| is_alias(plan, one.column)) => continue,
                Some(_) => "is not on the list",
                None => "is not on the list, and DuckDB does not report whether the statement reads it",
            }
        };
        let name = format!("{}.{}", one.table.name, one.column);
        return Err(refused(SqlCode::ColumnRefused, format!("the column `{name}` {reason}"), &name));
    }
    Ok(())
}

fn hidden<'a>(engine: &'a DuckDb, bound: &Bound, allow: &Allow) -> Vec<Hidden<'a>> {
    let read: BTreeSet<&str> = bound
        .actions
        .iter()
        .filter_map(|action| match action {
            Action::Read { table, .. } => Some(table.as_str()),
            _ => None,
        })
        .collect();
    let tables = read.into_iter().filter_map(|table| engine.held.catalog.table(table));
    let columns = tables.flat_map(|table| table.columns.iter().map(move |column| (table, column)));
    columns
        .filter(|(table, column)| column.is_generated && !lists::allow_column(allow, &table.name, &column.name))
        .map(|(table, column)| Hidden { table, column: &column.name })
        .collect()
}

/// Returns the statement, and the definitions of the views and macros that it uses directly or indirectly.
fn reachable_texts(engine: &DuckDb, sql: &str) -> Result<Vec<String>, Refusal> {
    let failed = |error: String| says::Said::of_text(&error, "").refusal("");
    let mut definitions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for question in [VIEWS, catalog::MACROS] {
        for row in texts(&engine.connection, question).map_err(failed)? {
            if let (Some(Some(name)), Some(Some(definition))) = (row.first(), row.last()) {
                definitions.entry(name.clone()).or_default().push(definition.clone());
            }
        }
    }
    let mut found = vec![sql.to_owned()];
    let mut at = 0;
    while let Some(text) = found.get(at) {
        for name in text::names(text, Dialect::Duckdb) {
            found.extend(definitions.remove(&name).unwrap_or_default());
        }
        at += 1;
    }
    Ok(found)
}

/// Returns the plans of a statement as DuckDB writes them, with aliases; `None` if a plan is missing.
fn aliases(engine: &DuckDb, sql: &str) -> Option<Vec<String>> {
    let plan = |sql: &str| {
        let text = one_text(&engine.planner, sql).ok().filter(|text| !text.starts_with("{\"error\":true"));
        text.map(|text| text.to_ascii_lowercase())
    };
    let whole = plan(sql).or_else(|| engine.typed(sql).and_then(|typed| plan(&typed)))?;
    let is_view = solid(sql).iter().take(5).any(|(_, range)| sql[range.clone()].eq_ignore_ascii_case("view"));
    if !is_view {
        return Some(vec![whole]);
    }
    Some(vec![whole, plan(forms::body(sql)?)?])
}

fn is_alias(plan: &str, column: &str) -> bool {
    serde_json::to_string(&lower(column)).is_ok_and(|name| plan.contains(&format!("\"alias\":{name}")))
}

/// Reports whether a text may use columns of a table without writing their names.
fn may_rename(sql: &str, table: &Table) -> bool {
    let solid = solid(sql);
    let word = |at: usize| solid.get(at).map_or("", |(_, range)| &sql[range.clone()]);
    let is = |at: usize, expected: &str| word(at).eq_ignore_ascii_case(expected);
    (0..solid.len()).any(|at| {
        let is_special = ["columns", "pivot", "pivot_wider", "unpivot", "pivot_longer"].iter().any(|word| is(at, word));
        // `#2` is the second column.
        if is_special || word(at).starts_with('#') {
            return true;
        }
        if !text::unquoted(word(at)).eq_ignore_ascii_case(bare(&table.name)) {
            return false;
        }
        let alias = if is(at + 1, "as") { at + 2 } else { at + 1 };
        let is_name =
            solid.get(alias).is_some_and(|(piece, _)| matches!(piece, Piece::Word | Piece::Quoted | Piece::String));
        is_name && word(alias + 1) == "(" && !NO_ALIAS.iter().any(|keyword| is(alias, keyword))
    })
}

fn lower(name: &str) -> String {
    name.to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_new_names_of_columns() {
        let table = Table { name: "people".to_owned(), ..Table::default() };
        for sql in [
            "SELECT c FROM people p(a, b, c)",
            "SELECT c FROM main.\"People\" AS \"p\" (a, b, c)",
            "SELECT max(COLUMNS('m.*')) FROM people",
            "PIVOT people ON ssn USING count(*)",
            "SELECT max(#3) FROM people",
        ] {
            assert!(may_rename(sql, &table), "{sql}");
        }
        for sql in [
            "SELECT id FROM people WHERE (id = 1)",
            "SELECT id FROM guests JOIN people USING (id)",
            "SELECT id FROM people AS p JOIN (SELECT 1) q(a) ON p.id = q.a",
        ] {
            assert!(!may_rename(sql, &table), "{sql}");
        }
    }
}

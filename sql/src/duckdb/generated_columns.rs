//! Finds uses of generated columns that are off the list. DuckDB replaces a generated column by its expression before
//! it shows a plan, so the plan reads only the columns that the expression names. The expression keeps the name of the
//! column as an alias, except below an aggregate and where the statement renames it. For these cases the texts are
//! searched.

use std::collections::{BTreeMap, BTreeSet};

use proctor_core::sql::{Dialect, SqlCode};

use super::internal_queries::{query_prepared_text, query_texts};
use super::list_checks::{bare_name, refusal_about, significant_tokens};
use super::query_error::QueryError;
use super::{DuckDb, catalog_reader, duckdb_errors, special_statements};
use crate::allow_lists::{self, NameLists};
use crate::catalog::CatalogTable;
use crate::engine::{Action, BoundStatement, EngineRefusal};
use crate::lexer::{self, SqlTokenKind};

const VIEWS_QUERY: &str = "SELECT lower(view_name), sql FROM duckdb_views() WHERE NOT internal";

/// Keywords that may follow the name of a table and precede an opening parenthesis. They are not aliases.
const NON_ALIAS_KEYWORDS: &[&str] = &[
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
struct HiddenGeneratedColumn<'a> {
    table: &'a CatalogTable,
    column: &'a str,
}

impl DuckDb {
    /// Checks that a statement uses no generated column that is off the list. `bound` is what its plan and its tree show.
    pub(super) fn check_generated_columns(
        &self,
        sql: &str,
        bound: &BoundStatement,
        allow: &NameLists,
    ) -> Result<(), EngineRefusal> {
        let hidden = hidden_columns(self, bound, allow);
        if hidden.is_empty() {
            return Ok(());
        }
        let texts = reachable_texts(self, sql)?;
        let aliases = plans_with_aliases(self, sql);
        for one in hidden {
            let reason = if texts
                .iter()
                .any(|text| lexer::possible_names(text, Dialect::Duckdb).contains(&lowercase(one.column)))
            {
                "is not on the list"
            } else if texts.iter().any(|text| may_use_unnamed_columns(text, one.table)) {
                "is not on the list, and DuckDB does not report which columns `COLUMNS`, `PIVOT`, positions and new names of columns refer to"
            } else {
                match &aliases {
                    Some(plans) if !plans.iter().any(|plan| has_alias(plan, one.column)) => continue,
                    Some(_) => "is not on the list",
                    None => "is not on the list, and DuckDB does not report whether the statement reads it",
                }
            };
            let name = format!("{}.{}", one.table.name, one.column);
            return Err(refusal_about(SqlCode::ColumnRefused, format!("the column `{name}` {reason}"), &name));
        }
        Ok(())
    }
}

fn hidden_columns<'a>(engine: &'a DuckDb, bound: &BoundStatement, allow: &NameLists) -> Vec<HiddenGeneratedColumn<'a>> {
    let read: BTreeSet<&str> = bound
        .actions
        .iter()
        .filter_map(|action| match action {
            Action::Read { table, .. } => Some(table.as_str()),
            _ => None,
        })
        .collect();
    let tables = read.into_iter().filter_map(|table| engine.content.catalog.table(table));
    let columns = tables.flat_map(|table| table.columns.iter().map(move |column| (table, column)));
    columns
        .filter(|(table, column)| {
            column.is_generated && !allow_lists::is_column_allowed(allow, &table.name, &column.name)
        })
        .map(|(table, column)| HiddenGeneratedColumn { table, column: &column.name })
        .collect()
}

/// Returns the statement, and the definitions of the views and macros that it uses directly or indirectly.
pub(super) fn reachable_texts(engine: &DuckDb, sql: &str) -> Result<Vec<String>, EngineRefusal> {
    let failed = |error: QueryError| duckdb_errors::ParsedError::from_error(&error, "").to_refusal("");
    let mut definitions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for query in [VIEWS_QUERY, catalog_reader::MACROS_QUERY] {
        for row in query_texts(&engine.connection, query).map_err(failed)? {
            if let (Some(Some(name)), Some(Some(definition))) = (row.first(), row.last()) {
                definitions.entry(name.clone()).or_default().push(definition.clone());
            }
        }
    }
    let mut found = vec![sql.to_owned()];
    let mut at = 0;
    while let Some(text) = found.get(at) {
        for name in lexer::possible_names(text, Dialect::Duckdb) {
            found.extend(definitions.remove(&name).unwrap_or_default());
        }
        at += 1;
    }
    Ok(found)
}

/// Returns the plans of a statement as DuckDB writes them, with aliases; `None` if a plan is missing.
fn plans_with_aliases(engine: &DuckDb, sql: &str) -> Option<Vec<String>> {
    let plan = |sql: &str| {
        let text = query_prepared_text(&engine.planner, sql).ok().filter(|text| !text.starts_with("{\"error\":true"));
        text.map(|text| text.to_ascii_lowercase())
    };
    let whole = plan(sql).or_else(|| engine.with_typed_parameters(sql).and_then(|typed| plan(&typed)))?;
    let is_view =
        significant_tokens(sql).iter().take(5).any(|(_, range)| sql[range.clone()].eq_ignore_ascii_case("view"));
    if !is_view {
        return Some(vec![whole]);
    }
    Some(vec![whole, plan(special_statements::view_query(sql)?)?])
}

fn has_alias(plan: &str, column: &str) -> bool {
    serde_json::to_string(&lowercase(column)).is_ok_and(|name| plan.contains(&format!("\"alias\":{name}")))
}

/// Reports whether a text may use columns of a table without writing their names.
fn may_use_unnamed_columns(sql: &str, table: &CatalogTable) -> bool {
    let solid = significant_tokens(sql);
    let word = |at: usize| solid.get(at).map_or("", |(_, range)| &sql[range.clone()]);
    let is = |at: usize, expected: &str| word(at).eq_ignore_ascii_case(expected);
    (0..solid.len()).any(|at| {
        let is_special = ["columns", "pivot", "pivot_wider", "unpivot", "pivot_longer"].iter().any(|word| is(at, word));
        // `#2` is the second column.
        if is_special || word(at).starts_with('#') {
            return true;
        }
        if !lexer::unquote(word(at)).eq_ignore_ascii_case(&bare_name(&table.name)) {
            return false;
        }
        let alias = if is(at + 1, "as") { at + 2 } else { at + 1 };
        let is_name = solid.get(alias).is_some_and(|(piece, _)| {
            matches!(piece, SqlTokenKind::Word | SqlTokenKind::Quoted | SqlTokenKind::String)
        });
        is_name && word(alias + 1) == "(" && !NON_ALIAS_KEYWORDS.iter().any(|keyword| is(alias, keyword))
    })
}

fn lowercase(name: &str) -> String {
    name.to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_columns_used_without_name() {
        let table = CatalogTable { name: "people".to_owned(), ..CatalogTable::default() };
        for sql in [
            "SELECT c FROM people p(a, b, c)",
            "SELECT c FROM main.\"People\" AS \"p\" (a, b, c)",
            "SELECT max(COLUMNS('m.*')) FROM people",
            "PIVOT people ON ssn USING count(*)",
            "SELECT max(#3) FROM people",
        ] {
            assert!(may_use_unnamed_columns(sql, &table), "{sql}");
        }
        for sql in [
            "SELECT id FROM people WHERE (id = 1)",
            "SELECT id FROM guests JOIN people USING (id)",
            "SELECT id FROM people AS p JOIN (SELECT 1) q(a) ON p.id = q.a",
        ] {
            assert!(!may_use_unnamed_columns(sql, &table), "{sql}");
        }
    }
}

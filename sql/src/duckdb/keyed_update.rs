//! Removes the actions that DuckDB adds to the plan of an `UPDATE` of an indexed column. DuckDB deletes such a row and
//! inserts it again, so that its plan reads and sets every column of the table.

use std::collections::BTreeSet;

use proctor_core::sql::Dialect;
use serde_json::Value;

use super::list_checks::{bare_name, significant_tokens};
use super::plan_actions::MacroActions;
use crate::engine::Action;
use crate::lexer;

/// Keeps only actions on columns that the text names, if the statement cannot use other columns of the table.
pub(super) fn drop_copied_columns(sql: &str, plan: &Value, macros: &MacroActions, actions: &mut BTreeSet<Action>) {
    let update = &plan["plans"][0];
    if update["type"] != "LOGICAL_UPDATE" || update["update_is_del_and_insert"] != true {
        return;
    }
    let target = actions.iter().find_map(|action| match action {
        Action::Update { table, .. } => Some(table.clone()),
        _ => None,
    });
    let names = lexer::possible_names(sql, Dialect::Duckdb);
    let Some(target) = target.filter(|target| uses_named_columns_only(sql, &bare_name(target))) else { return };
    if count_scans(plan, &bare_name(&target)) != 1 || names.iter().any(|name| macros.contains_key(name)) {
        return;
    }
    actions.retain(|action| match action {
        Action::Read { table, column: Some(column) } | Action::Update { table, column } if *table == target => {
            names.contains(&column.to_ascii_lowercase())
        }
        _ => true,
    });
}

/// Reports whether a text is `UPDATE table SET …` without an alias, a star, `COLUMNS`, a position or the table as a
/// value.
fn uses_named_columns_only(sql: &str, table: &str) -> bool {
    let solid = significant_tokens(sql);
    let word = |at: usize| solid.get(at).map_or("", |(_, range)| &sql[range.clone()]);
    let is = |at: usize, expected: &str| word(at).eq_ignore_ascii_case(expected);
    let is_table = |at: usize| lexer::unquote(word(at)).eq_ignore_ascii_case(table);
    let Some(target) = (1..=5).find(|at| is_table(*at) && !is(at + 1, ".")) else { return false };
    let is_form = is(0, "update") && is(target + 1, "set") && (2..target).step_by(2).all(|at| is(at, "."));
    let is_value = |at: usize| is_table(at) && !is(at + 1, ".");
    // `#2` is the second column.
    let is_open = |at: usize| is(at, "*") || is(at, "columns") || word(at).starts_with('#') || is_value(at);
    is_form && !(target + 2..solid.len()).any(is_open)
}

/// Counts the scans of a table in a plan.
fn count_scans(json: &Value, table: &str) -> usize {
    match json {
        Value::Array(parts) => parts.iter().map(|part| count_scans(part, table)).sum(),
        Value::Object(part) => {
            let is_scan = part.get("type").is_some_and(|kind| kind == "LOGICAL_GET")
                && json["function_data"]["table"].as_str().is_some_and(|name| name.eq_ignore_ascii_case(table));
            usize::from(is_scan) + part.values().map(|inner| count_scans(inner, table)).sum::<usize>()
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognizes_updates_with_named_columns_only() {
        for sql in [
            "UPDATE orders SET id = 5 WHERE cust = 1",
            "update main.\"Orders\" set id = 5 where orders.cust = 1 returning id",
            "UPDATE memory.main.orders SET id = 5",
        ] {
            assert!(uses_named_columns_only(sql, "orders"), "{sql}");
        }
        for sql in [
            "UPDATE orders o SET id = 5 WHERE o IS NOT NULL",
            "UPDATE orders SET id = 5 WHERE orders IS NOT NULL",
            "UPDATE orders SET id = 5 WHERE hash(orders.*) = 1",
            "UPDATE orders SET id = 5 WHERE list_value(COLUMNS('t.*')) IS NULL",
            "UPDATE orders SET id = 5 FROM orders WHERE true",
            "UPDATE orders SET id = 5 WHERE #3 = 'x'",
            "UPDATE orders SET id = length(#3)",
            "WITH x AS (SELECT 1) UPDATE orders SET id = 5",
        ] {
            assert!(!uses_named_columns_only(sql, "orders"), "{sql}");
        }
    }
}

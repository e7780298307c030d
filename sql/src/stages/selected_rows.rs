//! Builds the query that counts the rows which an UPDATE or DELETE within a common table expression changes. Only
//! PostgreSQL has such statements.

use proctor_core::sql::Dialect;
use sqlparser::ast::{self, FromTable, TableFactor, TableWithJoins, UpdateTableFromKind};

use super::safety;
use crate::lexer;

/// The rows of a table that a write selects.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SelectedRows {
    /// The name of the table, as it is written.
    pub(super) table: String,
    /// The query that counts the rows.
    pub(super) count: String,
    /// True if the query names a common table expression that changes rows. It cannot be run then.
    pub(super) depends_on_changes: bool,
}

/// Returns the rows that a write selects; `None` if it is no UPDATE or DELETE, or has no filter. `with` are the common
/// table expressions of the statement; those that change rows are left out.
pub(super) fn find(write: &ast::Statement, with: &[ast::Cte], is_recursive: bool) -> Option<SelectedRows> {
    let (target, others, filter) = match write {
        ast::Statement::Delete(delete) => {
            let (FromTable::WithFromKeyword(from) | FromTable::WithoutKeyword(from)) = &delete.from;
            (&from.first()?.relation, delete.using.as_deref().unwrap_or_default(), delete.selection.as_ref()?)
        }
        ast::Statement::Update(update) => {
            let others = match &update.from {
                Some(UpdateTableFromKind::BeforeSet(others) | UpdateTableFromKind::AfterSet(others)) => &others[..],
                None => &[],
            };
            (&update.table.relation, others, update.selection.as_ref()?)
        }
        _ => return None,
    };
    let (table, alias) = table_and_alias(target)?;
    let row = alias.clone().unwrap_or_else(|| table.clone());
    let source = alias.map_or_else(|| table.clone(), |alias| format!("{table} AS {alias}"));
    let sources: Vec<String> = std::iter::once(source).chain(others.iter().map(TableWithJoins::to_string)).collect();
    let (writing, reading): (Vec<&ast::Cte>, Vec<&ast::Cte>) =
        with.iter().partition(|one| safety::contains_write(&one.query));
    let read: Vec<String> = reading.into_iter().map(ast::Cte::to_string).collect();
    let prefix = match (read.is_empty(), is_recursive) {
        (true, _) => String::new(),
        (false, false) => format!("WITH {} ", read.join(", ")),
        (false, true) => format!("WITH RECURSIVE {} ", read.join(", ")),
    };
    let count = format!(
        "{prefix}SELECT count(DISTINCT ({row}.tableoid, {row}.ctid)) FROM {} WHERE {filter}",
        sources.join(", ")
    );
    let names = lexer::possible_names(&count, Dialect::Postgres);
    let depends_on_changes = writing.iter().any(|one| names.contains(&one.alias.name.value.to_ascii_lowercase()));
    Some(SelectedRows { table, count, depends_on_changes })
}

/// Returns the name of a table, and its alias. The parser reads `ONLY t` as a table `ONLY` with an alias; the tables that
/// inherit from `t` make no difference for its own rows.
pub(super) fn table_and_alias(target: &TableFactor) -> Option<(String, Option<String>)> {
    let TableFactor::Table { name, alias, .. } = target else { return None };
    let (name, alias) = (name.to_string(), alias.as_ref().map(|alias| alias.name.to_string()));
    match alias {
        Some(table) if name.eq_ignore_ascii_case("only") => Some((table, None)),
        alias => Some((name, alias)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stages::statement_tree::{common_table_expressions, find_writes, parse_tree};

    #[test]
    fn counts_rows_of_the_target() {
        let counts = |sql: &str| {
            let tree = parse_tree(sql, Dialect::Postgres).expect("a statement");
            let with = common_table_expressions(&tree);
            let found = find_writes(&tree).into_iter().filter_map(|write| find(write, with, false));
            found.map(|rows| (rows.table, rows.count)).collect::<Vec<_>>()
        };
        let one = |table: &str, count: &str| vec![(table.to_owned(), count.to_owned())];
        assert_eq!(
            counts("WITH c AS (SELECT 1 AS x), d AS (DELETE FROM t WHERE id = 1 RETURNING id) SELECT 1"),
            one("t", "WITH c AS (SELECT 1 AS x) SELECT count(DISTINCT (t.tableoid, t.ctid)) FROM t WHERE id = 1")
        );
        assert_eq!(
            counts("WITH d AS (DELETE FROM ONLY t WHERE id = 1) SELECT 1"),
            one("t", "SELECT count(DISTINCT (t.tableoid, t.ctid)) FROM t WHERE id = 1")
        );
        assert_eq!(
            counts("WITH d AS (UPDATE s.t AS x SET a = 0 FROM t AS y WHERE x.id = y.id) SELECT 1"),
            one("s.t", "SELECT count(DISTINCT (x.tableoid, x.ctid)) FROM s.t AS x, t AS y WHERE x.id = y.id")
        );
        assert_eq!(
            counts("WITH d AS (DELETE FROM t x USING u WHERE x.id = u.id) SELECT 1"),
            one("t", "SELECT count(DISTINCT (x.tableoid, x.ctid)) FROM t AS x, u WHERE x.id = u.id")
        );
        assert_eq!(counts("WITH d AS (DELETE FROM t) SELECT 1"), []);
        let depends = |filter: &str| {
            let sql = format!(
                "WITH i AS (INSERT INTO u SELECT 1 RETURNING id), d AS (DELETE FROM t WHERE {filter}) SELECT 1"
            );
            let tree = parse_tree(&sql, Dialect::Postgres).expect("a statement");
            let with = common_table_expressions(&tree);
            find_writes(&tree)
                .into_iter()
                .find_map(|write| find(write, with, false))
                .map(|rows| rows.depends_on_changes)
        };
        assert_eq!(depends("id IN (SELECT id FROM i)"), Some(true));
        assert_eq!(depends("id IN (SELECT id FROM u)"), Some(false));
    }
}

//! Determines how many existing rows a statement rewrites when it inserts rows: `REPLACE INTO`, `INSERT OR REPLACE`,
//! `ON CONFLICT DO UPDATE` and `MERGE`. Each inserted row may rewrite an existing one, so the query that supplies the
//! rows is judged like the filter of an UPDATE.

use std::ops::ControlFlow;

use sqlparser::ast::{
    BinaryOperator, ConflictTarget, Cte, Expr, GroupByExpr, Insert, LimitClause, Merge, MergeAction, MergeClauseKind,
    ObjectName, OnConflict, OnConflictAction, OnInsert, Query, Select, SelectItem, SetExpr, SqliteOnConflict,
    Statement, TableFactor, TableObject, Value, ValueWithSpan, Visitor,
};

use crate::engine::{Action, BoundStatement};
use crate::stages::filter_truth;
use crate::stages::statement_tree::find_insert;
use crate::stages::tree_walk::walk;

/// The part of a table that a statement may rewrite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RewriteExtent {
    /// As many rows as the statement has values, or as a filter selects.
    Bounded,
    /// All rows of a table, since its filter always holds.
    AlwaysTrue,
    /// All rows of a table, without a filter.
    Unbounded,
}

/// The maximum number of rows that counts as bounded.
const MAX_BOUNDED_ROWS: u64 = 10_000;

/// Table functions whose rows come from values of the statement.
const VALUE_FUNCTIONS: &[&str] = &["json_each", "json_tree", "jsonb_each", "jsonb_tree", "unnest"];

/// Returns the table whose rows a statement rewrites, and the extent; `None` if it rewrites none. `with` are the common
/// table expressions that the statement may use.
pub(super) fn rewritten_table(
    write: &Statement,
    with: &[Cte],
    bound: Option<&BoundStatement>,
) -> Option<(String, RewriteExtent)> {
    let insert = match write {
        Statement::Merge(merge) => return merge_extent(merge),
        Statement::Insert(insert) => insert,
        _ => return None,
    };
    let table = match &insert.table {
        TableObject::TableName(name) => name.to_string(),
        other => other.to_string(),
    };
    let conflict = conflict_extent(insert, bound)?;
    let source = match &insert.source {
        Some(source) => query_extent(source, &with.iter().collect()),
        // `DEFAULT VALUES` or `SET a = 1`.
        None => RewriteExtent::Bounded,
    };
    Some((table, source.min(conflict)))
}

/// Returns the only table from which a rewriting statement reads rows, and the query that reads them, if the query has
/// a filter.
pub(super) fn rewrite_source(tree: &Statement, bound: &BoundStatement) -> Option<(String, String)> {
    let insert = find_insert(tree).filter(|_| matches!(tree, Statement::Insert(_)))?;
    conflict_extent(insert, Some(bound)).filter(|conflict| *conflict == RewriteExtent::Unbounded)?;
    let query = insert.source.as_ref().filter(|query| query.with.is_none() && !is_limited(query))?;
    let SetExpr::Select(select) = &*query.body else { return None };
    let [from] = select.from.as_slice() else { return None };
    match &from.relation {
        TableFactor::Table { name, args: None, .. } if from.joins.is_empty() && select.selection.is_some() => {
            Some((name.to_string(), query.to_string()))
        }
        _ => None,
    }
}

/// Returns the extent to which conflicting rows are rewritten; `None` if none is rewritten.
fn conflict_extent(insert: &Insert, bound: Option<&BoundStatement>) -> Option<RewriteExtent> {
    let replaces = |action: &Action| matches!(action, Action::Update { column, .. } if column == "*");
    match &insert.on {
        Some(OnInsert::OnConflict(on)) => match &on.action {
            OnConflictAction::DoUpdate(update) => Some(match &update.selection {
                Some(expr) if !filter_truth::is_always_true(expr) && !repeats_conflict(expr, on) => {
                    RewriteExtent::Bounded
                }
                _ => RewriteExtent::Unbounded,
            }),
            OnConflictAction::DoNothing => None,
        },
        Some(OnInsert::DuplicateKeyUpdate(_)) => Some(RewriteExtent::Unbounded),
        _ => {
            let has_clause = insert.replace_into || matches!(insert.or, Some(SqliteOnConflict::Replace));
            let is_reported = bound.is_some_and(|bound| bound.actions.iter().any(replaces));
            (has_clause || is_reported).then_some(RewriteExtent::Unbounded)
        }
    }
}

/// Reports whether the filter of `DO UPDATE` only repeats the conflict: `ON CONFLICT (id) … WHERE t.id = excluded.id`.
fn repeats_conflict(filter: &Expr, on: &OnConflict) -> bool {
    let column = |expr: &Expr| match expr {
        Expr::Identifier(name) => Some((false, name.value.to_lowercase())),
        Expr::CompoundIdentifier(parts) => {
            let qualifier = parts.iter().rev().nth(1);
            let is_new = qualifier.is_some_and(|qualifier| qualifier.value.eq_ignore_ascii_case("excluded"));
            parts.last().map(|name| (is_new, name.value.to_lowercase()))
        }
        _ => None,
    };
    let is_of_conflict = |name: &String| match &on.conflict_target {
        Some(ConflictTarget::Columns(columns)) => columns.iter().any(|column| column.value.eq_ignore_ascii_case(name)),
        // Without a list of columns, any key may conflict.
        _ => true,
    };
    match filter {
        Expr::Nested(inner) => repeats_conflict(inner, on),
        Expr::BinaryOp { left, op: BinaryOperator::And, right } => {
            let is_met = |side: &Expr| repeats_conflict(side, on) || filter_truth::is_always_true(side);
            is_met(left) && is_met(right)
        }
        Expr::BinaryOp { left, op: BinaryOperator::Or, right } => {
            repeats_conflict(left, on) || repeats_conflict(right, on)
        }
        Expr::BinaryOp { left, op: BinaryOperator::Eq, right } | Expr::IsNotDistinctFrom(left, right) => {
            match (column(left), column(right)) {
                (Some((one_is_new, one)), Some((other_is_new, other))) => {
                    one_is_new != other_is_new && one == other && is_of_conflict(&one)
                }
                _ => false,
            }
        }
        _ => false,
    }
}

fn merge_extent(merge: &Merge) -> Option<(String, RewriteExtent)> {
    let rewrites = |action: &MergeAction| matches!(action, MergeAction::Update { .. } | MergeAction::Delete { .. });
    if !merge.clauses.iter().any(|clause| rewrites(&clause.action)) {
        return None;
    }
    let table = match &merge.table {
        TableFactor::Table { name, .. } => name.to_string(),
        other => other.to_string(),
    };
    let is_same =
        matches!(&merge.source, TableFactor::Table { name, .. } if name.to_string().eq_ignore_ascii_case(&table));
    // The rows without a match in the source may be all other rows of the table.
    let takes_others = merge.clauses.iter().any(|clause| {
        clause.clause_kind == MergeClauseKind::NotMatchedBySource
            && rewrites(&clause.action)
            && clause.predicate.as_ref().is_none_or(filter_truth::is_always_true)
    });
    let extent = if filter_truth::is_always_true(&merge.on) {
        RewriteExtent::AlwaysTrue
    } else if takes_others {
        RewriteExtent::Unbounded
    } else if is_same {
        // Each row of a table matches itself.
        RewriteExtent::Unbounded
    } else if let TableFactor::Derived { subquery, .. } = &merge.source {
        query_extent(subquery, &Vec::new())
    } else {
        // The statement is like `UPDATE … FROM`, whose condition is in WHERE.
        RewriteExtent::Bounded
    };
    Some((table, extent))
}

/// The common table expressions in scope.
type CteScope<'a> = Vec<&'a Cte>;

fn query_extent(query: &Query, outer: &CteScope<'_>) -> RewriteExtent {
    if is_limited(query) {
        return RewriteExtent::Bounded;
    }
    let own = query.with.iter().flat_map(|with| &with.cte_tables);
    let parts: CteScope<'_> = own.chain(outer.iter().copied()).collect();
    body_extent(&query.body, &parts)
}

fn body_extent(body: &SetExpr, parts: &CteScope<'_>) -> RewriteExtent {
    match body {
        SetExpr::Select(select) => select_extent(select, parts),
        SetExpr::Query(query) => query_extent(query, parts),
        SetExpr::SetOperation { left, right, .. } => body_extent(left, parts).max(body_extent(right, parts)),
        SetExpr::Values(_) => RewriteExtent::Bounded,
        _ => RewriteExtent::Unbounded,
    }
}

fn select_extent(select: &Select, parts: &CteScope<'_>) -> RewriteExtent {
    let factors = select
        .from
        .iter()
        .flat_map(|from| std::iter::once(&from.relation).chain(from.joins.iter().map(|join| &join.relation)));
    let rows = factors.map(|factor| factor_extent(factor, parts)).max().unwrap_or(RewriteExtent::Bounded);
    if rows == RewriteExtent::Bounded || returns_one_row(select) {
        return RewriteExtent::Bounded;
    }
    let filters: Vec<&Expr> = [&select.selection, &select.having, &select.qualify].into_iter().flatten().collect();
    match filters.as_slice() {
        [] => rows,
        filters if filters.iter().all(|filter| filter_truth::is_always_true(filter)) => RewriteExtent::AlwaysTrue,
        _ => RewriteExtent::Bounded,
    }
}

fn factor_extent(factor: &TableFactor, parts: &CteScope<'_>) -> RewriteExtent {
    match factor {
        TableFactor::Table { name, args: Some(_), .. } => function_extent(&name.to_string()),
        TableFactor::Table { name, args: None, .. } => {
            let name = name.to_string();
            let at = parts.iter().position(|part| part.alias.name.value.eq_ignore_ascii_case(name.trim_matches('"')));
            // A common table expression uses only earlier ones; recursion is not followed.
            at.map_or(RewriteExtent::Unbounded, |at| {
                if may_exceed_row_limit(parts[at]) {
                    return RewriteExtent::Unbounded;
                }
                let rest: CteScope<'_> =
                    parts.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, part)| *part).collect();
                query_extent(&parts[at].query, &rest)
            })
        }
        TableFactor::Derived { subquery, .. } => query_extent(subquery, parts),
        TableFactor::Function { name, .. } => function_extent(&name.to_string()),
        TableFactor::UNNEST { .. } => RewriteExtent::Bounded,
        TableFactor::NestedJoin { table_with_joins, .. } => {
            let joins = table_with_joins.joins.iter().map(|join| &join.relation);
            let all = std::iter::once(&table_with_joins.relation).chain(joins);
            all.map(|factor| factor_extent(factor, parts)).max().unwrap_or(RewriteExtent::Unbounded)
        }
        _ => RewriteExtent::Unbounded,
    }
}

/// Reports whether a recursive common table expression may return more than [`MAX_BOUNDED_ROWS`] rows: it compares with
/// a larger number.
fn may_exceed_row_limit(part: &Cte) -> bool {
    struct RecursionVisitor<'a> {
        name: &'a str,
        is_recursive: bool,
        has_large_number: bool,
    }
    impl Visitor for RecursionVisitor<'_> {
        type Break = ();

        fn pre_visit_relation(&mut self, relation: &ObjectName) -> ControlFlow<()> {
            let last = relation.0.last().and_then(|part| part.as_ident());
            self.is_recursive |= last.is_some_and(|ident| ident.value.eq_ignore_ascii_case(self.name));
            ControlFlow::Continue(())
        }

        fn pre_visit_value(&mut self, value: &ValueWithSpan) -> ControlFlow<()> {
            self.has_large_number |= matches!(&value.value, Value::Number(text, _)
                if text.parse::<f64>().is_ok_and(|number| number > 10_000.0));
            ControlFlow::Continue(())
        }
    }
    let mut numbers = RecursionVisitor { name: &part.alias.name.value, is_recursive: false, has_large_number: false };
    walk(&part.query, &mut numbers);
    numbers.is_recursive && numbers.has_large_number
}

fn function_extent(name: &str) -> RewriteExtent {
    if VALUE_FUNCTIONS.contains(&name.to_ascii_lowercase().as_str()) {
        RewriteExtent::Bounded
    } else {
        RewriteExtent::Unbounded
    }
}

/// Reports whether a LIMIT bounds a query: a number up to [`MAX_BOUNDED_ROWS`], or a parameter.
fn is_limited(query: &Query) -> bool {
    let limit = match &query.limit_clause {
        Some(LimitClause::LimitOffset { limit: Some(limit), .. } | LimitClause::OffsetCommaLimit { limit, .. }) => {
            limit
        }
        _ => return query.fetch.is_some(),
    };
    match limit {
        Expr::Value(value) => match &value.value {
            Value::Number(text, _) => text.parse::<u64>().is_ok_and(|rows| rows <= MAX_BOUNDED_ROWS),
            Value::Placeholder(_) => true,
            _ => false,
        },
        _ => false,
    }
}

/// Reports whether a query returns one row: it has only aggregates and no groups.
fn returns_one_row(select: &Select) -> bool {
    const AGGREGATES: &[&str] = &["count", "sum", "avg", "min", "max", "total"];
    let is_grouped = !matches!(&select.group_by, GroupByExpr::Expressions(groups, _) if groups.is_empty());
    let is_aggregate = |item: &SelectItem| match item {
        SelectItem::UnnamedExpr(Expr::Function(function))
        | SelectItem::ExprWithAlias { expr: Expr::Function(function), .. } => {
            let name = function.name.to_string().to_ascii_lowercase();
            function.over.is_none() && AGGREGATES.contains(&name.as_str())
        }
        _ => false,
    };
    !is_grouped && select.projection.iter().any(is_aggregate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stages::statement_tree::{common_table_expressions, find_writes, parse_tree};
    use proctor_core::sql::Dialect;

    fn extent(sql: &str) -> Option<RewriteExtent> {
        let tree =
            [Dialect::Sqlite, Dialect::Duckdb].into_iter().find_map(|dialect| parse_tree(sql, dialect)).expect(sql);
        let with = common_table_expressions(&tree);
        find_writes(&tree).into_iter().find_map(|write| rewritten_table(write, with, None)).map(|(_, extent)| extent)
    }

    #[test]
    fn classifies_rewrites_by_source_rows() {
        let cases = [
            ("REPLACE INTO t SELECT * FROM t", Some(RewriteExtent::Unbounded)),
            ("INSERT OR REPLACE INTO t SELECT * FROM u", Some(RewriteExtent::Unbounded)),
            ("INSERT OR REPLACE INTO t SELECT * FROM u JOIN v USING (id)", Some(RewriteExtent::Unbounded)),
            ("REPLACE INTO t SELECT * FROM u WHERE 1 = 1", Some(RewriteExtent::AlwaysTrue)),
            ("REPLACE INTO t SELECT * FROM u LIMIT -1", Some(RewriteExtent::Unbounded)),
            ("REPLACE INTO t SELECT id, count(*) FROM u GROUP BY id", Some(RewriteExtent::Unbounded)),
            ("REPLACE INTO t SELECT 1, 2 UNION ALL SELECT a, b FROM u", Some(RewriteExtent::Unbounded)),
            ("REPLACE INTO t SELECT * FROM (SELECT * FROM u)", Some(RewriteExtent::Unbounded)),
            ("WITH x AS (SELECT * FROM u) INSERT OR REPLACE INTO t SELECT * FROM x", Some(RewriteExtent::Unbounded)),
            ("REPLACE INTO t WITH x AS (SELECT * FROM u) SELECT * FROM x", Some(RewriteExtent::Unbounded)),
            (
                "INSERT INTO t SELECT * FROM u WHERE true ON CONFLICT (id) DO UPDATE SET a = 1",
                Some(RewriteExtent::AlwaysTrue),
            ),
            (
                "INSERT INTO t SELECT * FROM u WHERE true ON CONFLICT (id) DO UPDATE SET a = 1 WHERE 1 = 1",
                Some(RewriteExtent::AlwaysTrue),
            ),
            (
                "INSERT INTO t SELECT * FROM u WHERE true ON CONFLICT (id) DO UPDATE SET a = 1 WHERE t.id = excluded.id",
                Some(RewriteExtent::AlwaysTrue),
            ),
            (
                "INSERT INTO t SELECT * FROM u ON CONFLICT (id) DO UPDATE SET a = 1 WHERE (excluded.id = id) AND 1 = 1",
                Some(RewriteExtent::Unbounded),
            ),
            (
                "INSERT INTO t SELECT * FROM u WHERE true ON CONFLICT (id) DO UPDATE SET a = 1 WHERE t.b = excluded.b",
                Some(RewriteExtent::Bounded),
            ),
            ("REPLACE INTO t SELECT * FROM u LIMIT 100000000", Some(RewriteExtent::Unbounded)),
            (
                "REPLACE INTO t WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 1000000) SELECT i, 0 FROM n",
                Some(RewriteExtent::Unbounded),
            ),
            (
                "REPLACE INTO t WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000) SELECT i, 0 FROM n",
                Some(RewriteExtent::Unbounded),
            ),
            (
                "REPLACE INTO t WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10) SELECT i, 0 FROM n",
                Some(RewriteExtent::Bounded),
            ),
            ("MERGE INTO t USING u ON true WHEN MATCHED THEN DELETE", Some(RewriteExtent::AlwaysTrue)),
            (
                "MERGE INTO t USING t AS o ON t.id = o.id WHEN MATCHED THEN UPDATE SET a = 1",
                Some(RewriteExtent::Unbounded),
            ),
            ("MERGE INTO t USING u ON t.id = u.id WHEN MATCHED THEN DELETE", Some(RewriteExtent::Bounded)),
            (
                "MERGE INTO t USING (SELECT 1 AS x) u ON t.id = u.x WHEN NOT MATCHED BY SOURCE THEN DELETE",
                Some(RewriteExtent::Unbounded),
            ),
            (
                "MERGE INTO t USING (SELECT 1 AS x) u ON t.id = u.x WHEN NOT MATCHED BY SOURCE AND t.a = 3 THEN DELETE",
                Some(RewriteExtent::Bounded),
            ),
            ("REPLACE INTO t VALUES (1, 2), (3, 4)", Some(RewriteExtent::Bounded)),
            ("REPLACE INTO t SELECT 1, 2", Some(RewriteExtent::Bounded)),
            ("REPLACE INTO t SELECT max(id), 1 FROM u", Some(RewriteExtent::Bounded)),
            ("REPLACE INTO t SELECT * FROM u WHERE id = 1", Some(RewriteExtent::Bounded)),
            ("REPLACE INTO t SELECT * FROM u LIMIT 5", Some(RewriteExtent::Bounded)),
            ("REPLACE INTO t SELECT value, 1 FROM json_each(?)", Some(RewriteExtent::Bounded)),
            (
                "WITH x AS (SELECT * FROM u WHERE id = 1) INSERT OR REPLACE INTO t SELECT * FROM x",
                Some(RewriteExtent::Bounded),
            ),
            (
                "INSERT INTO t SELECT * FROM u WHERE true ON CONFLICT (id) DO UPDATE SET a = 1 WHERE t.id = 7",
                Some(RewriteExtent::Bounded),
            ),
            ("INSERT INTO t VALUES (1, 2) ON CONFLICT (id) DO UPDATE SET a = excluded.a", Some(RewriteExtent::Bounded)),
            ("INSERT INTO t SELECT * FROM u", None),
            ("INSERT OR IGNORE INTO t SELECT * FROM u", None),
            ("INSERT INTO t SELECT * FROM u WHERE true ON CONFLICT DO NOTHING", None),
            ("SELECT * FROM t", None),
        ];
        for (sql, expected) in cases {
            assert_eq!(extent(sql), expected, "{sql}");
        }
    }
}

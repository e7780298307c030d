//! Determines from the form of a query how many rows it returns, and whether repeated rows change its result.

use std::ops::ControlFlow;

use sqlparser::ast::{
    BinaryOperator, Expr, FunctionArguments, GroupByExpr, LimitClause, Query, Select, SelectItem, SetExpr, Visitor,
};

use crate::stages::semantic::syntax_tree::strip_wrappers;
use crate::stages::tree_walk::walk;

/// Reports whether a query returns at most one row, or a list of values in the query itself.
pub(super) fn is_small_query(query: &Query) -> bool {
    let limit = match &query.limit_clause {
        Some(LimitClause::LimitOffset { limit, .. }) => limit.as_ref(),
        Some(LimitClause::OffsetCommaLimit { limit, .. }) => Some(limit),
        None => None,
    };
    limit.is_some_and(|limit| limit.to_string() == "1") || is_small_body(&query.body)
}

fn is_small_body(body: &SetExpr) -> bool {
    match body {
        SetExpr::Values(_) => true,
        SetExpr::Query(query) => is_small_query(query),
        // Recursive common table expressions that only count are included.
        SetExpr::SetOperation { left, .. } => is_small_body(left),
        SetExpr::Select(select) => {
            let is_grouped = !matches!(&select.group_by, GroupByExpr::Expressions(list, _) if list.is_empty());
            let has_figure = select.projection.iter().any(|item| match item {
                SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => has_aggregate(expr),
                _ => false,
            });
            select.from.is_empty() || (!is_grouped && has_figure) || is_single_value_lookup(select)
        }
        _ => false,
    }
}

/// Reports whether a query returns a column of the row with a certain value: `SELECT height FROM mountain WHERE name =
/// 'K2'`.
fn is_single_value_lookup(select: &Select) -> bool {
    fn has_value_equality(filter: &Expr) -> bool {
        match strip_wrappers(filter) {
            Expr::BinaryOp { left, op: BinaryOperator::And, right } => {
                has_value_equality(left) || has_value_equality(right)
            }
            Expr::BinaryOp { op: BinaryOperator::Eq, right, .. } => matches!(strip_wrappers(right), Expr::Value(_)),
            _ => false,
        }
    }
    let is_plain = matches!(select.from.as_slice(), [from] if from.joins.is_empty());
    is_plain && select.projection.len() == 1 && select.selection.as_ref().is_some_and(has_value_equality)
}

/// Reports whether a query returns distinct rows without groups or aggregates.
pub(super) fn is_plain_distinct(select: &Select) -> bool {
    let is_column = |item: &SelectItem| match item {
        SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => !has_aggregate(expr),
        _ => false,
    };
    let is_grouped = !matches!(&select.group_by, GroupByExpr::Expressions(list, _) if list.is_empty());
    select.distinct.is_some() && !is_grouped && select.having.is_none() && select.projection.iter().all(is_column)
}

/// Reports whether a column of a result consists only of `COUNT(DISTINCT …)`, MAX and MIN.
pub(super) fn is_duplicate_insensitive(item: &SelectItem) -> bool {
    let (SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }) = item else { return false };
    let text = expr.to_string().to_uppercase();
    let figures = |name: &str| text.matches(name).count();
    figures("COUNT(") == figures("COUNT(DISTINCT")
        && figures("SUM(") + figures("AVG(") == 0
        && figures("COUNT(") + figures("MAX(") + figures("MIN(") > 0
}

/// Reports whether an expression contains an aggregate over all rows.
fn has_aggregate(expr: &Expr) -> bool {
    struct AggregateVisitor(bool, usize);
    impl Visitor for AggregateVisitor {
        type Break = ();
        fn pre_visit_query(&mut self, _query: &Query) -> ControlFlow<()> {
            self.1 += 1;
            ControlFlow::Continue(())
        }
        fn post_visit_query(&mut self, _query: &Query) -> ControlFlow<()> {
            self.1 -= 1;
            ControlFlow::Continue(())
        }
        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            if let Expr::Function(function) = expr {
                let name = function.name.to_string().to_lowercase();
                let one = matches!(&function.args, FunctionArguments::List(list) if list.args.len() <= 1);
                let is_figure = ["count", "sum", "avg", "min", "max", "total"].contains(&name.as_str());
                self.0 |= self.1 == 0 && one && is_figure && function.over.is_none();
            }
            ControlFlow::Continue(())
        }
    }
    let mut figures = AggregateVisitor(false, 0);
    walk(expr, &mut figures);
    figures.0
}

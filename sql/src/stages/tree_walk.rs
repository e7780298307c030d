//! Walks syntax trees. The traversal code of the parser's crate is large, and the compiler generates it anew for each
//! type of visitor. Here, all visitors share one copy.

use std::ops::ControlFlow;

use sqlparser::ast::{
    Expr, GroupByExpr, Ident, ObjectName, OrderBy, OrderByExpr, Query, Select, Statement, TableFactor, ValueWithSpan,
    Visit, Visitor,
};

/// A visitor that can be called through a pointer.
type DynVisitor<'a> = dyn Visitor<Break = ()> + 'a;

/// Calls the hooks of a visitor for all parts of a tree, or until it breaks.
pub(crate) fn walk<T: Visit>(tree: &T, visitor: &mut DynVisitor<'_>) {
    let _ = tree.visit(&mut SharedTraversal(visitor));
}

/// Calls the hooks of another visitor.
struct SharedTraversal<'a, 'v>(&'a mut DynVisitor<'v>);

macro_rules! forward_hooks {
    ($($hook:ident: $node:ty,)*) => {
        impl Visitor for SharedTraversal<'_, '_> {
            type Break = ();
            $(fn $hook(&mut self, node: &$node) -> ControlFlow<()> { self.0.$hook(node) })*
        }
    };
}

forward_hooks! {
    pre_visit_query: Query,
    post_visit_query: Query,
    pre_visit_select: Select,
    post_visit_select: Select,
    pre_visit_relation: ObjectName,
    post_visit_relation: ObjectName,
    pre_visit_table_factor: TableFactor,
    post_visit_table_factor: TableFactor,
    pre_visit_expr: Expr,
    post_visit_expr: Expr,
    pre_visit_statement: Statement,
    post_visit_statement: Statement,
    pre_visit_value: ValueWithSpan,
    post_visit_value: ValueWithSpan,
    pre_visit_ident: Ident,
    post_visit_ident: Ident,
    pre_visit_order_by: OrderBy,
    post_visit_order_by: OrderBy,
    pre_visit_order_by_expr: OrderByExpr,
    post_visit_order_by_expr: OrderByExpr,
    pre_visit_group_by: GroupByExpr,
    post_visit_group_by: GroupByExpr,
}

//! Finds conditions that are wrong for any question: comparisons with NULL, strings as conditions, filters that exclude
//! each other, subqueries that return a column of the outer query, and joins that do not use a declared foreign key.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};

use proctor_core::sql::SqlCode;
use sqlparser::ast::{
    BinaryOperator, Expr, Ident, JoinConstraint, JoinOperator, Query, Select, SelectItem, SetExpr, Spanned as _,
    Statement, TableFactor, Value, Visitor,
};

use super::semantic_finding::SemanticFinding;
use super::syntax_tree::{StatementText, literal_text, strip_wrappers};
use crate::catalog::{Catalog, CatalogTable};
use crate::stages::tree_walk::walk;

/// The maximum number of conditions of one filter that are compared with each other.
const MAX_CONDITIONS: usize = 256;

pub(super) fn check(tree: &Statement, text: &str, catalog: &Catalog) -> Vec<SemanticFinding> {
    let mut reader = ConditionVisitor {
        text: StatementText::new(text),
        catalog,
        scopes: Vec::new(),
        ctes: Vec::new(),
        found: Vec::new(),
    };
    walk(tree, &mut reader);
    reader.found
}

/// A relation of a FROM clause.
struct FromRelation<'a> {
    /// The alias, or else the table's name.
    name: String,
    /// The table; `None` for subqueries, functions and common table expressions.
    table: Option<&'a CatalogTable>,
}

struct ConditionVisitor<'a> {
    text: StatementText<'a>,
    catalog: &'a Catalog,
    /// The relations of the enclosing queries, the innermost last.
    scopes: Vec<Vec<FromRelation<'a>>>,
    /// The names of common table expressions, in lower case.
    ctes: Vec<String>,
    found: Vec<SemanticFinding>,
}

impl Visitor for ConditionVisitor<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        let ctes = query.with.iter().flat_map(|with| &with.cte_tables);
        self.ctes.extend(ctes.map(|cte| cte.alias.name.value.to_lowercase()));
        let mut relations = Vec::new();
        self.collect_relations(&query.body, &mut relations);
        self.scopes.push(relations);
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _query: &Query) -> ControlFlow<()> {
        self.scopes.pop();
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<()> {
        for filter in [&select.selection, &select.having].into_iter().flatten() {
            self.check_contradiction(filter);
        }
        self.check_joins(select);
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        match expr {
            Expr::BinaryOp { left, op: BinaryOperator::And | BinaryOperator::Or, right } => {
                [left, right].into_iter().for_each(|side| self.check_string_condition(side));
            }
            Expr::BinaryOp { left, op, right }
                if super::syntax_tree::is_comparison(op) && (is_null(left) || is_null(right)) =>
            {
                self.report_null_comparison(expr, op);
            }
            Expr::InList { list, negated: true, .. } if list.iter().any(is_null) => {
                let message = "`NOT IN` with NULL in its list is true for no row";
                let found = SemanticFinding::new(SqlCode::NullComparison, 97, message).at(&self.expr_range(expr));
                self.found.push(found.advice("Remove NULL from the list, and test for it with IS NOT NULL."));
            }
            Expr::InSubquery { expr: tested, subquery, negated } => {
                self.check_correlation(tested, subquery);
                if *negated {
                    self.check_self_exclusion(expr, tested, subquery);
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

fn is_null(expr: &Expr) -> bool {
    matches!(strip_wrappers(expr), Expr::Value(value) if value.value == Value::Null)
}

impl<'a> ConditionVisitor<'a> {
    fn expr_range(&self, expr: &Expr) -> Range<usize> {
        self.text.close_parentheses(self.text.range(expr.span()))
    }

    fn collect_relations(&self, body: &SetExpr, found: &mut Vec<FromRelation<'a>>) {
        match body {
            SetExpr::Select(select) => found.extend(self.relations(select)),
            SetExpr::SetOperation { left, right, .. } => {
                self.collect_relations(left, found);
                self.collect_relations(right, found);
            }
            _ => {}
        }
    }

    fn relations(&self, select: &Select) -> Vec<FromRelation<'a>> {
        let joined = select
            .from
            .iter()
            .flat_map(|from| std::iter::once(&from.relation).chain(from.joins.iter().map(|join| &join.relation)));
        joined.map(|factor| self.relation(factor)).collect()
    }

    fn relation(&self, factor: &TableFactor) -> FromRelation<'a> {
        let TableFactor::Table { name, alias, args: None, .. } = factor else {
            return FromRelation { name: String::new(), table: None };
        };
        let own = name.0.last().and_then(|part| part.as_ident()).map(|ident| ident.value.clone()).unwrap_or_default();
        let is_cte = self.ctes.contains(&own.to_lowercase());
        let table = self.catalog.table(&own).filter(|_| !is_cte);
        let has_columns = alias.as_ref().is_some_and(|alias| !alias.columns.is_empty());
        let name = alias.as_ref().map_or(own, |alias| alias.name.value.clone());
        FromRelation { name, table: table.filter(|_| !has_columns) }
    }

    fn report_null_comparison(&mut self, expr: &Expr, op: &BinaryOperator) {
        let instead = if *op == BinaryOperator::NotEq { "IS NOT NULL" } else { "IS NULL" };
        let found = SemanticFinding::new(SqlCode::NullComparison, 97, format!("`{op} NULL` is true for no row"));
        let found = found.at(&self.expr_range(expr)).advice(format!("Use {instead}."));
        self.found.push(found);
    }

    /// Reports a string as a condition: in `LIKE 'a' OR 'b'` the second string is not a condition.
    fn check_string_condition(&mut self, side: &Expr) {
        let text = match strip_wrappers(side) {
            Expr::Value(value) if matches!(value.value, Value::SingleQuotedString(_)) => literal_text(&value.value),
            Expr::Identifier(ident) if self.is_string(ident) => Some(ident.value.clone()),
            _ => None,
        };
        let Some(text) = text.filter(|text| text.trim().parse::<f64>().is_err()) else { return };
        let message = format!("the string '{text}' is used as a condition");
        let found =
            SemanticFinding::new(SqlCode::StringAsCondition, 96, message).at(&self.expr_range(side)).about(text);
        self.found.push(found.advice("Repeat the comparison: `a LIKE 'x' OR a LIKE 'y'`, or use IN."));
    }

    /// Reports whether SQLite reads a double-quoted name as a string: no column has this name.
    fn is_string(&self, ident: &Ident) -> bool {
        ident.quote_style == Some('"') && self.catalog.tables_with(&ident.value).next().is_none()
    }

    /// Reports `x IN (SELECT outer_column FROM t)`: the subquery returns a value of the outer row.
    fn check_correlation(&mut self, tested: &Expr, subquery: &Query) {
        let SetExpr::Select(select) = &*subquery.body else { return };
        let [SelectItem::UnnamedExpr(returned)] = select.projection.as_slice() else { return };
        let Expr::Identifier(column) = strip_wrappers(returned) else { return };
        let inner = self.relations(select);
        let is_known =
            !inner.is_empty() && inner.iter().all(|relation| relation.table.is_some()) && subquery.with.is_none();
        let has =
            |relation: &FromRelation<'_>| relation.table.is_some_and(|table| table.column(&column.value).is_some());
        let is_row_number = ["rowid", "oid", "_rowid_"].contains(&column.value.to_lowercase().as_str());
        if !is_known || is_row_number || inner.iter().any(has) || !self.scopes.iter().flatten().any(has) {
            return;
        }
        let table = inner.iter().find_map(|relation| relation.table).map_or("", |table| table.name.as_str());
        let message = format!(
            "`{table}` has no column `{}`: the subquery returns the value of the outer row, so `{tested} IN` compares it with itself",
            column.value
        );
        let found = SemanticFinding::new(SqlCode::AccidentalCorrelation, 96, message).at(&self.expr_range(returned));
        self.found.push(found.advice(format!("Return a column of `{table}`.")).about(column.value.clone()));
    }

    /// Reports `id NOT IN (SELECT id FROM t)` over the rows of `t`, which excludes every row.
    fn check_self_exclusion(&mut self, whole: &Expr, tested: &Expr, subquery: &Query) {
        let SetExpr::Select(select) = &*subquery.body else { return };
        let [SelectItem::UnnamedExpr(returned)] = select.projection.as_slice() else { return };
        let last = |expr: &Expr| match strip_wrappers(expr) {
            Expr::Identifier(ident) => Some(ident.value.to_lowercase()),
            Expr::CompoundIdentifier(parts) => parts.last().map(|part| part.value.to_lowercase()),
            _ => None,
        };
        let is_same_column = last(tested).is_some_and(|column| last(returned).as_ref() == Some(&column));
        let is_whole = select.selection.is_none()
            && select.having.is_none()
            && subquery.limit_clause.is_none()
            && subquery.with.is_none();
        let inner = self.relations(select);
        let ([FromRelation { table: Some(inner), .. }], Some([FromRelation { table: Some(outer), .. }])) =
            (inner.as_slice(), self.scopes.last().map(Vec::as_slice))
        else {
            return;
        };
        if is_same_column && is_whole && inner.name.eq_ignore_ascii_case(&outer.name) {
            let message = format!("all rows of `{}` are in the subquery, so `NOT IN` returns none", outer.name);
            let found = SemanticFinding::new(SqlCode::ContradictoryFilter, 96, message).at(&self.expr_range(whole));
            self.found.push(found.advice("Select the excluded rows from the table that contains them."));
        }
    }

    /// Reports two conditions of one filter that exclude each other.
    fn check_contradiction(&mut self, filter: &Expr) {
        let mut conditions = Vec::new();
        conjuncts(filter, &mut conditions);
        let mut known: BTreeMap<String, ColumnBounds> = BTreeMap::new();
        for condition in conditions.into_iter().take(MAX_CONDITIONS) {
            for (column, bound) in self.condition_bounds(condition) {
                let bounds = known.entry(column.clone()).or_default();
                if !bounds.add(bound) {
                    let message = format!("no value of `{column}` meets all conditions of this filter");
                    let found =
                        SemanticFinding::new(SqlCode::ContradictoryFilter, 97, message).at(&self.expr_range(condition));
                    let found = found
                        .about(column)
                        .advice("Use OR or IN, or INTERSECT for rows that match each condition separately.");
                    self.found.push(found);
                    return;
                }
            }
        }
    }

    /// Returns the bounds that a condition places on columns.
    fn condition_bounds(&self, condition: &Expr) -> Vec<(String, ValueBound)> {
        match strip_wrappers(condition) {
            Expr::BinaryOp { left, op, right } => {
                let sides = [(left, right, op.clone()), (right, left, mirrored_operator(op))];
                let found = sides.into_iter().find_map(|(column, value, op)| {
                    Some((self.column_name(column)?, ValueBound::new(&op, &self.value_text(value)?)?))
                });
                found.into_iter().collect()
            }
            Expr::Between { expr, negated: false, low, high } => {
                let Some(column) = self.column_name(expr) else { return Vec::new() };
                let low = self.value_text(low).and_then(|low| ValueBound::new(&BinaryOperator::GtEq, &low));
                let high = self.value_text(high).and_then(|high| ValueBound::new(&BinaryOperator::LtEq, &high));
                low.into_iter().chain(high).map(|bound| (column.clone(), bound)).collect()
            }
            Expr::IsNull(expr) => self.column_name(expr).map(|column| (column, ValueBound::Null)).into_iter().collect(),
            _ => Vec::new(),
        }
    }

    fn column_name(&self, expr: &Expr) -> Option<String> {
        match strip_wrappers(expr) {
            Expr::Identifier(ident) if !self.is_string(ident) => Some(ident.value.to_lowercase()),
            Expr::CompoundIdentifier(parts) => {
                Some(parts.iter().map(|part| part.value.to_lowercase()).collect::<Vec<_>>().join("."))
            }
            Expr::Function(function)
                if super::syntax_tree::aggregate_kind(function).is_some() && function.over.is_none() =>
            {
                Some(function.to_string().to_lowercase())
            }
            _ => None,
        }
    }

    fn value_text(&self, expr: &Expr) -> Option<String> {
        match strip_wrappers(expr) {
            Expr::Value(value) => literal_text(&value.value),
            Expr::Identifier(ident) if self.is_string(ident) => Some(ident.value.clone()),
            _ => None,
        }
    }

    /// Reports relations that are joined by columns other than those of the foreign key between them.
    fn check_joins(&mut self, select: &Select) {
        let relations = self.relations(select);
        let mut conditions = Vec::new();
        for join in select.from.iter().flat_map(|from| &from.joins) {
            if let JoinOperator::Join(JoinConstraint::On(on))
            | JoinOperator::Inner(JoinConstraint::On(on))
            | JoinOperator::Left(JoinConstraint::On(on))
            | JoinOperator::LeftOuter(JoinConstraint::On(on)) = &join.join_operator
            {
                conjuncts(on, &mut conditions);
            }
        }
        select.selection.iter().for_each(|filter| conjuncts(filter, &mut conditions));
        let mut equalities = Vec::new();
        for condition in conditions.into_iter().take(MAX_CONDITIONS) {
            let Expr::BinaryOp { left, op: BinaryOperator::Eq, right } = strip_wrappers(condition) else { continue };
            let (Some(one), Some(other)) = (equality_side(left, &relations), equality_side(right, &relations)) else {
                continue;
            };
            equalities.push((one, other, condition));
        }
        let suspicious = equalities.iter().find_map(|(one, other, condition)| {
            let key = unused_foreign_key(one, other)?;
            let is_joined_otherwise = equalities.iter().any(|(left, right, _)| {
                let is_same_pair = |a: &EqualitySide<'_>, b: &EqualitySide<'_>| {
                    a.relation == one.relation && b.relation == other.relation
                };
                (is_same_pair(left, right) || is_same_pair(right, left)) && !std::ptr::eq(left, one)
            });
            (!is_joined_otherwise).then(|| (key, self.expr_range(condition), format!("{condition}")))
        });
        let Some((key, place, written)) = suspicious else { return };
        let message = format!("`{written}` joins on columns other than the foreign key `{key}`");
        let found = SemanticFinding::new(SqlCode::JoinAgainstForeignKey, 80, message).at(&place);
        self.found.push(found.advice(format!("Join by `{key}`.")));
    }
}

/// One side of an equality in a join.
struct EqualitySide<'a> {
    relation: usize,
    table: &'a CatalogTable,
    column: String,
}

fn equality_side<'a>(expr: &Expr, relations: &[FromRelation<'a>]) -> Option<EqualitySide<'a>> {
    let Expr::CompoundIdentifier(parts) = strip_wrappers(expr) else { return None };
    let [table, column] = parts.as_slice() else { return None };
    let relation = relations.iter().position(|relation| relation.name.eq_ignore_ascii_case(&table.value))?;
    Some(EqualitySide { relation, table: relations[relation].table?, column: column.value.clone() })
}

/// Describes the unused foreign key between the tables of an equality that compares unrelated keys.
fn unused_foreign_key(one: &EqualitySide<'_>, other: &EqualitySide<'_>) -> Option<String> {
    if one.table.name.eq_ignore_ascii_case(&other.table.name) {
        return None;
    }
    let keys = |from: &EqualitySide<'_>, to: &EqualitySide<'_>| -> Vec<(String, String)> {
        let of = from.table.foreign_keys.iter().filter(|key| key.referenced_table.eq_ignore_ascii_case(&to.table.name));
        of.map(|key| {
            let primary = || {
                to.table.columns.iter().find(|column| column.primary_key_position > 0).map(|column| column.name.clone())
            };
            (key.column.clone(), key.referenced_column.clone().or_else(primary).unwrap_or_default())
        })
        .collect()
    };
    let (forth, back) = (keys(one, other), keys(other, one));
    let is_it = |from: &EqualitySide<'_>, to: &EqualitySide<'_>, (column, target): &(String, String)| {
        from.column.eq_ignore_ascii_case(column) && to.column.eq_ignore_ascii_case(target)
    };
    let is_used = forth.iter().any(|key| is_it(one, other, key)) || back.iter().any(|key| is_it(other, one, key));
    // Two primary keys that no foreign key connects identify different things.
    let is_own_key = |side: &EqualitySide<'_>| {
        let keys = side.table.columns.iter().filter(|column| column.primary_key_position > 0).count();
        let is_foreign = side.table.foreign_keys.iter().any(|key| key.column.eq_ignore_ascii_case(&side.column));
        keys == 1
            && !is_foreign
            && side.table.column(&side.column).is_some_and(|column| column.primary_key_position > 0)
    };
    if is_used || !is_own_key(one) || !is_own_key(other) {
        return None;
    }
    let shown = |from: &EqualitySide<'_>, to: &EqualitySide<'_>, (column, target): &(String, String)| {
        format!("{}.{column} = {}.{target}", from.table.name, to.table.name)
    };
    forth.first().map(|key| shown(one, other, key)).or_else(|| back.first().map(|key| shown(other, one, key)))
}

/// Collects the operands of AND.
fn conjuncts<'e>(expr: &'e Expr, found: &mut Vec<&'e Expr>) {
    match strip_wrappers(expr) {
        Expr::BinaryOp { left, op: BinaryOperator::And, right } => {
            conjuncts(left, found);
            conjuncts(right, found);
        }
        other => found.push(other),
    }
}

/// Returns the operator for exchanged operands.
fn mirrored_operator(op: &BinaryOperator) -> BinaryOperator {
    match op {
        BinaryOperator::Lt => BinaryOperator::Gt,
        BinaryOperator::LtEq => BinaryOperator::GtEq,
        BinaryOperator::Gt => BinaryOperator::Lt,
        BinaryOperator::GtEq => BinaryOperator::LtEq,
        other => other.clone(),
    }
}

/// A bound from one condition.
enum ValueBound {
    Equal(String),
    Low(f64, bool),
    High(f64, bool),
    Null,
}

impl ValueBound {
    fn new(op: &BinaryOperator, value: &str) -> Option<Self> {
        let number = || value.trim().parse::<f64>().ok().filter(|number| number.is_finite());
        match op {
            BinaryOperator::Eq => Some(Self::Equal(value.to_lowercase())),
            BinaryOperator::Gt => Some(Self::Low(number()?, false)),
            BinaryOperator::GtEq => Some(Self::Low(number()?, true)),
            BinaryOperator::Lt => Some(Self::High(number()?, false)),
            BinaryOperator::LtEq => Some(Self::High(number()?, true)),
            _ => None,
        }
    }
}

/// All bounds on one column so far.
#[derive(Default)]
struct ColumnBounds {
    equal: Option<String>,
    /// The greatest lower bound, and whether it is inclusive.
    low: Option<(f64, bool)>,
    high: Option<(f64, bool)>,
    is_null: bool,
}

impl ColumnBounds {
    /// Adds a bound. Returns whether any value still satisfies all bounds.
    fn add(&mut self, bound: ValueBound) -> bool {
        match bound {
            ValueBound::Equal(value) => {
                let number = |text: &str| text.trim().parse::<f64>().ok();
                let is_same = |other: &String| match (number(other), number(&value)) {
                    (Some(one), Some(other)) => one == other,
                    _ => *other == value,
                };
                let is_left = self.equal.as_ref().is_none_or(is_same);
                self.equal = Some(value);
                is_left && self.is_satisfiable()
            }
            ValueBound::Low(number, is_allowed) => {
                if self.low.is_none_or(|(low, _)| number > low || (number == low && !is_allowed)) {
                    self.low = Some((number, is_allowed));
                }
                self.is_satisfiable()
            }
            ValueBound::High(number, is_allowed) => {
                if self.high.is_none_or(|(high, _)| number < high || (number == high && !is_allowed)) {
                    self.high = Some((number, is_allowed));
                }
                self.is_satisfiable()
            }
            ValueBound::Null => {
                self.is_null = true;
                self.is_satisfiable()
            }
        }
    }

    fn is_satisfiable(&self) -> bool {
        if self.is_null {
            return self.equal.is_none() && self.low.is_none() && self.high.is_none();
        }
        let is_between = match (self.low, self.high) {
            (Some((low, is_low)), Some((high, is_high))) => low < high || (low == high && is_low && is_high),
            _ => true,
        };
        let equal = self.equal.as_ref().and_then(|text| text.trim().parse::<f64>().ok());
        let is_above = |number: f64| self.low.is_none_or(|(low, is_low)| number > low || (number == low && is_low));
        let is_below =
            |number: f64| self.high.is_none_or(|(high, is_high)| number < high || (number == high && is_high));
        is_between && equal.is_none_or(|number| is_above(number) && is_below(number))
    }
}

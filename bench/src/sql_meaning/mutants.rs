//! Changes one part of a query so that its meaning changes.

use std::ops::ControlFlow;

use sqlparser::ast::{
    DuplicateTreatment, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, GroupByExpr, Ident,
    JoinConstraint, JoinOperator, LimitClause, ObjectName, ObjectNamePart, OrderByExpr, OrderByKind, OrderBySort,
    Query, Select, SetExpr, Statement, TableFactor, VisitMut as _, VisitorMut,
};

use super::question_sets::SetDatabase;
use super::random_rows::SplitMix64;

/// A query with one change.
pub(super) struct Mutant {
    /// The change, with the clause.
    pub kind: String,
    pub sql: String,
}

/// The clause that contains an expression.
#[derive(Clone, Copy)]
enum MutatedClause {
    Select,
    Inner,
    Having,
    OrderBy,
}

impl MutatedClause {
    fn as_str(self) -> &'static str {
        match self {
            Self::Select => "SELECT",
            Self::Inner => "inner SELECT",
            Self::Having => "HAVING",
            Self::OrderBy => "ORDER BY",
        }
    }
}

const AGGREGATE_FUNCTIONS: [&str; 5] = ["count", "sum", "avg", "max", "min"];

/// Returns every mutant of a statement.
pub(super) fn mutants(statement: &Statement, database: &SetDatabase, random: &mut SplitMix64) -> Vec<Mutant> {
    let mut found = aggregate_mutants(statement, database, random);
    found.extend(other_mutants(statement, database));
    found
}

/// Applies `edit` to the queries of a copy; `edit` returns the name of its change.
fn edit_copy(statement: &Statement, mut edit: impl FnMut(&mut Query, usize) -> Option<String>) -> Option<Mutant> {
    let mut copy = statement.clone();
    let mut queries = QueryEditor { edit: &mut edit, depth: 0, kind: None };
    let _ = copy.visit(&mut queries);
    let kind = queries.kind?;
    Some(Mutant { kind, sql: copy.to_string() })
}

struct QueryEditor<'a> {
    edit: &'a mut dyn FnMut(&mut Query, usize) -> Option<String>,
    depth: usize,
    kind: Option<String>,
}

impl VisitorMut for QueryEditor<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        self.kind = (self.edit)(query, self.depth);
        self.depth += 1;
        if self.kind.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn post_visit_query(&mut self, _query: &mut Query) -> ControlFlow<()> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }
}

fn selects(body: &mut SetExpr) -> Vec<&mut Select> {
    match body {
        SetExpr::Select(select) => vec![select],
        SetExpr::SetOperation { left, right, .. } => {
            let mut found = selects(left);
            found.extend(selects(right));
            found
        }
        _ => Vec::new(),
    }
}

/// Changes an aggregate in place, given its clause and the relations in scope; returns the kind of the change.
type AggregateEdit<'a> = dyn FnMut(MutatedClause, &mut Function, &[(String, String)]) -> Option<String> + 'a;

/// Calls `edit` with each aggregate of a query's own clauses, until it changes one.
fn edit_aggregate(query: &mut Query, depth: usize, edit: &mut AggregateEdit<'_>) -> Option<String> {
    let mut scope = Vec::new();
    for select in selects(&mut query.body) {
        scope = relations(select);
        let clause = if depth == 0 { MutatedClause::Select } else { MutatedClause::Inner };
        let mut visit = AggregateEditor { clause, scope: &scope, edit, depth: 0, kind: None };
        let _ = select.projection.visit(&mut visit);
        if visit.kind.is_none() {
            visit.clause = MutatedClause::Having;
            let _ = select.having.visit(&mut visit);
        }
        if visit.kind.is_some() {
            return visit.kind;
        }
    }
    let mut visit = AggregateEditor { clause: MutatedClause::OrderBy, scope: &scope, edit, depth: 0, kind: None };
    let _ = query.order_by.visit(&mut visit);
    visit.kind
}

/// Returns the alias or name, and the table, of each relation.
fn relations(select: &Select) -> Vec<(String, String)> {
    let factors = select
        .from
        .iter()
        .flat_map(|from| std::iter::once(&from.relation).chain(from.joins.iter().map(|join| &join.relation)));
    factors
        .filter_map(|factor| match factor {
            TableFactor::Table { name, alias, .. } => {
                let own = name.0.last()?.as_ident()?.value.clone();
                Some((alias.as_ref().map_or_else(|| own.clone(), |alias| alias.name.value.clone()), own))
            }
            _ => None,
        })
        .collect()
}

struct AggregateEditor<'a> {
    clause: MutatedClause,
    scope: &'a [(String, String)],
    edit: &'a mut AggregateEdit<'a>,
    depth: usize,
    kind: Option<String>,
}

impl VisitorMut for AggregateEditor<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, _query: &mut Query) -> ControlFlow<()> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _query: &mut Query) -> ControlFlow<()> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if self.depth == 0
            && let Expr::Function(function) = expr
            && function.over.is_none()
            && AGGREGATE_FUNCTIONS.contains(&function.name.to_string().to_lowercase().as_str())
        {
            self.kind = (self.edit)(self.clause, function, self.scope);
            if self.kind.is_some() {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }
}

/// Returns mutants with each aggregate replaced by each other one.
fn aggregate_mutants(statement: &Statement, database: &SetDatabase, random: &mut SplitMix64) -> Vec<Mutant> {
    let mut found = Vec::new();
    for site in 0.. {
        let mut is_there = false;
        for figure in AGGREGATE_FUNCTIONS {
            let draw = random.next_below(1 << 20);
            let mut at = 0;
            let mutant = edit_copy(statement, |query, depth| {
                edit_aggregate(query, depth, &mut |clause, function, scope| {
                    at += 1;
                    if at != site + 1 {
                        return None;
                    }
                    is_there = true;
                    replace_aggregate(clause, function, scope, figure, database, draw)
                })
            });
            found.extend(mutant);
        }
        if !is_there {
            return found;
        }
    }
    found
}

fn replace_aggregate(
    clause: MutatedClause,
    function: &mut Function,
    scope: &[(String, String)],
    figure: &str,
    database: &SetDatabase,
    draw: u64,
) -> Option<String> {
    let old = function.name.to_string().to_uppercase();
    if old.eq_ignore_ascii_case(figure) {
        return None;
    }
    let FunctionArguments::List(list) = &mut function.args else { return None };
    let mut what = "";
    if let [argument @ FunctionArg::Unnamed(FunctionArgExpr::Wildcard)] = list.args.as_mut_slice() {
        // A count of rows names no column, so use the key of the first table, or any column of the scope.
        let (alias, table) = scope.first()?;
        let columns = &database.table(table)?.columns;
        let key = columns.iter().find(|column| column.is_key).filter(|_| draw.is_multiple_of(2));
        what = if key.is_some() { " of key" } else { " of column" };
        let column = key.or_else(|| columns.get(usize::try_from(draw / 2).ok()? % columns.len().max(1)))?;
        let parts = vec![Ident::new(alias.clone()), Ident::new(column.name.clone())];
        *argument = FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::CompoundIdentifier(parts)));
    }
    if figure != "count" && list.duplicate_treatment == Some(DuplicateTreatment::Distinct) {
        list.duplicate_treatment = None;
    }
    function.name = ObjectName(vec![ObjectNamePart::Identifier(Ident::new(figure.to_uppercase()))]);
    Some(format!("aggregate {}: {old} -> {}{what}", clause.as_str(), figure.to_uppercase()))
}

/// Returns the mutants of other kinds.
fn other_mutants(statement: &Statement, database: &SetDatabase) -> Vec<Mutant> {
    let some = |name: &str, is_changed: bool| is_changed.then(|| name.to_owned());
    let mut found: Vec<Option<Mutant>> = vec![
        edit_copy(statement, |query, _| {
            let is_changed = selects(&mut query.body).into_iter().any(|select| select.distinct.take().is_some());
            some("distinct dropped", is_changed)
        }),
        edit_copy(statement, |query, depth| {
            edit_aggregate(query, depth, &mut |_, function, _| match &mut function.args {
                FunctionArguments::List(list) => {
                    some("distinct dropped in COUNT", list.duplicate_treatment.take().is_some())
                }
                _ => None,
            })
        }),
        edit_copy(statement, |query, _| {
            let is_limited = query.limit_clause.is_some();
            let key: Option<&mut OrderByExpr> = query.order_by.as_mut().and_then(|order| match &mut order.kind {
                OrderByKind::Expressions(keys) => keys.first_mut(),
                OrderByKind::All(_) => None,
            });
            let key = key?;
            key.options.sort = match key.options.sort {
                Some(OrderBySort::Desc) => None,
                _ => Some(OrderBySort::Desc),
            };
            some(if is_limited { "order flipped with LIMIT" } else { "order flipped" }, true)
        }),
        edit_copy(statement, |query, _| some("order dropped", query.order_by.take().is_some())),
        edit_copy(statement, |query, _| {
            let is_changed =
                query.limit_clause.take().is_some_and(|limit| matches!(limit, LimitClause::LimitOffset { .. }));
            some("limit dropped", is_changed)
        }),
        edit_copy(statement, |query, _| {
            let is_changed = selects(&mut query.body).into_iter().any(|select| match &mut select.group_by {
                GroupByExpr::Expressions(list, _) => !std::mem::take(list).is_empty(),
                GroupByExpr::All(_) => false,
            });
            some("group by dropped", is_changed)
        }),
        edit_copy(statement, |query, _| {
            let is_changed = selects(&mut query.body).into_iter().any(|select| select.selection.take().is_some());
            some("filter dropped", is_changed)
        }),
        edit_copy(statement, |query, _| {
            let joins = selects(&mut query.body)
                .into_iter()
                .flat_map(|select| &mut select.from)
                .flat_map(|from| &mut from.joins);
            let mut is_changed = false;
            for join in joins {
                if let JoinOperator::Join(constraint @ JoinConstraint::On(_))
                | JoinOperator::Inner(constraint @ JoinConstraint::On(_)) = &mut join.join_operator
                {
                    *constraint = JoinConstraint::None;
                    is_changed = true;
                    break;
                }
            }
            some("join condition dropped", is_changed)
        }),
    ];
    for table in &database.tables {
        found.push(edit_copy(statement, |query, _| {
            let from = selects(&mut query.body).into_iter().flat_map(|select| &mut select.from).next()?;
            let TableFactor::Table { name, .. } = &mut from.relation else { return None };
            let is_other = !name.to_string().eq_ignore_ascii_case(&table.name);
            *name = ObjectName(vec![ObjectNamePart::Identifier(Ident::with_quote('"', table.name.clone()))]);
            some("another table", is_other)
        }));
    }
    found.into_iter().flatten().collect()
}

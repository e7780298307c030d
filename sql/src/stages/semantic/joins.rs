//! Finds tables that are joined without a condition, so that the query combines every row of one with every row of the
//! other. This check needs no question.

mod row_counts;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use proctor_core::sql::SqlCode;
use sqlparser::ast::{
    BinaryOperator, Expr, Join, JoinConstraint, JoinOperator, ObjectName, Query, Select, SelectItem, SetExpr,
    Statement, TableAlias, TableFactor, TableWithJoins, Visit, Visitor,
};

use super::question::ParsedQuestion;
use super::semantic_finding::SemanticFinding;
use super::syntax_tree::strip_wrappers;
use crate::catalog::Catalog;
use crate::stages::tree_walk::walk;
use row_counts::{is_duplicate_insensitive, is_plain_distinct, is_small_query};

/// The maximum number of relations of one SELECT that are examined; engines accept fewer.
const MAX_RELATIONS: usize = 128;
/// The maximum nesting depth of AND and OR that is examined.
const MAX_ALTERNATIVE_DEPTH: usize = 24;

pub(super) fn check(
    tree: &Statement,
    text: &str,
    question: Option<&ParsedQuestion>,
    catalog: &Catalog,
) -> Vec<SemanticFinding> {
    let mut reader = JoinVisitor { catalog, ctes: BTreeMap::new(), found: Vec::new() };
    walk(tree, &mut reader);
    let is_wanted = question.is_some_and(|question| {
        question.has_word(&["combination", "combinations", "pairs", "pair", "cross", "every", "cartesian", "possible"])
    });
    let finding = |UnjoinedPair { one, other, is_result_unchanged: is_same, is_likely_forgotten: is_forgotten }| {
        let confidence = match is_wanted || is_same {
            true => 60,
            false if is_forgotten && question.is_some() => 96,
            false => 90,
        };
        let message = format!(
            "`{one}` and `{other}` are joined without a condition: each row of one is combined with each row of the \
                other"
        );
        let place = name_range(text, &other);
        let found = SemanticFinding::new(SqlCode::UnjoinedTables, confidence, message).about(other);
        found.at(&place).advice("Join them by their keys: ON, USING, or an equality in WHERE.")
    };
    reader.found.into_iter().map(finding).collect()
}

/// Returns the range of the first occurrence of a name as a whole word.
fn name_range(text: &str, name: &str) -> std::ops::Range<usize> {
    let is_within = |sign: Option<char>| sign.is_some_and(|sign| sign.is_alphanumeric() || sign == '_');
    let found = text.match_indices(name).find(|(at, _)| {
        !is_within(text[..*at].chars().next_back()) && !is_within(text[at + name.len()..].chars().next())
    });
    found.map_or(0..0, |(at, _)| at..at + name.len())
}

/// A relation of a FROM clause.
struct JoinRelation {
    /// The name by which the query refers to it.
    name: String,
    /// The name of the table; empty if the relation is not a table.
    table: String,
    /// The columns in lower case; `None` if they are unknown.
    columns: Option<BTreeSet<String>>,
    /// True if it has at most one row, or is a list that is meant to be combined with every row.
    has_few_rows: bool,
    /// The primary key, if it is a single column.
    key: Option<String>,
}

/// A common table expression: its columns if they are known, and whether it is small.
#[derive(Clone)]
struct KnownCte {
    columns: Option<BTreeSet<String>>,
    has_few_rows: bool,
}

struct JoinVisitor<'a> {
    catalog: &'a Catalog,
    ctes: BTreeMap<String, KnownCte>,
    found: Vec<UnjoinedPair>,
}

/// Two relations without a join condition.
struct UnjoinedPair {
    one: String,
    other: String,
    /// True if the result would be the same with a join condition.
    is_result_unchanged: bool,
    /// True if a foreign key connects the relations and the query does not say CROSS JOIN.
    is_likely_forgotten: bool,
}

impl Visitor for JoinVisitor<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        for cte in query.with.iter().flat_map(|with| &with.cte_tables) {
            let columns = alias_columns(Some(&cte.alias)).or_else(|| query_columns(&cte.query));
            let known = KnownCte { columns, has_few_rows: is_small_query(&cte.query) };
            self.ctes.insert(cte.alias.name.value.to_lowercase(), known);
        }
        self.visit_body(&query.body);
        ControlFlow::Continue(())
    }
}

impl JoinVisitor<'_> {
    fn visit_body(&mut self, body: &SetExpr) {
        match body {
            SetExpr::Select(select) => self.visit_select(select),
            SetExpr::SetOperation { left, right, .. } => {
                self.visit_body(left);
                self.visit_body(right);
            }
            _ => {}
        }
    }

    fn visit_select(&mut self, select: &Select) {
        let mut join = JoinGraph {
            visitor: self,
            relations: Vec::new(),
            links: Vec::new(),
            alternatives: Vec::new(),
            equals: BTreeMap::new(),
        };
        for from in &select.from {
            join.add_tables(from);
        }
        // A condition may refer to a table that is joined later.
        select.from.iter().for_each(|from| join.add_join_conditions(from));
        if !(2..=MAX_RELATIONS).contains(&join.relations.len()) {
            return;
        }
        if let Some(filter) = &select.selection {
            join.add_conditions(filter);
        }
        // `COUNT(DISTINCT …)`, MAX and MIN give the same result if rows are repeated.
        let is_same = !select.projection.is_empty() && select.projection.iter().all(is_duplicate_insensitive);
        let is_same = is_same || select.distinct.is_some() && join.is_connected_by_alternatives();
        let is_same = is_same || is_plain_distinct(select) && join.is_connected_without_duplicates(select);
        let catalog = join.visitor.catalog;
        if let Some((one, other)) = join.unconnected_pair() {
            let is_cross = select
                .from
                .iter()
                .flat_map(|from| &from.joins)
                .any(|join| matches!(join.join_operator, JoinOperator::CrossJoin(_)));
            let is_forgotten = !is_cross && has_foreign_key_between(catalog, &one.table, &other.table);
            self.found.push(UnjoinedPair {
                one: one.name,
                other: other.name,
                is_result_unchanged: is_same,
                is_likely_forgotten: is_forgotten,
            });
        }
    }
}

/// The relations of one SELECT, and the conditions that connect them.
struct JoinGraph<'a, 'b> {
    visitor: &'a JoinVisitor<'b>,
    relations: Vec<JoinRelation>,
    links: Vec<BTreeSet<usize>>,
    /// The relations that each operand of an OR connects, one set for each operand.
    alternatives: Vec<BTreeSet<usize>>,
    /// The relations that are compared with the same value, by value.
    equals: BTreeMap<String, BTreeSet<usize>>,
}

impl JoinGraph<'_, '_> {
    fn add_tables(&mut self, from: &TableWithJoins) {
        self.add_factor(&from.relation);
        for Join { relation, join_operator, .. } in &from.joins {
            let before = self.relations.len();
            self.add_factor(relation);
            match join_constraint(join_operator) {
                Some(JoinConstraint::On(_)) => {}
                Some(JoinConstraint::Using(_) | JoinConstraint::Natural) if before > 0 => {
                    self.links.push(BTreeSet::from([before - 1, before]));
                }
                None => {
                    self.links.push(BTreeSet::from([before.saturating_sub(1), before]));
                }
                _ => {}
            }
        }
    }

    fn add_join_conditions(&mut self, from: &TableWithJoins) {
        let factors = std::iter::once(&from.relation).chain(from.joins.iter().map(|join| &join.relation));
        for factor in factors {
            if let TableFactor::NestedJoin { table_with_joins, .. } = factor {
                self.add_join_conditions(table_with_joins);
            }
        }
        for join in &from.joins {
            if let Some(JoinConstraint::On(condition)) = join_constraint(&join.join_operator) {
                self.add_conditions(condition);
            }
        }
    }

    fn add_factor(&mut self, factor: &TableFactor) {
        match factor {
            TableFactor::Table { name, alias, args, .. } => {
                let relation = self.table_relation(name, alias.as_ref(), args.is_some());
                self.relations.push(relation);
                if let Some(arguments) = args {
                    let used = self.used_relations(&arguments.args);
                    self.link_last(used);
                }
            }
            TableFactor::Derived { subquery, alias, lateral, .. } => {
                let name = alias.as_ref().map_or_else(|| "a query".to_owned(), |alias| alias.name.value.clone());
                let columns = alias_columns(alias.as_ref()).or_else(|| query_columns(subquery));
                self.relations.push(JoinRelation {
                    name,
                    table: String::new(),
                    columns,
                    has_few_rows: is_small_query(subquery),
                    key: None,
                });
                if *lateral {
                    let used = self.used_relations(subquery.as_ref());
                    self.link_last(used);
                }
            }
            TableFactor::NestedJoin { table_with_joins, .. } => self.add_tables(table_with_joins),
            // Functions and the like: a list that is meant to be combined with every row.
            _ => self.relations.push(JoinRelation {
                name: String::new(),
                table: String::new(),
                columns: None,
                has_few_rows: true,
                key: None,
            }),
        }
    }

    fn link_last(&mut self, mut used: BTreeSet<usize>) {
        used.insert(self.relations.len() - 1);
        self.links.push(used);
    }

    fn table_relation(&self, name: &ObjectName, alias: Option<&TableAlias>, is_function: bool) -> JoinRelation {
        let own = name.0.last().and_then(|part| part.as_ident()).map(|ident| ident.value.clone()).unwrap_or_default();
        let called = alias.map_or_else(|| own.clone(), |alias| alias.name.value.clone());
        if let Some(cte) = self.visitor.ctes.get(&own.to_lowercase()) {
            return JoinRelation {
                name: called,
                table: String::new(),
                columns: cte.columns.clone(),
                has_few_rows: cte.has_few_rows,
                key: None,
            };
        }
        let Some(table) = self.visitor.catalog.table(&own) else {
            return JoinRelation {
                name: called,
                table: String::new(),
                columns: None,
                has_few_rows: is_function,
                key: None,
            };
        };
        let keys: Vec<&str> = table
            .columns
            .iter()
            .filter(|column| column.primary_key_position > 0)
            .map(|column| column.name.as_str())
            .collect();
        let key = (keys.len() == 1).then(|| keys[0].to_lowercase());
        let columns = Some(table.columns.iter().map(|column| column.name.to_lowercase()).collect());
        JoinRelation { name: called, table: own, columns, has_few_rows: false, key }
    }

    /// Processes each operand of AND separately.
    fn add_conditions(&mut self, condition: &Expr) {
        match strip_wrappers(condition) {
            Expr::BinaryOp { left, op: BinaryOperator::And, right } => {
                self.add_conditions(left);
                self.add_conditions(right);
            }
            Expr::BinaryOp { left, op: BinaryOperator::Eq, right } => {
                self.record_equality(left, right);
                self.record_equality(right, left);
                let used = self.used_relations(condition);
                self.links.push(used);
            }
            other => {
                let links = self.linked_sets(other, 0);
                self.links.extend(links);
                let alternatives = self.alternative_sets(other, 0);
                self.alternatives.extend(alternatives);
            }
        }
    }

    /// Returns the sets of relations that a condition connects. Each operand of an OR must connect them: `c.x = 1 OR
    /// o.y = 2` does not.
    fn linked_sets(&self, condition: &Expr, depth: usize) -> Vec<BTreeSet<usize>> {
        match strip_wrappers(condition) {
            Expr::BinaryOp { left, op: BinaryOperator::Or, right } if depth < MAX_ALTERNATIVE_DEPTH => {
                let (one, other) = (self.linked_sets(left, depth + 1), self.linked_sets(right, depth + 1));
                let both = one.iter().flat_map(|one| other.iter().map(move |other| one & other));
                both.filter(|link| link.len() > 1).take(MAX_RELATIONS).collect()
            }
            Expr::BinaryOp { left, op: BinaryOperator::And, right } if depth < MAX_ALTERNATIVE_DEPTH => {
                let mut found = self.linked_sets(left, depth + 1);
                found.extend(self.linked_sets(right, depth + 1));
                found.truncate(MAX_RELATIONS);
                found
            }
            other => vec![self.used_relations(other)],
        }
    }

    /// Returns one set of connected relations for each operand of a condition.
    fn alternative_sets(&self, condition: &Expr, depth: usize) -> Vec<BTreeSet<usize>> {
        match strip_wrappers(condition) {
            Expr::BinaryOp { left, op: BinaryOperator::Or | BinaryOperator::And, right }
                if depth < MAX_ALTERNATIVE_DEPTH =>
            {
                let mut found = self.alternative_sets(left, depth + 1);
                found.extend(self.alternative_sets(right, depth + 1));
                found.truncate(MAX_RELATIONS);
                found
            }
            other => vec![self.used_relations(other)],
        }
    }

    /// Reports whether all relations are connected if each operand of an OR counts on its own. This is sufficient for
    /// distinct rows.
    fn is_connected_by_alternatives(&self) -> bool {
        let groups = self.alternative_groups();
        groups.iter().all(|group| *group == groups[0])
    }

    /// Returns the group of each relation if each operand of an OR counts on its own.
    fn alternative_groups(&self) -> Vec<usize> {
        let links = self.links.iter().chain(&self.alternatives).chain(self.equals.values());
        connected_groups(self.relations.len(), &links.cloned().collect::<Vec<_>>())
    }

    /// Reports whether all relations that the query uses are connected, and each other relation is another alias of a
    /// table that it uses. Distinct rows are the same without that alias.
    fn is_connected_without_duplicates(&self, select: &Select) -> bool {
        let mut used = self.used_relations(select);
        used.extend(self.links.iter().filter(|link| link.len() > 1).flatten());
        let is_again = |at: &usize| {
            let table = &self.relations[*at].table;
            !table.is_empty() && used.iter().any(|used| self.relations[*used].table.eq_ignore_ascii_case(table))
        };
        let groups = self.alternative_groups();
        let first = used.first().map(|first| groups[*first]);
        (0..self.relations.len()).all(|at| match used.contains(&at) {
            true => Some(groups[at]) == first || self.relations[at].has_few_rows,
            false => is_again(&at),
        })
    }

    /// Records an equality between a column and a value.
    fn record_equality(&mut self, column: &Expr, value: &Expr) {
        if !matches!(strip_wrappers(column), Expr::Identifier(_) | Expr::CompoundIdentifier(_))
            || !matches!(strip_wrappers(value), Expr::Value(_) | Expr::Subquery(_))
        {
            return;
        }
        let used = self.used_relations(column);
        let [relation] = used.iter().copied().collect::<Vec<_>>()[..] else { return };
        let name = match strip_wrappers(column) {
            Expr::Identifier(ident) => ident.value.to_lowercase(),
            Expr::CompoundIdentifier(parts) => parts.last().map(|part| part.value.to_lowercase()).unwrap_or_default(),
            _ => return,
        };
        if self.relations[relation].key.as_deref() == Some(name.as_str()) {
            self.relations[relation].has_few_rows = true;
        }
        self.equals.entry(value.to_string()).or_default().insert(relation);
    }

    /// Returns the relations whose columns occur in a part of the tree, at any depth.
    fn used_relations(&self, part: &impl Visit) -> BTreeSet<usize> {
        let mut columns = ColumnCollector { catalog: self.visitor.catalog, inner: Vec::new(), found: Vec::new() };
        walk(part, &mut columns);
        let mut used = BTreeSet::new();
        for (table, column) in columns.found {
            let of = |relation: &JoinRelation| match &table {
                Some(table) => relation.name.eq_ignore_ascii_case(table),
                None => relation.columns.as_ref().is_none_or(|columns| columns.contains(&column)),
            };
            used.extend(self.relations.iter().enumerate().filter(|(_, relation)| of(relation)).map(|(at, _)| at));
        }
        used
    }

    /// Returns two relations that no condition connects.
    fn unconnected_pair(mut self) -> Option<(JoinRelation, JoinRelation)> {
        let equals = std::mem::take(&mut self.equals);
        self.links.extend(equals.into_values());
        let group = connected_groups(self.relations.len(), &self.links);
        let large = |at: &usize| !self.relations[*at].has_few_rows && !self.relations[*at].name.is_empty();
        let first = (0..group.len()).find(large)?;
        let other = (first + 1..group.len()).filter(large).find(|at| group[*at] != group[first])?;
        let other = self.relations.swap_remove(other);
        Some((self.relations.swap_remove(first), other))
    }
}

/// Assigns a group to each relation. Linked relations share a group.
fn connected_groups(count: usize, links: &[BTreeSet<usize>]) -> Vec<usize> {
    let mut group: Vec<usize> = (0..count).collect();
    for link in links {
        let Some(first) = link.first().map(|first| group[*first]) else { continue };
        let others: BTreeSet<usize> = link.iter().map(|at| group[*at]).collect();
        group.iter_mut().filter(|own| others.contains(own)).for_each(|own| *own = first);
    }
    group
}

/// Reports whether a foreign key of one of two tables references the other.
fn has_foreign_key_between(catalog: &Catalog, one: &str, other: &str) -> bool {
    let points = |from: &str, to: &str| {
        catalog
            .table(from)
            .is_some_and(|table| table.foreign_keys.iter().any(|key| key.referenced_table.eq_ignore_ascii_case(to)))
    };
    points(one, other) || points(other, one)
}

/// Collects all column names with their qualifiers. Columns of relations of a subquery are left out, since its aliases
/// may be the same as those of the outer query.
struct ColumnCollector<'a> {
    catalog: &'a Catalog,
    /// The relations of the enclosing subqueries: the alias, and the table if it is one.
    inner: Vec<Vec<(String, String)>>,
    found: Vec<(Option<String>, String)>,
}

impl ColumnCollector<'_> {
    fn is_inner(&self, table: Option<&str>, column: &str) -> bool {
        self.inner.iter().flatten().any(|(name, own)| match table {
            Some(table) => name.eq_ignore_ascii_case(table),
            None => self.catalog.table(own).is_none_or(|table| table.column(column).is_some()),
        })
    }

    fn collect_relations(body: &SetExpr, found: &mut Vec<(String, String)>) {
        match body {
            SetExpr::Select(select) => {
                let factors = select.from.iter().flat_map(|from| {
                    std::iter::once(&from.relation).chain(from.joins.iter().map(|join| &join.relation))
                });
                found.extend(factors.map(|factor| {
                    let (name, alias) = match factor {
                        TableFactor::Table { name, alias, .. } => {
                            (name.0.last().and_then(|part| part.as_ident()), alias)
                        }
                        TableFactor::Derived { alias, .. } => (None, alias),
                        _ => (None, &None),
                    };
                    let own = name.map(|ident| ident.value.clone()).unwrap_or_default();
                    (alias.as_ref().map_or_else(|| own.clone(), |alias| alias.name.value.clone()), own)
                }));
            }
            SetExpr::SetOperation { left, right, .. } => {
                Self::collect_relations(left, found);
                Self::collect_relations(right, found);
            }
            _ => {}
        }
    }
}

impl Visitor for ColumnCollector<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        let mut relations = Vec::new();
        Self::collect_relations(&query.body, &mut relations);
        self.inner.push(relations);
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _query: &Query) -> ControlFlow<()> {
        self.inner.pop();
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        let (table, column) = match expr {
            Expr::Identifier(ident) => (None, ident.value.to_lowercase()),
            Expr::CompoundIdentifier(parts) => {
                let table = parts.iter().rev().nth(1).map(|part| part.value.clone());
                (table, parts.last().map(|part| part.value.to_lowercase()).unwrap_or_default())
            }
            _ => return ControlFlow::Continue(()),
        };
        if !self.is_inner(table.as_deref(), &column) {
            self.found.push((table, column));
        }
        ControlFlow::Continue(())
    }
}

/// Returns the condition of a join; `None` for joins without one.
fn join_constraint(operator: &JoinOperator) -> Option<&JoinConstraint> {
    match operator {
        JoinOperator::Join(found)
        | JoinOperator::Inner(found)
        | JoinOperator::Left(found)
        | JoinOperator::LeftOuter(found)
        | JoinOperator::Right(found)
        | JoinOperator::RightOuter(found)
        | JoinOperator::FullOuter(found)
        | JoinOperator::CrossJoin(found)
        | JoinOperator::Semi(found)
        | JoinOperator::LeftSemi(found)
        | JoinOperator::RightSemi(found)
        | JoinOperator::Anti(found)
        | JoinOperator::LeftAnti(found)
        | JoinOperator::RightAnti(found)
        | JoinOperator::StraightJoin(found) => Some(found),
        _ => None,
    }
}

/// Returns the columns that an alias defines.
fn alias_columns(alias: Option<&TableAlias>) -> Option<BTreeSet<String>> {
    let columns = &alias?.columns;
    (!columns.is_empty()).then(|| columns.iter().map(|column| column.name.value.to_lowercase()).collect())
}

/// Returns the columns of a query; `None` if one has no name.
fn query_columns(query: &Query) -> Option<BTreeSet<String>> {
    let SetExpr::Select(select) = query.body.as_ref() else { return None };
    let name = |item: &SelectItem| match item {
        SelectItem::ExprWithAlias { alias, .. } => Some(alias.value.to_lowercase()),
        SelectItem::UnnamedExpr(Expr::Identifier(ident)) => Some(ident.value.to_lowercase()),
        SelectItem::UnnamedExpr(Expr::CompoundIdentifier(parts)) => parts.last().map(|part| part.value.to_lowercase()),
        SelectItem::UnnamedExpr(other) => Some(other.to_string().to_lowercase()),
        _ => None,
    };
    select.projection.iter().map(name).collect()
}

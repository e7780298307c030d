//! Converts a syntax tree to its [`QueryShape`].

use std::ops::{ControlFlow, Range};

use sqlparser::ast::{
    BinaryOperator, Distinct, Expr, Function, GroupByExpr, Ident, JoinOperator, LimitClause, ObjectName, OrderBy,
    OrderByExpr, OrderByKind, OrderBySort, Query, Select, SelectItem, SetExpr, SetOperator, Spanned as _, Statement,
    TableFactor, UnaryOperator, ValueWithSpan, Visitor, WindowType,
};

use super::query_shape::{
    Aggregate, AggregateKind, ColumnReference, QueryShape, ResultColumn, RowLimit, SelectBlock, SortKey,
};
use super::syntax_tree::{
    StatementText, aggregate_kind, arguments, is_comparison, is_condition, is_difference, is_distinct, is_inverse,
    literal_text, strip_wrappers,
};
use super::word_forms::name_words;
use crate::catalog::Catalog;
use crate::stages::tree_walk::walk;

/// The maximum number of sort keys of a query that are examined.
const MAX_SORT_KEYS: usize = 32;

/// Reads a query; returns `None` if the statement is not one. `text` is the text of the statement.
pub(super) fn read_shape(statement: &Statement, text: &str, catalog: &Catalog) -> Option<QueryShape> {
    let Statement::Query(query) = statement else { return None };
    let mut reader = ShapeReader { text: StatementText::new(text), catalog, shape: QueryShape::default() };
    walk(query, &mut reader);
    let mut shape = reader.shape;
    shape.resolve_aliases();
    (!shape.blocks.is_empty()).then_some(shape)
}

struct ShapeReader<'a> {
    text: StatementText<'a>,
    catalog: &'a Catalog,
    shape: QueryShape,
}

impl Visitor for ShapeReader<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        let mut selects = Vec::new();
        self.collect_selects(&query.body, &mut selects);
        for (at, select) in selects.iter().enumerate() {
            let mut block = self.read_block(select);
            if at == 0 {
                self.read_order_and_limit(query, &mut block);
            }
            self.shape.blocks.push(block);
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_ident(&mut self, ident: &Ident) -> ControlFlow<()> {
        self.shape.names.insert(ident.value.to_lowercase());
        self.shape.words.extend(name_words(&ident.value));
        ControlFlow::Continue(())
    }

    fn pre_visit_relation(&mut self, relation: &ObjectName) -> ControlFlow<()> {
        for part in &relation.0 {
            let name = part.as_ident().map(|ident| ident.value.to_lowercase());
            self.shape.tables.extend(name.clone());
            self.shape.words.extend(part.as_ident().iter().flat_map(|ident| name_words(&ident.value)));
            self.shape.names.extend(name);
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<()> {
        let joins = select.from.iter().flat_map(|from| &from.joins);
        self.shape.has_outer_join |= joins.into_iter().any(|join| {
            !matches!(join.join_operator, JoinOperator::Join(_) | JoinOperator::Inner(_) | JoinOperator::CrossJoin(_))
        });
        ControlFlow::Continue(())
    }

    fn pre_visit_value(&mut self, value: &ValueWithSpan) -> ControlFlow<()> {
        self.shape.values.extend(literal_text(&value.value).map(|value| value.to_lowercase()));
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        self.collect_compared_values(expr);
        match expr {
            Expr::UnaryOp { op: UnaryOperator::Not, .. }
            | Expr::IsNull(_)
            | Expr::IsNotNull(_)
            | Expr::IsFalse(_)
            | Expr::IsNotTrue(_)
            | Expr::IsDistinctFrom(..)
            | Expr::InList { negated: true, .. }
            | Expr::InSubquery { negated: true, .. }
            | Expr::Between { negated: true, .. }
            | Expr::Like { negated: true, .. }
            | Expr::ILike { negated: true, .. }
            | Expr::Exists { negated: true, .. }
            | Expr::BinaryOp { op: BinaryOperator::NotEq, .. } => {
                self.shape.has_negation = true;
                self.shape.has_condition = true;
            }
            Expr::InSubquery { .. } | Expr::Exists { .. } => {
                self.shape.has_condition = true;
                self.shape.has_membership = true;
            }
            Expr::InList { .. }
            | Expr::Between { .. }
            | Expr::Like { .. }
            | Expr::ILike { .. }
            | Expr::RLike { .. }
            | Expr::SimilarTo { .. }
            | Expr::IsTrue(_)
            | Expr::IsNotFalse(_) => self.shape.has_condition = true,
            Expr::BinaryOp { op: BinaryOperator::Divide, .. } => self.shape.has_division = true,
            Expr::BinaryOp { left, op: BinaryOperator::Plus, right } => {
                self.shape.has_addition |=
                    self.column_reference(left).is_some() && self.column_reference(right).is_some();
            }
            Expr::BinaryOp { left, op, right } if is_comparison(op) => {
                let is_value = |expr: &Expr| self.column_reference(expr).is_none();
                self.shape.has_condition |= is_value(left) || is_value(right);
                let loose = [left, right].into_iter().filter(|side| self.is_multi_row_subquery(side));
                let places: Vec<Range<usize>> = loose.map(|side| self.text.range(side.span())).collect();
                self.shape.multi_row_comparisons.extend(places);
            }
            Expr::Identifier(ident) if self.is_string(ident) => self.shape.values.push(ident.value.to_lowercase()),
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

impl ShapeReader<'_> {
    fn collect_selects<'q>(&mut self, body: &'q SetExpr, found: &mut Vec<&'q Select>) {
        match body {
            SetExpr::Select(select) => found.push(select),
            SetExpr::SetOperation { op, left, right, .. } => {
                self.shape.has_set_operation = true;
                self.shape.has_negation |= matches!(op, SetOperator::Except | SetOperator::Minus);
                self.collect_selects(left, found);
                self.collect_selects(right, found);
            }
            // A query in parentheses is visited separately.
            _ => {}
        }
    }

    /// Reports whether an expression is a subquery that returns a column of every row of a table.
    fn is_multi_row_subquery(&self, expr: &Expr) -> bool {
        let Expr::Subquery(query) = strip_wrappers(expr) else { return false };
        let (SetExpr::Select(select), None, None) = (&*query.body, &query.limit_clause, &query.fetch) else {
            return false;
        };
        let is_plain = select.selection.is_none()
            && select.having.is_none()
            && select.distinct.is_none()
            && matches!(&select.group_by, GroupByExpr::Expressions(by, _) if by.is_empty());
        let is_column = match select.projection.as_slice() {
            [SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }] => {
                self.column_reference(expr).is_some()
            }
            _ => false,
        };
        let is_table = match select.from.as_slice() {
            [from] => matches!(&from.relation, TableFactor::Table { name, .. }
                if from.joins.is_empty() && self.catalog.table(&name.to_string()).is_some()),
            _ => false,
        };
        is_plain && is_column && is_table
    }

    fn collect_compared_values(&mut self, expr: &Expr) {
        let values: Vec<&Expr> = match expr {
            Expr::BinaryOp { left, op, right } if is_comparison(op) => vec![left, right],
            Expr::InList { list, .. } => list.iter().collect(),
            Expr::Like { pattern, .. } | Expr::ILike { pattern, .. } => vec![pattern],
            Expr::Between { low, high, .. } => vec![low, high],
            _ => return,
        };
        let value = |expr: &Expr| match strip_wrappers(expr) {
            Expr::Value(value) => literal_text(&value.value),
            Expr::Identifier(ident) if self.is_string(ident) => Some(ident.value.clone()),
            _ => None,
        };
        let found: Vec<String> = values.into_iter().filter_map(value).map(|value| value.to_lowercase()).collect();
        self.shape.compared_values.extend(found);
    }

    fn read_block(&self, select: &Select) -> SelectBlock {
        let items: Vec<ResultColumn> = select.projection.iter().map(|item| self.read_projection(item)).collect();
        let groups = match &select.group_by {
            GroupByExpr::All(_) => 1,
            GroupByExpr::Expressions(list, modifiers) => list.len() + modifiers.len(),
        };
        let mut ranks = RankKeyVisitor { reader: self, found: Vec::new(), depth: 0 };
        walk(&select.projection, &mut ranks);
        let having =
            select.having.as_ref().map(|having| self.read_result_column(having, None).aggregates).unwrap_or_default();
        SelectBlock {
            items,
            is_distinct: matches!(select.distinct, Some(Distinct::Distinct | Distinct::On(_))),
            groups,
            order: Vec::new(),
            limit: RowLimit::All,
            rank_keys: ranks.found,
            having,
            order_aggregates: Vec::new(),
            has_filter: select.selection.is_some() || select.having.is_some() || select.qualify.is_some(),
            fixed_columns: select.selection.as_ref().map(|filter| self.fixed_columns(filter)).unwrap_or_default(),
            tables: select.from.iter().map(|from| 1 + from.joins.len()).sum(),
            range: self.text.range(select.select_token.0.span),
        }
    }

    fn fixed_columns(&self, filter: &Expr) -> Vec<String> {
        match strip_wrappers(filter) {
            Expr::BinaryOp { left, op: BinaryOperator::And, right } => {
                let mut found = self.fixed_columns(left);
                found.extend(self.fixed_columns(right));
                found
            }
            Expr::BinaryOp { left, op: BinaryOperator::Eq, right } => {
                match (self.column_reference(left), self.column_reference(right)) {
                    (Some(name), None) | (None, Some(name)) => vec![name.column],
                    _ => Vec::new(),
                }
            }
            _ => Vec::new(),
        }
    }

    /// Reads the order and the limit of a query.
    fn read_order_and_limit(&self, query: &Query, block: &mut SelectBlock) {
        if let Some(OrderBy { kind: OrderByKind::Expressions(list), .. }) = &query.order_by {
            block.order = list.iter().take(MAX_SORT_KEYS).map(|by| self.read_sort_key(by, &block.items)).collect();
            let aggregates: Vec<Aggregate> =
                list.iter().flat_map(|by| self.read_result_column(&by.expr, None).aggregates).collect();
            block.order_aggregates = aggregates;
        }
        let limit = match &query.limit_clause {
            Some(LimitClause::LimitOffset { limit, .. }) => limit.as_ref(),
            Some(LimitClause::OffsetCommaLimit { limit, .. }) => Some(limit),
            None => None,
        };
        block.limit = match limit {
            None if query.fetch.is_some() => RowLimit::Expression,
            None => RowLimit::All,
            Some(limit) => match limit.to_string().parse() {
                Ok(number) => RowLimit::Rows { number, range: self.text.range(limit.span()) },
                Err(_) => RowLimit::Expression,
            },
        };
    }

    fn read_sort_key(&self, by: &OrderByExpr, items: &[ResultColumn]) -> SortKey {
        let by_number = by.expr.to_string().parse::<usize>().ok().and_then(|number| items.get(number.checked_sub(1)?));
        let item = by_number.cloned().unwrap_or_else(|| self.read_result_column(&by.expr, None));
        let is_of_nulls = match &by.expr {
            Expr::IsNull(_) | Expr::IsNotNull(_) => true,
            Expr::Case { conditions, .. } => {
                conditions.iter().all(|when| matches!(when.condition, Expr::IsNull(_) | Expr::IsNotNull(_)))
            }
            Expr::Nested(inner) => matches!(**inner, Expr::IsNull(_) | Expr::IsNotNull(_)),
            _ => false,
        };
        let expr = self.text.close_parentheses(self.text.range(by.expr.span()));
        SortKey {
            is_descending: matches!(by.options.sort, Some(OrderBySort::Desc)),
            item,
            is_null_order: is_of_nulls,
            is_inverse: is_inverse(&by.expr),
            range: self.range_with_direction(expr),
        }
    }

    /// Extends the range of a sort key by its direction.
    fn range_with_direction(&self, place: Range<usize>) -> Range<usize> {
        let rest = self.text.text.get(place.end..).unwrap_or_default();
        let word = rest.trim_start();
        let is_direction = ["asc", "desc"]
            .iter()
            .any(|direction| word.get(..direction.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(direction)));
        if !is_direction {
            return place;
        }
        let length = word.bytes().take_while(u8::is_ascii_alphabetic).count();
        place.start..place.end + (rest.len() - word.len()) + length
    }

    fn read_projection(&self, item: &SelectItem) -> ResultColumn {
        match item {
            SelectItem::UnnamedExpr(expr) => self.read_result_column(expr, None),
            SelectItem::ExprWithAlias { expr, alias } => self.read_result_column(expr, Some(&alias.value)),
            SelectItem::ExprWithAliases { expr, .. } => self.read_result_column(expr, None),
            SelectItem::QualifiedWildcard(..) | SelectItem::Wildcard(_) => {
                ResultColumn { is_wildcard: true, range: self.text.range(item.span()), ..ResultColumn::default() }
            }
        }
    }

    fn read_result_column(&self, expr: &Expr, alias: Option<&str>) -> ResultColumn {
        let mut parser =
            ResultColumnReader { reader: self, item: ResultColumn::default(), depth: 0, open_aggregates: Vec::new() };
        walk(expr, &mut parser);
        let mut item = parser.item;
        item.alias = alias.map(str::to_owned);
        let own = alias.map(name_words).unwrap_or_else(|| match strip_wrappers(expr) {
            Expr::Identifier(ident) => name_words(&ident.value),
            _ => Vec::new(),
        });
        item.words.extend(own);
        if item.alias.is_none()
            && let Some(name) = self.column_reference(expr)
        {
            item.alias = Some(name.column);
        }
        item.is_column = self.column_reference(expr).is_some();
        item.is_difference = is_difference(expr) || item.aggregates.iter().any(|figure| figure.is_over_difference);
        item.is_aggregate =
            matches!(strip_wrappers(expr), Expr::Function(function) if aggregate_kind(function).is_some());
        item.range = self.text.close_parentheses(self.text.range(expr.span()));
        item
    }

    /// Returns the column if an expression is only a column.
    fn column_reference(&self, expr: &Expr) -> Option<ColumnReference> {
        match strip_wrappers(expr) {
            Expr::Identifier(ident) if !self.is_string(ident) => {
                Some(ColumnReference { table: None, column: ident.value.clone() })
            }
            Expr::CompoundIdentifier(parts) => {
                let column = parts.last()?.value.clone();
                Some(ColumnReference { table: parts.iter().rev().nth(1).map(|table| table.value.clone()), column })
            }
            _ => None,
        }
    }

    /// Reports whether SQLite reads a double-quoted name as a string: no column has this name.
    fn is_string(&self, ident: &Ident) -> bool {
        ident.quote_style == Some('"') && self.catalog.tables_with(&ident.value).next().is_none()
    }

    fn read_aggregate(&self, function: &Function, figure: AggregateKind, place: Range<usize>) -> Aggregate {
        let arguments = arguments(function);
        let first = arguments.first().copied();
        Aggregate {
            kind: figure,
            columns: Vec::new(),
            column: first.and_then(|first| self.column_reference(first)),
            is_over_condition: first.is_some_and(is_condition),
            is_windowed: function.over.is_some(),
            is_distinct: is_distinct(function),
            is_over_difference: first.is_some_and(is_difference),
            range: place,
        }
    }
}

/// A visitor that reads one expression without its subqueries.
struct ResultColumnReader<'a> {
    reader: &'a ShapeReader<'a>,
    item: ResultColumn,
    depth: usize,
    /// The enclosing aggregates, as indices.
    open_aggregates: Vec<Option<usize>>,
}

impl Visitor for ResultColumnReader<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, _query: &Query) -> ControlFlow<()> {
        self.item.has_query = true;
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _query: &Query) -> ControlFlow<()> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        if self.depth > 0 {
            return ControlFlow::Continue(());
        }
        if let Expr::Function(function) = expr {
            self.item.has_window |= function.over.is_some();
            let figure = aggregate_kind(function);
            let index = figure.map(|figure| {
                let place = self.reader.text.close_parentheses(self.reader.text.range(expr.span()));
                self.item.aggregates.push(self.reader.read_aggregate(function, figure, place));
                self.item.aggregates.len() - 1
            });
            self.open_aggregates.push(index);
        }
        if matches!(expr, Expr::Identifier(_) | Expr::CompoundIdentifier(_))
            && let Some(name) = self.reader.column_reference(expr)
        {
            self.item.words.extend(name_words(&name.column));
            match self.open_aggregates.iter().rev().find_map(|open| *open) {
                Some(index) => self.item.aggregates[index].columns.push(name),
                None => self.item.plain_columns.push(name),
            }
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        if self.depth == 0 && matches!(expr, Expr::Function(_)) {
            self.open_aggregates.pop();
        }
        ControlFlow::Continue(())
    }
}

/// A visitor that finds the sort keys of functions that number rows.
struct RankKeyVisitor<'a> {
    reader: &'a ShapeReader<'a>,
    found: Vec<SortKey>,
    depth: usize,
}

impl Visitor for RankKeyVisitor<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, _query: &Query) -> ControlFlow<()> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _query: &Query) -> ControlFlow<()> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        if self.depth == 0
            && let Expr::Function(function) = expr
            && let Some(WindowType::WindowSpec(window)) = &function.over
            && ["rank", "dense_rank", "row_number"].contains(&function.name.to_string().to_lowercase().as_str())
        {
            self.found.extend(window.order_by.first().map(|by| self.reader.read_sort_key(by, &[])));
        }
        ControlFlow::Continue(())
    }
}

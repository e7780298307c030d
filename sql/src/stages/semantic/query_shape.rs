//! Describes a query for the checks: the columns, aggregates, sort keys and limits of each SELECT, and all values and
//! names. This module does not depend on questions.

use std::collections::BTreeSet;
use std::ops::Range;

/// The kind of an aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum AggregateKind {
    Count,
    Sum,
    Average,
    Max,
    Min,
    /// Any other aggregate.
    Other,
}

impl AggregateKind {
    /// Returns the SQL name.
    pub(super) fn as_sql(self) -> &'static str {
        match self {
            Self::Count => "COUNT",
            Self::Sum => "SUM",
            Self::Average => "AVG",
            Self::Max => "MAX",
            Self::Min => "MIN",
            Self::Other => "an aggregate",
        }
    }

    /// Returns the aggregate with this name.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "count" => Self::Count,
            "sum" | "total" => Self::Sum,
            "avg" | "mean" => Self::Average,
            "max" => Self::Max,
            "min" => Self::Min,
            "group_concat"
            | "string_agg"
            | "median"
            | "mode"
            | "stddev"
            | "variance"
            | "list"
            | "array_agg"
            | "any_value"
            | "first"
            | "last"
            | "arg_max"
            | "arg_min"
            | "json_group_array"
            | "json_group_object"
            | "quantile"
            | "quantile_cont"
            | "bool_or"
            | "bool_and"
            | "count_if"
            | "approx_count_distinct"
            | "stddev_samp"
            | "stddev_pop"
            | "var_samp"
            | "var_pop"
            | "corr" => Self::Other,
            _ => return None,
        })
    }
}

/// A column as the query names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ColumnReference {
    pub table: Option<String>,
    pub column: String,
}

/// An aggregate of the query.
#[derive(Debug, Clone)]
pub(super) struct Aggregate {
    pub kind: AggregateKind,
    /// The columns in the arguments.
    pub columns: Vec<ColumnReference>,
    /// The column, if the argument is only a column.
    pub column: Option<ColumnReference>,
    /// True if the argument is a condition, or a value that is zero where a condition does not hold.
    pub is_over_condition: bool,
    /// True if the aggregate is a window aggregate.
    pub is_windowed: bool,
    pub is_distinct: bool,
    /// True if the argument is the difference of two dates: `MAX(now - birth_year)` is an age.
    pub is_over_difference: bool,
    pub range: Range<usize>,
}

/// A column of the result, or another expression.
#[derive(Debug, Clone, Default)]
pub(super) struct ResultColumn {
    pub alias: Option<String>,
    /// The columns outside of aggregates and subqueries.
    pub plain_columns: Vec<ColumnReference>,
    pub aggregates: Vec<Aggregate>,
    /// The words of all names in the expression, and of the alias.
    pub words: Vec<String>,
    pub is_wildcard: bool,
    pub has_query: bool,
    pub has_window: bool,
    /// True if the expression is only a call of an aggregate.
    pub is_aggregate: bool,
    /// True if the expression is only a column.
    pub is_column: bool,
    /// True if the expression subtracts two values, or calls a function that does.
    pub is_difference: bool,
    pub range: Range<usize>,
}

/// A sort key.
#[derive(Debug, Clone)]
pub(super) struct SortKey {
    pub is_descending: bool,
    pub item: ResultColumn,
    /// True if the key only separates rows with NULL.
    pub is_null_order: bool,
    /// True if the key becomes smaller as the values grow.
    pub is_inverse: bool,
    /// The range of the expression and its direction.
    pub range: Range<usize>,
}

/// The limit of rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RowLimit {
    All,
    Rows {
        number: u64,
        range: Range<usize>,
    },
    /// An expression other than a number.
    Expression,
}

/// One SELECT.
#[derive(Debug, Clone)]
pub(super) struct SelectBlock {
    pub items: Vec<ResultColumn>,
    pub is_distinct: bool,
    pub groups: usize,
    pub order: Vec<SortKey>,
    pub limit: RowLimit,
    /// The sort keys of RANK and similar functions.
    pub rank_keys: Vec<SortKey>,
    /// The aggregates in HAVING.
    pub having: Vec<Aggregate>,
    /// The aggregates in ORDER BY, before aliases are resolved.
    pub order_aggregates: Vec<Aggregate>,
    pub has_filter: bool,
    /// The columns that WHERE compares with a value for equality.
    pub fixed_columns: Vec<String>,
    pub tables: usize,
    pub range: Range<usize>,
}

impl SelectBlock {
    /// Returns the aggregates of the columns.
    pub(super) fn aggregates(&self) -> impl Iterator<Item = &Aggregate> {
        self.items.iter().flat_map(|item| &item.aggregates)
    }

    /// Returns the aggregates of HAVING and ORDER BY.
    pub(super) fn later_aggregates(&self) -> impl Iterator<Item = &Aggregate> {
        self.having.iter().chain(&self.order_aggregates)
    }
}

/// A parsed query.
#[derive(Debug, Clone, Default)]
pub(super) struct QueryShape {
    /// Every SELECT; the outermost is the first.
    pub blocks: Vec<SelectBlock>,
    /// All values, in lower case.
    pub values: Vec<String>,
    /// All names, in lower case.
    pub names: BTreeSet<String>,
    /// The words of all names.
    pub words: BTreeSet<String>,
    /// The tables that the query reads, in lower case.
    pub tables: BTreeSet<String>,
    /// The values in comparisons, in lower case.
    pub compared_values: Vec<String>,
    /// True if the query has an outer join.
    pub has_outer_join: bool,
    /// True if the query has IN or EXISTS with a subquery.
    pub has_membership: bool,
    /// True if the query has NOT, `<>`, IS NULL, EXCEPT or similar.
    pub has_negation: bool,
    /// True if the query has a comparison, IN, LIKE or BETWEEN with a value or a subquery.
    pub has_condition: bool,
    pub has_set_operation: bool,
    pub has_division: bool,
    /// True if the query adds columns to each other: `checking.balance + savings.balance`.
    pub has_addition: bool,
    /// Subqueries that are compared as one value but return a column of every row of a table.
    pub multi_row_comparisons: Vec<Range<usize>>,
}

impl QueryShape {
    /// Returns the outermost SELECT.
    pub(super) fn top(&self) -> &SelectBlock {
        &self.blocks[0]
    }

    /// Returns all aggregates.
    pub(super) fn aggregates(&self) -> impl Iterator<Item = &Aggregate> {
        self.blocks.iter().flat_map(|block| block.aggregates().chain(block.later_aggregates()))
    }

    /// Returns the number of ends of scales that the query selects: MAX, MIN, and sorted rows that are limited or
    /// numbered.
    pub(super) fn extreme_count(&self) -> usize {
        let ends = self
            .aggregates()
            .filter(|aggregate| matches!(aggregate.kind, AggregateKind::Max | AggregateKind::Min))
            .count();
        let cuts = self.blocks.iter().filter(|block| block.limit != RowLimit::All && !block.order.is_empty()).count();
        ends + cuts + self.blocks.iter().map(|block| block.rank_keys.len()).sum::<usize>()
    }

    /// Reports whether the query has an aggregate of this kind.
    pub(super) fn has_aggregate(&self, figure: AggregateKind) -> bool {
        self.aggregates().any(|aggregate| aggregate.kind == figure)
    }

    /// Replaces each sort key that is an alias by the column that the alias names.
    pub(super) fn resolve_aliases(&mut self) {
        let items: Vec<ResultColumn> = self.blocks.iter().flat_map(|block| block.items.clone()).collect();
        let named =
            |name: &str| items.iter().find(|item| item.alias.as_deref().is_some_and(|a| a.eq_ignore_ascii_case(name)));
        for block in &mut self.blocks {
            let own = block.items.clone();
            for key in block.order.iter_mut().chain(&mut block.rank_keys) {
                let [name] = key.item.plain_columns.as_slice() else { continue };
                let in_own = own
                    .iter()
                    .find(|item| item.alias.as_deref().is_some_and(|alias| alias.eq_ignore_ascii_case(&name.column)));
                let Some(item) = in_own.or_else(|| named(&name.column)) else { continue };
                key.item.words.extend(item.words.iter().cloned());
                key.item.aggregates.extend(item.aggregates.iter().cloned());
            }
        }
    }
}

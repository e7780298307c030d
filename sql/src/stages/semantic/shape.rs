//! The tree of a query as the checks look at it: what each SELECT gives, aggregates, sorts and cuts off, and the values
//! and names that stand anywhere. Nothing here knows of a question.

use std::collections::BTreeSet;
use std::ops::Range;

/// What is done with many rows to get one figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Figure {
    Count,
    Sum,
    Average,
    Max,
    Min,
    /// Any other aggregate.
    Other,
}

impl Figure {
    /// As it is written.
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

    /// The aggregate of that name.
    pub(super) fn of(name: &str) -> Option<Self> {
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
pub(super) struct Name {
    pub table: Option<String>,
    pub column: String,
}

/// An aggregate where it stands.
#[derive(Debug, Clone)]
pub(super) struct Aggregate {
    pub figure: Figure,
    /// The columns within it.
    pub columns: Vec<Name>,
    /// The one column that it is of, where it is of a column and nothing else.
    pub column: Option<Name>,
    /// Whether it adds up or averages a condition, or a value where a condition holds and zero elsewhere.
    pub is_of_condition: bool,
    /// Whether an aggregate stands within it.
    pub is_windowed: bool,
    pub is_distinct: bool,
    /// Whether it is of what lies between a date and another: `MAX(now - birth_year)` is an age.
    pub is_of_difference: bool,
    pub place: Range<usize>,
}

/// One column of a result, or any other expression by itself.
#[derive(Debug, Clone, Default)]
pub(super) struct Item {
    pub alias: Option<String>,
    /// Columns that stand outside of aggregates and of inner queries.
    pub bare: Vec<Name>,
    pub aggregates: Vec<Aggregate>,
    /// The words of every name in it, and of its alias.
    pub words: Vec<String>,
    pub is_wildcard: bool,
    pub has_query: bool,
    pub has_window: bool,
    /// Whether it is one call of an aggregate, and nothing around it.
    pub is_aggregate: bool,
    /// Whether it is one column, and nothing around it.
    pub is_column: bool,
    /// Whether it subtracts one value from another, or calls a function that does.
    pub is_difference: bool,
    pub place: Range<usize>,
}

/// What rows are sorted by.
#[derive(Debug, Clone)]
pub(super) struct Key {
    pub is_descending: bool,
    pub item: Item,
    /// Whether it only sets rows without a value apart.
    pub is_of_nulls: bool,
    /// Whether larger values make it smaller.
    pub is_inverse: bool,
    /// The expression and its direction.
    pub place: Range<usize>,
}

/// How many rows are let through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Limit {
    All,
    Rows {
        number: u64,
        place: Range<usize>,
    },
    /// As many as an expression says.
    Some,
}

/// One SELECT.
#[derive(Debug, Clone)]
pub(super) struct Block {
    pub items: Vec<Item>,
    pub is_distinct: bool,
    pub groups: usize,
    pub order: Vec<Key>,
    pub limit: Limit,
    /// What the rows are numbered by, in RANK and its like.
    pub ranks: Vec<Key>,
    /// Aggregates in HAVING.
    pub having: Vec<Aggregate>,
    /// Aggregates in ORDER BY, as it is written.
    pub ordering: Vec<Aggregate>,
    pub has_filter: bool,
    /// The columns that WHERE holds to be equal to a value.
    pub pinned: Vec<String>,
    pub tables: usize,
    pub place: Range<usize>,
}

impl Block {
    /// The aggregates of its columns.
    pub(super) fn aggregates(&self) -> impl Iterator<Item = &Aggregate> {
        self.items.iter().flat_map(|item| &item.aggregates)
    }

    /// The aggregates of HAVING and ORDER BY.
    pub(super) fn later(&self) -> impl Iterator<Item = &Aggregate> {
        self.having.iter().chain(&self.ordering)
    }
}

/// A statement, read.
#[derive(Debug, Clone, Default)]
pub(super) struct Shape {
    /// Every SELECT; the outermost is the first.
    pub blocks: Vec<Block>,
    /// Every value, in lower case.
    pub values: Vec<String>,
    /// Every name, in lower case.
    pub names: BTreeSet<String>,
    /// The words of every name.
    pub words: BTreeSet<String>,
    /// The tables that it reads, in lower case.
    pub tables: BTreeSet<String>,
    /// The values that something is compared with, in lower case.
    pub compared: Vec<String>,
    /// Whether a table is kept whole by a join.
    pub has_outer_join: bool,
    /// Whether rows are taken by whether another query has them, or by a join.
    pub has_membership: bool,
    /// NOT, `<>`, IS NULL, EXCEPT and their like.
    pub has_negation: bool,
    /// A comparison of any kind, or IN, LIKE, BETWEEN, with a value or an inner query.
    pub has_condition: bool,
    pub has_set_operation: bool,
    pub has_division: bool,
    /// Whether columns are added to each other: `checking.balance + savings.balance`.
    pub has_addition: bool,
    /// Inner queries that something is compared with as one value, and that give a column of every row of a table.
    pub loose: Vec<Range<usize>>,
}

impl Shape {
    /// The outermost SELECT.
    pub(super) fn top(&self) -> &Block {
        &self.blocks[0]
    }

    /// Every aggregate, wherever it stands.
    pub(super) fn aggregates(&self) -> impl Iterator<Item = &Aggregate> {
        self.blocks.iter().flat_map(|block| block.aggregates().chain(block.later()))
    }

    /// How many ends of scales it takes: MAX, MIN, and sorted rows that are cut off or numbered.
    pub(super) fn extremes(&self) -> usize {
        let ends = self.aggregates().filter(|aggregate| matches!(aggregate.figure, Figure::Max | Figure::Min)).count();
        let cuts = self.blocks.iter().filter(|block| block.limit != Limit::All && !block.order.is_empty()).count();
        ends + cuts + self.blocks.iter().map(|block| block.ranks.len()).sum::<usize>()
    }

    /// Whether an aggregate of that kind stands anywhere.
    pub(super) fn has(&self, figure: Figure) -> bool {
        self.aggregates().any(|aggregate| aggregate.figure == figure)
    }

    /// A sort key that is the name of a column made elsewhere is what that column is.
    pub(super) fn resolve(&mut self) {
        let items: Vec<Item> = self.blocks.iter().flat_map(|block| block.items.clone()).collect();
        let named =
            |name: &str| items.iter().find(|item| item.alias.as_deref().is_some_and(|a| a.eq_ignore_ascii_case(name)));
        for block in &mut self.blocks {
            let own = block.items.clone();
            for key in block.order.iter_mut().chain(&mut block.ranks) {
                let [name] = key.item.bare.as_slice() else { continue };
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

//! Checks for aggregates that are wrong for any question.

use crate::stages::semantic::query_shape::{AggregateKind, ResultColumn};
use crate::stages::semantic::semantic_finding::SemanticFinding;
use crate::stages::semantic::word_forms::name_words;

/// Reports an aggregate that is named after another one: `AVG(price) AS total_price`.
pub(super) fn misnamed_aggregate(item: &ResultColumn) -> Option<SemanticFinding> {
    let alias = item.alias.as_deref().filter(|_| item.is_aggregate)?;
    let aggregate = item.aggregates.first()?;
    let own: Vec<String> = aggregate.columns.iter().flat_map(|name| name_words(&name.column)).collect();
    let words: Vec<String> = name_words(alias).into_iter().filter(|word| !own.contains(word)).collect();
    let says = |wanted: &[&str]| words.iter().any(|word| wanted.contains(&word.as_str()));
    let is_average = says(&["avg", "average", "mean"]);
    let is_total = says(&["total", "sum"]);
    let is_high = says(&["max", "maximum", "highest", "largest", "latest", "most", "longest"]);
    let is_low = says(&["min", "minimum", "lowest", "smallest", "earliest", "least", "shortest"]);
    let is_count = says(&["count", "num", "number", "cnt"]) && !is_average && !is_total;
    let be = match aggregate.kind {
        AggregateKind::Sum | AggregateKind::Count | AggregateKind::Max | AggregateKind::Min
            if is_average && !is_total && !is_high && !is_low =>
        {
            AggregateKind::Average
        }
        AggregateKind::Average | AggregateKind::Max | AggregateKind::Min
            if is_total && !is_average && !is_high && !is_low =>
        {
            AggregateKind::Sum
        }
        AggregateKind::Min if is_high && !is_low => AggregateKind::Max,
        AggregateKind::Max if is_low && !is_high => AggregateKind::Min,
        AggregateKind::Average | AggregateKind::Max | AggregateKind::Min if is_count && !is_high && !is_low => {
            AggregateKind::Count
        }
        _ => return None,
    };
    let message = format!("{} is named `{alias}`", aggregate.kind.as_sql());
    Some(SemanticFinding::other_aggregate(86, message, aggregate, be))
}

/// Reports an average in a sum or a fraction with counts and sums: `100 * AVG(x = 1) / COUNT(*)`.
pub(super) fn mixed_aggregates(item: &ResultColumn) -> Option<SemanticFinding> {
    if item.is_aggregate || item.has_window {
        return None;
    }
    let average = item.aggregates.iter().find(|aggregate| aggregate.kind == AggregateKind::Average)?;
    let sums = || {
        item.aggregates.iter().filter(|aggregate| matches!(aggregate.kind, AggregateKind::Sum | AggregateKind::Count))
    };
    let mate = sums().next()?;
    let is_of_same = sums().any(|sum| {
        sum.columns.iter().any(|name| average.columns.iter().any(|own| own.column.eq_ignore_ascii_case(&name.column)))
    });
    let confidence = match (average.is_over_condition, is_of_same) {
        (true, _) => 88,
        (_, true) => 80,
        _ => 76,
    };
    let message = format!("an average is combined with {} of the same rows in one expression", mate.kind.as_sql());
    Some(SemanticFinding::other_aggregate(confidence, message, average, AggregateKind::Sum))
}

/// Reports an aggregate that is compared with itself: `MIN(price) - MIN(price)`.
pub(super) fn repeated_aggregate(item: &ResultColumn) -> Option<SemanticFinding> {
    let [one, other_one] = item.aggregates.as_slice() else { return None };
    let is_same = one.kind == other_one.kind
        && one.is_distinct == other_one.is_distinct
        && one.column.is_some()
        && one.column == other_one.column
        && one.columns.len() == 1
        && other_one.columns.len() == 1;
    if !is_same
        || item.has_window
        || !matches!(one.kind, AggregateKind::Max | AggregateKind::Min | AggregateKind::Sum | AggregateKind::Average)
    {
        return None;
    }
    let be = match one.kind {
        AggregateKind::Min => AggregateKind::Max,
        AggregateKind::Max => AggregateKind::Min,
        _ => AggregateKind::Count,
    };
    Some(SemanticFinding::other_aggregate(
        88,
        format!("{} of a column is compared with itself", one.kind.as_sql()),
        one,
        be,
    ))
}

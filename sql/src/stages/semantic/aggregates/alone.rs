//! Checks for aggregates that are wrong for any question.

use super::other;
use crate::stages::semantic::Finding;
use crate::stages::semantic::shape::{Figure, Item};
use crate::stages::semantic::words::parts;

/// Reports an aggregate that is named after another one: `AVG(price) AS total_price`.
pub(super) fn against_its_name(item: &Item) -> Option<Finding> {
    let alias = item.alias.as_deref().filter(|_| item.is_aggregate)?;
    let aggregate = item.aggregates.first()?;
    let own: Vec<String> = aggregate.columns.iter().flat_map(|name| parts(&name.column)).collect();
    let words: Vec<String> = parts(alias).into_iter().filter(|word| !own.contains(word)).collect();
    let says = |wanted: &[&str]| words.iter().any(|word| wanted.contains(&word.as_str()));
    let is_average = says(&["avg", "average", "mean"]);
    let is_total = says(&["total", "sum"]);
    let is_high = says(&["max", "maximum", "highest", "largest", "latest", "most", "longest"]);
    let is_low = says(&["min", "minimum", "lowest", "smallest", "earliest", "least", "shortest"]);
    let is_count = says(&["count", "num", "number", "cnt"]) && !is_average && !is_total;
    let be = match aggregate.figure {
        Figure::Sum | Figure::Count | Figure::Max | Figure::Min if is_average && !is_total && !is_high && !is_low => {
            Figure::Average
        }
        Figure::Average | Figure::Max | Figure::Min if is_total && !is_average && !is_high && !is_low => Figure::Sum,
        Figure::Min if is_high && !is_low => Figure::Max,
        Figure::Max if is_low && !is_high => Figure::Min,
        Figure::Average | Figure::Max | Figure::Min if is_count && !is_high && !is_low => Figure::Count,
        _ => return None,
    };
    let message = format!("{} is named `{alias}`", aggregate.figure.as_sql());
    Some(other(86, message, aggregate, be))
}

/// Reports an average in a sum or a fraction with counts and sums: `100 * AVG(x = 1) / COUNT(*)`.
pub(super) fn mixed(item: &Item) -> Option<Finding> {
    if item.is_aggregate || item.has_window {
        return None;
    }
    let average = item.aggregates.iter().find(|aggregate| aggregate.figure == Figure::Average)?;
    let sums = || item.aggregates.iter().filter(|aggregate| matches!(aggregate.figure, Figure::Sum | Figure::Count));
    let mate = sums().next()?;
    let is_of_same = sums().any(|sum| {
        sum.columns.iter().any(|name| average.columns.iter().any(|own| own.column.eq_ignore_ascii_case(&name.column)))
    });
    let confidence = match (average.is_of_condition, is_of_same) {
        (true, _) => 88,
        (_, true) => 80,
        _ => 76,
    };
    let message = format!("an average is set against {} of the same rows in one figure", mate.figure.as_sql());
    Some(other(confidence, message, average, Figure::Sum))
}

/// Reports an aggregate that is compared with itself: `MIN(price) - MIN(price)`.
pub(super) fn twice(item: &Item) -> Option<Finding> {
    let [one, other_one] = item.aggregates.as_slice() else { return None };
    let is_same = one.figure == other_one.figure
        && one.is_distinct == other_one.is_distinct
        && one.column.is_some()
        && one.column == other_one.column
        && one.columns.len() == 1
        && other_one.columns.len() == 1;
    if !is_same || item.has_window || !matches!(one.figure, Figure::Max | Figure::Min | Figure::Sum | Figure::Average) {
        return None;
    }
    let be = match one.figure {
        Figure::Min => Figure::Max,
        Figure::Max => Figure::Min,
        _ => Figure::Count,
    };
    Some(other(88, format!("{} of a column is set against itself", one.figure.as_sql()), one, be))
}

//! Checks the aggregate that the question asks for: count, sum, average, maximum, minimum.

mod aggregate_words;
mod missing_count;
mod question_independent;

use proctor_core::sql::SqlCode;

use super::extreme::Extreme;
use super::query_shape::{Aggregate, AggregateKind, QueryShape, RowLimit};
use super::question::{ParsedQuestion, ScaleEnd};
use super::semantic_finding::{SemanticFinding, SemanticInput};
use super::word_forms::{are_related, name_words};
use aggregate_words::{AVERAGE_WORDS, SHARE_WORDS, is_key};
use missing_count::missing_count;
use question_independent::{misnamed_aggregate, mixed_aggregates, repeated_aggregate};

const TOTAL_WORDS: [&str; 7] = ["total", "sum", "totals", "altogether", "combined", "overall", "cumulative"];

pub(super) fn check(input: &SemanticInput<'_>, question: &ParsedQuestion) -> Vec<SemanticFinding> {
    let shape = input.shape;
    let mut found: Vec<SemanticFinding> = Vec::new();
    for item in shape.blocks.iter().flat_map(|block| &block.items) {
        found.extend(misnamed_aggregate(item));
        found.extend(mixed_aggregates(item));
        found.extend(repeated_aggregate(item));
    }
    found.extend(shape.aggregates().filter_map(|aggregate| opposite_extreme(shape, aggregate, question)));
    found.extend(check_average(shape, question));
    found.extend(missing_sum(shape, question));
    found.extend(missing_count(input, question));
    found.extend(misnamed_column(shape));
    found.extend(multi_row_comparison(shape));
    found
}

/// Reports a comparison of one value with a subquery that returns a value for every row.
fn multi_row_comparison(shape: &QueryShape) -> Option<SemanticFinding> {
    let place = shape.multi_row_comparisons.first()?;
    let message = "a value is compared with a query that returns a value for every row of a table";
    let found = SemanticFinding::new(SqlCode::AggregateExpected, 84, message).at(place);
    Some(found.advice("Aggregate the values, for instance with AVG or MAX, or use IN."))
}

/// Reports MAX where the question asks for the lowest value, and MIN where it asks for the highest.
fn opposite_extreme(shape: &QueryShape, aggregate: &Aggregate, question: &ParsedQuestion) -> Option<SemanticFinding> {
    let item = shape
        .blocks
        .iter()
        .flat_map(|block| &block.items)
        .find(|item| item.aggregates.iter().any(|other| other.range == aggregate.range))?;
    if shape.has_aggregate(AggregateKind::Max) && shape.has_aggregate(AggregateKind::Min) {
        return None;
    }
    let extreme = Extreme::from_aggregate(aggregate, item)?;
    let (cue, way, is_named) = extreme.matching_superlative(question)?;
    if way == extreme.end {
        return None;
    }
    let be = if way == ScaleEnd::High { AggregateKind::Max } else { AggregateKind::Min };
    let words = question.quote(cue.at, cue.at + 3);
    let confidence = match is_named {
        _ if item.is_aggregate && extreme.is_unambiguous(question, cue, shape) => 96,
        true => 88,
        false => 80,
    };
    let message = format!("the question asks for \"{words}\", but the query returns {}", aggregate.kind.as_sql());
    Some(SemanticFinding::other_aggregate(confidence, message, aggregate, be))
}

/// Reports an average that the question does not ask for, and a missing average that it asks for.
fn check_average(shape: &QueryShape, question: &ParsedQuestion) -> Vec<SemanticFinding> {
    let averages: Vec<&Aggregate> =
        shape.aggregates().filter(|aggregate| aggregate.kind == AggregateKind::Average).collect();
    let average_word = question.find_word(&AVERAGE_WORDS);
    let total = question.find_word(&TOTAL_WORDS);
    match (averages.first(), average_word) {
        (Some(average), None) => {
            let is_share = question.has_word(&SHARE_WORDS);
            let is_of_column = average
                .columns
                .iter()
                .any(|name| name_words(&name.column).iter().any(|part| AVERAGE_WORDS.contains(&part.as_str())));
            if (is_share && average.is_over_condition) || is_of_column {
                return Vec::new();
            }
            let is_one = shape.aggregates().count() == 1 && shape.top().items.iter().any(|item| item.is_aggregate);
            let confidence = match (total.is_some() || question.has_phrase(&["how many", "how much"]), is_share) {
                (true, false)
                    if is_one
                        && total.is_some_and(|at| question.word_at(at) != "overall")
                        && average.column.is_some() =>
                {
                    96
                }
                (true, false) => 85,
                (true, true) if asks_for_total_per_group(shape, question) && average.column.is_some() => 80,
                (false, false) => 60,
                _ => 50,
            };
            vec![SemanticFinding::other_aggregate(
                confidence,
                "the query averages, but the question asks for no average",
                average,
                AggregateKind::Sum,
            )]
        }
        (None, Some(at)) => missing_average(shape, question, at, total.is_some()).into_iter().collect(),
        _ => Vec::new(),
    }
}

/// Reports whether the question asks for a total for each of something, without a ratio.
fn asks_for_total_per_group(shape: &QueryShape, question: &ParsedQuestion) -> bool {
    let is_ratio = SHARE_WORDS.iter().any(|word| *word != "per" && question.has_word(&[*word]));
    question.find_word(&TOTAL_WORDS).is_some_and(|at| question.word_at(at) != "overall")
        && !is_ratio
        && !shape.has_division
}

fn missing_average(
    shape: &QueryShape,
    question: &ParsedQuestion,
    at: usize,
    is_total: bool,
) -> Option<SemanticFinding> {
    let is_stored = AVERAGE_WORDS.iter().any(|word| shape.words.contains(*word));
    if let Some(found) = wrong_comparison_aggregate(shape, question, at).filter(|_| !is_stored) {
        return Some(found);
    }
    let is_verb = match question.word_at(at) {
        "mean" => at > 0 && !matches!(question.word_at(at - 1), "the" | "a" | "and" | "or" | "arithmetic" | "overall"),
        // `papers that are typically cited` does not ask for an average.
        word => matches!(word, "expected" | "typically"),
    };
    let is_counted = question.has_phrase(&["how many", "number of"])
        && (shape.has_aggregate(AggregateKind::Count) || shape.has_aggregate(AggregateKind::Sum))
        && !is_sum_of_numbers(shape, question, at);
    if shape.has_division
        || is_verb
        || is_counted
        || question.has_phrase(&["above average", "below average", "than average", "the average of all"])
    {
        return None;
    }
    let words = question.quote(at, at + 3);
    let is_head = is_in_question_head(question, at);
    match shape.top().aggregates().next() {
        Some(figure) if !is_total && !matches!(figure.kind, AggregateKind::Other) && !is_stored => {
            let top = shape.top();
            let is_one = shape.aggregates().count() == 1
                && top.items.len() == 1
                && top.items[0].is_aggregate
                && shape.blocks.len() == 1;
            let is_of_groups = top.groups == 1
                && shape.blocks.len() == 1
                && shape.aggregates().count() == 1
                && top.items.len() == 2
                && top.items.iter().all(|item| item.is_column || item.is_aggregate)
                && question.words.len() <= 8;
            let is_certain =
                (is_one || is_of_groups) && is_head && question.superlatives.is_empty() && figure.column.is_some();
            let confidence = match (is_certain, is_head) {
                (true, _) => 96,
                (_, true) => 84,
                _ => 62,
            };
            let message = format!("the question asks for \"{words}\", but the query returns {}", figure.kind.as_sql());
            Some(SemanticFinding::other_aggregate(confidence, message, figure, AggregateKind::Average))
        }
        None if !is_stored => {
            let message = format!("the question asks for \"{words}\", but the query averages nothing");
            let confidence = match is_head && question.superlatives.is_empty() {
                true if returns_every_value(shape) && question.words.len() <= 7 => 96,
                true => 78,
                false => 55,
            };
            Some(
                SemanticFinding::new(SqlCode::AggregateExpected, confidence, message)
                    .at(&shape.top().range)
                    .advice("Use AVG."),
            )
        }
        _ => None,
    }
}

/// Reports whether the query returns one column of every row of a table.
fn returns_every_value(shape: &QueryShape) -> bool {
    let [block] = shape.blocks.as_slice() else { return false };
    let is_column =
        matches!(block.items.as_slice(), [item] if item.is_column && !is_key(&item.plain_columns[0].column));
    is_column
        && block.groups == 0
        && !block.has_filter
        && block.tables == 1
        && !block.is_distinct
        && block.limit == RowLimit::All
}

/// Reports whether the question asks for the average of a stored number (`the average number of pages`) and the query
/// adds it up.
fn is_sum_of_numbers(shape: &QueryShape, question: &ParsedQuestion, at: usize) -> bool {
    let [block] = shape.blocks.as_slice() else { return false };
    let mut figures = shape.aggregates();
    let is_sum = |sum: &Aggregate| sum.kind == AggregateKind::Sum && sum.column.is_some() && block.groups <= 1;
    question.word_at(at + 1) == "number"
        && question.word_at(at + 2) == "of"
        && figures.next().is_some_and(is_sum)
        && figures.next().is_none()
}

/// Reports an aggregate other than the average with which rows are compared: `prices above the average`.
fn wrong_comparison_aggregate(shape: &QueryShape, question: &ParsedQuestion, at: usize) -> Option<SemanticFinding> {
    let is_bar =
        (1..=3).any(|back| at >= back && matches!(question.word_at(at - back), "above" | "below" | "than" | "exceeds"));
    let [top, inner] = shape.blocks.as_slice() else { return None };
    let [item] = inner.items.as_slice() else { return None };
    let figure = item.aggregates.first().filter(|_| item.is_aggregate && is_bar && inner.groups == 0)?;
    let is_other =
        matches!(figure.kind, AggregateKind::Sum | AggregateKind::Max | AggregateKind::Min) && figure.column.is_some();
    if !is_other || top.aggregates().next().is_some() {
        return None;
    }
    let words = question.quote(at, at + 3);
    let message =
        format!("the question asks for \"{words}\", but the query compares rows with {}", figure.kind.as_sql());
    Some(SemanticFinding::other_aggregate(80, message, figure, AggregateKind::Average))
}

/// Reports whether a word belongs to the beginning of the question, and not to a condition.
fn is_in_question_head(question: &ParsedQuestion, at: usize) -> bool {
    let is_after_request = at >= 2
        && question.word_at(at - 1) == "the"
        && matches!(question.word_at(at - 2), "is" | "are" | "was" | "were" | "calculate" | "compute");
    let is_bound =
        |before| matches!(question.word_at(before), "which" | "who" | "whose" | "with" | "where" | "list" | "than");
    is_after_request || (at <= 4 && !(0..at).any(is_bound))
}

/// Reports a missing sum where the question asks for a total.
fn missing_sum(shape: &QueryShape, question: &ParsedQuestion) -> Option<SemanticFinding> {
    let at = question.find_word(&["total", "sum"]).or_else(|| question.find_phrase("how much"))?;
    if let Some(found) = other_instead_of_sum(shape, question, at) {
        return Some(found);
    }
    if shape.aggregates().next().is_some()
        || shape.has_division
        || shape.has_addition
        || question.has_word(&SHARE_WORDS)
    {
        return None;
    }
    let is_stored = ["total", "sum", "count", "num"].iter().any(|word| shape.words.contains(*word));
    // `the sum that was paid` is an amount.
    let is_amount = question.word_at(at) == "sum" && matches!(question.word_at(at + 1), "that" | "which");
    if is_stored || is_amount || is_abbreviated(shape, question, at) {
        return None;
    }
    let words = question.quote(at, at + 3);
    let message = format!("the question asks for \"{words}\", but the query sums nothing");
    let confidence = if is_in_question_head(question, at) && question.word_at(at) != "how" { 78 } else { 55 };
    Some(
        SemanticFinding::new(SqlCode::AggregateExpected, confidence, message)
            .at(&shape.top().range)
            .advice("Use SUM or COUNT."),
    )
}

/// Reports whether a column name abbreviates the words from `at` on: `T-CHO` for `total cholesterol`.
fn is_abbreviated(shape: &QueryShape, question: &ParsedQuestion, at: usize) -> bool {
    let stands_for = |name: &String| {
        let parts = name_words(name);
        parts.len() > 1
            && parts.iter().enumerate().all(|(behind, part)| question.word_at(at + behind).starts_with(part.as_str()))
    };
    shape.names.iter().any(stands_for)
}

/// Reports another aggregate where the question asks for a sum.
fn other_instead_of_sum(shape: &QueryShape, question: &ParsedQuestion, at: usize) -> Option<SemanticFinding> {
    let [item] = shape.top().items.as_slice() else { return None };
    let figure = item.aggregates.first().filter(|_| item.is_aggregate && shape.aggregates().count() == 1)?;
    let column = figure.column.as_ref()?;
    let is_total =
        is_in_question_head(question, at) && question.word_at(at) != "how" && question.superlatives.is_empty();
    if !is_total || question.has_word(&SHARE_WORDS) || question.has_word(&AVERAGE_WORDS) || shape.has_division {
        return None;
    }
    let is_named = question
        .words
        .iter()
        .skip(at)
        .take(5)
        .any(|word| name_words(&column.column).iter().any(|part| are_related(part, &word.stem)));
    let confidence = match figure.kind {
        AggregateKind::Max | AggregateKind::Min => 96,
        AggregateKind::Count
            if is_named
                && !is_key(&column.column)
                && !question.has_phrase(&["number of", "count of", "total number"]) =>
        {
            80
        }
        _ => return None,
    };
    let message = format!(
        "the question asks for \"{}\", but the query returns {}",
        question.quote(at, at + 3),
        figure.kind.as_sql()
    );
    Some(SemanticFinding::other_aggregate(confidence, message, figure, AggregateKind::Sum))
}

/// Reports a column that is named after an aggregate without being one: `order_id AS number_of_orders`.
fn misnamed_column(shape: &QueryShape) -> Vec<SemanticFinding> {
    let made: Vec<&str> =
        shape.blocks.iter().skip(1).flat_map(|block| &block.items).filter_map(|item| item.alias.as_deref()).collect();
    let items = shape.blocks.iter().flat_map(|block| block.items.iter().map(move |item| (block, item)));
    items
        .filter_map(|(block, item)| {
            let alias = item.alias.as_deref().filter(|_| item.is_column)?;
            let [column] = item.plain_columns.as_slice() else { return None };
            let own = name_words(&column.column);
            let figure = name_words(alias).into_iter().find(|word| {
                matches!(
                    word.as_str(),
                    "num" | "number" | "count" | "total" | "avg" | "average" | "sum" | "max" | "min"
                ) && !own.contains(word)
            })?;
            if made.iter().any(|made| made.eq_ignore_ascii_case(&column.column)) {
                return None;
            }
            let confidence = if block.groups > 0 { 84 } else { 74 };
            let message =
                format!("`{}` is named `{alias}`, but the query does not compute a {figure} of it", column.column);
            let found = SemanticFinding::new(SqlCode::AggregateExpected, confidence, message).at(&item.range);
            Some(found.advice("Use the aggregate that the name suggests."))
        })
        .collect()
}

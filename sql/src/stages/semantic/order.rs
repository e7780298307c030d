//! Checks the order that the question asks for, and its direction.

use std::ops::Range;

use proctor_core::sql::SqlCode;

use super::extreme::Extreme;
use super::query_shape::{ColumnReference, QueryShape, RowLimit, SelectBlock, SortKey};
use super::question::{ParsedQuestion, ScaleEnd, SuperlativeScale};
use super::requested_aggregates::stores_extreme;
use super::semantic_finding::{SemanticFinding, SemanticInput};
use super::word_forms::{are_related, name_words};

pub(super) fn check(input: &SemanticInput<'_>, question: &ParsedQuestion) -> Vec<SemanticFinding> {
    let mut found: Vec<SemanticFinding> =
        input.shape.blocks.iter().flat_map(|block| reversed_limits(input.shape, block, question)).collect();
    found.extend(reversed_order(input, question));
    found.extend(missing_order(input, question));
    found
}

/// Reports a query that takes the first rows from the wrong end.
fn reversed_limits(shape: &QueryShape, block: &SelectBlock, question: &ParsedQuestion) -> Vec<SemanticFinding> {
    let of_limit = block.order.iter().find(|key| !key.is_null_order).filter(|_| block.limit != RowLimit::All);
    let keys = of_limit.into_iter().chain(&block.rank_keys);
    keys.filter_map(|key| reversed_limit_key(shape, key, question)).collect()
}

fn reversed_limit_key(shape: &QueryShape, key: &SortKey, question: &ParsedQuestion) -> Option<SemanticFinding> {
    let extreme = Extreme::from_sort_key(key);
    let (cue, way, is_named) = extreme.matching_superlative(question)?;
    let other = question
        .requested_order
        .as_ref()
        .is_some_and(|sorting| sorting.direction.is_some_and(|direction| direction != way));
    if way == extreme.end || other {
        return None;
    }
    let word = question.quote(cue.at, cue.at + 3);
    let (is, be) = (direction_name(extreme.end), direction_name(way));
    let message = format!("the question asks for \"{word}\", but the query returns the first rows in {is} order");
    // `top 10 districts by name` are in alphabetical order.
    let by = question.find_word(&["by"]).map_or(usize::MAX - 9, |by| by);
    let is_by_name = (by + 1..by + 4).any(|at| matches!(question.word_at(at), "name" | "names" | "title" | "titles"));
    let confidence = match is_named {
        _ if is_by_name && cue.scale == SuperlativeScale::Quality => 60,
        _ if extreme.is_unambiguous(question, cue, shape) && question.requested_order.is_none() => 96,
        _ if extreme.is_top_by_aggregate(question, cue, shape) && question.requested_order.is_none() => 96,
        true => 90,
        false => 82,
    };
    Some(order_finding(SqlCode::OrderReversed, confidence, message, key, be))
}

fn order_finding(code: SqlCode, confidence: u8, message: String, key: &SortKey, be: &str) -> SemanticFinding {
    SemanticFinding::new(code, confidence, message).at(&key.range).advice(format!("Sort in {be} order."))
}

fn direction_name(way: ScaleEnd) -> &'static str {
    match way {
        ScaleEnd::High => "descending",
        ScaleEnd::Low => "ascending",
    }
}

/// Reports an order of all rows in the wrong direction.
fn reversed_order(input: &SemanticInput<'_>, question: &ParsedQuestion) -> Option<SemanticFinding> {
    let sorting = question.requested_order.as_ref()?;
    let way = sorting.direction?;
    let keys: Vec<&SortKey> = input.shape.top().order.iter().filter(|key| !key.is_null_order).collect();
    let first = keys.first()?;
    if question
        .superlatives
        .iter()
        .any(|cue| cue.asks_for_order && Extreme::from_sort_key(first).is_opposite_scale(cue))
    {
        return None;
    }
    let is_other =
        |key: &&SortKey| (if key.is_descending { ScaleEnd::High } else { ScaleEnd::Low }) != way && !key.is_inverse;
    if !keys.iter().all(is_other) {
        return None;
    }
    let words = question.quote(sorting.at, sorting.at + 5);
    let message = format!(
        "the question asks for \"{words}\", which is {} order, but the query sorts in the opposite order",
        direction_name(way)
    );
    let is_of_key = has_related_word(question, sorting.at..sorting.at + 6, &first.item.words)
        || Extreme::from_sort_key(first).is_named_first(question)
        || is_text_order(input, question, first);
    // In `in descending order, the fastest lap`, the superlative asks for the rows that the query selects.
    let extreme = Extreme::from_sort_key(first);
    let is_taken = input.shape.top().limit != RowLimit::All
        && extreme.matching_superlative(question).is_some_and(|(_, way, _)| way == extreme.end);
    let confidence = match keys.len() {
        _ if is_taken => 60,
        1 if is_of_key && question.words.len() <= 14 => 96,
        1 if is_short_question(question)
            && question.superlatives[0].asks_for_order
            && !first.item.aggregates.is_empty() =>
        {
            96
        }
        1 => 85,
        _ => 75,
    };
    Some(order_finding(SqlCode::OrderReversed, confidence, message, first, direction_name(way)))
}

/// Reports whether the question asks for alphabetical order and the key is a text.
fn is_text_order(input: &SemanticInput<'_>, question: &ParsedQuestion, key: &SortKey) -> bool {
    let is_text = |name: &ColumnReference| {
        let column = input.catalog.tables_with(&name.column).find_map(|table| table.column(&name.column));
        column.is_some_and(|column| {
            ["TEXT", "CHAR"].iter().any(|kind| column.declared_type.to_ascii_uppercase().contains(kind))
        })
    };
    question.has_word(&["alphabetical", "alphabetically"])
        && key.item.is_column
        && key.item.plain_columns.iter().all(is_text)
}

/// Reports whether one of the words in `range` is related to a name.
fn has_related_word(question: &ParsedQuestion, range: Range<usize>, names: &[String]) -> bool {
    range.into_iter().any(|at| {
        let stem = question.words.get(at).map_or("", |word| word.stem.as_str());
        stem.len() > 2 && names.iter().any(|name| are_related(name, stem))
    })
}

/// Returns the words of the columns that rows can be sorted by: those of the result and of its tables, without keys.
fn sortable_words(input: &SemanticInput<'_>) -> Vec<String> {
    let shape = input.shape;
    let tables = input.catalog.tables.iter().filter(|table| shape.tables.contains(&table.name.to_lowercase()));
    let names = tables.flat_map(|table| &table.columns).map(|column| name_words(&column.name));
    let names = names.filter(|name| name.last().is_none_or(|last| last != "id"));
    names.flatten().chain(shape.top().items.iter().flat_map(|item| item.words.clone())).collect()
}

/// Reports whether the question starts with a maximum or minimum and the query returns a column of every row.
fn asks_for_column_extreme(top: &SelectBlock, at: usize) -> bool {
    at <= 4 && top.limit == RowLimit::All && top.groups == 0 && matches!(top.items.as_slice(), [item] if item.is_column)
}

/// Reports whether a question with one superlative is so short that it has only one meaning.
fn is_short_question(question: &ParsedQuestion) -> bool {
    question.words.len() <= 8 && question.superlatives.len() == 1
}

/// Names of columns that store a position in an order.
const RANK_COLUMNS: [&str; 5] = ["rank", "ranking", "position", "standing", "place"];

/// Reports a missing order.
fn missing_order(input: &SemanticInput<'_>, question: &ParsedQuestion) -> Option<SemanticFinding> {
    let shape = input.shape;
    let top = shape.top();
    let is_ordered = !top.order.is_empty() || shape.blocks.iter().any(|block| !block.rank_keys.is_empty());
    if is_ordered || top.items.iter().any(|item| item.has_window) {
        return None;
    }
    let is_one_row =
        top.groups == 0 && top.items.iter().all(|item| !item.aggregates.is_empty() && item.plain_columns.is_empty());
    let code = SqlCode::OrderExpected;
    if let Some(sorting) = question.requested_order.as_ref().filter(|_| !is_one_row) {
        let words = question.quote(sorting.at, sorting.at + 4);
        let is_of_column = has_related_word(question, sorting.at + 1..sorting.at + 6, &sortable_words(input));
        let confidence = match question.word_at(sorting.at) {
            // A person may have ordered a thing.
            "ordered"
                if !sorting.is_unambiguous
                    || !is_of_column && !matches!(question.word_at(sorting.at + 1), "from" | "in") =>
            {
                60
            }
            _ if sorting.is_unambiguous && (is_of_column || !question.word_at(sorting.at).starts_with("order")) => 96,
            _ if is_short_question(question) && question.superlatives[0].asks_for_order && top.groups > 0 => 96,
            _ => 80,
        };
        let message = format!("the question asks for \"{words}\", but the query has no ORDER BY");
        return Some(SemanticFinding::new(code, confidence, message).at(&top.range).advice("Add ORDER BY."));
    }
    let cue = question.superlatives.iter().find(|cue| !cue.asks_for_order)?;
    let words = question.quote(cue.at, cue.at + 3);
    let is_taken = shape.extreme_count() > 0;
    let is_left = shape.extreme_count() < question.superlatives.iter().filter(|cue| !cue.asks_for_order).count();
    let is_stored = shape.words.contains(question.word_at(cue.at)) || stores_extreme(shape, cue.end);
    let limited = shape.blocks.iter().find(|block| block.limit != RowLimit::All && block.order.is_empty());
    let (confidence, block, message) = match limited {
        Some(block) if is_left && block.order.is_empty() && !is_stored => (
            match is_taken {
                true => 68,
                false if is_short_question(question) && cue.number.is_some() && shape.blocks.len() == 1 => 96,
                false => 85,
            },
            block,
            format!("the question asks for \"{words}\", but the query returns arbitrary rows: LIMIT without ORDER BY"),
        ),
        None if !is_taken && !is_one_row && !is_stored && (cue.asks_for_one || cue.number.is_some()) => {
            let is_soft = matches!(question.word_at(cue.at), "maximum" | "minimum" | "max" | "min")
                || RANK_COLUMNS.iter().any(|rank| shape.words.contains(*rank));
            (
                match is_soft {
                    true if asks_for_column_extreme(top, cue.at) => 74,
                    true => 60,
                    false => 68,
                },
                top,
                format!("the question asks for \"{words}\", but the query neither sorts nor uses MIN or MAX"),
            )
        }
        _ => return None,
    };
    Some(SemanticFinding::new(code, confidence, message).at(&block.range).advice("Add ORDER BY before the LIMIT."))
}

//! Checks the number of rows that the question asks for.

use proctor_core::sql::SqlCode;

use super::extreme::Extreme;
use super::query_shape::{AggregateKind, QueryShape, RowLimit};
use super::question::{ParsedQuestion, Superlative, SuperlativeScale};
use super::semantic_finding::{SemanticFinding, SemanticInput};

pub(super) fn check(input: &SemanticInput<'_>, question: &ParsedQuestion) -> Vec<SemanticFinding> {
    let numbered = question.superlatives.iter().find_map(|cue| cue.number.map(|number| (cue, number)));
    match numbered {
        Some((cue, number)) => check_row_count(input.shape, question, cue, number).into_iter().collect(),
        None => check_single_row(input.shape, question).into_iter().collect(),
    }
}

/// Checks a question that asks for a certain number of rows.
fn check_row_count(
    shape: &QueryShape,
    question: &ParsedQuestion,
    cue: &Superlative,
    number: u64,
) -> Option<SemanticFinding> {
    let limits: Vec<_> = shape
        .blocks
        .iter()
        .filter_map(|block| match &block.limit {
            RowLimit::Rows { number, range: place } => Some((*number, place)),
            _ => None,
        })
        .collect();
    let has_other = shape.blocks.iter().any(|block| block.limit == RowLimit::Expression);
    let is_there = limits.iter().any(|(limit, _)| *limit == number) || shape.values.contains(&number.to_string());
    if is_there
        || has_other
        || question.superlatives.iter().any(|other| other.number.is_some_and(|other| other != number))
    {
        return None;
    }
    let words = question.quote(cue.at.saturating_sub(1), cue.at + 3);
    let top = shape.top();
    // `rank < 11` and `BETWEEN 'TR000' AND 'TR099'` also limit the rows.
    let is_bounded = |value: &String| {
        let digits = value.rsplit(|sign: char| !sign.is_ascii_digit()).next().unwrap_or_default();
        digits.parse::<u64>().is_ok_and(|bound| bound.abs_diff(number) <= 1)
    };
    if limits.is_empty() && number > 1 && shape.compared_values.iter().any(is_bounded) {
        return None;
    }
    match (limits.as_slice(), &top.limit) {
        ([(limit, place)], RowLimit::Rows { .. }) => {
            let confidence = if number > 1 { 96 } else { 80 };
            let message = format!("the question asks for {number} (\"{words}\"), but the query for {limit}");
            let found = SemanticFinding::new(SqlCode::OtherLimit, confidence, message).at(place);
            Some(found.advice(format!("Write LIMIT {number}.")))
        }
        ([], _) => {
            let is_ranked = shape.blocks.iter().any(|block| !block.rank_keys.is_empty());
            let is_extreme =
                number == 1 && (shape.has_aggregate(AggregateKind::Max) || shape.has_aggregate(AggregateKind::Min));
            if is_ranked || is_extreme {
                return None;
            }
            let is_plain = question.words.len() <= 14 && !top.order.is_empty() && shape.blocks.len() == 1;
            let confidence = match (top.order.is_empty(), is_plain) {
                (_, true) if number > 1 => 96,
                (true, _) => 80,
                _ => 90,
            };
            let message = format!("the question asks for {number} (\"{words}\"), but the query has no LIMIT");
            Some(
                SemanticFinding::new(SqlCode::LimitExpected, confidence, message)
                    .at(&top.range)
                    .advice(format!("Add LIMIT {number}.")),
            )
        }
        _ => None,
    }
}

/// Checks a question that asks for the row at one end of a scale.
fn check_single_row(shape: &QueryShape, question: &ParsedQuestion) -> Option<SemanticFinding> {
    let is_ranked = shape.blocks.iter().any(|block| !block.rank_keys.is_empty());
    if is_ranked || shape.extreme_count() >= question.superlatives.len() || question.requested_order.is_some() {
        return None;
    }
    let block = shape.blocks.iter().find(|block| !block.order.is_empty() && block.limit == RowLimit::All)?;
    let key = block.order.iter().find(|key| !key.is_null_order)?;
    let extreme = Extreme::from_sort_key(key);
    let matching =
        extreme.matching_superlative(question).filter(|(_, way, _)| *way == extreme.end).map(|(cue, ..)| cue);
    let cue = matching.or_else(|| {
        question.superlatives.iter().find(|cue| cue.asks_for_one && cue.scale != SuperlativeScale::Sequence)
    })?;
    let words = question.quote(cue.at.saturating_sub(1), cue.at + 3);
    let message =
        format!("the question asks for \"{words}\", but the query sorts and returns all rows: it has no LIMIT");
    // `the newest customers` may be any number of them.
    let is_many = question.words.get(cue.at + 1).is_some_and(|next| next.lower != next.stem);
    // `which courses are the least difficult`
    let is_of_all = question.word_at(cue.at.wrapping_sub(1)) == "the"
        && matches!(question.word_at(cue.at.wrapping_sub(2)), "are" | "were")
        && question.words.get(cue.at + 1).is_some_and(|next| next.lower == next.stem)
        && !matches!(question.word_at(cue.at.wrapping_sub(3)), "what" | "which" | "who");
    // A query that returns the aggregate by which it sorts is a ranking: its first rows answer the question.
    let figures = || block.items.iter().flat_map(|item| &item.aggregates);
    let is_returned = |own: &super::query_shape::Aggregate| {
        figures().any(|figure| figure.kind == own.kind && figure.columns == own.columns)
    };
    let is_ranking = !key.item.aggregates.is_empty() && key.item.aggregates.iter().all(is_returned);
    let confidence = match (matching.is_some(), cue.asks_for_one) {
        _ if cue.scale == SuperlativeScale::Sequence => 60,
        _ if is_ranking => 66,
        // `top customers` and `the latest papers` may ask for all of them, in that order.
        (true, false) if cue.scale == SuperlativeScale::Quality => 62,
        (true, true) if cue.scale == SuperlativeScale::Time && is_many || is_of_all => 66,
        (true, true) if shape.extreme_count() == 0 => 85,
        (true, false) if is_many => 62,
        (true, _) => 68,
        _ => 66,
    };
    Some(SemanticFinding::new(SqlCode::LimitExpected, confidence, message).at(&key.range).advice("Add LIMIT 1."))
}

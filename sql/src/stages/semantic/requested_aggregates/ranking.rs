//! Recognizes questions that rank or compare things without a superlative, and queries that show what they sort by.

use crate::stages::semantic::query_shape::{Aggregate, SelectBlock};
use crate::stages::semantic::question::ParsedQuestion;

/// Words that ask for the first things of a ranking without naming its scale.
const RANKING_WORDS: [&str; 10] =
    ["main", "major", "principal", "primary", "chief", "important", "influential", "popular", "leading", "top"];

/// Words that compare two things on a scale without a bound: `which is cheaper, a or b`.
const COMPARATIVES: [&str; 29] = [
    "higher",
    "lower",
    "greater",
    "larger",
    "smaller",
    "bigger",
    "longer",
    "shorter",
    "older",
    "younger",
    "cheaper",
    "easier",
    "easy",
    "easily",
    "harder",
    "simpler",
    "simple",
    "faster",
    "slower",
    "better",
    "worse",
    "heavier",
    "lighter",
    "taller",
    "less",
    "cheap",
    "inexpensive",
    "soon",
    "fewer",
];
/// Reports whether a query sorts by this aggregate and returns it.
pub(super) fn is_shown_sort_key(block: &SelectBlock, aggregate: &Aggregate) -> bool {
    let is_same = |other: &Aggregate| other.kind == aggregate.kind && other.column == aggregate.column;
    aggregate.column.is_some()
        && block.order_aggregates.iter().any(is_same)
        && block.items.iter().flat_map(|item| &item.aggregates).any(is_same)
}

/// Reports whether the question asks for the first things of a ranking.
pub(super) fn asks_for_ranking(question: &ParsedQuestion) -> bool {
    !question.superlatives.is_empty() || question.has_word(&RANKING_WORDS)
}

/// Reports whether the question compares things on a scale, without a bound such as `higher than 5`.
pub(super) fn has_comparative(question: &ParsedQuestion) -> bool {
    // `which one is more difficult`
    let is_predicate = |at: usize| {
        matches!(question.word_at(at), "more" | "less")
            && matches!(question.word_at(at.wrapping_sub(1)), "is" | "are" | "was" | "were" | "be")
    };
    (0..question.words.len()).any(|at| {
        (COMPARATIVES.contains(&question.word_at(at)) || is_predicate(at))
            && (1..=4).all(|behind| question.word_at(at + behind) != "than")
    })
}

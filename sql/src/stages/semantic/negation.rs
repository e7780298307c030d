//! Checks that the query contains a negation if the question does.

use proctor_core::sql::SqlCode;

use super::query_shape::QueryShape;
use super::question::ParsedQuestion;
use super::semantic_finding::{SemanticFinding, SemanticInput};
use super::word_forms::{are_related, stem};

const STRONG_NEGATIONS: [&str; 8] =
    ["never", "without", "except", "excluding", "lacking", "neither", "nobody", "unless"];
const WEAK_NEGATIONS: [&str; 16] = [
    "not", "no", "don't", "doesn't", "didn't", "isn't", "aren't", "wasn't", "weren't", "haven't", "hasn't", "hadn't",
    "none", "nor", "lack", "cannot",
];

pub(super) fn check(input: &SemanticInput<'_>, question: &ParsedQuestion) -> Vec<SemanticFinding> {
    missing_negation(input.shape, question).into_iter().collect()
}

fn missing_negation(shape: &QueryShape, question: &ParsedQuestion) -> Option<SemanticFinding> {
    if shape.has_negation {
        return None;
    }
    let strong = question.find_word(&STRONG_NEGATIONS).filter(|at| !negates_nothing(question, *at));
    let at = strong.or_else(|| {
        (0..question.words.len())
            .find(|at| WEAK_NEGATIONS.contains(&question.word_at(*at)) && !negates_nothing(question, *at))
    })?;
    let words = question.quote(at.saturating_sub(1), at + 3);
    let found = |confidence: u8, message: String| {
        let place = shape.top().range.clone();
        let found = SemanticFinding::new(SqlCode::NegationExpected, confidence, message).at(&place);
        Some(found.advice("Negate the filter: NOT IN, NOT EXISTS, `<>` or IS NULL."))
    };
    if let Some(value) = excluded_value(shape, question, at) {
        let message = format!("the question excludes \"{value}\" (\"{words}\"), but the query selects it");
        return found(96, message);
    }
    if has_negative_comparison(shape) {
        return None;
    }
    let is_of_table = (at + 1..at + 5).any(|at| {
        question.words.get(at).is_some_and(|word| {
            word.stem.len() > 2 && shape.tables.iter().any(|table| are_related(&stem(table), &word.stem))
        })
    });
    // The query selects rows only because related rows exist.
    let is_joined =
        shape.blocks.len() == 1 && shape.top().tables == 2 && !shape.has_outer_join && shape.top().groups == 0;
    let is_member = shape.blocks.len() == 2 && shape.has_membership;
    let is_there = (is_joined || is_member) && shape.compared_values.is_empty() && shape.aggregates().next().is_none();
    let is_never = question.word_at(at) == "never"
        || question.has_phrase(&["have not", "has not", "haven't", "hasn't", "did not", "didn't", "without any"]);
    let confidence = match (is_there, is_never, shape.compared_values.is_empty()) {
        (true, _, _) if is_of_table && question.words.len() <= 14 => 96,
        (true, true, _) if is_member => 96,
        (true, _, _) => 80,
        (_, true, true) => 76,
        (_, _, true) if strong.is_some() && keeps_all_rows(shape) && is_of_table && question.words.len() <= 6 => 96,
        (_, _, true) if strong.is_some() => 66,
        _ => 45,
    };
    found(confidence, format!("the question has a negation (\"{words}\"), but the query has none"))
}

/// Reports whether the query returns every row of a table, with related rows if there are any.
fn keeps_all_rows(shape: &QueryShape) -> bool {
    let [block] = shape.blocks.as_slice() else { return false };
    shape.has_outer_join && !block.has_filter && block.groups == 0 && shape.aggregates().next().is_none()
}

/// Returns the value that the question excludes and the query selects: `except office`, `not paid`.
fn excluded_value<'q>(shape: &QueryShape, question: &'q ParsedQuestion, at: usize) -> Option<&'q str> {
    let is_one =
        shape.blocks.len() == 1 && shape.top().has_filter && !shape.has_division && shape.compared_values.len() == 1;
    let is_denial =
        matches!(question.word_at(at), "not" | "except" | "excluding" | "isn't" | "aren't" | "wasn't" | "weren't");
    let is_skipped = |word: &str| {
        matches!(
            word,
            "the" | "for" | "those" | "in" | "a" | "an" | "from" | "ones" | "any" | "with" | "category" | "status"
        )
    };
    let next = (at + 1..at + 5).find(|at| !is_skipped(question.word_at(*at)))?;
    let word = question.words.get(next)?;
    (is_one
        && is_denial
        && shape.compared_values[0] == word.lower
        && shape.aggregates().all(|figure| !figure.is_over_condition))
    .then_some(word.lower.as_str())
}

/// Reports whether `no` or `not` negates nothing: `race no. 5`, `whether or not`, `without regard`.
fn negates_nothing(question: &ParsedQuestion, at: usize) -> bool {
    let is_left_out = (1..=5).any(|back| {
        matches!(
            question.word_at(at.wrapping_sub(back)),
            "ignore" | "ignoring" | "exclude" | "excluding" | "omit" | "skip" | "discard"
        )
    });
    if is_left_out {
        return true;
    }
    let (before, after) = (question.word_at(at.wrapping_sub(1)), question.word_at(at + 1));
    match question.word_at(at) {
        "no" => {
            question.words.get(at + 1).is_some_and(|word| word.text.starts_with(|c: char| c.is_ascii_digit()))
                || matches!(after, "more" | "less" | "later" | "matter" | "longer")
        }
        "not" => before == "or" || matches!(after, "only" | "just" | "necessarily" | "include" | "show" | "return"),
        "without" => matches!(after, "regard" | "using" | "repeating" | "duplicates" | "repetition"),
        _ => false,
    }
}

/// Reports whether a comparison replaces a negation: `= 0`, `= 'no'`, `< 1`.
fn has_negative_comparison(shape: &QueryShape) -> bool {
    const NEGATIVE_VALUES: [&str; 12] = ["0", "1", "no", "n", "none", "false", "never", "f", "", "-", "x", "null"];
    let prefixes = ["no", "un", "in", "non", "dis", "im"];
    shape.compared_values.iter().any(|value| {
        NEGATIVE_VALUES.contains(&value.as_str())
            || (value.len() > 3 && prefixes.iter().any(|prefix| value.starts_with(prefix)))
    })
}

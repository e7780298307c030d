//! Checks that the result has no duplicates if the question asks for distinct values.

use proctor_core::sql::SqlCode;

use super::query_shape::{AggregateKind, QueryShape};
use super::question::ParsedQuestion;
use super::semantic_finding::{SemanticFinding, SemanticInput};
use super::word_forms::{are_related, name_words};

pub(super) fn check(input: &SemanticInput<'_>, question: &ParsedQuestion) -> Vec<SemanticFinding> {
    missing_distinct(input, question).into_iter().collect()
}

fn missing_distinct(input: &SemanticInput<'_>, question: &ParsedQuestion) -> Option<SemanticFinding> {
    let shape = input.shape;
    let at = question.find_word(&["distinct", "unique", "different", "deduplicated", "duplicates"])?;
    if has_no_duplicates(shape) {
        return None;
    }
    let top = shape.top();
    let word = question.word_at(at).to_owned();
    let near = question.words.iter().skip(at + 1).take(2).take_while(|word| !word.is_after_punctuation);
    let nouns: Vec<&str> = near.map(|word| word.stem.as_str()).filter(|noun| noun.len() > 2).collect();
    let is_named = |words: &[String]| words.iter().any(|word| nouns.iter().any(|noun| are_related(word, noun)));
    let named = top
        .items
        .iter()
        .find(|item| item.plain_columns.len() == 1 && item.aggregates.is_empty() && is_named(&item.words));
    // A key is unique within its table, unless a join repeats it.
    let is_key = |column: &str| {
        let tables =
            input.catalog.tables_with(column).filter(|table| shape.tables.contains(&table.name.to_lowercase()));
        let mut keys = tables.map(|table| {
            let count = table.columns.iter().filter(|column| column.primary_key_position > 0).count();
            count == 1 && table.column(column).is_some_and(|column| column.primary_key_position > 0)
        });
        keys.any(|is_key| is_key)
    };
    let is_different = matches!(word.as_str(), "different");
    let is_joined = top.tables > 1 && shape.blocks.len() == 1;
    let counted = top.aggregates().chain(top.later_aggregates()).find(|figure| figure.kind == AggregateKind::Count);
    let is_repeated_count = counted.is_some_and(|count| {
        count.column.as_ref().is_some_and(|name| !is_key(&name.column) || is_joined) && shape.blocks.len() == 1
    });
    let has_key = top.items.iter().flat_map(|item| &item.plain_columns).any(|name| is_key(&name.column));
    let is_plain_count = match top.items.as_slice() {
        [item] if item.is_aggregate && shape.blocks.len() == 1 => item.aggregates.iter().all(|aggregate| {
            let column = aggregate.column.as_ref().filter(|_| aggregate.kind == AggregateKind::Count);
            column.is_some_and(|name| !is_key(&name.column) && is_named(&name_words(&name.column)))
        }),
        _ => false,
    };
    let is_counted = top.aggregates().next().is_some();
    if word == "unique" && name_words(&word).iter().any(|part| shape.names.contains(part)) {
        return None;
    }
    let is_word = matches!(word.as_str(), "distinct" | "unique" | "deduplicated");
    let confidence = match named {
        Some(_) if is_word && top.items.len() == 1 && !has_key => 96,
        Some(_)
            if word == "different"
                && at <= 3
                && top.items.len() == 1
                && !has_key
                && !top.has_filter
                && question.words.len() <= 7 =>
        {
            96
        }
        _ if is_word && is_plain_count => 96,
        _ if word == "duplicates" && question.has_phrase(&["without duplicates", "no duplicates"]) => 85,
        _ if is_different && is_repeated_count => 80,
        Some(_) if is_different && is_joined && !is_counted && top.limit == super::query_shape::RowLimit::All => 74,
        _ if has_key && top.tables == 1 => 20,
        _ if is_word && !is_counted => 75,
        _ if is_word => 65,
        Some(_) => 62,
        _ => 50,
    };
    let words = question.quote(at, at + 3);
    let message = format!("the question asks for \"{words}\", but the query may return duplicates");
    Some(SemanticFinding::new(SqlCode::DistinctExpected, confidence, message).at(&top.range).advice("Add DISTINCT."))
}

/// Reports whether the query already removes duplicates.
fn has_no_duplicates(shape: &QueryShape) -> bool {
    shape.has_set_operation
        || shape.blocks.iter().any(|block| block.is_distinct || block.groups > 0)
        || shape.aggregates().any(|aggregate| aggregate.is_distinct)
}

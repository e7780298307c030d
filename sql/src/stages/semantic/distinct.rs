//! Checks that the result has no duplicates if the question asks for distinct values.

use proctor_core::sql::SqlCode;

use super::question::Question;
use super::shape::{Figure, Shape};
use super::words::{are_kin, parts};
use super::{Finding, Sheet};

pub(super) fn check(sheet: &Sheet<'_>, question: &Question) -> Vec<Finding> {
    missing(sheet, question).into_iter().collect()
}

fn missing(sheet: &Sheet<'_>, question: &Question) -> Option<Finding> {
    let shape = sheet.shape;
    let at = question.find(&["distinct", "unique", "different", "deduplicated", "duplicates"])?;
    if is_once(shape) {
        return None;
    }
    let top = shape.top();
    let word = question.at(at).to_owned();
    let near = question.words.iter().skip(at + 1).take(2).take_while(|word| !word.is_after_pause);
    let nouns: Vec<&str> = near.map(|word| word.stem.as_str()).filter(|noun| noun.len() > 2).collect();
    let is_named = |words: &[String]| words.iter().any(|word| nouns.iter().any(|noun| are_kin(word, noun)));
    let named =
        top.items.iter().find(|item| item.bare.len() == 1 && item.aggregates.is_empty() && is_named(&item.words));
    // A key is unique within its table, unless a join repeats it.
    let is_key = |column: &str| {
        let tables =
            sheet.catalog.tables_with(column).filter(|table| shape.tables.contains(&table.name.to_lowercase()));
        let mut keys = tables.map(|table| {
            let count = table.columns.iter().filter(|column| column.key > 0).count();
            count == 1 && table.column(column).is_some_and(|column| column.key > 0)
        });
        keys.any(|is_key| is_key)
    };
    let is_different = matches!(word.as_str(), "different");
    let is_joined = top.tables > 1 && shape.blocks.len() == 1;
    let counted = top.aggregates().chain(top.later()).find(|figure| figure.figure == Figure::Count);
    let is_repeated_count = counted.is_some_and(|count| {
        count.column.as_ref().is_some_and(|name| !is_key(&name.column) || is_joined) && shape.blocks.len() == 1
    });
    let has_key = top.items.iter().flat_map(|item| &item.bare).any(|name| is_key(&name.column));
    let is_plain_count = match top.items.as_slice() {
        [item] if item.is_aggregate && shape.blocks.len() == 1 => item.aggregates.iter().all(|aggregate| {
            let column = aggregate.column.as_ref().filter(|_| aggregate.figure == Figure::Count);
            column.is_some_and(|name| !is_key(&name.column) && is_named(&parts(&name.column)))
        }),
        _ => false,
    };
    let is_counted = top.aggregates().next().is_some();
    if word == "unique" && parts(&word).iter().any(|part| shape.names.contains(part)) {
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
        _ if word == "duplicates" && question.says(&["without duplicates", "no duplicates"]) => 85,
        _ if is_different && is_repeated_count => 80,
        Some(_) if is_different && is_joined && !is_counted && top.limit == super::shape::Limit::All => 74,
        _ if has_key && top.tables == 1 => 20,
        _ if is_word && !is_counted => 75,
        _ if is_word => 65,
        Some(_) => 62,
        _ => 50,
    };
    let words = question.quote(at, at + 3);
    let message = format!("the question asks for \"{words}\", and the query may give the same value again");
    Some(Finding::new(SqlCode::DistinctExpected, confidence, message).at(&top.place).advice("Add DISTINCT."))
}

/// Reports whether the query already removes duplicates.
fn is_once(shape: &Shape) -> bool {
    shape.has_set_operation
        || shape.blocks.iter().any(|block| block.is_distinct || block.groups > 0)
        || shape.aggregates().any(|aggregate| aggregate.is_distinct)
}

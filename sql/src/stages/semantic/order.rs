//! Checks the order that the question asks for, and its direction.

use std::ops::Range;

use proctor_core::sql::SqlCode;

use super::extreme::Extreme;
use super::question::{Question, Scale, Way};
use super::requested::is_stored_end;
use super::shape::{Block, Key, Limit, Name, Shape};
use super::words::{are_kin, parts};
use super::{Finding, Sheet};

pub(super) fn check(sheet: &Sheet<'_>, question: &Question) -> Vec<Finding> {
    let mut found: Vec<Finding> =
        sheet.shape.blocks.iter().flat_map(|block| reversed(sheet.shape, block, question)).collect();
    found.extend(other_direction(sheet, question));
    found.extend(missing(sheet, question));
    found
}

/// Reports a query that takes the first rows from the wrong end.
fn reversed(shape: &Shape, block: &Block, question: &Question) -> Vec<Finding> {
    let of_limit = block.order.iter().find(|key| !key.is_of_nulls).filter(|_| block.limit != Limit::All);
    let keys = of_limit.into_iter().chain(&block.ranks);
    keys.filter_map(|key| reversed_key(shape, key, question)).collect()
}

fn reversed_key(shape: &Shape, key: &Key, question: &Question) -> Option<Finding> {
    let extreme = Extreme::of_key(key);
    let (cue, way, is_named) = extreme.meant(question)?;
    let other = question.sorting.as_ref().is_some_and(|sorting| sorting.way.is_some_and(|asked| asked != way));
    if way == extreme.way || other {
        return None;
    }
    let word = question.quote(cue.at, cue.at + 3);
    let (is, be) = (direction(extreme.way), direction(way));
    let message = format!("the question asks for \"{word}\", and the query takes the first rows in {is} order");
    // `top 10 districts by name` are in alphabetical order.
    let by = question.find(&["by"]).map_or(usize::MAX - 9, |by| by);
    let is_by_name = (by + 1..by + 4).any(|at| matches!(question.at(at), "name" | "names" | "title" | "titles"));
    let confidence = match is_named {
        _ if is_by_name && cue.scale == Scale::Worth => 60,
        _ if extreme.is_plain(question, cue, shape) && question.sorting.is_none() => 96,
        _ if extreme.is_top_by_figure(question, cue, shape) && question.sorting.is_none() => 96,
        true => 90,
        false => 82,
    };
    Some(finding(SqlCode::OrderReversed, confidence, message, key, be))
}

fn finding(code: SqlCode, confidence: u8, message: String, key: &Key, be: &str) -> Finding {
    Finding::new(code, confidence, message).at(&key.place).advice(format!("Sort by that in {be} order."))
}

fn direction(way: Way) -> &'static str {
    match way {
        Way::High => "descending",
        Way::Low => "ascending",
    }
}

/// Reports an order of all rows in the wrong direction.
fn other_direction(sheet: &Sheet<'_>, question: &Question) -> Option<Finding> {
    let sorting = question.sorting.as_ref()?;
    let way = sorting.way?;
    let keys: Vec<&Key> = sheet.shape.top().order.iter().filter(|key| !key.is_of_nulls).collect();
    let first = keys.first()?;
    if question.cues.iter().any(|cue| cue.is_of_order && Extreme::of_key(first).is_of_other_scale(cue)) {
        return None;
    }
    let is_other = |key: &&Key| (if key.is_descending { Way::High } else { Way::Low }) != way && !key.is_inverse;
    if !keys.iter().all(is_other) {
        return None;
    }
    let words = question.quote(sorting.at, sorting.at + 5);
    let message = format!(
        "the question asks for \"{words}\", which is {} order, and the query sorts the other way",
        direction(way)
    );
    let is_of_key = is_kin_to(question, sorting.at..sorting.at + 6, &first.item.words)
        || Extreme::of_key(first).is_meant_first(question)
        || is_of_text(sheet, question, first);
    // In `in descending order, the fastest lap`, the superlative asks for the rows that the query selects.
    let extreme = Extreme::of_key(first);
    let is_taken =
        sheet.shape.top().limit != Limit::All && extreme.meant(question).is_some_and(|(_, way, _)| way == extreme.way);
    let confidence = match keys.len() {
        _ if is_taken => 60,
        1 if is_of_key && question.words.len() <= 14 => 96,
        1 if is_short(question) && question.cues[0].is_of_order && !first.item.aggregates.is_empty() => 96,
        1 => 85,
        _ => 75,
    };
    Some(finding(SqlCode::OrderReversed, confidence, message, first, direction(way)))
}

/// Reports whether the question asks for alphabetical order and the key is a text.
fn is_of_text(sheet: &Sheet<'_>, question: &Question, key: &Key) -> bool {
    let is_text = |name: &Name| {
        let column = sheet.catalog.tables_with(&name.column).find_map(|table| table.column(&name.column));
        column.is_some_and(|column| ["TEXT", "CHAR"].iter().any(|kind| column.kind.to_ascii_uppercase().contains(kind)))
    };
    question.has(&["alphabetical", "alphabetically"]) && key.item.is_column && key.item.bare.iter().all(is_text)
}

/// Reports whether one of the words in `range` is related to a name.
fn is_kin_to(question: &Question, range: Range<usize>, names: &[String]) -> bool {
    range.into_iter().any(|at| {
        let stem = question.words.get(at).map_or("", |word| word.stem.as_str());
        stem.len() > 2 && names.iter().any(|name| are_kin(name, stem))
    })
}

/// Returns the words of the columns that rows can be sorted by: those of the result and of its tables, without keys.
fn columns(sheet: &Sheet<'_>) -> Vec<String> {
    let shape = sheet.shape;
    let tables = sheet.catalog.tables.iter().filter(|table| shape.tables.contains(&table.name.to_lowercase()));
    let names = tables.flat_map(|table| &table.columns).map(|column| parts(&column.name));
    let names = names.filter(|name| name.last().is_none_or(|last| last != "id"));
    names.flatten().chain(shape.top().items.iter().flat_map(|item| item.words.clone())).collect()
}

/// Reports whether the question starts with a maximum or minimum and the query returns a column of every row.
fn is_asked_of_column(top: &Block, at: usize) -> bool {
    at <= 4 && top.limit == Limit::All && top.groups == 0 && matches!(top.items.as_slice(), [item] if item.is_column)
}

/// Reports whether a question with one superlative is so short that it has only one meaning.
fn is_short(question: &Question) -> bool {
    question.words.len() <= 8 && question.cues.len() == 1
}

/// Names of columns that store a position in an order.
const RANKS: [&str; 5] = ["rank", "ranking", "position", "standing", "place"];

/// Reports a missing order.
fn missing(sheet: &Sheet<'_>, question: &Question) -> Option<Finding> {
    let shape = sheet.shape;
    let top = shape.top();
    let is_ordered = !top.order.is_empty() || shape.blocks.iter().any(|block| !block.ranks.is_empty());
    if is_ordered || top.items.iter().any(|item| item.has_window) {
        return None;
    }
    let is_one_row =
        top.groups == 0 && top.items.iter().all(|item| !item.aggregates.is_empty() && item.bare.is_empty());
    let code = SqlCode::OrderExpected;
    if let Some(sorting) = question.sorting.as_ref().filter(|_| !is_one_row) {
        let words = question.quote(sorting.at, sorting.at + 4);
        let is_of_column = is_kin_to(question, sorting.at + 1..sorting.at + 6, &columns(sheet));
        let confidence = match question.at(sorting.at) {
            // A person may have ordered a thing.
            "ordered"
                if !sorting.is_plain || !is_of_column && !matches!(question.at(sorting.at + 1), "from" | "in") =>
            {
                60
            }
            _ if sorting.is_plain && (is_of_column || !question.at(sorting.at).starts_with("order")) => 96,
            _ if is_short(question) && question.cues[0].is_of_order && top.groups > 0 => 96,
            _ => 80,
        };
        let message = format!("the question asks for \"{words}\", and the query has no ORDER BY");
        return Some(Finding::new(code, confidence, message).at(&top.place).advice("Add ORDER BY."));
    }
    let cue = question.cues.iter().find(|cue| !cue.is_of_order)?;
    let words = question.quote(cue.at, cue.at + 3);
    let is_taken = shape.extremes() > 0;
    let is_left = shape.extremes() < question.cues.iter().filter(|cue| !cue.is_of_order).count();
    let is_stored = shape.words.contains(question.at(cue.at)) || is_stored_end(shape, cue.way);
    let limited = shape.blocks.iter().find(|block| block.limit != Limit::All && block.order.is_empty());
    let (confidence, block, message) = match limited {
        Some(block) if is_left && block.order.is_empty() && !is_stored => (
            match is_taken {
                true => 68,
                false if is_short(question) && cue.number.is_some() && shape.blocks.len() == 1 => 96,
                false => 85,
            },
            block,
            format!("the question asks for \"{words}\", and the query takes any rows: LIMIT without ORDER BY"),
        ),
        None if !is_taken && !is_one_row && !is_stored && (cue.is_of_one || cue.number.is_some()) => {
            let is_soft = matches!(question.at(cue.at), "maximum" | "minimum" | "max" | "min")
                || RANKS.iter().any(|rank| shape.words.contains(*rank));
            (
                match is_soft {
                    true if is_asked_of_column(top, cue.at) => 74,
                    true => 60,
                    false => 68,
                },
                top,
                format!(
                    "the question asks for \"{words}\", and the query neither sorts nor takes a maximum or minimum"
                ),
            )
        }
        _ => return None,
    };
    Some(Finding::new(code, confidence, message).at(&block.place).advice("Add ORDER BY before the LIMIT."))
}

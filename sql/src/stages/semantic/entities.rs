//! Whether the query reads what the question asks for at its beginning: `how many products`, where only customers are
//! counted. A table is known by its own name; other words for it are not.

use proctor_core::sql::SqlCode;

use super::question::Question;
use super::words::{are_kin, parts};
use super::{Finding, Sheet};

/// Words between what leads to a thing and the thing.
const BETWEEN: [&str; 9] = ["all", "the", "of", "our", "every", "me", "different", "distinct", "unique"];
/// Words that lead to a thing.
const LEADS: [&str; 9] = ["many", "list", "show", "display", "which", "names", "count", "number", "give"];

pub(super) fn check(sheet: &Sheet<'_>, question: &Question) -> Option<Finding> {
    let shape = sheet.shape;
    let lead = (0..question.words.len().min(4)).find(|at| LEADS.contains(&question.at(*at)))?;
    let at = (lead + 1..question.words.len()).find(|at| !BETWEEN.contains(&question.at(*at)))?;
    let stem = &question.words.get(at)?.stem;
    // One table of that very name, and no column anywhere that speaks of it beside its keys.
    let mut tables = sheet.catalog.tables.iter().filter(|table| parts(&table.name) == [stem.clone()]);
    let table = tables.next().filter(|_| tables.next().is_none())?;
    let is_read =
        shape.tables.contains(&table.name.to_lowercase()) || shape.words.iter().any(|word| are_kin(word, stem));
    let of_view = |name: &String| sheet.catalog.table(name).is_none_or(|table| table.is_view);
    let is_told_elsewhere =
        shape.tables.iter().any(of_view)
            || shape.tables.iter().filter_map(|name| sheet.catalog.table(name)).any(|read| {
                read.columns.iter().any(|column| parts(&column.name).iter().any(|part| are_kin(part, stem)))
            });
    // A column of another name may hold it after all; one that both have, or a count of rows, is of what is read.
    let is_of_others = shape.top().items.iter().all(|item| match item.bare.as_slice() {
        [name] => item.is_column && table.column(&name.column).is_some(),
        _ => item.aggregates.iter().all(|figure| figure.columns.is_empty()) && item.bare.is_empty() && !item.has_query,
    });
    if is_read || shape.tables.is_empty() || !is_of_others {
        return None;
    }
    // Rows that are chosen may be those of the thing, in a table of what was done with it.
    let is_all = shape.blocks.iter().all(|block| !block.has_filter) && !is_told_elsewhere;
    let confidence = match is_all {
        true if question.words.len() <= 6 && shape.blocks.len() == 1 => 96,
        true => 80,
        false => 55,
    };
    let message =
        format!("the question asks for \"{}\", and the query does not read `{}`", question.at(at), table.name);
    let found = Finding::new(SqlCode::EntityExpected, confidence, message).at(&shape.top().place);
    Some(found.advice(format!("Read `{}`.", table.name)).about(table.name.clone()))
}

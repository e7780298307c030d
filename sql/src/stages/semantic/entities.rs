//! Checks that the query reads the thing that the question asks for first: in `how many products`, counting only
//! customers is wrong. A table is recognized only by its name, not by synonyms.

use proctor_core::sql::SqlCode;

use super::question::Question;
use super::words::{are_kin, parts};
use super::{Finding, Sheet};
use crate::catalog::Table;

/// Words between a leading word and the thing.
const BETWEEN: [&str; 9] = ["all", "the", "of", "our", "every", "me", "different", "distinct", "unique"];
/// Words that precede the thing that the question asks for.
const LEADS: [&str; 9] = ["many", "list", "show", "display", "which", "names", "count", "number", "give"];

pub(super) fn check(sheet: &Sheet<'_>, question: &Question) -> Vec<Finding> {
    let found = [head(sheet, question), unnamed(sheet, question), total(sheet, question)];
    found.into_iter().flatten().collect()
}

/// Filler words in a question for the total number of things: `how many customers are there in total`.
const FILLERS: [&str; 22] = [
    "are",
    "is",
    "there",
    "do",
    "does",
    "we",
    "you",
    "have",
    "exist",
    "in",
    "total",
    "the",
    "our",
    "this",
    "database",
    "altogether",
    "overall",
    "currently",
    "now",
    "of",
    "all",
    "records",
];

/// Reports a count of another table where the question asks for the number of all rows of a table.
fn total(sheet: &Sheet<'_>, question: &Question) -> Option<Finding> {
    let [block] = sheet.shape.blocks.as_slice() else { return None };
    let [item] = block.items.as_slice() else { return None };
    let count = item.aggregates.first().filter(|_| item.is_aggregate && item.aggregates.len() == 1)?;
    let counts_rows = count.figure == super::shape::Figure::Count && count.column.is_none() && !count.is_distinct;
    if !counts_rows || block.has_filter || block.groups > 0 || block.tables != 1 {
        return None;
    }
    let name = sheet.shape.tables.iter().next()?;
    let read = sheet.catalog.table(name).filter(|table| !table.is_view)?;
    let lead = question.phrase("how many").or_else(|| question.phrase("number of"))? + 1;
    let at = (lead + 1..question.words.len()).find(|at| !BETWEEN.contains(&question.at(*at)))?;
    let stem = &question.words[at].stem;
    let is_all = (at + 1..question.words.len()).all(|at| FILLERS.contains(&question.at(at)));
    let mut tables = sheet.catalog.tables.iter().filter(|table| parts(&table.name) == [stem.clone()]);
    let table = tables.next().filter(|_| tables.next().is_none())?;
    if !is_all || table.name.eq_ignore_ascii_case(&read.name) {
        return None;
    }
    let message = format!(
        "the question asks for the number of \"{}\", and the query counts rows of `{}`",
        question.at(at),
        read.name
    );
    let found = Finding::new(SqlCode::EntityExpected, 90, message).at(&count.place);
    Some(found.advice(format!("Count the rows of `{}`.", table.name)).about(table.name.clone()))
}

/// Reports a query of one table that the question does not mention, if the question names another table in full.
fn unnamed(sheet: &Sheet<'_>, question: &Question) -> Option<Finding> {
    let shape = sheet.shape;
    let [name] = shape.tables.iter().collect::<Vec<_>>()[..] else { return None };
    let read = sheet.catalog.table(name).filter(|table| !table.is_view)?;
    let said =
        |part: &String| question.words.iter().any(|word| are_kin(part, &word.stem) || are_kin(part, &word.lower));
    if parts(&read.name).iter().any(said) {
        return None;
    }
    let is_named = |at: usize, names: &[String]| {
        names
            .iter()
            .enumerate()
            .all(|(behind, part)| question.words.get(at + behind).is_some_and(|word| word.stem == *part))
    };
    // In `in descending order`, the word `order` is not the table.
    let is_sorting = |at: usize| matches!(question.at(at), "order" | "sort" | "rank") && question.sorting.is_some();
    let (at, other) = (0..question.words.len()).filter(|at| !is_sorting(*at)).find_map(|at| {
        let other = sheet.catalog.tables.iter().find(|table| is_named(at, &parts(&table.name)))?;
        Some((at, other))
    })?;
    // A key of the other table, or a column with its name, may represent it.
    let stands_for = |column: &crate::catalog::Column| {
        let own = parts(&column.name);
        parts(&other.name).iter().all(|part| own.iter().any(|word| are_kin(word, part)))
    };
    // A row of one table represents a row of the other.
    let points_at =
        |from: &Table, to: &Table| from.foreign_keys.iter().any(|key| key.table.eq_ignore_ascii_case(&to.name));
    // The question may be about songs while the query needs the length, which only the table of files has.
    let needs_own_column = read
        .columns
        .iter()
        .any(|column| shape.names.contains(&column.name.to_lowercase()) && other.column(&column.name).is_none());
    let is_pointed_at = points_at(read, other) || points_at(other, read) && needs_own_column;
    let is_told_elsewhere = read.columns.iter().any(stands_for);
    // The question may ask for columns of the table that the query reads.
    let top = shape.top();
    let is_asked = |item: &super::shape::Item| item.is_column && item.words.iter().any(said);
    let is_used = |column: &crate::catalog::Column| {
        shape.names.contains(&column.name.to_lowercase())
            && other.column(&column.name).is_none()
            && parts(&column.name).iter().any(said)
    };
    let is_of_its_own = top.items.iter().any(is_asked) || read.columns.iter().any(is_used);
    // Words that are not near the beginning may describe rows of another table: `prices for all events`.
    let lead = (0..question.words.len().min(4)).find(|at| LEADS.contains(&question.at(*at)));
    let is_head = lead.is_some_and(|lead| at > lead && (lead + 1..at).all(|at| BETWEEN.contains(&question.at(at))));
    let last = at + parts(&other.name).len() - 1;
    let is_plural = question.words.get(last).is_some_and(|word| word.lower != word.stem);
    // `how many student records`
    let is_modifier = !is_plural && lead.is_some_and(|lead| matches!(question.at(lead), "many" | "number" | "count"));
    let is_attached = (1..=3).any(|back| {
        matches!(
            question.at(at.wrapping_sub(back)),
            "for" | "in" | "with" | "at" | "have" | "has" | "by" | "through" | "as" | "being"
        )
    });
    // `staff that are professors` asks for a kind of staff.
    let is_predicate = matches!(question.at(at.wrapping_sub(1)), "are" | "is" | "were" | "was")
        && matches!(question.at(at.wrapping_sub(2)), "that" | "who" | "which");
    let counts_column = top.items.iter().any(|item| item.aggregates.iter().any(|figure| figure.column.is_some()));
    // The question does not name the aggregated column, but it names a column of the other table.
    let figures = || top.items.iter().flat_map(|item| &item.aggregates).filter_map(|figure| figure.column.as_ref());
    let is_of_other = figures().all(|name| !parts(&name.column).iter().any(said))
        && !is_of_its_own
        && other.columns.iter().any(|column| {
            read.column(&column.name).is_none() && parts(&column.name).iter().any(said) && column.key == 0
        });
    let confidence = match (is_pointed_at || is_told_elsewhere, is_of_its_own) {
        (false, _) if counts_column && is_of_other && is_plural => 78,
        _ if is_predicate || is_modifier || counts_column || !is_head && (!is_plural || is_attached) => 62,
        (false, false) => 82,
        (false, true) => 68,
        (true, false) => 60,
        (true, true) => 40,
    };
    let words = question.quote(at, at + parts(&other.name).len());
    let message = format!("the question speaks of \"{words}\", and the query reads only `{}`", read.name);
    let found = Finding::new(SqlCode::EntityExpected, confidence, message).at(&top.place);
    Some(found.advice(format!("Read `{}`.", other.name)).about(other.name.clone()))
}

/// Reports that the query does not read the thing that the question asks for first.
fn head(sheet: &Sheet<'_>, question: &Question) -> Option<Finding> {
    let shape = sheet.shape;
    let lead = (0..question.words.len().min(4)).find(|at| LEADS.contains(&question.at(*at)))?;
    let at = (lead + 1..question.words.len()).find(|at| !BETWEEN.contains(&question.at(*at)))?;
    let stem = &question.words.get(at)?.stem;
    // `train stations` are stations.
    let next = question.words.get(at + 1).filter(|next| !next.is_after_pause).map(|next| next.stem.as_str());
    let is_read_name = |name: &str| parts(name).last().is_some_and(|last| Some(last.as_str()) == next);
    if shape.tables.iter().any(|name| is_read_name(name)) {
        return None;
    }
    // The second of two nouns is the thing: `student records` are records.
    let is_of_many = question.at(lead) == "many" || matches!(question.at(lead), "number" | "count");
    let is_compound = question.words.get(at + 1).is_some_and(|next| {
        let is_noun = next.lower != next.stem && !FILLERS.contains(&next.lower.as_str());
        let is_first_of_two = is_of_many && question.at(at) == *stem && !FILLERS[..10].contains(&next.lower.as_str());
        !next.is_after_pause && (is_noun || is_first_of_two)
    });
    // The check needs a single table whose name is this word.
    let mut tables = sheet.catalog.tables.iter().filter(|table| parts(&table.name) == [stem.clone()]);
    let table = tables.next().filter(|_| tables.next().is_none())?;
    let is_read =
        shape.tables.contains(&table.name.to_lowercase()) || shape.words.iter().any(|word| are_kin(word, stem));
    let of_view = |name: &String| sheet.catalog.table(name).is_none_or(|table| table.is_view);
    let read = || shape.tables.iter().filter_map(|name| sheet.catalog.table(name));
    // A column such as `dept_name` that references `department` represents the table.
    let is_referenced = read()
        .flat_map(|read| &read.foreign_keys)
        .any(|key| key.table.eq_ignore_ascii_case(&table.name) && shape.names.contains(&key.column.to_lowercase()));
    let is_told_elsewhere = shape.tables.iter().any(of_view)
        || is_referenced
        || read()
            .any(|read| read.columns.iter().any(|column| parts(&column.name).iter().any(|part| are_kin(part, stem))));
    // A column with another name may still hold the thing. A column that both tables have, or a count of rows, belongs
    // to the table that the query reads.
    let is_of_others = shape.top().items.iter().all(|item| match item.bare.as_slice() {
        [name] => item.is_column && table.column(&name.column).is_some(),
        _ => item.aggregates.iter().all(|figure| figure.columns.is_empty()) && item.bare.is_empty() && !item.has_query,
    });
    if is_read || shape.tables.is_empty() || !is_of_others {
        return None;
    }
    // With a filter, the rows may represent the thing in a table of related events.
    let is_all = shape.blocks.iter().all(|block| !block.has_filter) && !is_told_elsewhere;
    let confidence = match is_all {
        _ if is_compound => 55,
        true if question.words.len() <= 6 && shape.blocks.len() == 1 => 96,
        true => 80,
        false => 55,
    };
    let message =
        format!("the question asks for \"{}\", and the query does not read `{}`", question.at(at), table.name);
    let found = Finding::new(SqlCode::EntityExpected, confidence, message).at(&shape.top().place);
    Some(found.advice(format!("Read `{}`.", table.name)).about(table.name.clone()))
}

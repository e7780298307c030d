//! Checks that the query reads the thing that the question asks for first: in `how many products`, counting only
//! customers is wrong. A table is recognized only by its name, not by synonyms.

use proctor_core::sql::SqlCode;

use super::question::ParsedQuestion;
use super::requested_aggregates::stores_count;
use super::semantic_finding::{SemanticFinding, SemanticInput};
use super::word_forms::{are_related, name_words};
use crate::catalog::CatalogTable;

/// Words between a leading word and the thing.
const SKIPPED_WORDS: [&str; 9] = ["all", "the", "of", "our", "every", "me", "different", "distinct", "unique"];
/// Words that precede the thing that the question asks for.
const LEAD_WORDS: [&str; 9] = ["many", "list", "show", "display", "which", "names", "count", "number", "give"];

pub(super) fn check(input: &SemanticInput<'_>, question: &ParsedQuestion) -> Vec<SemanticFinding> {
    let found = [
        missing_head_entity(input, question),
        unmentioned_table(input, question),
        wrong_counted_table(input, question),
    ];
    found.into_iter().flatten().collect()
}

/// Filler words in a question for the total number of things: `how many customers are there in total`.
const FILLER_WORDS: [&str; 22] = [
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
fn wrong_counted_table(input: &SemanticInput<'_>, question: &ParsedQuestion) -> Option<SemanticFinding> {
    let [block] = input.shape.blocks.as_slice() else { return None };
    let [item] = block.items.as_slice() else { return None };
    let count = item.aggregates.first().filter(|_| item.is_aggregate && item.aggregates.len() == 1)?;
    let counts_rows =
        count.kind == super::query_shape::AggregateKind::Count && count.column.is_none() && !count.is_distinct;
    if !counts_rows || block.has_filter || block.groups > 0 || block.tables != 1 {
        return None;
    }
    let name = input.shape.tables.iter().next()?;
    let read = input.catalog.table(name).filter(|table| !table.is_view)?;
    let lead = question.find_phrase("how many").or_else(|| question.find_phrase("number of"))? + 1;
    let at = (lead + 1..question.words.len()).find(|at| !SKIPPED_WORDS.contains(&question.word_at(*at)))?;
    let stem = &question.words[at].stem;
    let is_all = (at + 1..question.words.len()).all(|at| FILLER_WORDS.contains(&question.word_at(at)));
    let mut tables = input.catalog.tables.iter().filter(|table| name_words(&table.name) == [stem.clone()]);
    let table = tables.next().filter(|_| tables.next().is_none())?;
    if !is_all || table.name.eq_ignore_ascii_case(&read.name) {
        return None;
    }
    let message = format!(
        "the question asks for the number of \"{}\", but the query counts rows of `{}`",
        question.word_at(at),
        read.name
    );
    let found = SemanticFinding::new(SqlCode::EntityExpected, 90, message).at(&count.range);
    Some(found.advice(format!("Count the rows of `{}`.", table.name)).about(table.name.clone()))
}

/// Reports a query of one table that the question does not mention, if the question names another table in full.
fn unmentioned_table(input: &SemanticInput<'_>, question: &ParsedQuestion) -> Option<SemanticFinding> {
    let shape = input.shape;
    let [name] = shape.tables.iter().collect::<Vec<_>>()[..] else { return None };
    let read = input.catalog.table(name).filter(|table| !table.is_view)?;
    let is_mentioned = |part: &String| {
        question.words.iter().any(|word| are_related(part, &word.stem) || are_related(part, &word.lower))
    };
    if name_words(&read.name).iter().any(is_mentioned) {
        return None;
    }
    let is_named = |at: usize, names: &[String]| {
        names
            .iter()
            .enumerate()
            .all(|(behind, part)| question.words.get(at + behind).is_some_and(|word| word.stem == *part))
    };
    // In `in descending order`, the word `order` is not the table.
    let is_sorting =
        |at: usize| matches!(question.word_at(at), "order" | "sort" | "rank") && question.requested_order.is_some();
    let (at, other) = (0..question.words.len()).filter(|at| !is_sorting(*at)).find_map(|at| {
        let other = input.catalog.tables.iter().find(|table| is_named(at, &name_words(&table.name)))?;
        Some((at, other))
    })?;
    // A key of the other table, or a column with its name, may represent it.
    let stands_for = |column: &crate::catalog::CatalogColumn| {
        let own = name_words(&column.name);
        name_words(&other.name).iter().all(|part| own.iter().any(|word| are_related(word, part)))
    };
    // A row of one table represents a row of the other.
    let points_at = |from: &CatalogTable, to: &CatalogTable| {
        from.foreign_keys.iter().any(|key| key.referenced_table.eq_ignore_ascii_case(&to.name))
    };
    // The question may be about songs while the query needs the length, which only the table of files has.
    let needs_own_column = read
        .columns
        .iter()
        .any(|column| shape.names.contains(&column.name.to_lowercase()) && other.column(&column.name).is_none());
    let is_pointed_at = points_at(read, other) || points_at(other, read) && needs_own_column;
    let has_related_column = read.columns.iter().any(stands_for);
    // The question may ask for columns of the table that the query reads.
    let top = shape.top();
    let is_requested = |item: &super::query_shape::ResultColumn| item.is_column && item.words.iter().any(is_mentioned);
    let is_used = |column: &crate::catalog::CatalogColumn| {
        shape.names.contains(&column.name.to_lowercase())
            && other.column(&column.name).is_none()
            && name_words(&column.name).iter().any(is_mentioned)
    };
    let is_of_its_own = top.items.iter().any(is_requested) || read.columns.iter().any(is_used);
    // Words that are not near the beginning may describe rows of another table: `prices for all events`.
    let lead = (0..question.words.len().min(4)).find(|at| LEAD_WORDS.contains(&question.word_at(*at)));
    let is_head =
        lead.is_some_and(|lead| at > lead && (lead + 1..at).all(|at| SKIPPED_WORDS.contains(&question.word_at(at))));
    let last = at + name_words(&other.name).len() - 1;
    let is_plural = question.words.get(last).is_some_and(|word| word.lower != word.stem);
    // `how many student records`
    let is_modifier =
        !is_plural && lead.is_some_and(|lead| matches!(question.word_at(lead), "many" | "number" | "count"));
    let is_attached = (1..=3).any(|back| {
        matches!(
            question.word_at(at.wrapping_sub(back)),
            "for" | "in" | "with" | "at" | "have" | "has" | "by" | "through" | "as" | "being"
        )
    });
    // `staff that are professors` asks for a kind of staff.
    let is_predicate = matches!(question.word_at(at.wrapping_sub(1)), "are" | "is" | "were" | "was")
        && matches!(question.word_at(at.wrapping_sub(2)), "that" | "who" | "which");
    // `can students take this course` asks about the course.
    let is_actor = (0..at)
        .rev()
        .take(2)
        .any(|before| before < 2 && matches!(question.word_at(before), "can" | "may" | "could" | "should" | "must"));
    // `how many students are in this course` is answered by a column with their number.
    let is_stored_number = lead.is_some_and(|lead| matches!(question.word_at(lead), "many" | "number" | "count"))
        && top.items.iter().any(|item| item.is_column && item.plain_columns.iter().any(stores_count));
    let counts_column = top.items.iter().any(|item| item.aggregates.iter().any(|figure| figure.column.is_some()));
    // The question does not name the aggregated column, but it names a column of the other table.
    let figures = || top.items.iter().flat_map(|item| &item.aggregates).filter_map(|figure| figure.column.as_ref());
    let is_of_other = figures().all(|name| !name_words(&name.column).iter().any(is_mentioned))
        && !is_of_its_own
        && other.columns.iter().any(|column| {
            read.column(&column.name).is_none()
                && name_words(&column.name).iter().any(is_mentioned)
                && column.primary_key_position == 0
        });
    let confidence = match (is_pointed_at || has_related_column, is_of_its_own) {
        (false, _) if counts_column && is_of_other && is_plural => 78,
        _ if is_predicate || is_modifier || is_actor || is_stored_number => 62,
        _ if counts_column || !is_head && (!is_plural || is_attached) => 62,
        (false, false) => 82,
        (false, true) => 68,
        (true, false) => 60,
        (true, true) => 40,
    };
    let words = question.quote(at, at + name_words(&other.name).len());
    let message = format!("the question mentions \"{words}\", but the query reads only `{}`", read.name);
    let found = SemanticFinding::new(SqlCode::EntityExpected, confidence, message).at(&top.range);
    Some(found.advice(format!("Read `{}`.", other.name)).about(other.name.clone()))
}

/// Reports a query that does not read the thing that the question asks for first.
fn missing_head_entity(input: &SemanticInput<'_>, question: &ParsedQuestion) -> Option<SemanticFinding> {
    let shape = input.shape;
    let lead = (0..question.words.len().min(4)).find(|at| LEAD_WORDS.contains(&question.word_at(*at)))?;
    let at = (lead + 1..question.words.len()).find(|at| !SKIPPED_WORDS.contains(&question.word_at(*at)))?;
    let stem = &question.words.get(at)?.stem;
    // `train stations` are stations.
    let next = question.words.get(at + 1).filter(|next| !next.is_after_punctuation).map(|next| next.stem.as_str());
    let is_read_name = |name: &str| name_words(name).last().is_some_and(|last| Some(last.as_str()) == next);
    if shape.tables.iter().any(|name| is_read_name(name)) {
        return None;
    }
    // The second of two nouns is the thing: `student records` are records.
    let is_of_many = question.word_at(lead) == "many" || matches!(question.word_at(lead), "number" | "count");
    let is_compound = question.words.get(at + 1).is_some_and(|next| {
        let is_noun = next.lower != next.stem && !FILLER_WORDS.contains(&next.lower.as_str());
        let is_first_of_two =
            is_of_many && question.word_at(at) == *stem && !FILLER_WORDS[..10].contains(&next.lower.as_str());
        !next.is_after_punctuation && (is_noun || is_first_of_two)
    });
    // The check needs a single table whose name is this word.
    let mut tables = input.catalog.tables.iter().filter(|table| name_words(&table.name) == [stem.clone()]);
    let table = tables.next().filter(|_| tables.next().is_none())?;
    let is_read =
        shape.tables.contains(&table.name.to_lowercase()) || shape.words.iter().any(|word| are_related(word, stem));
    let of_view = |name: &String| input.catalog.table(name).is_none_or(|table| table.is_view);
    let read = || shape.tables.iter().filter_map(|name| input.catalog.table(name));
    // A column such as `dept_name` that references `department` represents the table.
    let is_referenced = read().flat_map(|read| &read.foreign_keys).any(|key| {
        key.referenced_table.eq_ignore_ascii_case(&table.name) && shape.names.contains(&key.column.to_lowercase())
    });
    let has_related_column = shape.tables.iter().any(of_view)
        || is_referenced
        || read().any(|read| {
            read.columns.iter().any(|column| name_words(&column.name).iter().any(|part| are_related(part, stem)))
        });
    // A column with another name may still hold the thing. A column that both tables have, or a count of rows, belongs
    // to the table that the query reads.
    let is_of_others = shape.top().items.iter().all(|item| match item.plain_columns.as_slice() {
        [name] => item.is_column && table.column(&name.column).is_some(),
        _ => {
            item.aggregates.iter().all(|figure| figure.columns.is_empty())
                && item.plain_columns.is_empty()
                && !item.has_query
        }
    });
    if is_read || shape.tables.is_empty() || !is_of_others {
        return None;
    }
    // With a filter, the rows may represent the thing in a table of related events.
    let is_all = shape.blocks.iter().all(|block| !block.has_filter) && !has_related_column;
    let confidence = match is_all {
        _ if is_compound => 55,
        true if question.words.len() <= 6 && shape.blocks.len() == 1 => 96,
        true => 80,
        false => 55,
    };
    let message =
        format!("the question asks for \"{}\", but the query does not read `{}`", question.word_at(at), table.name);
    let found = SemanticFinding::new(SqlCode::EntityExpected, confidence, message).at(&shape.top().range);
    Some(found.advice(format!("Read `{}`.", table.name)).about(table.name.clone()))
}

//! Checks for a missing count where the question asks for a number of things.

use proctor_core::sql::SqlCode;

use super::aggregate_words::{AVERAGE_WORDS, SHARE_WORDS, is_key};
use crate::stages::semantic::query_shape::{AggregateKind, ColumnReference, QueryShape, ResultColumn};
use crate::stages::semantic::question::ParsedQuestion;
use crate::stages::semantic::semantic_finding::{SemanticFinding, SemanticInput};
use crate::stages::semantic::word_forms::{are_related, name_words, stem};

/// Reports a missing count where the question asks for a number.
pub(super) fn missing_count(input: &SemanticInput<'_>, question: &ParsedQuestion) -> Option<SemanticFinding> {
    let shape = input.shape;
    let many = question.find_phrase("how many");
    let at = many.or_else(|| find_count_words(question)).or_else(|| question.find_phrase("count the"))?;
    let words = question.quote(at, at + 4);
    let top = shape.top();
    let Some(first) = shape.aggregates().next() else {
        if returns_stored_number(input, question, at) || is_named_like_column(shape, question, at) {
            return None;
        }
        let is_list = is_followed_by_list(question);
        let confidence = if is_list || is_time_since(shape, question, at) {
            60
        } else if many.is_some_and(|at| at == 0 || question.words[at].is_after_punctuation) {
            85
        } else if many.is_some() {
            68
        } else if at <= 3 && is_list_of_keys(shape) {
            80
        } else {
            64
        };
        let is_certain =
            many == Some(0) && is_list_of_names(shape, question) && is_schema_word(input, question, at + 2);
        let confidence = if is_certain { 96 } else { confidence };
        let message = format!("the question asks for \"{words}\", but the query counts nothing");
        return Some(
            SemanticFinding::new(SqlCode::AggregateExpected, confidence, message).at(&top.range).advice("Use COUNT."),
        );
    };
    let is_counted = shape.has_aggregate(AggregateKind::Count)
        || shape.has_aggregate(AggregateKind::Sum)
        || shape.has_aggregate(AggregateKind::Other);
    if let Some(found) = sum_of_other_column(input, question, at) {
        return Some(found);
    }
    if top.aggregates().next().is_none()
        && shape.blocks.len() > 1
        && !shape.has_aggregate(AggregateKind::Count)
        && !returns_stored_number(input, question, at)
        && !is_average_of_numbers(shape, question, at)
    {
        let message = format!("the question asks for \"{words}\", but the query counts nothing");
        return Some(SemanticFinding::new(SqlCode::AggregateExpected, 68, message).at(&top.range).advice("Use COUNT."));
    }
    let column = first.column.as_ref()?;
    if is_counted || shape.blocks.len() > 1 || top.aggregates().next().is_none() {
        return None;
    }
    let is_key = is_key(&column.column);
    let confidence = match (is_key, is_related_to_noun(question, at, &column.column)) {
        (true, _) if at <= 3 && top.items.len() == 1 => 97,
        (_, false)
            if many == Some(0)
                && question.superlatives.is_empty()
                && !question.has_word(&SHARE_WORDS)
                && !question.has_word(&AVERAGE_WORDS)
                && top.items.len() == 1
                && first.kind == AggregateKind::Average =>
        {
            96
        }
        (_, false) if question.superlatives.is_empty() => 65,
        _ => return None,
    };
    let message = format!(
        "the question asks for \"{words}\", but the query returns {} of `{}`",
        first.kind.as_sql(),
        column.column
    );
    Some(SemanticFinding::other_aggregate(confidence, message, first, AggregateKind::Count))
}

/// Reports whether a second clause asks for the rows themselves: `How many cards are black? List their names.`
fn is_followed_by_list(question: &ParsedQuestion) -> bool {
    const LISTS: [&str; 11] =
        ["list", "show", "name", "give", "indicate", "state", "provide", "display", "mention", "specify", "write"];
    let begins = |at: usize| {
        let word = &question.words[at];
        let is_polite = question.word_at(at.wrapping_sub(1)) == "please";
        word.is_sentence_start
            || word.is_after_punctuation
            || is_polite
            || question.word_at(at.wrapping_sub(1)) == "and"
    };
    let is_imperative = |at: usize| LISTS.contains(&question.word_at(at)) && begins(at);
    (1..question.words.len()).any(is_imperative)
        || question.has_phrase(&["list them", "show them", "name them", "list their", "show their"])
}

/// Reports whether the question asks for a number of years or another unit of time, and the query returns the start
/// date.
fn is_time_since(shape: &QueryShape, question: &ParsedQuestion, at: usize) -> bool {
    const UNITS: [&str; 7] = ["year", "month", "week", "day", "hour", "semester", "term"];
    let is_unit = question.words.get(at + 2).is_some_and(|word| UNITS.contains(&word.stem.as_str()));
    let is_date = |part: &String| matches!(part.as_str(), "year" | "date" | "month" | "day" | "time" | "since");
    let mut names = shape.top().items.iter().flat_map(|item| &item.plain_columns);
    is_unit && names.any(|name| name_words(&name.column).iter().any(is_date))
}

/// Reports whether a word of the question occurs in the name of a table or column.
fn is_schema_word(input: &SemanticInput<'_>, question: &ParsedQuestion, at: usize) -> bool {
    let Some(word) = question.words.get(at) else { return false };
    let is_in = |name: &String| name_words(name).iter().any(|part| are_related(part, &word.stem));
    let tables = &input.catalog.tables;
    tables.iter().any(|table| is_in(&table.name) || table.columns.iter().any(|column| is_in(&column.name)))
}

/// Reports whether two words are synonyms for things whose number a table may store.
fn are_synonyms(one: &str, other: &str) -> bool {
    const SYNONYMS: [&[&str]; 7] = [
        &["child", "children", "kid"],
        &["person", "people", "guest", "visitor", "attendee", "attendance", "spectator", "audience"],
        &["employee", "staff", "worker", "personnel"],
        &["student", "pupil", "enrollment"],
        &["floor", "storey", "story"],
        &["win", "victory"],
        &["resident", "inhabitant", "citizen", "population"],
    ];
    one != other && SYNONYMS.iter().any(|group| group.contains(&one) && group.contains(&other))
}

/// Reports whether a column has exactly the name of the counted thing: `how many kids stay` asks for `kids`.
fn is_named_like_column(shape: &QueryShape, question: &ParsedQuestion, at: usize) -> bool {
    // `how many total credits`
    let is_adjective = matches!(question.word_at(at + 2), "total" | "more" | "different");
    let Some(noun) = question.words.get(at + 2 + usize::from(is_adjective)) else { return false };
    let is_plural = noun.lower != noun.stem;
    let is_it = |name: &ColumnReference| {
        let column = name.column.to_lowercase();
        is_plural && column == noun.lower || are_synonyms(&stem(&column), &noun.stem)
    };
    shape.top().items.iter().flat_map(|item| &item.plain_columns).any(is_it)
}

/// Reports whether `the average number of products` is the average of a stored number: the query averages a column.
fn is_average_of_numbers(shape: &QueryShape, question: &ParsedQuestion, at: usize) -> bool {
    AVERAGE_WORDS.contains(&question.word_at(at.wrapping_sub(1))) && shape.has_aggregate(AggregateKind::Average)
}

/// Reports whether the query is a plain list of keys.
fn is_list_of_keys(shape: &QueryShape) -> bool {
    let is_list = |item: &ResultColumn| item.is_column && item.plain_columns.iter().all(|name| is_key(&name.column));
    shape.blocks.len() == 1
        && shape.top().groups == 0
        && matches!(shape.top().items.as_slice(), [item] if is_list(item))
}

/// Reports whether the query is a plain list of keys or names.
fn is_list_of_names(shape: &QueryShape, question: &ParsedQuestion) -> bool {
    let top = shape.top();
    let is_name = |column: &str| {
        is_key(column)
            || name_words(column).last().is_some_and(|last| matches!(last.as_str(), "name" | "title" | "email"))
    };
    shape.blocks.len() == 1
        && question.words.len() <= 14
        && question.words.iter().skip(1).all(|word| !word.is_sentence_start)
        && matches!(top.items.as_slice(), [item] if item.is_column && item.plain_columns.iter().all(|name| is_name(&name.column)))
}

/// Reports a sum of another column where the question asks for a number of rows.
fn sum_of_other_column(input: &SemanticInput<'_>, question: &ParsedQuestion, at: usize) -> Option<SemanticFinding> {
    const COUNTS: [&str; 10] = ["count", "num", "number", "total", "quantity", "qty", "stock", "n", "no", "unit"];
    let shape = input.shape;
    let [item] = shape.top().items.as_slice() else { return None };
    let sum = item
        .aggregates
        .first()
        .filter(|sum| sum.kind == AggregateKind::Sum && item.is_aggregate && !sum.is_over_condition)?;
    let column = sum.column.as_ref()?;
    let noun = question.words.get(at + 2)?;
    let is_table = shape.tables.iter().any(|table| name_words(table).last().is_some_and(|last| *last == noun.stem));
    let counts =
        name_words(&column.column).iter().any(|part| COUNTS.contains(&part.as_str()) || are_related(part, &noun.stem));
    if shape.blocks.len() > 1 || shape.aggregates().count() > 1 || !is_table || counts || is_key(&column.column) {
        return None;
    }
    let message =
        format!("the question asks for \"{}\", but the query sums `{}`", question.quote(at, at + 3), column.column);
    Some(SemanticFinding::other_aggregate(85, message, sum, AggregateKind::Count))
}

/// Returns the position of words that ask for a number of things. A telephone number does not count.
fn find_count_words(question: &ParsedQuestion) -> Option<usize> {
    let at = question.find_phrase("number of").or_else(|| question.find_phrase("count of"))?;
    let before = question.word_at(at.wrapping_sub(1));
    let is_amount = at == 0
        || matches!(
            before,
            "the"
                | "total"
                | "by"
                | "and"
                | "their"
                | "its"
                | "highest"
                | "lowest"
                | "largest"
                | "smallest"
                | "average"
                | "a"
        );
    let is_of_things = question.words.iter().skip(at + 2).take(4).any(|word| word.lower != word.stem);
    (is_amount && is_of_things).then_some(at)
}

/// Reports whether a name is related to the counted thing.
fn is_related_to_noun(question: &ParsedQuestion, at: usize, name: &str) -> bool {
    let nouns =
        || question.words.iter().skip(at + 2).take(4).map(|word| word.stem.as_str()).filter(|stem| stem.len() > 2);
    name_words(name).iter().any(|part| nouns().any(|noun| are_related(part, noun)))
}

/// Reports whether the query returns a stored number: a numeric column that is not a key.
fn returns_stored_number(input: &SemanticInput<'_>, question: &ParsedQuestion, at: usize) -> bool {
    const STORED: [&str; 9] = ["count", "num", "number", "total", "amount", "quantity", "qty", "population", "no"];
    let is_number = |name: &ColumnReference| {
        let column = input.catalog.tables_with(&name.column).find_map(|table| table.column(&name.column));
        let kind = column.map(|column| column.declared_type.to_ascii_uppercase()).unwrap_or_default();
        let has_numbers = ["INT", "REAL", "NUM", "DOUB", "FLOA", "DEC"].iter().any(|part| kind.contains(part));
        let has_count_name = name_words(&name.column).iter().any(|part| STORED.contains(&part.as_str()));
        !is_key(&name.column)
            && (has_count_name
                || (has_numbers && column.is_some_and(|column| column.primary_key_position == 0))
                || (kind.is_empty() && is_related_to_noun(question, at, &name.column)))
    };
    let top = input.shape.top();
    input.shape.has_division
        || input.shape.has_set_operation
        || top.items.iter().any(|item| {
            item.is_wildcard
                || item.has_query
                || item.has_window
                || (item.plain_columns.is_empty() && item.aggregates.is_empty())
                || item.plain_columns.iter().any(is_number)
        })
}

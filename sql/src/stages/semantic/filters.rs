//! Checks that the query filters by the values that the question mentions: years, numbers, quoted texts, names.

use std::collections::BTreeSet;

use proctor_core::sql::SqlCode;

use super::question::Question;
use super::shape::Shape;
use super::words::{are_kin, parts, stem};
use super::{Finding, Sheet};

/// A value that a question mentions.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Named {
    text: String,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Year,
    Date,
    Quoted,
    Number,
    Name,
}

pub(super) fn check(sheet: &Sheet<'_>, question: &Question) -> Vec<Finding> {
    let schema = schema_words(sheet);
    let mut found = Vec::new();
    let named = named(question, &schema);
    found.extend(year(sheet.shape, question, &named));
    found.extend(only(sheet, question, &schema));
    found.extend(unfiltered(sheet, question, &named));
    found.extend(placed(sheet.shape, question, &schema));
    found
}

/// Returns the words of the names of all tables and columns.
fn schema_words(sheet: &Sheet<'_>) -> BTreeSet<String> {
    let names = sheet
        .catalog
        .tables
        .iter()
        .flat_map(|table| std::iter::once(&table.name).chain(table.columns.iter().map(|column| &column.name)));
    names.flat_map(|name| parts(name)).collect()
}

fn is_of_schema(word: &str, schema: &BTreeSet<String>) -> bool {
    schema.iter().any(|part| are_kin(part, word))
}

/// Returns the distinct values that a question mentions.
fn named(question: &Question, schema: &BTreeSet<String>) -> Vec<Named> {
    let mut found: Vec<Named> = Vec::new();
    for (at, word) in question.words.iter().enumerate() {
        let text = word.lower.clone();
        let is_number = text.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | ','));
        let is_year = text.len() == 4 && text.parse::<u32>().is_ok_and(|year| (1500..2100).contains(&year));
        let kind = if word.is_quoted {
            Kind::Quoted
        } else if is_year {
            Kind::Year
        } else if is_number {
            let is_of_rows = question.cues.iter().any(|cue| cue.number.is_some() && cue.at.abs_diff(at) <= 2);
            if is_of_rows {
                continue;
            }
            Kind::Number
        } else if ["st", "nd", "rd", "th"].iter().any(|ending| text.ends_with(ending))
            && text.starts_with(|c: char| c.is_ascii_digit())
        {
            continue;
        } else if text.starts_with(|c: char| c.is_ascii_digit()) {
            Kind::Date
        } else if is_name(question, at)
            && !is_of_schema(&word.stem, schema)
            && !is_calendar_or_compass(&text, schema)
            && !is_spelt_out(question, at, schema)
        {
            Kind::Name
        } else {
            continue;
        };
        found.push(Named { text, kind });
    }
    found
}

/// Reports whether a word is a direction, or a month that is the name of a column (`Feb`).
fn is_calendar_or_compass(word: &str, schema: &BTreeSet<String>) -> bool {
    const COMPASS: [&str; 8] = ["north", "south", "east", "west", "northern", "southern", "eastern", "western"];
    const MONTHS: [&str; 12] = [
        "january",
        "february",
        "march",
        "april",
        "may",
        "june",
        "july",
        "august",
        "september",
        "october",
        "november",
        "december",
    ];
    let is_month = MONTHS.contains(&word) && word.get(..3).is_some_and(|short| schema.contains(short));
    is_month || COMPASS.contains(&word)
}

/// Reports whether a word is written like a name: capitalized, but not because it starts a sentence.
fn is_name(question: &Question, at: usize) -> bool {
    const NONE: [&str; 24] = [
        "i", "id", "sql", "iso", "please", "what", "who", "which", "how", "list", "give", "show", "the", "a", "return",
        "url", "ids", "note", "if", "is", "are", "find", "and", "in",
    ];
    let word = &question.words[at];
    word.text.starts_with(char::is_uppercase) && !word.is_first && !NONE.contains(&word.lower.as_str())
}

/// Reports whether a value or a name of the query is related to a text.
fn has(shape: &Shape, text: &str) -> bool {
    let stem = stem(text);
    shape.values.iter().any(|value| {
        value.contains(text) || value.contains(&stem) || (value.len() > 2 && text.contains(value.as_str()))
    }) || shape.names.iter().any(|name| name.contains(text))
}

/// Reports a year of the question that no value of the query contains.
fn year(shape: &Shape, question: &Question, named: &[Named]) -> Option<Finding> {
    let year = named
        .iter()
        .find(|named| named.kind == Kind::Year && !has(shape, &named.text) && !has(shape, &named.text[2..]))?;
    let at = question.find(&[year.text.as_str()])?;
    let is_in = matches!(
        question.at(at.wrapping_sub(1)),
        "in" | "during" | "of" | "year" | "since" | "for" | "from" | "before" | "after" | "until" | "through"
    );
    let is_plain = is_plain_year(shape, question, &year.text);
    let confidence = match (shape.values.is_empty() && !shape.has_condition, is_in) {
        (true, true) => 97,
        (true, false) => 88,
        (_, true) if is_plain => 96,
        _ => 66,
    };
    let message = format!("the question names the year {}, and the query looks for no such value", year.text);
    let advice = format!("Filter by the year {}.", year.text);
    Some(
        Finding::new(SqlCode::FilterExpected, confidence, message)
            .at(&shape.top().place)
            .advice(advice)
            .about(year.text.clone()),
    )
}

/// Reports whether a short question mentions a single year without a word that refers to another one, and the query
/// filters by another year or by values without digits.
fn is_plain_year(shape: &Shape, question: &Question, year: &str) -> bool {
    const LEADS: [&str; 14] = [
        "before",
        "after",
        "previous",
        "prior",
        "next",
        "following",
        "ago",
        "later",
        "earlier",
        "season",
        "between",
        "fiscal",
        "half",
        "compared",
    ];
    let has_digit = |text: &str| text.contains(|c: char| c.is_ascii_digit());
    let numbers = question.words.iter().filter(|word| has_digit(&word.text)).count();
    let is_year = |value: &String| value.len() == 4 && (value.starts_with("19") || value.starts_with("20"));
    let years: Vec<&String> = shape.compared.iter().filter(|value| is_year(value)).collect();
    let is_other_year = matches!(years.as_slice(), [other] if other.as_str() != year) && shape.compared.len() == 1;
    let has_none = !shape.compared.is_empty() && shape.values.iter().all(|value| !has_digit(value) && value != "now");
    question.words.len() <= 9
        && numbers == 1
        && !question.has(&LEADS)
        && shape.blocks.len() == 1
        && (is_other_year || has_none)
}

/// Reports a restriction such as `only the premium customers` if nothing in the query is related to it.
fn only(sheet: &Sheet<'_>, question: &Question, schema: &BTreeSet<String>) -> Option<Finding> {
    let shape = sheet.shape;
    let at = question.find(&["only", "just", "solely"])?;
    let mut next = at + 1;
    while matches!(
        question.at(next),
        "the"
            | "those"
            | "our"
            | "all"
            | "a"
            | "an"
            | "for"
            | "in"
            | "from"
            | "my"
            | "show"
            | "list"
            | "return"
            | "give"
            | "display"
            | "include"
            | "want"
            | "need"
            | "see"
            | "me"
            | "get"
            | "find"
            | "of"
    ) {
        next += 1;
    }
    let word = question.words.get(next)?;
    let follower = question.words.get(next + 1)?;
    let is_noun_behind = is_of_schema(&follower.stem, schema);
    let is_known =
        is_of_schema(&word.stem, schema) || OFTEN.contains(&word.lower.as_str()) || question.number(next).is_some();
    let is_told = word.is_quoted || (is_noun_behind && !is_known && question.cues.iter().all(|cue| cue.at != next));
    if !is_told || has(shape, &word.lower) || shape.has_negation {
        return None;
    }
    let is_free = shape.values.is_empty() && !shape.has_condition && shape.blocks.iter().all(|block| !block.has_filter);
    let confidence = if is_free && shape.top().limit == super::shape::Limit::All { 96 } else { 50 };
    let words = question.quote(at, next + 2);
    let message = format!("the question asks for \"{words}\", and the query looks for nothing of that kind");
    let advice = format!("Filter by \"{}\".", word.text);
    Some(
        Finding::new(SqlCode::FilterExpected, confidence, message)
            .at(&shape.top().place)
            .advice(advice)
            .about(word.text.clone()),
    )
}

/// Words that select columns or rows and are not values.
const OFTEN: [&str; 27] = [
    "distinct",
    "unique",
    "different",
    "first",
    "last",
    "top",
    "most",
    "one",
    "once",
    "whole",
    "full",
    "entire",
    "single",
    "same",
    "relevant",
    "following",
    "necessary",
    "other",
    "new",
    "existing",
    "actual",
    "real",
    "specific",
    "main",
    "individual",
    "raw",
    "registered",
];

/// Reports a query without a condition if the question mentions values.
fn unfiltered(sheet: &Sheet<'_>, question: &Question, named: &[Named]) -> Option<Finding> {
    let shape = sheet.shape;
    if shape.has_condition || shape.blocks.iter().any(|block| block.has_filter) {
        return None;
    }
    let missing: Vec<&Named> = named.iter().filter(|named| !has(shape, &named.text)).collect();
    let first = missing.iter().min_by_key(|named| named.kind)?;
    let at = question.words.iter().position(|word| word.lower == first.text)?;
    let before = |back: usize| question.at(at.wrapping_sub(back));
    let is_plain = shape.values.is_empty()
        && question.words.len() <= 14
        && match first.kind {
            Kind::Quoted => (1..=3).all(|back| {
                !matches!(
                    before(back),
                    "as" | "column"
                        | "label"
                        | "labeled"
                        | "labelled"
                        | "alias"
                        | "header"
                        | "title"
                        | "format"
                        | "call"
                )
            }),
            Kind::Number => {
                matches!(before(1), "above" | "over" | "below" | "under" | "exceeding" | "than" | "exceeds" | "equals")
                    || (before(2) == "at" && matches!(before(1), "least" | "most"))
            }
            _ => false,
        };
    let confidence = match (first.kind, missing.len()) {
        // A column such as `A13` may hold the numbers of one year.
        (Kind::Year, 1) if has_opaque_column(sheet) => 66,
        _ if is_plain => 96,
        (Kind::Year | Kind::Date | Kind::Quoted, _) => 85,
        // `all 50 states` are all states.
        (Kind::Number, _) if matches!(before(1), "all" | "the") && is_plural(question, at + 1) => 60,
        (Kind::Number, _) => 78,
        // In `which Adviser`, the capitalized word is a thing and not a name.
        (Kind::Name, 1) if matches!(before(1), "which" | "what" | "each" | "every" | "many" | "all") => 66,
        // A noun may be capitalized without reason: `the name and State of the airway`.
        (Kind::Name, 1) if is_listed(question, at) => 66,
        (Kind::Name, 2..) => 78,
        // A word in all capitals may be a format or an abbreviation.
        (Kind::Name, _) if question.words[at].text.chars().skip(1).all(char::is_lowercase) => 74,
        (Kind::Name, _) => 66,
    };
    let message = format!("the question names \"{}\", and the query looks for no value at all", first.text);
    let found = Finding::new(SqlCode::FilterExpected, confidence, message).at(&shape.top().place);
    Some(found.advice("Add the WHERE that the question asks for.").about(first.text.clone()))
}

/// Reports whether a word belongs to a list of requested columns, and is therefore not a value.
fn is_listed(question: &Question, at: usize) -> bool {
    const BEFORE: [&str; 14] =
        ["and", "or", "the", "a", "an", "their", "its", "his", "her", "show", "list", "give", "find", "name"];
    let word = &question.words[at];
    BEFORE.contains(&question.at(at.wrapping_sub(1))) || word.is_after_pause || ATTRIBUTES.contains(&word.stem.as_str())
}

/// Nouns for attributes of many kinds of things. A question may capitalize them, but they are not values.
const ATTRIBUTES: [&str; 46] = [
    "address",
    "age",
    "amount",
    "area",
    "birthday",
    "category",
    "city",
    "class",
    "code",
    "color",
    "colour",
    "cost",
    "country",
    "county",
    "date",
    "description",
    "district",
    "duration",
    "email",
    "gender",
    "height",
    "language",
    "length",
    "level",
    "location",
    "name",
    "nation",
    "nationality",
    "number",
    "phone",
    "place",
    "position",
    "price",
    "province",
    "rank",
    "rating",
    "region",
    "salary",
    "sex",
    "size",
    "state",
    "status",
    "title",
    "town",
    "type",
    "weight",
];

/// Reports whether the query uses a column whose name does not describe its content: a letter with digits.
fn has_opaque_column(sheet: &Sheet<'_>) -> bool {
    let is_opaque = |name: &&String| {
        let mut signs = name.chars();
        signs.next().is_some_and(char::is_alphabetic) && name.len() > 1 && signs.all(|sign| sign.is_ascii_digit())
    };
    sheet.shape.names.iter().filter(is_opaque).any(|name| sheet.catalog.tables_with(name).next().is_some())
}

/// Reports whether a word is part of the long form of an abbreviation in the question that names a column: `Online
/// Mendelian Inheritance in Man (OMIM)`.
fn is_spelt_out(question: &Question, at: usize, schema: &BTreeSet<String>) -> bool {
    let initial = question.words[at].lower.chars().next();
    let is_short_form = |other: usize| {
        let word = &question.words[other];
        let letters = word.text.chars().count();
        letters > 2
            && other.abs_diff(at) <= 2 * letters
            && word.text.chars().all(char::is_uppercase)
            && schema.contains(&word.lower)
            && initial.is_some_and(|initial| word.lower.contains(initial))
    };
    (0..question.words.len()).any(|other| other != at && is_short_form(other))
}

fn is_plural(question: &Question, at: usize) -> bool {
    question.words.get(at).is_some_and(|word| word.lower != word.stem)
}

/// Reports a query without a condition if the question mentions a place or a kind that is not a name of the schema:
/// `lakes in california`, `patients with diabetes`.
fn placed(shape: &Shape, question: &Question, schema: &BTreeSet<String>) -> Option<Finding> {
    if shape.has_condition || shape.blocks.iter().any(|block| block.has_filter) {
        return None;
    }
    let at = (0..question.words.len()).find(|at| {
        let word = &question.words[*at];
        let before = |back: usize| question.at(at.wrapping_sub(back));
        let is_led = LEADS.contains(&before(1)) || (before(1) == "the" && LEADS.contains(&before(2)));
        let is_word = word.lower.len() > 2
            && word.lower.chars().all(char::is_alphabetic)
            && !COMMON.contains(&word.lower.as_str());
        is_led
            && is_word
            && !is_of_schema(&word.stem, schema)
            && !has(shape, &word.lower)
            && !is_of_schema(&word.stem, &shape.words)
            && question.cues.iter().all(|cue| cue.at != *at)
    })?;
    let word = &question.words[at];
    let message = format!(
        "the question speaks of \"{}\", and the query has no condition",
        question.quote(at.saturating_sub(1), at + 1)
    );
    let found = Finding::new(SqlCode::FilterExpected, 62, message).at(&shape.top().place);
    Some(found.advice("Add the WHERE that the question asks for.").about(word.lower.clone()))
}

/// Words that precede a place, a name or a kind.
const LEADS: [&str; 12] =
    ["in", "at", "from", "through", "near", "named", "called", "bordering", "border", "borders", "neighbor", "with"];

/// Words that may follow a word of [`LEADS`] and are not values.
const COMMON: [&str; 60] = [
    "all",
    "any",
    "the",
    "each",
    "every",
    "descending",
    "ascending",
    "alphabetical",
    "order",
    "total",
    "both",
    "their",
    "its",
    "his",
    "her",
    "that",
    "this",
    "which",
    "what",
    "what's",
    "whom",
    "highest",
    "lowest",
    "database",
    "table",
    "list",
    "general",
    "terms",
    "meters",
    "kilometers",
    "square",
    "seconds",
    "minutes",
    "hours",
    "days",
    "percent",
    "percentage",
    "respect",
    "more",
    "less",
    "same",
    "different",
    "first",
    "last",
    "case",
    "detail",
    "details",
    "addition",
    "least",
    "most",
    "overall",
    "average",
    "various",
    "our",
    "corresponding",
    "respective",
    "relation",
    "comparison",
    "ratio",
    "one",
];

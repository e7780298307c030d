//! Checks that the query filters by the values that the question mentions: years, numbers, quoted texts, names.

use std::collections::BTreeSet;

use proctor_core::sql::SqlCode;

use super::query_shape::QueryShape;
use super::question::ParsedQuestion;
use super::semantic_finding::{SemanticFinding, SemanticInput};
use super::word_forms::{are_related, name_words, stem};

/// A value that a question mentions.
#[derive(Debug, Clone, PartialEq, Eq)]
struct QuestionValue {
    text: String,
    kind: QuestionValueKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum QuestionValueKind {
    Year,
    Date,
    Quoted,
    Number,
    Name,
}

pub(super) fn check(input: &SemanticInput<'_>, question: &ParsedQuestion) -> Vec<SemanticFinding> {
    let schema = schema_words(input);
    let mut found = Vec::new();
    let named = question_values(question, &schema);
    found.extend(missing_year(input.shape, question, &named));
    found.extend(missing_restriction(input, question, &schema));
    found.extend(missing_filter(input, question, &named));
    found.extend(missing_place_filter(input.shape, question, &schema));
    found
}

/// Returns the words of the names of all tables and columns.
fn schema_words(input: &SemanticInput<'_>) -> BTreeSet<String> {
    let names = input
        .catalog
        .tables
        .iter()
        .flat_map(|table| std::iter::once(&table.name).chain(table.columns.iter().map(|column| &column.name)));
    names.flat_map(|name| name_words(name)).collect()
}

fn is_schema_word(word: &str, schema: &BTreeSet<String>) -> bool {
    schema.iter().any(|part| are_related(part, word))
}

/// Returns the distinct values that a question mentions.
fn question_values(question: &ParsedQuestion, schema: &BTreeSet<String>) -> Vec<QuestionValue> {
    let mut found: Vec<QuestionValue> = Vec::new();
    for (at, word) in question.words.iter().enumerate() {
        let text = word.lower.clone();
        let is_number = text.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | ','));
        let is_year = text.len() == 4 && text.parse::<u32>().is_ok_and(|year| (1500..2100).contains(&year));
        let kind = if word.is_quoted {
            QuestionValueKind::Quoted
        } else if is_year {
            QuestionValueKind::Year
        } else if is_number {
            let is_of_rows = question.superlatives.iter().any(|cue| cue.number.is_some() && cue.at.abs_diff(at) <= 2);
            if is_of_rows {
                continue;
            }
            QuestionValueKind::Number
        } else if ["st", "nd", "rd", "th"].iter().any(|ending| text.ends_with(ending))
            && text.starts_with(|c: char| c.is_ascii_digit())
        {
            continue;
        } else if text.starts_with(|c: char| c.is_ascii_digit()) {
            QuestionValueKind::Date
        } else if is_name(question, at)
            && !is_schema_word(&word.stem, schema)
            && !is_calendar_or_compass(&text, schema)
            && !is_abbreviation_part(question, at, schema)
        {
            QuestionValueKind::Name
        } else {
            continue;
        };
        found.push(QuestionValue { text, kind });
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
fn is_name(question: &ParsedQuestion, at: usize) -> bool {
    const NOT_NAMES: [&str; 24] = [
        "i", "id", "sql", "iso", "please", "what", "who", "which", "how", "list", "give", "show", "the", "a", "return",
        "url", "ids", "note", "if", "is", "are", "find", "and", "in",
    ];
    let word = &question.words[at];
    word.text.starts_with(char::is_uppercase) && !word.is_sentence_start && !NOT_NAMES.contains(&word.lower.as_str())
}

/// Reports whether a value or a name of the query is related to a text.
fn has_value(shape: &QueryShape, text: &str) -> bool {
    let stem = stem(text);
    shape.values.iter().any(|value| {
        value.contains(text) || value.contains(&stem) || (value.len() > 2 && text.contains(value.as_str()))
    }) || shape.names.iter().any(|name| name.contains(text))
}

/// Reports a year of the question that no value of the query contains.
fn missing_year(shape: &QueryShape, question: &ParsedQuestion, named: &[QuestionValue]) -> Option<SemanticFinding> {
    let year = named.iter().find(|named| {
        named.kind == QuestionValueKind::Year && !has_value(shape, &named.text) && !has_value(shape, &named.text[2..])
    })?;
    let at = question.find_word(&[year.text.as_str()])?;
    let is_in = matches!(
        question.word_at(at.wrapping_sub(1)),
        "in" | "during" | "of" | "year" | "since" | "for" | "from" | "before" | "after" | "until" | "through"
    );
    let is_plain = is_plain_year(shape, question, &year.text);
    let confidence = match (shape.values.is_empty() && !shape.has_condition, is_in) {
        (true, true) => 97,
        (true, false) => 88,
        (_, true) if is_plain => 96,
        _ => 66,
    };
    let message = format!("the question names the year {}, but the query has no such value", year.text);
    let advice = format!("Filter by the year {}.", year.text);
    Some(
        SemanticFinding::new(SqlCode::FilterExpected, confidence, message)
            .at(&shape.top().range)
            .advice(advice)
            .about(year.text.clone()),
    )
}

/// Reports whether a short question mentions a single year without a word that refers to another one, and the query
/// filters by another year or by values without digits.
fn is_plain_year(shape: &QueryShape, question: &ParsedQuestion, year: &str) -> bool {
    const OTHER_YEAR_WORDS: [&str; 14] = [
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
    let years: Vec<&String> = shape.compared_values.iter().filter(|value| is_year(value)).collect();
    let is_other_year =
        matches!(years.as_slice(), [other] if other.as_str() != year) && shape.compared_values.len() == 1;
    let has_none =
        !shape.compared_values.is_empty() && shape.values.iter().all(|value| !has_digit(value) && value != "now");
    question.words.len() <= 9
        && numbers == 1
        && !question.has_word(&OTHER_YEAR_WORDS)
        && shape.blocks.len() == 1
        && (is_other_year || has_none)
}

/// Reports a restriction such as `only the premium customers` if nothing in the query is related to it.
fn missing_restriction(
    input: &SemanticInput<'_>,
    question: &ParsedQuestion,
    schema: &BTreeSet<String>,
) -> Option<SemanticFinding> {
    let shape = input.shape;
    let at = question.find_word(&["only", "just", "solely"])?;
    let mut next = at + 1;
    while matches!(
        question.word_at(next),
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
    let is_noun_behind = is_schema_word(&follower.stem, schema);
    let is_known = is_schema_word(&word.stem, schema)
        || NON_VALUE_WORDS.contains(&word.lower.as_str())
        || question.number_at(next).is_some();
    let is_value =
        word.is_quoted || (is_noun_behind && !is_known && question.superlatives.iter().all(|cue| cue.at != next));
    if !is_value || has_value(shape, &word.lower) || shape.has_negation {
        return None;
    }
    let is_free = shape.values.is_empty() && !shape.has_condition && shape.blocks.iter().all(|block| !block.has_filter);
    let confidence = if is_free && shape.top().limit == super::query_shape::RowLimit::All { 96 } else { 50 };
    let words = question.quote(at, next + 2);
    let message = format!("the question asks for \"{words}\", but the query has no such condition");
    let advice = format!("Filter by \"{}\".", word.text);
    Some(
        SemanticFinding::new(SqlCode::FilterExpected, confidence, message)
            .at(&shape.top().range)
            .advice(advice)
            .about(word.text.clone()),
    )
}

/// Words that select columns or rows and are not values.
const NON_VALUE_WORDS: [&str; 27] = [
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
fn missing_filter(
    input: &SemanticInput<'_>,
    question: &ParsedQuestion,
    named: &[QuestionValue],
) -> Option<SemanticFinding> {
    let shape = input.shape;
    if shape.has_condition || shape.blocks.iter().any(|block| block.has_filter) {
        return None;
    }
    let missing: Vec<&QuestionValue> = named.iter().filter(|named| !has_value(shape, &named.text)).collect();
    let first = missing.iter().min_by_key(|named| named.kind)?;
    let at = question.words.iter().position(|word| word.lower == first.text)?;
    let before = |back: usize| question.word_at(at.wrapping_sub(back));
    let is_plain = shape.values.is_empty()
        && question.words.len() <= 14
        && match first.kind {
            QuestionValueKind::Quoted => (1..=3).all(|back| {
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
            QuestionValueKind::Number => {
                matches!(before(1), "above" | "over" | "below" | "under" | "exceeding" | "than" | "exceeds" | "equals")
                    || (before(2) == "at" && matches!(before(1), "least" | "most"))
            }
            _ => false,
        };
    let confidence = match (first.kind, missing.len()) {
        // A column such as `A13` may hold the numbers of one year.
        (QuestionValueKind::Year, 1) if has_opaque_column(input) => 66,
        _ if is_plain => 96,
        (QuestionValueKind::Year | QuestionValueKind::Date | QuestionValueKind::Quoted, _) => 85,
        // `all 50 states` are all states.
        (QuestionValueKind::Number, _) if matches!(before(1), "all" | "the") && is_plural(question, at + 1) => 60,
        (QuestionValueKind::Number, _) => 78,
        // In `which Adviser`, the capitalized word is a thing and not a name.
        (QuestionValueKind::Name, 1) if matches!(before(1), "which" | "what" | "each" | "every" | "many" | "all") => 66,
        // A noun may be capitalized without reason: `the name and State of the airway`.
        (QuestionValueKind::Name, 1) if is_listed_column(question, at) => 66,
        (QuestionValueKind::Name, 2..) => 78,
        // A word in all capitals may be a format or an abbreviation.
        (QuestionValueKind::Name, _) if question.words[at].text.chars().skip(1).all(char::is_lowercase) => 74,
        (QuestionValueKind::Name, _) => 66,
    };
    let message = format!("the question names \"{}\", but the query has no value at all", first.text);
    let found = SemanticFinding::new(SqlCode::FilterExpected, confidence, message).at(&shape.top().range);
    Some(found.advice("Add the WHERE that the question asks for.").about(first.text.clone()))
}

/// Reports whether a word belongs to a list of requested columns, and is therefore not a value.
fn is_listed_column(question: &ParsedQuestion, at: usize) -> bool {
    const BEFORE: [&str; 14] =
        ["and", "or", "the", "a", "an", "their", "its", "his", "her", "show", "list", "give", "find", "name"];
    let word = &question.words[at];
    BEFORE.contains(&question.word_at(at.wrapping_sub(1)))
        || word.is_after_punctuation
        || ATTRIBUTE_NOUNS.contains(&word.stem.as_str())
}

/// Nouns for attributes of many kinds of things. A question may capitalize them, but they are not values.
const ATTRIBUTE_NOUNS: [&str; 46] = [
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
fn has_opaque_column(input: &SemanticInput<'_>) -> bool {
    let is_opaque = |name: &&String| {
        let mut signs = name.chars();
        signs.next().is_some_and(char::is_alphabetic) && name.len() > 1 && signs.all(|sign| sign.is_ascii_digit())
    };
    input.shape.names.iter().filter(is_opaque).any(|name| input.catalog.tables_with(name).next().is_some())
}

/// Reports whether a word is part of the long form of an abbreviation in the question that names a column: `Online
/// Mendelian Inheritance in Man (OMIM)`.
fn is_abbreviation_part(question: &ParsedQuestion, at: usize, schema: &BTreeSet<String>) -> bool {
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

fn is_plural(question: &ParsedQuestion, at: usize) -> bool {
    question.words.get(at).is_some_and(|word| word.lower != word.stem)
}

/// Reports a query without a condition if the question mentions a place or a kind that is not a name of the schema:
/// `lakes in california`, `patients with diabetes`.
fn missing_place_filter(
    shape: &QueryShape,
    question: &ParsedQuestion,
    schema: &BTreeSet<String>,
) -> Option<SemanticFinding> {
    if shape.has_condition || shape.blocks.iter().any(|block| block.has_filter) {
        return None;
    }
    let at = (0..question.words.len()).find(|at| {
        let word = &question.words[*at];
        let before = |back: usize| question.word_at(at.wrapping_sub(back));
        let is_led =
            PLACE_LEAD_WORDS.contains(&before(1)) || (before(1) == "the" && PLACE_LEAD_WORDS.contains(&before(2)));
        let is_word = word.lower.len() > 2
            && word.lower.chars().all(char::is_alphabetic)
            && !COMMON_WORDS.contains(&word.lower.as_str());
        is_led
            && is_word
            && !is_schema_word(&word.stem, schema)
            && !has_value(shape, &word.lower)
            && !is_schema_word(&word.stem, &shape.words)
            && question.superlatives.iter().all(|cue| cue.at != *at)
    })?;
    let word = &question.words[at];
    let message = format!(
        "the question mentions \"{}\", but the query has no condition",
        question.quote(at.saturating_sub(1), at + 1)
    );
    let found = SemanticFinding::new(SqlCode::FilterExpected, 62, message).at(&shape.top().range);
    Some(found.advice("Add the WHERE that the question asks for.").about(word.lower.clone()))
}

/// Words that precede a place, a name or a kind.
const PLACE_LEAD_WORDS: [&str; 12] =
    ["in", "at", "from", "through", "near", "named", "called", "bordering", "border", "borders", "neighbor", "with"];

/// Words that may follow a word of [`PLACE_LEAD_WORDS`] and are not values.
const COMMON_WORDS: [&str; 60] = [
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

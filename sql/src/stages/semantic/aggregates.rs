//! Checks the aggregate that the question asks for: count, sum, average, maximum, minimum.

mod alone;

use proctor_core::sql::SqlCode;

use super::extreme::Extreme;
use super::question::{Question, Way};
use super::shape::{Aggregate, Figure, Item, Limit, Name, Shape};
use super::words::{are_kin, parts, stem};
use super::{Finding, Sheet};
use alone::{against_its_name, mixed, twice};

/// Words that ask for a share, which needs a division.
const SHARE: [&str; 22] = [
    "percent",
    "percentage",
    "ratio",
    "proportion",
    "rate",
    "share",
    "fraction",
    "per",
    "growth",
    "increase",
    "decrease",
    "difference",
    "compared",
    "times",
    "percentages",
    "ratios",
    "rates",
    "probability",
    "likelihood",
    "faster",
    "deviation",
    "gap",
];
const AVERAGE: [&str; 8] = ["average", "averages", "avg", "mean", "typical", "typically", "averaged", "expected"];
const TOTAL: [&str; 7] = ["total", "sum", "totals", "altogether", "combined", "overall", "cumulative"];

pub(super) fn check(sheet: &Sheet<'_>, question: &Question) -> Vec<Finding> {
    let shape = sheet.shape;
    let mut found: Vec<Finding> = Vec::new();
    for item in shape.blocks.iter().flat_map(|block| &block.items) {
        found.extend(against_its_name(item));
        found.extend(mixed(item));
        found.extend(twice(item));
    }
    found.extend(shape.aggregates().filter_map(|aggregate| other_end(shape, aggregate, question)));
    found.extend(average(shape, question));
    found.extend(sum(shape, question));
    found.extend(count(sheet, question));
    found.extend(no_figure(shape));
    found.extend(loose(shape));
    found
}

/// Reports a comparison of one value with a subquery that returns a value for every row.
fn loose(shape: &Shape) -> Option<Finding> {
    let place = shape.loose.first()?;
    let message = "a value is compared with a query that gives one for every row of a table";
    let found = Finding::new(SqlCode::AggregateExpected, 84, message).at(place);
    Some(found.advice("Aggregate them, for instance with AVG or MAX, or use IN."))
}

fn other(confidence: u8, message: impl Into<String>, aggregate: &Aggregate, be: Figure) -> Finding {
    let found = Finding::new(SqlCode::OtherAggregate, confidence, message).at(&aggregate.place);
    found.advice(format!("Use {}.", be.as_sql()))
}

/// Reports MAX where the question asks for the lowest value, and MIN where it asks for the highest.
fn other_end(shape: &Shape, aggregate: &Aggregate, question: &Question) -> Option<Finding> {
    let item = shape
        .blocks
        .iter()
        .flat_map(|block| &block.items)
        .find(|item| item.aggregates.iter().any(|other| other.place == aggregate.place))?;
    if shape.has(Figure::Max) && shape.has(Figure::Min) {
        return None;
    }
    let extreme = Extreme::of_aggregate(aggregate, item)?;
    let (cue, way, is_named) = extreme.meant(question)?;
    if way == extreme.way {
        return None;
    }
    let be = if way == Way::High { Figure::Max } else { Figure::Min };
    let words = question.quote(cue.at, cue.at + 3);
    let confidence = match is_named {
        _ if item.is_aggregate && extreme.is_plain(question, cue, shape) => 96,
        true => 88,
        false => 80,
    };
    let message = format!("the question asks for \"{words}\", and the query takes {}", aggregate.figure.as_sql());
    Some(other(confidence, message, aggregate, be))
}

/// Reports an average that the question does not ask for, and a missing average that it asks for.
fn average(shape: &Shape, question: &Question) -> Vec<Finding> {
    let averages: Vec<&Aggregate> =
        shape.aggregates().filter(|aggregate| aggregate.figure == Figure::Average).collect();
    let is_asked = question.find(&AVERAGE);
    let total = question.find(&TOTAL);
    match (averages.first(), is_asked) {
        (Some(average), None) => {
            let is_share = question.has(&SHARE);
            let is_of_column = average
                .columns
                .iter()
                .any(|name| parts(&name.column).iter().any(|part| AVERAGE.contains(&part.as_str())));
            if (is_share && average.is_of_condition) || is_of_column {
                return Vec::new();
            }
            let is_one = shape.aggregates().count() == 1 && shape.top().items.iter().any(|item| item.is_aggregate);
            let confidence = match (total.is_some() || question.says(&["how many", "how much"]), is_share) {
                (true, false)
                    if is_one && total.is_some_and(|at| question.at(at) != "overall") && average.column.is_some() =>
                {
                    96
                }
                (true, false) => 85,
                (true, true) if is_total_per(shape, question) && average.column.is_some() => 80,
                (false, false) => 60,
                _ => 50,
            };
            vec![other(confidence, "the query averages, and the question asks for no average", average, Figure::Sum)]
        }
        (None, Some(at)) => no_average(shape, question, at, total.is_some()).into_iter().collect(),
        _ => Vec::new(),
    }
}

/// Reports whether the question asks for a total for each of something, without a ratio.
fn is_total_per(shape: &Shape, question: &Question) -> bool {
    let is_ratio = SHARE.iter().any(|word| *word != "per" && question.has(&[*word]));
    question.find(&TOTAL).is_some_and(|at| question.at(at) != "overall") && !is_ratio && !shape.has_division
}

fn no_average(shape: &Shape, question: &Question, at: usize, is_total: bool) -> Option<Finding> {
    let is_stored = AVERAGE.iter().any(|word| shape.words.contains(*word));
    if let Some(found) = held_against(shape, question, at).filter(|_| !is_stored) {
        return Some(found);
    }
    let is_verb = match question.at(at) {
        "mean" => at > 0 && !matches!(question.at(at - 1), "the" | "a" | "and" | "or" | "arithmetic" | "overall"),
        // `papers that are typically cited` does not ask for an average.
        word => matches!(word, "expected" | "typically"),
    };
    let is_counted = question.says(&["how many", "number of"])
        && (shape.has(Figure::Count) || shape.has(Figure::Sum))
        && !is_sum_of_numbers(shape, question, at);
    if shape.has_division
        || is_verb
        || is_counted
        || question.says(&["above average", "below average", "than average", "the average of all"])
    {
        return None;
    }
    let words = question.quote(at, at + 3);
    let is_head = is_head(question, at);
    match shape.top().aggregates().next() {
        Some(figure) if !is_total && !matches!(figure.figure, Figure::Other) && !is_stored => {
            let top = shape.top();
            let is_one = shape.aggregates().count() == 1
                && top.items.len() == 1
                && top.items[0].is_aggregate
                && shape.blocks.len() == 1;
            let is_of_groups = top.groups == 1
                && shape.blocks.len() == 1
                && shape.aggregates().count() == 1
                && top.items.len() == 2
                && top.items.iter().all(|item| item.is_column || item.is_aggregate)
                && question.words.len() <= 8;
            let is_certain = (is_one || is_of_groups) && is_head && question.cues.is_empty() && figure.column.is_some();
            let confidence = match (is_certain, is_head) {
                (true, _) => 96,
                (_, true) => 84,
                _ => 62,
            };
            let message = format!("the question asks for \"{words}\", and the query gives {}", figure.figure.as_sql());
            Some(other(confidence, message, figure, Figure::Average))
        }
        None if !is_stored => {
            let message = format!("the question asks for \"{words}\", and the query averages nothing");
            let confidence = match is_head && question.cues.is_empty() {
                true if is_every_value(shape) && question.words.len() <= 7 => 96,
                true => 78,
                false => 55,
            };
            Some(
                Finding::new(SqlCode::AggregateExpected, confidence, message).at(&shape.top().place).advice("Use AVG."),
            )
        }
        _ => None,
    }
}

/// Reports whether the query returns one column of every row of a table.
fn is_every_value(shape: &Shape) -> bool {
    let [block] = shape.blocks.as_slice() else { return false };
    let is_column = matches!(block.items.as_slice(), [item] if item.is_column && !is_key(&item.bare[0].column));
    is_column
        && block.groups == 0
        && !block.has_filter
        && block.tables == 1
        && !block.is_distinct
        && block.limit == Limit::All
}

/// Reports whether the question asks for the average of a stored number (`the average number of pages`) and the query
/// adds it up.
fn is_sum_of_numbers(shape: &Shape, question: &Question, at: usize) -> bool {
    let [block] = shape.blocks.as_slice() else { return false };
    let mut figures = shape.aggregates();
    let is_sum = |sum: &Aggregate| sum.figure == Figure::Sum && sum.column.is_some() && block.groups <= 1;
    question.at(at + 1) == "number"
        && question.at(at + 2) == "of"
        && figures.next().is_some_and(is_sum)
        && figures.next().is_none()
}

/// Reports an aggregate other than the average with which rows are compared: `prices above the average`.
fn held_against(shape: &Shape, question: &Question, at: usize) -> Option<Finding> {
    let is_bar =
        (1..=3).any(|back| at >= back && matches!(question.at(at - back), "above" | "below" | "than" | "exceeds"));
    let [top, inner] = shape.blocks.as_slice() else { return None };
    let [item] = inner.items.as_slice() else { return None };
    let figure = item.aggregates.first().filter(|_| item.is_aggregate && is_bar && inner.groups == 0)?;
    let is_other = matches!(figure.figure, Figure::Sum | Figure::Max | Figure::Min) && figure.column.is_some();
    if !is_other || top.aggregates().next().is_some() {
        return None;
    }
    let words = question.quote(at, at + 3);
    let message =
        format!("the question asks for \"{words}\", and the query holds rows against {}", figure.figure.as_sql());
    Some(other(80, message, figure, Figure::Average))
}

/// Reports whether a word belongs to the beginning of the question, and not to a condition.
fn is_head(question: &Question, at: usize) -> bool {
    let is_told = at >= 2
        && question.at(at - 1) == "the"
        && matches!(question.at(at - 2), "is" | "are" | "was" | "were" | "calculate" | "compute");
    let is_bound =
        |before| matches!(question.at(before), "which" | "who" | "whose" | "with" | "where" | "list" | "than");
    is_told || (at <= 4 && !(0..at).any(is_bound))
}

/// Reports a missing sum where the question asks for a total.
fn sum(shape: &Shape, question: &Question) -> Option<Finding> {
    let at = question.find(&["total", "sum"]).or_else(|| question.phrase("how much"))?;
    if let Some(found) = not_added(shape, question, at) {
        return Some(found);
    }
    if shape.aggregates().next().is_some() || shape.has_division || shape.has_addition || question.has(&SHARE) {
        return None;
    }
    let is_stored = ["total", "sum", "count", "num"].iter().any(|word| shape.words.contains(*word));
    // `the sum that was paid` is an amount.
    let is_amount = question.at(at) == "sum" && matches!(question.at(at + 1), "that" | "which");
    if is_stored || is_amount || is_abbreviated(shape, question, at) {
        return None;
    }
    let words = question.quote(at, at + 3);
    let message = format!("the question asks for \"{words}\", and the query adds nothing up");
    let confidence = if is_head(question, at) && question.at(at) != "how" { 78 } else { 55 };
    Some(
        Finding::new(SqlCode::AggregateExpected, confidence, message)
            .at(&shape.top().place)
            .advice("Use SUM or COUNT."),
    )
}

/// Reports whether a column name abbreviates the words from `at` on: `T-CHO` for `total cholesterol`.
fn is_abbreviated(shape: &Shape, question: &Question, at: usize) -> bool {
    let stands_for = |name: &String| {
        let parts = parts(name);
        parts.len() > 1
            && parts.iter().enumerate().all(|(behind, part)| question.at(at + behind).starts_with(part.as_str()))
    };
    shape.names.iter().any(stands_for)
}

/// Reports another aggregate where the question asks for a sum.
fn not_added(shape: &Shape, question: &Question, at: usize) -> Option<Finding> {
    let [item] = shape.top().items.as_slice() else { return None };
    let figure = item.aggregates.first().filter(|_| item.is_aggregate && shape.aggregates().count() == 1)?;
    let column = figure.column.as_ref()?;
    let is_total = is_head(question, at) && question.at(at) != "how" && question.cues.is_empty();
    if !is_total || question.has(&SHARE) || question.has(&AVERAGE) || shape.has_division {
        return None;
    }
    let is_named = question
        .words
        .iter()
        .skip(at)
        .take(5)
        .any(|word| parts(&column.column).iter().any(|part| are_kin(part, &word.stem)));
    let confidence = match figure.figure {
        Figure::Max | Figure::Min => 96,
        Figure::Count
            if is_named && !is_key(&column.column) && !question.says(&["number of", "count of", "total number"]) =>
        {
            80
        }
        _ => return None,
    };
    let message = format!(
        "the question asks for \"{}\", and the query gives {}",
        question.quote(at, at + 3),
        figure.figure.as_sql()
    );
    Some(other(confidence, message, figure, Figure::Sum))
}

/// Reports a missing count where the question asks for a number.
fn count(sheet: &Sheet<'_>, question: &Question) -> Option<Finding> {
    let shape = sheet.shape;
    let many = question.phrase("how many");
    let at = many.or_else(|| number_of(question)).or_else(|| question.phrase("count the"))?;
    let words = question.quote(at, at + 4);
    let top = shape.top();
    let Some(first) = shape.aggregates().next() else {
        if gives_number(sheet, question, at) || is_column_of_that_name(shape, question, at) {
            return None;
        }
        let is_list = is_followed_by_list(question);
        let confidence = if is_list || is_time_since(shape, question, at) {
            60
        } else if many.is_some_and(|at| at == 0 || question.words[at].is_after_pause) {
            85
        } else if many.is_some() {
            68
        } else if at <= 3 && is_list_of_keys(shape) {
            80
        } else {
            64
        };
        let is_certain = many == Some(0) && is_list_of_names(shape, question) && is_of_schema(sheet, question, at + 2);
        let confidence = if is_certain { 96 } else { confidence };
        let message = format!("the question asks for \"{words}\", and the query counts nothing");
        return Some(Finding::new(SqlCode::AggregateExpected, confidence, message).at(&top.place).advice("Use COUNT."));
    };
    let is_counted = shape.has(Figure::Count) || shape.has(Figure::Sum) || shape.has(Figure::Other);
    if let Some(found) = sum_of_other(sheet, question, at) {
        return Some(found);
    }
    if top.aggregates().next().is_none()
        && shape.blocks.len() > 1
        && !shape.has(Figure::Count)
        && !gives_number(sheet, question, at)
        && !is_average_of_numbers(shape, question, at)
    {
        let message = format!("the question asks for \"{words}\", and the query counts nothing");
        return Some(Finding::new(SqlCode::AggregateExpected, 68, message).at(&top.place).advice("Use COUNT."));
    }
    let column = first.column.as_ref()?;
    if is_counted || shape.blocks.len() > 1 || top.aggregates().next().is_none() {
        return None;
    }
    let is_key = is_key(&column.column);
    let confidence = match (is_key, is_of(question, at, &column.column)) {
        (true, _) if at <= 3 && top.items.len() == 1 => 97,
        (_, false)
            if many == Some(0)
                && question.cues.is_empty()
                && !question.has(&SHARE)
                && !question.has(&AVERAGE)
                && top.items.len() == 1
                && first.figure == Figure::Average =>
        {
            96
        }
        (_, false) if question.cues.is_empty() => 65,
        _ => return None,
    };
    let message = format!(
        "the question asks for \"{words}\", and the query gives {} of `{}`",
        first.figure.as_sql(),
        column.column
    );
    Some(other(confidence, message, first, Figure::Count))
}

/// Reports whether a second clause asks for the rows themselves: `How many cards are black? List their names.`
fn is_followed_by_list(question: &Question) -> bool {
    const LISTS: [&str; 11] =
        ["list", "show", "name", "give", "indicate", "state", "provide", "display", "mention", "specify", "write"];
    let begins = |at: usize| {
        let word = &question.words[at];
        let is_polite = question.at(at.wrapping_sub(1)) == "please";
        word.is_first || word.is_after_pause || is_polite || question.at(at.wrapping_sub(1)) == "and"
    };
    let is_imperative = |at: usize| LISTS.contains(&question.at(at)) && begins(at);
    (1..question.words.len()).any(is_imperative)
        || question.says(&["list them", "show them", "name them", "list their", "show their"])
}

/// Reports whether the question asks for a number of years or another unit of time, and the query returns the start
/// date.
fn is_time_since(shape: &Shape, question: &Question, at: usize) -> bool {
    const UNITS: [&str; 7] = ["year", "month", "week", "day", "hour", "semester", "term"];
    let is_unit = question.words.get(at + 2).is_some_and(|word| UNITS.contains(&word.stem.as_str()));
    let is_date = |part: &String| matches!(part.as_str(), "year" | "date" | "month" | "day" | "time" | "since");
    let mut names = shape.top().items.iter().flat_map(|item| &item.bare);
    is_unit && names.any(|name| parts(&name.column).iter().any(is_date))
}

/// Reports whether a word of the question occurs in the name of a table or column.
fn is_of_schema(sheet: &Sheet<'_>, question: &Question, at: usize) -> bool {
    let Some(word) = question.words.get(at) else { return false };
    let is_in = |name: &String| parts(name).iter().any(|part| are_kin(part, &word.stem));
    let tables = &sheet.catalog.tables;
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
fn is_column_of_that_name(shape: &Shape, question: &Question, at: usize) -> bool {
    // `how many total credits`
    let is_adjective = matches!(question.at(at + 2), "total" | "more" | "different");
    let Some(noun) = question.words.get(at + 2 + usize::from(is_adjective)) else { return false };
    let is_plural = noun.lower != noun.stem;
    let is_it = |name: &Name| {
        let column = name.column.to_lowercase();
        is_plural && column == noun.lower || are_synonyms(&stem(&column), &noun.stem)
    };
    shape.top().items.iter().flat_map(|item| &item.bare).any(is_it)
}

/// Reports whether `the average number of products` is the average of a stored number: the query averages a column.
fn is_average_of_numbers(shape: &Shape, question: &Question, at: usize) -> bool {
    AVERAGE.contains(&question.at(at.wrapping_sub(1))) && shape.has(Figure::Average)
}

/// Reports whether the query is a plain list of keys.
fn is_list_of_keys(shape: &Shape) -> bool {
    let is_list = |item: &Item| item.is_column && item.bare.iter().all(|name| is_key(&name.column));
    shape.blocks.len() == 1
        && shape.top().groups == 0
        && matches!(shape.top().items.as_slice(), [item] if is_list(item))
}

/// Reports whether the query is a plain list of keys or names.
fn is_list_of_names(shape: &Shape, question: &Question) -> bool {
    let top = shape.top();
    let is_name = |column: &str| {
        is_key(column) || parts(column).last().is_some_and(|last| matches!(last.as_str(), "name" | "title" | "email"))
    };
    shape.blocks.len() == 1
        && question.words.len() <= 14
        && question.words.iter().skip(1).all(|word| !word.is_first)
        && matches!(top.items.as_slice(), [item] if item.is_column && item.bare.iter().all(|name| is_name(&name.column)))
}

/// Reports a sum of another column where the question asks for a number of rows.
fn sum_of_other(sheet: &Sheet<'_>, question: &Question, at: usize) -> Option<Finding> {
    const COUNTS: [&str; 10] = ["count", "num", "number", "total", "quantity", "qty", "stock", "n", "no", "unit"];
    let shape = sheet.shape;
    let [item] = shape.top().items.as_slice() else { return None };
    let sum =
        item.aggregates.first().filter(|sum| sum.figure == Figure::Sum && item.is_aggregate && !sum.is_of_condition)?;
    let column = sum.column.as_ref()?;
    let noun = question.words.get(at + 2)?;
    let is_table = shape.tables.iter().any(|table| parts(table).last().is_some_and(|last| *last == noun.stem));
    let counts = parts(&column.column).iter().any(|part| COUNTS.contains(&part.as_str()) || are_kin(part, &noun.stem));
    if shape.blocks.len() > 1 || shape.aggregates().count() > 1 || !is_table || counts || is_key(&column.column) {
        return None;
    }
    let message =
        format!("the question asks for \"{}\", and the query adds up `{}`", question.quote(at, at + 3), column.column);
    Some(other(85, message, sum, Figure::Count))
}

/// Returns the position of words that ask for a number of things. A telephone number does not count.
fn number_of(question: &Question) -> Option<usize> {
    let at = question.phrase("number of").or_else(|| question.phrase("count of"))?;
    let before = question.at(at.wrapping_sub(1));
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

fn is_key(column: &str) -> bool {
    parts(column)
        .last()
        .is_some_and(|last| matches!(last.as_str(), "id" | "uuid" | "key" | "code") || last.ends_with("id"))
}

/// Reports whether a name is related to the counted thing.
fn is_of(question: &Question, at: usize, name: &str) -> bool {
    let nouns =
        || question.words.iter().skip(at + 2).take(4).map(|word| word.stem.as_str()).filter(|stem| stem.len() > 2);
    parts(name).iter().any(|part| nouns().any(|noun| are_kin(part, noun)))
}

/// Reports whether the query returns a stored number: a numeric column that is not a key.
fn gives_number(sheet: &Sheet<'_>, question: &Question, at: usize) -> bool {
    const STORED: [&str; 9] = ["count", "num", "number", "total", "amount", "quantity", "qty", "population", "no"];
    let is_number = |name: &Name| {
        let column = sheet.catalog.tables_with(&name.column).find_map(|table| table.column(&name.column));
        let kind = column.map(|column| column.kind.to_ascii_uppercase()).unwrap_or_default();
        let has_numbers = ["INT", "REAL", "NUM", "DOUB", "FLOA", "DEC"].iter().any(|part| kind.contains(part));
        let is_told = parts(&name.column).iter().any(|part| STORED.contains(&part.as_str()));
        !is_key(&name.column)
            && (is_told
                || (has_numbers && column.is_some_and(|column| column.key == 0))
                || (kind.is_empty() && is_of(question, at, &name.column)))
    };
    let top = sheet.shape.top();
    sheet.shape.has_division
        || sheet.shape.has_set_operation
        || top.items.iter().any(|item| {
            item.is_wildcard
                || item.has_query
                || item.has_window
                || (item.bare.is_empty() && item.aggregates.is_empty())
                || item.bare.iter().any(is_number)
        })
}

/// Reports a column that is named after an aggregate without being one: `order_id AS number_of_orders`.
fn no_figure(shape: &Shape) -> Vec<Finding> {
    let made: Vec<&str> =
        shape.blocks.iter().skip(1).flat_map(|block| &block.items).filter_map(|item| item.alias.as_deref()).collect();
    let items = shape.blocks.iter().flat_map(|block| block.items.iter().map(move |item| (block, item)));
    items
        .filter_map(|(block, item)| {
            let alias = item.alias.as_deref().filter(|_| item.is_column)?;
            let [column] = item.bare.as_slice() else { return None };
            let own = parts(&column.column);
            let figure = parts(alias).into_iter().find(|word| {
                matches!(
                    word.as_str(),
                    "num" | "number" | "count" | "total" | "avg" | "average" | "sum" | "max" | "min"
                ) && !own.contains(word)
            })?;
            if made.iter().any(|made| made.eq_ignore_ascii_case(&column.column)) {
                return None;
            }
            let confidence = if block.groups > 0 { 84 } else { 74 };
            let message = format!("`{}` is named `{alias}`, and nothing makes a {figure} of it", column.column);
            let found = Finding::new(SqlCode::AggregateExpected, confidence, message).at(&item.place);
            Some(found.advice("Use the aggregate that the name promises."))
        })
        .collect()
}

//! Compares every aggregate, in its clause, with the aggregates that the question asks for.
//!
//! Two rules apply: an aggregate needs a word of the question that asks for it, and each aggregate that the question
//! asks for must occur in the query (or the query sorts its rows and limits them).

mod names;

use proctor_core::sql::SqlCode;

use super::extreme::Extreme;
use super::question::{Cue, Question, Scale, Way};
use super::shape::{Aggregate, Figure, Item, Limit, Shape};
use super::words::{Word, are_kin, parts};
use super::{Finding, Sheet};
use names::{counts, holds_numbers, is_key, is_named, is_superlative, is_telling};

/// The clause that contains an aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Clause {
    Select,
    Having,
    OrderBy,
}

/// An aggregate with its context.
struct Use<'a> {
    aggregate: &'a Aggregate,
    clause: Clause,
    is_top: bool,
    /// The column of the result that contains it.
    item: Option<&'a Item>,
}

/// Words that ask for an average.
const AVERAGE: [&str; 11] = [
    "average",
    "averages",
    "avg",
    "mean",
    "typical",
    "typically",
    "averaged",
    "averagely",
    "expected",
    "normally",
    "usually",
];
/// Words that ask for a sum.
const TOTAL: [&str; 14] = [
    "total",
    "totals",
    "sum",
    "sums",
    "summed",
    "altogether",
    "combined",
    "overall",
    "cumulative",
    "totaling",
    "totalling",
    "aggregate",
    "entire",
    "accumulated",
];
/// Words that suggest a total of money.
const MONEY: [&str; 14] = [
    "spent", "spend", "spending", "revenue", "revenues", "sales", "earned", "earn", "earnings", "paid", "sold",
    "profit", "income", "turnover",
];
/// Words that ask for a part of a whole.
const SHARE: [&str; 14] = [
    "percent",
    "percentage",
    "percentages",
    "ratio",
    "ratios",
    "proportion",
    "rate",
    "rates",
    "share",
    "fraction",
    "probability",
    "likelihood",
    "deviation",
    "difference",
];
/// Words that ask for a number of rows.
const COUNT: [&str; 14] = [
    "many",
    "number",
    "numbers",
    "count",
    "counts",
    "counted",
    "counting",
    "quantity",
    "frequency",
    "times",
    "amount",
    "num",
    "nums",
    "quantities",
];
/// Words that ask for an end of a scale without being superlatives.
const ENDS: [&str; 46] = [
    "final",
    "peak",
    "record",
    "up",
    "end",
    "ends",
    "ended",
    "until",
    "start",
    "started",
    "starts",
    "began",
    "begin",
    "begins",
    "since",
    "any",
    "every",
    "all",
    "some",
    "range",
    "limit",
    "ever",
    "exceed",
    "exceeds",
    "previous",
    "past",
    "recent",
    "recently",
    "last",
    "first",
    "new",
    "old",
    "next",
    "late",
    "early",
    "later",
    "earlier",
    "initial",
    "initially",
    "always",
    "extreme",
    "champion",
    "winner",
    "leading",
    "ranked",
    "ceiling",
];

/// Words that compare two things on a scale without a bound: `which is cheaper, a or b`.
const COMPARATIVES: [&str; 29] = [
    "higher",
    "lower",
    "greater",
    "larger",
    "smaller",
    "bigger",
    "longer",
    "shorter",
    "older",
    "younger",
    "cheaper",
    "easier",
    "easy",
    "easily",
    "harder",
    "simpler",
    "simple",
    "faster",
    "slower",
    "better",
    "worse",
    "heavier",
    "lighter",
    "taller",
    "less",
    "cheap",
    "inexpensive",
    "soon",
    "fewer",
];
/// Names of columns that are usually averaged.
const RATINGS: [&str; 9] = ["rating", "score", "star", "grade", "velocity", "speed", "temperature", "humidity", "gpa"];

pub(super) fn check(sheet: &Sheet<'_>, question: &Question) -> Vec<Finding> {
    let uses = uses(sheet.shape);
    let mut found: Vec<Finding> = uses.iter().filter_map(|figure| unasked(sheet, question, figure)).collect();
    found.extend(missing_end(sheet.shape, question));
    found.extend(missing_count(sheet, question, &uses));
    found
}

/// Returns every aggregate with its clause.
fn uses(shape: &Shape) -> Vec<Use<'_>> {
    let mut found = Vec::new();
    for (at, block) in shape.blocks.iter().enumerate() {
        let is_top = at == 0;
        for item in &block.items {
            let of_item = item.aggregates.iter();
            found.extend(of_item.map(|aggregate| Use { aggregate, clause: Clause::Select, is_top, item: Some(item) }));
        }
        let having = block.having.iter().map(|aggregate| (aggregate, Clause::Having));
        let ordering = block.ordering.iter().map(|aggregate| (aggregate, Clause::OrderBy));
        let later = having.chain(ordering);
        found.extend(later.map(|(aggregate, clause)| Use { aggregate, clause, is_top, item: None }));
    }
    found.retain(|figure| !figure.aggregate.is_windowed);
    found
}

/// Reports an aggregate that no word of the question asks for.
fn unasked(sheet: &Sheet<'_>, question: &Question, figure: &Use<'_>) -> Option<Finding> {
    let confidence = match figure.aggregate.figure {
        Figure::Max | Figure::Min => unasked_end(sheet, question, figure)?,
        Figure::Sum => unasked_sum(sheet, question, figure)?.min(most_of_short_form(sheet, question)),
        Figure::Average => unasked_average(question, figure)?.min(most_of_short_form(sheet, question)),
        Figure::Count => unasked_count(sheet, question, figure)?,
        Figure::Other => return None,
    };
    let of = figure.aggregate.column.as_ref().map_or_else(String::new, |name| format!(" of `{}`", name.column));
    let clause = match figure.clause {
        Clause::Select => "returns",
        Clause::Having => "filters groups by",
        Clause::OrderBy => "sorts by",
    };
    let name = figure.aggregate.figure.as_sql();
    let message = format!("the query {clause} {name}{of}, and no word of the question asks for that");
    let found = Finding::new(SqlCode::OtherAggregate, confidence, message).at(&figure.aggregate.place);
    Some(found.advice(advice(question)))
}

/// Returns the maximum confidence, which is lower if an abbreviation such as `ASP` may stand for an aggregate.
fn most_of_short_form(sheet: &Sheet<'_>, question: &Question) -> u8 {
    let is_short_form = |word: &Word| {
        (3..=6).contains(&word.text.len())
            && word.text.chars().all(|letter| letter.is_ascii_uppercase())
            && !sheet.shape.values.iter().any(|value| value.contains(&word.lower))
            && !sheet.shape.names.iter().any(|name| name.contains(&word.lower))
    };
    let has_lower = question.words.iter().any(|word| word.text.chars().all(|letter| letter.is_ascii_lowercase()));
    if has_lower && question.words.iter().any(|word| !word.is_quoted && is_short_form(word)) { 60 } else { 100 }
}

/// Reports whether the question compares things on a scale, without a bound such as `higher than 5`.
fn compares(question: &Question) -> bool {
    (0..question.words.len())
        .any(|at| COMPARATIVES.contains(&question.at(at)) && (1..=4).all(|behind| question.at(at + behind) != "than"))
}

/// Returns advice about the aggregate that the words of a question suggest.
fn advice(question: &Question) -> &'static str {
    if question.has(&AVERAGE) {
        "Use AVG."
    } else if question.has(&COUNT) {
        "Use COUNT."
    } else if question.has(&TOTAL) {
        "Use SUM."
    } else {
        "Use the aggregate that the question asks for."
    }
}

/// Returns the confidence that MAX or MIN is wrong if no superlative of the question refers to its column.
fn unasked_end(sheet: &Sheet<'_>, question: &Question, figure: &Use<'_>) -> Option<u8> {
    let column = figure.aggregate.column.as_ref()?;
    let is_key = is_key(sheet, column);
    let is_named = is_named(question, column);
    let is_stored =
        parts(&column.column).iter().any(|part| matches!(part.as_str(), "max" | "min" | "maximum" | "minimum"));
    // A step of a longer calculation has an alias, or uses the result of another step.
    let is_step = !figure.is_top && figure.item.is_some_and(|item| item.alias.is_some());
    let is_made = sheet.catalog.tables_with(&column.column).next().is_none();
    if is_stored || is_step || is_made {
        return None;
    }
    let is_later = figure.clause != Clause::Select;
    let is_bound = match is_later {
        // `never had more than 10`, `older than any other`: the query compares every row.
        true => question.has(&["never", "ever", "always"]),
        false => !figure.is_top && question.has(&["than"]),
    };
    let is_end = is_bound
        || compares(question)
        || question.has(&ENDS)
        || question.words.iter().any(|word| is_superlative(&word.lower));
    if question.cues.is_empty() {
        return Some(match (is_end, is_key, is_later) {
            (false, true, _) => 92,
            (false, _, true) => 88,
            (false, _, _) => 82,
            (true, true, true) => 84,
            (true, false, true) if !is_named => 68,
            // The highest key of a period is the last one.
            (true, true, false) if question.has(&["last", "first", "recent", "new", "next", "previous"]) => 60,
            (true, true, false) => 68,
            _ => 40,
        });
    }
    let item = figure.item.cloned().unwrap_or_else(|| Item {
        words: parts(&column.column),
        is_difference: figure.aggregate.is_of_difference,
        ..Item::default()
    });
    let extreme = Extreme::of_aggregate(figure.aggregate, &item)?;
    let is_of_time = |cue: &Cue| matches!(cue.scale, Scale::Time | Scale::Age | Scale::Turn);
    let has_time = question.cues.iter().any(is_of_time) || is_end;
    let is_other_way = extreme.is_of_amount()
        && question.cues.iter().all(|cue| cue.way != extreme.way && is_of_amount(cue))
        && !is_end;
    let is_spent = sheet.shape.extremes() > question.cues.len();
    let is_text = !holds_numbers(sheet, column) && !extreme.is_of_date();
    let is_meant = is_named && (question.sorting.is_some() || extreme.is_named_by_any(question));
    let is_number_asked = question.says(&["how many", "number of"]);
    match (is_later, is_key) {
        (true, true) if !has_time => Some(90),
        (true, false) if is_text && !has_time => Some(84),
        (true, false) if !is_meant && !has_time && !extreme.is_of_date() => Some(80),
        (true, false) if !is_named && !extreme.is_of_date() => Some(68),
        (true, true) => Some(if question.cues.iter().any(is_of_time) { 60 } else { 78 }),
        // `the maximum and minimum codes` asks explicitly for both ends.
        (false, true) if is_end_of_that_name(question, extreme.way) => Some(60),
        (false, true) if !has_time && !is_named => Some(if is_spent { 85 } else { 76 }),
        (false, true) if !has_time && is_number_asked => Some(76),
        _ if is_other_way => Some(if is_named { 84 } else { 68 }),
        (false, false) if is_spent && !is_named && figure.is_top => Some(76),
        (false, false) if is_spent && figure.is_top => Some(66),
        _ => None,
    }
}

/// Reports whether the question contains `maximum` or `minimum` for this end.
fn is_end_of_that_name(question: &Question, way: Way) -> bool {
    question.has(match way {
        Way::High => &["maximum", "max"],
        Way::Low => &["minimum", "min"],
    })
}

fn is_of_amount(cue: &Cue) -> bool {
    matches!(cue.scale, Scale::Amount | Scale::Length)
}

/// Returns the confidence that SUM is wrong if no word of the question asks for a total of its column.
fn unasked_sum(sheet: &Sheet<'_>, question: &Question, figure: &Use<'_>) -> Option<u8> {
    let sum = figure.aggregate;
    let column = sum.column.as_ref().filter(|_| !sum.is_of_condition)?;
    let is_total = question.has(&TOTAL) || question.has(&MONEY) || question.says(&["how much", "in all"]);
    let is_counted = question.has(&COUNT);
    let is_named = is_named(question, column);
    let is_number = holds_numbers(sheet, column) || counts(column);
    if sheet.shape.has_division
        || is_key(sheet, column)
        || is_total && (is_named || is_number)
        || question.has(&SHARE)
        || question.has(&["per"])
    {
        return None;
    }
    let is_asked_average = question.has(&AVERAGE) && !sheet.shape.has(Figure::Average);
    Some(match (is_counted, is_named, is_number) {
        (false, _, _) if is_asked_average => 84,
        (_, _, false) if !is_total => 84,
        (_, false, true) if counts(column) => 50,
        (true, false, true) if !is_of_read_table(sheet, question) => 55,
        (true, false, true) => 78,
        (true, true, true) => 30,
        (false, false, _) => 80,
        (false, true, true)
            if !question.cues.is_empty() || figure.clause == Clause::Having || question.has(&["peak"]) =>
        {
            62
        }
        (false, true, true) => 68,
        _ => 66,
    })
}

/// Reports whether the noun after `how many` names a table that the query reads.
fn is_of_read_table(sheet: &Sheet<'_>, question: &Question) -> bool {
    let at =
        question.phrase("how many").or_else(|| question.phrase("number of")).or_else(|| question.phrase("count of"));
    let Some(at) = at else { return true };
    let mut nouns = question.words.iter().skip(at + 2).take(3);
    nouns.any(|noun| {
        sheet.shape.tables.iter().any(|table| parts(table).last().is_some_and(|last| are_kin(last, &noun.stem)))
    })
}

/// Returns the confidence that AVG is wrong if no word of the question asks for an average.
fn unasked_average(question: &Question, figure: &Use<'_>) -> Option<u8> {
    let average = figure.aggregate;
    let is_stored =
        average.columns.iter().any(|name| parts(&name.column).iter().any(|part| AVERAGE.contains(&part.as_str())));
    if question.has(&AVERAGE) || is_stored || average.is_of_condition {
        return None;
    }
    let is_share = question.has(&SHARE) || question.has(&["per"]);
    let is_rating = average
        .columns
        .iter()
        .any(|name| parts(&name.column).last().is_some_and(|last| RATINGS.iter().any(|rating| last == rating)));
    Some(match (is_share || question.has(&["median"]), is_rating) {
        (true, _) => 50,
        (_, true) => 62,
        _ => 82,
    })
}

/// Returns the confidence that COUNT of a column is wrong if the question asks for another aggregate of the column.
fn unasked_count(sheet: &Sheet<'_>, question: &Question, figure: &Use<'_>) -> Option<u8> {
    let count = figure.aggregate;
    let column = count.column.as_ref().filter(|_| !count.is_distinct)?;
    if is_key(sheet, column) || !is_named(question, column) || is_counted(question) || question.has(&SHARE) {
        return None;
    }
    // In `the total price`, the noun after the word is the column.
    let at = question.find(&["total", "sum", "average", "mean", "maximum", "minimum", "highest", "lowest"])?;
    let is_behind = question
        .words
        .iter()
        .skip(at + 1)
        .take(3)
        .any(|word| parts(&column.column).iter().any(|part| is_telling(part) && are_kin(part, &word.stem)));
    let is_number = holds_numbers(sheet, column);
    match (is_behind, is_number, figure.clause) {
        (true, true, _) => Some(80),
        (true, false, Clause::Select) => Some(60),
        _ => None,
    }
}

/// Reports whether the question asks for a number of things.
fn is_counted(question: &Question) -> bool {
    question.has(&COUNT) || question.has(&["common", "frequent", "frequently", "popular", "often", "once", "twice"])
}

/// Reports a superlative without a matching end in the query.
fn missing_end(shape: &Shape, question: &Question) -> Option<Finding> {
    let top = shape.top();
    let is_plain_figure = top.aggregates().next().is_some();
    if !is_plain_figure || shape.has_division {
        return None;
    }
    let ends = ends(shape)?;
    let cue = question.cues.iter().find(|cue| {
        let is_stored = shape.words.contains(question.at(cue.at)) || is_stored_end(shape, cue.way);
        is_of_amount(cue)
            && !cue.is_of_order
            && cue.number.is_none()
            && !is_stored
            && !ends.contains(&cue.way)
            && !matches!(question.at(cue.at), "most" | "least" | "fewest" | "greatest")
    })?;
    let is_sorted = question.sorting.is_some() || !top.order.is_empty();
    let words = question.quote(cue.at, cue.at + 3);
    let message = format!("the question asks for \"{words}\", and the query takes no such end of any scale");
    let is_figure = matches!(question.at(cue.at), "maximum" | "minimum" | "max" | "min");
    let confidence = match (is_sorted, is_figure) {
        (false, true) => 86,
        (false, false) => 78,
        (true, true) => 72,
        (true, false) => 60,
    };
    let aggregate = top.aggregates().next();
    let place = aggregate.map_or_else(|| top.place.clone(), |aggregate| aggregate.place.clone());
    let be = if cue.way == Way::High { "Use MAX, or sort and cut off." } else { "Use MIN, or sort and cut off." };
    Some(Finding::new(SqlCode::OtherAggregate, confidence, message).at(&place).advice(be))
}

/// Reports whether a column of the query stores an end of a scale.
pub(super) fn is_stored_end(shape: &Shape, way: Way) -> bool {
    let names: &[&str] = match way {
        Way::High => &["max", "maximum", "highest", "peak", "high"],
        Way::Low => &["min", "minimum", "lowest", "low"],
    };
    names.iter().any(|name| shape.words.contains(*name))
}

/// Returns the ends of scales that a query selects; `None` if one of them is ambiguous.
fn ends(shape: &Shape) -> Option<Vec<Way>> {
    let mut found = Vec::new();
    let items = shape.blocks.iter().flat_map(|block| &block.items);
    for item in items {
        for aggregate in &item.aggregates {
            if let Some(extreme) = Extreme::of_aggregate(aggregate, item) {
                found.push(extreme.is_of_amount().then_some(extreme.way)?);
            }
        }
    }
    for block in &shape.blocks {
        if block.later().any(|aggregate| matches!(aggregate.figure, Figure::Max | Figure::Min)) {
            return None;
        }
        let is_cut = block.limit != Limit::All;
        for key in block.order.iter().filter(|_| is_cut).chain(&block.ranks) {
            let extreme = Extreme::of_key(key);
            found.push(extreme.is_of_amount().then_some(extreme.way)?);
        }
    }
    Some(found)
}

/// Reports a missing count where the question asks for a number of things.
fn missing_count(sheet: &Sheet<'_>, question: &Question, uses: &[Use<'_>]) -> Option<Finding> {
    let shape = sheet.shape;
    let at =
        question.phrase("how many").or_else(|| question.phrase("number of")).or_else(|| question.phrase("count of"))?;
    let is_counted = shape.has(Figure::Count) || shape.has(Figure::Sum) || shape.has(Figure::Other);
    if is_counted || shape.has_division {
        return None;
    }
    let first = uses.iter().find(|figure| figure.is_top && figure.clause == Clause::Select)?;
    let column = first.aggregate.column.as_ref().filter(|_| first.item.is_some_and(|item| item.is_aggregate))?;
    let noun = question.words.get(at + 2).map_or("", |word| word.stem.as_str());
    let is_of_noun = parts(&column.column).iter().any(|part| are_kin(part, noun));
    let is_average = first.aggregate.figure == Figure::Average && question.has(&AVERAGE);
    // `the number of cylinders` may be a column, and `number of 0613360` names a value.
    let is_stored =
        sheet.shape.top().items.iter().flat_map(|item| &item.bare).any(|name| parts(&name.column) == [noun]);
    let is_value = question.at(at + 2).starts_with(|first: char| first.is_ascii_digit());
    if counts(column) || is_average || is_stored || is_value || question.at(at.wrapping_sub(1)) == "average" {
        return None;
    }
    let before = question.at(at.wrapping_sub(1));
    let is_bound = matches!(
        before,
        "maximum" | "minimum" | "highest" | "lowest" | "largest" | "smallest" | "average" | "most" | "max" | "min"
    );
    let confidence = match (is_key(sheet, column), is_of_noun) {
        (true, _) => 88,
        _ if is_bound => return None,
        (false, false) => 80,
        (false, true) if holds_numbers(sheet, column) => 50,
        (false, true) => 76,
    };
    let words = question.quote(at, at + 4);
    let message = format!(
        "the question asks for \"{words}\", and the query returns {} of `{}`",
        first.aggregate.figure.as_sql(),
        column.column
    );
    Some(Finding::new(SqlCode::OtherAggregate, confidence, message).at(&first.aggregate.place).advice("Use COUNT."))
}

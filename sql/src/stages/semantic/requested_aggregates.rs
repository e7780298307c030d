//! Compares every aggregate, in its clause, with the aggregates that the question asks for.
//!
//! Two rules apply: an aggregate needs a word of the question that asks for it, and each aggregate that the question
//! asks for must occur in the query (or the query sorts its rows and limits them).

mod name_meaning;
mod ranking;

use proctor_core::sql::SqlCode;

use super::extreme::Extreme;
use super::query_shape::{Aggregate, AggregateKind, QueryShape, ResultColumn, RowLimit};
use super::question::{ParsedQuestion, ScaleEnd, Superlative, SuperlativeScale};
use super::semantic_finding::{SemanticFinding, SemanticInput};
use super::word_forms::{QuestionWord, are_related, name_words};
pub(super) use name_meaning::stores_count;
use name_meaning::{is_column_named, is_descriptive, is_key, is_numeric_column, is_superlative};
use ranking::{asks_for_ranking, has_comparative, is_shown_sort_key};

/// The clause that contains an aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AggregateClause {
    Select,
    Having,
    OrderBy,
}

/// An aggregate with its context.
struct AggregateUse<'a> {
    aggregate: &'a Aggregate,
    clause: AggregateClause,
    is_top: bool,
    /// The column of the result that contains the aggregate.
    item: Option<&'a ResultColumn>,
    /// True if the query sorts by it and returns it.
    is_shown_sort_key: bool,
}

/// Words that ask for an average.
const AVERAGE_WORDS: [&str; 11] = [
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
const TOTAL_WORDS: [&str; 14] = [
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
const MONEY_WORDS: [&str; 14] = [
    "spent", "spend", "spending", "revenue", "revenues", "sales", "earned", "earn", "earnings", "paid", "sold",
    "profit", "income", "turnover",
];
/// Words that ask for a part of a whole.
const SHARE_WORDS: [&str; 14] = [
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
const COUNT_WORDS: [&str; 14] = [
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
const EXTREME_WORDS: [&str; 46] = [
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

/// Names of columns that are usually averaged.
const RATING_COLUMNS: [&str; 9] =
    ["rating", "score", "star", "grade", "velocity", "speed", "temperature", "humidity", "gpa"];

pub(super) fn check(input: &SemanticInput<'_>, question: &ParsedQuestion) -> Vec<SemanticFinding> {
    let uses = aggregate_uses(input.shape);
    let mut found: Vec<SemanticFinding> =
        uses.iter().filter_map(|figure| unrequested_aggregate(input, question, figure)).collect();
    found.extend(missing_extreme(input.shape, question));
    found.extend(missing_count(input, question, &uses));
    found
}

/// Returns every aggregate with its clause.
fn aggregate_uses(shape: &QueryShape) -> Vec<AggregateUse<'_>> {
    let mut found = Vec::new();
    for (at, block) in shape.blocks.iter().enumerate() {
        let is_top = at == 0;
        for item in &block.items {
            let of_item = item.aggregates.iter();
            found.extend(of_item.map(|aggregate| AggregateUse {
                aggregate,
                clause: AggregateClause::Select,
                is_top,
                item: Some(item),
                is_shown_sort_key: is_shown_sort_key(block, aggregate),
            }));
        }
        let having = block.having.iter().map(|aggregate| (aggregate, AggregateClause::Having));
        let ordering = block.order_aggregates.iter().map(|aggregate| (aggregate, AggregateClause::OrderBy));
        let later = having.chain(ordering);
        found.extend(later.map(|(aggregate, clause)| AggregateUse {
            aggregate,
            clause,
            is_top,
            item: None,
            is_shown_sort_key: is_shown_sort_key(block, aggregate),
        }));
    }
    found.retain(|figure| !figure.aggregate.is_windowed);
    found
}

/// Reports an aggregate that no word of the question asks for.
fn unrequested_aggregate(
    input: &SemanticInput<'_>,
    question: &ParsedQuestion,
    usage: &AggregateUse<'_>,
) -> Option<SemanticFinding> {
    let confidence = match usage.aggregate.kind {
        AggregateKind::Max | AggregateKind::Min => unrequested_extreme(input, question, usage)?,
        AggregateKind::Sum => {
            unrequested_sum(input, question, usage)?.min(max_confidence_for_abbreviations(input, question))
        }
        AggregateKind::Average => {
            unrequested_average(question, usage)?.min(max_confidence_for_abbreviations(input, question))
        }
        AggregateKind::Count => unrequested_count(input, question, usage)?,
        AggregateKind::Other => return None,
    };
    let of = usage.aggregate.column.as_ref().map_or_else(String::new, |name| format!(" of `{}`", name.column));
    let clause = match usage.clause {
        AggregateClause::Select => "returns",
        AggregateClause::Having => "filters groups by",
        AggregateClause::OrderBy => "sorts by",
    };
    let name = usage.aggregate.kind.as_sql();
    let message = format!("the query {clause} {name}{of}, but no word of the question asks for that");
    let found = SemanticFinding::new(SqlCode::OtherAggregate, confidence, message).at(&usage.aggregate.range);
    Some(found.advice(aggregate_advice(question)))
}

/// Returns the maximum confidence, which is lower if an abbreviation such as `ASP` may stand for an aggregate.
fn max_confidence_for_abbreviations(input: &SemanticInput<'_>, question: &ParsedQuestion) -> u8 {
    let is_short_form = |word: &QuestionWord| {
        (3..=6).contains(&word.text.len())
            && word.text.chars().all(|letter| letter.is_ascii_uppercase())
            && !input.shape.values.iter().any(|value| value.contains(&word.lower))
            && !input.shape.names.iter().any(|name| name.contains(&word.lower))
    };
    let has_lower = question.words.iter().any(|word| word.text.chars().all(|letter| letter.is_ascii_lowercase()));
    if has_lower && question.words.iter().any(|word| !word.is_quoted && is_short_form(word)) { 60 } else { 100 }
}

/// Returns advice about the aggregate that the words of a question suggest.
fn aggregate_advice(question: &ParsedQuestion) -> &'static str {
    if question.has_word(&AVERAGE_WORDS) {
        "Use AVG."
    } else if question.has_word(&COUNT_WORDS) {
        "Use COUNT."
    } else if question.has_word(&TOTAL_WORDS) {
        "Use SUM."
    } else {
        "Use the aggregate that the question asks for."
    }
}

/// Returns the confidence that MAX or MIN is wrong if no superlative of the question refers to its column.
fn unrequested_extreme(input: &SemanticInput<'_>, question: &ParsedQuestion, usage: &AggregateUse<'_>) -> Option<u8> {
    let column = usage.aggregate.column.as_ref()?;
    let is_key = is_key(input, column);
    let is_named = is_column_named(question, column);
    let is_stored =
        name_words(&column.column).iter().any(|part| matches!(part.as_str(), "max" | "min" | "maximum" | "minimum"));
    // A step of a longer calculation has an alias, or uses the result of another step.
    let is_step = !usage.is_top && usage.item.is_some_and(|item| item.alias.is_some());
    let is_made = input.catalog.tables_with(&column.column).next().is_none();
    if is_stored || is_step || is_made {
        return None;
    }
    let is_later = usage.clause != AggregateClause::Select;
    let is_bound = match is_later {
        // `never had more than 10`, `older than any other`: the query compares every row.
        true => question.has_word(&["never", "ever", "always"]),
        false => !usage.is_top && question.has_word(&["than"]),
    };
    let is_end = is_bound
        || has_comparative(question)
        || question.has_word(&EXTREME_WORDS)
        || question.words.iter().any(|word| is_superlative(&word.lower));
    if question.superlatives.is_empty() {
        return Some(match (is_end, is_key, is_later) {
            (false, true, _) => 92,
            (false, _, true) => 88,
            (false, _, _) => 82,
            (true, true, true) => 84,
            (true, false, true) if !is_named => 68,
            // The highest key of a period is the last one.
            (true, true, false) if question.has_word(&["last", "first", "recent", "new", "next", "previous"]) => 60,
            (true, true, false) => 68,
            _ => 40,
        });
    }
    let item = usage.item.cloned().unwrap_or_else(|| ResultColumn {
        words: name_words(&column.column),
        is_difference: usage.aggregate.is_over_difference,
        ..ResultColumn::default()
    });
    let extreme = Extreme::from_aggregate(usage.aggregate, &item)?;
    let is_of_time = |cue: &Superlative| {
        matches!(cue.scale, SuperlativeScale::Time | SuperlativeScale::Age | SuperlativeScale::Sequence)
    };
    let has_time = question.superlatives.iter().any(is_of_time) || is_end;
    let is_other_way = extreme.is_amount()
        && question.superlatives.iter().all(|cue| cue.end != extreme.end && is_amount_scale(cue))
        && !is_end;
    let is_spent = input.shape.extreme_count() > question.superlatives.len();
    let is_text = !is_numeric_column(input, column) && !extreme.is_date_or_age();
    let is_meant = is_named && (question.requested_order.is_some() || extreme.is_named_by_any(question));
    let is_number_asked = question.has_phrase(&["how many", "number of"]);
    match (is_later, is_key) {
        (true, true) if !has_time => Some(90),
        (true, false) if is_text && !has_time => Some(84),
        (true, false) if !is_meant && !has_time && !extreme.is_date_or_age() => Some(80),
        (true, false) if !is_named && !extreme.is_date_or_age() => Some(68),
        (true, true) => Some(if question.superlatives.iter().any(is_of_time) { 60 } else { 78 }),
        // `the maximum and minimum codes` asks explicitly for both ends.
        (false, true) if names_extreme(question, extreme.end) => Some(60),
        (false, true) if !has_time && !is_named => Some(if is_spent { 85 } else { 76 }),
        (false, true) if !has_time && is_number_asked => Some(76),
        _ if is_other_way => Some(if is_named { 84 } else { 68 }),
        (false, false) if is_spent && !is_named && usage.is_top => Some(76),
        (false, false) if is_spent && usage.is_top => Some(66),
        _ => None,
    }
}

/// Reports whether the question contains `maximum` or `minimum` for this end.
fn names_extreme(question: &ParsedQuestion, way: ScaleEnd) -> bool {
    question.has_word(match way {
        ScaleEnd::High => &["maximum", "max"],
        ScaleEnd::Low => &["minimum", "min"],
    })
}

fn is_amount_scale(cue: &Superlative) -> bool {
    matches!(cue.scale, SuperlativeScale::Amount | SuperlativeScale::Length)
}

/// Returns the confidence that SUM is wrong if no word of the question asks for a total of its column.
fn unrequested_sum(input: &SemanticInput<'_>, question: &ParsedQuestion, usage: &AggregateUse<'_>) -> Option<u8> {
    let sum = usage.aggregate;
    let column = sum.column.as_ref().filter(|_| !sum.is_over_condition)?;
    let is_total = question.has_word(&TOTAL_WORDS)
        || question.has_word(&MONEY_WORDS)
        || question.has_phrase(&["how much", "in all"]);
    let is_counted = question.has_word(&COUNT_WORDS);
    let is_named = is_column_named(question, column);
    let is_number = is_numeric_column(input, column) || stores_count(column);
    if input.shape.has_division
        || is_key(input, column)
        || is_total && (is_named || is_number)
        || question.has_word(&SHARE_WORDS)
        || question.has_word(&["per"])
    {
        return None;
    }
    let is_asked_average = question.has_word(&AVERAGE_WORDS) && !input.shape.has_aggregate(AggregateKind::Average);
    // `the main topics`: the total ranks the groups, and the result shows the rank.
    let is_rank = usage.is_shown_sort_key && asks_for_ranking(question);
    Some(match (is_counted, is_named, is_number) {
        (false, _, _) if is_asked_average => 84,
        (false, _, true) if is_rank => 55,
        (_, _, false) if !is_total => 84,
        (_, false, true) if stores_count(column) => 50,
        (true, false, true) if !counts_read_table(input, question) => 55,
        (true, false, true) => 78,
        (true, true, true) => 30,
        (false, false, _) => 80,
        (false, true, true)
            if !question.superlatives.is_empty()
                || usage.clause == AggregateClause::Having
                || question.has_word(&["peak"]) =>
        {
            62
        }
        (false, true, true) => 68,
        _ => 66,
    })
}

/// Reports whether the noun after `how many` names a table that the query reads.
fn counts_read_table(input: &SemanticInput<'_>, question: &ParsedQuestion) -> bool {
    let at = question
        .find_phrase("how many")
        .or_else(|| question.find_phrase("number of"))
        .or_else(|| question.find_phrase("count of"));
    let Some(at) = at else { return true };
    let mut nouns = question.words.iter().skip(at + 2).take(3);
    nouns.any(|noun| {
        input
            .shape
            .tables
            .iter()
            .any(|table| name_words(table).last().is_some_and(|last| are_related(last, &noun.stem)))
    })
}

/// Returns the confidence that AVG is wrong if no word of the question asks for an average.
fn unrequested_average(question: &ParsedQuestion, usage: &AggregateUse<'_>) -> Option<u8> {
    let average = usage.aggregate;
    let is_stored = average
        .columns
        .iter()
        .any(|name| name_words(&name.column).iter().any(|part| AVERAGE_WORDS.contains(&part.as_str())));
    if question.has_word(&AVERAGE_WORDS) || is_stored || average.is_over_condition {
        return None;
    }
    let is_share = question.has_word(&SHARE_WORDS) || question.has_word(&["per"]);
    let is_rating = average.columns.iter().any(|name| {
        name_words(&name.column).last().is_some_and(|last| RATING_COLUMNS.iter().any(|rating| last == rating))
    });
    Some(match (is_share || question.has_word(&["median"]), is_rating) {
        (true, _) => 50,
        (_, true) => 62,
        _ => 82,
    })
}

/// Returns the confidence that COUNT of a column is wrong if the question asks for another aggregate of the column.
fn unrequested_count(input: &SemanticInput<'_>, question: &ParsedQuestion, usage: &AggregateUse<'_>) -> Option<u8> {
    let count = usage.aggregate;
    let column = count.column.as_ref().filter(|_| !count.is_distinct)?;
    if is_key(input, column)
        || !is_column_named(question, column)
        || asks_for_count(question)
        || question.has_word(&SHARE_WORDS)
    {
        return None;
    }
    // In `the total price`, the noun after the word is the column.
    let at = question.find_word(&["total", "sum", "average", "mean", "maximum", "minimum", "highest", "lowest"])?;
    let is_behind = question.words.iter().skip(at + 1).take(3).any(|word| {
        name_words(&column.column).iter().any(|part| is_descriptive(part) && are_related(part, &word.stem))
    });
    let is_number = is_numeric_column(input, column);
    match (is_behind, is_number, usage.clause) {
        (true, true, _) => Some(80),
        (true, false, AggregateClause::Select) => Some(60),
        _ => None,
    }
}

/// Reports whether the question asks for a number of things.
fn asks_for_count(question: &ParsedQuestion) -> bool {
    question.has_word(&COUNT_WORDS)
        || question.has_word(&["common", "frequent", "frequently", "popular", "often", "once", "twice"])
}

/// Reports a superlative without a matching end in the query.
fn missing_extreme(shape: &QueryShape, question: &ParsedQuestion) -> Option<SemanticFinding> {
    let top = shape.top();
    let is_plain_figure = top.aggregates().next().is_some();
    if !is_plain_figure || shape.has_division {
        return None;
    }
    let ends = selected_ends(shape)?;
    let cue = question.superlatives.iter().find(|cue| {
        let is_stored = shape.words.contains(question.word_at(cue.at)) || stores_extreme(shape, cue.end);
        is_amount_scale(cue)
            && !cue.asks_for_order
            && cue.number.is_none()
            && !is_stored
            && !ends.contains(&cue.end)
            && !matches!(question.word_at(cue.at), "most" | "least" | "fewest" | "greatest")
    })?;
    let is_sorted = question.requested_order.is_some() || !top.order.is_empty();
    let words = question.quote(cue.at, cue.at + 3);
    let message = format!("the question asks for \"{words}\", but the query returns no minimum or maximum");
    let is_figure = matches!(question.word_at(cue.at), "maximum" | "minimum" | "max" | "min");
    let confidence = match (is_sorted, is_figure) {
        (false, true) => 86,
        (false, false) => 78,
        (true, true) => 72,
        (true, false) => 60,
    };
    let aggregate = top.aggregates().next();
    let place = aggregate.map_or_else(|| top.range.clone(), |aggregate| aggregate.range.clone());
    let be =
        if cue.end == ScaleEnd::High { "Use MAX, or sort and use LIMIT." } else { "Use MIN, or sort and use LIMIT." };
    Some(SemanticFinding::new(SqlCode::OtherAggregate, confidence, message).at(&place).advice(be))
}

/// Reports whether a column of the query stores an end of a scale.
pub(super) fn stores_extreme(shape: &QueryShape, way: ScaleEnd) -> bool {
    let names: &[&str] = match way {
        ScaleEnd::High => &["max", "maximum", "highest", "peak", "high"],
        ScaleEnd::Low => &["min", "minimum", "lowest", "low"],
    };
    names.iter().any(|name| shape.words.contains(*name))
}

/// Returns the ends of scales that a query selects; `None` if one of them is ambiguous.
fn selected_ends(shape: &QueryShape) -> Option<Vec<ScaleEnd>> {
    let mut found = Vec::new();
    let items = shape.blocks.iter().flat_map(|block| &block.items);
    for item in items {
        for aggregate in &item.aggregates {
            if let Some(extreme) = Extreme::from_aggregate(aggregate, item) {
                found.push(extreme.is_amount().then_some(extreme.end)?);
            }
        }
    }
    for block in &shape.blocks {
        if block.later_aggregates().any(|aggregate| matches!(aggregate.kind, AggregateKind::Max | AggregateKind::Min)) {
            return None;
        }
        let is_cut = block.limit != RowLimit::All;
        for key in block.order.iter().filter(|_| is_cut).chain(&block.rank_keys) {
            let extreme = Extreme::from_sort_key(key);
            found.push(extreme.is_amount().then_some(extreme.end)?);
        }
    }
    Some(found)
}

/// Reports a missing count where the question asks for a number of things.
fn missing_count(
    input: &SemanticInput<'_>,
    question: &ParsedQuestion,
    uses: &[AggregateUse<'_>],
) -> Option<SemanticFinding> {
    let shape = input.shape;
    let at = question
        .find_phrase("how many")
        .or_else(|| question.find_phrase("number of"))
        .or_else(|| question.find_phrase("count of"))?;
    let is_counted = shape.has_aggregate(AggregateKind::Count)
        || shape.has_aggregate(AggregateKind::Sum)
        || shape.has_aggregate(AggregateKind::Other);
    if is_counted || shape.has_division {
        return None;
    }
    let first = uses.iter().find(|figure| figure.is_top && figure.clause == AggregateClause::Select)?;
    let column = first.aggregate.column.as_ref().filter(|_| first.item.is_some_and(|item| item.is_aggregate))?;
    let noun = question.words.get(at + 2).map_or("", |word| word.stem.as_str());
    let is_of_noun = name_words(&column.column).iter().any(|part| are_related(part, noun));
    let is_average = first.aggregate.kind == AggregateKind::Average && question.has_word(&AVERAGE_WORDS);
    // `the number of cylinders` may be a column, and `number of 0613360` names a value.
    let is_stored = input
        .shape
        .top()
        .items
        .iter()
        .flat_map(|item| &item.plain_columns)
        .any(|name| name_words(&name.column) == [noun]);
    let is_value = question.word_at(at + 2).starts_with(|first: char| first.is_ascii_digit());
    if stores_count(column) || is_average || is_stored || is_value || question.word_at(at.wrapping_sub(1)) == "average"
    {
        return None;
    }
    let before = question.word_at(at.wrapping_sub(1));
    let is_bound = matches!(
        before,
        "maximum" | "minimum" | "highest" | "lowest" | "largest" | "smallest" | "average" | "most" | "max" | "min"
    );
    let confidence = match (is_key(input, column), is_of_noun) {
        (true, _) => 88,
        _ if is_bound => return None,
        (false, false) => 80,
        (false, true) if is_numeric_column(input, column) => 50,
        (false, true) => 76,
    };
    let words = question.quote(at, at + 4);
    let message = format!(
        "the question asks for \"{words}\", but the query returns {} of `{}`",
        first.aggregate.kind.as_sql(),
        column.column
    );
    Some(
        SemanticFinding::new(SqlCode::OtherAggregate, confidence, message)
            .at(&first.aggregate.range)
            .advice("Use COUNT."),
    )
}

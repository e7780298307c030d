//! Compares the end of a scale that a query selects with the end that the question asks for. A query selects an end
//! with a sort key and LIMIT, with a rank, or with MAX and MIN.

use super::query_shape::{Aggregate, AggregateKind, QueryShape, ResultColumn, SortKey};
use super::question::{ParsedQuestion, ScaleEnd, Superlative, SuperlativeScale};
use super::word_forms::are_related;

/// The meaning of a column according to its name. It determines the meaning of `oldest` and `best`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScaleTopic {
    Birth,
    Age,
    Rank,
    Duration,
    Speed,
    Date,
    Distance,
    /// The remainder of a quantity: the more is used, the less remains.
    Remainder,
    Other,
}

/// The end of a scale that a query selects.
pub(super) struct Extreme<'a> {
    pub end: ScaleEnd,
    words: &'a [String],
    topic: ScaleTopic,
    is_count: bool,
    is_aggregate: bool,
}

impl<'a> Extreme<'a> {
    /// Returns the end that the first rows of a sort order have.
    pub(super) fn from_sort_key(key: &'a SortKey) -> Self {
        let way = if key.is_descending == key.is_inverse { ScaleEnd::Low } else { ScaleEnd::High };
        let found = Self::from_result_column(way, &key.item);
        match key.item.aggregates.as_slice() {
            // A count of ranks is not a rank.
            [one] if matches!(one.kind, AggregateKind::Count) => {
                Self { topic: ScaleTopic::Other, is_count: true, ..found }
            }
            _ => found,
        }
    }

    /// Returns the end that MAX or MIN selects.
    pub(super) fn from_aggregate(aggregate: &Aggregate, item: &'a ResultColumn) -> Option<Self> {
        let way = match aggregate.kind {
            AggregateKind::Max => ScaleEnd::High,
            AggregateKind::Min => ScaleEnd::Low,
            _ => return None,
        };
        Some(Self::from_result_column(way, item))
    }

    fn from_result_column(way: ScaleEnd, item: &'a ResultColumn) -> Self {
        let topic = match scale_topic(&item.words) {
            // The time since a birth is an age, which grows in the other direction.
            ScaleTopic::Birth | ScaleTopic::Date if item.is_difference => ScaleTopic::Age,
            topic => topic,
        };
        Self { end: way, words: &item.words, topic, is_count: false, is_aggregate: !item.aggregates.is_empty() }
    }

    /// Reports whether the scale is a plain amount, without a notion of better, older or earlier.
    pub(super) fn is_amount(&self) -> bool {
        self.topic == ScaleTopic::Other
    }

    /// Reports whether the scale is a date or an age.
    pub(super) fn is_date_or_age(&self) -> bool {
        matches!(self.topic, ScaleTopic::Date | ScaleTopic::Birth | ScaleTopic::Age)
    }

    /// Returns the end that a superlative asks for on this scale; `None` if it may refer to another scale.
    fn requested_end(&self, cue: &Superlative) -> Option<ScaleEnd> {
        let (same, turned) = (Some(cue.end), Some(cue.end.opposite()));
        match (cue.scale, self.topic) {
            (SuperlativeScale::Amount, ScaleTopic::Birth | ScaleTopic::Rank) => None,
            (SuperlativeScale::Amount, ScaleTopic::Date) => None,
            (SuperlativeScale::Amount | SuperlativeScale::Quality, ScaleTopic::Remainder) => None,
            (SuperlativeScale::Amount, _) => same,
            (SuperlativeScale::Length, ScaleTopic::Birth | ScaleTopic::Rank | ScaleTopic::Date) => None,
            (SuperlativeScale::Length, _) => same,
            (SuperlativeScale::Time, ScaleTopic::Date | ScaleTopic::Birth | ScaleTopic::Duration) => same,
            (SuperlativeScale::Time, _) => None,
            (SuperlativeScale::Age, ScaleTopic::Birth | ScaleTopic::Date) => turned,
            (SuperlativeScale::Age, ScaleTopic::Age) => same,
            (SuperlativeScale::Age, _) => None,
            (SuperlativeScale::Speed, ScaleTopic::Duration | ScaleTopic::Rank) => turned,
            (SuperlativeScale::Speed, ScaleTopic::Speed) => same,
            (SuperlativeScale::Speed, _) => None,
            (
                SuperlativeScale::Quality,
                ScaleTopic::Rank | ScaleTopic::Duration | ScaleTopic::Distance | ScaleTopic::Birth | ScaleTopic::Date,
            ) => None,
            (SuperlativeScale::Quality, _) => same,
            (SuperlativeScale::Sequence, ScaleTopic::Date) => same,
            (SuperlativeScale::Sequence, _) => None,
            (SuperlativeScale::Distance, ScaleTopic::Distance) => same,
            (SuperlativeScale::Distance, _) => None,
        }
    }

    /// Returns the end that a superlative asks for in its question: `the lowest speed` is the longest time.
    fn requested_end_in(&self, question: &ParsedQuestion, cue: &Superlative) -> Option<ScaleEnd> {
        let is_of_speed =
            (1..=3).any(|behind| matches!(question.word_at(cue.at + behind), "speed" | "pace" | "velocity"));
        match (cue.scale, self.topic) {
            (SuperlativeScale::Amount, ScaleTopic::Duration) if is_of_speed => Some(cue.end.opposite()),
            _ => self.requested_end(cue),
        }
    }

    /// Reports whether a superlative of time or age refers to an age or a duration, which grows in the other direction.
    pub(super) fn is_opposite_scale(&self, cue: &Superlative) -> bool {
        matches!(cue.scale, SuperlativeScale::Time | SuperlativeScale::Age)
            && matches!(self.topic, ScaleTopic::Age | ScaleTopic::Duration)
    }

    /// Reports whether the superlative or the words after it name this scale.
    fn is_named_by(&self, question: &ParsedQuestion, cue: &Superlative) -> bool {
        let is_own = match (cue.scale, self.topic) {
            (SuperlativeScale::Time, ScaleTopic::Date)
            | (SuperlativeScale::Age, ScaleTopic::Birth | ScaleTopic::Age) => true,
            _ => {
                let scales = SCALE_NAMES
                    .iter()
                    .filter(|(word, _)| *word == question.word_at(cue.at) || *word == question.word_at(cue.at + 1));
                scales.into_iter().any(|(_, scale)| self.words.iter().any(|word| scale.contains(&word.as_str())))
            }
        };
        if is_own {
            return true;
        }
        let stems = question.words.iter().skip(cue.at + 1).take(4).map(|word| word.stem.as_str());
        let mut near = stems.filter(|stem| stem.len() > 2);
        near.any(|stem| self.words.iter().any(|word| are_related(stem, word)))
    }

    /// Reports whether any superlative names this scale.
    pub(super) fn is_named_by_any(&self, question: &ParsedQuestion) -> bool {
        question.superlatives.iter().any(|cue| self.is_named_by(question, cue))
    }

    /// Reports whether the first superlative names this scale.
    pub(super) fn is_named_first(&self, question: &ParsedQuestion) -> bool {
        question.superlatives.first().is_some_and(|cue| self.is_named_by(question, cue))
    }

    /// Reports whether only one reading is possible: one superlative, one selected end, and the question names the
    /// scale.
    pub(super) fn is_unambiguous(&self, question: &ParsedQuestion, cue: &Superlative, shape: &QueryShape) -> bool {
        let is_age_of_thing = cue.scale == SuperlativeScale::Age
            && self.topic == ScaleTopic::Date
            && question.words.len() <= 6
            && shape.blocks.len() == 1;
        let is_known = match cue.scale {
            SuperlativeScale::Amount | SuperlativeScale::Length => {
                matches!(self.topic, ScaleTopic::Other | ScaleTopic::Duration)
            }
            SuperlativeScale::Time => self.topic == ScaleTopic::Date,
            SuperlativeScale::Age => matches!(self.topic, ScaleTopic::Birth | ScaleTopic::Age) || is_age_of_thing,
            _ => false,
        };
        let is_counted = self.is_count && matches!(question.word_at(cue.at), "most" | "fewest" | "least");
        let is_last = question.words.get(cue.at + 1).is_none_or(|next| next.is_after_punctuation);
        let is_named = is_counted
            || is_age_of_thing
            || (self.is_aggregate && is_last && question.word_at(cue.at) == "most")
            || self.is_named_by(question, cue);
        is_known
            && is_named
            && question.superlatives.len() == 1
            && shape.extreme_count() == 1
            && shape.blocks.len() <= 2
            && question.words.len() <= 14
    }

    /// Reports whether the question has the form `top 5 customers by spending` and the query sorts by an aggregate.
    pub(super) fn is_top_by_aggregate(&self, question: &ParsedQuestion, cue: &Superlative, shape: &QueryShape) -> bool {
        question.word_at(cue.at) == "top"
            && cue.number.is_some()
            && question.has_word(&["by"])
            && question.words.len() <= 8
            && question.superlatives.len() == 1
            && self.is_aggregate
            && self.topic == ScaleTopic::Other
            && shape.blocks.len() == 1
    }

    /// Returns the superlative that refers to this scale, the end that it asks for, and whether it names the scale;
    /// `None` if the question is ambiguous.
    pub(super) fn matching_superlative<'q>(
        &self,
        question: &'q ParsedQuestion,
    ) -> Option<(&'q Superlative, ScaleEnd, bool)> {
        let fitting: Vec<(&Superlative, ScaleEnd)> = question
            .superlatives
            .iter()
            .filter_map(|cue| self.requested_end_in(question, cue).map(|way| (cue, way)))
            .collect();
        // `the max temperature` may be the name of a column if another superlative asks for one of its ends.
        let is_name = |cue: &Superlative| self.words.iter().any(|word| word == question.word_at(cue.at));
        let requested: Vec<(&Superlative, ScaleEnd)> =
            fitting.iter().filter(|(cue, _)| !is_name(cue)).copied().collect();
        // Both readings are possible if the name contains the end that the query selects.
        let is_taken = |cue: &Superlative, way: ScaleEnd| is_name(cue) && way == self.end;
        let is_open =
            !requested.is_empty() && self.is_aggregate && fitting.iter().any(|(cue, way)| is_taken(cue, *way));
        if is_open && !requested.iter().any(|(cue, _)| self.is_named_by(question, cue)) {
            return None;
        }
        let fitting = if requested.is_empty() { fitting } else { requested };
        let (first, way) = *fitting.first()?;
        let named: Vec<(&Superlative, ScaleEnd)> =
            fitting.iter().filter(|(cue, _)| self.is_named_by(question, cue)).copied().collect();
        let agree = |list: &[(&Superlative, ScaleEnd)]| list.iter().all(|(_, other)| *other == list[0].1);
        if let Some((cue, way)) = named.first().copied()
            && agree(&named)
        {
            return Some((cue, way, true));
        }
        (named.is_empty() && agree(&fitting)).then_some((first, way, false))
    }
}

/// Adjectives that belong to one scale, and names of that scale.
const SCALE_NAMES: [(&str, &[&str]); 19] = [
    ("biggest", &["amount", "size", "total"]),
    ("largest", &["amount", "size", "total"]),
    ("smallest", &["amount", "size", "total"]),
    ("expensive", &["price", "cost", "amount", "fee", "rate"]),
    ("priciest", &["price", "cost", "amount", "fee"]),
    ("costliest", &["price", "cost", "amount", "fee"]),
    ("cheapest", &["price", "cost", "amount", "fee"]),
    ("tallest", &["height", "altitude", "elevation"]),
    ("heaviest", &["weight", "mass"]),
    ("lightest", &["weight", "mass"]),
    ("longest", &["length", "duration"]),
    ("shortest", &["length", "duration", "height"]),
    ("deepest", &["depth"]),
    ("populous", &["population"]),
    ("populated", &["population"]),
    ("richest", &["income", "salary", "wealth", "networth"]),
    ("oldest", &["age"]),
    ("youngest", &["age"]),
    ("densest", &["density"]),
];

fn scale_topic(words: &[String]) -> ScaleTopic {
    const TOPICS: [(ScaleTopic, &[&str]); 8] = [
        (ScaleTopic::Remainder, &["remaining", "left", "remainder", "rest"]),
        (ScaleTopic::Birth, &["dob", "birth", "birthday", "born", "birthdate", "birthyear"]),
        (ScaleTopic::Age, &["age"]),
        (ScaleTopic::Rank, &["rank", "ranking", "position", "standing", "place", "grid", "ordinal"]),
        (
            ScaleTopic::Duration,
            &["time", "duration", "millisecond", "second", "minute", "laptime", "elapsed", "q1", "q2", "q3", "ms"],
        ),
        (ScaleTopic::Speed, &["speed", "velocity", "mph", "kph"]),
        (
            ScaleTopic::Date,
            &[
                "date",
                "year",
                "day",
                "month",
                "datetime",
                "timestamp",
                "created",
                "at",
                "dt",
                "ts",
                "yearmonth",
                "season",
                "hired",
                "opened",
                "founded",
                "established",
                "built",
                "joined",
            ],
        ),
        (ScaleTopic::Distance, &["distance", "abs"]),
    ];
    let is_date = words.iter().any(|word| word.ends_with("date") || word.ends_with("datetime"));
    let found = TOPICS.iter().find(|(_, names)| words.iter().any(|word| names.contains(&word.as_str())));
    match found {
        Some((ScaleTopic::Duration, _)) if is_date => ScaleTopic::Date,
        Some((topic, _)) => *topic,
        None if is_date => ScaleTopic::Date,
        None => ScaleTopic::Other,
    }
}

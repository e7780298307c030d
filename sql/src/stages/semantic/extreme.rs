//! Compares the end of a scale that a query selects with the end that the question asks for. A query selects an end
//! with a sort key and LIMIT, with a rank, or with MAX and MIN.

use super::question::{Cue, Question, Scale, Way};
use super::shape::{Aggregate, Figure, Item, Key, Shape};
use super::words::are_kin;

/// The meaning of a column according to its name. It determines the meaning of `oldest` and `best`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Topic {
    Birth,
    Age,
    Rank,
    Duration,
    Speed,
    Date,
    Distance,
    /// The remainder of a quantity: the more is used, the less remains.
    Rest,
    Other,
}

/// The end of a scale that a query selects.
pub(super) struct Extreme<'a> {
    pub way: Way,
    words: &'a [String],
    topic: Topic,
    is_count: bool,
    is_figure: bool,
}

impl<'a> Extreme<'a> {
    /// Returns the end that the first rows of a sort order have.
    pub(super) fn of_key(key: &'a Key) -> Self {
        let way = if key.is_descending == key.is_inverse { Way::Low } else { Way::High };
        let found = Self::of_item(way, &key.item);
        match key.item.aggregates.as_slice() {
            // A count of ranks is not a rank.
            [one] if matches!(one.figure, Figure::Count) => Self { topic: Topic::Other, is_count: true, ..found },
            _ => found,
        }
    }

    /// Returns the end that MAX or MIN selects.
    pub(super) fn of_aggregate(aggregate: &Aggregate, item: &'a Item) -> Option<Self> {
        let way = match aggregate.figure {
            Figure::Max => Way::High,
            Figure::Min => Way::Low,
            _ => return None,
        };
        Some(Self::of_item(way, item))
    }

    fn of_item(way: Way, item: &'a Item) -> Self {
        let topic = match topic(&item.words) {
            // The time since a birth is an age, which grows in the other direction.
            Topic::Birth | Topic::Date if item.is_difference => Topic::Age,
            topic => topic,
        };
        Self { way, words: &item.words, topic, is_count: false, is_figure: !item.aggregates.is_empty() }
    }

    /// Reports whether the scale is a plain amount, without a notion of better, older or earlier.
    pub(super) fn is_of_amount(&self) -> bool {
        self.topic == Topic::Other
    }

    /// Reports whether the scale is a date or an age.
    pub(super) fn is_of_date(&self) -> bool {
        matches!(self.topic, Topic::Date | Topic::Birth | Topic::Age)
    }

    /// Returns the end that a superlative asks for on this scale; `None` if it may refer to another scale.
    fn asked(&self, cue: &Cue) -> Option<Way> {
        let (same, turned) = (Some(cue.way), Some(cue.way.turned()));
        match (cue.scale, self.topic) {
            (Scale::Amount, Topic::Birth | Topic::Rank) => None,
            (Scale::Amount, Topic::Date) => None,
            (Scale::Amount | Scale::Worth, Topic::Rest) => None,
            (Scale::Amount, _) => same,
            (Scale::Length, Topic::Birth | Topic::Rank | Topic::Date) => None,
            (Scale::Length, _) => same,
            (Scale::Time, Topic::Date | Topic::Birth | Topic::Duration) => same,
            (Scale::Time, _) => None,
            (Scale::Age, Topic::Birth | Topic::Date) => turned,
            (Scale::Age, Topic::Age) => same,
            (Scale::Age, _) => None,
            (Scale::Speed, Topic::Duration | Topic::Rank) => turned,
            (Scale::Speed, Topic::Speed) => same,
            (Scale::Speed, _) => None,
            (Scale::Worth, Topic::Rank | Topic::Duration | Topic::Distance | Topic::Birth | Topic::Date) => None,
            (Scale::Worth, _) => same,
            (Scale::Turn, Topic::Date) => same,
            (Scale::Turn, _) => None,
            (Scale::Distance, Topic::Distance) => same,
            (Scale::Distance, _) => None,
        }
    }

    /// Returns the end that a superlative asks for in its question: `the lowest speed` is the longest time.
    fn asked_in(&self, question: &Question, cue: &Cue) -> Option<Way> {
        let is_of_speed = (1..=3).any(|behind| matches!(question.at(cue.at + behind), "speed" | "pace" | "velocity"));
        match (cue.scale, self.topic) {
            (Scale::Amount, Topic::Duration) if is_of_speed => Some(cue.way.turned()),
            _ => self.asked(cue),
        }
    }

    /// Reports whether a superlative of time or age refers to an age or a duration, which grows in the other direction.
    pub(super) fn is_of_other_scale(&self, cue: &Cue) -> bool {
        matches!(cue.scale, Scale::Time | Scale::Age) && matches!(self.topic, Topic::Age | Topic::Duration)
    }

    /// Reports whether the superlative or the words after it name this scale.
    fn is_named_by(&self, question: &Question, cue: &Cue) -> bool {
        let is_own = match (cue.scale, self.topic) {
            (Scale::Time, Topic::Date) | (Scale::Age, Topic::Birth | Topic::Age) => true,
            _ => {
                let scales =
                    OWN.iter().filter(|(word, _)| *word == question.at(cue.at) || *word == question.at(cue.at + 1));
                scales.into_iter().any(|(_, scale)| self.words.iter().any(|word| scale.contains(&word.as_str())))
            }
        };
        if is_own {
            return true;
        }
        let stems = question.words.iter().skip(cue.at + 1).take(4).map(|word| word.stem.as_str());
        let mut near = stems.filter(|stem| stem.len() > 2);
        near.any(|stem| self.words.iter().any(|word| are_kin(stem, word)))
    }

    /// Reports whether any superlative names this scale.
    pub(super) fn is_named_by_any(&self, question: &Question) -> bool {
        question.cues.iter().any(|cue| self.is_named_by(question, cue))
    }

    /// Reports whether the first superlative names this scale.
    pub(super) fn is_meant_first(&self, question: &Question) -> bool {
        question.cues.first().is_some_and(|cue| self.is_named_by(question, cue))
    }

    /// Reports whether only one reading is possible: one superlative, one selected end, and the question names the
    /// scale.
    pub(super) fn is_plain(&self, question: &Question, cue: &Cue, shape: &Shape) -> bool {
        let is_age_of_thing = cue.scale == Scale::Age
            && self.topic == Topic::Date
            && question.words.len() <= 6
            && shape.blocks.len() == 1;
        let is_known = match cue.scale {
            Scale::Amount | Scale::Length => matches!(self.topic, Topic::Other | Topic::Duration),
            Scale::Time => self.topic == Topic::Date,
            Scale::Age => matches!(self.topic, Topic::Birth | Topic::Age) || is_age_of_thing,
            _ => false,
        };
        let is_counted = self.is_count && matches!(question.at(cue.at), "most" | "fewest" | "least");
        let is_last = question.words.get(cue.at + 1).is_none_or(|next| next.is_after_pause);
        let is_named = is_counted
            || is_age_of_thing
            || (self.is_figure && is_last && question.at(cue.at) == "most")
            || self.is_named_by(question, cue);
        is_known
            && is_named
            && question.cues.len() == 1
            && shape.extremes() == 1
            && shape.blocks.len() <= 2
            && question.words.len() <= 14
    }

    /// Reports whether the question has the form `top 5 customers by spending` and the query sorts by an aggregate.
    pub(super) fn is_top_by_figure(&self, question: &Question, cue: &Cue, shape: &Shape) -> bool {
        question.at(cue.at) == "top"
            && cue.number.is_some()
            && question.has(&["by"])
            && question.words.len() <= 8
            && question.cues.len() == 1
            && self.is_figure
            && self.topic == Topic::Other
            && shape.blocks.len() == 1
    }

    /// Returns the superlative that refers to this scale, the end that it asks for, and whether it names the scale;
    /// `None` if the question is ambiguous.
    pub(super) fn meant<'q>(&self, question: &'q Question) -> Option<(&'q Cue, Way, bool)> {
        let fitting: Vec<(&Cue, Way)> =
            question.cues.iter().filter_map(|cue| self.asked_in(question, cue).map(|way| (cue, way))).collect();
        // `the max temperature` may be the name of a column if another superlative asks for one of its ends.
        let is_name = |cue: &Cue| self.words.iter().any(|word| word == question.at(cue.at));
        let asked: Vec<(&Cue, Way)> = fitting.iter().filter(|(cue, _)| !is_name(cue)).copied().collect();
        // Both readings are possible if the name contains the end that the query selects.
        let is_taken = |cue: &Cue, way: Way| is_name(cue) && way == self.way;
        let is_open = !asked.is_empty() && self.is_figure && fitting.iter().any(|(cue, way)| is_taken(cue, *way));
        if is_open && !asked.iter().any(|(cue, _)| self.is_named_by(question, cue)) {
            return None;
        }
        let fitting = if asked.is_empty() { fitting } else { asked };
        let (first, way) = *fitting.first()?;
        let named: Vec<(&Cue, Way)> =
            fitting.iter().filter(|(cue, _)| self.is_named_by(question, cue)).copied().collect();
        let agree = |list: &[(&Cue, Way)]| list.iter().all(|(_, other)| *other == list[0].1);
        if let Some((cue, way)) = named.first().copied()
            && agree(&named)
        {
            return Some((cue, way, true));
        }
        (named.is_empty() && agree(&fitting)).then_some((first, way, false))
    }
}

/// Adjectives that belong to one scale, and names of that scale.
const OWN: [(&str, &[&str]); 19] = [
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

fn topic(words: &[String]) -> Topic {
    const TOPICS: [(Topic, &[&str]); 8] = [
        (Topic::Rest, &["remaining", "left", "remainder", "rest"]),
        (Topic::Birth, &["dob", "birth", "birthday", "born", "birthdate", "birthyear"]),
        (Topic::Age, &["age"]),
        (Topic::Rank, &["rank", "ranking", "position", "standing", "place", "grid", "ordinal"]),
        (
            Topic::Duration,
            &["time", "duration", "millisecond", "second", "minute", "laptime", "elapsed", "q1", "q2", "q3", "ms"],
        ),
        (Topic::Speed, &["speed", "velocity", "mph", "kph"]),
        (
            Topic::Date,
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
        (Topic::Distance, &["distance", "abs"]),
    ];
    let is_date = words.iter().any(|word| word.ends_with("date") || word.ends_with("datetime"));
    let found = TOPICS.iter().find(|(_, names)| words.iter().any(|word| names.contains(&word.as_str())));
    match found {
        Some((Topic::Duration, _)) if is_date => Topic::Date,
        Some((topic, _)) => *topic,
        None if is_date => Topic::Date,
        None => Topic::Other,
    }
}

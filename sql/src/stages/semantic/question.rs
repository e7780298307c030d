//! Extracts what an English question asks for: superlatives, an order, numbers of rows. This module knows nothing about
//! queries. A wrong reading causes a false warning, so each reading requires more evidence than a single word.

use super::words::{Word, words};

/// One end of a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    High,
    Low,
}

impl Way {
    /// Returns the other end.
    pub(super) fn turned(self) -> Self {
        match self {
            Self::High => Self::Low,
            Self::Low => Self::High,
        }
    }
}

/// The scale of a superlative.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    /// More or less of anything.
    Amount,
    /// `longest`, `shortest`: also of time.
    Length,
    /// `latest`, `earliest`, `newest`.
    Time,
    /// `oldest`, `youngest`: ages and birth dates run in opposite directions.
    Age,
    /// `fastest`, `slowest`: speeds and durations run in opposite directions.
    Speed,
    /// `best`, `worst`: points and ranks run in opposite directions.
    Worth,
    /// `first`, `last` in a sequence.
    Turn,
    /// `nearest`, `farthest`.
    Distance,
}

/// A superlative.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cue {
    /// The index of the word.
    pub at: usize,
    pub way: Way,
    pub scale: Scale,
    /// The number of rows that it asks for, if any.
    pub number: Option<u64>,
    /// True if it asks for an order of all rows: `highest first`, `from highest to lowest`.
    pub is_of_order: bool,
    /// True if it asks for a single thing: `the most`, `the highest`.
    pub is_of_one: bool,
}

/// An explicit request for an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sorting {
    pub at: usize,
    pub way: Option<Way>,
    /// True if the words have no other meaning.
    pub is_plain: bool,
}

/// A parsed question.
#[derive(Debug, Clone)]
pub(super) struct Question {
    pub words: Vec<Word>,
    pub cues: Vec<Cue>,
    pub sorting: Option<Sorting>,
}

const MOST: [(&str, Way, Scale); 63] = [
    ("highest", Way::High, Scale::Amount),
    ("most", Way::High, Scale::Amount),
    ("largest", Way::High, Scale::Amount),
    ("biggest", Way::High, Scale::Amount),
    ("greatest", Way::High, Scale::Amount),
    ("maximum", Way::High, Scale::Amount),
    ("max", Way::High, Scale::Amount),
    ("maximal", Way::High, Scale::Amount),
    ("top", Way::High, Scale::Worth),
    ("tallest", Way::High, Scale::Amount),
    ("heaviest", Way::High, Scale::Amount),
    ("richest", Way::High, Scale::Amount),
    ("wealthiest", Way::High, Scale::Amount),
    ("deepest", Way::High, Scale::Amount),
    ("strongest", Way::High, Scale::Amount),
    ("widest", Way::High, Scale::Amount),
    ("priciest", Way::High, Scale::Amount),
    ("costliest", Way::High, Scale::Amount),
    ("dearest", Way::High, Scale::Amount),
    ("busiest", Way::High, Scale::Amount),
    ("hottest", Way::High, Scale::Amount),
    ("warmest", Way::High, Scale::Amount),
    ("densest", Way::High, Scale::Amount),
    ("commonest", Way::High, Scale::Amount),
    ("longest", Way::High, Scale::Length),
    ("shortest", Way::Low, Scale::Length),
    ("lowest", Way::Low, Scale::Amount),
    ("least", Way::Low, Scale::Amount),
    ("smallest", Way::Low, Scale::Amount),
    ("fewest", Way::Low, Scale::Amount),
    ("minimum", Way::Low, Scale::Amount),
    ("minimal", Way::Low, Scale::Amount),
    ("min", Way::Low, Scale::Amount),
    ("littlest", Way::Low, Scale::Amount),
    ("tiniest", Way::Low, Scale::Amount),
    ("cheapest", Way::Low, Scale::Amount),
    ("lightest", Way::Low, Scale::Amount),
    ("poorest", Way::Low, Scale::Amount),
    ("weakest", Way::Low, Scale::Amount),
    ("narrowest", Way::Low, Scale::Amount),
    ("shallowest", Way::Low, Scale::Amount),
    ("coldest", Way::Low, Scale::Amount),
    ("coolest", Way::Low, Scale::Amount),
    ("rarest", Way::Low, Scale::Amount),
    ("bottom", Way::Low, Scale::Worth),
    ("latest", Way::High, Scale::Time),
    ("newest", Way::High, Scale::Time),
    ("recent", Way::High, Scale::Time),
    ("recently", Way::High, Scale::Time),
    ("earliest", Way::Low, Scale::Time),
    ("oldest", Way::High, Scale::Age),
    ("eldest", Way::High, Scale::Age),
    ("youngest", Way::Low, Scale::Age),
    ("fastest", Way::High, Scale::Speed),
    ("quickest", Way::High, Scale::Speed),
    ("slowest", Way::Low, Scale::Speed),
    ("best", Way::High, Scale::Worth),
    ("worst", Way::Low, Scale::Worth),
    ("first", Way::Low, Scale::Turn),
    ("last", Way::High, Scale::Turn),
    ("nearest", Way::Low, Scale::Distance),
    ("closest", Way::Low, Scale::Distance),
    ("farthest", Way::High, Scale::Distance),
];

/// Nouns with which `first` and `last` do not refer to an order.
const NOT_IN_TURN: [&str; 47] = [
    "name",
    "names",
    "update",
    "updated",
    "initial",
    "letter",
    "letters",
    "character",
    "characters",
    "digit",
    "digits",
    "week",
    "weeks",
    "month",
    "months",
    "year",
    "years",
    "day",
    "days",
    "hour",
    "hours",
    "quarter",
    "quarters",
    "half",
    "time",
    "minute",
    "minutes",
    "night",
    "century",
    "decade",
    "semester",
    "season",
    "class",
    "and",
    "line",
    "part",
    "aid",
    "language",
    "of",
    "seen",
    "login",
    "modified",
    "in",
    "to",
    "grade",
    "degree",
    "or",
];

/// Returns the superlative in a word: `highest` for `highest-rated`, `minimum` for `mininum`.
fn superlative_of(word: &str) -> &str {
    match word.split_once('-') {
        Some((first, _)) if first.ends_with("est") => return first,
        _ => {}
    }
    let is_slip = |of: &&str| word.len() > 5 && strsim::damerau_levenshtein(word, of) == 1;
    ["maximum", "minimum"].into_iter().find(is_slip).unwrap_or(word)
}

impl Question {
    /// Parses a question.
    pub(super) fn of(text: &str) -> Self {
        let words = words(text);
        let mut question = Self { words, cues: Vec::new(), sorting: None };
        question.cues = question.superlatives();
        question.sorting = question.order();
        question
    }

    /// Returns the word at an index in lower case; an empty text for a quoted word, or beyond the ends.
    pub(super) fn at(&self, at: usize) -> &str {
        self.words.get(at).filter(|word| !word.is_quoted).map_or("", |word| &word.lower)
    }

    fn before(&self, at: usize, back: usize) -> &str {
        at.checked_sub(back).map_or("", |at| self.at(at))
    }

    /// Reports whether one of the words occurs outside of quotes.
    pub(super) fn has(&self, wanted: &[&str]) -> bool {
        self.find(wanted).is_some()
    }

    /// Returns the index of the first of these words.
    pub(super) fn find(&self, wanted: &[&str]) -> Option<usize> {
        (0..self.words.len()).find(|at| wanted.contains(&self.at(*at)))
    }

    /// Returns the index of a sequence of words.
    pub(super) fn phrase(&self, phrase: &str) -> Option<usize> {
        let wanted: Vec<&str> = phrase.split(' ').collect();
        (0..self.words.len()).find(|at| wanted.iter().enumerate().all(|(behind, word)| self.at(at + behind) == *word))
    }

    /// Reports whether one of the phrases occurs.
    pub(super) fn says(&self, phrases: &[&str]) -> bool {
        phrases.iter().any(|phrase| self.phrase(phrase).is_some())
    }

    /// Returns words as written, for a message.
    pub(super) fn quote(&self, from: usize, to: usize) -> String {
        let words = self.words.get(from..to.min(self.words.len())).unwrap_or_default();
        words.iter().map(|word| word.text.as_str()).collect::<Vec<_>>().join(" ")
    }

    /// Returns the superlatives of the question.
    fn superlatives(&self) -> Vec<Cue> {
        let mut found: Vec<Cue> = (0..self.words.len()).filter_map(|at| self.superlative(at)).collect();
        // `from highest to lowest` is one order and does not ask for the lowest.
        let at: Vec<(usize, Way)> = found.iter().map(|cue| (cue.at, cue.way)).collect();
        found.retain(|cue| {
            let is_second = at.iter().any(|(other, way)| {
                *way != cue.way
                    && *other < cue.at
                    && cue.at - other <= 4
                    && (1..=3).any(|back| self.before(cue.at, back) == "to" && cue.at - back > *other)
            });
            !is_second
        });
        found
    }

    fn superlative(&self, at: usize) -> Option<Cue> {
        let word = superlative_of(self.at(at));
        let (_, way, scale) = *MOST.iter().find(|(name, ..)| *name == word)?;
        let (before, after) = (self.before(at, 1), self.at(at + 1));
        let (mut way, mut scale) = (way, scale);
        let is_none = match word {
            // `have most 5 competitions` is a bound.
            "most" | "least" if self.number(at + 1).is_some() && before != "the" => true,
            "most" => {
                before == "at"
                    || matches!(after, "of" | "other" | "easily" | "recent" | "recently")
                    || matches!(before, "al" | "almost")
            }
            "least" => before == "at" || matches!(after, "one" | "recent" | "recently"),
            "recent" | "recently" => !matches!(before, "most" | "least" | "more"),
            "max" | "min" | "maximum" | "minimum" => matches!(before, "the" | "a") && matches!(after, "allowed"),
            "first" => {
                NOT_IN_TURN.contains(&after) || matches!(before, "at" | "with" | "their" | "from") || after.is_empty()
            }
            "last" => NOT_IN_TURN.contains(&after) || matches!(before, "at" | "previous" | "past"),
            "top" => matches!(before, "on" | "over" | "tank" | "t-shirt") || matches!(after, "of" | "level"),
            "bottom" => matches!(after, "of"),
            "best" => before == "at" || matches!(after, "practice"),
            _ => false,
        };
        if is_none {
            return None;
        }
        if matches!(word, "recent" | "recently") && before == "least" {
            way = Way::Low;
        }
        let behind = if matches!(word, "recent" | "recently") { 2 } else { 1 };
        if word == "most" || word == "least" {
            (way, scale) = adjective(word, after).unwrap_or((way, scale));
        }
        // In `the most recent one`, `one` is not a number.
        let is_pronoun =
            self.at(at + 1) == "one" && self.words.get(at + 2).is_none_or(|next| next.is_after_pause || next.is_first);
        let behind_it = self.number(at + 1).filter(|_| !is_pronoun);
        let number = behind_it.or_else(|| at.checked_sub(behind).and_then(|before| self.number(before)));
        if self.is_second_part(at) {
            return None;
        }
        let number = number.filter(|_| !self.is_share(at) && !self.is_span(at));
        let is_of_letters = self.number(at + 1).is_some() && NOT_IN_TURN.contains(&self.at(at + 2));
        if matches!(word, "first" | "last") && (self.is_span(at) || is_of_letters) {
            return None;
        }
        let is_of_order = self.is_order(at);
        let article = self.before(at, behind);
        let is_of_one = number.is_none()
            && matches!(article, "the" | "is" | "was" | "has" | "had" | "have" | "whose" | "with" | "which" | "what");
        Some(Cue { at, way, scale, number, is_of_order, is_of_one })
    }

    /// Reports whether a word ends an ordinal number such as `thirty first`, the day of a month.
    fn is_second_part(&self, at: usize) -> bool {
        let is_tens = matches!(self.before(at, 1), "twenty" | "thirty");
        // `the twenty first customers` are twenty.
        let is_of_many = self.words.get(at + 1).is_some_and(|next| next.lower != next.stem);
        self.at(at) == "first" && is_tens && !is_of_many
    }

    /// Reports whether a phrase such as `first 5 …` is a period of time.
    fn is_span(&self, at: usize) -> bool {
        const UNITS: [&str; 9] = ["second", "minute", "hour", "day", "week", "month", "quarter", "year", "decade"];
        let unit = |at: usize| self.words.get(at).is_some_and(|word| UNITS.contains(&word.stem.as_str()));
        self.number(at + 1).is_some()
            && (unit(at + 2)
                || (unit(at + 3) && matches!(self.at(at + 2), "calendar" | "full" | "business" | "whole" | "complete")))
    }

    /// Reports whether a phrase such as `top 5` is a percentage.
    fn is_share(&self, at: usize) -> bool {
        matches!(self.at(at + 2), "percent" | "percentile" | "percentage" | "th")
    }

    /// Returns the number that a word means.
    pub(super) fn number(&self, at: usize) -> Option<u64> {
        const NAMES: [&str; 20] = [
            "one",
            "two",
            "three",
            "four",
            "five",
            "six",
            "seven",
            "eight",
            "nine",
            "ten",
            "eleven",
            "twelve",
            "thirteen",
            "fourteen",
            "fifteen",
            "sixteen",
            "seventeen",
            "eighteen",
            "nineteen",
            "twenty",
        ];
        let word = self.at(at);
        let named = || NAMES.iter().position(|name| *name == word).and_then(|at| u64::try_from(at + 1).ok());
        let many = || {
            [("thirty", 30), ("fifty", 50), ("hundred", 100)].iter().find(|(name, _)| *name == word).map(|(_, n)| *n)
        };
        word.parse().ok().filter(|number| *number > 0 && *number < 1900).or_else(named).or_else(many)
    }

    /// Reports whether a superlative asks for an order of all rows: `highest first`, `highest to lowest`.
    fn is_order(&self, at: usize) -> bool {
        let behind = if self.at(at + 2) == "the" { at + 3 } else { at + 2 };
        let is_pair = self.at(at + 1) == "to" && MOST.iter().any(|(name, ..)| *name == self.at(behind));
        let is_first = (1..=4).any(|behind| {
            let is_near =
                (1..behind).all(|between| !self.words.get(at + between).is_some_and(|word| word.is_after_pause));
            self.at(at + behind) == "first"
                && is_near
                && self.words.get(at + behind + 1).is_none_or(|next| {
                    next.is_after_pause || next.is_first || matches!(next.lower.as_str(), "and" | "then")
                })
        });
        let starting = (1..=4).any(|back| matches!(self.before(at, back), "starting" | "beginning" | "start"));
        is_pair || is_first || starting
    }

    fn order(&self) -> Option<Sorting> {
        const PLAIN: [&str; 18] = [
            "ordered from",
            "sorted from",
            "ordered by",
            "order by",
            "sorted by",
            "sort by",
            "sorted in",
            "sort in",
            "sort the",
            "sort them",
            "order the results",
            "order them",
            "ordered in",
            "in alphabetical order",
            "alphabetically",
            "in ascending order",
            "in descending order",
            "in chronological order",
        ];
        const LOOSE: [&str; 10] = [
            "sorted",
            "ordered",
            "sort",
            "alphabetical",
            "ascending",
            "descending",
            "chronological",
            "chronologically",
            "in order of",
            "ranked by",
        ];
        let plain = PLAIN.iter().find_map(|phrase| self.phrase(phrase)).filter(|at| !self.is_purchase(*at));
        let cue = || self.cues.iter().find(|cue| cue.is_of_order).map(|cue| cue.at);
        // `what sort of`
        let loose = || LOOSE.iter().find_map(|phrase| self.phrase(phrase)).filter(|at| !self.is_kind(*at));
        let at = plain.or_else(loose).or_else(cue)?;
        Some(Sorting { at, way: self.order_way(), is_plain: plain.is_some() })
    }

    /// Reports whether `sort` means a kind.
    fn is_kind(&self, at: usize) -> bool {
        self.at(at) == "sort"
            && (self.at(at + 1) == "of" || matches!(self.before(at, 1), "what" | "which" | "this" | "that"))
    }

    /// Reports whether `ordered in`, `ordered from` or `ordered by` refers to a purchase.
    fn is_purchase(&self, at: usize) -> bool {
        const WAYS: [&str; 14] = [
            "ascending",
            "descending",
            "alphabetical",
            "alphabetic",
            "chronological",
            "reverse",
            "increasing",
            "decreasing",
            "lexicographical",
            "lexicographic",
            "lexical",
            "order",
            "terms",
            "numerical",
        ];
        const PEOPLE: [&str; 12] = [
            "customer",
            "customers",
            "user",
            "users",
            "client",
            "clients",
            "people",
            "person",
            "employee",
            "employees",
            "someone",
            "buyers",
        ];
        if self.at(at) != "ordered" {
            return false;
        }
        let is_after_verb =
            matches!(self.before(at, 1), "was" | "were" | "been" | "has" | "have" | "who" | "ever" | "never");
        let near = || (at + 2..at + 5).map(|at| self.at(at));
        match self.at(at + 1) {
            "in" => !near().any(|word| WAYS.contains(&word)),
            "from" => !(at + 2..at + 5)
                .any(|at| MOST.iter().any(|(name, ..)| *name == self.at(at)) || WAYS.contains(&self.at(at))),
            "by" => {
                let noun = near().position(|word| PEOPLE.contains(&word)).map(|behind| at + 2 + behind);
                let is_of_person = noun.is_some_and(|noun| {
                    !matches!(
                        self.at(noun + 1),
                        "name" | "names" | "id" | "ids" | "age" | "first" | "last" | "number" | "count"
                    )
                });
                is_of_person || is_after_verb
            }
            _ => false,
        }
    }

    /// Returns the requested direction; `None` if the question names none or both.
    fn order_way(&self) -> Option<Way> {
        let reverse = self.has(&["reverse", "reversed"]);
        let mut high = self.has(&["descending", "desc", "decreasing"]);
        let mut low = self.has(&["ascending", "asc", "increasing"]);
        if self.has(&["alphabetically", "alphabetical", "chronological", "chronologically"]) {
            high |= reverse;
            low |= !reverse;
        }
        for cue in self.cues.iter().filter(|cue| cue.is_of_order) {
            let way = if cue.scale == Scale::Age { cue.way.turned() } else { cue.way };
            high |= way == Way::High && cue.scale != Scale::Age;
            low |= way == Way::Low && cue.scale != Scale::Age;
        }
        match (high, low) {
            (true, false) => Some(Way::High),
            (false, true) => Some(Way::Low),
            _ => None,
        }
    }
}

/// Returns the direction and the scale of `most …` and `least …` for adjectives that change them.
fn adjective(word: &str, adjective: &str) -> Option<(Way, Scale)> {
    let way = if word == "most" { Way::High } else { Way::Low };
    match adjective {
        "affordable" | "inexpensive" | "rare" | "unpopular" | "uncommon" | "economical" => {
            Some((way.turned(), Scale::Worth))
        }
        // Scales of difficulty or effort run in the opposite direction.
        "easy" | "simple" | "straightforward" | "effortless" | "convenient" | "lenient" | "relaxed" => {
            Some((way.turned(), Scale::Worth))
        }
        "poorly" | "badly" | "poor" => Some((way.turned(), Scale::Worth)),
        "successful" | "accurate" | "skilled" | "efficient" | "valuable" | "important" => Some((way, Scale::Worth)),
        "southern" | "northern" | "western" | "eastern" => Some((way, Scale::Worth)),
        _ => None,
    }
}

//! Extracts the requests of an English question: superlatives, an order, numbers of rows. This module does not depend
//! on queries. A wrong reading causes a false warning, so each reading requires more evidence than a single word.

use super::word_forms::{QuestionWord, split_question};

/// One end of a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScaleEnd {
    High,
    Low,
}

impl ScaleEnd {
    /// Returns the other end.
    pub(super) fn opposite(self) -> Self {
        match self {
            Self::High => Self::Low,
            Self::Low => Self::High,
        }
    }
}

/// The scale of a superlative.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SuperlativeScale {
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
    Quality,
    /// `first`, `last` in a sequence.
    Sequence,
    /// `nearest`, `farthest`.
    Distance,
}

/// A superlative.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Superlative {
    /// The index of the word.
    pub at: usize,
    pub end: ScaleEnd,
    pub scale: SuperlativeScale,
    /// The number of rows that the superlative asks for, if any.
    pub number: Option<u64>,
    /// True if it asks for an order of all rows: `highest first`, `from highest to lowest`.
    pub asks_for_order: bool,
    /// True if the superlative asks for a single thing: `the most`, `the highest`.
    pub asks_for_one: bool,
}

/// An explicit request for an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RequestedOrder {
    pub at: usize,
    pub direction: Option<ScaleEnd>,
    /// True if the words have no other meaning.
    pub is_unambiguous: bool,
}

/// A parsed question.
#[derive(Debug, Clone)]
pub(super) struct ParsedQuestion {
    pub words: Vec<QuestionWord>,
    pub superlatives: Vec<Superlative>,
    pub requested_order: Option<RequestedOrder>,
}

const SUPERLATIVES: [(&str, ScaleEnd, SuperlativeScale); 63] = [
    ("highest", ScaleEnd::High, SuperlativeScale::Amount),
    ("most", ScaleEnd::High, SuperlativeScale::Amount),
    ("largest", ScaleEnd::High, SuperlativeScale::Amount),
    ("biggest", ScaleEnd::High, SuperlativeScale::Amount),
    ("greatest", ScaleEnd::High, SuperlativeScale::Amount),
    ("maximum", ScaleEnd::High, SuperlativeScale::Amount),
    ("max", ScaleEnd::High, SuperlativeScale::Amount),
    ("maximal", ScaleEnd::High, SuperlativeScale::Amount),
    ("top", ScaleEnd::High, SuperlativeScale::Quality),
    ("tallest", ScaleEnd::High, SuperlativeScale::Amount),
    ("heaviest", ScaleEnd::High, SuperlativeScale::Amount),
    ("richest", ScaleEnd::High, SuperlativeScale::Amount),
    ("wealthiest", ScaleEnd::High, SuperlativeScale::Amount),
    ("deepest", ScaleEnd::High, SuperlativeScale::Amount),
    ("strongest", ScaleEnd::High, SuperlativeScale::Amount),
    ("widest", ScaleEnd::High, SuperlativeScale::Amount),
    ("priciest", ScaleEnd::High, SuperlativeScale::Amount),
    ("costliest", ScaleEnd::High, SuperlativeScale::Amount),
    ("dearest", ScaleEnd::High, SuperlativeScale::Amount),
    ("busiest", ScaleEnd::High, SuperlativeScale::Amount),
    ("hottest", ScaleEnd::High, SuperlativeScale::Amount),
    ("warmest", ScaleEnd::High, SuperlativeScale::Amount),
    ("densest", ScaleEnd::High, SuperlativeScale::Amount),
    ("commonest", ScaleEnd::High, SuperlativeScale::Amount),
    ("longest", ScaleEnd::High, SuperlativeScale::Length),
    ("shortest", ScaleEnd::Low, SuperlativeScale::Length),
    ("lowest", ScaleEnd::Low, SuperlativeScale::Amount),
    ("least", ScaleEnd::Low, SuperlativeScale::Amount),
    ("smallest", ScaleEnd::Low, SuperlativeScale::Amount),
    ("fewest", ScaleEnd::Low, SuperlativeScale::Amount),
    ("minimum", ScaleEnd::Low, SuperlativeScale::Amount),
    ("minimal", ScaleEnd::Low, SuperlativeScale::Amount),
    ("min", ScaleEnd::Low, SuperlativeScale::Amount),
    ("littlest", ScaleEnd::Low, SuperlativeScale::Amount),
    ("tiniest", ScaleEnd::Low, SuperlativeScale::Amount),
    ("cheapest", ScaleEnd::Low, SuperlativeScale::Amount),
    ("lightest", ScaleEnd::Low, SuperlativeScale::Amount),
    ("poorest", ScaleEnd::Low, SuperlativeScale::Amount),
    ("weakest", ScaleEnd::Low, SuperlativeScale::Amount),
    ("narrowest", ScaleEnd::Low, SuperlativeScale::Amount),
    ("shallowest", ScaleEnd::Low, SuperlativeScale::Amount),
    ("coldest", ScaleEnd::Low, SuperlativeScale::Amount),
    ("coolest", ScaleEnd::Low, SuperlativeScale::Amount),
    ("rarest", ScaleEnd::Low, SuperlativeScale::Amount),
    ("bottom", ScaleEnd::Low, SuperlativeScale::Quality),
    ("latest", ScaleEnd::High, SuperlativeScale::Time),
    ("newest", ScaleEnd::High, SuperlativeScale::Time),
    ("recent", ScaleEnd::High, SuperlativeScale::Time),
    ("recently", ScaleEnd::High, SuperlativeScale::Time),
    ("earliest", ScaleEnd::Low, SuperlativeScale::Time),
    ("oldest", ScaleEnd::High, SuperlativeScale::Age),
    ("eldest", ScaleEnd::High, SuperlativeScale::Age),
    ("youngest", ScaleEnd::Low, SuperlativeScale::Age),
    ("fastest", ScaleEnd::High, SuperlativeScale::Speed),
    ("quickest", ScaleEnd::High, SuperlativeScale::Speed),
    ("slowest", ScaleEnd::Low, SuperlativeScale::Speed),
    ("best", ScaleEnd::High, SuperlativeScale::Quality),
    ("worst", ScaleEnd::Low, SuperlativeScale::Quality),
    ("first", ScaleEnd::Low, SuperlativeScale::Sequence),
    ("last", ScaleEnd::High, SuperlativeScale::Sequence),
    ("nearest", ScaleEnd::Low, SuperlativeScale::Distance),
    ("closest", ScaleEnd::Low, SuperlativeScale::Distance),
    ("farthest", ScaleEnd::High, SuperlativeScale::Distance),
];

/// Nouns with which `first` and `last` do not refer to an order.
const NON_ORDER_NOUNS: [&str; 47] = [
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
fn normalize_superlative(word: &str) -> &str {
    match word.split_once('-') {
        Some((first, _)) if first.ends_with("est") => return first,
        _ => {}
    }
    let is_slip = |of: &&str| word.len() > 5 && strsim::damerau_levenshtein(word, of) == 1;
    ["maximum", "minimum"].into_iter().find(is_slip).unwrap_or(word)
}

impl ParsedQuestion {
    /// Parses a question.
    pub(super) fn parse(text: &str) -> Self {
        let words = split_question(text);
        let mut question = Self { words, superlatives: Vec::new(), requested_order: None };
        question.superlatives = question.find_superlatives();
        question.requested_order = question.find_requested_order();
        question
    }

    /// Returns the word at an index in lower case; an empty text for a quoted word, or beyond the ends.
    pub(super) fn word_at(&self, at: usize) -> &str {
        self.words.get(at).filter(|word| !word.is_quoted).map_or("", |word| &word.lower)
    }

    fn word_before(&self, at: usize, back: usize) -> &str {
        at.checked_sub(back).map_or("", |at| self.word_at(at))
    }

    /// Reports whether one of the words occurs outside of quotes.
    pub(super) fn has_word(&self, wanted: &[&str]) -> bool {
        self.find_word(wanted).is_some()
    }

    /// Returns the index of the first of these words.
    pub(super) fn find_word(&self, wanted: &[&str]) -> Option<usize> {
        (0..self.words.len()).find(|at| wanted.contains(&self.word_at(*at)))
    }

    /// Returns the index of a sequence of words.
    pub(super) fn find_phrase(&self, phrase: &str) -> Option<usize> {
        let wanted: Vec<&str> = phrase.split(' ').collect();
        (0..self.words.len())
            .find(|at| wanted.iter().enumerate().all(|(behind, word)| self.word_at(at + behind) == *word))
    }

    /// Reports whether one of the phrases occurs.
    pub(super) fn has_phrase(&self, phrases: &[&str]) -> bool {
        phrases.iter().any(|phrase| self.find_phrase(phrase).is_some())
    }

    /// Returns words as written, for a message.
    pub(super) fn quote(&self, from: usize, to: usize) -> String {
        let words = self.words.get(from..to.min(self.words.len())).unwrap_or_default();
        words.iter().map(|word| word.text.as_str()).collect::<Vec<_>>().join(" ")
    }

    /// Returns the superlatives of the question.
    fn find_superlatives(&self) -> Vec<Superlative> {
        let mut found: Vec<Superlative> = (0..self.words.len()).filter_map(|at| self.superlative_at(at)).collect();
        // `from highest to lowest` is one order and does not ask for the lowest.
        let at: Vec<(usize, ScaleEnd)> = found.iter().map(|cue| (cue.at, cue.end)).collect();
        found.retain(|cue| {
            let is_second = at.iter().any(|(other, way)| {
                *way != cue.end
                    && *other < cue.at
                    && cue.at - other <= 4
                    && (1..=3).any(|back| self.word_before(cue.at, back) == "to" && cue.at - back > *other)
            });
            !is_second
        });
        found
    }

    fn superlative_at(&self, at: usize) -> Option<Superlative> {
        let word = normalize_superlative(self.word_at(at));
        let (_, way, scale) = *SUPERLATIVES.iter().find(|(name, ..)| *name == word)?;
        let (before, after) = (self.word_before(at, 1), self.word_at(at + 1));
        let (mut way, mut scale) = (way, scale);
        let is_none = match word {
            // `have most 5 competitions` is a bound.
            "most" | "least" if self.number_at(at + 1).is_some() && before != "the" => true,
            "most" => {
                before == "at"
                    || matches!(after, "of" | "other" | "easily" | "recent" | "recently")
                    || matches!(before, "al" | "almost")
            }
            "least" => before == "at" || matches!(after, "one" | "recent" | "recently"),
            "recent" | "recently" => !matches!(before, "most" | "least" | "more"),
            "max" | "min" | "maximum" | "minimum" => matches!(before, "the" | "a") && matches!(after, "allowed"),
            "first" => {
                NON_ORDER_NOUNS.contains(&after)
                    || matches!(before, "at" | "with" | "their" | "from")
                    || after.is_empty()
            }
            "last" => NON_ORDER_NOUNS.contains(&after) || matches!(before, "at" | "previous" | "past"),
            "top" => matches!(before, "on" | "over" | "tank" | "t-shirt") || matches!(after, "of" | "level"),
            "bottom" => matches!(after, "of"),
            "best" => before == "at" || matches!(after, "practice"),
            _ => false,
        };
        if is_none {
            return None;
        }
        if matches!(word, "recent" | "recently") && before == "least" {
            way = ScaleEnd::Low;
        }
        let behind = if matches!(word, "recent" | "recently") { 2 } else { 1 };
        if word == "most" || word == "least" {
            (way, scale) = adjective_scale(word, after).unwrap_or((way, scale));
        }
        // In `the most recent one`, `one` is not a number.
        let is_pronoun = self.word_at(at + 1) == "one"
            && self.words.get(at + 2).is_none_or(|next| next.is_after_punctuation || next.is_sentence_start);
        let behind_it = self.number_at(at + 1).filter(|_| !is_pronoun);
        let number = behind_it.or_else(|| at.checked_sub(behind).and_then(|before| self.number_at(before)));
        if self.is_ordinal_part(at) {
            return None;
        }
        let number = number.filter(|_| !self.is_percentage(at) && !self.is_time_span(at));
        let is_of_letters = self.number_at(at + 1).is_some() && NON_ORDER_NOUNS.contains(&self.word_at(at + 2));
        if matches!(word, "first" | "last") && (self.is_time_span(at) || is_of_letters) {
            return None;
        }
        let is_of_order = self.is_order_request(at);
        let article = self.word_before(at, behind);
        let is_of_one = number.is_none()
            && matches!(article, "the" | "is" | "was" | "has" | "had" | "have" | "whose" | "with" | "which" | "what");
        Some(Superlative { at, end: way, scale, number, asks_for_order: is_of_order, asks_for_one: is_of_one })
    }

    /// Reports whether a word ends an ordinal number such as `thirty first`, the day of a month.
    fn is_ordinal_part(&self, at: usize) -> bool {
        let is_tens = matches!(self.word_before(at, 1), "twenty" | "thirty");
        // `the twenty first customers` are twenty.
        let is_of_many = self.words.get(at + 1).is_some_and(|next| next.lower != next.stem);
        self.word_at(at) == "first" && is_tens && !is_of_many
    }

    /// Reports whether a phrase such as `first 5 …` is a period of time.
    fn is_time_span(&self, at: usize) -> bool {
        const UNITS: [&str; 9] = ["second", "minute", "hour", "day", "week", "month", "quarter", "year", "decade"];
        let unit = |at: usize| self.words.get(at).is_some_and(|word| UNITS.contains(&word.stem.as_str()));
        self.number_at(at + 1).is_some()
            && (unit(at + 2)
                || (unit(at + 3)
                    && matches!(self.word_at(at + 2), "calendar" | "full" | "business" | "whole" | "complete")))
    }

    /// Reports whether a phrase such as `top 5` is a percentage.
    fn is_percentage(&self, at: usize) -> bool {
        matches!(self.word_at(at + 2), "percent" | "percentile" | "percentage" | "th")
    }

    /// Returns the number that a word means.
    pub(super) fn number_at(&self, at: usize) -> Option<u64> {
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
        let word = self.word_at(at);
        let named = || NAMES.iter().position(|name| *name == word).and_then(|at| u64::try_from(at + 1).ok());
        let many = || {
            [("thirty", 30), ("fifty", 50), ("hundred", 100)].iter().find(|(name, _)| *name == word).map(|(_, n)| *n)
        };
        word.parse().ok().filter(|number| *number > 0 && *number < 1900).or_else(named).or_else(many)
    }

    /// Reports whether a superlative asks for an order of all rows: `highest first`, `highest to lowest`.
    fn is_order_request(&self, at: usize) -> bool {
        let behind = if self.word_at(at + 2) == "the" { at + 3 } else { at + 2 };
        let is_pair =
            self.word_at(at + 1) == "to" && SUPERLATIVES.iter().any(|(name, ..)| *name == self.word_at(behind));
        let is_first = (1..=4).any(|behind| {
            let is_near =
                (1..behind).all(|between| !self.words.get(at + between).is_some_and(|word| word.is_after_punctuation));
            self.word_at(at + behind) == "first"
                && is_near
                && self.words.get(at + behind + 1).is_none_or(|next| {
                    next.is_after_punctuation || next.is_sentence_start || matches!(next.lower.as_str(), "and" | "then")
                })
        });
        let starting = (1..=4).any(|back| matches!(self.word_before(at, back), "starting" | "beginning" | "start"));
        is_pair || is_first || starting
    }

    fn find_requested_order(&self) -> Option<RequestedOrder> {
        const PLAIN_PHRASES: [&str; 18] = [
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
        const LOOSE_PHRASES: [&str; 10] = [
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
        let plain =
            PLAIN_PHRASES.iter().find_map(|phrase| self.find_phrase(phrase)).filter(|at| !self.means_purchase(*at));
        let cue = || self.superlatives.iter().find(|cue| cue.asks_for_order).map(|cue| cue.at);
        // `what sort of`
        let loose =
            || LOOSE_PHRASES.iter().find_map(|phrase| self.find_phrase(phrase)).filter(|at| !self.means_kind(*at));
        let at = plain.or_else(loose).or_else(cue)?;
        Some(RequestedOrder { at, direction: self.requested_direction(), is_unambiguous: plain.is_some() })
    }

    /// Reports whether `sort` means a kind.
    fn means_kind(&self, at: usize) -> bool {
        self.word_at(at) == "sort"
            && (self.word_at(at + 1) == "of" || matches!(self.word_before(at, 1), "what" | "which" | "this" | "that"))
    }

    /// Reports whether `ordered in`, `ordered from` or `ordered by` refers to a purchase.
    fn means_purchase(&self, at: usize) -> bool {
        const ORDER_WORDS: [&str; 14] = [
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
        if self.word_at(at) != "ordered" {
            return false;
        }
        let is_after_verb =
            matches!(self.word_before(at, 1), "was" | "were" | "been" | "has" | "have" | "who" | "ever" | "never");
        let near = || (at + 2..at + 5).map(|at| self.word_at(at));
        match self.word_at(at + 1) {
            "in" => !near().any(|word| ORDER_WORDS.contains(&word)),
            "from" => !(at + 2..at + 5).any(|at| {
                SUPERLATIVES.iter().any(|(name, ..)| *name == self.word_at(at))
                    || ORDER_WORDS.contains(&self.word_at(at))
            }),
            "by" => {
                let noun = near().position(|word| PEOPLE.contains(&word)).map(|behind| at + 2 + behind);
                let is_of_person = noun.is_some_and(|noun| {
                    !matches!(
                        self.word_at(noun + 1),
                        "name" | "names" | "id" | "ids" | "age" | "first" | "last" | "number" | "count"
                    )
                });
                is_of_person || is_after_verb
            }
            _ => false,
        }
    }

    /// Returns the requested direction; `None` if the question names none or both.
    fn requested_direction(&self) -> Option<ScaleEnd> {
        let reverse = self.has_word(&["reverse", "reversed"]);
        let mut high = self.has_word(&["descending", "desc", "decreasing"]);
        let mut low = self.has_word(&["ascending", "asc", "increasing"]);
        if self.has_word(&["alphabetically", "alphabetical", "chronological", "chronologically"]) {
            high |= reverse;
            low |= !reverse;
        }
        for cue in self.superlatives.iter().filter(|cue| cue.asks_for_order) {
            let way = if cue.scale == SuperlativeScale::Age { cue.end.opposite() } else { cue.end };
            high |= way == ScaleEnd::High && cue.scale != SuperlativeScale::Age;
            low |= way == ScaleEnd::Low && cue.scale != SuperlativeScale::Age;
        }
        match (high, low) {
            (true, false) => Some(ScaleEnd::High),
            (false, true) => Some(ScaleEnd::Low),
            _ => None,
        }
    }
}

/// Returns the direction and the scale of `most …` and `least …` for adjectives that change them.
fn adjective_scale(word: &str, adjective: &str) -> Option<(ScaleEnd, SuperlativeScale)> {
    let way = if word == "most" { ScaleEnd::High } else { ScaleEnd::Low };
    match adjective {
        "affordable" | "inexpensive" | "rare" | "unpopular" | "uncommon" | "economical" => {
            Some((way.opposite(), SuperlativeScale::Quality))
        }
        // Scales of difficulty or effort run in the opposite direction.
        "easy" | "simple" | "straightforward" | "effortless" | "convenient" | "lenient" | "relaxed" => {
            Some((way.opposite(), SuperlativeScale::Quality))
        }
        "poorly" | "badly" | "poor" => Some((way.opposite(), SuperlativeScale::Quality)),
        "successful" | "accurate" | "skilled" | "efficient" | "valuable" | "important" => {
            Some((way, SuperlativeScale::Quality))
        }
        "southern" | "northern" | "western" | "eastern" => Some((way, SuperlativeScale::Quality)),
        _ => None,
    }
}

//! Defines the words of questions and names that the checks of aggregates look for.

use crate::stages::semantic::word_forms::name_words;

/// Words that ask for a share, which needs a division.
pub(super) const SHARE_WORDS: [&str; 22] = [
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
pub(super) const AVERAGE_WORDS: [&str; 8] =
    ["average", "averages", "avg", "mean", "typical", "typically", "averaged", "expected"];

/// Reports whether a column has the name of a key.
pub(super) fn is_key(column: &str) -> bool {
    name_words(column)
        .last()
        .is_some_and(|last| matches!(last.as_str(), "id" | "uuid" | "key" | "code") || last.ends_with("id"))
}

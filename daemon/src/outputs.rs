//! Which output of a run is meant, in words: those of paths, of addresses, and of answers.

use crate::service::{OutputOf, ReportOf, Stdio, Unit};

impl Unit {
    /// The word for one of them.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Step => "step",
        }
    }

    /// The word for all of them, which stands in paths.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Check => "checks",
            Self::Step => "steps",
        }
    }

    /// What the word of a path means.
    pub(crate) fn of_plural(word: &str) -> Option<Self> {
        [Self::Check, Self::Step].into_iter().find(|unit| unit.plural() == word)
    }
}

impl Stdio {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }

    /// What a word means.
    pub(crate) fn of(word: &str) -> Option<Self> {
        [Self::Stdout, Self::Stderr].into_iter().find(|stream| stream.as_str() == word)
    }
}

impl OutputOf {
    /// The path below that of its run: `steps/0/stdout`.
    pub(crate) fn path(self) -> String {
        format!("{}/{}/{}", self.unit.plural(), self.n, self.stream.as_str())
    }
}

impl ReportOf {
    /// The path below that of its run: `steps/0/reports/junit`.
    pub(crate) fn path(self) -> String {
        format!("{}/{}/reports/{}", Unit::Step.plural(), self.n, self.format.as_str())
    }
}

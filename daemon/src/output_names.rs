//! Maps outputs of a run to the words used in paths, URLs and responses.

use crate::service::{OutputId, OutputUnit, ReportId, StdStream};

impl OutputUnit {
    /// Returns the singular name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Step => "step",
        }
    }

    /// Returns the plural name, as used in paths.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Check => "checks",
            Self::Step => "steps",
        }
    }

    /// Parses the plural name.
    pub(crate) fn from_plural(word: &str) -> Option<Self> {
        [Self::Check, Self::Step].into_iter().find(|unit| unit.plural() == word)
    }
}

impl StdStream {
    /// Returns the name of the stream.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }

    /// Parses the name of a stream.
    pub(crate) fn from_name(word: &str) -> Option<Self> {
        [Self::Stdout, Self::Stderr].into_iter().find(|stream| stream.as_str() == word)
    }
}

impl OutputId {
    /// Returns the path relative to the run: `steps/0/stdout`.
    pub(crate) fn path(self) -> String {
        format!("{}/{}/{}", self.unit.plural(), self.n, self.stream.as_str())
    }
}

impl ReportId {
    /// Returns the path relative to the run: `steps/0/reports/junit`.
    pub(crate) fn path(self) -> String {
        format!("{}/{}/reports/{}", OutputUnit::Step.plural(), self.n, self.format.as_str())
    }
}

//! What became of the reports that a step was to write: `reports` of the plan, as they were found.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::digest::Sha256Hex;
use crate::plan::{RelPath, ReportFormat};

/// How many bytes a report has at most; a larger one is refused.
pub const MAX_REPORT_BYTES: u64 = 16 << 20;

/// One declared report, as its step left it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReportEvidence {
    /// Its format, as declared. Nobody has looked whether the bytes are of it.
    pub format: ReportFormat,
    /// Where the step was to write it, relative to the repository.
    pub path: RelPath,
    /// What was found there.
    #[serde(flatten)]
    pub state: ReportState,
}

/// What was found of a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum ReportState {
    /// The step wrote it, and it is kept as outputs are.
    Read {
        /// The sha256 of its bytes as the step wrote them.
        sha256: Sha256Hex,
        /// How many those were.
        bytes: u64,
        /// In how many places of what is kept a secret of the caller was taken out.
        redacted: u64,
    },
    /// The step wrote no file there. One that had been there before does not count.
    Missing,
    /// Something is there that is not read.
    Refused {
        /// Why.
        reason: ReportFault,
    },
}

/// Why a report is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReportFault {
    /// It is a symbolic link, or one stands on the way to it.
    SymbolicLink,
    /// It is a directory, a fifo, a socket or a device.
    NoRegularFile,
    /// It has more than [`MAX_REPORT_BYTES`].
    TooLarge,
    /// It lies in a `.git`.
    InGit,
    /// The system does not let us read it.
    Unreadable,
    /// It changed while it was read.
    Changing,
    /// It could not be kept: the store is full, or cannot be written.
    NotKept,
}

impl ReportFault {
    /// Why, as a phrase that follows the path.
    pub fn phrase(self) -> &'static str {
        match self {
            Self::SymbolicLink => "is a symbolic link, or lies behind one",
            Self::NoRegularFile => "is no regular file",
            Self::TooLarge => "has more than 16 MiB",
            Self::InGit => "lies in a `.git`",
            Self::Unreadable => "cannot be read",
            Self::Changing => "changed while it was read",
            Self::NotKept => "could not be kept",
        }
    }
}

impl ReportEvidence {
    /// What is wrong with it, as a sentence; `None` where it was read.
    pub fn problem(&self) -> Option<String> {
        match &self.state {
            ReportState::Read { .. } => None,
            ReportState::Missing => Some(format!("the step did not write its report `{}`", self.path)),
            ReportState::Refused { reason } => {
                Some(format!("the report `{}` is not used: it {}", self.path, reason.phrase()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_reads_back_as_it_was_written() {
        let read = ReportState::Read { sha256: Sha256Hex::of(b"x"), bytes: 1, redacted: 0 };
        let refused = ReportState::Refused { reason: ReportFault::SymbolicLink };
        for (state, tag) in [(read, "read"), (ReportState::Missing, "missing"), (refused, "refused")] {
            let path = RelPath::new("target/junit.xml").expect("a path");
            let report = ReportEvidence { format: ReportFormat::Junit, path, state };
            let json = serde_json::to_value(&report).expect("writes");
            assert_eq!((json["state"].as_str(), json["format"].as_str()), (Some(tag), Some("junit")));
            assert_eq!(serde_json::from_value::<ReportEvidence>(json).expect("reads"), report);
        }
    }

    #[test]
    fn the_phrase_names_the_bound() {
        assert!(ReportFault::TooLarge.phrase().contains(&format!("{} MiB", MAX_REPORT_BYTES >> 20)));
    }
}

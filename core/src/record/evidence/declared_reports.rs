//! The reports that a step declared, as found after it ran.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::plan::{RelPath, ReportFormat};
use crate::text::digest::Sha256Hex;

/// Maximum size of a report in bytes; a larger one is refused.
pub const MAX_REPORT_BYTES: u64 = 16 << 20;

/// A declared report and its state after the step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReportEvidence {
    /// The declared format. The content has not been checked against it.
    pub format: ReportFormat,
    /// The declared path, relative to the repository.
    pub path: RelPath,
    /// The state of the file.
    #[serde(flatten)]
    pub state: ReportState,
}

/// The state of a declared report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum ReportState {
    /// The step wrote the file. It is stored in the same way as outputs.
    Read {
        /// The sha256 of the bytes that the step wrote.
        sha256: Sha256Hex,
        /// The number of bytes that the step wrote.
        bytes: u64,
        /// The number of places in the stored copy where a secret of the caller was removed.
        redacted: u64,
    },
    /// The step did not write the file. A file from before the step does not count.
    Missing,
    /// The path exists but was not read.
    Refused {
        /// The reason.
        reason: ReportFault,
    },
}

/// The reason why a report was not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReportFault {
    /// The file is a symbolic link, or its path contains one.
    SymbolicLink,
    /// The path is a directory, a FIFO, a socket or a device.
    NoRegularFile,
    /// The file is larger than 16 MiB.
    TooLarge,
    /// The path is in a `.git` directory.
    InGit,
    /// The file cannot be read because of a system error.
    Unreadable,
    /// The file was changed while it was read.
    Changing,
    /// The report could not be stored: the store is full or not writable.
    NotKept,
}

impl ReportFault {
    /// Returns the reason as a phrase that follows the path.
    pub fn phrase(self) -> &'static str {
        match self {
            Self::SymbolicLink => "is a symbolic link, or is reached through one",
            Self::NoRegularFile => "is not a regular file",
            Self::TooLarge => "has more than 16 MiB",
            Self::InGit => "is in a `.git`",
            Self::Unreadable => "cannot be read",
            Self::Changing => "was changed while it was read",
            Self::NotKept => "could not be kept",
        }
    }
}

impl ReportEvidence {
    /// Returns a message about the problem; `None` if the report was read.
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
    fn report_states_round_trip_through_json() {
        let read = ReportState::Read { sha256: Sha256Hex::digest(b"x"), bytes: 1, redacted: 0 };
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
    fn too_large_phrase_contains_size_limit() {
        assert!(ReportFault::TooLarge.phrase().contains(&format!("{} MiB", MAX_REPORT_BYTES >> 20)));
    }
}

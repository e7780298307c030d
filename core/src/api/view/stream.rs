//! One output stream of a step, as the daemon answers it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::digest::Sha256Hex;
use crate::evidence::{ReportEvidence, ReportState, StreamEvidence};

/// One output stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StreamView {
    /// The sha256 of all bytes.
    pub sha256: Sha256Hex,
    /// How many bytes there were.
    pub bytes: u64,
    /// How many of them are kept.
    pub kept_bytes: u64,
    /// Whether its end was seen.
    pub complete: bool,
    /// In how many places of what is kept a secret of the caller was taken out.
    pub redacted: u64,
}

impl From<&StreamEvidence> for StreamView {
    fn from(stream: &StreamEvidence) -> Self {
        Self {
            sha256: stream.sha256.clone(),
            bytes: stream.bytes,
            kept_bytes: stream.kept_bytes,
            complete: stream.complete,
            redacted: stream.redacted,
        }
    }
}

impl StreamView {
    /// A report that was read, as an output of which all is kept; `None` where it was not.
    pub fn of_report(report: &ReportEvidence) -> Option<Self> {
        match &report.state {
            ReportState::Read { sha256, bytes, redacted } => Some(Self {
                sha256: sha256.clone(),
                bytes: *bytes,
                kept_bytes: *bytes,
                complete: true,
                redacted: *redacted,
            }),
            ReportState::Missing | ReportState::Refused { .. } => None,
        }
    }
}

//! The view of one output stream of a step.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::record::evidence::{ReportEvidence, ReportState, StreamEvidence};
use crate::text::digest::Sha256Hex;

/// One output stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StreamView {
    /// The sha256 of all bytes.
    pub sha256: Sha256Hex,
    /// Total number of bytes.
    pub bytes: u64,
    /// Number of bytes that are stored.
    pub kept_bytes: u64,
    /// True if the stream was read completely.
    pub complete: bool,
    /// Number of places in the stored output where a secret of the caller was removed.
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
    /// Returns a report that was read as a completely stored stream; `None` for other reports.
    pub fn from_report(report: &ReportEvidence) -> Option<Self> {
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

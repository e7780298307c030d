//! Lines of a run log: one JSON object per event. The first line also has the idempotency key of the request.

use proctor_core::api::LoggedEvent;
use proctor_core::text::digest::Sha256Hex;
use serde::{Deserialize, Serialize};

use super::error::HistoryError;
use super::history_files::MAX_EVENT;

/// Prefix of each line, sufficient to find the number of its event.
pub(super) const SEQ_PREFIX: &[u8] = b"{\"seq\":";

/// The part of an idempotency key that is stored in the first line of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct IdempotencyHashes {
    /// SHA-256 of the key.
    pub(super) key_sha256: Sha256Hex,
    /// SHA-256 of the request.
    pub(super) request_sha256: Sha256Hex,
}

/// First line of a log: the event plus fields that only the first line has.
#[derive(Serialize)]
pub(super) struct FirstLogLine<'a> {
    #[serde(flatten)]
    pub(super) logged: &'a LoggedEvent,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) idempotency: Option<&'a IdempotencyHashes>,
}

/// Fields that only the first line has.
#[derive(Deserialize)]
pub(super) struct FirstLineKey {
    #[serde(default)]
    pub(super) idempotency: Option<IdempotencyHashes>,
}

/// Serializes an event as a line of a log.
pub(super) fn to_line(event: &impl serde::Serialize) -> Result<Vec<u8>, HistoryError> {
    let mut line = serde_json::to_vec(event).map_err(HistoryError::UnserializableEvent)?;
    line.push(b'\n');
    let limit = usize::try_from(MAX_EVENT).unwrap_or(usize::MAX);
    if line.len() > limit { Err(HistoryError::TooLarge { bytes: line.len(), limit }) } else { Ok(line) }
}

/// Serializes events as lines of a log.
pub(super) fn to_lines<'a>(events: impl IntoIterator<Item = &'a LoggedEvent>) -> Result<Vec<u8>, HistoryError> {
    let lines: Result<Vec<Vec<u8>>, HistoryError> = events.into_iter().map(to_line).collect();
    Ok(lines?.concat())
}

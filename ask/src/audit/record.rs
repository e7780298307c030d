//! The records of the audit trail and their hashes.

use proctor_core::text::canonical;
use proctor_core::text::digest::Sha256Hex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The version of the format.
pub(super) const VERSION: u32 = 1;

/// The kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditKind {
    /// A question.
    Question,
    /// A prompt that was sent to a model.
    Prompt,
    /// The answer of a model, or the reason why it gave no answer.
    Answer,
    /// The judgement of a statement.
    Judgement,
    /// The execution of a statement.
    Execution,
    /// The end of a question.
    End,
    /// The removal of the oldest records.
    Checkpoint,
    /// The head was behind the records, because an append was interrupted.
    Recovered,
}

/// A record without its place in the trail.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct NewRecord {
    pub(super) ask: String,
    pub(super) kind: AuditKind,
    pub(super) content: Value,
}

/// A record as it is hashed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AuditRecord {
    pub(super) version: u32,
    /// The number of the record, starting at 1.
    pub(super) seq: u64,
    /// The time in UTC, RFC 3339.
    pub(super) at: String,
    /// The id of the question; empty for records about the trail itself.
    pub(super) ask: String,
    pub(super) kind: AuditKind,
    pub(super) content: Value,
    /// The hash of the previous record.
    pub(super) previous: Sha256Hex,
}

impl AuditRecord {
    /// Returns the canonical JSON.
    pub(super) fn to_text(&self) -> String {
        String::from_utf8_lossy(&canonical::to_vec(self)).into_owned()
    }
}

/// The number and hash of the last record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Head {
    pub(super) version: u32,
    pub(super) count: u64,
    pub(super) hash: Sha256Hex,
}

impl Head {
    /// Returns the head of an empty trail.
    pub(super) fn empty() -> Self {
        Self { version: VERSION, count: 0, hash: Sha256Hex::from_raw([0; 32]) }
    }

    pub(super) fn new(count: u64, hash: Sha256Hex) -> Self {
        Self { version: VERSION, count, hash }
    }
}

/// A row of the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRecord {
    /// The number of the record.
    pub seq: u64,
    /// The id of the question.
    pub ask: String,
    /// The canonical JSON of the record.
    pub record: String,
    /// The hash of `record`.
    pub hash: String,
}

impl StoredRecord {
    /// Returns the line of an export: the record with its hash.
    pub fn to_export_line(&self) -> String {
        let hash = Value::String(self.hash.clone());
        // The record is embedded as it is stored, so that its hash can be checked.
        let is_one_line = !self.record.contains(['\n', '\r']) && serde_json::from_str::<Value>(&self.record).is_ok();
        match is_one_line {
            true => format!("{{\"hash\":{hash},\"record\":{}}}", self.record),
            false => format!("{{\"hash\":{hash},\"damaged\":{}}}", Value::String(self.record.clone())),
        }
    }

    /// Returns the kind, the time and the content; `None` if the record is damaged.
    pub fn parts(&self) -> Option<(AuditKind, String, Value)> {
        let record: AuditRecord = serde_json::from_str(&self.record).ok()?;
        Some((record.kind, record.at, record.content))
    }
}

//! The answers of `proctor cache`.

use schemars::JsonSchema;
use serde::Serialize;

/// Number and size of the stored results of a state directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ResultStats {
    /// Number of steps with stored results. A step with different settings or variables counts as a different step.
    pub steps: u64,
    /// Number of stored results.
    pub results: u64,
    /// Number of these results that other machines executed.
    pub from_others: u64,
    /// The used bytes on the disk.
    pub bytes: u64,
    /// The time at which the oldest result was stored, RFC 3339 in UTC; `null` if there is none.
    pub oldest: Option<String>,
    /// The time at which the newest result was stored, RFC 3339 in UTC; `null` if there is none.
    pub newest: Option<String>,
    /// The steps that are excluded from reuse, because an execution did not confirm a stored result.
    pub distrusted: Vec<DistrustedStep>,
}

/// A step that is excluded from reuse.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DistrustedStep {
    /// The key of the step, which is the name of its directory.
    pub key: String,
    /// The reason, which names the step.
    pub reason: String,
}

/// The result of a check of all stored results.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ResultVerification {
    /// Number of intact results.
    pub intact: u64,
    /// The damaged results, which were removed.
    pub damaged: Vec<DamagedResult>,
}

/// A damaged result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DamagedResult {
    /// The file, relative to the state directory.
    pub file: String,
    /// The damage.
    pub problem: String,
}

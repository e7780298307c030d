//! The part of a document that belongs to a single run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::cache::CacheEvidence;
use crate::model::names::RunId;

/// Values that differ between runs with the same inputs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Measured {
    /// ID of the run.
    pub run_id: RunId,
    /// Start time of the skill or the checks, RFC 3339 in UTC with milliseconds.
    pub started_at: String,
    /// End time.
    pub finished_at: String,
    /// The caches of the skill, in the plan's order; absent if it has none or none of its steps ran.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<CacheEvidence>,
}

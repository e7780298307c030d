//! What of a document belongs to its run alone.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cache::CacheEvidence;
use crate::names::RunId;

/// What the same inputs need not reproduce.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Measured {
    /// The run.
    pub run_id: RunId,
    /// When the skill began, RFC 3339 in UTC with milliseconds.
    pub started_at: String,
    /// When it ended.
    pub finished_at: String,
    /// The caches of the skill, in the plan's order; absent where it has none, or no step of it ran.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<CacheEvidence>,
}

//! Names the execution whose result a step has.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::names::RunId;
use crate::text::digest::Sha256Hex;

/// The earlier execution whose result a step has, and the basis for that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReuseSource {
    /// The run that executed the step.
    pub run_id: RunId,
    /// The end of that execution, in UTC, RFC 3339.
    pub executed_at: String,
    /// The sha256 of the inputs that the execution read. All of them are the same now.
    pub inputs_sha256: Sha256Hex,
    /// Number of these inputs: paths that were looked up, found or not.
    pub inputs: u64,
}

//! Records the files that a step checked.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::cache::TransparentCache;
use crate::text::digest::Sha256Hex;

/// The files that a step checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckedFiles {
    /// The number of files.
    pub count: u64,
    /// The sha256 of the sorted paths, relative to the working directory, each followed by a NUL byte.
    pub sha256: Sha256Hex,
    /// The number of processes to which the files were passed; 0 if the command does not contain `{files}`.
    pub batches: u32,
    /// Number of files whose earlier pass was reused, because the file and everything else that the step read is the
    /// same; absent for 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reused: u64,
    /// The caches of the executions that passed the reused files, whose content does not change the result as the spec
    /// declares; absent if there were none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transparent_caches: Vec<TransparentCache>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde demands this signature")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

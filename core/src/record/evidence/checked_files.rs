//! Records the files that a step checked.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text::digest::Sha256Hex;
use crate::text::humanize::count;

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
    /// The end of the oldest execution that the passes of the reused files can come from, in UTC, RFC 3339; absent if no
    /// file was reused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reused_executed_at: Option<String>,
}

impl CheckedFiles {
    /// Returns the number of files that were and were not checked again, as a phrase; `None` if all were.
    pub fn reuse_phrase(&self) -> Option<String> {
        let all = count(usize::try_from(self.count).unwrap_or(usize::MAX), "file");
        let checked = self.count.saturating_sub(self.reused);
        (self.reused > 0).then(|| format!("{checked} of {all} checked, {} passed earlier", self.reused))
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde demands this signature")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phrase_counts_checked_and_reused_files() {
        let files = |count, reused| CheckedFiles {
            count,
            sha256: Sha256Hex::digest(b""),
            batches: 1,
            reused,
            reused_executed_at: None,
        };
        assert_eq!(files(800, 0).reuse_phrase(), None);
        assert_eq!(files(800, 797).reuse_phrase().as_deref(), Some("3 of 800 files checked, 797 passed earlier"));
    }
}

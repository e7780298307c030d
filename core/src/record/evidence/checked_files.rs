//! Records the files that a step checked.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::cache::TransparentCache;
use crate::record::evidence::result_origin::ResultOrigin;
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
    /// An observation that contradicts `per_file`, so that the results count for all files together; absent if there is
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dependence: Option<FileDependence>,
    /// The caches of the executions that passed the reused files, whose content does not change the result as the spec
    /// declares; absent if there were none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transparent_caches: Vec<TransparentCache>,
    /// The other machines on which some of the files have passed; absent if all passed on this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub origins: Vec<ResultOrigin>,
    /// True if the run was restricted to some files, and left out no file of this step: it has no others, or all others
    /// have passed earlier. Absent if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub covers_all: bool,
}

/// The observation that the check of some files read another file of the same step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileDependence {
    /// The first files that were checked, relative to the repository; at most [`MAX_NAMED_FILES`].
    pub checked: Vec<String>,
    /// The number of files that were checked.
    pub checked_count: u64,
    /// The other file, relative to the repository, that the command read.
    pub read: String,
}

/// Maximum number of checked files that a [`FileDependence`] names.
pub const MAX_NAMED_FILES: usize = 3;

impl FileDependence {
    /// Creates the record of an observation.
    pub fn new(checked: impl ExactSizeIterator<Item = String>, read: String) -> Self {
        let checked_count = checked.len() as u64;
        Self { checked: checked.take(MAX_NAMED_FILES).collect(), checked_count, read }
    }

    /// Returns the observation and its consequence, as a phrase.
    pub fn phrase(&self) -> String {
        let mut named: Vec<String> = self.checked.iter().map(|file| format!("`{file}`")).collect();
        let more = self.checked_count.saturating_sub(named.len() as u64);
        if more > 0 {
            named.push(format!("{more} more"));
        }
        let last = named.pop().unwrap_or_default();
        let checked = if named.is_empty() { last } else { format!("{} and {last}", named.join(", ")) };
        format!(
            "`per_file` is wrong: the check of {checked} read `{}`, so the result counts for all files together",
            self.read
        )
    }
}

impl CheckedFiles {
    /// Returns the number of files that were and were not checked again, or the observation that contradicts `per_file`,
    /// as a phrase; `None` if there is neither.
    pub fn note(&self) -> Option<String> {
        self.dependence.as_ref().map(FileDependence::phrase).or_else(|| self.reuse_phrase())
    }

    fn reuse_phrase(&self) -> Option<String> {
        let all = count(usize::try_from(self.count).unwrap_or(usize::MAX), "file");
        let checked = self.count.saturating_sub(self.reused);
        let machines: Vec<String> = self.origins.iter().map(ResultOrigin::phrase).collect();
        let elsewhere =
            if machines.is_empty() { String::new() } else { format!(" (some of them on {})", machines.join(", ")) };
        (self.reused > 0).then(|| format!("{checked} of {all} checked, {} passed earlier{elsewhere}", self.reused))
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
            dependence: None,
            transparent_caches: Vec::new(),
            origins: Vec::new(),
            covers_all: false,
        };
        assert_eq!(files(800, 0).note(), None);
        assert_eq!(files(800, 797).note().as_deref(), Some("3 of 800 files checked, 797 passed earlier"));
        let origin = ResultOrigin { key_id: Sha256Hex::digest(b""), host: "builder".to_owned() };
        let note = CheckedFiles { origins: vec![origin], ..files(800, 797) }.note().expect("a note");
        assert!(note.ends_with("797 passed earlier (some of them on `builder` (key e3b0c44298fc1c14))"), "{note}");
    }

    #[test]
    fn phrase_names_the_checked_files_and_the_other_one() {
        let phrase = |checked: &[&str]| {
            FileDependence::new(checked.iter().map(|file| (*file).to_owned()), "z".to_owned()).phrase()
        };
        let wrong = "`per_file` is wrong: the check of";
        let consequence = "read `z`, so the result counts for all files together";
        assert_eq!(phrase(&["a"]), format!("{wrong} `a` {consequence}"));
        assert_eq!(phrase(&["a", "b", "c"]), format!("{wrong} `a`, `b` and `c` {consequence}"));
        assert_eq!(phrase(&["a", "b", "c", "d", "e"]), format!("{wrong} `a`, `b`, `c` and 2 more {consequence}"));
    }
}

//! Determines which ignored files an update would copy now, without changing the mirror.

pub(super) use crate::private_copy::ignored_selection::IgnoredSelection;

use std::collections::HashMap;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use proctor_git::files::read_beneath;

use super::IgnoredInput;
use super::copy_record::{CopyRecord, IGNORED_FILES};
use super::entry_hash::hash_entry;
use super::ignored_files::{CoveredAndIgnored, IgnoredSurvey, RacyFiles};
use crate::entries::{EntryTree, ScannedEntry};
use crate::private_copy::mirror::Mirror;
use crate::private_copy::mirror_files::MirrorError;
use crate::snapshot::taken_snapshot::Snapshot;

/// Maximum number of files that are hashed because the mirror has no current copy.
const MAX_FILES: usize = 1_000;
/// Maximum total size of these files, in bytes.
const MAX_BYTES: u64 = 64 << 20;

impl Mirror {
    /// Returns the ignored files that a mirror would contain after an update to `snapshot`. Returns `None` if too
    /// many of them would have to be read, or if they change during the call.
    ///
    /// `directory` belongs to a mirror that no other process may open or update during the call. If the stat data
    /// of a file equal those in the mirror's record, the recorded digest is used; otherwise the file is hashed.
    ///
    /// # Errors
    /// The work tree cannot be read.
    pub fn current_inputs(
        directory: Option<BorrowedFd<'_>>,
        worktree: &Path,
        snapshot: &Snapshot,
        wanted: &IgnoredSelection<'_>,
    ) -> Result<Option<Vec<IgnoredInput>>, MirrorError> {
        let source = read_beneath::open_canonical(worktree).map_err(|error| MirrorError::io(b"", error))?;
        Self::current_inputs_of(directory, source.as_fd(), (&snapshot.entries, &snapshot.ignored), wanted)
    }

    pub(super) fn current_inputs_of(
        directory: Option<BorrowedFd<'_>>,
        source: BorrowedFd<'_>,
        tree: CoveredAndIgnored<'_>,
        wanted: &IgnoredSelection<'_>,
    ) -> Result<Option<Vec<IgnoredInput>>, MirrorError> {
        let record = directory.and_then(|directory| CopyRecord::load(directory, IGNORED_FILES));
        let record = record.filter(|record| record.unfinished().is_none());
        let nothing = EntryTree::from_leaves([]);
        let held = record.as_ref().map_or(&nothing, CopyRecord::entries);
        let survey = IgnoredSurvey::examine(source, tree, wanted, (held, RacyFiles::CountAsChanged))?;
        Ok(hash_changed_files(source, &survey)?.map(|now| survey.inputs(&now)))
    }
}

/// Returns the ignored files of a survey with their digests, or `None` if a file cannot be hashed.
fn hash_changed_files(source: BorrowedFd<'_>, survey: &IgnoredSurvey) -> Result<Option<EntryTree>, MirrorError> {
    let (now, changed) = (survey.current(), survey.changed());
    let mut bytes = 0u64;
    let mut found = Vec::with_capacity(changed.len().min(MAX_FILES));
    for path in changed {
        let Some(expected) = now.leaf_at_path(path).map(|leaf| leaf.found) else { return Ok(None) };
        bytes = bytes.saturating_add(expected.stat.size);
        if found.len() >= MAX_FILES || bytes > MAX_BYTES {
            return Ok(None);
        }
        let Some(sha256) = hash_entry(source, path, &expected)? else { return Ok(None) };
        found.push((path.clone(), false, ScannedEntry { sha256, ..expected }));
    }
    Ok(Some(now.with_leaves(found, HashMap::new())))
}

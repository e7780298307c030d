//! Determines which ignored files an update would copy now, without changing the mirror.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use super::ignored::{Survey, Tree};
use super::record::{IGNORED, Record};
use super::{IgnoredInput, IgnoredWanted, Mirror, MirrorError};
use crate::beneath;
use crate::entries::{Entries, Found, Kind};
use crate::snapshot::Snapshot;

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
    pub fn inputs_now(
        directory: Option<BorrowedFd<'_>>,
        worktree: &Path,
        snapshot: &Snapshot,
        wanted: &IgnoredWanted<'_>,
    ) -> Result<Option<Vec<IgnoredInput>>, MirrorError> {
        let source = beneath::open_real(worktree).map_err(|error| MirrorError::io(b"", error))?;
        Self::inputs_of(directory, source.as_fd(), (&snapshot.entries, &snapshot.ignored), wanted)
    }

    pub(super) fn inputs_of(
        directory: Option<BorrowedFd<'_>>,
        source: BorrowedFd<'_>,
        tree: Tree<'_>,
        wanted: &IgnoredWanted<'_>,
    ) -> Result<Option<Vec<IgnoredInput>>, MirrorError> {
        let record = directory.and_then(|directory| Record::load(directory, IGNORED));
        let record = record.filter(|record| record.unfinished().is_none());
        let nothing = Entries::of_leaves([]);
        let held = record.as_ref().map_or(&nothing, Record::held);
        let survey = Survey::take(source, tree, wanted, held)?;
        Ok(hashed(source, &survey)?.map(|now| survey.inputs(&now)))
    }
}

/// Returns the ignored files of a survey with their digests, or `None` if a file cannot be hashed.
fn hashed(source: BorrowedFd<'_>, survey: &Survey) -> Result<Option<Entries>, MirrorError> {
    let (now, changed) = (survey.now(), survey.changed());
    let mut bytes = 0u64;
    let mut found = Vec::with_capacity(changed.len().min(MAX_FILES));
    for path in changed {
        let Some(expected) = now.leaf(path).map(|leaf| leaf.found) else { return Ok(None) };
        bytes = bytes.saturating_add(expected.stamp.size);
        if found.len() >= MAX_FILES || bytes > MAX_BYTES {
            return Ok(None);
        }
        let Some(sha256) = hashed_one(source, path, &expected)? else { return Ok(None) };
        found.push((path.clone(), false, Found { sha256, ..expected }));
    }
    Ok(Some(now.with(found, HashMap::new())))
}

/// Returns the digest of the entry at a path, or `None` if the entry has changed.
fn hashed_one(source: BorrowedFd<'_>, path: &[u8], expected: &Found) -> Result<Option<[u8; 32]>, MirrorError> {
    if expected.kind == Kind::EmptyDirectory {
        return Ok(Some(expected.sha256));
    }
    let (found, stamp) = match beneath::read_stamped(source, path, expected.stamp.size) {
        Ok(read) => read,
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => return Ok(None),
        Err(error) => return Err(MirrorError::io(path, error)),
    };
    let beneath::Found::Entry(entry) = found else { return Ok(None) };
    Ok((stamp == expected.stamp).then(|| entry.sha256.to_raw()))
}

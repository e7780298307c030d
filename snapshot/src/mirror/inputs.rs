//! Finds out which ignored files a mirror would show now, and changes nothing.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use super::ignored::{Survey, Tree};
use super::record::{IGNORED, Record};
use super::{IgnoredInput, IgnoredWanted, Mirror, MirrorError};
use crate::beneath;
use crate::entries::{Entries, Found, Kind};
use crate::snapshot::Snapshot;

/// The number of files that are hashed because the mirror does not hold them as they are.
const MAX_FILES: usize = 1_000;
/// The number of their bytes.
const MAX_BYTES: u64 = 64 << 20;

impl Mirror {
    /// Returns the ignored files that a mirror would show if it was brought to `snapshot` now; `None` if too much of
    /// them would have to be read, or something changes them at the moment.
    ///
    /// `directory` is that of a mirror which no other process opens or updates meanwhile. A file is known by its record
    /// where the stat data are the same, and hashed else.
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

/// Returns the ignored files of a survey with the digest of each; `None` where one cannot be hashed now.
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

/// Returns the digest of what was found at a path; `None` where something else stands there by now.
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

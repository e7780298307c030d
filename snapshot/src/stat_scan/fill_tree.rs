//! Scans a tree of which only the names are known, and stores each result in its leaf.

use std::os::fd::AsFd as _;
use std::sync::{Mutex, PoisonError};

use proctor_git::files::paths;

use super::entry_reader::EntryReader;
use super::{EarlierEntries, ScanCounts, StatScan, run_on_threads};
use crate::entries::{DirectoryScanState, FilledPart, IgnoreStatus, UnfilledPart, UnfilledParts};
use crate::snapshot::snapshot_error::SnapshotError;

impl StatScan<'_> {
    /// Scans every blank.
    ///
    /// # Errors
    /// The errors of [`StatScan::scan_all`].
    pub(crate) fn fill(&self, blanks: UnfilledParts<'_>) -> Result<(Vec<FilledPart>, ScanCounts), SnapshotError> {
        let about = blanks.estimated_count();
        // Becomes `None` when a thread fails, so that the other threads stop.
        let blanks = Mutex::new(Some(blanks));
        let next = || blanks.lock().unwrap_or_else(PoisonError::into_inner).as_mut().and_then(Iterator::next);
        let read = run_on_threads(about, || {
            let (mut filled, mut counts, mut eye) = (Vec::new(), ScanCounts::default(), EntryReader::new(self));
            while let Some(blank) = next().filter(|_| !self.is_cancelled()) {
                match self.fill_part(blank, &mut eye, &mut counts) {
                    Ok(known) => filled.push(known),
                    Err(error) => {
                        *blanks.lock().unwrap_or_else(PoisonError::into_inner) = None;
                        return Err(error);
                    }
                }
            }
            Ok((filled, counts))
        })?;
        let mut all = (Vec::new(), ScanCounts::default());
        for (filled, counts) in read {
            all.0.extend(filled);
            all.1.add(counts);
        }
        Ok(all)
    }

    fn fill_part(
        &self,
        mut blank: UnfilledPart<'_>,
        eye: &mut EntryReader<'_>,
        counts: &mut ScanCounts,
    ) -> Result<FilledPart, SnapshotError> {
        let path = self.known.directory_path(blank.directory);
        let Some((opened, stamp)) = self.open(path)? else { return Ok(blank.finish(DirectoryScanState::default())) };
        let other = match self.earlier {
            EarlierEntries::OtherTree(Some(other)) => other.directory_index(path).map(|at| (other, at)),
            EarlierEntries::OtherTree(None) | EarlierEntries::SameTree => None,
        };
        for (name, found) in blank.leaves() {
            let before = other.and_then(|(other, at)| Some(other.leaf_at(other.leaf_index(at, name)?).found));
            let now = eye.examine(opened.as_fd(), name, *found, before);
            *found = now.map_err(|failed| failed.into_snapshot_error(&paths::join(path, name)))?;
            counts.examined += 1;
            counts.hashed += usize::from(eye.has_read());
        }
        // `Ignored` is a placeholder: git reports later which directories the rules ignore.
        Ok(blank.finish(DirectoryScanState {
            stat: stamp,
            racy: self.is_racy(&stamp),
            ignore_status: IgnoreStatus::Ignored,
        }))
    }
}

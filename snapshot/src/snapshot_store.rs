//! Keeps the last snapshot of each repository: in memory for this process, and in a file for the next one. Both are
//! caches; they do not change the result of a snapshot.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use proctor_git::files::file_stat::RacyWindow;
use proctor_git::helper::GitHelper;

use crate::snapshot::snapshot_error::SnapshotError;
use crate::snapshot::taken_snapshot::Snapshot;
use snapshot_files::SnapshotFiles;

pub(crate) mod listing_file;
mod snapshot_encoding;
mod snapshot_files;

pub(crate) use crate::snapshot_store::listing_file::ListingFile;

/// Number of repositories whose last snapshot is kept in memory.
const MAX_IN_MEMORY: usize = 8;

/// Takes snapshots, and keeps the last one of each repository.
#[derive(Debug)]
pub struct SnapshotStore {
    helper: GitHelper,
    racy_window: RacyWindow,
    files: Option<SnapshotFiles>,
    /// Ordered by last use; the most recently used repository is at the end.
    recent: Mutex<Vec<(PathBuf, Arc<Snapshot>)>>,
}

impl SnapshotStore {
    /// Creates a store that keeps its files in `directory`, which only we can write to. Without a directory, the
    /// snapshots are lost when the process ends.
    pub fn new(helper: GitHelper, directory: Option<OwnedFd>) -> Self {
        let (files, kept) = (directory.map(SnapshotFiles::new), Mutex::new(Vec::new()));
        Self { helper, racy_window: RacyWindow::default(), files, recent: kept }
    }

    /// Returns the store with another settling time, for trees whose files no process maps.
    pub fn with_racy_window(self, settling: RacyWindow) -> Self {
        Self { racy_window: settling, ..self }
    }

    /// Takes a snapshot of the work tree whose top is `repo`. Files that did not change since the last snapshot are
    /// not read again.
    ///
    /// # Errors
    /// The errors of [`Snapshot::take`].
    pub fn take(&self, repo: &Path) -> Result<Arc<Snapshot>, SnapshotError> {
        // If the path cannot be resolved, taking the snapshot reports the error.
        let place = repo.canonicalize().unwrap_or_else(|_| repo.to_owned());
        let before = self.last_snapshot(&place);
        let taken = Arc::new(Snapshot::take_after(&place, &self.helper, before.as_deref(), self.racy_window)?);
        self.store_in_memory(&place, &taken);
        let is_new = before.is_none_or(|before| !has_nothing_new(&before, &taken));
        if let Some(files) = self.files.as_ref().filter(|_| is_new) {
            files.save(&place, &taken);
        }
        Ok(taken)
    }

    /// Takes a snapshot of the work tree whose top is `repo` without storing it as the last one, so that later
    /// calls report the same differences.
    ///
    /// # Errors
    /// The errors of [`Snapshot::take`].
    pub fn take_without_storing(&self, repo: &Path) -> Result<LastAndCurrent, SnapshotError> {
        let place = repo.canonicalize().unwrap_or_else(|_| repo.to_owned());
        let last = self.last_snapshot(&place);
        let now = Arc::new(Snapshot::take_after(&place, &self.helper, last.as_deref(), self.racy_window)?);
        // Keeping the snapshot in memory avoids reading the file again. If the tree is unchanged, the later
        // snapshot is kept, since its stat data are newer.
        let kept = last.as_ref().map(|last| if last.id == now.id { &now } else { last });
        kept.into_iter().for_each(|kept| self.store_in_memory(&place, kept));
        Ok(LastAndCurrent { last, now })
    }

    /// Returns the last snapshot of a work tree.
    fn last_snapshot(&self, place: &Path) -> Option<Arc<Snapshot>> {
        let kept = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kept.iter().find(|(at, _)| at == place).map(|(_, snapshot)| Arc::clone(snapshot));
        drop(kept);
        known.or_else(|| self.files.as_ref()?.load(place).map(Arc::new))
    }

    fn store_in_memory(&self, place: &Path, taken: &Arc<Snapshot>) {
        let mut kept = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(at, _)| at != place);
        if kept.len() >= MAX_IN_MEMORY {
            kept.remove(0);
        }
        kept.push((place.to_owned(), Arc::clone(taken)));
    }
}

/// The current snapshot of a tree, and the last one that was kept.
#[derive(Debug, Clone)]
pub struct LastAndCurrent {
    /// The last snapshot; `None` if none was kept.
    pub last: Option<Arc<Snapshot>>,
    /// The current snapshot.
    pub now: Arc<Snapshot>,
}

/// Checks whether the later snapshot contains no information beyond the earlier one.
fn has_nothing_new(before: &Snapshot, later: &Snapshot) -> bool {
    !later.stats.git_was_read && Arc::ptr_eq(&before.entries, &later.entries)
}

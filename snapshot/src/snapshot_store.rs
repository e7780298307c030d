//! Keeps the last snapshot of each repository: in memory for this process, and in a file for the next one. Both are
//! caches; they do not change the result of a snapshot.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use proctor_git::error::GitError;
use proctor_git::files::file_stat::RacyWindow;
use proctor_git::helper::GitHelper;
use proctor_git::known_histories::KnownHistories;
use proctor_git::protocol::GitHistory;

use crate::snapshot::snapshot_error::SnapshotError;
use crate::snapshot::taken_snapshot::{ChangesSince, Snapshot};
use snapshot_files::{SnapshotFiles, StoredFile};

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
    recent: Mutex<Vec<LastSnapshot>>,
    histories: KnownHistories,
}

/// The last snapshot of a work tree.
#[derive(Debug, Clone)]
struct LastSnapshot {
    place: PathBuf,
    snapshot: Arc<Snapshot>,
    /// The file, if it contains the entries of `snapshot` and can be continued.
    stored: Option<StoredFile>,
}

impl SnapshotStore {
    /// Creates a store that keeps its files in `directory`, which only we can write to. Without a directory, the
    /// snapshots are lost when the process ends.
    pub fn new(helper: GitHelper, directory: Option<OwnedFd>) -> Self {
        let (files, kept) = (directory.map(SnapshotFiles::new), Mutex::new(Vec::new()));
        Self { helper, racy_window: RacyWindow::default(), files, recent: kept, histories: KnownHistories::default() }
    }

    /// Returns the refs and ignore rules of the repository at `repo`, without those of repositories inside it, if they have
    /// not changed since [`SnapshotStore::read_history`].
    pub fn known_history(&self, repo: &Path) -> Option<Arc<GitHistory>> {
        self.histories.get(repo)
    }

    /// Reads the refs and ignore rules of the repository at `repo`, without those of repositories inside it.
    ///
    /// # Errors
    /// The errors of [`GitHelper::history`].
    pub fn read_history(&self, repo: &Path) -> Result<Arc<GitHistory>, GitError> {
        self.histories.read(&self.helper, repo, self.racy_window)
    }

    /// Returns the store with a different settling time, for trees whose files no process maps.
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
        let (before, stored) =
            self.last_snapshot(&place).map_or((None, None), |last| (Some(last.snapshot), last.stored));
        let taken = Snapshot::take_from(&place, &self.helper, before, self.racy_window)?;
        let (snapshot, since) = (Arc::new(taken.snapshot), taken.since);
        let stored = match (&self.files, &since) {
            (None, _) | (_, ChangesSince::Nothing) => stored,
            (Some(files), ChangesSince::Entries(changes)) => {
                files.save(&place, &snapshot, stored.as_ref().map(|stored| (stored, changes)))
            }
            (Some(files), ChangesSince::Anything) => files.save(&place, &snapshot, None),
        };
        self.store_in_memory(LastSnapshot { place, snapshot: Arc::clone(&snapshot), stored });
        Ok(snapshot)
    }

    /// Takes a snapshot of the work tree whose top is `repo` without storing it as the last one, so that later
    /// calls report the same differences.
    ///
    /// # Errors
    /// The errors of [`Snapshot::take`].
    pub fn take_without_storing(&self, repo: &Path) -> Result<LastAndCurrent, SnapshotError> {
        let place = repo.canonicalize().unwrap_or_else(|_| repo.to_owned());
        let last = self.last_snapshot(&place);
        let before = last.as_ref().map(|last| Arc::clone(&last.snapshot));
        let taken = Snapshot::take_from(&place, &self.helper, before, self.racy_window)?;
        let now = Arc::new(taken.snapshot);
        // Keeping the snapshot in memory avoids reading the file again. If the tree is unchanged, the later
        // snapshot is kept, since its stat data are newer.
        if let Some(last) = last.clone() {
            self.store_in_memory(match taken.since {
                ChangesSince::Nothing => LastSnapshot { snapshot: Arc::clone(&now), ..last },
                _ if last.snapshot.id == now.id => LastSnapshot { snapshot: Arc::clone(&now), stored: None, ..last },
                _ => last,
            });
        }
        Ok(LastAndCurrent { last: last.map(|last| last.snapshot), now })
    }

    /// Returns the last snapshot of a work tree.
    fn last_snapshot(&self, place: &Path) -> Option<LastSnapshot> {
        let kept = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kept.iter().find(|last| last.place == place).cloned();
        drop(kept);
        let load = || {
            let (snapshot, stored) = self.files.as_ref()?.load(place)?;
            Some(LastSnapshot { place: place.to_owned(), snapshot: Arc::new(snapshot), stored })
        };
        known.or_else(load)
    }

    fn store_in_memory(&self, last: LastSnapshot) {
        let mut kept = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|other| other.place != last.place);
        if kept.len() >= MAX_IN_MEMORY {
            kept.remove(0);
        }
        kept.push(last);
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

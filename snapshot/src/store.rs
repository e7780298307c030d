//! Keeps the last snapshot of each repository: in memory for this process, and in a file for the next one. Both are
//! caches; they do not change the result of a snapshot.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::git::helper::GitHelper;
use crate::snapshot::{Snapshot, SnapshotError};
use crate::stamp::Settling;

mod encoding;
mod file;

use file::Files;

pub(crate) use file::Sidecar;

/// Number of repositories whose last snapshot is kept in memory.
const MOST_KEPT: usize = 8;

/// Takes snapshots, and keeps the last one of each repository.
#[derive(Debug)]
pub struct SnapshotStore {
    helper: GitHelper,
    settling: Settling,
    files: Option<Files>,
    /// Ordered by last use; the most recently used repository is at the end.
    kept: Mutex<Vec<(PathBuf, Arc<Snapshot>)>>,
}

impl SnapshotStore {
    /// Creates a store that keeps its files in `directory`, which only we can write to. Without a directory, the
    /// snapshots are lost when the process ends.
    pub fn new(helper: GitHelper, directory: Option<OwnedFd>) -> Self {
        let (files, kept) = (directory.map(Files::new), Mutex::new(Vec::new()));
        Self { helper, settling: Settling::default(), files, kept }
    }

    /// Returns the store with another settling time, for trees whose files no process maps.
    pub fn settling(self, settling: Settling) -> Self {
        Self { settling, ..self }
    }

    /// Takes a snapshot of the work tree whose top is `repo`. Files that did not change since the last snapshot are
    /// not read again.
    ///
    /// # Errors
    /// The same as those of [`Snapshot::take`].
    pub fn take(&self, repo: &Path) -> Result<Arc<Snapshot>, SnapshotError> {
        // If the path cannot be resolved, taking the snapshot reports the error.
        let place = repo.canonicalize().unwrap_or_else(|_| repo.to_owned());
        let before = self.last(&place);
        let taken = Arc::new(Snapshot::take_after(&place, &self.helper, before.as_deref(), self.settling)?);
        self.keep(&place, &taken);
        let is_new = before.is_none_or(|before| !is_same(&before, &taken));
        if let Some(files) = self.files.as_ref().filter(|_| is_new) {
            files.save(&place, &taken);
        }
        Ok(taken)
    }

    /// Takes a snapshot of the work tree whose top is `repo` without storing it as the last one, so that later
    /// calls report the same differences.
    ///
    /// # Errors
    /// The same as those of [`Snapshot::take`].
    pub fn peek(&self, repo: &Path) -> Result<Peek, SnapshotError> {
        let place = repo.canonicalize().unwrap_or_else(|_| repo.to_owned());
        let last = self.last(&place);
        let now = Arc::new(Snapshot::take_after(&place, &self.helper, last.as_deref(), self.settling)?);
        // Keeping the snapshot in memory avoids reading the file again. If the tree is unchanged, the later
        // snapshot is kept, since its stat data are newer.
        let kept = last.as_ref().map(|last| if last.id == now.id { &now } else { last });
        kept.into_iter().for_each(|kept| self.keep(&place, kept));
        Ok(Peek { last, now })
    }

    /// Returns the last snapshot of a work tree.
    fn last(&self, place: &Path) -> Option<Arc<Snapshot>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kept.iter().find(|(at, _)| at == place).map(|(_, snapshot)| Arc::clone(snapshot));
        drop(kept);
        known.or_else(|| self.files.as_ref()?.load(place).map(Arc::new))
    }

    fn keep(&self, place: &Path, taken: &Arc<Snapshot>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(at, _)| at != place);
        if kept.len() >= MOST_KEPT {
            kept.remove(0);
        }
        kept.push((place.to_owned(), Arc::clone(taken)));
    }
}

/// The current snapshot of a tree, and the last one that was kept.
#[derive(Debug, Clone)]
pub struct Peek {
    /// The last snapshot; `None` if none was kept.
    pub last: Option<Arc<Snapshot>>,
    /// The current snapshot.
    pub now: Arc<Snapshot>,
}

/// Checks whether the later snapshot contains no information beyond the earlier one.
fn is_same(before: &Snapshot, later: &Snapshot) -> bool {
    !later.stats.git_was_read && Arc::ptr_eq(&before.entries, &later.entries)
}

//! The last snapshot of each repository: in memory for this process, in a file for the next one. Both save
//! time and decide nothing; without them a snapshot is the same.

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

/// Of how many repositories the last snapshot is kept in memory.
const MOST_KEPT: usize = 8;

/// Takes snapshots, and remembers the last one of each repository.
#[derive(Debug)]
pub struct SnapshotStore {
    helper: GitHelper,
    settling: Settling,
    files: Option<Files>,
    /// The repository used last comes last.
    kept: Mutex<Vec<(PathBuf, Arc<Snapshot>)>>,
}

impl SnapshotStore {
    /// A store that keeps its files in `directory`, a directory that only we can write to; without
    /// one, nothing outlives the process.
    pub fn new(helper: GitHelper, directory: Option<OwnedFd>) -> Self {
        let (files, kept) = (directory.map(Files::new), Mutex::new(Vec::new()));
        Self { helper, settling: Settling::default(), files, kept }
    }

    /// The same store, which believes contents of another age: for trees of which it is known that
    /// nobody maps their files.
    pub fn settling(self, settling: Settling) -> Self {
        Self { settling, ..self }
    }

    /// Takes a snapshot of the work tree whose top is `repo`; what is as it was when the last one was taken is
    /// not read again.
    ///
    /// # Errors
    /// As [`Snapshot::take`].
    pub fn take(&self, repo: &Path) -> Result<Arc<Snapshot>, SnapshotError> {
        // Where it cannot be resolved, whoever reads it says so.
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

    /// Takes a snapshot of the work tree whose top is `repo` and does not keep it, so that what differs
    /// from the last one that was kept can be told again and again.
    ///
    /// # Errors
    /// As [`Snapshot::take`].
    pub fn peek(&self, repo: &Path) -> Result<Peek, SnapshotError> {
        let place = repo.canonicalize().unwrap_or_else(|_| repo.to_owned());
        let last = self.last(&place);
        let now = Arc::new(Snapshot::take_after(&place, &self.helper, last.as_deref(), self.settling)?);
        // What came from the file need not be read from it again; and of the same tree, the later one
        // knows more.
        let kept = last.as_ref().map(|last| if last.id == now.id { &now } else { last });
        kept.into_iter().for_each(|kept| self.keep(&place, kept));
        Ok(Peek { last, now })
    }

    /// The last snapshot of a work tree.
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

/// What a tree is, and what it was when its snapshot was kept last.
#[derive(Debug, Clone)]
pub struct Peek {
    /// As it was; none where none was kept.
    pub last: Option<Arc<Snapshot>>,
    /// As it is.
    pub now: Arc<Snapshot>,
}

/// Whether the later one knows nothing that the earlier one does not.
fn is_same(before: &Snapshot, later: &Snapshot) -> bool {
    !later.stats.git_was_read && Arc::ptr_eq(&before.entries, &later.entries)
}

//! Takes the content identity of a work tree.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use proctor_git::files::file_stat::{self, RacyWindow};
use proctor_git::helper::GitHelper;

use snapshot_error::SnapshotError;
use taken_snapshot::{ChangesSince, LaterSnapshot, Snapshot};

mod full;
pub(crate) mod git_facts;
mod incremental;
mod reuse_basis;
pub(crate) mod snapshot_error;
pub(crate) mod taken_snapshot;
pub(crate) mod unknown_tree;

pub(crate) use reuse_basis::{EncodedListing, ReuseBasis};

/// Returns the nearest directory at or above `start` that contains a `.git`.
pub fn find_root(start: &Path) -> Option<PathBuf> {
    start.ancestors().find(|dir| dir.join(".git").symlink_metadata().is_ok()).map(Path::to_owned)
}

impl Snapshot {
    /// Takes the snapshot of the work tree whose top is `repo`.
    ///
    /// # Errors
    /// The repository is refused, a file cannot be read, or a file keeps changing.
    pub fn take(repo: &Path, helper: &GitHelper) -> Result<Self, SnapshotError> {
        Self::take_after(repo, helper, None, RacyWindow::default())
    }

    /// Takes a snapshot as [`Snapshot::take`] does, but reuses an earlier snapshot of the same work tree. The
    /// result is the same; unchanged files are not read again.
    ///
    /// # Errors
    /// The errors of [`Snapshot::take`].
    pub fn take_after(
        repo: &Path,
        helper: &GitHelper,
        before: Option<&Self>,
        settling: RacyWindow,
    ) -> Result<Self, SnapshotError> {
        let before = before.map(|before| Arc::new(before.clone()));
        Self::take_from(repo, helper, before, settling).map(|later| later.snapshot)
    }

    /// Takes a snapshot as [`Snapshot::take_after`] does. If the caller has the only reference to `before`, its entries
    /// are changed instead of copied.
    ///
    /// # Errors
    /// The errors of [`Snapshot::take`].
    pub(crate) fn take_from(
        repo: &Path,
        helper: &GitHelper,
        before: Option<Arc<Self>>,
        settling: RacyWindow,
    ) -> Result<LaterSnapshot, SnapshotError> {
        let began = (file_stat::now(), settling);
        let mut before = before.map(Arc::unwrap_or_clone);
        let again = before.as_mut().map(|before| incremental::take_incremental(before, helper, began));
        let later = match again.transpose()?.flatten() {
            Some(later) => later,
            None => LaterSnapshot {
                snapshot: full::take_full(repo, helper, before.as_ref(), began)?,
                since: ChangesSince::Anything,
            },
        };
        let taken = &later.snapshot;
        tracing::debug!(
            repo = %repo.display(),
            method = ?taken.stats.method,
            hashed = taken.stats.hashed,
            reused = taken.stats.reused,
            listed = taken.stats.listed,
            git_was_read = taken.stats.git_was_read,
            "snapshot taken"
        );
        Ok(later)
    }
}

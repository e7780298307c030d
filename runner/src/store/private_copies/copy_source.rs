//! The trees that private copies are brought to: a work tree at one moment, or a commit.

use std::path::Path;

use proctor_core::model::plan::RelPath;
use proctor_core::text::digest::Sha256Hex;
use proctor_git::protocol::GitHistory;
use proctor_snapshot::{
    BorrowedObjects, CommitSource, CommitUpdate, IgnoredInput, IgnoredSelection, Mirror, MirrorUpdate, Snapshot,
    StepRights, TreeLocation,
};

use crate::error::EngineError;

/// The ignored files that a private copy contains, and the bounds on its size.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CopyContent<'a> {
    /// The paths to leave out when ignored files are copied; `None` if all ignored files are hidden.
    pub(crate) ignored: Option<&'a [RelPath]>,
    /// The user whose permission bits apply to reading them; `None` if steps have our own rights.
    pub(crate) rights: Option<StepRights>,
    /// Maximum number of covered and ignored files together.
    pub(crate) max_entries: usize,
    /// Maximum total size of the covered files, in bytes.
    pub(crate) max_bytes: u64,
}

/// A bound that the covered files exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExceededBound {
    /// The number of files exceeds this maximum.
    Entries(usize),
    /// The files have more than this number of bytes.
    Bytes(u64),
}

impl<'a> CopyContent<'a> {
    /// Returns the ignored files to copy, with the bounds that the covered files leave for them.
    pub(super) fn ignored_to_copy(&self, snapshot: &Snapshot) -> Result<Option<IgnoredSelection<'a>>, ExceededBound> {
        let CopyContent { ignored, rights, max_entries, max_bytes } = *self;
        let (entries, bytes) = snapshot.entries.size();
        let entries = max_entries.checked_sub(entries).ok_or(ExceededBound::Entries(max_entries))?;
        let bytes = max_bytes.checked_sub(bytes).ok_or(ExceededBound::Bytes(max_bytes))?;
        Ok(ignored.map(|except| IgnoredSelection { except, rights, max_entries: entries, max_bytes: bytes }))
    }
}

/// The content that a copy is updated to.
pub(super) enum PrivateCopySource<'a> {
    Worktree(WorktreeMoment<'a>),
    Commit {
        source: CommitSource<'a>,
        history: &'a GitHistory,
        /// The line in HEAD.
        head: String,
    },
}

/// A worktree at one moment.
#[derive(Clone, Copy)]
pub(super) struct WorktreeMoment<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) history: &'a GitHistory,
    pub(super) ignored: Option<&'a IgnoredSelection<'a>>,
}

/// The content of a copy besides the tree.
#[derive(Default)]
pub(super) struct CopyExtras {
    pub(super) inputs: Vec<IgnoredInput>,
    pub(super) lfs_pointers: u64,
    /// Number of files that were written to the copy.
    pub(super) written: usize,
}

impl PrivateCopySource<'_> {
    /// Identifies the tree and the content of its git directories.
    pub(super) fn identity(&self) -> Sha256Hex {
        match self {
            Self::Worktree(moment) => worktree_identity(moment.snapshot, moment.history),
            Self::Commit { source, history, head } => {
                // Serializing these types cannot fail.
                let parts = (&source.commit.id, source.submodules, head, history);
                Sha256Hex::digest(&serde_json::to_vec(&parts).unwrap_or_default())
            }
        }
    }

    /// Returns the content of a copy that another run holds, if this run can use the copy unchanged.
    pub(super) fn reusable_extras(&self, worktree: &Path, copy: &Mirror) -> Result<Option<CopyExtras>, EngineError> {
        match self {
            Self::Worktree(WorktreeMoment { snapshot, ignored: wanted, .. }) => {
                let inputs = copy.matching_inputs(worktree, snapshot, *wanted)?;
                Ok(inputs.map(|inputs| CopyExtras { inputs, lfs_pointers: 0, written: 0 }))
            }
            Self::Commit { source, .. } => {
                let lfs_pointers = copy.lfs_pointers_of(source)?;
                Ok(lfs_pointers.map(|lfs_pointers| CopyExtras { inputs: Vec::new(), lfs_pointers, written: 0 }))
            }
        }
    }

    /// Updates a copy to the tree; the inner `Err` is a path that was edited during the update.
    pub(super) fn update(
        &self,
        worktree: &Path,
        mirror: &mut Mirror,
    ) -> Result<Result<CopyExtras, Vec<u8>>, EngineError> {
        let (bytes, shown) = match self {
            Self::Worktree(WorktreeMoment { snapshot, ignored: wanted, .. }) => {
                match mirror.update(worktree, snapshot, *wanted)? {
                    MirrorUpdate::Changed(paths) => return Ok(Err(paths.into_iter().next().unwrap_or_default())),
                    MirrorUpdate::Equal { copied, bytes, copied_ignored, ignored } => {
                        let written = copied + copied_ignored;
                        (bytes, CopyExtras { inputs: ignored, lfs_pointers: 0, written })
                    }
                }
            }
            Self::Commit { source, .. } => {
                let CommitUpdate { written, bytes, lfs_pointers } = mirror.update_to_commit(source)?;
                (bytes, CopyExtras { inputs: Vec::new(), lfs_pointers, written })
            }
        };
        tracing::debug!(repo = %worktree.display(), written = shown.written, bytes, "private copy prepared");
        if let Self::Worktree(WorktreeMoment { snapshot, .. }) = self
            && mirror.id() != snapshot.id
        {
            let message = format!("the private copy has the tree {}, not {}", mirror.id(), snapshot.id);
            return Err(EngineError::Internal(message));
        }
        Ok(Ok(shown))
    }

    pub(super) fn write_git(
        &self,
        mirror: &Mirror,
        place: TreeLocation<'_>,
    ) -> Result<Vec<BorrowedObjects>, EngineError> {
        Ok(match self {
            Self::Worktree(WorktreeMoment { snapshot, history, .. }) => {
                mirror.write_git_dirs(place, snapshot, history)?
            }
            Self::Commit { source, history, head } => mirror.write_git_dirs_of_commit(place, source, head, history)?,
        })
    }
}

/// Returns whether the refs and the snapshot agree on the commit of HEAD's branch: a commit may have been made in
/// between.
pub(super) fn is_consistent(snapshot: &Snapshot, history: &GitHistory) -> bool {
    let (Some(commit), Some(branch)) = (&snapshot.git.head_commit, &snapshot.git.branch) else { return true };
    let line = format!("{commit} refs/heads/{branch}");
    history.refs.0.split(|byte| *byte == b'\n').any(|found| found == line.as_bytes())
}

/// Identifies a worktree and the content of its git directories.
fn worktree_identity(snapshot: &Snapshot, history: &GitHistory) -> Sha256Hex {
    let git = &snapshot.git;
    let index = snapshot.index_identity();
    let nested = if history.nested.is_empty() { None } else { snapshot.listing_identity() };
    let parts = (snapshot.id.as_str(), &git.head_commit, &git.branch, git.tree.as_ref().ok(), index, nested, history);
    // Serializing these types cannot fail.
    Sha256Hex::digest(&serde_json::to_vec(&parts).unwrap_or_default())
}

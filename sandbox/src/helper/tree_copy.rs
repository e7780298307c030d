//! Replaces an overlay by a copy of the tree, which is made before the command starts and compared after all
//! processes have ended. The callers decide where the step sees the copy.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use proctor_core::model::plan::RelPath;

use super::copy_changes::CopyBaseline;
use super::mounts::{self, FileOwner};
use super::setup_failure::internal;
use super::tree_copier::{self, TreeCopier};
use crate::fs_credentials::FsCredentials;
use crate::host::{MAPPED_BASE, StepUser};
use crate::policy::{AccessRights, Frame};
use crate::wire::HelperMessage;

/// The sources and the destination of a copy.
#[derive(Debug)]
pub(super) struct CopySources<'a> {
    /// The repository.
    pub(super) repo: &'a OwnedFd,
    /// The upper directories of the layers below, newest first.
    pub(super) lowers: &'a [OwnedFd],
    /// An empty directory owned by the step's user, for the copy.
    pub(super) tree: OwnedFd,
    /// The upper directory of the attempt, on the same file system.
    pub(super) upper: OwnedFd,
    /// Directories of the tree that are copied without their content.
    pub(super) empty_dirs: BTreeSet<Vec<u8>>,
    /// The user of the step.
    pub(super) user: StepUser,
}

/// A copy without a recorded baseline: files can still be added to it.
#[derive(Debug)]
pub(super) struct TreeCopy {
    pub(super) tree: OwnedFd,
    upper: OwnedFd,
    user: StepUser,
    skipped: u64,
}

/// A copy with a recorded baseline, in which a step may work.
#[derive(Debug)]
pub(super) struct TrackedCopy {
    copy: TreeCopy,
    baseline: CopyBaseline,
}

impl TreeCopy {
    /// Makes the copy.
    ///
    /// # Errors
    /// There is no space left, or a file cannot be copied.
    pub(super) fn create(sources: CopySources<'_>) -> io::Result<Self> {
        let CopySources { repo, lowers, tree, upper, empty_dirs: hollow, user } = sources;
        let mut copier = TreeCopier { owner: copy_owner(user), empty_dirs: hollow, skipped: 0 };
        as_repo_owner(user, || {
            copier.copy_repository(repo.as_fd(), tree.as_fd())?;
            lowers.iter().rev().try_for_each(|lower| copier.apply_layer(lower.as_fd(), tree.as_fd()))?;
            let top = rustix::fs::fstat(lowers.first().unwrap_or(repo))?;
            Ok(rustix::fs::fchmod(&tree, tree_copier::permission_bits(top.st_mode))?)
        })?;
        Ok(Self { tree, upper, user, skipped: copier.skipped })
    }

    /// Creates missing mount points of caches. An obstacle is ignored here and refused when the cache is mounted.
    pub(super) fn create_mount_points<'a>(&self, paths: impl Iterator<Item = &'a RelPath>) {
        for path in paths {
            drop(mounts::ensure_dir_beneath(self.tree.as_fd(), Path::new(path.as_str()), step_owner(self.user)));
        }
    }

    /// Records the current state as the baseline.
    ///
    /// # Errors
    /// The copy cannot be read.
    pub(super) fn record_baseline(self) -> io::Result<TrackedCopy> {
        let baseline = CopyBaseline::record(self.tree.as_fd())?;
        Ok(TrackedCopy { copy: self, baseline })
    }
}

impl TrackedCopy {
    /// Returns the number of entries that could not be read, or are of a type that cannot be copied.
    pub(super) fn skipped(&self) -> u64 {
        self.copy.skipped
    }

    /// Stores the step's changes in its layer, and returns the final report of the attempt. All processes of the step
    /// must have ended.
    pub(super) fn finalize(&self, message: HelperMessage) -> HelperMessage {
        let TreeCopy { tree, upper, user, .. } = &self.copy;
        match self.baseline.seal_for(step_owner(*user), tree.as_fd(), upper.as_fd()) {
            Ok(()) => message,
            Err(error) => internal("report the step's changes in its copy of the tree")(error).into_message(),
        }
    }
}

/// Returns the directories that will be covered by mounts: git's, and the caches.
pub(super) fn dirs_to_leave_empty(frame: &Frame) -> BTreeSet<Vec<u8>> {
    let caches = frame.caches.iter().map(|cache| cache.at.as_str().as_bytes().to_vec());
    caches.chain(has_git_in_tree(frame).then(|| b".git".to_vec())).collect()
}

/// Returns whether the tree contains a git directory, or a file that names one.
pub(super) fn has_git_in_tree(frame: &Frame) -> bool {
    frame.git.worktree_git.as_deref() == Some(&frame.repo.join(".git"))
}

/// Returns the step's user if it differs from the helper's.
pub(super) fn step_owner(user: StepUser) -> Option<FileOwner> {
    user.is_set_up_by_root().then(|| FileOwner { uid: user.uid(), gid: user.gid() })
}

/// Returns the owner to set on the copies; `None` if the copying process creates them with the right owner.
pub(super) fn copy_owner(user: StepUser) -> Option<FileOwner> {
    step_owner(user).filter(|_| user.is_mapped())
}

/// Opens a directory below one of proctor's own for reading.
pub(super) fn open_dir_beneath(dir: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    tree_copier::reopen_readable(mounts::open_beneath(dir, path)?.as_fd())
}

/// Runs `work` with the file access rights of the repository's owner. Otherwise root would read files on behalf of a
/// user who has no access to them.
pub(super) fn as_repo_owner<T>(user: StepUser, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    match user {
        StepUser::Owner { uid, gid } | StepUser::Copy { uid, gid, .. } => {
            FsCredentials { uid, gid }.run_on_this_thread(work)
        }
        StepUser::Own { .. } | StepUser::Mapped { .. } => work(),
    }
}

/// Opens an absolute path of the host with these rights, without following symbolic links; ELOOP if it contains one.
pub(super) fn open_with_rights(path: &Path, rights: AccessRights, user: StepUser) -> io::Result<OwnedFd> {
    match rights {
        AccessRights::Steps => match user {
            // The tools belong to the owner of the original. If that is root, no user's rights restrict the access.
            StepUser::Copy { seen_as: (MAPPED_BASE, _), .. } => mounts::open_no_symlinks(path),
            StepUser::Copy { seen_as: (uid, gid), .. } => {
                FsCredentials { uid, gid }.run_on_this_thread(|| mounts::open_no_symlinks(path))
            }
            _ => as_repo_owner(user, || mounts::open_no_symlinks(path)),
        },
        AccessRights::Ours => mounts::open_no_symlinks(path),
    }
}

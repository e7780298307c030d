//! Replaces an overlay by a copy of the tree, which is made before the command starts and compared after all
//! processes have ended. The callers decide where the step sees the copy.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use proctor_core::plan::RelPath;

use super::copy::{self, Copier};
use super::failure::internal;
use super::mounts::{self, Owner};
use super::seal::Baseline;
use crate::host::{MAPPED_BASE, StepUser};
use crate::policy::{Frame, Rights};
use crate::reader::Reader;
use crate::wire::Message;

/// The sources and the destination of a copy.
#[derive(Debug)]
pub(super) struct Sources<'a> {
    /// The repository.
    pub(super) repo: &'a OwnedFd,
    /// The upper directories of the layers below, newest first.
    pub(super) lowers: &'a [OwnedFd],
    /// An empty directory owned by the step's user, for the copy.
    pub(super) tree: OwnedFd,
    /// The upper directory of the attempt, on the same file system.
    pub(super) upper: OwnedFd,
    /// Directories of the tree that are copied without their content.
    pub(super) hollow: BTreeSet<Vec<u8>>,
    /// The user of the step.
    pub(super) user: StepUser,
}

/// A copy without a recorded baseline: files can still be added to it.
#[derive(Debug)]
pub(super) struct Copy {
    pub(super) tree: OwnedFd,
    upper: OwnedFd,
    user: StepUser,
    left_out: u64,
}

/// A copy with a recorded baseline, in which a step may work.
#[derive(Debug)]
pub(super) struct Copied {
    copy: Copy,
    baseline: Baseline,
}

impl Copy {
    /// Makes the copy.
    ///
    /// # Errors
    /// There is no space left, or a file cannot be copied.
    pub(super) fn make(sources: Sources<'_>) -> io::Result<Self> {
        let Sources { repo, lowers, tree, upper, hollow, user } = sources;
        let mut copier = Copier { owner: given_to(user), hollow, left_out: 0 };
        as_reader(user, || {
            copier.repository(repo.as_fd(), tree.as_fd())?;
            lowers.iter().rev().try_for_each(|lower| copier.layer(lower.as_fd(), tree.as_fd()))?;
            let top = rustix::fs::fstat(lowers.first().unwrap_or(repo))?;
            Ok(rustix::fs::fchmod(&tree, copy::permissions(top.st_mode))?)
        })?;
        Ok(Self { tree, upper, user, left_out: copier.left_out })
    }

    /// Creates missing mount points of caches. An obstacle is ignored here and refused when the cache is mounted.
    pub(super) fn scaffold<'a>(&self, paths: impl Iterator<Item = &'a RelPath>) {
        for path in paths {
            drop(mounts::ensure_beneath(self.tree.as_fd(), Path::new(path.as_str()), owner_of(self.user)));
        }
    }

    /// Records the current state as the baseline.
    ///
    /// # Errors
    /// The copy cannot be read.
    pub(super) fn hold(self) -> io::Result<Copied> {
        let baseline = Baseline::take(self.tree.as_fd())?;
        Ok(Copied { copy: self, baseline })
    }
}

impl Copied {
    /// Returns the number of entries that could not be read, or are of a type that cannot be copied.
    pub(super) fn left_out(&self) -> u64 {
        self.copy.left_out
    }

    /// Stores the step's changes in its layer, and returns the final report of the attempt. All processes of the step
    /// must have ended.
    pub(super) fn concluded(&self, message: Message) -> Message {
        let Copy { tree, upper, user, .. } = &self.copy;
        match self.baseline.seal_for(owner_of(*user), tree.as_fd(), upper.as_fd()) {
            Ok(()) => message,
            Err(error) => internal("report the step's changes in its copy of the tree")(error).into_message(),
        }
    }
}

/// Returns the directories that will be covered by mounts: git's, and the caches.
pub(super) fn hollow(frame: &Frame) -> BTreeSet<Vec<u8>> {
    let caches = frame.caches.iter().map(|cache| cache.at.as_str().as_bytes().to_vec());
    caches.chain(git_is_inside(frame).then(|| b".git".to_vec())).collect()
}

/// Returns whether the tree contains a git directory, or a file that names one.
pub(super) fn git_is_inside(frame: &Frame) -> bool {
    frame.git.worktree_git.as_deref() == Some(&frame.repo.join(".git"))
}

/// Returns the step's user if it differs from the helper's.
pub(super) fn owner_of(user: StepUser) -> Option<Owner> {
    user.steps_down().then(|| Owner { uid: user.uid(), gid: user.gid() })
}

/// Returns the owner to set on the copies; `None` if the copying process creates them with the right owner.
pub(super) fn given_to(user: StepUser) -> Option<Owner> {
    owner_of(user).filter(|_| user.is_mapped())
}

/// Opens a directory below one of proctor's own for reading.
pub(super) fn beneath(dir: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    copy::readable(mounts::open_beneath(dir, path)?.as_fd())
}

/// Runs `work` with the file access rights of the repository's owner. Otherwise root would read files on behalf of a
/// user who has no access to them.
pub(super) fn as_reader<T>(user: StepUser, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    match user {
        StepUser::Owner { uid, gid } | StepUser::Copy { uid, gid, .. } => Reader { uid, gid }.look_here(work),
        StepUser::Own { .. } | StepUser::Mapped { .. } => work(),
    }
}

/// Opens an absolute path of the host with these rights, without following symbolic links; ELOOP if it contains one.
pub(super) fn reached(path: &Path, rights: Rights, user: StepUser) -> io::Result<OwnedFd> {
    match rights {
        Rights::Steps => match user {
            // The tools belong to the owner of the original. If that is root, no user's rights restrict the access.
            StepUser::Copy { seen_as: (MAPPED_BASE, _), .. } => mounts::open_plain(path),
            StepUser::Copy { seen_as: (uid, gid), .. } => Reader { uid, gid }.look_here(|| mounts::open_plain(path)),
            _ => as_reader(user, || mounts::open_plain(path)),
        },
        Rights::Ours => mounts::open_plain(path),
    }
}

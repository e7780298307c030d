//! A copy of the tree in place of an overlay: made before the command starts, and compared when
//! everybody is gone. Where the step sees it is the callers' concern.

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

/// What a copy is made of and where.
#[derive(Debug)]
pub(super) struct Sources<'a> {
    /// The repository.
    pub(super) repo: &'a OwnedFd,
    /// The upper directories of the layers below, newest first.
    pub(super) lowers: &'a [OwnedFd],
    /// An empty directory of the step's user, where the copy is made.
    pub(super) tree: OwnedFd,
    /// The upper directory of the attempt, on the same file system.
    pub(super) upper: OwnedFd,
    /// Directories of the tree of which nothing is copied but themselves.
    pub(super) hollow: BTreeSet<Vec<u8>>,
    /// Whose the step is.
    pub(super) user: StepUser,
}

/// A copy that was not looked at yet: things can still be put in it.
#[derive(Debug)]
pub(super) struct Copy {
    pub(super) tree: OwnedFd,
    upper: OwnedFd,
    user: StepUser,
    left_out: u64,
}

/// A copy in which a step may work.
#[derive(Debug)]
pub(super) struct Copied {
    copy: Copy,
    baseline: Baseline,
}

impl Copy {
    /// Makes it.
    ///
    /// # Errors
    /// There is no room, or something cannot be copied.
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

    /// Makes the mount points of caches that it lacks. What stands in the way is refused when
    /// something is to be mounted there.
    pub(super) fn scaffold<'a>(&self, paths: impl Iterator<Item = &'a RelPath>) {
        for path in paths {
            drop(mounts::ensure_beneath(self.tree.as_fd(), Path::new(path.as_str()), owner_of(self.user)));
        }
    }

    /// Remembers it as it is now.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn hold(self) -> io::Result<Copied> {
        let baseline = Baseline::take(self.tree.as_fd())?;
        Ok(Copied { copy: self, baseline })
    }
}

impl Copied {
    /// How many entries could not be read, or cannot be copied.
    pub(super) fn left_out(&self) -> u64 {
        self.copy.left_out
    }

    /// The last word of the attempt, once its layer holds what the step changed. For a step that is
    /// gone.
    pub(super) fn concluded(&self, message: Message) -> Message {
        let Copy { tree, upper, user, .. } = &self.copy;
        match self.baseline.seal_for(owner_of(*user), tree.as_fd(), upper.as_fd()) {
            Ok(()) => message,
            Err(error) => internal("report the step's changes in its copy of the tree")(error).into_message(),
        }
    }
}

/// The directories that get covered: git's, and the caches.
pub(super) fn hollow(frame: &Frame) -> BTreeSet<Vec<u8>> {
    let caches = frame.caches.iter().map(|cache| cache.at.as_str().as_bytes().to_vec());
    caches.chain(git_is_inside(frame).then(|| b".git".to_vec())).collect()
}

/// Whether the tree has a git directory, or a file that names one.
pub(super) fn git_is_inside(frame: &Frame) -> bool {
    frame.git.worktree_git.as_deref() == Some(&frame.repo.join(".git"))
}

/// The step's user where it is another than ours.
pub(super) fn owner_of(user: StepUser) -> Option<Owner> {
    user.steps_down().then(|| Owner { uid: user.uid(), gid: user.gid() })
}

/// Whose copies become where they are not made by their owner.
pub(super) fn given_to(user: StepUser) -> Option<Owner> {
    owner_of(user).filter(|_| user.is_mapped())
}

/// A directory below one of ours, for reading.
pub(super) fn beneath(dir: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    copy::readable(mounts::open_beneath(dir, path)?.as_fd())
}

/// Does `work` with the rights that the owner of the repository has on files: root would read for
/// that one what the one may not.
pub(super) fn as_reader<T>(user: StepUser, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    match user {
        StepUser::Owner { uid, gid } | StepUser::Copy { uid, gid, .. } => Reader { uid, gid }.look_here(work),
        StepUser::Own { .. } | StepUser::Mapped { .. } => work(),
    }
}

/// What lies at an absolute path of the host, reached with these rights and without any symbolic
/// link; ELOOP where there is one.
pub(super) fn reached(path: &Path, rights: Rights, user: StepUser) -> io::Result<OwnedFd> {
    match rights {
        Rights::Steps => match user {
            // The tools are those of the owner of the original; where that is root, nobody's rights bound ours.
            StepUser::Copy { seen_as: (MAPPED_BASE, _), .. } => mounts::open_plain(path),
            StepUser::Copy { seen_as: (uid, gid), .. } => Reader { uid, gid }.look_here(|| mounts::open_plain(path)),
            _ => as_reader(user, || mounts::open_plain(path)),
        },
        Rights::Ours => mounts::open_plain(path),
    }
}

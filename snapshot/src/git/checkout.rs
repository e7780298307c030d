//! Writes the tree of a commit into an empty directory of ours, with a git directory of its own.
//!
//! What is written are the blobs as they are: no filter, conversion of line ends or hook takes
//! part, so that the bytes are those that the commit's tree names. A tree that no repository
//! should have (`..`, `.git`, a million levels) is refused by name before anything is written.

use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use git2::{Commit, Oid};
use proctor_core::drift::display_path;
use rustix::fs::{Mode, OFlags};

use self::git_dir::{GitDir, Objects};
use self::plan::{Bounds, LeafKind, Plan};
use super::GitError;
use super::config::io;
use super::protocol::{CheckedOut, CommitRef};
use super::reader::{Opened, unreadable};
use super::staged;
use crate::beneath;

pub(super) mod content;
mod git_dir;
mod names;
mod plan;
mod submodules;
mod write;

/// The directory of the tree, in the directory that was asked for.
pub(crate) const TREE: &str = "tree";

/// How a commit is checked out.
pub(super) struct Order<'a> {
    /// It; the repository knows it by now.
    pub(super) commit: &'a CommitRef,
    /// An empty directory of ours.
    pub(super) into: &'a Path,
    /// Whether submodules are checked out too.
    pub(super) submodules: bool,
}

/// Writes it.
pub(super) fn check_out(top: &Opened, order: &Order<'_>) -> Result<CheckedOut, GitError> {
    let commit = find(top, &order.commit.id)?;
    let root = empty_directory(order.into)?;
    let place = order.into.join(TREE);
    let source = Source { repository: &top.repository, worktree: &top.worktree, commit: &commit };
    let mut bounds = Bounds::default();
    let (plan, found) = source.write(root.as_fd(), TREE.as_bytes(), &place, &mut bounds)?;
    let git = GitDir {
        head: commit.id(),
        objects: Objects::Borrowed(top.common_dir.join("objects")),
        refs: git_dir::packed_refs(top)?,
        shallow: git_dir::shallow(&top.common_dir)?,
    };
    git.make(&place, Some(&found.index))?;
    staged::keep(top, order.commit, &place)?;
    let mut checked_out = CheckedOut {
        tree: source.tree().to_string(),
        objects: top.common_dir.join("objects"),
        files: plan.leaves.len() as u64,
        bytes: plan.bytes,
        lfs_pointers: found.lfs_pointers,
    };
    if order.submodules {
        let modules = submodules::Modules { top, place: &place };
        modules.check_out(&plan, &mut bounds, &mut checked_out)?;
    }
    Ok(checked_out)
}

/// Brings what a checkout says of the repository up to date: refs, and where its objects are.
pub(super) fn refresh(top: &Opened, commit: &str, checkout: &Path) -> Result<PathBuf, GitError> {
    // One that was only staged is known to its checkout alone.
    let own = checkout.join(TREE).join(".git/objects");
    if let (Ok(objects), Some(own)) = (top.repository.odb(), own.to_str()) {
        // Without it the commit is not found, which says so.
        let _ = objects.add_disk_alternate(own);
    }
    let commit = find(top, commit)?;
    let objects = top.common_dir.join("objects");
    let git = GitDir {
        head: commit.id(),
        objects: Objects::Borrowed(objects.clone()),
        refs: git_dir::packed_refs(top)?,
        shallow: git_dir::shallow(&top.common_dir)?,
    };
    git.make(&checkout.join(TREE), None)?;
    Ok(objects)
}

fn find<'a>(top: &'a Opened, commit: &str) -> Result<Commit<'a>, GitError> {
    let found = Oid::from_str(commit).and_then(|id| top.repository.find_commit(id));
    found.map_err(|error| unreadable(&top.worktree, &error))
}

/// Opens the directory that we write into: ours, and empty.
fn empty_directory(path: &Path) -> Result<OwnedFd, GitError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let refused = |problem: &str| GitError::Io { path: path.to_owned(), problem: problem.to_owned() };
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| io(path, &errno.into()))?;
    let file = std::fs::File::from(fd);
    let owner = file.metadata().map_err(|error| io(path, &error))?.uid();
    if owner != rustix::process::geteuid().as_raw() {
        return Err(refused("it is somebody else's"));
    }
    if !beneath::names_of(file.as_fd()).map_err(|error| io(path, &error))?.is_empty() {
        return Err(refused("it is not empty"));
    }
    Ok(file.into())
}

/// A commit of a repository, of the top or of a submodule.
struct Source<'a> {
    repository: &'a git2::Repository,
    /// For messages.
    worktree: &'a Path,
    commit: &'a Commit<'a>,
}

impl Source<'_> {
    /// As the commit names it: whether it is here, the plan finds out.
    fn tree(&self) -> Oid {
        self.commit.tree_id()
    }

    /// Plans the commit's tree, then writes it as the directory `name` of `parent`.
    fn write(
        &self,
        parent: std::os::fd::BorrowedFd<'_>,
        name: &[u8],
        place: &Path,
        bounds: &mut Bounds,
    ) -> Result<(Plan, write::Written), GitError> {
        let plan = Plan::of(self, bounds)?;
        let written = write::Writer::new(parent, name, self, place)?.write(&plan)?;
        Ok((plan, written))
    }

    /// The refusal of a tree that cannot be what it says.
    fn refused(&self, path: &[u8], problem: impl Into<String>) -> GitError {
        GitError::Tree { commit: self.commit.id().to_string(), path: display_path(path), problem: problem.into() }
    }
}

/// Whether a leaf is a submodule.
fn is_gitlink(leaf: &plan::Leaf) -> bool {
    leaf.kind == LeafKind::Gitlink
}

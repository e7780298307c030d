//! Writes the tree of a commit into an empty directory of ours, with a git directory of its own.
//!
//! What is written are the blobs as they are: no filter, conversion of line ends or hook takes
//! part, so that the bytes are those that the commit's tree names. A tree that no repository
//! should have (`..`, `.git`, a million levels) is refused by name before anything is written.

use std::borrow::Cow;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use proctor_core::drift::display_path;
use rustix::fs::{Mode, OFlags};

use self::git_dir::GitDir;
use self::plan::{Bounds, Leaf, LeafKind, Plan};
use super::GitError;
use super::config::io;
use super::contents::Commit;
use super::history::{self, History};
use super::object::{ObjectId, ObjectKind};
use super::objects::Objects;
use super::protocol::{CheckedOut, CommitRef};
use super::staged;
use crate::beneath;

pub(super) mod content;
pub(crate) mod git_dir;
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
pub(super) fn check_out(history: &History<'_>, order: &Order<'_>) -> Result<CheckedOut, GitError> {
    // Before anything is written: who has not asked git yet asks again.
    history.told()?;
    let source = Source::of(history, &order.commit.id)?;
    let root = empty_directory(order.into)?;
    let place = order.into.join(TREE);
    let mut bounds = Bounds::default();
    let (plan, found) = source.write(root.as_fd(), TREE.as_bytes(), &place, &mut bounds)?;
    let objects = history.places.common_dir.join("objects");
    git_dir(history, source.commit.id, &objects)?.make(&place, Some(&found.index))?;
    if let History { source: history::Source::Opened(opened), .. } = history {
        staged::keep(opened, order.commit, &place)?;
    }
    let mut checked_out = CheckedOut {
        tree: source.tree().to_string(),
        objects,
        files: plan.leaves.len() as u64,
        bytes: plan.bytes,
        lfs_pointers: found.lfs_pointers,
    };
    if order.submodules && plan.leaves.iter().any(is_gitlink) {
        if matches!(source.objects, Objects::Told(_)) {
            return Err(submodules::unsupported(history.worktree()));
        }
        let modules = submodules::Modules { top: &history.places, place: &place };
        modules.check_out(&plan, &mut bounds, &mut checked_out)?;
    }
    Ok(checked_out)
}

/// Brings what a checkout says of the repository up to date: refs, and where its objects are.
pub(super) fn refresh(history: &History<'_>, commit: &str, checkout: &Path) -> Result<PathBuf, GitError> {
    let known = history.objects()?;
    if let Objects::Libgit2(known) = &known {
        // One that was only staged is known to its checkout alone.
        if let Some(own) = checkout.join(TREE).join(".git/objects").to_str() {
            // Without it the commit is not found, which says so.
            let _ = known.add_disk_alternate(own);
        }
    }
    let commit = known.commit(history.id(commit)?).map_err(|problem| history.unreadable(problem))?;
    let objects = history.places.common_dir.join("objects");
    git_dir(history, commit.id, &objects)?.make(&checkout.join(TREE), None)?;
    Ok(objects)
}

/// What the git directory of a checkout says.
fn git_dir(history: &History<'_>, head: ObjectId, objects: &Path) -> Result<GitDir, GitError> {
    Ok(GitDir {
        format: head.format(),
        head: head.to_string(),
        exclude: None,
        ignore_case: false,
        owner: None,
        objects: git_dir::Objects::Borrowed(objects.to_owned()),
        refs: git_dir::packed_refs(history)?,
        shallow: git_dir::shallow(&history.places.common_dir)?,
    })
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
    objects: Objects<'a>,
    commit: Commit,
}

impl<'a> Source<'a> {
    /// The commit with this id, of the repository itself.
    fn of(history: &'a History<'_>, commit: &str) -> Result<Self, GitError> {
        let objects = history.objects()?;
        let commit = objects.commit(history.id(commit)?).map_err(|problem| history.unreadable(problem))?;
        Ok(Self { objects, commit })
    }

    /// As the commit names it: whether it is here, the plan finds out.
    fn tree(&self) -> ObjectId {
        self.commit.tree
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

    /// What a planned file or link holds.
    fn blob(&self, leaf: &Leaf) -> Result<Cow<'a, [u8]>, GitError> {
        let read = self.objects.read(leaf.id);
        match read.map_err(|problem| self.refused(&leaf.path, format!("cannot be read: {problem}")))? {
            Some((ObjectKind::Blob, bytes)) if bytes.len() as u64 == leaf.size => Ok(bytes),
            _ => Err(self.refused(&leaf.path, "is another object than its head says")),
        }
    }

    /// The refusal of a tree that cannot be what it says.
    fn refused(&self, path: &[u8], problem: impl Into<String>) -> GitError {
        GitError::Tree { commit: self.commit.id.to_string(), path: display_path(path), problem: problem.into() }
    }
}

/// Whether a leaf is a submodule.
fn is_gitlink(leaf: &Leaf) -> bool {
    leaf.kind == LeafKind::Gitlink
}

//! Reads what a commit names: the tree of files, and their blobs.
//!
//! The blobs are sent as they are: no filter, conversion of line ends or hook takes part, so that the bytes are those
//! that the commit's tree names. A tree that no repository should have (`..`, `.git`, a million levels) is refused by
//! name before any blob is read.

use std::borrow::Cow;
use std::io::Write;
use std::path::Path;

use proctor_core::drift::display_path;

use self::plan::{Bounds, Leaf, LeafKind, Plan};
use super::GitError;
use super::contents::Commit;
use super::frames::BlobWriter;
use super::history::History;
use super::object::{ObjectId, ObjectKind};
use super::objects::Objects;
use super::protocol::{CommitModule, CommitRef, CommitTree, CommittedLeaf, RepoPath};
use crate::paths;

pub(super) mod content;
pub(super) mod names;
mod plan;
mod submodules;

/// A repository whose commit is read: the top one or a submodule.
struct Part<'a> {
    /// The path of the submodule; empty for the top.
    path: &'a [u8],
    source: &'a Source<'a>,
    /// The directory of its objects.
    objects: &'a Path,
    plan: &'a Plan,
}

/// Returns what stands at each path of a commit's tree, and of the commits of its submodules where these are wanted.
pub(super) fn tree(history: &History<'_>, commit: &CommitRef, submodules: bool) -> Result<CommitTree, GitError> {
    let source = Source::of(history, &commit.id)?;
    let object = source.object()?;
    let mut tree = CommitTree {
        object: RepoPath(object),
        format: source.commit.id.format(),
        odd: Vec::new(),
        submodules: Vec::new(),
        leaves: Vec::new(),
    };
    visit(history, &source, submodules, &mut |part| {
        if !part.path.is_empty() {
            tree.submodules.push(CommitModule {
                path: RepoPath(part.path.to_vec()),
                commit: part.source.commit.id,
                object: RepoPath(part.source.object()?),
                objects: part.objects.to_owned(),
            });
        }
        let odd = part.plan.odd.iter();
        tree.odd.extend(odd.map(|(path, object)| (RepoPath(paths::join(part.path, path)), RepoPath(object.clone()))));
        tree.leaves.extend(part.plan.leaves.iter().map(|leaf| committed(part.path, leaf)));
        Ok(())
    })?;
    Ok(tree)
}

/// Sends the blobs of the `wanted` leaves of a tree, which are sorted and numbered in the order that [`tree`] has them.
pub(super) fn blobs(
    history: &History<'_>,
    commit: &CommitRef,
    submodules: bool,
    wanted: &[u32],
    out: &mut dyn Write,
) -> Result<(), GitError> {
    let source = Source::of(history, &commit.id)?;
    let (mut number, mut wanted) = (0, wanted.iter().copied().peekable());
    let mut blobs = BlobWriter::new(out);
    let sent = |result: std::io::Result<()>| result.map_err(|error| history.unreadable(error.to_string()));
    visit(history, &source, submodules, &mut |part| {
        for leaf in &part.plan.leaves {
            if wanted.next_if_eq(&number).is_some() && leaf.kind != LeafKind::Gitlink {
                sent(blobs.write(number, &part.source.content(leaf)?))?;
            }
            number += 1;
        }
        Ok(())
    })?;
    sent(blobs.finish())
}

fn visit(
    history: &History<'_>,
    source: &Source<'_>,
    submodules: bool,
    each: &mut dyn FnMut(&Part<'_>) -> Result<(), GitError>,
) -> Result<(), GitError> {
    let mut bounds = Bounds::default();
    let plan = Plan::of(source, &mut bounds)?;
    let objects = history.places.common_dir.join("objects");
    let top = Part { path: b"", source, objects: &objects, plan: &plan };
    each(&top)?;
    if submodules && plan.leaves.iter().any(is_gitlink) {
        if matches!(source.objects, Objects::Told(_)) {
            return Err(submodules::unsupported(history.worktree()));
        }
        submodules::visit(&history.places, &top, &mut bounds, each)?;
    }
    Ok(())
}

fn committed(prefix: &[u8], leaf: &Leaf) -> CommittedLeaf {
    CommittedLeaf { path: paths::join(prefix, &leaf.path), mode: leaf.mode, id: leaf.id, size: leaf.size }
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

    /// Returns the bytes of the commit.
    fn object(&self) -> Result<Vec<u8>, GitError> {
        match self.objects.read(self.commit.id) {
            Ok(Some((ObjectKind::Commit, bytes))) => Ok(bytes.into_owned()),
            Ok(_) => Err(self.refused(b"", "is no commit any more")),
            Err(problem) => Err(self.refused(b"", format!("cannot be read: {problem}"))),
        }
    }

    /// Returns what a file holds, or where a link leads.
    fn content(&self, leaf: &Leaf) -> Result<Cow<'a, [u8]>, GitError> {
        let content = self.blob(leaf)?;
        if leaf.kind == LeafKind::Symlink && content.contains(&0) {
            return Err(self.refused(&leaf.path, "is a link whose target holds a NUL byte"));
        }
        Ok(content)
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

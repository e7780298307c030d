//! Reads the tree of a commit and its blobs.
//!
//! The blobs are sent unchanged: no filter, line-ending conversion or hook takes part, so that the bytes are
//! exactly those of the commit's tree. An invalid or excessive tree (`..`, `.git`, a million levels) is refused
//! with the offending name before any blob is read.

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

/// A repository whose commit is read: the top repository or a submodule.
struct Part<'a> {
    /// The path of the submodule; empty for the top.
    path: &'a [u8],
    source: &'a Source<'a>,
    /// The directory of its objects.
    objects: &'a Path,
    plan: &'a Plan,
}

/// Returns the entries of a commit's tree, and those of its submodules if requested.
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

/// Sends the blobs of the `wanted` leaves of a tree. The numbers are sorted and refer to the order of [`tree`].
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

/// A commit of a repository, either the top or a submodule.
struct Source<'a> {
    objects: Objects<'a>,
    commit: Commit,
}

impl<'a> Source<'a> {
    /// Returns the commit with this id in the repository itself.
    fn of(history: &'a History<'_>, commit: &str) -> Result<Self, GitError> {
        let objects = history.objects()?;
        let commit = objects.commit(history.id(commit)?).map_err(|problem| history.unreadable(problem))?;
        Ok(Self { objects, commit })
    }

    /// Returns the tree that the commit names; making the plan checks whether it exists.
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

    /// Returns the content of a file, or the target of a link.
    fn content(&self, leaf: &Leaf) -> Result<Cow<'a, [u8]>, GitError> {
        let content = self.blob(leaf)?;
        if leaf.kind == LeafKind::Symlink && content.contains(&0) {
            return Err(self.refused(&leaf.path, "is a link whose target holds a NUL byte"));
        }
        Ok(content)
    }

    /// Returns the blob of a planned file or link.
    fn blob(&self, leaf: &Leaf) -> Result<Cow<'a, [u8]>, GitError> {
        let read = self.objects.read(leaf.id);
        match read.map_err(|problem| self.refused(&leaf.path, format!("cannot be read: {problem}")))? {
            Some((ObjectKind::Blob, bytes)) if bytes.len() as u64 == leaf.size => Ok(bytes),
            _ => Err(self.refused(&leaf.path, "is another object than its head says")),
        }
    }

    /// Makes the error for an invalid tree.
    fn refused(&self, path: &[u8], problem: impl Into<String>) -> GitError {
        GitError::Tree { commit: self.commit.id.to_string(), path: display_path(path), problem: problem.into() }
    }
}

/// Checks whether a leaf is a submodule.
fn is_gitlink(leaf: &Leaf) -> bool {
    leaf.kind == LeafKind::Gitlink
}

//! Reads a commit and the blobs of its tree.

use std::borrow::Cow;

use proctor_core::model::drift::display_path;

use crate::error::GitError;
use crate::object::object_id::{ObjectId, ObjectKind};
use crate::object::object_parser::ParsedCommit;
use crate::repository::commit_tree::planned_leaf::{PlannedLeaf, PlannedLeafKind};
use crate::repository::history::RepositoryHistory;
use crate::repository::object_reader::ObjectReader;

/// A commit of a repository, either the top or a submodule.
pub(crate) struct OpenCommit<'a> {
    pub(crate) objects: ObjectReader<'a>,
    pub(crate) commit: ParsedCommit,
}

impl<'a> OpenCommit<'a> {
    /// Returns the commit with this id in the repository itself.
    pub(crate) fn open(history: &'a RepositoryHistory<'_>, commit: &str) -> Result<Self, GitError> {
        let objects = history.objects()?;
        let commit =
            objects.commit(history.parse_id(commit)?).map_err(|error| history.unreadable(error.to_string()))?;
        Ok(Self { objects, commit })
    }

    /// Returns the tree that the commit names; making the plan checks whether it exists.
    pub(crate) fn tree_id(&self) -> ObjectId {
        self.commit.tree
    }

    /// Returns the bytes of the commit.
    pub(crate) fn commit_bytes(&self) -> Result<Vec<u8>, GitError> {
        match self.objects.read(self.commit.id) {
            Ok(Some((ObjectKind::Commit, bytes))) => Ok(bytes.into_owned()),
            Ok(_) => Err(self.tree_error(b"", "is no longer a commit")),
            Err(problem) => Err(self.tree_error(b"", format!("cannot be read: {problem}"))),
        }
    }

    /// Returns the content of a file, or the target of a link.
    pub(crate) fn content(&self, leaf: &PlannedLeaf) -> Result<Cow<'a, [u8]>, GitError> {
        let content = self.blob(leaf)?;
        if leaf.kind == PlannedLeafKind::Symlink && content.contains(&0) {
            return Err(self.tree_error(&leaf.path, "is a link whose target contains a NUL byte"));
        }
        Ok(content)
    }

    /// Returns the blob of a planned file or link.
    pub(crate) fn blob(&self, leaf: &PlannedLeaf) -> Result<Cow<'a, [u8]>, GitError> {
        let read = self.objects.read(leaf.id);
        match read.map_err(|problem| self.tree_error(&leaf.path, format!("cannot be read: {problem}")))? {
            Some((ObjectKind::Blob, bytes)) if bytes.len() as u64 == leaf.size => Ok(bytes),
            _ => Err(self.tree_error(&leaf.path, "is another object than its header declares")),
        }
    }

    /// Makes the error for an invalid tree.
    pub(crate) fn tree_error(&self, path: &[u8], problem: impl Into<String>) -> GitError {
        GitError::Tree { commit: self.commit.id.to_string(), path: display_path(path), problem: problem.into() }
    }
}

//! Reads a commit and the blobs of its tree.

use std::borrow::Cow;

use proctor_core::model::drift::display_path;

use crate::error::GitError;
use crate::object::object_id::{ObjectId, ObjectKind};
use crate::object::object_parser::{self, ParsedCommit, TreeEntry};
use crate::object::tree_identity::TREE_MODE;
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

    /// Returns the blob of a planned file or link, whose header was checked.
    pub(crate) fn blob(&self, leaf: &PlannedLeaf) -> Result<Cow<'a, [u8]>, GitError> {
        let read = self.objects.read(leaf.id);
        match read.map_err(|problem| self.unreadable(&leaf.path, &problem.to_string()))? {
            Some((ObjectKind::Blob, bytes)) => Ok(bytes),
            _ => Err(self.tree_error(&leaf.path, "differs from the object that its header declares")),
        }
    }

    /// Returns the blob of a file if it has at most `max` bytes.
    pub(crate) fn small_blob(&self, leaf: &PlannedLeaf, max: u64) -> Result<Option<Cow<'a, [u8]>>, GitError> {
        let header = self.objects.read_header(leaf.id);
        match header.map_err(|problem| self.unreadable(&leaf.path, &problem.to_string()))? {
            Some((ObjectKind::Blob, size)) if size <= max => self.blob(leaf).map(Some),
            Some((ObjectKind::Blob, _)) => Ok(None),
            Some(_) => Err(self.tree_error(&leaf.path, "is not a blob, but its mode is that of a file")),
            None => {
                let (commit, paths) = (self.commit.id.to_string(), vec![display_path(&leaf.path)]);
                Err(GitError::Missing { commit, paths, count: 1 })
            }
        }
    }

    /// Returns the file at a path of the tree, and whether it is executable. Returns `None` if there is no regular file.
    pub(crate) fn file_at(&self, path: &[u8]) -> Result<Option<(PlannedLeaf, bool)>, GitError> {
        let (mut tree, mut names) = (self.tree_id(), path.split(|byte| *byte == b'/').peekable());
        while let Some(name) = names.next() {
            let bytes = self.tree_bytes(tree, path)?;
            let entries = self.tree_entries(tree, &bytes, path)?;
            let mut found = entries.iter().filter(|entry| entry.name == name);
            let (Some(entry), None) = (found.next(), found.next()) else { return Ok(None) };
            match (entry.mode, names.peek().is_some()) {
                (TREE_MODE, true) => tree = entry.id,
                (mode, false) => {
                    let Some(kind @ PlannedLeafKind::File { executable }) = PlannedLeafKind::from_mode(mode) else {
                        return Ok(None);
                    };
                    return Ok(Some((PlannedLeaf { path: path.to_vec(), kind, mode, id: entry.id }, executable)));
                }
                _ => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Returns whether the top of the tree has a directory `name`.
    pub(crate) fn has_directory(&self, name: &[u8]) -> Result<bool, GitError> {
        let bytes = self.tree_bytes(self.tree_id(), b"")?;
        let entries = self.tree_entries(self.tree_id(), &bytes, b"")?;
        Ok(entries.iter().any(|entry| entry.mode == TREE_MODE && entry.name == name))
    }

    /// Returns the bytes of a tree object on the way to `path`.
    fn tree_bytes(&self, id: ObjectId, path: &[u8]) -> Result<Cow<'a, [u8]>, GitError> {
        match self.objects.read(id).map_err(|problem| self.unreadable(path, &problem.to_string()))? {
            Some((ObjectKind::Tree, bytes)) => Ok(bytes),
            _ => Err(self.unreadable(path, "one of its directories is not a tree object")),
        }
    }

    fn tree_entries<'b>(&self, id: ObjectId, bytes: &'b [u8], path: &[u8]) -> Result<Vec<TreeEntry<'b>>, GitError> {
        object_parser::parse_tree(id.format(), bytes)
            .ok_or_else(|| self.unreadable(path, "one of its directories is not a valid tree object"))
    }

    /// Makes the error for an object that cannot be read.
    pub(crate) fn unreadable(&self, path: &[u8], problem: &str) -> GitError {
        self.tree_error(path, format!("cannot be read: {problem}"))
    }

    /// Makes the error for an invalid tree.
    pub(crate) fn tree_error(&self, path: &[u8], problem: impl Into<String>) -> GitError {
        GitError::Tree { commit: self.commit.id.to_string(), path: display_path(path), problem: problem.into() }
    }
}

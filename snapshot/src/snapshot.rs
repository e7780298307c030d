//! The content identity of a work tree.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use proctor_core::digest::SnapshotId;
use proctor_core::drift::Entry;

use crate::git::GitError;
use crate::git::helper::GitHelper;

/// What the tree of a repository was at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The Merkle root over `entries`.
    pub id: SnapshotId,
    /// What stands at each covered path.
    pub entries: BTreeMap<Vec<u8>, Entry>,
    /// What git alone says of the same tree.
    pub git: GitFacts,
}

/// What git says of a work tree, so that a reader can find the same tree without us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitFacts {
    /// The top of the work tree, absolute, without symbolic links.
    pub worktree: PathBuf,
    /// Where HEAD and the index are.
    pub git_dir: PathBuf,
    /// Where objects, refs and config are.
    pub common_dir: PathBuf,
    /// The commit that HEAD names; none before the first.
    pub head_commit: Option<String>,
    /// The branch that HEAD names; none where it names a commit.
    pub branch: Option<String>,
    /// What `git write-tree` would print; none where the index holds a conflict.
    pub tree: Option<String>,
    /// How the object ids above were made.
    pub object_format: ObjectFormat,
}

/// How git names objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectFormat {
    /// 40 hex digits; the one that libgit2 reads.
    Sha1,
}

/// Why no snapshot could be taken.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The repository could not be read.
    #[error(transparent)]
    Git(#[from] GitError),
    /// A file of the tree could not be read.
    #[error("cannot read `{path}`: {source}\nhint: mend its permissions, or have git ignore it")]
    Io {
        /// The path, for people.
        path: String,
        /// The system's own words.
        source: std::io::Error,
    },
    /// A file did not stand still.
    #[error("`{path}` kept changing while it was read\nhint: end what writes to it, and run again")]
    Unstable {
        /// The path, for people.
        path: String,
    },
}

/// The nearest directory at or above `start` that holds a `.git`.
pub fn find_root(start: &Path) -> Option<PathBuf> {
    start.ancestors().find(|dir| dir.join(".git").symlink_metadata().is_ok()).map(Path::to_owned)
}

impl Snapshot {
    /// Takes the snapshot of the work tree whose top is `repo`.
    ///
    /// # Errors
    /// The repository is refused, a file cannot be read, or one does not stand still.
    pub fn take(_repo: &Path, _helper: &GitHelper) -> Result<Self, SnapshotError> {
        unimplemented!()
    }

    /// The paths at which the two differ, sorted.
    pub fn difference(&self, other: &Self) -> Vec<Vec<u8>> {
        crate::paths::difference(self.entries.iter(), other.entries.iter())
    }
}

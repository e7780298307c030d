//! The content identity of a work tree.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use proctor_core::digest::{Sha256Hex, SnapshotId};
use proctor_core::plan::RelPath;
use serde::{Deserialize, Serialize};

use crate::entries::{Difference, Entries};
use crate::git::GitError;
use crate::git::helper::GitHelper;
use crate::git::ignore::ExternalRules;
use crate::git::object::ObjectFormat;
use crate::git::protocol::{Listing, RepoPath};
use crate::git::state::TreeState;
use crate::look::Counts;
use crate::stamp::{self, Moment, Settling, Stamp};

mod again;
mod basis;
mod fresh;

pub(crate) use basis::{Basis, Told};

/// What the tree of a repository was at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The Merkle root over `entries`.
    pub id: SnapshotId,
    /// What stands at each covered path.
    pub entries: Arc<Entries>,
    /// What git alone says of the same tree.
    pub git: GitFacts,
    /// How it was taken, and what that cost.
    pub stats: SnapshotStats,
    /// The ignored files and directories that lie in directories which are not ignored; sorted. The identity does not
    /// cover them.
    pub(crate) ignored: Arc<Vec<Vec<u8>>>,
    /// What git said of the tree.
    pub(crate) listing: Told,
    /// When its taking began.
    pub(crate) at: Moment,
    /// What the next one can begin with; nothing where stat data do not tell of changes.
    pub(crate) basis: Option<Arc<Basis>>,
}

/// How a snapshot was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotStats {
    /// In which way.
    pub method: SnapshotMethod,
    /// How many files and links were read and hashed.
    pub hashed: usize,
    /// How many were found to be as they were, by stat data alone.
    pub reused: usize,
    /// In how many directories names were looked for, by this process.
    pub listed: usize,
    /// Whether git's files were read, or were as they were.
    pub git_was_read: bool,
}

/// In which way a snapshot was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotMethod {
    /// Nothing was known of the tree: everything was read.
    First,
    /// What stat data told to be as before was not read again.
    Stat,
    /// The tree lies where stat data do not tell of every change: everything was read.
    Rehash,
}

/// What git says of a work tree, so that a reader can find the same tree without us.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The tree that `git add -u` and `git write-tree` would make of the tracked content, or why
    /// there is none.
    pub tree: Result<String, String>,
    /// Whether something covered is not that of HEAD; none where that cannot be told.
    pub dirty: Option<bool>,
    /// How the object ids above were made.
    pub object_format: ObjectFormat,
    /// The ignore rules outside of the tree that decided what is covered, sorted by name.
    pub external_rules: Vec<ExternalRules>,
}

/// Why no snapshot could be taken.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The repository could not be read.
    #[error(transparent)]
    Git(#[from] GitError),
    /// A file of the tree could not be read.
    #[error("cannot read `{path}`: {source}\nhint: fix its permissions, or have git ignore it")]
    Io {
        /// The path, for people.
        path: String,
        /// The system's own words.
        source: std::io::Error,
    },
    /// A file did not stand still.
    #[error("`{path}` kept changing while it was read\nhint: stop the program that writes to it, and run again")]
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
    pub fn take(repo: &Path, helper: &GitHelper) -> Result<Self, SnapshotError> {
        Self::take_after(repo, helper, None, Settling::default())
    }

    /// Takes a snapshot as [`Snapshot::take`] does, which begins with one of the same work tree from
    /// before. The result is the same; what did not change is not read again.
    ///
    /// # Errors
    /// As [`Snapshot::take`].
    pub fn take_after(
        repo: &Path,
        helper: &GitHelper,
        before: Option<&Self>,
        settling: Settling,
    ) -> Result<Self, SnapshotError> {
        let began = (stamp::now(), settling);
        let again = before.map(|before| again::take(before, helper, began)).transpose()?.flatten();
        let taken = match again {
            Some(taken) => taken,
            None => fresh::take(repo, helper, before, began)?,
        };
        tracing::debug!(
            repo = %repo.display(),
            method = ?taken.stats.method,
            hashed = taken.stats.hashed,
            reused = taken.stats.reused,
            listed = taken.stats.listed,
            git_was_read = taken.stats.git_was_read,
            "snapshot taken"
        );
        Ok(taken)
    }

    /// Returns the stat data of the index file that the snapshot was taken with, if it was read from one.
    fn index_stamp(&self) -> Option<Stamp> {
        let sources = self.basis.as_ref()?.sources.as_ref()?;
        let index = sources.iter().find(|source| source.place == self.git.git_dir && source.path.0 == b"index");
        index?.stamp
    }

    /// Returns what differs between two indexes: the stat data of the file where these tell of changes, else the sha256
    /// of what git says of it.
    pub fn index_identity(&self) -> (Option<Stamp>, Option<Sha256Hex>) {
        match self.index_stamp() {
            Some(stamp) => (Some(stamp), None),
            None => (None, self.listing.sha256()),
        }
    }

    /// Returns the sha256 of what git said of the tree; `None` where that is lost.
    pub fn listing_identity(&self) -> Option<Sha256Hex> {
        self.listing.sha256()
    }

    /// Returns the directories of the repositories inside the tree.
    pub fn repositories_inside(&self) -> Vec<RepoPath> {
        match &self.basis {
            Some(basis) => basis.repositories.clone(),
            None => {
                let inside = self.listing.read().map(|listing| listing.indexes).unwrap_or_default();
                inside.iter().map(|index| index.at.clone()).filter(|at| !at.0.is_empty()).collect()
            }
        }
    }

    /// Returns the ignored files and directories that lie in directories which are not ignored, sorted. A directory may
    /// hold covered files all the same.
    pub fn ignored(&self) -> &[Vec<u8>] {
        &self.ignored
    }

    /// The first covered path that lies at or below `directory`. A cache that is mounted there
    /// would hide it, and a step would verify other bytes than those of the tree.
    pub fn first_in(&self, directory: &RelPath) -> Option<Vec<u8>> {
        let directory = directory.as_str().as_bytes();
        if directory == b"." {
            return self.entries.paths().next();
        }
        let own = self.entries.contains(directory).then(|| directory.to_vec());
        own.or_else(|| self.entries.below(directory).next().map(|(path, _)| path))
    }

    /// The snapshot of a commit's tree: nothing of it is left to git.
    pub(crate) fn of_commit(entries: Entries, git: GitFacts) -> Self {
        let counts = Counts { looked: entries.len(), ..Counts::default() };
        Self {
            id: entries.id(),
            entries: Arc::new(entries),
            git,
            stats: SnapshotStats::of(SnapshotMethod::Stat, counts, true),
            ignored: Arc::default(),
            listing: Told::Here(Arc::default()),
            at: stamp::now(),
            basis: None,
        }
    }

    /// The paths at which the two differ, sorted.
    pub fn difference(&self, other: &Self) -> Vec<Vec<u8>> {
        self.entries.difference(&other.entries, Difference::Identity)
    }

    /// The paths that somebody touched between this snapshot and a later one of the same tree,
    /// sorted: where the two differ, and where a file was changed and is the same again. Who
    /// read it in between saw something else.
    pub fn touched(&self, later: &Self) -> Vec<Vec<u8>> {
        self.entries.difference(&later.entries, Difference::Change)
    }
}

fn facts(listing: Listing, state: TreeState) -> GitFacts {
    GitFacts {
        object_format: listing.indexes.first().map_or(ObjectFormat::Sha1, |index| index.format),
        worktree: listing.worktree,
        git_dir: listing.git_dir,
        common_dir: listing.common_dir,
        head_commit: listing.head_commit,
        branch: listing.branch,
        tree: state.tree.map(|id| id.to_string()),
        dirty: state.dirty,
        external_rules: listing.external_rules,
    }
}

impl SnapshotStats {
    pub(crate) fn of(method: SnapshotMethod, counts: Counts, git_was_read: bool) -> Self {
        let Counts { looked, hashed, listed } = counts;
        Self { method, hashed, reused: looked - hashed, listed, git_was_read }
    }
}

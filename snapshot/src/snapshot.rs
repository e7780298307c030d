//! Takes the content identity of a work tree.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use proctor_core::model::plan::RelPath;
use proctor_core::text::digest::{Sha256Hex, SnapshotId};
use serde::{Deserialize, Serialize};

use crate::entries::{EntryTree, TreeDifferenceKind};
use crate::stat_scan::ScanCounts;
use crate::tree_state::TreeState;
use proctor_git::error::GitError;
use proctor_git::files::file_stat::{self, FileStat, FileTime, RacyWindow};
use proctor_git::files::repo_path::RepoPath;
use proctor_git::helper::GitHelper;
use proctor_git::ignore::external_rules::ExternalRules;
use proctor_git::object::object_id::ObjectFormat;
use proctor_git::protocol::WorktreeListing;

mod full;
mod incremental;
mod reuse_basis;

pub(crate) use reuse_basis::{EncodedListing, ReuseBasis};

/// The state of a repository's work tree at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The Merkle root over `entries`.
    pub id: SnapshotId,
    /// The entry at each covered path.
    pub entries: Arc<EntryTree>,
    /// Git's description of the same tree.
    pub git: GitFacts,
    /// How the snapshot was taken, and how much work that was.
    pub stats: SnapshotStats,
    /// The ignored files and directories whose parent directory is not ignored; sorted. The identity does not cover
    /// them.
    pub(crate) ignored: Arc<Vec<Vec<u8>>>,
    /// Git's listing of the tree.
    pub(crate) listing: EncodedListing,
    /// Start time of the snapshot.
    pub(crate) started_at: FileTime,
    /// Data that the next snapshot can reuse; `None` if stat data do not reveal every change.
    pub(crate) basis: Option<Arc<ReuseBasis>>,
}

/// How a snapshot was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotStats {
    /// The method.
    pub method: SnapshotMethod,
    /// Number of files and links that were read and hashed.
    pub hashed: usize,
    /// Number of files and links whose unchanged stat data made reading unnecessary.
    pub reused: usize,
    /// Number of directories that this process listed.
    pub listed: usize,
    /// True if git's files were read, false if they were unchanged.
    pub git_was_read: bool,
}

/// The method by which a snapshot was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotMethod {
    /// No earlier snapshot existed: everything was read.
    First,
    /// Files with unchanged stat data were not read again.
    Stat,
    /// Stat data do not reveal every change on this file system: everything was read.
    Rehash,
}

/// Git's description of a work tree, with which a reader of the evidence can find the same tree without Proctor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitFacts {
    /// The top of the work tree, absolute, without symbolic links.
    pub worktree: PathBuf,
    /// The directory that contains HEAD and the index.
    pub git_dir: PathBuf,
    /// The directory that contains objects, refs and config.
    pub common_dir: PathBuf,
    /// The commit of HEAD; `None` before the first commit.
    pub head_commit: Option<String>,
    /// The branch that HEAD names; `None` if HEAD is detached.
    pub branch: Option<String>,
    /// The tree that `git add -u` and `git write-tree` would make of the tracked content, or the reason why it is
    /// not known.
    pub tree: Result<String, String>,
    /// True if covered content differs from HEAD; `None` if that cannot be determined.
    pub dirty: Option<bool>,
    /// The hash algorithm of the object ids above.
    pub object_format: ObjectFormat,
    /// The ignore rules outside the tree that affect what is covered, sorted by name.
    pub external_rules: Vec<ExternalRules>,
}

/// Why a snapshot could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The repository could not be read.
    #[error(transparent)]
    Git(#[from] GitError),
    /// A file of the tree could not be read.
    #[error("cannot read `{path}`: {source}\nhint: fix its permissions, or have git ignore it")]
    Io {
        /// The path, in human-readable form.
        path: String,
        /// The system error.
        source: std::io::Error,
    },
    /// A file kept changing while it was read.
    #[error("`{path}` kept changing while it was read\nhint: stop the program that writes to it, and run again")]
    Unstable {
        /// The path, in human-readable form.
        path: String,
    },
}

/// Returns the nearest directory at or above `start` that contains a `.git`.
pub fn find_root(start: &Path) -> Option<PathBuf> {
    start.ancestors().find(|dir| dir.join(".git").symlink_metadata().is_ok()).map(Path::to_owned)
}

impl Snapshot {
    /// Returns the paths of submodules if they suffice to evaluate ignore rules without reading the index.
    pub fn known_submodules(&self) -> Option<Vec<RepoPath>> {
        self.basis.as_ref().and_then(|basis| basis.known_submodules()).map(<[RepoPath]>::to_vec)
    }

    /// Takes the snapshot of the work tree whose top is `repo`.
    ///
    /// # Errors
    /// The repository is refused, a file cannot be read, or a file keeps changing.
    pub fn take(repo: &Path, helper: &GitHelper) -> Result<Self, SnapshotError> {
        Self::take_after(repo, helper, None, RacyWindow::default())
    }

    /// Takes a snapshot as [`Snapshot::take`] does, but reuses an earlier snapshot of the same work tree. The
    /// result is the same; unchanged files are not read again.
    ///
    /// # Errors
    /// The same as those of [`Snapshot::take`].
    pub fn take_after(
        repo: &Path,
        helper: &GitHelper,
        before: Option<&Self>,
        settling: RacyWindow,
    ) -> Result<Self, SnapshotError> {
        let began = (file_stat::now(), settling);
        let again = before.map(|before| incremental::take_incremental(before, helper, began)).transpose()?.flatten();
        let taken = match again {
            Some(taken) => taken,
            None => full::take_full(repo, helper, before, began)?,
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
    fn index_stat(&self) -> Option<FileStat> {
        let sources = self.basis.as_ref()?.sources.as_ref()?;
        let index = sources.iter().find(|source| source.place == self.git.git_dir && source.path.0 == b"index");
        index?.stamp
    }

    /// Returns values that differ if the index differs: the stat data of the index file if they reveal changes,
    /// else the sha256 of git's listing.
    pub fn index_identity(&self) -> (Option<FileStat>, Option<Sha256Hex>) {
        match self.index_stat() {
            Some(stamp) => (Some(stamp), None),
            None => (None, self.listing.sha256()),
        }
    }

    /// Returns the sha256 of git's listing of the tree, or `None` if the listing is lost.
    pub fn listing_identity(&self) -> Option<Sha256Hex> {
        self.listing.sha256()
    }

    /// Returns the directories of the repositories inside the tree.
    pub fn nested_repositories(&self) -> Vec<RepoPath> {
        match &self.basis {
            Some(basis) => basis.repositories.clone(),
            None => {
                let inside = self.listing.decode().map(|listing| listing.indexes).unwrap_or_default();
                inside.iter().map(|index| index.at.clone()).filter(|at| !at.0.is_empty()).collect()
            }
        }
    }

    /// Returns the ignored files and directories whose parent directory is not ignored, sorted. An ignored
    /// directory may still contain covered files.
    pub fn ignored(&self) -> &[Vec<u8>] {
        &self.ignored
    }

    /// Returns the first covered path at or below `directory`. A cache mounted at that directory would hide the
    /// path, and a step would verify other bytes than those of the tree.
    pub fn first_covered_in(&self, directory: &RelPath) -> Option<Vec<u8>> {
        let directory = directory.as_str().as_bytes();
        if directory == b"." {
            return self.entries.paths().next();
        }
        let own = self.entries.contains(directory).then(|| directory.to_vec());
        own.or_else(|| self.entries.below(directory).next().map(|(path, _)| path))
    }

    /// Makes the snapshot of a commit's tree, which needs no listing from git.
    pub(crate) fn from_commit(entries: EntryTree, git: GitFacts) -> Self {
        let counts = ScanCounts { examined: entries.len(), ..ScanCounts::default() };
        Self {
            id: entries.id(),
            entries: Arc::new(entries),
            git,
            stats: SnapshotStats::new(SnapshotMethod::Stat, counts, true),
            ignored: Arc::default(),
            listing: EncodedListing::InMemory(Arc::default()),
            started_at: file_stat::now(),
            basis: None,
        }
    }

    /// Returns the paths at which the two snapshots differ, sorted.
    pub fn difference(&self, other: &Self) -> Vec<Vec<u8>> {
        self.entries.difference(&other.entries, TreeDifferenceKind::Identity)
    }

    /// Returns the paths that changed between this snapshot and a later one of the same tree, sorted: paths that
    /// differ, and files that were changed and then restored. A process that read such a file in between saw other
    /// content.
    pub fn touched(&self, later: &Self) -> Vec<Vec<u8>> {
        self.entries.difference(&later.entries, TreeDifferenceKind::IdentityOrChangeTime)
    }
}

fn git_facts(listing: WorktreeListing, state: TreeState) -> GitFacts {
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
    pub(crate) fn new(method: SnapshotMethod, counts: ScanCounts, git_was_read: bool) -> Self {
        let ScanCounts { examined: looked, hashed, listed } = counts;
        Self { method, hashed, reused: looked - hashed, listed, git_was_read }
    }
}

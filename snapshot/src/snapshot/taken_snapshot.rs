//! Represents the state of a work tree at one moment.

use std::sync::Arc;

use proctor_core::model::plan::RelPath;
use proctor_core::text::digest::{Sha256Hex, SnapshotId};
use proctor_git::files::file_stat::{self, FileStat, FileTime};
use proctor_git::files::repo_path::RepoPath;

use crate::entries::{EntryTree, TreeChanges, TreeDifferenceKind};
use crate::snapshot::git_facts::GitFacts;
use crate::snapshot::reuse_basis::{EncodedListing, ReuseBasis};
use crate::stat_scan::ScanCounts;

/// The state of a repository's work tree at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The Merkle root over `entries`.
    pub id: SnapshotId,
    /// The entry at each covered path.
    pub entries: Arc<EntryTree>,
    /// Git's description of the same tree.
    pub git: GitFacts,
    /// The method by which the snapshot was taken, and the amount of work for it.
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

/// A snapshot that was taken after an earlier one of the same tree.
#[derive(Debug)]
pub(crate) struct LaterSnapshot {
    pub(crate) snapshot: Snapshot,
    pub(crate) since: ChangesSince,
}

/// The data of a snapshot that differ from those of the earlier one.
#[derive(Debug)]
pub(crate) enum ChangesSince {
    /// Entries and git's description are the same.
    Nothing,
    /// Some entries, git's description, and the ignored paths.
    Entries(TreeChanges),
    /// Possibly everything, or there is no earlier one.
    Anything,
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

impl SnapshotStats {
    pub(crate) fn new(method: SnapshotMethod, counts: ScanCounts, git_was_read: bool) -> Self {
        let ScanCounts { examined: looked, hashed, listed } = counts;
        Self { method, hashed, reused: looked - hashed, listed, git_was_read }
    }
}

impl Snapshot {
    /// Returns the id of git's tree if it contains every file of this snapshot: there is no untracked file.
    pub fn complete_git_tree(&self) -> Option<String> {
        let tree = self.git.tree.as_ref().ok()?;
        self.entries.untracked().is_empty().then(|| tree.clone())
    }

    /// Returns the paths of submodules if they suffice to evaluate ignore rules without reading the index.
    pub fn known_submodules(&self) -> Option<Vec<RepoPath>> {
        self.basis.as_ref().and_then(|basis| basis.known_submodules()).map(<[RepoPath]>::to_vec)
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

//! Stores the covered paths of a tree in a compact form that can be searched, traversed and hashed by directory.
//!
//! The entries also store the data that the next scan needs: stat data, and tracked paths that are missing from the
//! work tree. This module does not decide which paths are covered.

mod commit_identity;
mod covered_leaves;
mod overlay_identity;
mod parallel_fill;
mod tree_builder;
mod tree_comparison;
mod tree_encoding;

use std::cmp::Ordering;
use std::fmt;
use std::ops::Range;

use proctor_core::model::drift::{Entry, EntryKind};
use proctor_core::text::digest::{Sha256Hex, SnapshotId};

use crate::merkle;
use proctor_git::files::file_stat::FileStat;
use proctor_git::files::paths;

pub use commit_identity::identify_commit_tree;
pub(crate) use overlay_identity::Overlay;
pub(crate) use parallel_fill::{FilledPart, LEAVES_PER_PART, UnfilledPart, UnfilledParts};
pub(crate) use tree_comparison::TreeDifferenceKind;
pub(crate) use tree_encoding::{TreeChanges, read_found, write_found};

/// The entries at the covered paths of a tree, sorted by the bytes of their paths.
#[derive(Clone)]
pub struct EntryTree {
    /// Paths of directories and names of leaves, concatenated.
    names: Vec<u8>,
    /// Each directory is followed by its descendants. The first element is the top directory, which always exists.
    directories: Vec<TreeDirectory>,
    /// Grouped by directory in the order of `directories`, and sorted by name within each group.
    leaves: Vec<TreeLeaf>,
    /// Number of covered leaves.
    covered: usize,
}

/// The range of a name in `names`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IndexRange {
    start: usize,
    len: usize,
}

/// A directory that contains covered entries, or that was listed.
#[derive(Debug, Clone)]
pub(crate) struct TreeDirectory {
    path: IndexRange,
    /// Index after the last descendant.
    end: usize,
    leaves: IndexRange,
    /// `None` if the directory contains no covered entry.
    digest: Option<[u8; 32]>,
    pub(crate) scan_state: DirectoryScanState,
}

/// The state of a directory when it was scanned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct DirectoryScanState {
    /// All zero if the directory did not exist.
    pub(crate) stat: FileStat,
    /// True if the names may change without a change of the stamp.
    pub(crate) racy: bool,
    pub(crate) ignore_status: IgnoreStatus,
}

/// The status of a directory under the ignore rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum IgnoreStatus {
    /// The rules were not evaluated, since the directory did not exist.
    #[default]
    NotEvaluated,
    /// The directory is not ignored, and was searched for untracked files.
    Searched,
    /// The directory is ignored; tracked files in it are covered all the same.
    Ignored,
}

/// A name in a directory that is not a plain directory; a nested repository counts as a leaf too.
#[derive(Debug, Clone)]
pub(crate) struct TreeLeaf {
    name: IndexRange,
    /// True if git tracks the path. A tracked path stays recorded while its file is missing.
    pub(crate) tracked: bool,
    pub(crate) found: ScannedEntry,
}

/// The entry that a scan found at a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ScannedEntry {
    pub(crate) kind: ScannedKind,
    /// True if the content may change without a change of the stamp.
    pub(crate) racy: bool,
    pub(crate) sha256: [u8; 32],
    pub(crate) stat: FileStat,
}

impl ScannedEntry {
    /// The result for a path at which the tree has no entry.
    pub(crate) const MISSING: Self = Self {
        kind: ScannedKind::Missing,
        racy: false,
        sha256: [0; 32],
        stat: FileStat { dev: 0, ino: 0, size: 0, mtime: (0, 0), ctime: (0, 0), mode: 0 },
    };
}

/// The kind of entry at a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScannedKind {
    File,
    Executable,
    Symlink,
    Gitlink,
    Special,
    /// An empty directory; only the record of ignored files contains these.
    EmptyDirectory,
    /// The tree has no entry here.
    Missing,
    /// A `.gitignore` that the tree does not cover, but whose rules affect what it covers.
    IgnoreRules,
}

impl ScannedKind {
    /// Returns the tag in the identity, or `None` if the leaf is not covered.
    fn identity_tag(self) -> Option<u8> {
        match self {
            Self::File => Some(b'f'),
            Self::Executable => Some(b'x'),
            Self::Symlink => Some(b'l'),
            Self::Gitlink => Some(b'g'),
            Self::Special => Some(b's'),
            Self::EmptyDirectory => Some(b'd'),
            Self::Missing | Self::IgnoreRules => None,
        }
    }

    fn entry_kind(self) -> Option<EntryKind> {
        match self {
            Self::File | Self::Executable => Some(EntryKind::File),
            Self::Symlink => Some(EntryKind::Symlink),
            Self::Gitlink => Some(EntryKind::Gitlink),
            Self::Special => Some(EntryKind::Special),
            Self::EmptyDirectory => Some(EntryKind::Directory),
            Self::Missing | Self::IgnoreRules => None,
        }
    }

    /// Returns the kind of a covered path, and whether it is executable.
    fn described(self) -> Option<(EntryKind, bool)> {
        Some((self.entry_kind()?, self == Self::Executable))
    }
}

impl TreeLeaf {
    fn merkle_leaf(&self) -> Option<merkle::MerkleLeaf> {
        Some((self.found.kind.identity_tag()?, self.found.sha256))
    }

    fn entry(&self) -> Option<Entry> {
        let (kind, executable) = self.found.kind.described()?;
        Some(Entry { kind, executable, sha256: Sha256Hex::from_raw(self.found.sha256) })
    }
}

/// The position of the last lookup, for lookups in sorted order.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LookupCursor {
    directory: usize,
    leaf: usize,
}

impl EntryTree {
    /// Returns the number of covered paths.
    pub fn len(&self) -> usize {
        self.covered
    }

    /// Returns whether no path is covered.
    pub fn is_empty(&self) -> bool {
        self.covered == 0
    }

    /// Returns the entry at `path`, or `None` if it is not covered. The cost grows with the logarithm of the number
    /// of paths.
    pub fn get(&self, path: &[u8]) -> Option<Entry> {
        self.leaf_at_path(path)?.entry()
    }

    /// Checks whether `path` is covered.
    pub fn contains(&self, path: &[u8]) -> bool {
        self.leaf_at_path(path).is_some_and(|leaf| leaf.found.kind.identity_tag().is_some())
    }

    /// Checks whether `path` is covered, or is tracked and would be covered if it existed. Does not evaluate ignore
    /// rules.
    pub(crate) fn would_cover(&self, path: &[u8]) -> bool {
        self.leaf_at_path(path).is_some_and(|leaf| leaf.tracked || leaf.merkle_leaf().is_some())
    }

    /// Returns all covered paths with their entries, sorted.
    pub fn iter(&self) -> impl Iterator<Item = (Vec<u8>, Entry)> {
        self.covered_from(0)
    }

    /// Returns all covered paths, sorted.
    pub fn paths(&self) -> impl Iterator<Item = Vec<u8>> {
        self.walk(0).map(|(directory, leaf)| self.leaf_path(directory, leaf))
    }

    /// Returns the covered paths below `directory`, sorted.
    pub fn below(&self, directory: &[u8]) -> impl Iterator<Item = (Vec<u8>, Entry)> {
        self.directory_index(directory).into_iter().flat_map(|at| self.covered_from(at))
    }

    /// Returns the paths below `directory` that git tracks and that the tree lacks, sorted.
    pub fn missing_below(&self, directory: &[u8]) -> Vec<Vec<u8>> {
        let Some(at) = self.directory_index(directory) else { return Vec::new() };
        let missing = self.leaves_below(at).filter(|(_, found)| found.kind == ScannedKind::Missing);
        let mut paths: Vec<_> = missing.map(|(path, _)| path).collect();
        paths.sort_unstable();
        paths
    }

    /// Returns the identity: the root of the Merkle tree over all directories.
    pub(crate) fn id(&self) -> SnapshotId {
        snapshot_id(self.directories[0].digest)
    }

    /// Returns the leaf at a path, covered or not.
    pub(crate) fn leaf_at_path(&self, path: &[u8]) -> Option<&TreeLeaf> {
        let (directory, name) = paths::split(path);
        self.leaf_index(self.directory_index(directory)?, name).map(|at| &self.leaves[at])
    }

    /// Returns the leaf at a path, for lookups in roughly sorted order. `place` is the position after the previous
    /// lookup, where most paths are found immediately.
    pub(crate) fn leaf_at_cursor(&self, cursor: &mut LookupCursor, path: &[u8]) -> Option<&TreeLeaf> {
        let (directory, name) = paths::split(path);
        if self.directory_path(cursor.directory) != directory {
            *cursor = LookupCursor { directory: self.directory_index(directory)?, ..*cursor };
        }
        let is_next = self.leaf_range(cursor.directory).contains(&cursor.leaf) && self.leaf_name(cursor.leaf) == name;
        let at = if is_next { cursor.leaf } else { self.leaf_index(cursor.directory, name)? };
        cursor.leaf = at + 1;
        Some(&self.leaves[at])
    }

    /// Returns the same entries as tracked ones.
    pub(crate) fn all_tracked(&self) -> Self {
        let mut tree = self.clone();
        tree.leaves.iter_mut().for_each(|leaf| leaf.tracked = true);
        tree
    }

    /// Returns the covered paths that git does not track, except nested repositories; sorted.
    pub fn untracked(&self) -> Vec<Vec<u8>> {
        let counts = |leaf: &TreeLeaf| {
            !leaf.tracked && leaf.found.kind != ScannedKind::Gitlink && leaf.found.kind.identity_tag().is_some()
        };
        // Most trees have few such paths, so that sorting them is faster than a walk in sorted order.
        let found = self.leaves.iter().enumerate().filter(|(_, leaf)| counts(leaf));
        let mut paths: Vec<_> = found.map(|(leaf, _)| self.leaf_path(self.parent_of_leaf(leaf), leaf)).collect();
        paths.sort_unstable();
        paths
    }

    /// Returns the index of the directory `path`.
    pub(crate) fn directory_index(&self, path: &[u8]) -> Option<usize> {
        self.directories
            .binary_search_by(|directory| compare_directory_paths(self.name_bytes(directory.path), path))
            .ok()
    }

    /// Returns the index of the leaf `name` of a directory.
    pub(crate) fn leaf_index(&self, directory: usize, name: &[u8]) -> Option<usize> {
        let range = self.leaf_range(directory);
        let found = self.leaves[range.clone()].binary_search_by(|leaf| self.name_bytes(leaf.name).cmp(name));
        found.ok().map(|at| range.start + at)
    }

    /// Returns the number of directories.
    pub(crate) fn directory_count(&self) -> usize {
        self.directories.len()
    }

    /// Returns the directory at an index.
    pub(crate) fn directory(&self, at: usize) -> &TreeDirectory {
        &self.directories[at]
    }

    /// Returns whether a directory exists and was listed but contains no covered entry.
    pub(crate) fn is_searched_but_uncovered(&self, at: usize) -> bool {
        let TreeDirectory { digest, scan_state: look, .. } = &self.directories[at];
        digest.is_none() && look.ignore_status == IgnoreStatus::Searched && look.stat != FileStat::default()
    }

    /// Returns the path of a directory.
    pub(crate) fn directory_path(&self, at: usize) -> &[u8] {
        self.name_bytes(self.directories[at].path)
    }

    /// Returns the indexes of a directory's leaves.
    pub(crate) fn leaf_range(&self, directory: usize) -> Range<usize> {
        let IndexRange { start: at, len } = self.directories[directory].leaves;
        at..at + len
    }

    /// Returns the number of covered paths, and the length of their files in bytes.
    pub fn size(&self) -> (usize, u64) {
        (self.covered, self.directory_totals(0).1)
    }

    /// Returns the number of covered leaves below a directory, their length in bytes, and its digest.
    pub(crate) fn directory_totals(&self, directory: usize) -> (u64, u64, Option<Sha256Hex>) {
        let end = self.directories[directory].end;
        let leaves = (directory..end).flat_map(|at| self.leaf_range(at)).map(|at| &self.leaves[at]);
        let covered = leaves.filter(|leaf| leaf.merkle_leaf().is_some());
        let (files, bytes) = covered.fold((0, 0_u64), |(files, bytes), leaf| (files + 1, bytes + leaf.found.stat.size));
        (files, bytes, self.directories[directory].digest.map(Sha256Hex::from_raw))
    }

    /// Returns all leaves below a directory, covered or not, with their paths.
    pub(crate) fn leaves_below(&self, directory: usize) -> impl Iterator<Item = (Vec<u8>, &ScannedEntry)> {
        let directories = directory..self.directories[directory].end;
        let leaves = directories.flat_map(|at| self.leaf_range(at).map(move |leaf| (at, leaf)));
        leaves.map(|(at, leaf)| (self.leaf_path(at, leaf), &self.leaves[leaf].found))
    }

    /// Returns the number of leaves, covered or not.
    pub(crate) fn leaf_count(&self) -> usize {
        self.leaves.len()
    }

    /// Returns the index of the directory that contains a leaf.
    pub(crate) fn parent_of_leaf(&self, leaf: usize) -> usize {
        self.directories.partition_point(|directory| directory.leaves.start + directory.leaves.len <= leaf)
    }

    /// Returns the newest modification time of a leaf.
    pub(crate) fn newest_mtime(&self) -> proctor_git::files::file_stat::FileTime {
        self.leaves.iter().map(|leaf| leaf.found.stat.mtime).max().unwrap_or_default()
    }

    /// Returns the leaf at an index.
    pub(crate) fn leaf_at(&self, at: usize) -> &TreeLeaf {
        &self.leaves[at]
    }

    /// Returns the name of a leaf.
    pub(crate) fn leaf_name(&self, leaf: usize) -> &[u8] {
        self.name_bytes(self.leaves[leaf].name)
    }

    /// Returns the path of a leaf in a directory.
    pub(crate) fn leaf_path(&self, directory: usize, leaf: usize) -> Vec<u8> {
        paths::join(self.directory_path(directory), self.leaf_name(leaf))
    }

    /// Returns the immediate subdirectories of a directory.
    pub(crate) fn children(&self, directory: usize) -> impl Iterator<Item = usize> {
        let end = self.directories[directory].end;
        let first = Some(directory + 1).filter(|first| *first < end);
        std::iter::successors(first, move |child| Some(self.directories[*child].end).filter(|next| *next < end))
    }

    fn name_bytes(&self, span: IndexRange) -> &[u8] {
        &self.names[span.start..span.start + span.len]
    }
}

/// Returns the identity of a tree whose top directory has this digest.
fn snapshot_id(top: Option<[u8; 32]>) -> SnapshotId {
    SnapshotId::from_root(&Sha256Hex::from_raw(top.unwrap_or_else(|| merkle::directory_digest(&mut []))))
}

/// Compares directory paths so that each directory is immediately followed by its descendants. This is the order of
/// the paths with a `/` appended.
fn compare_directory_paths(left: &[u8], right: &[u8]) -> Ordering {
    let common = left.len().min(right.len());
    let next = |path: &[u8]| path.get(common).copied().unwrap_or(b'/');
    left[..common]
        .cmp(&right[..common])
        // The top directory has an empty path and comes first.
        .then_with(|| if common == 0 { left.len().cmp(&right.len()) } else { next(left).cmp(&next(right)) })
        .then_with(|| left.len().cmp(&right.len()))
}

/// Compares the covered content; stat data are ignored.
impl PartialEq for EntryTree {
    fn eq(&self, other: &Self) -> bool {
        self.directories[0].digest == other.directories[0].digest
    }
}

impl Eq for EntryTree {}

impl fmt::Debug for EntryTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.iter().map(|(path, entry)| (proctor_core::model::drift::display_path(&path), entry));
        f.debug_map().entries(shown).finish()
    }
}

#[cfg(test)]
mod tests;

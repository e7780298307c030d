//! Describes the tree before a step: the snapshot, and the sealed layers on top of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proctor_core::model::drift::{Entry, EntryKind, is_evidence_path};
use proctor_core::text::digest::{Sha256Hex, SnapshotId};
use proctor_git::error::GitError;
use proctor_git::files::paths;
use proctor_git::files::read_beneath::PathEntry;
use proctor_git::helper::IgnoreQuery;

use crate::entries::{EntryTree, Overlay};
use crate::layer::layer_scan::{FileContent, LayerEntry, LayerScan};
use crate::merkle;
use crate::snapshot::taken_snapshot::Snapshot;

/// The tree as a step sees it at its start. A clone is cheap: it copies the paths that layers touched, and shares
/// the snapshot.
#[derive(Debug, Clone)]
pub struct TreeView {
    base: Arc<Snapshot>,
    /// The entries that the layers left, by path, including directories.
    touched: BTreeMap<Vec<u8>, TouchedPath>,
    /// Paths at and below which a layer hides the snapshot and the real tree.
    hidden_paths: BTreeSet<Vec<u8>>,
}

#[derive(Debug, Clone)]
struct TouchedPath {
    state: PathState,
    covered: bool,
}

/// Facts about a layer entry that the entry itself does not contain.
#[derive(Debug, Clone, Copy)]
struct LayerEntryContext {
    covered: bool,
    /// The layer contains a `.git` in this directory.
    keeps_repository: bool,
}

/// The entry at a path, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathState {
    /// This entry exists.
    Entry(Entry),
    /// A file of a layer that was too large to be hashed, or that was spared; its length in bytes.
    Unhashed(u64),
    /// A directory of a layer; the entries below it have their own paths.
    Directory,
    /// Nothing exists at the path.
    Absent,
    /// The snapshot does not cover the path, and no layer touched it: only the real tree has the answer.
    Uncovered,
}

impl PathState {
    /// Returns the kind of an entry that is known to exist, and whether it is executable. A file whose content is not
    /// known counts as not executable.
    pub fn kind(&self) -> Option<(EntryKind, bool)> {
        match self {
            Self::Entry(entry) => Some((entry.kind, entry.executable)),
            Self::Unhashed(_) => Some((EntryKind::File, false)),
            Self::Directory | Self::Absent | Self::Uncovered => None,
        }
    }
}

impl TreeView {
    /// Creates the view of the tree without layers.
    pub fn new(base: Arc<Snapshot>) -> Self {
        Self { base, touched: BTreeMap::new(), hidden_paths: BTreeSet::new() }
    }

    /// Returns the view of the snapshot without layers.
    pub fn without_layers(&self) -> Self {
        Self::new(Arc::clone(&self.base))
    }

    /// Returns the view with one more layer on top.
    ///
    /// # Errors
    /// The git helper could not report which new paths are ignored.
    pub fn with_layer(&self, scan: &LayerScan, ignored: &IgnoreQuery) -> Result<Self, GitError> {
        let covered = self.newly_covered(scan, ignored)?;
        let mut next = self.clone();
        for (path, entry) in scan.entries.iter().filter(|(path, _)| !(scan.is_sparing() && scan.is_ignored(path))) {
            let keeps_repository = scan.entries.contains_key(&paths::join(path, b".git"));
            next.apply_entry(
                path,
                entry,
                LayerEntryContext { covered: covered.contains(path.as_slice()), keeps_repository },
            );
        }
        next.exclude_reports(self, scan);
        Ok(next)
    }

    /// Excludes the reports in the layer from the tree. If a covered but untracked file existed at a report's path,
    /// the tree still contains that file.
    fn exclude_reports(&mut self, before: &Self, scan: &LayerScan) {
        for path in &scan.reports {
            let standing = before.path_state(path);
            let covered = before.touched.get(path).map_or_else(|| before.base.entries.contains(path), |it| it.covered);
            let holds = matches!(standing, PathState::Entry(_) | PathState::Unhashed(_));
            if covered && holds && self.path_state(path) != standing {
                self.touched.insert(path.clone(), TouchedPath { state: standing, covered });
            }
        }
    }

    /// Checks whether git tracked `path` when the snapshot was taken.
    pub(crate) fn is_tracked(&self, path: &[u8]) -> bool {
        self.base.entries.leaf_at_path(path).is_some_and(|leaf| leaf.tracked)
    }

    /// Returns the paths of files, links and special files in the layer that a snapshot covers or would cover.
    fn newly_covered<'a>(&self, scan: &'a LayerScan, ignored: &IgnoreQuery) -> Result<BTreeSet<&'a [u8]>, GitError> {
        let holds = |entry: &LayerEntry| !matches!(entry, LayerEntry::Whiteout | LayerEntry::Directory { .. });
        let counts = |path: &[u8]| !scan.is_ignored(path) && !scan.reports.contains(path);
        let read = scan.entries.iter().filter(|(path, entry)| holds(entry) && counts(path));
        let leaves: Vec<&[u8]> = read.map(|(path, _)| path.as_slice()).collect();
        let covered = self.are_covered(&leaves, ignored)?;
        Ok(leaves.into_iter().zip(covered).filter(|(_, covered)| *covered).map(|(path, _)| path).collect())
    }

    /// Reports for each path whether a snapshot of the tree with an entry at this path would cover it: it was
    /// covered before, or it is not ignored. None of the paths may be a directory.
    ///
    /// # Errors
    /// The git helper could not report which paths are ignored.
    pub(crate) fn are_covered(&self, queried: &[&[u8]], ignored: &IgnoreQuery) -> Result<Vec<bool>, GitError> {
        let never = |path: &[u8]| is_evidence_path(path) || paths::is_in_git_dir(path);
        // A tracked file that is missing is not part of the tree, but would be covered if it existed.
        let known = |path: &[u8]| {
            self.base.entries.would_cover(path) || self.touched.get(path).is_some_and(|touched| touched.covered)
        };
        let open: Vec<&[u8]> = queried.iter().copied().filter(|path| !never(path) && !known(path)).collect();
        let mut answers = ignored.are_ignored(&open)?.into_iter();
        let mut decide = |path: &[u8]| !never(path) && (known(path) || !answers.next().unwrap_or(false));
        Ok(queried.iter().map(|path| decide(path)).collect())
    }

    /// Checks whether a covered or tracked entry exists at or below `path`, or existed earlier in this run.
    pub(crate) fn has_covered_at_or_below(&self, path: &[u8]) -> bool {
        self.base.entries.would_cover(path)
            || self.base.entries.directory_index(path).is_some_and(|at| has_leaf(&self.base.entries, at))
            || self.touched.get(path).is_some_and(|touched| touched.covered)
            || paths::below(&self.touched, path).any(|(_, touched)| touched.covered)
    }

    /// Applies one entry of a layer. Its parent directories were applied before.
    fn apply_entry(&mut self, path: &[u8], entry: &LayerEntry, context: LayerEntryContext) {
        let standing = match entry {
            LayerEntry::Whiteout => PathState::Absent,
            LayerEntry::Directory { opaque: false } if self.has_directory(path) => return,
            LayerEntry::Directory { opaque: true } if context.keeps_repository && self.has_repository(path) => {
                self.path_state(path)
            }
            other => path_state_from_layer(other),
        };
        if *entry != (LayerEntry::Directory { opaque: false }) {
            self.hide(path);
        }
        let covered =
            context.covered || matches!(&standing, PathState::Entry(entry) if entry.kind == EntryKind::Gitlink);
        self.touched.insert(path.to_vec(), TouchedPath { state: standing, covered });
    }

    /// Checks whether a directory is known to exist at `path`; a repository counts as a directory.
    fn has_directory(&self, path: &[u8]) -> bool {
        self.path_state(path) == PathState::Directory || self.has_repository(path)
    }

    fn has_repository(&self, path: &[u8]) -> bool {
        matches!(self.path_state(path), PathState::Entry(entry) if entry.kind == EntryKind::Gitlink)
    }

    /// Removes all entries at and below `path` from the view.
    fn hide(&mut self, path: &[u8]) {
        let gone: Vec<Vec<u8>> = paths::below(&self.touched, path).map(|(path, _)| path.clone()).collect();
        for path in gone {
            self.touched.remove(&path);
        }
        self.hidden_paths.insert(path.to_vec());
    }

    /// Checks whether a layer hides the real tree at `path`.
    pub(crate) fn is_hidden(&self, path: &[u8]) -> bool {
        !self.hidden_paths.is_empty()
            && (self.hidden_paths.contains(path)
                || paths::ancestors(path).any(|above| self.hidden_paths.contains(above)))
    }

    /// Returns the entry at `path`.
    pub fn path_state(&self, path: &[u8]) -> PathState {
        if let Some(touched) = self.touched.get(path) {
            return touched.state.clone();
        }
        match self.base.entries.get(path) {
            _ if self.is_hidden(path) => PathState::Absent,
            Some(entry) => PathState::Entry(entry),
            None => PathState::Uncovered,
        }
    }

    /// Returns the known entries below `path`, without directories, sorted by path.
    pub(crate) fn known_below(&self, path: &[u8]) -> BTreeMap<Vec<u8>, PathState> {
        let of_base = self.base.entries.below(path);
        let of_base = of_base
            .filter(|(path, _)| !self.touched.contains_key(path) && !self.is_hidden(path))
            .map(|(path, entry)| (path, PathState::Entry(entry)));
        let of_layers = paths::below(&self.touched, path)
            .filter(|(_, touched)| !matches!(touched.state, PathState::Absent | PathState::Directory))
            .map(|(path, touched)| (path.clone(), touched.state.clone()));
        of_base.chain(of_layers).collect()
    }

    /// Returns the covered paths below `path` that no layer has touched, in unspecified order.
    pub(crate) fn untouched_below(&self, path: &[u8]) -> impl Iterator<Item = Vec<u8>> {
        let of_base = self.base.entries.below(path).map(|(path, _)| path);
        of_base.filter(|path| !self.touched.contains_key(path) && !self.is_hidden(path))
    }

    /// Returns the regular files that git sees: tracked files, and untracked files that are not ignored. The order
    /// is unspecified.
    pub fn files(&self) -> impl Iterator<Item = Vec<u8>> {
        let is_file = |standing: &PathState| match standing {
            PathState::Entry(entry) => entry.kind == EntryKind::File,
            PathState::Unhashed(_) => true,
            PathState::Directory | PathState::Absent | PathState::Uncovered => false,
        };
        self.covered().filter(move |(_, standing)| is_file(standing)).map(|(path, _)| path)
    }

    /// Returns the snapshot below all layers.
    pub fn base(&self) -> &Arc<Snapshot> {
        &self.base
    }

    /// Returns the Merkle root over the covered paths with the layers applied. It equals the root that
    /// [`Snapshot::take`] would compute. If a file was too large to be hashed, the result is not the root of any
    /// snapshot.
    pub fn id(&self) -> SnapshotId {
        if self.touched.is_empty() {
            return self.base.id.clone();
        }
        let leaf = |touched: &TouchedPath| merkle_leaf(&touched.state).filter(|_| touched.covered);
        let leaves = self.touched.iter().map(|(path, touched)| (path.as_slice(), leaf(touched))).collect();
        self.base.entries.id_with_overlay(&Overlay { leaves, removed: &self.hidden_paths })
    }

    /// Returns the covered paths at which a real snapshot differs from this view, sorted.
    pub fn difference(&self, real: &Snapshot) -> Vec<Vec<u8>> {
        let here: BTreeMap<Vec<u8>, PathState> = self.covered().collect();
        let there = real.entries.iter().map(|(path, entry)| (path, PathState::Entry(entry)));
        paths::difference(here.into_iter(), there)
    }

    /// Returns the identity of the snapshot if no layer changed anything.
    pub fn unchanged_id(&self) -> Option<&SnapshotId> {
        (self.touched.is_empty() && self.hidden_paths.is_empty()).then_some(&self.base.id)
    }

    /// Returns the covered paths with their kinds, and whether they are executable; in unspecified order.
    pub fn covered_kinds(&self) -> impl Iterator<Item = (Vec<u8>, EntryKind, bool)> {
        let of_base = self.base.entries.kinds();
        let of_base = of_base.filter(|(path, ..)| !self.touched.contains_key(path) && !self.is_hidden(path));
        let of_layers = self.touched.iter().filter(|(_, touched)| touched.covered);
        of_base.chain(of_layers.filter_map(|(path, touched)| {
            let (kind, executable) = touched.state.kind()?;
            Some((path.clone(), kind, executable))
        }))
    }

    /// Returns the entries at the covered paths, in unspecified order.
    pub fn covered(&self) -> impl Iterator<Item = (Vec<u8>, PathState)> {
        let of_base =
            self.base.entries.iter().filter(|(path, _)| !self.touched.contains_key(path) && !self.is_hidden(path));
        let of_base = of_base.map(|(path, entry)| (path, PathState::Entry(entry)));
        let of_layers = self.touched.iter().filter(|(_, touched)| {
            touched.covered && !matches!(touched.state, PathState::Absent | PathState::Directory)
        });
        of_base.chain(of_layers.map(|(path, touched)| (path.clone(), touched.state.clone())))
    }
}

/// Checks whether a covered or tracked entry exists below a directory of the snapshot.
fn has_leaf(entries: &EntryTree, directory: usize) -> bool {
    !entries.leaf_range(directory).is_empty() || entries.children(directory).any(|inner| has_leaf(entries, inner))
}

/// Converts a layer entry to the state of its path.
pub(crate) fn path_state_from_layer(entry: &LayerEntry) -> PathState {
    let hashed = |kind, executable, sha256| PathState::Entry(Entry { kind, executable, sha256 });
    match entry {
        LayerEntry::File { executable, content: FileContent::Sha256(sha256), .. } => {
            hashed(EntryKind::File, *executable, sha256.clone())
        }
        LayerEntry::File { size, content: FileContent::BeyondBound | FileContent::Spared, .. } => {
            PathState::Unhashed(*size)
        }
        LayerEntry::Symlink { target } => hashed(EntryKind::Symlink, false, Sha256Hex::digest(target)),
        LayerEntry::Special => hashed(EntryKind::Special, false, Sha256Hex::digest(b"")),
        LayerEntry::Whiteout => PathState::Absent,
        LayerEntry::Directory { .. } => PathState::Directory,
    }
}

fn merkle_leaf(standing: &PathState) -> Option<merkle::MerkleLeaf> {
    match standing {
        PathState::Entry(entry) => Some(merkle::leaf(entry)),
        PathState::Unhashed(size) => Some((merkle::UNHASHED_TAG, Sha256Hex::digest(&size.to_le_bytes()).to_raw())),
        PathState::Directory | PathState::Absent | PathState::Uncovered => None,
    }
}

/// Returns the paths that two lists of layers both touched, sorted. A directory that merely exists in both is not a
/// conflict. A path that one side deletes or replaces, and in which the other side changes something, is a conflict.
pub fn conflicts(a: &[&LayerScan], b: &[&LayerScan]) -> Vec<Vec<u8>> {
    let mut found = BTreeSet::new();
    for (left, right) in [(a, b), (b, a)] {
        for (path, entry) in left.iter().flat_map(|scan| &scan.entries) {
            for other in right {
                collect_conflicts(path, entry, other, &mut found);
            }
        }
    }
    found.into_iter().collect()
}

fn collect_conflicts(path: &[u8], entry: &LayerEntry, other: &LayerScan, found: &mut BTreeSet<Vec<u8>>) {
    let is_directory = |entry: &LayerEntry| matches!(entry, LayerEntry::Directory { .. });
    if other.entries.get(path).is_some_and(|theirs| !(is_directory(entry) && is_directory(theirs))) {
        found.insert(path.to_vec());
    }
    if !matches!(entry, LayerEntry::Directory { opaque: false }) {
        let inside = paths::below(&other.entries, path);
        let leaves = inside.filter(|(_, theirs)| **theirs != LayerEntry::Directory { opaque: false });
        found.extend(leaves.map(|(path, _)| path.clone()));
    }
}

pub(crate) fn path_state_from_read(found: PathEntry) -> PathState {
    match found {
        PathEntry::Entry(entry) => PathState::Entry(entry),
        PathEntry::Unread(_) => PathState::Unhashed(0),
        PathEntry::Directory => PathState::Directory,
        PathEntry::Missing => PathState::Absent,
    }
}

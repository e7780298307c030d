//! Builds the entries of a tree from directories, some of which are taken unchanged from an earlier tree.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{
    DirectoryScanState, EntryTree, IndexRange, ScannedEntry, ScannedKind, TreeDirectory, TreeLeaf,
    compare_directory_paths,
};
use crate::merkle;
use proctor_git::files::paths;

/// One directory of a tree to build.
pub(crate) struct DirectoryPart<'a> {
    pub(crate) path: Vec<u8>,
    pub(crate) scan_state: DirectoryScanState,
    pub(crate) leaves: DirectoryLeaves<'a>,
}

/// The leaves of a directory.
pub(crate) enum DirectoryLeaves<'a> {
    /// The leaves of a directory in another tree.
    Kept { source: &'a EntryTree, directory: usize },
    /// New leaves, in any order.
    New(Vec<NewTreeLeaf>),
    /// Sorted names that git tracks; their entries are not known yet.
    Tracked(Vec<&'a [u8]>),
}

impl DirectoryLeaves<'_> {
    /// Returns the maximum number of leaves.
    fn len(&self) -> usize {
        match self {
            Self::Kept { source: of, directory: at } => of.leaf_range(*at).len(),
            Self::New(leaves) => leaves.len(),
            Self::Tracked(names) => names.len(),
        }
    }
}

/// One leaf of a tree to build.
#[derive(Debug, Clone)]
pub(crate) struct NewTreeLeaf {
    pub(crate) name: Vec<u8>,
    pub(crate) tracked: bool,
    pub(crate) found: ScannedEntry,
}

/// A tree without covered entries.
impl Default for EntryTree {
    fn default() -> Self {
        Self::from_leaves([])
    }
}

impl EntryTree {
    /// Builds a tree from directories. Missing parent directories are added.
    pub(crate) fn assemble(mut parts: Vec<DirectoryPart<'_>>) -> Self {
        add_parent_directories(&mut parts);
        parts.sort_by(|left, right| compare_directory_paths(&left.path, &right.path));
        let leaves = parts.iter().map(|part| part.leaves.len()).sum();
        let mut made = Self {
            names: Vec::new(),
            directories: Vec::with_capacity(parts.len()),
            leaves: Vec::with_capacity(leaves),
            covered: 0,
        };
        let kept: Vec<Option<(&Self, usize)>> = parts
            .iter()
            .map(|part| match part.leaves {
                DirectoryLeaves::Kept { source: of, directory: at } => Some((of, at)),
                DirectoryLeaves::New(_) | DirectoryLeaves::Tracked(_) => None,
            })
            .collect();
        for part in parts {
            made.add(part);
        }
        made.set_subtree_ends();
        made.set_digests(&kept);
        made.covered = made.leaves.iter().filter(|leaf| leaf.merkle_leaf().is_some()).count();
        made
    }

    /// Builds a tree from tracked paths whose entries are not known yet. The paths are sorted and unique.
    pub(crate) fn from_tracked_paths<'p>(paths: impl Iterator<Item = &'p [u8]>) -> Self {
        let mut parts: Vec<(&[u8], Vec<&[u8]>)> = Vec::new();
        let mut places: HashMap<&[u8], usize> = HashMap::new();
        // Consecutive files are mostly in the same directory.
        let mut open = 0;
        for path in paths {
            let (directory, name) = paths::split(path);
            if parts.get(open).is_none_or(|(last, _)| *last != directory) {
                open = *places.entry(directory).or_insert(parts.len());
                if open == parts.len() {
                    parts.push((directory, Vec::new()));
                }
            }
            parts[open].1.push(name);
        }
        let part = |(path, names): (&[u8], _)| DirectoryPart {
            path: path.to_vec(),
            scan_state: DirectoryScanState::default(),
            leaves: DirectoryLeaves::Tracked(names),
        };
        Self::assemble(parts.into_iter().map(part).collect())
    }

    /// Builds a tree from leaves, each with its path.
    pub(crate) fn from_leaves(leaves: impl IntoIterator<Item = (Vec<u8>, bool, ScannedEntry)>) -> Self {
        let part = |(path, leaves)| DirectoryPart {
            path,
            scan_state: DirectoryScanState::default(),
            leaves: DirectoryLeaves::New(leaves),
        };
        Self::assemble(by_directory(leaves).into_iter().map(part).collect())
    }

    /// Replaces the scan states of some directories, given by path, if nothing else has to change. Returns whether
    /// it did: it fails if a directory is unknown, or if a leaf has to be removed.
    pub(crate) fn update_scan_states(&mut self, states: &[(&[u8], DirectoryScanState)]) -> bool {
        let at: Option<Vec<usize>> = states.iter().map(|(path, _)| self.directory_index(path)).collect();
        let Some(at) = at.filter(|_| !(0..self.leaves.len()).any(|leaf| self.is_removable(leaf))) else { return false };
        for (at, (_, look)) in at.into_iter().zip(states) {
            self.directories[at].scan_state = *look;
        }
        true
    }

    /// Replaces the leaves at the given paths and adds new ones. A leaf that is [`ScannedKind::Missing`] is removed.
    pub(crate) fn replace_leaves(&mut self, found: Vec<(Vec<u8>, ScannedEntry)>) {
        let place = |(path, found): &(Vec<u8>, ScannedEntry)| {
            let (directory, name) = paths::split(path);
            let directory = self.directory_index(directory)?;
            Some((directory, self.leaf_index(directory, name)?, *found)).filter(|_| found.kind != ScannedKind::Missing)
        };
        // If all paths are known, only the leaves and the digests of their parent directories change.
        match found.iter().map(place).collect::<Option<Vec<_>>>() {
            Some(places) => self.apply_scan(&places, &[]),
            None => {
                let added = found.into_iter().map(|(path, found)| (path, false, found)).collect();
                *self = self.with_leaves(added, HashMap::new());
            }
        }
    }

    /// Returns a tree with additional leaves and new scan states of directories, given by path. Leaves that are
    /// missing and not tracked are removed.
    pub(crate) fn with_leaves(
        &self,
        added: Vec<(Vec<u8>, bool, ScannedEntry)>,
        mut looks: HashMap<Vec<u8>, DirectoryScanState>,
    ) -> Self {
        let mut added = by_directory(added);
        let mut parts = Vec::with_capacity(self.directories.len() + added.len());
        for at in 0..self.directories.len() {
            let path = self.directory_path(at);
            let look = looks.remove(path).unwrap_or(self.directories[at].scan_state);
            let leaves = match added.remove(path) {
                None if !self.leaf_range(at).any(|leaf| self.is_removable(leaf)) => {
                    DirectoryLeaves::Kept { source: self, directory: at }
                }
                more => DirectoryLeaves::New(self.merged_leaves(at, more.unwrap_or_default())),
            };
            let is_empty = matches!(&leaves, DirectoryLeaves::New(leaves) if leaves.is_empty())
                || matches!(leaves, DirectoryLeaves::Kept { .. } if self.leaf_range(at).is_empty());
            if !is_empty || look != DirectoryScanState::default() {
                parts.push(DirectoryPart { path: path.to_vec(), scan_state: look, leaves });
            }
        }
        for (path, leaves) in added {
            let look = looks.remove(&path).unwrap_or_default();
            parts.push(DirectoryPart { path, scan_state: look, leaves: DirectoryLeaves::New(leaves) });
        }
        parts.extend(looks.into_iter().map(|(path, look)| DirectoryPart {
            path,
            scan_state: look,
            leaves: DirectoryLeaves::New(Vec::new()),
        }));
        Self::assemble(parts)
    }

    /// Checks whether a leaf is both missing and untracked, so it can be removed.
    fn is_removable(&self, leaf: usize) -> bool {
        let leaf = &self.leaves[leaf];
        leaf.found.kind == ScannedKind::Missing && !leaf.tracked
    }

    /// Returns the leaves of a directory merged with new leaves. A new leaf replaces an old one of the same name.
    fn merged_leaves(&self, directory: usize, more: Vec<NewTreeLeaf>) -> Vec<NewTreeLeaf> {
        let kept = self.leaf_range(directory).filter(|leaf| !self.is_removable(*leaf));
        let kept = kept.map(|at| (self.leaf_name(at).to_vec(), (self.leaves[at].tracked, self.leaves[at].found)));
        let mut leaves: BTreeMap<Vec<u8>, (bool, ScannedEntry)> = kept.collect();
        for leaf in more {
            let tracked = leaf.tracked || leaves.get(&leaf.name).is_some_and(|(tracked, _)| *tracked);
            leaves.insert(leaf.name, (tracked, leaf.found));
        }
        leaves.into_iter().map(|(name, (tracked, found))| NewTreeLeaf { name, tracked, found }).collect()
    }

    /// Applies the results of a scan.
    pub(crate) fn apply_scan<'a>(
        &mut self,
        leaves: impl IntoIterator<Item = &'a (usize, usize, ScannedEntry)>,
        directories: impl IntoIterator<Item = &'a (usize, DirectoryScanState)>,
    ) {
        let mut dirty = vec![false; self.directories.len()];
        for (directory, leaf, found) in leaves {
            self.covered -= usize::from(self.leaves[*leaf].merkle_leaf().is_some());
            self.leaves[*leaf].found = *found;
            self.covered += usize::from(self.leaves[*leaf].merkle_leaf().is_some());
            dirty[*directory] = true;
        }
        for (directory, look) in directories {
            self.directories[*directory].scan_state = *look;
        }
        for at in (0..dirty.len()).rev() {
            dirty[at] = dirty[at] || self.children(at).any(|child| dirty[child]);
            if dirty[at] {
                self.directories[at].digest = self.directory_digest(at);
            }
        }
    }

    fn add(&mut self, part: DirectoryPart<'_>) {
        let path = self.push_name(&part.path);
        let first = self.leaves.len();
        match part.leaves {
            DirectoryLeaves::Kept { source: of, directory: at } => {
                for leaf in of.leaf_range(at) {
                    let name = self.push_name(of.leaf_name(leaf));
                    self.leaves.push(TreeLeaf { name, ..of.leaves[leaf].clone() });
                }
            }
            DirectoryLeaves::Tracked(names) => {
                for name in names {
                    let name = self.push_name(name);
                    self.leaves.push(TreeLeaf { name, tracked: true, found: ScannedEntry::MISSING });
                }
            }
            DirectoryLeaves::New(mut leaves) => {
                leaves.sort_by(|left, right| left.name.cmp(&right.name));
                leaves.dedup_by(|later, kept| {
                    let is_same = later.name == kept.name;
                    if is_same {
                        *kept = NewTreeLeaf { tracked: kept.tracked || later.tracked, ..later.clone() };
                    }
                    is_same
                });
                for leaf in leaves {
                    let name = self.push_name(&leaf.name);
                    self.leaves.push(TreeLeaf { name, tracked: leaf.tracked, found: leaf.found });
                }
            }
        }
        let leaves = IndexRange { start: first, len: self.leaves.len() - first };
        self.directories.push(TreeDirectory { path, end: 0, leaves, digest: None, scan_state: part.scan_state });
    }

    fn push_name(&mut self, name: &[u8]) -> IndexRange {
        let at = self.names.len();
        self.names.extend_from_slice(name);
        IndexRange { start: at, len: name.len() }
    }

    fn set_subtree_ends(&mut self) {
        let mut open: Vec<usize> = Vec::new();
        for at in 0..self.directories.len() {
            while let Some(last) = open.pop_if(|last| !self.is_at_or_below(at, *last)) {
                self.directories[last].end = at;
            }
            open.push(at);
        }
        for at in open {
            self.directories[at].end = self.directories.len();
        }
    }

    fn is_at_or_below(&self, at: usize, outer: usize) -> bool {
        outer == 0 || paths::is_below(self.directory_path(at), self.directory_path(outer))
    }

    /// Computes the digest of every directory. The digest of a directory that was kept with all its descendants is
    /// copied.
    fn set_digests(&mut self, kept: &[Option<(&Self, usize)>]) {
        let mut is_same = vec![false; kept.len()];
        for at in (0..kept.len()).rev() {
            let known = kept[at].filter(|(of, was)| {
                let children = |entries: &Self, at: usize| -> Vec<usize> {
                    entries.children(at).map(|child| child - at).collect()
                };
                children(self, at) == children(of, *was)
                    && self
                        .children(at)
                        .all(|child| is_same[child] && kept[child].map(|(_, was)| was) == Some(was + child - at))
            });
            is_same[at] = known.is_some();
            self.directories[at].digest = match known {
                Some((of, was)) => of.directories[was].digest,
                None => self.directory_digest(at),
            };
        }
    }

    pub(super) fn directory_digest(&self, directory: usize) -> Option<[u8; 32]> {
        self.digest_with_leaves(directory, &self.leaves[self.leaf_range(directory)])
    }

    /// Computes the digest of a directory with these leaves from the known digests of its subdirectories.
    pub(super) fn digest_with_leaves(&self, directory: usize, leaves: &[TreeLeaf]) -> Option<[u8; 32]> {
        let mut lines: Vec<(&[u8], merkle::MerkleLeaf)> =
            leaves.iter().filter_map(|leaf| Some((self.name_bytes(leaf.name), leaf.merkle_leaf()?))).collect();
        lines.extend(self.children(directory).filter_map(|child| {
            let digest = self.directories[child].digest?;
            Some((paths::file_name(self.directory_path(child)), (merkle::DIRECTORY_TAG, digest)))
        }));
        Some(lines).filter(|lines| !lines.is_empty()).map(|mut lines| merkle::directory_digest(&mut lines))
    }
}

fn by_directory(leaves: impl IntoIterator<Item = (Vec<u8>, bool, ScannedEntry)>) -> HashMap<Vec<u8>, Vec<NewTreeLeaf>> {
    let mut by_directory: HashMap<Vec<u8>, Vec<NewTreeLeaf>> = HashMap::new();
    for (path, tracked, found) in leaves {
        let (directory, name) = paths::split(&path);
        let leaf = NewTreeLeaf { name: name.to_vec(), tracked, found };
        match by_directory.get_mut(directory) {
            Some(leaves) => leaves.push(leaf),
            None => drop(by_directory.insert(directory.to_vec(), vec![leaf])),
        }
    }
    by_directory
}

fn add_parent_directories(parts: &mut Vec<DirectoryPart<'_>>) {
    let known: BTreeSet<&[u8]> = parts.iter().map(|part| part.path.as_slice()).collect();
    let above = known.iter().flat_map(|path| paths::ancestors(path)).chain([&b""[..]]);
    let missing: BTreeSet<Vec<u8>> = above.filter(|path| !known.contains(path)).map(<[u8]>::to_vec).collect();
    let empty = |path| DirectoryPart {
        path,
        scan_state: DirectoryScanState::default(),
        leaves: DirectoryLeaves::New(Vec::new()),
    };
    parts.extend(missing.into_iter().map(empty));
}

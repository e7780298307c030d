//! Builds the entries of a tree from directories, some of which are taken unchanged from an earlier tree.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{Directory, DirectoryLook, Entries, Found, Kind, Leaf, Span, order};
use crate::merkle;
use crate::paths;

/// One directory of a tree to build.
pub(crate) struct Part<'a> {
    pub(crate) path: Vec<u8>,
    pub(crate) look: DirectoryLook,
    pub(crate) leaves: Leaves<'a>,
}

/// The leaves of a directory.
pub(crate) enum Leaves<'a> {
    /// The leaves of a directory in another tree.
    Kept { of: &'a Entries, at: usize },
    /// New leaves, in any order.
    New(Vec<NewLeaf>),
    /// Sorted names that git tracks; their entries are not known yet.
    Tracked(Vec<&'a [u8]>),
}

impl Leaves<'_> {
    /// Returns the maximum number of leaves.
    fn len(&self) -> usize {
        match self {
            Self::Kept { of, at } => of.leaves_of(*at).len(),
            Self::New(leaves) => leaves.len(),
            Self::Tracked(names) => names.len(),
        }
    }
}

/// One leaf of a tree to build.
#[derive(Debug, Clone)]
pub(crate) struct NewLeaf {
    pub(crate) name: Vec<u8>,
    pub(crate) tracked: bool,
    pub(crate) found: Found,
}

impl Entries {
    /// Builds a tree from directories. Missing parent directories are added.
    pub(crate) fn assemble(mut parts: Vec<Part<'_>>) -> Self {
        add_directories_above(&mut parts);
        parts.sort_by(|left, right| order(&left.path, &right.path));
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
                Leaves::Kept { of, at } => Some((of, at)),
                Leaves::New(_) | Leaves::Tracked(_) => None,
            })
            .collect();
        for part in parts {
            made.add(part);
        }
        made.find_ends();
        made.find_digests(&kept);
        made.covered = made.leaves.iter().filter(|leaf| leaf.merkle().is_some()).count();
        made
    }

    /// Builds a tree from tracked paths whose entries are not known yet. The paths are sorted and unique.
    pub(crate) fn of_tracked<'p>(paths: impl Iterator<Item = &'p [u8]>) -> Self {
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
        let part = |(path, names): (&[u8], _)| Part {
            path: path.to_vec(),
            look: DirectoryLook::default(),
            leaves: Leaves::Tracked(names),
        };
        Self::assemble(parts.into_iter().map(part).collect())
    }

    /// Builds a tree from leaves, each with its path.
    pub(crate) fn of_leaves(leaves: impl IntoIterator<Item = (Vec<u8>, bool, Found)>) -> Self {
        let part = |(path, leaves)| Part { path, look: DirectoryLook::default(), leaves: Leaves::New(leaves) };
        Self::assemble(by_directory(leaves).into_iter().map(part).collect())
    }

    /// Replaces the scan states of some directories, given by path, if nothing else has to change. Returns whether
    /// it did: it fails if a directory is unknown, or if a leaf has to be removed.
    pub(crate) fn take_looks(&mut self, looks: &[(&[u8], DirectoryLook)]) -> bool {
        let at: Option<Vec<usize>> = looks.iter().map(|(path, _)| self.find(path)).collect();
        let Some(at) = at.filter(|_| !(0..self.leaves.len()).any(|leaf| self.is_forgotten(leaf))) else { return false };
        for (at, (_, look)) in at.into_iter().zip(looks) {
            self.directories[at].look = *look;
        }
        true
    }

    /// Replaces the leaves at the given paths and adds new ones. A leaf that is [`Kind::Missing`] is removed.
    pub(crate) fn put(&mut self, found: Vec<(Vec<u8>, Found)>) {
        let place = |(path, found): &(Vec<u8>, Found)| {
            let (directory, name) = paths::split(path);
            let directory = self.find(directory)?;
            Some((directory, self.leaf_in(directory, name)?, *found)).filter(|_| found.kind != Kind::Missing)
        };
        // If all paths are known, only the leaves and the digests of their parent directories change.
        match found.iter().map(place).collect::<Option<Vec<_>>>() {
            Some(places) => self.take_over(&places, &[]),
            None => {
                let added = found.into_iter().map(|(path, found)| (path, false, found)).collect();
                *self = self.with(added, HashMap::new());
            }
        }
    }

    /// Returns a tree with additional leaves and new scan states of directories, given by path. Leaves that are
    /// missing and not tracked are removed.
    pub(crate) fn with(&self, added: Vec<(Vec<u8>, bool, Found)>, mut looks: HashMap<Vec<u8>, DirectoryLook>) -> Self {
        let mut added = by_directory(added);
        let mut parts = Vec::with_capacity(self.directories.len() + added.len());
        for at in 0..self.directories.len() {
            let path = self.directory_path(at);
            let look = looks.remove(path).unwrap_or(self.directories[at].look);
            let leaves = match added.remove(path) {
                None if !self.leaves_of(at).any(|leaf| self.is_forgotten(leaf)) => Leaves::Kept { of: self, at },
                more => Leaves::New(self.merged(at, more.unwrap_or_default())),
            };
            let is_empty = matches!(&leaves, Leaves::New(leaves) if leaves.is_empty())
                || matches!(leaves, Leaves::Kept { .. } if self.leaves_of(at).is_empty());
            if !is_empty || look != DirectoryLook::default() {
                parts.push(Part { path: path.to_vec(), look, leaves });
            }
        }
        for (path, leaves) in added {
            let look = looks.remove(&path).unwrap_or_default();
            parts.push(Part { path, look, leaves: Leaves::New(leaves) });
        }
        parts.extend(looks.into_iter().map(|(path, look)| Part { path, look, leaves: Leaves::New(Vec::new()) }));
        Self::assemble(parts)
    }

    /// Checks whether a leaf is both missing and untracked, so that it can be removed.
    fn is_forgotten(&self, leaf: usize) -> bool {
        let leaf = &self.leaves[leaf];
        leaf.found.kind == Kind::Missing && !leaf.tracked
    }

    /// Returns the leaves of a directory merged with new leaves. A new leaf replaces an old one of the same name.
    fn merged(&self, directory: usize, more: Vec<NewLeaf>) -> Vec<NewLeaf> {
        let kept = self.leaves_of(directory).filter(|leaf| !self.is_forgotten(*leaf));
        let kept = kept.map(|at| (self.name_of(at).to_vec(), (self.leaves[at].tracked, self.leaves[at].found)));
        let mut leaves: BTreeMap<Vec<u8>, (bool, Found)> = kept.collect();
        for leaf in more {
            let tracked = leaf.tracked || leaves.get(&leaf.name).is_some_and(|(tracked, _)| *tracked);
            leaves.insert(leaf.name, (tracked, leaf.found));
        }
        leaves.into_iter().map(|(name, (tracked, found))| NewLeaf { name, tracked, found }).collect()
    }

    /// Applies the results of a scan.
    pub(crate) fn take_over<'a>(
        &mut self,
        leaves: impl IntoIterator<Item = &'a (usize, usize, Found)>,
        directories: impl IntoIterator<Item = &'a (usize, DirectoryLook)>,
    ) {
        let mut dirty = vec![false; self.directories.len()];
        for (directory, leaf, found) in leaves {
            self.covered -= usize::from(self.leaves[*leaf].merkle().is_some());
            self.leaves[*leaf].found = *found;
            self.covered += usize::from(self.leaves[*leaf].merkle().is_some());
            dirty[*directory] = true;
        }
        for (directory, look) in directories {
            self.directories[*directory].look = *look;
        }
        for at in (0..dirty.len()).rev() {
            dirty[at] = dirty[at] || self.children(at).any(|child| dirty[child]);
            if dirty[at] {
                self.directories[at].digest = self.digest_of(at);
            }
        }
    }

    fn add(&mut self, part: Part<'_>) {
        let path = self.remember(&part.path);
        let first = self.leaves.len();
        match part.leaves {
            Leaves::Kept { of, at } => {
                for leaf in of.leaves_of(at) {
                    let name = self.remember(of.name_of(leaf));
                    self.leaves.push(Leaf { name, ..of.leaves[leaf].clone() });
                }
            }
            Leaves::Tracked(names) => {
                for name in names {
                    let name = self.remember(name);
                    self.leaves.push(Leaf { name, tracked: true, found: Found::MISSING });
                }
            }
            Leaves::New(mut leaves) => {
                leaves.sort_by(|left, right| left.name.cmp(&right.name));
                leaves.dedup_by(|later, kept| {
                    let is_same = later.name == kept.name;
                    if is_same {
                        *kept = NewLeaf { tracked: kept.tracked || later.tracked, ..later.clone() };
                    }
                    is_same
                });
                for leaf in leaves {
                    let name = self.remember(&leaf.name);
                    self.leaves.push(Leaf { name, tracked: leaf.tracked, found: leaf.found });
                }
            }
        }
        let leaves = Span { at: first, len: self.leaves.len() - first };
        self.directories.push(Directory { path, end: 0, leaves, digest: None, look: part.look });
    }

    fn remember(&mut self, name: &[u8]) -> Span {
        let at = self.names.len();
        self.names.extend_from_slice(name);
        Span { at, len: name.len() }
    }

    fn find_ends(&mut self) {
        let mut open: Vec<usize> = Vec::new();
        for at in 0..self.directories.len() {
            while let Some(last) = open.pop_if(|last| !self.lies_in(at, *last)) {
                self.directories[last].end = at;
            }
            open.push(at);
        }
        for at in open {
            self.directories[at].end = self.directories.len();
        }
    }

    fn lies_in(&self, at: usize, outer: usize) -> bool {
        outer == 0 || paths::is_below(self.directory_path(at), self.directory_path(outer))
    }

    /// Computes the digest of every directory. The digest of a directory that was kept with all its descendants is
    /// copied.
    fn find_digests(&mut self, kept: &[Option<(&Self, usize)>]) {
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
                None => self.digest_of(at),
            };
        }
    }

    pub(super) fn digest_of(&self, directory: usize) -> Option<[u8; 32]> {
        self.digest_over(directory, &self.leaves[self.leaves_of(directory)])
    }

    /// Computes the digest of a directory with these leaves from the known digests of its subdirectories.
    pub(super) fn digest_over(&self, directory: usize, leaves: &[Leaf]) -> Option<[u8; 32]> {
        let mut lines: Vec<(&[u8], merkle::Leaf)> =
            leaves.iter().filter_map(|leaf| Some((self.text(leaf.name), leaf.merkle()?))).collect();
        lines.extend(self.children(directory).filter_map(|child| {
            let digest = self.directories[child].digest?;
            Some((paths::name(self.directory_path(child)), (merkle::DIRECTORY, digest)))
        }));
        Some(lines).filter(|lines| !lines.is_empty()).map(|mut lines| merkle::directory_digest(&mut lines))
    }
}

fn by_directory(leaves: impl IntoIterator<Item = (Vec<u8>, bool, Found)>) -> HashMap<Vec<u8>, Vec<NewLeaf>> {
    let mut by_directory: HashMap<Vec<u8>, Vec<NewLeaf>> = HashMap::new();
    for (path, tracked, found) in leaves {
        let (directory, name) = paths::split(&path);
        let leaf = NewLeaf { name: name.to_vec(), tracked, found };
        match by_directory.get_mut(directory) {
            Some(leaves) => leaves.push(leaf),
            None => drop(by_directory.insert(directory.to_vec(), vec![leaf])),
        }
    }
    by_directory
}

fn add_directories_above(parts: &mut Vec<Part<'_>>) {
    let known: BTreeSet<&[u8]> = parts.iter().map(|part| part.path.as_slice()).collect();
    let above = known.iter().flat_map(|path| paths::ancestors(path)).chain([&b""[..]]);
    let missing: BTreeSet<Vec<u8>> = above.filter(|path| !known.contains(path)).map(<[u8]>::to_vec).collect();
    let empty = |path| Part { path, look: DirectoryLook::default(), leaves: Leaves::New(Vec::new()) };
    parts.extend(missing.into_iter().map(empty));
}

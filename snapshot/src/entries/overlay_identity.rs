//! Computes the identity of a tree with changes applied on top. The cost depends on the number of changes, their
//! depth, and the size of the directories on their paths, but not on the size of the tree.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use proctor_core::text::digest::SnapshotId;

use super::{EntryTree, snapshot_id};
use crate::merkle;
use proctor_git::files::paths;

/// Changes to a tree.
pub(crate) struct Overlay<'a> {
    /// The new entry at each path; `None` if the path is no longer covered.
    pub(crate) leaves: BTreeMap<&'a [u8], Option<merkle::MerkleLeaf>>,
    /// Paths at and below which all entries of the underlying tree are removed.
    pub(crate) removed: &'a BTreeSet<Vec<u8>>,
}

impl EntryTree {
    /// Returns the identity of the tree with the changes applied.
    pub(crate) fn id_with_overlay(&self, overlay: &Overlay<'_>) -> SnapshotId {
        snapshot_id(self.digest_with_overlay(Some(0), b"", overlay))
    }

    fn digest_with_overlay(&self, base: Option<usize>, path: &[u8], overlay: &Overlay<'_>) -> Option<[u8; 32]> {
        let base = base.filter(|_| !overlay.removed.contains(path));
        if !overlay.has_changes_below(path) {
            return base.and_then(|at| self.directories[at].digest);
        }
        let mut names: BTreeMap<&[u8], merkle::MerkleLeaf> = base.map(|at| self.merkle_leaves(at)).unwrap_or_default();
        names.retain(|name, _| !overlay.removed.contains(&paths::join(path, name)));
        let mut children: BTreeMap<&[u8], Option<usize>> = base
            .into_iter()
            .flat_map(|at| self.children(at))
            .map(|child| (paths::file_name(self.directory_path(child)), Some(child)))
            .collect();
        for (name, change) in overlay.changes_in(path) {
            match change {
                OverlayChange::Leaf(Some(leaf)) => drop(names.insert(name, leaf)),
                OverlayChange::Leaf(None) => drop(names.remove(name)),
                OverlayChange::Below => drop(children.entry(name).or_insert(None)),
            }
        }
        let mut lines: Vec<(&[u8], merkle::MerkleLeaf)> = names.into_iter().collect();
        for (name, child) in children {
            let digest = self.digest_with_overlay(child, &paths::join(path, name), overlay);
            lines.extend(digest.map(|digest| (name, (merkle::DIRECTORY_TAG, digest))));
        }
        Some(lines).filter(|lines| !lines.is_empty()).map(|mut lines| merkle::directory_digest(&mut lines))
    }

    fn merkle_leaves(&self, directory: usize) -> BTreeMap<&[u8], merkle::MerkleLeaf> {
        let leaves = self.leaf_range(directory);
        leaves.filter_map(|at| Some((self.leaf_name(at), self.leaves[at].merkle_leaf()?))).collect()
    }
}

/// A change as seen from one directory.
enum OverlayChange {
    Leaf(Option<merkle::MerkleLeaf>),
    /// Something changes below a subdirectory of that name.
    Below,
}

impl<'a> Overlay<'a> {
    /// Checks whether anything changes below `directory`.
    fn has_changes_below(&self, directory: &[u8]) -> bool {
        if directory.is_empty() {
            return !self.leaves.is_empty() || !self.removed.is_empty();
        }
        let (from, to) = paths::range_below(directory);
        self.leaves.range::<[u8], _>((Bound::Included(&*from), Bound::Excluded(&*to))).next().is_some()
            || self.removed.range(from..to).next().is_some()
    }

    /// Returns the changes below `directory`, each with the name of the directory's child that it affects.
    fn changes_in<'b>(&'b self, directory: &[u8]) -> impl Iterator<Item = (&'a [u8], OverlayChange)> + use<'a, 'b> {
        let skip = if directory.is_empty() { 0 } else { directory.len() + 1 };
        let (from, to) = paths::range_below(directory);
        let (from, to) = (Bound::Included(&*from), Bound::Excluded(&*to));
        let range = match directory {
            b"" => self.leaves.range::<[u8], _>(..),
            _ => self.leaves.range::<[u8], _>((from, to)),
        };
        range.map(move |(path, leaf)| {
            let rest = &path[skip..];
            match rest.iter().position(|b| *b == b'/') {
                Some(end) => (&rest[..end], OverlayChange::Below),
                None => (rest, OverlayChange::Leaf(*leaf)),
            }
        })
    }
}

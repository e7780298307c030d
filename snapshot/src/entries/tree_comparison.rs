//! Compares two trees.

use std::collections::BTreeSet;

use super::{EntryTree, ScannedKind, TreeLeaf};
use proctor_git::files::paths;

/// The kind of difference to report.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TreeDifferenceKind {
    /// A different kind, exec bit or content.
    Identity,
    /// The same, and also files with a new `st_ctime` whose content is equal.
    IdentityOrChangeTime,
}

impl EntryTree {
    /// Returns the covered paths at which the two trees differ, sorted.
    pub(crate) fn difference(&self, other: &Self, what: TreeDifferenceKind) -> Vec<Vec<u8>> {
        let mut comparison = TreeComparison { left: self, right: other, kind: what, found: BTreeSet::new() };
        comparison.compare_directories(Some(0), Some(0), b"");
        comparison.found.into_iter().collect()
    }
}

struct TreeComparison<'a> {
    left: &'a EntryTree,
    right: &'a EntryTree,
    kind: TreeDifferenceKind,
    found: BTreeSet<Vec<u8>>,
}

impl TreeComparison<'_> {
    fn compare_directories(&mut self, left: Option<usize>, right: Option<usize>, path: &[u8]) {
        let (a, b) = (self.left, self.right);
        let digest = |entries: &EntryTree, at: Option<usize>| at.and_then(|at| entries.directories[at].digest);
        if self.kind == TreeDifferenceKind::Identity && digest(a, left) == digest(b, right) {
            return;
        }
        let leaves = |entries: &EntryTree, at: Option<usize>| at.map_or(0..0, |at| entries.leaf_range(at));
        let in_left = leaves(a, left).map(|at| (a.leaf_name(at), at));
        let in_right = leaves(b, right).map(|at| (b.leaf_name(at), at));
        for (name, left, right) in merge(in_left, in_right) {
            let differs = match (left.map(|at| &a.leaves[at]), right.map(|at| &b.leaves[at])) {
                (Some(left), Some(right)) => self.leaves_differ(left, right),
                (only, other) => only.or(other).is_some_and(|leaf| leaf.merkle_leaf().is_some()),
            };
            if differs {
                self.found.insert(paths::join(path, name));
            }
        }
        let children = |entries: &EntryTree, at: Option<usize>| -> Vec<usize> {
            at.map(|at| entries.children(at).collect()).unwrap_or_default()
        };
        let in_left = children(a, left).into_iter().map(|at| (a.directory_path(at), at));
        let in_right = children(b, right).into_iter().map(|at| (b.directory_path(at), at));
        for (path, left, right) in merge_by(in_left, in_right, crate::entries::compare_directory_paths) {
            self.compare_directories(left, right, path);
        }
    }

    fn leaves_differ(&self, left: &TreeLeaf, right: &TreeLeaf) -> bool {
        let dated = |leaf: &TreeLeaf| !matches!(leaf.found.kind, ScannedKind::Gitlink);
        let changed = left.found.stat.ctime != right.found.stat.ctime && dated(left) && left.merkle_leaf().is_some();
        left.merkle_leaf() != right.merkle_leaf() || (self.kind == TreeDifferenceKind::IdentityOrChangeTime && changed)
    }
}

/// Pairs the elements of two sorted lists by name.
fn merge<'a>(
    left: impl Iterator<Item = (&'a [u8], usize)>,
    right: impl Iterator<Item = (&'a [u8], usize)>,
) -> impl Iterator<Item = (&'a [u8], Option<usize>, Option<usize>)> {
    merge_by(left, right, <[u8]>::cmp)
}

fn merge_by<'a>(
    left: impl Iterator<Item = (&'a [u8], usize)>,
    right: impl Iterator<Item = (&'a [u8], usize)>,
    order: fn(&[u8], &[u8]) -> std::cmp::Ordering,
) -> impl Iterator<Item = (&'a [u8], Option<usize>, Option<usize>)> {
    let (mut left, mut right) = (left.peekable(), right.peekable());
    std::iter::from_fn(move || {
        let order = match (left.peek(), right.peek()) {
            (None, None) => return None,
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some((left, _)), Some((right, _))) => order(left, right),
        };
        let (left, right) = (left.next_if(|_| order.is_le()), right.next_if(|_| order.is_ge()));
        let name = left.or(right)?.0;
        Some((name, left.map(|(_, at)| at), right.map(|(_, at)| at)))
    })
}

//! Iterates over the covered paths in the order of their bytes.

use std::cmp::Ordering;

use proctor_core::model::drift::{Entry, EntryKind};

use super::EntryTree;
use proctor_git::files::paths;

/// Iterator over the covered leaves at and below a directory.
pub(super) struct CoveredLeaves<'a> {
    entries: &'a EntryTree,
    open: Vec<WalkPosition>,
}

/// Position in a directory: its next leaf and its next subdirectory.
struct WalkPosition {
    directory: usize,
    leaf: usize,
    child: usize,
}

impl EntryTree {
    pub(super) fn walk(&self, directory: usize) -> CoveredLeaves<'_> {
        CoveredLeaves { entries: self, open: vec![WalkPosition::new(self, directory)] }
    }

    /// Returns all covered paths with their kinds, and whether they are executable; sorted. This is cheaper than with
    /// their content.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = (Vec<u8>, EntryKind, bool)> {
        self.walk(0).filter_map(|(directory, leaf)| {
            let (kind, executable) = self.leaves[leaf].found.kind.described()?;
            Some((self.leaf_path(directory, leaf), kind, executable))
        })
    }

    pub(super) fn covered_from(&self, directory: usize) -> impl Iterator<Item = (Vec<u8>, Entry)> {
        self.walk(directory).filter_map(|(directory, leaf)| {
            let entry = self.leaves[leaf].entry()?;
            Some((self.leaf_path(directory, leaf), entry))
        })
    }
}

impl WalkPosition {
    fn new(entries: &EntryTree, directory: usize) -> Self {
        Self { directory, leaf: entries.leaf_range(directory).start, child: directory + 1 }
    }
}

impl Iterator for CoveredLeaves<'_> {
    type Item = (usize, usize);

    /// Returns the directory and the index of the next covered leaf.
    fn next(&mut self) -> Option<(usize, usize)> {
        loop {
            let entries = self.entries;
            let here = self.open.last_mut()?;
            let leaf = Some(here.leaf).filter(|leaf| *leaf < entries.leaf_range(here.directory).end);
            let child = Some(here.child).filter(|child| *child < entries.directories[here.directory].end);
            match (leaf, child) {
                (None, None) => {
                    self.open.pop();
                }
                (Some(leaf), child) if child.is_none_or(|child| entries.leaf_precedes_directory(leaf, child)) => {
                    here.leaf += 1;
                    if entries.leaves[leaf].found.kind.identity_tag().is_some() {
                        return Some((here.directory, leaf));
                    }
                }
                (_, Some(child)) => {
                    here.child = entries.directories[child].end;
                    self.open.push(WalkPosition::new(entries, child));
                }
                // A leaf without a sibling directory was handled above.
                (Some(_), None) => return None,
            }
        }
    }
}

impl EntryTree {
    /// Checks whether a leaf sorts before the descendants of a sibling directory.
    fn leaf_precedes_directory(&self, leaf: usize, child: usize) -> bool {
        let child = paths::file_name(self.directory_path(child)).iter().chain(b"/");
        self.leaf_name(leaf).iter().cmp(child) == Ordering::Less
    }
}

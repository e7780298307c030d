//! Iterates over the covered paths in the order of their bytes.

use std::cmp::Ordering;

use proctor_core::drift::Entry;

use super::Entries;
use crate::paths;

/// Iterator over the covered leaves at and below a directory.
pub(super) struct Walk<'a> {
    entries: &'a Entries,
    open: Vec<Position>,
}

/// Position in a directory: its next leaf and its next subdirectory.
struct Position {
    directory: usize,
    leaf: usize,
    child: usize,
}

impl Entries {
    pub(super) fn walk(&self, directory: usize) -> Walk<'_> {
        Walk { entries: self, open: vec![Position::at(self, directory)] }
    }

    pub(super) fn covered_from(&self, directory: usize) -> impl Iterator<Item = (Vec<u8>, Entry)> {
        self.walk(directory).filter_map(|(directory, leaf)| {
            let entry = self.leaves[leaf].entry()?;
            Some((self.path_of(directory, leaf), entry))
        })
    }
}

impl Position {
    fn at(entries: &Entries, directory: usize) -> Self {
        Self { directory, leaf: entries.leaves_of(directory).start, child: directory + 1 }
    }
}

impl Iterator for Walk<'_> {
    type Item = (usize, usize);

    /// Returns the directory and the index of the next covered leaf.
    fn next(&mut self) -> Option<(usize, usize)> {
        loop {
            let entries = self.entries;
            let here = self.open.last_mut()?;
            let leaf = Some(here.leaf).filter(|leaf| *leaf < entries.leaves_of(here.directory).end);
            let child = Some(here.child).filter(|child| *child < entries.directories[here.directory].end);
            match (leaf, child) {
                (None, None) => {
                    self.open.pop();
                }
                (Some(leaf), child) if child.is_none_or(|child| entries.leaf_is_first(leaf, child)) => {
                    here.leaf += 1;
                    if entries.leaves[leaf].found.kind.tag().is_some() {
                        return Some((here.directory, leaf));
                    }
                }
                (_, Some(child)) => {
                    here.child = entries.directories[child].end;
                    self.open.push(Position::at(entries, child));
                }
                // A leaf without a sibling directory was handled above.
                (Some(_), None) => return None,
            }
        }
    }
}

impl Entries {
    /// Checks whether a leaf sorts before the descendants of a sibling directory.
    fn leaf_is_first(&self, leaf: usize, child: usize) -> bool {
        let child = paths::name(self.directory_path(child)).iter().chain(b"/");
        self.name_of(leaf).iter().cmp(child) == Ordering::Less
    }
}

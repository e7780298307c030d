//! Stores lists of the trees that workers got, in `results/worker-trees/` of the state directory. They are only used to
//! name the first difference, so any of them may be missing.

use proctor_core::reuse::{MAX_LISTING_BYTES, TreeListing};
use proctor_core::text::digest::Sha256Hex;

use super::StepResults;
use crate::store::StoreError;

/// Directory of the lists, in that of the results.
const TREES_DIR: &str = "worker-trees";
/// Maximum number of lists. Those that were used least recently are removed.
const MAX_TREES: usize = 32;

impl StepResults {
    /// Stores the list of a tree, unless it is stored.
    ///
    /// # Errors
    /// A system call fails.
    pub(crate) fn keep_tree(&self, tree: &Sha256Hex, list: impl FnOnce() -> TreeListing) -> Result<(), StoreError> {
        let (directory, _) = self.root.ensure_unsynced(TREES_DIR, 0o700)?;
        if directory.modified_at(&tree.to_string())?.is_some() {
            return directory.touch(&tree.to_string());
        }
        directory.write_unsynced(&tree.to_string(), &list().encode())?;
        let mut found = Vec::new();
        for name in directory.names()? {
            // Another process may have removed the file.
            if let Some(written) = directory.modified_at(&name)? {
                found.push((written, name));
            }
        }
        found.sort();
        let excess = found.len().saturating_sub(MAX_TREES);
        found.into_iter().take(excess).try_for_each(|(_, name)| directory.remove(&name))
    }

    /// Returns the list of a tree, if it is stored.
    pub(crate) fn tree(&self, tree: &Sha256Hex) -> Option<TreeListing> {
        let bytes =
            self.root.descend(TREES_DIR).and_then(|trees| trees.read(&tree.to_string(), MAX_LISTING_BYTES as u64));
        TreeListing::decode(&bytes.ok().flatten()?)
    }
}

#[cfg(test)]
mod tests {
    use proctor_core::reuse::TreeEntry;

    use super::*;
    use crate::store::directory::Directory;

    #[test]
    fn keeps_the_last_trees() {
        let state = tempfile::tempdir().expect("temp");
        let results = StepResults::open(&Directory::open(state.path()).expect("opens"), u64::MAX).expect("opens");
        let digest = |number: usize| Sha256Hex::digest(number.to_string().as_bytes());
        let list = |number: usize| {
            let path = number.to_string();
            TreeListing::new([TreeEntry { path, sha256: digest(number), is_directory: false }])
        };
        for number in 0..=MAX_TREES {
            results.keep_tree(&digest(number), || list(number)).expect("stored");
        }
        results.keep_tree(&digest(MAX_TREES), || panic!("it is stored")).expect("stored");
        let stored = (0..=MAX_TREES).filter(|number| results.tree(&digest(*number)) == Some(list(*number))).count();
        assert_eq!(stored, MAX_TREES);
        assert!(results.tree(&digest(MAX_TREES)).is_some() && results.tree(&digest(MAX_TREES + 1)).is_none());
    }
}

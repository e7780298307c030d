//! Collects the paths that a command looked for and that a view withheld from it.

use std::collections::{BTreeSet, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use serde::{Deserialize, Serialize};

use crate::text::escape::escape_output;

/// Maximum number of withheld paths that are listed. Further ones are only counted.
pub const MAX_LISTED_PATHS: usize = 50;
/// Maximum length of a listed path, in bytes. Longer ones are only counted.
const MAX_LISTED_BYTES: usize = 512;
/// Maximum number of withheld paths that are counted.
const MAX_COUNTED_PATHS: usize = 100_000;

/// The paths that exist, that a command looked for, and that a view withheld from it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WithheldPaths {
    /// The first paths in the order of their bytes, with control characters escaped.
    pub listed: Vec<String>,
    /// The number of paths, including those that are not listed; at most 100,000.
    pub count: u64,
}

/// Collects withheld paths, with bounded memory. The result does not depend on the order of the accesses.
#[derive(Debug, Default)]
pub struct WithheldCollector {
    listed: BTreeSet<Vec<u8>>,
    /// Hashes of all paths.
    seen: HashSet<u64>,
}

impl WithheldCollector {
    /// Adds a path.
    pub fn add(&mut self, path: &[u8]) {
        let mut hasher = DefaultHasher::new();
        path.hash(&mut hasher);
        if self.seen.len() < MAX_COUNTED_PATHS {
            self.seen.insert(hasher.finish());
        }
        if path.len() <= MAX_LISTED_BYTES {
            self.listed.insert(path.to_vec());
        }
        if self.listed.len() > MAX_LISTED_PATHS {
            self.listed.pop_last();
        }
    }

    /// Returns the paths so far.
    pub fn paths(&self) -> WithheldPaths {
        WithheldPaths {
            listed: self.listed.iter().map(|path| escape_output(path)).collect(),
            count: self.seen.len() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_the_first_paths_and_counts_all() {
        let mut collector = WithheldCollector::default();
        let names: Vec<String> = (0..200).map(|number| format!("f{number:03}")).collect();
        names.iter().rev().chain(&names).for_each(|name| collector.add(name.as_bytes()));
        assert_eq!(collector.paths(), WithheldPaths { listed: names[..MAX_LISTED_PATHS].to_vec(), count: 200 });
    }

    #[test]
    fn counts_a_path_that_is_too_long_to_list() {
        let mut collector = WithheldCollector::default();
        collector.add(&[b'x'; MAX_LISTED_BYTES + 1]);
        collector.add(b"a\x1b");
        assert_eq!(collector.paths(), WithheldPaths { listed: vec!["a\\x1b".to_owned()], count: 2 });
    }

    #[test]
    fn memory_is_bounded() {
        let mut collector = WithheldCollector::default();
        (0..=MAX_COUNTED_PATHS).for_each(|number| collector.add(&number.to_le_bytes()));
        assert_eq!(collector.paths().count, MAX_COUNTED_PATHS as u64);
    }
}

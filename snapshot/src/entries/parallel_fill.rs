//! Fills in a tree of which only the names are known, with several threads. Each thread has exclusive access to
//! some leaves of one directory, and writes the results in place. The caller does the scanning.

use super::{DirectoryScanState, EntryTree, ScannedEntry, TreeLeaf};

/// Maximum number of leaves of one directory that a thread takes at a time.
pub(crate) const LEAVES_PER_PART: usize = 512;

/// Iterator over the parts of a tree that need to be filled in, each returned once.
pub(crate) struct UnfilledParts<'a> {
    /// The tree without its leaves.
    names: &'a EntryTree,
    directory: usize,
    /// Number of the directory's leaves that were already handed out.
    taken: usize,
    rest: &'a mut [TreeLeaf],
}

/// Some leaves of one directory; empty if the directory has no leaves.
pub(crate) struct UnfilledPart<'a> {
    pub(crate) directory: usize,
    names: &'a EntryTree,
    leaves: &'a mut [TreeLeaf],
    is_first: bool,
    is_last: bool,
}

/// The result for a directory, or for a part of its leaves.
pub(crate) struct FilledPart {
    directory: usize,
    /// Number of leaves that are covered.
    covered: usize,
    /// True in exactly one part of each directory.
    scan_state: Option<DirectoryScanState>,
    /// Set if this part alone determines the digest of the directory.
    digest: Option<Option<[u8; 32]>>,
}

impl EntryTree {
    /// Calls `fill` to determine the entry of each leaf, then recomputes the digests of all directories. The tree
    /// that `fill` receives has directories but no leaves.
    ///
    /// # Errors
    /// The errors of `fill`.
    pub(crate) fn fill<E>(
        &mut self,
        fill: impl FnOnce(&Self, UnfilledParts<'_>) -> Result<Vec<FilledPart>, E>,
    ) -> Result<(), E> {
        let mut leaves = std::mem::take(&mut self.leaves);
        let filled = fill(self, UnfilledParts { names: self, directory: 0, taken: 0, rest: &mut leaves });
        self.leaves = leaves;
        self.apply_filled_parts(filled?);
        Ok(())
    }

    fn apply_filled_parts(&mut self, filled: Vec<FilledPart>) {
        let mut has_digest = vec![false; self.directories.len()];
        self.covered = filled.iter().map(|filled| filled.covered).sum();
        for FilledPart { directory, scan_state: look, digest, .. } in filled {
            let at = &mut self.directories[directory];
            at.scan_state = look.unwrap_or(at.scan_state);
            if let Some(digest) = digest {
                (at.digest, has_digest[directory]) = (digest, true);
            }
        }
        for at in (0..has_digest.len()).rev().filter(|at| !has_digest[*at]) {
            self.directories[at].digest = self.directory_digest(at);
        }
    }
}

impl UnfilledParts<'_> {
    /// Returns the approximate number of parts.
    pub(crate) fn estimated_count(&self) -> usize {
        self.names.directories.len() + self.rest.len() / LEAVES_PER_PART
    }
}

impl<'a> Iterator for UnfilledParts<'a> {
    type Item = UnfilledPart<'a>;

    fn next(&mut self) -> Option<UnfilledPart<'a>> {
        let (directory, first) = (self.directory, self.taken);
        let all = self.names.directories.get(directory)?.leaves.len;
        let end = all.min(first + LEAVES_PER_PART);
        let (leaves, rest) = std::mem::take(&mut self.rest).split_at_mut(end - first);
        self.rest = rest;
        (self.directory, self.taken) = if end == all { (directory + 1, 0) } else { (directory, end) };
        Some(UnfilledPart { directory, names: self.names, leaves, is_first: first == 0, is_last: end == all })
    }
}

impl UnfilledPart<'_> {
    /// Returns the names of the leaves, with mutable access to their entries.
    pub(crate) fn leaves(&mut self) -> impl Iterator<Item = (&[u8], &mut ScannedEntry)> {
        let names = self.names;
        self.leaves.iter_mut().map(move |leaf| (names.name_bytes(leaf.name), &mut leaf.found))
    }

    /// Returns the result for this part, given the state of its directory.
    pub(crate) fn finish(self, scan_state: DirectoryScanState) -> FilledPart {
        let (names, directory) = (self.names, self.directory);
        let is_all = self.is_first && self.is_last && names.children(directory).next().is_none();
        FilledPart {
            directory,
            covered: self.leaves.iter().filter(|leaf| leaf.merkle_leaf().is_some()).count(),
            scan_state: self.is_first.then_some(scan_state),
            digest: is_all.then(|| names.digest_with_leaves(directory, self.leaves)),
        }
    }
}

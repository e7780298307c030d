//! Fills in a tree of which only the names are known, with several threads. Each thread has exclusive access to
//! some leaves of one directory, and writes the results in place. The caller does the scanning.

use super::{DirectoryLook, Entries, Found, Leaf};

/// Maximum number of leaves of one directory that a thread takes at a time.
pub(crate) const PIECE: usize = 512;

/// Iterator over the parts of a tree that need to be filled in, each returned once.
pub(crate) struct Blanks<'a> {
    /// The tree without its leaves.
    names: &'a Entries,
    directory: usize,
    /// Number of the directory's leaves that were already handed out.
    given: usize,
    rest: &'a mut [Leaf],
}

/// Some leaves of one directory; empty if the directory has no leaves.
pub(crate) struct Blank<'a> {
    pub(crate) directory: usize,
    names: &'a Entries,
    leaves: &'a mut [Leaf],
    is_first: bool,
    is_last: bool,
}

/// The result for a directory, or for a part of its leaves.
pub(crate) struct Filled {
    directory: usize,
    /// Number of these leaves that are covered.
    covered: usize,
    /// Set in exactly one part of each directory.
    look: Option<DirectoryLook>,
    /// Set if this part alone determines the digest of the directory.
    digest: Option<Option<[u8; 32]>>,
}

impl Entries {
    /// Calls `fill` to determine the entry of each leaf, then recomputes the digests of all directories. The tree
    /// that `fill` receives has directories but no leaves.
    ///
    /// # Errors
    /// The errors of `fill`.
    pub(crate) fn fill<E>(&mut self, fill: impl FnOnce(&Self, Blanks<'_>) -> Result<Vec<Filled>, E>) -> Result<(), E> {
        let mut leaves = std::mem::take(&mut self.leaves);
        let filled = fill(self, Blanks { names: self, directory: 0, given: 0, rest: &mut leaves });
        self.leaves = leaves;
        self.take_filled(filled?);
        Ok(())
    }

    fn take_filled(&mut self, filled: Vec<Filled>) {
        let mut has_digest = vec![false; self.directories.len()];
        self.covered = filled.iter().map(|filled| filled.covered).sum();
        for Filled { directory, look, digest, .. } in filled {
            let at = &mut self.directories[directory];
            at.look = look.unwrap_or(at.look);
            if let Some(digest) = digest {
                (at.digest, has_digest[directory]) = (digest, true);
            }
        }
        for at in (0..has_digest.len()).rev().filter(|at| !has_digest[*at]) {
            self.directories[at].digest = self.digest_of(at);
        }
    }
}

impl Blanks<'_> {
    /// Returns the approximate number of parts.
    pub(crate) fn about(&self) -> usize {
        self.names.directories.len() + self.rest.len() / PIECE
    }
}

impl<'a> Iterator for Blanks<'a> {
    type Item = Blank<'a>;

    fn next(&mut self) -> Option<Blank<'a>> {
        let (directory, first) = (self.directory, self.given);
        let all = self.names.directories.get(directory)?.leaves.len;
        let end = all.min(first + PIECE);
        let (leaves, rest) = std::mem::take(&mut self.rest).split_at_mut(end - first);
        self.rest = rest;
        (self.directory, self.given) = if end == all { (directory + 1, 0) } else { (directory, end) };
        Some(Blank { directory, names: self.names, leaves, is_first: first == 0, is_last: end == all })
    }
}

impl Blank<'_> {
    /// Returns the names of the leaves, with mutable access to their entries.
    pub(crate) fn leaves(&mut self) -> impl Iterator<Item = (&[u8], &mut Found)> {
        let names = self.names;
        self.leaves.iter_mut().map(move |leaf| (names.text(leaf.name), &mut leaf.found))
    }

    /// Returns the result for this part, given the state of its directory.
    pub(crate) fn filled(self, look: DirectoryLook) -> Filled {
        let (names, directory) = (self.names, self.directory);
        let is_all = self.is_first && self.is_last && names.children(directory).next().is_none();
        Filled {
            directory,
            covered: self.leaves.iter().filter(|leaf| leaf.merkle().is_some()).count(),
            look: self.is_first.then_some(look),
            digest: is_all.then(|| names.digest_over(directory, self.leaves)),
        }
    }
}

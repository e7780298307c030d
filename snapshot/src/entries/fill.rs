//! Filling in a tree of which nothing is known but its names, by several threads at once: each has the leaves of one
//! directory to itself, where they stay. How they are looked at is decided elsewhere.

use super::{DirectoryLook, Entries, Found, Leaf};

/// How many leaves of one directory a thread takes at a time.
pub(crate) const PIECE: usize = 512;

/// The parts of a tree that are to be filled in, each once.
pub(crate) struct Blanks<'a> {
    /// The tree without its leaves.
    names: &'a Entries,
    directory: usize,
    /// How many leaves of the directory are given out.
    given: usize,
    rest: &'a mut [Leaf],
}

/// Leaves of one directory; none where nothing stands right in it.
pub(crate) struct Blank<'a> {
    pub(crate) directory: usize,
    names: &'a Entries,
    leaves: &'a mut [Leaf],
    is_first: bool,
    is_last: bool,
}

/// What is known of a directory after its leaves, or a part of them, were filled in.
pub(crate) struct Filled {
    directory: usize,
    /// How many of the leaves are covered.
    covered: usize,
    /// Said once for each directory.
    look: Option<DirectoryLook>,
    /// Said where no other part of the directory has a share in it.
    digest: Option<Option<[u8; 32]>>,
}

impl Entries {
    /// Has `fill` find out what stands at each leaf, and finds the digests of all directories anew. Meanwhile the tree
    /// has directories and no leaves.
    ///
    /// # Errors
    /// Those of `fill`.
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
    /// How many there are, about.
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
    /// The names of the leaves, and what is known to stand there.
    pub(crate) fn leaves(&mut self) -> impl Iterator<Item = (&[u8], &mut Found)> {
        let names = self.names;
        self.leaves.iter_mut().map(move |leaf| (names.text(leaf.name), &mut leaf.found))
    }

    /// What is known now, where the directory was found to be like this.
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

//! What stands at the covered paths of a tree, in a form that stays small and is searched, walked and
//! hashed by directory. It holds beside it what the next look needs: stat data, and which paths git
//! tracks that are not there. What is covered is decided elsewhere.

mod assemble;
mod compare;
mod encoding;
mod fill;
mod overlay;
mod walk;

use std::cmp::Ordering;
use std::fmt;
use std::ops::Range;

use proctor_core::digest::{Sha256Hex, SnapshotId};
use proctor_core::drift::{Entry, EntryKind};

use crate::merkle;
use crate::paths;
use crate::stamp::Stamp;

pub(crate) use compare::Difference;
pub(crate) use encoding::KINDS;
pub(crate) use fill::{Blank, Blanks, Filled, PIECE};
pub(crate) use overlay::Overlay;

/// What stands at the covered paths of a tree, sorted by the bytes of their paths.
#[derive(Clone)]
pub struct Entries {
    /// Paths of directories and names of leaves, one after the other.
    names: Vec<u8>,
    /// Each followed by those below it; the first is the top, which is always there.
    directories: Vec<Directory>,
    /// Grouped by directory in the same order, sorted by name in each.
    leaves: Vec<Leaf>,
    /// How many leaves are covered.
    covered: usize,
}

/// Where a name stands in `names`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    at: usize,
    len: usize,
}

/// A directory that holds something covered or that was looked into.
#[derive(Debug, Clone)]
pub(crate) struct Directory {
    path: Span,
    /// Behind the last directory below it.
    end: usize,
    leaves: Span,
    /// Nothing where nothing covered stands in it.
    digest: Option<[u8; 32]>,
    pub(crate) look: DirectoryLook,
}

/// How a directory was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct DirectoryLook {
    /// All zero where no directory stood there.
    pub(crate) stamp: Stamp,
    /// Its names may differ although its stamp does not.
    pub(crate) racy: bool,
    pub(crate) state: State,
}

/// What the ignore rules say of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum State {
    /// They were not asked: no directory stood there.
    #[default]
    Unasked,
    /// It is not ignored, and what is in it was looked for.
    Walked,
    /// It is ignored; what is tracked in it counts all the same.
    Ignored,
}

/// One name in a directory that is no directory, or a repository.
#[derive(Debug, Clone)]
pub(crate) struct Leaf {
    name: Span,
    /// Whether git tracks it: it is then remembered while it is not there.
    pub(crate) tracked: bool,
    pub(crate) found: Found,
}

/// What stands at a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) kind: Kind,
    /// Its content may differ although its stamp does not.
    pub(crate) racy: bool,
    pub(crate) sha256: [u8; 32],
    pub(crate) stamp: Stamp,
}

impl Found {
    /// A path at which nothing of the tree stands.
    pub(crate) const MISSING: Self = Self {
        kind: Kind::Missing,
        racy: false,
        sha256: [0; 32],
        stamp: Stamp { dev: 0, ino: 0, size: 0, mtime: (0, 0), ctime: (0, 0), mode: 0 },
    };
}

/// What kind of thing stands at a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Executable,
    Symlink,
    Gitlink,
    Special,
    /// An empty directory, which only ignored files count.
    EmptyDirectory,
    /// Nothing of the tree.
    Missing,
    /// A `.gitignore` that the tree does not cover, but that has a say in what it covers.
    Rules,
}

impl Kind {
    /// The tag in the identity; none where it is not covered.
    fn tag(self) -> Option<u8> {
        match self {
            Self::File => Some(b'f'),
            Self::Executable => Some(b'x'),
            Self::Symlink => Some(b'l'),
            Self::Gitlink => Some(b'g'),
            Self::Special => Some(b's'),
            Self::EmptyDirectory => Some(b'd'),
            Self::Missing | Self::Rules => None,
        }
    }

    fn entry_kind(self) -> Option<EntryKind> {
        match self {
            Self::File | Self::Executable => Some(EntryKind::File),
            Self::Symlink => Some(EntryKind::Symlink),
            Self::Gitlink => Some(EntryKind::Gitlink),
            Self::Special => Some(EntryKind::Special),
            Self::EmptyDirectory => Some(EntryKind::Directory),
            Self::Missing | Self::Rules => None,
        }
    }
}

impl Leaf {
    fn merkle(&self) -> Option<merkle::Leaf> {
        Some((self.found.kind.tag()?, self.found.sha256))
    }

    fn entry(&self) -> Option<Entry> {
        let kind = self.found.kind.entry_kind()?;
        let executable = self.found.kind == Kind::Executable;
        Some(Entry { kind, executable, sha256: Sha256Hex::from_raw(self.found.sha256) })
    }
}

/// Where paths that are looked up one after the other have come to.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Place {
    directory: usize,
    leaf: usize,
}

impl Entries {
    /// How many paths are covered.
    pub fn len(&self) -> usize {
        self.covered
    }

    /// Whether nothing is covered.
    pub fn is_empty(&self) -> bool {
        self.covered == 0
    }

    /// What stands at `path`; nothing where it is not covered. The cost grows with the logarithm of
    /// the number of paths.
    pub fn get(&self, path: &[u8]) -> Option<Entry> {
        self.leaf(path)?.entry()
    }

    /// Whether `path` is covered.
    pub fn contains(&self, path: &[u8]) -> bool {
        self.leaf(path).is_some_and(|leaf| leaf.found.kind.tag().is_some())
    }

    /// Whether something at `path` is covered, or would be if it were there, as far as is known
    /// without asking for rules: git tracks it.
    pub(crate) fn would_cover(&self, path: &[u8]) -> bool {
        self.leaf(path).is_some_and(|leaf| leaf.tracked || leaf.merkle().is_some())
    }

    /// All covered paths and what stands at them, sorted.
    pub fn iter(&self) -> impl Iterator<Item = (Vec<u8>, Entry)> {
        self.covered_from(0)
    }

    /// All covered paths, sorted.
    pub fn paths(&self) -> impl Iterator<Item = Vec<u8>> {
        self.walk(0).map(|(directory, leaf)| self.path_of(directory, leaf))
    }

    /// The covered paths below `directory`, sorted.
    pub fn below(&self, directory: &[u8]) -> impl Iterator<Item = (Vec<u8>, Entry)> {
        self.find(directory).into_iter().flat_map(|at| self.covered_from(at))
    }

    /// The identity: the root of the Merkle tree over all directories.
    pub(crate) fn id(&self) -> SnapshotId {
        id_of(self.directories[0].digest)
    }

    /// The leaf at a path, covered or not.
    pub(crate) fn leaf(&self, path: &[u8]) -> Option<&Leaf> {
        let (directory, name) = paths::split(path);
        self.leaf_in(self.find(directory)?, name).map(|at| &self.leaves[at])
    }

    /// The same for paths that are asked for in their order, more or less: `place` is where the last one was,
    /// and most are right behind it.
    pub(crate) fn leaf_behind(&self, place: &mut Place, path: &[u8]) -> Option<&Leaf> {
        let (directory, name) = paths::split(path);
        if self.directory_path(place.directory) != directory {
            *place = Place { directory: self.find(directory)?, ..*place };
        }
        let is_next = self.leaves_of(place.directory).contains(&place.leaf) && self.name_of(place.leaf) == name;
        let at = if is_next { place.leaf } else { self.leaf_in(place.directory, name)? };
        place.leaf = at + 1;
        Some(&self.leaves[at])
    }

    /// The covered paths that git does not track, repositories aside.
    pub(crate) fn untracked(&self) -> impl Iterator<Item = Vec<u8>> {
        let counts = |leaf: &Leaf| !leaf.tracked && leaf.found.kind != Kind::Gitlink;
        let found = self.walk(0).filter(move |(_, leaf)| counts(&self.leaves[*leaf]));
        found.map(|(directory, leaf)| self.path_of(directory, leaf))
    }

    /// Where the directory `path` is among the directories.
    pub(crate) fn find(&self, path: &[u8]) -> Option<usize> {
        self.directories.binary_search_by(|directory| order(self.text(directory.path), path)).ok()
    }

    /// Where the leaf `name` of a directory is among the leaves.
    pub(crate) fn leaf_in(&self, directory: usize, name: &[u8]) -> Option<usize> {
        let range = self.leaves_of(directory);
        let found = self.leaves[range.clone()].binary_search_by(|leaf| self.text(leaf.name).cmp(name));
        found.ok().map(|at| range.start + at)
    }

    /// How many directories there are.
    pub(crate) fn directories(&self) -> usize {
        self.directories.len()
    }

    /// One directory.
    pub(crate) fn directory(&self, at: usize) -> &Directory {
        &self.directories[at]
    }

    /// Returns whether a directory stands there that was looked into and in which nothing is covered.
    pub(crate) fn is_bare(&self, at: usize) -> bool {
        let Directory { digest, look, .. } = &self.directories[at];
        digest.is_none() && look.state == State::Walked && look.stamp != Stamp::default()
    }

    /// The path of a directory.
    pub(crate) fn directory_path(&self, at: usize) -> &[u8] {
        self.text(self.directories[at].path)
    }

    /// Which leaves stand in a directory.
    pub(crate) fn leaves_of(&self, directory: usize) -> Range<usize> {
        let Span { at, len } = self.directories[directory].leaves;
        at..at + len
    }

    /// Returns the number of covered paths, and the length of their files in bytes.
    pub fn size(&self) -> (usize, u64) {
        (self.covered, self.sum_of(0).1)
    }

    /// Returns the number of covered leaves below a directory, their length in bytes, and its digest.
    pub(crate) fn sum_of(&self, directory: usize) -> (u64, u64, Option<Sha256Hex>) {
        let end = self.directories[directory].end;
        let leaves = (directory..end).flat_map(|at| self.leaves_of(at)).map(|at| &self.leaves[at]);
        let covered = leaves.filter(|leaf| leaf.merkle().is_some());
        let (files, bytes) =
            covered.fold((0, 0_u64), |(files, bytes), leaf| (files + 1, bytes + leaf.found.stamp.size));
        (files, bytes, self.directories[directory].digest.map(Sha256Hex::from_raw))
    }

    /// Returns the number of leaves, covered or not.
    pub(crate) fn leaves(&self) -> usize {
        self.leaves.len()
    }

    /// Returns the directory that a leaf stands in.
    pub(crate) fn directory_of(&self, leaf: usize) -> usize {
        self.directories.partition_point(|directory| directory.leaves.at + directory.leaves.len <= leaf)
    }

    /// Returns the newest modification time of a leaf.
    pub(crate) fn newest_mtime(&self) -> crate::stamp::Moment {
        self.leaves.iter().map(|leaf| leaf.found.stamp.mtime).max().unwrap_or_default()
    }

    /// One leaf.
    pub(crate) fn leaf_at(&self, at: usize) -> &Leaf {
        &self.leaves[at]
    }

    /// The name of a leaf.
    pub(crate) fn name_of(&self, leaf: usize) -> &[u8] {
        self.text(self.leaves[leaf].name)
    }

    /// The path of a leaf of a directory.
    pub(crate) fn path_of(&self, directory: usize, leaf: usize) -> Vec<u8> {
        paths::join(self.directory_path(directory), self.name_of(leaf))
    }

    /// The directories right in a directory.
    pub(crate) fn children(&self, directory: usize) -> impl Iterator<Item = usize> {
        let end = self.directories[directory].end;
        let first = Some(directory + 1).filter(|first| *first < end);
        std::iter::successors(first, move |child| Some(self.directories[*child].end).filter(|next| *next < end))
    }

    fn text(&self, span: Span) -> &[u8] {
        &self.names[span.at..span.at + span.len]
    }
}

/// The identity of a tree whose top has this digest.
fn id_of(top: Option<[u8; 32]>) -> SnapshotId {
    SnapshotId::from_root(&Sha256Hex::from_raw(top.unwrap_or_else(|| merkle::directory_digest(&mut []))))
}

/// The order of directories: each is followed at once by those below it. It is that of their
/// paths with a `/` behind each.
fn order(left: &[u8], right: &[u8]) -> Ordering {
    let common = left.len().min(right.len());
    let next = |path: &[u8]| path.get(common).copied().unwrap_or(b'/');
    left[..common]
        .cmp(&right[..common])
        // The top has no name, and comes first.
        .then_with(|| if common == 0 { left.len().cmp(&right.len()) } else { next(left).cmp(&next(right)) })
        .then_with(|| left.len().cmp(&right.len()))
}

/// What is covered is equal; stat data do not count.
impl PartialEq for Entries {
    fn eq(&self, other: &Self) -> bool {
        self.directories[0].digest == other.directories[0].digest
    }
}

impl Eq for Entries {}

impl fmt::Debug for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.iter().map(|(path, entry)| (proctor_core::drift::display_path(&path), entry));
        f.debug_map().entries(shown).finish()
    }
}

#[cfg(test)]
mod tests;

//! Encodes entries for storage in a file. The file does not store the offset of a name; it follows from the lengths
//! of the names before it.

use super::{Directory, DirectoryLook, Entries, Found, Kind, Leaf, Span, State};
use crate::codec::{Reader, Writer};
use crate::git::bulk::{read_stamp, write_stamp};

/// The kinds, in the order of their numbers in files.
pub(crate) const KINDS: [Kind; 8] = [
    Kind::File,
    Kind::Executable,
    Kind::Symlink,
    Kind::Gitlink,
    Kind::Special,
    Kind::Missing,
    Kind::Rules,
    Kind::EmptyDirectory,
];
const STATES: [State; 3] = [State::Unasked, State::Walked, State::Ignored];

const RACY: u8 = 1;
const TRACKED: u8 = 2;
const HAS_DIGEST: u8 = 4;

/// Minimum encoded sizes of a directory and of a leaf, in bytes.
const DIRECTORY: usize = 4 + 8 + 8 + 1 + 1 + 52;
const LEAF: usize = 4 + 1 + 1 + 32 + 52;

/// Typical length of a name, in bytes, for the initial allocation.
const USUAL_NAME: usize = 24;

impl Entries {
    /// Writes the entries.
    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.count(self.directories.len());
        for directory in &self.directories {
            let flags = flag(directory.look.racy, RACY) | flag(directory.digest.is_some(), HAS_DIGEST);
            writer.short(self.text(directory.path));
            writer.count(directory.end);
            writer.count(directory.leaves.len);
            writer.u8(flags);
            writer.u8(place(&STATES, directory.look.state));
            write_stamp(writer, &directory.look.stamp);
            directory.digest.iter().for_each(|digest| writer.raw(digest));
        }
        writer.count(self.leaves.len());
        for leaf in &self.leaves {
            writer.short(self.text(leaf.name));
            writer.u8(flag(leaf.found.racy, RACY) | flag(leaf.tracked, TRACKED));
            writer.u8(place(&KINDS, leaf.found.kind));
            writer.raw(&leaf.found.sha256);
            write_stamp(writer, &leaf.found.stamp);
        }
    }

    /// Reads the entries. Returns `None` if the bytes do not encode a tree.
    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let mut read = Self { names: Vec::new(), directories: Vec::new(), leaves: Vec::new(), covered: 0 };
        let mut leaves = 0;
        let directories = reader.count(DIRECTORY)?;
        read.directories.reserve_exact(directories);
        for _ in 0..directories {
            let directory = read.read_directory(reader, &mut leaves)?;
            read.directories.push(directory);
        }
        let count = reader.count(LEAF)?;
        read.leaves.reserve_exact(count);
        read.names.reserve(count.saturating_mul(USUAL_NAME));
        for _ in 0..count {
            let leaf = read.read_leaf(reader)?;
            read.covered += usize::from(leaf.merkle().is_some());
            read.leaves.push(leaf);
        }
        (leaves == read.leaves.len() && read.is_a_tree()).then_some(read)
    }

    fn read_directory(&mut self, reader: &mut Reader<'_>, leaves: &mut usize) -> Option<Directory> {
        let path = self.read_name(reader)?;
        let (end, count) = (usize::try_from(reader.u64()?).ok()?, usize::try_from(reader.u64()?).ok()?);
        let (flags, state) = (reader.u8()?, *STATES.get(usize::from(reader.u8()?))?);
        let look = DirectoryLook { stamp: read_stamp(reader)?, racy: flags & RACY != 0, state };
        let digest = if flags & HAS_DIGEST != 0 { Some(reader.array()?) } else { None };
        let at = *leaves;
        *leaves = at.checked_add(count)?;
        Some(Directory { path, end, leaves: Span { at, len: count }, digest, look })
    }

    fn read_leaf(&mut self, reader: &mut Reader<'_>) -> Option<Leaf> {
        let name = self.read_name(reader)?;
        let (flags, kind) = (reader.u8()?, *KINDS.get(usize::from(reader.u8()?))?);
        let (sha256, stamp) = (reader.array()?, read_stamp(reader)?);
        let found = Found { kind, racy: flags & RACY != 0, sha256, stamp };
        Some(Leaf { name, tracked: flags & TRACKED != 0, found })
    }

    fn read_name(&mut self, reader: &mut Reader<'_>) -> Option<Span> {
        let name = reader.short()?;
        let at = self.names.len();
        self.names.extend_from_slice(name);
        Some(Span { at, len: name.len() })
    }

    /// Checks that there is a top directory, and that each directory ends after its own index and within its
    /// parent.
    fn is_a_tree(&self) -> bool {
        let mut ends = vec![self.directories.len()];
        let is_inside = |(at, directory): (usize, &Directory)| {
            while ends.pop_if(|end| *end <= at).is_some() {}
            let around = ends.last().copied().unwrap_or_default();
            ends.push(directory.end);
            directory.end > at && directory.end <= around
        };
        let top = self.directories.first().is_some_and(|top| top.path.len == 0 && top.end == self.directories.len());
        top && self.directories.iter().enumerate().all(is_inside)
    }
}

fn flag(is_set: bool, flag: u8) -> u8 {
    if is_set { flag } else { 0 }
}

/// Returns the index of a value in its list.
fn place<T: PartialEq + Copy>(all: &[T], value: T) -> u8 {
    let at = all.iter().position(|one| *one == value);
    at.and_then(|at| u8::try_from(at).ok()).unwrap_or(u8::MAX)
}

//! Encodes entries for storage in a file. The file does not store the offset of a name; it follows from the lengths
//! of the names before it.

use super::{
    DirectoryScanState, EntryTree, IgnoreStatus, IndexRange, ScannedEntry, ScannedKind, TreeDirectory, TreeLeaf,
};
use proctor_git::wire::codec::{BinaryDecoder, BinaryEncoder};
use proctor_git::wire::listing_encoding::{read_stat, write_stat};

/// The kinds, in the order of their numbers in files.
pub(crate) const KINDS: [ScannedKind; 8] = [
    ScannedKind::File,
    ScannedKind::Executable,
    ScannedKind::Symlink,
    ScannedKind::Gitlink,
    ScannedKind::Special,
    ScannedKind::Missing,
    ScannedKind::IgnoreRules,
    ScannedKind::EmptyDirectory,
];
const STATES: [IgnoreStatus; 3] = [IgnoreStatus::NotEvaluated, IgnoreStatus::Searched, IgnoreStatus::Ignored];

const RACY: u8 = 1;
const TRACKED: u8 = 2;
const HAS_DIGEST: u8 = 4;

/// Minimum encoded sizes of a directory and of a leaf, in bytes.
const MIN_DIRECTORY_BYTES: usize = 4 + 8 + 8 + 1 + 1 + 52;
const MIN_LEAF_BYTES: usize = 4 + 1 + 1 + 32 + 52;

/// Typical length of a name, in bytes, for the initial allocation.
const TYPICAL_NAME_BYTES: usize = 24;

impl EntryTree {
    /// Writes the entries.
    pub(crate) fn encode(&self, writer: &mut BinaryEncoder) {
        writer.count(self.directories.len());
        for directory in &self.directories {
            let flags = flag(directory.scan_state.racy, RACY) | flag(directory.digest.is_some(), HAS_DIGEST);
            writer.short_bytes(self.name_bytes(directory.path));
            writer.count(directory.end);
            writer.count(directory.leaves.len);
            writer.u8(flags);
            writer.u8(index_in(&STATES, directory.scan_state.ignore_status));
            write_stat(writer, &directory.scan_state.stat);
            directory.digest.iter().for_each(|digest| writer.raw(digest));
        }
        writer.count(self.leaves.len());
        for leaf in &self.leaves {
            writer.short_bytes(self.name_bytes(leaf.name));
            writer.u8(flag(leaf.found.racy, RACY) | flag(leaf.tracked, TRACKED));
            writer.u8(index_in(&KINDS, leaf.found.kind));
            writer.raw(&leaf.found.sha256);
            write_stat(writer, &leaf.found.stat);
        }
    }

    /// Reads the entries. Returns `None` if the bytes do not encode a tree.
    pub(crate) fn decode(reader: &mut BinaryDecoder<'_>) -> Option<Self> {
        let mut read = Self { names: Vec::new(), directories: Vec::new(), leaves: Vec::new(), covered: 0 };
        let mut leaves = 0;
        let directories = reader.count(MIN_DIRECTORY_BYTES)?;
        read.directories.reserve_exact(directories);
        for _ in 0..directories {
            let directory = read.decode_directory(reader, &mut leaves)?;
            read.directories.push(directory);
        }
        let count = reader.count(MIN_LEAF_BYTES)?;
        read.leaves.reserve_exact(count);
        read.names.reserve(count.saturating_mul(TYPICAL_NAME_BYTES));
        for _ in 0..count {
            let leaf = read.decode_leaf(reader)?;
            read.covered += usize::from(leaf.merkle_leaf().is_some());
            read.leaves.push(leaf);
        }
        (leaves == read.leaves.len() && read.has_valid_structure()).then_some(read)
    }

    fn decode_directory(&mut self, reader: &mut BinaryDecoder<'_>, leaves: &mut usize) -> Option<TreeDirectory> {
        let path = self.decode_name(reader)?;
        let (end, count) = (usize::try_from(reader.u64()?).ok()?, usize::try_from(reader.u64()?).ok()?);
        let (flags, state) = (reader.u8()?, *STATES.get(usize::from(reader.u8()?))?);
        let look = DirectoryScanState { stat: read_stat(reader)?, racy: flags & RACY != 0, ignore_status: state };
        let digest = if flags & HAS_DIGEST != 0 { Some(reader.array()?) } else { None };
        let at = *leaves;
        *leaves = at.checked_add(count)?;
        Some(TreeDirectory { path, end, leaves: IndexRange { start: at, len: count }, digest, scan_state: look })
    }

    fn decode_leaf(&mut self, reader: &mut BinaryDecoder<'_>) -> Option<TreeLeaf> {
        let name = self.decode_name(reader)?;
        let (flags, kind) = (reader.u8()?, *KINDS.get(usize::from(reader.u8()?))?);
        let (sha256, stamp) = (reader.array()?, read_stat(reader)?);
        let found = ScannedEntry { kind, racy: flags & RACY != 0, sha256, stat: stamp };
        Some(TreeLeaf { name, tracked: flags & TRACKED != 0, found })
    }

    fn decode_name(&mut self, reader: &mut BinaryDecoder<'_>) -> Option<IndexRange> {
        let name = reader.short_bytes()?;
        let at = self.names.len();
        self.names.extend_from_slice(name);
        Some(IndexRange { start: at, len: name.len() })
    }

    /// Checks that there is a top directory, and that each directory ends after its own index and within its
    /// parent.
    fn has_valid_structure(&self) -> bool {
        let mut ends = vec![self.directories.len()];
        let is_inside = |(at, directory): (usize, &TreeDirectory)| {
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
fn index_in<T: PartialEq + Copy>(all: &[T], value: T) -> u8 {
    let at = all.iter().position(|one| *one == value);
    at.and_then(|at| u8::try_from(at).ok()).unwrap_or(u8::MAX)
}

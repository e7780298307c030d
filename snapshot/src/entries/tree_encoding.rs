//! Encodes entries for storage in a file, and the changes of entries that keep the structure of the tree. Directories
//! and leaves have a fixed size, so that reading them is little more than copying them; all names follow them.

use super::{
    DirectoryScanState, EntryTree, IgnoreStatus, IndexRange, ScannedEntry, ScannedKind, TreeDirectory, TreeLeaf,
};
use proctor_git::wire::codec::{BinaryDecoder, BinaryEncoder};
use proctor_git::wire::listing_encoding::{STAT_BYTES, read_stat, write_stat};

/// The kinds, in the order of their numbers in files.
const KINDS: [ScannedKind; 8] = [
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

/// Encoded size of a digest, in bytes.
const DIGEST_BYTES: usize = 32;
/// Encoded sizes of a directory and of a leaf, in bytes.
const DIRECTORY_BYTES: usize = 4 + 8 + 8 + 1 + 1 + STAT_BYTES + DIGEST_BYTES;
const LEAF_BYTES: usize = 4 + FOUND_BYTES;
/// Encoded size of a scanned entry, in bytes.
const FOUND_BYTES: usize = 1 + 1 + DIGEST_BYTES + STAT_BYTES;

impl EntryTree {
    /// Writes the entries.
    pub(crate) fn encode(&self, writer: &mut BinaryEncoder) {
        let (directories, leaves) = (self.directories.len(), self.leaves.len());
        writer.reserve(directories * DIRECTORY_BYTES + leaves * LEAF_BYTES + self.names.len());
        writer.count(directories);
        writer.count(leaves);
        let mut names = Vec::with_capacity(self.names.len());
        for directory in &self.directories {
            let TreeDirectory { path, end, leaves, digest, scan_state } = directory;
            write_name(writer, &mut names, self.name_bytes(*path));
            writer.count(*end);
            writer.count(leaves.len);
            writer.u8(flag(scan_state.racy, RACY) | flag(digest.is_some(), HAS_DIGEST));
            writer.u8(index_in(&STATES, scan_state.ignore_status));
            write_stat(writer, &scan_state.stat);
            writer.raw(&digest.unwrap_or_default());
        }
        for leaf in &self.leaves {
            write_name(writer, &mut names, self.name_bytes(leaf.name));
            write_found(writer, &leaf.found, flag(leaf.tracked, TRACKED));
        }
        writer.bytes(&names);
    }

    /// Reads the entries. Returns `None` if the bytes do not encode a tree.
    pub(crate) fn decode(reader: &mut BinaryDecoder<'_>) -> Option<Self> {
        let (directories, leaves) = (usize::try_from(reader.u64()?).ok()?, usize::try_from(reader.u64()?).ok()?);
        let directories = reader.raw(directories.checked_mul(DIRECTORY_BYTES)?)?.as_chunks::<DIRECTORY_BYTES>().0;
        let leaves = reader.raw(leaves.checked_mul(LEAF_BYTES)?)?.as_chunks::<LEAF_BYTES>().0;
        let names = reader.bytes()?.to_vec();
        let (mut taken, mut first_leaf) = (0, 0);
        let mut read_directories = Vec::with_capacity(directories.len());
        for directory in directories {
            read_directories.push(decode_directory(directory, &mut taken, &mut first_leaf)?);
        }
        let (mut covered, mut read_leaves) = (0, Vec::with_capacity(leaves.len()));
        for leaf in leaves {
            let leaf = decode_leaf(leaf, &mut taken)?;
            covered += usize::from(leaf.found.kind.identity_tag().is_some());
            read_leaves.push(leaf);
        }
        let read = Self { names, directories: read_directories, leaves: read_leaves, covered };
        let is_complete = taken == read.names.len() && first_leaf == read.leaves.len();
        (is_complete && read.has_valid_structure()).then_some(read)
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

/// Changes of the entries of a tree that keep its names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TreeChanges {
    /// Directory, leaf, and the new entry.
    pub(crate) leaves: Vec<(usize, usize, ScannedEntry)>,
    pub(crate) directories: Vec<(usize, DirectoryScanState)>,
}

impl TreeChanges {
    /// Writes the changes. A directory and a leaf are named by their index.
    pub(crate) fn encode(&self, writer: &mut BinaryEncoder) {
        writer.count(self.leaves.len());
        for (_, leaf, found) in &self.leaves {
            writer.count(*leaf);
            write_found(writer, found, 0);
        }
        writer.count(self.directories.len());
        for (directory, DirectoryScanState { stat, racy, ignore_status }) in &self.directories {
            writer.count(*directory);
            writer.u8(flag(*racy, RACY));
            writer.u8(index_in(&STATES, *ignore_status));
            write_stat(writer, stat);
        }
    }

    /// Reads changes of `tree`. Returns `None` if the bytes do not encode changes of such a tree.
    pub(crate) fn decode(reader: &mut BinaryDecoder<'_>, tree: &EntryTree) -> Option<Self> {
        let leaf = |reader: &mut BinaryDecoder<'_>| {
            let leaf = usize::try_from(reader.u64()?).ok().filter(|leaf| *leaf < tree.leaves.len())?;
            Some((tree.parent_of_leaf(leaf), leaf, read_found(reader)?.0))
        };
        let count = reader.count(8 + FOUND_BYTES)?;
        let leaves = (0..count).map(|_| leaf(reader)).collect::<Option<_>>()?;
        let directory = |reader: &mut BinaryDecoder<'_>| {
            let directory = usize::try_from(reader.u64()?).ok().filter(|at| *at < tree.directories.len())?;
            let (flags, ignore_status) = (reader.u8()?, *STATES.get(usize::from(reader.u8()?))?);
            Some((directory, DirectoryScanState { stat: read_stat(reader)?, racy: flags & RACY != 0, ignore_status }))
        };
        let count = reader.count(8 + 1 + 1 + STAT_BYTES)?;
        let directories = (0..count).map(|_| directory(reader)).collect::<Option<_>>()?;
        Some(Self { leaves, directories })
    }
}

fn decode_directory(bytes: &[u8; DIRECTORY_BYTES], taken: &mut usize, first_leaf: &mut usize) -> Option<TreeDirectory> {
    let mut reader = BinaryDecoder::new(bytes);
    let path = read_name_range(&mut reader, taken)?;
    let (end, len) = (usize::try_from(reader.u64()?).ok()?, usize::try_from(reader.u64()?).ok()?);
    let (flags, ignore_status) = (reader.u8()?, *STATES.get(usize::from(reader.u8()?))?);
    let scan_state = DirectoryScanState { stat: read_stat(&mut reader)?, racy: flags & RACY != 0, ignore_status };
    let digest = Some(reader.array()?).filter(|_| flags & HAS_DIGEST != 0);
    let leaves = IndexRange { start: *first_leaf, len };
    *first_leaf = first_leaf.checked_add(len)?;
    Some(TreeDirectory { path, end, leaves, digest, scan_state })
}

fn decode_leaf(bytes: &[u8; LEAF_BYTES], taken: &mut usize) -> Option<TreeLeaf> {
    let mut reader = BinaryDecoder::new(bytes);
    let name = read_name_range(&mut reader, taken)?;
    let (found, flags) = read_found(&mut reader)?;
    Some(TreeLeaf { name, tracked: flags & TRACKED != 0, found })
}

/// Appends a name to all names, and writes its length.
fn write_name(writer: &mut BinaryEncoder, names: &mut Vec<u8>, name: &[u8]) {
    // No path is longer; the reader would reject a truncated length.
    writer.u32(u32::try_from(name.len()).unwrap_or(u32::MAX));
    names.extend_from_slice(name);
}

/// Reads the length of a name, which follows the names of `taken` bytes.
fn read_name_range(reader: &mut BinaryDecoder<'_>, taken: &mut usize) -> Option<IndexRange> {
    let (start, len) = (*taken, usize::try_from(reader.u32()?).ok()?);
    *taken = start.checked_add(len)?;
    Some(IndexRange { start, len })
}

/// Writes a scanned entry, with more flags.
pub(crate) fn write_found(writer: &mut BinaryEncoder, found: &ScannedEntry, flags: u8) {
    writer.u8(flag(found.racy, RACY) | flags);
    writer.u8(index_in(&KINDS, found.kind));
    writer.raw(&found.sha256);
    write_stat(writer, &found.stat);
}

/// Reads a scanned entry, and its flags.
pub(crate) fn read_found(reader: &mut BinaryDecoder<'_>) -> Option<(ScannedEntry, u8)> {
    let (flags, kind) = (reader.u8()?, *KINDS.get(usize::from(reader.u8()?))?);
    let (sha256, stat) = (reader.array()?, read_stat(reader)?);
    Some((ScannedEntry { kind, racy: flags & RACY != 0, sha256, stat }, flags))
}

fn flag(is_set: bool, flag: u8) -> u8 {
    if is_set { flag } else { 0 }
}

/// Returns the index of a value in its list.
fn index_in<T: PartialEq + Copy>(all: &[T], value: T) -> u8 {
    let at = all.iter().position(|one| *one == value);
    at.and_then(|at| u8::try_from(at).ok()).unwrap_or(u8::MAX)
}

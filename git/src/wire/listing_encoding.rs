//! Encodes the parts of a listing that are too large for JSON: paths, directories and the entries of indexes.

use std::sync::Arc;

use crate::files::file_stat::FileStat;
use crate::files::paths;
use crate::files::repo_path::RepoPath;
use crate::index::{GITLINK_MODE, GitIndex, IndexEntry, IndexStat};
use crate::object::object_id::ObjectId;
use crate::object::object_pack::ObjectPack;
use crate::protocol::{CommitObjects, CommitTree, CommittedLeaf, SearchedDirectory, WorktreeListing};
use crate::wire::codec::{BinaryDecoder, BinaryEncoder};

/// Writes paths.
pub fn write_paths<'a>(writer: &mut BinaryEncoder, paths: impl ExactSizeIterator<Item = &'a [u8]>) {
    writer.count(paths.len());
    paths.for_each(|path| writer.short_bytes(path));
}

/// Reads paths.
pub fn read_paths(reader: &mut BinaryDecoder<'_>) -> Option<Vec<RepoPath>> {
    let count = reader.count(4)?;
    (0..count).map(|_| reader.short_bytes().map(|path| RepoPath(path.to_vec()))).collect()
}

/// Writes a stamp.
#[inline]
pub fn write_stat(writer: &mut BinaryEncoder, stamp: &FileStat) {
    writer.u64(stamp.dev);
    writer.u64(stamp.ino);
    writer.u64(stamp.size);
    for (seconds, nanoseconds) in [stamp.mtime, stamp.ctime] {
        writer.i64(seconds);
        writer.u32(nanoseconds);
    }
    writer.u32(stamp.mode);
}

/// Reads a stamp.
#[inline]
pub fn read_stat(reader: &mut BinaryDecoder<'_>) -> Option<FileStat> {
    Some(FileStat {
        dev: reader.u64()?,
        ino: reader.u64()?,
        size: reader.u64()?,
        mtime: (reader.i64()?, reader.u32()?),
        ctime: (reader.i64()?, reader.u32()?),
        mode: reader.u32()?,
    })
}

/// Encoded size of a stamp, in bytes.
pub const STAT_BYTES: usize = 52;

impl WorktreeListing {
    /// Returns the paths of submodules in the indexes, relative to the outermost work tree.
    pub fn submodules(&self) -> Vec<RepoPath> {
        let gitlinks = |index: &Arc<GitIndex>| -> Vec<RepoPath> {
            let entries = index.entries.iter().filter(|entry| entry.mode == GITLINK_MODE);
            entries.map(|entry| RepoPath(paths::join(&index.at.0, &entry.path.0))).collect()
        };
        self.indexes.iter().flat_map(gitlinks).collect()
    }

    /// Writes the fields that the JSON omits.
    pub(crate) fn write_lists(&self, writer: &mut BinaryEncoder) {
        for paths in [&self.tracked, &self.untracked, &self.rules, &self.ignored] {
            write_paths(writer, paths.iter().map(|path| path.0.as_slice()));
        }
        writer.count(self.directories.len());
        for directory in &self.directories {
            writer.short_bytes(&directory.path.0);
            write_stat(writer, &directory.stat);
        }
        self.write_indexes(writer);
    }

    /// Reads the fields that the JSON omits.
    pub(crate) fn read_lists(&mut self, reader: &mut BinaryDecoder<'_>) -> Option<()> {
        self.tracked = read_paths(reader)?;
        self.untracked = read_paths(reader)?;
        self.rules = read_paths(reader)?;
        self.ignored = read_paths(reader)?;
        let count = reader.count(STAT_BYTES)?;
        let directory = |reader: &mut BinaryDecoder<'_>| {
            Some(SearchedDirectory { path: RepoPath(reader.short_bytes()?.to_vec()), stat: read_stat(reader)? })
        };
        self.directories = (0..count).map(|_| directory(reader)).collect::<Option<_>>()?;
        self.read_indexes(reader)
    }

    /// Writes the entries of the indexes.
    pub fn write_indexes(&self, writer: &mut BinaryEncoder) {
        self.indexes.iter().for_each(|index| write_index_entries(writer, &index.entries));
    }

    /// Reads the entries of the indexes.
    pub fn read_indexes(&mut self, reader: &mut BinaryDecoder<'_>) -> Option<()> {
        self.indexes.iter_mut().try_for_each(|index| {
            Arc::make_mut(index).entries = read_entries(reader)?;
            Some(())
        })
    }
}

impl CommitTree {
    /// Writes the fields that the JSON omits.
    pub(crate) fn write_leaves(&self, writer: &mut BinaryEncoder) {
        writer.count(self.leaves.len());
        for leaf in &self.leaves {
            writer.short_bytes(&leaf.path);
            writer.u32(leaf.mode);
            write_id(writer, leaf.id);
        }
    }

    /// Reads the fields that the JSON omits.
    pub(crate) fn read_leaves(&mut self, reader: &mut BinaryDecoder<'_>) -> Option<()> {
        let leaf = |reader: &mut BinaryDecoder<'_>| {
            let (path, mode) = (reader.short_bytes()?.to_vec(), reader.u32()?);
            Some(CommittedLeaf { path, mode, id: read_id(reader)? })
        };
        let count = reader.count(MIN_LEAF_BYTES)?;
        self.leaves = (0..count).map(|_| leaf(reader)).collect::<Option<_>>()?;
        Some(())
    }
}

impl CommitObjects {
    /// Writes the packs, which the JSON omits.
    pub(crate) fn write_packs(&self, writer: &mut BinaryEncoder) {
        writer.count(self.packs.len());
        for ObjectPack { checksum, pack, index } in &self.packs {
            write_id(writer, *checksum);
            writer.bytes(pack);
            writer.bytes(index);
        }
    }

    /// Reads the packs, which the JSON omits.
    pub(crate) fn read_packs(&mut self, reader: &mut BinaryDecoder<'_>) -> Option<()> {
        let pack = |reader: &mut BinaryDecoder<'_>| {
            let checksum = read_id(reader)?;
            Some(ObjectPack { checksum, pack: reader.bytes()?.to_vec(), index: reader.bytes()?.to_vec() })
        };
        let count = reader.count(MIN_PACK_BYTES)?;
        self.packs = (0..count).map(|_| pack(reader)).collect::<Option<_>>()?;
        Some(())
    }
}

/// Minimum encoded size of a pack with its index, in bytes.
const MIN_PACK_BYTES: usize = 1 + 20 + 8 + 8;

/// Minimum encoded size of a leaf in a commit's tree, in bytes.
const MIN_LEAF_BYTES: usize = 4 + 4 + 1 + 20;

/// Writes an object id.
pub fn write_id(writer: &mut BinaryEncoder, id: ObjectId) {
    let id = id.as_bytes();
    writer.u8(if id.len() == 32 { 32 } else { 20 });
    writer.raw(id);
}

/// Reads an object id.
pub fn read_id(reader: &mut BinaryDecoder<'_>) -> Option<ObjectId> {
    let width = reader.u8()?;
    ObjectId::from_raw(reader.raw(usize::from(width))?)
}

/// Minimum encoded size of an entry, in bytes.
const MIN_ENTRY_BYTES: usize = 4 + 4 + 3 + 20;
/// Bits in the flags of an entry; the two lowest bits are its stage.
const INTENT_TO_ADD: u8 = 1 << 2;
const SKIP_WORKTREE: u8 = 1 << 3;
const HAS_STAT: u8 = 1 << 4;
/// Encoded size of the stat data of an entry, in bytes.
const INDEX_STAT_BYTES: usize = 6 * 4;

fn write_entry(writer: &mut BinaryEncoder, entry: &IndexEntry) {
    let flag = |set: bool, flag: u8| if set { flag } else { 0 };
    writer.short_bytes(&entry.path.0);
    writer.u32(entry.mode);
    writer.u8((entry.stage & 3)
        | flag(entry.intent_to_add, INTENT_TO_ADD)
        | flag(entry.skip_worktree, SKIP_WORKTREE)
        | flag(entry.stat.is_some(), HAS_STAT));
    write_id(writer, entry.id);
    if let Some(stat) = &entry.stat {
        let fields: [u32; INDEX_STAT_BYTES / 4] =
            [stat.mtime.0, stat.mtime.1, stat.ctime.0, stat.ctime.1, stat.ino, stat.size];
        fields.into_iter().for_each(|field| writer.u32(field));
    }
}

/// Writes the entries of an index in two halves, each with its size.
fn write_index_entries(writer: &mut BinaryEncoder, entries: &[IndexEntry]) {
    writer.count(entries.len());
    let (first, second) = entries.split_at(entries.len() / 2);
    for part in [first, second] {
        let size = part.iter().map(encoded_size).sum();
        writer.reserve(size);
        writer.count(size);
        part.iter().for_each(|entry| write_entry(writer, entry));
    }
}

/// Returns the encoded size of an entry, in bytes.
fn encoded_size(entry: &IndexEntry) -> usize {
    let stat = if entry.stat.is_some() { INDEX_STAT_BYTES } else { 0 };
    4 + entry.path.0.len() + 4 + 1 + 1 + entry.id.as_bytes().len() + stat
}

/// Reads the entries of an index; the halves of a large one on two threads, since each path is allocated.
fn read_entries(reader: &mut BinaryDecoder<'_>) -> Option<Vec<IndexEntry>> {
    let count = reader.count(MIN_ENTRY_BYTES - 1)?;
    let (first, second) = (reader.bytes()?, reader.bytes()?);
    let half = count / 2;
    if count < MIN_PARALLEL_ENTRIES {
        let mut entries = read_part(first, half, count)?;
        entries.append(&mut read_part(second, count - half, 0)?);
        return Some(entries);
    }
    std::thread::scope(|scope| {
        let others = scope.spawn(|| read_part(second, count - half, 0));
        let entries = read_part(first, half, count);
        let others = others.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let mut entries = entries?;
        entries.append(&mut others?);
        Some(entries)
    })
}

/// Reads exactly `count` entries, into a list with room for `capacity` of them.
fn read_part(bytes: &[u8], count: usize, capacity: usize) -> Option<Vec<IndexEntry>> {
    let mut reader = BinaryDecoder::new(bytes);
    let mut entries = Vec::with_capacity(capacity.max(count));
    for _ in 0..count {
        entries.push(read_entry(&mut reader)?);
    }
    reader.is_at_end().then_some(entries)
}

/// Number of entries below which one thread is faster, because of the cost of starting another one.
const MIN_PARALLEL_ENTRIES: usize = 4096;

fn read_entry(reader: &mut BinaryDecoder<'_>) -> Option<IndexEntry> {
    let path = RepoPath(reader.short_bytes()?.to_vec());
    let (mode, flags) = (reader.u32()?, reader.u8()?);
    let id = read_id(reader)?;
    let stat = if flags & HAS_STAT != 0 { Some(read_index_stat(reader)?) } else { None };
    let has = |flag: u8| flags & flag != 0;
    Some(IndexEntry {
        path,
        mode,
        id,
        stage: flags & 3,
        intent_to_add: has(INTENT_TO_ADD),
        skip_worktree: has(SKIP_WORKTREE),
        stat,
    })
}

fn read_index_stat(reader: &mut BinaryDecoder<'_>) -> Option<IndexStat> {
    Some(IndexStat {
        mtime: (reader.u32()?, reader.u32()?),
        ctime: (reader.u32()?, reader.u32()?),
        ino: reader.u32()?,
        size: reader.u32()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: usize) -> IndexEntry {
        let stat = IndexStat { mtime: (1, 2), ctime: (3, 4), ino: 5, size: 6 };
        IndexEntry {
            path: RepoPath(format!("{number:06}").into_bytes()),
            mode: GITLINK_MODE,
            id: ObjectId::from_raw(if number.is_multiple_of(3) { &[1; 20] } else { &[2; 32] }).expect("an id"),
            stage: u8::try_from(number % 4).expect("a stage"),
            intent_to_add: number.is_multiple_of(5),
            skip_worktree: number.is_multiple_of(7),
            stat: Some(stat).filter(|_| !number.is_multiple_of(2)),
        }
    }

    fn encode(entries: &[IndexEntry]) -> Vec<u8> {
        let mut writer = BinaryEncoder::default();
        write_index_entries(&mut writer, entries);
        writer.into_bytes()
    }

    #[test]
    fn round_trips_small_and_large_indexes() {
        for count in [0, 1, 2, 3, MIN_PARALLEL_ENTRIES - 1, MIN_PARALLEL_ENTRIES, MIN_PARALLEL_ENTRIES + 1] {
            let entries: Vec<IndexEntry> = (0..count).map(entry).collect();
            let bytes = encode(&entries);
            let mut reader = BinaryDecoder::new(&bytes);
            assert!(read_entries(&mut reader).expect("entries") == entries && reader.is_at_end(), "{count}");
        }
    }

    #[test]
    fn rejects_truncated_entries_and_other_counts() {
        for count in [5, MIN_PARALLEL_ENTRIES + 5] {
            let bytes = encode(&(0..count).map(entry).collect::<Vec<_>>());
            for end in (0..bytes.len()).step_by(1 + bytes.len() / 100) {
                assert!(read_entries(&mut BinaryDecoder::new(&bytes[..end])).is_none(), "{count}, {end}");
            }
            for other in [count - 1, count - 2, count + 1, 0] {
                let bytes = [&(other as u64).to_le_bytes()[..], &bytes[8..]].concat();
                assert!(read_entries(&mut BinaryDecoder::new(&bytes)).is_none(), "{count}, {other}");
            }
        }
    }
}

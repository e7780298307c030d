//! Writes an index file as described in gitformat-index(5): version 2 or 3, in both id formats, without extensions.

use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use crate::files::file_stat::FileStat;
use crate::index::GITLINK_MODE;
use crate::object::object_id::{ObjectFormat, ObjectId};

/// Maximum path length that the flags can store.
const MAX_NAME_LENGTH: usize = 0xfff;
/// An entry ends with one to eight NUL bytes, so that the next one starts at a multiple of this number.
const ALIGNMENT: usize = 8;

/// Size of the header of the file: signature, version and number of entries.
const HEADER_BYTES: usize = 12;
/// Positions in an entry.
const MODE_OFFSET: usize = 24;
const ID_OFFSET: usize = 40;
/// The flag that announces extended flags, and the extended flags.
const EXTENDED: u16 = 0x4000;
const SKIP_WORKTREE: u16 = 0x4000;
const INTENT_TO_ADD: u16 = 0x2000;

/// An entry to write: a file, a link or a submodule, and the stat data of the file at its path.
pub struct NewIndexEntry {
    /// The path in the work tree.
    pub path: Vec<u8>,
    /// The mode in the tree object.
    pub mode: u32,
    /// The blob, or the commit of a submodule.
    pub id: ObjectId,
    /// 0, or the side of a conflict.
    pub stage: u8,
    /// True if the entry only announces a file (`git add -N`).
    pub intent_to_add: bool,
    /// True if the file may be missing in the work tree.
    pub skip_worktree: bool,
    /// The stat data of a file that has the content of `id`. With `None`, git compares the contents.
    pub stat: Option<NewIndexStat>,
}

/// The stat data that an index stores.
#[derive(Debug, Clone, Copy)]
pub struct NewIndexStat {
    /// The stat data of the file.
    pub stat: FileStat,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

impl NewIndexEntry {
    /// Returns the flags that only version 3 has.
    fn extended_flags(&self) -> u16 {
        let flag = |is_set: bool, flag: u16| if is_set { flag } else { 0 };
        flag(self.skip_worktree, SKIP_WORKTREE) | flag(self.intent_to_add, INTENT_TO_ADD)
    }
}

/// Returns the bytes of an index file with these entries, which must be sorted by path, then by stage.
pub fn encode_index(format: ObjectFormat, entries: &[NewIndexEntry]) -> Vec<u8> {
    let version = if entries.iter().any(|entry| entry.extended_flags() != 0) { 3 } else { 2 };
    let mut file = Vec::from(*b"DIRC");
    file.extend_from_slice(&low_u32(version));
    file.extend_from_slice(&low_u32(entries.len() as u64));
    for entry in entries {
        write_entry(entry, &mut file);
    }
    match format {
        ObjectFormat::Sha1 => file.extend_from_slice(&Sha1::digest(&file)),
        ObjectFormat::Sha256 => file.extend_from_slice(&Sha256::digest(&file)),
    }
    file
}

fn write_entry(entry: &NewIndexEntry, file: &mut Vec<u8>) {
    let begin = file.len();
    let NewIndexStat { stat: stamp, uid, gid } =
        entry.stat.unwrap_or(NewIndexStat { stat: FileStat::default(), uid: 0, gid: 0 });
    for (seconds, nanoseconds) in [stamp.ctime, stamp.mtime] {
        file.extend_from_slice(&low_u32(seconds.cast_unsigned()));
        file.extend_from_slice(&nanoseconds.to_be_bytes());
    }
    for number in [stamp.dev, stamp.ino, entry.mode.into(), uid.into(), gid.into(), stamp.size] {
        file.extend_from_slice(&low_u32(number));
    }
    file.extend_from_slice(entry.id.as_bytes());
    let (length, extended) =
        (u16::try_from(entry.path.len().min(MAX_NAME_LENGTH)).unwrap_or_default(), entry.extended_flags());
    let flags = length | u16::from(entry.stage & 3) << 12 | if extended == 0 { 0 } else { EXTENDED };
    file.extend_from_slice(&flags.to_be_bytes());
    if extended != 0 {
        file.extend_from_slice(&extended.to_be_bytes());
    }
    file.extend_from_slice(&entry.path);
    let end = file.len() - begin;
    file.resize(begin + end + ALIGNMENT - end % ALIGNMENT, 0);
}

/// Returns the ids of the blobs in a file that [`encode_index`] wrote; `None` if it has a different format.
pub fn blobs(format: ObjectFormat, file: &[u8]) -> Option<Vec<ObjectId>> {
    let (head, mut rest) = file.split_at_checked(HEADER_BYTES)?;
    let (signature, count) = head.split_at_checked(HEADER_BYTES - 4)?;
    let count = u32::from_be_bytes(count.try_into().ok()?);
    let is_known = [2, 3].iter().any(|version| signature == [&b"DIRC"[..], &low_u32(*version)].concat());
    let mut ids = Vec::new();
    for _ in 0..is_known.then_some(count)? {
        let mode = u32::from_be_bytes(rest.get(MODE_OFFSET..MODE_OFFSET + 4)?.try_into().ok()?);
        let id = ObjectId::from_raw(rest.get(ID_OFFSET..ID_OFFSET + format.width())?)?;
        let flags = rest.get(ID_OFFSET + format.width()..ID_OFFSET + format.width() + 2)?;
        let is_extended = u16::from_be_bytes(flags.try_into().ok()?) & EXTENDED != 0;
        let path = ID_OFFSET + format.width() + if is_extended { 4 } else { 2 };
        let end = path + rest.get(path..)?.iter().position(|byte| *byte == 0)?;
        rest = rest.get(end + ALIGNMENT - end % ALIGNMENT..)?;
        if mode != GITLINK_MODE {
            ids.push(id);
        }
    }
    (rest.len() == format.width()).then_some(ids)
}

/// Returns the low 32 bits, which is all that git stores.
fn low_u32(number: u64) -> [u8; 4] {
    let [.., a, b, c, d] = number.to_be_bytes();
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::index_parser;

    fn entry(path: &[u8], format: ObjectFormat) -> NewIndexEntry {
        let id = ObjectId::from_raw(&vec![7; format.width()]).expect("an id");
        let stamp =
            FileStat { size: (1 << 32) + 5, ..FileStat::from_stat(&rustix::fs::stat("/").expect("path exists")) };
        let stat = Some(NewIndexStat { stat: stamp, uid: 1, gid: 2 });
        let (intent_to_add, skip_worktree) = (false, false);
        NewIndexEntry { path: path.to_vec(), mode: 0o100_755, id, stage: 0, intent_to_add, skip_worktree, stat }
    }

    #[test]
    fn parser_reads_written_index() {
        let long = vec![b'x'; 5_000];
        let paths: [&[u8]; 4] = [b"a", b"b/c d", b"caf\xc3\xa9", &long];
        let entries = paths.map(|path| entry(path, ObjectFormat::Sha1));
        let read = index_parser::parse_verified(&encode_index(ObjectFormat::Sha1, &entries)).expect("reads");
        assert_eq!(read.iter().map(|entry| entry.path.0.as_slice()).collect::<Vec<_>>(), paths);
        let stat = read[0].stat.expect("stat data");
        assert_eq!((read[0].mode, read[0].id, stat.size), (0o100_755, entries[0].id, 5));
        let written = entries[0].stat.expect("stat data").stat;
        assert_eq!(u64::from(stat.ino), written.ino & u64::from(u32::MAX));
    }

    #[test]
    fn sha256_entries_are_longer() {
        let of = |format, path: &[u8]| encode_index(format, &[entry(path, format)]).len();
        // Header, entry, checksum; each entry is padded to a multiple of eight.
        assert_eq!(of(ObjectFormat::Sha1, b"a"), 12 + 64 + 20);
        assert_eq!(of(ObjectFormat::Sha256, b"a"), 12 + 80 + 32);
        assert_eq!(of(ObjectFormat::Sha256, b"abcdef"), 12 + 88 + 32);
    }

    #[test]
    fn finds_blobs_of_written_index() {
        for format in [ObjectFormat::Sha1, ObjectFormat::Sha256] {
            let id = |digit: u8| ObjectId::from_raw(&vec![digit; format.width()]).expect("an id");
            let entries: Vec<NewIndexEntry> = (1..20)
                .map(|number| NewIndexEntry {
                    id: id(number),
                    mode: if number == 9 { GITLINK_MODE } else { 0o100_644 },
                    skip_worktree: number == 5,
                    ..entry(&vec![b'x'; number.into()], format)
                })
                .collect();
            let file = encode_index(format, &entries);
            let expected: Vec<ObjectId> = (1..20).filter(|number| *number != 9).map(id).collect();
            assert_eq!(blobs(format, &file), Some(expected));
            for cut in 0..file.len() {
                assert_eq!(blobs(format, &file[..cut]), None, "{cut}");
            }
        }
        assert_eq!(blobs(ObjectFormat::Sha1, &encode_index(ObjectFormat::Sha1, &[])), Some(Vec::new()));
    }

    #[test]
    fn keeps_conflicts_and_extended_flags() {
        let format = ObjectFormat::Sha1;
        let staged = |stage| NewIndexEntry { stage, ..entry(b"c", format) };
        let plain = [entry(b"a", format), staged(1), staged(2), staged(3)];
        let read = index_parser::parse_verified(&encode_index(format, &plain)).expect("reads");
        assert_eq!(read.iter().map(|entry| entry.stage).collect::<Vec<_>>(), [0, 1, 2, 3]);
        let added = NewIndexEntry { intent_to_add: true, stat: None, ..entry(b"n", format) };
        let skipped = NewIndexEntry { skip_worktree: true, ..entry(b"s", format) };
        let read = index_parser::parse_verified(&encode_index(format, &[added, skipped])).expect("reads");
        assert_eq!((read[0].intent_to_add, read[0].skip_worktree), (true, false));
        assert_eq!((read[1].intent_to_add, read[1].skip_worktree), (false, true));
    }
}

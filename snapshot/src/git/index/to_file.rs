//! The bytes of an index file, as gitformat-index(5) has them: version 2, in both formats of ids, without extensions.

use rustix::fs::Stat;
use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use crate::git::object::{ObjectFormat, ObjectId};

/// The length of a path as far as the flags tell it.
const NAME: usize = 0xfff;
/// An entry ends in one to eight NUL bytes, so that the next begins at a multiple.
const ALIGNMENT: usize = 8;

/// An entry that is written: a file, a link or a submodule, and what stands at its path.
pub(in crate::git) struct Entry {
    pub(in crate::git) path: Vec<u8>,
    pub(in crate::git) mode: u32,
    pub(in crate::git) id: ObjectId,
    /// In bytes.
    pub(in crate::git) size: u64,
    pub(in crate::git) stat: Stat,
}

/// The file that has these entries, which are sorted by path.
pub(in crate::git) fn bytes(format: ObjectFormat, entries: &[Entry]) -> Vec<u8> {
    let mut file = Vec::from(*b"DIRC\0\0\0\x02");
    file.extend_from_slice(&low(entries.len() as u64));
    for entry in entries {
        write(entry, &mut file);
    }
    match format {
        ObjectFormat::Sha1 => file.extend_from_slice(&Sha1::digest(&file)),
        ObjectFormat::Sha256 => file.extend_from_slice(&Sha256::digest(&file)),
    }
    file
}

fn write(entry: &Entry, file: &mut Vec<u8>) {
    let (begin, stat) = (file.len(), &entry.stat);
    let times = [stat.st_ctime.cast_unsigned(), stat.st_ctime_nsec, stat.st_mtime.cast_unsigned(), stat.st_mtime_nsec];
    let others = [stat.st_dev, stat.st_ino, entry.mode.into(), stat.st_uid.into(), stat.st_gid.into(), entry.size];
    for number in times.into_iter().chain(others) {
        file.extend_from_slice(&low(number));
    }
    file.extend_from_slice(entry.id.as_bytes());
    let length = u16::try_from(entry.path.len().min(NAME)).unwrap_or_default();
    file.extend_from_slice(&length.to_be_bytes());
    file.extend_from_slice(&entry.path);
    let end = file.len() - begin;
    file.resize(begin + end + ALIGNMENT - end % ALIGNMENT, 0);
}

/// The low 32 bits, as git keeps them of everything.
fn low(number: u64) -> [u8; 4] {
    let [.., a, b, c, d] = number.to_be_bytes();
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git::index::from_file;

    fn entry(path: &[u8], format: ObjectFormat) -> Entry {
        let id = ObjectId::from_raw(&vec![7; format.width()]).expect("an id");
        let stat = rustix::fs::stat("/").expect("it is there");
        Entry { path: path.to_vec(), mode: 0o100_755, id, size: (1 << 32) + 5, stat }
    }

    #[test]
    fn what_is_written_is_read() {
        let long = vec![b'x'; 5_000];
        let paths: [&[u8]; 4] = [b"a", b"b/c d", b"caf\xc3\xa9", &long];
        let entries = paths.map(|path| entry(path, ObjectFormat::Sha1));
        let read = from_file::read(&bytes(ObjectFormat::Sha1, &entries)).expect("reads");
        assert_eq!(read.iter().map(|entry| entry.path.0.as_slice()).collect::<Vec<_>>(), paths);
        let stat = read[0].stat.expect("stat data");
        assert_eq!((read[0].mode, read[0].id, stat.size), (0o100_755, entries[0].id, 5));
        assert_eq!(u64::from(stat.ino), entries[0].stat.st_ino & u64::from(u32::MAX));
    }

    #[test]
    fn a_longer_id_makes_a_longer_entry() {
        let of = |format, path: &[u8]| bytes(format, &[entry(path, format)]).len();
        // Head, entry, sum: each entry is padded to a multiple of eight.
        assert_eq!(of(ObjectFormat::Sha1, b"a"), 12 + 64 + 20);
        assert_eq!(of(ObjectFormat::Sha256, b"a"), 12 + 80 + 32);
        assert_eq!(of(ObjectFormat::Sha256, b"abcdef"), 12 + 88 + 32);
    }
}

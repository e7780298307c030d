//! Parses an index file in the common format of gitformat-index(5): version 2 to 4 with sha1, complete, sorted, and
//! with plain paths. All other files are left to libgit2.

use std::path::Path;

use sha1::{Digest as _, Sha1};

use crate::config::bounded_read::read_bounded;
use crate::files::repo_path::RepoPath;
use crate::index::{IndexEntry, IndexStat};
use crate::object::object_id::ObjectId;

/// The largest index that is read, in bytes.
const INDEX_BYTES: u64 = 1 << 30;
/// Length of an id, and of the checksum at the end of the file.
const SHA1_BYTES: usize = 20;
/// Bits in the flags of an entry.
const EXTENDED: u16 = 1 << 14;
const NAME_LENGTH_MASK: u16 = 0xfff;
/// Bits in the extended flags.
const INTENT_TO_ADD: u16 = 1 << 13;
const SKIP_WORKTREE: u16 = 1 << 14;
/// Before version 4, an entry ends with one to eight NUL bytes, so that the next one starts at a multiple of this
/// number.
const ALIGNMENT: usize = 8;
/// Minimum size of an entry: stat data, id, flags, and a path with its terminator.
const MIN_ENTRY_BYTES: usize = 40 + SHA1_BYTES + 2 + 2;

/// Reads an index file. Returns `None` if it cannot be read; libgit2 then reports the error.
pub(crate) fn read_bytes(file: &Path) -> Option<Vec<u8>> {
    read_bounded(file, INDEX_BYTES).ok()?
}

/// Parses the bytes of an index file. Returns `None` if only libgit2 can parse or refuse the file.
pub(crate) fn parse_verified(file: &[u8]) -> Option<Vec<IndexEntry>> {
    let (content, sum) = file.split_last_chunk::<SHA1_BYTES>()?;
    // With `index.skipHash` the checksum is zero.
    let is_whole = *sum == [0; SHA1_BYTES] || Sha1::digest(content).as_slice() == sum;
    if is_whole { parse(file) } else { None }
}

/// Parses the bytes without verifying the checksum.
pub(crate) fn parse(file: &[u8]) -> Option<Vec<IndexEntry>> {
    let (content, _) = file.split_last_chunk::<SHA1_BYTES>()?;
    let mut bytes = IndexBytes { rest: content };
    let (signature, version, count) = (bytes.array::<4>()?, bytes.u32()?, bytes.u32()? as usize);
    if signature != *b"DIRC" || !(2..=4).contains(&version) || count > bytes.rest.len() / MIN_ENTRY_BYTES {
        return None;
    }
    let mut entries: Vec<IndexEntry> = Vec::with_capacity(count);
    for _ in 0..count {
        let entry = bytes.parse_entry(version, entries.last())?;
        let is_next = |last: &IndexEntry| last.path.0.cmp(&entry.path.0).then(last.stage.cmp(&entry.stage)).is_lt();
        if !entries.last().is_none_or(is_next) || !is_valid_path(&entry.path.0) {
            return None;
        }
        entries.push(entry);
    }
    bytes.has_only_optional_extensions()?.then_some(entries)
}

/// Checks whether a path is valid on all file systems and does not belong to git itself.
fn is_valid_path(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').all(|part| {
        let is_odd = |byte: &u8| matches!(byte, b'\\' | b':') || byte.is_ascii_control();
        !matches!(part, b"" | b"." | b"..") && !part.iter().any(is_odd) && !may_be_git_dir(part)
    })
}

/// Checks whether a file system may treat a name as `.git`: one that ignores case, one for which `.git ` or `git~1`
/// is the same name, or one that ignores invisible characters.
fn may_be_git_dir(name: &[u8]) -> bool {
    if name.is_ascii() && !matches!(name.first(), Some(b'.' | b'g' | b'G')) {
        return false;
    }
    let visible: Vec<u8> = name.iter().filter(|byte| byte.is_ascii()).map(u8::to_ascii_lowercase).collect();
    let goes_on = visible.get(4).is_some_and(|next| next.is_ascii_alphanumeric() || matches!(next, b'_' | b'-'));
    visible.starts_with(b"git~") || (visible.starts_with(b".git") && !goes_on)
}

/// The remaining bytes of an index.
struct IndexBytes<'a> {
    rest: &'a [u8],
}

impl<'a> IndexBytes<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*taken)
    }

    fn raw(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn parse_entry(&mut self, version: u32, last: Option<&IndexEntry>) -> Option<IndexEntry> {
        let whole = self.rest.len();
        let ctime = (self.u32()?, self.u32()?);
        let mtime = (self.u32()?, self.u32()?);
        let (_dev, ino, mode, _uid, _gid, size) =
            (self.u32()?, self.u32()?, self.u32()?, self.u32()?, self.u32()?, self.u32()?);
        let id = ObjectId::from_raw(&self.array::<SHA1_BYTES>()?)?;
        let flags = self.u16()?;
        let more = match flags & EXTENDED {
            0 => 0,
            _ if version < 3 => return None,
            _ => self.u16()?,
        };
        let length = usize::from(flags & NAME_LENGTH_MASK);
        let path = if version < 4 { self.parse_path(length)?.to_vec() } else { self.parse_shortened_path(last)? };
        if (length < usize::from(NAME_LENGTH_MASK) && length != path.len())
            || (length == usize::from(NAME_LENGTH_MASK) && path.len() < length)
        {
            return None;
        }
        if version < 4 {
            // One of the NUL bytes was consumed with the path.
            let taken = whole - self.rest.len();
            self.raw(taken.next_multiple_of(ALIGNMENT) - taken)?;
        }
        Some(IndexEntry {
            path: RepoPath(path),
            mode,
            id,
            stage: u8::try_from(flags >> 12 & 3).unwrap_or_default(),
            intent_to_add: more & INTENT_TO_ADD != 0,
            skip_worktree: more & SKIP_WORKTREE != 0,
            stat: Some(IndexStat { mtime, ctime, ino, size }),
        })
    }

    /// Reads a path and its NUL terminator; the length is known unless it is large.
    fn parse_path(&mut self, length: usize) -> Option<&'a [u8]> {
        let end = match self.rest.get(length) {
            Some(0) if length < usize::from(NAME_LENGTH_MASK) => length,
            _ => self.rest.iter().position(|byte| *byte == 0)?,
        };
        let path = self.raw(end)?;
        self.raw(1)?;
        Some(path)
    }

    /// Reads a path of version 4: the beginning of the preceding path, and a new suffix.
    fn parse_shortened_path(&mut self, last: Option<&IndexEntry>) -> Option<Vec<u8>> {
        let cut = self.parse_offset()?;
        let last = last.map_or(&b""[..], |last| &last.path.0);
        let kept = &last[..last.len().checked_sub(cut)?];
        let rest = self.parse_path(usize::from(NAME_LENGTH_MASK))?;
        Some([kept, rest].concat())
    }

    /// Reads a number in the encoding of offsets in pack files.
    fn parse_offset(&mut self) -> Option<usize> {
        let mut byte = self.array::<1>()?[0];
        let mut value = usize::from(byte & 127);
        while byte & 128 != 0 {
            byte = self.array::<1>()?[0];
            value = value.checked_add(1)?.checked_mul(128)?.checked_add(usize::from(byte & 127))?;
        }
        Some(value)
    }

    /// Checks whether the rest consists of extensions that a reader may ignore.
    fn has_only_optional_extensions(&mut self) -> Option<bool> {
        while !self.rest.is_empty() {
            let (signature, length) = (self.array::<4>()?, self.u32()?);
            self.raw(usize::try_from(length).ok()?)?;
            if !signature[0].is_ascii_uppercase() {
                return Some(false);
            }
        }
        Some(true)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns an index file of version 2 with these paths and stages.
    pub(crate) fn index_file(entries: &[(&str, u16)]) -> Vec<u8> {
        let mut file = [&b"DIRC"[..], &2_u32.to_be_bytes(), &(entries.len() as u32).to_be_bytes()].concat();
        for (path, stage) in entries {
            let start = file.len();
            (1..=10_u32).for_each(|field| file.extend(field.to_be_bytes()));
            file.extend([7; SHA1_BYTES]);
            file.extend((stage << 12 | path.len() as u16).to_be_bytes());
            file.extend(path.as_bytes());
            file.resize(start + (file.len() - start + 1).next_multiple_of(ALIGNMENT), 0);
        }
        with_checksum(file)
    }

    fn with_checksum(mut file: Vec<u8>) -> Vec<u8> {
        let sum = Sha1::digest(&file);
        file.extend(sum);
        file
    }

    fn paths(file: &[u8]) -> Option<Vec<(String, u8)>> {
        let text = |entry: IndexEntry| (String::from_utf8(entry.path.0).expect("text"), entry.stage);
        Some(parse(file)?.into_iter().map(text).collect())
    }

    #[test]
    fn parses_entries_with_stages_and_stat_data() {
        let found = paths(&index_file(&[("a", 0), ("b/.gitignore", 1), ("b/.gitignore", 3), ("seven77", 0)]));
        let expected = [("a", 0), ("b/.gitignore", 1), ("b/.gitignore", 3), ("seven77", 0)];
        assert_eq!(found.expect("entries"), expected.map(|(path, stage)| (path.to_owned(), stage)));
        let stat = parse(&index_file(&[("a", 0)])).expect("an entry")[0].stat.expect("stat data");
        assert_eq!((stat.ctime, stat.mtime, stat.ino, stat.size), ((1, 2), (3, 4), 6, 10));
    }

    #[test]
    fn leaves_uncommon_files_to_libgit2() {
        for path in ["", "/a", "a//b", "../a", "a/.", ".git/x", "a/.GIT", "git~1", ".git .", "a\\b", "a\nb"] {
            assert!(parse(&index_file(&[(path, 0)])).is_none(), "{path:?}");
        }
        for unsorted in [&[("b", 0), ("a", 0)][..], &[("a", 0), ("a", 0)], &[("a", 2), ("a", 1)]] {
            assert!(parse(&index_file(unsorted)).is_none(), "{unsorted:?}");
        }
        let whole = index_file(&[("a", 0), ("b", 0)]);
        let content = &whole[..whole.len() - SHA1_BYTES];
        let extended = |name: &[u8]| parse(&with_checksum([content, name, &[0, 0, 0, 0]].concat()));
        assert!(extended(b"TREE").is_some() && extended(b"link").is_none() && extended(b"sdir").is_none());
        assert!(parse(&with_checksum([&content[..8], &[0xff; 4], &content[12..]].concat())).is_none());
        (0..content.len()).for_each(|end| assert!(parse(&with_checksum(content[..end].to_vec())).is_none(), "{end}"));
    }
}

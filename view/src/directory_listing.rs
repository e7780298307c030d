//! Reads the entries of directories, and keeps a few of them while the kernel requests them part by part.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};

use proctor_core::model::trace::{EntryKind, ListingDigest};
use rustix::fs::{AtFlags, Dir, FileType};
use rustix::io::Errno;

use crate::file_meta::entry_kind;
use crate::protocol::{AnswerBody, DirectoryEntry};

/// Maximum number of listings that are kept. Others are read again.
const MAX_KEPT: usize = 16;

/// The entries of a directory, including `.` and `..`.
#[derive(Debug, Default)]
pub(crate) struct DirectoryListing {
    entries: Vec<ListedEntry>,
}

#[derive(Debug)]
struct ListedEntry {
    name: Box<[u8]>,
    kind: EntryKind,
    inode: u64,
}

impl DirectoryListing {
    /// Reads a directory that is open for reading. The entries are sorted by name.
    pub(crate) fn read(dir: BorrowedFd<'_>) -> Result<Self, Errno> {
        let mut entries = Vec::new();
        for entry in Dir::read_from(dir)? {
            let entry = entry?;
            let kind = match entry_kind(entry.file_type()) {
                Some(kind) => kind,
                None => stat_kind(dir, entry.file_name())?,
            };
            entries.push(ListedEntry { name: entry.file_name().to_bytes().into(), kind, inode: entry.ino() });
        }
        // The order of the file system is not a part of a trace, and differs between two copies of a directory.
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(Self { entries })
    }

    /// Returns the listing of a directory without entries.
    pub(crate) fn empty(inode: u64) -> Self {
        let entry = |name: &[u8]| ListedEntry { name: name.into(), kind: EntryKind::Directory, inode };
        Self { entries: vec![entry(b"."), entry(b"..")] }
    }

    /// Removes the entries that are not shown.
    pub(crate) fn retain(&mut self, shows: impl Fn(&[u8], EntryKind) -> bool) {
        self.entries.retain(|entry| matches!(&*entry.name, b"." | b"..") || shows(&entry.name, entry.kind));
    }

    pub(crate) fn digest(&self) -> ListingDigest {
        ListingDigest::from_entries(self.entries.iter().map(|entry| (&*entry.name, entry.kind)).collect())
    }

    /// Answers a request for the entries from an offset on.
    pub(crate) fn answer(&self, offset: u64, max: usize) -> AnswerBody {
        let mut body = AnswerBody::default();
        let first = usize::try_from(offset).unwrap_or(usize::MAX);
        for (index, ListedEntry { name, kind, inode }) in self.entries.iter().enumerate().skip(first) {
            let next = index as u64 + 1;
            let entry = DirectoryEntry { inode: *inode, next, kind: type_number(*kind), name };
            if !body.push_directory_entry(&entry, max) {
                break;
            }
        }
        body
    }
}

/// Reads the kind of an entry from the file itself, if the file system does not store it in the directory.
fn stat_kind(dir: BorrowedFd<'_>, name: &std::ffi::CStr) -> Result<EntryKind, Errno> {
    let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    entry_kind(FileType::from_raw_mode(stat.st_mode)).ok_or(Errno::IO)
}

/// Returns the number of `d_type`.
fn type_number(kind: EntryKind) -> u32 {
    match kind {
        EntryKind::Fifo => 1,
        EntryKind::CharacterDevice => 2,
        EntryKind::Directory => 4,
        EntryKind::BlockDevice => 6,
        EntryKind::File => 8,
        EntryKind::Link => 10,
        EntryKind::Socket => 12,
    }
}

/// The listings of the directories that were read most recently, by node.
#[derive(Debug, Default)]
pub(crate) struct KeptListings(VecDeque<(u64, DirectoryListing)>);

impl KeptListings {
    pub(crate) fn get(&self, node: u64) -> Option<&DirectoryListing> {
        self.0.iter().find(|(known, _)| *known == node).map(|(_, listing)| listing)
    }

    pub(crate) fn keep(&mut self, node: u64, listing: DirectoryListing) {
        self.0.retain(|(known, _)| *known != node);
        if self.0.len() >= MAX_KEPT {
            self.0.pop_front();
        }
        self.0.push_back((node, listing));
    }
}

/// Opens a directory of which an `O_PATH` descriptor exists, and reads it.
pub(crate) fn read_directory(dir: impl AsFd) -> Result<DirectoryListing, Errno> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    let open = rustix::fs::openat(dir, ".", flags, rustix::fs::Mode::empty())?;
    DirectoryListing::read(open.as_fd())
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "files of a test")]
mod tests {
    use super::*;

    #[test]
    fn answers_in_parts_and_ends() {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["a", "b", "c"] {
            std::fs::write(dir.path().join(name), "").expect("written");
        }
        let listing = read_directory(std::fs::File::open(dir.path()).expect("open")).expect("read");
        let mut offset = 0;
        while !listing.answer(offset, 40).0.is_empty() {
            offset += 1;
        }
        assert_eq!(offset, 5, "three files, `.` and `..`");
        assert!(listing.entries.is_sorted_by(|a, b| a.name < b.name));
        let same = ["c", "a", "b"].map(|name| (name.as_bytes(), EntryKind::File)).to_vec();
        assert_eq!(listing.digest(), ListingDigest::from_entries(same));
    }

    #[test]
    fn entries_that_are_not_shown_do_not_count() {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["a", "b"] {
            std::fs::write(dir.path().join(name), "").expect("written");
        }
        let mut listing = read_directory(std::fs::File::open(dir.path()).expect("open")).expect("read");
        listing.retain(|name, kind| kind == EntryKind::File && name == b"b");
        assert_eq!(listing.entries.len(), 3, "`.` and `..` stay");
        assert_eq!(listing.digest(), ListingDigest::from_entries(vec![("b", EntryKind::File)]));
    }

    #[test]
    fn keeps_a_bounded_number_of_listings() {
        let mut kept = KeptListings::default();
        (0..100).for_each(|node| kept.keep(node, DirectoryListing::empty(1)));
        assert!(kept.get(0).is_none() && kept.get(99).is_some() && kept.0.len() == MAX_KEPT);
    }
}

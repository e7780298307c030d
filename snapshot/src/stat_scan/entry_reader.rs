//! Examines one name in an open directory: compares its stat data, and reads its content if these do not suffice.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use proctor_core::model::drift::display_path;
use proctor_git::config::config_files::RULES_BYTES;
use proctor_git::files::file_stat::FileStat;
use proctor_git::files::read_beneath;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};
use rustix::io::{Errno, pread};
use sha2::{Digest as _, Sha256};

use super::{StatScan, io_error};
use crate::entries::{ScannedEntry, ScannedKind};
use crate::snapshot::snapshot_error::SnapshotError;

/// Number of attempts to read a file that changes during the read.
const ATTEMPTS: u32 = 5;
/// Size of the read buffer, in bytes.
const BUFFER: usize = 128 << 10;

/// Examines names one after the other, with a shared read buffer.
pub(super) struct EntryReader<'a> {
    scan: &'a StatScan<'a>,
    buffer: Vec<u8>,
    has_read: bool,
}

/// The reason why a name could not be examined.
pub(super) enum EntryReadError {
    Io(io::Error),
    Unstable,
}

impl EntryReadError {
    pub(super) fn into_snapshot_error(self, path: &[u8]) -> SnapshotError {
        match self {
            Self::Io(error) => io_error(path, error),
            Self::Unstable => SnapshotError::Unstable { path: display_path(path) },
        }
    }
}

impl From<Errno> for EntryReadError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

impl<'a> EntryReader<'a> {
    pub(super) fn new(look: &'a StatScan<'a>) -> Self {
        Self { scan: look, buffer: vec![0; BUFFER], has_read: false }
    }

    /// Returns whether the last call to `look` had to read content.
    pub(super) fn has_read(&self) -> bool {
        self.has_read
    }

    /// Returns the entry at `name`. `known` is the entry that the tree records, `before` the earlier result to
    /// compare stat data with.
    pub(super) fn examine(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        known: ScannedEntry,
        before: Option<ScannedEntry>,
    ) -> Result<ScannedEntry, EntryReadError> {
        self.has_read = false;
        for _ in 0..ATTEMPTS {
            let stat = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => return Ok(ScannedEntry::MISSING),
                Err(errno) => return Err(errno.into()),
            };
            if let Some(found) = self.entry_from_stat(&stat, known, before) {
                return Ok(found);
            }
            self.has_read = true;
            if let Some(found) = self.read_entry(directory, name, &stat)? {
                return Ok(found);
            }
        }
        Err(EntryReadError::Unstable)
    }

    /// Returns the entry if the stat data are enough to determine it.
    fn entry_from_stat(&self, stat: &Stat, known: ScannedEntry, before: Option<ScannedEntry>) -> Option<ScannedEntry> {
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            // A repository is identified by its commit, which git reports.
            return Some(if known.kind == ScannedKind::Gitlink { known } else { ScannedEntry::MISSING });
        }
        let stamp = FileStat::from_stat(stat);
        if known.kind == ScannedKind::IgnoreRules {
            return Some(ScannedEntry {
                kind: ScannedKind::IgnoreRules,
                racy: self.scan.is_racy(&stamp),
                stat: stamp,
                ..ScannedEntry::MISSING
            });
        }
        let is_content = |found: &ScannedEntry| {
            !matches!(found.kind, ScannedKind::Gitlink | ScannedKind::Missing | ScannedKind::IgnoreRules)
        };
        before.filter(|before| {
            is_content(before) && !before.racy && before.stat == stamp && self.scan.device == Some(stamp.dev)
        })
    }

    /// Reads the file or link at `name`. Returns `None` if it changed during the read.
    fn read_entry(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        stat: &Stat,
    ) -> Result<Option<ScannedEntry>, EntryReadError> {
        let stamp = FileStat::from_stat(stat);
        let found = |kind, sha256| ScannedEntry { kind, racy: self.scan.is_racy(&stamp), sha256, stat: stamp };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile if name == b".gitignore" && stamp.size > RULES_BYTES => {
                // Such a file is refused because git would read it as ignore rules.
                Err(EntryReadError::Io(io::Error::other(format!("it is larger than {RULES_BYTES} bytes"))))
            }
            FileType::RegularFile => {
                let kind = if read_beneath::is_executable(stat) { ScannedKind::Executable } else { ScannedKind::File };
                Ok(self.hash(directory, name, &stamp)?.map(|sha256| ScannedEntry {
                    kind,
                    racy: self.scan.is_content_racy(&stamp),
                    sha256,
                    stat: stamp,
                }))
            }
            FileType::Symlink => match readlinkat(directory, name, Vec::new()) {
                Ok(target) => {
                    let is_same =
                        statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map(|stat| FileStat::from_stat(&stat));
                    let sha256 = Sha256::digest(target.as_bytes()).into();
                    Ok((is_same == Ok(stamp)).then(|| found(ScannedKind::Symlink, sha256)))
                }
                // The link was replaced or deleted.
                Err(Errno::INVAL | Errno::NOENT) => Ok(None),
                Err(errno) => Err(errno.into()),
            },
            _ => Ok(Some(found(ScannedKind::Special, Sha256::digest(b"").into()))),
        }
    }

    /// Returns the sha256 of a file whose stat data were `stamp` before the read, or `None` if it changed.
    ///
    /// If the file changed so recently that a write may not change its stat data, they are compared again after the
    /// read. Any other concurrent write changes the stat data, and the next scan notices it.
    fn hash(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        stamp: &FileStat,
    ) -> Result<Option<[u8; 32]>, EntryReadError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = match openat(directory, name, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        let mut hasher = Sha256::new();
        let mut at = 0;
        // Reading one byte past the size detects a file that grows, and bounds the read if a writer never stops.
        while at <= stamp.size {
            if self.scan.is_cancelled() {
                return Ok(None);
            }
            match pread(fd.as_fd(), &mut self.buffer, at) {
                Ok(0) => break,
                Ok(count) => {
                    hasher.update(&self.buffer[..count]);
                    at += count as u64;
                    if at == stamp.size && count < self.buffer.len() {
                        break;
                    }
                }
                Err(Errno::INTR) => {}
                // A directory replaced the file.
                Err(Errno::ISDIR) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
        let is_young = self.scan.is_content_racy(stamp);
        let is_same = at == stamp.size && (!is_young || FileStat::from_stat(&fstat(&fd)?) == *stamp);
        Ok(is_same.then(|| hasher.finalize().into()))
    }
}

//! Stores one snapshot file per repository. A file that is torn, damaged, foreign or of another version is ignored,
//! with a warning in the log.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use proctor_core::text::digest::Sha256Hex;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fstat, openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::snapshot_encoding;
use crate::snapshot::{EncodedListing, Snapshot};

/// The largest file that is read or written, in bytes.
const FILE_BYTES: u64 = 1 << 30;
/// Maximum number of files; the oldest are removed first.
const MAX_FILES: usize = 64;

/// The directory of the files.
#[derive(Debug)]
pub(super) struct SnapshotFiles {
    directory: Arc<OwnedFd>,
}

/// A separate file with git's listing, which is read only if it is needed.
#[derive(Debug, Clone)]
pub(crate) struct ListingFile {
    pub(super) directory: Arc<OwnedFd>,
    pub(super) name: String,
    pub(super) checksum: FileChecksum,
}

/// Length and checksum that identify the bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileChecksum {
    length: u64,
    sum: u32,
}

impl FileChecksum {
    pub(super) fn compute(bytes: &[u8]) -> Self {
        Self { length: bytes.len() as u64, sum: crc32fast::hash(bytes) }
    }
}

impl ListingFile {
    /// Returns the bytes, or `None` if the file is missing or belongs to another snapshot.
    pub(crate) fn read(&self) -> Option<Vec<u8>> {
        let files = SnapshotFiles { directory: Arc::clone(&self.directory) };
        files.read(&self.name).ok().flatten().filter(|bytes| FileChecksum::compute(bytes) == self.checksum)
    }
}

impl SnapshotFiles {
    pub(super) fn new(directory: OwnedFd) -> Self {
        Self { directory: Arc::new(directory) }
    }

    /// Loads the last snapshot of a work tree, if there is a valid file.
    pub(super) fn load(&self, place: &Path) -> Option<Snapshot> {
        let read = self.read(&snapshot_file_name(place)).and_then(|bytes| {
            let Some(bytes) = bytes else { return Ok(None) };
            let sidecar = |seal| ListingFile {
                directory: Arc::clone(&self.directory),
                name: listing_file_name(place),
                checksum: seal,
            };
            let snapshot = snapshot_encoding::decode(&bytes, sidecar).map_err(UnusableFile::Content)?;
            let is_its = snapshot.basis.as_ref().is_some_and(|basis| basis.worktree == place);
            if is_its { Ok(Some(snapshot)) } else { Err(UnusableFile::Content("it is of another repository")) }
        });
        read.unwrap_or_else(|why| {
            tracing::warn!(repo = %place.display(), %why, "the snapshot cache of a repository is thrown away");
            None
        })
    }

    /// Writes the snapshot of a work tree. If writing fails, the next process reads the whole tree.
    pub(super) fn save(&self, place: &Path, snapshot: &Snapshot) {
        let Some(bytes) = snapshot_encoding::encode(snapshot) else { return };
        if bytes.len() as u64 > FILE_BYTES {
            tracing::debug!(repo = %place.display(), bytes = bytes.len(), "the snapshot is too large to be kept in a file");
            return;
        }
        let listing = match snapshot.basis.as_ref().map(|basis| &basis.listing) {
            Some(EncodedListing::InMemory(listing)) => self.write(&listing_file_name(place), listing),
            _ => Ok(()),
        };
        if let Err(error) =
            listing.and_then(|()| self.write(&snapshot_file_name(place), &bytes)).and_then(|()| self.prune())
        {
            tracing::warn!(repo = %place.display(), %error, "the snapshot cache of a repository cannot be written");
        }
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, UnusableFile> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(self.directory.as_fd(), name, flags, Mode::empty()) {
            Ok(fd) => File::from(fd),
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        let stat = fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(UnusableFile::Content("it is not a regular file"));
        }
        if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & 0o077 != 0 {
            return Err(UnusableFile::Content("another user could have written it"));
        }
        let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
        if size > FILE_BYTES {
            return Err(UnusableFile::Content("it is too large"));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or_default());
        file.take(size).read_to_end(&mut bytes).map_err(UnusableFile::Io)?;
        Ok(Some(bytes))
    }

    /// Replaces a file without waiting for the disk. The checksum detects a file that a crash left incomplete.
    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let temporary = format!(".{name}.{:016x}", u64::from_le_bytes(random));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(self.directory.as_fd(), &temporary, flags, Mode::RUSR | Mode::WUSR)?;
        let written = File::from(fd)
            .write_all(bytes)
            .and_then(|()| Ok(renameat(self.directory.as_fd(), &temporary, self.directory.as_fd(), name)?));
        if written.is_err() {
            // The first error already describes the problem with the directory.
            let _ = unlinkat(self.directory.as_fd(), &temporary, AtFlags::empty());
        }
        written
    }

    /// Removes the oldest files beyond the bound, including temporary files of killed processes.
    fn prune(&self) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in Dir::read_from(self.directory.as_fd())? {
            let name = entry?.file_name().to_owned();
            if name.to_bytes() == b"." || name.to_bytes() == b".." {
                continue;
            }
            // Another process may remove files at the same time.
            if let Ok(stat) = statat(self.directory.as_fd(), &name, AtFlags::SYMLINK_NOFOLLOW) {
                files.push((stat.st_mtime, stat.st_mtime_nsec, name));
            }
        }
        files.sort();
        for (.., name) in files.iter().take(files.len().saturating_sub(MAX_FILES)) {
            match unlinkat(self.directory.as_fd(), name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
enum UnusableFile {
    #[error("{0}")]
    Content(&'static str),
    #[error("it cannot be read: {0}")]
    Io(io::Error),
}

impl From<Errno> for UnusableFile {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// Returns the file name for a work tree.
fn snapshot_file_name(place: &Path) -> String {
    Sha256Hex::digest(place.as_os_str().as_bytes()).as_str()[..32].to_owned()
}

/// Returns the name of the file with git's listing.
fn listing_file_name(place: &Path) -> String {
    format!("{}.git", snapshot_file_name(place))
}

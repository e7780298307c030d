//! Reads the file with git's listing that belongs to a stored snapshot.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::cache_file;

/// A separate file with git's listing, which is read only if it is needed.
#[derive(Debug, Clone)]
pub(crate) struct ListingFile {
    pub(crate) directory: Arc<OwnedFd>,
    pub(crate) name: String,
    pub(crate) checksum: FileChecksum,
}

/// Length and checksum that identify the bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileChecksum {
    length: u64,
    sum: u32,
}

impl ListingFile {
    /// Returns the bytes, or `None` if the file is missing or belongs to another snapshot.
    pub(crate) fn read(&self) -> Option<Vec<u8>> {
        read_file(&self.directory, &self.name)
            .ok()
            .flatten()
            .filter(|bytes| FileChecksum::compute(bytes) == self.checksum)
    }
}

impl FileChecksum {
    pub(crate) fn compute(bytes: &[u8]) -> Self {
        Self { length: bytes.len() as u64, sum: cache_file::checksum(bytes) }
    }
}

pub(crate) fn read_file(directory: &OwnedFd, name: &str) -> Result<Option<Vec<u8>>, UnusableFile> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(directory.as_fd(), name, flags, Mode::empty()) {
        Ok(fd) => File::from(fd),
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    let size = check_file(&file)?;
    cache_file::read_start(&file, usize::try_from(size).unwrap_or_default()).map(Some).map_err(UnusableFile::Io)
}

/// Checks that only we could have written a file, and returns its size.
pub(crate) fn check_file(file: &File) -> Result<u64, UnusableFile> {
    let stat = fstat(file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(UnusableFile::NotRegular);
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & 0o077 != 0 {
        return Err(UnusableFile::ForeignWritable);
    }
    let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
    if size > FILE_BYTES { Err(UnusableFile::TooLarge) } else { Ok(size) }
}

/// The reason why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnusableFile {
    #[error("it is not a regular file")]
    NotRegular,
    #[error("another user could have written it")]
    ForeignWritable,
    #[error("it is too large")]
    TooLarge,
    #[error("it has another version, or is not a snapshot")]
    OtherVersion,
    #[error("it was written only partly")]
    Torn,
    #[error("it is damaged")]
    Damaged,
    #[error("its format is unknown")]
    Malformed,
    #[error("it belongs to another repository")]
    OtherRepository,
    #[error("it cannot be read: {0}")]
    Io(#[source] io::Error),
}

impl From<Errno> for UnusableFile {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// The largest file that is read or written, in bytes.
pub(crate) const FILE_BYTES: u64 = 1 << 30;

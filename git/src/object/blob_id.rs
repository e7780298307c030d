//! Computes the blob id of a file, and detects content that git might convert.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use rustix::fs::{FileType, OFlags, fstat};
use rustix::io::Errno;

use crate::files::file_stat::FileStat;
use crate::files::read_beneath;
use crate::object::attributes::TextScan;
use crate::object::object_id::{ObjectFormat, ObjectHasher, ObjectId, ObjectKind};

/// Number of attempts to read a file that changes during the read.
const READ_ATTEMPTS: u32 = 5;
/// Size of the read buffer, in bytes.
const BUFFER_BYTES: usize = 128 << 10;

/// A file as a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blob {
    /// The id of the raw bytes.
    pub id: ObjectId,
    /// True if it contains bytes that git would convert in a text file.
    pub convertible: bool,
}

/// Reads the regular file at `path`. Returns `None` if there is no such file, or if it keeps changing.
///
/// # Errors
/// The file cannot be read.
pub fn blob_at(top: BorrowedFd<'_>, path: &[u8], format: ObjectFormat) -> io::Result<Option<Blob>> {
    for _ in 0..READ_ATTEMPTS {
        let fd = match read_beneath::open(top, path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY) {
            Ok(fd) => fd,
            Err(error) if read_beneath::is_missing_error(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        if let Some(blob) = hash_blob(fd.as_fd(), format)? {
            return Ok(Some(blob));
        }
    }
    Ok(None)
}

/// Reads an open file once. Returns `None` if it changed during the read or is not a regular file.
fn hash_blob(fd: BorrowedFd<'_>, format: ObjectFormat) -> io::Result<Option<Blob>> {
    let before = fstat(fd)?;
    if FileType::from_raw_mode(before.st_mode) != FileType::RegularFile {
        return Ok(None);
    }
    let size = read_beneath::size_of(&before);
    let (mut hasher, mut scan) = (ObjectHasher::new(format, ObjectKind::Blob, size), TextScan::default());
    let (mut buffer, mut at) = (vec![0; BUFFER_BYTES], 0);
    // Reading one byte past the size detects a file that grows.
    while at <= size {
        match rustix::io::pread(fd, &mut buffer, at) {
            Ok(0) => break,
            Ok(count) => {
                hasher.update(&buffer[..count]);
                scan.update(&buffer[..count]);
                at += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let is_unchanged = at == size && FileStat::from_stat(&before) == FileStat::from_stat(&fstat(fd)?);
    Ok(is_unchanged.then(|| Blob { id: hasher.finish(), convertible: scan.found() }))
}

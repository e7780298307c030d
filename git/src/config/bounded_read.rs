//! Reads git's small files with bounds, and reports why one cannot be read.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;

use crate::error::GitError;
use crate::files::read_beneath;

/// The largest config that is read, in bytes.
pub(crate) const CONFIG_BYTES: u64 = 1 << 20;

/// The largest `.git` file or `commondir` that is read, in bytes.
pub(crate) const POINTER_BYTES: u64 = 16 << 10;

/// The largest ignore file that is read, in bytes.
pub const RULES_BYTES: u64 = 16 << 20;

/// Makes the error for a file that would make git read something other than this repository.
pub(crate) fn config_error(path: &Path, problem: String, mend: &str) -> GitError {
    GitError::Config { path: path.to_owned(), problem, mend: mend.to_owned() }
}

/// Makes the error for a path that cannot be read.
pub(crate) fn io_error(path: &Path, error: &std::io::Error) -> GitError {
    GitError::Io { path: path.to_owned(), problem: error.to_string() }
}

/// Makes the error for a git file that is not a regular file.
pub(crate) fn not_regular_error(path: &Path) -> GitError {
    config_error(path, "it is not a regular file".into(), "put a regular file there")
}

/// Makes the error for a file that exceeds its size limit.
pub(crate) fn too_large_error(path: &Path, limit: u64) -> GitError {
    config_error(path, format!("it is larger than {limit} bytes"), "make it smaller")
}

/// Reads a regular file of at most `limit` bytes; returns `None` if it does not exist.
pub(crate) fn read_bounded(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, GitError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = match open(path, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP) => return Err(not_regular_error(path)),
        Err(errno) => return Err(io_error(path, &errno.into())),
    };
    let stat = fstat(&fd).map_err(|errno| io_error(path, &errno.into()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(not_regular_error(path));
    }
    let mut bytes = read_beneath::content_buffer(&stat, limit);
    File::from(fd).take(limit + 1).read_to_end(&mut bytes).map_err(|error| io_error(path, &error))?;
    if bytes.len() as u64 > limit {
        return Err(too_large_error(path, limit));
    }
    Ok(Some(bytes))
}

/// Refuses an ignore file on which libgit2 would block or take too long. Allowed are a regular file up to the size
/// limit, a directory, and a missing file. Links are followed.
pub(crate) fn check_regular(path: &Path) -> Result<(), GitError> {
    check_size(path, RULES_BYTES)
}

/// Refuses anything but a file of at most `limit` bytes, a directory or a missing file.
pub(crate) fn check_size(path: &Path, limit: u64) -> Result<(), GitError> {
    match path.metadata() {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(found) if !found.is_file() => Err(not_regular_error(path)),
        Ok(found) if found.len() > limit => Err(too_large_error(path, limit)),
        // If the file cannot be examined, libgit2 reports the error.
        _ => Ok(()),
    }
}

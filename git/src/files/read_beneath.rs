//! Reads files below an open directory. It follows no symbolic link in any part of a path, and opens only regular
//! files and directories.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use proctor_core::model::drift::{Entry, EntryKind, ctime_detects_all_changes};
use proctor_core::text::digest::Sha256Hex;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, readlinkat};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use crate::files::file_stat::FileStat;
use crate::files::path_resolution::{LinkPolicy, open_beneath};

/// Number of attempts to read a file that changes during the read.
const READ_ATTEMPTS: u32 = 5;

/// The kind of entry at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathEntry {
    /// A hashed entry: a file, a link, or a special file, whose content is not read.
    Entry(Entry),
    /// A file that is larger than the bound, or that kept changing during the read.
    Unread(UnreadReason),
    /// A directory.
    Directory,
    /// Nothing exists at the path, or the path leads through a symbolic link and so is not part of the tree.
    Missing,
}

/// The reason why a file was not hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnreadReason {
    /// The file is larger than the bound.
    TooLarge,
    /// The file kept changing.
    Unstable,
}

/// Opens the directory at a canonical path without following links. The owner of a parent directory may have
/// replaced a part of the path with a link since it was resolved; a process with more privileges must not follow
/// it.
pub fn open_canonical(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open("/", flags, Mode::empty())?;
    let below = path.strip_prefix("/").unwrap_or(path);
    let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
    Ok(open_beneath(root.as_fd(), below, flags, LinkPolicy::Reject)?)
}

/// Returns the device of a directory if timestamps on its file system reveal every change, else `None`.
pub fn trusted_device(directory: BorrowedFd<'_>) -> io::Result<Option<u64>> {
    // fstatfs accepts O_PATH descriptors since Linux 2.6.39.
    let kind = rustix::fs::fstatfs(directory)?.f_type;
    let trusted = u64::try_from(kind).is_ok_and(ctime_detects_all_changes);
    Ok(if trusted { Some(fstat(directory)?.st_dev) } else { None })
}

/// Opens `path` below `root`; the empty path is `root` itself.
pub fn open(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
    let path = if path.is_empty() { Path::new(".") } else { Path::new(OsStr::from_bytes(path)) };
    Ok(open_beneath(root, path, flags | OFlags::NOFOLLOW, LinkPolicy::Reject)?)
}

/// Opens the entry at `path` with `O_PATH`. Returns `None` if no entry of the tree exists there.
pub fn open_entry(root: BorrowedFd<'_>, path: &[u8]) -> io::Result<Option<(OwnedFd, Stat)>> {
    match open(root, path, OFlags::PATH) {
        Ok(fd) => {
            let stat = fstat(&fd)?;
            Ok(Some((fd, stat)))
        }
        Err(error) if is_missing_error(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Checks whether an error means that the tree has no entry at the path: the path does not exist, or a parent is a
/// file or a symbolic link instead of a directory.
pub fn is_missing_error(error: &io::Error) -> bool {
    let nothing = [Errno::NOENT, Errno::NOTDIR, Errno::LOOP];
    nothing.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Reads and hashes the entry at `path`; files of more than `limit` bytes are not read.
pub fn read(root: BorrowedFd<'_>, path: &[u8], limit: u64) -> io::Result<PathEntry> {
    Ok(read_with_stat(root, path, limit)?.0)
}

/// Does the same as [`read`], and also returns the stat data from before the read.
pub fn read_with_stat(root: BorrowedFd<'_>, path: &[u8], limit: u64) -> io::Result<(PathEntry, FileStat)> {
    let Some((fd, stat)) = open_entry(root, path)? else { return Ok((PathEntry::Missing, FileStat::default())) };
    let found = read_opened(root, path, limit, fd.as_fd(), &stat)?;
    Ok((found, FileStat::from_stat(&stat)))
}

fn read_opened(
    root: BorrowedFd<'_>,
    path: &[u8],
    limit: u64,
    fd: BorrowedFd<'_>,
    stat: &Stat,
) -> io::Result<PathEntry> {
    let entry = |kind, content: &[u8]| Entry { kind, executable: false, sha256: Sha256Hex::digest(content) };
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => PathEntry::Directory,
        FileType::Symlink => PathEntry::Entry(entry(EntryKind::Symlink, &link_target(fd)?)),
        FileType::RegularFile => read_file(root, path, limit)?,
        _ => PathEntry::Entry(entry(EntryKind::Special, b"")),
    })
}

/// Returns the target of the symbolic link that `fd` was opened on with `O_PATH`.
pub fn link_target(fd: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    Ok(readlinkat(fd, "", Vec::new())?.into_bytes())
}

fn read_file(root: BorrowedFd<'_>, path: &[u8], limit: u64) -> io::Result<PathEntry> {
    for _ in 0..READ_ATTEMPTS {
        let fd = match open(root, path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY) {
            Ok(fd) => fd,
            Err(error) if is_missing_error(&error) => return Ok(PathEntry::Missing),
            Err(error) => return Err(error),
        };
        match hash_open(fd.as_fd(), limit)? {
            HashAttempt::Stable { executable, sha256 } => {
                return Ok(PathEntry::Entry(Entry { kind: EntryKind::File, executable, sha256 }));
            }
            HashAttempt::TooLarge => return Ok(PathEntry::Unread(UnreadReason::TooLarge)),
            HashAttempt::Changed => {}
        }
    }
    Ok(PathEntry::Unread(UnreadReason::Unstable))
}

/// The result of one attempt to hash an open file.
pub enum HashAttempt {
    /// The file did not change during the read.
    Stable {
        /// True if the owner may execute the file.
        executable: bool,
        /// The sha256 of the file's bytes.
        sha256: Sha256Hex,
    },
    /// The file is larger than the bound; nothing was read.
    TooLarge,
    /// The file changed during the read, or is no longer a regular file.
    Changed,
}

/// Hashes an open file from its start.
pub fn hash_open(fd: BorrowedFd<'_>, limit: u64) -> io::Result<HashAttempt> {
    let before = fstat(fd)?;
    if FileType::from_raw_mode(before.st_mode) != FileType::RegularFile {
        return Ok(HashAttempt::Changed);
    }
    let size = size_of(&before);
    if size > limit {
        return Ok(HashAttempt::TooLarge);
    }
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 128 << 10];
    let mut at = 0;
    // Reading one byte past the size detects a file that grows, and bounds the read if a writer never stops.
    while at <= size {
        match rustix::io::pread(fd, &mut buffer, at) {
            Ok(0) => break,
            Ok(count) => {
                hasher.update(&buffer[..count]);
                at += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if at != size || change_times(&before) != change_times(&fstat(fd)?) {
        return Ok(HashAttempt::Changed);
    }
    let sha256 = Sha256Hex::from_raw(hasher.finalize().into());
    Ok(HashAttempt::Stable { executable: is_executable(&before), sha256 })
}

/// Returns the whole content of the regular file at `path`, or the target of the link. Returns `None` for anything
/// else and for files larger than `limit`.
pub fn read_content(root: BorrowedFd<'_>, path: &[u8], limit: u64) -> io::Result<Option<Vec<u8>>> {
    let Some((fd, stat)) = open_entry(root, path)? else { return Ok(None) };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => link_target(fd.as_fd()).map(Some),
        FileType::RegularFile if size_of(&stat) <= limit => {
            let fd = open(root, path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
            let mut bytes = content_buffer(&stat, limit);
            io::Read::read_to_end(&mut io::Read::take(std::fs::File::from(fd), limit + 1), &mut bytes)?;
            Ok(Some(bytes).filter(|bytes| bytes.len() as u64 <= limit))
        }
        _ => Ok(None),
    }
}

/// Allocates a buffer for the content of a file, of at most `limit` bytes, and for one more byte that detects
/// growth. Reading into an empty buffer would take many system calls.
pub fn content_buffer(stat: &Stat, limit: u64) -> Vec<u8> {
    let bytes = size_of(stat).min(limit).saturating_add(1);
    Vec::with_capacity(usize::try_from(bytes).unwrap_or_default())
}

/// Returns the stat data that change when a file is written: size, and both times in nanoseconds.
fn change_times(stat: &Stat) -> [i128; 5] {
    [
        stat.st_size.into(),
        stat.st_mtime.into(),
        stat.st_mtime_nsec.into(),
        stat.st_ctime.into(),
        stat.st_ctime_nsec.into(),
    ]
}

/// Returns the length of a file in bytes.
pub fn size_of(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(u64::MAX)
}

/// Returns whether the owner may execute the file.
pub fn is_executable(stat: &Stat) -> bool {
    stat.st_mode & 0o100 != 0
}

/// Returns the names in the directory `path`, sorted; returns no names if `path` is not a directory.
pub fn list_names(root: BorrowedFd<'_>, path: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    match open(root, path, OFlags::RDONLY | OFlags::DIRECTORY) {
        Ok(fd) => read_names(fd.as_fd()),
        Err(error) if is_missing_error(&error) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Returns the names in an open directory, sorted.
pub fn read_names(dir: BorrowedFd<'_>) -> io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Returns all entries below the directory `path` that are not directories, sorted by path. Returns `None` if there
/// are more than `limit`.
pub fn list_leaves(root: BorrowedFd<'_>, path: &[u8], limit: usize) -> io::Result<Option<Vec<Vec<u8>>>> {
    let mut pending = vec![path.to_vec()];
    let mut found = Vec::new();
    while let Some(dir) = pending.pop() {
        let names = list_names(root, &dir)?;
        if found.len() + pending.len() + names.len() > limit {
            return Ok(None);
        }
        for name in names {
            let path = crate::files::paths::join(&dir, &name);
            match open_entry(root, &path)? {
                Some((_, stat)) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => pending.push(path),
                Some(_) => found.push(path),
                None => {}
            }
        }
    }
    found.sort_unstable();
    Ok(Some(found))
}

/// Returns whether `path` is a directory.
pub fn is_directory(root: BorrowedFd<'_>, path: &[u8]) -> bool {
    let found = open_entry(root, path).ok().flatten();
    found.is_some_and(|(_, stat)| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// Returns the stat data of an entry in an open directory, without following links.
pub fn stat_at(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<Stat> {
    Ok(rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?)
}

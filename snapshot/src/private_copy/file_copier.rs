//! Copies files into a mirror and hashes the written bytes.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};

use proctor_git::files::file_stat::{FileStat, FileTime};
use proctor_git::files::{paths, read_beneath};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, chownat, fchmod, fchown, fstat, futimens,
    linkat, mkdirat, mknodat, openat, readlinkat, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use crate::entries::{EntryTree, ScannedEntry, ScannedKind};
use crate::private_copy::file_copier::byte_copy::SpareBytes;
use crate::private_copy::ignored_selection::{IgnoredSelection, NOT_READABLE_BY_STEPS};
use crate::private_copy::mirror_files::{DIRECTORY_FLAGS, MirrorError, MirrorOwner};
use byte_copy::{FileByteBudget, copy_exactly, copy_to_end, hash_file};

pub(crate) mod byte_copy;

pub(super) use byte_copy::write_all;

/// Number of threads that copy.
const COPIER_THREADS: usize = 2;
/// Number of paths that a thread takes at a time.
const PATHS_PER_BATCH: usize = 64;
/// Size of the copy buffer, in bytes.
const BUFFER: usize = 128 << 10;
/// Minimum size of a file for cloning, in bytes; for smaller files the system call costs more than it saves.
const MIN_CLONE_BYTES: u64 = 64 << 10;

/// Copies files from a work tree into a mirror.
#[derive(Clone, Copy)]
pub(super) struct MirrorCopier<'a> {
    pub(super) source: BorrowedFd<'a>,
    pub(super) tree: BorrowedFd<'a>,
    pub(super) owner: Option<MirrorOwner>,
    /// The modification time of all copied files.
    pub(super) mtime: FileTime,
}

/// The result of copying some paths.
#[derive(Debug, Default)]
pub(super) struct CopyResult {
    /// The new entry of the mirror at each path.
    pub(super) found: Vec<(Vec<u8>, ScannedEntry)>,
    /// The paths whose content differs from the wanted one.
    pub(super) changed: Vec<Vec<u8>>,
    pub(super) files: usize,
    pub(super) bytes: u64,
    /// The ignored files that were not copied, with the reasons.
    pub(super) left_out: Vec<(Vec<u8>, &'static str)>,
}

/// A copy of an ignored file, or the reason why it was not copied.
type IgnoredCopy = Result<ScannedEntry, &'static str>;

impl CopyResult {
    fn add(&mut self, other: Self) {
        self.left_out.extend(other.left_out);
        self.found.extend(other.found);
        self.changed.extend(other.changed);
        self.files += other.files;
        self.bytes += other.bytes;
    }
}

const READ_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);
pub(super) const CREATE_FLAGS: OFlags =
    OFlags::RDWR.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The working state of a thread.
struct CopierState<'p> {
    directories: Option<OpenDirectories<'p>>,
    buffer: Vec<u8>,
}

/// The last directory in which a thread worked, in both trees.
struct OpenDirectories<'p> {
    path: &'p [u8],
    /// `None` if the directory does not exist in the work tree.
    source: Option<OwnedFd>,
    target: OwnedFd,
}

impl MirrorCopier<'_> {
    /// Copies the `wanted` entries at `paths`, where the mirror's old entries have been removed.
    pub(super) fn copy(&self, wanted: &EntryTree, paths: &[Vec<u8>]) -> Result<CopyResult, MirrorError> {
        self.in_parallel(wanted, paths, |path, place, copied| self.copy_covered_path(wanted, path, place, copied))
    }

    /// Copies the current state of the ignored files `paths`, where the mirror's old entries have been removed. A
    /// file is left out if it was deleted, cannot be read, or has grown by more than the `spare` bytes.
    pub(super) fn copy_ignored(
        &self,
        now: &EntryTree,
        paths: &[Vec<u8>],
        (wanted, spare): (&IgnoredSelection<'_>, &SpareBytes),
    ) -> Result<CopyResult, MirrorError> {
        self.in_parallel(now, paths, |path, place, copied| {
            let expected = now.leaf_at_path(path).map_or(ScannedEntry::MISSING, |leaf| leaf.found);
            let found = self.copy_ignored_path(path, expected, place, (wanted, spare))?;
            copied.files += 1;
            copied.left_out.extend(found.err().map(|reason| (path.to_vec(), reason)));
            copied.found.push((path.to_vec(), found.unwrap_or(ScannedEntry::MISSING)));
            Ok(())
        })
    }

    /// Runs `each` for all paths on several threads, after creating their directories in `wanted`.
    fn in_parallel<'p>(
        &self,
        wanted: &EntryTree,
        paths: &'p [Vec<u8>],
        each: impl Fn(&'p [u8], &mut CopierState<'p>, &mut CopyResult) -> Result<(), MirrorError> + Sync,
    ) -> Result<CopyResult, MirrorError> {
        let made = paths.iter().map(Vec::as_slice).filter(|path| wanted.contains(path));
        make_parent_directories(self.tree, self.owner, made)?;
        let next = AtomicUsize::new(0);
        let work = || {
            let (mut copied, mut place) =
                (CopyResult::default(), CopierState { directories: None, buffer: vec![0; BUFFER] });
            loop {
                let from = next.fetch_add(PATHS_PER_BATCH, Ordering::Relaxed);
                let Some(batch) =
                    paths.get(from..paths.len().min(from + PATHS_PER_BATCH)).filter(|batch| !batch.is_empty())
                else {
                    return Ok(copied);
                };
                for path in batch {
                    if let Err(error) = each(path, &mut place, &mut copied) {
                        next.store(paths.len(), Ordering::Relaxed);
                        return Err(error);
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            let copiers = COPIER_THREADS.min(paths.len().div_ceil(PATHS_PER_BATCH));
            let others: Vec<_> = (1..copiers).map(|_| scope.spawn(work)).collect();
            let mut all: Result<CopyResult, MirrorError> = work();
            for other in others {
                let part = other.join().unwrap_or_else(|panic| resume_unwind(panic));
                match (&mut all, part) {
                    (Ok(all), Ok(part)) => all.add(part),
                    (Ok(_), Err(error)) => all = Err(error),
                    (Err(_), _) => {}
                }
            }
            all
        })
    }

    fn copy_covered_path<'p>(
        &self,
        wanted: &EntryTree,
        path: &'p [u8],
        state: &mut CopierState<'p>,
        copied: &mut CopyResult,
    ) -> Result<(), MirrorError> {
        let failed = |error: std::io::Error| MirrorError::io(path, error);
        let expected = wanted.leaf_at_path(path).map_or(ScannedEntry::MISSING, |leaf| leaf.found);
        if matches!(expected.kind, ScannedKind::Missing | ScannedKind::IgnoreRules) {
            copied.found.push((path.to_vec(), ScannedEntry::MISSING));
            return Ok(());
        }
        let name = paths::file_name(path);
        let (here, buffer) = self.open_directories_of(path, state).map_err(failed)?;
        let target = here.target.as_fd();
        let made = match (expected.kind, &here.source) {
            (ScannedKind::Gitlink, _) => self.make_repository_directory(target, name, expected).map(Some),
            (_, None) => Ok(None),
            (ScannedKind::Symlink, Some(source)) => self.copy_link(source.as_fd(), target, name, expected),
            (ScannedKind::Special, Some(_)) => self.make_special(target, name, expected).map(Some),
            (_, Some(source)) => self.copy_file(source.as_fd(), target, name, expected, buffer),
        };
        match made.map_err(|errno| failed(errno.into()))? {
            Some(found) => {
                copied.files += 1;
                copied.bytes += found.stat.size;
                copied.found.push((path.to_vec(), found));
            }
            None => {
                copied.changed.push(path.to_vec());
                copied.found.push((path.to_vec(), ScannedEntry::MISSING));
            }
        }
        Ok(())
    }

    /// Copies the entry at an ignored path.
    fn copy_ignored_path<'p>(
        &self,
        path: &'p [u8],
        expected: ScannedEntry,
        state: &mut CopierState<'p>,
        bounds: (&IgnoredSelection<'_>, &SpareBytes),
    ) -> Result<IgnoredCopy, MirrorError> {
        let failed = |error: std::io::Error| MirrorError::io(path, error);
        let name = paths::file_name(path);
        let (here, buffer) = self.open_directories_of(path, state).map_err(failed)?;
        let (target, source) = (here.target.as_fd(), here.source.as_ref());
        let made = match (expected.kind, source) {
            (ScannedKind::EmptyDirectory, _) => self.make_repository_directory(target, name, expected).map(Ok),
            (_, None) => Ok(Err(GONE_DURING_COPY)),
            (ScannedKind::Symlink, Some(source)) => self.copy_ignored_link(source.as_fd(), target, name, expected),
            (_, Some(source)) => self.copy_ignored_file(source.as_fd(), target, name, expected, (bounds, buffer)),
        };
        made.map_err(|errno| failed(errno.into()))
    }

    fn copy_ignored_link(
        &self,
        source: BorrowedFd<'_>,
        target: BorrowedFd<'_>,
        name: &[u8],
        expected: ScannedEntry,
    ) -> Result<IgnoredCopy, Errno> {
        let link = match readlinkat(source, name, Vec::new()) {
            Ok(link) => link,
            Err(Errno::NOENT | Errno::INVAL | Errno::NOTDIR) => return Ok(Err(GONE_DURING_COPY)),
            Err(errno) => return Err(errno),
        };
        symlinkat(link.as_c_str(), target, name)?;
        set_owner_and_mtime(target, name, self.owner, expected.stat.mtime)?;
        Ok(Ok(ScannedEntry { sha256: Sha256::digest(link.as_bytes()).into(), ..expected }))
    }

    /// Copies a regular file with its permission bits and its modification time. If the file changes during the
    /// copy, the bytes that were read are kept, and the next update copies the file again.
    fn copy_ignored_file(
        &self,
        source: BorrowedFd<'_>,
        target: BorrowedFd<'_>,
        name: &[u8],
        expected: ScannedEntry,
        ((wanted, spare), buffer): ((&IgnoredSelection<'_>, &SpareBytes), &mut [u8]),
    ) -> Result<IgnoredCopy, Errno> {
        let from = match openat(source, name, READ_FLAGS, Mode::empty()) {
            Ok(from) => from,
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO | Errno::NOTDIR) => return Ok(Err(GONE_DURING_COPY)),
            Err(Errno::ACCESS) => return Ok(Err(NOT_READABLE_BY_STEPS)),
            Err(errno) => return Err(errno),
        };
        let stat = fstat(&from)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(Err(GONE_DURING_COPY));
        }
        if wanted.rights.is_some_and(|rights| !rights.can_read(&stat)) {
            return Ok(Err(NOT_READABLE_BY_STEPS));
        }
        let to = openat(target, name, CREATE_FLAGS, Mode::from_raw_mode(0o600))?;
        let stamp = FileStat::from_stat(&stat);
        let mut room = FileByteBudget { bytes: expected.stat.size, spare, reserved: 0 };
        let is_cloned = stamp.size >= MIN_CLONE_BYTES && rustix::fs::ioctl_ficlone(&to, &from).is_ok();
        let sha256 = if is_cloned {
            let size = read_beneath::size_of(&fstat(&to)?);
            if room.reserve_up_to(size) { hash_file(to.as_fd(), size, buffer)? } else { None }
        } else {
            copy_to_end(from.as_fd(), to.as_fd(), &mut room, buffer)?
        };
        let Some(sha256) = sha256 else {
            unlinkat(target, name, AtFlags::empty())?;
            spare.release(room.reserved);
            return Ok(Err(GREW_BEYOND_BUDGET));
        };
        set_owner(to.as_fd(), self.owner)?;
        fchmod(&to, Mode::from_raw_mode(stat.st_mode & 0o777 | 0o400))?;
        futimens(&to, &timestamps(stamp.mtime))?;
        let kind = if read_beneath::is_executable(&stat) { ScannedKind::Executable } else { ScannedKind::File };
        let racy = expected.racy || stamp != expected.stat || FileStat::from_stat(&fstat(&from)?) != stamp;
        Ok(Ok(ScannedEntry { kind, racy, sha256, stat: stamp }))
    }

    /// Opens the directories of a path in both trees, or reuses those of the last path.
    fn open_directories_of<'p, 'w>(
        &self,
        path: &'p [u8],
        state: &'w mut CopierState<'p>,
    ) -> std::io::Result<(&'w OpenDirectories<'p>, &'w mut [u8])> {
        let (directory, _) = paths::split(path);
        let here = match state.directories.take().filter(|here| here.path == directory) {
            Some(here) => here,
            None => self.open_directories(directory)?,
        };
        Ok((state.directories.insert(here), &mut state.buffer))
    }

    fn open_directories<'p>(&self, path: &'p [u8]) -> std::io::Result<OpenDirectories<'p>> {
        let source = match read_beneath::open(self.source, path, OFlags::PATH | OFlags::DIRECTORY) {
            Ok(source) => Some(source),
            Err(error) if read_beneath::is_missing_error(&error) => None,
            Err(error) => return Err(error),
        };
        let target = read_beneath::open(self.tree, path, OFlags::PATH | OFlags::DIRECTORY)?;
        Ok(OpenDirectories { path, source, target })
    }

    /// Copies a regular file. Returns `None` if its content is not the expected one.
    fn copy_file(
        &self,
        source: BorrowedFd<'_>,
        target: BorrowedFd<'_>,
        name: &[u8],
        expected: ScannedEntry,
        buffer: &mut [u8],
    ) -> Result<Option<ScannedEntry>, Errno> {
        let from = match openat(source, name, READ_FLAGS, Mode::empty()) {
            Ok(from) => from,
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO | Errno::NOTDIR) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        if FileType::from_raw_mode(fstat(&from)?.st_mode) != FileType::RegularFile {
            return Ok(None);
        }
        let to = openat(target, name, CREATE_FLAGS, Mode::from_raw_mode(0o600))?;
        let size = expected.stat.size;
        let is_cloned = size >= MIN_CLONE_BYTES && rustix::fs::ioctl_ficlone(&to, &from).is_ok();
        let sha256 = if is_cloned {
            // The clone is private, so its content cannot change while it is hashed.
            hash_file(to.as_fd(), size, buffer)?
        } else {
            copy_exactly(from.as_fd(), to.as_fd(), size, buffer)?
        };
        if sha256 != Some(expected.sha256) {
            unlinkat(target, name, AtFlags::empty())?;
            return Ok(None);
        }
        set_owner(to.as_fd(), self.owner)?;
        let is_executable = expected.kind == ScannedKind::Executable;
        fchmod(&to, Mode::from_raw_mode(if is_executable { 0o755 } else { 0o644 }))?;
        futimens(&to, &timestamps(self.mtime))?;
        Ok(Some(ScannedEntry { racy: false, stat: FileStat::from_stat(&fstat(&to)?), ..expected }))
    }

    /// Copies a symbolic link. Returns `None` if its target is not the expected one.
    fn copy_link(
        &self,
        source: BorrowedFd<'_>,
        target: BorrowedFd<'_>,
        name: &[u8],
        expected: ScannedEntry,
    ) -> Result<Option<ScannedEntry>, Errno> {
        let link = match readlinkat(source, name, Vec::new()) {
            Ok(link) => link,
            Err(Errno::NOENT | Errno::INVAL | Errno::NOTDIR) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        if <[u8; 32]>::from(Sha256::digest(link.as_bytes())) != expected.sha256 {
            return Ok(None);
        }
        symlinkat(link.as_c_str(), target, name)?;
        self.set_entry_metadata(target, name, expected).map(Some)
    }

    /// Creates a FIFO in place of any socket, FIFO or device. Steps do not open it, and the identity contains no
    /// content for it.
    fn make_special(&self, target: BorrowedFd<'_>, name: &[u8], expected: ScannedEntry) -> Result<ScannedEntry, Errno> {
        mknodat(target, name, FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
        self.set_entry_metadata(target, name, expected)
    }

    /// Creates the directory of a nested repository.
    fn make_repository_directory(
        &self,
        target: BorrowedFd<'_>,
        name: &[u8],
        expected: ScannedEntry,
    ) -> Result<ScannedEntry, Errno> {
        match mkdirat(target, name, Mode::from_raw_mode(0o700)) {
            Ok(()) => set_directory_owner(openat(target, name, DIRECTORY_FLAGS, Mode::empty())?.as_fd(), self.owner)?,
            // The directory exists if files in it were copied before.
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        Ok(ScannedEntry { stat: FileStat::default(), ..expected })
    }

    fn set_entry_metadata(
        &self,
        target: BorrowedFd<'_>,
        name: &[u8],
        expected: ScannedEntry,
    ) -> Result<ScannedEntry, Errno> {
        let stat = set_owner_and_mtime(target, name, self.owner, self.mtime)?;
        Ok(ScannedEntry { racy: false, stat: FileStat::from_stat(&stat), ..expected })
    }
}

/// Sets the owner and modification time of an entry.
pub(super) fn set_owner_and_mtime(
    directory: BorrowedFd<'_>,
    name: &[u8],
    owner: Option<MirrorOwner>,
    mtime: FileTime,
) -> Result<Stat, Errno> {
    if let Some(MirrorOwner { uid, gid }) = owner {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        chownat(directory, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    utimensat(directory, name, &timestamps(mtime), AtFlags::SYMLINK_NOFOLLOW)?;
    statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
}

const GONE_DURING_COPY: &str = "it was removed or replaced while it was copied";
const GREW_BEYOND_BUDGET: &str =
    "it grew while it was copied, and the total size would exceed `tree.max_bytes` in proctord.toml";

pub(super) fn timestamps((tv_sec, nanoseconds): FileTime) -> Timestamps {
    let moment = Timespec { tv_sec, tv_nsec: nanoseconds.into() };
    Timestamps { last_access: moment, last_modification: moment }
}

pub(super) fn set_owner(file: BorrowedFd<'_>, owner: Option<MirrorOwner>) -> Result<(), Errno> {
    owner.map_or(Ok(()), |MirrorOwner { uid, gid }| fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))))
}

/// Sets the owner and mode of a directory, regardless of our umask.
pub(super) fn set_directory_owner(directory: BorrowedFd<'_>, owner: Option<MirrorOwner>) -> Result<(), Errno> {
    set_owner(directory, owner)?;
    fchmod(directory, Mode::from_raw_mode(0o755))
}

/// Creates the parent directories of `paths`, which must be sorted.
pub(super) fn make_parent_directories<'p>(
    tree: BorrowedFd<'_>,
    owner: Option<MirrorOwner>,
    paths: impl IntoIterator<Item = &'p [u8]>,
) -> Result<(), MirrorError> {
    let mut last: &[u8] = b"";
    for path in paths {
        let (directory, _) = paths::split(path);
        if directory == last {
            continue;
        }
        for above in paths::ancestors(path) {
            if !(paths::is_below(last, above) || last == above) {
                make_directory(tree, above, owner)?;
            }
        }
        last = directory;
    }
    Ok(())
}

pub(super) fn make_directory(tree: BorrowedFd<'_>, path: &[u8], owner: Option<MirrorOwner>) -> Result<(), MirrorError> {
    let failed = |errno: Errno| MirrorError::io(path, errno);
    let (above, name) = paths::split(path);
    let above = read_beneath::open(tree, above, OFlags::PATH | OFlags::DIRECTORY);
    let above = above.map_err(|error| MirrorError::io(path, error))?;
    match mkdirat(above.as_fd(), name, Mode::from_raw_mode(0o700)) {
        Ok(()) => {
            let made = openat(above.as_fd(), name, DIRECTORY_FLAGS, Mode::empty()).map_err(failed)?;
            set_directory_owner(made.as_fd(), owner).map_err(failed)
        }
        Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(failed(errno)),
    }
}

/// Creates all entries of `held` in another tree: directories, and hard links to the files.
pub(super) fn link_all(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    held: &EntryTree,
    owner: Option<MirrorOwner>,
) -> Result<(), MirrorError> {
    for directory in 0..held.directory_count() {
        let path = held.directory_path(directory);
        let covered =
            |leaf: &usize| !matches!(held.leaf_at(*leaf).found.kind, ScannedKind::Missing | ScannedKind::IgnoreRules);
        let leaves: Vec<usize> = held.leaf_range(directory).filter(covered).collect();
        if leaves.is_empty() {
            continue;
        }
        paths::ancestors(path)
            .chain([path])
            .filter(|path| !path.is_empty())
            .try_for_each(|above| make_directory(to, above, owner))?;
        let failed = |error: std::io::Error| MirrorError::io(path, error);
        let source = read_beneath::open(from, path, OFlags::PATH | OFlags::DIRECTORY).map_err(failed)?;
        let target = read_beneath::open(to, path, OFlags::PATH | OFlags::DIRECTORY).map_err(failed)?;
        for leaf in leaves {
            let name = held.leaf_name(leaf);
            if matches!(held.leaf_at(leaf).found.kind, ScannedKind::Gitlink | ScannedKind::EmptyDirectory) {
                make_directory(to, &paths::join(path, name), owner)?;
            } else {
                let linked = linkat(source.as_fd(), name, target.as_fd(), name, AtFlags::empty());
                linked.map_err(|errno| MirrorError::io(&paths::join(path, name), errno))?;
            }
        }
    }
    Ok(())
}

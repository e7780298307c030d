//! Copies files into a mirror and hashes the written bytes.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid};
use rustix::fs::{chownat, fchmod, fchown, fstat, futimens, linkat, mkdirat, mknodat, openat, readlinkat, statat};
use rustix::fs::{symlinkat, unlinkat, utimensat};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

mod bytes;

pub(super) use bytes::write_all;
use bytes::{Room, copy_hashing, copy_hashing_all, hash};

use super::ignored::{DENIED, IgnoredWanted};
use super::{DIRECTORY, MirrorError, Owner};
use crate::beneath;
use crate::entries::{Entries, Found, Kind};
use crate::paths;
use crate::stamp::{Moment, Stamp};

/// Number of threads that copy.
const COPIERS: usize = 2;
/// Number of paths that a thread takes at a time.
const BATCH: usize = 64;
/// Size of the copy buffer, in bytes.
const BUFFER: usize = 128 << 10;
/// Minimum size of a file for cloning, in bytes; for smaller files the system call costs more than it saves.
const CLONED_FROM: u64 = 64 << 10;

/// Copies files from a work tree into a mirror.
#[derive(Clone, Copy)]
pub(super) struct Copier<'a> {
    pub(super) source: BorrowedFd<'a>,
    pub(super) tree: BorrowedFd<'a>,
    pub(super) owner: Option<Owner>,
    /// The modification time of all copied files.
    pub(super) mtime: Moment,
}

/// The result of copying some paths.
#[derive(Debug, Default)]
pub(super) struct Copied {
    /// The new entry of the mirror at each path.
    pub(super) found: Vec<(Vec<u8>, Found)>,
    /// The paths whose content differs from the wanted one.
    pub(super) changed: Vec<Vec<u8>>,
    pub(super) files: usize,
    pub(super) bytes: u64,
    /// The ignored files that were not copied, with the reasons.
    pub(super) left_out: Vec<(Vec<u8>, &'static str)>,
}

/// Number of bytes by which all ignored files together may grow beyond the sizes found by the survey.
pub(super) struct Spare(AtomicU64);

impl Spare {
    pub(super) fn new(bytes: u64) -> Self {
        Self(AtomicU64::new(bytes))
    }

    /// Takes `bytes` from the budget. Returns whether that many bytes were left.
    fn take(&self, bytes: u64) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes)).is_ok()
    }

    fn give_back(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// A copy of an ignored file, or the reason why it was not copied.
type AsItIs = Result<Found, &'static str>;

impl Copied {
    fn add(&mut self, other: Self) {
        self.left_out.extend(other.left_out);
        self.found.extend(other.found);
        self.changed.extend(other.changed);
        self.files += other.files;
        self.bytes += other.bytes;
    }
}

const READ: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);
pub(super) const CREATE: OFlags =
    OFlags::RDWR.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The working state of a thread.
struct Workplace<'p> {
    here: Option<Directories<'p>>,
    buffer: Vec<u8>,
}

/// The last directory in which a thread worked, in both trees.
struct Directories<'p> {
    path: &'p [u8],
    /// `None` if the directory does not exist in the work tree.
    source: Option<OwnedFd>,
    target: OwnedFd,
}

impl Copier<'_> {
    /// Copies the `wanted` entries at `paths`, where the mirror's old entries have been removed.
    pub(super) fn copy(&self, wanted: &Entries, paths: &[Vec<u8>]) -> Result<Copied, MirrorError> {
        self.in_parallel(wanted, paths, |path, place, copied| self.copy_path(wanted, path, place, copied))
    }

    /// Copies the current state of the ignored files `paths`, where the mirror's old entries have been removed. A
    /// file is left out if it was deleted, cannot be read, or has grown by more than the `spare` bytes.
    pub(super) fn copy_ignored(
        &self,
        now: &Entries,
        paths: &[Vec<u8>],
        (wanted, spare): (&IgnoredWanted<'_>, &Spare),
    ) -> Result<Copied, MirrorError> {
        self.in_parallel(now, paths, |path, place, copied| {
            let expected = now.leaf(path).map_or(Found::MISSING, |leaf| leaf.found);
            let found = self.copy_as_it_is(path, expected, place, (wanted, spare))?;
            copied.files += 1;
            copied.left_out.extend(found.err().map(|reason| (path.to_vec(), reason)));
            copied.found.push((path.to_vec(), found.unwrap_or(Found::MISSING)));
            Ok(())
        })
    }

    /// Runs `each` for all paths on several threads, after creating their directories in `wanted`.
    fn in_parallel<'p>(
        &self,
        wanted: &Entries,
        paths: &'p [Vec<u8>],
        each: impl Fn(&'p [u8], &mut Workplace<'p>, &mut Copied) -> Result<(), MirrorError> + Sync,
    ) -> Result<Copied, MirrorError> {
        let made = paths.iter().map(Vec::as_slice).filter(|path| wanted.contains(path));
        make_directories_above(self.tree, self.owner, made)?;
        let next = AtomicUsize::new(0);
        let work = || {
            let (mut copied, mut place) = (Copied::default(), Workplace { here: None, buffer: vec![0; BUFFER] });
            loop {
                let from = next.fetch_add(BATCH, Ordering::Relaxed);
                let Some(batch) = paths.get(from..paths.len().min(from + BATCH)).filter(|batch| !batch.is_empty())
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
            let copiers = COPIERS.min(paths.len().div_ceil(BATCH));
            let others: Vec<_> = (1..copiers).map(|_| scope.spawn(work)).collect();
            let mut all: Result<Copied, MirrorError> = work();
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

    fn copy_path<'p>(
        &self,
        wanted: &Entries,
        path: &'p [u8],
        place: &mut Workplace<'p>,
        copied: &mut Copied,
    ) -> Result<(), MirrorError> {
        let failed = |error: std::io::Error| MirrorError::io(path, error);
        let expected = wanted.leaf(path).map_or(Found::MISSING, |leaf| leaf.found);
        if matches!(expected.kind, Kind::Missing | Kind::Rules) {
            copied.found.push((path.to_vec(), Found::MISSING));
            return Ok(());
        }
        let name = paths::name(path);
        let (here, buffer) = self.enter(path, place).map_err(failed)?;
        let target = here.target.as_fd();
        let made = match (expected.kind, &here.source) {
            (Kind::Gitlink, _) => self.make_gitlink(target, name, expected).map(Some),
            (_, None) => Ok(None),
            (Kind::Symlink, Some(source)) => self.copy_link(source.as_fd(), target, name, expected),
            (Kind::Special, Some(_)) => self.make_special(target, name, expected).map(Some),
            (_, Some(source)) => self.copy_file(source.as_fd(), target, name, expected, buffer),
        };
        match made.map_err(|errno| failed(errno.into()))? {
            Some(found) => {
                copied.files += 1;
                copied.bytes += found.stamp.size;
                copied.found.push((path.to_vec(), found));
            }
            None => {
                copied.changed.push(path.to_vec());
                copied.found.push((path.to_vec(), Found::MISSING));
            }
        }
        Ok(())
    }

    /// Copies the entry at an ignored path.
    fn copy_as_it_is<'p>(
        &self,
        path: &'p [u8],
        expected: Found,
        place: &mut Workplace<'p>,
        bounds: (&IgnoredWanted<'_>, &Spare),
    ) -> Result<AsItIs, MirrorError> {
        let failed = |error: std::io::Error| MirrorError::io(path, error);
        let name = paths::name(path);
        let (here, buffer) = self.enter(path, place).map_err(failed)?;
        let (target, source) = (here.target.as_fd(), here.source.as_ref());
        let made = match (expected.kind, source) {
            (Kind::EmptyDirectory, _) => self.make_gitlink(target, name, expected).map(Ok),
            (_, None) => Ok(Err(GONE)),
            (Kind::Symlink, Some(source)) => self.copy_link_as_it_is(source.as_fd(), target, name, expected),
            (_, Some(source)) => self.copy_file_as_it_is(source.as_fd(), target, name, expected, (bounds, buffer)),
        };
        made.map_err(|errno| failed(errno.into()))
    }

    fn copy_link_as_it_is(
        &self,
        source: BorrowedFd<'_>,
        target: BorrowedFd<'_>,
        name: &[u8],
        expected: Found,
    ) -> Result<AsItIs, Errno> {
        let link = match readlinkat(source, name, Vec::new()) {
            Ok(link) => link,
            Err(Errno::NOENT | Errno::INVAL | Errno::NOTDIR) => return Ok(Err(GONE)),
            Err(errno) => return Err(errno),
        };
        symlinkat(link.as_c_str(), target, name)?;
        date_entry(target, name, self.owner, expected.stamp.mtime)?;
        Ok(Ok(Found { sha256: Sha256::digest(link.as_bytes()).into(), ..expected }))
    }

    /// Copies a regular file with its permission bits and its modification time. If the file changes during the
    /// copy, the bytes that were read are kept, and the next update copies the file again.
    fn copy_file_as_it_is(
        &self,
        source: BorrowedFd<'_>,
        target: BorrowedFd<'_>,
        name: &[u8],
        expected: Found,
        ((wanted, spare), buffer): ((&IgnoredWanted<'_>, &Spare), &mut [u8]),
    ) -> Result<AsItIs, Errno> {
        let from = match openat(source, name, READ, Mode::empty()) {
            Ok(from) => from,
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO | Errno::NOTDIR) => return Ok(Err(GONE)),
            Err(Errno::ACCESS) => return Ok(Err(DENIED)),
            Err(errno) => return Err(errno),
        };
        let stat = fstat(&from)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(Err(GONE));
        }
        if wanted.rights.is_some_and(|rights| !rights.can_read(&stat)) {
            return Ok(Err(DENIED));
        }
        let to = openat(target, name, CREATE, Mode::from_raw_mode(0o600))?;
        let stamp = Stamp::of(&stat);
        let mut room = Room { bytes: expected.stamp.size, spare, taken: 0 };
        let is_cloned = stamp.size >= CLONED_FROM && rustix::fs::ioctl_ficlone(&to, &from).is_ok();
        let sha256 = if is_cloned {
            let size = beneath::size_of(&fstat(&to)?);
            if room.holds(size) { hash(to.as_fd(), size, buffer)? } else { None }
        } else {
            copy_hashing_all(from.as_fd(), to.as_fd(), &mut room, buffer)?
        };
        let Some(sha256) = sha256 else {
            unlinkat(target, name, AtFlags::empty())?;
            spare.give_back(room.taken);
            return Ok(Err(GROWN));
        };
        give(to.as_fd(), self.owner)?;
        fchmod(&to, Mode::from_raw_mode(stat.st_mode & 0o777 | 0o400))?;
        futimens(&to, &times(stamp.mtime))?;
        let kind = if beneath::is_executable(&stat) { Kind::Executable } else { Kind::File };
        let racy = expected.racy || stamp != expected.stamp || Stamp::of(&fstat(&from)?) != stamp;
        Ok(Ok(Found { kind, racy, sha256, stamp }))
    }

    /// Opens the directories of a path in both trees, or reuses those of the last path.
    fn enter<'p, 'w>(
        &self,
        path: &'p [u8],
        place: &'w mut Workplace<'p>,
    ) -> std::io::Result<(&'w Directories<'p>, &'w mut [u8])> {
        let (directory, _) = paths::split(path);
        let here = match place.here.take().filter(|here| here.path == directory) {
            Some(here) => here,
            None => self.open(directory)?,
        };
        Ok((place.here.insert(here), &mut place.buffer))
    }

    fn open<'p>(&self, path: &'p [u8]) -> std::io::Result<Directories<'p>> {
        let source = match beneath::open(self.source, path, OFlags::PATH | OFlags::DIRECTORY) {
            Ok(source) => Some(source),
            Err(error) if beneath::is_nothing(&error) => None,
            Err(error) => return Err(error),
        };
        let target = beneath::open(self.tree, path, OFlags::PATH | OFlags::DIRECTORY)?;
        Ok(Directories { path, source, target })
    }

    /// Copies a regular file. Returns `None` if its content is not the expected one.
    fn copy_file(
        &self,
        source: BorrowedFd<'_>,
        target: BorrowedFd<'_>,
        name: &[u8],
        expected: Found,
        buffer: &mut [u8],
    ) -> Result<Option<Found>, Errno> {
        let from = match openat(source, name, READ, Mode::empty()) {
            Ok(from) => from,
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO | Errno::NOTDIR) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        if FileType::from_raw_mode(fstat(&from)?.st_mode) != FileType::RegularFile {
            return Ok(None);
        }
        let to = openat(target, name, CREATE, Mode::from_raw_mode(0o600))?;
        let size = expected.stamp.size;
        let is_cloned = size >= CLONED_FROM && rustix::fs::ioctl_ficlone(&to, &from).is_ok();
        let sha256 = if is_cloned {
            // The clone is private, so its content cannot change while it is hashed.
            hash(to.as_fd(), size, buffer)?
        } else {
            copy_hashing(from.as_fd(), to.as_fd(), size, buffer)?
        };
        if sha256 != Some(expected.sha256) {
            unlinkat(target, name, AtFlags::empty())?;
            return Ok(None);
        }
        give(to.as_fd(), self.owner)?;
        let is_executable = expected.kind == Kind::Executable;
        fchmod(&to, Mode::from_raw_mode(if is_executable { 0o755 } else { 0o644 }))?;
        futimens(&to, &times(self.mtime))?;
        Ok(Some(Found { racy: false, stamp: Stamp::of(&fstat(&to)?), ..expected }))
    }

    /// Copies a symbolic link. Returns `None` if its target is not the expected one.
    fn copy_link(
        &self,
        source: BorrowedFd<'_>,
        target: BorrowedFd<'_>,
        name: &[u8],
        expected: Found,
    ) -> Result<Option<Found>, Errno> {
        let link = match readlinkat(source, name, Vec::new()) {
            Ok(link) => link,
            Err(Errno::NOENT | Errno::INVAL | Errno::NOTDIR) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        if <[u8; 32]>::from(Sha256::digest(link.as_bytes())) != expected.sha256 {
            return Ok(None);
        }
        symlinkat(link.as_c_str(), target, name)?;
        self.finish_entry(target, name, expected).map(Some)
    }

    /// Creates a FIFO in place of any socket, FIFO or device. Steps do not open it, and the identity contains no
    /// content for it.
    fn make_special(&self, target: BorrowedFd<'_>, name: &[u8], expected: Found) -> Result<Found, Errno> {
        mknodat(target, name, FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
        self.finish_entry(target, name, expected)
    }

    /// Creates the directory of a nested repository.
    fn make_gitlink(&self, target: BorrowedFd<'_>, name: &[u8], expected: Found) -> Result<Found, Errno> {
        match mkdirat(target, name, Mode::from_raw_mode(0o700)) {
            Ok(()) => give_directory(openat(target, name, DIRECTORY, Mode::empty())?.as_fd(), self.owner)?,
            // The directory exists if files in it were copied before.
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        Ok(Found { stamp: Stamp::default(), ..expected })
    }

    fn finish_entry(&self, target: BorrowedFd<'_>, name: &[u8], expected: Found) -> Result<Found, Errno> {
        let stat = date_entry(target, name, self.owner, self.mtime)?;
        Ok(Found { racy: false, stamp: Stamp::of(&stat), ..expected })
    }
}

/// Sets the owner and modification time of an entry.
pub(super) fn date_entry(
    directory: BorrowedFd<'_>,
    name: &[u8],
    owner: Option<Owner>,
    mtime: Moment,
) -> Result<Stat, Errno> {
    if let Some(Owner { uid, gid }) = owner {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        chownat(directory, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    utimensat(directory, name, &times(mtime), AtFlags::SYMLINK_NOFOLLOW)?;
    statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
}

const GONE: &str = "it was removed or replaced while it was copied";
const GROWN: &str = "it grew while it was copied, and with it there would be more bytes than `tree.max_bytes` in \
                     proctord.toml";

pub(super) fn times((tv_sec, nanoseconds): Moment) -> Timestamps {
    let moment = Timespec { tv_sec, tv_nsec: nanoseconds.into() };
    Timestamps { last_access: moment, last_modification: moment }
}

pub(super) fn give(file: BorrowedFd<'_>, owner: Option<Owner>) -> Result<(), Errno> {
    owner.map_or(Ok(()), |Owner { uid, gid }| fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))))
}

/// Sets the owner and mode of a directory, regardless of our umask.
pub(super) fn give_directory(directory: BorrowedFd<'_>, owner: Option<Owner>) -> Result<(), Errno> {
    give(directory, owner)?;
    fchmod(directory, Mode::from_raw_mode(0o755))
}

/// Creates the parent directories of `paths`, which must be sorted.
pub(super) fn make_directories_above<'p>(
    tree: BorrowedFd<'_>,
    owner: Option<Owner>,
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

pub(super) fn make_directory(tree: BorrowedFd<'_>, path: &[u8], owner: Option<Owner>) -> Result<(), MirrorError> {
    let failed = |errno: Errno| MirrorError::io(path, errno);
    let (above, name) = paths::split(path);
    let above = beneath::open(tree, above, OFlags::PATH | OFlags::DIRECTORY);
    let above = above.map_err(|error| MirrorError::io(path, error))?;
    match mkdirat(above.as_fd(), name, Mode::from_raw_mode(0o700)) {
        Ok(()) => {
            let made = openat(above.as_fd(), name, DIRECTORY, Mode::empty()).map_err(failed)?;
            give_directory(made.as_fd(), owner).map_err(failed)
        }
        Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(failed(errno)),
    }
}

/// Creates all entries of `held` in another tree: directories, and hard links to the files.
pub(super) fn link_all(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    held: &Entries,
    owner: Option<Owner>,
) -> Result<(), MirrorError> {
    for directory in 0..held.directories() {
        let path = held.directory_path(directory);
        let covered = |leaf: &usize| !matches!(held.leaf_at(*leaf).found.kind, Kind::Missing | Kind::Rules);
        let leaves: Vec<usize> = held.leaves_of(directory).filter(covered).collect();
        if leaves.is_empty() {
            continue;
        }
        paths::ancestors(path)
            .chain([path])
            .filter(|path| !path.is_empty())
            .try_for_each(|above| make_directory(to, above, owner))?;
        let failed = |error: std::io::Error| MirrorError::io(path, error);
        let source = beneath::open(from, path, OFlags::PATH | OFlags::DIRECTORY).map_err(failed)?;
        let target = beneath::open(to, path, OFlags::PATH | OFlags::DIRECTORY).map_err(failed)?;
        for leaf in leaves {
            let name = held.name_of(leaf);
            if matches!(held.leaf_at(leaf).found.kind, Kind::Gitlink | Kind::EmptyDirectory) {
                make_directory(to, &paths::join(path, name), owner)?;
            } else {
                let linked = linkat(source.as_fd(), name, target.as_fd(), name, AtFlags::empty());
                linked.map_err(|errno| MirrorError::io(&paths::join(path, name), errno))?;
            }
        }
    }
    Ok(())
}

//! A copy of the tree, for kernels that make no overlay: the repository, and the layers below on top
//! of it, as an overlay would show them. What the step changes in the copy is found by `seal`.
//!
//! Everything is reached by descriptors and names, never through a symbolic link: whoever owns the
//! repository may change it meanwhile.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, RawMode, Stat, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use super::mounts::Owner;

/// How deep directories may lie in each other: each level takes descriptors and some stack.
const MAX_DEPTH: usize = 256;
/// The mark by which a directory of a layer hides what lies below it, `userxattr` of overlayfs.
pub(super) const OPAQUE: &str = "user.overlay.opaque";

/// What is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// The repository: never changed, not even where it cannot be read.
    Repository,
    /// The upper directory of a layer, which is ours.
    Layer,
}

/// Makes the copy.
#[derive(Debug)]
pub(super) struct Copier {
    /// Whose the copies are, where they are not made by their owner.
    pub(super) owner: Option<Owner>,
    /// Directories of the tree of which nothing is copied but themselves.
    pub(super) hollow: BTreeSet<Vec<u8>>,
    /// How many entries could not be read, or cannot be copied: sockets and devices.
    pub(super) left_out: u64,
}

impl Copier {
    /// Copies what is in the repository into an empty directory.
    ///
    /// # Errors
    /// There is no room, or the tree is deeper than 256 directories.
    pub(super) fn repository(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
        self.directory(Source::Repository, &readable(from)?, to, b"", 0)
    }

    /// Lays a layer over it.
    ///
    /// # Errors
    /// As [`repository`](Self::repository), or an entry of it cannot be read.
    pub(super) fn layer(&mut self, upper: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
        self.directory(Source::Layer, &readable(upper)?, to, b"", 0)
    }

    fn directory(
        &mut self,
        source: Source,
        from: &OwnedFd,
        to: BorrowedFd<'_>,
        path: &[u8],
        depth: usize,
    ) -> io::Result<()> {
        if depth > MAX_DEPTH {
            return Err(io::Error::other(format!("directories are nested more than {MAX_DEPTH} levels deep")));
        }
        for name in names(from)? {
            let path = join(path, &name);
            match self.entry(source, from, to, &name, &path, depth) {
                Ok(()) => {}
                // Gone since it was listed, or nothing that we may read: then the step may not
                // either, and what it misses shows.
                Err(error) if source == Source::Repository && is_unreadable(&error) => self.left_out += 1,
                Err(error) => return Err(told(&error, &path)),
            }
        }
        Ok(())
    }

    fn entry(
        &mut self,
        source: Source,
        from: &OwnedFd,
        to: BorrowedFd<'_>,
        name: &[u8],
        path: &[u8],
        depth: usize,
    ) -> io::Result<()> {
        let stat = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if !self.may_be_shown(source, &stat) {
            self.left_out += 1;
            return Ok(());
        }
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => return self.subdirectory(source, from, to, (name, path), &stat, depth),
            FileType::CharacterDevice if source == Source::Layer && stat.st_rdev == 0 => return remove(to, name),
            FileType::RegularFile => {
                let content = open_source(source, from, name, &stat, OFlags::NONBLOCK | OFlags::NOCTTY)?;
                self.clear(source, to, name)?;
                let file = copy_content(&content, to, name)?;
                return self.finish(file.as_fd(), &stat);
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(from, name, Vec::new())?;
                self.clear(source, to, name)?;
                rustix::fs::symlinkat(target, to, name)?;
            }
            FileType::Fifo => {
                self.clear(source, to, name)?;
                rustix::fs::mknodat(to, name, FileType::Fifo, permissions(stat.st_mode), 0)?;
            }
            _ => {
                self.left_out += 1;
                return Ok(());
            }
        }
        if let Some(Owner { uid, gid }) = self.owner {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            rustix::fs::chownat(to, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(rustix::fs::utimensat(to, name, &times(&stat), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn subdirectory(
        &mut self,
        source: Source,
        from: &OwnedFd,
        to: BorrowedFd<'_>,
        (name, path): (&[u8], &[u8]),
        stat: &Stat,
        depth: usize,
    ) -> io::Result<()> {
        let inner = open_source(source, from, name, stat, OFlags::DIRECTORY)?;
        let stands = rustix::fs::statat(to, name, AtFlags::SYMLINK_NOFOLLOW).ok();
        let is_dir = stands.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir());
        if !is_dir || (source == Source::Layer && is_opaque(&inner)?) {
            self.clear(source, to, name)?;
            rustix::fs::mkdirat(to, name, Mode::RWXU)?;
        }
        let outer = open_writable(to, name)?;
        if !self.hollow.contains(path) {
            self.directory(source, &inner, outer.as_fd(), path, depth + 1)?;
        }
        // Last: it may take our own right to write away, and each new entry sets the time.
        self.finish(outer.as_fd(), stat)
    }

    /// What root copies for somebody else: what that one could not read is not shown.
    fn may_be_shown(&self, source: Source, stat: &Stat) -> bool {
        let others = if FileType::from_raw_mode(stat.st_mode).is_dir() { 0o005 } else { 0o004 };
        let is_link = FileType::from_raw_mode(stat.st_mode).is_symlink();
        self.owner.is_none()
            || source == Source::Layer
            || is_link
            || stat.st_uid == 0
            || self.owner.is_some_and(|owner| owner.uid == stat.st_uid)
            || stat.st_mode & others == others
    }

    /// Takes away what a layer replaces.
    fn clear(&self, source: Source, to: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
        if source == Source::Layer { remove(to, name) } else { Ok(()) }
    }

    fn finish(&self, made: BorrowedFd<'_>, stat: &Stat) -> io::Result<()> {
        if let Some(Owner { uid, gid }) = self.owner {
            rustix::fs::fchown(made, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        }
        rustix::fs::fchmod(made, permissions(stat.st_mode))?;
        Ok(rustix::fs::futimens(made, &times(stat))?)
    }
}

/// The names in a directory, without `.` and `..`.
pub(super) fn names(dir: &OwnedFd) -> io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    Ok(names)
}

/// A path of the tree, as bytes.
pub(super) fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A directory of which we hold any descriptor, for reading.
pub(super) fn readable(dir: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(dir, ".", DIRECTORY, Mode::empty())?)
}

/// A directory of ours, whatever its mode is: afterwards its owner may read and write it.
pub(super) fn open_writable(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<OwnedFd> {
    let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if !Mode::from_raw_mode(stat.st_mode).contains(Mode::RWXU) && FileType::from_raw_mode(stat.st_mode).is_dir() {
        let mode = permissions(stat.st_mode) | Mode::RWXU;
        rustix::fs::chmodat(parent, name, mode, AtFlags::empty())?;
    }
    Ok(rustix::fs::openat(parent, name, DIRECTORY, Mode::empty())?)
}

/// Removes what stands at `name` of a tree of ours, with all that is in it; that nothing is there
/// is no error. No deeper than the copy can be.
pub(super) fn remove(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(errno) => return Err(errno.into()),
    }
    let dir = open_writable(parent, name)?;
    for inner in names(&dir)? {
        remove(dir.as_fd(), &inner)?;
    }
    Ok(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}

/// Without set-id bits: nothing that a step executes hands anybody's rights on.
pub(super) fn permissions(mode: RawMode) -> Mode {
    Mode::from_raw_mode(mode) & Mode::from_raw_mode(0o1777)
}

fn times(stat: &Stat) -> Timestamps {
    let at = |seconds: i64, nanoseconds: u64| Timespec { tv_sec: seconds, tv_nsec: nanoseconds.cast_signed() };
    Timestamps {
        last_access: at(stat.st_atime, stat.st_atime_nsec),
        last_modification: at(stat.st_mtime, stat.st_mtime_nsec),
    }
}

/// Shares the blocks where the file system can do that; else the kernel copies.
fn copy_content(from: &OwnedFd, to: BorrowedFd<'_>, name: &[u8]) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(to, name, flags, Mode::RUSR | Mode::WUSR)?);
    if rustix::fs::ioctl_ficlone(&file, from).is_err() {
        io::copy(&mut File::from(from.try_clone()?), &mut &file)?;
    }
    Ok(file)
}

/// Opens what was looked at, for reading. A mode that a step gave its own file is lifted for a
/// moment; that of the repository is not.
fn open_source(source: Source, dir: &OwnedFd, name: &[u8], stat: &Stat, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Err(Errno::ACCESS) if source == Source::Layer => {
            let held = rustix::fs::openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
            // chmod of an O_PATH descriptor works by its name in /proc only.
            let by_name = format!("/proc/self/fd/{}", held.as_raw_fd());
            let mode = Mode::from_raw_mode(stat.st_mode);
            rustix::fs::chmod(&by_name, mode | Mode::RUSR | Mode::XUSR)?;
            let opened = rustix::fs::openat(dir, name, flags, Mode::empty());
            rustix::fs::chmod(&by_name, mode)?;
            opened?
        }
        other => other?,
    };
    let now = rustix::fs::fstat(&opened)?;
    if (now.st_dev, now.st_ino) == (stat.st_dev, stat.st_ino) { Ok(opened) } else { Err(Errno::NOENT.into()) }
}

fn is_opaque(dir: &OwnedFd) -> io::Result<bool> {
    let mut value = [0; 4];
    match rustix::fs::fgetxattr(dir, OPAQUE, &mut value[..]) {
        Ok(length) => Ok(&value[..length] == b"y"),
        Err(Errno::NODATA | Errno::NOTSUP | Errno::RANGE) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

fn is_unreadable(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::ENOENT | libc::ELOOP | libc::ENOTDIR))
}

/// The error with the path at which it happened; the deepest one is kept.
fn told(error: &io::Error, path: &[u8]) -> io::Error {
    match error.raw_os_error() {
        None => io::Error::other(error.to_string()),
        Some(_) => io::Error::other(format!("`{}`: {error}", String::from_utf8_lossy(path))),
    }
}

//! Copies the tree for kernels that make no overlay: the repository, with the layers below applied to it, as an
//! overlay would show them. `copy_changes` finds the step's changes in the copy.
//!
//! Every entry is opened by descriptor and name, and never through a symbolic link, since the owner of the repository
//! may change it concurrently.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, RawMode, Stat, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use super::mounts::FileOwner;

/// The largest depth of nested directories. Each level needs descriptors and stack space.
const MAX_DEPTH: usize = 256;
/// The attribute by which a directory of a layer hides the directory below it, from overlayfs with `userxattr`.
pub(crate) const OPAQUE: &str = "user.overlay.opaque";

/// The type of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CopySource {
    /// The repository. It is never changed, even if parts of it cannot be read.
    Repository,
    /// The upper directory of a layer, which belongs to proctor.
    Layer,
}

/// Copies the sources, and counts the entries left out.
#[derive(Debug)]
pub(super) struct TreeCopier {
    /// The owner to set on the copies; `None` if the copying process creates them with the right owner.
    pub(super) owner: Option<FileOwner>,
    /// Directories of the tree that are copied without their content.
    pub(super) empty_dirs: BTreeSet<Vec<u8>>,
    /// The number of entries that could not be read, or cannot be copied: sockets and devices.
    pub(super) skipped: u64,
}

impl TreeCopier {
    /// Copies the content of the repository into an empty directory.
    ///
    /// # Errors
    /// There is no space left, or the tree is deeper than 256 directories.
    pub(super) fn copy_repository(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
        self.copy_directory(CopySource::Repository, &reopen_readable(from)?, to, b"", 0)
    }

    /// Applies a layer to the copy.
    ///
    /// # Errors
    /// Those of [`copy_repository`](Self::copy_repository), or an entry of the layer cannot be read.
    pub(super) fn apply_layer(&mut self, upper: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
        self.copy_directory(CopySource::Layer, &reopen_readable(upper)?, to, b"", 0)
    }

    fn copy_directory(
        &mut self,
        source: CopySource,
        from: &OwnedFd,
        to: BorrowedFd<'_>,
        path: &[u8],
        depth: usize,
    ) -> io::Result<()> {
        if depth > MAX_DEPTH {
            return Err(io::Error::other(format!("directories are nested more than {MAX_DEPTH} levels deep")));
        }
        for name in entry_names(from)? {
            let path = join_path(path, &name);
            match self.copy_entry(source, from, to, &name, &path, depth) {
                Ok(()) => {}
                // The entry was removed since it was listed, or may not be read. The step may not read it either, and
                // fails visibly if it needs the entry.
                Err(error) if source == CopySource::Repository && is_unreadable(&error) => self.skipped += 1,
                Err(error) => return Err(with_path(&error, &path)),
            }
        }
        Ok(())
    }

    fn copy_entry(
        &mut self,
        source: CopySource,
        from: &OwnedFd,
        to: BorrowedFd<'_>,
        name: &[u8],
        path: &[u8],
        depth: usize,
    ) -> io::Result<()> {
        let stat = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if !self.is_visible(source, &stat) {
            self.skipped += 1;
            return Ok(());
        }
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => return self.copy_subdirectory(source, from, to, (name, path), &stat, depth),
            FileType::CharacterDevice if source == CopySource::Layer && stat.st_rdev == 0 => {
                return remove_all(to, name);
            }
            FileType::RegularFile => {
                let content = open_source(source, from, name, &stat, OFlags::NONBLOCK | OFlags::NOCTTY)?;
                self.remove_replaced(source, to, name)?;
                let file = copy_content(&content, to, name)?;
                return self.set_metadata(file.as_fd(), &stat);
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(from, name, Vec::new())?;
                self.remove_replaced(source, to, name)?;
                rustix::fs::symlinkat(target, to, name)?;
            }
            FileType::Fifo => {
                self.remove_replaced(source, to, name)?;
                rustix::fs::mknodat(to, name, FileType::Fifo, permission_bits(stat.st_mode), 0)?;
            }
            _ => {
                self.skipped += 1;
                return Ok(());
            }
        }
        if let Some(FileOwner { uid, gid }) = self.owner {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            rustix::fs::chownat(to, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(rustix::fs::utimensat(to, name, &timestamps(&stat), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn copy_subdirectory(
        &mut self,
        source: CopySource,
        from: &OwnedFd,
        to: BorrowedFd<'_>,
        (name, path): (&[u8], &[u8]),
        stat: &Stat,
        depth: usize,
    ) -> io::Result<()> {
        let inner = open_source(source, from, name, stat, OFlags::DIRECTORY)?;
        let existing = rustix::fs::statat(to, name, AtFlags::SYMLINK_NOFOLLOW).ok();
        let is_dir = existing.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir());
        if !is_dir || (source == CopySource::Layer && is_opaque(&inner)?) {
            self.remove_replaced(source, to, name)?;
            rustix::fs::mkdirat(to, name, Mode::RWXU)?;
        }
        let outer = open_writable(to, name)?;
        if !self.empty_dirs.contains(path) {
            self.copy_directory(source, &inner, outer.as_fd(), path, depth + 1)?;
        }
        // Must come last, since the mode may remove write permission, and each new entry changes the times.
        self.set_metadata(outer.as_fd(), stat)
    }

    /// Returns whether a step may see the entry. Root must not copy files for another user who could not read them.
    fn is_visible(&self, source: CopySource, stat: &Stat) -> bool {
        let others = if FileType::from_raw_mode(stat.st_mode).is_dir() { 0o005 } else { 0o004 };
        let is_link = FileType::from_raw_mode(stat.st_mode).is_symlink();
        self.owner.is_none()
            || source == CopySource::Layer
            || is_link
            || stat.st_uid == 0
            || self.owner.is_some_and(|owner| owner.uid == stat.st_uid)
            || stat.st_mode & others == others
    }

    /// Removes the entry that a layer replaces.
    fn remove_replaced(&self, source: CopySource, to: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
        if source == CopySource::Layer { remove_all(to, name) } else { Ok(()) }
    }

    fn set_metadata(&self, made: BorrowedFd<'_>, stat: &Stat) -> io::Result<()> {
        if let Some(FileOwner { uid, gid }) = self.owner {
            rustix::fs::fchown(made, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        }
        rustix::fs::fchmod(made, permission_bits(stat.st_mode))?;
        Ok(rustix::fs::futimens(made, &timestamps(stat))?)
    }
}

/// Returns the names in a directory, without `.` and `..`.
pub(crate) fn entry_names(dir: &OwnedFd) -> io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    Ok(names)
}

/// Appends a name to a path of the tree, as bytes.
pub(crate) fn join_path(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Reopens a directory descriptor of any kind for reading.
pub(crate) fn reopen_readable(dir: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(dir, ".", DIRECTORY, Mode::empty())?)
}

/// Opens a directory of proctor's own, regardless of its mode. Afterwards its owner may read and write it.
pub(super) fn open_writable(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<OwnedFd> {
    let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if !Mode::from_raw_mode(stat.st_mode).contains(Mode::RWXU) && FileType::from_raw_mode(stat.st_mode).is_dir() {
        let mode = permission_bits(stat.st_mode) | Mode::RWXU;
        rustix::fs::chmodat(parent, name, mode, AtFlags::empty())?;
    }
    Ok(rustix::fs::openat(parent, name, DIRECTORY, Mode::empty())?)
}

/// Removes the entry `name` in a tree of proctor's own, with all its contents; an absent entry is not an error. It
/// recurses no deeper than a copy can be.
pub(super) fn remove_all(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(errno) => return Err(errno.into()),
    }
    let dir = open_writable(parent, name)?;
    for inner in entry_names(&dir)? {
        remove_all(dir.as_fd(), &inner)?;
    }
    Ok(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}

/// Returns the permission bits without the set-id bits, so that no program in the copy passes on a user's rights.
pub(crate) fn permission_bits(mode: RawMode) -> Mode {
    Mode::from_raw_mode(mode) & Mode::from_raw_mode(0o1777)
}

fn timestamps(stat: &Stat) -> Timestamps {
    let at = |seconds: i64, nanoseconds: u64| Timespec { tv_sec: seconds, tv_nsec: nanoseconds.cast_signed() };
    Timestamps {
        last_access: at(stat.st_atime, stat.st_atime_nsec),
        last_modification: at(stat.st_mtime, stat.st_mtime_nsec),
    }
}

/// Copies the content of a file. Shares its blocks if the file system supports that; otherwise the kernel copies it.
pub(crate) fn copy_content(from: &OwnedFd, to: BorrowedFd<'_>, name: &[u8]) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(to, name, flags, Mode::RUSR | Mode::WUSR)?);
    if rustix::fs::ioctl_ficlone(&file, from).is_err() {
        io::copy(&mut File::from(from.try_clone()?), &mut &file)?;
    }
    Ok(file)
}

/// Opens an examined entry of a layer for reading, even if a step removed read permission from it.
pub(crate) fn open_layer_entry(dir: &OwnedFd, name: &[u8], stat: &Stat, flags: OFlags) -> io::Result<OwnedFd> {
    open_source(CopySource::Layer, dir, name, stat, flags)
}

/// Opens the examined file for reading. If a step removed read permission from its own file in a layer, the
/// permission is added temporarily; the repository's modes are never changed.
fn open_source(source: CopySource, dir: &OwnedFd, name: &[u8], stat: &Stat, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Err(Errno::ACCESS) if source == CopySource::Layer => {
            let held = rustix::fs::openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
            // The mode of an O_PATH descriptor can be changed only through its name in /proc.
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

/// Adds the path to the error. Only the deepest path is kept.
fn with_path(error: &io::Error, path: &[u8]) -> io::Error {
    match error.raw_os_error() {
        None => io::Error::other(error.to_string()),
        Some(_) => io::Error::other(format!("`{}`: {error}", String::from_utf8_lossy(path))),
    }
}

//! Handles mounts by descriptor: they are created detached, configured while invisible, and then attached. This
//! module does not depend on policies.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, FsPickFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen,
};

use crate::sys::{self, MountScope};

pub(super) const RDONLY: u64 = libc::MOUNT_ATTR_RDONLY;
pub(super) const NOSUID: u64 = libc::MOUNT_ATTR_NOSUID;
pub(super) const NODEV: u64 = libc::MOUNT_ATTR_NODEV;
pub(super) const NOEXEC: u64 = libc::MOUNT_ATTR_NOEXEC;

/// A user and a group.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileOwner {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// An option of a file system: its name and its value.
#[derive(Debug)]
pub(super) struct MountOption(pub(super) &'static str, pub(super) String);

/// Creates a new, detached instance of a file system.
pub(super) fn new_filesystem(kind: &str, options: &[MountOption], attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    let fs = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for MountOption(key, value) in options {
        fsconfig_set_string(&fs, *key, value.as_str()).map_err(|errno| with_kernel_log(&fs, errno))?;
    }
    create_mount(&fs, attributes)
}

/// Finishes the configuration of a file system and creates its mount.
pub(super) fn create_mount(fs: &OwnedFd, attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    fsconfig_create(fs).map_err(|errno| with_kernel_log(fs, errno))?;
    fsmount(fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(|errno| with_kernel_log(fs, errno))
}

/// An error of a mount call with the kernel's explanation.
#[derive(Debug, thiserror::Error)]
#[error("the kernel reports: {message}")]
pub(super) struct MountError {
    pub(super) errno: i32,
    pub(super) message: String,
}

/// Adds the message from the context's log to the error, if there is a message.
pub(super) fn with_kernel_log(fs: &OwnedFd, errno: rustix::io::Errno) -> io::Error {
    let mut text = [0; 512];
    match rustix::io::read(fs, &mut text) {
        // A line of the log consists of a letter for the severity, a space and the text.
        Ok(length) if length > 2 => {
            let message = String::from_utf8_lossy(&text[2..length]).trim().to_owned();
            io::Error::other(MountError { errno: errno.raw_os_error(), message })
        }
        _ => errno.into(),
    }
}

/// The size of a tmpfs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TmpfsSize {
    /// The kernel's default: half of the memory.
    KernelDefault,
    /// A size in bytes, with a proportional number of files.
    Bytes(u64),
}

impl TmpfsSize {
    fn options(self) -> Vec<MountOption> {
        match self {
            Self::KernelDefault => Vec::new(),
            Self::Bytes(bytes) => {
                vec![
                    MountOption("size", bytes.to_string()),
                    MountOption("nr_inodes", proctor_core::model::plan::max_files(bytes).to_string()),
                ]
            }
        }
    }
}

/// Creates a detached tmpfs with these permission bits and bounds.
pub(super) fn tmpfs(mode: u32, size: TmpfsSize) -> io::Result<OwnedFd> {
    let mut options = vec![MountOption("mode", format!("{mode:o}"))];
    options.extend(size.options());
    // Access times are off, because reading would change them: a sandbox whose files were only read is reusable.
    let attributes =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOATIME;
    new_filesystem("tmpfs", &options, attributes)
}

/// Changes the size of a mounted tmpfs.
pub(super) fn resize(mount: BorrowedFd<'_>, size: TmpfsSize) -> io::Result<()> {
    let fs = rustix::mount::fspick(mount, "", FsPickFlags::FSPICK_EMPTY_PATH | FsPickFlags::FSPICK_CLOEXEC)?;
    for MountOption(key, value) in size.options() {
        fsconfig_set_string(&fs, key, value.as_str()).map_err(|errno| with_kernel_log(&fs, errno))?;
    }
    rustix::mount::fsconfig_reconfigure(&fs).map_err(|errno| with_kernel_log(&fs, errno))
}

/// Creates a directory in `dir` with this mode and owner. An existing directory keeps its mode and owner.
pub(super) fn create_dir_in(
    dir: BorrowedFd<'_>,
    name: &str,
    mode: u32,
    owner: Option<FileOwner>,
) -> io::Result<OwnedFd> {
    match rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(0o700)) {
        Err(rustix::io::Errno::EXIST) => return open_beneath(dir, Path::new(name)),
        other => other?,
    }
    if let Some(FileOwner { uid, gid }) = owner {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        rustix::fs::chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    // The mode is set in a separate call from mkdir, since the umask restricts the mode of mkdir.
    rustix::fs::chmodat(dir, name, Mode::from_raw_mode(mode), AtFlags::empty())?;
    open_beneath(dir, Path::new(name))
}

/// Creates a detached mount of the entry `name` in `dir`, which must be proctor's own directory.
pub(super) fn clone_beneath(dir: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    Ok(rustix::mount::open_tree(dir, name, flags)?)
}

/// Opens an existing file or directory as a mount point, following links of the host.
pub(super) fn open_mount_point(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, PATH_FLAGS, Mode::empty())?)
}

/// Creates a detached copy of the mount at `path` and of the mounts below it. The path is opened without following
/// symbolic links: the owner of a directory above can create one after the path was resolved, and root would follow
/// it.
pub(super) fn clone_mount(path: &Path) -> io::Result<OwnedFd> {
    clone_mount_at_fd(open_no_symlinks(path)?.as_fd())
}

/// Clones the mount of a device of the host. A device on a read-only mount can still be written, but its mode, owner,
/// attributes and times cannot be changed.
pub(super) fn clone_device(path: &Path) -> io::Result<OwnedFd> {
    let device = clone_mount(path)?;
    set_attributes(device.as_fd(), RDONLY | NOSUID | NOEXEC)?;
    Ok(device)
}

/// Creates a detached copy of the mount at the file that a descriptor names, and of the mounts below it.
pub(super) fn clone_mount_at_fd(found: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    Ok(rustix::mount::open_tree(found, "", flags | OpenTreeFlags::AT_EMPTY_PATH)?)
}

/// Opens an absolute path without following symbolic links; ELOOP if it contains one.
pub(super) fn open_no_symlinks(path: &Path) -> io::Result<OwnedFd> {
    let below: PathBuf = normal_parts(path).collect();
    open_beneath(open_root()?.as_fd(), if below.as_os_str().is_empty() { Path::new(".") } else { &below })
}

/// Sets attributes of a mount and all mounts below it.
pub(super) fn set_attributes(mount: BorrowedFd<'_>, attributes: u64) -> io::Result<()> {
    sys::mount_setattr(mount, MountScope::Recursive, attributes, false, None)
}

/// Maps the owners of a new clone by a user namespace.
pub(super) fn map_owners(mount: BorrowedFd<'_>, owners: BorrowedFd<'_>) -> io::Result<()> {
    sys::mount_setattr(mount, MountScope::Recursive, 0, false, Some(owners))
}

/// Stops the propagation of mount events between this mount namespace and the host's.
pub(super) fn make_all_private() -> io::Result<()> {
    sys::mount_setattr(open_root()?.as_fd(), MountScope::Recursive, 0, true, None)
}

/// Opens `/` as an `O_PATH` descriptor.
pub(super) fn open_root() -> io::Result<OwnedFd> {
    open_dir(Path::new("/"))
}

/// Attaches a detached mount to the file that `target` names.
pub(super) fn attach(mount: BorrowedFd<'_>, target: BorrowedFd<'_>) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(rustix::mount::move_mount(mount, "", target, "", flags)?)
}

/// Attaches a detached mount to an existing directory.
pub(super) fn attach_at(mount: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    attach(mount, open_dir(path)?.as_fd())
}

const PATH_FLAGS: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// Opens an existing directory as an `O_PATH` descriptor.
pub(super) fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, PATH_FLAGS | OFlags::DIRECTORY, Mode::empty())?)
}

/// Opens a directory for reading.
pub(super) fn open_readable_dir(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
}

/// Returns whether a descriptor names a directory.
pub(super) fn is_dir(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode).is_dir())
}

/// The type of a mount point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MountPointKind {
    Directory,
    File,
}

/// Opens the mount point at an absolute path. Creates it and missing directories above it; `owner` returns the owner
/// of a created directory.
pub(super) fn ensure_mount_point(
    path: &Path,
    point: MountPointKind,
    owner: impl Fn(&Path) -> Option<FileOwner>,
) -> io::Result<OwnedFd> {
    let mut here = open_root()?;
    let mut so_far = PathBuf::from("/");
    let names: Vec<&OsStr> = normal_parts(path).collect();
    for (index, name) in names.iter().enumerate() {
        so_far.push(name);
        let last = index + 1 == names.len();
        let point = if last { point } else { MountPointKind::Directory };
        here = ensure_entry_in(here.as_fd(), name, point, owner(&so_far))?;
    }
    Ok(here)
}

fn ensure_entry_in(
    dir: BorrowedFd<'_>,
    name: &OsStr,
    point: MountPointKind,
    owner: Option<FileOwner>,
) -> io::Result<OwnedFd> {
    match rustix::fs::openat(dir, name, PATH_FLAGS, Mode::empty()) {
        Err(rustix::io::Errno::NOENT) => {}
        other => return Ok(other?),
    }
    match point {
        MountPointKind::Directory => rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(0o755))?,
        MountPointKind::File => drop(make_file(dir, name)?),
    }
    if let Some(FileOwner { uid, gid }) = owner {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        rustix::fs::chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(rustix::fs::openat(dir, name, PATH_FLAGS | OFlags::NOFOLLOW, Mode::empty())?)
}

/// Creates a new file and opens it for writing.
pub(super) fn make_file(dir: BorrowedFd<'_>, name: &OsStr) -> io::Result<std::fs::File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o644))?.into())
}

/// Opens a path below `dir` without following symbolic links.
pub(super) fn open_beneath(dir: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    // O_NOFOLLOW is left out: together with O_PATH it would open a link in the last component itself.
    let open = || rustix::fs::openat2(dir, path, PATH_FLAGS, Mode::empty(), resolve);
    // EAGAIN: a concurrent rename kept the kernel from verifying a `..` component. The paths here contain none, so a
    // retry succeeds.
    loop {
        match open() {
            Err(rustix::io::Errno::AGAIN) => {}
            other => return Ok(other?),
        }
    }
}

/// Opens a directory below `dir` without following symbolic links, and creates missing directories.
pub(super) fn ensure_dir_beneath(dir: BorrowedFd<'_>, path: &Path, owner: Option<FileOwner>) -> io::Result<OwnedFd> {
    let mut here = open_beneath(dir, Path::new("."))?;
    for name in normal_parts(path) {
        here = match open_beneath(here.as_fd(), Path::new(name)) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                ensure_entry_in(here.as_fd(), name, MountPointKind::Directory, owner)?
            }
            other => other?,
        };
    }
    Ok(here)
}

fn normal_parts(path: &Path) -> impl Iterator<Item = &OsStr> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name),
        _ => None,
    })
}

//! Merges a stack of layers into one directory: a new layer made of hard links, or a writable copy.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{self, AtFlags, FileType, Gid, Mode, OFlags, RawMode, Stat, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use super::CacheFault;
use super::layer::{Entry, MAX_DEPTH, is_opaque, is_whiteout, names, open_dir};

/// How files get into the directory.
#[derive(Debug, Clone, Copy)]
pub(super) enum How {
    /// As hard links to the files of the layers, which are never written again.
    Link,
    /// As copies, owned by this user if one is given.
    Copy {
        /// A user id and a group id.
        owner: Option<(u32, u32)>,
    },
}

/// Creates in the empty directory `to` the tree that `layers` (newest first) show together.
///
/// # Errors
/// An entry cannot be read or created, or directories are nested too deep.
pub(super) fn merge(layers: &[OwnedFd], to: BorrowedFd<'_>, how: How) -> Result<(), CacheFault> {
    let layers: Vec<BorrowedFd<'_>> = layers.iter().map(AsFd::as_fd).collect();
    merge_into(&layers, to, how, &mut Vec::new(), 0)
}

fn merge_into(
    dirs: &[BorrowedFd<'_>],
    to: BorrowedFd<'_>,
    how: How,
    path: &mut Vec<u8>,
    depth: usize,
) -> Result<(), CacheFault> {
    if depth > MAX_DEPTH {
        return Err(CacheFault::TooDeep);
    }
    for (name, found) in entries(dirs, path)? {
        let length = path.len();
        if length > 0 {
            path.push(b'/');
        }
        path.extend_from_slice(name.to_bytes());
        let (at, stat) = found[0];
        let entry = Entry { parent: dirs[at], name: &name, path: &path.clone(), stat };
        if entry.kind().is_dir() {
            let below = shown(dirs, &name, &found).map_err(entry.fault("open"))?;
            let made = make_dir(to, &name).map_err(entry.fault("make"))?;
            let below: Vec<BorrowedFd<'_>> = below.iter().map(AsFd::as_fd).collect();
            merge_into(&below, made.as_fd(), how, path, depth + 1)?;
            // This comes last: the mode may deny us access, and each new entry changes the modification time.
            finish(made.as_fd(), &stat, how).map_err(entry.fault("finish"))?;
        } else if !is_whiteout(&stat) {
            place(&entry, to, how).map_err(entry.fault("take"))?;
        }
        path.truncate(length);
    }
    Ok(())
}

/// Returns each name in these directories, with the directories that contain it, newest first.
fn entries(dirs: &[BorrowedFd<'_>], path: &[u8]) -> Result<BTreeMap<CString, Vec<(usize, Stat)>>, CacheFault> {
    let mut found: BTreeMap<CString, Vec<(usize, Stat)>> = BTreeMap::new();
    let fault = |errno: Errno| CacheFault::Entry {
        action: "list",
        path: proctor_core::drift::display_path(path),
        source: errno.into(),
    };
    for (at, dir) in dirs.iter().enumerate() {
        for name in names(*dir).map_err(fault)? {
            let stat = fs::statat(*dir, &name, AtFlags::SYMLINK_NOFOLLOW).map_err(fault)?;
            found.entry(name).or_default().push((at, stat));
        }
    }
    Ok(found)
}

/// Opens the directories of a name that appear merged: down to the first that is opaque, or to an entry that is not
/// a directory.
fn shown(dirs: &[BorrowedFd<'_>], name: &CStr, found: &[(usize, Stat)]) -> rustix::io::Result<Vec<OwnedFd>> {
    let mut shown = Vec::new();
    for (at, stat) in found {
        if !FileType::from_raw_mode(stat.st_mode).is_dir() {
            break;
        }
        let dir = open_dir(dirs[*at], name)?;
        let hides = is_opaque(dir.as_fd())?;
        shown.push(dir);
        if hides {
            break;
        }
    }
    Ok(shown)
}

fn make_dir(to: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<OwnedFd> {
    fs::mkdirat(to, name, Mode::RWXU)?;
    open_dir(to, name)
}

fn place(entry: &Entry<'_>, to: BorrowedFd<'_>, how: How) -> rustix::io::Result<()> {
    if let How::Link = how {
        match fs::linkat(entry.parent, entry.name, to, entry.name, AtFlags::empty()) {
            // The file has the maximum number of links, so it is copied.
            Err(Errno::MLINK) => {}
            other => return other,
        }
    }
    if entry.kind().is_symlink() {
        let target = fs::readlinkat(entry.parent, entry.name, Vec::new())?;
        fs::symlinkat(&target, to, entry.name)?;
        let (uid, gid) = owner(&entry.stat, how);
        fs::chownat(to, entry.name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        return fs::utimensat(to, entry.name, &times(&entry.stat), AtFlags::SYMLINK_NOFOLLOW);
    }
    let from = fs::openat(
        entry.parent,
        entry.name,
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = File::from(fs::openat(to, entry.name, flags, Mode::RUSR | Mode::WUSR)?);
    if fs::ioctl_ficlone(&file, &from).is_err() {
        let copied = std::io::copy(&mut File::from(from), &mut &file);
        copied.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    }
    finish(file.as_fd(), &entry.stat, how)
}

fn finish(made: BorrowedFd<'_>, stat: &Stat, how: How) -> rustix::io::Result<()> {
    let (uid, gid) = owner(stat, how);
    fs::fchown(made, uid, gid)?;
    fs::fchmod(made, permissions(stat.st_mode))?;
    fs::futimens(made, &times(stat))
}

fn owner(stat: &Stat, how: How) -> (Option<Uid>, Option<Gid>) {
    let (uid, gid) = match how {
        How::Copy { owner: Some(owner) } => owner,
        How::Copy { owner: None } | How::Link => (stat.st_uid, stat.st_gid),
    };
    (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
}

/// Returns the permission bits without set-id bits.
fn permissions(mode: RawMode) -> Mode {
    Mode::from_raw_mode(mode) & Mode::from_raw_mode(0o1777)
}

fn times(stat: &Stat) -> Timestamps {
    let at = |seconds: i64, nanoseconds: u64| Timespec { tv_sec: seconds, tv_nsec: nanoseconds.cast_signed() };
    Timestamps {
        last_access: at(stat.st_atime, stat.st_atime_nsec),
        last_modification: at(stat.st_mtime, stat.st_mtime_nsec),
    }
}

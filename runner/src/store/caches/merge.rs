//! Merges a stack of layers into one directory: a new layer made of hard links, or a writable copy.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{self, AtFlags, FileType, Gid, Mode, OFlags, RawMode, Stat, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use super::cache_layer::{MAX_DEPTH, WalkedEntry, is_opaque, is_whiteout, open_dir, sorted_names};
use super::skill_cache_error::SkillCacheError;

/// How files get into the directory.
#[derive(Debug, Clone, Copy)]
pub(super) enum MergeMode {
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
pub(super) fn merge(layers: &[OwnedFd], to: BorrowedFd<'_>, how: MergeMode) -> Result<(), SkillCacheError> {
    let layers: Vec<BorrowedFd<'_>> = layers.iter().map(AsFd::as_fd).collect();
    merge_into(&layers, to, how, &mut Vec::new(), 0)
}

fn merge_into(
    dirs: &[BorrowedFd<'_>],
    to: BorrowedFd<'_>,
    how: MergeMode,
    path: &mut Vec<u8>,
    depth: usize,
) -> Result<(), SkillCacheError> {
    if depth > MAX_DEPTH {
        return Err(SkillCacheError::TooDeep { most: MAX_DEPTH });
    }
    for (name, found) in entries_by_name(dirs, path)? {
        let length = path.len();
        if length > 0 {
            path.push(b'/');
        }
        path.extend_from_slice(name.to_bytes());
        let (at, stat) = found[0];
        let entry = WalkedEntry { parent: dirs[at], name: &name, path: &path.clone(), stat };
        if entry.kind().is_dir() {
            let below = open_merged_dirs(dirs, &name, &found).map_err(entry.error_for("open"))?;
            let made = make_dir(to, &name).map_err(entry.error_for("make"))?;
            let below: Vec<BorrowedFd<'_>> = below.iter().map(AsFd::as_fd).collect();
            merge_into(&below, made.as_fd(), how, path, depth + 1)?;
            // Must come last: the mode may deny access, and each new entry changes the modification time.
            copy_metadata(made.as_fd(), &stat, how).map_err(entry.error_for("finish"))?;
        } else if !is_whiteout(&stat) {
            place_entry(&entry, to, how).map_err(entry.error_for("take"))?;
        }
        path.truncate(length);
    }
    Ok(())
}

/// Returns each name in these directories, with the directories that contain it, newest first.
fn entries_by_name(
    dirs: &[BorrowedFd<'_>],
    path: &[u8],
) -> Result<BTreeMap<CString, Vec<(usize, Stat)>>, SkillCacheError> {
    let mut found: BTreeMap<CString, Vec<(usize, Stat)>> = BTreeMap::new();
    let fault = |errno: Errno| SkillCacheError::Entry {
        action: "list",
        path: proctor_core::model::drift::display_path(path),
        source: errno.into(),
    };
    for (at, dir) in dirs.iter().enumerate() {
        for name in sorted_names(*dir).map_err(fault)? {
            let stat = fs::statat(*dir, &name, AtFlags::SYMLINK_NOFOLLOW).map_err(fault)?;
            found.entry(name).or_default().push((at, stat));
        }
    }
    Ok(found)
}

/// Opens the directories of a name that appear merged: down to the first that is opaque, or to an entry that is not
/// a directory.
fn open_merged_dirs(dirs: &[BorrowedFd<'_>], name: &CStr, found: &[(usize, Stat)]) -> rustix::io::Result<Vec<OwnedFd>> {
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

fn place_entry(entry: &WalkedEntry<'_>, to: BorrowedFd<'_>, how: MergeMode) -> rustix::io::Result<()> {
    if let MergeMode::Link = how {
        match fs::linkat(entry.parent, entry.name, to, entry.name, AtFlags::empty()) {
            // The file has the maximum number of links, so it is copied.
            Err(Errno::MLINK) => {}
            other => return other,
        }
    }
    if entry.kind().is_symlink() {
        let target = fs::readlinkat(entry.parent, entry.name, Vec::new())?;
        fs::symlinkat(&target, to, entry.name)?;
        let (uid, gid) = new_owner(&entry.stat, how);
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
    copy_metadata(file.as_fd(), &entry.stat, how)
}

fn copy_metadata(made: BorrowedFd<'_>, stat: &Stat, how: MergeMode) -> rustix::io::Result<()> {
    let (uid, gid) = new_owner(stat, how);
    fs::fchown(made, uid, gid)?;
    fs::fchmod(made, permissions(stat.st_mode))?;
    fs::futimens(made, &times(stat))
}

fn new_owner(stat: &Stat, how: MergeMode) -> (Option<Uid>, Option<Gid>) {
    let (uid, gid) = match how {
        MergeMode::Copy { owner: Some(owner) } => owner,
        MergeMode::Copy { owner: None } | MergeMode::Link => (stat.st_uid, stat.st_gid),
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

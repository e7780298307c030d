//! What is in a layer of a cache, and what of the writes of a skill may become one. No other process writes it
//! meanwhile; its names and contents were chosen by a step.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use proctor_core::digest::Sha256Hex;
use proctor_core::drift::display_path;
use rustix::fs::{self, AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use super::CacheFault;

/// How deep directories may lie in each other: each level takes a descriptor.
pub(super) const MAX_DEPTH: usize = 256;
/// How many entries a layer may have.
pub(super) const MAX_ENTRIES: u64 = 4_000_000;
/// What the names of overlayfs's own attributes begin with.
const OVERLAY: &[u8] = b"user.overlay.";
/// The attribute by which a directory of a layer hides the one below it.
pub(super) const OPAQUE: &str = "user.overlay.opaque";
/// Those of its attributes that change nothing of what a layer shows.
const BOOKKEEPING: [&[u8]; 5] = [b"impure", b"origin", b"uuid", b"nlink", b"upper"];
/// The most bytes that the names of the attributes of one entry take (`XATTR_LIST_MAX`).
const MAX_NAMES: usize = 64 << 10;

/// One entry of a tree.
pub(super) struct Entry<'a> {
    /// The directory that it lies in.
    pub(super) parent: BorrowedFd<'a>,
    pub(super) name: &'a CStr,
    /// Its path from the root.
    pub(super) path: &'a [u8],
    pub(super) stat: Stat,
}

impl Entry<'_> {
    pub(super) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    pub(super) fn fault(&self, action: &'static str) -> impl FnOnce(Errno) -> CacheFault {
        let path = display_path(self.path);
        move |errno| CacheFault::Entry { action, path, source: errno.into() }
    }

    /// The entry by a path, for calls that know no directories: a name below a descriptor of ours.
    fn by_path(&self) -> Vec<u8> {
        [format!("/proc/self/fd/{}/", self.parent.as_raw_fd()).as_bytes(), self.name.to_bytes()].concat()
    }
}

/// Whether it marks what was deleted.
pub(super) fn is_whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens a directory below one of ours, without following a link.
pub(super) fn open_dir(parent: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<OwnedFd> {
    fs::openat(parent, name, DIRECTORY, Mode::empty())
}

/// The names in a directory, sorted, without `.` and `..`.
pub(super) fn names(dir: BorrowedFd<'_>) -> rustix::io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in fs::Dir::read_from(dir)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Visits every entry below `root`, directories before what is in them, in an order that the tree alone decides.
///
/// # Errors
/// Those of `visit`; or a directory cannot be read, or one of the bounds is met.
pub(super) fn walk(
    root: BorrowedFd<'_>,
    visit: &mut dyn FnMut(&Entry<'_>) -> Result<(), CacheFault>,
) -> Result<(), CacheFault> {
    let mut left = MAX_ENTRIES;
    walk_below(root, &mut Vec::new(), 0, &mut left, visit)
}

fn walk_below(
    dir: BorrowedFd<'_>,
    path: &mut Vec<u8>,
    depth: usize,
    left: &mut u64,
    visit: &mut dyn FnMut(&Entry<'_>) -> Result<(), CacheFault>,
) -> Result<(), CacheFault> {
    if depth > MAX_DEPTH {
        return Err(CacheFault::TooDeep);
    }
    let listed = names(dir);
    for name in listed.map_err(|errno| CacheFault::entry("list", path, errno))? {
        *left = left.checked_sub(1).ok_or(CacheFault::TooMany)?;
        let length = path.len();
        if length > 0 {
            path.push(b'/');
        }
        path.extend_from_slice(name.to_bytes());
        let stat = fs::statat(dir, &name, AtFlags::SYMLINK_NOFOLLOW);
        let stat = stat.map_err(|errno| CacheFault::entry("look at", path, errno))?;
        visit(&Entry { parent: dir, name: &name, path, stat })?;
        if FileType::from_raw_mode(stat.st_mode).is_dir() {
            let inner = open_dir(dir, &name).map_err(|errno| CacheFault::entry("open", path, errno))?;
            walk_below(inner.as_fd(), path, depth + 1, left, visit)?;
        }
        path.truncate(length);
    }
    Ok(())
}

/// What a layer holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Survey {
    /// A digest of the names, kinds, modes, owners, sizes, inodes and times of modification of all entries, and of the
    /// targets of links. Contents are not read.
    pub(super) seal: Sha256Hex,
    /// How many bytes it takes on the disk.
    pub(super) bytes: u64,
    pub(super) entries: u64,
}

/// Looks at every entry of a layer, and changes nothing.
///
/// # Errors
/// A directory cannot be read, or one of the bounds is met.
pub(super) fn survey(root: BorrowedFd<'_>) -> Result<Survey, CacheFault> {
    let (mut hash, mut bytes, mut entries) = (Sha256::new(), 0u64, 0u64);
    walk(root, &mut |entry| {
        let stat = &entry.stat;
        hash.update(u64::try_from(entry.path.len()).unwrap_or(u64::MAX).to_le_bytes());
        hash.update(entry.path);
        // The size of a directory tells how the file system keeps it, and not what is in it.
        let size = if entry.kind().is_dir() { 0 } else { stat.st_size };
        for number in [i64::from(stat.st_mode), i64::from(stat.st_uid), i64::from(stat.st_gid), size, stat.st_mtime] {
            hash.update(number.to_le_bytes());
        }
        for number in [stat.st_mtime_nsec, stat.st_ino, stat.st_rdev] {
            hash.update(number.to_le_bytes());
        }
        if entry.kind().is_symlink() {
            let target = fs::readlinkat(entry.parent, entry.name, Vec::new()).map_err(entry.fault("read"))?;
            hash.update(target.to_bytes_with_nul());
        }
        bytes = bytes.saturating_add(u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512));
        entries += 1;
        Ok(())
    })?;
    Ok(Survey { seal: Sha256Hex::from_raw(hash.finalize().into()), bytes, entries })
}

/// What is done with the writes of a skill before they become a layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// Whether they are the upper directory of an overlay, in which deletions are marked; else the directory holds
    /// everything.
    pub(super) is_overlay: bool,
    /// Whose they become, where steps of each run are a user of their own.
    pub(super) owner: Option<(u32, u32)>,
}

/// Takes out of the writes of a skill what no layer may hold: sockets, fifos and devices go, set-id bits too, and
/// whatever overlayfs would take for instructions of its own is refused. Returns the paths that went.
///
/// # Errors
/// Something cannot be changed or read, or has an attribute of overlayfs that is not to be there.
pub(super) fn purify(root: BorrowedFd<'_>, rules: Rules) -> Result<Vec<String>, CacheFault> {
    let mut gone = Vec::new();
    walk(root, &mut |entry| purify_entry(entry, rules, &mut gone))?;
    if let Some((uid, gid)) = rules.owner {
        let given = fs::fchown(root, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        given.map_err(|errno| CacheFault::entry("change the owner of", b".", errno))?;
    }
    Ok(gone)
}

fn purify_entry(entry: &Entry<'_>, rules: Rules, gone: &mut Vec<String>) -> Result<(), CacheFault> {
    let kind = entry.kind();
    let is_special = !matches!(kind, FileType::Directory | FileType::RegularFile | FileType::Symlink);
    if is_special && !(rules.is_overlay && is_whiteout(&entry.stat)) {
        gone.push(display_path(entry.path));
        return take_out(entry, rules);
    }
    if let Some((uid, gid)) = rules.owner {
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        let given = fs::chownat(entry.parent, entry.name, uid, gid, AtFlags::SYMLINK_NOFOLLOW);
        given.map_err(entry.fault("change the owner of"))?;
    }
    if kind.is_file() && entry.stat.st_mode & 0o6000 != 0 {
        let mode = Mode::from_raw_mode(entry.stat.st_mode) & Mode::from_raw_mode(0o1777);
        fs::chmodat(entry.parent, entry.name, mode, AtFlags::empty()).map_err(entry.fault("change the mode of"))?;
    }
    match (rules.is_overlay, kind) {
        // Overlayfs writes its own under other names where a step sets them.
        (true, FileType::Directory) => demand_plain(entry),
        (false, FileType::Directory | FileType::RegularFile) => strip(entry),
        _ => Ok(()),
    }
}

/// Removes an entry. What stands below it in an older layer must not come back.
fn take_out(entry: &Entry<'_>, rules: Rules) -> Result<(), CacheFault> {
    fs::unlinkat(entry.parent, entry.name, AtFlags::empty()).map_err(entry.fault("remove"))?;
    if !rules.is_overlay {
        return Ok(());
    }
    let marked = fs::mknodat(entry.parent, entry.name, FileType::CharacterDevice, Mode::empty(), 0);
    marked.map_err(entry.fault("mark the removal of"))
}

/// The names of overlayfs's attributes that an entry has.
fn overlay_attributes(entry: &Entry<'_>) -> Result<Vec<Vec<u8>>, CacheFault> {
    let mut buffer = vec![0; MAX_NAMES];
    let length = match fs::llistxattr(entry.by_path().as_slice(), &mut buffer[..]) {
        Ok(length) => length,
        Err(Errno::NOTSUP) => return Ok(Vec::new()),
        Err(errno) => return Err(entry.fault("read the attributes of")(errno)),
    };
    let names = buffer[..length].split(|byte| *byte == 0).filter(|name| name.starts_with(OVERLAY));
    Ok(names.map(<[u8]>::to_vec).collect())
}

fn demand_plain(entry: &Entry<'_>) -> Result<(), CacheFault> {
    for name in overlay_attributes(entry)? {
        let short = &name[OVERLAY.len()..];
        if BOOKKEEPING.contains(&short) || short.starts_with(b"overlay.") {
            continue;
        }
        let dir = open_dir(entry.parent, entry.name).map_err(entry.fault("open"))?;
        let hides = is_opaque(dir.as_fd()).map_err(entry.fault("read the attributes of"))?;
        if name != OPAQUE.as_bytes() || !hides {
            return Err(CacheFault::Attribute { path: display_path(entry.path), name: display_path(&name) });
        }
    }
    Ok(())
}

/// A step may have set them, as there was no overlay that would have renamed them.
fn strip(entry: &Entry<'_>) -> Result<(), CacheFault> {
    for name in overlay_attributes(entry)? {
        let removed = fs::lremovexattr(entry.by_path().as_slice(), name.as_slice());
        removed.map_err(entry.fault("remove an attribute of"))?;
    }
    Ok(())
}

/// Whether a directory of a layer hides the one below it.
pub(super) fn is_opaque(dir: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    let mut value = [0; 4];
    match fs::fgetxattr(dir, OPAQUE, &mut value[..]) {
        Ok(length) => Ok(&value[..length] == b"y"),
        Err(Errno::NODATA | Errno::NOTSUP | Errno::RANGE) => Ok(false),
        Err(errno) => Err(errno),
    }
}

impl CacheFault {
    fn entry(action: &'static str, path: &[u8], errno: Errno) -> Self {
        let source: io::Error = errno.into();
        Self::Entry { action, path: display_path(path), source }
    }
}

//! Reads the layers of caches, and prepares the writes of a skill for becoming a layer. No other process writes to
//! them during these calls. A step chose their names and contents.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use proctor_core::model::drift::display_path;
use proctor_core::text::digest::Sha256Hex;
use rustix::fs::{self, AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use super::skill_cache_error::SkillCacheError;

/// Maximum depth of nested directories: each level needs a descriptor.
pub(super) const MAX_DEPTH: usize = 256;
/// Maximum number of entries of a layer.
const MAX_ENTRIES: u64 = 4_000_000;
/// Prefix of the names of overlayfs's attributes.
const OVERLAY_PREFIX: &[u8] = b"user.overlay.";
/// The attribute with which a directory of a layer hides the directory below it.
pub(super) const OPAQUE_ATTRIBUTE: &str = "user.overlay.opaque";
/// The attributes of overlayfs that do not change what a layer shows.
const HARMLESS_ATTRIBUTES: [&[u8]; 5] = [b"impure", b"origin", b"uuid", b"nlink", b"upper"];
/// Prefixes of attributes that steps do not see, or that have no effect for them.
const HIDDEN_ATTRIBUTES: [&[u8]; 3] = [OVERLAY_PREFIX, b"trusted.", b"security."];
/// Maximum size of the attribute names of one entry (`XATTR_LIST_MAX`), in bytes.
const MAX_ATTRIBUTE_NAMES: usize = 64 << 10;
/// Size of the buffer with which the names are read first, in bytes. Most entries have no attributes.
const USUAL_ATTRIBUTE_NAMES: usize = 1 << 10;
/// Maximum size of the value of an attribute (`XATTR_SIZE_MAX`), in bytes.
const MAX_ATTRIBUTE_VALUE: usize = 64 << 10;

/// One entry of a tree.
pub(super) struct WalkedEntry<'a> {
    /// The directory that contains the entry.
    pub(super) parent: BorrowedFd<'a>,
    pub(super) name: &'a CStr,
    /// The path from the root.
    pub(super) path: &'a [u8],
    pub(super) stat: Stat,
}

impl WalkedEntry<'_> {
    pub(super) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    pub(super) fn error_for(&self, action: &'static str) -> impl FnOnce(Errno) -> SkillCacheError {
        let path = display_path(self.path);
        move |errno| SkillCacheError::Entry { action, path, source: errno.into() }
    }

    /// Returns a digest of the extended attributes that a step sees.
    ///
    /// # Errors
    /// The attributes cannot be read.
    pub(super) fn attributes_digest(&self) -> Result<[u8; 32], SkillCacheError> {
        let mut hash = Sha256::new();
        let mut names = attribute_names(self)?;
        names.retain(|name| !HIDDEN_ATTRIBUTES.iter().any(|prefix| name.starts_with(prefix)));
        names.sort();
        for name in names {
            let mut value = vec![0; MAX_ATTRIBUTE_VALUE];
            let length = fs::lgetxattr(self.proc_path().as_slice(), name.as_slice(), &mut value[..]);
            let length = length.map_err(self.error_for("read an attribute of"))?;
            for part in [name.as_slice(), &value[..length]] {
                hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes());
                hash.update(part);
            }
        }
        Ok(hash.finalize().into())
    }

    /// Returns a path of the entry through the parent's descriptor, for system calls that take no directory
    /// descriptor.
    fn proc_path(&self) -> Vec<u8> {
        [format!("/proc/self/fd/{}/", self.parent.as_raw_fd()).as_bytes(), self.name.to_bytes()].concat()
    }
}

/// Returns whether the entry is a whiteout, which marks a deletion.
pub(super) fn is_whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}

const DIRECTORY_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens a directory below `parent` without following a link.
pub(super) fn open_dir(parent: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<OwnedFd> {
    fs::openat(parent, name, DIRECTORY_FLAGS, Mode::empty())
}

/// Returns the names in a directory, sorted, without `.` and `..`.
pub(super) fn sorted_names(dir: BorrowedFd<'_>) -> rustix::io::Result<Vec<CString>> {
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

/// Visits every entry below `root`, directories before their content, in an order that depends on the tree only.
///
/// # Errors
/// `visit` fails, a directory cannot be read, or a bound is exceeded.
pub(super) fn walk_entries(
    root: BorrowedFd<'_>,
    visit: &mut dyn FnMut(&WalkedEntry<'_>) -> Result<(), SkillCacheError>,
) -> Result<(), SkillCacheError> {
    let mut remaining = MAX_ENTRIES;
    walk_below(root, &mut Vec::new(), 0, &mut remaining, visit)
}

fn walk_below(
    dir: BorrowedFd<'_>,
    path: &mut Vec<u8>,
    depth: usize,
    left: &mut u64,
    visit: &mut dyn FnMut(&WalkedEntry<'_>) -> Result<(), SkillCacheError>,
) -> Result<(), SkillCacheError> {
    if depth > MAX_DEPTH {
        return Err(SkillCacheError::TooDeep { most: MAX_DEPTH });
    }
    let listed = sorted_names(dir);
    for name in listed.map_err(|errno| SkillCacheError::entry_error("list", path, errno))? {
        *left = left.checked_sub(1).ok_or(SkillCacheError::TooMany { most: MAX_ENTRIES })?;
        let length = path.len();
        if length > 0 {
            path.push(b'/');
        }
        path.extend_from_slice(name.to_bytes());
        let stat = fs::statat(dir, &name, AtFlags::SYMLINK_NOFOLLOW);
        let stat = stat.map_err(|errno| SkillCacheError::entry_error("examine", path, errno))?;
        visit(&WalkedEntry { parent: dir, name: &name, path, stat })?;
        if FileType::from_raw_mode(stat.st_mode).is_dir() {
            let inner = open_dir(dir, &name).map_err(|errno| SkillCacheError::entry_error("open", path, errno))?;
            walk_below(inner.as_fd(), path, depth + 1, left, visit)?;
        }
        path.truncate(length);
    }
    Ok(())
}

/// A summary of a layer's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LayerSummary {
    /// A digest of the names, kinds, modes, owners, sizes, inodes and modification times of all entries, and of the
    /// targets of links. Contents are not read.
    pub(super) seal: Sha256Hex,
    /// Size on disk, in bytes.
    pub(super) bytes: u64,
    pub(super) entries: u64,
}

/// Summarizes a layer without changing it.
///
/// # Errors
/// A directory cannot be read, or a bound is exceeded.
pub(super) fn summarize(root: BorrowedFd<'_>) -> Result<LayerSummary, SkillCacheError> {
    let (mut hash, mut bytes, mut entries) = (Sha256::new(), 0u64, 0u64);
    walk_entries(root, &mut |entry| {
        let stat = &entry.stat;
        hash.update(u64::try_from(entry.path.len()).unwrap_or(u64::MAX).to_le_bytes());
        hash.update(entry.path);
        // The size of a directory depends on the file system, not on its content.
        let size = if entry.kind().is_dir() { 0 } else { stat.st_size };
        for number in [i64::from(stat.st_mode), i64::from(stat.st_uid), i64::from(stat.st_gid), size, stat.st_mtime] {
            hash.update(number.to_le_bytes());
        }
        for number in [stat.st_mtime_nsec, stat.st_ino, stat.st_rdev] {
            hash.update(number.to_le_bytes());
        }
        if entry.kind().is_symlink() {
            let target = fs::readlinkat(entry.parent, entry.name, Vec::new()).map_err(entry.error_for("read"))?;
            hash.update(target.to_bytes_with_nul());
        }
        bytes = bytes.saturating_add(u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512));
        entries += 1;
        Ok(())
    })?;
    Ok(LayerSummary { seal: Sha256Hex::from_raw(hash.finalize().into()), bytes, entries })
}

/// How to prepare the writes of a skill for becoming a layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct LayerRules {
    /// True if the writes are the upper directory of an overlay, in which deletions are marked; otherwise the
    /// directory has the whole content.
    pub(super) is_overlay: bool,
    /// The new owner of the entries, if the steps of each run have a separate user id.
    pub(super) owner: Option<(u32, u32)>,
}

/// Removes from the writes of a skill what no layer may hold: sockets, FIFOs, devices and set-id bits. Refuses
/// attributes that overlayfs would interpret. Returns the paths of the removed entries.
///
/// # Errors
/// An entry cannot be changed or read, or has an attribute of overlayfs that is not allowed.
pub(super) fn sanitize(root: BorrowedFd<'_>, rules: LayerRules) -> Result<Vec<String>, SkillCacheError> {
    let mut removed = Vec::new();
    walk_entries(root, &mut |entry| sanitize_entry(entry, rules, &mut removed))?;
    if let Some((uid, gid)) = rules.owner {
        let given = fs::fchown(root, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        given.map_err(|errno| SkillCacheError::entry_error("change the owner of", b".", errno))?;
    }
    Ok(removed)
}

fn sanitize_entry(
    entry: &WalkedEntry<'_>,
    rules: LayerRules,
    removed: &mut Vec<String>,
) -> Result<(), SkillCacheError> {
    let kind = entry.kind();
    let is_special = !matches!(kind, FileType::Directory | FileType::RegularFile | FileType::Symlink);
    if is_special && !(rules.is_overlay && is_whiteout(&entry.stat)) {
        removed.push(display_path(entry.path));
        return remove_entry(entry, rules);
    }
    if let Some((uid, gid)) = rules.owner {
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        let given = fs::chownat(entry.parent, entry.name, uid, gid, AtFlags::SYMLINK_NOFOLLOW);
        given.map_err(entry.error_for("change the owner of"))?;
    }
    if kind.is_file() && entry.stat.st_mode & 0o6000 != 0 {
        let mode = Mode::from_raw_mode(entry.stat.st_mode) & Mode::from_raw_mode(0o1777);
        fs::chmodat(entry.parent, entry.name, mode, AtFlags::empty()).map_err(entry.error_for("change the mode of"))?;
    }
    match (rules.is_overlay, kind) {
        // Within an overlay, overlayfs stores attributes of this kind that a step sets under other names.
        (true, FileType::Directory) => reject_overlay_attributes(entry),
        (false, FileType::Directory | FileType::RegularFile) => strip_overlay_attributes(entry),
        _ => Ok(()),
    }
}

/// Removes an entry, and marks the deletion, so that an entry of an older layer does not reappear.
fn remove_entry(entry: &WalkedEntry<'_>, rules: LayerRules) -> Result<(), SkillCacheError> {
    fs::unlinkat(entry.parent, entry.name, AtFlags::empty()).map_err(entry.error_for("remove"))?;
    if !rules.is_overlay {
        return Ok(());
    }
    let marked = fs::mknodat(entry.parent, entry.name, FileType::CharacterDevice, Mode::empty(), 0);
    marked.map_err(entry.error_for("mark the removal of"))
}

/// Returns the names of an entry's attributes.
fn attribute_names(entry: &WalkedEntry<'_>) -> Result<Vec<Vec<u8>>, SkillCacheError> {
    let path = entry.proc_path();
    let mut buffer = vec![0; USUAL_ATTRIBUTE_NAMES];
    let mut listed = fs::llistxattr(path.as_slice(), &mut buffer[..]);
    if listed == Err(Errno::RANGE) {
        buffer.resize(MAX_ATTRIBUTE_NAMES, 0);
        listed = fs::llistxattr(path.as_slice(), &mut buffer[..]);
    }
    let length = match listed {
        Ok(length) => length,
        Err(Errno::NOTSUP) => return Ok(Vec::new()),
        Err(errno) => return Err(entry.error_for("read the attributes of")(errno)),
    };
    let names = buffer[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(names.map(<[u8]>::to_vec).collect())
}

/// Returns the names of an entry's overlayfs attributes.
fn overlay_attributes(entry: &WalkedEntry<'_>) -> Result<Vec<Vec<u8>>, SkillCacheError> {
    let names = attribute_names(entry)?.into_iter().filter(|name| name.starts_with(OVERLAY_PREFIX));
    Ok(names.collect())
}

fn reject_overlay_attributes(entry: &WalkedEntry<'_>) -> Result<(), SkillCacheError> {
    for name in overlay_attributes(entry)? {
        let short = &name[OVERLAY_PREFIX.len()..];
        if HARMLESS_ATTRIBUTES.contains(&short) || short.starts_with(b"overlay.") {
            continue;
        }
        let dir = open_dir(entry.parent, entry.name).map_err(entry.error_for("open"))?;
        let hides = is_opaque(dir.as_fd()).map_err(entry.error_for("read the attributes of"))?;
        if name != OPAQUE_ATTRIBUTE.as_bytes() || !hides {
            return Err(SkillCacheError::Attribute { path: display_path(entry.path), name: display_path(&name) });
        }
    }
    Ok(())
}

/// Removes overlayfs attributes. Without an overlay that renames them, a step may have set them itself.
fn strip_overlay_attributes(entry: &WalkedEntry<'_>) -> Result<(), SkillCacheError> {
    for name in overlay_attributes(entry)? {
        let removed = fs::lremovexattr(entry.proc_path().as_slice(), name.as_slice());
        removed.map_err(entry.error_for("remove an attribute of"))?;
    }
    Ok(())
}

/// Returns whether a directory of a layer hides the directory below it.
pub(super) fn is_opaque(dir: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    let mut value = [0; 4];
    match fs::fgetxattr(dir, OPAQUE_ATTRIBUTE, &mut value[..]) {
        Ok(length) => Ok(&value[..length] == b"y"),
        Err(Errno::NODATA | Errno::NOTSUP | Errno::RANGE) => Ok(false),
        Err(errno) => Err(errno),
    }
}

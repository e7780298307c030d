//! Fills an empty layer from a list that may come from a lying worker.
//!
//! Every directory on the way to an entry is opened by descriptor and name, and never through a symbolic link. The list
//! only creates entries, and an entry that exists is refused; so a descriptor that was opened once stays valid.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use proctor_core::text::digest::Sha256Hex;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid, XattrFlags};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use super::content_source::ContentSource;
use super::layer_change_error::{LayerBounds, LayerChangeError, MAX_DEPTH, io_error, shown};
use crate::agent::{LayerChange, LayerChangeKind};
use crate::helper::tree_copier;

/// The block size for writing files, in bytes.
const CHUNK: usize = 128 << 10;
/// Mode of a directory that the list does not contain, but that contains one of its entries.
const PARENT_MODE: Mode = Mode::from_raw_mode(0o755);

/// Creates the entries of `changes` in an empty directory, which belong to `owner` if it is given.
///
/// # Errors
/// The list contains an entry that is not permitted, the content does not have the listed digests, the list exceeds the
/// bounds, or an entry cannot be created.
pub fn fill_directory(
    upper: BorrowedFd<'_>,
    owner: Option<(u32, u32)>,
    changes: &[LayerChange],
    content: &(impl ContentSource + ?Sized),
    bounds: LayerBounds,
) -> Result<(), LayerChangeError> {
    if changes.len() > bounds.entries {
        return Err(LayerChangeError::TooManyEntries { limit: bounds.entries });
    }
    let top = tree_copier::reopen_readable(upper).map_err(io_error(b"."))?;
    let mut filler = LayerFiller { top, owner, open: Vec::new(), modes: Vec::new(), entries: 0, bytes: 0, bounds };
    changes.iter().try_for_each(|change| filler.add(change, content))?;
    filler.set_directory_modes()
}

struct LayerFiller {
    top: OwnedFd,
    owner: Option<(u32, u32)>,
    /// The directories on the way to the last entry, with their names.
    open: Vec<(Vec<u8>, OwnedFd)>,
    /// The created directories and their modes, which are set at the end: a mode may forbid the creation of entries.
    modes: Vec<(Vec<u8>, Mode)>,
    /// The number of entries, with the directories that the list does not contain.
    entries: usize,
    bytes: u64,
    bounds: LayerBounds,
}

impl LayerFiller {
    fn add(&mut self, change: &LayerChange, content: &(impl ContentSource + ?Sized)) -> Result<(), LayerChangeError> {
        let path = change.path.as_slice();
        let parts = path_parts(path)?;
        let Some((name, parents)) = parts.split_last() else { return Err(refused(path, "the path is empty")) };
        self.count_entry()?;
        let parent = self.open_parents(parents, path)?;
        match &change.kind {
            LayerChangeKind::File { mode, offset, bytes, sha256 } => {
                let file = create_file(parent.as_fd(), name).map_err(as_refusal(path))?;
                self.write_content(&file, content, (*offset, *bytes), sha256, path)?;
                self.set_owner_of(file.as_fd()).map_err(io_error(path))?;
                rustix::fs::fchmod(&file, safe_mode(*mode)).map_err(io_error(path))
            }
            LayerChangeKind::Directory { mode, opaque } => {
                let dir = create_directory(parent.as_fd(), name).map_err(as_refusal(path))?;
                if *opaque {
                    rustix::fs::fsetxattr(&dir, tree_copier::OPAQUE, b"y", XattrFlags::empty())
                        .map_err(io_error(path))?;
                }
                self.keep_directory(name, dir, path, safe_mode(*mode))
            }
            LayerChangeKind::Symlink { target } => {
                if target.is_empty() || target.contains(&0) {
                    return Err(refused(path, "the target of the symbolic link is not valid"));
                }
                rustix::fs::symlinkat(target.as_slice(), &parent, *name).map_err(as_refusal(path))?;
                self.set_owner_at(&parent, name).map_err(io_error(path))
            }
            LayerChangeKind::Deleted => {
                make_node(&parent, name, FileType::CharacterDevice, Mode::empty()).map_err(as_refusal(path))?;
                self.set_owner_at(&parent, name).map_err(io_error(path))
            }
            LayerChangeKind::Special { file_type } => {
                let file_type = FileType::from_raw_mode(*file_type);
                if !matches!(file_type, FileType::Fifo | FileType::Socket) {
                    return Err(refused(path, "it is neither a fifo nor a socket"));
                }
                make_node(&parent, name, file_type, Mode::RUSR | Mode::WUSR).map_err(as_refusal(path))?;
                self.set_owner_at(&parent, name).map_err(io_error(path))
            }
        }
    }

    fn count_entry(&mut self) -> Result<(), LayerChangeError> {
        self.entries += 1;
        match self.entries > self.bounds.entries {
            true => Err(LayerChangeError::TooManyEntries { limit: self.bounds.entries }),
            false => Ok(()),
        }
    }

    /// Opens the directory with these components. Creates it, and those above it, if the list does not contain them.
    fn open_parents(&mut self, parts: &[&[u8]], path: &[u8]) -> Result<OwnedFd, LayerChangeError> {
        if parts.len() > MAX_DEPTH {
            return Err(LayerChangeError::TooDeep);
        }
        let common = self.open.iter().zip(parts).take_while(|((name, _), part)| name == **part).count();
        self.open.truncate(common);
        for depth in common..parts.len() {
            let (name, above) = (parts[depth], self.innermost().map_err(io_error(path))?);
            match open_directory(above.as_fd(), name) {
                Ok(dir) => self.open.push((name.to_vec(), dir)),
                Err(Errno::NOENT) => {
                    self.count_entry()?;
                    let dir = create_directory(above.as_fd(), name).map_err(as_refusal(path))?;
                    self.keep_directory(name, dir, &parts[..=depth].join(&b'/'), PARENT_MODE)?;
                }
                Err(errno) => return Err(as_refusal(path)(errno)),
            }
        }
        self.innermost().map_err(io_error(path))
    }

    fn innermost(&self) -> io::Result<OwnedFd> {
        self.open.last().map_or(&self.top, |(_, dir)| dir).try_clone()
    }

    /// Records a new directory, whose parent is the innermost open one.
    fn keep_directory(&mut self, name: &[u8], dir: OwnedFd, path: &[u8], mode: Mode) -> Result<(), LayerChangeError> {
        self.set_owner_of(dir.as_fd()).map_err(io_error(path))?;
        self.open.push((name.to_vec(), dir));
        self.modes.push((path.to_vec(), mode));
        Ok(())
    }

    /// Sets the modes of the directories, the inner ones first.
    fn set_directory_modes(&mut self) -> Result<(), LayerChangeError> {
        for (path, mode) in std::mem::take(&mut self.modes).into_iter().rev() {
            let parts = path_parts(&path)?;
            let Some((name, parents)) = parts.split_last() else { continue };
            let parent = self.open_parents(parents, &path)?;
            let dir = open_directory(parent.as_fd(), name).map_err(io_error(&path))?;
            rustix::fs::fchmod(&dir, mode).map_err(io_error(&path))?;
        }
        Ok(())
    }

    fn write_content(
        &mut self,
        mut file: &File,
        content: &(impl ContentSource + ?Sized),
        (offset, bytes): (u64, u64),
        sha256: &Sha256Hex,
        path: &[u8],
    ) -> Result<(), LayerChangeError> {
        let total = self.bytes.checked_add(bytes).filter(|total| *total <= self.bounds.bytes);
        self.bytes = total.ok_or(LayerChangeError::TooManyBytes { limit: self.bounds.bytes })?;
        let end = offset.checked_add(bytes).ok_or_else(|| refused(path, "its range of the content is not valid"))?;
        let (mut hasher, mut buffer, mut at) = (Sha256::new(), vec![0; CHUNK], offset);
        while at < end {
            let count = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK);
            let chunk = &mut buffer[..count];
            match content.read_exact_at(chunk, at) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(refused(path, "its range of the content does not exist"));
                }
                Err(error) => return Err(LayerChangeError::Content(error)),
            }
            hasher.update(&*chunk);
            file.write_all(chunk).map_err(io_error(path))?;
            at += count as u64;
        }
        match Sha256Hex::from_raw(hasher.finalize().into()) == *sha256 {
            true => Ok(()),
            false => Err(refused(path, "its content does not match its digest")),
        }
    }

    fn set_owner_of(&self, file: BorrowedFd<'_>) -> rustix::io::Result<()> {
        match self.owner {
            Some((uid, gid)) => rustix::fs::fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))),
            None => Ok(()),
        }
    }

    fn set_owner_at(&self, dir: &OwnedFd, name: &[u8]) -> rustix::io::Result<()> {
        let Some((uid, gid)) = self.owner else { return Ok(()) };
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        rustix::fs::chownat(dir, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
    }
}

/// Returns the components of a relative path without `.` and `..`.
fn path_parts(path: &[u8]) -> Result<Vec<&[u8]>, LayerChangeError> {
    let parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    let is_name = |part: &&[u8]| !part.is_empty() && *part != b"." && *part != b".." && !part.contains(&0);
    match parts.iter().all(is_name) {
        true => Ok(parts),
        false => Err(refused(path, "the path is not a relative path without `.` and `..`")),
    }
}

fn refused(path: &[u8], problem: &'static str) -> LayerChangeError {
    LayerChangeError::Refused { path: shown(path), problem }
}

/// Converts an error that an honest list does not cause.
fn as_refusal(path: &[u8]) -> impl FnOnce(Errno) -> LayerChangeError {
    move |errno| match errno {
        Errno::EXIST => refused(path, "the list contains it twice, or after one of its entries"),
        Errno::NOTDIR | Errno::LOOP => refused(path, "an entry above it is not a directory"),
        other => io_error(path)(other),
    }
}

/// Returns the permission bits without the set-id bits.
fn safe_mode(mode: u32) -> Mode {
    tree_copier::permission_bits(mode)
}

fn open_directory(parent: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

fn create_directory(parent: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    rustix::fs::mkdirat(parent, name, Mode::RWXU)?;
    open_directory(parent, name)
}

fn create_file(parent: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, flags, Mode::RUSR | Mode::WUSR)?.into())
}

/// Creates a fifo, a socket, or the device 0:0, which is a whiteout and the only device that any user may create.
fn make_node(parent: &OwnedFd, name: &[u8], file_type: FileType, mode: Mode) -> rustix::io::Result<()> {
    rustix::fs::mknodat(parent, name, file_type, mode, 0)
}

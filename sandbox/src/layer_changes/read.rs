//! Reads the upper directory of a layer.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use proctor_core::text::digest::Sha256Hex;
use rustix::fs::{AtFlags, FileType, OFlags, Stat};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use super::layer_change_error::{LayerBounds, LayerChangeError, MAX_DEPTH, io_error, shown};
use crate::agent::{LayerChange, LayerChangeKind};
use crate::helper::tree_copier;

/// The block size for reading files, in bytes.
const CHUNK: usize = 128 << 10;
/// Attributes that the kernel uses for bookkeeping, and that do not affect content.
const BOOKKEEPING: [&[u8]; 5] = [b"impure", b"origin", b"uuid", b"nlink", b"upper"];

/// Returns the entries of the directory, each directory before its entries, except those for which `is_left_out` is
/// true. Appends the content of the files to `content`.
///
/// # Errors
/// An entry cannot be read, or the directory exceeds the bounds.
pub fn read_directory(
    upper: BorrowedFd<'_>,
    bounds: LayerBounds,
    is_left_out: &dyn Fn(&[u8]) -> bool,
    content: &mut dyn Write,
) -> Result<Vec<LayerChange>, LayerChangeError> {
    let mut reader = LayerReader { bounds, is_left_out, content, bytes: 0, changes: Vec::new() };
    let top = tree_copier::reopen_readable(upper).map_err(io_error(b"."))?;
    reader.read_entries(&top, b"", 0)?;
    Ok(reader.changes)
}

struct LayerReader<'a> {
    bounds: LayerBounds,
    is_left_out: &'a dyn Fn(&[u8]) -> bool,
    content: &'a mut dyn Write,
    bytes: u64,
    changes: Vec<LayerChange>,
}

impl LayerReader<'_> {
    fn read_entries(&mut self, dir: &OwnedFd, path: &[u8], depth: usize) -> Result<(), LayerChangeError> {
        if depth > MAX_DEPTH {
            return Err(LayerChangeError::TooDeep);
        }
        let mut names = tree_copier::entry_names(dir).map_err(io_error(path))?;
        names.sort();
        for name in names {
            let path = tree_copier::join_path(path, &name);
            if !(self.is_left_out)(&path) {
                self.read_entry(dir, &name, path, depth)?;
            }
        }
        Ok(())
    }

    fn read_entry(&mut self, dir: &OwnedFd, name: &[u8], path: Vec<u8>, depth: usize) -> Result<(), LayerChangeError> {
        if self.changes.len() >= self.bounds.entries {
            return Err(LayerChangeError::TooManyEntries { limit: self.bounds.entries });
        }
        let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map_err(io_error(&path))?;
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let opened = tree_copier::open_layer_entry(dir, name, &stat, OFlags::DIRECTORY);
                let opened = opened.map_err(io_error(&path))?;
                let mark = read_mark(&opened, &path)?;
                let kind =
                    LayerChangeKind::Directory { mode: stat.st_mode & 0o7777, opaque: mark == Some(Mark::Opaque) };
                self.changes.push(LayerChange { path: path.clone(), kind });
                return self.read_entries(&opened, &path, depth + 1);
            }
            FileType::RegularFile => self.read_file(dir, name, &path, &stat)?,
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(dir, name, Vec::new()).map_err(io_error(&path))?;
                LayerChangeKind::Symlink { target: target.into_bytes() }
            }
            FileType::CharacterDevice if stat.st_rdev == 0 => LayerChangeKind::Deleted,
            other => LayerChangeKind::Special { file_type: other.as_raw_mode() },
        };
        self.changes.push(LayerChange { path, kind });
        Ok(())
    }

    fn read_file(
        &mut self,
        dir: &OwnedFd,
        name: &[u8],
        path: &[u8],
        stat: &Stat,
    ) -> Result<LayerChangeKind, LayerChangeError> {
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = tree_copier::open_layer_entry(dir, name, stat, flags).map_err(io_error(path))?;
        if read_mark(&file, path)? == Some(Mark::Whiteout) {
            return Ok(LayerChangeKind::Deleted);
        }
        let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
        let offset = self.bytes;
        let end = offset.checked_add(size).filter(|end| *end <= self.bounds.bytes);
        self.bytes = end.ok_or(LayerChangeError::TooManyBytes { limit: self.bounds.bytes })?;
        let (mut hasher, mut buffer, mut left) = (Sha256::new(), vec![0; CHUNK], size);
        loop {
            match rustix::io::read(&file, &mut buffer) {
                Ok(0) if left == 0 => break,
                Ok(count) if count > 0 && count as u64 <= left => {
                    hasher.update(&buffer[..count]);
                    self.content.write_all(&buffer[..count]).map_err(LayerChangeError::Content)?;
                    left -= count as u64;
                }
                Ok(_) => return Err(LayerChangeError::NotSealed { path: shown(path) }),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(io_error(path)(errno)),
            }
        }
        let sha256 = Sha256Hex::from_raw(hasher.finalize().into());
        Ok(LayerChangeKind::File { mode: stat.st_mode & 0o7777, offset, bytes: size, sha256 })
    }
}

/// An attribute of overlayfs that changes the meaning of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// The directory hides the entries that it had before.
    Opaque,
    /// The file hides an entry of a layer below.
    Whiteout,
}

/// Returns the mark of an entry. An unknown attribute is an error, since it could change the meaning of the entry.
fn read_mark(file: &OwnedFd, path: &[u8]) -> Result<Option<Mark>, LayerChangeError> {
    let mut mark = None;
    for name in attribute_names(file.as_fd()).map_err(io_error(path))? {
        // The kernel escapes attributes that the step itself has set as `user.overlay.overlay.*`.
        let Some(kind) = name.strip_prefix(b"user.overlay.") else { continue };
        match kind {
            b"opaque" if is_opaque(file).map_err(io_error(path))? => mark = Some(Mark::Opaque),
            // The directory contains files with the attribute below.
            b"opaque" => {}
            b"whiteout" => mark = Some(Mark::Whiteout),
            known if known.starts_with(b"overlay.") || BOOKKEEPING.contains(&known) => {}
            _ => return Err(LayerChangeError::UnknownAttribute { path: shown(path), attribute: shown(&name) }),
        }
    }
    Ok(mark)
}

fn is_opaque(file: &OwnedFd) -> io::Result<bool> {
    let mut value = [0; 16];
    Ok(rustix::fs::fgetxattr(file, tree_copier::OPAQUE, &mut value[..]).map(|length| &value[..length] == b"y")?)
}

/// Maximum size of the list of an entry's attributes, in the kernel.
const MAX_ATTRIBUTE_LIST: usize = 64 << 10;

fn attribute_names(file: BorrowedFd<'_>) -> io::Result<Vec<Vec<u8>>> {
    // There are usually no attributes, and a large buffer costs more than the call.
    let mut few = vec![0; 512];
    let listed = match rustix::fs::flistxattr(file, &mut few[..]) {
        Err(Errno::RANGE) => {
            few.resize(MAX_ATTRIBUTE_LIST, 0);
            rustix::fs::flistxattr(file, &mut few[..])
        }
        other => other,
    };
    match listed {
        Ok(length) => {
            Ok(few[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect())
        }
        Err(Errno::NOTSUP) => Ok(Vec::new()),
        Err(errno) => Err(errno.into()),
    }
}

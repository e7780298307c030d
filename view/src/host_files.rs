//! Opens files and directories of the host for nodes, and keeps the descriptors that are used most.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::file_meta::FileMeta;
use crate::node_table::Node;
use crate::view_export::ViewExport;

/// Maximum number of directories, and of files, that are kept open.
const MAX_OPEN: usize = 256;

/// The open files and directories of the host, by node.
#[derive(Debug, Default)]
pub(crate) struct HostFiles {
    directories: OpenFiles,
    files: OpenFiles,
}

/// Descriptors with the time of their last use.
#[derive(Debug, Default)]
struct OpenFiles {
    open: HashMap<u64, (Rc<OwnedFd>, u64)>,
    clock: u64,
}

impl OpenFiles {
    fn get(&mut self, key: u64) -> Option<Rc<OwnedFd>> {
        self.clock += 1;
        let clock = self.clock;
        self.open.get_mut(&key).map(|(fd, used)| {
            *used = clock;
            Rc::clone(fd)
        })
    }

    fn keep(&mut self, key: u64, fd: OwnedFd) -> Rc<OwnedFd> {
        if self.open.len() >= MAX_OPEN
            && let Some(oldest) = self.open.iter().min_by_key(|(_, (_, used))| *used).map(|(key, _)| *key)
        {
            self.open.remove(&oldest);
        }
        let fd = Rc::new(fd);
        self.open.insert(key, (Rc::clone(&fd), self.clock));
        fd
    }
}

impl HostFiles {
    /// Returns an `O_PATH` descriptor of a directory.
    ///
    /// # Errors
    /// `ESTALE`: another directory is at its path now.
    pub(crate) fn directory(&mut self, key: u64, node: &Node, export: &ViewExport) -> Result<Rc<OwnedFd>, Errno> {
        if let Some(open) = self.directories.get(key) {
            return Ok(open);
        }
        let opened = open_below(export, &node.path, OFlags::PATH | OFlags::DIRECTORY)?;
        check_identity(&opened, &node.meta)?;
        Ok(self.directories.keep(key, opened))
    }

    /// Returns a descriptor for reading a regular file.
    ///
    /// # Errors
    /// `ESTALE`: another file is at its path now.
    pub(crate) fn file(&mut self, key: u64, node: &Node, export: &ViewExport) -> Result<Rc<OwnedFd>, Errno> {
        if let Some(open) = self.files.get(key) {
            return Ok(open);
        }
        // A FIFO that has replaced the file would block the server otherwise.
        let opened = open_below(export, &node.path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        check_identity(&opened, &node.meta)?;
        Ok(self.files.keep(key, opened))
    }

    pub(crate) fn close(&mut self, key: u64) {
        self.directories.open.remove(&key);
        self.files.open.remove(&key);
    }
}

fn check_identity(fd: &OwnedFd, expected: &FileMeta) -> Result<(), Errno> {
    if FileMeta::from(&rustix::fs::fstat(fd)?).is_same_file(expected) { Ok(()) } else { Err(Errno::STALE) }
}

/// Returns the part of an absolute path below the export; empty for the export itself.
pub(crate) fn path_below<'p>(export: &ViewExport, path: &'p [u8]) -> &'p [u8] {
    let below = path.strip_prefix(export.host_path.as_slice()).unwrap_or(path);
    below.strip_prefix(b"/").unwrap_or(below)
}

/// Opens a path of the host without following symbolic links: the kernel has resolved them already, name by name.
pub(crate) fn open_below(export: &ViewExport, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    match path_below(export, path) {
        b"" if flags.contains(OFlags::PATH) => rustix::io::fcntl_dupfd_cloexec(&export.base, 0),
        // The export is a file, and its only name is its descriptor.
        b"" => {
            let magic = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&export.base));
            rustix::fs::open(Path::new(&magic), flags - OFlags::NOFOLLOW, Mode::empty())
        }
        below => {
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
            loop {
                match rustix::fs::openat2(&export.base, below, flags, Mode::empty(), resolve) {
                    // A concurrent rename kept the kernel from verifying the path.
                    Err(Errno::AGAIN) => {}
                    other => return other,
                }
            }
        }
    }
}

/// The attributes of a file, and the text of a symbolic link.
pub(crate) type ExaminedFile = (FileMeta, Option<Rc<[u8]>>);

/// Reads the attributes of a path of the host, and the text of a symbolic link.
pub(crate) fn examine(export: &ViewExport, path: &[u8]) -> Result<ExaminedFile, Errno> {
    match path_below(export, path) {
        b"" => Ok((FileMeta::from(&rustix::fs::fstat(&export.base)?), None)),
        below => examine_at(&export.base, below),
    }
}

/// Reads the attributes of an entry of a directory, and the text of a symbolic link.
pub(crate) fn examine_at(dir: impl AsFd, name: &[u8]) -> Result<ExaminedFile, Errno> {
    let dir = dir.as_fd();
    let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT)?;
    let meta = FileMeta::from(&stat);
    let target = match meta.file_type() {
        rustix::fs::FileType::Symlink => Some(rustix::fs::readlinkat(dir, name, Vec::new())?.to_bytes().into()),
        _ => None,
    };
    Ok((meta, target))
}

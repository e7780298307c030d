//! Reads the writes of a step from an overlay's upper directory.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use proctor_core::model::drift::display_path;
use proctor_git::error::GitError;
use proctor_git::files::paths;
use proctor_git::files::read_beneath::{self, HashAttempt};
use proctor_git::helper::IgnoreQuery;
use rustix::fs::{FileType, Mode, OFlags, Stat, fgetxattr, flistxattr, fstat, openat, readlinkat};
use rustix::io::Errno;

use crate::layer::layer_scan::{FileContent, IgnoredContent, LayerEntry, LayerScan};
use crate::tree_view::TreeView;

pub(crate) mod layer_scan;
mod spared_directories;
pub(crate) mod withheld_content;

/// The inputs that decide which directories of a layer are spared.
#[derive(Debug, Clone, Copy)]
pub struct SparingRules<'a> {
    /// The tree before the step. Directories that contain covered paths are always read.
    pub view: &'a TreeView,
    /// The ignore rules of the real tree.
    pub ignored: &'a IgnoreQuery,
    /// How ignored directories are read.
    pub content: IgnoredContent,
}

/// Bounds on reading a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanBounds {
    /// Maximum number of entries.
    pub entries: usize,
    /// The largest file that is hashed, in bytes.
    pub file_bytes: u64,
    /// Maximum number of bytes that are hashed in total.
    pub total_bytes: u64,
}

impl Default for ScanBounds {
    fn default() -> Self {
        Self { entries: 2_000_000, file_bytes: 4 << 30, total_bytes: 16 << 30 }
    }
}

/// The reason why a layer could not be read. The step that wrote it is then inconclusive.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// An entry could not be read.
    #[error("cannot read `{path}` in the step's layer: {source}")]
    Io {
        /// The path, in human-readable form.
        path: String,
        /// The system error.
        source: std::io::Error,
    },
    /// The git helper could not report which directories are ignored.
    #[error(transparent)]
    Git(#[from] GitError),
    /// An entry has a form that our overlays do not produce.
    #[error(
        "cannot decode `{path}` in the step's layer: it carries `{xattr}`\nhint: this kernel writes layers in an unknown format; please report it"
    )]
    CannotDecode {
        /// The path, in human-readable form.
        path: String,
        /// The extended attribute.
        xattr: String,
    },
    /// The step removed or replaced a directory that contains files that it did not see.
    #[error(
        "the step removed or replaced the directory `{path}`, which contains `{withheld}`, a file that it did not see because it is not an input\nhint: add the files of the directory to `inputs`, or leave the directory in place"
    )]
    ConcealsWithheld {
        /// The directory, in human-readable form.
        path: String,
        /// The path of one of these files, in human-readable form.
        withheld: String,
    },
    /// A file changed while it was read: a process still writes to the layer.
    #[error(
        "`{path}` in the step's layer changed while it was read\nhint: a process of the step outlived the step; please report it"
    )]
    NotSealed {
        /// The path, in human-readable form.
        path: String,
    },
    /// Directories are nested deeper than the bound.
    #[error(
        "the step created directories more than {limit} levels deep\nhint: list the directory that it fills in the skill's `caches`"
    )]
    TooDeep {
        /// The bound.
        limit: usize,
    },
    /// The layer has more entries than the bound.
    #[error(
        "the step's layer has more than {limit} entries\nhint: list the directory that it fills in the skill's `caches`"
    )]
    TooManyEntries {
        /// The bound.
        limit: usize,
    },
}

/// Reads a sealed layer completely.
///
/// # Errors
/// An entry cannot be read or decoded, or there are too many entries.
pub fn scan_layer(upper: BorrowedFd<'_>, bounds: ScanBounds) -> Result<LayerScan, ScanError> {
    scan(upper, bounds, BTreeSet::new(), IgnoredContent::Hashed)
}

/// Reads a sealed layer, but spares large directories that git ignores.
///
/// # Errors
/// The same as those of [`scan_layer`], or the git helper could not report which paths are ignored.
pub fn scan_layer_sparing(
    upper: BorrowedFd<'_>,
    bounds: ScanBounds,
    spare: SparingRules<'_>,
) -> Result<LayerScan, ScanError> {
    scan(upper, bounds, spared_directories::spared_directories(upper, spare)?, spare.content)
}

fn scan(
    upper: BorrowedFd<'_>,
    bounds: ScanBounds,
    ignored: BTreeSet<Vec<u8>>,
    content: IgnoredContent,
) -> Result<LayerScan, ScanError> {
    let mut scanner = LayerScanner { bounds, content, ignored, hashed_bytes: 0, entries: BTreeMap::new() };
    let top = reopen_directory(upper).map_err(|source| io_error(b".", source))?;
    if is_opaque(top.as_fd(), b".")? {
        // An opaque top directory would hide the whole tree; no kernel creates one.
        return Err(ScanError::CannotDecode { path: ".".into(), xattr: "user.overlay.opaque".into() });
    }
    scanner.scan_directory(top.as_fd(), b"", ScanPosition { depth: 0, is_spared: false })?;
    let (entries, ignored) = (scanner.entries, scanner.ignored);
    Ok(LayerScan { entries, ignored, ignored_content: content, reports: BTreeSet::new() })
}

/// Maximum depth of nested directories; each level takes a descriptor and some stack.
const MAX_DEPTH: usize = 256;

struct LayerScanner {
    bounds: ScanBounds,
    content: IgnoredContent,
    ignored: BTreeSet<Vec<u8>>,
    hashed_bytes: u64,
    entries: BTreeMap<Vec<u8>, LayerEntry>,
}

/// Position of the scan.
#[derive(Clone, Copy)]
struct ScanPosition {
    depth: usize,
    is_spared: bool,
}

impl LayerScanner {
    fn scan_directory(&mut self, dir: BorrowedFd<'_>, path: &[u8], position: ScanPosition) -> Result<(), ScanError> {
        if position.depth > MAX_DEPTH {
            return Err(ScanError::TooDeep { limit: MAX_DEPTH });
        }
        for name in read_beneath::read_names(dir).map_err(|source| io_error(path, source))? {
            let path = paths::join(path, &name);
            if self.entries.len() >= self.bounds.entries {
                return Err(ScanError::TooManyEntries { limit: self.bounds.entries });
            }
            let stat = read_beneath::stat_at(dir, &name).map_err(|source| io_error(&path, source))?;
            let entry = self.read_entry(dir, &name, &path, &stat, position)?;
            self.entries.insert(path, entry);
        }
        Ok(())
    }

    fn read_entry(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        path: &[u8],
        stat: &Stat,
        position: ScanPosition,
    ) -> Result<LayerEntry, ScanError> {
        let failed = |source| io_error(path, source);
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile if position.is_spared => Ok(LayerEntry::File {
                executable: read_beneath::is_executable(stat),
                size: read_beneath::size_of(stat),
                content: FileContent::Spared,
            }),
            FileType::RegularFile => self.read_file(dir, name, path, stat),
            FileType::Directory => {
                let opened = open_for_owner(dir, name, stat, OFlags::DIRECTORY).map_err(failed)?;
                let opaque = is_opaque(opened.as_fd(), path)?;
                let is_ignored = self.content != IgnoredContent::Hashed && self.ignored.contains(path);
                let is_spared = position.is_spared || is_ignored;
                if !is_spared || self.content == IgnoredContent::Listed {
                    self.scan_directory(opened.as_fd(), path, ScanPosition { depth: position.depth + 1, is_spared })?;
                }
                Ok(LayerEntry::Directory { opaque })
            }
            FileType::Symlink => {
                let target = readlinkat(dir, name, Vec::new()).map_err(|errno| failed(errno.into()))?;
                Ok(LayerEntry::Symlink { target: target.into_bytes() })
            }
            FileType::CharacterDevice if stat.st_rdev == 0 => Ok(LayerEntry::Whiteout),
            _ => Ok(LayerEntry::Special),
        }
    }

    fn read_file(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        path: &[u8],
        stat: &Stat,
    ) -> Result<LayerEntry, ScanError> {
        let failed = |source| io_error(path, source);
        let opened = open_for_owner(dir, name, stat, OFlags::NONBLOCK | OFlags::NOCTTY).map_err(failed)?;
        is_opaque(opened.as_fd(), path)?;
        let limit = self.bounds.file_bytes.min(self.bounds.total_bytes - self.hashed_bytes);
        let content = match read_beneath::hash_open(opened.as_fd(), limit).map_err(failed)? {
            HashAttempt::Stable { sha256, .. } => FileContent::Sha256(sha256),
            HashAttempt::TooLarge => FileContent::BeyondBound,
            HashAttempt::Changed => return Err(ScanError::NotSealed { path: display_path(path) }),
        };
        let size = read_beneath::size_of(stat);
        if matches!(content, FileContent::Sha256(_)) {
            self.hashed_bytes += size;
        }
        Ok(LayerEntry::File { executable: read_beneath::is_executable(stat), size, content })
    }
}

/// Opens a file or directory of a layer for reading, and grants its owner this permission if the step took it away.
///
/// The permission stays: a later step must see the file too. A check that skips unreadable files would otherwise pass
/// without having seen a file of the recorded tree.
fn open_for_owner(dir: BorrowedFd<'_>, name: &[u8], stat: &Stat, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    let needed = if is_directory { DIRECTORY_PERMISSIONS } else { Mode::RUSR };
    let mode = Mode::from_raw_mode(stat.st_mode);
    if !mode.contains(needed) {
        let held = openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        add_permissions(held.as_fd(), mode, needed)?;
    }
    Ok(openat(dir, name, flags, Mode::empty())?)
}

/// The permissions with which its owner can see the content of a directory.
const DIRECTORY_PERMISSIONS: Mode = Mode::RUSR.union(Mode::XUSR);

/// Adds permissions to the mode of an entry that an `O_PATH` descriptor names. chmod through such a descriptor only works
/// by its path in /proc.
fn add_permissions(held: BorrowedFd<'_>, mode: Mode, added: Mode) -> io::Result<()> {
    Ok(rustix::fs::chmod(format!("/proc/self/fd/{}", held.as_raw_fd()), mode | added)?)
}

/// Reopens the top directory of a layer for reading; also works with an `O_PATH` descriptor. Grants its owner the
/// permission if the step took it away; each layer has a separate top directory, so no later step sees this mode.
fn reopen_directory(dir: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mode = Mode::from_raw_mode(fstat(dir)?.st_mode);
    if !mode.contains(DIRECTORY_PERMISSIONS) {
        add_permissions(dir, mode, DIRECTORY_PERMISSIONS)?;
    }
    Ok(openat(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Overlay attributes that do not affect content, which the kernel uses for bookkeeping.
const BOOKKEEPING_XATTRS: [&[u8]; 5] = [b"impure", b"origin", b"uuid", b"nlink", b"upper"];

/// Checks whether the kernel marked a directory as opaque. An unknown mark is an error, since it could change the
/// meaning of the layer.
fn is_opaque(fd: BorrowedFd<'_>, path: &[u8]) -> Result<bool, ScanError> {
    let mut opaque = false;
    for name in xattr_names(fd).map_err(|source| io_error(path, source))? {
        let unknown = || ScanError::CannotDecode { path: display_path(path), xattr: display_path(&name) };
        if name.starts_with(b"trusted.overlay.") {
            return Err(unknown());
        }
        // The kernel escapes attributes that the step itself set as `user.overlay.overlay.*`.
        let Some(mark) = name.strip_prefix(b"user.overlay.") else { continue };
        if mark == b"opaque" && xattr_value(fd, &name).map_err(|source| io_error(path, source))? == b"y" {
            opaque = true;
        } else if !mark.starts_with(b"overlay.") && !BOOKKEEPING_XATTRS.contains(&mark) {
            return Err(unknown());
        }
    }
    Ok(opaque)
}

fn xattr_names(fd: BorrowedFd<'_>) -> io::Result<Vec<Vec<u8>>> {
    // There are usually no attributes, and a large buffer costs more than the call.
    let mut few = [0; 512];
    match flistxattr(fd, few.as_mut_slice()) {
        Ok(count) => Ok(split_names(&few[..count])),
        Err(Errno::RANGE) => {
            // 64 KiB is the kernel's bound on the list.
            let mut list = vec![0; 64 << 10];
            let count = flistxattr(fd, list.as_mut_slice())?;
            Ok(split_names(&list[..count]))
        }
        Err(Errno::NOTSUP) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

fn split_names(list: &[u8]) -> Vec<Vec<u8>> {
    list.split(|b| *b == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
}

fn xattr_value(fd: BorrowedFd<'_>, name: &[u8]) -> io::Result<Vec<u8>> {
    let mut value = [0; 16];
    match fgetxattr(fd, name, value.as_mut_slice()) {
        Ok(count) => Ok(value[..count].to_vec()),
        Err(Errno::RANGE) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn io_error(path: &[u8], source: io::Error) -> ScanError {
    ScanError::Io { path: display_path(path), source }
}

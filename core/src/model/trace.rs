//! Describes everything that a command read of the host: the trace of a [view](AccessTrace), and its encoding.
//!
//! A trace is a claim about sufficiency. If every path of the trace still has the recorded state, a repeated command
//! gets the same answers from the host. A trace may therefore contain more than the command used, and never less.

mod encoding;

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

pub use encoding::{DamagedTrace, MAX_ENCODED_BYTES};

use crate::text::escape::escape_output;

/// Maximum number of paths of a trace. A command that accesses more paths has no trace.
pub const MAX_TRACE_ENTRIES: usize = 200_000;
/// Maximum length of a path or of a link target, as in Linux (`PATH_MAX`).
pub const MAX_TRACE_PATH_BYTES: usize = 4_096;
/// Maximum number of bytes of all paths and link targets of a trace together.
pub const MAX_TRACE_TEXT_BYTES: usize = 32 << 20;

/// Everything that one command read of the host. The paths are sorted by their bytes, and each occurs once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccessTrace {
    entries: Vec<AccessedPath>,
}

/// One path of the host that a command looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessedPath {
    /// The absolute path on the host. It contains no `.`, no `..`, no empty part and no byte 0.
    pub path: Vec<u8>,
    /// The answer to the lookup. Content is not a part of it.
    pub state: PathState,
    /// The identity of the file at the time of the lookup; `None` if and only if the path was absent.
    pub stamp: Option<FileStamp>,
    /// `true` if the command could read the content of the file: by read(2), execve(2), mmap(2) or otherwise. A file that
    /// was only opened does not count, nor does one without content.
    pub read: bool,
    /// The entries of the directory, if the command listed it.
    pub listing: Option<ListingDigest>,
}

/// The answer to a lookup. The modes contain the permission bits, including set-id bits and the sticky bit, and not the
/// file type, except for [`PathState::Other`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathState {
    /// There was no entry of this name.
    Absent,
    /// A regular file.
    File {
        /// The permission bits.
        mode: u32,
        /// The length in bytes.
        size: u64,
        /// The user id on the host.
        uid: u32,
        /// The group id on the host.
        gid: u32,
    },
    /// A directory.
    Directory {
        /// The permission bits.
        mode: u32,
        /// The user id on the host.
        uid: u32,
        /// The group id on the host.
        gid: u32,
    },
    /// A symbolic link.
    Link {
        /// The text of the link.
        target: Vec<u8>,
        /// The user id on the host.
        uid: u32,
        /// The group id on the host.
        gid: u32,
    },
    /// A FIFO, a socket or a device.
    Other {
        /// The file type and the permission bits (`st_mode`).
        mode: u32,
        /// The user id on the host.
        uid: u32,
        /// The group id on the host.
        gid: u32,
    },
}

/// The attributes by which a changed or replaced file is found without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStamp {
    /// The device of the file system.
    pub dev: u64,
    /// The inode number.
    pub ino: u64,
    /// The size in bytes. It has no meaning for directories.
    pub size: u64,
    /// The time of the last change of the content, in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// The time of the last change of content or attributes, in nanoseconds since 1970.
    pub ctime_ns: i64,
}

/// The type of an entry of a directory, as in `d_type` of readdir(3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum EntryKind {
    /// A regular file.
    File = b'f',
    /// A directory.
    Directory = b'd',
    /// A symbolic link.
    Link = b'l',
    /// A FIFO.
    Fifo = b'p',
    /// A Unix socket.
    Socket = b's',
    /// A character device.
    CharacterDevice = b'c',
    /// A block device.
    BlockDevice = b'b',
}

/// The sha256 of the names and kinds of a directory's entries.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ListingDigest(pub [u8; 32]);

/// The reason why a command that ran on a view has no trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum NoTrace {
    /// The view could not be set up; the command ran without one.
    Unavailable {
        /// What failed.
        message: String,
    },
    /// The command accessed more paths than a trace may contain.
    TooManyPaths,
    /// The host changed while the command ran.
    Changed {
        /// The path, with control characters escaped.
        path: String,
    },
    /// The view answered a request that it cannot describe in a trace.
    NotDescribable {
        /// The request and its path.
        message: String,
    },
    /// The view ended before the command, or gave an answer that the host would not have given. The result of the
    /// command does not count.
    Failed {
        /// What failed.
        message: String,
    },
}

impl AccessTrace {
    /// Creates a trace of `entries` in any order.
    ///
    /// # Errors
    /// Two entries have the same path, a path is not normalised, a stamp is missing or superfluous, or a bound is
    /// exceeded.
    pub fn new(mut entries: Vec<AccessedPath>) -> Result<Self, DamagedTrace> {
        entries.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        Self::from_sorted(entries)
    }

    fn from_sorted(entries: Vec<AccessedPath>) -> Result<Self, DamagedTrace> {
        if entries.len() > MAX_TRACE_ENTRIES {
            return Err(DamagedTrace("it has too many entries"));
        }
        if entries.iter().map(AccessedPath::text_bytes).sum::<usize>() > MAX_TRACE_TEXT_BYTES {
            return Err(DamagedTrace("its paths are too long"));
        }
        if entries.windows(2).any(|pair| pair[0].path >= pair[1].path) {
            return Err(DamagedTrace("its paths are not sorted"));
        }
        if !entries.iter().all(AccessedPath::is_valid) {
            return Err(DamagedTrace("an entry contradicts itself"));
        }
        Ok(Self { entries })
    }

    /// Returns the entries, sorted by path.
    pub fn entries(&self) -> &[AccessedPath] {
        &self.entries
    }

    /// Returns the entry of a path.
    pub fn get(&self, path: &[u8]) -> Option<&AccessedPath> {
        self.entries.binary_search_by(|entry| entry.path.as_slice().cmp(path)).ok().map(|index| &self.entries[index])
    }
}

impl AccessedPath {
    /// Returns the number of bytes that count towards [`MAX_TRACE_TEXT_BYTES`].
    pub fn text_bytes(&self) -> usize {
        self.path.len() + if let PathState::Link { target, .. } = &self.state { target.len() } else { 0 }
    }

    fn is_valid(&self) -> bool {
        let absent = self.state == PathState::Absent;
        let is_dir = matches!(self.state, PathState::Directory { .. });
        is_normal_path(&self.path)
            && self.stamp.is_none() == absent
            && !(self.read && absent)
            && (self.listing.is_none() || is_dir)
            && self.state.is_valid()
    }
}

impl PathState {
    fn is_valid(&self) -> bool {
        match self {
            Self::File { mode, .. } | Self::Directory { mode, .. } => *mode <= 0o7777,
            Self::Link { target, .. } => !target.is_empty() && target.len() <= MAX_TRACE_PATH_BYTES,
            Self::Absent | Self::Other { .. } => true,
        }
    }
}

/// Returns whether a path is absolute, has a possible length, and has no part that is empty, `.` or `..`.
fn is_normal_path(path: &[u8]) -> bool {
    let Some(below) = path.strip_prefix(b"/") else { return false };
    let is_name = |part: &[u8]| !matches!(part, b"" | b"." | b"..") && !part.contains(&0);
    path.len() <= MAX_TRACE_PATH_BYTES && (below.is_empty() || below.split(|byte| *byte == b'/').all(is_name))
}

impl ListingDigest {
    /// Computes the digest of a directory with these entries, in any order. `.` and `..` are left out.
    pub fn from_entries<N: AsRef<[u8]> + Ord>(mut entries: Vec<(N, EntryKind)>) -> Self {
        entries.sort_unstable();
        let mut hash = Sha256::new();
        for (name, kind) in entries.iter().filter(|(name, _)| !matches!(name.as_ref(), b"." | b"..")) {
            hash.update(name.as_ref());
            hash.update([0, *kind as u8]);
        }
        Self(hash.finalize().into())
    }
}

impl fmt::Debug for ListingDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl NoTrace {
    /// Creates the reason for a path that changed.
    pub fn changed(path: &[u8]) -> Self {
        Self::Changed { path: escape_output(path) }
    }

    /// Returns whether the command ran on a view whose answers were not the host's, so its result does not count.
    pub fn invalidates_result(&self) -> bool {
        matches!(self, Self::Failed { .. })
    }
}

impl fmt::Display for NoTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable { message } => write!(f, "the view is not available: {message}"),
            Self::TooManyPaths => write!(f, "the command accessed more than {MAX_TRACE_ENTRIES} paths of the host"),
            Self::Changed { path } => write!(f, "changed during the run: {path}"),
            Self::NotDescribable { message } => write!(f, "the view cannot describe an access: {message}"),
            Self::Failed { message } => write!(f, "the view failed: {message}"),
        }
    }
}

#[cfg(test)]
mod tests;

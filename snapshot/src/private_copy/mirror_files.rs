//! Names the files of a private copy, and reports why one cannot be written.

use std::fs::File;
use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, OFlags, openat};

use crate::snapshot::snapshot_error::SnapshotError;

/// The reason why a mirror cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MirrorError {
    /// A file of the mirror or of the tree could not be read or written.
    #[error(
        "cannot copy `{path}` into the private tree: {source}\nhint: check the permissions of the file, and free space below the state directory"
    )]
    Io {
        /// The path, in human-readable form.
        path: String,
        /// The system error.
        source: std::io::Error,
    },
    /// The mirror contains an entry that differs from its record.
    #[error("the private tree is damaged: `{path}` {problem}\nhint: run again; Proctor creates the private tree again")]
    Damaged {
        /// The path, in human-readable form.
        path: String,
        /// The problem, as a predicate.
        problem: &'static str,
    },
    /// The content of a file in a commit does not match its id.
    #[error(
        "cannot copy `{path}` of the commit: its content is not the blob {id}\nhint: `git fsck` finds damaged objects; fetch them again"
    )]
    OtherBlob {
        /// The path, in human-readable form.
        path: String,
        /// The id of the blob.
        id: String,
    },
    /// The tree of the mirror could not be examined.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
}

/// The user and group that own a mirror's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MirrorOwner {
    /// The user id.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
}

/// The file that records the content of `tree`; without it, all files are hashed again.
pub const RECORD: &str = "record";

/// Maximum number of files in a mirror, including those of git.
pub(crate) const MAX_FILES: usize = 4_000_000;

/// The git directory in the tree. The caller writes it, and no snapshot covers it.
pub(crate) const GIT_DIR_NAME: &[u8] = b".git";

pub(crate) const DIRECTORY_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens a file in a mirror's directory for reading; returns `None` if that fails.
pub(crate) fn open_file(directory: BorrowedFd<'_>, name: &str) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(directory, name, flags, Mode::empty()).ok().map(File::from)
}

//! Stores documents, which are written atomically, and whole outputs, by their hash.
//!
//! All paths are relative to directory descriptors that were opened without following symlinks, so that no link can
//! redirect a write.

pub(crate) mod attestations;
pub(crate) mod caches;
pub(crate) mod directory;
pub(crate) mod disk_usage;
pub(crate) mod documents;
pub(crate) mod durations;
pub(crate) mod freed_bytes;
pub(crate) mod garbage_collection;
pub(crate) mod gc_extent;
#[cfg(test)]
mod limits;
pub(crate) mod objects;
pub(crate) mod private_copies;
pub(crate) mod results;
pub(crate) mod retention;

pub use attestations::recorded_runs;
pub use directory::{Directory, TemporaryFile};
pub use disk_usage::state_usage;
pub use documents::recorded_document;
pub use garbage_collection::collect as collect_garbage;
pub use gc_extent::GcExtent;
pub use objects::StoredPart;
pub use results::maintenance::{prune_results, result_stats, verify_results};

use std::io;

/// Directory of the last snapshot of each repository, in the state directory.
pub(crate) const SNAPSHOTS_DIR: &str = "snapshots";

/// The reason why a file cannot be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A system call failed.
    #[error("cannot {action} `{path}`: {source}")]
    Io {
        /// The attempted action, such as `write`.
        action: &'static str,
        /// The path, as far as known.
        path: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A path is a symlink or contains one.
    #[error("`{path}` is, or contains, a symbolic link; evidence is written only to regular files")]
    Symlink {
        /// The path.
        path: String,
    },
    /// The changeset does not exist.
    #[error("there is no changeset directory `{path}`")]
    NoChangeset {
        /// The path relative to the repository.
        path: String,
    },
    /// The status file cannot be updated without loss.
    #[error("cannot update `{path}`: {source}")]
    Status {
        /// The path of the status file.
        path: String,
        /// The problem with the status file.
        source: proctor_core::record::status::StatusError,
    },
    /// Another run writes to the same directory.
    #[error("another run is writing to `{path}`")]
    Busy {
        /// The path of the directory.
        path: String,
    },
    /// The directory is not a state directory.
    #[error("`{path}` is not a state directory: no run has used it")]
    NotState {
        /// The path.
        path: String,
    },
    /// A file exceeds the size limit.
    #[error("`{path}` is larger than {limit} bytes")]
    TooLarge {
        /// The path.
        path: String,
        /// The limit, in bytes.
        limit: u64,
    },
}

impl StoreError {
    /// Returns what the user can do about the error.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Symlink { path } => Some(format!("replace `{path}` by a real file or directory")),
            Self::NoChangeset { path } => {
                Some(format!("create it with its `00-meta.json` (`mkdir -p {path}`), or omit `--changeset`"))
            }
            Self::Status { path, .. } => Some(format!("fix `{path}` in an editor; Proctor did not change it")),
            Self::Busy { .. } => Some("wait for it to end, then run again".to_owned()),
            Self::Io { path, source, .. } => Some(hint_for(path, source)),
            Self::NotState { .. } => Some("name the state directory of your runs with `--state-dir`".to_owned()),
            Self::TooLarge { .. } => None,
        }
    }

    pub(crate) fn io(action: &'static str, path: impl Into<String>) -> impl FnOnce(rustix::io::Errno) -> Self {
        let path = path.into();
        move |errno| match errno {
            rustix::io::Errno::LOOP => Self::Symlink { path },
            other => Self::Io { action, path, source: other.into() },
        }
    }
}

/// Hint for the errors that [`lacks_descriptors`] recognizes.
pub(crate) const DESCRIPTOR_HINT: &str =
    "raise the process's limit of open files (`ulimit -n`, `LimitNOFILE=`), or run fewer steps at once";

/// Returns whether the limit of open files is reached, of the process or of the machine.
pub(crate) fn lacks_descriptors(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let codes = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// Returns the hint for a failed system call on `path`.
fn hint_for(path: &str, error: &io::Error) -> String {
    use io::ErrorKind;
    if lacks_descriptors(error) {
        return DESCRIPTOR_HINT.to_owned();
    }
    match error.kind() {
        ErrorKind::NotADirectory => format!("replace `{path}` by a real directory"),
        // Only Proctor writes this path, so an entry of another kind has replaced its file.
        ErrorKind::IsADirectory | ErrorKind::Other => format!("replace `{path}` by a real file"),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            format!("free space on the disk of `{path}`, then run again")
        }
        _ => format!("make sure that `{path}` is readable and writable, then run again"),
    }
}

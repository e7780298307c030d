//! What we keep: documents written atomically, whole outputs by their hash.
//!
//! Everything is relative to directory fds that were opened without following a symlink, so
//! that nobody can lead a write of ours elsewhere.

pub(crate) mod attestations;
pub(crate) mod caches;
pub(crate) mod directory;
pub(crate) mod documents;
pub(crate) mod durations;
pub(crate) mod freed;
pub(crate) mod garbage;
#[cfg(test)]
mod limits;
pub(crate) mod mirrors;
pub(crate) mod objects;
pub(crate) mod retention;

pub use directory::{Directory, Temporary};
pub use documents::recorded_document;
pub use garbage::{Extent as GcExtent, collect as collect_garbage};
pub use objects::Part;

use std::io;

/// Where the last snapshot of each repository is kept, below the state directory.
pub(crate) const SNAPSHOTS: &str = "snapshots";

/// Why something of ours could not be kept.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The system refused.
    #[error("cannot {action} `{path}`: {source}")]
    Io {
        /// What was tried, such as `write`.
        action: &'static str,
        /// On what, as far as it is known.
        path: String,
        /// The system's answer.
        source: io::Error,
    },
    /// A path of ours leads through a symlink, or is one.
    #[error("`{path}` is, or contains, a symbolic link; evidence is written only to regular files")]
    Symlink {
        /// The path.
        path: String,
    },
    /// The changeset is not there.
    #[error("there is no changeset directory `{path}`")]
    NoChangeset {
        /// The path below the repository.
        path: String,
    },
    /// The status file cannot be updated without losing something of it.
    #[error("cannot update `{path}`: {source}")]
    Status {
        /// The path below the changeset.
        path: String,
        /// What is wrong with it.
        source: proctor_core::status::StatusError,
    },
    /// Another run writes to the same place.
    #[error("another run is writing to `{path}`")]
    Busy {
        /// The path below the repository.
        path: String,
    },
    /// The directory holds no state of ours.
    #[error("`{path}` is not a state directory: no run has used it")]
    NotState {
        /// The path.
        path: String,
    },
    /// A file is larger than what we read.
    #[error("`{path}` is larger than {limit} bytes")]
    TooLarge {
        /// The path.
        path: String,
        /// The bound, in bytes.
        limit: u64,
    },
}

impl StoreError {
    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Symlink { path } => Some(format!("replace `{path}` by a real file or directory")),
            Self::NoChangeset { path } => {
                Some(format!("create it with its `00-meta.json` (`mkdir -p {path}`), or omit `--changeset`"))
            }
            Self::Status { path, .. } => Some(format!("fix `{path}` in an editor; Proctor did not change it")),
            Self::Busy { .. } => Some("wait for it to end, then run again".to_owned()),
            Self::Io { path, source, .. } => Some(remedy(path, source)),
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

/// What to do where [`lacks_descriptors`].
pub(crate) const MORE_DESCRIPTORS: &str =
    "let the process have more open files (`ulimit -n`, `LimitNOFILE=`), or run less at once";

/// Whether the process, or the machine, has as many open files as it may have.
pub(crate) fn lacks_descriptors(refusal: &io::Error) -> bool {
    use rustix::io::Errno;
    let codes = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
    refusal.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// What to do where the system refuses something about `path`.
fn remedy(path: &str, refusal: &io::Error) -> String {
    use io::ErrorKind;
    if lacks_descriptors(refusal) {
        return MORE_DESCRIPTORS.to_owned();
    }
    match refusal.kind() {
        ErrorKind::NotADirectory => format!("replace `{path}` by a real directory"),
        // It is ours: something else stands there.
        ErrorKind::IsADirectory | ErrorKind::Other => format!("replace `{path}` by a real file"),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            format!("make room on the disk of `{path}`, then run again")
        }
        _ => format!("see that `{path}` can be read and can be written, then run again"),
    }
}

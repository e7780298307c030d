//! Reports why a snapshot could not be taken.

use proctor_git::error::GitError;

/// The reason why a snapshot could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The repository could not be read.
    #[error(transparent)]
    Git(#[from] GitError),
    /// A file of the tree could not be read.
    #[error("cannot read `{path}`: {source}\nhint: fix its permissions, or have git ignore it")]
    Io {
        /// The path, in human-readable form.
        path: String,
        /// The system error.
        source: std::io::Error,
    },
    /// A file kept changing while it was read.
    #[error("`{path}` kept changing while it was read\nhint: stop the program that writes to it, and run again")]
    Unstable {
        /// The path, in human-readable form.
        path: String,
    },
}

//! Defines the bounds on a layer, and the reasons why one could not be read or filled.

use std::io;

/// Maximum depth of nested directories. Each level takes a descriptor, and while reading some stack.
pub(super) const MAX_DEPTH: usize = 256;

/// Bounds on a list of changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerBounds {
    /// Maximum number of entries.
    pub entries: usize,
    /// Maximum size of the content of all files together, in bytes.
    pub bytes: u64,
}

/// The reason why a layer could not be read or filled.
#[derive(Debug, thiserror::Error)]
pub enum LayerChangeError {
    /// An entry of the layer could not be read or created.
    #[error("`{path}` in the layer of a step: {source}")]
    Io {
        /// The path, in human-readable form.
        path: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The content of the files could not be written or read.
    #[error("the content of a step's files: {0}")]
    Content(#[source] io::Error),
    /// The layer contains an entry in a format that no sandbox creates.
    #[error("`{path}` in the layer of a step has the unknown attribute `{attribute}`")]
    UnknownAttribute {
        /// The path, in human-readable form.
        path: String,
        /// The extended attribute.
        attribute: String,
    },
    /// The list contains an entry that is not permitted.
    #[error("`{path}` in the list of a step's changes is refused: {problem}")]
    Refused {
        /// The path, in human-readable form.
        path: String,
        /// The problem.
        problem: &'static str,
    },
    /// A file changed while it was read.
    #[error("`{path}` in the layer of a step changed while it was read")]
    NotSealed {
        /// The path, in human-readable form.
        path: String,
    },
    /// There are too many entries.
    #[error("the step changed more than {limit} files and directories")]
    TooManyEntries {
        /// The bound.
        limit: usize,
    },
    /// The files are too large.
    #[error("the files that the step wrote have more than {limit} bytes together")]
    TooManyBytes {
        /// The bound.
        limit: u64,
    },
    /// Directories are nested too deeply.
    #[error("the step created directories more than {MAX_DEPTH} levels deep")]
    TooDeep,
}

/// Returns a path in human-readable form, for a message.
pub(super) fn shown(path: &[u8]) -> String {
    proctor_core::model::drift::display_path(path)
}

pub(super) fn io_error<E: Into<io::Error>>(path: &[u8]) -> impl FnOnce(E) -> LayerChangeError {
    move |error| LayerChangeError::Io { path: shown(path), source: error.into() }
}

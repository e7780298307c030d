//! Carries the changes of a `read_only: off` step into the worktree, after it has passed.

use std::os::fd::BorrowedFd;

use proctor_core::plan::RelPath;

use crate::git::GitError;
use crate::git::helper::IgnoreQuery;
use crate::layer::LayerScan;
use crate::view::View;

/// What is carried where.
#[derive(Debug, Clone, Copy)]
pub struct ApplyInput<'a> {
    /// The top of the real tree.
    pub repo: BorrowedFd<'a>,
    /// The tree before the step.
    pub view: &'a View,
    /// The step's layer.
    pub scan: &'a LayerScan,
    /// The upper directory that `scan` was read from.
    pub upper: BorrowedFd<'a>,
    /// The ignore rules of the real tree.
    pub ignored: &'a IgnoreQuery,
    /// The skill's caches, which are no part of the tree.
    pub caches: &'a [RelPath],
}

/// Why the changes were not applied, or not all of them.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Someone changed the same paths meanwhile. Nothing was written.
    #[error("the tree changed while the step ran, at {}\nhint: nothing was applied; run again", .paths.join(", "))]
    Conflict {
        /// The paths, for people; sorted.
        paths: Vec<String>,
    },
    /// The git helper could not say which paths are ignored. Nothing was written.
    #[error(transparent)]
    Git(#[from] GitError),
    /// A path could not be read or written.
    #[error("cannot write `{path}`: {source}\nhint: {} were applied before it", .applied.len())]
    Io {
        /// The path, for people.
        path: String,
        /// The system's own words.
        source: std::io::Error,
        /// What was applied before.
        applied: Vec<Vec<u8>>,
    },
}

/// Applies the step's changes; the paths that were changed, sorted.
///
/// # Errors
/// The tree changed meanwhile (then nothing was written), or a path could not be written.
pub fn apply_back(_input: ApplyInput<'_>) -> Result<Vec<Vec<u8>>, ApplyError> {
    unimplemented!()
}

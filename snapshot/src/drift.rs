//! What a step changed that the plan does not allow.

use std::os::fd::BorrowedFd;

use proctor_core::drift::StepDrift;
use proctor_core::plan::{ReadOnly, RelPath};

use crate::git::GitError;
use crate::git::helper::IgnoreQuery;
use crate::layer::LayerScan;
use crate::view::View;

/// What the drift of one step is read from.
#[derive(Debug, Clone, Copy)]
pub struct DriftInput<'a> {
    /// The tree before the step.
    pub view: &'a View,
    /// The step's layer.
    pub scan: &'a LayerScan,
    /// What it must not change.
    pub mode: ReadOnly,
    /// The ignore rules of the real tree; asked only where the answer depends on them.
    pub ignored: &'a IgnoreQuery,
    /// The top of the real tree.
    pub repo: BorrowedFd<'a>,
    /// The upper directory that `scan` was read from.
    pub upper: BorrowedFd<'a>,
    /// The upper directories of the layers in `view`, newest first.
    pub lower_uppers: &'a [BorrowedFd<'a>],
    /// The skill's caches, which are no part of the tree.
    pub caches: &'a [RelPath],
}

/// Why the drift of a step could not be found. The step has no honest outcome then.
#[derive(Debug, thiserror::Error)]
pub enum DriftError {
    /// The git helper could not say which paths are ignored.
    #[error(transparent)]
    Git(#[from] GitError),
    /// The real tree could not be read.
    #[error("cannot read `{path}`: {source}\nhint: mend its permissions; `read_only: strict` reads ignored files too")]
    Io {
        /// The path, for people.
        path: String,
        /// The system's own words.
        source: std::io::Error,
    },
    /// A deleted directory has more entries than we list.
    #[error(
        "the step deleted directories with more than {limit} entries\nhint: name them in the skill's `caches`, or use `read_only: tracked`"
    )]
    TooMany {
        /// The bound.
        limit: usize,
    },
}

/// Finds what the step changed that it must not, sorted by path.
///
/// # Errors
/// The ignore rules or the real tree could not be read.
pub fn find_drift(_input: DriftInput<'_>) -> Result<StepDrift, DriftError> {
    unimplemented!()
}

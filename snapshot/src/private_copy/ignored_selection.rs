//! Selects the ignored files that a private copy contains.

use proctor_core::model::plan::RelPath;

use crate::read_permissions::StepRights;

/// The ignored files that a mirror should contain.
#[derive(Debug, Clone)]
pub struct IgnoredSelection<'a> {
    /// Paths at and below which nothing is copied, since each step sees other content there.
    pub except: &'a [RelPath],
    /// The ids whose permission bits decide which files may be read; `None` if steps have our own ids.
    pub rights: Option<StepRights>,
    /// Maximum number of files and directories. An ignored path that would exceed the bound is left out.
    pub max_entries: usize,
    /// Maximum number of bytes. An ignored path that would exceed the bound is left out.
    pub max_bytes: u64,
}

pub(crate) const NOT_READABLE_BY_STEPS: &str = "steps may not read it";

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

/// Ignored files that were not copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OmittedFiles {
    /// The number of files in a directory; 0 if the whole input was left out.
    pub count: u64,
    /// The reason why the first of these files was not copied.
    pub reason: OmissionReason,
}

/// The reason why an ignored file was not copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum OmissionReason {
    /// A step has no permission to read the file.
    #[error("steps may not read it")]
    NotReadable,
    /// The entry is neither a file nor a directory nor a link.
    #[error("it is a socket, a FIFO or a device")]
    SpecialFile,
    /// The entry is nested too deeply.
    #[error("it is nested too deeply")]
    TooDeep,
    /// There would be too many files and directories.
    #[error("with it, there would be more files than `tree.max_entries` in proctord.toml")]
    TooManyEntries,
    /// There would be too many bytes.
    #[error("with it, the total would exceed `tree.max_bytes` in proctord.toml")]
    TooManyBytes,
    /// The entry was removed or replaced while it was copied.
    #[error("it was removed or replaced while it was copied")]
    GoneDuringCopy,
    /// The file grew while it was copied, so that there would be too many bytes.
    #[error(
        "it grew while it was copied, and with it there would be more bytes than `tree.max_bytes` in proctord.toml"
    )]
    GrewDuringCopy,
}

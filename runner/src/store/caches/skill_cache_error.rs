//! Defines the errors of caches.

use std::io;

use proctor_core::model::drift::display_path;
use rustix::io::Errno;

use crate::store::StoreError;

/// The reason why a cache cannot be stored or used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SkillCacheError {
    /// A directory in the state directory cannot be accessed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An entry that a step created cannot be processed.
    #[error("cannot {action} `{path}` in it: {source}")]
    Entry {
        /// The attempted action.
        action: &'static str,
        /// The entry's path.
        path: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The directories are nested too deep: each level needs a descriptor.
    #[error("its directories are nested more than {most} levels deep")]
    TooDeep {
        /// Maximum depth.
        most: usize,
    },
    /// There are too many entries to read.
    #[error("it has more than {most} entries")]
    TooMany {
        /// Maximum number of entries.
        most: u64,
    },
    /// The skill wrote more bytes than may be kept.
    #[error("the skill wrote {bytes} bytes, but at most {most} are stored (`retention.max_cache_bytes_per_run`)")]
    TooLarge {
        /// Size in bytes.
        bytes: u64,
        /// Maximum size in bytes.
        most: u64,
    },
    /// An entry has an extended attribute that overlayfs interprets.
    #[error("`{path}` has the attribute `{name}`, which overlayfs would interpret")]
    Attribute {
        /// The entry.
        path: String,
        /// The attribute.
        name: String,
    },
}

impl SkillCacheError {
    pub(super) fn entry_error(action: &'static str, path: &[u8], errno: Errno) -> Self {
        let source: io::Error = errno.into();
        Self::Entry { action, path: display_path(path), source }
    }

    /// Creates an error with a reason of our own.
    pub(crate) fn with_reason(action: &'static str, path: &str, reason: &'static str) -> Self {
        Self::Entry { action, path: path.to_owned(), source: io::Error::other(reason) }
    }
}

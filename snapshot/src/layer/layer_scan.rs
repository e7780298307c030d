//! Represents the entries of a layer.

use std::collections::{BTreeMap, BTreeSet};

use proctor_core::text::digest::Sha256Hex;
use proctor_git::files::paths;

/// The content of a file in a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileContent {
    /// The sha256 of the bytes.
    Sha256(Sha256Hex),
    /// The file exceeds the bound on hashed bytes; it counts as changed.
    BeyondBound,
    /// The file was not read, because it is in a spared directory.
    Spared,
}

/// One entry of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LayerEntry {
    /// A regular file.
    File {
        /// True if the owner may execute the file.
        executable: bool,
        /// The length in bytes.
        size: u64,
        /// The content.
        content: FileContent,
    },
    /// A symbolic link.
    Symlink {
        /// The target of the link.
        target: Vec<u8>,
    },
    /// A fifo, socket or device; never opened.
    Special,
    /// A deletion of the lower entry at this path.
    Whiteout,
    /// A directory.
    Directory {
        /// True if the directory hides all lower entries below its path.
        opaque: bool,
    },
}

/// All entries of one layer, by path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LayerScan {
    /// The entries by path in bytes, without the top directory itself.
    pub entries: BTreeMap<Vec<u8>, LayerEntry>,
    /// New directories that git ignores as a whole. Contains only directories that git was asked about.
    pub ignored: BTreeSet<Vec<u8>>,
    /// How ignored directories were read.
    pub ignored_content: IgnoredContent,
    /// Report files of the step that are not part of the tree, set by
    /// [`exclude_reports`](Self::exclude_reports).
    pub reports: BTreeSet<Vec<u8>>,
}

impl LayerScan {
    /// Checks whether `path` is inside a directory that is known to be ignored.
    pub(crate) fn is_ignored(&self, path: &[u8]) -> bool {
        !self.ignored.is_empty() && paths::ancestors(path).any(|above| self.ignored.contains(above))
    }

    /// Checks whether at most the names in ignored directories were read.
    pub(crate) fn is_sparing(&self) -> bool {
        self.ignored_content != IgnoredContent::Hashed
    }
}

/// How a directory of the layer that git ignores as a whole is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IgnoredContent {
    /// The directory is read like any other directory, since ignored files are compared or applied later.
    #[default]
    Hashed,
    /// Only the names are read, to find paths that two skills both touched.
    Listed,
    /// The directory is not entered.
    Skipped,
}

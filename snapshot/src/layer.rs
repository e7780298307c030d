//! What a step wrote: an overlay's upper directory, read.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use proctor_core::digest::Sha256Hex;

/// Everything that one layer holds, by path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LayerScan {
    /// The entries, by their bytes; the top directory itself is not among them.
    pub entries: BTreeMap<Vec<u8>, LayerEntry>,
}

/// One entry of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LayerEntry {
    /// A regular file.
    File {
        /// Whether its owner may execute it.
        executable: bool,
        /// Its length in bytes.
        size: u64,
        /// What it holds.
        content: FileContent,
    },
    /// A symbolic link.
    Symlink {
        /// What it names.
        target: Vec<u8>,
    },
    /// A fifo, socket or device; never opened.
    Special,
    /// What stood here below is deleted.
    Whiteout,
    /// A directory.
    Directory {
        /// Whether it hides everything below it in the layers underneath.
        opaque: bool,
    },
}

/// What a file of a layer holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileContent {
    /// The sha256 of its bytes.
    Sha256(Sha256Hex),
    /// It lies beyond the bound on hashed bytes; it counts as changed.
    BeyondBound,
}

/// How much of a layer is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanBounds {
    /// How many entries it may have.
    pub entries: usize,
    /// The largest file that is hashed, in bytes.
    pub file_bytes: u64,
    /// How many bytes are hashed in all.
    pub total_bytes: u64,
}

impl Default for ScanBounds {
    fn default() -> Self {
        Self { entries: 1_000_000, file_bytes: 4 << 30, total_bytes: 16 << 30 }
    }
}

/// Why a layer could not be read. The step that wrote it has no honest outcome then.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// An entry could not be read.
    #[error("cannot read `{path}` in the step's layer: {source}")]
    Io {
        /// The path, for people.
        path: String,
        /// The system's own words.
        source: std::io::Error,
    },
    /// An entry has a form that our overlays do not produce.
    #[error(
        "cannot decode `{path}` in the step's layer: it carries `{xattr}`\nhint: this kernel writes layers in a form that we do not read; please report it"
    )]
    CannotDecode {
        /// The path, for people.
        path: String,
        /// The extended attribute.
        xattr: String,
    },
    /// The layer has more entries than the bound.
    #[error(
        "the step's layer has more than {limit} entries\nhint: name the directory that it fills in the skill's `caches`"
    )]
    TooManyEntries {
        /// The bound.
        limit: usize,
    },
}

/// Reads a sealed layer.
///
/// # Errors
/// An entry cannot be read or decoded, or there are too many.
pub fn scan_layer(_upper: BorrowedFd<'_>, _bounds: ScanBounds) -> Result<LayerScan, ScanError> {
    unimplemented!()
}

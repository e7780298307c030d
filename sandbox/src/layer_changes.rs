//! Converts a layer to a list of its entries and their content, and fills an empty layer from such a list. This is how
//! the writes of a step travel between machines.
//!
//! A layer has the format of overlayfs with `userxattr`. The list may come from a worker that lies: [`fill`] creates
//! nothing outside of the layer, whatever the list contains, and verifies the digest of every file.

mod fill;
mod read;

use std::fs::File;
use std::io;

pub use self::fill::fill_directory;
pub use self::read::read_directory;
use crate::agent::LayerChange;
use crate::run_space::{Layer, Sealed, Unsealed};

/// Maximum depth of nested directories. Each level takes a descriptor, and while reading some stack.
const MAX_DEPTH: usize = 256;
/// The block size for reading and writing files, in bytes.
const CHUNK: usize = 128 << 10;

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

/// The content of the files in a list of changes.
pub trait ContentSource {
    /// Fills the buffer with the bytes from `offset` on.
    ///
    /// # Errors
    /// There are not enough bytes, or they cannot be read.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
}

impl ContentSource for File {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(self, buffer, offset)
    }
}

impl ContentSource for [u8] {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let start = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        let bytes = start.checked_add(buffer.len()).and_then(|end| self.get(start..end));
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

impl Layer<Sealed> {
    /// Returns the entries of the layer except those for which `is_left_out` is true, and appends the content of the
    /// files to `content`. The positions in the list count from `content`'s first byte written here.
    ///
    /// # Errors
    /// An entry cannot be read, or the layer exceeds the bounds.
    pub fn read_changes(
        &self,
        bounds: LayerBounds,
        is_left_out: &dyn Fn(&[u8]) -> bool,
        content: &mut dyn io::Write,
    ) -> Result<Vec<LayerChange>, LayerChangeError> {
        read_directory(self.upper(), bounds, is_left_out, content)
    }
}

impl Layer<Unsealed> {
    /// Creates the entries of `changes` in a layer that
    /// [`RunSpace::new_layer`](crate::RunSpace::new_layer) has made. After an error, the layer must be discarded.
    ///
    /// # Errors
    /// The list contains an entry that is not permitted, the content does not have the listed digests, the list exceeds
    /// the bounds, or an entry cannot be created.
    pub fn fill(
        &self,
        changes: &[LayerChange],
        content: &(impl ContentSource + ?Sized),
        bounds: LayerBounds,
    ) -> Result<(), LayerChangeError> {
        let user = self.user();
        let owner = user.is_set_up_by_root().then(|| (user.uid(), user.gid()));
        fill_directory(self.directory(), owner, changes, content, bounds)
    }
}

/// Returns a path in human-readable form, for a message.
fn shown(path: &[u8]) -> String {
    proctor_core::model::drift::display_path(path)
}

fn io_error<E: Into<io::Error>>(path: &[u8]) -> impl FnOnce(E) -> LayerChangeError {
    move |error| LayerChangeError::Io { path: shown(path), source: error.into() }
}

#[cfg(test)]
mod tests;

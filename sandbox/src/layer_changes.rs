//! Converts a layer to a list of its entries and their content, and fills an empty layer from such a list. This is how
//! the writes of a step travel between machines.
//!
//! A layer has the format of overlayfs with `userxattr`. The list may come from a worker that lies: `fill` creates
//! nothing outside of the layer, whatever the list contains, and verifies the digest of every file.

mod content_source;
mod fill;
mod layer_change_error;
mod read;

use std::io;

pub use self::content_source::ContentSource;
pub use self::fill::fill_directory;
pub use self::layer_change_error::{LayerBounds, LayerChangeError};
pub use self::read::read_directory;
use crate::agent::LayerChange;
use crate::run_space::{Layer, Sealed, Unsealed};

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

#[cfg(test)]
mod tests;

//! Keeps files of the tree that a step did not see from being hidden by its layer.
//!
//! A step with `inputs` does not see the other files. It can therefore create a directory where the tree has one. The
//! kernel marks such a directory as opaque, which would hide the files of the tree from the comparison and from later
//! steps.

use std::ffi::OsStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use proctor_core::decision::input_filter::InputFilter;
use proctor_core::model::drift::display_path;
use proctor_git::files::path_resolution::{LinkPolicy, open_beneath};
use proctor_git::files::read_beneath;
use rustix::fs::{AtFlags, OFlags, fremovexattr, statat};
use rustix::io::Errno;

use crate::layer::layer_scan::{LayerEntry, LayerScan};
use crate::layer::{ScanError, io_error};
use crate::tree_view::{PathState, TreeView};

/// The tree of a step that saw only some of its files.
#[derive(Debug, Clone, Copy)]
pub struct WithheldContent<'a> {
    /// The files that the step saw.
    pub inputs: &'a InputFilter,
    /// The tree before the step.
    pub view: &'a TreeView,
    /// The top of the real tree.
    pub repo: BorrowedFd<'a>,
    /// The step's layer.
    pub upper: BorrowedFd<'a>,
    /// The upper directories of the layers in `view`, of which the step saw everything.
    pub lower_uppers: &'a [BorrowedFd<'a>],
}

/// The extended attribute of an opaque directory.
const OPAQUE: &str = "user.overlay.opaque";
/// Maximum number of ignored files of a directory that are examined.
const MAX_IGNORED: usize = 1_000_000;

/// Merges each directory that the step created with the directory of the tree that the step did not see at the same
/// path, in the layer and in its scan.
///
/// # Errors
/// The step removed or replaced a directory that it saw, and that contains files that it did not see.
pub fn keep_withheld(scan: &mut LayerScan, tree: WithheldContent<'_>) -> Result<(), ScanError> {
    let hiding = scan.entries.iter().filter(|(_, entry)| **entry != LayerEntry::Directory { opaque: false });
    let paths: Vec<Vec<u8>> = hiding.map(|(path, _)| path.clone()).collect();
    for path in paths {
        let Some(withheld) = tree.withheld_below(&path)? else { continue };
        let is_directory = matches!(scan.entries.get(&path), Some(LayerEntry::Directory { .. }));
        if !is_directory || tree.was_seen(&path)? {
            let (path, withheld) = (display_path(&path), display_path(&withheld));
            return Err(ScanError::ConcealsWithheld { path, withheld });
        }
        tree.remove_opaque_mark(&path).map_err(|source| io_error(&path, source))?;
        scan.entries.insert(path, LayerEntry::Directory { opaque: false });
    }
    Ok(())
}

impl WithheldContent<'_> {
    /// Returns a file below a path that the step did not see.
    fn withheld_below(&self, path: &[u8]) -> Result<Option<Vec<u8>>, ScanError> {
        if let Some(covered) = self.view.untouched_below(path).find(|file| !self.inputs.shows(file, false)) {
            return Ok(Some(covered));
        }
        if self.view.is_hidden(path) {
            return Ok(None);
        }
        let ignored = match read_beneath::list_leaves(self.repo, path, MAX_IGNORED) {
            Ok(Some(leaves)) => leaves,
            // A directory that is not examined completely may contain such a file.
            Ok(None) => return Ok(Some(path.to_vec())),
            Err(source) => return Err(io_error(path, source)),
        };
        let is_withheld =
            |file: &Vec<u8>| self.view.path_state(file) == PathState::Uncovered && !self.inputs.shows(file, false);
        Ok(ignored.into_iter().find(is_withheld))
    }

    /// Returns whether the step saw the directory that its layer hides.
    fn was_seen(&self, path: &[u8]) -> Result<bool, ScanError> {
        let is_in = |upper: &BorrowedFd<'_>| match statat(upper, path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(errno) => Err(io_error(path, errno.into())),
        };
        let mut seen = self.inputs.shows(path, true);
        for upper in self.lower_uppers {
            seen = seen || is_in(upper)?;
        }
        Ok(seen)
    }

    fn remove_opaque_mark(&self, path: &[u8]) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let path = Path::new(OsStr::from_bytes(path));
        let directory = open_beneath(self.upper, path, flags, LinkPolicy::Reject)?;
        Ok(fremovexattr(&directory, OPAQUE)?)
    }
}

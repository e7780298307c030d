//! Represents the files, links and submodules of a commit's tree.

use crate::object::object_id::ObjectId;

/// An entry that is not a directory.
#[derive(Debug)]
pub(crate) struct PlannedLeaf {
    pub(crate) path: Vec<u8>,
    pub(crate) kind: PlannedLeafKind,
    /// The mode in the tree object.
    pub(crate) mode: u32,
    pub(crate) id: ObjectId,
}

/// The kind of entry that is written at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlannedLeafKind {
    /// A file.
    File {
        /// True if the file is executable.
        executable: bool,
    },
    /// A symbolic link.
    Symlink,
    /// The empty directory of a submodule.
    Gitlink,
}

/// Checks whether a leaf is a submodule.
pub(crate) fn is_gitlink(leaf: &PlannedLeaf) -> bool {
    leaf.kind == PlannedLeafKind::Gitlink
}

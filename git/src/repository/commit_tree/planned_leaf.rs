//! Represents the files, links and submodules of a commit's tree.

use crate::object::object_id::ObjectId;

/// An entry that is not a directory.
#[derive(Debug, Clone)]
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

impl PlannedLeafKind {
    /// Returns the kind of an entry with this mode in a tree object; `None` if it is a directory, or no mode of a file.
    pub(crate) fn from_mode(mode: u32) -> Option<Self> {
        match mode {
            // Git before 2005 wrote the second mode.
            0o100_644 | 0o100_664 => Some(Self::File { executable: false }),
            0o100_755 => Some(Self::File { executable: true }),
            0o120_000 => Some(Self::Symlink),
            0o160_000 => Some(Self::Gitlink),
            _ => None,
        }
    }
}

/// Checks whether a leaf is a submodule.
pub(crate) fn is_gitlink(leaf: &PlannedLeaf) -> bool {
    leaf.kind == PlannedLeafKind::Gitlink
}

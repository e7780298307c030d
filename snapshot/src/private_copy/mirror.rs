//! Represents an open private copy.

use std::os::fd::OwnedFd;

use crate::private_copy::copy_record::CopyRecord;
use crate::private_copy::mirror_files::MirrorOwner;

/// A private copy of a tree.
#[derive(Debug)]
pub struct Mirror {
    pub(crate) directory: OwnedFd,
    pub(crate) tree: OwnedFd,
    pub(crate) owner: Option<MirrorOwner>,
    pub(crate) record: CopyRecord,
    pub(crate) ignored: CopyRecord,
}

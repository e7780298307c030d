//! Describes a part of the host that a view serves.

use std::os::fd::OwnedFd;

use proctor_core::decision::input_filter::InputFilter;

use crate::file_meta::OwnerMap;

/// A directory or file of the host that a view serves. It appears in the root of the view, under its number.
#[derive(Debug)]
pub struct ViewExport {
    /// The absolute path on the host.
    pub host_path: Vec<u8>,
    /// The directory or file; an `O_PATH` descriptor is sufficient.
    pub base: OwnedFd,
    /// The owners on the disk, if the mount of `base` maps owners.
    pub owners: OwnerMap,
    /// The files that are shown, if the export is the tree of a step with `inputs`.
    pub inputs: Option<InputFilter>,
}

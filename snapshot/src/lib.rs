//! Takes snapshots of work trees and finds the changes that steps make to them.
//!
//! A [`Snapshot`] is the content identity of the tree that a run verifies. A short-lived process, the
//! [`GitHelper`](proctor_git::helper::GitHelper), reads the repository's git data. The writes of a step end up in the
//! upper directory of an overlay: [`scan_layer`] reads that directory, a [`TreeView`] describes the tree before the
//! step, [`find_drift`] compares the two, and [`apply_back`] carries the changes of a `read_only: off` step into the
//! worktree. This crate mounts nothing, runs no step, and does not decide whether a step passes.

mod apply;
mod cache_file;
mod diff;
mod drift;
mod entries;
mod layer;
mod merkle;
mod patch;
mod private_copy;
mod read_permissions;
mod report_files;
mod snapshot;
mod snapshot_store;
mod stat_scan;
mod tree_state;
mod tree_view;

pub use crate::layer::layer_scan::{FileContent, IgnoredContent, LayerEntry, LayerScan};
pub use crate::layer::withheld_content::{WithheldContent, keep_withheld};
pub use crate::private_copy::mirror::Mirror;
pub use crate::private_copy::mirror_files::{MirrorError, MirrorOwner, RECORD as MIRROR_RECORD};
pub use crate::snapshot::git_facts::GitFacts;
pub use crate::snapshot::snapshot_error::SnapshotError;
pub use crate::snapshot::taken_snapshot::{Snapshot, SnapshotMethod, SnapshotStats};
pub use crate::snapshot::unknown_tree::UnknownTree;
pub use apply::{ApplyError, ApplyInput, apply_back, is_staging_path};
pub use drift::{DriftError, DriftInput, find_drift};
pub use entries::{EntryTree, identify_commit_tree};
pub use layer::{ScanBounds, ScanError, SparingRules, scan_layer, scan_layer_sparing};
pub use patch::{PatchError, PatchInput, patch};
pub use private_copy::{
    BorrowedObjects, CommitSource, CommitUpdate, IgnoredInput, IgnoredInputKind, IgnoredSelection, MirrorUpdate,
    OmissionReason, OmittedFiles, TREE as MIRROR_TREE, TreeLocation,
};
pub use read_permissions::StepRights;
pub use report_files::{LayerReports, ReportBaseline};
pub use snapshot::find_root;
pub use snapshot_store::{LastAndCurrent, SnapshotStore};
pub use tree_view::{PathState, TreeView, conflicts};

//! Takes snapshots of work trees and finds the changes that steps make to them.
//!
//! A [`Snapshot`] is the content identity of the tree that a run verifies. A short-lived process, the
//! [`GitHelper`], reads the repository's git data. The writes of a step end up in the upper directory of an
//! overlay: [`scan_layer`] reads that directory, a [`View`] describes the tree before the step, [`find_drift`]
//! compares the two, and [`apply_back`] carries the changes of a `read_only: off` step into the worktree. This
//! crate mounts nothing, runs no step, and does not decide whether a step passes.

mod apply;
mod beneath;
mod codec;
mod diff;
mod drift;
mod entries;
mod git;
mod layer;
mod look;
mod merkle;
mod mirror;
mod patch;
mod paths;
mod readable;
mod report;
mod resolve;
mod snapshot;
mod stamp;
mod store;
mod view;

pub use apply::{ApplyError, ApplyInput, apply_back};
pub use drift::{DriftError, DriftInput, find_drift};
pub use entries::Entries;
pub use git::helper::{GitHelper, IgnoreQuery};
pub use git::ignore::ExternalRules;
pub use git::object::ObjectFormat;
pub use git::program::{CheckoutOf, ENVIRONMENT as GIT_ENVIRONMENT, GitOutput, GitProgram, GitTask, Places};
pub use git::protocol;
pub use git::{GitError, reader};
pub use layer::{
    FileContent, IgnoredContent, LayerEntry, LayerScan, ScanBounds, ScanError, Spare, scan_layer, scan_layer_sparing,
};
pub use mirror::{
    Borrowed, CommitSource, CommitUpdate, IgnoredInput, IgnoredWanted, InputKind, Mirror, MirrorError,
    Owner as MirrorOwner, RECORD as MIRROR_RECORD, TREE as MIRROR_TREE, TreePlace, Update as MirrorUpdate,
};
pub use patch::{PatchError, PatchInput, patch};
pub use readable::StepRights;
pub use report::{InLayer, Mark};
pub use resolve::{Links, open_beneath};
pub use snapshot::{GitFacts, Snapshot, SnapshotError, SnapshotMethod, SnapshotStats, find_root};
pub use stamp::Settling;
pub use store::{Peek, SnapshotStore};
pub use view::{Standing, View, conflicts};

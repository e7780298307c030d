//! Decides whether the result of an earlier execution of a step answers for the step now.
//!
//! A result is stored under the [key](StepIdentity::key) of its step, together with everything that the step read
//! ([`ObservedInputs`]). It counts again if the key is the same and every observed input has the same state. Results that
//! do not only depend on these inputs are never stored ([`ReuseObstacle`]). A worker of a cluster reports no inputs: its
//! result counts if everything that the worker got is the same ([`WorkerInputs`]).

mod maintenance;
mod observed_inputs;
mod obstacle;
mod shared;
mod step_identity;
mod stored_result;
mod tree_listing;
mod worker_inputs;

pub use maintenance::{DamagedResult, DistrustedStep, ResultStats, ResultVerification};
pub use observed_inputs::{
    ChangedInput, ContentPin, CurrentInputs, InputAccess, InputArea, ObservedInput, ObservedInputs, PathNow,
};
pub use obstacle::{ReuseObstacle, plan_obstacle, result_obstacle, worker_result_obstacle};
pub use shared::{
    ExpectedRecord, FileContents, MAX_PATH_SET_BYTES, MAX_RECORD_BYTES, PathSet, RecordRefusal, SharedPath,
    SharedRecord, strong_fingerprint,
};
pub use step_identity::{
    IDENTITY_PARTS, InheritedAttributes, MachineFact, MachineFacts, MountedContent, MountedDirectory, NeededPathOrigin,
    ResourceLimit, ShownTool, StepIdentity, processor_model,
};
pub use stored_result::{ImageMount, MAX_STORED_BYTES, PassedFile, StoredResult, chain_digest};
pub use tree_listing::{MAX_LISTING_BYTES, TreeDifference, TreeEntry, TreeListing};
pub use worker_inputs::{WorkerChange, WorkerInputs};

//! Decides whether the result of a step that another machine executed answers for the step here.
//!
//! The search has two levels. The *weak fingerprint* is the identity of the step without what differs between machines.
//! Under it, machines store *path sets*: the paths that an execution accessed, without their content. From a path set
//! and its own files, a machine computes the *strong fingerprint*. If another machine executed the step with exactly
//! these files, the record of the execution is stored under this fingerprint.
//!
//! A path set or record counts only if it is signed by a trusted key. Otherwise a forged path set without paths, with a
//! forged record, would answer for every tree.

mod path_set;
mod record;
mod strong_fingerprint;

pub use path_set::{MAX_PATH_SET_BYTES, PathSet, SharedPath};
pub use record::{ExpectedRecord, MAX_RECORD_BYTES, RecordRefusal, SharedRecord};
pub use strong_fingerprint::{FileContents, strong_fingerprint};

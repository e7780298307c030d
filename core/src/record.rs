//! Defines the documents that a run leaves behind, and reads them back.

pub mod attestation;
pub mod evidence;
pub mod run_record;
pub mod run_reuse;
pub mod status;
pub mod unverified_inputs;

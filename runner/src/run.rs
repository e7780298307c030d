//! Runs a request: prepares the tree, orders the skills, and writes the evidence.

pub(crate) mod dispatch;
pub(crate) mod earlier_pass;
pub(crate) mod engine;
pub(crate) mod evidence_builder;
pub(crate) mod finish;
mod path_keys;
pub(crate) mod preflight;
pub(crate) mod prepared_tree;
pub(crate) mod request;
pub(crate) mod rerun;
pub(crate) mod run_context;
pub(crate) mod run_patch;
pub(crate) mod schedule;

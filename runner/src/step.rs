//! Runs skills, steps and toolchain checks: attempts, layers, caches, output and reports.

pub(crate) mod attempt;
pub(crate) mod chosen_files;
pub(crate) mod file_selection;
pub(crate) mod host_stamps;
pub(crate) mod layer_stack;
pub(crate) mod live_output;
pub(crate) mod needed_paths;
pub(crate) mod output;
pub(crate) mod path_preparation;
mod process_facts;
pub(crate) mod result_storage;
pub(crate) mod reusable_step;
pub(crate) mod reuse;
pub(crate) mod reuse_prediction;
pub(crate) mod reused_files;
pub(crate) mod session;
pub(crate) mod shown_fixes;
pub(crate) mod skill_caches;
pub(crate) mod skill_runner;
pub(crate) mod sql_step;
pub(crate) mod step_events;
pub(crate) mod step_reports;
pub(crate) mod step_runner;
pub mod timing;
pub(crate) mod toolchain_checks;
pub(crate) mod toolchain_version;
pub(crate) mod tree_inputs;

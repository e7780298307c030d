//! Executes steps on the workers of a cluster: describes the inputs of a step, executes the agent program over them, and
//! examines its report. The decision where a step runs is in `step/remote_attempt.rs`.

mod clients;
mod executor;
mod git_objects;
mod input_root;
mod needed_paths;
mod remote_run;
mod worker_report;

pub(crate) use clients::RemoteClients;
pub(crate) use executor::{AgentProgram, RemoteExecutor, RemoteFailure, RemoteJob, RemoteOutputs};
pub(crate) use input_root::{GitTree, git_tree, input_tree, list_tree};
pub(crate) use needed_paths::needed_path_tree;
pub(crate) use remote_run::{GitObjectSource, RemoteRun, RemoteTrees};
pub(crate) use worker_report::{
    clean_texts, examine_checks, received_stream, require_controls, require_own_report, worker_evidence, worker_text,
};

//! Runs one command under one policy: enforces the controls, chooses the command's user, stores its writes in a
//! layer, and manages the helper processes around it. This crate does not decide whether a step passed.
//!
//! ```text
//! daemon ── Launcher thread ── spawn ──> helper (own small binary, clean environment)
//!   │                                      │ set-up, computed by `setup_ops`
//!   └── Running: stdout, stderr, control   └─> init, PID 1 of the step: reaps, forwards SIGTERM
//!                                                └─> the command
//! ```
//!
//! A [`RunSpace`] holds the layers of one run through file descriptors alone; no process keeps it alive. Each
//! [`Layer`] has one owner and is [`Unsealed`] or [`Sealed`] by type, because the kernel reports neither two overlays
//! that share an upper directory nor a live upper directory that is used as a lower one.

pub mod agent;
mod capabilities;
pub mod cgroup;
mod doctor;
mod error;
mod file_batches;
mod fs_credentials;
pub mod helper;
mod host;
mod host_view;
mod launcher;
pub mod layer_changes;
#[doc(hidden)]
mod layer_slot;
mod no_namespaces;
mod policy;
mod reaper;
mod removal;
mod resource_report;
mod run_space;
mod running_sandbox;
mod sandbox_pool;
mod seccomp;
mod setup;
mod space_creation;
mod sys;
mod wait;
mod wire;
pub mod worker_agent;

pub use crate::removal::remove_dir;
pub use crate::resource_report::{ExhaustedSpace, WaitStatus};
pub use doctor::{DoctorReport, UnmetRequirement, doctor, view_obstacle};
pub use error::SandboxError;
pub use file_batches::FileBatches;
pub use fs_credentials::FsCredentials;
pub use host::{Host, HostConfig, RepoFacts, StepUser};
pub use launcher::Launcher;
pub use policy::{AccessRights, CACHE_UPPER, CacheMount, CacheSource, GitDirs, NestedGit, Policy, ToolKind, ToolMount};
pub use proctor_view::{observe_listing, observe_path, observe_shown_listing};
pub use run_space::{CacheForm, Layer, RunSpace, RunSpaceConfig, SandboxReuse, Sealed, Unsealed};
pub use running_sandbox::{EventPoll, RunningSandbox, SandboxEvent, ViewTrace};
pub use setup::{SetupOp, SetupStage, is_hidden, setup_ops};
pub use sys::{
    BlockedSignals, block_termination_signals, close_inherited, keep_termination_signals_blocked,
    restore_signal_handling, take_inherited_descriptor, trim_memory,
};

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
//! [`Layer`] has one owner and is [`Open`] or [`Sealed`] by type, because the kernel reports neither two overlays
//! that share an upper directory nor a live upper directory that is used as a lower one.

#[doc(hidden)]
pub mod cgroup;
mod doctor;
mod error;
pub mod helper;
mod host;
mod host_view;
mod launcher;
mod plain;
mod policy;
mod pool;
mod reader;
mod reaper;
mod running;
mod seccomp;
mod setup;
mod space;
mod sys;
mod wait;
mod wire;

pub use doctor::{DoctorReport, Finding, doctor};
pub use error::SandboxError;
pub use host::{Host, HostConfig, RepoFacts, StepUser};
pub use launcher::Launcher;
pub use policy::{CACHE_UPPER, CacheMount, CacheSource, GitDirs, NestedGit, Policy, Rights, ToolKind, ToolMount};
pub use reader::Reader;
pub use running::{Received, Report, Running, WaitStatus};
pub use setup::{SetupOp, Stage, is_hidden, setup_ops};
pub use space::{CacheForm, Layer, Open, RunSpace, RunSpaceConfig, Sandboxes, Sealed, Spent, remove_dir};
pub use sys::{HeldSignals, claim_signals, close_inherited, give_back_memory, hold_signals};

//! Manages control groups: finds where this process may create them, creates one for each attempt, sets its limits,
//! reads its counters, and removes abandoned ones. The callers decide which process enters a group, and how to treat
//! a step that reached a limit.
//!
//! ```text
//! v2, or a delegated cgroup           v1, one tree for each controller
//! <own cgroup>/proctor-<pid>-<n>/     <own cgroup>/proctor-<pid>-<n>/
//!   daemon/   this process              1/, 2/, …   attempts
//!   1/, 2/, … attempts
//! ```
//!
//! The directory `proctor-…` is locked (`flock`) as long as its owner lives. The kernel releases the lock however the
//! owner ends, so that the next daemon can recognise abandoned directories, even across PID namespaces. See
//! cgroups(7) and the kernel's `admin-guide/cgroup-v2.rst` and `admin-guide/cgroup-v1/`.

mod attempt_cgroup;
mod control_files;
mod delegated_cgroup;
mod discovery;
pub(crate) mod location_state;
mod membership;
mod subtree;
mod systemd_scope;
pub(crate) mod unusable;
mod v1_trees;

pub use crate::cgroup::unusable::DiscoveryPaths;
pub(crate) use attempt_cgroup::SEPARATE_SOCKET_BUFFERS;
pub use attempt_cgroup::{AttemptCgroup, CgroupJoinFds, CgroupUsage, EnforcedCgroupLimits};
pub use discovery::{CgroupLocation, NoCgroupError};

//! Control groups: where this process may make them, one for each attempt, what is bounded and
//! counted in it, and that none is left behind. Who enters a group, and what becomes of a step
//! that met a bound, is decided by the callers.
//!
//! ```text
//! v2, or a delegated cgroup           v1, one tree for each controller
//! <own cgroup>/proctor-<pid>-<n>/     <own cgroup>/proctor-<pid>-<n>/
//!   daemon/   this process              1/, 2/, …   attempts
//!   1/, 2/, … attempts
//! ```
//!
//! The directory `proctor-…` is locked (`flock`) for as long as its owner lives: the kernel lets
//! go of the lock whatever ends the owner, so that the next one can tell what is abandoned, also
//! across PID namespaces. See cgroups(7) and the kernel's `admin-guide/cgroup-v2.rst` and
//! `admin-guide/cgroup-v1/`.

mod control;
mod delegated;
mod group;
mod legacy;
mod place;
mod scope;
mod seat;
mod subtree;

pub(crate) use group::APART;
pub use group::{Entrance, Group, Held, Usage};
pub use seat::{NoSeat, Roots, Seat};

//! Serves a read-only view of the host over FUSE, and records everything that the kernel reads through it.
//!
//! The kernel asks a FUSE server for each name that it has not looked up yet, for each file that it opens, and for each
//! directory that it lists. A view is mounted for one command, with nothing in the kernel's caches. The recorded set is
//! therefore a superset of everything that the command read of the view, whichever system calls it used.
//!
//! ```text
//! step ── path lookup, open, mmap, exec ──> kernel ── /dev/fuse ──> ViewServer ── openat, fstatat ──> host
//!                                                                       └─> Recorder ──> AccessTrace
//! ```
//!
//! The protocol is implemented here and not by the crate `fuser`, for three reasons. `fuser` uses the inode number that
//! programs see as the kernel's key of a file. A view needs a separate key for each path: otherwise two hard links, or
//! two mounts of a directory, are one file, and an access cannot be attributed to its path. The server runs in a
//! forked process of one thread, which also waits for its client. And the helper that contains it must start quickly.
//!
//! A server never guesses: if it cannot describe an answer, the trace is replaced by a [`NoTrace`] reason.
//!
//! [`NoTrace`]: proctor_core::model::trace::NoTrace

mod directory_listing;
mod file_meta;
mod host_files;
mod node_table;
mod observation;
mod protocol;
mod recorder;
mod view_export;
mod view_server;

pub use file_meta::{IdRange, OwnerMap};
pub use observation::{observe_listing, observe_path, observe_shown_listing};
pub use protocol::MIN_MINOR_VERSION;
pub use view_export::ViewExport;
pub use view_server::{HIDDEN_MOUNT_POINT, ViewEnd, ViewServer};

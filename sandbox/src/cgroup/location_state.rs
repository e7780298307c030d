//! Holds the cgroup trees that a process uses.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::cgroup::control_files;
use crate::cgroup::membership::{CgroupVersion, Controllers};
use crate::cgroup::subtree::{self, DAEMON_GROUP, Subtree};

/// Proctor's directories, one for each tree in use.
#[derive(Debug)]
pub(super) struct LocationState {
    pub(super) trees: Vec<UsedTree>,
    pub(super) is_systemd_scope: bool,
    pub(super) next_number: AtomicU64,
    /// Groups whose last task had not left when they were to be removed.
    pub(super) leftovers: Mutex<Vec<PathBuf>>,
}

impl Drop for LocationState {
    fn drop(&mut self) {
        self.remove_leftovers(Instant::now() + DROP_TIMEOUT);
    }
}

impl LocationState {
    /// Stores a directory that could not be removed yet.
    pub(super) fn add_leftover(&self, dir: PathBuf) {
        lock_ignoring_poison(&self.leftovers).push(dir);
    }

    /// Tries again to remove these directories, until `until`.
    pub(super) fn remove_leftovers(&self, until: Instant) {
        let left = std::mem::take(&mut *lock_ignoring_poison(&self.leftovers));
        let busy: Vec<_> = left.into_iter().filter(|dir| subtree::remove_until(dir, until).is_err()).collect();
        lock_ignoring_poison(&self.leftovers).extend(busy);
    }
}

/// Proctor's directory in one tree. The home is dropped first: while this process is in it, the directory cannot be
/// removed.
#[derive(Debug)]
pub(super) struct UsedTree {
    pub(super) version: CgroupVersion,
    pub(super) controllers: Controllers,
    pub(super) _daemon_cgroup: Option<DaemonCgroup>,
    pub(super) subtree: Subtree,
}

/// Time limit for the removal of abandoned groups.
pub(super) const SWEEP_TIMEOUT: Duration = Duration::from_millis(200);

/// Maximum time to wait for the last groups to become empty when this value is dropped.
pub(super) const DROP_TIMEOUT: Duration = Duration::from_millis(500);

/// Locks the mutex even if it is poisoned: the guarded data is always consistent.
pub(super) fn lock_ignoring_poison<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The group for this process while its siblings contain attempts: a cgroup that enables controllers for its children
/// may not contain processes (the kernel's cgroup-v2.rst, "No Internal Process Constraint"). Dropping it moves this
/// process back.
#[derive(Debug)]
pub(super) struct DaemonCgroup {
    base: PathBuf,
    subtree: PathBuf,
    /// `true` if proctor enabled the controllers of `base` for its children.
    pub(super) enabled: bool,
}

impl Drop for DaemonCgroup {
    /// Disables the controllers first: a cgroup that enables them for its children accepts no process. If an
    /// operation fails because other processes are in the cgroup, the rest stays, and the next owner sweeps it.
    fn drop(&mut self) {
        drop(control_files::write(&self.subtree, SUBTREE_CONTROL, "-memory -pids"));
        if self.enabled {
            drop(control_files::write(&self.base, SUBTREE_CONTROL, "-memory -pids"));
        }
        drop(control_files::write(&self.base, "cgroup.procs", "0"));
        drop(subtree::remove_until(&self.subtree.join(DAEMON_GROUP), Instant::now() + LEAVE_TIMEOUT));
    }
}

impl DaemonCgroup {
    /// Moves this process with all its threads.
    pub(super) fn enter(base: &Path, subtree: &Subtree) -> io::Result<Self> {
        let own = subtree.dir().join(DAEMON_GROUP);
        subtree::create_group_dir(&own)?;
        if let Err(error) = control_files::write(&own, "cgroup.procs", "0") {
            drop(std::fs::remove_dir(&own));
            return Err(error);
        }
        Ok(Self { base: base.to_owned(), subtree: subtree.dir().to_owned(), enabled: false })
    }
}

/// Maximum time for which the daemon's group may be busy after this process has left it.
pub(super) const LEAVE_TIMEOUT: Duration = Duration::from_millis(100);

pub(super) const SUBTREE_CONTROL: &str = "cgroup.subtree_control";

//! Searches for a cgroup in which groups can be created, from the best option to the last resort. If all options
//! fail, reports the reasons.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::attempt_cgroup::AttemptCgroup;
use super::delegated_cgroup::{self, DaemonCgroup};
use super::membership::{self, CgroupMembership, CgroupVersion, Controllers};
use super::subtree::{self, Subtree};
use super::systemd_scope;
use super::v1_trees;

/// Time limit for the removal of abandoned groups.
pub(super) const SWEEP_TIMEOUT: Duration = Duration::from_millis(200);
/// How long to wait for the last groups to become empty when the seat is dropped.
const DROP_TIMEOUT: Duration = Duration::from_millis(500);

/// A location where this process may create groups for attempts. Clones share the location; it is given up when the
/// last clone and the last group are dropped.
#[derive(Debug, Clone)]
pub struct CgroupLocation(Arc<LocationState>);

/// Proctor's directories, one for each tree in use.
#[derive(Debug)]
pub(super) struct LocationState {
    pub(super) trees: Vec<UsedTree>,
    is_systemd_scope: bool,
    next_number: AtomicU64,
    /// Groups whose last task had not left when they were to be removed.
    leftovers: Mutex<Vec<PathBuf>>,
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

/// The files that the search reads and runs; tests replace them.
#[derive(Debug, Clone)]
pub struct DiscoveryPaths {
    /// Path of `/proc/self/cgroup`.
    pub cgroup: PathBuf,
    /// Path of `/proc/self/mountinfo`.
    pub mountinfo: PathBuf,
    /// A directory that exists if systemd manages the machine.
    pub systemd: PathBuf,
    /// The program for requests to systemd.
    pub busctl: PathBuf,
}

impl Default for DiscoveryPaths {
    fn default() -> Self {
        Self {
            cgroup: "/proc/self/cgroup".into(),
            mountinfo: "/proc/self/mountinfo".into(),
            systemd: "/run/systemd/system".into(),
            busctl: "/usr/bin/busctl".into(),
        }
    }
}

/// No group can be created on this machine: limits apply to each process separately.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}\nhint: {hint}")]
pub struct NoCgroupError {
    /// The attempts and their results.
    pub reason: String,
    /// How to fix it.
    pub hint: String,
}

/// Why one option is not usable.
#[derive(Debug, thiserror::Error)]
pub(super) enum CgroupUnusable {
    #[error("cgroup v2: no mount shows this process's cgroup")]
    NoV2Mount,
    #[error("cgroup v1: no mount shows this process's cgroup of the memory or pids controller")]
    NoV1Mount,
    #[error("cgroup v2: `{}` lacks the memory or the pids controller", .0.display())]
    MissingControllers(PathBuf),
    #[error("cgroup v2: `{}` is not delegated to Proctor by systemd", .0.display())]
    NotDelegated(PathBuf),
    #[error("cgroup v2: `{}` is a threaded cgroup, which cannot contain processes", .0.display())]
    Threaded(PathBuf),
    #[error("`{}` is not this process's cgroup: the process is not in its list", .0.display())]
    NotAMember(PathBuf),
    #[error("cgroup v2: `{}` contains {others} other processes, which Proctor does not move", dir.display())]
    Shared { dir: PathBuf, others: usize },
    #[error("{}: {error}", name(*.version))]
    Refused { version: CgroupVersion, error: io::Error },
    #[error("a scope of systemd: {0}")]
    ScopeFailed(String),
}

fn name(version: CgroupVersion) -> &'static str {
    match version {
        CgroupVersion::V1 => "cgroup v1",
        CgroupVersion::V2 => "cgroup v2",
    }
}

/// The seat in use. A process is in one group of each tree, so all seats of a process are the same.
static CURRENT: Mutex<Weak<LocationState>> = Mutex::new(Weak::new());

impl CgroupLocation {
    /// Finds a location: this process's cgroup of v2 if it is the root or contains no other process; otherwise the
    /// trees of v1; otherwise a scope that systemd creates. In a cgroup of v2 other than the root, and in a scope,
    /// this process moves into a child group; it moves back when the seat is given up. The search takes 2 s at most,
    /// and a few milliseconds without systemd. Call it before starting any child: other processes in this cgroup are
    /// never moved, and make it unusable.
    ///
    /// # Errors
    /// There is no location; the error contains all reasons.
    pub fn find() -> Result<Self, NoCgroupError> {
        let mut current = lock_ignoring_poison(&CURRENT);
        if let Some(trees) = current.upgrade() {
            return Ok(Self(trees));
        }
        let seat = Self::find_with_paths(&DiscoveryPaths::default())?;
        *current = Arc::downgrade(&seat.0);
        Ok(seat)
    }

    /// Finds a location like [`CgroupLocation::find`], with other files.
    ///
    /// # Errors
    /// There is no location; the error contains all reasons.
    pub fn find_with_paths(roots: &DiscoveryPaths) -> Result<Self, NoCgroupError> {
        let places = read_memberships(roots);
        let manager = systemd_scope::detect_manager(roots);
        let unified = match delegated_cgroup::use_own_cgroup(&places, manager) {
            Ok(branch) => return Ok(Self::new(vec![branch], false)),
            Err(why) => why,
        };
        let legacy = match v1_trees::use_v1_trees(&places) {
            Ok(branches) => return Ok(Self::new(branches, false)),
            Err(why) => why,
        };
        let mut why = vec![unified, legacy];
        if systemd_scope::can_request_scope(manager, &places) {
            match systemd_scope::enter(roots)
                .and_then(|()| delegated_cgroup::use_own_cgroup(&read_memberships(roots), manager))
            {
                Ok(branch) => return Ok(Self::new(vec![branch], true)),
                Err(refused) => why.push(refused),
            }
        }
        Err(NoCgroupError::from_reasons(&why))
    }

    fn new(branches: Vec<UsedTree>, scope: bool) -> Self {
        Self(Arc::new(LocationState {
            trees: branches,
            is_systemd_scope: scope,
            next_number: AtomicU64::new(1),
            leftovers: Mutex::default(),
        }))
    }

    /// Creates a new group in each tree, without limits.
    ///
    /// # Errors
    /// The kernel refuses a directory, or another process has removed proctor's.
    pub fn create_group(&self) -> io::Result<AttemptCgroup> {
        self.0.remove_leftovers(Instant::now());
        AttemptCgroup::create(&self.0, self.0.next_number.fetch_add(1, Ordering::Relaxed))
    }

    /// Describes the available controllers, such as `cgroup v1: memory, pids; cgroup v2: cpu`.
    pub fn describe(&self) -> String {
        let describe_version = |version| {
            let trees = self.0.trees.iter().filter(|branch| branch.version == version);
            let holds = trees.map(|branch| branch.controllers).reduce(Controllers::union)?;
            Some(format!("{}: {holds}", name(version)))
        };
        let parts: Vec<_> = [CgroupVersion::V1, CgroupVersion::V2].into_iter().filter_map(describe_version).collect();
        let scope = if self.0.is_systemd_scope { " (systemd scope)" } else { "" };
        format!("{}{scope}", parts.join("; "))
    }

    /// Returns proctor's directory in each tree.
    pub fn dirs(&self) -> Vec<&Path> {
        self.0.trees.iter().map(|branch| branch.subtree.dir()).collect()
    }
}

impl LocationState {
    /// Stores a directory that could not be removed yet.
    pub(super) fn add_leftover(&self, dir: PathBuf) {
        lock_ignoring_poison(&self.leftovers).push(dir);
    }

    /// Tries again to remove these directories, until `until`.
    fn remove_leftovers(&self, until: Instant) {
        let left = std::mem::take(&mut *lock_ignoring_poison(&self.leftovers));
        let busy: Vec<_> = left.into_iter().filter(|dir| subtree::remove_until(dir, until).is_err()).collect();
        lock_ignoring_poison(&self.leftovers).extend(busy);
    }
}

impl Drop for LocationState {
    fn drop(&mut self) {
        self.remove_leftovers(Instant::now() + DROP_TIMEOUT);
    }
}

impl NoCgroupError {
    fn from_reasons(why: &[CgroupUnusable]) -> Self {
        let reasons: Vec<_> = why.iter().map(ToString::to_string).collect();
        // The last option tried is the most promising one.
        let hint = why.iter().rev().find_map(CgroupUnusable::hint).unwrap_or(MOUNT_HINT);
        Self { reason: reasons.join("; "), hint: hint.to_owned() }
    }
}

const MOUNT_HINT: &str = "mount cgroup v2, writable, at /sys/fs/cgroup; in a container, give it a cgroup namespace and a \
                     writable /sys/fs/cgroup";
const SCOPE_HINT: &str = "start proctor by `systemd-run --user --scope -p Delegate=yes` (as root without `--user`), or \
                     alone in a cgroup that belongs to its user";
const V1_HINT: &str = "boot the machine with cgroup v2 (`systemd.unified_cgroup_hierarchy=1`), or have root make a group \
                      for proctor's user in the memory and pids trees, give it away and move the shell into it";
const BUS_HINT: &str = "let systemd answer: `loginctl enable-linger` starts the manager of a user's units, the package \
                   `dbus-user-session` its bus; or start proctor alone in a cgroup that belongs to its user";
const UNIT_HINT: &str = "put `Delegate=yes` into the `[Service]` section of the unit that starts proctor";
const CONTROLLERS_HINT: &str = "put `Delegate=cpu io memory pids` into `/etc/systemd/system/user@.service.d/delegate.conf`, \
                           below `[Service]`; without systemd, enable memory and pids in `cgroup.subtree_control` of \
                           the cgroup above";

impl CgroupUnusable {
    /// Returns how to fix it, if there is better advice than to mount cgroup v2.
    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NotDelegated(dir) if is_service(dir) => Some(UNIT_HINT),
            Self::NotDelegated(_) | Self::Shared { .. } | Self::Threaded(_) => Some(SCOPE_HINT),
            Self::ScopeFailed(_) => Some(BUS_HINT),
            Self::MissingControllers(_) => Some(CONTROLLERS_HINT),
            Self::Refused { version, error } if error.kind() == io::ErrorKind::PermissionDenied => match version {
                CgroupVersion::V1 => Some(V1_HINT),
                CgroupVersion::V2 => Some(SCOPE_HINT),
            },
            Self::NoV2Mount | Self::NoV1Mount | Self::NotAMember(_) | Self::Refused { .. } => None,
        }
    }
}

/// Returns whether systemd runs a service in the cgroup, as opposed to a scope or a session.
pub(super) fn is_service(dir: &Path) -> bool {
    dir.extension().is_some_and(|extension| extension == "service")
}

fn read_memberships(roots: &DiscoveryPaths) -> Vec<CgroupMembership> {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    membership::find_memberships(&read(&roots.cgroup), &read(&roots.mountinfo))
}

/// Locks the mutex even if it is poisoned: the guarded data is always consistent.
fn lock_ignoring_poison<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

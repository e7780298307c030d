//! Searches for a cgroup in which groups can be created, from the best option to the last resort. If all options
//! fail, reports the reasons.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::delegated::{self, Home};
use super::group::Group;
use super::legacy;
use super::place::{self, Holds, Place, Version};
use super::scope;
use super::subtree::{self, Subtree};

/// Time limit for the removal of abandoned groups.
pub(super) const SWEEP: Duration = Duration::from_millis(200);
/// How long to wait for the last groups to become empty when the seat is dropped.
const LAST_GROUPS: Duration = Duration::from_millis(500);

/// A location where this process may create groups for attempts. Clones share the location; it is given up when the
/// last clone and the last group are dropped.
#[derive(Debug, Clone)]
pub struct Seat(Arc<Trees>);

/// Proctor's directories, one for each tree in use.
#[derive(Debug)]
pub(super) struct Trees {
    pub(super) branches: Vec<Branch>,
    scope: bool,
    next: AtomicU64,
    /// Groups whose last task had not left when they were to be removed.
    leftovers: Mutex<Vec<PathBuf>>,
}

/// Proctor's directory in one tree. The home is dropped first: while this process is in it, the directory cannot be
/// removed.
#[derive(Debug)]
pub(super) struct Branch {
    pub(super) version: Version,
    pub(super) holds: Holds,
    pub(super) _home: Option<Home>,
    pub(super) subtree: Subtree,
}

/// The files that the search reads and runs; tests replace them.
#[derive(Debug, Clone)]
pub struct Roots {
    /// Path of `/proc/self/cgroup`.
    pub cgroup: PathBuf,
    /// Path of `/proc/self/mountinfo`.
    pub mountinfo: PathBuf,
    /// A directory that exists if systemd manages the machine.
    pub systemd: PathBuf,
    /// The program for requests to systemd.
    pub busctl: PathBuf,
}

impl Default for Roots {
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
pub struct NoSeat {
    /// The attempts and their results.
    pub reason: String,
    /// How to fix it.
    pub hint: String,
}

/// Why one option is not usable.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    #[error("cgroup v2: no mount shows this process's cgroup")]
    NoUnified,
    #[error("cgroup v1: no mount shows this process's cgroup of the memory or pids controller")]
    NoLegacy,
    #[error("cgroup v2: `{}` lacks the memory or the pids controller", .0.display())]
    Controllers(PathBuf),
    #[error("cgroup v2: `{}` is not delegated to Proctor by systemd", .0.display())]
    Undelegated(PathBuf),
    #[error("cgroup v2: `{}` is a threaded cgroup, which cannot contain processes", .0.display())]
    Threaded(PathBuf),
    #[error("`{}` is not this process's cgroup: the process is not in its list", .0.display())]
    Elsewhere(PathBuf),
    #[error("cgroup v2: `{}` contains {others} other processes, which Proctor does not move", dir.display())]
    Shared { dir: PathBuf, others: usize },
    #[error("{}: {error}", name(*.version))]
    Refused { version: Version, error: io::Error },
    #[error("a scope of systemd: {0}")]
    Scope(String),
}

fn name(version: Version) -> &'static str {
    match version {
        Version::V1 => "cgroup v1",
        Version::V2 => "cgroup v2",
    }
}

/// The seat in use. A process is in one group of each tree, so all seats of a process are the same.
static CURRENT: Mutex<Weak<Trees>> = Mutex::new(Weak::new());

impl Seat {
    /// Finds a location: this process's cgroup of v2 if it is the root or contains no other process; otherwise the
    /// trees of v1; otherwise a scope that systemd creates. In a cgroup of v2 other than the root, and in a scope,
    /// this process moves into a child group; it moves back when the seat is given up. The search takes 2 s at most,
    /// and a few milliseconds without systemd. Call it before starting any child: other processes in this cgroup are
    /// never moved, and make it unusable.
    ///
    /// # Errors
    /// There is no location; the error contains all reasons.
    pub fn find() -> Result<Self, NoSeat> {
        let mut current = locked(&CURRENT);
        if let Some(trees) = current.upgrade() {
            return Ok(Self(trees));
        }
        let seat = Self::find_in(&Roots::default())?;
        *current = Arc::downgrade(&seat.0);
        Ok(seat)
    }

    /// Finds a location like [`Seat::find`], with other files.
    ///
    /// # Errors
    /// There is no location; the error contains all reasons.
    pub fn find_in(roots: &Roots) -> Result<Self, NoSeat> {
        let places = read_places(roots);
        let manager = scope::manager(roots);
        let unified = match delegated::take(&places, manager) {
            Ok(branch) => return Ok(Self::new(vec![branch], false)),
            Err(why) => why,
        };
        let legacy = match legacy::take(&places) {
            Ok(branches) => return Ok(Self::new(branches, false)),
            Err(why) => why,
        };
        let mut why = vec![unified, legacy];
        if scope::is_worth_asking(manager, &places) {
            match scope::enter(roots).and_then(|()| delegated::take(&read_places(roots), manager)) {
                Ok(branch) => return Ok(Self::new(vec![branch], true)),
                Err(refused) => why.push(refused),
            }
        }
        Err(NoSeat::of(&why))
    }

    fn new(branches: Vec<Branch>, scope: bool) -> Self {
        Self(Arc::new(Trees { branches, scope, next: AtomicU64::new(1), leftovers: Mutex::default() }))
    }

    /// Creates a new group in each tree, without limits.
    ///
    /// # Errors
    /// The kernel refuses a directory, or another process has removed proctor's.
    pub fn group(&self) -> io::Result<Group> {
        self.0.sweep(Instant::now());
        Group::make(&self.0, self.0.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Describes the available controllers, such as `cgroup v1: memory, pids; cgroup v2: cpu`.
    pub fn describe(&self) -> String {
        let of = |version| {
            let trees = self.0.branches.iter().filter(|branch| branch.version == version);
            let holds = trees.map(|branch| branch.holds).reduce(Holds::with)?;
            Some(format!("{}: {holds}", name(version)))
        };
        let parts: Vec<_> = [Version::V1, Version::V2].into_iter().filter_map(of).collect();
        let scope = if self.0.scope { " (systemd scope)" } else { "" };
        format!("{}{scope}", parts.join("; "))
    }

    /// Returns proctor's directory in each tree.
    pub fn dirs(&self) -> Vec<&Path> {
        self.0.branches.iter().map(|branch| branch.subtree.dir()).collect()
    }
}

impl Trees {
    /// Stores a directory that could not be removed yet.
    pub(super) fn leave(&self, dir: PathBuf) {
        locked(&self.leftovers).push(dir);
    }

    /// Tries again to remove these directories, until `until`.
    fn sweep(&self, until: Instant) {
        let left = std::mem::take(&mut *locked(&self.leftovers));
        let busy: Vec<_> = left.into_iter().filter(|dir| subtree::remove_until(dir, until).is_err()).collect();
        locked(&self.leftovers).extend(busy);
    }
}

impl Drop for Trees {
    fn drop(&mut self) {
        self.sweep(Instant::now() + LAST_GROUPS);
    }
}

impl NoSeat {
    fn of(why: &[Unusable]) -> Self {
        let reasons: Vec<_> = why.iter().map(ToString::to_string).collect();
        // The last option tried is the most promising one.
        let hint = why.iter().rev().find_map(Unusable::hint).unwrap_or(MOUNT);
        Self { reason: reasons.join("; "), hint: hint.to_owned() }
    }
}

const MOUNT: &str = "mount cgroup v2, writable, at /sys/fs/cgroup; in a container, give it a cgroup namespace and a \
                     writable /sys/fs/cgroup";
const SCOPE: &str = "start proctor by `systemd-run --user --scope -p Delegate=yes` (as root without `--user`), or \
                     alone in a cgroup that belongs to its user";
const LEGACY: &str = "boot the machine with cgroup v2 (`systemd.unified_cgroup_hierarchy=1`), or have root make a group \
                      for proctor's user in the memory and pids trees, give it away and move the shell into it";
const BUS: &str = "let systemd answer: `loginctl enable-linger` starts the manager of a user's units, the package \
                   `dbus-user-session` its bus; or start proctor alone in a cgroup that belongs to its user";
const UNIT: &str = "put `Delegate=yes` into the `[Service]` section of the unit that starts proctor";
const CONTROLLERS: &str = "put `Delegate=cpu io memory pids` into `/etc/systemd/system/user@.service.d/delegate.conf`, \
                           below `[Service]`; without systemd, enable memory and pids in `cgroup.subtree_control` of \
                           the cgroup above";

impl Unusable {
    /// Returns how to fix it, if there is better advice than to mount cgroup v2.
    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Undelegated(dir) if is_service(dir) => Some(UNIT),
            Self::Undelegated(_) | Self::Shared { .. } | Self::Threaded(_) => Some(SCOPE),
            Self::Scope(_) => Some(BUS),
            Self::Controllers(_) => Some(CONTROLLERS),
            Self::Refused { version, error } if error.kind() == io::ErrorKind::PermissionDenied => match version {
                Version::V1 => Some(LEGACY),
                Version::V2 => Some(SCOPE),
            },
            Self::NoUnified | Self::NoLegacy | Self::Elsewhere(_) | Self::Refused { .. } => None,
        }
    }
}

/// Returns whether systemd runs a service in the cgroup, as opposed to a scope or a session.
pub(super) fn is_service(dir: &Path) -> bool {
    dir.extension().is_some_and(|extension| extension == "service")
}

fn read_places(roots: &Roots) -> Vec<Place> {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    place::places(&read(&roots.cgroup), &read(&roots.mountinfo))
}

/// Locks the mutex even if it is poisoned: the guarded data is always consistent.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

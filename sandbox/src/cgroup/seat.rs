//! The search for a place in which groups can be made, from the best to the last resort, and what
//! is said where there is none.

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

/// How long sweeping may take where others have left much behind.
pub(super) const SWEEP: Duration = Duration::from_millis(200);
/// How long the end of the last groups is waited for, when all are given up.
const LAST_GROUPS: Duration = Duration::from_millis(500);

/// Where this process may make groups for attempts. Clones are the same place; it is given up
/// with the last of them and of its groups.
#[derive(Debug, Clone)]
pub struct Seat(Arc<Trees>);

/// Our directories, one for each tree that serves.
#[derive(Debug)]
pub(super) struct Trees {
    pub(super) branches: Vec<Branch>,
    scope: bool,
    next: AtomicU64,
    /// Groups whose last task had not left when they were removed.
    leftovers: Mutex<Vec<PathBuf>>,
}

/// Our directory in one tree. The home goes first: while this process is in it, the rest stays.
#[derive(Debug)]
pub(super) struct Branch {
    pub(super) version: Version,
    pub(super) holds: Holds,
    pub(super) _home: Option<Home>,
    pub(super) subtree: Subtree,
}

/// Where the search looks; tests point it elsewhere.
#[derive(Debug, Clone)]
pub struct Roots {
    /// As `/proc/self/cgroup`.
    pub cgroup: PathBuf,
    /// As `/proc/self/mountinfo`.
    pub mountinfo: PathBuf,
    /// Is there where systemd manages the machine.
    pub systemd: PathBuf,
    /// The program that speaks to systemd.
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

/// No group can be made here: limits hold for each process apart.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}\nhint: {hint}")]
pub struct NoSeat {
    /// What was tried and what came of it.
    pub reason: String,
    /// How to mend it.
    pub hint: String,
}

/// Why one way leads nowhere.
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

/// A process is in one place of each tree, so that all seats of a process are the same.
static CURRENT: Mutex<Weak<Trees>> = Mutex::new(Weak::new());

impl Seat {
    /// Finds one: the own cgroup of v2 where it is ours alone or the root; else the trees of v1;
    /// else a scope that systemd makes for us. In a cgroup of v2 that is not the root, and in a
    /// scope, this process moves into a group of its own; it moves back when the seat is given
    /// up. Takes 2 s at most, a few milliseconds without systemd. Call it before the first child
    /// is started: what lives in the own cgroup besides us is left alone and stands in the way.
    ///
    /// # Errors
    /// There is none, with all reasons.
    pub fn find() -> Result<Self, NoSeat> {
        let mut current = locked(&CURRENT);
        if let Some(trees) = current.upgrade() {
            return Ok(Self(trees));
        }
        let seat = Self::find_in(&Roots::default())?;
        *current = Arc::downgrade(&seat.0);
        Ok(seat)
    }

    /// As [`Seat::find`], looking elsewhere.
    ///
    /// # Errors
    /// There is none, with all reasons.
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

    /// Makes a fresh group, without limits yet, in each tree.
    ///
    /// # Errors
    /// The kernel refuses a directory, or somebody has removed ours.
    pub fn group(&self) -> io::Result<Group> {
        self.0.sweep(Instant::now());
        Group::make(&self.0, self.0.next.fetch_add(1, Ordering::Relaxed))
    }

    /// What it can do, such as `cgroup v1: memory, pids; cgroup v2: cpu`.
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

    /// Our directory in each tree.
    pub fn dirs(&self) -> Vec<&Path> {
        self.0.branches.iter().map(|branch| branch.subtree.dir()).collect()
    }
}

impl Trees {
    /// Keeps in mind what could not be removed yet.
    pub(super) fn leave(&self, dir: PathBuf) {
        locked(&self.leftovers).push(dir);
    }

    /// Tries again, until `until`.
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
        // The last one that was tried came nearest.
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
    /// How to mend it, where that helps more than a mount.
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

/// Whether systemd runs a service there, rather than a scope or a session.
pub(super) fn is_service(dir: &Path) -> bool {
    dir.extension().is_some_and(|extension| extension == "service")
}

fn read_places(roots: &Roots) -> Vec<Place> {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    place::places(&read(&roots.cgroup), &read(&roots.mountinfo))
}

/// Nothing that is guarded here can be left half done.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! Searches for a cgroup in which groups can be created, from the best option to the last resort. If all options
//! fail, reports the reasons.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use super::attempt_cgroup::AttemptCgroup;
use super::delegated_cgroup;
use super::membership::{self, CgroupMembership, CgroupVersion, Controllers};
use super::{systemd_scope, v1_trees};
use crate::cgroup::location_state::{LocationState, UsedTree, lock_ignoring_poison};
use crate::cgroup::unusable::{CgroupUnusable, DiscoveryPaths, name};

/// A location where this process may create groups for attempts. Clones share the location; it is released when the
/// last clone and the last group are dropped.
#[derive(Debug, Clone)]
pub struct CgroupLocation(Arc<LocationState>);

/// No group can be created on this machine: limits apply to each process separately.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}\nhint: {hint}")]
pub struct NoCgroupError {
    /// The attempts and their results.
    pub reason: String,
    /// How to fix the problem.
    pub hint: String,
}

/// The location in use. A process is in one group of each tree, so a process has only one location.
static CURRENT: Mutex<Weak<LocationState>> = Mutex::new(Weak::new());

impl CgroupLocation {
    /// Finds a location: this process's cgroup of v2 if it is the root or contains no other process; otherwise the
    /// trees of v1; otherwise a scope that systemd creates. In a cgroup of v2 other than the root, and in a scope,
    /// this process moves into a child group; it moves back when the location is dropped. The search takes at most 2 s,
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
        let location = Self::find_with_paths(&DiscoveryPaths::default())?;
        *current = Arc::downgrade(&location.0);
        Ok(location)
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

impl NoCgroupError {
    fn from_reasons(why: &[CgroupUnusable]) -> Self {
        let reasons: Vec<_> = why.iter().map(ToString::to_string).collect();
        // The last option tried is the most promising one.
        let hint = why.iter().rev().find_map(CgroupUnusable::hint).unwrap_or(MOUNT_HINT);
        Self { reason: reasons.join("; "), hint: hint.to_owned() }
    }
}

const MOUNT_HINT: &str = "mount cgroup v2, writable, at /sys/fs/cgroup; a container needs a cgroup namespace and a \
                     writable /sys/fs/cgroup";
fn read_memberships(roots: &DiscoveryPaths) -> Vec<CgroupMembership> {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    membership::find_memberships(&read(&roots.cgroup), &read(&roots.mountinfo))
}

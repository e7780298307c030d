//! Reports why a cgroup cannot be used.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cgroup::membership::CgroupVersion;

/// The reason why one option is not usable.
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
    ScopeFailed(#[from] ScopeError),
}

/// Why systemd did not move this process into a scope.
#[derive(Debug, thiserror::Error)]
pub(super) enum ScopeError {
    #[error("`{}`: {error}", busctl.display())]
    NotStarted { busctl: PathBuf, error: io::Error },
    #[error("cannot wait for `busctl`: {0}")]
    NotWaited(#[source] io::Error),
    #[error("no answer within {} ms", .0.as_millis())]
    NoAnswer(Duration),
    /// Holds the error output of `busctl`.
    #[error("{0}")]
    Refused(String),
    #[error("systemd did not move this process into `{unit}` in time")]
    NotMoved { unit: String },
}

impl CgroupUnusable {
    /// Returns how to fix it, if there is better advice than to mount cgroup v2.
    pub(super) fn hint(&self) -> Option<&'static str> {
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

/// Returns how to fix the problem, if there is better advice than to mount cgroup v2.
pub(super) fn is_service(dir: &Path) -> bool {
    dir.extension().is_some_and(|extension| extension == "service")
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

pub(super) const BUS_HINT: &str = "make systemd available: `loginctl enable-linger` starts the manager of a user's units, the package \
                   `dbus-user-session` its bus; or start proctor alone in a cgroup that belongs to its user";

pub(super) const CONTROLLERS_HINT: &str = "put `Delegate=cpu io memory pids` into `/etc/systemd/system/user@.service.d/delegate.conf`, \
                           below `[Service]`; without systemd, enable memory and pids in `cgroup.subtree_control` of \
                           the parent cgroup";

pub(super) const SCOPE_HINT: &str = "start proctor by `systemd-run --user --scope -p Delegate=yes` (as root without `--user`), or \
                     alone in a cgroup that belongs to its user";

pub(super) const UNIT_HINT: &str = "put `Delegate=yes` into the `[Service]` section of the unit that starts proctor";

pub(super) const V1_HINT: &str = "boot the machine with cgroup v2 (`systemd.unified_cgroup_hierarchy=1`), or have root \
                      create a group for proctor's user in the memory and pids trees, change its owner and move the \
                      shell into it";

pub(super) fn name(version: CgroupVersion) -> &'static str {
    match version {
        CgroupVersion::V1 => "cgroup v1",
        CgroupVersion::V2 => "cgroup v2",
    }
}

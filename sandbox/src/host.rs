//! Describes the daemon's own user, the locations of its files, and the user that a step gets as a result.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::capabilities;
use crate::error::SandboxError;

/// The user and group of a step under a root daemon for a repository that root owns.
///
/// No account may have this id or any of the 65,535 ids after it, to which the repository's other owners are mapped.
/// They are just above the range that systemd gives to containers (524288–1879048191,
/// <https://systemd.io/UIDS-GIDS/>) and below 2^31, which some tools do not support.
pub(crate) const MAPPED_BASE: u32 = 1_879_048_192;
/// The number of ids of the repository that are mapped, from 0.
pub(crate) const MAPPED_COUNT: u32 = 65_536;

/// Picks a user id of the host at random for the steps of one run over root's repository, from the ids that no
/// account has. The kernel counts inotify instances, pending signals, timers and pipe buffers per user of the host,
/// so two runs must not share one.
pub(crate) fn pick_run_uid() -> std::io::Result<u32> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    let first = MAPPED_BASE + MAPPED_COUNT;
    Ok(first + u32::from_ne_bytes(bytes) % (FIRST_NEGATIVE_ID - first))
}

/// The first id that some tools read as a negative number.
const FIRST_NEGATIVE_ID: u32 = 1 << 31;

/// Returns the share of the machine's memory that a step may use if the plan sets no limit: three quarters.
pub(crate) fn default_memory_limit() -> u64 {
    let machine = rustix::system::sysinfo();
    let total = machine.totalram.saturating_mul(u64::from(machine.mem_unit));
    total / 4 * 3
}

/// The caller's configuration for this machine.
#[derive(Debug, Clone)]
pub struct HostConfig {
    /// The helper program, `proctor-sandbox`.
    pub helper: PathBuf,
    /// The state directory; created with mode 0700 if it is absent.
    pub state_dir: PathBuf,
    /// The caller's home directory, which is hidden from steps.
    pub home: PathBuf,
}

/// The machine as the sandbox sees it.
#[derive(Debug, Clone)]
pub struct Host {
    pub(crate) helper: PathBuf,
    pub(crate) state_dir: PathBuf,
    pub(crate) home: PathBuf,
    /// Target of `/etc/resolv.conf`. On some distributions it is below `/run`, which is hidden.
    pub(crate) resolv_conf: Option<PathBuf>,
    /// The home directories of the machine's accounts, by user id. A repository's owner may have a home outside of
    /// `/home`.
    pub(crate) homes: BTreeMap<u32, PathBuf>,
    pub(crate) euid: u32,
    pub(crate) egid: u32,
    /// `true` if this process has no capability and can get none.
    pub(crate) lacks_capabilities: bool,
}

impl Host {
    /// Creates the required directories in the state directory.
    ///
    /// # Errors
    /// The helper does not exist, or the state directory cannot be created.
    pub fn new(config: HostConfig) -> Result<Self, SandboxError> {
        let HostConfig { helper, state_dir, home } = config;
        let helper = fs::canonicalize(&helper).map_err(|source| SandboxError::Helper { helper, source })?;
        // The directory on which a run mounts its layers, in its own mount namespace. On the host it always stays
        // empty.
        let mount_point = state_dir.join(SPACE_DIR);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&mount_point)
            .map_err(SandboxError::path("cannot create the state directory", &mount_point))?;
        let state_dir = canonical("cannot resolve the state directory", &state_dir)?;
        // A home that does not exist needs no hiding, and its path is used unresolved.
        let home = fs::canonicalize(&home).unwrap_or(home);
        let resolver = fs::canonicalize("/etc/resolv.conf").ok();
        let (euid, egid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        // Without accounts, the caller's home is the only one.
        let homes = fs::read_to_string("/etc/passwd").map(|text| parse_homes(&text)).unwrap_or_default();
        let lacks_capabilities = capabilities::has_none();
        Ok(Self { helper, state_dir, home, resolv_conf: resolver, homes, euid, egid, lacks_capabilities })
    }

    /// Returns whether the set-up of steps runs as root. User 0 without any capability is an ordinary user: some
    /// workers of build clusters run their actions like this, in a user namespace.
    pub fn is_root(&self) -> bool {
        self.euid == 0 && !self.lacks_capabilities
    }

    /// Returns the caller's home directory, which is hidden from steps.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Returns the canonical path of the state directory.
    pub fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    pub(crate) fn space_dir(&self) -> PathBuf {
        self.state_dir.join(SPACE_DIR)
    }
}

const SPACE_DIR: &str = "space";

/// Directories that contain programs or other system directories. Service accounts name them as homes, and a step
/// cannot work without them.
const SYSTEM_DIRS: [&str; 8] = ["/", "/var", "/var/lib", "/var/cache", "/var/spool", "/opt", "/srv", "/mnt"];
const SYSTEM_TREES: [&str; 10] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/dev", "/proc", "/sys"];

/// Parses the home directories of an account file, `passwd(5)`, by user id.
fn parse_homes(passwd: &str) -> BTreeMap<u32, PathBuf> {
    let home = |line: &str| {
        let mut fields = line.split(':').skip(2);
        let uid = fields.next()?.parse().ok()?;
        Some((uid, PathBuf::from(fields.nth(2)?)))
    };
    let is_own = |path: &Path| {
        path.is_absolute()
            && !SYSTEM_DIRS.iter().any(|dir| path == Path::new(dir))
            && !SYSTEM_TREES.iter().any(|tree| path.starts_with(tree))
    };
    // The first account of a user counts, as for `getpwuid(3)`.
    passwd.lines().rev().filter_map(home).filter(|(_, path)| is_own(path)).collect()
}

/// The facts about a repository's root directory that the sandbox needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepoFacts {
    /// The canonical path.
    pub path: PathBuf,
    /// The owner of the root directory.
    pub uid: u32,
    /// The group of the root directory.
    pub gid: u32,
    /// The permission bits of its root directory. A layer must have the same ones, since an overlay shows those of
    /// the upper directory.
    pub mode: u32,
    /// The user and group ids that a step over the repository sees as its own, if they differ from the owner's. They
    /// are set for a copy made by proctor, to the ids that the step would see over the original.
    pub ids_in_sandbox: Option<(u32, u32)>,
}

impl RepoFacts {
    /// Reads the facts about the repository's root directory.
    ///
    /// # Errors
    /// The path does not exist, or is not a directory.
    pub fn read(path: &Path) -> Result<Self, SandboxError> {
        let path = canonical("cannot resolve the repository", path)?;
        let meta = fs::metadata(&path).map_err(SandboxError::path("cannot read the repository", &path))?;
        if !meta.is_dir() {
            return Err(SandboxError::policy(
                format!("the repository `{}` is not a directory", path.display()),
                "name the directory that contains the repository's files",
            ));
        }
        Ok(Self { path, uid: meta.uid(), gid: meta.gid(), mode: meta.mode() & 0o7777, ids_in_sandbox: None })
    }

    /// Returns the facts of a copy made by proctor, over which steps see themselves as they would over `original`.
    ///
    /// # Errors
    /// The errors of [`StepUser::choose`].
    pub fn as_copy_of(self, original: &Self, host: &Host) -> Result<Self, SandboxError> {
        let seen_as = StepUser::choose(host, original)?.ids_in_sandbox();
        Ok(Self { ids_in_sandbox: host.is_root().then_some(seen_as), ..self })
    }

    /// Opens the directory that [`read`](Self::read) examined. The owner of a directory above it may have since
    /// replaced it with something that a root daemon must neither read nor write.
    ///
    /// # Errors
    /// The directory no longer exists, its path contains a symbolic link, or its owner has changed.
    pub fn open(&self) -> Result<OwnedFd, SandboxError> {
        let cannot = SandboxError::path("cannot open the repository", &self.path);
        let below = self.path.strip_prefix("/").unwrap_or(&self.path);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = || {
            let root = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
            let dir = match rustix::fs::openat2(&root, below, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
                // Refused inside a container, or inside one of proctor's own sandboxes.
                Err(Errno::NOSYS | Errno::PERM) => open_without_openat2(root, below, flags)?,
                other => other?,
            };
            let owner = rustix::fs::fstat(&dir)?.st_uid;
            Ok::<_, std::io::Error>((dir, owner))
        };
        match open().map_err(cannot)? {
            (dir, owner) if owner == self.uid => Ok(dir),
            (_, owner) => Err(SandboxError::policy(
                format!(
                    "the owner of the repository `{}` is now user {owner}, and was user {}",
                    self.path.display(),
                    self.uid
                ),
                "do not change the repository's owner while it is verified",
            )),
        }
    }
}

/// Works like openat2(2) with `RESOLVE_NO_SYMLINKS`: a symbolic link in the path results in ELOOP or ENOTDIR.
fn open_without_openat2(root: OwnedFd, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut here = root;
    for name in path {
        here = rustix::fs::openat(&here, name, directory, Mode::empty())?;
    }
    rustix::fs::openat(&here, ".", flags, Mode::empty())
}

/// The user of a step, on the host and in its own user namespace. Except for mapped users and copies, the ids are the
/// same in both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum StepUser {
    /// The daemon's own user, without privilege. It can be user 0 if that user has no capability.
    Own {
        /// The daemon's user id.
        uid: u32,
        /// The daemon's group id.
        gid: u32,
    },
    /// The repository's owner, under a root daemon.
    Owner {
        /// The owner's user id, never 0.
        uid: u32,
        /// The group of the repository, never 0.
        gid: u32,
    },
    /// An id that no account has, under a root daemon over a repository of root's. Root's files appear as the step's
    /// own.
    Mapped {
        /// The user id on the host.
        uid: u32,
        /// The group id on the host.
        gid: u32,
    },
    /// An id that no account has, under a root daemon over a copy made by proctor. The step owns the copy, and sees
    /// itself as it would over the original.
    Copy {
        /// The user id on the host.
        uid: u32,
        /// The group id on the host.
        gid: u32,
        /// The user and group ids that the step sees.
        seen_as: (u32, u32),
    },
}

impl StepUser {
    /// Returns the user of a step over this repository.
    ///
    /// # Errors
    /// The daemon is not root, and another user owns the repository: an overlay could not copy that user's files into
    /// a layer.
    pub fn choose(host: &Host, repo: &RepoFacts) -> Result<Self, SandboxError> {
        match (host.euid, repo.uid) {
            (_, 0) if host.is_root() => Ok(Self::Mapped { uid: MAPPED_BASE, gid: MAPPED_BASE }),
            (_, uid) if host.is_root() => Ok(match repo.ids_in_sandbox {
                Some(seen_as) => Self::Copy { uid, gid: repo.gid, seen_as },
                // A step over another user's repository never gets root's group.
                None => Self::Owner { uid, gid: if repo.gid == 0 { MAPPED_BASE } else { repo.gid } },
            }),
            (own, owner) if own == owner => Ok(Self::Own { uid: host.euid, gid: host.egid }),
            (own, owner) => Err(SandboxError::policy(
                format!(
                    "the repository `{}` belongs to user {owner}, but proctor runs as user {own}",
                    repo.path.display()
                ),
                "run proctor as the repository's owner, or change the owner of the repository",
            )),
        }
    }

    /// Returns the same user with the host id that the run has to itself, if it has one.
    pub(crate) fn with_run_uid(self, own: Option<u32>) -> Self {
        match (self, own) {
            (Self::Mapped { .. }, Some(id)) => Self::Mapped { uid: id, gid: id },
            (other, _) => other,
        }
    }

    /// Returns the user and group ids that the step sees as its own. They do not differ from run to run.
    pub fn ids_in_sandbox(self) -> (u32, u32) {
        match self {
            Self::Copy { seen_as, .. } => seen_as,
            other => other.cache_owner(),
        }
    }

    /// Returns the user and group ids that own its caches on disk. They do not differ from run to run.
    pub fn cache_owner(self) -> (u32, u32) {
        match self {
            Self::Mapped { .. } => (MAPPED_BASE, MAPPED_BASE),
            other => (other.uid(), other.gid()),
        }
    }

    /// Returns the user id on the host.
    pub fn uid(self) -> u32 {
        match self {
            Self::Own { uid, .. } | Self::Owner { uid, .. } | Self::Mapped { uid, .. } | Self::Copy { uid, .. } => uid,
        }
    }

    /// Returns the group id on the host.
    pub fn gid(self) -> u32 {
        match self {
            Self::Own { gid, .. } | Self::Owner { gid, .. } | Self::Mapped { gid, .. } | Self::Copy { gid, .. } => gid,
        }
    }

    /// Returns whether the repository is shown through a mount that maps its owners.
    pub fn is_mapped(self) -> bool {
        matches!(self, Self::Mapped { .. })
    }

    /// Returns whether the set-up happens as root of the host, before the step becomes another user.
    pub fn is_set_up_by_root(self) -> bool {
        !matches!(self, Self::Own { .. })
    }
}

fn canonical(what: &'static str, path: &Path) -> Result<PathBuf, SandboxError> {
    fs::canonicalize(path).map_err(SandboxError::path(what, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(euid: u32) -> Host {
        let path = PathBuf::from("/x");
        let homes = BTreeMap::new();
        let (helper, state_dir) = (path.clone(), path.clone());
        Host {
            helper,
            state_dir,
            home: path,
            resolv_conf: None,
            homes,
            euid,
            egid: euid,
            lacks_capabilities: euid != 0,
        }
    }

    fn repo(uid: u32, gid: u32) -> RepoFacts {
        RepoFacts { path: "/r".into(), uid, gid, mode: 0o755, ids_in_sandbox: None }
    }

    #[test]
    fn ignores_system_directories_as_homes() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nbin:x:2:2::/bin:\nci:x:113:5:CI,,:/var/lib/ci:/bin/sh\n\
            web:x:33:33::/usr/share/web:\nx:x:no\nlib:x:9:9::/var/lib:\nrel:x:10:10::home:\n";
        let expected = [(0, "/root"), (113, "/var/lib/ci")];
        assert_eq!(parse_homes(passwd), expected.map(|(uid, home)| (uid, PathBuf::from(home))).into());
    }

    #[test]
    fn never_runs_step_as_root() {
        for (uid, gid) in [(0, 0), (0, 5), (1001, 0), (1001, 1001)] {
            let user = StepUser::choose(&host(0), &repo(uid, gid)).expect("root may verify every repository");
            assert!(user.uid() != 0 && user.gid() != 0, "{user:?}");
        }
    }

    #[test]
    fn user_0_without_capabilities_is_an_ordinary_user() {
        let host = Host { lacks_capabilities: true, ..host(0) };
        assert!(!host.is_root());
        assert_eq!(StepUser::choose(&host, &repo(0, 0)).expect("own"), StepUser::Own { uid: 0, gid: 0 });
        StepUser::choose(&host, &repo(1001, 1001)).expect_err("another user's repository");
    }

    #[test]
    fn picks_unassigned_user_ids() {
        let mapped = StepUser::Mapped { uid: MAPPED_BASE, gid: MAPPED_BASE };
        for _ in 0..100 {
            let id = pick_run_uid().expect("random bytes");
            assert!((MAPPED_BASE + MAPPED_COUNT..FIRST_NEGATIVE_ID).contains(&id), "{id}");
            assert_eq!(mapped.with_run_uid(Some(id)).uid(), id);
            assert_eq!(mapped.with_run_uid(Some(id)).ids_in_sandbox(), (MAPPED_BASE, MAPPED_BASE));
        }
        let owner = StepUser::Owner { uid: 1001, gid: 1002 };
        assert_eq!(owner.with_run_uid(Some(7)), owner);
    }

    #[test]
    fn copy_keeps_ids_of_original() {
        let copy = |original| repo(MAPPED_BASE + 9, MAPPED_BASE + 9).as_copy_of(&original, &host(0)).expect("facts");
        let over = |original| StepUser::choose(&host(0), &copy(original)).expect("root may verify every repository");
        let of_user = over(repo(1001, 1002));
        assert_eq!(
            (of_user.ids_in_sandbox(), of_user.uid(), of_user.is_mapped()),
            ((1001, 1002), MAPPED_BASE + 9, false)
        );
        let of_root = over(repo(0, 0));
        assert_eq!((of_root.ids_in_sandbox(), of_root.cache_owner().0), ((MAPPED_BASE, MAPPED_BASE), MAPPED_BASE + 9));
        let own = repo(1001, 1001).as_copy_of(&repo(1001, 1001), &host(1001)).expect("facts");
        assert_eq!(StepUser::choose(&host(1001), &own).expect("own"), StepUser::Own { uid: 1001, gid: 1001 });
    }

    #[test]
    fn unprivileged_daemon_rejects_foreign_repositories() {
        assert_eq!(StepUser::choose(&host(1001), &repo(1001, 7)).expect("own"), StepUser::Own { uid: 1001, gid: 1001 });
        assert!(StepUser::choose(&host(1001), &repo(1002, 7)).is_err());
        assert!(StepUser::choose(&host(1001), &repo(0, 0)).is_err());
    }
}

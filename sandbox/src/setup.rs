//! Computes the set-up of a sandbox as a list of operations, from the policy, the [`Host`] and the [`StepUser`] alone.
//! The list can be printed, and the helper executes it in order.
//!
//! Operations that do not depend on the command (its argv, environment, limits and layers) come first, so that a
//! sandbox can be prepared in advance and wait for a command.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path, PathBuf};

use proctor_core::model::plan::{Limit, Network, RelPath};
use serde::{Deserialize, Serialize};

use crate::error::SandboxError;
use crate::host::{Host, StepUser};
use crate::policy::{AccessRights, CacheSource, Frame, Policy, ToolKind};

/// One operation of the set-up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum SetupOp {
    /// Start the server of the view, as the step's user and in the host's namespaces.
    StartView,
    /// Join the namespace that holds the run's layers.
    JoinSpace {
        /// Also join the user namespace that owns it: an unprivileged process cannot join the mount namespace
        /// otherwise.
        user: bool,
    },
    /// Leave the host's mount and PID namespaces.
    Unshare {
        /// Also leave the user namespace. Under root, [`SetupOp::StepDown`] does that later.
        user: bool,
    },
    /// Map one user and one group to themselves.
    MapUser {
        /// The user id.
        uid: u32,
        /// The group id.
        gid: u32,
    },
    /// Set a neutral host name.
    Hostname,
    /// Stop mount propagation between the host and the sandbox, in both directions.
    MakePrivate,
    /// Refuse a repository that has other file systems mounted below it.
    RefuseSubmounts {
        /// The repository.
        repo: PathBuf,
    },
    /// Clone the devices of `/dev` while they are accessible.
    CloneDevices,
    /// Clone a file or directory of the host while it is visible.
    Clone {
        /// Path on the host.
        source: PathBuf,
        /// Path at which the file or directory will appear.
        at: PathBuf,
        /// How the file or directory will appear.
        kind: CloneKind,
    },
    /// Make the overlay of a cache while its layers are visible and the directory that receives the writes is
    /// writable.
    StackCache {
        /// The parent of the directory that receives the writes.
        room: PathBuf,
        /// The layers below, newest first.
        lowers: Vec<PathBuf>,
        /// Path at which the cache will appear.
        at: PathBuf,
    },
    /// Open the repository and the run space, for the overlay.
    HoldTree {
        /// The repository.
        repo: PathBuf,
        /// `true` if root's files appear as the step's.
        mapped: bool,
    },
    /// Mount a view of the host, and make it the root. Git directories, tools and the repository are opened again
    /// through the view. Without a view, the sandbox continues with the host's own mounts.
    MountView,
    /// Make everything that is mounted read-only, without devices and set-id programs. The run space, which is about
    /// to be hidden, stays writable.
    ReadOnlyRoot,
    /// Open the required files of the host's `/proc`, before PID 1 mounts its own over it.
    HoldProc,
    /// Wait until the daemon can kill PID 1.
    AwaitKnown,
    /// Wait until the helper has made everything read-only.
    AwaitReadOnlyRoot,
    /// Mount the one tmpfs that holds all scratch directories.
    Scratch,
    /// Write a passwd and a group file with two lines each, and mount them.
    Accounts {
        /// The home directory to name in the passwd file.
        home: PathBuf,
    },
    /// Mount an empty directory over another.
    Cover {
        /// The directory.
        at: PathBuf,
        /// Purpose of the empty directory.
        kind: CoverKind,
        /// The action if the directory does not exist.
        absent: AbsentAction,
    },
    /// Mount a minimal `/dev`.
    Dev,
    /// Write a `.gitconfig` into the home directory, so that git does not compare the owner ids in its index with the
    /// mapped ids.
    GitConfig {
        /// The home directory.
        home: PathBuf,
    },
    /// Create the mount point of the repository.
    RepoPoint {
        /// The repository.
        at: PathBuf,
        /// Directories that must exist as mount points of caches.
        scaffold: Vec<RelPath>,
    },
    /// Mask the Unix sockets of the host that are still visible.
    MaskSockets {
        /// Directories that are hidden already.
        hidden: Vec<PathBuf>,
    },
    /// Limit the size of the scratch directories.
    ScratchSize {
        /// The total size of the scratch directories, in bytes.
        bytes: Limit,
    },
    /// Make the overlay of the repository, the layers below and the layer of this attempt, if the layers are known,
    /// and mount it with its caches and git directories.
    MakeOverlay {
        /// The repository.
        repo: PathBuf,
    },
    /// Mount the overlay of the repository, the layers below and the layer of this attempt at the repository's own
    /// path.
    Overlay {
        /// The repository.
        repo: PathBuf,
    },
    /// Mount a clone.
    Attach {
        /// The mount point.
        at: PathBuf,
        /// Owner of the directory that contains the mount point.
        inside: MountPointParent,
    },
    /// Make the empty directories read-only, after all mount points in them exist.
    SealCovers,
    /// Start PID 1. It executes the following operations.
    StartInit,
    /// Enter the control group of this attempt.
    JoinCgroup,
    /// Enter a new cgroup namespace, which hides the control groups above the attempt's own.
    CgroupNamespace,
    /// Leave the host's other namespaces.
    OwnNamespaces {
        /// Also leave the network namespace.
        network: bool,
    },
    /// Mount a fresh `/proc`.
    Proc,
    /// Mount a fresh `/sys` that shows the sandbox's network only, or cover it with an empty directory.
    Sys,
    /// Report that `/proc` and `/sys` are mounted.
    SayMounted,
    /// Wait until PID 1 has mounted `/proc` and `/sys`.
    AwaitMounted,
    /// Unmount the host's mounts, which the view has replaced.
    LeaveHost,
    /// Mask the files in `/proc` and `/sys` that expose the host.
    MaskKernelFiles {
        /// `true` if `/sys` is a fresh mount.
        fresh_sys: bool,
    },
    /// Leave the caller's keyrings.
    NewKeyring,
    /// Bring the loopback device up.
    Loopback,
    /// Become the step's user permanently, in a new user namespace.
    StepDown {
        /// The user id.
        uid: u32,
        /// The group id.
        gid: u32,
    },
    /// Drop all capabilities.
    DropCapabilities,
    /// Set `no_new_privs`.
    NoNewPrivs,
    /// Make PID 1 unreadable for the step, which runs as the same user, and disable core dumps.
    Undumpable,
    /// Install the filter that refuses system calls that no check needs.
    SyscallFilter,
    /// Wait for the command; the operations that follow need it.
    AwaitCommand,
    /// Start the process that becomes the command. It executes the following operations.
    StartCommand,
    /// Leave the session and the terminal.
    NewSession,
    /// Set the resource limits.
    ResourceLimits,
    /// Open the directories for the Landlock rules that restrict writes.
    DrawWall {
        /// The writable directories in addition to the repository. The first one exists.
        writable: Vec<PathBuf>,
    },
    /// Add a rule for the repository, and enforce the Landlock ruleset.
    Landlock {
        /// The repository.
        repo: PathBuf,
    },
    /// Mark every descriptor except the standard three as close-on-exec.
    CloseFds,
    /// Wait until the tree is mounted.
    AwaitTree,
    /// Change to the work directory.
    Workdir {
        /// The path in the sandbox.
        path: PathBuf,
    },
    /// Execute the command.
    Exec,
}

/// The process that executes an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SetupStage {
    /// The helper, outside the new PID namespace.
    Helper,
    /// PID 1.
    Init,
    /// The helper, concurrently with PID 1's operations: the two do not touch the same mounts.
    HelperConcurrent,
    /// The process that becomes the command, before the command is known.
    Waiting,
    /// The helper again, once the command is known. The command's process prepares itself concurrently.
    Claim,
    /// The process that becomes the command.
    Command,
}

/// How a file or directory of the host appears.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CloneKind {
    /// Read-only; the set-up is refused if it is absent.
    Git {
        /// `true` if root's files appear as the step's.
        mapped: bool,
    },
    /// Read-only; skipped if it is absent.
    Tool {
        /// The file access rights used to reach the source.
        rights: AccessRights,
    },
    /// Below a layer for writes, which is discarded with the sandbox; read-only if the kernel cannot make an overlay;
    /// skipped if it is absent.
    Store {
        /// The file access rights used to reach the source.
        rights: AccessRights,
    },
    /// Writable; the set-up is refused if it is absent.
    Cache,
    /// Writable, with unchanged owners on the disk; the set-up is refused if it is absent.
    Original {
        /// `true` if root's files appear as the step's.
        mapped: bool,
    },
    /// The path appears as an empty file, if the source exists.
    Mask {
        /// The file access rights used to look for the source.
        rights: AccessRights,
    },
}

/// Purpose of an empty directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CoverKind {
    /// Hides the existing content; read-only at the end of the set-up.
    Hidden,
    /// Scratch space with the mode of `/tmp`, writable for every user.
    Scratch,
    /// The step's home directory.
    Home,
}

/// The action if a directory does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AbsentAction {
    /// Skip the directory, since there is nothing to hide.
    PassOver,
    /// Create the mount point, since its parent is in one of proctor's tmpfs mounts.
    Make,
}

/// Owner of the directory that contains a mount point.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MountPointParent {
    /// The host or proctor. The mount point is created if it is absent.
    Root,
    /// The repository. The mount point is never reached through a symbolic link.
    Repo {
        /// The repository.
        repo: PathBuf,
        /// The path in the repository.
        path: RelPath,
    },
}

/// Returns the operations that enforce `policy` for a step of this user, in order.
pub fn setup_ops(policy: &Policy, host: &Host, user: StepUser) -> Vec<SetupOp> {
    let mut ops = prepare_ops(&policy.frame(), host, user);
    ops.extend(claim_ops(policy));
    ops
}

/// Returns the operations that can run before the command is known.
pub(crate) fn prepare_ops(frame: &Frame, host: &Host, user: StepUser) -> Vec<SetupOp> {
    // Must come first: the server must see the host as it is, without the mounts of the helper.
    let mut ops: Vec<SetupOp> = frame.view.then_some(SetupOp::StartView).into_iter().collect();
    ops.extend(namespace_ops(user));
    ops.extend(init_ops(frame, user));
    ops.extend(concurrent_ops(frame, host, user));
    ops
}

/// Returns the same operations for a sandbox that waits for longer than one run. The overlay over the worktree is
/// mounted only when the command arrives, because an overlay may show either state of a file that changes underneath
/// it.
pub(crate) fn prepare_ahead_ops(frame: &Frame, host: &Host, user: StepUser) -> Vec<SetupOp> {
    let mut ops = prepare_ops(frame, host, user);
    ops.retain(|op| !matches!(op, SetupOp::MakeOverlay { .. }));
    ops
}

/// Returns the operations that need the command.
pub(crate) fn claim_ops(policy: &Policy) -> Vec<SetupOp> {
    let frame = policy.frame();
    let mut ops = vec![SetupOp::Overlay { repo: frame.repo.clone() }];
    ops.extend(tree_attach_ops(&frame));
    ops.extend([
        SetupOp::StartCommand,
        SetupOp::ResourceLimits,
        SetupOp::AwaitTree,
        // The operation uses the path: a directory opened earlier would be the one below the overlay.
        SetupOp::Workdir { path: frame.repo.join(policy.workdir.as_str()).components().collect() },
        // Must come after the last file is opened for writing.
        SetupOp::Landlock { repo: frame.repo },
        SetupOp::Exec,
    ]);
    ops
}

/// Returns the mounts inside the tree, which follow the mount of the tree itself.
pub(crate) fn tree_attach_ops(frame: &Frame) -> Vec<SetupOp> {
    let mut ops = Vec::new();
    // A nested cache after its parent; otherwise the parent's mount would cover it.
    let mut caches: Vec<_> = frame.caches.iter().collect();
    caches.sort_by_key(|cache| cache.at.as_str());
    for cache in caches {
        let inside = MountPointParent::Repo { repo: frame.repo.clone(), path: cache.at.clone() };
        ops.push(SetupOp::Attach { at: frame.repo.join(cache.at.as_str()), inside });
    }
    // Last, so that no cache can be mounted over it.
    for (git, path) in frame.git.paths().filter_map(|git| Some((git, path_in_repo(git, &frame.repo)?))) {
        let inside = MountPointParent::Repo { repo: frame.repo.clone(), path };
        ops.push(SetupOp::Attach { at: git.to_owned(), inside });
    }
    ops
}

fn path_in_repo(git: &Path, repo: &Path) -> Option<RelPath> {
    git.strip_prefix(repo).ok().and_then(|path| RelPath::new(path.to_str()?).ok())
}

fn namespace_ops(user: StepUser) -> Vec<SetupOp> {
    let own = !user.is_set_up_by_root();
    let mut ops = vec![
        // Must come first: the new namespaces give no privilege over the run's namespace.
        SetupOp::JoinSpace { user: own },
        // One call creates all namespaces: the kernel creates the user namespace first, so that it owns the others.
        SetupOp::Unshare { user: own },
    ];
    // Must come before any file is created: an unmapped user cannot create one.
    ops.extend(own.then_some(SetupOp::MapUser { uid: user.uid(), gid: user.gid() }));
    ops.extend([
        // Must come before the first mount.
        SetupOp::MakePrivate,
        // Must run while `/proc` is still the host's.
        SetupOp::HoldProc,
    ]);
    ops
}

/// Clones everything that must stay visible although its parent directory gets hidden, or writable although the root
/// becomes read-only. Must come before both.
fn clone_ops(frame: &Frame, host: &Host, user: StepUser) -> Vec<SetupOp> {
    let clone = |source: &Path, at: PathBuf, kind| SetupOp::Clone { source: source.to_owned(), at, kind };
    let mut ops = vec![SetupOp::CloneDevices];
    for git in frame.git.paths() {
        ops.push(clone(&frame.git_source(git), git.to_owned(), CloneKind::Git { mapped: user.is_mapped() }));
    }
    for tool in &frame.tools {
        let kind = match tool.kind {
            ToolKind::ReadOnly => CloneKind::Tool { rights: tool.rights },
            ToolKind::Store => CloneKind::Store { rights: tool.rights },
            ToolKind::Masked => CloneKind::Mask { rights: tool.rights },
        };
        ops.push(clone(&tool.source, tool.at.clone(), kind));
    }
    let ours = CloneKind::Tool { rights: AccessRights::Ours };
    ops.extend(hidden_resolv_conf(frame, host).map(|path| clone(path, path.to_owned(), ours)));
    for cache in &frame.caches {
        let at = frame.repo.join(cache.at.as_str());
        ops.push(match &cache.source {
            CacheSource::Directory(path) => clone(path, at, CloneKind::Cache),
            CacheSource::Original(path) => clone(path, at, CloneKind::Original { mapped: user.is_mapped() }),
            CacheSource::Layers { room, lowers } => {
                SetupOp::StackCache { room: room.clone(), lowers: lowers.clone(), at }
            }
        });
    }
    ops
}

/// Home directories, and `/run`, which holds the sockets of services.
pub(crate) const HIDDEN_DIRS: [&str; 3] = ["/root", "/home", "/run"];
/// Directories that every program may write. No step may see files that another program put there.
const SCRATCH_DIRS: [&str; 2] = ["/tmp", "/var/tmp"];

/// Returns whether `path` of the host is hidden from steps because it is inside a directory that every sandbox hides,
/// or inside one of `hide`. Exceptions that a policy makes are not considered.
pub fn is_hidden(path: &Path, host: &Host, hide: &[PathBuf]) -> bool {
    let fixed = HIDDEN_DIRS.iter().chain(&SCRATCH_DIRS).map(Path::new);
    let own = [host.home.as_path(), &host.state_dir];
    fixed.chain(own).chain(hide.iter().map(PathBuf::as_path)).any(|hidden| path.starts_with(hidden))
}

/// Covers parents before children, since a cover on a parent would hide the cover on its child. A directory below
/// another hidden one needs no cover.
fn cover_ops(frame: &Frame, host: &Host, user: StepUser) -> Vec<SetupOp> {
    let fixed = HIDDEN_DIRS.map(PathBuf::from);
    let own = [host.home.clone(), host.state_dir.clone()]
        .into_iter()
        .chain(host.homes.get(&user.ids_in_sandbox().0).cloned());
    let hidden = fixed.into_iter().chain(own).chain(frame.hide.clone());
    let mut wanted: BTreeMap<PathBuf, CoverKind> =
        hidden.filter(|path| path.parent().is_some()).map(|path| (path, CoverKind::Hidden)).collect();
    wanted.extend(SCRATCH_DIRS.map(|path| (PathBuf::from(path), CoverKind::Scratch)));
    wanted.insert(frame.home.clone(), CoverKind::Home);

    let mut done: Vec<PathBuf> = Vec::new();
    let mut ops = Vec::new();
    // The map is ordered by path components: a parent comes before its children.
    for (at, kind) in wanted {
        let nested = done.iter().any(|cover| at.starts_with(cover));
        if nested && kind == CoverKind::Hidden {
            continue;
        }
        let absent = if nested || kind == CoverKind::Home { AbsentAction::Make } else { AbsentAction::PassOver };
        done.push(at.clone());
        ops.push(SetupOp::Cover { at, kind, absent });
    }
    ops
}

fn root_attach_ops(frame: &Frame, host: &Host) -> Vec<SetupOp> {
    let in_root = |at: PathBuf| SetupOp::Attach { at, inside: MountPointParent::Root };
    let scaffold = frame.caches.iter().map(|cache| cache.at.clone()).collect();
    let mut ops =
        vec![SetupOp::Accounts { home: frame.home.clone() }, SetupOp::RepoPoint { at: frame.repo.clone(), scaffold }];
    ops.extend(frame.tools.iter().map(|tool| in_root(tool.at.clone())));
    ops.extend(hidden_resolv_conf(frame, host).map(|path| in_root(path.to_owned())));
    // Last, so that no tool can be mounted over it.
    ops.extend(
        frame.git.paths().filter(|git| path_in_repo(git, &frame.repo).is_none()).map(|git| in_root(git.to_owned())),
    );
    ops
}

/// Returns the resolver configuration if the step may use the network and a hidden directory holds the file. Without
/// it the step could not resolve names.
pub(crate) fn hidden_resolv_conf<'a>(frame: &Frame, host: &'a Host) -> Option<&'a Path> {
    let path = host.resolv_conf.as_deref()?;
    (frame.network == Network::Allow && path.starts_with("/run")).then_some(path)
}

/// Returns the operations that hide and show parts of the host.
fn concurrent_ops(frame: &Frame, host: &Host, user: StepUser) -> Vec<SetupOp> {
    // This check runs in the mount namespace in which the overlay will be mounted.
    let mut ops = vec![SetupOp::RefuseSubmounts { repo: frame.tree().to_owned() }];
    ops.extend(clone_ops(frame, host, user));
    ops.push(SetupOp::HoldTree { repo: frame.tree().to_owned(), mapped: user.is_mapped() });
    // Must come after every operation that opens files of the host itself: later operations see the host through the
    // view. It comes before `ReadOnlyRoot`, after which PID 1 mounts `/proc` in the root.
    ops.extend(frame.view.then_some(SetupOp::MountView));
    ops.extend([
        // Before any of proctor's own mounts, so that later ones keep their flags. PID 1 waits for it in its
        // [`SetupOp::AwaitReadOnlyRoot`].
        SetupOp::ReadOnlyRoot,
        // Must come before the covers: the mount point is inside a directory that one of them covers.
        SetupOp::Scratch,
    ]);
    let covers = cover_ops(frame, host, user);
    let hidden =
        covers.iter().filter_map(SetupOp::covered_path).map(Path::to_owned).chain([frame.repo.clone()]).collect();
    ops.extend(covers);
    ops.push(SetupOp::Dev);
    ops.extend(user.is_mapped().then(|| SetupOp::GitConfig { home: frame.home.clone() }));
    ops.extend(root_attach_ops(frame, host));
    let scratch = SCRATCH_DIRS.into_iter().chain(["/dev/shm"]).map(PathBuf::from);
    let writable = [frame.home.clone()].into_iter().chain(scratch).collect();
    ops.extend([
        // Must come after the last host directory is mounted.
        SetupOp::MaskSockets { hidden },
        // Must come after the last scratch directory exists.
        SetupOp::ScratchSize { bytes: frame.limits.disk },
        // Must come after the last mount point in the covers exists.
        SetupOp::SealCovers,
        // This runs while PID 1 still creates its network namespace, which takes longest.
        SetupOp::MakeOverlay { repo: frame.repo.clone() },
        SetupOp::AwaitMounted,
    ]);
    // Must come after PID 1 has mounted `/proc` and `/sys`: the kernel lets an unprivileged process mount them only
    // while the namespace contains others that it may see in full.
    ops.extend(frame.view.then_some(SetupOp::LeaveHost));
    ops.extend([
        SetupOp::MaskKernelFiles { fresh_sys: frame.network == Network::Deny },
        // The following operations run in the command's process, concurrently with those that follow `SealCovers`.
        SetupOp::NewSession,
        // Must come after the step's `/dev` is mounted.
        SetupOp::CloseFds,
        // Must come after the last writable directory exists.
        SetupOp::DrawWall { writable },
    ]);
    ops
}

fn init_ops(frame: &Frame, user: StepUser) -> Vec<SetupOp> {
    let own_network = frame.network == Network::Deny;
    let mut ops = vec![
        SetupOp::StartInit,
        // Must come first: creating a network namespace takes the kernel about as long as most of the other operations
        // together.
        SetupOp::OwnNamespaces { network: own_network },
        SetupOp::AwaitKnown,
        // Must come before the cgroup namespace: a process inside it cannot enter a group outside of it.
        SetupOp::JoinCgroup,
        SetupOp::CgroupNamespace,
        SetupOp::Hostname,
    ];
    ops.extend(own_network.then_some(SetupOp::Loopback));
    ops.extend([
        // Without this wait, the following mounts would become read-only too.
        SetupOp::AwaitReadOnlyRoot,
        // Only a member of the new PID namespace can mount the right /proc.
        SetupOp::Proc,
    ]);
    // The kernel lets only the owner of a network namespace mount its /sys.
    ops.extend(own_network.then_some(SetupOp::Sys));
    // The helper masks files in both while PID 1 executes the rest of this list.
    ops.extend([SetupOp::SayMounted, SetupOp::NewKeyring]);
    // Must come after the last mount, so that the step never gains power over root's mounts.
    ops.extend(user.is_set_up_by_root().then_some(SetupOp::StepDown { uid: user.uid(), gid: user.gid() }));
    ops.extend([
        SetupOp::DropCapabilities,
        SetupOp::NoNewPrivs,
        // Must come after the last change of credentials, because each change resets the flag.
        SetupOp::Undumpable,
        // Must come after every operation that the filter refuses.
        SetupOp::SyscallFilter,
        SetupOp::AwaitCommand,
    ]);
    ops
}

/// Refuses path arrangements in which the policy could not be enforced.
pub(crate) fn check_policy(policy: &Policy, host: &Host) -> Result<(), SandboxError> {
    for path in absolute_paths(policy) {
        check_normalized(path)?;
    }
    let system = ["/tmp", "/var/tmp", "/root", "/home", "/run", "/dev", "/proc", "/sys", "/etc"].map(Path::new);
    let own = [policy.home.as_path(), &host.home, &host.state_dir];
    for inner in system.into_iter().chain(own).chain(policy.hide.iter().map(PathBuf::as_path)) {
        if inner.starts_with(&policy.repo) {
            return Err(SandboxError::policy(
                format!(
                    "`{}` is inside the repository `{}`, but must be hidden from steps",
                    inner.display(),
                    policy.repo.display()
                ),
                "choose another state directory, home or repository: none of them may contain another",
            ));
        }
    }
    for tool in policy.tools.iter().filter(|tool| tool.kind != ToolKind::Masked) {
        let kept = [host.state_dir.as_path(), &host.home, &policy.repo]
            .into_iter()
            .find(|path| path.starts_with(&tool.source));
        if let Some(kept) = kept {
            return Err(SandboxError::policy(
                format!("the tool directory `{}` would expose `{}`", tool.source.display(), kept.display()),
                "name the directories of the tool below it instead",
            ));
        }
    }
    for cache in &policy.caches {
        let CacheSource::Original(directory) = &cache.source else { continue };
        let kept =
            [host.state_dir.as_path(), &host.home, &policy.home].into_iter().find(|path| path.starts_with(directory));
        if let Some(kept) = kept {
            return Err(SandboxError::policy(
                format!("the writable directory `{}` would expose `{}`", directory.display(), kept.display()),
                "move the file that is to be written to a separate directory",
            ));
        }
    }
    check_inside_repo(policy)
}

fn check_inside_repo(policy: &Policy) -> Result<(), SandboxError> {
    if let Some(tool) = policy.tools.iter().find(|tool| tool.at.starts_with(&policy.repo)) {
        return Err(SandboxError::policy(
            format!("the tool `{}` would appear in the repository", tool.at.display()),
            "files in the repository are already visible; remove it from the list of tools",
        ));
    }
    let bad = |cache: &&crate::policy::CacheMount| {
        let at = cache.at.as_str();
        at == "." || Path::new(at).starts_with(".git")
    };
    match policy.caches.iter().find(bad) {
        None => Ok(()),
        Some(cache) => Err(SandboxError::policy(
            format!("`{}` cannot be a cache", cache.at),
            "name a directory of the repository, such as `target`",
        )),
    }
}

fn absolute_paths(policy: &Policy) -> impl Iterator<Item = &Path> {
    let tools = policy.tools.iter().map(|tool| tool.at.as_path());
    let caches = policy.caches.iter().flat_map(|cache| cache.source.paths());
    let hide = policy.hide.iter().map(PathBuf::as_path);
    let git = policy.git.paths();
    [policy.repo.as_path(), &policy.home]
        .into_iter()
        .chain(policy.checkout.as_deref())
        .chain(git)
        .chain(tools)
        .chain(caches)
        .chain(hide)
}

fn check_normalized(path: &Path) -> Result<(), SandboxError> {
    let plain =
        path.is_absolute() && path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if plain {
        return Ok(());
    }
    Err(SandboxError::policy(
        format!("`{}` is not an absolute path without `..`", path.display()),
        "use the path that `realpath` prints",
    ))
}

impl SetupOp {
    /// Returns the process that executes the operation.
    pub fn stage(&self) -> SetupStage {
        match self {
            Self::JoinCgroup
            | Self::CgroupNamespace
            | Self::OwnNamespaces { .. }
            | Self::AwaitKnown
            | Self::AwaitReadOnlyRoot
            | Self::Hostname
            | Self::Proc
            | Self::Sys
            | Self::Loopback
            | Self::SayMounted
            | Self::NewKeyring
            | Self::StepDown { .. }
            | Self::DropCapabilities
            | Self::NoNewPrivs
            | Self::Undumpable
            | Self::SyscallFilter
            | Self::AwaitCommand => SetupStage::Init,
            Self::RefuseSubmounts { .. }
            | Self::CloneDevices
            | Self::Clone { .. }
            | Self::StackCache { .. }
            | Self::HoldTree { .. }
            | Self::MountView
            | Self::LeaveHost
            | Self::ReadOnlyRoot
            | Self::Scratch
            | Self::Cover { .. }
            | Self::Dev
            | Self::GitConfig { .. }
            | Self::Accounts { .. }
            | Self::RepoPoint { .. }
            | Self::Attach { inside: MountPointParent::Root, .. }
            | Self::MaskSockets { .. }
            | Self::ScratchSize { .. }
            | Self::SealCovers
            | Self::AwaitMounted
            | Self::MaskKernelFiles { .. }
            | Self::MakeOverlay { .. } => SetupStage::HelperConcurrent,
            Self::NewSession | Self::CloseFds | Self::DrawWall { .. } => SetupStage::Waiting,
            Self::Overlay { .. } | Self::Attach { inside: MountPointParent::Repo { .. }, .. } | Self::StartCommand => {
                SetupStage::Claim
            }
            Self::ResourceLimits | Self::Landlock { .. } | Self::AwaitTree | Self::Workdir { .. } | Self::Exec => {
                SetupStage::Command
            }
            _ => SetupStage::Helper,
        }
    }

    /// Returns whether the set-up can continue without the operation.
    pub(crate) fn is_optional(&self) -> bool {
        matches!(
            self,
            Self::Hostname
                | Self::MaskSockets { .. }
                | Self::JoinCgroup
                | Self::CgroupNamespace
                | Self::Proc
                | Self::MaskKernelFiles { .. }
                | Self::NewKeyring
                | Self::SyscallFilter
                | Self::DrawWall { .. }
                | Self::Landlock { .. }
        )
    }

    /// Returns the path of the host whose current object the operation uses.
    pub(crate) fn host_object(&self) -> Option<&Path> {
        match self {
            Self::Clone { source, .. } => Some(source),
            Self::HoldTree { repo: at, .. } | Self::Cover { at, .. } | Self::RepoPoint { at, .. } => Some(at),
            _ => None,
        }
    }

    /// Returns the directory that the operation covers.
    fn covered_path(&self) -> Option<&Path> {
        match self {
            Self::Cover { at, .. } => Some(at),
            _ => None,
        }
    }
}

/// Formats the operation as a human-readable phrase.
impl fmt::Display for SetupOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StartView => write!(f, "start the server of the view as the step's user"),
            Self::MountView => write!(f, "mount the view of the host, and make it the root"),
            Self::LeaveHost => write!(f, "unmount everything that the view has replaced"),
            Self::JoinSpace { user: true } => write!(f, "join the run's user and mount namespace"),
            Self::JoinSpace { user: false } => write!(f, "join the run's mount namespace"),
            Self::Unshare { user } => {
                write!(f, "new namespaces: {}mount, pid", if *user { "user, " } else { "" })
            }
            Self::MapUser { uid, gid } => write!(f, "map user {uid} and group {gid} to themselves"),
            Self::Hostname => write!(f, "host name `{HOSTNAME}`"),
            Self::MakePrivate => write!(f, "make all mounts private"),
            Self::RefuseSubmounts { repo } => write!(f, "refuse file systems mounted below {}", repo.display()),
            Self::CloneDevices => write!(f, "clone the mounts of {} in /dev", DEVICES.join(", ")),
            Self::Clone { source, at, kind } => {
                write!(f, "clone the mount of {} for {} ({kind})", source.display(), at.display())
            }
            Self::StackCache { room, lowers, at } => {
                let count = lowers.len();
                write!(f, "create the overlay of {} for {} over {count} layers", room.display(), at.display())
            }
            Self::HoldTree { repo, mapped } => {
                let mapped = if *mapped { ", with root's files owned by the step's user" } else { "" };
                write!(f, "open {} and the run space{mapped}", repo.display())
            }
            Self::MakeOverlay { repo } => {
                write!(f, "create the overlay of {}, with the layers below and the step's own layer", repo.display())
            }
            Self::Overlay { repo } => write!(f, "put the overlay at {}", repo.display()),
            Self::HoldProc => write!(f, "open the host's tables of mounts and of Unix sockets"),
            Self::AwaitKnown => write!(f, "wait until the daemon has registered PID 1"),
            Self::AwaitReadOnlyRoot => write!(f, "wait until / is read-only"),
            Self::Scratch => write!(f, "mount one tmpfs for all scratch directories"),
            Self::ScratchSize { bytes: Limit::Max(bytes) } => {
                write!(f, "limit the scratch directories to {bytes} bytes")
            }
            Self::ScratchSize { bytes: Limit::Unlimited } => write!(f, "keep the scratch directories unchanged"),
            Self::Accounts { home } => {
                write!(f, "mount a passwd and a group file of two lines, with the home {}", home.display())
            }
            Self::RepoPoint { at, .. } => write!(f, "create the mount point {}", at.display()),
            Self::MaskSockets { .. } => write!(f, "mask the host's Unix sockets that are still visible"),
            Self::ReadOnlyRoot => write!(f, "make / read-only, nosuid, nodev, with all mounts below it"),
            Self::Cover { at, kind, .. } => write!(f, "{kind} {}", at.display()),
            Self::Dev => write!(f, "mount a minimal /dev with its own pts and shm"),
            Self::GitConfig { home } => write!(f, "write {}/.gitconfig with core.checkStat=minimal", home.display()),
            Self::Attach { at, .. } => write!(f, "mount the opened directory at {}", at.display()),
            Self::SealCovers => write!(f, "make the hiding directories read-only"),
            Self::StartInit => write!(f, "start PID 1"),
            Self::JoinCgroup => write!(f, "enter the control group of this attempt"),
            Self::OwnNamespaces { network } => {
                write!(f, "new namespaces: ipc, uts{}", if *network { ", net" } else { "" })
            }
            Self::CgroupNamespace => write!(f, "hide control groups above it"),
            Self::Proc => write!(f, "mount a fresh /proc"),
            Self::Sys => write!(f, "mount a fresh /sys, read-only"),
            Self::Loopback => write!(f, "bring the loopback device up"),
            Self::SayMounted => write!(f, "report that /proc and /sys are mounted"),
            Self::AwaitMounted => write!(f, "wait until /proc and /sys are mounted"),
            Self::MaskKernelFiles { .. } => write!(f, "mask host details in /proc and /sys"),
            Self::NewKeyring => write!(f, "leave the caller's keyrings"),
            Self::StepDown { uid, gid } => write!(f, "become user {uid}, group {gid} in a new user namespace"),
            Self::DropCapabilities => write!(f, "drop all capabilities"),
            Self::NoNewPrivs => write!(f, "set no_new_privs"),
            Self::Undumpable => write!(f, "make PID 1 unreadable"),
            Self::SyscallFilter => write!(f, "refuse system calls that no check needs"),
            Self::AwaitCommand => write!(f, "wait for the command"),
            Self::StartCommand => write!(f, "start the command's process"),
            Self::NewSession => write!(f, "start a new session"),
            Self::ResourceLimits => write!(f, "set the resource limits"),
            Self::DrawWall { .. } => write!(f, "restrict the writable paths a second time"),
            Self::Landlock { repo } => write!(f, "restrict {} too, and apply the restriction", repo.display()),
            Self::CloseFds => write!(f, "close every descriptor except the standard streams"),
            Self::AwaitTree => write!(f, "wait until the tree is mounted"),
            Self::Workdir { path } => write!(f, "change to {}", path.display()),
            Self::Exec => write!(f, "execute the command"),
        }
    }
}

impl fmt::Display for CloneKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Git { mapped: false } => "git, read-only",
            Self::Git { mapped: true } => "git, read-only, with root's files owned by the step's user",
            Self::Tool { .. } => "tool, read-only",
            Self::Store { .. } => "package store, with a layer for writes that are discarded",
            Self::Cache => "cache, writable",
            Self::Original { mapped: false } => "writable",
            Self::Original { mapped: true } => "writable, with root's files owned by the step's user",
            Self::Mask { .. } => "masked",
        })
    }
}

impl fmt::Display for CoverKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hidden => "hide",
            Self::Scratch => "private scratch directory",
            Self::Home => "empty home directory",
        })
    }
}

/// A name that every `/etc/hosts` contains.
pub(crate) const HOSTNAME: &str = "localhost";
/// The devices in a step's `/dev`, in addition to its terminals.
pub(crate) const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

#[cfg(test)]
mod tests;

//! The set-up of a sandbox as a list: computed from the policy without looking at the machine,
//! printable, and carried out by the helper in one loop, in this order.
//!
//! What does not depend on the command (its argv, environment, limits, layers) stands first, so
//! that a sandbox can be prepared while there is none and wait for it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path, PathBuf};

use proctor_core::plan::{Limit, Network, RelPath};
use serde::{Deserialize, Serialize};

use crate::error::SandboxError;
use crate::host::{Host, StepUser};
use crate::policy::{CacheSource, Frame, Policy, Rights, ToolKind};

/// One thing that is done to make a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum SetupOp {
    /// Join the namespace that holds the run's layers.
    JoinSpace {
        /// Also the user namespace that owns it: without privilege it is the only way in.
        user: bool,
    },
    /// Leave the host's mounts and processes.
    Unshare {
        /// The user namespace too; root does that later, in [`SetupOp::StepDown`].
        user: bool,
    },
    /// Map one user and one group, to themselves.
    MapUser {
        /// The user id.
        uid: u32,
        /// The group id.
        gid: u32,
    },
    /// Set a host name that says nothing.
    Hostname,
    /// Stop mounts of the host from coming in, and ours from going out.
    MakePrivate,
    /// Refuse a repository that has other file systems mounted below it.
    RefuseSubmounts {
        /// The repository.
        repo: PathBuf,
    },
    /// Take the devices of `/dev` while they can be had.
    CloneDevices,
    /// Take a file or directory of the host while it can be seen.
    Clone {
        /// What.
        source: PathBuf,
        /// Where it is going to appear.
        at: PathBuf,
        /// In which way.
        kind: CloneKind,
    },
    /// Make the overlay of a cache, while its layers can be seen and the directory that takes the writes is writable.
    StackCache {
        /// The directory that holds the one that takes the writes.
        room: PathBuf,
        /// The layers below, newest first.
        lowers: Vec<PathBuf>,
        /// Where it is going to appear.
        at: PathBuf,
    },
    /// Take the repository and the place for layers, for the overlay to come.
    HoldTree {
        /// The repository.
        repo: PathBuf,
        /// Whether root's files appear as the step's.
        mapped: bool,
    },
    /// Make everything that is mounted read-only, without devices and set-id programs; the place
    /// for layers, which gets hidden, stays writable.
    ReadOnlyRoot,
    /// Hold what is needed of the host's `/proc`: PID 1 is going to mount its own over it.
    HoldProc,
    /// Wait until the daemon can end PID 1.
    AwaitKnown,
    /// Wait until the helper has made everything read-only.
    AwaitReadOnlyRoot,
    /// Mount the one tmpfs on which all scratch directories lie.
    Scratch,
    /// Write a passwd and a group file with two lines each, and put them in place.
    Accounts {
        /// The home directory that they name.
        home: PathBuf,
    },
    /// Mount an empty directory over another.
    Cover {
        /// The directory.
        at: PathBuf,
        /// What it is for.
        kind: Cover,
        /// What becomes of a directory that is not there.
        absent: Absent,
    },
    /// Mount a minimal `/dev`.
    Dev,
    /// Write a `.gitconfig` into the home directory, so that git does not compare the ids that
    /// its index remembers with those that the mount maps.
    GitConfig {
        /// The home directory.
        home: PathBuf,
    },
    /// Make the directory that the repository is going to appear on.
    RepoPoint {
        /// The repository.
        at: PathBuf,
        /// Directories that must be there, so that caches can be mounted on them.
        scaffold: Vec<RelPath>,
    },
    /// Mask the Unix sockets of the host that can still be seen.
    MaskSockets {
        /// What hides them already.
        hidden: Vec<PathBuf>,
    },
    /// Bound the scratch directories.
    ScratchSize {
        /// Their size in bytes, all together.
        bytes: Limit,
    },
    /// Make the overlay of the repository, the layers below and the layer of this attempt, as far as
    /// the layers are known, and put it and what belongs into it in place.
    MakeOverlay {
        /// The repository.
        repo: PathBuf,
    },
    /// Put the overlay of the repository, the layers below and the layer of this attempt at the
    /// repository's own path.
    Overlay {
        /// The repository.
        repo: PathBuf,
    },
    /// Put a clone at its place.
    Attach {
        /// Its place.
        at: PathBuf,
        /// Whose place that is.
        inside: Inside,
    },
    /// Make the empty directories read-only, now that all mount points in them are made.
    SealCovers,
    /// Start PID 1; what follows happens in it.
    StartInit,
    /// Enter the control group of this attempt.
    JoinCgroup,
    /// See no control group above it.
    CgroupNamespace,
    /// Leave the host's other namespaces.
    OwnNamespaces {
        /// The network namespace too.
        network: bool,
    },
    /// Mount a fresh `/proc`.
    Proc,
    /// Mount a fresh `/sys` that shows the own network only, or an empty directory over it.
    Sys,
    /// Say that `/proc` and `/sys` are mounted.
    SayMounted,
    /// Wait until PID 1 has mounted `/proc` and `/sys`.
    AwaitMounted,
    /// Mask what the kernel shows of the host in `/proc` and `/sys`.
    MaskKernelFiles {
        /// Whether `/sys` is a fresh one.
        fresh_sys: bool,
    },
    /// Leave the caller's keyrings.
    NewKeyring,
    /// Set the loopback device up.
    Loopback,
    /// Become the step's user for ever, in a user namespace of its own.
    StepDown {
        /// The user id.
        uid: u32,
        /// The group id.
        gid: u32,
    },
    /// Give up every capability.
    DropCapabilities,
    /// Give up the gaining of privileges.
    NoNewPrivs,
    /// Make PID 1 unreadable for the step, which is the same user, and switch core dumps off.
    Undumpable,
    /// Refuse system calls that no check needs.
    SyscallFilter,
    /// Wait for the command; what follows needs it.
    AwaitCommand,
    /// Start the process that becomes the command; what follows happens in it.
    StartCommand,
    /// Leave the session and the terminal.
    NewSession,
    /// Set the resource limits.
    ResourceLimits,
    /// Draw the second wall around what may be written.
    DrawWall {
        /// The directories in which files may be made and changed, beside the repository; the first
        /// of them is there.
        writable: Vec<PathBuf>,
    },
    /// Draw it around the repository too, and build it.
    Landlock {
        /// The repository.
        repo: PathBuf,
    },
    /// Mark every descriptor but the standard three to be closed.
    CloseFds,
    /// Wait until the tree is in place.
    AwaitTree,
    /// Go to the work directory.
    Workdir {
        /// Its path in the sandbox.
        path: PathBuf,
    },
    /// Become the command.
    Exec,
}

/// In which process an operation happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The helper, outside the new PID namespace.
    Outer,
    /// PID 1.
    Init,
    /// The helper, while PID 1 is at its own operations: the two do not touch the same mounts.
    Beside,
    /// The process that becomes the command, before that is known.
    Waiting,
    /// The helper again, once the command is known; the command's process gets ready meanwhile.
    Claim,
    /// The process that becomes the command.
    Command,
}

/// In which way something of the host appears.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CloneKind {
    /// Read-only; refused where it is absent.
    Git {
        /// Whether root's files appear as the step's.
        mapped: bool,
    },
    /// Read-only; passed over where it is absent.
    Tool {
        /// With whose rights on files it is reached.
        rights: Rights,
    },
    /// Writable; refused where it is absent.
    Cache,
    /// As an empty file, where the source exists.
    Mask {
        /// With whose rights on files that is looked for.
        rights: Rights,
    },
}

/// What an empty directory is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cover {
    /// Hiding what is there; read-only in the end.
    Hidden,
    /// Scratch space for everybody, as `/tmp` is.
    Scratch,
    /// The step's home directory.
    Home,
}

/// What becomes of a directory that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Absent {
    /// It is passed over: there is nothing to hide.
    PassOver,
    /// It is made: it lies in a tmpfs of ours.
    Make,
}

/// Whose place a mount point is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Inside {
    /// The host's or ours: made where it is absent.
    Root,
    /// The repository's: never reached through a symbolic link.
    Repo {
        /// The repository.
        repo: PathBuf,
        /// The path in it.
        path: RelPath,
    },
}

/// What is done to hold `policy` for a step of this user, in order.
pub fn setup_ops(policy: &Policy, host: &Host, user: StepUser) -> Vec<SetupOp> {
    let mut ops = prepare_ops(&policy.frame(), host, user);
    ops.extend(claim_ops(policy));
    ops
}

/// What can be done before the command is known.
pub(crate) fn prepare_ops(frame: &Frame, host: &Host, user: StepUser) -> Vec<SetupOp> {
    let mut ops = namespaces(user);
    ops.extend(init(frame, user));
    ops.extend(beside(frame, host, user));
    ops
}

/// The same for a sandbox that waits for a command by itself, for longer than a run: an overlay over the worktree is
/// made for the command, since it may show either state of a file that changes below it.
pub(crate) fn prepare_ahead_ops(frame: &Frame, host: &Host, user: StepUser) -> Vec<SetupOp> {
    let mut ops = prepare_ops(frame, host, user);
    ops.retain(|op| !matches!(op, SetupOp::MakeOverlay { .. }));
    ops
}

/// What needs the command.
pub(crate) fn claim_ops(policy: &Policy) -> Vec<SetupOp> {
    let frame = policy.frame();
    let mut ops = vec![SetupOp::Overlay { repo: frame.repo.clone() }];
    ops.extend(attach_ops(&frame));
    ops.extend([
        SetupOp::StartCommand,
        SetupOp::ResourceLimits,
        SetupOp::AwaitTree,
        // By path: a directory that was open before lies below the overlay.
        SetupOp::Workdir { path: frame.repo.join(policy.workdir.as_str()).components().collect() },
        // After the last file is opened for writing.
        SetupOp::Landlock { repo: frame.repo },
        SetupOp::Exec,
    ]);
    ops
}

/// What is mounted in the tree, once that is in its place.
pub(crate) fn attach_ops(frame: &Frame) -> Vec<SetupOp> {
    let mut ops = Vec::new();
    // One inside of another after it, or it would be covered.
    let mut caches: Vec<_> = frame.caches.iter().collect();
    caches.sort_by_key(|cache| cache.at.as_str());
    for cache in caches {
        let inside = Inside::Repo { repo: frame.repo.clone(), path: cache.at.clone() };
        ops.push(SetupOp::Attach { at: frame.repo.join(cache.at.as_str()), inside });
    }
    // Last, so that no cache can lie above it.
    for (git, path) in frame.git.paths().filter_map(|git| Some((git, below(git, &frame.repo)?))) {
        let inside = Inside::Repo { repo: frame.repo.clone(), path };
        ops.push(SetupOp::Attach { at: git.to_owned(), inside });
    }
    ops
}

fn below(git: &Path, repo: &Path) -> Option<RelPath> {
    git.strip_prefix(repo).ok().and_then(|path| RelPath::new(path.to_str()?).ok())
}

fn namespaces(user: StepUser) -> Vec<SetupOp> {
    let own = !user.steps_down();
    let mut ops = vec![
        // First of all: from inside the new namespaces we have no power over the run's.
        SetupOp::JoinSpace { user: own },
        // In one call: the kernel takes the user namespace first, so that it owns the others.
        SetupOp::Unshare { user: own },
    ];
    // Before any file is made: an unmapped user can make none.
    ops.extend(own.then_some(SetupOp::MapUser { uid: user.uid(), gid: user.gid() }));
    ops.extend([
        // Before the first mount.
        SetupOp::MakePrivate,
        // While /proc is the host's.
        SetupOp::HoldProc,
    ]);
    ops
}

/// Everything that is to appear although its directory gets hidden, or writable although the
/// root gets read-only, is taken first.
fn clones(frame: &Frame, host: &Host, user: StepUser) -> Vec<SetupOp> {
    let clone = |source: &Path, at: PathBuf, kind| SetupOp::Clone { source: source.to_owned(), at, kind };
    let mut ops = vec![SetupOp::CloneDevices];
    for git in frame.git.paths() {
        ops.push(clone(&frame.git_source(git), git.to_owned(), CloneKind::Git { mapped: user.is_mapped() }));
    }
    for tool in &frame.tools {
        let kind = match tool.kind {
            ToolKind::ReadOnly => CloneKind::Tool { rights: tool.rights },
            ToolKind::Masked => CloneKind::Mask { rights: tool.rights },
        };
        ops.push(clone(&tool.source, tool.at.clone(), kind));
    }
    let ours = CloneKind::Tool { rights: Rights::Ours };
    ops.extend(resolver(frame, host).map(|path| clone(path, path.to_owned(), ours)));
    for cache in &frame.caches {
        let at = frame.repo.join(cache.at.as_str());
        ops.push(match &cache.source {
            CacheSource::Directory(path) => clone(path, at, CloneKind::Cache),
            CacheSource::Layers { room, lowers } => {
                SetupOp::StackCache { room: room.clone(), lowers: lowers.clone(), at }
            }
        });
    }
    ops
}

/// Homes and run-time sockets.
pub(crate) const HIDDEN: [&str; 3] = ["/root", "/home", "/run"];
/// What every program may write, and what nobody's program may see of another's.
const SCRATCH: [&str; 2] = ["/tmp", "/var/tmp"];

/// Whether a step does not see the host's `path`, because it lies in a directory that every
/// sandbox hides or in one of `hide`. What a policy shows all the same is not considered.
pub fn is_hidden(path: &Path, host: &Host, hide: &[PathBuf]) -> bool {
    let fixed = HIDDEN.iter().chain(&SCRATCH).map(Path::new);
    let own = [host.home.as_path(), &host.state_dir];
    fixed.chain(own).chain(hide.iter().map(PathBuf::as_path)).any(|hidden| path.starts_with(hidden))
}

/// Parents before children: an empty directory on a parent would cover the one on its child. A
/// directory below another that is hidden needs none of its own.
fn covers(frame: &Frame, host: &Host, user: StepUser) -> Vec<SetupOp> {
    let fixed = HIDDEN.map(PathBuf::from);
    let own = [host.home.clone(), host.state_dir.clone()].into_iter().chain(host.homes.get(&user.seen_as().0).cloned());
    let hidden = fixed.into_iter().chain(own).chain(frame.hide.clone());
    let mut wanted: BTreeMap<PathBuf, Cover> =
        hidden.filter(|path| path.parent().is_some()).map(|path| (path, Cover::Hidden)).collect();
    wanted.extend(SCRATCH.map(|path| (PathBuf::from(path), Cover::Scratch)));
    wanted.insert(frame.home.clone(), Cover::Home);

    let mut done: Vec<PathBuf> = Vec::new();
    let mut ops = Vec::new();
    // The order of the map is that of the components: a parent stands before its children.
    for (at, kind) in wanted {
        let nested = done.iter().any(|cover| at.starts_with(cover));
        if nested && kind == Cover::Hidden {
            continue;
        }
        let absent = if nested || kind == Cover::Home { Absent::Make } else { Absent::PassOver };
        done.push(at.clone());
        ops.push(SetupOp::Cover { at, kind, absent });
    }
    ops
}

fn attachments(frame: &Frame, host: &Host) -> Vec<SetupOp> {
    let in_root = |at: PathBuf| SetupOp::Attach { at, inside: Inside::Root };
    let scaffold = frame.caches.iter().map(|cache| cache.at.clone()).collect();
    let mut ops =
        vec![SetupOp::Accounts { home: frame.home.clone() }, SetupOp::RepoPoint { at: frame.repo.clone(), scaffold }];
    ops.extend(frame.tools.iter().map(|tool| in_root(tool.at.clone())));
    ops.extend(resolver(frame, host).map(|path| in_root(path.to_owned())));
    // Last, so that no tool can lie above it.
    ops.extend(frame.git.paths().filter(|git| below(git, &frame.repo).is_none()).map(|git| in_root(git.to_owned())));
    ops
}

/// A step that may use the network finds no name without this file, wherever it lies.
pub(crate) fn resolver<'a>(frame: &Frame, host: &'a Host) -> Option<&'a Path> {
    let path = host.resolver.as_deref()?;
    (frame.network == Network::Allow && path.starts_with("/run")).then_some(path)
}

/// What hides and what appears.
fn beside(frame: &Frame, host: &Host, user: StepUser) -> Vec<SetupOp> {
    // In the mount namespace that the overlay is going to see.
    let mut ops = vec![SetupOp::RefuseSubmounts { repo: frame.tree().to_owned() }];
    ops.extend(clones(frame, host, user));
    ops.extend([
        SetupOp::HoldTree { repo: frame.tree().to_owned(), mapped: user.is_mapped() },
        // Before anything of ours is mounted: what comes later stays as we make it. PID 1 waits for
        // it, at the same words.
        SetupOp::ReadOnlyRoot,
        // Before the covers: it is mounted on a directory that one of them covers.
        SetupOp::Scratch,
    ]);
    let covers = covers(frame, host, user);
    let hidden = covers.iter().filter_map(SetupOp::covered).map(Path::to_owned).chain([frame.repo.clone()]).collect();
    ops.extend(covers);
    ops.push(SetupOp::Dev);
    ops.extend(user.is_mapped().then(|| SetupOp::GitConfig { home: frame.home.clone() }));
    ops.extend(attachments(frame, host));
    let scratch = SCRATCH.into_iter().chain(["/dev/shm"]).map(PathBuf::from);
    let writable = [frame.home.clone()].into_iter().chain(scratch).collect();
    ops.extend([
        // After the last thing of the host's that is shown.
        SetupOp::MaskSockets { hidden },
        // After the last of them is there.
        SetupOp::ScratchSize { bytes: frame.limits.disk },
        // After the last mount point in them is made.
        SetupOp::SealCovers,
        // While PID 1 is still at its network namespace, which takes longest.
        SetupOp::MakeOverlay { repo: frame.repo.clone() },
        SetupOp::AwaitMounted,
        SetupOp::MaskKernelFiles { fresh_sys: frame.network == Network::Deny },
        // From here on in the command's process, at the same time as what follows the sealing.
        SetupOp::NewSession,
        // While `/dev` is the step's.
        SetupOp::CloseFds,
        // After the last of its directories is there.
        SetupOp::DrawWall { writable },
    ]);
    ops
}

fn init(frame: &Frame, user: StepUser) -> Vec<SetupOp> {
    let own_network = frame.network == Network::Deny;
    let mut ops = vec![
        SetupOp::StartInit,
        // First of all: a network namespace takes the kernel as long as most of the rest together.
        SetupOp::OwnNamespaces { network: own_network },
        SetupOp::AwaitKnown,
        // Before its namespace: from inside, no group outside of it can be entered.
        SetupOp::JoinCgroup,
        SetupOp::CgroupNamespace,
        SetupOp::Hostname,
    ];
    ops.extend(own_network.then_some(SetupOp::Loopback));
    ops.extend([
        // Or else what is mounted next would become read-only with it.
        SetupOp::AwaitReadOnlyRoot,
        // Only a member of the new PID namespace can mount the right /proc.
        SetupOp::Proc,
    ]);
    // The kernel lets the owner of a network namespace mount its /sys, and nobody else.
    ops.extend(own_network.then_some(SetupOp::Sys));
    // The helper masks what they show, while the rest of this list is done.
    ops.extend([SetupOp::SayMounted, SetupOp::NewKeyring]);
    // After the last mount: root's mounts stay out of the step's power for good.
    ops.extend(user.steps_down().then_some(SetupOp::StepDown { uid: user.uid(), gid: user.gid() }));
    ops.extend([
        SetupOp::DropCapabilities,
        SetupOp::NoNewPrivs,
        // After the last change of credentials, each of which sets it anew.
        SetupOp::Undumpable,
        // After everything that it refuses.
        SetupOp::SyscallFilter,
        SetupOp::AwaitCommand,
    ]);
    ops
}

/// Refuses arrangements of paths in which the policy could not hold.
pub(crate) fn check(policy: &Policy, host: &Host) -> Result<(), SandboxError> {
    for path in absolute_paths(policy) {
        is_plain(path)?;
    }
    let system = ["/tmp", "/var/tmp", "/root", "/home", "/run", "/dev", "/proc", "/sys", "/etc"].map(Path::new);
    let own = [policy.home.as_path(), &host.home, &host.state_dir];
    for inner in system.into_iter().chain(own).chain(policy.hide.iter().map(PathBuf::as_path)) {
        if inner.starts_with(&policy.repo) {
            return Err(SandboxError::policy(
                format!(
                    "`{}` lies in the repository `{}`, and steps must not see it",
                    inner.display(),
                    policy.repo.display()
                ),
                "choose another state directory, home or repository: none may hold the other",
            ));
        }
    }
    for tool in policy.tools.iter().filter(|tool| tool.kind == ToolKind::ReadOnly) {
        let kept = [host.state_dir.as_path(), &host.home, &policy.repo]
            .into_iter()
            .find(|path| path.starts_with(&tool.source));
        if let Some(kept) = kept {
            return Err(SandboxError::policy(
                format!("the tool directory `{}` would show `{}`", tool.source.display(), kept.display()),
                "name the directories of the tool below it instead",
            ));
        }
    }
    check_inside_repo(policy)
}

fn check_inside_repo(policy: &Policy) -> Result<(), SandboxError> {
    if let Some(tool) = policy.tools.iter().find(|tool| tool.at.starts_with(&policy.repo)) {
        return Err(SandboxError::policy(
            format!("the tool `{}` would appear in the repository", tool.at.display()),
            "what lies in the repository is visible already; take it off the list of tools",
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

fn is_plain(path: &Path) -> Result<(), SandboxError> {
    let plain =
        path.is_absolute() && path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if plain {
        return Ok(());
    }
    Err(SandboxError::policy(
        format!("`{}` is no absolute path without `..`", path.display()),
        "give the path as `realpath` prints it",
    ))
}

impl SetupOp {
    /// In which process it happens.
    pub fn stage(&self) -> Stage {
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
            | Self::AwaitCommand => Stage::Init,
            Self::RefuseSubmounts { .. }
            | Self::CloneDevices
            | Self::Clone { .. }
            | Self::StackCache { .. }
            | Self::HoldTree { .. }
            | Self::ReadOnlyRoot
            | Self::Scratch
            | Self::Cover { .. }
            | Self::Dev
            | Self::GitConfig { .. }
            | Self::Accounts { .. }
            | Self::RepoPoint { .. }
            | Self::Attach { inside: Inside::Root, .. }
            | Self::MaskSockets { .. }
            | Self::ScratchSize { .. }
            | Self::SealCovers
            | Self::AwaitMounted
            | Self::MaskKernelFiles { .. }
            | Self::MakeOverlay { .. } => Stage::Beside,
            Self::NewSession | Self::CloseFds | Self::DrawWall { .. } => Stage::Waiting,
            Self::Overlay { .. } | Self::Attach { inside: Inside::Repo { .. }, .. } | Self::StartCommand => {
                Stage::Claim
            }
            Self::ResourceLimits | Self::Landlock { .. } | Self::AwaitTree | Self::Workdir { .. } | Self::Exec => {
                Stage::Command
            }
            _ => Stage::Outer,
        }
    }

    /// Whether what follows can be done without it.
    pub(crate) fn may_be_left_out(&self) -> bool {
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

    /// What of the host it is about, as it stands there when the operation is carried out.
    pub(crate) fn host_object(&self) -> Option<&Path> {
        match self {
            Self::Clone { source, .. } => Some(source),
            Self::HoldTree { repo: at, .. } | Self::Cover { at, .. } | Self::RepoPoint { at, .. } => Some(at),
            _ => None,
        }
    }

    /// The directory that it covers.
    fn covered(&self) -> Option<&Path> {
        match self {
            Self::Cover { at, .. } => Some(at),
            _ => None,
        }
    }
}

/// As a phrase for people.
impl fmt::Display for SetupOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::JoinSpace { user: true } => write!(f, "join the run's user and mount namespace"),
            Self::JoinSpace { user: false } => write!(f, "join the run's mount namespace"),
            Self::Unshare { user } => {
                write!(f, "new namespaces: {}mount, pid", if *user { "user, " } else { "" })
            }
            Self::MapUser { uid, gid } => write!(f, "map user {uid} and group {gid} to themselves"),
            Self::Hostname => write!(f, "host name `{HOSTNAME}`"),
            Self::MakePrivate => write!(f, "make all mounts private"),
            Self::RefuseSubmounts { repo } => write!(f, "refuse file systems mounted below {}", repo.display()),
            Self::CloneDevices => write!(f, "take {} of /dev", DEVICES.join(", ")),
            Self::Clone { source, at, kind } => write!(f, "take {} for {} ({kind})", source.display(), at.display()),
            Self::StackCache { room, lowers, at } => {
                let count = lowers.len();
                write!(f, "make the overlay of {} for {} over {count} layers", room.display(), at.display())
            }
            Self::HoldTree { repo, mapped } => {
                let mapped = if *mapped { ", root's files as the step's" } else { "" };
                write!(f, "take {} and the place for layers{mapped}", repo.display())
            }
            Self::MakeOverlay { repo } => {
                write!(f, "make the overlay of {}, the layers below and the step's own", repo.display())
            }
            Self::Overlay { repo } => write!(f, "put the overlay at {}", repo.display()),
            Self::HoldProc => write!(f, "hold the host's table of mounts and of Unix sockets"),
            Self::AwaitKnown => write!(f, "wait until the daemon knows of PID 1"),
            Self::AwaitReadOnlyRoot => write!(f, "wait until / is read-only"),
            Self::Scratch => write!(f, "mount one tmpfs for all scratch directories"),
            Self::ScratchSize { bytes: Limit::Max(bytes) } => write!(f, "bound the scratch directories: {bytes} bytes"),
            Self::ScratchSize { bytes: Limit::Unlimited } => write!(f, "leave the scratch directories as they are"),
            Self::Accounts { home } => {
                write!(f, "put a passwd and group of two lines in place, home {}", home.display())
            }
            Self::RepoPoint { at, .. } => write!(f, "make the mount point {}", at.display()),
            Self::MaskSockets { .. } => write!(f, "mask the host's Unix sockets that are still seen"),
            Self::ReadOnlyRoot => write!(f, "make / read-only, nosuid, nodev, with all mounts below it"),
            Self::Cover { at, kind, .. } => write!(f, "{kind} {}", at.display()),
            Self::Dev => write!(f, "mount a minimal /dev with its own pts and shm"),
            Self::GitConfig { home } => write!(f, "write {}/.gitconfig with core.checkStat=minimal", home.display()),
            Self::Attach { at, .. } => write!(f, "mount what was taken at {}", at.display()),
            Self::SealCovers => write!(f, "make the hiding directories read-only"),
            Self::StartInit => write!(f, "start PID 1"),
            Self::JoinCgroup => write!(f, "enter the control group of this attempt"),
            Self::OwnNamespaces { network } => {
                write!(f, "new namespaces: ipc, uts{}", if *network { ", net" } else { "" })
            }
            Self::CgroupNamespace => write!(f, "see no control group above it"),
            Self::Proc => write!(f, "mount a fresh /proc"),
            Self::Sys => write!(f, "mount a fresh /sys, read-only"),
            Self::Loopback => write!(f, "set the loopback device up"),
            Self::SayMounted => write!(f, "say that /proc and /sys are mounted"),
            Self::AwaitMounted => write!(f, "wait until /proc and /sys are mounted"),
            Self::MaskKernelFiles { .. } => write!(f, "mask what /proc and /sys show of the host"),
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
            Self::DrawWall { .. } => write!(f, "draw a second wall around what may be written"),
            Self::Landlock { repo } => write!(f, "draw it around {} too, and build it", repo.display()),
            Self::CloseFds => write!(f, "close every descriptor but the standard three"),
            Self::AwaitTree => write!(f, "wait until the tree is in place"),
            Self::Workdir { path } => write!(f, "change to {}", path.display()),
            Self::Exec => write!(f, "execute the command"),
        }
    }
}

impl fmt::Display for CloneKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Git { mapped: false } => "git, read-only",
            Self::Git { mapped: true } => "git, read-only, root's files as the step's",
            Self::Tool { .. } => "tool, read-only",
            Self::Cache => "cache, writable",
            Self::Mask { .. } => "masked",
        })
    }
}

impl fmt::Display for Cover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hidden => "hide",
            Self::Scratch => "private scratch directory",
            Self::Home => "empty home directory",
        })
    }
}

/// Every `/etc/hosts` knows it.
pub(crate) const HOSTNAME: &str = "localhost";
/// The devices that a step finds in `/dev`, besides its own terminals.
pub(crate) const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

#[cfg(test)]
mod tests;

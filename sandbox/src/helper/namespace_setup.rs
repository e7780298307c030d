//! Implements the set-up operations of the helper itself: it enters namespaces, clones parts of the host, makes the
//! overlay, and hides and mounts directories.

mod cache_mounts;
mod clone_mounts;
mod copy_fallback;
mod device_dir;
mod early_mount;
mod host_proc;
mod namespaces;
mod package_stores;
mod scratch_dirs;
mod shown_paths;
mod step_files;
mod tree_overlay;
mod view_mount;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use proctor_core::model::enforcement::{Control, Enforcement};
use rustix::fs::StatVfsMountFlags;

use super::mounts::{self, FileOwner, NODEV, NOSUID, RDONLY};
use super::scratch_fingerprint::ScratchFingerprint;
use super::setup_failure::{SetupFailure, internal, refuse, refused};
use super::tree_copy::TrackedCopy;
use crate::helper::init_state::tolerate;
use crate::setup::{SetupOp, SetupStage};
use crate::sys;
use crate::wire::{self, ClaimRequest, LayerIds, SandboxRequest};

pub(super) use self::view_mount::SandboxView;

type HelperOpResult = Result<(), SetupFailure>;

/// The cloned mounts that are not attached yet, and the controls enforced so far.
pub(super) struct NamespaceSetup<'a> {
    request: &'a SandboxRequest,
    /// The mount namespace that holds the layers.
    mount_ns: OwnedFd,
    /// The user namespace that owns the mount namespace, or (root) the one that maps owners.
    users: OwnedFd,
    /// The user namespace that maps the owner of root's caches to the step's user; `None` if both are the same.
    cache_owners: Option<OwnedFd>,
    /// The host's tables of mounts and Unix sockets, and `/proc/self/fd`. PID 1 will mount another /proc over the
    /// current one, which does not show this process.
    host_proc: Option<HostProcFiles>,
    devices: Vec<(&'static str, OwnedFd)>,
    clones: BTreeMap<PathBuf, OwnedFd>,
    /// The sources of the read-only clones, by the paths at which they will appear.
    clone_sources: BTreeMap<PathBuf, CloneSource>,
    /// The mounts of the host that are attached outside of the repository so far, with their paths.
    shown_mounts: Vec<(PathBuf, OwnedFd)>,
    /// The paths of package stores.
    stores: BTreeSet<PathBuf>,
    /// The package stores with a layer for writes.
    writable_stores: Vec<PathBuf>,
    /// The package stores that stay read-only, with the reason.
    read_only_stores: Vec<(PathBuf, String)>,
    overlay_sources: Option<OverlaySources>,
    /// Why the repository's owners could not be mapped.
    unmapped: Option<OwnersNotMapped>,
    scratch: Option<OwnedFd>,
    /// The mount point of the repository.
    repo_point: Option<OwnedFd>,
    /// The empty directories that become read-only at the end, with their paths.
    hidden: Vec<(PathBuf, OwnedFd)>,
    /// Scratch directories.
    scratch_dirs: Vec<String>,
    /// The overlay for the expected layers.
    detached_overlay: Option<DetachedOverlay>,
    /// The overlay for the expected layers, if it is mounted already.
    early_tree: Option<EarlyTree>,
    /// The fingerprint of the directories that a command may write, taken before the first command.
    fingerprint: Option<ScratchFingerprint>,
    enforcement: Enforcement,
    view: SandboxView,
}

/// A file or directory of the host that is shown read-only.
struct CloneSource {
    host_path: PathBuf,
    /// `true` if root's files appear as the step's.
    mapped: bool,
}

/// The namespaces that belong to a run, as descriptors.
pub(super) struct RunNamespaces {
    /// The mount namespace that holds the layers.
    pub(super) mount_ns: OwnedFd,
    /// The user namespace that owns the mount namespace, or (root) the one that maps the owners of root's repository.
    pub(super) users: OwnedFd,
    /// The user namespace that maps the owner of root's caches, if the run has its own user id.
    pub(super) cache_owners: Option<OwnedFd>,
}

/// The reason why the owners of a directory could not be mapped.
struct OwnersNotMapped {
    message: String,
    hint: String,
}

/// A detached overlay.
struct DetachedOverlay {
    mount: OwnedFd,
    layers: LayerIds,
    /// The size of the tmpfs of all layers, in bytes.
    layers_bytes: u64,
}

/// An overlay that is mounted, with its caches and git directories, before the command is known.
struct EarlyTree {
    made: DetachedOverlay,
    /// The mounts inside the overlay.
    attached: Vec<(PathBuf, OwnedFd)>,
    /// The message about the tree that was sent to the command's process.
    message: Option<wire::MountedTree>,
}

/// The files of the host's /proc that are still needed.
struct HostProcFiles {
    mounts: fs::File,
    sockets: fs::File,
    descriptors: OwnedFd,
}

/// The parts of the overlay to be made.
struct OverlaySources {
    /// The run space.
    space: OwnedFd,
    /// The repository, or its mapped clone, which is not attached yet.
    repo: OwnedFd,
    /// A directory with the mount points that the repository may lack.
    scaffold: Option<OwnedFd>,
}

/// The helper's work for one command.
pub(super) struct ClaimResult {
    /// The message for the command's process.
    pub(super) tree: wire::MountedTree,
    /// `true` if the command's process has not received that message yet.
    pub(super) is_unsent: bool,
    /// The copy that replaces an overlay.
    pub(super) copied: Option<TrackedCopy>,
}

/// PID 1 and the command's process, which prepare themselves concurrently with the helper.
pub(super) trait SetupPeers {
    /// Lets PID 1 continue with its mounts.
    fn notify_root_read_only(&self);
    /// Lets the command's process continue with operations that need the directories of the sandbox.
    fn notify_directories_ready(&self);
    /// Waits until PID 1 has mounted `/proc` and `/sys`.
    fn wait_until_mounted(&mut self) -> io::Result<SetupProgress>;
}

/// How far concurrent work has progressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SetupProgress {
    /// All work is done.
    Complete,
    /// PID 1 has sent its final report, or has ended.
    InitEnded,
}

impl<'a> NamespaceSetup<'a> {
    pub(super) fn new(request: &'a SandboxRequest, joined: RunNamespaces, view: SandboxView) -> Self {
        let RunNamespaces { mount_ns, users, cache_owners } = joined;
        Self {
            request,
            mount_ns,
            users,
            cache_owners,
            host_proc: None,
            devices: Vec::new(),
            clones: BTreeMap::new(),
            clone_sources: BTreeMap::new(),
            shown_mounts: Vec::new(),
            stores: BTreeSet::new(),
            writable_stores: Vec::new(),
            read_only_stores: Vec::new(),
            overlay_sources: None,
            unmapped: None,
            scratch: None,
            repo_point: None,
            hidden: Vec::new(),
            scratch_dirs: Vec::new(),
            detached_overlay: None,
            early_tree: None,
            fingerprint: None,
            enforcement: Enforcement::default(),
            view,
        }
    }

    /// Returns the controls enforced so far.
    pub(super) fn enforcement(&mut self) -> Enforcement {
        std::mem::take(&mut self.enforcement)
    }

    /// Continues after a failed operation if it may be left out and its control may be missing.
    pub(super) fn tolerate(&mut self, op: &SetupOp, done: HelperOpResult) -> HelperOpResult {
        tolerate(&mut self.enforcement, self.request, op, done)
    }

    /// Hides and shows directories, concurrently with PID 1 and the command's process, and notifies them of its
    /// progress. Stops if PID 1 has sent its final report.
    pub(super) fn run_concurrent_ops(&mut self, init: &mut impl SetupPeers) -> Result<SetupProgress, SetupFailure> {
        for op in self.request.ops.iter().filter(|op| op.stage() == SetupStage::HelperConcurrent) {
            if matches!(op, SetupOp::AwaitMounted) {
                match init.wait_until_mounted().map_err(internal("wait for PID 1"))? {
                    SetupProgress::Complete => continue,
                    SetupProgress::InitEnded => return Ok(SetupProgress::InitEnded),
                }
            }
            let done = self.apply(op);
            self.tolerate(op, done)?;
            match op {
                SetupOp::ReadOnlyRoot => init.notify_root_read_only(),
                SetupOp::SealCovers => init.notify_directories_ready(),
                _ => {}
            }
        }
        if self.request.serves_on && self.early_tree.is_some() {
            let scratch = self.scratch_dirs.iter().map(Path::new).chain([Path::new(PTS_DIR)]);
            // If the directories cannot be fingerprinted, the sandbox serves one command only.
            let trees = self.writable_stores.iter().map(PathBuf::as_path).chain([self.request.frame.repo.as_path()]);
            let space = self.scratch_dirs.first().filter(|_| !self.writable_stores.is_empty()).map(Path::new);
            self.fingerprint = ScratchFingerprint::capture(scratch, trees, space).ok();
        }
        Ok(SetupProgress::Complete)
    }

    /// Returns the fingerprint that shows whether a command left anything behind; `None` if the sandbox serves one
    /// command only.
    pub(super) fn take_fingerprint(&mut self) -> Option<ScratchFingerprint> {
        self.fingerprint.take()
    }

    /// Executes the operations that need to know the command.
    pub(super) fn run_claim_ops(&mut self, claim: &ClaimRequest) -> Result<ClaimResult, SetupFailure> {
        if let Some(tree) = self.early_tree_for(&claim.layers)? {
            return Ok(ClaimResult { tree, is_unsent: false, copied: None });
        }
        let (mut layers_bytes, mut copied) = (0, None);
        for op in claim.ops.iter().filter(|op| op.stage() == SetupStage::Claim) {
            match op {
                SetupOp::Overlay { repo } => (layers_bytes, copied) = self.overlay_or_copy(repo, claim)?,
                SetupOp::Attach { at, inside } => self.attach(at, inside)?,
                // Marks a position in the list; PID 1 executes it.
                SetupOp::StartCommand => {}
                other => return Err(SetupFailure::internal(format_args!("`{other}` needs no command"))),
            }
        }
        let tree = wire::MountedTree { layers: claim.layers.clone(), enforcement: self.enforcement(), layers_bytes };
        Ok(ClaimResult { tree, is_unsent: true, copied })
    }

    pub(super) fn apply(&mut self, op: &SetupOp) -> HelperOpResult {
        match op {
            SetupOp::JoinSpace { user } => self.join_space(*user),
            SetupOp::Unshare { user } => self.unshare(*user),
            SetupOp::MapUser { uid, gid } => self.map_user(*uid, *gid),
            SetupOp::MakePrivate => self.make_private(),
            SetupOp::HoldProc => self.open_host_proc(),
            SetupOp::RefuseSubmounts { repo } => self.refuse_submounts(repo),
            SetupOp::CloneDevices => self.clone_devices(),
            SetupOp::Clone { source, at, kind } => self.clone_source(source, at, *kind),
            SetupOp::StackCache { room, lowers, at } => self.mount_cache_overlay(room, lowers, at),
            SetupOp::HoldTree { repo, mapped } => self.open_overlay_sources(repo, *mapped),
            SetupOp::MountView => self.mount_view(),
            SetupOp::LeaveHost => self.leave_host(),
            SetupOp::ReadOnlyRoot => self.read_only_root(),
            SetupOp::Scratch => self.make_scratch(),
            SetupOp::Accounts { home } => self.mount_accounts(home),
            SetupOp::Cover { at, kind, absent } => self.cover(at, *kind, *absent),
            SetupOp::Dev => self.mount_dev(),
            SetupOp::GitConfig { home } => self.write_git_config(home),
            SetupOp::RepoPoint { at, scaffold } => self.make_repo_point(at, scaffold),
            SetupOp::Attach { at, inside } => self.attach(at, inside),
            SetupOp::MaskSockets { hidden } => self.mask_sockets(hidden),
            SetupOp::ScratchSize { bytes } => self.limit_scratch(*bytes),
            SetupOp::SealCovers => self.seal_covers(),
            SetupOp::MakeOverlay { repo } => {
                self.make_overlay_early(repo);
                self.mount_tree_early()
            }
            SetupOp::MaskKernelFiles { fresh_sys } => self.mask_kernel_files(*fresh_sys),
            // Mark positions in the list: the server of the view is forked before the first operation of this stage,
            // and PID 1 after the last one.
            SetupOp::StartView | SetupOp::StartInit => Ok(()),
            other => Err(SetupFailure::internal(format_args!("`{other}` is not an operation of the helper"))),
        }
    }

    fn read_only_root(&mut self) -> HelperOpResult {
        let control = Control::ReadOnlyRoot;
        let root = mounts::open_root().map_err(refuse(control, "open /"))?;
        mounts::set_attributes(root.as_fd(), RDONLY | NOSUID | NODEV).map_err(refuse(control, "make / read-only"))?;
        let state = rustix::fs::fstatvfs(&root).map_err(refuse(control, "examine /"))?;
        if !state.f_flag.contains(StatVfsMountFlags::RDONLY) {
            return Err(refused(control, "/ stays writable", "report this with the kernel's version"));
        }
        // The kernel refuses an overlay over a read-only upper directory. The step never sees this mount.
        sys::make_writable(self.overlay_sources()?.space.as_fd())
            .map_err(refuse(Control::Layer, "keep the layers writable"))?;
        self.enforcement.record_enforced(control, "mount_setattr, recursive: read-only, nosuid, nodev");
        Ok(())
    }

    fn step_owner(&self) -> FileOwner {
        FileOwner { uid: self.request.user.uid(), gid: self.request.user.gid() }
    }

    /// Returns the step's user if it differs from the helper's.
    fn step_owner_if_root(&self) -> Option<FileOwner> {
        self.request.user.is_set_up_by_root().then(|| self.step_owner())
    }

    /// Returns the owner of a directory created in the step's home, which is the step's user.
    fn home_owner(&self, path: &Path) -> Option<FileOwner> {
        self.step_owner_if_root().filter(|_| path.starts_with(&self.request.frame.home))
    }
}

/// The directory of the step's terminals.
const PTS_DIR: &str = "/dev/pts";

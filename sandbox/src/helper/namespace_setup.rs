//! Implements the set-up operations of the helper itself: it enters namespaces, clones parts of the host, makes the
//! overlay, and hides and mounts directories.

mod cache_mounts;
mod copy_fallback;
mod early_mount;
mod shown_paths;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use nix::sched::CloneFlags;
use proctor_core::model::enforcement::{Control, Enforcement};
use proctor_core::model::plan::{Limit, RelPath};
use rustix::fs::{Gid, Mode, StatVfsMountFlags, Uid};
use rustix::mount::MountAttrFlags;

use super::masks::{self, HostSockets, SysView};
use super::mounts::{self, FileOwner, MountOption, MountPointKind, NODEV, NOSUID, RDONLY, TmpfsSize};
use super::overlay::create_overlay;
use super::run_space_setup::map_own_ids;
use super::scratch_fingerprint::ScratchFingerprint;
use super::setup_failure::{SetupFailure, internal, refuse, refused};
use super::tree_copy::TrackedCopy;
use crate::helper::init_state::tolerate;
use crate::run_space::{UPPER, WORK};
use crate::setup::{AbsentAction, CloneKind, CoverKind, DEVICES, MountPointParent, SetupOp, SetupStage};
use crate::sys::{self, MountScope};
use crate::wire::{self, ClaimRequest, LayerIds, SandboxRequest};

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
    /// The mounts of the host that are attached outside of the repository so far, with their paths.
    shown_mounts: Vec<(PathBuf, OwnedFd)>,
    overlay_sources: Option<OverlaySources>,
    /// The reason why the repository's owners could not be mapped, with a hint.
    unmapped: Option<(String, String)>,
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
    pub(super) fn new(request: &'a SandboxRequest, joined: RunNamespaces) -> Self {
        let RunNamespaces { mount_ns, users, cache_owners } = joined;
        Self {
            request,
            mount_ns,
            users,
            cache_owners,
            host_proc: None,
            devices: Vec::new(),
            clones: BTreeMap::new(),
            shown_mounts: Vec::new(),
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
            self.fingerprint = ScratchFingerprint::capture(scratch, &self.request.frame.repo).ok();
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
            // Marks a position in the list; the fork follows the last operation of this stage.
            SetupOp::StartInit => Ok(()),
            other => Err(SetupFailure::internal(format_args!("`{other}` is not an operation of the helper"))),
        }
    }

    /// Joins the user namespace first: it owns the mount namespace, and the other order fails with EPERM.
    fn join_space(&mut self, user: bool) -> HelperOpResult {
        let join = |fd: &OwnedFd, kind| nix::sched::setns(fd, kind);
        if user {
            join(&self.users, CloneFlags::CLONE_NEWUSER)
                .map_err(refuse(Control::UserNamespace, "join the run's user namespace"))?;
        }
        join(&self.mount_ns, CloneFlags::CLONE_NEWNS)
            .map_err(refuse(Control::MountNamespace, "join the run's mount namespace"))
    }

    fn unshare(&mut self, user: bool) -> HelperOpResult {
        let mut flags = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID;
        flags.set(CloneFlags::CLONE_NEWUSER, user);
        let control = if user { Control::UserNamespace } else { Control::MountNamespace };
        nix::sched::unshare(flags).map_err(refuse(control, "leave the host's namespaces"))
    }

    fn map_user(&mut self, uid: u32, gid: u32) -> HelperOpResult {
        map_own_ids(uid, gid).map_err(refuse(Control::UserNamespace, "map the caller's user and group"))?;
        self.enforcement
            .record_enforced(Control::UserNamespace, format!("user {uid} and group {gid} alone are mapped"));
        Ok(())
    }

    fn make_private(&mut self) -> HelperOpResult {
        mounts::make_all_private().map_err(refuse(Control::MountNamespace, "make all mounts private"))?;
        self.enforcement.record_enforced(Control::MountNamespace, "unshare, all mounts private");
        Ok(())
    }

    fn clone_devices(&mut self) -> HelperOpResult {
        for name in DEVICES {
            let path = Path::new("/dev").join(name);
            let device = mounts::clone_device(&path)
                .map_err(refuse(Control::PrivateDev, format_args!("take {}", path.display())))?;
            self.devices.push((name, device));
        }
        Ok(())
    }

    /// Masks the host's Unix sockets. From another network namespace, the host's services are reachable through
    /// sockets with a path, and a read-only mount does not prevent a connection.
    fn mask_sockets(&mut self, hidden: &[PathBuf]) -> HelperOpResult {
        let control = Control::HiddenPaths;
        let table = &self.host_proc()?.sockets;
        let bound = masks::bound_sockets(table).map_err(refuse(control, "list the host's Unix sockets"))?;
        let skip: Vec<&Path> = hidden.iter().map(PathBuf::as_path).collect();
        let tools = &self.request.frame.tools;
        let shown: Vec<_> = tools.iter().map(|tool| (tool.source.as_path(), tool.at.as_path())).collect();
        let sockets = HostSockets { bound: &bound, skip: &skip, shown: &shown };
        masks::mask_sockets(&sockets, || self.closed_file())
            .map_err(refuse(control, "mask the host's Unix sockets"))
            .map(drop)
    }

    fn mask_kernel_files(&mut self, fresh_sys: bool) -> HelperOpResult {
        let control = Control::KernelFiles;
        masks::mask_proc().map_err(refuse(control, "mask host details in /proc"))?;
        let view = if fresh_sys { SysView::Fresh } else { SysView::Host };
        masks::mask_sys(view).map_err(refuse(control, "mask host details in /sys"))?;
        self.enforcement.record_enforced(control, "read-only /proc/sys; empty mounts over details of the host");
        Ok(())
    }

    /// Returns a mount of a file that no unprivileged user can open.
    fn closed_file(&self) -> io::Result<OwnedFd> {
        const NAME: &str = "closed";
        let scratch = self.scratch()?.as_fd();
        match mounts::make_file(scratch, NAME.as_ref()) {
            Ok(file) => rustix::fs::fchmod(&file, Mode::empty())?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        let file = mounts::clone_beneath(scratch, NAME)?;
        // Without this change, the owner of the file, who may be the step, could change the mode.
        mounts::set_attributes(file.as_fd(), RDONLY | NOSUID | NODEV)?;
        Ok(file)
    }

    fn open_host_proc(&mut self) -> HelperOpResult {
        let hold = || {
            Ok::<_, io::Error>(HostProcFiles {
                mounts: fs::File::open("/proc/self/mountinfo")?,
                sockets: fs::File::open("/proc/net/unix")?,
                descriptors: mounts::open_dir(Path::new("/proc/self/fd"))?,
            })
        };
        self.host_proc = Some(hold().map_err(internal("open the required files of /proc"))?);
        Ok(())
    }

    /// Refuses a repository with mounts below it. An overlay clones its lower mount without the mounts below, so
    /// a step would see other files than the user does.
    fn refuse_submounts(&self, repo: &Path) -> HelperOpResult {
        let control = Control::Layer;
        let mut table = Vec::with_capacity(USUAL_TABLE_SIZE);
        let mut file = &self.host_proc()?.mounts;
        file.read_to_end(&mut table).map_err(refuse(control, "read the table of mounts"))?;
        refuse_mounts_below(repo, &table)
    }

    fn host_proc(&self) -> Result<&HostProcFiles, SetupFailure> {
        self.host_proc.as_ref().ok_or_else(|| SetupFailure::internal("no files of /proc were opened"))
    }

    /// Mounts a passwd and a group file. Tools that look up their own user fail without an entry.
    fn mount_accounts(&mut self, home: &Path) -> HelperOpResult {
        let (uid, gid) = self.request.user.ids_in_sandbox();
        let user = format!("step:x:{uid}:{gid}:step:");
        let nobody = "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n";
        let passwd = [user.as_bytes(), home.as_os_str().as_bytes(), b":/bin/sh\n", nobody.as_bytes()].concat();
        let group = format!("step:x:{gid}:\nnogroup:x:65534:\n");
        self.mount_account_file("passwd", &passwd)?;
        self.mount_account_file("group", group.as_bytes())
    }

    fn mount_account_file(&self, name: &str, content: &[u8]) -> HelperOpResult {
        let at = Path::new("/etc").join(name);
        // No mount point can be created there, and without the file no program expects an entry.
        if !at.exists() {
            return Ok(());
        }
        let put = || {
            let dir = self.scratch_dir("etc", 0o755, None)?;
            mounts::make_file(dir.as_fd(), name.as_ref())?.write_all(content)?;
            let file = mounts::clone_beneath(dir.as_fd(), name)?;
            mounts::set_attributes(file.as_fd(), RDONLY | NOSUID | NODEV)?;
            mounts::attach(file.as_fd(), mounts::open_mount_point(&at)?.as_fd())
        };
        put().map_err(internal(format_args!("put the step's {} in place", at.display())))
    }

    fn clone_source(&mut self, source: &Path, at: &Path, kind: CloneKind) -> HelperOpResult {
        let clone = match kind {
            CloneKind::Git { mapped } => Some(self.clone_git(source, mapped)?),
            CloneKind::Tool { rights } => self.clone_tool(source, rights)?,
            CloneKind::Cache => Some(self.clone_cache(source)?),
            CloneKind::Mask { rights } => self.clone_mask(source, rights)?,
        };
        self.clones.extend(clone.map(|clone| (at.to_owned(), clone)));
        Ok(())
    }

    fn clone_git(&mut self, source: &Path, mapped: bool) -> Result<OwnedFd, SetupFailure> {
        let control = Control::GitReadOnly;
        let clone = mounts::clone_mount(source).map_err(|error| match error.raw_os_error() {
            Some(libc::ELOOP) => refused(
                control,
                format!(
                    "`{}` is a symbolic link or is reached through one, and its target would be writable",
                    source.display()
                ),
                "use a `.git` file with `gitdir: …` instead (`git init --separate-git-dir`, then `git config core.worktree <repository>`)",
            ),
            _ => refuse(control, format_args!("take {}", source.display()))(error),
        })?;
        // This comes before the flags are set: only a new clone can be mapped.
        if mapped {
            self.map_or_copy(&clone, source)?;
        }
        mounts::set_attributes(clone.as_fd(), RDONLY | NOSUID | NODEV)
            .map_err(refuse(control, format_args!("make {} read-only", source.display())))?;
        Ok(clone)
    }

    fn map_owners(&self, clone: &OwnedFd, source: &Path) -> HelperOpResult {
        mounts::map_owners(clone.as_fd(), self.users.as_fd()).map_err(|error| {
            let what = format_args!("mount {} with mapped owners (idmapped mount)", source.display());
            match refuse(Control::UserNamespace, what)(error) {
                SetupFailure::Refused { control, message, .. } => refused(
                    control,
                    message,
                    "a step never runs as root: give the repository to an ordinary user (`chown -R`), or keep it on a \
                     file system that can map owners (ext4, xfs, btrfs, tmpfs)",
                ),
                other => other,
            }
        })
    }

    /// Opens the repository and the run space. Their paths will be covered, and the owner of a directory above the
    /// repository may replace it, so later operations use these descriptors.
    fn open_overlay_sources(&mut self, repo: &Path, mapped: bool) -> HelperOpResult {
        let what = format_args!("open the repository {}", repo.display());
        let space = mounts::open_dir(&self.request.space).map_err(refuse(Control::Layer, "open the run space"))?;
        let repo_fd = if mapped {
            let clone = mounts::clone_mount(repo).map_err(refuse(Control::Layer, what))?;
            self.map_or_copy(&clone, repo)?;
            clone
        } else {
            mounts::open_no_symlinks(repo).map_err(refuse(Control::Layer, what))?
        };
        self.overlay_sources = Some(OverlaySources { space, repo: repo_fd, scaffold: None });
        Ok(())
    }

    fn overlay_sources(&self) -> Result<&OverlaySources, SetupFailure> {
        self.overlay_sources.as_ref().ok_or_else(|| SetupFailure::internal("the repository was not opened"))
    }

    fn read_only_root(&mut self) -> HelperOpResult {
        let control = Control::ReadOnlyRoot;
        let root = mounts::open_root().map_err(refuse(control, "open /"))?;
        mounts::set_attributes(root.as_fd(), RDONLY | NOSUID | NODEV).map_err(refuse(control, "make / read-only"))?;
        let state = rustix::fs::fstatvfs(&root).map_err(refuse(control, "look at /"))?;
        if !state.f_flag.contains(StatVfsMountFlags::RDONLY) {
            return Err(refused(control, "/ stays writable", "report this with the kernel's version"));
        }
        // The kernel refuses an overlay over a read-only upper directory. The step never sees this mount.
        sys::make_writable(self.overlay_sources()?.space.as_fd())
            .map_err(refuse(Control::Layer, "keep the layers writable"))?;
        self.enforcement.record_enforced(control, "mount_setattr, recursive: read-only, nosuid, nodev");
        Ok(())
    }

    /// Mounts the scratch tmpfs over the run space's path. The step never sees it there, since the state directory is
    /// hidden. It must be in the mount namespace, since kernels before 6.15 accept no detached mount as a layer.
    fn make_scratch(&mut self) -> HelperOpResult {
        let control = Control::PrivateTmp;
        let make = || {
            let scratch = mounts::tmpfs(0o755, TmpfsSize::KernelDefault)?;
            mounts::attach_at(scratch.as_fd(), &self.request.space)?;
            Ok::<_, io::Error>(scratch)
        };
        self.scratch = Some(make().map_err(refuse(control, "mount a tmpfs for scratch directories"))?);
        self.attach_mapped_repo()
    }

    /// Attaches a mapped repository in the mount namespace.
    fn attach_mapped_repo(&mut self) -> HelperOpResult {
        if !self.request.user.is_mapped() {
            return Ok(());
        }
        let stage = |clone: &OwnedFd| {
            let point = self.scratch_dir("repo", 0o755, None)?;
            mounts::attach(clone.as_fd(), point.as_fd())?;
            // Opened again: the descriptor above names the directory below the mount.
            mounts::open_beneath(self.scratch()?.as_fd(), Path::new("repo"))
        };
        let staged =
            stage(&self.overlay_sources()?.repo).map_err(refuse(Control::Layer, "mount the mapped repository"))?;
        if let Some(tree) = &mut self.overlay_sources {
            tree.repo = staged;
        }
        Ok(())
    }

    fn scratch(&self) -> io::Result<&OwnedFd> {
        self.scratch.as_ref().ok_or_else(|| io::Error::other("there is no tmpfs for scratch directories"))
    }

    /// Returns a directory of the scratch tmpfs, which it creates if necessary. An existing directory keeps its mode
    /// and owner.
    fn scratch_dir(&self, name: &str, mode: u32, owner: Option<FileOwner>) -> io::Result<OwnedFd> {
        mounts::create_dir_in(self.scratch()?.as_fd(), name, mode, owner)
    }

    fn cover(&mut self, at: &Path, kind: CoverKind, absent: AbsentAction) -> HelperOpResult {
        let control = if kind == CoverKind::Hidden { Control::HiddenPaths } else { Control::PrivateTmp };
        let what = format_args!("cover {} with an empty directory", at.display());
        let target = match absent {
            AbsentAction::Make => {
                mounts::ensure_mount_point(at, MountPointKind::Directory, |path| self.home_owner(path))
            }
            AbsentAction::PassOver => mounts::open_dir(at),
        };
        let target = match target {
            Err(error) if absent == AbsentAction::PassOver && error.raw_os_error() == Some(libc::ENOENT) => {
                return Ok(());
            }
            other => other.map_err(refuse(control, what))?,
        };
        let mount = self.empty_dir(kind, target.as_fd()).map_err(refuse(control, what))?;
        match kind {
            CoverKind::Hidden => self.hidden.push((at.to_owned(), mount)),
            CoverKind::Scratch | CoverKind::Home => self.scratch_dirs.push(at.display().to_string()),
        }
        Ok(())
    }

    fn empty_dir(&self, kind: CoverKind, target: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        let name = format!("cover{}", self.hidden.len() + self.scratch_dirs.len());
        drop(match kind {
            CoverKind::Hidden => self.scratch_dir(&name, 0o755, None)?,
            CoverKind::Scratch => self.scratch_dir(&name, 0o1777, None)?,
            CoverKind::Home => self.scratch_dir(&name, 0o700, Some(self.step_owner()))?,
        });
        let mount = mounts::clone_beneath(self.scratch()?.as_fd(), &name)?;
        mounts::attach(mount.as_fd(), target)?;
        Ok(mount)
    }

    fn mount_dev(&mut self) -> HelperOpResult {
        let devices = std::mem::take(&mut self.devices);
        let make = || {
            drop(self.scratch_dir("dev", 0o755, None)?);
            drop(self.scratch_dir("shm", 0o1777, None)?);
            let scratch = self.scratch()?.as_fd();
            make_dev(&mounts::clone_beneath(scratch, "dev")?, &mounts::clone_beneath(scratch, "shm")?, &devices)
                .and_then(|()| mounts::open_dir(Path::new("/dev")))
        };
        let mount = make().map_err(refuse(Control::PrivateDev, "mount a minimal /dev"))?;
        self.hidden.push(("/dev".into(), mount));
        self.scratch_dirs.push("/dev/shm".to_owned());
        self.enforcement.record_enforced(Control::PrivateDev, "six devices, a private devpts and shm");
        Ok(())
    }

    fn make_repo_point(&mut self, at: &Path, scaffold: &[RelPath]) -> HelperOpResult {
        let what = format_args!("make the mount point {}", at.display());
        self.repo_point = Some(self.mount_point(at, MountPointKind::Directory).map_err(refuse(Control::Layer, what))?);
        if scaffold.is_empty() {
            return Ok(());
        }
        let made = self.scaffold(scaffold).map_err(refuse(Control::Layer, "create mount points for caches"))?;
        if let Some(tree) = &mut self.overlay_sources {
            tree.scaffold = Some(made);
        }
        Ok(())
    }

    fn scaffold(&self, paths: &[RelPath]) -> io::Result<OwnedFd> {
        let dir = self.scratch_dir("scaffold", 0o755, self.step_owner_if_root())?;
        for path in paths {
            mounts::ensure_dir_beneath(dir.as_fd(), Path::new(path.as_str()), self.step_owner_if_root())?;
        }
        Ok(dir)
    }

    fn limit_scratch(&mut self, bytes: Limit) -> HelperOpResult {
        let control = Control::PrivateTmp;
        let scratch = self.scratch().map_err(internal("bound the scratch directories"))?;
        let size = match bytes {
            Limit::Max(bytes) => {
                mounts::resize(scratch.as_fd(), TmpfsSize::Bytes(bytes))
                    .map_err(refuse(control, "bound the scratch directories"))?;
                format!("of {bytes} bytes")
            }
            Limit::Unlimited => "of the kernel's default size".to_owned(),
        };
        self.enforcement.record_enforced(control, format!("one tmpfs {size} for {}", self.scratch_dirs.join(", ")));
        Ok(())
    }

    /// Makes the overlay for the expected layers. If that fails, the overlay is made or refused when the command
    /// arrives.
    fn make_overlay_early(&mut self, repo: &Path) {
        if self.unmapped.is_none() {
            self.detached_overlay = self.make_overlay(repo, &self.request.layers).ok();
        }
    }

    fn make_overlay(&self, repo: &Path, wanted: &LayerIds) -> Result<DetachedOverlay, SetupFailure> {
        let control = Control::Layer;
        let upper = self.open_layer(wanted.upper, UPPER).map_err(refuse(control, "open the layer"))?;
        let work = self.open_layer(wanted.upper, WORK).map_err(refuse(control, "open the layer's work directory"))?;
        let lowers = self.open_lowers(&wanted.lowers).map_err(refuse(control, "open an earlier layer"))?;
        let mut layers: Vec<BorrowedFd<'_>> = lowers.iter().map(AsFd::as_fd).collect();
        let tree = self.overlay_sources()?;
        layers.push(tree.repo.as_fd());
        layers.extend(tree.scaffold.as_ref().map(AsFd::as_fd));
        let overlay = create_overlay(&self.host_proc()?.descriptors, &layers, &upper, &work)
            .map_err(refuse(control, format_args!("make an overlay over {}", repo.display())))?;
        // Overlayfs silently becomes read-only if it cannot use its work directory.
        let state = rustix::fs::fstatvfs(&overlay).map_err(refuse(control, "look at the overlay"))?;
        if state.f_flag.contains(StatVfsMountFlags::RDONLY) {
            return Err(refused(
                control,
                "the kernel made the overlay read-only",
                "the kernel's log (`dmesg`) has the reason; keep the state directory on a disk of this machine",
            ));
        }
        let room = rustix::fs::fstatvfs(&upper).map_err(refuse(control, "look at the layer"))?;
        let room = room.f_blocks.saturating_mul(room.f_frsize);
        Ok(DetachedOverlay { mount: overlay, layers: wanted.clone(), layers_bytes: room })
    }

    /// Mounts the overlay, and returns the size of the tmpfs of all layers, in bytes.
    fn mount_overlay(&mut self, repo: &Path, claim: &ClaimRequest) -> Result<u64, SetupFailure> {
        let control = Control::Layer;
        // Drops an overlay for other layers first: it may have the same upper directory, which only one overlay may
        // use.
        let made = match self.detached_overlay.take().filter(|made| made.layers == claim.layers) {
            Some(made) => made,
            None => self.make_overlay(repo, &claim.layers)?,
        };
        let point = self.repo_point.take().ok_or_else(|| SetupFailure::internal("there is no mount point"))?;
        mounts::attach(made.mount.as_fd(), point.as_fd())
            .map_err(refuse(control, format_args!("mount the overlay at {}", repo.display())))?;
        self.repo_point = Some(made.mount);
        self.record_overlay();
        Ok(made.layers_bytes)
    }

    fn record_overlay(&mut self) {
        let over = if self.request.user.is_mapped() { ", over an idmapped repository" } else { "" };
        self.enforcement.record_enforced(Control::Layer, format!("overlayfs with userxattr on tmpfs{over}"));
    }

    fn open_layer(&self, id: u32, part: &str) -> io::Result<OwnedFd> {
        let space = self.overlay_sources.as_ref().ok_or_else(|| io::Error::other("the run space was not opened"))?;
        mounts::open_beneath(space.space.as_fd(), &PathBuf::from(id.to_string()).join(part))
    }

    /// Opens the layers below, newest first.
    fn open_lowers(&self, ids: &[u32]) -> io::Result<Vec<OwnedFd>> {
        ids.iter().map(|id| self.open_layer(*id, UPPER)).collect()
    }

    fn write_git_config(&self, home: &Path) -> HelperOpResult {
        let write = || {
            let mut file = mounts::make_file(mounts::open_readable_dir(home)?.as_fd(), ".gitconfig".as_ref())?;
            file.write_all(b"[core]\n\tcheckStat = minimal\n")?;
            file.write_all(self.git_trust_config())?;
            let owner = self.step_owner();
            rustix::fs::fchown(&file, Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(owner.gid)))?;
            Ok::<_, io::Error>(())
        };
        write().map_err(internal("write the step's .gitconfig"))
    }

    /// Attaches a clone. A path that was skipped when it was to be cloned is skipped here too.
    fn attach(&mut self, at: &Path, inside: &MountPointParent) -> HelperOpResult {
        let Some(clone) = self.clones.remove(at) else { return Ok(()) };
        let is_git = self.is_git(at);
        let control = if is_git { Control::GitReadOnly } else { Control::HiddenPaths };
        let target = match inside {
            MountPointParent::Repo { path, .. } => {
                let tree =
                    self.repo_point.as_ref().ok_or_else(|| SetupFailure::internal("the overlay is not mounted"))?;
                point_in_repo(tree, &clone, path, control)?
            }
            MountPointParent::Root => self.mount_point_in_root(&clone, at, control)?,
        };
        mounts::attach(clone.as_fd(), target.as_fd())
            .map_err(refuse(control, format_args!("mount what was taken at {}", at.display())))?;
        if is_git {
            self.record_git();
        }
        if *inside == MountPointParent::Root {
            self.shown_mounts.push((at.to_owned(), clone));
        }
        Ok(())
    }

    fn is_git(&self, at: &Path) -> bool {
        self.request.frame.git.paths().any(|path| path == at)
    }

    fn record_git(&mut self) {
        self.enforcement.record_enforced(Control::GitReadOnly, "read-only mounts above the overlay");
    }

    fn seal_covers(&mut self) -> HelperOpResult {
        let control = Control::HiddenPaths;
        for (at, mount) in &self.hidden {
            // The mounts inside the clone are excluded and keep their own attributes.
            sys::mount_setattr(mount.as_fd(), MountScope::Single, RDONLY, false, None)
                .map_err(refuse(control, format_args!("make {} read-only", at.display())))?;
        }
        let hidden: Vec<&Path> =
            self.hidden.iter().map(|(at, _)| at.as_path()).filter(|at| *at != Path::new("/dev")).collect();
        self.enforcement.record_enforced(control, format!("empty directories over {}", format_paths(&hidden)));
        if self.request.frame.git.worktree_git.is_none() && self.request.frame.git.common.is_none() {
            self.enforcement.record_not_requested(Control::GitReadOnly, "the tree is not a git repository");
        }
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

/// Finds a mount point in the repository. The repository is untrusted: the path may have become a link or a file.
fn point_in_repo(tree: &OwnedFd, clone: &OwnedFd, path: &RelPath, control: Control) -> Result<OwnedFd, SetupFailure> {
    let find = || {
        let path = Path::new(path.as_str());
        if mounts::is_dir(clone.as_fd())? {
            let point = mounts::ensure_dir_beneath(tree.as_fd(), path, None)?;
            if mounts::is_dir(point.as_fd())? { Ok(point) } else { Err(io::Error::from_raw_os_error(libc::ENOTDIR)) }
        } else {
            mounts::open_beneath(tree.as_fd(), path)
        }
    };
    find().map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP | libc::ENOTDIR) => refused(
            control,
            format!("`{path}` of the repository is a symbolic link or a file, but a mount needs a directory there"),
            "make it a directory, or remove it from `caches`",
        ),
        _ => refuse(control, format_args!("find `{path}` in the repository"))(error),
    })
}

/// Formats the paths as a phrase: the record names some and counts the others.
fn format_paths(paths: &[&Path]) -> String {
    const NAMED: usize = 8;
    let mut names: Vec<String> = paths.iter().take(NAMED).map(|path| path.display().to_string()).collect();
    if let Some(more) = paths.len().checked_sub(NAMED).filter(|more| *more > 0) {
        names.push(format!("{more} more"));
    }
    names.join(", ")
}

/// The typical size of a host's table of mounts, in bytes.
const USUAL_TABLE_SIZE: usize = 16 << 10;

fn refuse_mounts_below(repo: &Path, table: &[u8]) -> HelperOpResult {
    let control = Control::Layer;
    let points = table.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    let below = points.map(unescape).find(|point| point != repo && point.starts_with(repo));
    match below {
        None => Ok(()),
        Some(point) => Err(refused(
            control,
            format!("another file system is mounted in the repository, at `{}`", point.display()),
            format!("unmount it (`umount {}`), or verify a clone of the repository", point.display()),
        )),
    }
}

/// Decodes a path of mountinfo, in which blanks and backslashes are written as three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let octal = || std::str::from_utf8(tail.get(..3)?).ok().and_then(|text| u8::from_str_radix(text, 8).ok());
        match (first, octal()) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

/// The directory of the step's terminals.
const PTS_DIR: &str = "/dev/pts";

/// Populates `/dev`. Attaches both mounts first, so that the files of the first can be mount points.
fn make_dev(mount: &OwnedFd, shm: &OwnedFd, devices: &[(&'static str, OwnedFd)]) -> io::Result<()> {
    mounts::attach_at(mount.as_fd(), Path::new("/dev"))?;
    let dev = mounts::open_readable_dir(Path::new("/dev"))?;
    for (name, device) in devices {
        drop(mounts::make_file(dev.as_fd(), name.as_ref())?);
        mounts::attach(device.as_fd(), mounts::open_beneath(dev.as_fd(), Path::new(name))?.as_fd())?;
    }
    let links = [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("ptmx", "pts/ptmx"),
    ];
    for (name, target) in links {
        rustix::fs::symlinkat(target, &dev, name)?;
    }
    for name in ["shm", "pts"] {
        rustix::fs::mkdirat(&dev, name, Mode::from_raw_mode(0o755))?;
    }
    mounts::attach_at(shm.as_fd(), Path::new("/dev/shm"))?;
    // `gid=5` is left out: the kernel refuses a group that is not mapped.
    let options = [MountOption("ptmxmode", "0666".to_owned()), MountOption("mode", "0620".to_owned())];
    let attributes =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC | MountAttrFlags::MOUNT_ATTR_NOATIME;
    let pts = mounts::new_filesystem("devpts", &options, attributes)?;
    mounts::attach_at(pts.as_fd(), Path::new(PTS_DIR))
}

#[cfg(test)]
mod tests;

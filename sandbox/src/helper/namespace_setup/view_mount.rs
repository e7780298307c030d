//! Mounts a view of the host, and makes it the root of the sandbox.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use proctor_core::model::trace::NoTrace;
use proctor_view::HIDDEN_MOUNT_POINT;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsOpenFlags, MountAttrFlags, OpenTreeFlags, UnmountFlags, fsconfig_set_flag, fsconfig_set_string, fsopen,
};

use super::{HelperOpResult, NamespaceSetup};
use crate::helper::mount_table;
use crate::helper::mounts::{self, NODEV, NOSUID, RDONLY};
use crate::helper::setup_failure::internal;
use crate::helper::view_process::ViewProcess;
use crate::wire::ViewExportSpec;

/// The view of a sandbox.
pub(in crate::helper) enum SandboxView {
    /// None was requested.
    None,
    /// Its server has started, and it is not mounted yet.
    Starting(ViewProcess),
    /// The view is the root. The host's root is still mounted, at a hidden path.
    Mounted(ViewProcess, OwnedFd),
    /// The view is the root, and the host's mounts are unmounted.
    Serving(ViewProcess),
    /// The view could not be set up, so the sandbox shows the host itself.
    Unavailable(NoTrace),
}

/// A part of the sandbox that is shown through the view.
enum ViewPart {
    /// The clone of the mount that will appear at this path.
    Clone(PathBuf),
    /// The repository.
    Tree,
}

/// A host path that the view serves, with a detached mount of it.
struct ViewSource {
    part: ViewPart,
    host_path: PathBuf,
    mount: OwnedFd,
    mapped: bool,
}

impl SandboxView {
    /// Returns a descriptor that becomes readable when the server ends.
    pub(in crate::helper) fn exit_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::None | Self::Unavailable(_) => None,
            Self::Starting(process) | Self::Mounted(process, _) | Self::Serving(process) => Some(process.exit_fd()),
        }
    }
}

impl NamespaceSetup<'_> {
    /// Returns a descriptor that becomes readable when the server of the view ends.
    pub(in crate::helper) fn view_exit_fd(&self) -> Option<BorrowedFd<'_>> {
        self.view.exit_fd()
    }

    /// Returns whether the command is to run on a view.
    pub(in crate::helper) fn wants_view(&self) -> bool {
        self.request.frame.view
    }

    /// Mounts the view. If that fails, nothing has changed, and the sandbox continues without a view.
    pub(super) fn mount_view(&mut self) -> HelperOpResult {
        let SandboxView::Starting(process) = std::mem::replace(&mut self.view, SandboxView::None) else {
            return Ok(());
        };
        self.view = match self.try_mount_view(&process) {
            Ok(old_root) => SandboxView::Mounted(process, old_root),
            Err(error) => {
                let own = NoTrace::Unavailable { message: format!("cannot mount it: {error}") };
                let is_servers =
                    matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED | libc::EPIPE));
                SandboxView::Unavailable(is_servers.then(|| process.failure()).flatten().unwrap_or(own))
            }
        };
        Ok(())
    }

    /// Returns whether the sandbox shows the host through a view.
    pub(super) fn has_view(&self) -> bool {
        matches!(self.view, SandboxView::Mounted(..) | SandboxView::Serving(_))
    }

    fn try_mount_view(&mut self, process: &ViewProcess) -> io::Result<OwnedFd> {
        let sources = self.view_sources()?;
        let view = mount_fuse(process, self.export_specs(&sources), self.tree_aliases(process))?;
        let shown = |number: usize| {
            let mount = mounts::clone_beneath(view.as_fd(), &number.to_string())?;
            mounts::set_attributes(mount.as_fd(), RDONLY | NOSUID | NODEV)?;
            Ok::<_, io::Error>(mount)
        };
        let root = shown(0)?;
        let parts: Vec<OwnedFd> = (1..=sources.len()).map(shown).collect::<io::Result<_>>()?;
        let layers = self.clone_layers()?;
        let old_root = enter_root(&root)?;
        // The order of the parts is that of the sources.
        for (source, mount) in sources.into_iter().zip(parts) {
            match (source.part, &mut self.overlay_sources) {
                (ViewPart::Clone(at), _) => drop(self.clones.insert(at, mount)),
                (ViewPart::Tree, Some(held)) => held.repo = mount,
                (ViewPart::Tree, None) => {}
            }
        }
        if let Some(held) = &mut self.overlay_sources {
            held.space = layers;
        }
        Ok(old_root)
    }

    /// Returns detached mounts of everything that the view shows in addition to the host's root.
    fn view_sources(&self) -> io::Result<Vec<ViewSource>> {
        let clones = self.clone_sources.iter().filter_map(|(at, source)| Some((at, source, self.clones.get(at)?)));
        let mut sources = clones
            .map(|(at, source, clone)| {
                let (part, host_path) = (ViewPart::Clone(at.clone()), source.host_path.clone());
                Ok(ViewSource { part, host_path, mount: clone.try_clone()?, mapped: source.mapped })
            })
            .collect::<io::Result<Vec<_>>>()?;
        let held = self.overlay_sources.as_ref().ok_or_else(|| io::Error::other("the repository was not opened"))?;
        let is_mapped = self.request.user.is_mapped();
        let mount = if is_mapped { held.repo.try_clone()? } else { mounts::clone_mount_at_fd(held.repo.as_fd())? };
        let host_path = self.request.frame.tree().to_owned();
        sources.push(ViewSource { part: ViewPart::Tree, host_path, mount, mapped: is_mapped });
        Ok(sources)
    }

    fn export_specs<'s>(&self, sources: &'s [ViewSource]) -> Vec<(ViewExportSpec, BorrowedFd<'s>)> {
        let owner = self.request.user.uid();
        // Without a mapping, the files appear with their own owners.
        let is_mapped = |source: &ViewSource| source.mapped && self.unmapped.is_none();
        let spec = |source: &ViewSource| ViewExportSpec {
            host_path: source.host_path.clone(),
            root_as: is_mapped(source).then_some(owner),
            inputs: self.request.frame.inputs.clone().filter(|_| matches!(source.part, ViewPart::Tree)),
        };
        sources.iter().map(|source| (spec(source), source.mount.as_fd())).collect()
    }

    /// Returns the paths at which the host shows the tree of a command with inputs a second time.
    fn tree_aliases(&self, process: &ViewProcess) -> Vec<PathBuf> {
        let frame = &self.request.frame;
        match frame.inputs {
            Some(_) => mount_table::find_aliases(process.host_mounts(), &[&frame.repo, frame.tree()]),
            None => Vec::new(),
        }
    }

    /// Returns another mount of the run space. The mount that the helper has opened will be unmounted.
    fn clone_layers(&self) -> io::Result<OwnedFd> {
        let held = self.overlay_sources.as_ref().ok_or_else(|| io::Error::other("the run space was not opened"))?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        Ok(rustix::mount::open_tree(&held.space, "", flags)?)
    }

    /// Attaches the view of the repository and the run space in a hidden directory: kernels before 6.15 accept no
    /// detached mount as a layer.
    pub(super) fn attach_view_sources(&mut self) -> io::Result<()> {
        let stage = |name: &str, mount: &OwnedFd| {
            let point = self.scratch_dir(name, 0o700, None)?;
            mounts::attach(mount.as_fd(), point.as_fd())?;
            // Opened again: the descriptor above names the directory below the mount.
            mounts::open_beneath(self.scratch()?.as_fd(), Path::new(name))
        };
        let Some(held) = &self.overlay_sources else { return Ok(()) };
        let (repo, space) = (stage("repo", &held.repo)?, stage("layers", &held.space)?);
        if let Some(held) = &mut self.overlay_sources {
            (held.repo, held.space) = (repo, space);
        }
        Ok(())
    }

    /// Unmounts the host's mounts, which no path leads to.
    pub(super) fn leave_host(&mut self) -> HelperOpResult {
        self.view = match std::mem::replace(&mut self.view, SandboxView::None) {
            SandboxView::Mounted(process, old_root) => {
                let leave = || {
                    rustix::process::fchdir(&old_root)?;
                    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
                    rustix::process::chdir("/")
                };
                leave().map_err(internal("unmount the host's root"))?;
                SandboxView::Serving(process)
            }
            other => other,
        };
        Ok(())
    }

    /// Returns the view, after the last operation that needs it.
    pub(in crate::helper) fn take_view(&mut self) -> SandboxView {
        std::mem::replace(&mut self.view, SandboxView::None)
    }
}

/// Mounts a file system that `process` serves, and sends the process what to serve.
fn mount_fuse(
    process: &ViewProcess,
    exports: Vec<(ViewExportSpec, BorrowedFd<'_>)>,
    aliases: Vec<PathBuf>,
) -> io::Result<OwnedFd> {
    let (flags, no_mode) = (OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty());
    let device = rustix::fs::open("/dev/fuse", flags, no_mode).map_err(device_error)?;
    let fs = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let user = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let options = [
        ("source", "proctor".to_owned()),
        ("fd", device.as_raw_fd().to_string()),
        ("rootmode", "40000".to_owned()),
        ("user_id", user.0.to_string()),
        ("group_id", user.1.to_string()),
    ];
    for (key, value) in options {
        fsconfig_set_string(&fs, key, value).map_err(|errno| mounts::with_kernel_log(&fs, errno))?;
    }
    // The kernel checks the permissions of the step itself, and does not leave it to the server.
    for flag in ["allow_other", "default_permissions"] {
        fsconfig_set_flag(&fs, flag).map_err(|errno| mounts::with_kernel_log(&fs, errno))?;
    }
    let attributes =
        MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let mount = mounts::create_mount(&fs, attributes)?;
    // The process gets the only other descriptor of the device: if it ends, the kernel ends all requests.
    process.send_exports(exports, device.as_fd(), aliases)?;
    Ok(mount)
}

/// Returns the error for a device that cannot be opened, with a way to fix it.
fn device_error(errno: Errno) -> io::Error {
    let fix = match errno {
        Errno::NOENT => "; load the kernel module `fuse`, or start the container with `--device /dev/fuse`",
        Errno::ACCESS | Errno::PERM => "; permit it to every user, as most systems do (`chmod 666 /dev/fuse`)",
        _ => "",
    };
    io::Error::other(format!("cannot open `/dev/fuse` ({errno}){fix}"))
}

/// Makes a detached mount the root of this mount namespace, for all of its processes. Returns the old root, which is then
/// mounted at a hidden path.
fn enter_root(root: &OwnedFd) -> io::Result<OwnedFd> {
    let old_root = mounts::open_root()?;
    mounts::attach(root.as_fd(), old_root.as_fd())?;
    rustix::process::fchdir(root)?;
    // Not above the new root: the kernel would regard the processes of this namespace as being in a chroot, and would
    // refuse them a user namespace.
    let entered = rustix::process::pivot_root(".", HIDDEN_MOUNT_POINT.trim_start_matches('/'));
    if entered.is_err() {
        // The root of an initial RAM file system cannot be replaced.
        rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    }
    rustix::process::chdir("/")?;
    entered.map_err(|errno| io::Error::other(format!("the root cannot be replaced (pivot_root): {errno}")))?;
    Ok(old_root)
}

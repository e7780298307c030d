//! Makes the overlay over the repository, and mounts it at the repository's path.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use proctor_core::model::enforcement::Control;
use proctor_core::model::plan::RelPath;
use rustix::fs::StatVfsMountFlags;

use super::{DetachedOverlay, HelperOpResult, NamespaceSetup, OverlaySources};
use crate::helper::mounts::{self, MountPointKind};
use crate::helper::overlay::create_overlay;
use crate::helper::setup_failure::{SetupFailure, refuse, refused};
use crate::run_space::{UPPER, WORK};
use crate::wire::{ClaimRequest, LayerIds};

impl NamespaceSetup<'_> {
    /// Opens the repository and the run space. Their paths will be covered, and the owner of a directory above the
    /// repository may replace it, so later operations use these descriptors.
    pub(super) fn open_overlay_sources(&mut self, repo: &Path, mapped: bool) -> HelperOpResult {
        let what = format_args!("open the repository {}", repo.display());
        let space =
            mounts::open_dir(&self.request.space).map_err(refuse(Control::Layer, "open the directory for layers"))?;
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

    pub(super) fn overlay_sources(&self) -> Result<&OverlaySources, SetupFailure> {
        self.overlay_sources
            .as_ref()
            .ok_or_else(|| SetupFailure::internal("the mount of the repository was not cloned"))
    }

    pub(super) fn map_owners(&self, clone: &OwnedFd, source: &Path) -> HelperOpResult {
        mounts::map_owners(clone.as_fd(), self.users.as_fd()).map_err(|error| {
            let what = format_args!("show {} with other owners (idmapped mount)", source.display());
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

    /// Attaches a mapped repository in the mount namespace.
    pub(super) fn attach_mapped_repo(&mut self) -> HelperOpResult {
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

    pub(super) fn make_repo_point(&mut self, at: &Path, scaffold: &[RelPath]) -> HelperOpResult {
        let what = format_args!("create the mount point {}", at.display());
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

    /// Makes the overlay for the expected layers. If that fails, the overlay is made or refused when the command
    /// arrives.
    pub(super) fn make_overlay_early(&mut self, repo: &Path) {
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
            .map_err(refuse(control, format_args!("create an overlay over {}", repo.display())))?;
        // Overlayfs silently becomes read-only if it cannot use its work directory.
        let state = rustix::fs::fstatvfs(&overlay).map_err(refuse(control, "examine the overlay"))?;
        if state.f_flag.contains(StatVfsMountFlags::RDONLY) {
            return Err(refused(
                control,
                "the kernel made the overlay read-only",
                "the kernel's log (`dmesg`) has the reason; keep the state directory on a disk of this machine",
            ));
        }
        let room = rustix::fs::fstatvfs(&upper).map_err(refuse(control, "examine the layer"))?;
        let room = room.f_blocks.saturating_mul(room.f_frsize);
        Ok(DetachedOverlay { mount: overlay, layers: wanted.clone(), layers_bytes: room })
    }

    /// Mounts the overlay, and returns the size of the tmpfs of all layers, in bytes.
    pub(super) fn mount_overlay(&mut self, repo: &Path, claim: &ClaimRequest) -> Result<u64, SetupFailure> {
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

    pub(super) fn record_overlay(&mut self) {
        let over = if self.request.user.is_mapped() { ", over an idmapped repository" } else { "" };
        self.enforcement.record_enforced(Control::Layer, format!("overlayfs with userxattr on tmpfs{over}"));
    }

    pub(super) fn open_layer(&self, id: u32, part: &str) -> io::Result<OwnedFd> {
        let space =
            self.overlay_sources.as_ref().ok_or_else(|| io::Error::other("the directory for layers was not opened"))?;
        mounts::open_beneath(space.space.as_fd(), &PathBuf::from(id.to_string()).join(part))
    }

    /// Opens the layers below, newest first.
    pub(super) fn open_lowers(&self, ids: &[u32]) -> io::Result<Vec<OwnedFd>> {
        ids.iter().map(|id| self.open_layer(*id, UPPER)).collect()
    }
}

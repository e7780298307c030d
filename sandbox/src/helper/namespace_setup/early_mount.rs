//! Mounts the tree before the command is known, while PID 1 still executes its own operations. If the command arrives
//! with layers other than the expected ones, all of this is undone.

use std::io;
use std::mem;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::mount::UnmountFlags;

use super::{EarlyTree, NamespaceSetup};
use crate::helper::mounts;
use crate::helper::setup_failure::{SetupFailure, internal};
use crate::setup::{MountPointParent, SetupOp, tree_attach_ops};
use crate::wire::{LayerIds, MountedTree};

impl NamespaceSetup<'_> {
    /// Mounts the overlay and the caches and git directories inside it. If something fails, it is tried again, or
    /// refused, when the command arrives.
    pub(super) fn mount_tree_early(&mut self) -> Result<(), SetupFailure> {
        let (Some(made), Some(point)) = (self.detached_overlay.take(), &self.repo_point) else { return Ok(()) };
        if mounts::attach(made.mount.as_fd(), point.as_fd()).is_err() {
            return Ok(());
        }
        let (attached, all) = self.attach_early(&made.mount);
        if all {
            self.early_tree = Some(EarlyTree { made, attached, message: None });
            Ok(())
        } else {
            self.unmount_tree(&made.mount, attached)
        }
    }

    /// Returns the mounts made, and whether they are complete. It creates no mount points, since these would stay in
    /// the layer when the tree is unmounted.
    fn attach_early(&mut self, tree: &OwnedFd) -> (Vec<(PathBuf, OwnedFd)>, bool) {
        let mut attached = Vec::new();
        for op in tree_attach_ops(&self.request.frame) {
            let SetupOp::Attach { at, inside: MountPointParent::Repo { path, .. } } = op else { continue };
            let Some(clone) = self.clones.remove(&at) else { continue };
            let target = mounts::open_beneath(tree.as_fd(), Path::new(path.as_str()));
            if !target.is_ok_and(|target| mounts::attach(clone.as_fd(), target.as_fd()).is_ok()) {
                self.clones.insert(at, clone);
                return (attached, false);
            }
            attached.push((at, clone));
        }
        (attached, true)
    }

    /// Returns the message about the mounted tree for the command's process, after all other operations.
    pub(in crate::helper) fn tree_message(&mut self) -> Option<MountedTree> {
        let EarlyTree { made, attached, .. } = self.early_tree.as_ref()?;
        let (layers, layers_bytes) = (made.layers.clone(), made.layers_bytes);
        let has_git = attached.iter().any(|(at, _)| self.is_git(at));
        let before = self.enforcement.clone();
        self.record_overlay();
        if has_git {
            self.record_git();
        }
        // These controls are not enforced if the tree is unmounted again.
        let enforcement = mem::replace(&mut self.enforcement, before);
        let tree = MountedTree { layers, enforcement, layers_bytes };
        if let Some(placed) = &mut self.early_tree {
            placed.message = Some(tree.clone());
        }
        Some(tree)
    }

    /// Returns the message about the mounted tree if its layers are `layers`. Unmounts a tree of other layers.
    pub(super) fn early_tree_for(&mut self, layers: &LayerIds) -> Result<Option<MountedTree>, SetupFailure> {
        match self.early_tree.take() {
            Some(EarlyTree { made, message: Some(message), .. }) if made.layers == *layers => Ok(Some(message)),
            Some(EarlyTree { made, attached, .. }) => self.unmount_tree(&made.mount, attached).map(|()| None),
            None => Ok(None),
        }
    }

    /// Unmounts the tree and restores the previous state, so that the mounts inside the tree can be attached again.
    fn unmount_tree(&mut self, tree: &OwnedFd, attached: Vec<(PathBuf, OwnedFd)>) -> Result<(), SetupFailure> {
        let undo = || {
            for (number, (at, mount)) in attached.into_iter().enumerate() {
                // Attached elsewhere first, since a mount that is attached nowhere cannot be attached again.
                mounts::attach(mount.as_fd(), self.parking_mount_point(number, &mount)?.as_fd())?;
                self.clones.insert(at, mount);
            }
            unmount(tree)
        };
        undo().map_err(internal("unmount trees of other layers"))
    }

    /// Returns an empty mount point of the same kind, in a directory hidden from the step.
    fn parking_mount_point(&self, number: usize, mount: &OwnedFd) -> io::Result<OwnedFd> {
        let name = format!("aside{number}");
        if mounts::is_dir(mount.as_fd())? {
            return self.scratch_dir(&name, 0o755, None);
        }
        drop(mounts::make_file(self.scratch()?.as_fd(), name.as_ref())?);
        mounts::open_beneath(self.scratch()?.as_fd(), Path::new(&name))
    }
}

/// Unmounts by descriptor: the owner of a directory above may have replaced the directory at its path.
fn unmount(mount: &OwnedFd) -> io::Result<()> {
    rustix::process::fchdir(mount)?;
    let unmounted = rustix::mount::unmount(".", UnmountFlags::DETACH);
    rustix::process::chdir("/")?;
    Ok(unmounted?)
}

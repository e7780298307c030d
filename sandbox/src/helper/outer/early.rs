//! The tree in its place before the command is known: a sandbox that waits has nothing left to
//! mount then. Where the command comes with other layers than were expected, all of it is undone.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use proctor_core::enforcement::Control;
use rustix::mount::UnmountFlags;

use super::{Made, Outer, Placed, point_in_repo};
use crate::helper::failure::{Failure, internal};
use crate::helper::mounts;
use crate::setup::{Inside, SetupOp, attach_ops};
use crate::wire::{Layers, Tree};

impl Outer<'_> {
    /// Puts the overlay that was made in its place, and what belongs into the tree; tells of what the
    /// command's process finds then. What cannot be done now is tried again, or refused, when the command
    /// comes.
    pub(in crate::helper) fn place_early(&mut self) -> Result<Option<Tree>, Failure> {
        let (Some(Made { mount, layers, room }), Some(point)) = (self.overlay.take(), &self.repo_point) else {
            return Ok(None);
        };
        if mounts::attach(mount.as_fd(), point.as_fd()).is_err() {
            return Ok(None);
        }
        let (attached, all) = self.attach_early(&mount);
        if !all {
            return self.take_away(&mount, attached).map(|()| None);
        }
        let before = self.enforcement.clone();
        self.record_overlay();
        if attached.iter().any(|(at, _)| self.is_git(at)) {
            self.record_git();
        }
        let enforcement = std::mem::replace(&mut self.enforcement, before);
        let tree = Tree { layers, enforcement, layers_bytes: room };
        self.placed = Some(Placed { tree: tree.clone(), mount, attached });
        Ok(Some(tree))
    }

    /// What was mounted, and whether that is all.
    fn attach_early(&mut self, tree: &OwnedFd) -> (Vec<(PathBuf, OwnedFd)>, bool) {
        let mut attached = Vec::new();
        for op in attach_ops(&self.request.frame) {
            let SetupOp::Attach { at, inside: Inside::Repo { path, .. } } = op else { continue };
            let Some(clone) = self.clones.remove(&at) else { continue };
            let target = point_in_repo(tree, &clone, &path, Control::Layer);
            if !target.is_ok_and(|target| mounts::attach(clone.as_fd(), target.as_fd()).is_ok()) {
                self.clones.insert(at, clone);
                return (attached, false);
            }
            attached.push((at, clone));
        }
        (attached, true)
    }

    /// What is in its place already for these layers. What is there for others is taken away.
    pub(super) fn placed_for(&mut self, layers: &Layers) -> Result<Option<Tree>, Failure> {
        match self.placed.take() {
            Some(placed) if placed.tree.layers == *layers => Ok(Some(placed.tree)),
            Some(Placed { mount, attached, .. }) => self.take_away(&mount, attached).map(|()| None),
            None => Ok(None),
        }
    }

    /// Afterwards it is as if nothing had been in place: what was mounted in the tree can be attached
    /// once more.
    fn take_away(&mut self, tree: &OwnedFd, attached: Vec<(PathBuf, OwnedFd)>) -> Result<(), Failure> {
        let undo = || {
            for (number, (at, mount)) in attached.into_iter().enumerate() {
                // Mounted somewhere, or it could be mounted nowhere again.
                mounts::attach(mount.as_fd(), self.aside(number, &mount)?.as_fd())?;
                self.clones.insert(at, mount);
            }
            unmount(tree)
        };
        undo().map_err(internal("take the tree of other layers away"))
    }

    /// An empty mount point of the same kind, where the step sees nothing.
    fn aside(&self, number: usize, mount: &OwnedFd) -> io::Result<OwnedFd> {
        let name = format!("aside{number}");
        if mounts::is_dir(mount.as_fd())? {
            return self.scratch_dir(&name, 0o755, None);
        }
        drop(mounts::make_file(self.scratch()?.as_fd(), name.as_ref())?);
        mounts::open_beneath(self.scratch()?.as_fd(), Path::new(&name))
    }
}

/// By descriptor: whoever owns a directory above may have put something else at its path.
fn unmount(mount: &OwnedFd) -> io::Result<()> {
    rustix::process::fchdir(mount)?;
    let unmounted = rustix::mount::unmount(".", UnmountFlags::DETACH);
    rustix::process::chdir("/")?;
    Ok(unmounted?)
}

//! The tree in its place before the command is known, while PID 1 is still at its own operations.
//! Where the command comes with other layers than were expected, all of it is undone.

use std::io;
use std::mem;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::mount::UnmountFlags;

use super::{Outer, Placed};
use crate::helper::failure::{Failure, internal};
use crate::helper::mounts;
use crate::setup::{Inside, SetupOp, attach_ops};
use crate::wire::{Layers, Tree};

impl Outer<'_> {
    /// Puts the overlay that was made in its place, and what belongs into the tree. What cannot be done
    /// now is tried again, or refused, when the command comes.
    pub(super) fn place_early(&mut self) -> Result<(), Failure> {
        let (Some(made), Some(point)) = (self.overlay.take(), &self.repo_point) else { return Ok(()) };
        if mounts::attach(made.mount.as_fd(), point.as_fd()).is_err() {
            return Ok(());
        }
        let (attached, all) = self.attach_early(&made.mount);
        if all {
            self.placed = Some(Placed { made, attached, told: None });
            Ok(())
        } else {
            self.take_away(&made.mount, attached)
        }
    }

    /// What was mounted, and whether that is all. No mount point is made: it would stay in the layer when
    /// the tree is taken away.
    fn attach_early(&mut self, tree: &OwnedFd) -> (Vec<(PathBuf, OwnedFd)>, bool) {
        let mut attached = Vec::new();
        for op in attach_ops(&self.request.frame) {
            let SetupOp::Attach { at, inside: Inside::Repo { path, .. } } = op else { continue };
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

    /// What the command's process finds in place, once everything else is.
    pub(in crate::helper) fn tell_of_tree(&mut self) -> Option<Tree> {
        let Placed { made, attached, .. } = self.placed.as_ref()?;
        let (layers, layers_bytes) = (made.layers.clone(), made.room);
        let has_git = attached.iter().any(|(at, _)| self.is_git(at));
        let before = self.enforcement.clone();
        self.record_overlay();
        if has_git {
            self.record_git();
        }
        // It does not hold where the tree is taken away again.
        let enforcement = mem::replace(&mut self.enforcement, before);
        let tree = Tree { layers, enforcement, layers_bytes };
        if let Some(placed) = &mut self.placed {
            placed.told = Some(tree.clone());
        }
        Some(tree)
    }

    /// What was told of the tree, where that is the one of these layers. One of others is taken away.
    pub(super) fn placed_for(&mut self, layers: &Layers) -> Result<Option<Tree>, Failure> {
        match self.placed.take() {
            Some(Placed { made, told: Some(told), .. }) if made.layers == *layers => Ok(Some(told)),
            Some(Placed { made, attached, .. }) => self.take_away(&made.mount, attached).map(|()| None),
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

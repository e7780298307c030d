//! Shows a copy of the tree at the tree's own path if the kernel makes no overlay and the run may do without one. All
//! other controls of the sandbox are unchanged.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use proctor_core::enforcement::Control;

use super::Outer;
use crate::error::or_with_less;
use crate::helper::copied::{Copied, Copy, Sources, hollow};
use crate::helper::copy;
use crate::helper::failure::{Failure, refuse, refused};
use crate::helper::mounts::{self, NODEV, NOSUID};
use crate::space::UPPER;
use crate::wire::Claim;

/// Name of the copy, next to the upper directory of the layer.
const TREE: &str = "tree";

impl Outer<'_> {
    /// Shows a clone of root's directory with the step as its owner. If the file system cannot map owners and a copy
    /// is tolerated, the set-up continues without the mapping: the owner of a copy can be chosen.
    pub(super) fn map_or_copy(&mut self, clone: &OwnedFd, source: &Path) -> Result<(), Failure> {
        match self.map_owners(clone, source) {
            Err(Failure::Refused { control: Control::UserNamespace, message, hint }) if self.may_copy() => {
                self.unmapped.get_or_insert((message, hint));
                Ok(())
            }
            Err(Failure::Refused { control, message, hint }) => Err(refused(control, message, or_with_less(&hint))),
            other => other,
        }
    }

    /// Returns git settings to trust every directory if the owner could not be mapped. Git otherwise refuses to read
    /// a directory of another user, such as root's.
    pub(super) fn git_trust(&self) -> &'static [u8] {
        if self.unmapped.is_some() { b"[safe]\n\tdirectory = *\n" } else { b"" }
    }

    fn may_copy(&self) -> bool {
        self.request.frame.tolerated.contains(Control::Layer)
    }

    /// Mounts the overlay, or the copy. Returns the size of the tmpfs of all layers in bytes, and the copy.
    pub(super) fn overlay_or_copy(&mut self, repo: &Path, claim: &Claim) -> Result<(u64, Option<Copied>), Failure> {
        let made = match self.unmapped.take() {
            // An overlay would show files as root's, and a step never runs as root.
            Some((message, hint)) => Err(Failure::Refused { control: Control::Layer, message, hint }),
            None => self.overlay(repo, claim),
        };
        match made {
            Err(Failure::Refused { control: Control::Layer, message, hint })
                if self.may_copy() && self.repo_point.is_some() =>
            {
                let (room, copied) = self.copy(repo, claim)?;
                let instead = "the step runs in a copy, at the tree's own path and on the tmpfs of all layers";
                let left_out = copied.left_out();
                let without = if left_out > 0 { format!(" without {left_out} entries") } else { String::new() };
                self.enforcement.not_enforced_unless(Control::Layer, format!("{instead}{without} ({message})"), hint);
                Ok((room, Some(copied)))
            }
            Err(Failure::Refused { control: Control::Layer, message, hint }) if !self.may_copy() => {
                Err(refused(Control::Layer, message, or_with_less(&hint)))
            }
            other => other.map(|room| (room, None)),
        }
    }

    fn copy(&mut self, repo: &Path, claim: &Claim) -> Result<(u64, Copied), Failure> {
        let control = Control::Layer;
        let frame = &self.request.frame;
        let dir = self.layer(claim.layers.upper, "").map_err(refuse(control, "open the layer"))?;
        let copy = self.make_copy(claim, &dir).map_err(refuse(control, "copy the tree"))?;
        copy.scaffold(frame.caches.iter().map(|cache| &cache.at));
        let copied = copy.hold().map_err(refuse(control, "look at the copy of the tree"))?;
        let point = self.repo_point.take().ok_or_else(|| Failure::internal("there is no mount point"))?;
        let put = || {
            let mount = mounts::clone_beneath(dir.as_fd(), TREE)?;
            mounts::set(mount.as_fd(), NOSUID | NODEV)?;
            mounts::attach(mount.as_fd(), point.as_fd())?;
            Ok::<_, std::io::Error>(mount)
        };
        let what = format_args!("mount the copy at {}", repo.display());
        self.repo_point = Some(put().map_err(refuse(control, what))?);
        let room = rustix::fs::fstatvfs(&dir).map_err(refuse(control, "look at the layer"))?;
        Ok((room.f_blocks.saturating_mul(room.f_frsize), copied))
    }

    fn make_copy(&self, claim: &Claim, dir: &OwnedFd) -> std::io::Result<Copy> {
        let tree = self.tree.as_ref().ok_or_else(|| std::io::Error::other("the repository was not taken"))?;
        let lowers = self.lowers(&claim.layers.lowers)?;
        let place = mounts::dir_in(dir.as_fd(), TREE, 0o700, self.stepping_down())?;
        Copy::make(Sources {
            repo: &copy::readable(tree.repo.as_fd())?,
            lowers: &lowers,
            tree: copy::readable(place.as_fd())?,
            upper: copy::readable(self.layer(claim.layers.upper, UPPER)?.as_fd())?,
            hollow: hollow(&self.request.frame),
            user: self.request.user,
        })
    }
}

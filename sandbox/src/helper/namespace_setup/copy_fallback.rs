//! Shows a copy of the tree at the tree's own path if the kernel makes no overlay and the run may do without one. All
//! other controls of the sandbox are unchanged.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use proctor_core::model::enforcement::Control;

use super::{NamespaceSetup, OwnersNotMapped};
use crate::error::with_best_effort_hint;
use crate::helper::mounts::{self, NODEV, NOSUID};
use crate::helper::setup_failure::{SetupFailure, refuse, refused};
use crate::helper::tree_copier;
use crate::helper::tree_copy::{CopySources, TrackedCopy, TreeCopy, dirs_to_leave_empty};
use crate::run_space::UPPER;
use crate::wire::ClaimRequest;

/// Name of the copy, next to the upper directory of the layer.
const COPY_NAME: &str = "tree";

impl NamespaceSetup<'_> {
    /// Shows a clone of root's directory with the step as its owner. If the file system cannot map owners and a copy
    /// is tolerated, the set-up continues without the mapping: the owner of a copy can be chosen.
    pub(super) fn map_or_copy(&mut self, clone: &OwnedFd, source: &Path) -> Result<(), SetupFailure> {
        match self.map_owners(clone, source) {
            Err(SetupFailure::Refused { control: Control::UserNamespace, message, hint })
                if self.is_copy_tolerated() =>
            {
                self.unmapped.get_or_insert(OwnersNotMapped { message, hint });
                Ok(())
            }
            Err(SetupFailure::Refused { control, message, hint }) => {
                Err(refused(control, message, with_best_effort_hint(&hint)))
            }
            other => other,
        }
    }

    /// Returns git settings to trust every directory if the owner could not be mapped. Git otherwise refuses to read
    /// a directory of another user, such as root's.
    pub(super) fn git_trust_config(&self) -> &'static [u8] {
        if self.unmapped.is_some() { b"[safe]\n\tdirectory = *\n" } else { b"" }
    }

    fn is_copy_tolerated(&self) -> bool {
        self.request.frame.tolerated.contains(Control::Layer)
    }

    /// Mounts the overlay, or the copy. Returns the size of the tmpfs of all layers in bytes, and the copy.
    pub(super) fn overlay_or_copy(
        &mut self,
        repo: &Path,
        claim: &ClaimRequest,
    ) -> Result<(u64, Option<TrackedCopy>), SetupFailure> {
        let made = match self.unmapped.take() {
            // An overlay would show files as root's, and a step never runs as root.
            Some(OwnersNotMapped { message, hint }) => {
                Err(SetupFailure::Refused { control: Control::Layer, message, hint })
            }
            None => self.mount_overlay(repo, claim),
        };
        match made {
            Err(SetupFailure::Refused { control: Control::Layer, message, hint })
                if self.is_copy_tolerated() && self.repo_point.is_some() =>
            {
                let (room, copied) = self.mount_copy(repo, claim)?;
                let instead = "the step runs in a copy, at the tree's own path and on the tmpfs of all layers";
                let left_out = copied.skipped();
                let without = if left_out > 0 { format!(" without {left_out} entries") } else { String::new() };
                self.enforcement.record_not_enforced_with_hint(
                    Control::Layer,
                    format!("{instead}{without} ({message})"),
                    hint,
                );
                Ok((room, Some(copied)))
            }
            Err(SetupFailure::Refused { control: Control::Layer, message, hint }) if !self.is_copy_tolerated() => {
                Err(refused(Control::Layer, message, with_best_effort_hint(&hint)))
            }
            other => other.map(|room| (room, None)),
        }
    }

    fn mount_copy(&mut self, repo: &Path, claim: &ClaimRequest) -> Result<(u64, TrackedCopy), SetupFailure> {
        let control = Control::Layer;
        let frame = &self.request.frame;
        let dir = self.open_layer(claim.layers.upper, "").map_err(refuse(control, "open the layer"))?;
        let copy = self.make_copy(claim, &dir).map_err(refuse(control, "copy the tree"))?;
        copy.create_mount_points(frame.caches.iter().map(|cache| &cache.at));
        let copied = copy.record_baseline().map_err(refuse(control, "open the copy of the tree"))?;
        let point = self.repo_point.take().ok_or_else(|| SetupFailure::internal("there is no mount point"))?;
        let put = || {
            let mount = mounts::clone_beneath(dir.as_fd(), COPY_NAME)?;
            mounts::set_attributes(mount.as_fd(), NOSUID | NODEV)?;
            mounts::attach(mount.as_fd(), point.as_fd())?;
            Ok::<_, std::io::Error>(mount)
        };
        let what = format_args!("mount the copy at {}", repo.display());
        self.repo_point = Some(put().map_err(refuse(control, what))?);
        let room = rustix::fs::fstatvfs(&dir).map_err(refuse(control, "examine the layer"))?;
        Ok((room.f_blocks.saturating_mul(room.f_frsize), copied))
    }

    fn make_copy(&self, claim: &ClaimRequest, dir: &OwnedFd) -> std::io::Result<TreeCopy> {
        let tree =
            self.overlay_sources.as_ref().ok_or_else(|| std::io::Error::other("the repository was not opened"))?;
        let lowers = self.open_lowers(&claim.layers.lowers)?;
        let place = mounts::create_dir_in(dir.as_fd(), COPY_NAME, 0o700, self.step_owner_if_root())?;
        TreeCopy::create(CopySources {
            repo: &tree_copier::reopen_readable(tree.repo.as_fd())?,
            lowers: &lowers,
            tree: tree_copier::reopen_readable(place.as_fd())?,
            upper: tree_copier::reopen_readable(self.open_layer(claim.layers.upper, UPPER)?.as_fd())?,
            empty_dirs: dirs_to_leave_empty(&self.request.frame),
            user: self.request.user,
        })
    }
}

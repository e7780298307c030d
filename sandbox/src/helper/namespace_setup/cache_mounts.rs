//! Shows caches: a directory that receives the writes, alone or as the top of an overlay.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Gid, StatVfsMountFlags, Uid};

use super::NamespaceSetup;
use crate::helper::mounts::{self, NODEV, NOSUID};
use crate::helper::overlay::create_overlay;
use crate::helper::setup_failure::{SetupFailure, internal};
use crate::policy::CACHE_UPPER;
use crate::run_space::WORK;

impl NamespaceSetup<'_> {
    /// Clones one directory as a cache. A root daemon creates the directory as root, and the step writes it. On disk,
    /// its owner is the same for all runs.
    pub(super) fn clone_cache(&self, source: &Path) -> Result<OwnedFd, SetupFailure> {
        let take = || {
            let dir = mounts::open_readable_dir(source)?;
            self.chown_to_step(&dir, self.request.user.cache_owner())?;
            let clone = mounts::clone_mount(source)?;
            self.map_cache_owner(&clone)?;
            mounts::set_attributes(clone.as_fd(), NOSUID | NODEV)?;
            Ok::<_, io::Error>(clone)
        };
        take().map_err(internal(format_args!("clone the mount of the cache directory `{}`", source.display())))
    }

    /// Clones a writable directory of the host without a change of its owners on the disk.
    pub(super) fn clone_original(&self, source: &Path, mapped: bool) -> Result<OwnedFd, SetupFailure> {
        let clone = mounts::clone_mount(source)
            .map_err(internal(format_args!("clone the mount of the directory `{}`", source.display())))?;
        // Must come before the flags are set: only a new clone can be mapped.
        if mapped {
            self.map_owners(&clone, source)?;
        }
        mounts::set_attributes(clone.as_fd(), NOSUID | NODEV)
            .map_err(internal(format_args!("restrict the directory `{}`", source.display())))?;
        Ok(clone)
    }

    /// Creates the overlay of a cache. It is created before the root becomes read-only, because the kernel accepts no
    /// read-only upper directory. The overlay keeps its own mount of that directory.
    pub(super) fn mount_cache_overlay(
        &mut self,
        room: &Path,
        lowers: &[PathBuf],
        at: &Path,
    ) -> Result<(), SetupFailure> {
        let made = self.make_cache_overlay(room, lowers);
        let made = made.map_err(internal(format_args!("create the overlay of the cache `{}`", at.display())))?;
        self.clones.insert(at.to_owned(), made);
        Ok(())
    }

    fn make_cache_overlay(&self, room: &Path, lowers: &[PathBuf]) -> io::Result<OwnedFd> {
        let room = mounts::open_readable_dir(room)?;
        let upper = mounts::open_beneath(room.as_fd(), Path::new(CACHE_UPPER))?;
        // Overlayfs maps no owner of the directory that receives the writes, so it must belong to the run's own user.
        self.chown_to_step(&upper, (self.request.user.uid(), self.request.user.gid()))?;
        // One for each sandbox: overlayfs empties its work directory first, and another sandbox's mount may still
        // exist.
        let work = format!("{WORK}.{}", self.request.layers.upper);
        let work = mounts::create_dir_in(room.as_fd(), &work, 0o700, None)?;
        let lowers: Vec<OwnedFd> =
            lowers.iter().map(|lower| self.open_cache_layer(lower)).collect::<io::Result<_>>()?;
        let layers: Vec<BorrowedFd<'_>> = lowers.iter().map(AsFd::as_fd).collect();
        let held = self.host_proc.as_ref().ok_or_else(|| io::Error::other("no files of /proc were opened"))?;
        let overlay = create_overlay(&held.descriptors, &layers, &upper, &work)?;
        // Overlayfs silently becomes read-only if it cannot use its work directory.
        match rustix::fs::fstatvfs(&overlay)?.f_flag.contains(StatVfsMountFlags::RDONLY) {
            true => Err(io::Error::other("the kernel made it read-only; the kernel log (`dmesg`) has the reason")),
            false => Ok(overlay),
        }
    }

    /// Opens a layer with the step's user as its owner. The mapped mount is attached over the layer itself, in this
    /// mount namespace only: kernels before 6.15 accept no detached mount as a layer.
    fn open_cache_layer(&self, path: &Path) -> io::Result<OwnedFd> {
        let plain = mounts::open_no_symlinks(path)?;
        if self.cache_owners.is_none() || !self.request.user.is_mapped() {
            return Ok(plain);
        }
        let clone = mounts::clone_mount(path)?;
        self.map_cache_owner(&clone)?;
        mounts::attach(clone.as_fd(), plain.as_fd())?;
        mounts::open_no_symlinks(path)
    }

    /// Changes the owner of a directory from root to the step's user.
    fn chown_to_step(&self, dir: &OwnedFd, (uid, gid): (u32, u32)) -> io::Result<()> {
        if self.request.user.is_set_up_by_root() && rustix::fs::fstat(dir)?.st_uid == 0 {
            let owner = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            rustix::fs::chownat(dir, "", owner.0, owner.1, AtFlags::EMPTY_PATH)?;
        }
        Ok(())
    }

    fn map_cache_owner(&self, clone: &OwnedFd) -> io::Result<()> {
        match self.cache_owners.as_ref().filter(|_| self.request.user.is_mapped()) {
            Some(owners) => mounts::map_owners(clone.as_fd(), owners.as_fd()),
            None => Ok(()),
        }
    }
}

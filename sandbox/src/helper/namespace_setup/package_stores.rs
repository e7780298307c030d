//! Puts a layer for writes above the stores of package managers: they write to a store whenever they use it, if only to
//! lock it or to update its index. The layer is in the scratch tmpfs and is discarded with the sandbox.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::StatVfsMountFlags;

use super::NamespaceSetup;
use crate::helper::mounts;
use crate::helper::overlay::create_overlay;
use crate::run_space::{UPPER, WORK};

impl NamespaceSetup<'_> {
    /// Mounts an overlay over a store that is mounted read-only at `at`. Returns the visible mount: the overlay, or the
    /// store itself if the kernel cannot make the overlay.
    pub(super) fn stack_store(&mut self, at: &Path, store: OwnedFd) -> OwnedFd {
        match self.make_store_overlay(&store) {
            Ok(overlay) => {
                self.writable_stores.push(at.to_owned());
                overlay
            }
            Err(error) => {
                self.read_only_stores.push((at.to_owned(), error.to_string()));
                store
            }
        }
    }

    fn make_store_overlay(&self, store: &OwnedFd) -> io::Result<OwnedFd> {
        let number = self.writable_stores.len() + self.read_only_stores.len();
        let mode = rustix::fs::fstat(store)?.st_mode & 0o777 | 0o700;
        let room = self.scratch_dir(&format!("store{number}"), 0o700, None)?;
        let upper = mounts::create_dir_in(room.as_fd(), UPPER, mode, self.step_owner_if_root())?;
        let work = mounts::create_dir_in(room.as_fd(), WORK, 0o700, None)?;
        let held = self.host_proc.as_ref().ok_or_else(|| io::Error::other("no files of /proc were opened"))?;
        let overlay = create_overlay(&held.descriptors, &[store.as_fd()], &upper, &work)?;
        // Overlayfs silently becomes read-only if it cannot use its work directory.
        if rustix::fs::fstatvfs(&overlay)?.f_flag.contains(StatVfsMountFlags::RDONLY) {
            return Err(io::Error::other("the kernel made the overlay read-only"));
        }
        mounts::attach(overlay.as_fd(), store.as_fd())?;
        Ok(overlay)
    }

    /// Returns a phrase for the record about the stores that stay read-only; empty if there are none.
    pub(super) fn read_only_stores_note(&self) -> String {
        match self.read_only_stores.as_slice() {
            [] => String::new(),
            [(at, reason), others @ ..] => {
                let more = if others.is_empty() { String::new() } else { format!(" and {} more", others.len()) };
                format!("; package stores are read-only: {}{more} ({reason})", at.display())
            }
        }
    }
}

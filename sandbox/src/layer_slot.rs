//! Represents the place of a layer in a run.

use std::ffi::CString;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, OnceLock};

use crate::error::SandboxError;
use crate::host::StepUser;
use crate::removal::remove_dir;
use crate::wait;

/// The directories of a layer without a reference to their run space, so that a slot held by a prepared sandbox does
/// not keep the run space alive.
#[derive(Debug)]
pub(crate) struct LayerSlot {
    pub(crate) dir: Arc<OwnedFd>,
    pub(crate) id: u32,
    pub(crate) user: StepUser,
    pub(crate) upper: OwnedFd,
    /// The helper whose mounts keep the layer's contents alive until it has ended.
    pub(crate) helper_pidfd: OnceLock<OwnedFd>,
}

impl LayerSlot {
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Records the helper of the attempt.
    pub(crate) fn set_helper_pidfd(&self, holder: OwnedFd) {
        // A layer has one attempt, so the first helper is kept.
        drop(self.helper_pidfd.set(holder));
    }

    /// Removes the directories, see [`Layer::discard`].
    pub(crate) fn discard(self) -> Result<(), SandboxError> {
        // The kernel keeps removed files while an overlay refers to them. The reaper kills a helper that hangs.
        if let Some(holder) = self.helper_pidfd.get() {
            let _ = wait::wait_readable(holder.as_fd(), wait::EXIT_TIMEOUT);
        }
        let name = CString::new(self.id.to_string()).unwrap_or_default();
        remove_dir(self.dir.as_fd(), &name).map_err(SandboxError::system("cannot discard a layer"))
    }
}

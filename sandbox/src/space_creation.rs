//! Creates the space of a run with a helper process.

use std::os::fd::AsFd;
use std::process::Stdio;
use std::time::Duration;

use crate::error::{SandboxError, with_best_effort_hint};
use crate::launcher::Launcher;
use crate::no_namespaces;
use crate::run_space::{CacheForm, RunSpace, RunSpaceConfig};
use crate::wait;
use crate::wire::{self, HelperMessage, HelperRequest, NamespaceCheck, RunSpaceRequest};

/// Timeout for the kernel to create a run space.
const CREATE_TIMEOUT: Duration = Duration::from_secs(30);

impl RunSpace {
    /// Creates a run space by means of one short-lived helper process.
    ///
    /// # Errors
    /// The helper cannot be started, or the kernel refuses a namespace or the tmpfs and the missing controls are not
    /// tolerated.
    pub fn create(launcher: &Launcher, config: RunSpaceConfig) -> Result<Self, SandboxError> {
        let host = launcher.host().clone();
        let RunSpaceConfig { disk_bytes, inodes, tolerated, reuse: sandboxes, caches } = config;
        let request = HelperRequest::Space(RunSpaceRequest {
            at: host.space_dir(),
            bytes: disk_bytes,
            inodes,
            user: (!host.is_root()).then_some((host.euid, host.egid)),
            beforehand: if no_namespaces::is_tolerated(&tolerated) {
                NamespaceCheck::Namespaces
            } else {
                NamespaceCheck::Nothing
            },
            caches,
        });
        let (mut helper, control) = launcher.start_helper(&request, &[], Stdio::null(), Stdio::null())?;
        let answer = wait::wait_readable(control.as_fd(), CREATE_TIMEOUT).and_then(|()| wire::recv(control.as_fd()));
        drop(control);
        // The helper has nothing more to report.
        helper.wait_or_kill().map_err(|source| SandboxError::System { what: "cannot wait for the helper", source })?;
        let answer =
            answer.map_err(|source| SandboxError::System { what: "cannot read from the sandbox helper", source })?;
        match answer {
            Some((HelperMessage::Space { own_id, no_cache_overlay }, fds)) => {
                let caches = no_cache_overlay.map_or(CacheForm::Layers, |reason| CacheForm::Copy { reason });
                Self::from_fds(fds, own_id, launcher.add_pool(), sandboxes, caches)
            }
            Some((HelperMessage::Refused { message, hint, .. }, _)) if no_namespaces::is_tolerated(&tolerated) => {
                Self::in_host_dir(&host, message, hint, launcher.add_pool())
            }
            Some((HelperMessage::Refused { control, message, hint }, _)) => {
                Err(SandboxError::RunSpaceRefused { control, message, hint: with_best_effort_hint(&hint) })
            }
            other => Err(SandboxError::Protocol(format!("{other:?}"))),
        }
    }
}

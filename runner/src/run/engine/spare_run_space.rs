//! Creates an empty run space before a run asks for it, because creating one takes a process.

use std::sync::{Mutex, MutexGuard, PoisonError};

use proctor_sandbox::{Launcher, RunSpace, RunSpaceConfig};

/// The prepared run space, if there is one.
#[derive(Debug, Default)]
pub(super) struct SpareRunSpace(Mutex<Option<(RunSpaceConfig, RunSpace)>>);

impl SpareRunSpace {
    /// Returns the prepared run space if it has these settings.
    pub(super) fn take(&self, config: &RunSpaceConfig) -> Option<RunSpace> {
        self.lock().take_if(|(of, _)| of == config).map(|(_, space)| space)
    }

    /// Prepares a run space with these settings. If that fails, the next run creates its own and reports the error.
    pub(super) fn prepare(&self, launcher: &Launcher, config: RunSpaceConfig) {
        if self.lock().as_ref().is_some_and(|(of, _)| *of == config) {
            return;
        }
        match RunSpace::create(launcher, config.clone()) {
            Ok(space) => {
                tracing::debug!("a new run space is prepared for the next run");
                self.keep(config, space);
            }
            Err(error) => tracing::debug!(%error, "no run space could be prepared for the next run"),
        }
    }

    /// Keeps the run space of a run in which no layer was ever made.
    pub(super) fn keep_unused(&self, config: RunSpaceConfig, space: RunSpace) {
        tracing::debug!("the unused run space is kept for the next run");
        self.keep(config, space);
    }

    fn keep(&self, config: RunSpaceConfig, space: RunSpace) {
        // On disk, an unused run space would remain after a kill.
        if space.is_in_memory() {
            let other = self.lock().replace((config, space));
            drop(other);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<(RunSpaceConfig, RunSpace)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! A place for layers that is made before a run asks for it: making one takes a process. It is empty, and knows
//! nothing of any run.

use std::sync::{Mutex, MutexGuard, PoisonError};

use proctor_sandbox::{Launcher, RunSpace, RunSpaceConfig};

/// The place that waits, if one does.
#[derive(Debug, Default)]
pub(super) struct Spare(Mutex<Option<(RunSpaceConfig, RunSpace)>>);

impl Spare {
    /// The place, where it was made by just this.
    pub(super) fn take(&self, config: &RunSpaceConfig) -> Option<RunSpace> {
        self.slot().take_if(|(of, _)| of == config).map(|(_, space)| space)
    }

    /// Has one made by `config` wait. Without it the next run makes its own, and tells what is in the way.
    pub(super) fn fill(&self, launcher: &Launcher, config: RunSpaceConfig) {
        if self.slot().as_ref().is_some_and(|(of, _)| *of == config) {
            return;
        }
        match RunSpace::create(launcher, config.clone()) {
            // On a disk it would stay there after a kill, for no run's sake.
            Ok(space) if space.is_in_memory() => {
                let other = self.slot().replace((config, space));
                drop(other);
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "no place for layers waits for the next run"),
        }
    }

    fn slot(&self) -> MutexGuard<'_, Option<(RunSpaceConfig, RunSpace)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

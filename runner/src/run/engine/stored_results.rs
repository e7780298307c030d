//! Opens the stored results of steps for a run.

use proctor_sandbox::StepUser;

use super::Engine;
use crate::step::reuse::{ReuseConfig, ReuseRequest, StepReuse};

impl Engine {
    /// Opens the stored results of steps. Without them, every step is executed.
    pub(super) fn open_reuse(&self, request: Option<ReuseRequest>, user: StepUser) -> Option<StepReuse> {
        let settings = self.config.operator.reuse;
        let config = ReuseConfig {
            settings,
            request: request?,
            max_store_bytes: self.config.operator.daemon.retention.max_result_bytes,
            helper: &self.config.helpers.sandbox,
            user: user.ids_in_sandbox(),
            clock: self.clock,
        };
        if !settings.enabled {
            return None;
        }
        let opened = StepReuse::open(&self.state, &self.state_path, &config);
        opened.inspect_err(|error| tracing::warn!(%error, "results of steps cannot be stored or reused")).ok()
    }
}

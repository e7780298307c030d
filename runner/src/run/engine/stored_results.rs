//! Opens the stored results of steps for a run.

use proctor_sandbox::StepUser;

use super::Engine;
use crate::error::one_line;
use crate::step::reuse::{ReuseConfig, ReuseRequest, StepReuse};

/// The reason why no result is reused if the operator disables it.
pub(super) const DISABLED_BY_OPERATOR: &str =
    "the operator's config disables the reuse of results (`[reuse] enabled = false`)";

impl Engine {
    /// Opens the stored results of steps. Without them, every step is executed.
    ///
    /// # Errors
    /// The reason why there are none.
    pub(super) fn open_reuse(&self, request: ReuseRequest, user: StepUser) -> Result<StepReuse, String> {
        let settings = self.config.operator.reuse;
        let config = ReuseConfig {
            settings,
            request,
            max_store_bytes: self.config.operator.daemon.retention.max_result_bytes,
            helper: &self.config.helpers.sandbox,
            user: user.ids_in_sandbox(),
            clock: self.clock,
        };
        if !settings.enabled {
            return Err(DISABLED_BY_OPERATOR.to_owned());
        }
        StepReuse::open(&self.state, &self.state_path, &config).map_err(|error| {
            tracing::warn!(%error, "results of steps cannot be stored or reused");
            format!("the stored results cannot be opened: {}", one_line(&error))
        })
    }
}

//! Opens the stored results of steps for a run.

use proctor_core::reuse::ReuseObstacle;
use proctor_sandbox::StepUser;

use super::Engine;
use crate::error::one_line;
use crate::step::reuse::{ReuseConfig, ReuseRequest, StepReuse};

/// The reason why no result is reused if the operator disables it.
pub(super) const DISABLED_BY_OPERATOR: &str =
    "the operator's config disables the reuse of results (`[reuse] enabled = false`)";

/// The reason why no result is reused in a run without all controls.
const NOT_STRICT: &str = "controls of the sandbox may be missing (`--sandbox=best-effort`)";

impl Engine {
    /// Opens the stored results of steps for a run over a private copy of the tree or over the worktree itself. Without
    /// them, every step is executed.
    ///
    /// # Errors
    /// The reason why there are none.
    pub(super) fn open_reuse(
        &self,
        request: Option<ReuseRequest>,
        user: StepUser,
        is_private_copy: bool,
    ) -> Result<StepReuse, String> {
        let Some(request) = request else { return Err(NOT_STRICT.to_owned()) };
        if !is_private_copy {
            return Err(ReuseObstacle::SharedTree.to_string());
        }
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

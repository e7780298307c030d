//! Opens the stored results of steps for a run.

use std::sync::Arc;

use proctor_core::api::RemoteCacheCheck;
use proctor_core::reuse::ReuseObstacle;
use proctor_sandbox::StepUser;

use super::Engine;
use super::shared_results_cache::portable_programs;
use crate::error::one_line;
use crate::shared_results::{PortableIdentity, SharedRun};
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
    /// The reason why stored results are neither used nor created.
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
            shared: self.open_shared(),
            decoded: Arc::clone(&self.decoded_results),
        };
        if !settings.enabled {
            return Err(DISABLED_BY_OPERATOR.to_owned());
        }
        StepReuse::open(&self.state, &self.state_path, config).map_err(|error| {
            tracing::warn!(%error, "results of steps cannot be stored or reused");
            format!("the stored results cannot be opened: {}", one_line(&error))
        })
    }

    /// Checks the server of the remote cache and its keys; `None` without a remote cache.
    pub async fn check_remote_cache(&self) -> Option<RemoteCacheCheck> {
        let settings = self.config.operator.remote_cache.as_ref()?;
        let opened = self.shared_results.open(settings);
        let (signing_key, trusted_keys) = opened.as_ref().map_or_else(
            |_| (None, Vec::new()),
            |results| (results.signing_key().cloned(), results.trusted_keys().cloned().collect()),
        );
        let problem = match opened {
            Ok(results) => results.check().await.err().map(|error| error.to_string()),
            Err(problem) => Some(problem),
        };
        Some(RemoteCacheCheck { endpoint: settings.server.endpoint.clone(), signing_key, trusted_keys, problem })
    }

    /// Returns the exchange of results with other machines for a run; `None` without a remote cache.
    fn open_shared(&self) -> Option<SharedRun> {
        let settings = self.config.operator.remote_cache.as_ref()?;
        let hashes = self.shared_results.hashes(&self.state);
        let programs = portable_programs(&hashes, &self.config.helpers.sandbox, self.clock);
        let (results, programs) = match (self.shared_results.open(settings), programs) {
            (Ok(results), Ok(programs)) => (Ok(results), programs),
            (Err(problem), _) | (Ok(_), Err(problem)) => (Err(problem), String::new()),
        };
        let identity = PortableIdentity { programs, ignored: settings.ignore_machine.clone() };
        Some(SharedRun::new(&settings.server.endpoint, results, hashes, identity))
    }
}

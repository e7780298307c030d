//! Opens the cluster of the operator's config for a run. The runs of a process share the connection.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use proctor_core::api::RemoteExecutorCheck;
use proctor_core::model::plan::Plan;
use proctor_core::spec::ExecutorMode;
use proctor_core::text::canonical;
use proctor_core::text::digest::Sha256Hex;
use proctor_remote::BlobDigest;

use super::Engine;
use crate::error::one_line;
use crate::remote_steps::{AgentProgram, GitObjectSource, RemoteExecutor, RemoteRun};
use crate::run::run_context::RunContext;
use crate::shared_results::stamp_of;

impl Engine {
    /// Lets the steps of a run use the cluster of the config, if there is one.
    pub(super) fn set_remote_executor(&self, context: &RunContext, plan: &Plan) {
        if let Some(remote) = self.open_remote_executor(plan) {
            context.remote.get_or_init(|| remote);
        }
    }

    /// Returns the cluster for a run of `plan`; `None` if its steps run on this machine.
    fn open_remote_executor(&self, plan: &Plan) -> Option<RemoteRun> {
        let settings = self.config.operator.remote_executor.as_ref()?;
        if settings.mode == ExecutorMode::Local {
            return None;
        }
        let opened = self.remote_clients.client(settings).map_err(|error| one_line(&error));
        let executor = opened.and_then(|client| {
            let agent = settings.agent.as_deref().unwrap_or(&self.config.helpers.sandbox);
            Ok(RemoteExecutor::new(client, settings.clone(), self.agent_program(agent)?))
        });
        let reader = Arc::clone(&self.remote_clients.git_objects);
        let git = GitObjectSource { helper: self.helper.clone(), reader };
        Some(RemoteRun::new(settings.clone(), executor, git, plan))
    }

    /// Returns a digest of the tools that steps find on this machine, and of the cluster that can execute them. The tools of
    /// workers are not known before their steps run.
    pub(super) fn with_cluster(&self, tools: Sha256Hex) -> Sha256Hex {
        let settings = self.config.operator.remote_executor.as_ref();
        let Some(settings) = settings.filter(|settings| settings.mode != ExecutorMode::Local) else { return tools };
        let agent = self.agent_program(settings.agent.as_deref().unwrap_or(&self.config.helpers.sandbox));
        let agent = agent.ok().map(|agent| agent.digest.sha256);
        let cluster = (
            (&settings.server.endpoint, &settings.server.instance, settings.mode, settings.trust_workers),
            (&settings.platform, &settings.container_property, &settings.path, &settings.may_miss),
        );
        Sha256Hex::digest(&canonical::to_vec(&(tools, agent, cluster)))
    }

    /// Checks the cluster; `None` without one.
    pub async fn check_remote_executor(&self) -> Option<RemoteExecutorCheck> {
        let settings = self.config.operator.remote_executor.as_ref()?;
        let problem = match self.remote_clients.client(settings).map_err(|error| one_line(&error)) {
            Ok(client) => match client.capabilities().await {
                Ok(capabilities) if capabilities.executes => {
                    self.agent_program(settings.agent.as_deref().unwrap_or(&self.config.helpers.sandbox)).err()
                }
                Ok(_) => Some("the server executes no actions".to_owned()),
                Err(error) => Some(one_line(&error)),
            },
            Err(problem) => Some(problem),
        };
        let (endpoint, mode) = (settings.server.endpoint.clone(), settings.mode);
        Some(RemoteExecutorCheck { endpoint, mode, trust_workers: settings.trust_workers, problem })
    }

    /// Describes the agent program. Its digest is remembered as long as the file does not change.
    fn agent_program(&self, path: &Path) -> Result<AgentProgram, String> {
        let failed = |error: std::io::Error| format!("the agent program `{}` cannot be read: {error}", path.display());
        let path = fs::canonicalize(path).map_err(failed)?;
        let metadata = fs::metadata(&path).map_err(failed)?;
        let now_ns = i64::try_from(self.clock.now_ns()).unwrap_or(i64::MAX);
        let hash = self.shared_results.hashes(&self.state).hash(&path, &stamp_of(&metadata), now_ns);
        let Some(hash) = hash else { return Err(format!("the agent program `{}` cannot be read", path.display())) };
        let digest = BlobDigest { sha256: Sha256Hex::from_raw(hash), bytes: metadata.len() };
        Ok(AgentProgram { path, digest })
    }
}

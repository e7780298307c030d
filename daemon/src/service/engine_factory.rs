//! Engines configured for one caller.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use proctor_core::api::Problem;
use proctor_core::spec::OperatorConfig;
use proctor_runner::{Engine, EngineCaller};

use super::{Service, run_blocking};
use crate::caller::{Account, Caller, CallerPolicy};

/// Creates engines for callers; usable on a blocking thread.
pub(super) struct EngineFactory {
    caller_policy: CallerPolicy,
    engine: Arc<Engine>,
    operator: Arc<OperatorConfig>,
}

impl EngineFactory {
    /// Returns the engine for a caller, the caller's account, and the canonical path of the repository. Blocks on the
    /// disk.
    ///
    /// # Errors
    /// The repository does not belong to the caller, or the caller has no account.
    pub(super) fn engine_for(
        &self,
        caller: Caller,
        repo: &str,
        env: Option<BTreeMap<String, String>>,
    ) -> Result<(Engine, Account, PathBuf), Problem> {
        let path = self.caller_policy.repository(caller, repo)?;
        let account = self.caller_policy.account(caller, env)?;
        let Account { home, env } = account.clone();
        let owner = self.caller_policy.required_owner(caller);
        let serving = EngineCaller { home, env, operator: (*self.operator).clone(), owner };
        Ok((self.engine.for_caller(serving), account, path))
    }
}

impl Service {
    /// Returns the engine for a caller, the caller's account, and the canonical path of the repository.
    pub(super) async fn engine_for(
        &self,
        caller: Caller,
        repo: &str,
        env: Option<BTreeMap<String, String>>,
    ) -> Result<(Arc<Engine>, Account, PathBuf), Problem> {
        let (engines, repo) = (self.engine_factory(), repo.to_owned());
        run_blocking(move || {
            let (engine, account, path) = engines.engine_for(caller, &repo, env)?;
            Ok((Arc::new(engine), account, path))
        })
        .await?
    }

    /// Returns a factory with the current operator settings.
    pub(super) fn engine_factory(&self) -> EngineFactory {
        let (policy, engine) = (self.caller_policy.clone(), Arc::clone(&self.engine));
        EngineFactory { caller_policy: policy, engine, operator: self.operator() }
    }
}

//! Engines as they serve one caller of many.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use proctor_core::api::Problem;
use proctor_core::spec::Operator;
use proctor_runner::{Engine, Serving};

use super::{Service, apart};
use crate::caller::{Account, Caller, Household};

/// Makes the engines that serve callers, on a thread that may block.
pub(super) struct EngineFactory {
    household: Household,
    engine: Arc<Engine>,
    operator: Arc<Operator>,
}

impl EngineFactory {
    /// Returns the engine as it serves a caller, whose account, and the canonical path of the repository. Blocks on the
    /// disk.
    ///
    /// # Errors
    /// The repository is not the caller's, or the caller has no account.
    pub(super) fn serve(
        &self,
        caller: Caller,
        repo: &str,
        env: Option<BTreeMap<String, String>>,
    ) -> Result<(Engine, Account, PathBuf), Problem> {
        let path = self.household.repository(caller, repo)?;
        let account = self.household.account(caller, env)?;
        let Account { home, env } = account.clone();
        let owner = self.household.owner_for(caller);
        let serving = Serving { home, env, operator: (*self.operator).clone(), owner };
        Ok((self.engine.serving(serving), account, path))
    }
}

impl Service {
    /// The engine as it serves a caller, whose account, and the canonical path of the repository.
    pub(super) async fn serving(
        &self,
        caller: Caller,
        repo: &str,
        env: Option<BTreeMap<String, String>>,
    ) -> Result<(Arc<Engine>, Account, PathBuf), Problem> {
        let (engines, repo) = (self.engines(), repo.to_owned());
        apart(move || {
            let (engine, account, path) = engines.serve(caller, &repo, env)?;
            Ok((Arc::new(engine), account, path))
        })
        .await?
    }

    /// Returns what makes the engines for callers, by the operator's config as it is now.
    pub(super) fn engines(&self) -> EngineFactory {
        let (household, engine) = (self.household.clone(), Arc::clone(&self.engine));
        EngineFactory { household, engine, operator: self.operator() }
    }
}

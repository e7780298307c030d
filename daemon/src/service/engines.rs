//! Engines configured for one caller.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use proctor_core::api::Problem;
use proctor_core::spec::Operator;
use proctor_runner::{Engine, Serving};

use super::{Service, apart};
use crate::caller::{Account, Caller, Household};

/// Creates engines for callers; usable on a blocking thread.
pub(super) struct EngineFactory {
    household: Household,
    engine: Arc<Engine>,
    operator: Arc<Operator>,
}

impl EngineFactory {
    /// Returns the engine for a caller, the caller's account, and the canonical path of the repository. Blocks on the
    /// disk.
    ///
    /// # Errors
    /// The repository does not belong to the caller, or the caller has no account.
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
    /// Returns the engine for a caller, the caller's account, and the canonical path of the repository.
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

    /// Returns a factory with the current operator settings.
    pub(super) fn engines(&self) -> EngineFactory {
        let (household, engine) = (self.household.clone(), Arc::clone(&self.engine));
        EngineFactory { household, engine, operator: self.operator() }
    }
}

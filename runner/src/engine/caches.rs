//! Opens and commits the caches of a run, for the engine.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proctor_core::cache::{CacheEnd, CacheEvidence};
use proctor_core::drift::display_path;
use proctor_core::plan::{Plan, PlannedSkill, RelPath};
use proctor_sandbox::{CacheMount, CacheSource, RepoFacts, RunSpace, StepUser};

use super::Engine;
use crate::context::{Context, EMPTY_DIR};
use crate::error::EngineError;
use crate::repository::Repository;
use crate::request::CachesWanted;
use crate::skill::SkillRun;
use crate::skill_caches::{CacheScopes, Caches, TrustScopes};
use crate::store::StoreError;
use crate::store::caches::{CacheStore, SKILL_CACHES, Scope};
use crate::store::mirrors::PrivateTree;

impl Engine {
    /// Returns the directory of the caches, and creates it; `None` if the plan has no caches.
    pub(super) fn caches_of(&self, plan: &Plan) -> Result<Option<PathBuf>, StoreError> {
        if plan.skills.iter().all(|skill| skill.caches.is_empty()) {
            return Ok(None);
        }
        self.state.ensure(SKILL_CACHES, 0o700)?;
        Ok(Some(self.state_path.join(SKILL_CACHES)))
    }

    /// Returns the caches of a run over `repository`, whose steps see it at `seen_at`. No cache is opened yet.
    pub(super) fn caches(
        &self,
        space: &RunSpace,
        repository: &Repository,
        (seen_at, trust): (&Path, TrustScopes),
        wanted: CachesWanted,
    ) -> Result<Caches, EngineError> {
        let user = space.user(self.launcher.host(), &repository.facts)?;
        Ok(Caches {
            scopes: self.cache_scopes(seen_at, user, trust),
            wanted,
            form: space.cache_form().clone(),
            most: self.config.operator.daemon.retention.caches.max_bytes_per_run,
            user,
            state: self.state.clone(),
            state_path: self.state_path.clone(),
            empty: self.state_path.join(EMPTY_DIR),
            rooms: Default::default(),
        })
    }

    fn cache_scopes(&self, seen_at: &Path, user: StepUser, trust: TrustScopes) -> CacheScopes {
        let caller = self.owner.unwrap_or_else(|| rustix::process::geteuid().as_raw());
        let repository = display_path(seen_at.as_os_str().as_encoded_bytes());
        CacheScopes { caller, owner: user.on_disk().0, repository, trust }
    }

    /// Commits the writes of the skills that passed to their caches; an interrupted run commits none.
    pub(super) async fn conclude_caches(
        &self,
        context: &Arc<Context>,
        plan: &Plan,
        mut runs: Vec<SkillRun>,
        in_doubt: bool,
    ) -> Vec<SkillRun> {
        if plan.skills.iter().all(|skill| skill.caches.is_empty()) {
            return runs;
        }
        let (context, skills) = (Arc::clone(context), plan.skills.clone());
        let in_doubt = in_doubt || context.cancel.is_cancelled();
        let work = tokio::task::spawn_blocking(move || {
            // The lock is held until the caches are committed.
            let (_newest, in_doubt) = match &context.tree.apart {
                Some(tree) => newest_or_in_doubt(tree, in_doubt),
                None => (None, in_doubt),
            };
            context.caches.conclude(&context.space, &skills, &mut runs, in_doubt);
            runs
        });
        let mut runs = match work.await {
            Ok(runs) => runs,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        };
        for (skill, run) in plan.skills.iter().zip(&mut runs) {
            run.caches.iter_mut().for_each(|cache| self.tell_of_cache(skill, cache));
        }
        runs
    }

    /// Removes the caller's secrets from a cache's reason, which contains paths that steps have made, and logs it.
    fn tell_of_cache(&self, skill: &PlannedSkill, cache: &mut CacheEvidence) {
        let Some(reason) = &mut cache.reason else { return };
        self.redactor.clean(reason);
        if matches!(cache.end, CacheEnd::Committed | CacheEnd::Refused) {
            tracing::warn!(skill = %skill.name, cache = %cache.path, end = ?cache.end, "{reason}");
        }
    }

    /// Returns the caches as a run of the worktree would mount them, for `explain`. Creates no cache.
    pub(super) fn preview_caches(
        &self,
        facts: &RepoFacts,
        skill: &PlannedSkill,
        user: StepUser,
        trust: TrustScopes,
    ) -> Result<Vec<CacheMount>, EngineError> {
        if skill.caches.is_empty() {
            return Ok(vec![]);
        }
        let store = CacheStore::open(&self.state, &self.state_path)?;
        let CacheScopes { caller, owner, repository, trust } = self.cache_scopes(&facts.path, user, trust);
        let mount = |(number, at): (usize, &RelPath)| {
            let (skill, path, trust_scope) = (skill.name.to_string(), at.to_string(), trust.own.clone());
            let scope = Scope { caller, owner, repository: repository.clone(), skill, path, trust_scope };
            let lowers = store.peek(&scope, &trust.fallbacks);
            let lowers = if lowers.is_empty() { vec![self.state_path.join(EMPTY_DIR)] } else { lowers };
            let room = self.state_path.join(SKILL_CACHES).join("runs/RUN").join(number.to_string());
            CacheMount { at: at.clone(), source: CacheSource::Layers { room, lowers } }
        };
        Ok(skill.caches.iter().enumerate().map(mount).collect())
    }
}

/// Returns the lock of a repository's copies, and whether the caches of a run over `tree` must not be committed. If
/// there is a newer copy, its files have newer times, and the caches could look newer than a change that they do
/// not include.
fn newest_or_in_doubt(tree: &PrivateTree, in_doubt: bool) -> (Option<OwnedFd>, bool) {
    match tree.lock_if_newest() {
        Ok(Some(lock)) => (Some(lock), in_doubt),
        Ok(None) => (None, true),
        Err(error) => {
            tracing::warn!(%error, "the caches of a run are not committed");
            (None, true)
        }
    }
}

//! Opens and commits the caches of a run, for the engine.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proctor_core::model::cache::{CacheEnd, CacheEvidence};
use proctor_core::model::drift::display_path;
use proctor_core::model::outcome::Outcome;
use proctor_core::model::plan::{Plan, PlannedSkill, RelPath};
use proctor_core::text::redact::Redactor;
use proctor_sandbox::{CacheMount, CacheSource, RunSpace, StepUser};

use super::{Engine, needed_paths};
use crate::error::EngineError;
use crate::host::repository::Repository;
use crate::run::request::CacheMode;
use crate::run::run_context::{EMPTY_DIR, RunContext};
use crate::step::skill_caches::{CacheScopes, RunCaches, TrustScopes};
use crate::step::skill_runner::SkillRun;
use crate::store::StoreError;
use crate::store::caches::{CacheScope, CacheStore, SKILL_CACHES_DIR};
use crate::store::private_copies::PrivateTree;

impl Engine {
    /// Returns the directory of the caches, and creates it; `None` if the plan has no caches and needs no paths.
    pub(super) fn ensure_cache_dir(&self, plan: &Plan) -> Result<Option<PathBuf>, StoreError> {
        if plan.skills.iter().all(|skill| skill.caches.is_empty()) && !needed_paths::needs_paths(plan) {
            return Ok(None);
        }
        self.state.ensure(SKILL_CACHES_DIR, 0o700)?;
        Ok(Some(self.state_path.join(SKILL_CACHES_DIR)))
    }

    /// Returns the caches of a run over `repository`, whose steps see it at `seen_at`. No cache is opened yet.
    pub(super) fn prepare_caches(
        &self,
        space: &RunSpace,
        repository: &Repository,
        (seen_at, trust): (&Path, TrustScopes),
        wanted: CacheMode,
    ) -> Result<RunCaches, EngineError> {
        let user = space.step_user(self.launcher.host(), &repository.facts)?;
        Ok(RunCaches {
            scopes: self.cache_scopes(&repository.spec_root(seen_at), user, trust),
            mode: wanted,
            form: space.cache_form().clone(),
            max_bytes: self.config.operator.daemon.retention.caches.max_bytes_per_run,
            user,
            state: self.state.clone(),
            state_path: self.state_path.clone(),
            empty: self.state_path.join(EMPTY_DIR),
            opened: Default::default(),
        })
    }

    fn cache_scopes(&self, spec_root: &Path, user: StepUser, trust: TrustScopes) -> CacheScopes {
        let caller = self.owner.unwrap_or_else(|| rustix::process::geteuid().as_raw());
        let repository = display_path(spec_root.as_os_str().as_encoded_bytes());
        CacheScopes { caller, owner: user.cache_owner().0, repository, trust }
    }

    /// Commits the writes of the skills that passed to their caches; an interrupted run commits none.
    pub(super) async fn commit_caches(
        &self,
        context: &Arc<RunContext>,
        plan: &Plan,
        mut runs: Vec<SkillRun>,
        is_inconclusive: bool,
    ) -> Vec<SkillRun> {
        if plan.skills.iter().all(|skill| skill.caches.is_empty()) {
            return runs;
        }
        let (redactor, context, skills) = (context.redactor().clone(), Arc::clone(context), plan.skills.clone());
        let in_doubt = is_inconclusive || context.cancel.is_cancelled();
        let work = tokio::task::spawn_blocking(move || {
            // The lock is held until the caches are committed.
            let (_newest, in_doubt) = match &context.tree.private_copy {
                Some(tree) => lock_newest_copy(tree, in_doubt),
                None => (None, in_doubt),
            };
            commit_or_discard_caches(&context, &skills, &mut runs, in_doubt);
            runs
        });
        let mut runs = match work.await {
            Ok(runs) => runs,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        };
        for (skill, run) in plan.skills.iter().zip(&mut runs) {
            run.caches.iter_mut().for_each(|cache| redact_and_log_cache(&redactor, skill, cache));
        }
        runs
    }

    /// Returns the caches as a run of the worktree would mount them, for `explain`. Creates no cache.
    pub(super) fn preview_caches(
        &self,
        repository: &Repository,
        skill: &PlannedSkill,
        user: StepUser,
        trust: TrustScopes,
    ) -> Result<Vec<CacheMount>, EngineError> {
        if skill.caches.is_empty() {
            return Ok(vec![]);
        }
        let store = CacheStore::open(&self.state, &self.state_path)?;
        let CacheScopes { caller, owner, repository, trust } =
            self.cache_scopes(&repository.spec_root(repository.path()), user, trust);
        let mount = |(number, at): (usize, &RelPath)| {
            let (skill, path, trust_scope) = (skill.name.to_string(), at.to_string(), trust.own.clone());
            let scope = CacheScope { caller, owner, repository: repository.clone(), skill, path, trust_scope };
            let lowers = store.peek(&scope, &trust.fallbacks);
            let lowers = if lowers.is_empty() { vec![self.state_path.join(EMPTY_DIR)] } else { lowers };
            let room = self.state_path.join(SKILL_CACHES_DIR).join("runs/RUN").join(number.to_string());
            CacheMount { at: at.clone(), source: CacheSource::Layers { room, lowers } }
        };
        Ok(skill.caches.iter().enumerate().map(mount).collect())
    }
}

/// Commits or discards the writes of all skills, and adds the evidence of each skill's caches to its run. A skill's
/// writes are committed if it passed and there is no reason for an inconclusive result.
fn commit_or_discard_caches(context: &RunContext, plan: &[PlannedSkill], runs: &mut [SkillRun], is_inconclusive: bool) {
    for (planned, run) in plan.iter().zip(runs) {
        // Workers of a cluster see no caches of this machine.
        let ran_here = run.steps.iter().any(|step| step.was_started() && step.cluster().is_none());
        let passed =
            ran_here && run.outcome() == Outcome::Passed && run.inconclusive_reasons.is_empty() && !is_inconclusive;
        let caches = context.caches.commit_or_discard(&context.space, &planned.name, passed);
        // A skill that never started may have open caches, because a sandbox was prepared for it.
        if let Some(caches) = caches.filter(|_| ran_here) {
            run.caches = caches;
        }
    }
}

/// Removes the caller's secrets from a cache's reason, which contains paths that steps have made, and logs it.
fn redact_and_log_cache(redactor: &Redactor, skill: &PlannedSkill, cache: &mut CacheEvidence) {
    let Some(reason) = &mut cache.reason else { return };
    redactor.redact_in_place(reason);
    if matches!(cache.end, CacheEnd::Committed | CacheEnd::Refused) {
        tracing::warn!(skill = %skill.name, cache = %cache.path, end = ?cache.end, "{reason}");
    }
}

/// Returns the lock of a repository's copies, and whether the caches of a run over `tree` must not be committed. If
/// there is a newer copy, its files have newer times, and the caches could look newer than a change that they do
/// not include.
fn lock_newest_copy(tree: &PrivateTree, is_inconclusive: bool) -> (Option<OwnedFd>, bool) {
    match tree.lock_if_newest() {
        Ok(Some(lock)) => (Some(lock), is_inconclusive),
        Ok(None) => (None, true),
        Err(error) => {
            tracing::warn!(%error, "the caches of a run are not committed");
            (None, true)
        }
    }
}

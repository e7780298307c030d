//! Finds the tree of a run and plans the run by the spec in it.

use std::sync::Arc;

use proctor_core::enforcement::Tolerated;
use proctor_core::evidence::TreeKind;
use proctor_core::plan::{Ignored, Limit, Plan, RelPath};
use proctor_sandbox::StepUser;
use tokio_util::sync::CancellationToken;

use super::Engine;
use super::room::isolates;
use crate::error::EngineError;
use crate::guards;
use crate::repository::Repository;
use crate::request::{RunRequest, RunSource};
use crate::source::{Keeping, Source};
use crate::spec_file::SpecFile;
use crate::store::mirrors::Show;

impl Engine {
    /// Finds the tree of a run, and plans the run by the spec in it. A worktree is planned before it is copied: what
    /// cannot run leaves no copy, and the plan says what the copy is to show.
    pub(super) async fn source_and_plan(
        &self,
        repository: &Repository,
        request: &RunRequest,
        tolerated: &Tolerated,
        cancel: &CancellationToken,
    ) -> Result<(Source, SpecFile, Plan), EngineError> {
        self.step_user(repository, repository.path())?;
        let of_worktree = match &request.source {
            RunSource::Worktree => Some(self.planned_for(SpecFile::within(repository)?, request).await?),
            RunSource::Commit { .. } | RunSource::Staged { .. } => None,
        };
        if let Some((_, plan)) = &of_worktree {
            self.admit_plan(repository, plan, tolerated).await?;
        }
        // A copy can take long, and nobody has to wait for it.
        let source = tokio::select! {
            source = self.source(repository, &request.source, of_worktree.as_ref().map(|(_, plan)| plan)) => source?,
            () = cancel.cancelled() => return Err(EngineError::Interrupted),
        };
        if let Some((file, plan)) = of_worktree {
            guards::same_spec_in(&source.repository, &file)?;
            return Ok((source, file, plan));
        }
        let file = SpecFile::within(&source.repository)?.called_as_in(&source);
        let (file, plan) = self.planned_for(file, request).await?;
        self.admit_plan(repository, &plan, tolerated).await?;
        Ok((source, file, plan))
    }

    async fn planned_for(&self, file: SpecFile, request: &RunRequest) -> Result<(SpecFile, Plan), EngineError> {
        let plan = self.planned(&file, &request.profile)?.plan;
        guards::expected(&plan, request, &file)?;
        Ok((file, plan))
    }

    async fn admit_plan(&self, repo: &Repository, plan: &Plan, tolerated: &Tolerated) -> Result<(), EngineError> {
        if isolates(plan) { self.admit(repo, tolerated).await } else { Ok(()) }
    }

    /// Prepares the tree that is verified.
    async fn source(
        &self,
        repository: &Repository,
        asked: &RunSource,
        plan: Option<&Plan>,
    ) -> Result<Source, EngineError> {
        let (repository, helper, asked) = (repository.clone(), self.helper.clone(), asked.clone());
        let settings = self.config.operator.tree;
        let except = plan.map(caches_of_all_skills).unwrap_or_default();
        let hides = plan.is_some_and(|plan| plan.ignored == Ignored::Hidden);
        let rights = guards::rights_of(StepUser::choose(self.launcher.host(), &repository.facts)?);
        let launcher = Arc::clone(&self.launcher);
        let (state, state_path, snapshots) = (self.state.clone(), self.state_path.clone(), Arc::clone(&self.snapshots));
        let work = tokio::task::spawn_blocking(move || {
            let show = Show {
                ignored: (!hides).then_some(&except),
                rights,
                max_entries: usize::try_from(bound_of(settings.max_entries)).unwrap_or(usize::MAX),
                max_bytes: bound_of(settings.max_bytes),
            };
            let show = (settings.mode == TreeKind::Private).then_some(show);
            let keeping = Keeping {
                helper: &helper,
                snapshots: &snapshots,
                state: &state,
                state_path: &state_path,
                host: launcher.host(),
                show,
            };
            Source::open(&repository, &asked, &keeping)
        });
        work.await.map_err(|error| EngineError::Internal(format!("preparing the tree ended badly: {error}")))?
    }
}

/// Returns the caches that every skill of a plan has: no step sees anything else at these paths.
fn caches_of_all_skills(plan: &Plan) -> Vec<RelPath> {
    let Some((first, others)) = plan.skills.split_first() else { return Vec::new() };
    let is_in_all = |cache: &&RelPath| others.iter().all(|skill| skill.caches.contains(cache));
    first.caches.iter().filter(is_in_all).cloned().collect()
}

fn bound_of(limit: Limit) -> u64 {
    match limit {
        Limit::Max(most) => most,
        Limit::Unlimited => u64::MAX,
    }
}

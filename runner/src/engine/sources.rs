//! Finds the tree of a run, and plans the run from the spec in it.

use std::path::PathBuf;
use std::sync::Arc;

use proctor_core::digest::Sha256Hex;
use proctor_core::enforcement::Tolerated;
use proctor_core::evidence::{TreeKind, TreeSource};
use proctor_core::plan::{Ignored, Limit, Plan, RelPath};
use proctor_core::spec::TreeSettings;
use proctor_sandbox::{Launcher, StepUser};
use proctor_snapshot::{GitHelper, Snapshot, SnapshotStore, StepRights};
use tokio_util::sync::CancellationToken;

use super::Engine;
use super::room::isolates;
use crate::error::EngineError;
use crate::guards;
use crate::repository::Repository;
use crate::request::{RunRequest, RunSource};
use crate::source::{Keeping, Source, unverified_now};
use crate::spec_file::SpecFile;
use crate::store::directory::Directory;
use crate::store::mirrors::Show;

impl Engine {
    /// Finds the tree of a run, and plans the run from the spec in it. A worktree is planned before it is copied: a
    /// run that is refused then makes no copy, and the plan determines the ignored files of the copy.
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
        // A copy can take long, so a cancellation does not wait for it.
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

    /// Prepares the tree to verify.
    async fn source(
        &self,
        repository: &Repository,
        asked: &RunSource,
        plan: Option<&Plan>,
    ) -> Result<Source, EngineError> {
        let (repository, asked, trees) = (repository.clone(), asked.clone(), self.trees(repository, plan)?);
        let work = tokio::task::spawn_blocking(move || Source::open(&repository, &asked, &trees.keeping()));
        work.await.map_err(|error| EngineError::Internal(format!("preparing the tree ended badly: {error}")))?
    }

    /// Returns the resources for preparing the tree of a run of `plan`.
    fn trees(&self, repository: &Repository, plan: Option<&Plan>) -> Result<Trees, EngineError> {
        let user = StepUser::choose(self.launcher.host(), &repository.facts)?;
        Ok(Trees {
            helper: self.helper.clone(),
            snapshots: Arc::clone(&self.snapshots),
            state: self.state.clone(),
            state_path: self.state_path.clone(),
            launcher: Arc::clone(&self.launcher),
            settings: self.config.operator.tree,
            except: plan.map(caches_of_all_skills).unwrap_or_default(),
            hides: plan.is_some_and(|plan| plan.ignored == Ignored::Hidden),
            rights: guards::rights_of(user),
        })
    }

    /// Returns whether a run of `plan` over the worktree would show its steps the same ignored files as an earlier
    /// run. Returns `false` if the earlier files are not recorded, or if the lock is not free in time. `now` is the
    /// worktree.
    pub(super) fn shows_the_same(
        &self,
        (repository, now): (&Repository, &Snapshot),
        plan: &Plan,
        earlier: InputsSeen<'_>,
    ) -> Result<bool, EngineError> {
        match earlier.source {
            TreeSource::Rev { .. } => return Ok(true),
            // The ignored files that these steps saw are not recorded.
            TreeSource::Worktree { tree: TreeKind::Shared } => return Ok(false),
            TreeSource::Worktree { tree: TreeKind::Private } => {}
        }
        let trees = self.trees(repository, Some(plan))?;
        match earlier.unverified_sha256 {
            None => Ok(trees.hides && trees.settings.mode == TreeKind::Private),
            Some(_) if trees.hides => Ok(false),
            Some(then) => Ok(unverified_now(repository, &trees.keeping(), now)?.as_ref() == Some(then)),
        }
    }
}

/// The files that the steps of a run could see besides the snapshot.
#[derive(Debug, Clone, Copy)]
pub(super) struct InputsSeen<'a> {
    /// The tree of the run.
    pub(super) source: &'a TreeSource,
    /// sha256 of the list of ignored files that the steps could see; `None` if they saw none.
    pub(super) unverified_sha256: Option<&'a Sha256Hex>,
}

/// The resources for preparing the tree of a run.
struct Trees {
    helper: GitHelper,
    snapshots: Arc<SnapshotStore>,
    state: Directory,
    state_path: PathBuf,
    launcher: Arc<Launcher>,
    settings: TreeSettings,
    /// Paths whose ignored files are left out.
    except: Vec<RelPath>,
    /// True if all ignored files are hidden.
    hides: bool,
    rights: Option<StepRights>,
}

impl Trees {
    fn keeping(&self) -> Keeping<'_> {
        let show = Show {
            ignored: (!self.hides).then_some(&self.except),
            rights: self.rights,
            max_entries: usize::try_from(bound_of(self.settings.max_entries)).unwrap_or(usize::MAX),
            max_bytes: bound_of(self.settings.max_bytes),
        };
        Keeping {
            helper: &self.helper,
            snapshots: &self.snapshots,
            state: &self.state,
            state_path: &self.state_path,
            host: self.launcher.host(),
            show: (self.settings.mode == TreeKind::Private).then_some(show),
        }
    }
}

/// Returns the caches that every skill of a plan has: they cover these paths in each step.
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

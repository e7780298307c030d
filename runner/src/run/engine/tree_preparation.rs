//! Finds the tree of a run, and plans the run from the spec in it.

use std::path::PathBuf;
use std::sync::Arc;

use proctor_core::model::enforcement::Tolerated;
use proctor_core::model::plan::{Ignored, Limit, Plan, PlannedSkill, RelPath};
use proctor_core::record::evidence::{TreeKind, TreeSource};
use proctor_core::spec::TreeSettings;
use proctor_core::text::digest::Sha256Hex;
use proctor_git::helper::GitHelper;
use proctor_sandbox::{Launcher, StepUser};
use proctor_snapshot::{Snapshot, SnapshotStore, StepRights};
use tokio_util::sync::CancellationToken;

use super::Engine;
use super::resource_needs::needs_network_isolation;
use crate::error::EngineError;
use crate::host::repository::Repository;
use crate::host::spec_file::SpecFile;
use crate::run::preflight;
use crate::run::prepared_tree::{PreparedTree, current_unverified_digest};
use crate::run::request::{RunRequest, RunSource};
use crate::store::directory::Directory;
use crate::store::private_copies::{CopyContent, TreeResources};

impl Engine {
    /// Finds the tree of a run, and plans the run from the spec in it. A worktree is planned before it is copied: a
    /// run that is refused then makes no copy, and the plan determines the ignored files of the copy.
    pub(super) async fn prepare_tree_and_plan(
        &self,
        repository: &Repository,
        request: &RunRequest,
        tolerated: &Tolerated,
        cancel: &CancellationToken,
    ) -> Result<(PreparedTree, SpecFile, Plan), EngineError> {
        self.step_user(repository, repository.path())?;
        let of_worktree = match &request.source {
            RunSource::Worktree => Some(self.plan_for_request(SpecFile::read_in(repository)?, request).await?),
            RunSource::Commit { .. } | RunSource::Staged(_) => None,
        };
        if let Some((_, plan)) = &of_worktree {
            self.admit_plan(repository, plan, tolerated).await?;
        }
        // A copy can take long, so a cancellation does not wait for it.
        let source = tokio::select! {
            source = self.prepare_tree(repository, &request.source, of_worktree.as_ref().map(|(_, plan)| plan)) => source?,
            () = cancel.cancelled() => return Err(EngineError::Interrupted),
        };
        if let Some((file, plan)) = of_worktree {
            preflight::require_same_spec_in_copy(&source.repository, &file)?;
            return Ok((source, file, plan));
        }
        let file = SpecFile::read_in(&source.repository)
            .map_err(|error| missing_in_commit(error, &request.source, &source))?;
        let file = file.named_for(&source);
        let (file, plan) = self.plan_for_request(file, request).await?;
        self.admit_plan(repository, &plan, tolerated).await?;
        Ok((source, file, plan))
    }

    async fn plan_for_request(&self, file: SpecFile, request: &RunRequest) -> Result<(SpecFile, Plan), EngineError> {
        let plan = self.parse_and_resolve(&file, &request.profile)?.plan;
        preflight::require_expected_plan(&plan, request, &file)?;
        Ok((file, plan))
    }

    async fn admit_plan(&self, repo: &Repository, plan: &Plan, tolerated: &Tolerated) -> Result<(), EngineError> {
        if needs_network_isolation(plan) { self.require_controls(repo, tolerated).await } else { Ok(()) }
    }

    /// Prepares the tree to verify.
    async fn prepare_tree(
        &self,
        repository: &Repository,
        source: &RunSource,
        plan: Option<&Plan>,
    ) -> Result<PreparedTree, EngineError> {
        let (repository, requested, trees) =
            (repository.clone(), source.clone(), self.tree_resources(repository, plan)?);
        let work =
            tokio::task::spawn_blocking(move || PreparedTree::prepare(&repository, &requested, &trees.as_resources()));
        work.await.map_err(|error| EngineError::Internal(format!("preparing the tree failed unexpectedly: {error}")))?
    }

    /// Returns the resources for preparing the tree of a run of `plan`.
    fn tree_resources(&self, repository: &Repository, plan: Option<&Plan>) -> Result<OwnedTreeResources, EngineError> {
        let user = StepUser::choose(self.launcher.host(), &repository.facts)?;
        Ok(OwnedTreeResources {
            helper: self.helper.clone(),
            snapshots: Arc::clone(&self.snapshots),
            state: self.state.clone(),
            state_path: self.state_path.clone(),
            launcher: Arc::clone(&self.launcher),
            settings: self.config.operator.tree,
            excluded: plan.map(common_mounts).unwrap_or_default(),
            hides_ignored: plan.is_some_and(|plan| plan.ignored == Ignored::Hidden),
            rights: preflight::step_rights(user),
        })
    }

    /// Returns whether a run of `plan` over the worktree would show its steps the same ignored files as an earlier
    /// run. Returns `false` if the earlier files are not recorded, or if the lock is not free in time. `now` is the
    /// worktree.
    pub(super) fn shows_same_inputs(
        &self,
        (repository, now): (&Repository, &Snapshot),
        plan: &Plan,
        earlier: VisibleInputs<'_>,
    ) -> Result<bool, EngineError> {
        match earlier.source {
            TreeSource::Rev { .. } => return Ok(true),
            // The ignored files that these steps saw are not recorded.
            TreeSource::Worktree { tree: TreeKind::Shared } => return Ok(false),
            TreeSource::Worktree { tree: TreeKind::Private } => {}
        }
        let trees = self.tree_resources(repository, Some(plan))?;
        match earlier.unverified_sha256 {
            None => Ok(trees.hides_ignored && trees.settings.mode == TreeKind::Private),
            Some(_) if trees.hides_ignored => Ok(false),
            Some(then) => Ok(current_unverified_digest(repository, &trees.as_resources(), now)?.as_ref() == Some(then)),
        }
    }
}

/// The files that the steps of a run could see besides the snapshot.
#[derive(Debug, Clone, Copy)]
pub(super) struct VisibleInputs<'a> {
    /// The tree of the run.
    pub(super) source: &'a TreeSource,
    /// sha256 of the list of ignored files that the steps could see; `None` if they saw none.
    pub(super) unverified_sha256: Option<&'a Sha256Hex>,
}

/// The resources for preparing the tree of a run.
struct OwnedTreeResources {
    helper: GitHelper,
    snapshots: Arc<SnapshotStore>,
    state: Directory,
    state_path: PathBuf,
    launcher: Arc<Launcher>,
    settings: TreeSettings,
    /// Paths whose ignored files are left out.
    excluded: Vec<RelPath>,
    /// True if all ignored files are hidden.
    hides_ignored: bool,
    rights: Option<StepRights>,
}

/// Replaces the path of a missing spec in a private copy: that path means nothing to the user.
fn missing_in_commit(error: EngineError, source: &RunSource, tree: &PreparedTree) -> EngineError {
    let name = match (&error, source) {
        (EngineError::NoSpec(_), RunSource::Commit { id, .. }) => format!("commit {}", id.get(..12).unwrap_or(id)),
        (EngineError::NoSpec(_), RunSource::Staged(_)) => "the commit of the staged changes".to_owned(),
        _ => return error,
    };
    EngineError::NoSpecInCommit { tree: name, path: tree.repository.spec_path() }
}

impl OwnedTreeResources {
    fn as_resources(&self) -> TreeResources<'_> {
        let show = CopyContent {
            ignored: (!self.hides_ignored).then_some(&self.excluded),
            rights: self.rights,
            max_entries: usize::try_from(limit_or_max(self.settings.max_entries)).unwrap_or(usize::MAX),
            max_bytes: limit_or_max(self.settings.max_bytes),
        };
        TreeResources {
            helper: &self.helper,
            snapshots: &self.snapshots,
            state: &self.state,
            state_path: &self.state_path,
            host: self.launcher.host(),
            copy_content: (self.settings.mode == TreeKind::Private).then_some(show),
        }
    }
}

/// Returns the caches and prepared paths that every skill of a plan has: they cover these paths in each step.
fn common_mounts(plan: &Plan) -> Vec<RelPath> {
    let mounts = |skill: &PlannedSkill| -> Vec<RelPath> {
        let prepared = skill.needs_paths.iter().filter(|needed| needed.prepare().is_some()).map(|needed| &needed.path);
        skill.caches.iter().chain(prepared).cloned().collect()
    };
    let Some((first, others)) = plan.skills.split_first() else { return Vec::new() };
    mounts(first).into_iter().filter(|path| others.iter().all(|skill| mounts(skill).contains(path))).collect()
}

fn limit_or_max(limit: Limit) -> u64 {
    match limit {
        Limit::Max(most) => most,
        Limit::Unlimited => u64::MAX,
    }
}

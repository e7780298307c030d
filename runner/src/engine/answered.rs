//! Finds an earlier run that answers a request for a commit, so that nothing has to run. Such a run verified the
//! same tree with the same plan, and found the tools that a run would find now. It may have been a run of the
//! worktree or of any commit.
//!
//! The tree's identity is computed from the commit's own blobs. A clean `git status` of a worktree is not enough,
//! because an index can be manipulated to hide different content.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use proctor_core::attestation::Attestation;
use proctor_core::digest::{Sha256Hex, SnapshotId};
use proctor_core::drift::display_path;
use proctor_core::evidence::TreeSource;
use proctor_core::gate::Demands;
use proctor_core::names::{ProfileName, RunId};
use proctor_core::plan::{Determinism, Network, Plan, PlannedStep, ReadOnly};
use proctor_core::spec;
use proctor_core::status::LastRun;
use proctor_core::telemetry::is_trace_variable;
use proctor_sandbox::StepUser;
use proctor_snapshot::protocol::{CommitContent, CommitRef, RepoPath};

use super::Engine;
use super::sources::InputsSeen;
use crate::context::{Sight, Tree};
use crate::error::EngineError;
use crate::gate::{Asked, Gate, GateRequest};
use crate::repository::Repository;
use crate::spec_file::SpecFile;
use crate::tools::{Committed, ToolSearch, toolchain_env};

/// A request for an earlier run that answers for a commit.
#[derive(Debug, Clone)]
pub struct CommitAsked {
    /// Top directory of the repository's worktree.
    pub repo: PathBuf,
    /// The commit.
    pub commit: CommitRef,
    /// The requirements on the run.
    pub demands: Demands,
}

/// An earlier run that answers a request.
#[derive(Debug, Clone)]
pub struct Earlier {
    /// The run's id.
    pub run_id: RunId,
    /// End time in UTC, RFC 3339.
    pub ended: String,
    /// The plan that a run of the commit would have, which equals that of the earlier run.
    pub plan: Plan,
    /// Digest of the tools, which equals that of the earlier run.
    pub toolchain_env: Sha256Hex,
}

/// A run of the worktree in progress.
#[derive(Debug, Clone)]
pub struct UnderWay {
    /// Top directory of the repository's worktree.
    pub repo: PathBuf,
    /// The profile of the run.
    pub profile: ProfileName,
    /// The tree that the run verifies.
    pub snapshot: SnapshotId,
    /// The recorded source of that tree.
    pub source: TreeSource,
    /// sha256 of the list of ignored files that the run's steps see; `None` if they see none.
    pub unverified_sha256: Option<Sha256Hex>,
}

impl Engine {
    /// Returns the earlier run that answers for a commit, if there is one. Blocks, and runs nothing. The values of
    /// variables that steps take from the caller are not recorded. If [`takes_env`] is true for the plan, the
    /// caller must know that these values were the same in that run.
    ///
    /// # Errors
    /// The repository or the commit cannot be read, or its spec is invalid.
    pub fn answered(&self, asked: &CommitAsked) -> Result<Option<Earlier>, EngineError> {
        let repository = self.repository(&asked.repo)?;
        let CommitContent { snapshot, spec } = self.helper.content(repository.path(), &asked.commit)?;
        let (Some(snapshot), Some(spec)) = (snapshot, spec) else { return Ok(None) };
        let plan = self.plan_of(&asked.commit.id, spec, asked)?;
        if !is_reusable(&plan) {
            return Ok(None);
        }
        let Some((run_id, ended, then)) = self.verified_by(&repository, asked, &plan, &snapshot)? else {
            return Ok(None);
        };
        let Attestation { last_run, toolchain_env_sha256: then, .. } = then;
        if last_run.source.is_worktree() {
            let now = self.snapshots.peek(repository.path())?.now;
            if !self.shows_the_same((&repository, &now), &plan, inputs_of(&last_run))? {
                return Ok(None);
            }
        }
        let now = self.tools_of_commit(&repository, &asked.commit, &plan)?;
        let earlier = Earlier { run_id, ended, plan, toolchain_env: now };
        Ok((then.as_ref() == Some(&earlier.toolchain_env)).then_some(earlier))
    }

    fn plan_of(&self, commit: &str, spec: String, asked: &CommitAsked) -> Result<Plan, EngineError> {
        let bytes = spec.into_bytes();
        let path = format!("{commit}:{}", spec::PATH).into();
        let file = SpecFile { path, sha256: Sha256Hex::of(&bytes), bytes };
        Ok(self.planned(&file, &asked.demands.profile)?.plan)
    }

    /// Returns the run on which the gate passes a worktree, if its steps saw the same ignored files that they would
    /// see now.
    ///
    /// # Errors
    /// Same as [`Gate::ask`].
    pub async fn verified(self: &Arc<Self>, request: GateRequest) -> Result<Option<RunId>, EngineError> {
        let engine = Arc::clone(self);
        let look = move || {
            let Asked { answer, attestation, repository, plan, now } = engine.as_gate().ask_in_full(&request)?;
            let Some(known) = attestation.filter(|_| answer.pass) else { return Ok(None) };
            let is_same = engine.shows_the_same((&repository, &now), &plan, inputs_of(&known.last_run))?;
            Ok(is_same.then_some(known.last_run.run_id))
        };
        apart(look).await
    }

    /// Returns whether a run of the worktree in progress verifies the same tree with the same ignored files as a
    /// new run would.
    ///
    /// # Errors
    /// The worktree or its spec cannot be read.
    pub async fn is_verifying(self: &Arc<Self>, asked: UnderWay) -> Result<bool, EngineError> {
        let engine = Arc::clone(self);
        let look = move || {
            let repository = engine.repository(&asked.repo)?;
            let plan = engine.planned(&SpecFile::within(&repository)?, &asked.profile)?.plan;
            let now = engine.snapshots.peek(repository.path())?.now;
            let seen = InputsSeen { source: &asked.source, unverified_sha256: asked.unverified_sha256.as_ref() };
            Ok(now.id == asked.snapshot && engine.shows_the_same((&repository, &now), &plan, seen)?)
        };
        apart(look).await
    }

    /// Returns the run on which the gate passes the tree: its id, its end time, and our own record of it.
    fn verified_by(
        &self,
        repository: &Repository,
        asked: &CommitAsked,
        plan: &Plan,
        snapshot: &SnapshotId,
    ) -> Result<Option<(RunId, String, Attestation)>, EngineError> {
        let (answer, attestation) = self.as_gate().of_tree(repository, &asked.demands, plan, snapshot, None)?;
        let run = answer.run.filter(|_| answer.pass).zip(attestation);
        Ok(run.map(|(run, known)| (run.run_id, run.timestamp, known)))
    }

    /// Returns a gate that shares this engine's state.
    pub(super) fn as_gate(&self) -> Gate {
        Gate {
            state_dir: self.state_path.clone(),
            snapshots: Arc::clone(&self.snapshots),
            operator: self.config.operator.clone(),
            clock: self.clock,
            owner: self.owner,
        }
    }

    fn tools_of_commit(
        &self,
        repository: &Repository,
        commit: &CommitRef,
        plan: &Plan,
    ) -> Result<Sha256Hex, EngineError> {
        let (sight, user) = self.sight_over(repository)?;
        let repo = repository.path();
        let (host, reader) = (self.launcher.host(), self.reader(user));
        let search = ToolSearch { sight: &sight, repo, tree: repo, committed: None, covered: None, host, reader };
        let wanted = search.wanted_of_the_tree(plan).map_err(|error| unsearchable(&error))?;
        let committed = if wanted.is_empty() { Committed::new() } else { self.committed(repo, commit, wanted)? };
        let search = ToolSearch { committed: Some(&committed), ..search };
        let tools = search.digest(plan).map_err(|error| unsearchable(&error))?;
        Ok(self.toolchain_env(&tools))
    }

    fn committed(&self, repo: &Path, commit: &CommitRef, wanted: Vec<PathBuf>) -> Result<Committed, EngineError> {
        let below = |path: &PathBuf| {
            let parts = path.strip_prefix(repo).unwrap_or(path).components();
            RepoPath(parts.collect::<PathBuf>().as_os_str().as_encoded_bytes().to_vec())
        };
        let files = self.helper.files_of(repo, commit, wanted.iter().map(below).collect())?;
        Ok(wanted.into_iter().zip(files).collect())
    }

    /// Returns the digest of the tools that a run over a tree finds; `None` if the search fails.
    pub(super) fn tools_of_tree(&self, tree: &Tree, sight: &Sight, plan: &Plan) -> Option<Sha256Hex> {
        let user = StepUser::choose(self.launcher.host(), &tree.repository.facts).ok()?;
        let search = ToolSearch {
            sight,
            repo: &tree.seen_at,
            tree: tree.repository.path(),
            committed: None,
            covered: Some(&tree.snapshot),
            host: self.launcher.host(),
            reader: self.reader(user),
        };
        let found = search.digest(plan);
        let found = found.inspect_err(|error| tracing::debug!(%error, "cannot determine which tools a run finds"));
        found.ok().map(|tools| self.toolchain_env(&tools))
    }

    fn toolchain_env(&self, tools: &Sha256Hex) -> Sha256Hex {
        toolchain_env(&self.config.home, &self.config.caller_env, Some(tools))
    }

    pub(super) fn sight_over(&self, repository: &Repository) -> Result<(Sight, StepUser), EngineError> {
        let user = StepUser::choose(self.launcher.host(), &repository.facts)?;
        Ok((self.sight(repository.path(), user, self.config.operator.may_miss.clone())?, user))
    }
}

/// Runs `look`, which reads the disk, on a blocking thread.
async fn apart<T: Send + 'static>(
    look: impl FnOnce() -> Result<T, EngineError> + Send + 'static,
) -> Result<T, EngineError> {
    let work = tokio::task::spawn_blocking(look);
    work.await.map_err(|error| EngineError::Internal(format!("the look ended badly: {error}")))?
}

fn inputs_of(run: &LastRun) -> InputsSeen<'_> {
    let unverified_sha256 = run.unverified_inputs.as_ref().map(|inputs| &inputs.sha256);
    InputsSeen { source: &run.source, unverified_sha256 }
}

pub(super) fn unsearchable(error: &std::io::Error) -> EngineError {
    EngineError::Internal(format!("tools cannot be looked for: {}", display_path(error.to_string().as_bytes())))
}

/// Returns every command of a plan, including its toolchain checks.
pub fn commands(plan: &Plan) -> impl Iterator<Item = &PlannedStep> {
    plan.skills.iter().flat_map(|skill| &skill.steps).chain(plan.toolchain.iter().map(|check| &check.run))
}

/// Returns whether a run of the same plan on the same tree can answer for another one: no step may be
/// nondeterministic, use the network, or change the tree.
pub fn is_reusable(plan: &Plan) -> bool {
    let is_fixed = |step: &PlannedStep| step.network == Network::Deny && step.read_only != ReadOnly::Off;
    plan.skills.iter().all(|skill| skill.determinism != Determinism::D2) && commands(plan).all(is_fixed)
}

/// Returns whether a step of a plan takes variables from the caller. Trace variables do not count: they differ in
/// each run, and no result depends on them.
pub fn takes_env(plan: &Plan) -> bool {
    commands(plan).flat_map(|step| &step.env_allowlist).any(|name| !is_trace_variable(name.as_str()))
}

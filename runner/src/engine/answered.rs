//! Whether an earlier run answers for a commit, so that nothing has to run: one of the very tree that the commit
//! has, of the same plan, which found the tools that a run would find now. Of the worktree, or of any commit.
//!
//! The tree's identity is computed from the commit's own blobs. That git calls a worktree clean is not enough:
//! an index can be made to say so of other bytes.

use std::path::{Path, PathBuf};

use proctor_core::digest::{Sha256Hex, SnapshotId};
use proctor_core::drift::display_path;
use proctor_core::gate::Demands;
use proctor_core::names::RunId;
use proctor_core::plan::{Determinism, Network, Plan, PlannedStep, ReadOnly};
use proctor_core::spec;
use proctor_core::telemetry::is_trace_variable;
use proctor_sandbox::StepUser;
use proctor_snapshot::protocol::{CommitContent, CommitRef, RepoPath};

use super::Engine;
use crate::context::{Sight, Tree};
use crate::error::EngineError;
use crate::gate::Gate;
use crate::repository::Repository;
use crate::spec_file::SpecFile;
use crate::tools::{Committed, ToolSearch, toolchain_env};

/// Which commit an earlier run is to answer for.
#[derive(Debug, Clone)]
pub struct CommitAsked {
    /// The top of the repository's work tree.
    pub repo: PathBuf,
    /// The commit.
    pub commit: CommitRef,
    /// What must hold of the run.
    pub demands: Demands,
}

/// An earlier run that answers.
#[derive(Debug, Clone)]
pub struct Earlier {
    /// The run.
    pub run_id: RunId,
    /// When it ended, RFC 3339 in UTC.
    pub ended: String,
    /// The plan that a run of the commit would have; it is the one that ran.
    pub plan: Plan,
    /// Which tools were found, then and now.
    pub toolchain_env: Sha256Hex,
}

impl Engine {
    /// The earlier run that answers for a commit, where there is one. Blocks; nothing runs. What steps take from
    /// their caller's environment is not on record: where [`takes_env`] says so of the plan, who asks must know
    /// it of the run.
    ///
    /// # Errors
    /// The repository or the commit cannot be read, or its spec cannot be used.
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

    /// The run that the gate passes the tree on: its id, when it ended, and which tools it found.
    fn verified_by(
        &self,
        repository: &Repository,
        asked: &CommitAsked,
        plan: &Plan,
        snapshot: &SnapshotId,
    ) -> Result<Option<(RunId, String, Option<Sha256Hex>)>, EngineError> {
        let (answer, attestation) = self.as_gate().of_tree(repository, &asked.demands, plan, snapshot, None)?;
        let found = attestation.and_then(|known| known.toolchain_env_sha256);
        Ok(answer.run.filter(|_| answer.pass).map(|run| (run.run_id, run.timestamp, found)))
    }

    /// The gate with what this engine knows.
    pub(super) fn as_gate(&self) -> Gate {
        Gate {
            state_dir: self.state_path.clone(),
            snapshots: std::sync::Arc::clone(&self.snapshots),
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

    /// Which tools a run over a tree finds; nothing where that cannot be told.
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

pub(super) fn unsearchable(error: &std::io::Error) -> EngineError {
    EngineError::Internal(format!("tools cannot be looked for: {}", display_path(error.to_string().as_bytes())))
}

/// Every command of a plan, its toolchain checks too.
pub fn commands(plan: &Plan) -> impl Iterator<Item = &PlannedStep> {
    plan.skills.iter().flat_map(|skill| &skill.steps).chain(plan.toolchain.iter().map(|check| &check.run))
}

/// Whether a run of the same plan on the same tree says what another one would: nothing of it may
/// vary, come from the network, or change the tree.
pub fn is_reusable(plan: &Plan) -> bool {
    let is_fixed = |step: &PlannedStep| step.network == Network::Deny && step.read_only != ReadOnly::Off;
    plan.skills.iter().all(|skill| skill.determinism != Determinism::D2) && commands(plan).all(is_fixed)
}

/// Whether a step of a plan takes variables of the caller. A trace context is none of them: it differs in each run,
/// and no result depends on it.
pub fn takes_env(plan: &Plan) -> bool {
    commands(plan).flat_map(|step| &step.env_allowlist).any(|name| !is_trace_variable(name.as_str()))
}

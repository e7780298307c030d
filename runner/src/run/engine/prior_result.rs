//! Finds an earlier run that answers a request for a commit, so that nothing has to run. Such a run verified the
//! same tree with the same plan, and found the tools that a run would find now. It may have been a run of the
//! worktree or of any commit.
//!
//! The tree's identity is computed from the commit's own blobs. A clean `git status` of a worktree is not enough,
//! because an index can be manipulated to hide different content.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proctor_core::decision::gate::GateRequirements;
use proctor_core::model::drift::display_path;
use proctor_core::model::names::{ProfileName, RunId};
use proctor_core::model::plan::{Determinism, NeededPath, Network, Plan, PlannedStep, ReadOnly, RelPath};
use proctor_core::record::attestation::{Attestation, Subject};
use proctor_core::record::evidence::{ResultOrigin, TreeSource};
use proctor_core::record::status::LastRun;
use proctor_core::telemetry::is_trace_variable;
use proctor_core::text::canonical;
use proctor_core::text::digest::{Sha256Hex, SnapshotId};
use proctor_git::files::repo_path::RepoPath;
use proctor_git::protocol::{CommitRef, CommitTreeContent};

use super::Engine;
use super::tree_preparation::VisibleInputs;
use crate::error::EngineError;
use crate::gate::{Gate, GateDecision, GateRequest};
use crate::host::repository::Repository;
use crate::host::spec_file::{SpecFile, commit_include};
use crate::host::tool_search::{CommittedFiles, ToolSearch, toolchain_env};
use crate::step::run_reads;
use crate::store::attestations::Attestations;
use crate::store::results;

/// A request for an earlier run that answers for a commit.
#[derive(Debug, Clone)]
pub struct PriorRunRequest {
    /// The directory of the spec, which is the top of the worktree or in it.
    pub repo: PathBuf,
    /// The directory that contains `spec/` in the commit, which the worktree may lack; `None` for `repo` itself.
    pub spec_dir: Option<RelPath>,
    /// The commit.
    pub commit: CommitRef,
    /// The requirements on the run.
    pub demands: GateRequirements,
}

/// An earlier run that answers a request.
#[derive(Debug, Clone)]
pub struct PriorRun {
    /// The run's id.
    pub run_id: RunId,
    /// End time in UTC, RFC 3339.
    pub ended_at: String,
}

/// A run of the worktree in progress.
#[derive(Debug, Clone)]
pub struct RunInProgress {
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
    /// Returns the earlier run that answers for a commit, if there is one. Blocks, and runs nothing. If the search fails,
    /// no run answers.
    pub fn find_prior_run(&self, request: &PriorRunRequest) -> Option<PriorRun> {
        let failed = |error: &EngineError| tracing::debug!(%error, "cannot determine whether a commit is verified");
        self.search_prior_run(request).inspect_err(failed).ok().flatten()
    }

    /// Opens the repository that contains the directory `repo`, for the spec in `spec_dir` of the tree, or else in `repo`.
    pub(super) fn open_repository_for(
        &self,
        repo: &Path,
        spec_dir: Option<&RelPath>,
    ) -> Result<Repository, EngineError> {
        let repository = self.open_repository(repo)?;
        match spec_dir {
            Some(spec_dir) => repository.for_spec_in(spec_dir.clone()),
            None => Ok(repository),
        }
    }

    fn search_prior_run(&self, request: &PriorRunRequest) -> Result<Option<PriorRun>, EngineError> {
        let repository = self.open_repository_for(&request.repo, request.spec_dir.as_ref())?;
        let spec = RepoPath(repository.spec_path().into_bytes());
        let CommitTreeContent { tree, mut texts, .. } =
            self.helper.content(repository.path(), &request.commit, vec![spec], false)?;
        // Computing the identity of a tree reads its whole content, so first check whether any record can be about this
        // tree.
        let GateRequirements { changeset, profile, .. } = &request.demands;
        let (repository_name, changeset_id) = (repository.record_name(), changeset.clone());
        let subject = Subject { repository: repository_name, changeset_id, profile: profile.clone() };
        if let Some(tree) = tree
            && !Attestations::in_state(&self.state).may_answer_for(&subject, &tree)?
        {
            return Ok(no_prior_run("no passed run of this profile is recorded for its tree"));
        }
        let snapshot = self.helper.content(repository.path(), &request.commit, Vec::new(), true)?.snapshot;
        let (Some(snapshot), Some(spec)) = (snapshot, texts.pop().flatten()) else {
            return Ok(no_prior_run("it has no spec, or its tree cannot be determined"));
        };
        let plan = self.plan_commit(&repository, spec, request)?;
        if !is_reusable(&plan) {
            return Ok(no_prior_run(
                "a step may not be reused (`determinism: D2`, `network: allow` or `read_only: off`)",
            ));
        }
        let Some((run_id, ended_at, then)) = self.gate_passing_run(&repository, request, &plan, &snapshot)? else {
            return Ok(no_prior_run("the gate accepts no recorded run of its tree"));
        };
        if let Some(change) = self.change_since(&then) {
            return Ok(no_prior_run(&change));
        }
        let Attestation { last_run, toolchain_env_sha256: then, step_env_sha256, .. } = then;
        let Some(then) = then else {
            return Ok(no_prior_run("its tools changed, or a step looked at the git directory"));
        };
        if !last_run.source.is_worktree() {
            let inputs: Vec<_> = last_run.unverified_inputs.iter().flat_map(|inputs| &inputs.entries).collect();
            if !self.has_same_mounted_inputs(&repository, &plan, &inputs)? {
                return Ok(no_prior_run("a path of `needs_paths` has changed"));
            }
        } else {
            let now = self.snapshots.take_without_storing(repository.path())?.now;
            if !self.shows_same_inputs((&repository, &now), &plan, recorded_inputs(&last_run))? {
                return Ok(no_prior_run("the earlier run showed different ignored files to its steps"));
            }
        }
        let now = self.commit_tools_digest(&repository, &request.commit, &plan)?;
        if then != now {
            return Ok(no_prior_run("the tools, the home directory or `PATH` have changed"));
        }
        if takes_caller_env(&plan) && step_env_sha256 != Some(self.step_env(&plan)?) {
            return Ok(no_prior_run("a variable that a step takes from the caller has changed"));
        }
        Ok(Some(PriorRun { run_id, ended_at }))
    }

    fn plan_commit(
        &self,
        repository: &Repository,
        spec: String,
        request: &PriorRunRequest,
    ) -> Result<Plan, EngineError> {
        let bytes = spec.into_bytes();
        let path = format!("{}:{}", request.commit.id, repository.spec_path()).into();
        let directory = repository.spec_dir.clone();
        let file = SpecFile { path, sha256: Sha256Hex::digest(&bytes), bytes, directory, included: Vec::new() };
        let file = file.with_includes(repository.spec_path(), |path| {
            commit_include(&self.helper, repository.path(), &request.commit, path)
        })?;
        Ok(self.parse_and_resolve(&file, &request.demands.profile)?.plan)
    }

    /// Returns the run on which the gate passes a worktree, if its steps saw the same ignored files that they would
    /// see now, and if its tools were the same from the request to its end.
    ///
    /// # Errors
    /// Same as [`Gate::check`].
    pub async fn verified_run(self: &Arc<Self>, request: GateRequest) -> Result<Option<RunId>, EngineError> {
        let engine = Arc::clone(self);
        let query = move || {
            let GateDecision { answer, attestation, repository, plan, now } =
                engine.create_gate().check_with_details(&request)?;
            let Some(known) = attestation.filter(|_| answer.pass) else { return Ok(None) };
            if known.toolchain_env_sha256.is_none() || engine.change_since(&known).is_some() {
                return Ok(None);
            }
            let is_same = engine.shows_same_inputs((&repository, &now), &plan, recorded_inputs(&known.last_run))?;
            Ok(is_same.then_some(known.last_run.run_id))
        };
        on_blocking_thread(query).await
    }

    /// Returns whether a run of the worktree in progress verifies the same tree with the same ignored files as a
    /// new run would.
    ///
    /// # Errors
    /// The worktree or its spec cannot be read.
    pub async fn is_verifying(self: &Arc<Self>, run: RunInProgress) -> Result<bool, EngineError> {
        let engine = Arc::clone(self);
        let query = move || {
            let repository = engine.open_repository(&run.repo)?;
            let plan = engine.parse_and_resolve(&SpecFile::read_in(&repository)?, &run.profile)?.plan;
            let now = engine.snapshots.take_without_storing(repository.path())?.now;
            let seen = VisibleInputs { source: &run.source, unverified_sha256: run.unverified_sha256.as_ref() };
            Ok(now.id == run.snapshot && engine.shows_same_inputs((&repository, &now), &plan, seen)?)
        };
        on_blocking_thread(query).await
    }

    /// Returns the run on which the gate passes the tree: its id, its end time, and Proctor's own record of it.
    fn gate_passing_run(
        &self,
        repository: &Repository,
        request: &PriorRunRequest,
        plan: &Plan,
        snapshot: &SnapshotId,
    ) -> Result<Option<(RunId, String, Attestation)>, EngineError> {
        let (answer, attestation) =
            self.create_gate().check_tree(repository, &request.demands, plan, snapshot, None)?;
        let run = answer.run.filter(|_| answer.pass).zip(attestation);
        Ok(run.map(|(run, known)| (run.run_id, run.timestamp, known)))
    }

    /// Returns the reason why the steps of an earlier run could have a different result now, although the tree is the
    /// same.
    fn change_since(&self, run: &Attestation) -> Option<String> {
        if run.observed_results.is_empty() {
            return None;
        }
        let shared = self.config.operator.remote_cache.as_ref();
        let shared = shared.and_then(|settings| self.shared_results.open(settings).ok());
        let trusts = |origin: &ResultOrigin| {
            shared.as_ref().is_some_and(|shared| shared.trusted_keys().any(|key| *key == origin.key_id))
        };
        let change = run_reads::first_change_since(&self.state, &run.observed_results, trusts);
        change.unwrap_or_else(|error| Some(format!("the stored results cannot be read: {error}")))
    }

    /// Returns a gate that shares this engine's state.
    pub(super) fn create_gate(&self) -> Gate {
        Gate {
            state_dir: self.state_path.clone(),
            snapshots: Arc::clone(&self.snapshots),
            operator: self.config.operator.clone(),
            clock: self.clock,
            owner: self.owner,
        }
    }

    fn commit_tools_digest(
        &self,
        repository: &Repository,
        commit: &CommitRef,
        plan: &Plan,
    ) -> Result<Sha256Hex, EngineError> {
        let (host_view, user) = self.host_view_over(repository)?;
        let repo = repository.path();
        let (host, reader) = (self.launcher.host(), self.reader(user));
        let search =
            ToolSearch { host_view: &host_view, repo, tree: repo, committed: None, covered: None, host, reader };
        let wanted = search.tree_candidates(plan).map_err(|error| tool_search_error(&error))?;
        let committed =
            if wanted.is_empty() { CommittedFiles::new() } else { self.read_committed_files(repo, commit, wanted)? };
        let search = ToolSearch { committed: Some(&committed), ..search };
        let tools = search.find(plan).map_err(|error| tool_search_error(&error))?.digest;
        Ok(self.toolchain_env(&self.with_cluster(tools)))
    }

    fn read_committed_files(
        &self,
        repo: &Path,
        commit: &CommitRef,
        wanted: Vec<PathBuf>,
    ) -> Result<CommittedFiles, EngineError> {
        let below = |path: &PathBuf| {
            let parts = path.strip_prefix(repo).unwrap_or(path).components();
            RepoPath(parts.collect::<PathBuf>().as_os_str().as_encoded_bytes().to_vec())
        };
        let files = self.helper.files(repo, commit, wanted.iter().map(below).collect())?;
        Ok(wanted.into_iter().zip(files).collect())
    }

    /// Returns the digest of the variables that the steps of a plan take from the caller; `None` if they take none, or if
    /// the digest cannot be computed.
    pub(super) fn known_step_env(&self, plan: &Plan) -> Option<Sha256Hex> {
        let failed =
            |error: &EngineError| tracing::debug!(%error, "no later run can compare the variables of the steps");
        takes_caller_env(plan).then(|| self.step_env(plan)).and_then(|digest| digest.inspect_err(failed).ok())
    }

    fn step_env(&self, plan: &Plan) -> Result<Sha256Hex, EngineError> {
        let env = &self.config.caller_env;
        let taken: BTreeMap<&str, Option<&String>> = taken_variables(plan).map(|name| (name, env.get(name))).collect();
        let secret = results::state_secret(&self.state)?;
        Ok(Sha256Hex::digest(&[&secret[..], &canonical::to_vec(&taken)].concat()))
    }

    pub(super) fn toolchain_env(&self, tools: &Sha256Hex) -> Sha256Hex {
        toolchain_env(&self.config.home, &self.config.caller_env, Some(tools))
    }
}

/// Logs why no earlier run answers for a commit.
fn no_prior_run(reason: &str) -> Option<PriorRun> {
    tracing::debug!(reason, "no earlier run answers for the commit");
    None
}

/// Runs `look`, which reads the disk, on a blocking thread.
async fn on_blocking_thread<T: Send + 'static>(
    query: impl FnOnce() -> Result<T, EngineError> + Send + 'static,
) -> Result<T, EngineError> {
    let work = tokio::task::spawn_blocking(query);
    work.await.map_err(|error| {
        EngineError::Internal(format!("the search for an earlier result failed unexpectedly: {error}"))
    })?
}

fn recorded_inputs(run: &LastRun) -> VisibleInputs<'_> {
    let unverified_sha256 = run.unverified_inputs.as_ref().map(|inputs| &inputs.sha256);
    VisibleInputs { source: &run.source, unverified_sha256 }
}

pub(super) fn tool_search_error(error: &std::io::Error) -> EngineError {
    EngineError::Internal(format!("tools cannot be searched for: {}", display_path(error.to_string().as_bytes())))
}

/// Returns every command of a plan, including its toolchain checks.
pub fn planned_commands(plan: &Plan) -> impl Iterator<Item = &PlannedStep> {
    plan.skills.iter().flat_map(|skill| &skill.steps).chain(plan.toolchain.iter().map(|check| &check.run))
}

/// Returns whether a run of the same plan on the same tree can answer for another one: no step may be
/// nondeterministic, use the network, or change the tree.
pub fn is_reusable(plan: &Plan) -> bool {
    let is_fixed = |step: &PlannedStep| step.network == Network::Deny && step.read_only != ReadOnly::Off;
    plan.skills.iter().all(|skill| skill.determinism != Determinism::D2) && planned_commands(plan).all(is_fixed)
}

/// Returns whether a step of a plan takes variables from the caller. Trace variables do not count: they differ in
/// each run, and no result depends on them.
pub fn takes_caller_env(plan: &Plan) -> bool {
    taken_variables(plan).next().is_some()
}

fn taken_variables(plan: &Plan) -> impl Iterator<Item = &str> {
    let preparing = plan.skills.iter().flat_map(|skill| &skill.needs_paths).filter_map(NeededPath::prepare);
    let names = planned_commands(plan).chain(preparing).flat_map(|step| &step.env_allowlist);
    names.map(|name| name.as_str()).filter(|name| !is_trace_variable(name))
}

//! Answers queries other than runs: trees, specs, revisions, the gate, stored outputs and the controls of this
//! machine. No query changes a repository.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use proctor_core::api::{CopyReport, StreamView};
use proctor_core::decision::compare::ComparedCommit;
use proctor_core::decision::gate::GateAnswer;
use proctor_core::decision::rerun::Rerun;
use proctor_core::model::drift::ChangeKind;
use proctor_core::model::enforcement::Tolerated;
use proctor_core::model::names::ChangesetId;
use proctor_core::model::plan::{Plan, PlannedSkill, PlannedStep};
use proctor_core::record::evidence::{MAX_REPORT_BYTES, ReportEvidence, TreeSource};
use proctor_core::text::digest::Sha256Hex;
use proctor_git::helper::GitHelper;
use proctor_git::object::object_id::ObjectId;
use proctor_git::protocol::{CommitRef, NamedCommit, StagedCommit, StagedIndex};
use proctor_sandbox::{DoctorReport, StepUser, setup_ops};

use super::admission_findings::AcceptedTools;
use super::run_tools::WorktreeTools;
use super::{Engine, MAX_RANGE};
use crate::error::{EngineError, MissingControl};
use crate::gate::GateRequest;
use crate::host::probe::{ProbeConditions, SandboxProbe};
use crate::host::repository::{Repository, WorktreePlace};
use crate::host::spec_file::SpecFile;
use crate::host::tool_search::FoundTools;
use crate::host::worktree_watch::WorktreeWatch;
use crate::run::preflight;
use crate::run::prepared_tree::worktree_git_dirs;
use crate::run::request::{RunRequest, SandboxPreview, SkillSelection};
use crate::run::rerun;
use crate::run::run_context::TreePaths;
use crate::step::output;
use crate::step::skill_caches::TrustScopes;
use crate::store::documents;
use crate::store::objects::{Objects, StoredPart};
use crate::store::private_copies::copy_maintenance;

/// Maximum number of bytes that are kept of a report. The factor 2 allows for redaction marks, which may be longer
/// than the secret.
const MAX_KEPT_REPORT: usize = 2 * MAX_REPORT_BYTES as usize;

impl Engine {
    /// Returns the spec of a repository.
    ///
    /// # Errors
    /// There is no spec, it cannot be read, or the repository does not belong to the required owner.
    pub fn load_spec(&self, repo: &Path) -> Result<SpecFile, EngineError> {
        SpecFile::read_in(&self.open_repository(repo)?)
    }

    /// Returns whether a person has approved a changeset for tiers above 1, with a regular file
    /// `changes/<id>/APPROVED`.
    ///
    /// # Errors
    /// The repository cannot be read or does not belong to the required owner.
    pub fn is_approved(&self, repo: &Path, changeset: &ChangesetId) -> Result<bool, EngineError> {
        let repository = self.open_repository(repo)?;
        preflight::require_changeset_at_top(&repository, changeset)?;
        Ok(documents::is_approved(&repository, changeset)?)
    }

    /// Returns the part of a repository's whole plan that a run with [`SkillSelection::NotPassed`] would execute now.
    ///
    /// # Errors
    /// No run of the profile is recorded, or the repository or the records cannot be read.
    pub fn select_not_passed(&self, repo: &Path, plan: Plan) -> Result<(Plan, Rerun), EngineError> {
        let repository = self.open_repository(repo)?;
        rerun::select_not_passed(plan, repository.record_name(), (&self.state, &self.state_path))
    }

    /// Returns the part of a whole plan that a request selects.
    pub(super) fn apply_skill_selection(
        &self,
        plan: Plan,
        repository: &Repository,
        request: &RunRequest,
    ) -> Result<(Plan, Option<Rerun>), EngineError> {
        if request.skills == SkillSelection::All {
            return Ok((plan, None));
        }
        let (part, rerun) = rerun::select_not_passed(plan, repository.record_name(), (&self.state, &self.state_path))?;
        Ok((part, Some(rerun)))
    }

    /// Starts to watch the files of a worktree that git does not ignore.
    ///
    /// # Errors
    /// The worktree cannot be listed, or the kernel allows no more watches.
    pub fn watch_worktree(&self, repo: &Path) -> Result<WorktreeWatch, EngineError> {
        let top = WorktreePlace::find(repo).map_or_else(|_| repo.to_path_buf(), |place| place.top);
        WorktreeWatch::start(self.helper.clone(), &top)
    }

    /// Answers whether a tree is verified, without running anything.
    ///
    /// # Errors
    /// Same as [`Gate::check`](crate::Gate::check).
    pub async fn gate(&self, request: GateRequest) -> Result<GateAnswer, EngineError> {
        let gate = self.create_gate();
        let work = tokio::task::spawn_blocking(move || gate.check(&request));
        work.await.map_err(|error| EngineError::Internal(format!("the gate failed unexpectedly: {error}")))?
    }

    /// Returns at most `limit` bytes of a step's stored output, starting at `offset`, and its total length; `None`
    /// if the output is no longer stored.
    ///
    /// # Errors
    /// The output cannot be read.
    pub async fn read_output(
        &self,
        stream: StreamView,
        offset: u64,
        limit: usize,
    ) -> Result<Option<(StoredPart, u64)>, EngineError> {
        let objects = Objects::open(&self.state)?;
        let work = tokio::task::spawn_blocking(move || output::read_part(&objects, &stream, offset, limit));
        let part = work
            .await
            .map_err(|error| EngineError::Internal(format!("reading the output failed unexpectedly: {error}")))?;
        Ok(part?)
    }

    /// Returns the stored content of a report that a step wrote, without the caller's secrets; `None` if it was not
    /// stored or is no longer stored.
    ///
    /// # Errors
    /// The report cannot be read.
    pub async fn read_report(&self, report: &ReportEvidence) -> Result<Option<Vec<u8>>, EngineError> {
        let Some(stream) = StreamView::from_report(report) else { return Ok(None) };
        let part = self.read_output(stream, 0, MAX_KEPT_REPORT).await?;
        Ok(part.map(|(part, _)| part.bytes))
    }

    /// Sets up one sandbox over `repo` as a trial, and stores the result for later runs.
    ///
    /// # Errors
    /// Only for internal failures: missing controls are part of the report.
    pub async fn doctor(&self, repo: &Path) -> Result<DoctorReport, EngineError> {
        let circumstances = self.open_repository(repo).ok().and_then(|repository| self.probe_conditions(&repository));
        let (launcher, repo) = (Arc::clone(&self.launcher), repo.to_path_buf());
        let work = tokio::task::spawn_blocking(move || proctor_sandbox::doctor(&launcher, &repo));
        let report =
            work.await.map_err(|error| EngineError::Internal(format!("the doctor failed unexpectedly: {error}")))?;
        if let Some(circumstances) = circumstances.filter(|_| report.findings.is_empty()) {
            let kept = SandboxProbe::new(circumstances, &report.enforcement).store(&self.state);
            // If storing fails, the next run makes its own trial.
            kept.unwrap_or_else(
                |error| tracing::warn!(%error, "the results of the tests of this machine cannot be stored"),
            );
        }
        Ok(report)
    }

    /// Compares each private copy of `repo` with its record and removes damaged copies. Returns an empty list if `repo`
    /// does not belong to the required owner.
    ///
    /// # Errors
    /// The state directory cannot be read, or a run holds the lock of the copies for too long.
    pub async fn verify_copies(&self, repo: &Path) -> Result<Vec<CopyReport>, EngineError> {
        let Ok(repository) = self.open_repository(repo) else { return Ok(Vec::new()) };
        let (launcher, state) = (Arc::clone(&self.launcher), self.state_path.clone());
        let work = tokio::task::spawn_blocking(move || copy_maintenance::verify(&state, &repository, launcher.host()));
        let verified = work.await.map_err(|error| EngineError::Internal(format!("verifying copies: {error}")))?;
        Ok(verified?)
    }

    /// Refuses a run at once if the machine lacks controls that must not be missing. Problems that only a step can
    /// detect are left to the steps.
    pub(super) async fn require_controls(
        &self,
        repository: &Repository,
        tolerated: &Tolerated,
    ) -> Result<(), EngineError> {
        if *tolerated == Tolerated::all() {
            return Ok(());
        }
        let kept = self.probe_conditions(repository).and_then(|now| SandboxProbe::load(&self.state, &now));
        if kept.is_some_and(|kept| kept.is_sufficient(tolerated)) {
            return Ok(());
        }
        let enforced = self.doctor(repository.path()).await?.enforcement;
        let missing: Vec<MissingControl> = enforced
            .missing()
            .filter(|(control, _)| !tolerated.contains(*control))
            .map(|(control, reason)| MissingControl {
                control,
                reason: reason.to_owned(),
                hint: enforced.hint(control).map(str::to_owned),
            })
            .collect();
        match missing.is_empty() {
            true => Ok(()),
            false => Err(EngineError::ControlsMissing { missing, best_effort: self.config.operator.allow_best_effort }),
        }
    }

    /// Returns the conditions that a trial over this repository depends on; `None` if they cannot be determined, so
    /// that no result is stored.
    fn probe_conditions(&self, repository: &Repository) -> Option<ProbeConditions> {
        ProbeConditions::current(&self.config.helpers.sandbox, repository, self.launcher.control_groups().is_ok()).ok()
    }

    /// Returns the environment and sandbox that a step would get, without running it.
    ///
    /// # Errors
    /// The repository cannot be read.
    pub fn preview_step(
        &self,
        repo: &Path,
        skill: &PlannedSkill,
        step: &PlannedStep,
    ) -> Result<SandboxPreview, EngineError> {
        let repository = self.open_repository(repo)?;
        let facts = repository.facts.clone();
        let user = StepUser::choose(self.launcher.host(), &facts)?;
        let snapshot = self.snapshots.take(&facts.path)?;
        let trust = TrustScopes::new(&TreeSource::SHARED, &snapshot.git, &snapshot.git.common_dir);
        let caches = self.preview_caches(&repository, skill, user, trust)?;
        let host_view = self.host_view(&facts.path, user, self.config.operator.may_miss.clone())?;
        let place = TreePaths { repo: facts.path, checkout: None, git: worktree_git_dirs(&snapshot.git) };
        let (policy, environment) = host_view.policy(place, step, caches);
        let ops = setup_ops(&policy, self.launcher.host(), user);
        Ok(SandboxPreview { environment, policy, ops })
    }

    /// Returns a digest of the tools that a run of `plan` over the worktree finds: the mounts from the host, and
    /// the files of the programs in the plan; and of the cluster that executes steps. Nothing is executed.
    ///
    /// # Errors
    /// The repository cannot be read, or the search for tools fails.
    pub fn tools_digest(&self, repo: &Path, plan: &Plan) -> Result<Sha256Hex, EngineError> {
        let WorktreeTools { tools: FoundTools { digest, is_any_in_tree }, repo, host_view } =
            self.worktree_tools(repo, plan)?;
        let tools = AcceptedTools { plan: plan.digest(), digest: digest.clone(), is_any_in_tree };
        self.admission_findings.keep(&repo, host_view, tools);
        Ok(self.with_cluster(digest))
    }

    /// Returns the commit that an index of `repo` would create, without writing anything.
    ///
    /// # Errors
    /// Paths in the index are in conflict, or it cannot be read.
    pub async fn staged_commit(&self, repo: &Path, index: StagedIndex) -> Result<StagedCommit, EngineError> {
        let (repository, helper) = (self.open_repository(repo)?, self.helper.clone());
        let work = tokio::task::spawn_blocking(move || helper.staged_commit(repository.path(), &index));
        let staged =
            work.await.map_err(|error| EngineError::Internal(format!("the lookup failed unexpectedly: {error}")))?;
        Ok(staged?)
    }

    /// Returns the commits of a revision or a range in `repo`, oldest first.
    ///
    /// # Errors
    /// The revision does not exist, is not a commit, or has more than [`MAX_RANGE`] commits.
    pub async fn resolve_revision(&self, repo: &Path, revision: &str) -> Result<Vec<NamedCommit>, EngineError> {
        let repository = self.open_repository(repo)?;
        let (helper, revision) = (self.helper.clone(), revision.to_owned());
        let work = tokio::task::spawn_blocking(move || helper.resolve(repository.path(), &revision, MAX_RANGE));
        let resolved =
            work.await.map_err(|error| EngineError::Internal(format!("the lookup failed unexpectedly: {error}")))?;
        Ok(resolved?)
    }

    /// Returns the paths at which the trees of two commits differ.
    ///
    /// # Errors
    /// The repository does not have a commit, or cannot be read.
    pub async fn changes_between(
        &self,
        repo: &Path,
        commits: [ComparedCommit; 2],
    ) -> Result<Vec<(Vec<u8>, ChangeKind)>, EngineError> {
        let (repository, helper) = (self.open_repository(repo)?, self.helper.clone());
        let work = tokio::task::spawn_blocking(move || {
            let [before, after] = commits.map(|commit| {
                let tree = helper.tree(repository.path(), &CommitRef::from(&commit.id), commit.submodules)?;
                Ok::<_, EngineError>(tree.leaves.into_iter().map(|leaf| (leaf.path, (leaf.mode, leaf.id))).collect())
            });
            Ok(changes_between(&before?, &after?))
        });
        work.await.map_err(|error| EngineError::Internal(format!("the lookup failed unexpectedly: {error}")))?
    }

    /// Returns those of `paths` that git does not know: that HEAD, the index and the `commits` have neither as a file nor
    /// as a directory. The worktree itself does not matter.
    ///
    /// # Errors
    /// The repository or a commit cannot be read.
    pub async fn paths_unknown_to_git(
        &self,
        repo: &Path,
        paths: Vec<String>,
        commits: Vec<NamedCommit>,
    ) -> Result<Vec<String>, EngineError> {
        let (repository, helper) = (self.open_repository(repo)?, self.helper.clone());
        let work =
            tokio::task::spawn_blocking(move || paths_unknown_to_git(&helper, repository.path(), paths, &commits));
        work.await.map_err(|error| EngineError::Internal(format!("the lookup failed unexpectedly: {error}")))?
    }
}

/// The files of a commit's tree, with their modes and ids.
type CommittedFiles = BTreeMap<Vec<u8>, (u32, ObjectId)>;

/// Returns the paths at which two trees differ.
fn changes_between(before: &CommittedFiles, after: &CommittedFiles) -> Vec<(Vec<u8>, ChangeKind)> {
    /// The bits of a mode that are the type of an entry.
    const TYPE_BITS: u32 = 0o170_000;
    let paths: BTreeSet<&Vec<u8>> = before.keys().chain(after.keys()).collect();
    let change = |path: &Vec<u8>| match (before.get(path), after.get(path)) {
        (Some(old), Some(new)) if old == new => None,
        (Some(old), Some(new)) if old.0 & TYPE_BITS != new.0 & TYPE_BITS => Some(ChangeKind::TypeChanged),
        (Some(old), Some(new)) if old.1 == new.1 => Some(ChangeKind::ModeChanged),
        (Some(_), Some(_)) => Some(ChangeKind::Modified),
        (Some(_), None) => Some(ChangeKind::Deleted),
        (None, _) => Some(ChangeKind::Created),
    };
    paths.into_iter().filter_map(|path| Some((path.clone(), change(path)?))).collect()
}

/// Reads the paths of the index and HEAD, and those of each commit while a path is unknown.
fn paths_unknown_to_git(
    helper: &GitHelper,
    repo: &Path,
    mut paths: Vec<String>,
    commits: &[NamedCommit],
) -> Result<Vec<String>, EngineError> {
    let listing = helper.list(repo, &mut |_| {})?;
    paths.retain(|path| !listing.tracked.iter().any(|tracked| is_at_or_below(&tracked.0, path)));
    for index in &listing.indexes {
        let known = |path: &String| {
            let below = match index.at.0.is_empty() {
                true => Some(path.as_str()),
                false => std::str::from_utf8(&index.at.0).ok().and_then(|at| path.strip_prefix(at)?.strip_prefix('/')),
            };
            below.is_some_and(|below| index.entries.iter().any(|entry| is_at_or_below(&entry.path.0, below)))
        };
        paths.retain(|path| !known(path));
    }
    for commit in commits {
        if paths.is_empty() {
            break;
        }
        let tree = helper.tree(repo, &CommitRef::from(&commit.id), false)?;
        paths.retain(|path| !tree.leaves.iter().any(|leaf| is_at_or_below(&leaf.path, path)));
    }
    Ok(paths)
}

/// Returns whether `known` is `path`, or a file in the directory `path`.
fn is_at_or_below(known: &[u8], path: &str) -> bool {
    known.strip_prefix(path.as_bytes()).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

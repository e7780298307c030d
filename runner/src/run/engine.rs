//! Runs a request from start to end. This parent module holds the order of the stages; the other modules hold the
//! details.

mod admission_findings;
mod cleanup;
mod completion;
mod exec;
pub(crate) mod file_scope;
mod host_views;
mod needed_paths;
mod prior_result;
mod queries;
mod remote_executor;
mod resource_needs;
mod reuse_preview;
mod run_caches;
mod run_events;
mod run_tools;
mod shared_results_cache;
mod spare_run_space;
mod stored_results;
mod tree_preparation;
mod warm_run_spaces;

pub use exec::{CommandTree, ExecutedCommand};
pub use file_scope::require_valid_scope;
pub use prior_result::{PriorRun, PriorRunRequest, RunInProgress, is_reusable, planned_commands, takes_caller_env};
pub use reuse_preview::{ProfilePreview, ReusePreview, StepPreview, StoredPreview};

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use proctor_core::api::Problem;
use proctor_core::decision::rerun::Rerun;
use proctor_core::decision::verdict::{InconclusiveDetail, InconclusiveReason};
use proctor_core::model::enforcement::{SandboxMode, Tolerated};
use proctor_core::model::event::RunEvent;
use proctor_core::model::names::{ProfileName, RunId};
use proctor_core::model::plan::{Plan, PlannedStep};
use proctor_core::spec::{OperatorConfig, ResolvedPlan, Spec};
use proctor_core::text::redact::Redactor;
use proctor_git::helper::{GitHelper, IgnoreQuery};
use proctor_sandbox::{Host, HostConfig, Launcher, RunSpace, RunSpaceConfig, StepUser};
use proctor_snapshot::{Snapshot, SnapshotStore};
use proctor_sql::worker_pool::{WorkerPool, WorkerPoolConfig};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::error::EngineError;
use crate::host::host_toolchains::caller_redactor;
use crate::host::repository::Repository;
use crate::host::sandboxed_git::SandboxedGit;
use crate::host::spec_cache::SpecCache;
use crate::host::spec_file::SpecFile;
use crate::remote_steps::RemoteClients;
use crate::run::dispatch;
use crate::run::evidence_builder::{self, RunFacts, TimeRange};
use crate::run::finish::{self, RevocablePass, RunObservations};
use crate::run::preflight;
use crate::run::prepared_tree::PreparedTree;
use crate::run::request::{
    CacheMode, ChangeHandling, EngineCaller, EngineConfig, FinishedRun, PatchResult, RunRequest,
};
use crate::run::run_context::{ChangeMode, RunContext, RunTree, StepTrace};
use crate::run::run_patch;
use crate::step::chosen_files::{FileSelections, ScopePaths};
use crate::step::needed_paths::{NeededPaths, Preparation};
use crate::step::output::Outputs;
use crate::step::reuse::ReuseRequest;
use crate::step::run_reads::RunReads;
use crate::step::skill_caches::TrustScopes;
use crate::step::skill_runner::SkillRun;
use crate::step::toolchain_checks::{self, BlockedSkills};
use crate::store::SNAPSHOTS_DIR;
use crate::store::directory::{Directory, random_u64};
use crate::store::documents::RunDocumentDir;
use crate::store::durations::StepDurations;
use crate::store::objects::Objects;
use crate::store::results::DecodedResults;
use admission_findings::AdmissionFindings;
use completion::{build_report, emit_inconclusive, withdraw_earlier_pass, write_run_documents};
use file_scope::ScopedPlan;
use resource_needs::{RunSpaceNeeds, change_mode, command_count, disk_limit, run_space_config, sandbox_reuse};
use run_events::{announce_cancellation, run_finished_event, run_started_event};
use shared_results_cache::SharedResultsCache;
use spare_run_space::SpareRunSpace;
use warm_run_spaces::WarmRunSpaces;

/// The engine: one per process.
pub struct Engine {
    launcher: Arc<Launcher>,
    helper: GitHelper,
    snapshots: Arc<SnapshotStore>,
    state: Directory,
    state_path: PathBuf,
    config: EngineConfig,
    clock: Clock,
    /// Required owner of the repository; `None` accepts any.
    owner: Option<u32>,
    /// Recently parsed specs.
    spec_cache: Arc<SpecCache>,
    /// A prepared directory for the layers of the next run.
    spare_space: Arc<SpareRunSpace>,
    /// Prepared sandboxes for single commands.
    warm_spaces: WarmRunSpaces,
    /// The files that steps of earlier runs chose.
    file_selections: Arc<FileSelections>,
    /// The exchange of results with other machines.
    shared_results: Arc<SharedResultsCache>,
    /// The stored results that were decoded for earlier runs.
    decoded_results: Arc<DecodedResults>,
    /// The connection to the cluster.
    remote_clients: Arc<RemoteClients>,
    /// The findings about the host when the run of this caller's request was accepted.
    admission_findings: AdmissionFindings,
}

/// The parts of a run's context that depend on the kind of request.
#[derive(Debug)]
struct ContextSettings {
    /// How to handle the changes of the run's steps.
    changes: ChangeMode,
    /// The initial content of the caches of the run's skills.
    caches: CacheMode,
    /// The secrets of the caller.
    redactor: Redactor,
    /// The only paths that steps with `files` check; `None` if they check all.
    files: Option<Arc<ScopePaths>>,
    /// The reuse of results; `None` if every step is executed without being observed.
    reuse: Option<ReuseRequest>,
}

/// Maximum number of commits in a range: each one is a run.
pub const MAX_RANGE: usize = 256;
impl Engine {
    /// Prepares the state directory and starts the thread that starts processes.
    ///
    /// # Errors
    /// The state directory cannot be created, or a helper program is missing.
    pub fn open(config: EngineConfig) -> Result<Self, EngineError> {
        let host = Host::new(HostConfig {
            helper: config.helpers.sandbox.clone(),
            state_dir: config.state_dir.clone(),
            home: config.home.clone(),
        })?;
        let state_path = host.state_dir().to_path_buf();
        let state = Directory::open(&state_path)?;
        let launcher = Arc::new(Launcher::start(host)?);
        let git = SandboxedGit {
            launcher: Arc::clone(&launcher),
            state: state.clone(),
            state_path: state_path.clone(),
            config: config.clone(),
        };
        let helper = GitHelper::new(config.helpers.git.clone()).with_program(Arc::new(git));
        let snapshot_dir = state.ensure(SNAPSHOTS_DIR, 0o700)?;
        let snapshot_fd =
            snapshot_dir.as_fd().try_clone_to_owned().map_err(|error| EngineError::Internal(error.to_string()))?;
        let snapshots = Arc::new(SnapshotStore::new(helper.clone(), Some(snapshot_fd)));
        Ok(Self {
            launcher,
            helper,
            snapshots,
            state,
            state_path,
            config,
            clock: Clock::system(),
            owner: None,
            spec_cache: Arc::default(),
            spare_space: Arc::default(),
            warm_spaces: WarmRunSpaces::default(),
            file_selections: Arc::default(),
            shared_results: Arc::default(),
            decoded_results: Arc::default(),
            remote_clients: Arc::default(),
            admission_findings: AdmissionFindings::default(),
        })
    }

    /// Returns a pool of up to `most` workers that judge SQL in sandboxes of this engine, with the verifiers of
    /// `operator`.
    ///
    /// # Errors
    /// The state directory cannot be written.
    pub fn sql_workers(&self, most: usize, operator: &OperatorConfig) -> Result<WorkerPool, EngineError> {
        let tolerated = operator.tolerated(SandboxMode::Strict).ok_or(EngineError::BestEffortForbidden)?;
        let config = WorkerPoolConfig {
            program: self.config.helpers.sql.clone(),
            duckdb: self.config.duckdb.clone(),
            max_idle: most,
            tolerated,
            verifiers: operator.sql.verifiers.clone(),
        };
        Ok(WorkerPool::new(Arc::clone(&self.launcher), config)?)
    }

    /// Returns the launcher of sandboxes.
    pub fn launcher(&self) -> &Arc<Launcher> {
        &self.launcher
    }

    /// Returns the operator's configuration.
    pub fn operator(&self) -> &OperatorConfig {
        &self.config.operator
    }

    /// Returns this engine for one caller of many, with the caller's home and environment and the operator's
    /// current configuration. Processes, snapshots and state are shared.
    pub fn for_caller(&self, caller: EngineCaller) -> Self {
        let EngineCaller { home, env, operator, owner } = caller;
        let config = EngineConfig { home, caller_env: env, operator, ..self.config.clone() };
        Self {
            launcher: Arc::clone(&self.launcher),
            helper: self.helper.clone(),
            snapshots: Arc::clone(&self.snapshots),
            state: self.state.clone(),
            state_path: self.state_path.clone(),
            config,
            clock: self.clock,
            owner,
            spec_cache: Arc::clone(&self.spec_cache),
            spare_space: Arc::clone(&self.spare_space),
            warm_spaces: self.warm_spaces.clone(),
            file_selections: Arc::clone(&self.file_selections),
            shared_results: Arc::clone(&self.shared_results),
            decoded_results: Arc::clone(&self.decoded_results),
            remote_clients: Arc::clone(&self.remote_clients),
            admission_findings: AdmissionFindings::default(),
        }
    }

    /// Returns the redactor of a run or session. It knows the secrets in the caller's environment and, for a single
    /// command, among the variables that are set for it.
    fn redactor(&self, command: Option<&PlannedStep>) -> Redactor {
        caller_redactor(&self.config.caller_env, command.map(|step| &step.env), self.owner)
    }

    /// Returns the description of an error of this engine for its caller, without the caller's secrets.
    pub fn problem(&self, error: &EngineError) -> Problem {
        let mut problem = error.problem();
        self.redactor(None).redact_problem(&mut problem);
        problem
    }

    /// Resolves a profile of a spec under this engine's operator configuration.
    ///
    /// # Errors
    /// The profile does not exist, or asks for more than the operator allows.
    pub fn resolve(&self, file: &SpecFile, spec: &Spec, profile: &ProfileName) -> Result<ResolvedPlan, EngineError> {
        file.resolve(spec, profile, &self.config.operator)
    }

    /// Parses the spec file and resolves a profile of it.
    ///
    /// # Errors
    /// The spec is invalid; otherwise the same as [`Engine::resolve`].
    pub fn parse_and_resolve(&self, file: &SpecFile, profile: &ProfileName) -> Result<ResolvedPlan, EngineError> {
        self.resolve(file, &self.spec_cache.get_or_parse(file)?.spec, profile)
    }

    /// Returns the canonical path of the state directory.
    pub fn state_dir(&self) -> &Path {
        &self.state_path
    }

    /// Opens the repository that contains the directory `repo`, for the spec in `repo`. Checks its owner on the opened
    /// descriptor, so that a later change of the path does not matter.
    fn open_repository(&self, repo: &Path) -> Result<Repository, EngineError> {
        let repository = Repository::find(repo)?;
        preflight::require_owner(&repository, self.owner)?;
        Ok(repository)
    }

    /// Verifies a repository: spec → plan → snapshot → checks → skills → evidence → status.
    ///
    /// # Errors
    /// The request, the spec or the machine does not allow a run. Failures within a run are part of its report.
    pub async fn run(
        &self,
        request: RunRequest,
        events: mpsc::Sender<RunEvent>,
        cancel: CancellationToken,
    ) -> Result<FinishedRun, EngineError> {
        let (passed, _) = oneshot::channel();
        self.run_revocably(request, events, cancel, passed).await
    }

    /// Verifies a repository like [`Engine::run`], for a caller that keeps its own record. The run sends the means
    /// to withdraw a pass through `passed`, before and separately from the report: the run may still fail after its
    /// status file shows a pass.
    ///
    /// # Errors
    /// Same as [`Engine::run`].
    pub async fn run_revocably(
        &self,
        request: RunRequest,
        events: mpsc::Sender<RunEvent>,
        cancel: CancellationToken,
        passed: oneshot::Sender<RevocablePass>,
    ) -> Result<FinishedRun, EngineError> {
        let (began, began_at) = (Instant::now(), self.clock.now_text());
        request.require_whole_profile()?;
        let tolerated = self.tolerated_controls(request.sandbox)?;
        let repository = self.open_repository_for(&request.repo, request.spec_dir.as_ref())?;
        request.changeset.as_ref().map_or(Ok(()), |id| preflight::require_changeset_at_top(&repository, id))?;
        let early_changes = self.read_changes_early(&repository, &request);
        let (mut source, file, plan) = self.prepare_tree_and_plan(&repository, &request, &tolerated, &cancel).await?;
        let (plan, rerun) = self.apply_skill_selection(plan, &repository, &request)?;
        let plan = self.apply_step_scope(plan, &request)?;
        let ScopedPlan { plan, files } = self.apply_file_scope(plan, &mut source, &request, early_changes).await?;
        let facts = self.run_facts(&plan, rerun, &request)?;
        let documents = self.open_documents(&repository, &facts)?;
        let changes = change_mode(&request);
        let (disk, sandboxes) = (disk_limit(&plan), sandbox_reuse(&plan, changes));
        let needs = RunSpaceNeeds { disk, sandboxes, caches: self.ensure_cache_dir(&plan)?, space: None };
        let space = run_space_config(&needs, tolerated.clone());
        let parts = ContextSettings {
            changes,
            caches: request.caches,
            redactor: self.redactor(None),
            files,
            reuse: (request.sandbox == SandboxMode::Strict)
                .then(|| ReuseRequest::new(&facts.run_id, request.reuses_steps)),
        };
        let context = self.create_context(source, parts, needs, tolerated, events, cancel).await?;
        context.set_trace(StepTrace::new(&request.trace, &facts.run_id));
        self.set_remote_executor(&context, &plan);
        preflight::require_same_spec(&context.tree.snapshot, &repository, &file)?;
        preflight::reject_hiding_caches(&context.tree.snapshot, &plan)?;
        context.remaining_commands.store(command_count(&plan), Ordering::Relaxed);
        let first = context.prepare_first_sandbox(&plan);
        // A run with fewer controls must not answer a later request for the commit.
        let is_strict = request.sandbox == SandboxMode::Strict;
        let tools = is_strict.then(|| self.tools_at_start(&context, (&plan, &facts.plan_sha256))).flatten();
        let git_tree = context.tree.snapshot.complete_git_tree();
        let recorded_tools = tools.as_ref().map(|tools| self.recorded_tools(tools));
        let documents = documents.with_toolchain_env(recorded_tools).with_step_env(self.known_step_env(&plan));
        let documents = Arc::new(documents.with_git_tree(git_tree));
        withdraw_earlier_pass(&context, &documents, &facts, &plan).await?;
        context.durations.get_or_init(|| StepDurations::read(&self.state, &context.tree.spec_root(), &plan.profile));
        context.emit(run_started_event(&context, began_at, &plan, &facts)).await;
        // If this preparation failed, the first command starts a new sandbox.
        if let Some(first) = first {
            let _ = first.await;
        }
        let watch = tokio::spawn(announce_cancellation(Arc::clone(&context)));
        let mut observed = self.run_checks_and_skills(&context, &plan, &facts, &request).await;
        watch.abort();
        let interrupted = context
            .cancel
            .is_cancelled()
            .then(|| InconclusiveReason::Interrupted.with_message("the run was interrupted"));
        observed.inconclusive_reasons.extend(emit_inconclusive(&context, interrupted).await);
        let evidence_dir = documents.path().to_path_buf();
        context.finish_sharing().await;
        self.confirm_tools(&context, &documents, &plan, tools);
        let (profile, reuse) = (plan.profile.clone(), observed.reuse(&context, &plan));
        let (mut observed, facts, doubt) =
            write_run_documents(&context, documents, observed, facts, plan, passed).await?;
        observed.inconclusive_reasons.extend(emit_inconclusive(&context, doubt).await);
        self.store_durations(&context, &observed, &profile);
        self.clean_up(&context).await;
        let report = build_report(&context, observed, &facts, evidence_dir);
        context.emit(run_finished_event(&report, reuse, began.elapsed())).await;
        self.release_run(context, space);
        Ok(report)
    }

    /// Releases the resources of a run after its report. In a long-running process, a background thread shuts down
    /// the sandboxes and prepares the directory for the next run's layers.
    fn release_run(&self, context: Arc<RunContext>, space: RunSpaceConfig) {
        if self.config.is_long_running {
            let (spare, launcher) = (Arc::clone(&self.spare_space), Arc::clone(&self.launcher));
            tokio::task::spawn_blocking(move || {
                // A run whose steps are all cached starts no command.
                let unused = context.space.is_pristine().then(|| context.space.clone());
                drop(context);
                match unused {
                    Some(unused) => spare.keep_unused(space, unused),
                    None => spare.prepare(&launcher, space),
                }
            });
        }
    }

    /// Stores the durations of the steps if they changed. A failure does not affect the run.
    fn store_durations(&self, context: &RunContext, observed: &RunObservations, profile: &ProfileName) {
        let known = context.durations.get().cloned().unwrap_or_default();
        let durations = known.updated_with(observed.steps());
        if durations == known {
            return;
        }
        if let Err(error) = durations.write(&self.state, &context.tree.spec_root(), profile) {
            tracing::warn!(%error, "the durations of the steps could not be stored");
        }
    }

    /// Runs the checks, then the skills, and reads the tree once more.
    async fn run_checks_and_skills(
        &self,
        context: &Arc<RunContext>,
        plan: &Plan,
        facts: &RunFacts,
        request: &RunRequest,
    ) -> RunObservations {
        let began = self.clock.now_text();
        let max_tier = request.max_tier.min(self.config.operator.max_tier);
        let mut doubts = self.provide_needed_paths(context, plan, max_tier, Preparation::Run).await;
        let (checks, blocked, of_checks) = toolchain_checks::run_checks(context, plan).await;
        doubts.extend(of_checks);
        for InconclusiveDetail { doubt, message } in &doubts {
            context.emit(RunEvent::Doubted { doubt: *doubt, message: message.clone() }).await;
        }
        let span = TimeRange { started_at: began, finished_at: self.clock.now_text() };
        let tree = context.tree.tree_facts();
        let toolchain = evidence_builder::toolchain_evidence(facts, &tree, plan, checks, span);
        // Set after the checks: a toolchain check runs as a step of a pseudo-skill whose name a declared skill may
        // also have.
        if let Some(live) = &request.live {
            context.live.get_or_init(|| live.clone());
        }
        let mut runs = match blocked {
            BlockedSkills::All => dispatch::skip_all(context, plan, "a toolchain check failed").await,
            BlockedSkills::Some(blocked) => {
                let options = dispatch::DispatchOptions { fail_fast: request.fail_fast, max_tier, blocked };
                dispatch::run(context, plan, options).await
            }
        };
        context.needed_paths.release_mounts(&context.space);
        let tree_after = finish::reread_tree(context, &self.snapshots, finish::collect_applied(&runs)).await;
        if tree_after.inconclusive_reason.is_some() {
            runs.iter_mut().for_each(SkillRun::mark_inconclusive);
        }
        runs = self.commit_caches(context, plan, runs, tree_after.inconclusive_reason.is_some()).await;
        let wanted = request.changes == ChangeHandling::AsPatch;
        let patch = if wanted { Some(run_patch::build(context, plan, &runs).await) } else { None };
        if let Some(PatchResult::Refused(reason)) = &patch {
            context.emit(RunEvent::PatchRefused { reason: reason.clone() }).await;
        }
        let mut observed = RunObservations::new(facts, &tree, plan, toolchain, runs);
        observed.patch = patch;
        observed.inconclusive_reasons.extend(doubts);
        observed.tree_after = tree_after.tree;
        let above = observed.tier_violations(max_tier);
        for doubt in tree_after.inconclusive_reason.into_iter().chain(above) {
            observed.inconclusive_reasons.extend(emit_inconclusive(context, Some(doubt)).await);
        }
        observed
    }

    /// Returns the controls that may be missing in this mode.
    fn tolerated_controls(&self, mode: SandboxMode) -> Result<Tolerated, EngineError> {
        self.config.operator.tolerated(mode).ok_or(EngineError::BestEffortForbidden)
    }

    fn run_facts(&self, plan: &Plan, rerun: Option<Rerun>, request: &RunRequest) -> Result<RunFacts, EngineError> {
        let run_id = request.run_id.clone().map_or_else(|| self.run_id(), Ok)?;
        let (changeset, sandbox) = (request.changeset.clone(), request.sandbox);
        Ok(RunFacts { run_id, changeset, plan_sha256: plan.digest(), sandbox, rerun })
    }

    /// Generates a run id from the time and random bytes.
    ///
    /// # Errors
    /// The system provides no random bytes.
    pub fn run_id(&self) -> Result<RunId, EngineError> {
        let random = u32::try_from(random_u64()? & u64::from(u32::MAX)).unwrap_or_default();
        self.clock.run_id(random).map_err(|error| EngineError::Internal(error.to_string()))
    }

    fn open_documents(&self, repository: &Repository, facts: &RunFacts) -> Result<RunDocumentDir, EngineError> {
        Ok(match &facts.changeset {
            Some(id) => RunDocumentDir::for_changeset(&self.state, repository, id)?,
            None => RunDocumentDir::for_run(&self.state, &self.state_path, repository, &facts.run_id)?,
        })
    }

    /// Collects the tree, the run space for layers, and the parts of the host that steps see.
    async fn create_context(
        &self,
        source: PreparedTree,
        parts: ContextSettings,
        needs: RunSpaceNeeds,
        tolerated: Tolerated,
        events: mpsc::Sender<RunEvent>,
        cancel: CancellationToken,
    ) -> Result<Arc<RunContext>, EngineError> {
        let space = self.obtain_run_space(needs, tolerated.clone());
        // These two are independent, so they run concurrently.
        let known = source.private_copy.as_ref().map(|(_, snapshot)| snapshot).or(source.worktree_snapshot.as_ref());
        let (snapshot, space) = match known {
            Some(snapshot) => (Ok(Arc::clone(snapshot)), space.await),
            None => tokio::join!(self.take_snapshot(source.repository.path()), space),
        };
        let snapshot = snapshot?;
        let has_namespaces = space.as_ref().map_or(true, RunSpace::is_in_memory);
        let source = if has_namespaces { source } else { source.without_copy() };
        let PreparedTree {
            repository,
            worktree,
            seen_at,
            recorded,
            private_copy: apart,
            unverified,
            worktree_snapshot: _,
        } = source;
        let (path, apart) = (repository.path().to_path_buf(), apart.map(|(apart, _)| apart));
        let user = self.step_user(&repository, &seen_at)?;
        // Steps can read every file of our copy, so the check applies to the rights of the repository's owner on
        // the original files.
        let rights = match &apart {
            Some(_) => StepUser::choose(self.launcher.host(), &worktree.facts)?,
            None => user,
        };
        preflight::require_readable_by_steps(&snapshot, rights)?;
        let host_view = self.host_view_of_run(&seen_at, user, tolerated)?;
        let borrowed = apart.as_ref().and_then(|apart| apart.objects.parent());
        let common = borrowed.unwrap_or(&snapshot.git.common_dir);
        preflight::reject_hidden_alternates(common, &path, self.launcher.host(), &host_view)?;
        let helper = apart.as_ref().map_or(&self.helper, |apart| &apart.helper).clone();
        let space = space?;
        let trust = TrustScopes::new(&recorded, &snapshot.git, common);
        let reuse = self.open_reuse(parts.reuse, user, apart.is_some());
        let (reuse, reuse_off) = reuse.map_or_else(|reason| (None, Some(reason)), |reuse| (Some(reuse), None));
        let caches = self.prepare_caches(&space, &repository, (&seen_at, trust), parts.caches)?;
        Ok(Arc::new(RunContext {
            launcher: Arc::clone(&self.launcher),
            space,
            outputs: Outputs { objects: Objects::open(&self.state)?, redactor: parts.redactor },
            caches,
            needed_paths: NeededPaths::default(),
            finished_mounts: tokio::sync::Mutex::default(),
            host_view,
            tree: RunTree {
                ignored: IgnoreQuery::new(helper, path).with_submodules(snapshot.known_submodules()),
                repository,
                worktree,
                seen_at,
                source: recorded,
                private_copy: apart,
                unverified,
                snapshot,
            },
            clock: self.clock,
            remaining_commands: AtomicUsize::new(0),
            ignored_content: OnceLock::new(),
            durations: OnceLock::new(),
            live: OnceLock::new(),
            events,
            cancel,
            changes: parts.changes,
            files: parts.files,
            file_selections: Arc::clone(&self.file_selections),
            trace: OnceLock::new(),
            reuse,
            reuse_off,
            remote: OnceLock::new(),
            no_view: OnceLock::new(),
            run_reads: RunReads::default(),
            earlier_pass: OnceLock::new(),
        }))
    }

    /// Returns the user of steps for a tree at this path.
    ///
    /// # Errors
    /// The state directory is inside the tree, or there is no suitable user.
    fn step_user(&self, repository: &Repository, seen_at: &Path) -> Result<StepUser, EngineError> {
        if self.state_path.starts_with(seen_at) {
            return Err(EngineError::StateInRepository(self.state_path.clone()));
        }
        Ok(StepUser::choose(self.launcher.host(), &repository.facts)?)
    }

    async fn take_snapshot(&self, repo: &Path) -> Result<Arc<Snapshot>, EngineError> {
        let (repo, snapshots) = (repo.to_path_buf(), Arc::clone(&self.snapshots));
        let work = tokio::task::spawn_blocking(move || snapshots.take(&repo));
        work.await
            .map_err(|error| EngineError::Internal(format!("the snapshot failed unexpectedly: {error}")))?
            .map_err(Into::into)
    }

    /// Returns the prepared directory for the layers of a run, or creates one.
    async fn obtain_run_space(&self, needs: RunSpaceNeeds, tolerated: Tolerated) -> Result<RunSpace, EngineError> {
        let config = run_space_config(&needs, tolerated);
        if let Some(space) = needs.space.or_else(|| self.spare_space.take(&config)) {
            return Ok(space);
        }
        let launcher = Arc::clone(&self.launcher);
        let work = tokio::task::spawn_blocking(move || RunSpace::create(&launcher, config));
        let made = work.await.map_err(|error| EngineError::Internal(format!("the run space: {error}")))?;
        Ok(made?)
    }
}

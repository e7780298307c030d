//! Runs a request from start to end. This parent module holds the order of the stages; the other modules hold the
//! details.

mod answered;
mod caches;
mod ending;
mod exec;
mod questions;
mod room;
mod sources;
mod spare;
mod tidying;
mod warm;

pub use answered::{CommitAsked, Earlier, UnderWay, commands, is_reusable, takes_env};
pub use exec::{Executed, Looked};

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use proctor_core::enforcement::{SandboxMode, Tolerated};
use proctor_core::event::{PlannedOutline, RunEvent};
use proctor_core::names::{ProfileName, RunId, StepName};
use proctor_core::plan::{Plan, PlannedSkill};
use proctor_core::redact::Redactor;
use proctor_core::rerun::Rerun;
use proctor_core::spec::{Resolved, Spec};
use proctor_core::verdict::Doubt;
use proctor_sandbox::{Host, HostConfig, Launcher, Reader, RunSpace, RunSpaceConfig, StepUser};
use proctor_snapshot::{GitHelper, IgnoreQuery, Snapshot, SnapshotStore};
use proctor_sql::pool::{Workers, WorkersConfig};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::context::{Changes, Context, Sight, StepTrace, Tree};
use crate::error::EngineError;
use crate::finish::{self, Observed, Pass};
use crate::git_program::SandboxedGit;
use crate::output::Outputs;
use crate::readings::Readings;
use crate::record::{self, RunFacts, Span};
use crate::repository::Repository;
use crate::request::{CachesWanted, ChangesWanted, EngineConfig, Patch, RunReport, RunRequest, RunSource, Serving};
use crate::skill::SkillRun;
use crate::skill_caches::TrustScopes;
use crate::source::Source;
use crate::spec_file::SpecFile;
use crate::store::SNAPSHOTS;
use crate::store::directory::{Directory, random_u64};
use crate::store::documents::Documents;
use crate::store::durations::Durations;
use crate::store::objects::Objects;
use crate::surroundings::secrets_of;
use crate::{checks, dispatch, guards, patch};
use ending::{emitted, finished, report, superseding, written};
use room::{Room, commands_of, disk_of, sandboxes_of, space_config};
use spare::Spare;
use warm::WarmPlaces;

/// The engine: one per process.
pub struct Engine {
    launcher: Arc<Launcher>,
    helper: GitHelper,
    snapshots: Arc<SnapshotStore>,
    state: Directory,
    state_path: PathBuf,
    config: EngineConfig,
    redactor: Redactor,
    clock: Clock,
    /// Required owner of the repository; `None` accepts any.
    owner: Option<u32>,
    /// Recently parsed specs.
    readings: Arc<Readings>,
    /// Number of runs so far.
    runs: Arc<AtomicUsize>,
    /// A prepared directory for the layers of the next run.
    spare: Arc<Spare>,
    /// Prepared sandboxes for single commands.
    warm: WarmPlaces,
}

/// The settings of a run for changes and caches.
#[derive(Debug, Clone, Copy)]
struct Parts {
    /// How to handle the changes of the run's steps.
    changes: Changes,
    /// The initial content of the caches of the run's skills.
    caches: CachesWanted,
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
        let redactor = secrets_of(&config.caller_env, &BTreeMap::new(), None);
        let kept = state.ensure(SNAPSHOTS, 0o700)?;
        let kept = kept.as_fd().try_clone_to_owned().map_err(|error| EngineError::Internal(error.to_string()))?;
        let snapshots = Arc::new(SnapshotStore::new(helper.clone(), Some(kept)));
        Ok(Self {
            launcher,
            helper,
            snapshots,
            state,
            state_path,
            config,
            redactor,
            clock: Clock::system(),
            owner: None,
            readings: Arc::default(),
            runs: Arc::default(),
            spare: Arc::default(),
            warm: WarmPlaces::default(),
        })
    }

    /// Returns a pool of up to `most` workers that judge SQL in sandboxes of this engine.
    ///
    /// # Errors
    /// The state directory cannot be written.
    pub fn sql_workers(&self, most: usize) -> Result<Workers, EngineError> {
        let tolerated = self.tolerated(SandboxMode::Strict)?;
        let config = WorkersConfig {
            program: self.config.helpers.sql.clone(),
            duckdb: self.config.duckdb.clone(),
            most,
            tolerated,
        };
        Ok(Workers::new(Arc::clone(&self.launcher), config)?)
    }

    /// Returns this engine for one caller of many, with the caller's home and environment and the operator's
    /// current configuration. Processes, snapshots and state are shared.
    pub fn serving(&self, caller: Serving) -> Self {
        let Serving { home, env, operator, owner } = caller;
        let redactor = secrets_of(&env, &BTreeMap::new(), owner);
        let config = EngineConfig { home, caller_env: env, operator, ..self.config.clone() };
        Self {
            launcher: Arc::clone(&self.launcher),
            helper: self.helper.clone(),
            snapshots: Arc::clone(&self.snapshots),
            state: self.state.clone(),
            state_path: self.state_path.clone(),
            config,
            redactor,
            clock: self.clock,
            owner,
            readings: Arc::clone(&self.readings),
            runs: Arc::clone(&self.runs),
            spare: Arc::clone(&self.spare),
            warm: self.warm.clone(),
        }
    }

    /// Returns this engine with a redactor that also hides the secrets among `variables`, such as those that the
    /// caller passes to one command.
    pub fn hiding(self, variables: &BTreeMap<String, String>) -> Self {
        Self { redactor: secrets_of(&self.config.caller_env, variables, self.owner), ..self }
    }

    /// Resolves a profile of a spec under this engine's operator configuration.
    ///
    /// # Errors
    /// The profile does not exist, or asks for more than the operator allows.
    pub fn resolve(&self, file: &SpecFile, spec: &Spec, profile: &ProfileName) -> Result<Resolved, EngineError> {
        file.resolve(spec, profile, &self.config.operator)
    }

    /// Parses the spec file and resolves a profile of it.
    ///
    /// # Errors
    /// The spec is invalid; otherwise the same as [`Engine::resolve`].
    pub fn planned(&self, file: &SpecFile, profile: &ProfileName) -> Result<Resolved, EngineError> {
        self.resolve(file, &self.readings.of(file)?.spec, profile)
    }

    /// Returns the canonical path of the state directory.
    pub fn state_dir(&self) -> &Path {
        &self.state_path
    }

    /// Opens a repository and checks its owner on the opened descriptor, so that a later change of the path does
    /// not matter.
    fn repository(&self, repo: &Path) -> Result<Repository, EngineError> {
        let repository = Repository::open(repo)?;
        guards::owned(&repository, self.owner)?;
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
    ) -> Result<RunReport, EngineError> {
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
        passed: oneshot::Sender<Pass>,
    ) -> Result<RunReport, EngineError> {
        let (began, began_at) = (Instant::now(), self.clock.now_text());
        request.demand_whole()?;
        let tolerated = self.tolerated(request.sandbox)?;
        let repository = self.repository(&request.repo)?;
        let (source, file, plan) = self.source_and_plan(&repository, &request, &tolerated, &cancel).await?;
        let (plan, rerun) = self.chosen(plan, &repository, &request)?;
        let facts = self.facts(&plan, rerun, &request)?;
        let documents = self.documents(&repository, &facts)?;
        let changes = changes_of(&request);
        let (disk, sandboxes) = (disk_of(&plan), sandboxes_of(&plan, changes));
        let room = Room { disk, sandboxes, caches: self.caches_of(&plan)?, space: None };
        let space = space_config(&room, tolerated.clone());
        let parts = Parts { changes, caches: request.caches };
        let context = self.context(source, parts, room, tolerated, events, cancel).await?;
        context.continue_trace(StepTrace::new(&request.trace, &facts.run_id));
        guards::same_spec(&context.tree.snapshot, &file)?;
        guards::caches_hide_nothing(&context.tree.snapshot, &plan)?;
        context.to_come.store(commands_of(&plan), Ordering::Relaxed);
        let first = context.prepare_for_the_first(&plan);
        // A run with fewer controls must not answer a later request for the commit.
        let is_strict = request.sandbox == SandboxMode::Strict;
        let documents = superseding(&context, documents, &facts, &plan).await?;
        let tools = is_strict.then(|| self.tools_of_tree(&context.tree, &context.sight, &plan)).flatten();
        let documents = documents.finding(tools);
        context.durations.get_or_init(|| Durations::read(&self.state, &context.tree.seen_at, &plan.profile));
        context.emit(started(&context, began_at, &plan, &facts)).await;
        // If this preparation failed, the first command starts a new sandbox.
        let _ = first.await;
        let watch = tokio::spawn(announce_cancel(Arc::clone(&context)));
        let mut observed = self.observe(&context, &plan, &facts, &request).await;
        watch.abort();
        let interrupted =
            context.cancel.is_cancelled().then(|| (Doubt::Interrupted, "the run was interrupted".to_owned()));
        observed.doubts.extend(emitted(&context, interrupted).await);
        let evidence_dir = documents.path().to_path_buf();
        let profile = plan.profile.clone();
        let (mut observed, facts, doubt) = written(&context, documents, observed, facts, plan, passed).await?;
        observed.doubts.extend(emitted(&context, doubt).await);
        self.keep_durations(&context, &observed, &profile);
        let has_grown = context.tree.apart.is_some() || context.caches.have_grown();
        self.tidy(has_grown.then(|| self.clock.system_time())).await;
        observed.doubts.iter_mut().for_each(|(_, message)| self.redactor.clean(message));
        let report = report(&observed, &facts, evidence_dir);
        context.emit(finished(&report, began.elapsed())).await;
        self.let_go(context, space);
        Ok(report)
    }

    /// Releases the resources of a run after its report. In a long-running process, a background thread shuts down
    /// the sandboxes and prepares the directory for the next run's layers.
    fn let_go(&self, context: Arc<Context>, space: RunSpaceConfig) {
        if self.config.stays {
            let (spare, launcher) = (Arc::clone(&self.spare), Arc::clone(&self.launcher));
            tokio::task::spawn_blocking(move || {
                drop(context);
                spare.fill(&launcher, space);
            });
        }
    }

    /// Stores the durations of the steps if they changed. A failure does not affect the run.
    fn keep_durations(&self, context: &Context, observed: &Observed, profile: &ProfileName) {
        let known = context.durations.get().cloned().unwrap_or_default();
        let durations = known.after(observed.steps());
        if durations == known {
            return;
        }
        if let Err(error) = durations.write(&self.state, &context.tree.seen_at, profile) {
            tracing::warn!(%error, "how long the steps took could not be kept");
        }
    }

    /// Runs the checks, then the skills, and reads the tree once more.
    async fn observe(&self, context: &Arc<Context>, plan: &Plan, facts: &RunFacts, request: &RunRequest) -> Observed {
        let began = self.clock.now_text();
        let (mut checks, doubts) = checks::run(context, plan).await;
        checks.iter_mut().for_each(|check| self.redactor.clean_step(&mut check.step));
        for (doubt, message) in &doubts {
            context.emit(RunEvent::Doubted { doubt: *doubt, message: message.clone() }).await;
        }
        let span = Span { started_at: began, finished_at: self.clock.now_text() };
        let tree = context.tree.record();
        let toolchain = record::toolchain(facts, &tree, plan, checks, span);
        let max_tier = request.max_tier.min(self.config.operator.max_tier);
        // Set after the checks: a toolchain check runs as a step of a pseudo-skill whose name a declared skill may
        // also have.
        if let Some(live) = &request.live {
            context.live.get_or_init(|| live.clone());
        }
        let mut runs = if doubts.is_empty() {
            dispatch::run(context, plan, dispatch::Demands { fail_fast: request.fail_fast, max_tier }).await
        } else {
            dispatch::run_none(context, plan, "a toolchain check failed").await
        };
        let looked = finish::look_again(context, &self.snapshots, finish::applied(&runs)).await;
        if looked.doubt.is_some() {
            runs.iter_mut().for_each(SkillRun::take_back);
        }
        runs = self.conclude_caches(context, plan, runs, looked.doubt.is_some()).await;
        let wanted = request.changes == ChangesWanted::AsPatch;
        let patch = if wanted { Some(patch::made(context, plan, &runs).await) } else { None };
        if let Some(Patch::Refused(reason)) = &patch {
            context.emit(RunEvent::PatchRefused { reason: reason.clone() }).await;
        }
        runs.iter_mut().flat_map(|run| &mut run.steps).for_each(|step| self.redactor.clean_step(step));
        let mut observed = Observed::new(facts, &tree, plan, toolchain, runs);
        observed.patch = patch;
        observed.doubts.extend(doubts);
        observed.left = looked.tree;
        let above = observed.above(max_tier);
        for doubt in looked.doubt.into_iter().chain(above) {
            observed.doubts.extend(emitted(context, Some(doubt)).await);
        }
        observed
    }

    /// Returns the controls that may be missing in this mode.
    fn tolerated(&self, mode: SandboxMode) -> Result<Tolerated, EngineError> {
        self.config.operator.tolerated(mode).ok_or(EngineError::BestEffortForbidden)
    }

    fn facts(&self, plan: &Plan, rerun: Option<Rerun>, request: &RunRequest) -> Result<RunFacts, EngineError> {
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

    fn documents(&self, repository: &Repository, facts: &RunFacts) -> Result<Documents, EngineError> {
        Ok(match &facts.changeset {
            Some(id) => Documents::of_changeset(&self.state, repository, id)?,
            None => Documents::of_run(&self.state, &self.state_path, repository, &facts.run_id)?,
        })
    }

    /// Collects the tree, the run space for layers, and the parts of the host that steps see.
    async fn context(
        &self,
        source: Source,
        parts: Parts,
        room: Room,
        tolerated: Tolerated,
        events: mpsc::Sender<RunEvent>,
        cancel: CancellationToken,
    ) -> Result<Arc<Context>, EngineError> {
        let space = self.space(room, tolerated.clone());
        // These two are independent, so they run concurrently.
        let known = source.apart.as_ref().map(|(_, snapshot)| snapshot).or(source.taken.as_ref());
        let (snapshot, space) = match known {
            Some(snapshot) => (Ok(Arc::clone(snapshot)), space.await),
            None => tokio::join!(self.snapshot(source.repository.path()), space),
        };
        let snapshot = snapshot?;
        let has_namespaces = space.as_ref().map_or(true, RunSpace::is_in_memory);
        let source = if has_namespaces { source } else { source.without_copy() };
        let Source { repository, worktree, seen_at, recorded, apart, unverified, taken: _ } = source;
        let (path, apart) = (repository.path().to_path_buf(), apart.map(|(apart, _)| apart));
        let user = self.step_user(&repository, &seen_at)?;
        // Steps can read every file of our copy, so the check applies to the rights of the repository's owner on
        // the original files.
        let rights = match &apart {
            Some(_) => StepUser::choose(self.launcher.host(), &worktree.facts)?,
            None => user,
        };
        guards::readable_by_steps(&snapshot, rights)?;
        let sight = self.sight(&seen_at, user, tolerated)?;
        let borrowed = apart.as_ref().and_then(|apart| apart.objects.parent());
        let common = borrowed.unwrap_or(&snapshot.git.common_dir);
        guards::borrows_nothing_hidden(common, &path, self.launcher.host(), &sight)?;
        let helper = apart.as_ref().map_or(&self.helper, |apart| &apart.helper).clone();
        let space = space?;
        let trust = TrustScopes::new(&recorded, &snapshot.git, common);
        let caches = self.caches(&space, &repository, (&seen_at, trust), parts.caches)?;
        Ok(Arc::new(Context {
            launcher: Arc::clone(&self.launcher),
            space,
            outputs: Outputs { objects: Objects::open(&self.state)?, redactor: self.redactor.clone() },
            caches,
            sight,
            tree: Tree {
                ignored: IgnoreQuery::new(helper, path).knowing(&snapshot),
                repository,
                worktree,
                seen_at,
                source: recorded,
                apart,
                unverified,
                snapshot,
            },
            clock: self.clock,
            to_come: AtomicUsize::new(0),
            ignored_content: OnceLock::new(),
            durations: OnceLock::new(),
            live: OnceLock::new(),
            events,
            cancel,
            changes: parts.changes,
            trace: OnceLock::new(),
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

    async fn snapshot(&self, repo: &Path) -> Result<Arc<Snapshot>, EngineError> {
        let (repo, snapshots) = (repo.to_path_buf(), Arc::clone(&self.snapshots));
        let work = tokio::task::spawn_blocking(move || snapshots.take(&repo));
        work.await
            .map_err(|error| EngineError::Internal(format!("the snapshot ended badly: {error}")))?
            .map_err(Into::into)
    }

    /// Returns the prepared directory for the layers of a run, or creates one.
    async fn space(&self, room: Room, tolerated: Tolerated) -> Result<RunSpace, EngineError> {
        let config = space_config(&room, tolerated);
        if let Some(space) = room.space.or_else(|| self.spare.take(&config)) {
            return Ok(space);
        }
        let launcher = Arc::clone(&self.launcher);
        let work = tokio::task::spawn_blocking(move || RunSpace::create(&launcher, config));
        let made = work.await.map_err(|error| EngineError::Internal(format!("the place for layers: {error}")))?;
        Ok(made?)
    }

    /// Returns the parts of the host that steps of `user` over `repo` see. With a required owner, files are looked
    /// up with that user's rights, so that a caller reaches nothing that it could not reach without us.
    fn sight(&self, repo: &Path, user: StepUser, tolerated: Tolerated) -> Result<Sight, EngineError> {
        let reader = self.reader(user);
        Sight::of(&self.config, &self.launcher, &self.state, &self.state_path, repo, reader, tolerated)
    }

    fn reader(&self, user: StepUser) -> Option<Reader> {
        self.owner.map(|uid| Reader { uid, gid: user.seen_as().1 })
    }
}

/// Changes are applied only to a worktree, and not if the request asks for a patch.
fn changes_of(request: &RunRequest) -> Changes {
    match (&request.source, request.changes) {
        (RunSource::Worktree, ChangesWanted::Applied) => Changes::Applied,
        _ => Changes::KeptApart,
    }
}

fn started(context: &Context, at: String, plan: &Plan, facts: &RunFacts) -> RunEvent {
    let names = |skill: &PlannedSkill| -> Vec<StepName> { skill.steps.iter().map(|step| step.name.clone()).collect() };
    RunEvent::RunStarted {
        run_id: facts.run_id.clone(),
        at,
        profile: plan.profile.clone(),
        changeset_id: facts.changeset.clone(),
        spec_sha256: plan.spec_sha256.clone(),
        plan_sha256: facts.plan_sha256.clone(),
        snapshot: context.tree.snapshot.id.clone(),
        source: context.tree.source.clone(),
        git: Some(context.tree.record().git),
        unverified_inputs_sha256: context.tree.unverified.as_ref().map(|inputs| inputs.sha256.clone()),
        sandbox: facts.sandbox,
        checks: u32::try_from(plan.toolchain.len()).unwrap_or(u32::MAX),
        skills: plan
            .skills
            .iter()
            .map(|skill| PlannedOutline { skill: skill.name.clone(), steps: names(skill) })
            .collect(),
        rerun: facts.rerun.clone(),
    }
}

async fn announce_cancel(context: Arc<Context>) {
    context.cancel.cancelled().await;
    context.emit(RunEvent::Cancelling { by: "the caller".to_owned() }).await;
}

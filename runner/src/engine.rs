//! From a request to a finished run. The parent of everything else here: it holds the order of
//! things and no detail of them.

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
    /// Whose a repository must be; `None` where it may be anybody's.
    owner: Option<u32>,
    /// Specs that were read lately.
    readings: Arc<Readings>,
    /// How many runs it has done.
    runs: Arc<AtomicUsize>,
    /// A place for the layers of the next run.
    spare: Arc<Spare>,
    /// Places for commands by themselves.
    warm: WarmPlaces,
}

/// What a run does beside looking.
#[derive(Debug, Clone, Copy)]
struct Parts {
    /// What becomes of the changes of its steps.
    changes: Changes,
    /// What the caches of its skills begin with.
    caches: CachesWanted,
}

/// How many commits one range may hold: each is a run.
pub const MAX_RANGE: usize = 256;
impl Engine {
    /// Prepares the state directory and the thread that starts processes.
    ///
    /// # Errors
    /// The state directory cannot be made, or a helper program is not there.
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

    /// Workers that judge SQL, in sandboxes that this engine starts; up to `most` at a time.
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

    /// The same engine, as it serves one caller of many: with that caller's home and environment,
    /// and what the operator allows by now. Processes, snapshots and state are shared.
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

    /// The same engine, which hides the secrets among `variables` too, such as those that the
    /// caller gives to one command.
    pub fn hiding(self, variables: &BTreeMap<String, String>) -> Self {
        Self { redactor: secrets_of(&self.config.caller_env, variables, self.owner), ..self }
    }

    /// Resolves a profile of a spec under this engine's operator.
    ///
    /// # Errors
    /// The profile is not there, or asks for more than the operator allows.
    pub fn resolve(&self, file: &SpecFile, spec: &Spec, profile: &ProfileName) -> Result<Resolved, EngineError> {
        file.resolve(spec, profile, &self.config.operator)
    }

    /// The same of what is written in the file.
    ///
    /// # Errors
    /// What is wrong with the spec; else as [`Engine::resolve`].
    pub fn planned(&self, file: &SpecFile, profile: &ProfileName) -> Result<Resolved, EngineError> {
        self.resolve(file, &self.readings.of(file)?.spec, profile)
    }

    /// Where we keep files, canonical.
    pub fn state_dir(&self) -> &Path {
        &self.state_path
    }

    /// A repository that the caller may have verified: what was opened is theirs, whatever its path
    /// leads to by now.
    fn repository(&self, repo: &Path) -> Result<Repository, EngineError> {
        let repository = Repository::open(repo)?;
        guards::owned(&repository, self.owner)?;
        Ok(repository)
    }

    /// Verifies a repository: spec → plan → snapshot → checks → skills → evidence → status.
    ///
    /// # Errors
    /// There is no run: the request, the spec or the machine does not allow one. What happens
    /// within a run is in its report.
    pub async fn run(
        &self,
        request: RunRequest,
        events: mpsc::Sender<RunEvent>,
        cancel: CancellationToken,
    ) -> Result<RunReport, EngineError> {
        let (passed, _) = oneshot::channel();
        self.run_revocably(request, events, cancel, passed).await
    }

    /// The same for whoever keeps a record of their own: what takes a pass back comes by `passed`, before the
    /// report and apart from it, since a run may break when its status says already that it passed.
    ///
    /// # Errors
    /// As [`Engine::run`].
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
        // A run that was content with less answers for no commit later.
        let is_strict = request.sandbox == SandboxMode::Strict;
        let documents = superseding(&context, documents, &facts, &plan).await?;
        let tools = is_strict.then(|| self.tools_of_tree(&context.tree, &context.sight, &plan)).flatten();
        let documents = documents.finding(tools);
        context.durations.get_or_init(|| Durations::read(&self.state, &context.tree.seen_at, &plan.profile));
        context.emit(started(&context, began_at, &plan, &facts)).await;
        // Without it the first command gets a sandbox of its own.
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

    /// Lets go of a run that has been answered. Where the process stays, nobody waits for the end of its sandboxes,
    /// and the place for the next run's layers is made meanwhile.
    fn let_go(&self, context: Arc<Context>, space: RunSpaceConfig) {
        if self.config.stays {
            let (spare, launcher) = (Arc::clone(&self.spare), Arc::clone(&self.launcher));
            tokio::task::spawn_blocking(move || {
                drop(context);
                spare.fill(&launcher, space);
            });
        }
    }

    /// Keeps how long the steps took, where that is not what was known. A run does not depend on it.
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

    /// Checks, then skills, then one more look at the tree.
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
        // A toolchain check runs as a step of a skill that may have the name of a declared one.
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

    /// What a caller who asks for `mode` may do without.
    fn tolerated(&self, mode: SandboxMode) -> Result<Tolerated, EngineError> {
        self.config.operator.tolerated(mode).ok_or(EngineError::BestEffortForbidden)
    }

    fn facts(&self, plan: &Plan, rerun: Option<Rerun>, request: &RunRequest) -> Result<RunFacts, EngineError> {
        let run_id = request.run_id.clone().map_or_else(|| self.run_id(), Ok)?;
        let (changeset, sandbox) = (request.changeset.clone(), request.sandbox);
        Ok(RunFacts { run_id, changeset, plan_sha256: plan.digest(), sandbox, rerun })
    }

    /// A new id of a run: the time, and random bytes.
    ///
    /// # Errors
    /// The system gives no random bytes.
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

    /// The tree, the place for layers, and what steps see.
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
        // Neither needs the other.
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
        // A copy of ours can be read by every step: the files that it was made of must be readable by their owner.
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

    /// The user of steps over a tree that they see at this path.
    ///
    /// # Errors
    /// They would see the state directory, or have no user.
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

    /// The place for the layers of a run.
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

    /// What a step of `user` over `repo` sees beside the tree. Whom we serve reaches no more than
    /// they could without us.
    fn sight(&self, repo: &Path, user: StepUser, tolerated: Tolerated) -> Result<Sight, EngineError> {
        let reader = self.reader(user);
        Sight::of(&self.config, &self.launcher, &self.state, &self.state_path, repo, reader, tolerated)
    }

    fn reader(&self, user: StepUser) -> Option<Reader> {
        self.owner.map(|uid| Reader { uid, gid: user.seen_as().1 })
    }
}

/// A commit's tree is never changed, and who wants a patch wants nothing else.
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

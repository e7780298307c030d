//! What every part of one run shares: the plan, the tree, the sandbox and the way to say what
//! happens. It decides nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use proctor_core::enforcement::Tolerated;
use proctor_core::event::RunEvent;
use proctor_core::evidence::{GitIdentity, TreeSource};
use proctor_core::names::RunId;
use proctor_core::plan::{Argv, Plan, PlannedSkill, PlannedStep};
use proctor_core::redact::Redactor;
use proctor_core::telemetry::{RunTrace, TraceContext, is_trace_variable, take_context};
use proctor_core::unverified::UnverifiedInputs;
use proctor_sandbox::{CacheMount, GitDirs, Launcher, Policy, Reader, RunSpace, ToolMount, is_hidden};
use proctor_snapshot::{IgnoreQuery, IgnoredContent, Snapshot};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::environment::{self, Environment, Surroundings};
use crate::error::EngineError;
use crate::judge::Judge;
use crate::live_output::LiveOutputs;
use crate::output::Outputs;
use crate::record::TreeFacts;
use crate::repository::Repository;
use crate::request::{EngineConfig, Tracing};
use crate::skill_caches::Caches;
use crate::source;
use crate::stack::Stack;
use crate::store::caches::CacheFault;
use crate::store::directory::Directory;
use crate::store::durations::Durations;
use crate::store::mirrors::PrivateTree;
use crate::surroundings::{Look, Toolchains, neighbourhood};

/// The parts that one run shares.
pub(crate) struct Context {
    pub(crate) launcher: Arc<Launcher>,
    pub(crate) space: RunSpace,
    pub(crate) tree: Tree,
    pub(crate) outputs: Outputs,
    pub(crate) caches: Caches,
    pub(crate) sight: Sight,
    pub(crate) clock: Clock,
    pub(crate) events: mpsc::Sender<RunEvent>,
    pub(crate) cancel: CancellationToken,
    /// How many commands are still to come, as far as that is known.
    pub(crate) to_come: AtomicUsize,
    /// What is read of directories that git ignores; set when skills begin to run, which see each
    /// other's layers.
    pub(crate) ignored_content: OnceLock<IgnoredContent>,
    /// How long the steps took last; set where somebody may watch them.
    pub(crate) durations: OnceLock<Durations>,
    /// Where readers see what steps print; set when skills begin to run.
    pub(crate) live: OnceLock<LiveOutputs>,
    /// What becomes of the changes of a `read_only: off` step that has passed.
    pub(crate) changes: Changes,
    /// The trace that the steps continue; set before the first of them where there is any.
    pub(crate) trace: OnceLock<StepTrace>,
}

/// The trace that the steps of a run continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StepTrace {
    /// That of the caller, as it is: the run is not exported.
    Caller(TraceContext),
    /// That of the run, which is exported: each step continues its own span.
    Run(RunTrace),
}

impl StepTrace {
    /// Returns the trace of a caller with this environment; `None` if it names none.
    pub(crate) fn from_env(env: &BTreeMap<String, String>) -> Option<Self> {
        let named = env.iter().filter(|(name, _)| is_trace_variable(name));
        let mut named = named.map(|(name, value)| (name.clone(), value.clone())).collect();
        take_context(&mut named).map(Self::Caller)
    }

    /// Returns the trace of a run; `None` if it is neither exported nor a part of its caller's.
    pub(crate) fn new(asked: &Tracing, run: &RunId) -> Option<Self> {
        match asked {
            Tracing { parent, exported: true } => Some(Self::Run(RunTrace::new(run.clone(), parent.clone()))),
            Tracing { parent, exported: false } => parent.clone().map(Self::Caller),
        }
    }

    fn step_context(&self, skill: &PlannedSkill, step: &PlannedStep) -> TraceContext {
        match self {
            Self::Caller(context) => context.clone(),
            Self::Run(trace) => trace.step_context(skill.name.as_str(), &step.name),
        }
    }
}

/// What becomes of the changes of `read_only: off` steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Changes {
    /// They are applied to the worktree.
    Applied,
    /// They stay in their layers, where later steps see them.
    KeptApart,
}

/// The tree that is verified.
pub(crate) struct Tree {
    /// The directory that holds it: the worktree, or a directory of ours.
    pub(crate) repository: Repository,
    /// The worktree.
    pub(crate) worktree: Repository,
    /// Where steps see it: at the path of the worktree.
    pub(crate) seen_at: PathBuf,
    /// Which tree it is.
    pub(crate) source: TreeSource,
    /// Held until the run ends, where the tree lies in a directory of ours.
    pub(crate) apart: Option<PrivateTree>,
    /// The ignored files that steps see beside a private copy; `None` where they see none, or none is known.
    pub(crate) unverified: Option<UnverifiedInputs>,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) ignored: IgnoreQuery,
}

/// Where the tree is, on the host and for a step.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// Where a step sees it.
    pub(crate) repo: PathBuf,
    /// Where it lies, where that is elsewhere.
    pub(crate) checkout: Option<PathBuf>,
    pub(crate) git: GitDirs,
}

/// What a step sees beside the tree.
#[derive(Debug, Clone)]
pub(crate) struct Sight {
    pub(crate) surroundings: Surroundings,
    pub(crate) home: PathBuf,
    pub(crate) hide: Vec<PathBuf>,
    pub(crate) tools: Vec<ToolMount>,
    /// Who carries out the steps that judge SQL.
    pub(crate) judge: Judge,
    /// Which controls may be missing.
    pub(crate) tolerated: Tolerated,
}

/// An empty directory of ours, shown in place of directories that hold credentials.
pub(crate) const EMPTY_DIR: &str = "empty";
/// How long a command runs before a sandbox is prepared for the next one.
const SHORT: Duration = Duration::from_millis(20);
/// The name of the user that a step sees itself as.
const STEP_USER: &str = "step";

impl Sight {
    /// What is seen beside the tree of `repo`; of the home only what `reader` can reach.
    ///
    /// # Errors
    /// The state directory cannot be written, or nothing be looked up for the reader.
    pub(crate) fn of(
        config: &EngineConfig,
        launcher: &Launcher,
        state: &Directory,
        state_path: &Path,
        repo: &Path,
        reader: Option<Reader>,
        tolerated: Tolerated,
    ) -> Result<Self, EngineError> {
        let hide: Vec<PathBuf> = neighbourhood(repo).into_iter().chain(config.hide.iter().cloned()).collect();
        state.ensure(EMPTY_DIR, 0o755)?;
        let found = Toolchains::find(&Look {
            home: &config.home,
            reader,
            operator: &config.operator,
            caller: &config.caller_env,
            kept: [repo, state_path],
            empty: &state_path.join(EMPTY_DIR),
            is_hidden: &|path| is_hidden(path, launcher.host(), &hide),
        });
        let found =
            found.map_err(|error| EngineError::Internal(format!("toolchains cannot be looked for: {error}")))?;
        Ok(Self {
            surroundings: Surroundings {
                home: config.home.display().to_string(),
                path: found.path,
                user: STEP_USER.to_owned(),
                toolchain: found.env,
                caller: config.caller_env.clone(),
            },
            home: config.home.clone(),
            tolerated,
            hide,
            tools: found.mounts,
            judge: Judge::of(config, launcher.host().home()),
        })
    }

    /// The command of a step and what it needs to see. One that judges SQL is carried out by our own program, wherever
    /// its `PATH` leads; any other program of that name is the author's.
    fn program(&self, step: &PlannedStep) -> (Argv, Vec<ToolMount>) {
        let mut tools = self.tools.clone();
        tools.extend(step.sql.iter().flat_map(|dialect| self.judge.mounts(*dialect)).cloned());
        (self.judge.command(step).unwrap_or_else(|| step.cmd.clone()), tools)
    }

    /// The policy of one step: plain data, the same for the run and for `explain`.
    pub(crate) fn policy(&self, place: Place, step: &PlannedStep, caches: Vec<CacheMount>) -> (Policy, Environment) {
        let environment = environment::build(step, &self.surroundings);
        let env = environment.iter().map(|(name, (value, _))| (name.clone(), value.clone())).collect();
        let Place { repo, checkout, git } = place;
        let (argv, tools) = self.program(step);
        let policy = Policy {
            leaks: step.leaks,
            repo,
            checkout,
            git,
            workdir: step.workdir.clone(),
            argv,
            env,
            network: step.network,
            limits: step.limits,
            home: self.home.clone(),
            hide: self.hide.clone(),
            tools,
            caches,
            tolerated: self.tolerated.clone(),
        };
        (policy, environment)
    }
}

impl Tree {
    /// Where the tree is for a step.
    fn place(&self) -> Place {
        let repo = self.seen_at.clone();
        match &self.apart {
            None => Place { repo, checkout: None, git: source::git_dirs(&self.snapshot.git) },
            Some(apart) => {
                let git = source::git_dirs_of_copy(&repo, &apart.objects, apart.nested.clone());
                Place { repo, checkout: Some(apart.tree.clone()), git }
            }
        }
    }

    /// The tree, for the record.
    pub(crate) fn record(&self) -> TreeFacts {
        let git = &self.snapshot.git;
        let (head_commit, branch) = (git.head_commit.clone(), git.branch.clone());
        let (tree, no_tree) = (git.tree.clone().ok(), git.tree.clone().err());
        let git = GitIdentity { head_commit, branch, tree, no_tree, dirty: git.dirty };
        TreeFacts { snapshot: self.snapshot.id.clone(), git, source: self.source.clone() }
    }
}

impl Context {
    /// Has a sandbox wait for the next command, where one is still to come: it is prepared while
    /// this one runs. Most commands of a run need the same; one that does not finds none. A short command mostly leaves
    /// its own sandbox to the next, where that can be: then nothing is prepared.
    pub(crate) fn prepare_for_the_next(self: &Arc<Self>, stack: &Stack, policy: &Policy) -> impl Future<Output = ()> {
        let fewer = |left: usize| left.checked_sub(1);
        let left = self.to_come.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).unwrap_or(0);
        // The one that has just begun is among them. One more sandbox with the same caches would have a second overlay
        // over the directory that takes the writes of this command.
        let is_last = left < 2 || !policy.caches.is_empty();
        async move {
            if is_last {
                return;
            }
            if self.space.serves_on() {
                tokio::time::sleep(SHORT).await;
            }
            let (context, stack, policy) = (Arc::clone(self), stack.clone(), policy.clone());
            // Most commands change nothing of the tree: the next one stands on the same layers.
            tokio::task::spawn_blocking(move || context.warm(&stack, &policy));
        }
    }

    /// Has a sandbox wait for the first command of `plan`: it is prepared while the run is announced. To be
    /// waited for: a command that comes before it is started would get another one.
    pub(crate) fn prepare_for_the_first(self: &Arc<Self>, plan: &Plan) -> JoinHandle<()> {
        let check = plan.toolchain.first().map(|check| (None, check.run.clone()));
        let step = || plan.skills.first().and_then(|skill| Some((Some(skill.clone()), skill.steps.first()?.clone())));
        let (context, first) = (Arc::clone(self), check.or_else(step));
        tokio::task::spawn_blocking(move || {
            let stack = Stack::new(Arc::clone(&context.tree.snapshot));
            // What keeps it from having a policy is told when it is its turn.
            let policy = first.map(|(skill, step)| context.policy_with(skill.as_ref(), &step));
            if let Some(Ok((policy, _))) = policy {
                context.warm(&stack, &policy);
            }
        })
    }

    fn warm(&self, stack: &Stack, policy: &Policy) {
        let facts = &self.tree.repository.facts;
        if let Err(error) = self.launcher.warm(&self.space, &stack.lowers(), facts, policy, 1) {
            tracing::debug!(%error, "no sandbox is prepared for the next command; it gets a new one");
        }
    }

    /// Has the steps continue a trace, if there is any.
    pub(crate) fn continue_trace(&self, trace: Option<StepTrace>) {
        if let Some(trace) = trace {
            self.trace.get_or_init(|| trace);
        }
    }

    /// What takes the caller's secrets out of all that is said and recorded.
    pub(crate) fn redactor(&self) -> &Redactor {
        &self.outputs.redactor
    }

    /// Says what happened. Nobody listening is no reason to stop.
    pub(crate) async fn emit(&self, mut event: RunEvent) {
        self.redactor().clean_event(&mut event);
        if self.events.send(event).await.is_err() {
            tracing::debug!("the receiver of the run's events is gone");
        }
    }

    /// The policy of one step of `skill`.
    ///
    /// # Errors
    /// A cache cannot be opened.
    pub(crate) fn policy(&self, skill: &PlannedSkill, step: &PlannedStep) -> Result<(Policy, Environment), CacheFault> {
        let (mut policy, mut environment) = self.policy_with(Some(skill), step)?;
        if let Some(trace) = self.trace.get() {
            environment::add_trace(&mut environment, step, &trace.step_context(skill, step));
            policy.env = environment.iter().map(|(name, (value, _))| (name.clone(), value.clone())).collect();
        }
        Ok((policy, environment))
    }

    fn policy_with(
        &self,
        skill: Option<&PlannedSkill>,
        step: &PlannedStep,
    ) -> Result<(Policy, Environment), CacheFault> {
        let caches = skill.map(|skill| self.caches.mounts(&skill.name, &skill.caches)).transpose()?;
        let caches = caches.unwrap_or_default();
        Ok(self.sight.policy(self.tree.place(), step, caches))
    }
}

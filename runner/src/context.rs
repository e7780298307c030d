//! Holds what all parts of one run share: the plan, the tree, the sandbox and the event channel. It makes no
//! decisions.

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

/// The shared parts of one run.
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
    /// Number of commands still to come, as far as known.
    pub(crate) to_come: AtomicUsize,
    /// How much of ignored directories to read. Set when skills start, because they see each other's layers.
    pub(crate) ignored_content: OnceLock<IgnoredContent>,
    /// Durations of the steps in earlier runs; set if a reader may show them.
    pub(crate) durations: OnceLock<Durations>,
    /// Gives readers the output of steps; set when skills start.
    pub(crate) live: OnceLock<LiveOutputs>,
    /// How to handle the changes of a `read_only: off` step that has passed.
    pub(crate) changes: Changes,
    /// The trace that the steps continue, if there is one; set before the first step.
    pub(crate) trace: OnceLock<StepTrace>,
}

/// The trace that a run's steps continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StepTrace {
    /// The caller's trace, unchanged, if the run is not exported.
    Caller(TraceContext),
    /// The trace of the exported run: each step continues its own span.
    Run(RunTrace),
}

impl StepTrace {
    /// Returns the trace that a caller's environment names, if any.
    pub(crate) fn from_env(env: &BTreeMap<String, String>) -> Option<Self> {
        let named = env.iter().filter(|(name, _)| is_trace_variable(name));
        let mut named = named.map(|(name, value)| (name.clone(), value.clone())).collect();
        take_context(&mut named).map(Self::Caller)
    }

    /// Returns the trace of a run; `None` if the run is not exported and its caller has no trace.
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

/// The handling of the changes of `read_only: off` steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Changes {
    /// They are applied to the worktree.
    Applied,
    /// They stay in their layers, where later steps see them.
    KeptApart,
}

/// The tree to verify.
pub(crate) struct Tree {
    /// The directory of the tree: the worktree or our private copy.
    pub(crate) repository: Repository,
    /// The worktree.
    pub(crate) worktree: Repository,
    /// Path at which steps see the tree: that of the worktree.
    pub(crate) seen_at: PathBuf,
    /// The recorded source of the tree.
    pub(crate) source: TreeSource,
    /// The private copy, held until the run ends; `None` if steps see the worktree itself.
    pub(crate) apart: Option<PrivateTree>,
    /// The ignored files in the private copy; `None` if they are hidden, if the tree is a commit's, or if steps see
    /// the worktree itself.
    pub(crate) unverified: Option<UnverifiedInputs>,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) ignored: IgnoreQuery,
}

/// The paths of the tree on the host and in a sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// Path at which a step sees the tree.
    pub(crate) repo: PathBuf,
    /// Path of the tree on the host, if it differs from `repo`.
    pub(crate) checkout: Option<PathBuf>,
    pub(crate) git: GitDirs,
}

/// The parts of the host that a step sees.
#[derive(Debug, Clone)]
pub(crate) struct Sight {
    pub(crate) surroundings: Surroundings,
    pub(crate) home: PathBuf,
    pub(crate) hide: Vec<PathBuf>,
    pub(crate) tools: Vec<ToolMount>,
    /// The program that runs the steps that judge SQL.
    pub(crate) judge: Judge,
    /// The controls that may be missing.
    pub(crate) tolerated: Tolerated,
}

/// Name of the empty directory in the state directory that is mounted over directories with credentials.
pub(crate) const EMPTY_DIR: &str = "empty";
/// Runtime of a command after which a sandbox for the next one is prepared.
const SHORT: Duration = Duration::from_millis(20);
/// Name of the user inside a step.
const STEP_USER: &str = "step";

impl Sight {
    /// Determines which parts of the host a step over `repo` sees. Of the home, only paths that `reader` can reach
    /// are included.
    ///
    /// # Errors
    /// The state directory cannot be written, or the search for toolchains fails.
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

    /// Returns the command of a step and the mounts that it needs. A step that judges SQL runs our own program,
    /// regardless of `PATH`; in other steps a program of this name is the author's.
    fn program(&self, step: &PlannedStep) -> (Argv, Vec<ToolMount>) {
        let mut tools = self.tools.clone();
        tools.extend(step.sql.iter().flat_map(|dialect| self.judge.mounts(*dialect)).cloned());
        (self.judge.command(step).unwrap_or_else(|| step.cmd.clone()), tools)
    }

    /// Returns the policy of one step as plain data, the same for a run and for `explain`.
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
    /// Returns the paths of the tree.
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

    /// Returns the identity of the tree for the record.
    pub(crate) fn record(&self) -> TreeFacts {
        let git = &self.snapshot.git;
        let (head_commit, branch) = (git.head_commit.clone(), git.branch.clone());
        let (tree, no_tree) = (git.tree.clone().ok(), git.tree.clone().err());
        let git = GitIdentity { head_commit, branch, tree, no_tree, dirty: git.dirty };
        TreeFacts { snapshot: self.snapshot.id.clone(), git, source: self.source.clone() }
    }
}

impl Context {
    /// Prepares a sandbox for the next command, if there is one, while the current command runs. Most commands of a
    /// run have the same needs; a command with other needs does not use it. A short command mostly leaves its own
    /// sandbox to the next one, if sandboxes can be reused; then nothing is prepared.
    pub(crate) fn prepare_for_the_next(self: &Arc<Self>, stack: &Stack, policy: &Policy) -> impl Future<Output = ()> {
        let fewer = |left: usize| left.checked_sub(1);
        let left = self.to_come.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).unwrap_or(0);
        // The count includes the command that has just started. A second sandbox with the same caches would mount a
        // second overlay over the upper directory that the current command writes to.
        let is_last = left < 2 || !policy.caches.is_empty();
        async move {
            if is_last {
                return;
            }
            if self.space.serves_on() {
                tokio::time::sleep(SHORT).await;
            }
            let (context, stack, policy) = (Arc::clone(self), stack.clone(), policy.clone());
            // Most commands do not change the tree, so the next command has the same layers.
            tokio::task::spawn_blocking(move || context.warm(&stack, &policy));
        }
    }

    /// Prepares a sandbox for the first command of `plan` while the run is announced. The caller must wait for the
    /// returned task before it starts the command; otherwise the command would get another sandbox.
    pub(crate) fn prepare_for_the_first(self: &Arc<Self>, plan: &Plan) -> JoinHandle<()> {
        let check = plan.toolchain.first().map(|check| (None, check.run.clone()));
        let step = || plan.skills.first().and_then(|skill| Some((Some(skill.clone()), skill.steps.first()?.clone())));
        let (context, first) = (Arc::clone(self), check.or_else(step));
        tokio::task::spawn_blocking(move || {
            let stack = Stack::new(Arc::clone(&context.tree.snapshot));
            // An error in the policy is reported when the command itself starts.
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

    /// Sets the trace that the steps continue, if there is one.
    pub(crate) fn continue_trace(&self, trace: Option<StepTrace>) {
        if let Some(trace) = trace {
            self.trace.get_or_init(|| trace);
        }
    }

    /// Returns the redactor, which removes the caller's secrets from messages and records.
    pub(crate) fn redactor(&self) -> &Redactor {
        &self.outputs.redactor
    }

    /// Sends an event. The run continues even if the receiver is closed.
    pub(crate) async fn emit(&self, mut event: RunEvent) {
        self.redactor().clean_event(&mut event);
        if self.events.send(event).await.is_err() {
            tracing::debug!("the receiver of the run's events is gone");
        }
    }

    /// Returns the policy of one step of `skill`.
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

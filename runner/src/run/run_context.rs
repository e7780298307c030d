//! Holds what all parts of one run share: the plan, the tree, the sandbox and the event channel. It makes no
//! decisions.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use proctor_core::decision::input_filter::InputFilter;
use proctor_core::model::enforcement::Tolerated;
use proctor_core::model::event::RunEvent;
use proctor_core::model::names::RunId;
use proctor_core::model::outcome::Termination;
use proctor_core::model::plan::{Argv, Plan, PlannedSkill, PlannedStep, RelPath};
use proctor_core::model::trace::NoTrace;
use proctor_core::record::evidence::{GitIdentity, TreeSource};
use proctor_core::record::run_reuse::ReuseConditions;
use proctor_core::record::unverified_inputs::UnverifiedInputs;
use proctor_core::reuse::{MountedContent, MountedDirectory};
use proctor_core::telemetry::{RunTrace, TraceContext, is_trace_variable, take_context};
use proctor_core::text::redact::Redactor;
use proctor_git::helper::IgnoreQuery;
use proctor_sandbox::{
    CacheMount, FileBatches, FsCredentials, GitDirs, Launcher, Policy, RunSpace, ToolMount, ViewTrace, is_hidden,
};
use proctor_snapshot::{IgnoredContent, Snapshot};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::error::{EngineError, one_line};
use crate::host::environment::{self, Environment, EnvironmentInputs};
use crate::host::hidden_programs::HiddenProgramSearch;
use crate::host::host_toolchains::{HostToolchains, ToolchainSearch, hidden_parent};
use crate::host::repository::Repository;
use crate::remote_steps::RemoteRun;
use crate::run::earlier_pass::EarlierPass;
use crate::run::evidence_builder::TreeFacts;
use crate::run::prepared_tree;
use crate::run::request::{EngineConfig, TraceSettings};
use crate::step::chosen_files::{FileSelections, ScopePaths};
use crate::step::layer_stack::LayerStack;
use crate::step::live_output::LiveOutputs;
use crate::step::needed_paths::NeededPaths;
use crate::step::output::Outputs;
use crate::step::reuse::StepReuse;
use crate::step::run_reads::RunReads;
use crate::step::skill_caches::RunCaches;
use crate::step::sql_step::SqlProgram;
use crate::step::tree_inputs::ObservedTree;
use crate::store::caches::SkillCacheError;
use crate::store::directory::Directory;
use crate::store::durations::StepDurations;
use crate::store::private_copies::PrivateTree;

/// The shared parts of one run.
pub(crate) struct RunContext {
    pub(crate) launcher: Arc<Launcher>,
    pub(crate) space: RunSpace,
    pub(crate) tree: RunTree,
    pub(crate) outputs: Outputs,
    pub(crate) caches: RunCaches,
    /// The paths that skills need and that no commit contains.
    pub(crate) needed_paths: NeededPaths,
    /// Held while a step of a finished skill is executed for its files, if the skill has mounts: two sandboxes must not
    /// write to the same mount.
    pub(crate) finished_mounts: tokio::sync::Mutex<()>,
    pub(crate) host_view: HostView,
    pub(crate) clock: Clock,
    pub(crate) events: mpsc::Sender<RunEvent>,
    pub(crate) cancel: CancellationToken,
    /// Number of remaining commands, as far as known.
    pub(crate) remaining_commands: AtomicUsize,
    /// How much of ignored directories to read. Set when skills start, because they see each other's layers.
    pub(crate) ignored_content: OnceLock<IgnoredContent>,
    /// The earlier pass that the run could refute. Set if the run withdraws it before its first command, if there is one.
    pub(crate) earlier_pass: OnceLock<EarlierPass>,
    /// Durations of the steps in earlier runs; set if a reader may show them.
    pub(crate) durations: OnceLock<StepDurations>,
    /// Gives readers the output of steps; set when skills start.
    pub(crate) live: OnceLock<LiveOutputs>,
    /// How to handle the changes of a `read_only: off` step that has passed.
    pub(crate) changes: ChangeMode,
    /// The only paths that steps with `files` check; `None` if they check all.
    pub(crate) files: Option<Arc<ScopePaths>>,
    /// The files that steps of earlier runs chose.
    pub(crate) file_selections: Arc<FileSelections>,
    /// The trace that the steps continue, if there is one; set before the first step.
    pub(crate) trace: OnceLock<StepTrace>,
    /// The reuse of results; `None` if every step is executed.
    pub(crate) reuse: Option<StepReuse>,
    /// The reason why every step is executed, if there is one.
    pub(crate) reuse_off: Option<String>,
    /// The cluster that executes steps; set before the first step if there is one.
    pub(crate) remote: OnceLock<RemoteRun>,
    /// The reason why steps cannot run on a view; set by the first step that could not.
    pub(crate) no_view: OnceLock<String>,
    pub(crate) run_reads: RunReads,
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
    pub(crate) fn new(settings: &TraceSettings, run: &RunId) -> Option<Self> {
        match settings {
            TraceSettings { parent, exported: true } => Some(Self::Run(RunTrace::new(run.clone(), parent.clone()))),
            TraceSettings { parent, exported: false } => parent.clone().map(Self::Caller),
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
pub(crate) enum ChangeMode {
    /// The changes are applied to the worktree.
    Apply,
    /// The changes are kept in their layers, where later steps see them, and become a patch for the caller.
    AsPatch,
    /// The changes are kept in their layers, and then discarded. A run with changes of covered files is inconclusive.
    Discard,
}

/// The directories that a policy of a skill's step mounts in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TreeMounts {
    /// The caches and the needed paths of the skill.
    All,
    /// The needed paths, and an empty directory for each cache.
    EmptyCaches,
    /// None, for a policy that identifies a step and starts no command.
    None,
}

/// The tree to verify.
pub(crate) struct RunTree {
    /// The directory of the tree: the worktree or our private copy.
    pub(crate) repository: Repository,
    /// The worktree.
    pub(crate) worktree: Repository,
    /// Path at which steps see the tree: that of the worktree.
    pub(crate) seen_at: PathBuf,
    /// The recorded source of the tree.
    pub(crate) source: TreeSource,
    /// The private copy, held until the run ends; `None` if steps see the worktree itself.
    pub(crate) private_copy: Option<PrivateTree>,
    /// The ignored files in the private copy; `None` if they are hidden, if the tree is a commit's, or if steps see
    /// the worktree itself.
    pub(crate) unverified: Option<UnverifiedInputs>,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) ignored: IgnoreQuery,
}

/// The paths of the tree on the host and in a sandbox.
#[derive(Debug, Clone)]
pub(crate) struct TreePaths {
    /// Path at which a step sees the tree.
    pub(crate) repo: PathBuf,
    /// Path of the tree on the host, if it differs from `repo`.
    pub(crate) checkout: Option<PathBuf>,
    pub(crate) git: GitDirs,
}

/// The parts of the host that a step sees.
#[derive(Debug, Clone)]
pub(crate) struct HostView {
    pub(crate) environment_inputs: EnvironmentInputs,
    pub(crate) home: PathBuf,
    pub(crate) hidden: Vec<PathBuf>,
    pub(crate) tools: Vec<ToolMount>,
    /// The program that runs the steps that judge SQL.
    pub(crate) sql_program: SqlProgram,
    /// The controls that may be missing.
    pub(crate) tolerated: Tolerated,
    /// User whose rights apply to searches in the caller's directories; `None` uses our own.
    pub(crate) reader: Option<FsCredentials>,
}

/// Name of the empty directory in the state directory that is mounted over directories with credentials.
pub(crate) const EMPTY_DIR: &str = "empty";
/// Runtime of a command after which a sandbox for the next one is prepared.
const SHORT_COMMAND: Duration = Duration::from_millis(20);
/// Returns the directories that a policy hides. Leaves out those below directories that every sandbox hides, so the
/// command line and a daemon, which hides its socket, have the same policy. Keeps those in the repository.
fn hidden_directories(repo: &Path, configured: &[PathBuf], is_always_hidden: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let configured = configured.iter().filter(|path| path.starts_with(repo) || !is_always_hidden(path)).cloned();
    hidden_parent(repo).into_iter().chain(configured).collect()
}

/// Name of the user inside a step.
const STEP_USER: &str = "step";

impl HostView {
    /// Determines which parts of the host a step over `repo` sees. Of the home, only paths that `reader` can reach
    /// are included.
    ///
    /// # Errors
    /// The state directory cannot be written, or the search for toolchains fails.
    pub(crate) fn for_repository(
        config: &EngineConfig,
        launcher: &Launcher,
        state: &Directory,
        state_path: &Path,
        repo: &Path,
        reader: Option<FsCredentials>,
        tolerated: Tolerated,
    ) -> Result<Self, EngineError> {
        let is_always_hidden = |path: &Path| is_hidden(path, launcher.host(), &[]);
        let hide = hidden_directories(repo, &config.hidden_dirs, is_always_hidden);
        state.ensure(EMPTY_DIR, 0o755)?;
        let found = HostToolchains::find(&ToolchainSearch {
            home: &config.home,
            reader,
            operator: &config.operator,
            caller_env: &config.caller_env,
            unexposed: [repo, state_path],
            empty_dir: &state_path.join(EMPTY_DIR),
            is_hidden: &|path| is_hidden(path, launcher.host(), &hide),
        });
        let found =
            found.map_err(|error| EngineError::Internal(format!("toolchains cannot be searched for: {error}")))?;
        Ok(Self {
            environment_inputs: EnvironmentInputs {
                home: config.home.display().to_string(),
                path: found.path,
                user: STEP_USER.to_owned(),
                toolchain_variables: found.env,
                caller_env: config.caller_env.clone(),
            },
            home: config.home.clone(),
            tolerated,
            hidden: hide,
            tools: found.mounts,
            sql_program: SqlProgram::locate(config, launcher.host().home()),
            reader,
        })
    }

    /// Replaces the reason why a command did not start, if steps do not see the directory of its program.
    pub(crate) fn explain_missing_program(&self, cmd: &Argv, termination: &mut Termination) {
        HiddenProgramSearch { inputs: &self.environment_inputs, reader: self.reader }.explain(cmd, termination);
    }

    /// Returns the command of a step and the mounts that it needs. A step that judges SQL runs Proctor's own program.
    fn command_and_mounts(&self, step: &PlannedStep) -> (Argv, Vec<ToolMount>) {
        let mut tools = self.tools.clone();
        tools.extend(step.sql.iter().flat_map(|dialect| self.sql_program.mounts(*dialect)).cloned());
        (self.sql_program.command(step).unwrap_or_else(|| step.cmd.clone()), tools)
    }

    /// Returns the policy of one step as plain data, the same for a run and for `explain`.
    pub(crate) fn policy(
        &self,
        paths: TreePaths,
        step: &PlannedStep,
        caches: Vec<CacheMount>,
    ) -> (Policy, Environment) {
        let environment = environment::build(step, &self.environment_inputs);
        let env = environment.iter().map(|(name, (value, _))| (name.clone(), value.clone())).collect();
        let TreePaths { repo, checkout, git } = paths;
        let (argv, tools) = self.command_and_mounts(step);
        let policy = Policy {
            leaks: step.leaks,
            repo,
            checkout,
            git,
            workdir: step.workdir.clone(),
            argv,
            files: FileBatches::default(),
            env,
            network: step.network,
            limits: step.limits,
            home: self.home.clone(),
            hide: self.hidden.clone(),
            tools,
            caches,
            tolerated: self.tolerated.clone(),
            view: false,
            inputs: None,
        };
        (policy, environment)
    }
}

impl RunTree {
    /// Returns the paths of the tree.
    pub(crate) fn paths(&self) -> TreePaths {
        let repo = self.seen_at.clone();
        match &self.private_copy {
            None => TreePaths { repo, checkout: None, git: prepared_tree::worktree_git_dirs(&self.snapshot.git) },
            Some(apart) => {
                let git = prepared_tree::copy_git_dirs(&repo, &apart.objects, apart.nested.clone());
                TreePaths { repo, checkout: Some(apart.tree.clone()), git }
            }
        }
    }

    /// Returns the directory that contains `spec/`, at the path that steps see.
    pub(crate) fn spec_root(&self) -> PathBuf {
        self.repository.spec_root(&self.seen_at)
    }

    /// Returns the identity of the tree for the record.
    pub(crate) fn tree_facts(&self) -> TreeFacts {
        let git = &self.snapshot.git;
        let (head_commit, branch) = (git.head_commit.clone(), git.branch.clone());
        let (tree, no_tree) = (git.tree.clone().ok(), git.tree.as_ref().err().map(ToString::to_string));
        let git = GitIdentity { head_commit, branch, tree, no_tree, dirty: git.dirty };
        TreeFacts { snapshot: self.snapshot.id.clone(), git, source: self.source.clone() }
    }
}

impl RunContext {
    /// Prepares a sandbox for the next command, if there is one, while the current command runs. Most commands of a run
    /// have the same requirements; a command with different requirements does not use the prepared sandbox. Nothing is
    /// prepared during a short command if sandboxes can be reused, because the next command usually gets the same
    /// sandbox.
    pub(crate) fn prepare_next_sandbox(
        self: &Arc<Self>,
        stack: &LayerStack,
        policy: &Policy,
    ) -> impl Future<Output = ()> {
        let fewer = |left: usize| left.checked_sub(1);
        let left = self.remaining_commands.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).unwrap_or(0);
        // The count includes the command that has just started. A second sandbox with the same caches would mount a
        // second overlay over the upper directory that the current command writes to.
        let is_last = left < 2 || !policy.caches.is_empty();
        async move {
            if is_last {
                return;
            }
            if self.space.allows_reuse() {
                tokio::time::sleep(SHORT_COMMAND).await;
            }
            let (context, stack, policy) = (Arc::clone(self), stack.clone(), policy.clone());
            // Most commands do not change the tree, so the next command has the same layers.
            tokio::task::spawn_blocking(move || context.prepare_sandbox(&stack, &policy));
        }
    }

    /// Prepares a sandbox for the first command of `plan` while the run is announced; `None` if possibly no sandbox serves
    /// that command. The caller must wait for the returned task before it starts the command; otherwise the command would
    /// get another sandbox.
    pub(crate) fn prepare_first_sandbox(self: &Arc<Self>, plan: &Plan) -> Option<JoinHandle<()>> {
        let check = plan.toolchain.first().map(|check| (None, check.run.clone()));
        let step = || plan.skills.first().and_then(|skill| Some((Some(skill.clone()), skill.steps.first()?.clone())));
        // The needed paths are not available yet, and a sandbox without them would serve no command.
        let needs_paths = plan.skills.iter().any(|skill| !skill.needs_paths.is_empty());
        // Possibly the first command is not executed.
        let may_be_reused = |(skill, step): &(Option<PlannedSkill>, PlannedStep)| {
            skill.as_ref().and_then(|skill| self.step_reuse(skill, step)).is_some_and(StepReuse::uses_stored)
        };
        let (skill, step) = check.or_else(step).filter(|first| !needs_paths && !may_be_reused(first))?;
        let context = Arc::clone(self);
        Some(tokio::task::spawn_blocking(move || {
            let stack = LayerStack::new(Arc::clone(&context.tree.snapshot));
            // An error in the policy is reported when the command itself starts.
            if let Ok((policy, _)) = context.build_policy(skill.as_ref(), &step, TreeMounts::All) {
                context.prepare_sandbox(&stack, &policy);
            }
        }))
    }

    fn prepare_sandbox(&self, stack: &LayerStack, policy: &Policy) {
        let facts = &self.tree.repository.facts;
        if let Err(error) = self.launcher.warm(&self.space, &stack.lowers(), facts, policy, 1) {
            tracing::debug!(%error, "no sandbox could be prepared for the next command; a new one will be created for \
                it");
        }
    }

    /// Sets the trace that the steps continue, if there is one.
    pub(crate) fn set_trace(&self, trace: Option<StepTrace>) {
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
        self.redactor().redact_event(&mut event);
        if self.events.send(event).await.is_err() {
            tracing::debug!("the receiver of the run's events no longer exists");
        }
    }

    /// Returns the policy of one step of `skill`.
    ///
    /// # Errors
    /// A cache cannot be opened.
    pub(crate) fn policy(
        &self,
        skill: &PlannedSkill,
        step: &PlannedStep,
        mounts: TreeMounts,
    ) -> Result<(Policy, Environment), SkillCacheError> {
        let (mut policy, mut environment) = self.build_policy(Some(skill), step, mounts)?;
        if let Some(trace) = self.trace.get() {
            environment::add_trace(&mut environment, step, &trace.step_context(skill, step));
            policy.env = environment.iter().map(|(name, (value, _))| (name.clone(), value.clone())).collect();
        }
        Ok((policy, environment))
    }

    fn build_policy(
        &self,
        skill: Option<&PlannedSkill>,
        step: &PlannedStep,
        mounts: TreeMounts,
    ) -> Result<(Policy, Environment), SkillCacheError> {
        let mut mounted = Vec::new();
        if let Some(skill) = skill.filter(|_| mounts != TreeMounts::None) {
            mounted = match mounts {
                TreeMounts::EmptyCaches => self.caches.create_empty_mounts(&skill.caches)?,
                TreeMounts::All | TreeMounts::None => self.caches.mounts(&skill.name, &skill.caches)?,
            };
            mounted.extend(self.needed_paths.mounts(&self.caches, skill)?);
        }
        let (mut policy, environment) = self.policy_with_mounts(step, mounted);
        policy.inputs = self.input_rules(skill, step);
        let is_observed = skill.is_some_and(|skill| self.step_reuse(skill, step).is_some());
        policy.view = is_observed || policy.inputs.is_some();
        Ok((policy, environment))
    }

    /// Returns the reuse of results for a step; `None` if its results are neither stored nor used.
    ///
    /// A step that checks only some of its files has different files in almost every run, so observing it would cost
    /// more than it saves. With `per_file`, its results count for later runs too.
    pub(crate) fn step_reuse(&self, skill: &PlannedSkill, step: &PlannedStep) -> Option<&StepReuse> {
        let is_part = self.files.is_some() && step.files.is_some() && !step.passes_per_file();
        self.reuse.as_ref().filter(|reuse| !is_part && reuse.observes(skill, step))
    }

    /// Returns whether the results of all steps may be reused, so the run may start no command.
    pub(crate) fn may_start_no_command(&self, plan: &Plan) -> bool {
        let uses_stored = self.reuse.as_ref().is_some_and(StepReuse::uses_stored);
        let are_reusable = |skill: &PlannedSkill| skill.steps.iter().all(|step| self.step_reuse(skill, step).is_some());
        uses_stored && plan.toolchain.is_empty() && plan.skills.iter().all(are_reusable)
    }

    /// Withdraws the earlier pass that the run could refute, unless that has happened. Comes before each command.
    ///
    /// # Errors
    /// The pass cannot be withdrawn, as a sentence; the command must not start.
    pub(crate) async fn withdraw_earlier_pass(&self) -> Result<(), String> {
        match self.earlier_pass.get() {
            Some(pass) => pass.withdraw().await,
            None => Ok(()),
        }
    }

    /// Waits until results are stored for other machines, unless the run is cancelled.
    pub(crate) async fn finish_sharing(&self) {
        if let Some(reuse) = &self.reuse {
            self.cancel.run_until_cancelled(reuse.finish_sharing()).await;
        }
    }

    /// Notes the reason why a step could not run on a view.
    pub(crate) fn note_view(&self, view: Option<&ViewTrace>) {
        if let Some(Err(NoTrace::Unavailable { message })) = view {
            self.no_view.get_or_init(|| message.clone());
        }
    }

    /// Returns the facts that decide how the run reuses results.
    pub(crate) fn reuse_conditions(&self, plan: &Plan) -> ReuseConditions {
        let remote = self.remote.get();
        let only_workers = remote.filter(|remote| !remote.falls_back());
        let is_cacheable = |skill: &PlannedSkill| {
            let is_excluded = only_workers.is_some_and(|remote| remote.max_result_age_ms(skill).is_err());
            !is_excluded && skill.steps.iter().any(|step| self.step_reuse(skill, step).is_some())
        };
        let off = match &self.reuse {
            None => self.reuse_off.clone(),
            Some(reuse) if !reuse.uses_stored() => Some("the request executes every step (`--no-cache`)".to_owned()),
            Some(_) if !plan.skills.iter().any(is_cacheable) => {
                Some("no step can be reused; `proctor explain cache` names the rules".to_owned())
            }
            Some(_) => None,
        };
        let of_workers = remote.map(|_| "workers do not report what a step reads".to_owned());
        ReuseConditions { off, no_view: self.no_view.get().cloned().or(of_workers) }
    }

    /// Returns whether nothing changes the tree while the run holds it: it is a private copy, and the sandbox keeps the
    /// steps from writing to it.
    pub(crate) fn has_unchangeable_tree(&self) -> bool {
        self.tree.private_copy.is_some() && self.space.is_in_memory()
    }

    /// Returns the tree for the comparison of inputs; `None` if steps see the worktree itself.
    /// `inputs` are the files that the step sees, if it does not see all of them.
    pub(crate) fn observed_tree<'a>(&'a self, inputs: Option<&'a InputFilter>) -> Option<ObservedTree<'a>> {
        let copy = self.tree.private_copy.as_ref()?;
        Some(ObservedTree { entries: &self.tree.snapshot.entries, directory: &copy.tree, inputs })
    }

    /// Returns the policy of one command with these mounts in the tree.
    pub(crate) fn policy_with_mounts(&self, step: &PlannedStep, mounts: Vec<CacheMount>) -> (Policy, Environment) {
        self.host_view.policy(self.tree.paths(), step, mounts)
    }

    /// Returns the directories of the tree that are mounted for the steps of a skill.
    pub(crate) fn mounted_paths(&self, skill: &PlannedSkill) -> Vec<RelPath> {
        let needed = self.needed_paths.mounted_paths(skill);
        skill.caches.iter().cloned().chain(needed).collect()
    }

    /// Opens the caches of a skill on a blocking thread, since they may be large. If that fails, the policy reports the
    /// error.
    pub(crate) async fn open_caches(self: &Arc<Self>, skill: &PlannedSkill, mounts: TreeMounts) {
        if mounts == TreeMounts::All && !skill.caches.is_empty() {
            let (context, skill) = (Arc::clone(self), skill.clone());
            let _ = tokio::task::spawn_blocking(move || context.caches.open(&skill.name, &skill.caches)).await;
        }
    }

    /// Ends the prepared sandboxes with the mounts of a step that runs on a view. None of them serves such a step, and two
    /// sandboxes must not have the same mount.
    pub(crate) fn release_prepared_caches(&self, policy: &Policy) {
        if policy.view {
            policy.caches.iter().for_each(|cache| self.space.release_cache(&cache.source));
        }
    }

    /// Returns the identity of the directories of the tree that are mounted for the steps of a skill.
    pub(crate) fn mounted_directories(&self, skill: &PlannedSkill) -> Vec<MountedDirectory> {
        let cache =
            |path: &RelPath| MountedDirectory { path: path.to_string(), content: MountedContent::TransparentCache };
        let caches = skill.transparent_caches.iter().map(cache);
        caches.chain(self.needed_paths.mounted_directories(&self.caches, skill)).collect()
    }

    /// Returns the needed paths that the steps of a skill have changed in this run.
    ///
    /// # Errors
    /// The reason why that cannot be determined.
    pub(crate) async fn changed_needed_paths(self: &Arc<Self>, skill: &PlannedSkill) -> Result<Vec<RelPath>, String> {
        if skill.needs_paths.is_empty() {
            return Ok(Vec::new());
        }
        let (shared, skill) = (Arc::clone(self), skill.clone());
        let work = tokio::task::spawn_blocking(move || shared.needed_paths.changed_paths(&skill));
        match work.await {
            Ok(changed) => changed.map_err(|error| one_line(&error)),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Returns the record of the files that steps can see and that are not part of the tree.
    pub(crate) fn unverified_inputs(&self) -> Option<UnverifiedInputs> {
        UnverifiedInputs::with_mounted(self.tree.unverified.clone(), self.needed_paths.inputs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_that_every_sandbox_hides_are_left_out() {
        let hidden = |repo: &str, configured: &[&str]| {
            let configured: Vec<PathBuf> = configured.iter().map(PathBuf::from).collect();
            hidden_directories(Path::new(repo), &configured, |path| path.starts_with("/run"))
        };
        assert_eq!(hidden("/srv/r", &["/run/proctor"]), hidden("/srv/r", &[]), "as on the command line");
        assert_eq!(hidden("/srv/r", &["/srv/socket"]), [Path::new("/srv"), Path::new("/srv/socket")]);
        assert_eq!(hidden("/run/r", &["/run/r/socket"]), [Path::new("/run"), Path::new("/run/r/socket")]);
    }
}

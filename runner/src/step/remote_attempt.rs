//! Runs an attempt of a step on a worker of the cluster, and turns the worker's report into the result of the attempt.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use proctor_core::model::outcome::Termination;
use proctor_core::model::plan::{Argv, PlannedCheck, PlannedSkill, PlannedStep, RelPath};
use proctor_core::record::evidence::{RemoteExecution, StepExecutor, StreamEvidence};
use proctor_core::reuse::WorkerInputs;
use proctor_core::text::redact::Redactor;
use proctor_git::files::paths;
use proctor_remote::{Bytes, MerkleTree};
use proctor_sandbox::agent::{AGENT_PROTOCOL, AgentCommand, AgentNeededPath, AgentReport, AgentRequest, LayerChange};
use proctor_sandbox::layer_changes::fill_directory;
use proctor_sandbox::{FileBatches, Layer, Policy, Unsealed};

use crate::error::one_line;
use crate::host::environment;
use crate::remote_steps::{
    GitObjectSource, RemoteExecutor, RemoteFailure, RemoteJob, RemoteOutputs, RemoteRun, RemoteTrees, clean_texts,
    examine_checks, git_tree, input_tree, needed_path_tree, received_stream, require_controls, require_own_report,
    worker_evidence, worker_text,
};
use crate::run::run_context::RunContext;
use crate::step::attempt::{self, AttemptResult};
use crate::step::layer_stack::LayerStack;
use crate::step::live_output::LiveWriter;
use crate::step::needed_paths::PathForWorker;
use crate::step::output::store_received;
use crate::step::reuse::worker::WorkerTrees;
use crate::step::worker_paths::{CHANGES, SplitChanges, read_layers, split_changes};
use crate::store::caches::SkillCacheError;
use crate::store::directory::random_u64;

/// Maximum size of an output stream that a worker returns, in bytes.
const MAX_STREAM: u64 = 64 << 20;
/// Minimum size of an output stream that a worker may return, in bytes, because its ends are always shown.
const MIN_STREAM: u64 = 64 << 10;
/// Time of an action beyond the timeouts of its commands: transfers on the worker, and copying the tree.
const OVERHEAD: Duration = Duration::from_secs(300);
/// The directory of git in the private copy.
const GIT: &str = ".git";

/// A step that is to run on a worker.
pub(crate) struct StepOnWorker<'a> {
    pub(crate) remote: &'a RemoteRun,
    pub(crate) context: &'a Arc<RunContext>,
    pub(crate) skill: &'a PlannedSkill,
    pub(crate) step: &'a PlannedStep,
    pub(crate) policy: &'a Policy,
}

/// The result of an attempt on a worker.
pub(crate) struct RemoteAttempt {
    pub(crate) result: AttemptResult,
    pub(crate) upper: Layer<Unsealed>,
}

/// A step as a worker gets it, without the files of earlier steps.
struct DescribedStep {
    /// The request, without a nonce.
    request: AgentRequest,
    /// The toolchain checks in the request.
    checks: Vec<PlannedCheck>,
    trees: RemoteTrees,
    /// The needed paths in the request.
    needed_paths: Vec<Arc<MerkleTree>>,
    /// The properties of the worker.
    platform: BTreeMap<String, String>,
}

/// The reason why the cluster has not executed a step.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotExecuted {
    /// The run was cancelled.
    #[error("the run was cancelled")]
    Cancelled,
    /// The cluster did not execute the step, or its answer is not valid.
    #[error("{0}")]
    Refused(String),
}

impl From<RemoteFailure> for NotExecuted {
    fn from(failure: RemoteFailure) -> Self {
        match failure {
            RemoteFailure::Cancelled => Self::Cancelled,
            failure => Self::Refused(one_line(&failure)),
        }
    }
}

impl From<SkillCacheError> for NotExecuted {
    fn from(error: SkillCacheError) -> Self {
        Self::Refused(format!("the needed paths: {}", one_line(&error)))
    }
}

fn refused(error: &impl std::error::Error) -> NotExecuted {
    NotExecuted::Refused(one_line(error))
}

impl StepOnWorker<'_> {
    /// Executes one attempt.
    ///
    /// # Errors
    /// The cluster does not execute the step, or its answer is not valid.
    pub(crate) async fn run(
        &self,
        stack: &LayerStack,
        live: &mut Option<[LiveWriter; 2]>,
    ) -> Result<RemoteAttempt, NotExecuted> {
        let executor = self.executor()?;
        let described = self.describe().await?;
        let sent = self.inputs_of(executor, &described);
        let DescribedStep { request, checks, trees, needed_paths, platform } = described;
        let (layers, content) = self.read_layers(stack, step_paths(&request)).await?;
        let commands = request.checks.iter().chain([&request.step]);
        let timeouts = commands.map(|command| command.timeout_ms.saturating_add(command.grace_ms));
        let job = RemoteJob {
            run_limit: OVERHEAD + Duration::from_millis(timeouts.fold(0, u64::saturating_add)),
            max_stream_bytes: request.step.max_output_bytes,
            request: AgentRequest { nonce: nonce()?, layers, ..request },
            layers: content,
            tree: trees.tree,
            git: trees.git,
            needed_paths,
            no_git_objects: trees.no_git_objects,
            platform,
        };
        let outputs = executor.execute(&job, &self.context.cancel).await?;
        let mut attempt = self.finish((job, checks), outputs, live.take()).await?;
        attempt.result.sent = sent.map(Box::new);
        Ok(attempt)
    }

    /// Returns what a worker would get for the step, without the files of earlier steps; `None` if the run stores no results.
    ///
    /// # Errors
    /// The cluster would not execute the step.
    pub(crate) async fn inputs(&self) -> Result<Option<(WorkerInputs, WorkerTrees)>, NotExecuted> {
        let executor = self.executor()?;
        let described = self.describe().await?;
        let inputs = self.inputs_of(executor, &described);
        let RemoteTrees { tree, git, .. } = described.trees;
        Ok(inputs.map(|inputs| (inputs, WorkerTrees { tree, git })))
    }

    fn inputs_of(&self, executor: &RemoteExecutor, described: &DescribedStep) -> Option<WorkerInputs> {
        let DescribedStep { request, trees, needed_paths, platform, .. } = described;
        let server = &self.remote.settings.server;
        Some(WorkerInputs {
            endpoint: server.endpoint.clone(),
            instance: server.instance.clone(),
            platform: platform.clone(),
            agent: executor.agent.digest.sha256.clone(),
            request: self.context.reuse.as_ref()?.request_digest(request),
            tree: trees.tree.root.sha256.clone(),
            git: trees.git.as_ref().map(|git| git.identity.clone()),
            needed_paths: request
                .needed_paths
                .iter()
                .zip(needed_paths)
                .map(|(needed, tree)| (needed.at.to_string(), tree.root.sha256.clone()))
                .collect(),
        })
    }

    fn executor(&self) -> Result<&RemoteExecutor, NotExecuted> {
        self.remote.executor.as_ref().map_err(|reason| NotExecuted::Refused(reason.clone()))
    }

    /// Describes the step for a worker, without the files of earlier steps.
    async fn describe(&self) -> Result<DescribedStep, NotExecuted> {
        let Self { remote, context, skill, step, policy } = self;
        let checks = remote.checks(skill, step);
        let request = AgentRequest {
            version: AGENT_PROTOCOL,
            nonce: String::new(),
            repo: policy.repo.clone(),
            home: policy.home.clone(),
            step: self.command(),
            checks: checks.iter().map(|check| self.check_command(check)).collect(),
            layers: Vec::new(),
            caches: skill.caches.clone(),
            needed_paths: Vec::new(),
            has_git: false,
            tolerated: remote.settings.tolerated(Some(&context.host_view.tolerated)),
            max_changes_bytes: CHANGES.bytes,
        };
        require_no_secret(&request, context.redactor())?;
        let trees = self.trees().await?;
        let (paths, needed_paths) = self.needed_paths(&checks).await?;
        let request = AgentRequest { has_git: trees.git.is_some(), needed_paths: paths, ..request };
        let platform = remote.settings.platform_of(&skill.platform, &skill.container);
        Ok(DescribedStep { request, checks, trees, needed_paths, platform })
    }

    /// Returns the needed paths that the worker gets, and their content.
    async fn needed_paths(
        &self,
        checks: &[PlannedCheck],
    ) -> Result<(Vec<AgentNeededPath>, Vec<Arc<MerkleTree>>), NotExecuted> {
        let Self { remote, context, skill, .. } = self;
        if let Some(reason) = context.needed_paths.worker_obstacle(skill) {
            return Err(NotExecuted::Refused(reason));
        }
        let commands: Vec<&Argv> = checks.iter().map(|check| &check.run.cmd).collect();
        let (mut paths, mut trees) = (Vec::new(), Vec::new());
        for PathForWorker { at, held, is_for_checks_only } in context.needed_paths.for_worker(skill, &commands) {
            let content = held.record.content.sha256.clone();
            let tree = remote.needed_paths.tree_of(&content, move || needed_path_tree(&held)).await;
            trees.push(tree.map_err(|reason| NotExecuted::Refused(format!("the needed path `{at}` {reason}")))?);
            paths.push(AgentNeededPath { at, is_for_checks_only });
        }
        Ok((paths, trees))
    }

    /// Reads the files that earlier steps left, oldest first.
    async fn read_layers(
        &self,
        stack: &LayerStack,
        needed: Vec<RelPath>,
    ) -> Result<(Vec<Vec<LayerChange>>, Bytes), NotExecuted> {
        let (context, skill, stack) = (Arc::clone(self.context), self.skill.clone(), stack.clone());
        let work = tokio::task::spawn_blocking(move || {
            let writes = context.needed_paths.writes(&skill)?;
            read_layers(&stack, &needed, &writes).map_err(|error| refused(&error))
        });
        work.await.unwrap_or_else(|error| Err(NotExecuted::Refused(error.to_string())))
    }

    /// Returns the step's command as the worker runs it.
    fn command(&self) -> AgentCommand {
        let Self { step, policy, .. } = self;
        let mut env = sent_variables(self.context, policy);
        self.set_path(step, &mut env);
        AgentCommand {
            name: step.name.to_string(),
            workdir: policy.workdir.clone(),
            argv: policy.argv.clone(),
            files: policy.files.clone(),
            env,
            network: policy.network,
            limits: policy.limits,
            leaks: policy.leaks,
            timeout_ms: step.timeout_ms,
            grace_ms: step.grace_ms,
            max_output_bytes: step.limits.output.get_or_max().clamp(MIN_STREAM, MAX_STREAM),
        }
    }

    fn check_command(&self, check: &PlannedCheck) -> AgentCommand {
        let step = &check.run;
        let inputs = &self.context.host_view.environment_inputs;
        let inputs = environment::EnvironmentInputs { toolchain_variables: BTreeMap::new(), ..inputs.clone() };
        let env = environment::build(step, &inputs);
        let mut env = env.into_iter().map(|(name, (value, _))| (name, value)).collect();
        self.set_path(step, &mut env);
        AgentCommand {
            name: check.toolchain.to_string(),
            workdir: step.workdir.clone(),
            argv: step.cmd.clone(),
            files: FileBatches::default(),
            env,
            network: step.network,
            limits: step.limits,
            leaks: step.leaks,
            timeout_ms: step.timeout_ms,
            grace_ms: step.grace_ms,
            max_output_bytes: MIN_STREAM,
        }
    }

    /// Sets the `PATH` of workers, unless the spec sets one.
    fn set_path(&self, step: &PlannedStep, env: &mut BTreeMap<String, String>) {
        if !step.env.keys().any(|name| name.as_str() == "PATH") {
            env.insert("PATH".to_owned(), self.remote.settings.path.clone());
        }
    }

    /// Returns the trees that a step sees.
    async fn trees(&self) -> Result<RemoteTrees, NotExecuted> {
        let Self { remote, context, skill, step, policy } = self;
        let whole = remote.trees.get_or_init(async || describe_trees(context, remote.git.clone()).await).await;
        let whole = whole.clone().map_err(NotExecuted::Refused)?;
        if policy.inputs.is_none() {
            return Ok(whole);
        }
        let inputs = context.input_filter(skill, step).map_err(NotExecuted::Refused)?;
        let shared = Arc::clone(context);
        let work = tokio::task::spawn_blocking(move || match shared.observed_tree(None) {
            Some(tree) => input_tree(tree.entries, tree.directory, inputs.as_ref()).map_err(|error| one_line(&error)),
            None => Err(NO_COPY.to_owned()),
        });
        let tree = work.await.unwrap_or_else(|error| Err(error.to_string())).map_err(NotExecuted::Refused)?;
        Ok(RemoteTrees { tree: Arc::new(tree), ..whole })
    }

    /// Turns the outputs of an action into the result of the attempt, and puts the step's files into a layer.
    async fn finish(
        &self,
        (job, checks): (RemoteJob, Vec<PlannedCheck>),
        outputs: RemoteOutputs,
        live: Option<[LiveWriter; 2]>,
    ) -> Result<RemoteAttempt, NotExecuted> {
        let Self { remote, context, skill, step, .. } = self;
        let RemoteOutputs { action, report, stdout, stderr, changes } = outputs;
        require_own_report(&job.request, &report).map_err(|fault| refused(&fault))?;
        require_controls(&job.request, &report).map_err(|fault| refused(&fault))?;
        let toolchains = examine_checks(&checks, &report).map_err(|fault| refused(&fault))?;
        let AgentReport { worker, repo, attempt, stdout: out, stderr: err, changes: list, changes_error, .. } = report;
        let mut executed = attempt.ok_or_else(|| NotExecuted::Refused("the worker did not run the step".to_owned()))?;
        clean_texts(&mut executed);
        if let Some((_, reason)) = &executed.not_started {
            let reason = format!("the worker could not start the step: {}", worker_text(reason));
            return Err(NotExecuted::Refused(reason));
        }
        if executed.cancelled {
            return Err(NotExecuted::Refused("the worker ended the step before its timeout".to_owned()));
        }
        if job.request.has_git && list.iter().any(|change| is_git_directory(&change.path)) {
            return Err(NotExecuted::Refused(
                "the worker reports changes of `.git`, which no step can make".to_owned(),
            ));
        }
        if let Some(error) = changes_error {
            return Err(NotExecuted::Refused(format!("the files of the step are not known: {}", worker_text(&error))));
        }
        let SplitChanges { tree, mut needed } =
            split_changes(list, &step_paths(&job.request)).map_err(|error| refused(&error))?;
        if !remote.settings.trust_workers {
            // Without the trust in workers, a later attempt on this machine could pass because of these files.
            needed.clear();
        }
        let (shared, skill, keep) = (Arc::clone(context), (*skill).clone(), step.limits.output.get_or_max());
        let work = move || {
            let [live_out, live_err] = live.map_or([None, None], |writers| writers.map(Some));
            let store = |stream, content: &Bytes, live| -> Result<StreamEvidence, NotExecuted> {
                let received = received_stream(stream, content).map_err(|fault| refused(&fault))?;
                let wrong = || {
                    NotExecuted::Refused(
                        "the digest of an output of the worker differs from the one in its report".into(),
                    )
                };
                store_received(received, keep, &shared.outputs, live).ok_or_else(wrong)
            };
            let streams = [store(&out, &stdout, live_out)?, store(&err, &stderr, live_err)?];
            let facts = &shared.tree.repository.facts;
            let upper = shared.space.new_layer(shared.launcher.host(), facts).map_err(|error| refused(&error))?;
            let filled = upper.fill(&tree, changes.as_ref(), CHANGES).map_err(|error| refused(&error));
            let filled = filled.and_then(|()| {
                let fill = |to: BorrowedFd<'_>, owner, list: &Vec<LayerChange>| {
                    fill_directory(to, owner, list, changes.as_ref(), CHANGES).map_err(|error| refused(&error))
                };
                shared.needed_paths.add_writes((&shared.caches, &shared.space), (&skill, &needed), fill)
            });
            match filled {
                Ok(()) => Ok((streams, upper)),
                Err(reason) => {
                    drop(upper.seal().discard());
                    Err(reason)
                }
            }
        };
        let work = tokio::task::spawn_blocking(work).await;
        let (streams, upper) = work.unwrap_or_else(|error| Err(NotExecuted::Refused(error.to_string())))?;
        let execution = RemoteExecution {
            endpoint: remote.settings.server.endpoint.clone(),
            instance: remote.settings.server.instance.clone(),
            action: action.to_string(),
            platform: job.platform,
            trusted: remote.settings.trust_workers,
            repo: worker_text(&repo.display().to_string()),
            no_git_objects: job.no_git_objects,
            worker: worker_evidence(&worker, toolchains),
        };
        remote.note_programs(&execution.platform, &execution.worker);
        let result = attempt::worker_result(executed, step, streams);
        let executor = Some(StepExecutor::Remote(Box::new(execution)));
        Ok(RemoteAttempt { result: AttemptResult { executor, ..result }, upper })
    }
}

/// Returns the variables of a step that a worker gets: all except those for toolchains of this machine, which name paths of
/// this machine.
pub(crate) fn sent_variables(context: &RunContext, policy: &Policy) -> BTreeMap<String, String> {
    let local = &context.host_view.environment_inputs.toolchain_variables;
    let is_sent = |(name, value): &(&String, &String)| local.get(*name) != Some(*value);
    policy.env.iter().filter(is_sent).map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// The reason why a run without a private copy of the tree uses no workers.
const NO_COPY: &str = "the tree has no private copy, so it could change while it is sent";

async fn describe_trees(context: &Arc<RunContext>, source: GitObjectSource) -> Result<RemoteTrees, String> {
    let context = Arc::clone(context);
    let work = tokio::task::spawn_blocking(move || {
        let tree = context.observed_tree(None).ok_or_else(|| NO_COPY.to_owned())?;
        let git = tree.directory.join(GIT);
        let objects = source.reader.read(&source.helper, context.tree.worktree.path(), &git);
        let (objects, no_git_objects) = objects.map_or_else(|reason| (None, Some(reason)), |found| (found, None));
        let git = git_tree(&git, objects.as_deref()).map_err(|error| one_line(&error))?;
        let tree = input_tree(tree.entries, tree.directory, None).map_err(|error| one_line(&error))?;
        Ok(RemoteTrees { tree: Arc::new(tree), git: git.map(Arc::new), no_git_objects })
    });
    work.await.unwrap_or_else(|error| Err(error.to_string()))
}

/// Returns the needed paths that the step of a request sees.
fn step_paths(request: &AgentRequest) -> Vec<RelPath> {
    let paths = request.needed_paths.iter().filter(|needed| !needed.is_for_checks_only);
    paths.map(|needed| needed.at.clone()).collect()
}

/// Returns whether a path of the tree is its git directory or below it.
fn is_git_directory(path: &[u8]) -> bool {
    path == GIT.as_bytes() || paths::is_below(path, GIT.as_bytes())
}

fn nonce() -> Result<String, NotExecuted> {
    let random = || random_u64().map_err(|error| refused(&error));
    Ok(format!("{:016x}{:016x}", random()?, random()?))
}

/// Requires that no secret of the caller leaves this machine.
fn require_no_secret(request: &AgentRequest, redactor: &Redactor) -> Result<(), NotExecuted> {
    let commands = request.checks.iter().chain([&request.step]);
    let has_secret = |text: &String| matches!(redactor.redact_text(text), std::borrow::Cow::Owned(_));
    for command in commands {
        let names: BTreeSet<&str> =
            command.env.iter().filter(|(_, value)| has_secret(value)).map(|(name, _)| name.as_str()).collect();
        if let Some(name) = names.first() {
            let reason = format!("its variable `{name}` has a secret of the caller, which does not leave this machine");
            return Err(NotExecuted::Refused(reason));
        }
        if command.argv.words().iter().any(has_secret) {
            let reason = "its command contains a secret of the caller, which does not leave this machine";
            return Err(NotExecuted::Refused(reason.to_owned()));
        }
    }
    Ok(())
}

/// Returns the result of an attempt that did not run, for this reason.
pub(crate) fn not_executed_result(reason: &NotExecuted, endpoint: &str) -> AttemptResult {
    let fault = proctor_core::model::outcome::StartFault::Remote;
    match reason {
        NotExecuted::Cancelled => {
            let result = AttemptResult::not_started(fault, String::new());
            AttemptResult { termination: Termination::Cancelled, ..result }
        }
        NotExecuted::Refused(reason) => {
            let cluster = if reason.contains(endpoint) { String::new() } else { format!(" `{endpoint}`") };
            AttemptResult::not_started(fault, format!("the cluster{cluster} did not execute it: {reason}"))
        }
    }
}

//! Runs one step of a skill: repeats attempts until one passes or the retries are used up, seals and reads the
//! layer after each attempt, and computes the outcome.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use proctor_core::decision::verdict::{InconclusiveDetail, InconclusiveReason};
use proctor_core::model::drift::{DriftMethod, StepDrift, display_path};
use proctor_core::model::enforcement::{Control, Enforcement};
use proctor_core::model::event::{EndReason, RunEvent};
use proctor_core::model::outcome::{Outcome, StartFault, Termination, Violations, judge_attempt, judge_fix};
use proctor_core::model::plan::{Argv, BadArgv, Leaks, PlannedSkill, PlannedStep, ReadOnly};
use proctor_core::record::evidence::{AttemptEvidence, CheckedFiles, DriftEvidence, StepEvidence, step_path};
use proctor_core::reuse::{ReuseObstacle, StoredResult};
use proctor_core::text::digest::Sha256Hex;
use proctor_sandbox::helper::copy_changes::drift_method_for;
use proctor_sandbox::{Layer, Policy, RunningSandbox, SandboxError, Sealed, Unsealed, ViewTrace};
use proctor_snapshot::{
    ApplyError, ApplyInput, DriftError, DriftInput, IgnoredContent, ScanBounds, ScanError, SparingRules, apply_back,
    find_drift, scan_layer_sparing,
};
use proctor_sql::check::CheckError;
use tokio::task::JoinError;

use crate::error::one_line;
use crate::run::evidence_builder::whole_millis;
use crate::run::run_context::{ChangeMode, RunContext};
use crate::step::attempt::{self, AttemptResult};
use crate::step::file_selection::{FilesNotChosen, StepFiles, path_in_tree};
use crate::step::layer_stack::{LayerStack, StackedLayer};
use crate::step::live_output::LiveWriter;
use crate::step::reuse::{FilesNotStored, NoResult, PassedFiles, ReuseSearch};
use crate::step::reused_files::{self, ReusedFiles};
use crate::step::skill_runner::describe_outcome;
use crate::step::sql_step::SqlProgram;
use crate::step::step_reports::ExpectedReports;
use crate::step::timing::StageTimer;

/// The result of a step.
pub(crate) struct StepRun {
    pub(crate) evidence: StepEvidence,
    /// The last layer, if it is reliable and was not put back for reuse.
    pub(crate) layer: Option<Arc<StackedLayer>>,
    /// True if the step ran and its layer is reliable.
    pub(crate) is_known: bool,
    /// Paths that were applied to the worktree, as bytes.
    pub(crate) applied: Vec<Vec<u8>>,
    pub(crate) inconclusive_reasons: Vec<InconclusiveDetail>,
    /// The digest of the stored result that stands for the layer, if the result was stored.
    pub(crate) stored_as: Option<Sha256Hex>,
    /// The files that a reused step would have left.
    pub(crate) reused_files: Option<Arc<ReusedFiles>>,
    /// True if the step passed for some files only, and the results of the others do not count.
    pub(crate) must_check_all: bool,
}

/// The purpose of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Execution {
    /// The step is verified.
    Verifying,
    /// The result of the step was reused, and a later step needs its files. There are no events.
    ForItsFiles,
}

/// How the reuse of results applies to one execution of a step.
struct StepReuseState {
    key: Sha256Hex,
    /// True if a stored result holds, and the execution checks it.
    is_recheck: bool,
    /// The earlier results of a step with `per_file` that hold.
    earlier: Vec<StoredResult>,
}

/// The reason why a step has no command to run.
#[derive(Debug, thiserror::Error)]
enum StepCommandError {
    /// The files to check cannot be selected.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// The files to check cannot be arguments.
    #[error(transparent)]
    Argv(#[from] BadArgv),
}

/// The reason why the changes of a step cannot be judged or applied.
#[derive(Debug, thiserror::Error)]
enum StepChangesError {
    /// The layer cannot be read.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// The layer cannot be compared with the tree.
    #[error(transparent)]
    Drift(#[from] DriftError),
    /// The file system of the layer is not known.
    #[error("the method of the scan is unknown: {0}")]
    Method(#[source] io::Error),
    /// The task that reads the layer panicked.
    #[error("reading the layer failed unexpectedly: {0}")]
    ReadTask(#[source] JoinError),
    /// The changes cannot be written to the worktree.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The task that applies the changes panicked.
    #[error("applying ended badly: {0}")]
    ApplyTask(#[source] JoinError),
}

/// One attempt, with the content of its layer.
struct JudgedAttempt {
    result: AttemptResult,
    outcome: Outcome,
    drift: StepDrift,
    method: Option<DriftMethod>,
    layer: Option<Arc<StackedLayer>>,
    inconclusive_reasons: Vec<InconclusiveDetail>,
}

impl JudgedAttempt {
    fn not_started(fault: StartFault, reason: String) -> Self {
        let report = AttemptResult::not_started(fault, reason);
        let outcome = judge_attempt(&report.termination, &[], Violations::default());
        Self {
            result: report,
            outcome,
            drift: StepDrift::default(),
            method: None,
            layer: None,
            inconclusive_reasons: vec![],
        }
    }

    /// Adds a doubt, and makes the outcome inconclusive unless it is a failure.
    fn mark_inconclusive(&mut self, doubt: InconclusiveReason, message: String) {
        if !self.outcome.is_failure() {
            self.outcome = Outcome::Inconclusive;
        }
        self.inconclusive_reasons.push(doubt.with_message(message));
    }
}

/// Runs `step` on top of `stack`, or uses a stored result. The result does not contain the caller's secrets.
pub(crate) async fn run(
    context: &Arc<RunContext>,
    stack: &LayerStack,
    skill: &PlannedSkill,
    step: &PlannedStep,
) -> StepRun {
    let mut files = match StepFiles::choose(context, stack.view(), step).await {
        Ok(files) => files,
        Err(FilesNotChosen { fault, reason }) => {
            return not_started_step(context, step, &JudgedAttempt::not_started(fault, reason));
        }
    };
    let key = reuse_key(context, stack, skill, step, &files);
    let (mut is_recheck, mut earlier) = (false, Vec::new());
    if let Some(key) = &key {
        match search_result(context, key, step, &mut files).await {
            ReuseSearch::Found(result) => return reused_step(context, skill, step, (*result, &files)),
            ReuseSearch::Files(holding) => earlier = holding,
            ReuseSearch::Nothing(reason) => {
                is_recheck = matches!(reason, NoResult::Recheck);
                tracing::debug!(skill = %skill.name, step = %step.name, %reason, "no stored result is used");
            }
        }
    }
    let stack = match reused_files::complete_stack(context, stack).await {
        Ok(stack) => stack,
        Err(reason) => {
            return not_started_step(context, step, &JudgedAttempt::not_started(StartFault::Internal, reason));
        }
    };
    let state = key.map(|key| StepReuseState { key, is_recheck, earlier });
    let run = execute_with_files(context, &stack, skill, step, (&files, state, Execution::Verifying)).await;
    if !run.must_check_all {
        return run;
    }
    discard_layer(run.layer).await;
    files.set_reused(Vec::new());
    execute_with_files(context, &stack, skill, step, (&files, None, Execution::Verifying)).await
}

/// Executes `step` on top of `stack`, which must be complete.
pub(crate) async fn execute(
    context: &Arc<RunContext>,
    stack: &LayerStack,
    skill: &PlannedSkill,
    step: &PlannedStep,
    purpose: Execution,
) -> StepRun {
    match StepFiles::choose(context, stack.view(), step).await {
        Ok(files) => execute_with_files(context, stack, skill, step, (&files, None, purpose)).await,
        Err(FilesNotChosen { fault, reason }) => {
            not_started_step(context, step, &JudgedAttempt::not_started(fault, reason))
        }
    }
}

/// Returns the key of a step under which its results are stored; `None` if they are not.
pub(crate) fn reuse_key(
    context: &RunContext,
    stack: &LayerStack,
    skill: &PlannedSkill,
    step: &PlannedStep,
    files: &StepFiles,
) -> Option<Sha256Hex> {
    let reuse = context.step_reuse(skill, step)?;
    let below = stack.stored_results()?;
    let (mut policy, _) = context.policy(skill, step).ok()?;
    if !is_per_file(step) {
        policy.files = files.batches(&policy);
    }
    Some(reuse.key(skill, step, &policy, &below))
}

/// Returns whether the result of each file of a step depends on no other of its files, according to the spec.
fn is_per_file(step: &PlannedStep) -> bool {
    step.files.as_ref().is_some_and(|rules| rules.per_file)
}

/// Searches stored results on a blocking thread. For a step with `per_file`, marks the files that have passed.
pub(crate) async fn search_result(
    context: &Arc<RunContext>,
    key: &Sha256Hex,
    step: &PlannedStep,
    files: &mut StepFiles,
) -> ReuseSearch {
    let (shared, key) = (Arc::clone(context), key.clone());
    let listed = is_per_file(step).then(|| paths_in_tree(step, files.chosen()));
    let search = move || match (&shared.reuse, shared.observed_tree(), listed) {
        (Some(reuse), Some(tree), None) => (reuse.find(&key, tree), Vec::new()),
        (Some(reuse), Some(tree), Some(listed)) => match reuse.find_files(&key, tree, &listed) {
            Ok(PassedFiles { passed, mut holding }) if passed.len() == listed.len() => {
                (ReuseSearch::Found(Box::new(holding.swap_remove(0))), passed)
            }
            Ok(PassedFiles { passed, holding }) => (ReuseSearch::Files(holding), passed),
            Err(reason) => (ReuseSearch::Nothing(reason), Vec::new()),
        },
        _ => (ReuseSearch::Nothing(NoResult::Obstacle(ReuseObstacle::SharedTree)), Vec::new()),
    };
    let (found, passed) = tokio::task::spawn_blocking(search).await.unwrap_or_else(|error| {
        let message = format!("the search ended badly: {error}");
        (ReuseSearch::Nothing(NoResult::Obstacle(ReuseObstacle::NotObserved { message })), Vec::new())
    });
    let reused = passed.into_iter().filter_map(|at| files.chosen().get(at).cloned()).collect();
    files.set_reused(reused);
    found
}

fn paths_in_tree<'a>(step: &PlannedStep, files: impl IntoIterator<Item = &'a Vec<u8>>) -> Vec<Vec<u8>> {
    files.into_iter().map(|file| path_in_tree(&step.workdir, file)).collect()
}

/// Returns the result of a step that is not executed, because a stored result holds.
fn reused_step(
    context: &RunContext,
    skill: &PlannedSkill,
    step: &PlannedStep,
    (result, checked): (StoredResult, &StepFiles),
) -> StepRun {
    let source = result.source();
    let files =
        result.has_files.then(|| Arc::new(ReusedFiles::new(skill, step, result.key.clone(), result.chain_digest())));
    let mut evidence = StepEvidence {
        planned: step.clone(),
        duration_ms: 0,
        reused: Some(source),
        checked_files: checked.evidence(None).map(|now| CheckedFiles { reused: 0, ..now }),
        ..result.evidence
    };
    context.redactor().redact_step(&mut evidence);
    StepRun {
        evidence,
        layer: None,
        is_known: true,
        applied: Vec::new(),
        inconclusive_reasons: Vec::new(),
        stored_as: None,
        reused_files: files,
        must_check_all: false,
    }
}

/// Stores the result of an execution. Returns the digest that stands for it, and the reason for a doubt if a stored
/// result was wrong.
async fn store_result(
    context: &Arc<RunContext>,
    state: Option<StepReuseState>,
    evidence: &StepEvidence,
    (view, has_files, files): (Option<ViewTrace>, bool, &StepFiles),
) -> StoreOutcome {
    let passed = evidence.outcome == Outcome::Passed;
    // A failure of some files is a failure, whatever the others do.
    let is_partial = passed && files.to_check().count() != files.chosen().len();
    let (Some(StepReuseState { key, is_recheck, earlier }), Some(view)) = (state, view) else {
        return StoreOutcome { must_check_all: is_partial, ..StoreOutcome::default() };
    };
    if is_recheck && !matches!(evidence.outcome, Outcome::Passed | Outcome::Cancelled) {
        let reason = format!(
            "a stored result said that `{}` passes with these inputs, but it {}; the step is not reused any more; \
             report this, or declare the skill with `determinism: D2`",
            evidence.planned.name,
            describe_outcome(evidence.outcome)
        );
        if let Some(reuse) = &context.reuse {
            reuse.distrust(&key, &reason);
        }
        let doubt = Some(InconclusiveReason::Internal.with_message(reason));
        return StoreOutcome { doubt, ..StoreOutcome::default() };
    }
    let (context, evidence) = (Arc::clone(context), evidence.clone());
    let step = &evidence.planned;
    let listed = is_per_file(step)
        .then(|| (paths_in_tree(step, files.to_check()), paths_in_tree(step, files.chosen()), earlier));
    let store = move || {
        let none = StoreOutcome::default();
        let (Some(reuse), Some(tree)) = (&context.reuse, context.observed_tree()) else { return none };
        let stored = match &listed {
            None => reuse.record(&key, &evidence, (view, has_files), tree).map_err(FilesNotStored::Obstacle),
            Some((checked, all, earlier)) => {
                reuse.record_files(&key, &evidence, (view, has_files), tree, (checked, all, earlier))
            }
        };
        match stored {
            Ok(stored_as) => StoreOutcome { stored_as: Some(stored_as), ..none },
            Err(FilesNotStored::Obstacle(obstacle)) => {
                tracing::debug!(step = %evidence.planned.name, %obstacle, "not stored");
                // Without a record, nothing shows that the files are independent.
                StoreOutcome { must_check_all: is_partial, ..none }
            }
            Err(FilesNotStored::ReadsOthers { path }) => {
                let reason = format!("`per_file` is wrong: the check of other files read `{path}`");
                tracing::warn!(step = %evidence.planned.name, "{reason}; all files are checked");
                reuse.distrust(&key, &reason);
                StoreOutcome { must_check_all: is_partial, ..none }
            }
        }
    };
    tokio::task::spawn_blocking(store)
        .await
        .unwrap_or_else(|_| StoreOutcome { must_check_all: is_partial, ..StoreOutcome::default() })
}

/// The result of storing a result.
#[derive(Debug, Default)]
struct StoreOutcome {
    /// The digest that stands for the stored result; `None` if it was not stored.
    stored_as: Option<Sha256Hex>,
    /// The reason for a doubt, if a stored result was wrong.
    doubt: Option<InconclusiveDetail>,
    /// True if earlier results of other files do not count, so that all files have to be checked.
    must_check_all: bool,
}

async fn execute_with_files(
    context: &Arc<RunContext>,
    stack: &LayerStack,
    skill: &PlannedSkill,
    step: &PlannedStep,
    (files, state, purpose): (&StepFiles, Option<StepReuseState>, Execution),
) -> StepRun {
    let mut earlier = Vec::new();
    let mut env_names = Default::default();
    let is_shown = purpose == Execution::Verifying;
    let mut uses_view = state.is_some();
    loop {
        let attempt = u32::try_from(earlier.len()).unwrap_or(u32::MAX).saturating_add(1);
        // Comes before the event, so that a reader of the event finds the outputs.
        let live = context.live.get().filter(|_| is_shown);
        let live = live.map(|live| live.begin_attempt(&skill.name, &step.name, attempt));
        if is_shown && uses_view == state.is_some() {
            context.emit(step_started_event(context, skill, step, attempt)).await;
        }
        let mut timer = StageTimer::start();
        let mut expected = ExpectedReports::default();
        let mut used_policy = None;
        let mut judged = match context.policy(skill, step) {
            Ok((mut policy, environment)) => {
                env_names = attempt::recorded_variable_names(&environment);
                // Building the policy opens the caches, which may contain the reports.
                expected = ExpectedReports::capture_before(context, skill, step);
                timer.finish_stage("policy");
                match argv_with_sql_files(&policy.argv, step, stack) {
                    Ok(argv) => {
                        policy.argv = argv;
                        policy.files = files.batches(&policy);
                        // Only a first attempt is observed: a later pass is never stored.
                        policy.view &= uses_view && earlier.is_empty();
                        let judged = run_attempt(context, stack, skill, step, &policy, live, timer).await;
                        used_policy = Some(policy);
                        judged
                    }
                    Err(error) => JudgedAttempt::not_started(StartFault::Internal, error.to_string()),
                }
            }
            Err(error) => JudgedAttempt::not_started(StartFault::Internal, one_line(&error)),
        };
        if let Some(Err(reason)) = &judged.result.view
            && reason.invalidates_result()
            && !context.cancel.is_cancelled()
        {
            tracing::debug!(step = %step.name, %reason, "the step is executed without a view");
            discard_layer(judged.layer.take()).await;
            uses_view = false;
            continue;
        }
        context.host_view.explain_missing_program(&step.cmd, &mut judged.result.termination);
        if can_retry(&judged, step, attempt) && !context.cancel.is_cancelled() {
            context.emit(step_retrying_event(skill, step, attempt, judged.outcome)).await;
            earlier.push(attempt_evidence(&judged));
            // Removing the layer of a sandbox that waits for reuse would have to wait for that sandbox, so such a
            // layer is kept.
            let layer = return_sandbox(context, stack, used_policy.as_ref(), judged.result.sandbox, judged.layer);
            discard_layer(layer).await;
            continue;
        }
        let found_reports = expected.collect(context, stack, judged.layer.as_ref()).await;
        let applied = apply_changes(context, stack, skill, step, &mut judged).await;
        let fixed =
            shown_fixes(context, stack, skill, step, judged.layer.as_ref().filter(|_| !applied.is_empty())).await;
        let flaky = judged.outcome == Outcome::Passed && !earlier.is_empty();
        let mut evidence = StepEvidence {
            found_reports,
            checked_files: files.evidence(used_policy.as_ref()),
            ..step_evidence(step, &judged, earlier, flaky, env_names, &applied)
        };
        evidence.drift.fixed = fixed;
        context.redactor().redact_step(&mut evidence);
        let has_files = judged.layer.as_ref().is_some_and(|layer| !layer.scan.entries.is_empty());
        let view = judged.result.view.take();
        let StoreOutcome { stored_as, doubt, must_check_all } =
            store_result(context, state, &evidence, (view, has_files, files)).await;
        if let Some(doubt) = doubt {
            judged.inconclusive_reasons.push(doubt);
        }
        context.redactor().redact_reasons(&mut judged.inconclusive_reasons);
        let is_known = judged.layer.is_some();
        let layer = return_sandbox(context, stack, used_policy.as_ref(), judged.result.sandbox, judged.layer);
        return StepRun {
            evidence,
            layer,
            is_known,
            applied,
            inconclusive_reasons: judged.inconclusive_reasons,
            stored_as,
            reused_files: None,
            must_check_all,
        };
    }
}

/// Returns the result of a step that has no files to check, or whose files cannot be chosen.
fn not_started_step(context: &RunContext, step: &PlannedStep, judged: &JudgedAttempt) -> StepRun {
    let mut evidence = step_evidence(step, judged, Vec::new(), false, BTreeSet::new(), &[]);
    context.redactor().redact_step(&mut evidence);
    StepRun {
        evidence,
        layer: None,
        is_known: false,
        applied: Vec::new(),
        inconclusive_reasons: Vec::new(),
        stored_as: None,
        reused_files: None,
        must_check_all: false,
    }
}

/// Puts the sandbox of a step that left nothing behind back for reuse. Otherwise, returns the layer.
fn return_sandbox(
    context: &RunContext,
    stack: &LayerStack,
    policy: Option<&Policy>,
    sandbox: Option<RunningSandbox>,
    layer: Option<Arc<StackedLayer>>,
) -> Option<Arc<StackedLayer>> {
    let (Some(policy), Some(sandbox)) = (policy, sandbox) else { return layer };
    // A layer that is still shared cannot be reused.
    let StackedLayer { layer, scan } = match Arc::try_unwrap(layer?) {
        Ok(stacked) => stacked,
        Err(shared) => return Some(shared),
    };
    if !scan.entries.is_empty() || !layer.is_empty() {
        return Some(Arc::new(StackedLayer { layer, scan }));
    }
    let facts = &context.tree.repository.facts;
    context.launcher.return_to_pool(&context.space, &stack.lowers(), facts, policy, sandbox, layer);
    None
}

/// Returns the command; for a step that judges SQL, with the files that it checks as arguments.
fn argv_with_sql_files(argv: &Argv, step: &PlannedStep, stack: &LayerStack) -> Result<Argv, StepCommandError> {
    if step.sql.is_none() {
        return Ok(argv.clone());
    }
    let files = SqlProgram::checked_files(step, stack.view())?;
    Ok(Argv::new(argv.words().iter().cloned().chain(files).collect())?)
}

/// Returns whether the step may be retried. Drift is not a random failure, and a doubt would remain: a later pass
/// would hide that a process outlived this attempt, or that its layer was never read.
fn can_retry(judged: &JudgedAttempt, step: &PlannedStep, attempt: u32) -> bool {
    let failed = matches!(judged.outcome, Outcome::Failed | Outcome::TimedOut);
    failed && judged.inconclusive_reasons.is_empty() && attempt <= step.retries
}

/// Removes the layer of an attempt unless another stack uses it.
pub(crate) async fn discard_layer(layer: Option<Arc<StackedLayer>>) {
    if let Some(stacked) = layer.and_then(|layer| Arc::try_unwrap(layer).ok()) {
        let mut timer = StageTimer::start();
        if stacked.scan.entries.is_empty() {
            // Removing an empty layer takes less time than handing it to another thread.
            log_removal_failure(stacked.layer.discard());
        } else {
            remove_layer(stacked.layer).await;
        }
        timer.finish_stage("discard");
    }
}

/// Removes the content of a layer on a blocking thread, since a step may have written many files. A part that
/// cannot be removed remains until the run ends.
async fn remove_layer(layer: Layer<Sealed>) {
    match tokio::task::spawn_blocking(move || layer.discard()).await {
        Ok(result) => log_removal_failure(result),
        Err(error) => tracing::error!(%error, "freeing a layer ended badly"),
    }
}

fn log_removal_failure(result: Result<(), SandboxError>) {
    if let Err(error) = result {
        tracing::warn!(%error, "the layer of an attempt cannot be removed before the run ends");
    }
}

async fn run_attempt(
    context: &Arc<RunContext>,
    stack: &LayerStack,
    skill: &PlannedSkill,
    step: &PlannedStep,
    policy: &Policy,
    live: Option<[LiveWriter; 2]>,
    mut timer: StageTimer,
) -> JudgedAttempt {
    let not_started = |error| JudgedAttempt::not_started(StartFault::Sandbox, one_line(&error));
    if let Some(reason) = stack.too_many_layers_message() {
        return JudgedAttempt::not_started(StartFault::Sandbox, reason);
    }
    let facts = &context.tree.repository.facts;
    let (running, upper) = match context.launcher.spawn(&context.space, &stack.lowers(), facts, policy) {
        Ok(started) => started,
        Err(error) => return not_started(error),
    };
    timer.finish_stage("spawn");
    let next = context.prepare_next_sandbox(stack, policy);
    let notify = |reason| emit_terminating(context, skill, step, reason);
    let followed = attempt::supervise(running, step, &context.outputs, live, &context.cancel, notify, &mut timer);
    let report = run_alongside(followed, next).await;
    let judged = judge_step_attempt(context, stack, skill, step, report, upper).await;
    timer.finish_stage("read_layer");
    judged
}

/// Waits for `first` while `other` proceeds; drops `other` when `first` is done.
async fn run_alongside<T>(first: impl Future<Output = T>, other: impl Future<Output = ()>) -> T {
    tokio::pin!(first, other);
    tokio::select! {
        biased;
        done = &mut first => return done,
        () = &mut other => {}
    }
    first.await
}

/// Seals the layer, reads it, and determines the outcome.
async fn judge_step_attempt(
    context: &Arc<RunContext>,
    stack: &LayerStack,
    skill: &PlannedSkill,
    step: &PlannedStep,
    mut report: AttemptResult,
    upper: Layer<Unsealed>,
) -> JudgedAttempt {
    let ran = !matches!(report.termination, Termination::NotStarted { .. });
    // Either all processes of the attempt are gone, or the layer is not read any more.
    let upper = upper.seal();
    // Without this control, the layer is on the host's disk, whose usage says nothing about the limit.
    if report.enforcement.is_enforced(Control::DiskLimit) {
        upper.exhausted_space().limits().for_each(|limit| report.record_limit_hit(limit, step));
    }
    let leaked = report.leaked.is_some() && step.leaks == Leaks::Fail;
    let mut judged = JudgedAttempt {
        outcome: judge(step, &report.termination, Violations { drifted: false, leaked }),
        result: report,
        drift: StepDrift::default(),
        method: None,
        layer: None,
        inconclusive_reasons: vec![],
    };
    if !judged.result.processes_ended {
        let problem = "one of its processes could not be ended, so its files cannot be trusted; look for the process \
            with `ps`, and report this";
        judged.mark_inconclusive(
            InconclusiveReason::Internal,
            format!("{}: {problem}", step_path(&skill.name, &step.name)),
        );
        return judged;
    }
    if !ran || judged.outcome == Outcome::Cancelled {
        remove_layer(upper).await;
        return judged;
    }
    if judged.outcome == Outcome::Passed && !(judged.result.stdout.complete && judged.result.stderr.complete) {
        let problem = "a process outside of it still holds its output open, so the output may be incomplete";
        judged.mark_inconclusive(
            InconclusiveReason::Internal,
            format!("{}: {problem}", step_path(&skill.name, &step.name)),
        );
    }
    let gaps: Vec<&str> = judged.result.enforcement.gaps(&context.host_view.tolerated).map(Control::as_str).collect();
    if !gaps.is_empty() {
        let message = format!("{}: it ran without {}", step_path(&skill.name, &step.name), gaps.join(", "));
        judged.mark_inconclusive(InconclusiveReason::Sandbox, message);
    }
    let in_doubt = judged.outcome == Outcome::Inconclusive;
    let method = drift_method(&upper, &judged.result.enforcement);
    match read_layer(context, stack, skill, step, upper).await.and_then(|read| Ok((read, method?))) {
        Ok(((layer, drift), method)) => {
            if !drift.is_empty() || !in_doubt {
                let violations = Violations { drifted: !drift.is_empty(), leaked };
                judged.outcome = judge(step, &judged.result.termination, violations);
            }
            judged.drift = drift;
            judged.method = Some(method);
            judged.layer = Some(layer);
        }
        Err(error) => {
            let path = step_path(&skill.name, &step.name);
            judged.mark_inconclusive(
                InconclusiveReason::Internal,
                format!("{path}: its changes cannot be judged: {}", one_line(&error)),
            );
        }
    }
    judged
}

/// Computes the outcome of a step, or of a `fix` command.
fn judge(step: &PlannedStep, termination: &Termination, violations: Violations) -> Outcome {
    let judge = if step.fixes.is_some() { judge_fix } else { judge_attempt };
    judge(termination, &step.expect_exit, violations)
}

/// Returns how the step's changes got into its layer: through the kernel's overlay or, without an overlay, through
/// the sandbox, which uses the same function to choose how it finds changes of the copy.
fn drift_method(layer: &Layer<Sealed>, enforcement: &Enforcement) -> Result<DriftMethod, StepChangesError> {
    if enforcement.is_enforced(Control::Layer) {
        return Ok(DriftMethod::Layer);
    }
    drift_method_for(layer.upper()).map_err(StepChangesError::Method)
}

/// Reads and hashes the step's writes, on a blocking thread unless the layer is empty.
async fn read_layer(
    context: &Arc<RunContext>,
    stack: &LayerStack,
    skill: &PlannedSkill,
    step: &PlannedStep,
    layer: Layer<Sealed>,
) -> Result<(Arc<StackedLayer>, StepDrift), StepChangesError> {
    let (context, stack) = (Arc::clone(context), stack.clone());
    let (caches, mode, reports) = (context.mounted_paths(skill), step.read_only, step.reports.clone());
    let content = context.ignored_content.get().copied().unwrap_or_else(|| ignored_content(mode));
    let is_empty = layer.is_empty();
    let work = move || {
        let spare = SparingRules { view: stack.view(), ignored: &context.tree.ignored, content };
        let mut scan = scan_layer_sparing(layer.upper(), ScanBounds::default(), spare)?;
        scan.exclude_reports(reports.iter().map(|report| &report.path), stack.view());
        let drift = find_drift(DriftInput {
            view: stack.view(),
            scan: &scan,
            mode,
            ignored: &context.tree.ignored,
            repo: context.tree.repository.as_fd(),
            upper: layer.upper(),
            lower_uppers: &stack.uppers(),
            caches: &caches,
        })?;
        Ok((Arc::new(StackedLayer { layer, scan }), drift))
    };
    if is_empty {
        return work();
    }
    tokio::task::spawn_blocking(work).await.map_err(StepChangesError::ReadTask)?
}

/// Returns how much to read of ignored directories for a single command, which has no later steps.
fn ignored_content(mode: ReadOnly) -> IgnoredContent {
    match mode {
        ReadOnly::Tracked => IgnoredContent::Skipped,
        ReadOnly::Off | ReadOnly::Strict => IgnoredContent::Hashed,
    }
}

/// Applies the changes of a passed `read_only: off` step to the worktree. Returns the paths.
async fn apply_changes(
    context: &Arc<RunContext>,
    stack: &LayerStack,
    skill: &PlannedSkill,
    step: &PlannedStep,
    judged: &mut JudgedAttempt,
) -> Vec<Vec<u8>> {
    let (ReadOnly::Off, Outcome::Passed, Some(layer)) = (step.read_only, judged.outcome, judged.layer.clone()) else {
        return vec![];
    };
    if context.changes == ChangeMode::KeepInLayers {
        return vec![];
    }
    let caches = context.mounted_paths(skill);
    let (context, stack) = (Arc::clone(context), stack.clone());
    let work = tokio::task::spawn_blocking(move || {
        let upper: BorrowedFd<'_> = layer.layer.upper();
        Ok(apply_back(ApplyInput {
            repo: context.tree.worktree.as_fd(),
            view: stack.view(),
            scan: &layer.scan,
            upper,
            ignored: &context.tree.ignored,
            caches: &caches,
        })?)
    });
    match work.await.unwrap_or_else(|error| Err(StepChangesError::ApplyTask(error))) {
        Ok(applied) => applied,
        Err(error) => {
            let path = step_path(&skill.name, &step.name);
            judged.mark_inconclusive(
                InconclusiveReason::ApplyFailed,
                format!("{path}: its changes were not applied: {}", one_line(&error)),
            );
            vec![]
        }
    }
}

/// Returns the applied changes of a `fix` command, with their differences. They are shown only, so a failure to read them
/// has no effect.
async fn shown_fixes(
    context: &Arc<RunContext>,
    stack: &LayerStack,
    skill: &PlannedSkill,
    step: &PlannedStep,
    applied: Option<&Arc<StackedLayer>>,
) -> StepDrift {
    let Some(layer) = applied.filter(|_| step.fixes.is_some()) else { return StepDrift::default() };
    let (context, stack, layer, caches) = (Arc::clone(context), stack.clone(), Arc::clone(layer), skill.caches.clone());
    let work = tokio::task::spawn_blocking(move || {
        find_drift(DriftInput {
            view: stack.view(),
            scan: &layer.scan,
            mode: ReadOnly::Tracked,
            ignored: &context.tree.ignored,
            repo: context.tree.repository.as_fd(),
            upper: layer.layer.upper(),
            lower_uppers: &stack.uppers(),
            caches: &caches,
        })
    });
    match work.await {
        Ok(Ok(fixed)) => fixed,
        Ok(Err(error)) => {
            tracing::warn!(%error, "the changes of a fix cannot be shown");
            StepDrift::default()
        }
        Err(error) => {
            tracing::error!(%error, "reading the changes of a fix ended badly");
            StepDrift::default()
        }
    }
}

fn step_evidence(
    step: &PlannedStep,
    judged: &JudgedAttempt,
    earlier_attempts: Vec<AttemptEvidence>,
    flaky: bool,
    env_names: BTreeSet<String>,
    applied: &[Vec<u8>],
) -> StepEvidence {
    let report = &judged.result;
    StepEvidence {
        planned: step.clone(),
        outcome: judged.outcome,
        termination: report.termination.clone(),
        exit_code: report.termination.exit_code(),
        duration_ms: whole_millis(report.duration),
        stdout: report.stdout.clone(),
        stderr: report.stderr.clone(),
        enforcement: report.enforcement.clone(),
        drift: DriftEvidence {
            method: judged.method,
            found: judged.drift.clone(),
            applied: applied.iter().map(|path| display_path(path)).collect(),
            fixed: StepDrift::default(),
        },
        flaky,
        earlier_attempts,
        found_reports: vec![],
        checked_files: None,
        reused: None,
        env_names,
        resources: report.resources.clone(),
        leaked: report.leaked.clone(),
    }
}

fn attempt_evidence(judged: &JudgedAttempt) -> AttemptEvidence {
    AttemptEvidence {
        outcome: judged.outcome,
        termination: judged.result.termination.clone(),
        duration_ms: whole_millis(judged.result.duration),
        stdout_sha256: judged.result.stdout.sha256.clone(),
        stderr_sha256: judged.result.stderr.sha256.clone(),
        leaked: judged.result.leaked.clone(),
    }
}

fn step_started_event(context: &RunContext, skill: &PlannedSkill, step: &PlannedStep, attempt: u32) -> RunEvent {
    let expected_ms = context.durations.get().and_then(|known| known.get(&skill.name, &step.name));
    let (skill, timeout_ms) = (skill.name.clone(), step.timeout_ms);
    RunEvent::StepStarted { skill, step: step.name.clone(), attempt, timeout_ms, expected_ms }
}

fn step_retrying_event(skill: &PlannedSkill, step: &PlannedStep, attempt: u32, outcome: Outcome) -> RunEvent {
    RunEvent::StepRetrying { skill: skill.name.clone(), step: step.name.clone(), attempt, outcome }
}

/// Sends the event without waiting, because the attempt must go on. If the channel is full, the event is dropped;
/// the step's record contains the same information.
fn emit_terminating(context: &RunContext, skill: &PlannedSkill, step: &PlannedStep, reason: EndReason) {
    let (skill, name, grace_ms) = (skill.name.clone(), step.name.clone(), step.grace_ms);
    let event = RunEvent::StepTerminating { skill, step: name, reason, grace_ms };
    if context.events.try_send(event).is_err() {
        tracing::debug!("an event was dropped: the channel is full or closed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn does_not_retry_inconclusive_attempt() {
        let planned = PlannedStep { retries: 1, ..crate::test_support::step("s", &["false"]) };
        let mut judged = JudgedAttempt::not_started(StartFault::Internal, "no".to_owned());
        assert!(!can_retry(&judged, &planned, 1));
        judged.outcome = Outcome::Failed;
        assert!(can_retry(&judged, &planned, 1) && !can_retry(&judged, &planned, 2));
        judged.mark_inconclusive(InconclusiveReason::Internal, "its layer could not be read".to_owned());
        assert_eq!((judged.outcome, can_retry(&judged, &planned, 1)), (Outcome::Failed, false));
    }
}

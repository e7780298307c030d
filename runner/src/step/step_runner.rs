//! Runs one step of a skill: repeats attempts until one passes or the retries are used up, seals and reads the
//! layer after each attempt, and computes the outcome.

use std::collections::BTreeSet;
use std::sync::Arc;

use proctor_core::decision::verdict::{InconclusiveDetail, InconclusiveReason};
use proctor_core::model::drift::{DriftMethod, StepDrift, display_path};
use proctor_core::model::enforcement::{Control, Tolerated};
use proctor_core::model::outcome::{Outcome, StartFault, Termination, Violations, judge_attempt, judge_fix};
use proctor_core::model::plan::{Argv, BadArgv, Leaks, PlannedSkill, PlannedStep, ReadOnly};
use proctor_core::model::trace::NoTrace;
use proctor_core::record::evidence::{AttemptEvidence, DriftEvidence, StepEvidence, StepExecutor, step_path};
use proctor_core::reuse::ObservedInputs;
use proctor_core::text::digest::Sha256Hex;
use proctor_sandbox::{Layer, Policy, RunningSandbox, SandboxError, Sealed, Unsealed};
use proctor_sql::check::CheckError;

use crate::error::one_line;
use crate::run::evidence_builder::whole_millis;
use crate::run::run_context::{ChangeMode, RunContext, TreeMounts};
use crate::step::attempt::{self, AttemptResult};
use crate::step::file_selection::{StepFiles, require_inputs};
use crate::step::layer_stack::{LayerStack, ReusedFiles, StackedLayer};
use crate::step::live_output::LiveWriter;
use crate::step::remote_attempt::{NotExecuted, RemoteAttempt, StepOnWorker, not_executed_result, sent_variables};
use crate::step::result_storage::{StepExecution, StepReuseState, StoreOutcome, store_result};
use crate::step::shown_fixes::shown_fixes;
use crate::step::sql_step::SqlProgram;
use crate::step::step_changes::{apply_layer, drift_method, read_layer};
use crate::step::step_events::{emit_terminating, step_retrying_event, step_started_event};
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
    /// The inputs of the stored result, if it is one of a step with `per_file`.
    pub(crate) inputs_of_files: ObservedInputs,
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

/// The reason why a step has no command to run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StepCommandError {
    /// The files to check cannot be selected.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// The files to check cannot be arguments.
    #[error(transparent)]
    Argv(#[from] BadArgv),
    /// The files that the step sees are not known.
    #[error("{0}")]
    Inputs(String),
    /// A file to check is not among the files that the step sees.
    #[error("{0}")]
    NotAnInput(String),
}

impl StepCommandError {
    fn fault(&self) -> StartFault {
        match self {
            Self::NotAnInput(_) => StartFault::NotAnInput,
            Self::Check(_) | Self::Argv(_) | Self::Inputs(_) => StartFault::Internal,
        }
    }
}

/// One attempt, with the content of its layer.
pub(crate) struct JudgedAttempt {
    result: AttemptResult,
    outcome: Outcome,
    drift: StepDrift,
    method: Option<DriftMethod>,
    layer: Option<Arc<StackedLayer>>,
    inconclusive_reasons: Vec<InconclusiveDetail>,
}

impl JudgedAttempt {
    pub(crate) fn not_started(fault: StartFault, reason: String) -> Self {
        Self::from_result(AttemptResult::not_started(fault, reason))
    }

    /// Judges an attempt that did not run.
    fn from_result(report: AttemptResult) -> Self {
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

    /// Adds a reason for an inconclusive result, and makes the outcome inconclusive unless it is a failure.
    fn mark_inconclusive(&mut self, doubt: InconclusiveReason, message: String) {
        if !self.outcome.is_failure() {
            self.outcome = Outcome::Inconclusive;
        }
        self.inconclusive_reasons.push(doubt.with_message(message));
    }
}

pub(crate) async fn execute_with_files(
    context: &Arc<RunContext>,
    stack: &LayerStack,
    skill: &PlannedSkill,
    step: &PlannedStep,
    (files, state, purpose): (&StepFiles, Option<StepReuseState>, Execution),
) -> StepRun {
    let mut earlier = Vec::new();
    let mut env_names = Default::default();
    let is_shown = purpose == Execution::Verifying;
    // The reason why the step must run without a view.
    let mut failed_view: Option<String> = None;
    let mounts = state.as_ref().map_or(TreeMounts::All, StepReuseState::mounts);
    context.open_caches(skill, mounts).await;
    loop {
        let attempt = u32::try_from(earlier.len()).unwrap_or(u32::MAX).saturating_add(1);
        // Comes before the event, so that a reader of the event finds the outputs.
        let live = context.live.get().filter(|_| is_shown);
        let live = live.map(|live| live.begin_attempt(&skill.name, &step.name, attempt));
        if is_shown && failed_view.is_none() {
            context.emit(step_started_event(context, skill, step, attempt)).await;
        }
        let mut timer = StageTimer::start();
        let mut expected = ExpectedReports::default();
        let mut used_policy = None;
        let mut judged = match context.policy(skill, step, mounts) {
            Ok((mut policy, environment)) => {
                env_names = attempt::recorded_variable_names(&environment);
                // Building the policy opens the caches, which may contain the reports.
                expected = ExpectedReports::capture_before(context, skill, step);
                timer.finish_stage("policy");
                match argv_with_sql_files(context, &policy.argv, (skill, step), stack) {
                    Ok(argv) => {
                        policy.argv = argv;
                        policy.files = files.batches(step, &policy);
                        // Only a first attempt is observed: a later pass is never stored.
                        let needs_view = policy.inputs.is_some() || (state.is_some() && earlier.is_empty());
                        policy.view &= needs_view && failed_view.is_none();
                        let judged = run_attempt(context, stack, skill, step, &policy, live, timer).await;
                        used_policy = Some(policy);
                        judged
                    }
                    Err(error) => JudgedAttempt::not_started(error.fault(), error.to_string()),
                }
            }
            Err(error) => JudgedAttempt::not_started(StartFault::Internal, one_line(&error)),
        };
        context.note_view(judged.result.view.as_ref());
        context.run_reads.note_view(judged.result.view.as_ref(), context.observed_tree(None));
        if let Some(policy) = used_policy.as_ref().filter(|_| judged.result.is_remote()) {
            let sent = sent_variables(context, policy);
            env_names.retain(|name| sent.contains_key(name));
        }
        if let Some(Err(reason)) = &judged.result.view
            && reason.invalidates_result()
            && !context.cancel.is_cancelled()
        {
            tracing::debug!(step = %step.name, %reason, "the step is executed without a view");
            failed_view = Some(reason.to_string());
            discard_layer(judged.layer.take()).await;
            continue;
        }
        context.explain_withheld_program((skill, step), stack.view(), &mut judged.result.termination);
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
        if failed_view.is_some() || (flaky && state.is_some()) {
            context.run_reads.note_unobserved();
        }
        let mut evidence = StepEvidence {
            found_reports,
            checked_files: files.evidence(used_policy.as_ref()),
            input_enforcement: context.input_enforcement(
                used_policy.as_ref(),
                step,
                &judged.result,
                failed_view.as_deref(),
            ),
            ..step_evidence(step, &judged, earlier, flaky, env_names, &applied)
        };
        evidence.drift.fixed = fixed;
        context.redactor().redact_step(&mut evidence);
        let has_files = judged.layer.as_ref().is_some_and(|layer| !layer.scan.entries.is_empty());
        let inputs = judged.result.take_inputs();
        let StoreOutcome { stored_as, inputs: inputs_of_files, doubt, must_check_all, .. } =
            store_result(context, state, StepExecution { skill, evidence: &evidence, inputs, has_files, files }).await;
        judged.inconclusive_reasons.extend(doubt);
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
            inputs_of_files,
            reused_files: None,
            must_check_all,
        };
    }
}

/// Returns the result of a step that has no files to check, or whose files cannot be chosen.
pub(crate) fn not_started_step(context: &RunContext, step: &PlannedStep, judged: &JudgedAttempt) -> StepRun {
    let mut evidence = step_evidence(step, judged, Vec::new(), false, BTreeSet::new(), &[]);
    context.redactor().redact_step(&mut evidence);
    StepRun {
        evidence,
        layer: None,
        is_known: false,
        applied: Vec::new(),
        inconclusive_reasons: Vec::new(),
        stored_as: None,
        inputs_of_files: ObservedInputs::default(),
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
pub(crate) fn argv_with_sql_files(
    context: &RunContext,
    argv: &Argv,
    (skill, step): (&PlannedSkill, &PlannedStep),
    stack: &LayerStack,
) -> Result<Argv, StepCommandError> {
    if step.sql.is_none() {
        return Ok(argv.clone());
    }
    let files = SqlProgram::checked_files(step, stack.view())?;
    if let Some(inputs) = context.input_filter(skill, step).map_err(StepCommandError::Inputs)? {
        let checked = require_inputs(&inputs, &step.workdir, files.iter().map(String::as_bytes));
        checked.map_err(|refused| StepCommandError::NotAnInput(refused.reason))?;
    }
    Ok(Argv::new(argv.words().iter().cloned().chain(files).collect())?)
}

/// Returns whether the step may be retried. Drift is not a random failure. After an attempt with a reason for an
/// inconclusive result, a later pass would hide that a process outlived the attempt, or that its layer was never read.
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
        Err(error) => tracing::error!(%error, "removing a layer failed unexpectedly"),
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
    mut live: Option<[LiveWriter; 2]>,
    mut timer: StageTimer,
) -> JudgedAttempt {
    if let Some(reason) = stack.too_many_layers_message() {
        return JudgedAttempt::not_started(StartFault::Sandbox, reason);
    }
    if let Err(reason) = context.withdraw_earlier_pass().await {
        return JudgedAttempt::not_started(StartFault::Internal, reason);
    }
    let mut fallback = None;
    if let Some(remote) = context.remote.get().filter(|remote| remote.executes(step)) {
        let endpoint = &remote.settings.server.endpoint;
        // The future of an exchange is large, and most runs have none.
        let on_worker = StepOnWorker { remote, context, skill, step, policy };
        match Box::pin(on_worker.run(stack, &mut live)).await {
            Ok(RemoteAttempt { result, upper }) => {
                timer.finish_stage("remote");
                return judge_remote_attempt(context, stack, (skill, step), policy, result, upper).await;
            }
            Err(reason @ NotExecuted::Refused(_)) if remote.falls_back() && !context.cancel.is_cancelled() => {
                let reason = reason.to_string();
                tracing::debug!(skill = %skill.name, step = %step.name, %endpoint, %reason, "the step runs on this machine");
                fallback = Some(StepExecutor::LocalFallback { endpoint: endpoint.clone(), reason });
            }
            Err(reason) => return JudgedAttempt::from_result(not_executed_result(&reason, endpoint)),
        }
    }
    context.release_prepared_caches(policy);
    let facts = &context.tree.repository.facts;
    let (running, upper) = match context.launcher.spawn(&context.space, &stack.lowers(), facts, policy) {
        Ok(started) => started,
        Err(error) => return JudgedAttempt::not_started(StartFault::Sandbox, one_line(&error)),
    };
    timer.finish_stage("spawn");
    let next = context.prepare_next_sandbox(stack, policy);
    let notify = |reason| emit_terminating(context, skill, step, reason);
    let followed = attempt::supervise(running, step, &context.outputs, live, &context.cancel, notify, &mut timer);
    let mut report = attempt::run_alongside(followed, next).await;
    report.executor = fallback;
    let shows_inputs_only = !matches!(report.view, None | Some(Err(NoTrace::Unavailable { .. })));
    let judging = JudgementContext { tolerated: context.host_view.tolerated.clone(), shows_inputs_only };
    let judged = judge_step_attempt(context, stack, (skill, step), report, upper, judging).await;
    timer.finish_stage("read_layer");
    judged
}

/// Judges an attempt that ran on a worker. If the operator does not trust the reports of workers, it proves no pass.
async fn judge_remote_attempt(
    context: &Arc<RunContext>,
    stack: &LayerStack,
    (skill, step): (&PlannedSkill, &PlannedStep),
    policy: &Policy,
    result: AttemptResult,
    upper: Layer<Unsealed>,
) -> JudgedAttempt {
    let Some(remote) = context.remote.get() else {
        return JudgedAttempt::not_started(StartFault::Internal, "the run has no cluster".to_owned());
    };
    let tolerated = remote.settings.tolerated(Some(&context.host_view.tolerated));
    let judging = JudgementContext { tolerated, shows_inputs_only: policy.inputs.is_some() };
    let mut judged = judge_step_attempt(context, stack, (skill, step), result, upper, judging).await;
    if judged.outcome == Outcome::Passed && !remote.settings.trust_workers {
        let path = step_path(&skill.name, &step.name);
        let reason = "it passed on a worker, and the operator's config does not trust the reports of workers \
            (`trust_workers` of `[remote_executor]`)";
        judged.mark_inconclusive(InconclusiveReason::RemoteExecution, format!("{path}: {reason}"));
    }
    judged
}

/// The parameters for judging an attempt, which depend on the machine that executed it.
struct JudgementContext {
    /// The controls that may be missing.
    tolerated: Tolerated,
    /// True if the step saw only its `inputs`.
    shows_inputs_only: bool,
}

/// Seals the layer, reads it, and determines the outcome.
async fn judge_step_attempt(
    context: &Arc<RunContext>,
    stack: &LayerStack,
    (skill, step): (&PlannedSkill, &PlannedStep),
    mut report: AttemptResult,
    upper: Layer<Unsealed>,
    judging: JudgementContext,
) -> JudgedAttempt {
    let ran = !matches!(report.termination, Termination::NotStarted { .. });
    // Either all processes of the attempt have ended, or the layer is not read any more.
    let upper = upper.seal();
    // Without this control, the layer is stored on the host's disk, whose usage does not show whether the limit was
    // reached.
    if !report.is_remote() && report.enforcement.is_enforced(Control::DiskLimit) {
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
    let gaps: Vec<&str> = judged.result.enforcement.gaps(&judging.tolerated).map(Control::as_str).collect();
    if !gaps.is_empty() {
        let message = format!("{}: it ran without {}", step_path(&skill.name, &step.name), gaps.join(", "));
        judged.mark_inconclusive(InconclusiveReason::Sandbox, message);
    }
    let in_doubt = judged.outcome == Outcome::Inconclusive;
    let method = drift_method(&upper, &judged.result.enforcement);
    match read_layer(context, stack, skill, step, (upper, judging.shows_inputs_only))
        .await
        .and_then(|read| Ok((read, method?)))
    {
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
    if context.changes != ChangeMode::Apply {
        return vec![];
    }
    match apply_layer(context, stack, skill, layer).await {
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
            changed_tree: false,
        },
        flaky,
        earlier_attempts,
        found_reports: vec![],
        checked_files: None,
        input_enforcement: None,
        reused: None,
        executor: report.executor.clone(),
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

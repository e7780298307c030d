//! Runs one step of a skill: repeats attempts until one passes or the retries are used up, seals and reads the
//! layer after each attempt, and computes the outcome.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use proctor_core::drift::{DriftMethod, StepDrift, display_path};
use proctor_core::enforcement::{Control, Enforcement};
use proctor_core::event::{EndReason, RunEvent};
use proctor_core::evidence::{AttemptEvidence, DriftEvidence, StepEvidence, step_path};
use proctor_core::outcome::{Outcome, StartFault, Termination, Violations, judge};
use proctor_core::plan::{Argv, Leaks, PlannedSkill, PlannedStep, ReadOnly};
use proctor_core::verdict::Doubt;
use proctor_sandbox::helper::seal::method_on;
use proctor_sandbox::{Layer, Open, Policy, Running, SandboxError, Sealed};
use proctor_snapshot::{
    ApplyInput, DriftInput, IgnoredContent, ScanBounds, Spare, apply_back, find_drift, scan_layer_sparing,
};

use crate::attempt::{self, AttemptReport};
use crate::context::{Changes, Context};
use crate::error::one_line;
use crate::judge::Judge;
use crate::live_output::LiveWriter;
use crate::record::{self, millis};
use crate::report::Expected;
use crate::stack::{Stack, Stacked};
use crate::timing::Laps;

/// The result of a step.
pub(crate) struct StepRun {
    pub(crate) evidence: StepEvidence,
    /// The last layer, if it is reliable and was not put back for reuse.
    pub(crate) layer: Option<Arc<Stacked>>,
    /// True if the step ran and its layer is reliable.
    pub(crate) is_known: bool,
    /// Paths that were applied to the worktree, as bytes.
    pub(crate) applied: Vec<Vec<u8>>,
    pub(crate) doubts: Vec<(Doubt, String)>,
}

/// One attempt, with the content of its layer.
struct Tried {
    report: AttemptReport,
    outcome: Outcome,
    drift: StepDrift,
    method: Option<DriftMethod>,
    layer: Option<Arc<Stacked>>,
    doubts: Vec<(Doubt, String)>,
}

impl Tried {
    fn not_started(fault: StartFault, reason: String) -> Self {
        let report = AttemptReport::not_started(fault, reason);
        let outcome = judge(&report.termination, &[], Violations::default());
        Self { report, outcome, drift: StepDrift::default(), method: None, layer: None, doubts: vec![] }
    }

    /// Adds a doubt, and makes the outcome inconclusive unless it is a failure.
    fn doubt(&mut self, doubt: Doubt, message: String) {
        if !self.outcome.is_failure() {
            self.outcome = Outcome::Inconclusive;
        }
        self.doubts.push((doubt, message));
    }
}

/// Runs `step` on top of `stack`.
pub(crate) async fn run(context: &Arc<Context>, stack: &Stack, skill: &PlannedSkill, step: &PlannedStep) -> StepRun {
    let mut earlier = Vec::new();
    let mut env_names = Default::default();
    loop {
        let attempt = u32::try_from(earlier.len()).unwrap_or(u32::MAX).saturating_add(1);
        // Comes before the event, so that a reader of the event finds the outputs.
        let live = context.live.get().map(|live| live.begin(&skill.name, &step.name, attempt));
        context.emit(started(context, skill, step, attempt)).await;
        let mut laps = Laps::start();
        let mut expected = Expected::default();
        let mut held = None;
        let mut tried = match context.policy(skill, step) {
            Ok((mut policy, environment)) => {
                env_names = attempt::names(&environment);
                // Building the policy opens the caches, which may contain the reports.
                expected = Expected::before(context, skill, step);
                laps.lap("policy");
                match with_files(&policy.argv, step, stack) {
                    Ok(argv) => {
                        policy.argv = argv;
                        let tried = try_once(context, stack, skill, step, &policy, live, laps).await;
                        held = Some(policy);
                        tried
                    }
                    Err(reason) => Tried::not_started(StartFault::Internal, reason),
                }
            }
            Err(error) => Tried::not_started(StartFault::Internal, one_line(&error)),
        };
        if may_repeat(&tried, step, attempt) && !context.cancel.is_cancelled() {
            context.emit(retrying(skill, step, attempt, tried.outcome)).await;
            earlier.push(attempt_evidence(&tried));
            // Removing the layer of a sandbox that waits for reuse would have to wait for that sandbox, so such a
            // layer is kept.
            let layer = put_back(context, stack, held.as_ref(), tried.report.sandbox, tried.layer);
            discard(layer).await;
            continue;
        }
        let found_reports = expected.found(context, stack, tried.layer.as_ref()).await;
        let applied = apply(context, stack, skill, step, &mut tried).await;
        let flaky = tried.outcome == Outcome::Passed && !earlier.is_empty();
        let evidence = StepEvidence { found_reports, ..evidence(step, &tried, earlier, flaky, env_names, &applied) };
        let is_known = tried.layer.is_some();
        let layer = put_back(context, stack, held.as_ref(), tried.report.sandbox, tried.layer);
        return StepRun { evidence, layer, is_known, applied, doubts: tried.doubts };
    }
}

/// Puts the sandbox of a step that left nothing behind back for reuse. Otherwise, returns the layer.
fn put_back(
    context: &Context,
    stack: &Stack,
    policy: Option<&Policy>,
    sandbox: Option<Running>,
    layer: Option<Arc<Stacked>>,
) -> Option<Arc<Stacked>> {
    let (Some(policy), Some(sandbox)) = (policy, sandbox) else { return layer };
    // A layer that is still shared cannot be reused.
    let Stacked { layer, scan } = match Arc::try_unwrap(layer?) {
        Ok(stacked) => stacked,
        Err(shared) => return Some(shared),
    };
    if !scan.entries.is_empty() || !layer.is_empty() {
        return Some(Arc::new(Stacked { layer, scan }));
    }
    let facts = &context.tree.repository.facts;
    context.launcher.put_back(&context.space, &stack.lowers(), facts, policy, sandbox, layer);
    None
}

/// Returns the command; for a step that judges SQL, with the files that it checks as arguments.
fn with_files(argv: &Argv, step: &PlannedStep, stack: &Stack) -> Result<Argv, String> {
    if step.sql.is_none() {
        return Ok(argv.clone());
    }
    let files = Judge::looked_at(step, stack.view())?;
    Argv::new(argv.words().iter().cloned().chain(files).collect()).map_err(|error| one_line(&error))
}

/// Returns whether the step may be retried. Drift is not a random failure, and a doubt would remain: a later pass
/// would hide that a process outlived this attempt, or that its layer was never read.
fn may_repeat(tried: &Tried, step: &PlannedStep, attempt: u32) -> bool {
    let failed = matches!(tried.outcome, Outcome::Failed | Outcome::TimedOut);
    failed && tried.doubts.is_empty() && attempt <= step.retries
}

/// Removes the layer of an attempt unless another stack uses it.
pub(crate) async fn discard(layer: Option<Arc<Stacked>>) {
    if let Some(stacked) = layer.and_then(|layer| Arc::try_unwrap(layer).ok()) {
        let mut laps = Laps::start();
        if stacked.scan.entries.is_empty() {
            // Removing an empty layer takes less time than handing it to another thread.
            freed(stacked.layer.discard());
        } else {
            free(stacked.layer).await;
        }
        laps.lap("discard");
    }
}

/// Removes the content of a layer on a blocking thread, since a step may have written many files. A part that
/// cannot be removed remains until the run ends.
async fn free(layer: Layer<Sealed>) {
    match tokio::task::spawn_blocking(move || layer.discard()).await {
        Ok(result) => freed(result),
        Err(error) => tracing::error!(%error, "freeing a layer ended badly"),
    }
}

fn freed(result: Result<(), SandboxError>) {
    if let Err(error) = result {
        tracing::warn!(%error, "the layer of an attempt stays until the run ends");
    }
}

async fn try_once(
    context: &Arc<Context>,
    stack: &Stack,
    skill: &PlannedSkill,
    step: &PlannedStep,
    policy: &Policy,
    live: Option<[LiveWriter; 2]>,
    mut laps: Laps,
) -> Tried {
    let not_started = |error| Tried::not_started(StartFault::Sandbox, one_line(&error));
    if let Some(reason) = stack.overload() {
        return Tried::not_started(StartFault::Sandbox, reason);
    }
    let facts = &context.tree.repository.facts;
    let (running, upper) = match context.launcher.spawn(&context.space, &stack.lowers(), facts, policy) {
        Ok(started) => started,
        Err(error) => return not_started(error),
    };
    laps.lap("spawn");
    let next = context.prepare_for_the_next(stack, policy);
    let say = |reason| tell_end(context, skill, step, reason);
    let followed = attempt::follow(running, step, &context.outputs, live, &context.cancel, say, &mut laps);
    let report = beside(followed, next).await;
    let tried = conclude(context, stack, skill, step, report, upper).await;
    laps.lap("read_layer");
    tried
}

/// Waits for `first` while `other` proceeds; drops `other` when `first` is done.
async fn beside<T>(first: impl Future<Output = T>, other: impl Future<Output = ()>) -> T {
    tokio::pin!(first, other);
    tokio::select! {
        biased;
        done = &mut first => return done,
        () = &mut other => {}
    }
    first.await
}

/// Seals the layer, reads it, and determines the outcome.
async fn conclude(
    context: &Arc<Context>,
    stack: &Stack,
    skill: &PlannedSkill,
    step: &PlannedStep,
    mut report: AttemptReport,
    upper: Layer<Open>,
) -> Tried {
    let ran = !matches!(report.termination, Termination::NotStarted { .. });
    // Either all processes of the attempt are gone, or the layer is not read any more.
    let upper = upper.seal();
    // Without this control, the layer is on the host's disk, whose usage says nothing about the limit.
    if report.enforcement.holds(Control::DiskLimit) {
        upper.spent().limits().for_each(|limit| report.reached(limit, step));
    }
    let leaked = report.leaked.is_some() && step.leaks == Leaks::Fail;
    let mut tried = Tried {
        outcome: judge(&report.termination, &step.expect_exit, Violations { drifted: false, leaked }),
        report,
        drift: StepDrift::default(),
        method: None,
        layer: None,
        doubts: vec![],
    };
    if !tried.report.gone {
        let what = "a process of it could not be ended, so what it wrote cannot be trusted; look for it with `ps`, and report this";
        tried.doubt(Doubt::Internal, format!("{}: {what}", step_path(&skill.name, &step.name)));
        return tried;
    }
    if !ran || tried.outcome == Outcome::Cancelled {
        free(upper).await;
        return tried;
    }
    if tried.outcome == Outcome::Passed && !(tried.report.stdout.complete && tried.report.stderr.complete) {
        let what = "something outside of it still holds its output open, so what was read may not be all";
        tried.doubt(Doubt::Internal, format!("{}: {what}", step_path(&skill.name, &step.name)));
    }
    let gaps: Vec<&str> = tried.report.enforcement.gaps(&context.sight.tolerated).map(Control::as_str).collect();
    if !gaps.is_empty() {
        let message = format!("{}: it ran without {}", step_path(&skill.name, &step.name), gaps.join(", "));
        tried.doubt(Doubt::Sandbox, message);
    }
    let in_doubt = tried.outcome == Outcome::Inconclusive;
    let method = method_of(&upper, &tried.report.enforcement);
    match read_layer(context, stack, skill, step, upper).await.and_then(|read| Ok((read, method?))) {
        Ok(((layer, drift), method)) => {
            if !drift.is_empty() || !in_doubt {
                let violations = Violations { drifted: !drift.is_empty(), leaked };
                tried.outcome = judge(&tried.report.termination, &step.expect_exit, violations);
            }
            tried.drift = drift;
            tried.method = Some(method);
            tried.layer = Some(layer);
        }
        Err(message) => {
            let path = step_path(&skill.name, &step.name);
            tried.doubt(Doubt::Internal, format!("{path}: its changes cannot be judged: {message}"));
        }
    }
    tried
}

/// Returns how the step's changes got into its layer: through the kernel's overlay or, without an overlay, through
/// the sandbox, which uses the same function to choose how it finds changes of the copy.
fn method_of(layer: &Layer<Sealed>, enforcement: &Enforcement) -> Result<DriftMethod, String> {
    if enforcement.holds(Control::Layer) {
        return Ok(DriftMethod::Layer);
    }
    method_on(layer.upper()).map_err(|error| format!("how they were found is not known: {error}"))
}

/// Reads and hashes the step's writes, on a blocking thread unless the layer is empty.
async fn read_layer(
    context: &Arc<Context>,
    stack: &Stack,
    skill: &PlannedSkill,
    step: &PlannedStep,
    layer: Layer<Sealed>,
) -> Result<(Arc<Stacked>, StepDrift), String> {
    let (context, stack) = (Arc::clone(context), stack.clone());
    let (caches, mode, reports) = (skill.caches.clone(), step.read_only, step.reports.clone());
    let content = context.ignored_content.get().copied().unwrap_or_else(|| ignored_content(mode));
    let is_empty = layer.is_empty();
    let work = move || {
        let spare = Spare { view: stack.view(), ignored: &context.tree.ignored, content };
        let mut scan =
            scan_layer_sparing(layer.upper(), ScanBounds::default(), spare).map_err(|error| one_line(&error))?;
        scan.set_reports_aside(reports.iter().map(|report| &report.path), stack.view());
        let drift = find_drift(DriftInput {
            view: stack.view(),
            scan: &scan,
            mode,
            ignored: &context.tree.ignored,
            repo: context.tree.repository.as_fd(),
            upper: layer.upper(),
            lower_uppers: &stack.uppers(),
            caches: &caches,
        })
        .map_err(|error| one_line(&error))?;
        Ok((Arc::new(Stacked { layer, scan }), drift))
    };
    if is_empty {
        return work();
    }
    let ended = tokio::task::spawn_blocking(work).await;
    ended.unwrap_or_else(|error| Err(format!("reading the layer ended badly: {error}")))
}

/// Returns how much to read of ignored directories for a single command, which has no later steps.
fn ignored_content(mode: ReadOnly) -> IgnoredContent {
    match mode {
        ReadOnly::Tracked => IgnoredContent::Skipped,
        ReadOnly::Off | ReadOnly::Strict => IgnoredContent::Hashed,
    }
}

/// Applies the changes of a passed `read_only: off` step to the worktree. Returns the paths.
async fn apply(
    context: &Arc<Context>,
    stack: &Stack,
    skill: &PlannedSkill,
    step: &PlannedStep,
    tried: &mut Tried,
) -> Vec<Vec<u8>> {
    let (ReadOnly::Off, Outcome::Passed, Some(layer)) = (step.read_only, tried.outcome, tried.layer.clone()) else {
        return vec![];
    };
    if context.changes == Changes::KeptApart {
        return vec![];
    }
    let (context, stack, caches) = (Arc::clone(context), stack.clone(), skill.caches.clone());
    let work = tokio::task::spawn_blocking(move || {
        let upper: BorrowedFd<'_> = layer.layer.upper();
        apply_back(ApplyInput {
            repo: context.tree.worktree.as_fd(),
            view: stack.view(),
            scan: &layer.scan,
            upper,
            ignored: &context.tree.ignored,
            caches: &caches,
        })
        .map_err(|error| one_line(&error))
    });
    match work.await.unwrap_or_else(|error| Err(format!("applying ended badly: {error}"))) {
        Ok(applied) => applied,
        Err(message) => {
            let path = step_path(&skill.name, &step.name);
            tried.doubt(Doubt::ApplyFailed, format!("{path}: its changes were not applied: {message}"));
            vec![]
        }
    }
}

fn evidence(
    step: &PlannedStep,
    tried: &Tried,
    earlier_attempts: Vec<AttemptEvidence>,
    flaky: bool,
    env_names: std::collections::BTreeSet<String>,
    applied: &[Vec<u8>],
) -> StepEvidence {
    let report = &tried.report;
    StepEvidence {
        planned: step.clone(),
        outcome: tried.outcome,
        termination: report.termination.clone(),
        exit_code: report.termination.exit_code(),
        duration_ms: millis(report.duration),
        stdout: report.stdout.clone(),
        stderr: report.stderr.clone(),
        enforcement: report.enforcement.clone(),
        drift: DriftEvidence {
            method: tried.method,
            found: tried.drift.clone(),
            applied: applied.iter().map(|path| display_path(path)).collect(),
        },
        flaky,
        earlier_attempts,
        found_reports: vec![],
        env_names,
        resources: report.resources.clone(),
        leaked: report.leaked.clone(),
    }
}

fn attempt_evidence(tried: &Tried) -> AttemptEvidence {
    AttemptEvidence {
        outcome: tried.outcome,
        termination: tried.report.termination.clone(),
        duration_ms: millis(tried.report.duration),
        stdout_sha256: tried.report.stdout.sha256.clone(),
        stderr_sha256: tried.report.stderr.sha256.clone(),
        leaked: tried.report.leaked.clone(),
    }
}

/// Returns the record of a step that did not start because the run was cancelled.
pub(crate) fn cancelled(step: &PlannedStep) -> StepEvidence {
    record::not_run(step, Termination::Cancelled)
}

fn started(context: &Context, skill: &PlannedSkill, step: &PlannedStep, attempt: u32) -> RunEvent {
    let expected_ms = context.durations.get().and_then(|known| known.of(&skill.name, &step.name));
    let (skill, timeout_ms) = (skill.name.clone(), step.timeout_ms);
    RunEvent::StepStarted { skill, step: step.name.clone(), attempt, timeout_ms, expected_ms }
}

fn retrying(skill: &PlannedSkill, step: &PlannedStep, attempt: u32, outcome: Outcome) -> RunEvent {
    RunEvent::StepRetrying { skill: skill.name.clone(), step: step.name.clone(), attempt, outcome }
}

/// Sends the event without waiting, because the attempt must go on. If the channel is full, the event is dropped;
/// the step's record contains the same information.
fn tell_end(context: &Context, skill: &PlannedSkill, step: &PlannedStep, reason: EndReason) {
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
    fn an_attempt_that_is_in_doubt_is_not_repeated() {
        let planned = PlannedStep { retries: 1, ..crate::test_support::step("s", &["false"]) };
        let mut tried = Tried::not_started(StartFault::Internal, "no".to_owned());
        assert!(!may_repeat(&tried, &planned, 1));
        tried.outcome = Outcome::Failed;
        assert!(may_repeat(&tried, &planned, 1) && !may_repeat(&tried, &planned, 2));
        tried.doubt(Doubt::Internal, "its layer could not be read".to_owned());
        assert_eq!((tried.outcome, may_repeat(&tried, &planned, 1)), (Outcome::Failed, false));
    }
}

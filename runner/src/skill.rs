//! Runs the steps of one skill in order, each on the layers of the previous ones, and stops after the first step
//! that does not pass.

use std::sync::Arc;

use proctor_core::cache::CacheEvidence;
use proctor_core::event::RunEvent;
use proctor_core::evidence::StepEvidence;
use proctor_core::outcome::Outcome;
use proctor_core::plan::PlannedSkill;
use proctor_core::verdict::Doubt;

use crate::context::Context;
use crate::record::{self, Snapshots, Span};
use crate::stack::{Stack, Stacked};
use crate::step;

/// The result of a skill.
pub(crate) struct SkillRun {
    pub(crate) steps: Vec<StepEvidence>,
    /// True if a step of the skill ran and its layer is reliable.
    pub(crate) has_run: bool,
    /// The layers that the steps left, oldest first, except those put back for reuse.
    pub(crate) layers: Vec<Arc<Stacked>>,
    /// The layers whose changes were applied to the worktree, with the paths.
    pub(crate) applied: Vec<(Arc<Stacked>, Vec<Vec<u8>>)>,
    pub(crate) snapshots: Snapshots,
    pub(crate) span: Span,
    pub(crate) doubts: Vec<(Doubt, String)>,
    /// Why the skill did not run; empty if it did.
    pub(crate) reason: String,
    /// The evidence of the skill's caches, set after the verdict.
    pub(crate) caches: Vec<CacheEvidence>,
}

/// Runs the steps of `skill` on top of `stack`.
pub(crate) async fn run(context: &Arc<Context>, mut stack: Stack, skill: &PlannedSkill) -> SkillRun {
    context.emit(RunEvent::SkillStarted { skill: skill.name.clone() }).await;
    open_caches(context, skill).await;
    let before = stack.view().id();
    let mut run = SkillRun::new(context, before);
    for planned in &skill.steps {
        let evidence = match run.barred() {
            Some(Bar::Cancelled) => step::cancelled(planned),
            Some(Bar::Earlier(name, outcome)) => {
                record::skipped(planned, &format!("step `{name}` before it {}", phrase(outcome)))
            }
            None if context.cancel.is_cancelled() => step::cancelled(planned),
            None => run.take_step(step::run(context, &stack, skill, planned).await, context, &mut stack, skill).await,
        };
        context.emit(RunEvent::StepFinished { skill: skill.name.clone(), step: evidence.clone() }).await;
        run.steps.push(evidence);
    }
    run.snapshots.after = stack.view().id();
    run.span.finished_at = context.clock.now_text();
    run
}

/// Opens the caches on a blocking thread, since they may be large. If that fails, the first step reports the error.
async fn open_caches(context: &Arc<Context>, skill: &PlannedSkill) {
    if !skill.caches.is_empty() {
        let (context, skill) = (Arc::clone(context), skill.clone());
        let _ = tokio::task::spawn_blocking(move || context.caches.open(&skill.name, &skill.caches)).await;
    }
}

/// Returns the result of a skill without running it.
pub(crate) fn not_run(context: &Context, stack: &Stack, skill: &PlannedSkill, reason: &str) -> SkillRun {
    let mut run = SkillRun::new(context, stack.view().id());
    let cancelled = context.cancel.is_cancelled();
    run.steps = skill
        .steps
        .iter()
        .map(|planned| if cancelled { step::cancelled(planned) } else { record::skipped(planned, reason) })
        .collect();
    run.reason = reason.to_owned();
    run
}

/// Why a step is not reached.
enum Bar {
    Cancelled,
    Earlier(String, Outcome),
}

impl SkillRun {
    fn new(context: &Context, before: proctor_core::digest::SnapshotId) -> Self {
        let now = context.clock.now_text();
        Self {
            steps: vec![],
            has_run: false,
            layers: vec![],
            applied: vec![],
            snapshots: Snapshots { after: before.clone(), before },
            span: Span { started_at: now.clone(), finished_at: now },
            doubts: vec![],
            reason: String::new(),
            caches: vec![],
        }
    }

    /// Makes passed steps inconclusive, because they may have seen another tree than the recorded one.
    pub(crate) fn take_back(&mut self) {
        for step in self.steps.iter_mut().filter(|step| step.outcome == Outcome::Passed) {
            step.outcome = Outcome::Inconclusive;
        }
    }

    fn barred(&self) -> Option<Bar> {
        let stopper = self.steps.iter().find(|step| step.outcome != Outcome::Passed)?;
        match stopper.outcome {
            Outcome::Cancelled => Some(Bar::Cancelled),
            outcome => Some(Bar::Earlier(stopper.planned.name.to_string(), outcome)),
        }
    }

    /// Puts the step's layer on the stack, so that the next step builds on it.
    async fn take_step(
        &mut self,
        step: step::StepRun,
        context: &Arc<Context>,
        stack: &mut Stack,
        skill: &PlannedSkill,
    ) -> StepEvidence {
        let mut evidence = step.evidence;
        self.doubts.extend(step.doubts);
        self.has_run |= step.is_known;
        if let Some(layer) = step.layer {
            match stacked(context, stack, Arc::clone(&layer)).await {
                Ok(higher) => *stack = higher,
                Err(message) => {
                    self.doubts.push((Doubt::Internal, format!("{}: {message}", skill.name)));
                    if evidence.outcome == Outcome::Passed {
                        evidence.outcome = Outcome::Inconclusive;
                    }
                }
            }
            if !step.applied.is_empty() {
                self.applied.push((Arc::clone(&layer), step.applied));
            }
            self.layers.push(layer);
        }
        evidence
    }
}

/// Returns the stack with `layer` on top. Asks git which of the layer's new paths are ignored.
pub(crate) async fn stacked(context: &Arc<Context>, stack: &Stack, layer: Arc<Stacked>) -> Result<Stack, String> {
    if layer.scan.entries.is_empty() {
        // An empty layer adds nothing, so git need not be asked.
        return Ok(stack.clone());
    }
    let (context, stack) = (Arc::clone(context), stack.clone());
    let work = tokio::task::spawn_blocking(move || stack.with(layer, &context.tree.ignored));
    match work.await {
        Ok(result) => result.map_err(|error| crate::error::one_line(&error)),
        Err(error) => Err(format!("stacking the layer ended badly: {error}")),
    }
}

/// Describes an outcome as the end of a sentence.
pub(crate) fn phrase(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Passed => "passed",
        Outcome::Failed => "failed",
        Outcome::TimedOut => "timed out",
        Outcome::Drifted => "drifted",
        Outcome::Skipped => "was skipped",
        Outcome::Cancelled => "was cancelled",
        Outcome::Inconclusive => "had no honest answer",
    }
}

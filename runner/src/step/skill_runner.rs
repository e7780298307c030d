//! Runs the steps of one skill in order, each on the layers of the previous ones, and stops after the first step
//! that does not pass.

use std::sync::Arc;

use proctor_core::decision::verdict::{InconclusiveDetail, InconclusiveReason};
use proctor_core::model::cache::CacheEvidence;
use proctor_core::model::event::RunEvent;
use proctor_core::model::outcome::Outcome;
use proctor_core::model::plan::{PlannedSkill, ReadOnly};
use proctor_core::record::evidence::{StepEvidence, step_path};
use proctor_snapshot::TreeView;

use crate::error::one_line;
use crate::run::evidence_builder::{self, SkillSnapshots, TimeRange, describe_outcome};
use crate::run::run_context::{ChangeMode, RunContext};
use crate::step::layer_stack::{LayerStack, StackPart, StackedLayer};
use crate::step::reused_files::push_layer;
use crate::step::{reusable_step, step_runner};

/// The result of a skill.
pub(crate) struct SkillRun {
    pub(crate) steps: Vec<StepEvidence>,
    /// True if a step of the skill ran and its layer is reliable.
    pub(crate) has_run: bool,
    /// The layers with the writes of the steps, oldest first, except layers that are reused.
    pub(crate) layers: Vec<Arc<StackedLayer>>,
    /// The files that the steps have left in the tree, oldest first: these layers, and the files of reused steps.
    pub(crate) files: Vec<StackPart>,
    /// The layers whose changes were applied to the worktree, with the paths.
    pub(crate) applied: Vec<(Arc<StackedLayer>, Vec<Vec<u8>>)>,
    pub(crate) snapshots: SkillSnapshots,
    pub(crate) span: TimeRange,
    pub(crate) inconclusive_reasons: Vec<InconclusiveDetail>,
    /// The reason why the skill did not run; empty if it did.
    pub(crate) reason: String,
    /// The evidence of the skill's caches, set after the verdict.
    pub(crate) caches: Vec<CacheEvidence>,
}

/// Runs the steps of `skill` on top of `stack`.
pub(crate) async fn run(context: &Arc<RunContext>, mut stack: LayerStack, skill: &PlannedSkill) -> SkillRun {
    context.emit(RunEvent::SkillStarted { skill: skill.name.clone() }).await;
    let before = stack.view().id();
    let mut run = SkillRun::new(context, before);
    for planned in &skill.steps {
        let evidence = match run.blocker() {
            Some(StepBlocker::Cancelled) => evidence_builder::cancelled_evidence(context.redactor(), planned),
            Some(StepBlocker::EarlierStep(name, outcome)) => evidence_builder::skipped_evidence(
                context.redactor(),
                planned,
                &format!("step `{name}` before it {}", describe_outcome(outcome)),
            ),
            None if context.cancel.is_cancelled() => evidence_builder::cancelled_evidence(context.redactor(), planned),
            None => {
                run.push_step(reusable_step::run(context, &stack, skill, planned).await, context, &mut stack, skill)
                    .await
            }
        };
        context.emit(RunEvent::StepFinished { skill: skill.name.clone(), step: evidence.clone() }).await;
        run.steps.push(evidence);
        run.require_unchanged_paths(context, skill).await;
    }
    run.snapshots.after = stack.view().id();
    run.span.finished_at = context.clock.now_text();
    run
}

/// Returns the result of a skill without running it.
pub(crate) fn skip(context: &RunContext, stack: &LayerStack, skill: &PlannedSkill, reason: &str) -> SkillRun {
    let mut run = SkillRun::new(context, stack.view().id());
    let cancelled = context.cancel.is_cancelled();
    run.steps = skill
        .steps
        .iter()
        .map(|planned| {
            if cancelled {
                evidence_builder::cancelled_evidence(context.redactor(), planned)
            } else {
                evidence_builder::skipped_evidence(context.redactor(), planned, reason)
            }
        })
        .collect();
    run.reason = reason.to_owned();
    run
}

/// The reason why a step is not reached.
enum StepBlocker {
    Cancelled,
    EarlierStep(String, Outcome),
}

impl SkillRun {
    fn new(context: &RunContext, before: proctor_core::text::digest::SnapshotId) -> Self {
        let now = context.clock.now_text();
        Self {
            steps: vec![],
            has_run: false,
            layers: vec![],
            files: vec![],
            applied: vec![],
            snapshots: SkillSnapshots { after: before.clone(), before },
            span: TimeRange { started_at: now.clone(), finished_at: now },
            inconclusive_reasons: vec![],
            reason: String::new(),
            caches: vec![],
        }
    }

    /// Makes passed steps inconclusive, because they may have seen a different tree from the recorded one.
    pub(crate) fn mark_inconclusive(&mut self) {
        for step in self.steps.iter_mut().filter(|step| step.outcome == Outcome::Passed) {
            step.outcome = Outcome::Inconclusive;
        }
    }

    /// Makes passed steps inconclusive if `read_only: strict` applies and a step changed a path that the skill needs.
    /// Must be called after each step: a later step can remove the traces of a change that a step between them saw.
    async fn require_unchanged_paths(&mut self, context: &Arc<RunContext>, skill: &PlannedSkill) {
        let is_strict = skill.steps.iter().any(|step| step.read_only == ReadOnly::Strict);
        let is_known = self.inconclusive_reasons.iter().any(|detail| detail.doubt == InconclusiveReason::NeededPath);
        if !is_strict || is_known || skill.needs_paths.is_empty() {
            return;
        }
        let reason = match context.changed_needed_paths(skill).await {
            Ok(changed) if changed.is_empty() => return,
            Ok(changed) => {
                let paths = changed.iter().map(|path| format!("`{path}`")).collect::<Vec<_>>().join(", ");
                format!("skill `{}` changed {paths}, which `read_only: strict` protects", skill.name)
            }
            Err(error) => format!("skill `{}`: its needed paths cannot be read: {error}", skill.name),
        };
        self.mark_inconclusive();
        self.inconclusive_reasons.push(InconclusiveReason::NeededPath.with_message(reason));
    }

    fn blocker(&self) -> Option<StepBlocker> {
        let stopper = self.steps.iter().find(|step| !step.outcome.holds())?;
        match stopper.outcome {
            Outcome::Cancelled => Some(StepBlocker::Cancelled),
            outcome => Some(StepBlocker::EarlierStep(stopper.planned.name.to_string(), outcome)),
        }
    }

    /// Puts the step's layer on the stack, so that the next step builds on it.
    async fn push_step(
        &mut self,
        step: step_runner::StepRun,
        context: &Arc<RunContext>,
        stack: &mut LayerStack,
        skill: &PlannedSkill,
    ) -> StepEvidence {
        let mut evidence = step.evidence;
        self.inconclusive_reasons.extend(step.inconclusive_reasons);
        self.has_run |= step.is_known;
        if let Some(layer) = step.layer {
            let before = may_change_tree(&evidence).then(|| stack.view().clone());
            match push_layer(context, stack, Arc::clone(&layer), step.stored_as.clone()).await {
                Ok(higher) => *stack = higher,
                Err(error) => {
                    let message = format!("{}: {}", skill.name, one_line(&error));
                    self.inconclusive_reasons.push(InconclusiveReason::Internal.with_message(message));
                    if evidence.outcome == Outcome::Passed {
                        evidence.outcome = Outcome::Inconclusive;
                    }
                }
            }
            evidence.drift.changed_tree = before.is_some_and(|before| has_changed_file(&before, stack.view()));
            if evidence.drift.changed_tree && context.changes == ChangeMode::Discard {
                let step = step_path(&skill.name, &evidence.planned.name);
                self.inconclusive_reasons
                    .push(InconclusiveReason::ChangedCommit.with_message(changed_commit_message(&step)));
            }
            if !step.applied.is_empty() {
                self.applied.push((Arc::clone(&layer), step.applied));
            }
            self.files.push(StackPart::Layer(Arc::clone(&layer), step.stored_as));
            self.layers.push(layer);
        }
        if let Some(files) = step.reused_files {
            *stack = stack.with_reused(Arc::clone(&files));
            self.files.push(StackPart::Reused(files));
        }
        evidence
    }
}

/// Returns whether the changes of a step count, so that later steps see another tree than the recorded one.
fn may_change_tree(evidence: &StepEvidence) -> bool {
    evidence.planned.read_only == ReadOnly::Off && evidence.outcome == Outcome::Passed
}

/// Returns whether a file of the recorded tree has changed or is gone. New files do not count, since every step sees the
/// files of the recorded tree all the same.
fn has_changed_file(before: &TreeView, after: &TreeView) -> bool {
    before.base().entries.paths().any(|path| before.path_state(&path) != after.path_state(&path))
}

fn changed_commit_message(step: &str) -> String {
    format!(
        "{step}: it changed files of the commit, so the steps after it saw other files; run `proctor run` on the worktree, \
         and commit the changes"
    )
}

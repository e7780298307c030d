//! Recreates the files of a step whose result was reused. If a later step is executed and needs these files, the reused
//! step is executed only to create them.

use std::sync::Arc;

use proctor_core::model::outcome::Outcome;
use proctor_core::model::plan::{PlannedSkill, PlannedStep};
use proctor_core::record::evidence::step_path;
use proctor_core::text::digest::Sha256Hex;

use crate::error::one_line;
use crate::run::evidence_builder::describe_outcome;
use crate::run::run_context::RunContext;
use crate::step::file_selection::{FilesNotChosen, StepFiles};
use crate::step::layer_stack::{LayerStack, LayerStackError, RecreatedFiles, ReusedFiles, StackPart, StackedLayer};
use crate::step::step_runner::{Execution, JudgedAttempt, StepRun, execute_with_files, not_started_step};
use crate::step::tree_inputs::TreeInputs;

/// Executes the step for its files, once.
async fn layer_of(
    files: &ReusedFiles,
    context: &Arc<RunContext>,
    stack: &LayerStack,
) -> Result<RecreatedFiles, String> {
    let make = async || {
        let has_mounts = !files.skill.caches.is_empty() || !files.skill.needs_paths.is_empty();
        let _alone = if has_mounts { Some(context.finished_mounts.lock().await) } else { None };
        tracing::debug!(skill = %files.skill.name, step = %files.step.name, "executed for its files");
        let of_step = (&files.skill, &files.step);
        let run = execute_for_files(context, stack, of_step, files.leaves_out_others).await;
        let is_same_place = run.evidence.remote_execution().is_some() == files.is_of_worker;
        if run.evidence.outcome == Outcome::Passed && run.inconclusive_reasons.is_empty() {
            return Ok(RecreatedFiles { layer: run.layer, is_same: is_same_place && has_same_inputs(files, context) });
        }
        let path = step_path(&files.skill.name, &files.step.name);
        let reason = format!(
            "its stored result is a pass, but now it {} with the same inputs",
            describe_outcome(run.evidence.outcome)
        );
        if let Some(reuse) = context.reuse.as_ref().filter(|_| is_same_place && run.evidence.outcome.is_failure()) {
            reuse.distrust(&files.key, &reason);
        }
        Err(format!("the files of `{path}` cannot be recreated: {reason}"))
    };
    files.layer.get_or_init(make).await.clone()
}

/// Executes a step for its files on top of `stack`, which must be complete.
async fn execute_for_files(
    context: &Arc<RunContext>,
    stack: &LayerStack,
    (skill, step): (&PlannedSkill, &PlannedStep),
    leaves_out_others: bool,
) -> StepRun {
    let chosen = StepFiles::choose(context, stack.view(), (skill, step)).await.and_then(|mut files| {
        if leaves_out_others {
            files.leave_out_others()?;
        }
        Ok(files)
    });
    match chosen {
        Ok(files) => execute_with_files(context, stack, skill, step, (&files, None, Execution::ForItsFiles)).await,
        Err(FilesNotChosen { fault, reason, .. }) => {
            not_started_step(context, step, &JudgedAttempt::not_started(fault, reason))
        }
    }
}

/// Returns whether the inputs of the stored result are the same after the execution. No view observed the execution.
fn has_same_inputs(files: &ReusedFiles, context: &RunContext) -> bool {
    let Ok(shown) = context.input_filter(&files.skill, &files.step) else { return false };
    let Some(tree) = context.observed_tree(shown.as_ref()) else { return false };
    let change = files.inputs.first_change(&TreeInputs(tree));
    change.inspect(|change| tracing::debug!(%change, "the files that a step left have changed")).is_none()
}

/// Returns a stack that contains the files of every step. If necessary, executes steps whose results were reused.
///
/// # Errors
/// The reason why the files of a step cannot be recreated.
pub(crate) async fn complete_stack(context: &Arc<RunContext>, stack: &LayerStack) -> Result<LayerStack, String> {
    let Some(parts) = stack.incomplete_parts() else { return Ok(stack.clone()) };
    let mut complete = stack.without_layers();
    for part in parts {
        let (layer, stored_as) = match part {
            StackPart::Layer(layer, stored_as) => (Arc::clone(layer), stored_as.clone()),
            StackPart::Reused(files) => match layer_of(files, context, &complete).await? {
                RecreatedFiles { layer: Some(layer), is_same } => (layer, files.stored_as.clone().filter(|_| is_same)),
                RecreatedFiles { layer: None, .. } => continue,
            },
        };
        let pushed = push_layer(context, &complete, layer, stored_as).await;
        complete = pushed.map_err(|error| one_line(&error))?;
    }
    Ok(complete)
}

/// Returns the stack with `layer` on top. Asks git which of the layer's new paths are ignored.
pub(crate) async fn push_layer(
    context: &Arc<RunContext>,
    stack: &LayerStack,
    layer: Arc<StackedLayer>,
    stored_as: Option<Sha256Hex>,
) -> Result<LayerStack, LayerStackError> {
    if layer.scan.entries.is_empty() {
        // An empty layer adds nothing, so git need not be asked.
        return Ok(stack.clone());
    }
    let (context, stack) = (Arc::clone(context), stack.clone());
    let work = tokio::task::spawn_blocking(move || stack.with_layer(layer, stored_as, &context.tree.ignored));
    Ok(work.await??)
}

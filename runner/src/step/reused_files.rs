//! The files that a step would have left in the tree, if its result had not been reused. A later step that is executed
//! needs them, so that the step is then executed for its files only.

use std::sync::Arc;

use proctor_core::model::outcome::Outcome;
use proctor_core::model::plan::{PlannedSkill, PlannedStep};
use proctor_core::record::evidence::step_path;
use proctor_core::text::digest::Sha256Hex;
use tokio::sync::OnceCell;

use crate::run::run_context::RunContext;
use crate::step::layer_stack::{LayerStack, StackedLayer, StepFilesLeft};
use crate::step::skill_runner::describe_outcome;
use crate::step::step_runner::{self, Execution};

/// The files of a step whose result was reused.
#[derive(Debug)]
pub(crate) struct ReusedFiles {
    skill: PlannedSkill,
    step: PlannedStep,
    /// The key of the step.
    key: Sha256Hex,
    /// The digest of the stored result.
    pub(crate) stored_as: Sha256Hex,
    /// The layer, once the step was executed; `None` if it left nothing.
    layer: OnceCell<Result<Option<Arc<StackedLayer>>, String>>,
}

impl ReusedFiles {
    pub(crate) fn new(skill: &PlannedSkill, step: &PlannedStep, key: Sha256Hex, stored_as: Sha256Hex) -> Self {
        Self { skill: skill.clone(), step: step.clone(), key, stored_as, layer: OnceCell::new() }
    }

    /// Executes the step for its files, once.
    async fn layer(&self, context: &Arc<RunContext>, stack: &LayerStack) -> Result<Option<Arc<StackedLayer>>, String> {
        let make = async || {
            tracing::debug!(skill = %self.skill.name, step = %self.step.name, "executed for its files");
            let run = step_runner::execute(context, stack, &self.skill, &self.step, Execution::ForItsFiles).await;
            if run.evidence.outcome == Outcome::Passed && run.inconclusive_reasons.is_empty() {
                return Ok(run.layer);
            }
            let path = step_path(&self.skill.name, &self.step.name);
            let reason = format!(
                "its stored result said that it passed, but now it {} with the same inputs",
                describe_outcome(run.evidence.outcome)
            );
            if let Some(reuse) = &context.reuse {
                reuse.distrust(&self.key, &reason);
            }
            Err(format!("the files of `{path}` cannot be made again: {reason}"))
        };
        self.layer.get_or_init(make).await.clone()
    }
}

/// Returns a stack that contains the files of every step. Executes steps whose results were reused, if it has to.
///
/// # Errors
/// The reason why the files of a step cannot be made.
pub(crate) async fn complete_stack(context: &Arc<RunContext>, stack: &LayerStack) -> Result<LayerStack, String> {
    let Some(parts) = stack.incomplete_parts() else { return Ok(stack.clone()) };
    let mut complete = stack.without_layers();
    for part in parts {
        let (layer, stored_as) = match part {
            StepFilesLeft::Layer(layer, stored_as) => (Arc::clone(layer), stored_as.clone()),
            StepFilesLeft::Reused(files) => match files.layer(context, &complete).await? {
                Some(layer) => (layer, Some(files.stored_as.clone())),
                None => continue,
            },
        };
        let pushed = crate::step::skill_runner::push_layer(context, &complete, layer, stored_as).await;
        complete = pushed.map_err(|error| crate::error::one_line(&error))?;
    }
    Ok(complete)
}

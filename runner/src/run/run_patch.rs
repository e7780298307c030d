//! Writes the changes of a run's steps as one patch against the verified tree.

use std::collections::BTreeSet;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use proctor_core::model::drift::display_path;
use proctor_core::model::plan::Plan;
use proctor_git::error::GitError;
use proctor_snapshot::{LayerScan, PatchError, PatchInput, TreeView, conflicts, patch};
use tokio::task::JoinError;

use crate::error::one_line;
use crate::run::request::PatchResult;
use crate::run::run_context::RunContext;
use crate::run::schedule::Schedule;
use crate::step::layer_stack::{LayerStack, StackedLayer};
use crate::step::skill_runner::SkillRun;

/// Maximum number of paths that a message names.
const MAX_NAMED_PATHS: usize = 10;

/// The reason why the changes of a run cannot be written as a patch.
#[derive(Debug, thiserror::Error)]
enum RunPatchError {
    /// Git does not report which paths of a layer are ignored.
    #[error(transparent)]
    Git(#[from] GitError),
    /// A changed file cannot be read.
    #[error(transparent)]
    Patch(#[from] PatchError),
    /// The task that writes the patch panicked.
    #[error("writing the patch failed unexpectedly: {0}")]
    Task(#[from] JoinError),
}

/// Builds the patch from the layers of all steps, passed or not.
pub(crate) async fn build(context: &Arc<RunContext>, plan: &Plan, runs: &[SkillRun]) -> PatchResult {
    if let Some(problem) = conflict_message(plan, runs) {
        return PatchResult::Refused(problem);
    }
    let (context, layers) = (Arc::clone(context), ordered_layers(plan, runs));
    let work = tokio::task::spawn_blocking(move || write_patch(&context, layers));
    match work.await.unwrap_or_else(|error| Err(error.into())) {
        Ok(bytes) => PatchResult::Written(bytes),
        Err(error) => PatchResult::Refused(one_line(&error)),
    }
}

/// Orders the layers so that a skill comes after the skills whose layers it sees.
fn ordered_layers(plan: &Plan, runs: &[SkillRun]) -> Vec<Arc<StackedLayer>> {
    let schedule = Schedule::for_plan(plan);
    let mut order: Vec<usize> = (0..runs.len()).collect();
    order.sort_by_key(|place| schedule.slots.get(*place).map_or(0, |slot| slot.sees.len()));
    order.into_iter().flat_map(|place| runs[place].layers.iter().cloned()).collect()
}

/// Returns a message if two skills that did not see each other's writes changed the same path.
fn conflict_message(plan: &Plan, runs: &[SkillRun]) -> Option<String> {
    let schedule = Schedule::for_plan(plan);
    let scans = |of: usize| -> Vec<&LayerScan> { runs[of].layers.iter().map(|layer| &layer.scan).collect() };
    let pairs = (0..runs.len()).flat_map(|a| (a + 1..runs.len()).map(move |b| (a, b)));
    pairs.filter(|(a, b)| !schedule.are_related(*a, *b)).find_map(|(a, b)| {
        let paths: BTreeSet<Vec<u8>> = conflicts(&scans(a), &scans(b)).into_iter().collect();
        let named: Vec<String> =
            paths.iter().take(MAX_NAMED_PATHS).map(|path| format!("`{}`", display_path(path))).collect();
        let (a, b) = (&plan.skills[a].name, &plan.skills[b].name);
        (!paths.is_empty()).then(|| format!("the skills `{a}` and `{b}` both changed {}", named.join(", ")))
    })
}

fn write_patch(context: &RunContext, layers: Vec<Arc<StackedLayer>>) -> Result<Vec<u8>, RunPatchError> {
    let snapshot = Arc::clone(&context.tree.snapshot);
    let mut stack = LayerStack::new(Arc::clone(&snapshot));
    for layer in layers {
        stack = stack.with_layer(layer, None, &context.tree.ignored)?;
    }
    let before = TreeView::new(snapshot);
    let (repo, uppers) = (context.tree.repository.as_fd(), stack.uppers());
    Ok(patch(PatchInput { before: &before, after: stack.view(), repo, uppers: &uppers })?)
}

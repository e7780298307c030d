//! Reads the changes of a step from its layer, and applies them to the worktree.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use proctor_core::model::drift::{DriftMethod, StepDrift};
use proctor_core::model::enforcement::{Control, Enforcement};
use proctor_core::model::plan::{PlannedSkill, PlannedStep, ReadOnly};
use proctor_sandbox::helper::copy_changes::drift_method_for;
use proctor_sandbox::{Layer, Sealed};
use proctor_snapshot::{
    ApplyError, ApplyInput, DriftError, DriftInput, IgnoredContent, ScanBounds, ScanError, SparingRules,
    WithheldContent, apply_back, find_drift, keep_withheld, scan_layer_sparing,
};
use tokio::task::JoinError;

use crate::run::run_context::RunContext;
use crate::step::layer_stack::{LayerStack, StackedLayer};

/// The reason why the changes of a step cannot be judged or applied.
#[derive(Debug, thiserror::Error)]
pub(super) enum StepChangesError {
    /// The layer cannot be read.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// The files that the step saw are not known.
    #[error("{0}")]
    Inputs(String),
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
    #[error("applying the changes failed unexpectedly: {0}")]
    ApplyTask(#[source] JoinError),
}

/// Returns how the step's changes got into its layer: through the kernel's overlay or, without an overlay, through
/// the sandbox, which uses the same function to choose how it finds changes of the copy.
pub(super) fn drift_method(layer: &Layer<Sealed>, enforcement: &Enforcement) -> Result<DriftMethod, StepChangesError> {
    if enforcement.is_enforced(Control::Layer) {
        return Ok(DriftMethod::Layer);
    }
    drift_method_for(layer.upper()).map_err(StepChangesError::Method)
}

/// Reads and hashes the step's writes, on a blocking thread unless the layer is empty.
pub(super) async fn read_layer(
    context: &Arc<RunContext>,
    stack: &LayerStack,
    skill: &PlannedSkill,
    step: &PlannedStep,
    (layer, shows_inputs_only): (Layer<Sealed>, bool),
) -> Result<(Arc<StackedLayer>, StepDrift), StepChangesError> {
    let (context, stack) = (Arc::clone(context), stack.clone());
    let (caches, mode, reports) = (context.mounted_paths(skill), step.read_only, step.reports.clone());
    let content = context.ignored_content.get().copied().unwrap_or_else(|| ignored_content(mode));
    let is_empty = layer.is_empty();
    let inputs =
        if shows_inputs_only { context.input_filter(skill, step).map_err(StepChangesError::Inputs)? } else { None };
    let work = move || {
        let spare = SparingRules { view: stack.view(), ignored: &context.tree.ignored, content };
        let mut scan = scan_layer_sparing(layer.upper(), ScanBounds::default(), spare)?;
        if let Some(inputs) = &inputs {
            let (view, repo) = (stack.view(), context.tree.repository.as_fd());
            let lower_uppers = stack.uppers();
            let tree = WithheldContent { inputs, view, repo, upper: layer.upper(), lower_uppers: &lower_uppers };
            keep_withheld(&mut scan, tree)?;
        }
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

/// Applies a layer to the worktree, on a blocking thread. Returns the paths.
pub(super) async fn apply_layer(
    context: &Arc<RunContext>,
    stack: &LayerStack,
    skill: &PlannedSkill,
    layer: Arc<StackedLayer>,
) -> Result<Vec<Vec<u8>>, StepChangesError> {
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
    work.await.unwrap_or_else(|error| Err(StepChangesError::ApplyTask(error)))
}

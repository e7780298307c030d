//! Finds the changes of a `fix` command, to show them.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::sync::Arc;

use proctor_core::model::drift::{StepDrift, display_path};
use proctor_core::model::plan::{PlannedSkill, PlannedStep, ReadOnly};
use proctor_snapshot::{DriftInput, LayerEntry, LayerScan, find_drift};

use crate::run::run_context::RunContext;
use crate::step::layer_stack::{LayerStack, StackedLayer};

/// Returns the applied changes of a `fix` command, with their differences. They are shown only, so a failure to read them
/// has no effect.
pub(crate) async fn shown_fixes(
    context: &Arc<RunContext>,
    stack: &LayerStack,
    skill: &PlannedSkill,
    step: &PlannedStep,
    applied: Option<&Arc<StackedLayer>>,
) -> StepDrift {
    let Some(layer) = applied.filter(|_| step.fixes.is_some()) else { return StepDrift::default() };
    let (context, stack, layer, caches) = (Arc::clone(context), stack.clone(), Arc::clone(layer), skill.caches.clone());
    let work = tokio::task::spawn_blocking(move || {
        let found = find_drift(DriftInput {
            view: stack.view(),
            scan: &layer.scan,
            mode: ReadOnly::Tracked,
            ignored: &context.tree.ignored,
            repo: context.tree.repository.as_fd(),
            upper: layer.layer.upper(),
            lower_uppers: &stack.uppers(),
            caches: &caches,
        });
        found.map(|fixed| without_special_files(fixed, &layer.scan))
    });
    match work.await {
        Ok(Ok(fixed)) => fixed,
        Ok(Err(error)) => {
            tracing::warn!(%error, "the changes of a fix cannot be shown");
            StepDrift::default()
        }
        Err(error) => {
            tracing::error!(%error, "reading the changes of a fix failed unexpectedly");
            StepDrift::default()
        }
    }
}

/// Removes the sockets, FIFOs and devices, which are never applied.
fn without_special_files(mut fixed: StepDrift, scan: &LayerScan) -> StepDrift {
    let special = scan.entries.iter().filter(|(_, entry)| **entry == LayerEntry::Special);
    let special: BTreeSet<String> = special.map(|(path, _)| display_path(path)).collect();
    fixed.changes.retain(|change| !special.contains(&change.path));
    fixed
}

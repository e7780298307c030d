//! Writes the changes of a run's steps as one patch against the verified tree.

use std::collections::BTreeSet;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use proctor_core::drift::display_path;
use proctor_core::plan::Plan;
use proctor_snapshot::{LayerScan, PatchInput, View, conflicts, patch};

use crate::context::Context;
use crate::error::one_line;
use crate::request::Patch;
use crate::schedule::Schedule;
use crate::skill::SkillRun;
use crate::stack::{Stack, Stacked};

/// Maximum number of paths that a message names.
const NAMED_PATHS: usize = 10;

/// Builds the patch from the layers of all steps, passed or not.
pub(crate) async fn made(context: &Arc<Context>, plan: &Plan, runs: &[SkillRun]) -> Patch {
    if let Some(problem) = conflict(plan, runs) {
        return Patch::Refused(problem);
    }
    let (context, layers) = (Arc::clone(context), in_order(plan, runs));
    let work = tokio::task::spawn_blocking(move || written(&context, layers));
    match work.await {
        Ok(Ok(bytes)) => Patch::Made(bytes),
        Ok(Err(problem)) => Patch::Refused(problem),
        Err(error) => Patch::Refused(format!("writing it ended badly: {error}")),
    }
}

/// Orders the layers so that a skill comes after the skills whose layers it sees.
fn in_order(plan: &Plan, runs: &[SkillRun]) -> Vec<Arc<Stacked>> {
    let schedule = Schedule::of(plan);
    let mut places: Vec<usize> = (0..runs.len()).collect();
    places.sort_by_key(|place| schedule.slots.get(*place).map_or(0, |slot| slot.sees.len()));
    places.into_iter().flat_map(|place| runs[place].layers.iter().cloned()).collect()
}

/// Returns a message if two skills that did not see each other's writes changed the same path.
fn conflict(plan: &Plan, runs: &[SkillRun]) -> Option<String> {
    let schedule = Schedule::of(plan);
    let scans = |of: usize| -> Vec<&LayerScan> { runs[of].layers.iter().map(|layer| &layer.scan).collect() };
    let pairs = (0..runs.len()).flat_map(|a| (a + 1..runs.len()).map(move |b| (a, b)));
    pairs.filter(|(a, b)| !schedule.related(*a, *b)).find_map(|(a, b)| {
        let paths: BTreeSet<Vec<u8>> = conflicts(&scans(a), &scans(b)).into_iter().collect();
        let named: Vec<String> =
            paths.iter().take(NAMED_PATHS).map(|path| format!("`{}`", display_path(path))).collect();
        let (a, b) = (&plan.skills[a].name, &plan.skills[b].name);
        (!paths.is_empty()).then(|| format!("the skills `{a}` and `{b}` both changed {}", named.join(", ")))
    })
}

fn written(context: &Context, layers: Vec<Arc<Stacked>>) -> Result<Vec<u8>, String> {
    let snapshot = Arc::clone(&context.tree.snapshot);
    let mut stack = Stack::new(Arc::clone(&snapshot));
    for layer in layers {
        stack = stack.with(layer, &context.tree.ignored).map_err(|error| one_line(&error))?;
    }
    let before = View::new(snapshot);
    let (repo, uppers) = (context.tree.repository.as_fd(), stack.uppers());
    patch(PatchInput { before: &before, after: stack.view(), repo, uppers: &uppers }).map_err(|error| one_line(&error))
}

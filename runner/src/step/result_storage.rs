//! Stores the result of an execution of a step for reuse, and acts on a result that turns out to be wrong.

use std::sync::Arc;

use proctor_core::decision::verdict::{InconclusiveDetail, InconclusiveReason};
use proctor_core::model::outcome::Outcome;
use proctor_core::model::plan::PlannedStep;
use proctor_core::record::evidence::StepEvidence;
use proctor_core::reuse::StoredResult;
use proctor_core::text::digest::Sha256Hex;
use proctor_sandbox::ViewTrace;

use crate::run::evidence_builder::describe_outcome;
use crate::run::run_context::RunContext;
use crate::step::file_selection::{StepFiles, path_in_tree};
use crate::step::reuse::FilesNotStored;

/// How the reuse of results applies to one execution of a step.
pub(crate) struct StepReuseState {
    pub(crate) key: StepKey,
    /// True if a stored result holds, and the execution checks it.
    pub(crate) is_recheck: bool,
    /// The earlier results of a step with `per_file` that hold.
    pub(crate) earlier: Vec<StoredResult>,
}

/// The key under which the results of a step are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StepKey {
    pub(crate) key: Sha256Hex,
    /// True if a pass counts for each file by itself.
    pub(crate) is_per_file: bool,
}

/// Stores the result of an execution. Returns the digest that stands for it, and the reason for a doubt if a stored
/// result was wrong.
pub(crate) async fn store_result(
    context: &Arc<RunContext>,
    state: Option<StepReuseState>,
    evidence: &StepEvidence,
    (view, has_files, files): (Option<ViewTrace>, bool, &StepFiles),
) -> StoreOutcome {
    let passed = evidence.outcome == Outcome::Passed;
    // A failure of some files is a failure, whatever the others do.
    let is_partial = passed && files.to_check().count() != files.chosen().len();
    let (Some(StepReuseState { key: StepKey { key, is_per_file }, is_recheck, earlier }), Some(view)) = (state, view)
    else {
        return StoreOutcome { must_check_all: is_partial, ..StoreOutcome::default() };
    };
    // Only a failure contradicts the stored result; a cancellation or a fault of the sandbox says nothing about it.
    if is_recheck && evidence.outcome.is_failure() {
        let reason = format!(
            "a stored result said that `{}` passes with these inputs, but it {}; the step is not reused any more; \
             report this, or declare the skill with `determinism: D2`",
            evidence.planned.name,
            describe_outcome(evidence.outcome)
        );
        if let Some(reuse) = &context.reuse {
            reuse.distrust(&key, &reason);
        }
        let doubt = Some(InconclusiveReason::Internal.with_message(reason));
        return StoreOutcome { doubt, ..StoreOutcome::default() };
    }
    let (context, evidence) = (Arc::clone(context), evidence.clone());
    let step = &evidence.planned;
    let listed =
        is_per_file.then(|| (paths_in_tree(step, files.to_check()), paths_in_tree(step, files.chosen()), earlier));
    let store = move || {
        let none = StoreOutcome::default();
        let (Some(reuse), Some(tree)) = (&context.reuse, context.observed_tree()) else { return none };
        let stored = match &listed {
            None => reuse.record(&key, &evidence, (view, has_files), tree).map_err(FilesNotStored::Obstacle),
            Some((checked, all, earlier)) => {
                reuse.record_files(&key, &evidence, (view, has_files), tree, (checked, all, earlier))
            }
        };
        match stored {
            Ok(stored_as) => StoreOutcome { stored_as: Some(stored_as), ..none },
            Err(FilesNotStored::Obstacle(obstacle)) => {
                tracing::debug!(step = %evidence.planned.name, %obstacle, "not stored");
                // Without a record, nothing shows that the files are independent.
                StoreOutcome { must_check_all: is_partial, ..none }
            }
            Err(FilesNotStored::Dependence(dependence)) => {
                tracing::debug!(step = %evidence.planned.name, "{}", dependence.phrase());
                reuse.refute_per_file(&key, &dependence);
                StoreOutcome { must_check_all: is_partial, ..none }
            }
        }
    };
    tokio::task::spawn_blocking(store)
        .await
        .unwrap_or_else(|_| StoreOutcome { must_check_all: is_partial, ..StoreOutcome::default() })
}

/// The result of storing a result.
#[derive(Debug, Default)]
pub(crate) struct StoreOutcome {
    /// The digest that stands for the stored result; `None` if it was not stored.
    pub(crate) stored_as: Option<Sha256Hex>,
    /// The reason for a doubt, if a stored result was wrong.
    pub(crate) doubt: Option<InconclusiveDetail>,
    /// True if earlier results of other files do not count, so that all files have to be checked.
    pub(crate) must_check_all: bool,
}

/// Returns whether the result of each file of a step depends on no other of its files, according to the spec.
pub(crate) fn is_per_file(step: &PlannedStep) -> bool {
    step.files.as_ref().is_some_and(|rules| rules.per_file)
}

pub(crate) fn paths_in_tree<'a>(step: &PlannedStep, files: impl IntoIterator<Item = &'a Vec<u8>>) -> Vec<Vec<u8>> {
    files.into_iter().map(|file| path_in_tree(&step.workdir, file)).collect()
}

//! Runs a step, or uses a stored result instead.

use std::sync::Arc;

use proctor_core::model::outcome::StartFault;
use proctor_core::model::plan::{PlannedSkill, PlannedStep};
use proctor_core::record::evidence::{CheckedFiles, StepEvidence};
use proctor_core::reuse::{ReuseObstacle, StoredResult};

use crate::run::run_context::RunContext;
use crate::step::file_selection::{FilesNotChosen, StepFiles};
use crate::step::layer_stack::{LayerStack, ReusedFiles};
use crate::step::result_storage::{StepKey, StepReuseState, is_per_file, paths_in_tree};
use crate::step::reuse::{NoResult, PassedFiles, ReuseSearch};
use crate::step::reused_files;
use crate::step::step_runner::{
    Execution, JudgedAttempt, StepRun, discard_layer, execute_with_files, not_started_step,
};

/// Runs `step` on top of `stack`, or uses a stored result. The result does not contain the caller's secrets.
pub(crate) async fn run(
    context: &Arc<RunContext>,
    stack: &LayerStack,
    skill: &PlannedSkill,
    step: &PlannedStep,
) -> StepRun {
    let mut files = match StepFiles::choose(context, stack.view(), step).await {
        Ok(files) => files,
        Err(FilesNotChosen { fault, reason }) => {
            return not_started_step(context, step, &JudgedAttempt::not_started(fault, reason));
        }
    };
    let key = reuse_key(context, stack, skill, step, &mut files);
    let (mut is_recheck, mut earlier) = (false, Vec::new());
    if let Some(key) = &key {
        match search_result(context, key, step, &mut files).await {
            ReuseSearch::Found(result) => return reused_step(context, skill, step, (*result, &files)),
            ReuseSearch::Files(holding) => earlier = holding,
            ReuseSearch::Nothing(reason) => {
                is_recheck = matches!(reason, NoResult::Recheck);
                tracing::debug!(skill = %skill.name, step = %step.name, %reason, "no stored result is used");
            }
        }
    }
    let stack = match reused_files::complete_stack(context, stack).await {
        Ok(stack) => stack,
        Err(reason) => {
            return not_started_step(context, step, &JudgedAttempt::not_started(StartFault::Internal, reason));
        }
    };
    let state = key.map(|key| StepReuseState { key, is_recheck, earlier });
    let run = execute_with_files(context, &stack, skill, step, (&files, state, Execution::Verifying)).await;
    if !run.must_check_all {
        return run;
    }
    discard_layer(run.layer).await;
    files.set_reused(Vec::new(), None);
    // If `per_file` was found to be wrong, the step now has the key of a step without it.
    let key = reuse_key(context, &stack, skill, step, &mut files).filter(|key| !key.is_per_file);
    let state = key.map(|key| StepReuseState { key, is_recheck: false, earlier: Vec::new() });
    execute_with_files(context, &stack, skill, step, (&files, state, Execution::Verifying)).await
}

/// Returns the key of a step under which its results are stored; `None` if they are not. A wrong `per_file` does not count,
/// and is noted in `files`.
pub(crate) fn reuse_key(
    context: &RunContext,
    stack: &LayerStack,
    skill: &PlannedSkill,
    step: &PlannedStep,
    files: &mut StepFiles,
) -> Option<StepKey> {
    let reuse = context.step_reuse(skill, step)?;
    let below = stack.stored_results()?;
    let (mut policy, _) = context.policy(skill, step).ok()?;
    if is_per_file(step) {
        let key = reuse.key(skill, step, &policy, &below);
        match reuse.per_file_refutation(&key) {
            None => return Some(StepKey { key, is_per_file: true }),
            Some(dependence) => files.set_dependence(dependence),
        }
    }
    policy.files = files.batches(&policy);
    Some(StepKey { key: reuse.key(skill, step, &policy, &below), is_per_file: false })
}

/// Searches stored results on a blocking thread. If they count for each file, marks the files that have passed.
pub(crate) async fn search_result(
    context: &Arc<RunContext>,
    StepKey { key, is_per_file }: &StepKey,
    step: &PlannedStep,
    files: &mut StepFiles,
) -> ReuseSearch {
    let (shared, key) = (Arc::clone(context), key.clone());
    let listed = is_per_file.then(|| paths_in_tree(step, files.chosen()));
    let none = || (Vec::new(), None);
    let search = move || match (&shared.reuse, shared.observed_tree(), listed) {
        (Some(reuse), Some(tree), None) => (reuse.find(&key, tree), none()),
        (Some(reuse), Some(tree), Some(listed)) => match reuse.find_files(&key, tree, &listed) {
            Ok(PassedFiles { passed, mut holding, executed_at }) if passed.len() == listed.len() => {
                let result = StoredResult { executed_at: executed_at.clone(), ..holding.swap_remove(0) };
                (ReuseSearch::Found(Box::new(result)), (passed, Some(executed_at)))
            }
            Ok(PassedFiles { passed, holding, executed_at }) => {
                (ReuseSearch::Files(holding), (passed, Some(executed_at)))
            }
            Err(reason) => (ReuseSearch::Nothing(reason), none()),
        },
        _ => (ReuseSearch::Nothing(NoResult::Obstacle(ReuseObstacle::SharedTree)), none()),
    };
    let (found, (passed, executed_at)) = tokio::task::spawn_blocking(search).await.unwrap_or_else(|error| {
        let message = format!("the search ended badly: {error}");
        (ReuseSearch::Nothing(NoResult::Obstacle(ReuseObstacle::NotObserved { message })), none())
    });
    let reused = passed.into_iter().filter_map(|at| files.chosen().get(at).cloned()).collect();
    files.set_reused(reused, executed_at);
    found
}

/// Returns the result of a step that is not executed, because a stored result holds.
fn reused_step(
    context: &RunContext,
    skill: &PlannedSkill,
    step: &PlannedStep,
    (result, checked): (StoredResult, &StepFiles),
) -> StepRun {
    let source = result.source();
    let files =
        result.has_files.then(|| Arc::new(ReusedFiles::new(skill, step, result.key.clone(), result.chain_digest())));
    let batches = result.evidence.checked_files.as_ref().map_or(0, |files| files.batches);
    let mut evidence = StepEvidence {
        planned: step.clone(),
        duration_ms: 0,
        reused: Some(source),
        checked_files: checked.evidence(None).map(|now| CheckedFiles {
            batches,
            reused: 0,
            reused_executed_at: None,
            ..now
        }),
        ..result.evidence
    };
    context.redactor().redact_step(&mut evidence);
    StepRun {
        evidence,
        layer: None,
        is_known: true,
        applied: Vec::new(),
        inconclusive_reasons: Vec::new(),
        stored_as: None,
        reused_files: files,
        must_check_all: false,
    }
}

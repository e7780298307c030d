//! Predicts whether a run would use a stored result for a step. Searches with the code of a run, and executes nothing.

use std::sync::Arc;

use proctor_core::model::outcome::StartFault;
use proctor_core::model::plan::{PlannedSkill, PlannedStep};
use proctor_core::record::evidence::FileDependence;
use proctor_core::reuse::ReuseObstacle;
use proctor_core::text::digest::Sha256Hex;

use crate::run::run_context::RunContext;
use crate::step::file_selection::{FilesNotChosen, StepFiles};
use crate::step::layer_stack::LayerStack;
use crate::step::reusable_step::{reuse_key, search_result};
use crate::step::reuse::{NoResult, ReuseSearch, StepReuse};

/// Predicts whether a run would use a stored result for `step`, without executing anything.
pub(crate) async fn predict_reuse(
    context: &Arc<RunContext>,
    stack: &LayerStack,
    skill: &PlannedSkill,
    step: &PlannedStep,
) -> ReusePrediction {
    let unsearched = |search| ReusePrediction { key: None, search, checked_files: (0, 0), note: None };
    let nothing = |reason| unsearched(Ok(ReuseSearch::Nothing(reason)));
    if let Some(obstacle) = StepReuse::obstacle(skill, step) {
        return nothing(NoResult::Obstacle(obstacle));
    }
    let mut files = match StepFiles::choose(context, stack.view(), (skill, step)).await {
        Ok(files) => files,
        Err(not_chosen) => return unsearched(Err(not_chosen)),
    };
    if context.observed_tree(None).is_none() {
        return nothing(NoResult::Obstacle(ReuseObstacle::SharedTree));
    }
    if let Some(reason) = context.needed_paths.problem_of(skill) {
        let not_run = FilesNotChosen { fault: StartFault::Internal, reason: reason.to_owned(), checked_files: None };
        return ReusePrediction { key: None, search: Err(not_run), checked_files: (0, 0), note: None };
    }
    if let Some(command) = context.needed_paths.missing_preparation(skill) {
        return nothing(NoResult::Unprepared(command.to_owned()));
    }
    let Some(key) = reuse_key(context, stack, skill, step, &mut files).await else {
        let message = "the stored results are not available".to_owned();
        return nothing(NoResult::Obstacle(ReuseObstacle::NotObserved { message }));
    };
    let search = search_result(context, &key, (skill, step), &mut files).await;
    let checked_files = (files.to_check().count(), files.chosen().len());
    let note = files.dependence().map(FileDependence::phrase);
    ReusePrediction { key: Some(key.of_next_execution().clone()), search: Ok(search), checked_files, note }
}

/// The prediction for a step.
pub(crate) struct ReusePrediction {
    /// The key of the step, if it has one.
    pub(crate) key: Option<Sha256Hex>,
    /// The search for a stored result; an error if the step would not run.
    pub(crate) search: Result<ReuseSearch, FilesNotChosen>,
    /// Number of files of a step with `{files}` that would be checked, and of all its files.
    pub(crate) checked_files: (usize, usize),
    /// The observation that contradicts `per_file`, as a phrase.
    pub(crate) note: Option<String>,
}

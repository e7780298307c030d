//! Runs a step, or uses a stored result instead.

use std::collections::BTreeSet;
use std::sync::Arc;

use proctor_core::decision::input_filter::InputFilter;
use proctor_core::model::outcome::{Outcome, StartFault};
use proctor_core::model::plan::{PlannedSkill, PlannedStep};
use proctor_core::record::evidence::{CheckedFiles, ResultOrigin, StepEvidence, StepExecutor};
use proctor_core::reuse::{MountedContent, MountedDirectory, ObservedInputs, PathSet, ReuseObstacle, StoredResult};
use proctor_core::text::digest::Sha256Hex;
use proctor_sandbox::Policy;

use crate::run::request::CacheMode;
use crate::run::run_context::{RunContext, TreeMounts};
use crate::step::file_selection::{FilesNotChosen, StepFiles};
use crate::step::layer_stack::{LayerStack, ReusedFiles};
use crate::step::remote_attempt::StepOnWorker;
use crate::step::result_storage::{Recheck, StepKey, StepReuseState, WorkerRoute, paths_in_tree};
use crate::step::reuse::shared::{AdoptedResult, SharedCandidate, SharedKey};
use crate::step::reuse::worker::WorkerKey;
use crate::step::reuse::{NoResult, PassedFiles, ReuseSearch};
use crate::step::reused_files;
use crate::step::step_runner::{
    Execution, JudgedAttempt, StepRun, argv_with_sql_files, discard_layer, execute_with_files, not_started_step,
};

/// Runs `step` on top of `stack`, or uses a stored result. The result does not contain the caller's secrets.
pub(crate) async fn run(
    context: &Arc<RunContext>,
    stack: &LayerStack,
    skill: &PlannedSkill,
    step: &PlannedStep,
) -> StepRun {
    let mut files = match StepFiles::choose(context, stack.view(), (skill, step)).await {
        Ok(files) => files,
        Err(not_chosen) => return unchosen_step(context, step, not_chosen),
    };
    let (key, found) = match search_with_restriction(context, stack, (skill, step), &mut files).await {
        Ok(searched) => searched,
        Err(not_chosen) => return unchosen_step(context, step, not_chosen),
    };
    let (mut recheck, mut earlier) = (Recheck::No, Vec::new());
    match found {
        Some(ReuseSearch::Found(result)) => {
            // The search has already recorded the results of a step with `per_file`, which this one represents.
            if key.as_ref().is_some_and(|key| !key.is_per_file) {
                context.run_reads.note_result(&result);
            }
            return reused_step(context, skill, step, (&result, &files));
        }
        Some(ReuseSearch::Files(holding)) => earlier = holding,
        Some(ReuseSearch::Nothing(reason)) => {
            recheck = match reason {
                NoResult::RecheckOnWorker => Recheck::OnWorker,
                NoResult::Recheck if skill.caches.is_empty() => Recheck::Yes,
                NoResult::Recheck => Recheck::WithEmptyCaches,
                _ => Recheck::No,
            };
            tracing::debug!(skill = %skill.name, step = %step.name, %reason, "no stored result is used");
        }
        None => {}
    }
    let stack = match reused_files::complete_stack(context, stack).await {
        Ok(stack) => stack,
        Err(reason) => {
            return not_started_step(context, step, &JudgedAttempt::not_started(StartFault::Internal, reason));
        }
    };
    // There is no key if the files of an earlier step were recreated on a different kind of machine from the one of its
    // stored result.
    let key = key.filter(|_| stack.stored_results().is_some());
    files.set_earlier_caches(&earlier);
    let state = |recheck, earlier| key.clone().map(|key| StepReuseState { key, recheck, earlier });
    let earlier_left_files = earlier.iter().any(|result| result.has_files);
    let first = state(recheck, earlier);
    let run = execute_with_files(context, &stack, skill, step, (&files, first, Execution::Verifying)).await;
    if recheck.has_run_out(&run.evidence) && !context.cancel.is_cancelled() {
        tracing::debug!(skill = %skill.name, step = %step.name, "executed again, with its caches");
        discard_layer(run.layer).await;
        let second = state(Recheck::Yes, Vec::new());
        return execute_with_files(context, &stack, skill, step, (&files, second, Execution::Verifying)).await;
    }
    if !run.must_check_all {
        return match (files.has_reused(), &key) {
            (true, Some(key)) => with_files_of_all(run, (skill, step), (key, &files), earlier_left_files).await,
            _ => run,
        };
    }
    discard_layer(run.layer).await;
    if let Err(not_chosen) = files.leave_out_others() {
        return unchosen_step(context, step, not_chosen);
    }
    files.set_reused(Vec::new(), None, Vec::new());
    // If `per_file` was found to be wrong, the step now has the key of a step without it.
    let key = unchanged_key(context, &stack, skill, step, &mut files).await.filter(|key| !key.is_per_file);
    let state = key.map(|key| StepReuseState { key, recheck: Recheck::No, earlier: Vec::new() });
    execute_with_files(context, &stack, skill, step, (&files, state, Execution::Verifying)).await
}

/// Returns the result of a step that was executed for some of its files. If the step leaves files in the tree, later steps
/// must see those of its other files, too: an execution for all of them replaces this one if a later step needs them.
async fn with_files_of_all(
    run: StepRun,
    step: (&PlannedSkill, &PlannedStep),
    (key, files): (&StepKey, &StepFiles),
    earlier_left_files: bool,
) -> StepRun {
    let has_files = run.layer.as_ref().is_some_and(|layer| !layer.scan.entries.is_empty());
    if run.evidence.outcome != Outcome::Passed || !(has_files || earlier_left_files) {
        return run;
    }
    let StepRun { layer, stored_as, inputs_of_files, .. } = run;
    discard_layer(layer).await;
    let stored_as = stored_as.map(|digest| (digest, inputs_of_files));
    let reused = ReusedFiles::of_some_files(step, &key.key, stored_as, files.leaves_out_others());
    let inputs_of_files = ObservedInputs::default();
    StepRun { layer: None, stored_as: None, inputs_of_files, reused_files: Some(Arc::new(reused)), ..run }
}

/// Searches for stored results of a step. If the run is restricted to some files, and all other files of the step have
/// passed, the search and the execution are those of a whole run. Otherwise, the other files are left out.
///
/// # Errors
/// No file remains.
async fn search_with_restriction(
    context: &Arc<RunContext>,
    stack: &LayerStack,
    (skill, step): (&PlannedSkill, &PlannedStep),
    files: &mut StepFiles,
) -> Result<(Option<StepKey>, Option<ReuseSearch>), FilesNotChosen> {
    if files.is_restriction_open() {
        if let Some(key) = unchanged_key(context, stack, skill, step, files).await.filter(|key| key.is_per_file) {
            let found = search_result(context, &key, (skill, step), files).await;
            let have_others_passed = match found {
                ReuseSearch::Found(_) => true,
                ReuseSearch::Files(_) => files.has_only_restricted_to_check(),
                ReuseSearch::Nothing(_) => false,
            };
            if have_others_passed {
                return Ok((Some(key), Some(found)));
            }
        }
        files.leave_out_others()?;
    }
    let key = unchanged_key(context, stack, skill, step, files).await;
    let found = match &key {
        Some(key) => Some(search_result(context, key, (skill, step), files).await),
        None => None,
    };
    Ok((key, found))
}

/// Returns the result of a step whose files cannot be chosen, or that has none.
fn unchosen_step(context: &RunContext, step: &PlannedStep, not_chosen: FilesNotChosen) -> StepRun {
    let FilesNotChosen { fault, reason, checked_files } = not_chosen;
    let mut run = not_started_step(context, step, &JudgedAttempt::not_started(fault, reason));
    run.evidence.checked_files = checked_files;
    run
}

/// Returns the key of a step; `None` if its results are not stored, or if an earlier step of this run changed a needed
/// path that is part of the key.
async fn unchanged_key(
    context: &Arc<RunContext>,
    stack: &LayerStack,
    skill: &PlannedSkill,
    step: &PlannedStep,
    files: &mut StepFiles,
) -> Option<StepKey> {
    let key = reuse_key(context, stack, skill, step, files).await?;
    let obstacle = match context.changed_needed_paths(skill).await {
        Ok(paths) if paths.is_empty() => return Some(key),
        Ok(paths) => ReuseObstacle::ChangedPaths { paths },
        Err(message) => ReuseObstacle::NotObserved { message },
    };
    tracing::debug!(skill = %skill.name, step = %step.name, %obstacle, "no stored result is used");
    context.reuse.as_ref()?.keep_obstacle(key.of_next_execution(), &obstacle);
    None
}

/// Returns the key under which the results of a step are stored; `None` if they are not stored. A `per_file` that was
/// found to be wrong is ignored, and recorded in `files`.
pub(crate) async fn reuse_key(
    context: &Arc<RunContext>,
    stack: &LayerStack,
    skill: &PlannedSkill,
    step: &PlannedStep,
    files: &mut StepFiles,
) -> Option<StepKey> {
    let reuse = context.step_reuse(skill, step)?;
    if !context.needed_paths.are_available(skill) {
        return None;
    }
    let below = stack.stored_results()?;
    let (mut policy, _) = context.policy(skill, step, TreeMounts::None).ok()?;
    policy.argv = argv_with_sql_files(context, &policy.argv, (skill, step), stack).ok()?;
    let mounted = context.mounted_directories(skill);
    // The future is large, and most runs have no cluster.
    let worker = Box::pin(worker_route(context, (skill, step), (&policy, files), (&mounted, &below))).await;
    // Workers do not report which files a step reads, so nothing shows that its files are independent.
    let is_for_worker = worker.as_ref().is_some_and(|route| route.key.is_ok());
    if step.passes_per_file() && !is_for_worker {
        let key = reuse.key(skill, step, &policy, (&mounted, &below));
        match reuse.per_file_refutation(&key) {
            Ok(None) => {
                let shared = below
                    .is_empty()
                    .then(|| reuse.weak_fingerprint((skill, step), &policy, &mounted, context.redactor()));
                return Some(StepKey { key, is_per_file: true, worker, shared: shared.flatten() });
            }
            Ok(Some(dependence)) => files.set_dependence(dependence),
            Err(error) => {
                tracing::warn!(%error, "it is not known whether `per_file` is correct, so the step is executed");
                return None;
            }
        }
    }
    policy.files = files.batches(step, &policy);
    let key = reuse.key(skill, step, &policy, (&mounted, &below));
    // The identities of earlier steps are specific to this machine.
    let is_shared = below.is_empty();
    let shared =
        is_shared.then(|| reuse.weak_fingerprint((skill, step), &policy, &mounted, context.redactor())).flatten();
    Some(StepKey { key, is_per_file: false, worker, shared })
}

/// Returns the use of results of workers for a step with this policy; `None` if the step runs on this machine.
async fn worker_route(
    context: &Arc<RunContext>,
    (skill, step): (&PlannedSkill, &PlannedStep),
    (policy, files): (&Policy, &StepFiles),
    (mounted, below): (&[MountedDirectory], &[Sha256Hex]),
) -> Option<WorkerRoute> {
    let remote = context.remote.get().filter(|remote| remote.executes(step))?;
    let reuse = context.reuse.as_ref()?;
    let falls_back = remote.falls_back();
    let max_age_ms = match remote.max_result_age_ms(skill) {
        Ok(max_age_ms) => max_age_ms,
        Err(obstacle) => return Some(WorkerRoute { key: Err(obstacle), falls_back }),
    };
    let policy = &Policy { files: files.batches(step, policy), ..policy.clone() };
    // The inputs of the worker name the needed paths.
    let is_input = |mounted: &&MountedDirectory| matches!(mounted.content, MountedContent::NeededPath { .. });
    let mounted: Vec<MountedDirectory> = mounted.iter().filter(|mounted| !is_input(mounted)).cloned().collect();
    let key = match (StepOnWorker { remote, context, skill, step, policy }).inputs().await {
        Ok(inputs) => {
            let (inputs, trees) = inputs?;
            let tolerated = remote.settings.tolerated(Some(&context.host_view.tolerated));
            let key = reuse.worker_key((skill, step), policy, &tolerated, (&mounted, below));
            let programs = remote.programs_of(&inputs.platform);
            Ok(WorkerKey { key, inputs, trees, max_age_ms, programs })
        }
        // A run executes such a step on this machine.
        Err(_) if falls_back => return None,
        Err(reason) => Err(ReuseObstacle::NotSent { message: reason.to_string() }),
    };
    Some(WorkerRoute { key, falls_back })
}

/// Returns the inputs that a result of another machine with the accessed paths `set` must have; `None` if they cannot
/// be determined.
async fn shared_candidate(
    context: &Arc<RunContext>,
    shared_key: &SharedKey,
    inputs: &Arc<Option<InputFilter>>,
    set: PathSet,
) -> Option<SharedCandidate> {
    let (blocking, inputs, of_step) = (Arc::clone(context), Arc::clone(inputs), shared_key.clone());
    let look_up = move || {
        let tree = blocking.observed_tree(inputs.as_ref().as_ref())?;
        blocking.reuse.as_ref()?.shared_candidate(&of_step, &set, tree)
    };
    tokio::task::spawn_blocking(look_up).await.ok().flatten()
}

/// Searches for a result of another machine, if no stored result of this machine is valid.
async fn search_shared(
    context: &Arc<RunContext>,
    StepKey { key, shared: shared_key, .. }: &StepKey,
    inputs: &Arc<Option<InputFilter>>,
    reason: NoResult,
) -> ReuseSearch {
    let may_search = matches!(reason, NoResult::NotStored | NoResult::Changed(_) | NoResult::TooOld);
    let (Some(shared_key), Some(reuse), true) = (shared_key, &context.reuse, may_search) else {
        return ReuseSearch::Nothing(reason);
    };
    let Some(shared) = reuse.shared() else { return ReuseSearch::Nothing(reason) };
    for set in shared.path_sets(&shared_key.weak).await {
        let path_set = Sha256Hex::digest(&set.encode());
        let Some(candidate) = shared_candidate(context, shared_key, inputs, set).await else { continue };
        let expected = reuse.expected_record(&shared_key.weak, &path_set, &candidate.strong, false);
        let Some(record) = shared.record(&expected).await else { continue };
        match reuse.rechecks_shared() {
            Ok(true) => return ReuseSearch::Nothing(NoResult::Recheck),
            Ok(false) => {}
            Err(error) => return ReuseSearch::Nothing(NoResult::Unreadable(error)),
        }
        let (blocking, key) = (Arc::clone(context), key.clone());
        let adopt = move || Some(blocking.reuse.as_ref()?.adopt(&key, &candidate, record));
        if let Ok(Some(result)) = tokio::task::spawn_blocking(adopt).await {
            return ReuseSearch::Found(Arc::new(result));
        }
    }
    ReuseSearch::Nothing(reason)
}

/// Searches for results of other machines for a step with `per_file`. All returned results are valid.
async fn search_shared_files(
    context: &Arc<RunContext>,
    StepKey { key, shared: shared_key, .. }: &StepKey,
    inputs: &Arc<Option<InputFilter>>,
) -> Vec<AdoptedResult> {
    let mut found = Vec::new();
    let (Some(shared_key), Some(reuse)) = (shared_key, &context.reuse) else { return found };
    let Some(shared) = reuse.shared() else { return found };
    for set in shared.path_sets(&shared_key.weak).await {
        let path_set = Sha256Hex::digest(&set.encode());
        let Some(candidate) = shared_candidate(context, shared_key, inputs, set).await else { continue };
        let expected = reuse.expected_record(&shared_key.weak, &path_set, &candidate.strong, true);
        let records = shared.records(&expected).await;
        found.extend(records.into_iter().map(|record| AdoptedResult::new(key, &candidate, record)));
    }
    found
}

/// Searches for stored results. If a result is valid for each file separately, marks the files that have passed.
pub(crate) async fn search_result(
    context: &Arc<RunContext>,
    step_key: &StepKey,
    (skill, step): (&PlannedSkill, &PlannedStep),
    files: &mut StepFiles,
) -> ReuseSearch {
    if context.caches.mode == CacheMode::Empty && !skill.caches.is_empty() {
        return ReuseSearch::Nothing(NoResult::EmptyCaches);
    }
    let Some(WorkerRoute { key, falls_back }) = &step_key.worker else {
        return search_on_this_machine(context, step_key, (skill, step), files).await;
    };
    let of_worker = match search_of_worker(context, key).await {
        ReuseSearch::Nothing(NoResult::RecheckOnWorker) => return ReuseSearch::Nothing(NoResult::RecheckOnWorker),
        ReuseSearch::Nothing(reason) => reason,
        found => return found,
    };
    if !falls_back {
        return ReuseSearch::Nothing(of_worker);
    }
    match search_on_this_machine(context, step_key, (skill, step), files).await {
        ReuseSearch::Nothing(NoResult::Recheck) => ReuseSearch::Nothing(NoResult::Recheck),
        // The next execution takes place on a worker, so its reason is reported.
        ReuseSearch::Nothing(_) => ReuseSearch::Nothing(of_worker),
        found => found,
    }
}

/// Searches for a stored result of a worker on a blocking thread.
async fn search_of_worker(context: &Arc<RunContext>, key: &Result<WorkerKey, ReuseObstacle>) -> ReuseSearch {
    let key = match key {
        Ok(key) => key.clone(),
        Err(obstacle) => return ReuseSearch::Nothing(NoResult::Obstacle(obstacle.clone())),
    };
    let shared = Arc::clone(context);
    let search = move || shared.reuse.as_ref().map(|reuse| reuse.find_of_worker(&key));
    let found = tokio::task::spawn_blocking(search).await.ok().flatten();
    found.unwrap_or(ReuseSearch::Nothing(NoResult::NotStored))
}

/// Searches for stored results of this machine, and then of other machines.
async fn search_on_this_machine(
    context: &Arc<RunContext>,
    step_key: &StepKey,
    (skill, step): (&PlannedSkill, &PlannedStep),
    files: &mut StepFiles,
) -> ReuseSearch {
    let inputs = match context.input_filter(skill, step) {
        Ok(inputs) => Arc::new(inputs),
        Err(message) => return ReuseSearch::Nothing(NoResult::Obstacle(ReuseObstacle::NotObserved { message })),
    };
    let found = search_stored(context, step_key, &inputs, (step, files), Vec::new()).await;
    if !step_key.is_per_file {
        return match found {
            // The future of an exchange is large, and few runs have one.
            ReuseSearch::Nothing(reason) => {
                let search = Box::pin(search_shared(context, step_key, &inputs, reason));
                let found = context.cancel.run_until_cancelled(search).await;
                found.unwrap_or(ReuseSearch::Nothing(NoResult::NotStored))
            }
            found => found,
        };
    }
    let may_search = match &found {
        ReuseSearch::Found(_) => false,
        ReuseSearch::Files(_) => true,
        ReuseSearch::Nothing(reason) => {
            matches!(reason, NoResult::NotStored | NoResult::Changed(_) | NoResult::TooOld)
        }
    };
    if !may_search {
        return found;
    }
    let of_others = Box::pin(search_shared_files(context, step_key, &inputs));
    let of_others = context.cancel.run_until_cancelled(of_others).await.unwrap_or_default();
    match of_others.is_empty() {
        true => found,
        false => search_stored(context, step_key, &inputs, (step, files), of_others).await,
    }
}

/// Searches for stored results on a blocking thread. `of_others` are additional results of other machines for a step
/// with `per_file`.
async fn search_stored(
    context: &Arc<RunContext>,
    step_key: &StepKey,
    inputs: &Arc<Option<InputFilter>>,
    (step, files): (&PlannedStep, &mut StepFiles),
    of_others: Vec<AdoptedResult>,
) -> ReuseSearch {
    let (shared, key) = (Arc::clone(context), step_key.key.clone());
    let listed = step_key.is_per_file.then(|| paths_in_tree(step, files.chosen()));
    let none = || (Vec::new(), None, Vec::new());
    let seen = Arc::clone(inputs);
    let search = move || match (&shared.reuse, shared.observed_tree(seen.as_ref().as_ref()), listed) {
        (Some(reuse), Some(tree), None) => (reuse.find(&key, tree), none()),
        (Some(reuse), Some(tree), Some(listed)) => match reuse.find_files(&key, tree, &listed, &of_others) {
            Ok(PassedFiles { passed, holding, executed_at }) => {
                let origins = origins_of(&holding);
                holding.iter().for_each(|result| shared.run_reads.note_result(result));
                let found = if passed.len() == listed.len() {
                    reuse
                        .representative(holding, &executed_at, tree, &listed)
                        .map_or_else(ReuseSearch::Nothing, ReuseSearch::Found)
                } else {
                    ReuseSearch::Files(holding)
                };
                (found, (passed, Some(executed_at), origins))
            }
            Err(reason) => (ReuseSearch::Nothing(reason), none()),
        },
        _ => (ReuseSearch::Nothing(NoResult::Obstacle(ReuseObstacle::SharedTree)), none()),
    };
    let (found, (passed, executed_at, origins)) = tokio::task::spawn_blocking(search).await.unwrap_or_else(|error| {
        let message = format!("the search for a stored result failed unexpectedly: {error}");
        (ReuseSearch::Nothing(NoResult::Obstacle(ReuseObstacle::NotObserved { message })), none())
    });
    let reused = passed.into_iter().filter_map(|at| files.chosen().get(at).cloned()).collect();
    files.set_reused(reused, executed_at, origins);
    found
}

/// Returns the other machines from which these results come, each once.
fn origins_of(results: &[Arc<StoredResult>]) -> Vec<ResultOrigin> {
    let origins: BTreeSet<ResultOrigin> = results.iter().filter_map(|result| result.origin.clone()).collect();
    origins.into_iter().collect()
}

/// Returns the result of a step that is not executed, because a stored result is valid.
fn reused_step(
    context: &RunContext,
    skill: &PlannedSkill,
    step: &PlannedStep,
    (result, checked): (&StoredResult, &StepFiles),
) -> StepRun {
    let source = result.source();
    let files = result.has_files.then(|| Arc::new(ReusedFiles::new(skill, step, result, checked.leaves_out_others())));
    let batches = result.evidence.checked_files.as_ref().map_or(0, |files| files.batches);
    let mut evidence = StepEvidence {
        planned: step.clone(),
        duration_ms: 0,
        reused: Some(source),
        // The reason why the earlier execution took place on this machine does not apply to this run.
        executor: result.evidence.executor.clone().filter(|executor| matches!(executor, StepExecutor::Remote(_))),
        checked_files: checked.evidence(None).map(|now| CheckedFiles {
            batches,
            reused: 0,
            reused_executed_at: None,
            transparent_caches: Vec::new(),
            ..now
        }),
        ..result.evidence.clone()
    };
    context.redactor().redact_step(&mut evidence);
    StepRun {
        evidence,
        layer: None,
        is_known: true,
        applied: Vec::new(),
        inconclusive_reasons: Vec::new(),
        stored_as: None,
        inputs_of_files: ObservedInputs::default(),
        reused_files: files,
        must_check_all: false,
    }
}

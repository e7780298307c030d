//! Stores the result of an execution of a step for reuse, and acts on a result that turns out to be wrong.

use std::sync::Arc;

use proctor_core::decision::verdict::{InconclusiveDetail, InconclusiveReason};
use proctor_core::model::cache::{CacheTrust, TransparentCache};
use proctor_core::model::outcome::Outcome;
use proctor_core::model::plan::{PlannedSkill, PlannedStep, RelPath};
use proctor_core::record::evidence::StepEvidence;
use proctor_core::reuse::{ObservedInputs, ReuseObstacle, StoredResult, WorkerInputs};
use proctor_core::text::digest::Sha256Hex;

use crate::run::evidence_builder::describe_outcome;
use crate::run::run_context::{RunContext, TreeMounts};
use crate::shared_results::SharedDraft;
use crate::step::attempt::AttemptInputs;
use crate::step::file_selection::{StepFiles, path_in_tree};
use crate::step::reuse::shared::SharedKey;
use crate::step::reuse::worker::WorkerKey;
use crate::step::reuse::{FilesNotStored, ObservedExecution, RecordedFiles, StepReuse};

/// The use of stored results in one execution of a step.
pub(crate) struct StepReuseState {
    pub(crate) key: StepKey,
    /// The relation of the execution to a stored result that is still valid.
    pub(crate) recheck: Recheck,
    /// The earlier results of a step with `per_file` that are still valid.
    pub(crate) earlier: Vec<Arc<StoredResult>>,
}

/// The key under which the results of a step are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StepKey {
    pub(crate) key: Sha256Hex,
    /// True if the pass of each file is valid independently of the other files.
    pub(crate) is_per_file: bool,
    /// The use of results of workers; `None` if the step runs on this machine.
    pub(crate) worker: Option<WorkerRoute>,
    /// The fingerprint under which other machines store results of the step; `None` if its results are not shared.
    pub(crate) shared: Option<SharedKey>,
}

impl StepKey {
    /// Returns the key under which the result of the next execution is stored, if it runs as planned.
    pub(crate) fn of_next_execution(&self) -> &Sha256Hex {
        let worker = self.worker.as_ref().and_then(|route| route.key.as_ref().ok());
        worker.map_or(&self.key, |worker| &worker.key)
    }
}

/// The results of workers for a step that a run sends to a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WorkerRoute {
    /// The key of these results, or the rule that excludes them.
    pub(crate) key: Result<WorkerKey, ReuseObstacle>,
    /// True if this machine runs the step when the cluster does not execute it. Results of this machine are then used,
    /// too.
    pub(crate) falls_back: bool,
}

impl StepReuseState {
    /// Returns the mounts of the execution.
    pub(crate) fn mounts(&self) -> TreeMounts {
        if self.recheck == Recheck::WithEmptyCaches { TreeMounts::EmptyCaches } else { TreeMounts::All }
    }
}

/// The check of a stored result by an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recheck {
    /// The execution checks no stored result.
    No,
    /// The execution checks a stored result.
    Yes,
    /// The execution checks a stored result, and the declaration that the caches do not change it: they are empty.
    WithEmptyCaches,
    /// If the execution takes place on a worker, it checks a stored result of a worker.
    OnWorker,
}

impl Recheck {
    /// Returns whether the execution did not pass because it reached its timeout or another limit with empty caches.
    /// Such an execution neither confirms nor refutes the stored result.
    pub(crate) fn has_run_out(self, evidence: &StepEvidence) -> bool {
        let has_hit_limit = evidence.outcome == Outcome::TimedOut || !evidence.resources.limits_hit.is_empty();
        self == Self::WithEmptyCaches && has_hit_limit && !evidence.outcome.holds()
    }
}

/// An execution of a step of a skill.
pub(crate) struct StepExecution<'a> {
    pub(crate) skill: &'a PlannedSkill,
    pub(crate) evidence: &'a StepEvidence,
    /// The known inputs that determined the result.
    pub(crate) inputs: Option<AttemptInputs>,
    /// True if the step left files in the tree, which git ignores.
    pub(crate) has_files: bool,
    pub(crate) files: &'a StepFiles,
}

/// Stores the result of an execution. Returns the digest that identifies it, and a reason for an inconclusive result if
/// a stored result was wrong.
pub(crate) async fn store_result(
    context: &Arc<RunContext>,
    state: Option<StepReuseState>,
    execution: StepExecution<'_>,
) -> StoreOutcome {
    let StepExecution { skill, evidence, inputs, has_files, files } = execution;
    let passed = evidence.outcome == Outcome::Passed;
    // If the check of some files fails, the step has failed, and the other files need not be checked.
    let is_partial = passed && files.to_check().count() != files.chosen().len();
    let not_stored = || StoreOutcome { must_check_all: is_partial, ..StoreOutcome::default() };
    let (Some(StepReuseState { key, recheck, earlier }), Some(inputs)) = (state, inputs) else { return not_stored() };
    let Some(reuse) = &context.reuse else { return not_stored() };
    let trace = match inputs {
        AttemptInputs::Read(trace) => trace,
        AttemptInputs::Sent(sent) => {
            let key = key.worker.and_then(|route| route.key.ok()).filter(|_| !is_partial);
            let Some(key) = key else { return not_stored() };
            if recheck == Recheck::OnWorker && evidence.outcome.is_failure() {
                return refute(reuse, &key.key, refutation(skill, evidence, recheck));
            }
            if let Some(obstacle) = changed_paths_obstacle(context, skill).await {
                tracing::debug!(step = %evidence.planned.name, %obstacle, "not stored");
                reuse.keep_obstacle(&key.key, &obstacle);
                return not_stored();
            }
            return store_worker_result(context, key, (skill, evidence), (sent, has_files)).await;
        }
    };
    let StepKey { key, is_per_file, shared: shared_key, .. } = key;
    // Only a failure contradicts the stored result; a cancellation or a fault of the sandbox does not.
    let checks = matches!(recheck, Recheck::Yes | Recheck::WithEmptyCaches);
    if checks && evidence.outcome.is_failure() && !recheck.has_run_out(evidence) {
        return refute(reuse, &key, refutation(skill, evidence, recheck));
    }
    if let Some(obstacle) = changed_paths_obstacle(context, skill).await {
        tracing::debug!(step = %evidence.planned.name, %obstacle, "not stored");
        reuse.keep_obstacle(&key, &obstacle);
        return not_stored();
    }
    let transparent_caches = used_caches(context, skill, recheck);
    let observed = ObservedExecution { trace, has_files, transparent_caches };
    let (shared, skill) = (Arc::clone(context), skill.clone());
    let (context, evidence) = (Arc::clone(context), evidence.clone());
    let step = &evidence.planned;
    let listed =
        is_per_file.then(|| (paths_in_tree(step, files.to_check()), paths_in_tree(step, files.chosen()), earlier));
    let inputs = context.input_filter(&skill, step);
    let store = move || {
        let none = StoreOutcome { must_check_all: is_partial, ..StoreOutcome::default() };
        let Ok(inputs) = &inputs else { return none };
        let (Some(reuse), Some(tree)) = (&context.reuse, context.observed_tree(inputs.as_ref())) else { return none };
        let (mut draft, mut of_files) = (None, ObservedInputs::default());
        let stored = match &listed {
            None => reuse.record(&key, &evidence, observed, tree).map_err(FilesNotStored::Obstacle).map(|result| {
                context.run_reads.note_result(&result);
                let about = (&skill, context.redactor());
                draft = shared_key.as_ref().and_then(|shared| reuse.shared_draft(&result, shared, about, tree));
                Some(result.chain_digest())
            }),
            Some((checked, all, earlier)) => {
                let recorded = reuse.record_files(&key, &evidence, observed, tree, (checked, all, earlier));
                recorded.map(|RecordedFiles { stored_as, inputs, stored, execution }| {
                    context.run_reads.note_result(&stored);
                    let about = (&skill, context.redactor());
                    draft = shared_key.as_ref().and_then(|shared| reuse.shared_draft(&execution, shared, about, tree));
                    of_files = inputs;
                    stored_as
                })
            }
        };
        match stored {
            Ok(stored_as) => StoreOutcome { stored_as, inputs: of_files, draft, ..StoreOutcome::default() },
            Err(FilesNotStored::Obstacle(obstacle)) => {
                tracing::debug!(step = %evidence.planned.name, %obstacle, "not stored");
                // Without a record, nothing shows that the files are independent.
                none
            }
            Err(FilesNotStored::Dependence(dependence)) => {
                tracing::debug!(step = %evidence.planned.name, "{}", dependence.phrase());
                reuse.refute_per_file(&key, &dependence);
                none
            }
        }
    };
    let mut outcome = tokio::task::spawn_blocking(store)
        .await
        .unwrap_or_else(|_| StoreOutcome { must_check_all: is_partial, ..StoreOutcome::default() });
    if let (Some(draft), Some(exchange)) = (outcome.draft.take(), shared.reuse.as_ref().and_then(StepReuse::shared)) {
        Box::pin(exchange.publish(draft)).await;
    }
    outcome
}

/// Returns why no result is stored if a step of the skill has changed a needed path: the effect of its stored result
/// would be different.
async fn changed_paths_obstacle(context: &Arc<RunContext>, skill: &PlannedSkill) -> Option<ReuseObstacle> {
    match context.changed_needed_paths(skill).await {
        Ok(paths) if paths.is_empty() => None,
        Ok(paths) => Some(ReuseObstacle::ChangedPaths { paths }),
        Err(message) => Some(ReuseObstacle::NotObserved { message }),
    }
}

/// Stores the result of an execution on a worker that got `sent`.
async fn store_worker_result(
    context: &Arc<RunContext>,
    key: WorkerKey,
    (skill, evidence): (&PlannedSkill, &StepEvidence),
    (sent, has_files): (Box<WorkerInputs>, bool),
) -> StoreOutcome {
    let (context, skill, evidence) = (Arc::clone(context), skill.clone(), evidence.clone());
    let store = move || {
        let stored = context.reuse.as_ref()?.record_of_worker(&key, &evidence, has_files, (&skill, &sent));
        let log = |obstacle: &ReuseObstacle| tracing::debug!(step = %evidence.planned.name, %obstacle, "not stored");
        Some(stored.inspect_err(log).ok()?.chain_digest())
    };
    let stored_as = tokio::task::spawn_blocking(store).await.ok().flatten();
    StoreOutcome { stored_as, ..StoreOutcome::default() }
}

/// Excludes a step from reuse, because an execution contradicts a stored result.
fn refute(reuse: &StepReuse, key: &Sha256Hex, reason: String) -> StoreOutcome {
    reuse.distrust(key, &reason);
    let doubt = Some(InconclusiveReason::Internal.with_message(reason));
    StoreOutcome { doubt, ..StoreOutcome::default() }
}

/// Returns the caches that an execution used, each with the scope of its content.
fn used_caches(context: &RunContext, skill: &PlannedSkill, recheck: Recheck) -> Vec<TransparentCache> {
    let trust = |path: &RelPath| match recheck {
        Recheck::WithEmptyCaches => CacheTrust::None,
        Recheck::No | Recheck::Yes | Recheck::OnWorker => context.caches.trust(&skill.name, path),
    };
    skill.caches.iter().map(|path| TransparentCache { path: path.clone(), trust: trust(path) }).collect()
}

/// Returns the reason why a step is not reused any more: an execution contradicts the stored result.
fn refutation(skill: &PlannedSkill, evidence: &StepEvidence, recheck: Recheck) -> String {
    let (step, outcome) = (&evidence.planned.name, describe_outcome(evidence.outcome));
    let (with, remedy) = match recheck {
        Recheck::WithEmptyCaches => {
            let caches = skill.caches.iter().map(|path| format!("`{path}`")).collect::<Vec<_>>().join(", ");
            (" with empty caches", format!("remove `transparent: true` from {caches}"))
        }
        Recheck::No | Recheck::Yes => ("", "report this".to_owned()),
        Recheck::OnWorker => (" on a worker", "compare the programs of both workers in the evidence".to_owned()),
    };
    format!(
        "according to a stored result, `{step}` passes with these inputs, but it {outcome}{with}; the step is not reused any \
         more; {remedy}, or declare the skill with `determinism: D2`"
    )
}

/// The result of storing a result.
#[derive(Debug, Default)]
pub(crate) struct StoreOutcome {
    /// The digest that identifies the stored result; `None` if it was not stored.
    pub(crate) stored_as: Option<Sha256Hex>,
    /// The inputs of the stored result, if it is one of a step with `per_file`.
    pub(crate) inputs: ObservedInputs,
    /// The reason for an inconclusive result, if a stored result was wrong.
    pub(crate) doubt: Option<InconclusiveDetail>,
    /// True if earlier results of the other files cannot be used, so all files have to be checked.
    pub(crate) must_check_all: bool,
    /// The execution for other machines.
    draft: Option<SharedDraft>,
}

pub(crate) fn paths_in_tree<'a>(step: &PlannedStep, files: impl IntoIterator<Item = &'a Vec<u8>>) -> Vec<Vec<u8>> {
    files.into_iter().map(|file| path_in_tree(&step.workdir, file)).collect()
}

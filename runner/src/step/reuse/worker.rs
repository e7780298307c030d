//! Uses and stores the results of steps that ran on workers of a cluster.

use std::sync::Arc;

use proctor_core::model::cache::{CacheTrust, TransparentCache};
use proctor_core::model::enforcement::Tolerated;
use proctor_core::record::evidence::WorkerProgram;
use proctor_core::reuse::{MountedDirectory, WorkerChange, WorkerInputs, worker_result_obstacle};
use proctor_remote::MerkleTree;
use proctor_sandbox::agent::{AgentCommand, AgentRequest};

use super::{
    NoResult, PlannedSkill, PlannedStep, Policy, RecordedInputs, ReuseObstacle, ReuseSearch, Sha256Hex, StepEvidence,
    StepReuse, StoredResult, is_trace_variable,
};
use crate::remote_steps::{GitTree, list_tree};

/// The part of a git directory that contains objects.
const GIT_OBJECTS: &str = "objects";

/// The identity of the worker results that apply to a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WorkerKey {
    /// The key of the step.
    pub(crate) key: Sha256Hex,
    /// The inputs that a worker gets for the step.
    pub(crate) inputs: WorkerInputs,
    /// The trees in these inputs.
    pub(crate) trees: WorkerTrees,
    /// The maximum age of a result, in milliseconds.
    pub(crate) max_age_ms: u64,
    /// The programs that such workers have reported in this run.
    pub(crate) programs: Vec<WorkerProgram>,
}

/// The trees that a worker gets for a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WorkerTrees {
    pub(crate) tree: Arc<MerkleTree>,
    pub(crate) git: Option<Arc<GitTree>>,
}

impl StepReuse {
    /// Returns the key under which the results of workers are stored. `tolerated` may be missing on workers, and `below`
    /// stands for the earlier steps whose files the step sees.
    pub(crate) fn worker_key(
        &self,
        (skill, step): (&PlannedSkill, &PlannedStep),
        policy: &Policy,
        tolerated: &Tolerated,
        below: (&[MountedDirectory], &[Sha256Hex]),
    ) -> Sha256Hex {
        let mut identity = self.identity(skill, step, policy, below);
        identity.tolerated = tolerated;
        identity.worker_key(self.results.secret())
    }

    /// Returns a digest of a request to the agent, without the parts that differ in each run or that the key of the step
    /// contains: the nonce, the trace of the run, and the files of earlier steps.
    pub(crate) fn request_digest(&self, request: &AgentRequest) -> Sha256Hex {
        let untraced = |command: &AgentCommand| {
            let mut command = command.clone();
            command.env.retain(|name, _| !is_trace_variable(name));
            command
        };
        let request = AgentRequest {
            nonce: String::new(),
            layers: Vec::new(),
            step: untraced(&request.step),
            checks: request.checks.iter().map(untraced).collect(),
            ..request.clone()
        };
        // Serializing these types cannot fail.
        let request = serde_json::to_vec(&request).unwrap_or_default();
        Sha256Hex::digest(&[self.results.secret(), request.as_slice()].concat())
    }

    /// Searches for a stored result of a worker that got the same inputs.
    pub(crate) fn find_of_worker(&self, worker: &WorkerKey) -> ReuseSearch {
        match self.search_of_worker(worker) {
            Ok(result) => ReuseSearch::Found(result),
            Err(reason) => ReuseSearch::Nothing(reason),
        }
    }

    fn search_of_worker(&self, worker: &WorkerKey) -> Result<Arc<StoredResult>, NoResult> {
        let refusal = |result: &StoredResult| {
            // A result that does not name its worker is not used for any worker.
            let execution = result.evidence.remote_execution().filter(|execution| execution.trusted);
            let Some((inputs, execution)) = result.worker.as_ref().zip(execution) else {
                return Some(NoResult::NotStored);
            };
            let change = inputs.first_change(&worker.inputs).map(|change| self.with_difference(change, inputs, worker));
            let change = change.map(NoResult::ChangedForWorkers);
            let program = || execution.worker.first_changed_program(&worker.programs);
            let change = change.or_else(|| Some(NoResult::ChangedProgram(program()?.to_owned())));
            change.or_else(|| self.is_dated(result, worker.max_age_ms).then_some(NoResult::TooOldOfWorkers))
        };
        let newest = self.holding_results(&worker.key, refusal, |_| true)?.swap_remove(0);
        self.mark_used(std::slice::from_ref(&newest));
        if self.is_chosen_for_recheck()? { Err(NoResult::RecheckOnWorker) } else { Ok(newest) }
    }

    /// Adds the first path that differs, if the request is a preview.
    fn with_difference(&self, change: WorkerChange, stored: &WorkerInputs, now: &WorkerKey) -> WorkerChange {
        if !self.request.is_preview {
            return change;
        }
        match change {
            WorkerChange::Tree(None) => {
                let earlier = self.results.tree(&stored.tree);
                WorkerChange::Tree(earlier.and_then(|earlier| {
                    let current = list_tree(&now.trees.tree);
                    earlier.first_difference(&current, None)
                }))
            }
            WorkerChange::Git(None) => {
                let earlier = stored.git.as_ref().and_then(|git| self.results.tree(git));
                let current = now.trees.git.as_ref().map(|git| &git.listing);
                WorkerChange::Git(earlier.zip(current).and_then(|(earlier, current)| {
                    // The names of packs tell the user less than the names of other files, so the other files come
                    // first.
                    let of_others = earlier.first_difference(current, Some(GIT_OBJECTS));
                    of_others.or_else(|| earlier.first_difference(current, None))
                }))
            }
            change => change,
        }
    }

    /// Stores the lists of the trees that a worker got. They are only used to name a later difference.
    fn keep_trees(&self, WorkerKey { inputs, trees, .. }: &WorkerKey) {
        let of_git = inputs.git.as_ref().zip(trees.git.as_ref());
        let kept = self.results.keep_tree(&inputs.tree, || list_tree(&trees.tree));
        let kept = kept.and_then(|()| match of_git {
            Some((identity, git)) => self.results.keep_tree(identity, || git.listing.clone()),
            None => Ok(()),
        });
        if let Err(error) = kept {
            tracing::debug!(%error, "the lists of the trees of a worker cannot be stored");
        }
    }

    /// Stores the result of an execution on a worker that got `sent`, if it can be reused.
    ///
    /// # Errors
    /// The reason why it is not stored.
    pub(crate) fn record_of_worker(
        &self,
        worker: &WorkerKey,
        evidence: &StepEvidence,
        has_files: bool,
        (skill, sent): (&PlannedSkill, &WorkerInputs),
    ) -> Result<StoredResult, ReuseObstacle> {
        let recorded = self.try_record_of_worker(worker, evidence, has_files, (skill, sent));
        recorded.inspect_err(|obstacle| self.keep_obstacle(&worker.key, obstacle))
    }

    fn try_record_of_worker(
        &self,
        worker @ WorkerKey { key, inputs, .. }: &WorkerKey,
        evidence: &StepEvidence,
        has_files: bool,
        (skill, sent): (&PlannedSkill, &WorkerInputs),
    ) -> Result<StoredResult, ReuseObstacle> {
        if let Some(obstacle) = worker_result_obstacle(evidence) {
            return Err(obstacle);
        }
        if let Some(change) = inputs.first_change(sent) {
            return Err(ReuseObstacle::NotObserved { message: format!("{change} before the step ran") });
        }
        // Workers start with empty caches.
        let empty = |path| TransparentCache { path, trust: CacheTrust::None };
        let caches = skill.caches.iter().cloned().map(empty).collect();
        let mut result = self.new_result(key, evidence, has_files, (RecordedInputs::default(), Vec::new(), caches));
        result.worker = Some(sent.clone());
        result.inputs_sha256 = result.digest_inputs();
        self.store(&result)?;
        self.keep_trees(worker);
        Ok(result)
    }
}

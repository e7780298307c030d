//! Uses and stores the passes of individual files, for steps with `per_file`.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use proctor_core::model::cache::merge_transparent_caches;
use proctor_core::model::drift::Entry;
use proctor_core::model::trace::DamagedTrace;
use proctor_core::record::evidence::{FileDependence, StepEvidence, escape_output};
use proctor_core::reuse::{
    CurrentInputs as _, ObservedInputs, PassedFile, ReuseObstacle, StoredResult, chain_digest, result_obstacle,
};
use proctor_core::text::digest::Sha256Hex;

use super::shared::AdoptedResult;
use super::{NoResult, ObservedExecution, StepReuse, replaced_image};
use crate::step::tree_inputs::{ObservedTree, TreeInputs};

/// The files of a step with `per_file` that need not be checked again.
#[derive(Debug)]
pub(crate) struct PassedFiles {
    /// The positions of these files in the list of files.
    pub(crate) passed: Vec<usize>,
    /// The valid results, newest first; at least one.
    pub(crate) holding: Vec<Arc<StoredResult>>,
    /// The end of the oldest execution from which the passes can come.
    pub(crate) executed_at: String,
}

/// The files of a step with `per_file` that an execution checked, all of its files, and the earlier valid results.
type CheckedFiles<'a> = (&'a [Vec<u8>], &'a [Vec<u8>], &'a [Arc<StoredResult>]);

/// The stored result of a step with `per_file`.
#[derive(Debug)]
pub(crate) struct RecordedFiles {
    /// The digest that identifies the files that the step leaves when it checks all of its files; `None` if one of them
    /// is not a regular file.
    pub(crate) stored_as: Option<Sha256Hex>,
    /// The inputs of the checks of all files.
    pub(crate) inputs: ObservedInputs,
    /// The stored result.
    pub(crate) stored: StoredResult,
    /// The result of this execution alone, without earlier passes.
    pub(crate) execution: StoredResult,
}

/// The reason why the result of a step with `per_file` is not stored.
#[derive(Debug)]
pub(crate) enum FilesNotStored {
    /// A rule forbids it, or the inputs are not known.
    Obstacle(ReuseObstacle),
    /// The step read a file that it was not to check, so that `per_file` is wrong.
    Dependence(FileDependence),
}

impl StepReuse {
    /// Finds the files of a step with `per_file` that have passed and need not be checked again. `files` are the paths
    /// in the tree; the result contains the positions of the files that have passed. `of_others` are valid results of
    /// other machines. Those that confirm a file are stored on this machine.
    ///
    /// # Errors
    /// The reason why no result is used.
    pub(crate) fn find_files(
        &self,
        key: &Sha256Hex,
        tree: ObservedTree<'_>,
        files: &[Vec<u8>],
        of_others: &[AdoptedResult],
    ) -> Result<PassedFiles, NoResult> {
        let inputs = TreeInputs(tree);
        let now: Vec<Option<Entry>> = files.iter().map(|path| inputs.covered(path)).collect();
        // The positions of the files that no result confirms yet.
        let mut open: Vec<usize> = (0..files.len()).collect();
        let refusal = |result: &StoredResult| self.refusal(result, &inputs);
        let mut confirm = |result: &StoredResult| {
            let before = open.len();
            // Both lists are sorted by path. Files out of order would only be checked again.
            let mut known = result.files.iter().peekable();
            open.retain(|at| {
                let path = files[*at].as_slice();
                while known.next_if(|file| file.path.as_bytes() < path).is_some() {}
                !known.peek().is_some_and(|file| {
                    file.path.as_bytes() == path && now[*at].as_ref().is_some_and(|now| file.has_content(now))
                })
            });
            (open.len() < before, open.is_empty())
        };
        let mut unused = HashSet::new();
        let found = self.holding_results(key, refusal, |result| {
            let (confirms, are_enough) = confirm(result);
            if result.origin.is_some() && !confirms {
                unused.insert(result.chain_digest());
            }
            are_enough
        });
        let mut holding = match found {
            // Results of other machines can be valid even if no stored result is.
            Err(NoResult::NotStored | NoResult::Changed(_) | NoResult::TooOld) if !of_others.is_empty() => Vec::new(),
            found => found?,
        };
        if !unused.is_empty() {
            holding.retain(|result| !unused.contains(&result.chain_digest()));
        }
        for adopted in of_others.iter().filter(|adopted| confirm(&adopted.result).0) {
            self.keep_adopted(adopted);
            holding.push(Arc::new(adopted.result.clone()));
        }
        if holding.is_empty() {
            return Err(NoResult::NotStored);
        }
        self.mark_used(&holding);
        if self.is_chosen_for_recheck()? {
            return Err(NoResult::Recheck);
        }
        let mut open = open.into_iter().peekable();
        let passed = (0..files.len()).filter(|at| open.next_if_eq(at).is_none()).collect();
        let oldest = holding.iter().min_by_key(|result| result.executed_ms);
        let executed_at = oldest.map(|result| result.executed_at.clone()).unwrap_or_default();
        Ok(PassedFiles { passed, holding, executed_at })
    }

    /// Stores the result of an execution of a step with `per_file` over the files `checked`, together with the earlier
    /// valid results.
    ///
    /// # Errors
    /// The reason why the result is not stored: [`FilesNotStored::Dependence`] if the result for a file depends on
    /// another file of `all`.
    pub(crate) fn record_files(
        &self,
        key: &Sha256Hex,
        evidence: &StepEvidence,
        execution: ObservedExecution,
        tree: ObservedTree<'_>,
        files: CheckedFiles<'_>,
    ) -> Result<RecordedFiles, FilesNotStored> {
        let recorded = self.try_record_files(key, evidence, execution, tree, files);
        recorded.inspect_err(|reason| {
            if let FilesNotStored::Obstacle(obstacle) = reason {
                self.keep_obstacle(key, obstacle);
            }
        })
    }

    fn try_record_files(
        &self,
        key: &Sha256Hex,
        evidence: &StepEvidence,
        execution: ObservedExecution,
        tree: ObservedTree<'_>,
        (checked, all, earlier): CheckedFiles<'_>,
    ) -> Result<RecordedFiles, FilesNotStored> {
        let not_observed = |message: String| FilesNotStored::Obstacle(ReuseObstacle::NotObserved { message });
        if let Some(obstacle) = result_obstacle(evidence) {
            return Err(FilesNotStored::Obstacle(obstacle));
        }
        let ObservedExecution { trace, mut has_files, mut transparent_caches } = execution;
        let trace = self.require_trace(trace).map_err(not_observed)?;
        let own: BTreeSet<&[u8]> = checked.iter().map(Vec::as_slice).collect();
        let listed: BTreeSet<&[u8]> = all.iter().map(Vec::as_slice).collect();
        let (observed, images) = self.recorded_inputs(&trace, tree).map_err(not_observed)?;
        if let Some(other) = observed.read_files().find(|path| listed.contains(path) && !own.contains(path)) {
            let checked = checked.iter().map(|path| escape_output(path));
            return Err(FilesNotStored::Dependence(FileDependence::new(checked, escape_output(other))));
        }
        let invalid = |error: DamagedTrace| not_observed(error.to_string());
        let mut inputs = observed.without_files(&own).map_err(invalid)?;
        let source = TreeInputs(tree);
        let mut files: BTreeSet<PassedFile> = checked.iter().filter_map(|path| source.file(path)).collect();
        let of_execution =
            ((inputs.clone(), images.clone()), files.iter().cloned().collect(), transparent_caches.clone());
        let execution = self.new_result(key, evidence, has_files, of_execution);
        // The earlier results were valid before the execution, which may have seen a later change.
        let of_all = all_inputs(&inputs, earlier).map_err(invalid)?;
        self.require_unchanged(&of_all, tree).map_err(not_observed)?;
        if let Some(replaced) = earlier.iter().find_map(|result| replaced_image(&result.images, &result.inputs)) {
            return Err(not_observed(replaced.to_string()));
        }
        let stored_as = passed_files(&source, all).map(|files| chain_digest(key, &of_all.digest(), &files));
        // Results of other machines are stored separately, because they are valid only while their keys are trusted.
        let earlier: Vec<&Arc<StoredResult>> = earlier.iter().filter(|result| result.origin.is_none()).collect();
        for result in &earlier {
            inputs = inputs.union(&result.inputs).map_err(invalid)?;
            files.extend(result.files.iter().cloned());
            has_files |= result.has_files;
            merge_transparent_caches(&mut transparent_caches, &result.transparent_caches);
        }
        // Passes of files that the current tree does not contain are dropped.
        files.retain(|file| source.file(file.path.as_bytes()).as_ref() == Some(file));
        let files = files.into_iter().collect();
        let mut result = self.new_result(key, evidence, has_files, ((inputs, images), files, transparent_caches));
        earlier.iter().for_each(|earlier| result.add_images(&earlier.images));
        // The passes of the other files keep their age.
        earlier.iter().for_each(|earlier| result.keep_older_age(earlier));
        self.store(&result).map_err(FilesNotStored::Obstacle)?;
        Ok(RecordedFiles { stored_as, inputs: of_all, stored: result, execution })
    }

    /// Returns the result that represents all results of a step with `per_file`, which together confirm all of its
    /// `files`: the first one of another machine, or else the newest one. It has the caches of all of them, and ends at
    /// `executed_at`. If one of them left files, it has the inputs and the files of all, since these determine what the
    /// step leaves.
    ///
    /// # Errors
    /// The results cannot be combined.
    pub(crate) fn representative(
        &self,
        mut holding: Vec<Arc<StoredResult>>,
        executed_at: &str,
        tree: ObservedTree<'_>,
        files: &[Vec<u8>],
    ) -> Result<Arc<StoredResult>, NoResult> {
        let position = holding.iter().position(|result| result.origin.is_some()).unwrap_or(0);
        if position >= holding.len() {
            return Err(NoResult::NotStored);
        }
        let inputs = match holding.iter().any(|result| result.has_files) {
            true => Some(all_inputs(&holding[0].inputs, &holding[1..]).map_err(|_| NoResult::NotStored)?),
            false => None,
        };
        let mut chosen = holding.swap_remove(position);
        if holding.is_empty() && inputs.is_none() && chosen.executed_at == executed_at {
            return Ok(chosen);
        }
        let changed = Arc::make_mut(&mut chosen);
        executed_at.clone_into(&mut changed.executed_at);
        for other in holding {
            merge_transparent_caches(&mut changed.transparent_caches, &other.transparent_caches);
        }
        if let Some(inputs) = inputs {
            changed.has_files = true;
            changed.inputs_sha256 = inputs.digest();
            changed.inputs = inputs;
            changed.files = passed_files(&TreeInputs(tree), files).ok_or(NoResult::NotStored)?;
        }
        Ok(chosen)
    }
}

/// Returns the inputs of an execution and of earlier results.
fn all_inputs(inputs: &ObservedInputs, earlier: &[Arc<StoredResult>]) -> Result<ObservedInputs, DamagedTrace> {
    earlier.iter().try_fold(inputs.clone(), |inputs, result| inputs.union(&result.inputs))
}

/// Returns the files of a tree as they are now; `None` if one of them is not a regular file.
fn passed_files(source: &TreeInputs<'_>, files: &[Vec<u8>]) -> Option<Vec<PassedFile>> {
    files.iter().map(|path| source.file(path)).collect()
}

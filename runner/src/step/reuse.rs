//! Uses the stored results of steps, and stores new ones.
//!
//! A step that may be reused runs on a view, which records what it reads of the host, the private copy of the tree
//! included. After a pass, [`StepReuse::record`] stores these inputs with the evidence. Before the next execution,
//! [`StepReuse::find`] compares the stored inputs with the current ones. `shared.rs` uses results of other machines,
//! and `worker.rs` uses results of the workers of a cluster.

mod no_result;
mod per_file;
pub(crate) mod shared;
pub(crate) mod worker;

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proctor_core::model::cache::TransparentCache;
use proctor_core::model::names::RunId;
use proctor_core::model::plan::{PlannedSkill, PlannedStep};
use proctor_core::model::trace::{AccessTrace, AccessedPath, NoTrace, PathState};
use proctor_core::record::evidence::{FileDependence, StepEvidence, escape_output};
use proctor_core::reuse::{
    ImageMount, InheritedAttributes, MachineFacts, MountedDirectory, ObservedInputs, PassedFile, ReuseObstacle,
    ShownTool, StepIdentity, StoredResult, plan_obstacle, result_obstacle,
};
use proctor_core::spec::ReuseSettings;
use proctor_core::telemetry::is_trace_variable;
use proctor_core::text::digest::Sha256Hex;
use proctor_sandbox::{Policy, ViewTrace};

pub(crate) use no_result::NoResult;
pub(crate) use per_file::{FilesNotStored, PassedFiles, RecordedFiles};

use crate::clock::Clock;
use crate::error::EngineError;
use crate::shared_results::SharedRun;
use crate::step::host_stamps::{HostDevices, replaced_image, require_settled};
use crate::step::process_facts::{OWN_PROGRAM, inherited_attributes, machine_facts, program_identity};
use crate::step::recent_observations::{RecentInputs, RecentObservations};
use crate::step::stored_reports::StoredReports;
use crate::step::tree_inputs::{ObservedTree, TreeInputs};
use crate::store::StoreError;
use crate::store::directory::{Directory, random_u64};
use crate::store::private_copies::MIRRORS_DIR;
use crate::store::results::{DecodedResults, MAX_AGE, StepResults, StoreDecision};

/// Largest accepted difference between the clock and the time of a result in the future, in milliseconds.
const MAX_CLOCK_STEP_MS: u64 = 5 * 60 * 1_000;
const SECONDS_PER_DAY: u64 = 24 * 60 * 60;

/// The reuse of results in one run.
#[derive(Debug)]
pub(crate) struct StepReuse {
    results: StepResults,
    recent: RecentObservations,
    reports: StoredReports,
    settings: ReuseSettings,
    request: ReuseRequest,
    proctor: String,
    machine: MachineFacts,
    inherited: InheritedAttributes,
    /// User and group of steps inside the sandbox.
    user: (u32, u32),
    /// The state directory.
    state: PathBuf,
    clock: Clock,
    /// The exchange of results with other machines; `None` without a remote cache.
    shared: Option<SharedRun>,
    /// True if this run has stored a result.
    has_stored: AtomicBool,
    /// True if a file of the host changed while a step ran, or shortly before.
    has_young_inputs: AtomicBool,
}

/// The request of a run.
#[derive(Debug, Clone)]
pub(crate) struct ReuseRequest {
    /// The run.
    pub(crate) run_id: RunId,
    /// True if stored results are used. New results are always stored.
    pub(crate) uses_stored: bool,
    /// True if nothing is executed, so no result is checked by an execution.
    pub(crate) is_preview: bool,
}

impl ReuseRequest {
    /// Creates the request of a run.
    pub(crate) fn new(run_id: &RunId, uses_stored: bool) -> Self {
        Self { run_id: run_id.clone(), uses_stored, is_preview: false }
    }
}

/// The settings of a run that its reuse depends on.
pub(crate) struct ReuseConfig<'a> {
    pub(crate) settings: ReuseSettings,
    pub(crate) request: ReuseRequest,
    /// Maximum size of all stored results, in bytes on disk.
    pub(crate) max_store_bytes: u64,
    /// The program that sets up sandboxes.
    pub(crate) helper: &'a Path,
    pub(crate) user: (u32, u32),
    pub(crate) clock: Clock,
    /// The exchange of results with other machines; `None` without a remote cache.
    pub(crate) shared: Option<SharedRun>,
    /// The stored results that this process has decoded.
    pub(crate) decoded: Arc<DecodedResults>,
}

/// The facts about an execution of a step that are not part of its evidence.
#[derive(Debug)]
pub(crate) struct ObservedExecution {
    /// The accesses of the step.
    pub(crate) trace: ViewTrace,
    /// True if the step left files in the tree, which git ignores.
    pub(crate) has_files: bool,
    /// The caches that the step used.
    pub(crate) transparent_caches: Vec<TransparentCache>,
}

/// The last executions of a step.
#[derive(Debug)]
pub(crate) struct LastResults {
    /// The newest stored result.
    pub(crate) newest: Option<Arc<StoredResult>>,
    /// The reason why the result of the last execution was not stored; `None` if it was stored.
    pub(crate) not_stored: Option<String>,
}

/// The inputs of an execution, and the mounts of the file system images that contain some of them.
type RecordedInputs = (ObservedInputs, Vec<ImageMount>);

/// The search for a stored result.
#[derive(Debug)]
pub(crate) enum ReuseSearch {
    /// A result is valid.
    Found(Arc<StoredResult>),
    /// These results of a step with `per_file` are valid, but not for all of its files.
    Files(Vec<Arc<StoredResult>>),
    /// No result is used.
    Nothing(NoResult),
}

impl StepReuse {
    /// Opens the stored results of a state directory.
    ///
    /// # Errors
    /// The directory cannot be written, or a program of Proctor cannot be examined.
    pub(crate) fn open(state: &Directory, state_path: &Path, config: ReuseConfig<'_>) -> Result<Self, EngineError> {
        let (helper, itself) = (program_identity(config.helper)?, program_identity(Path::new(OWN_PROGRAM))?);
        Ok(Self {
            results: StepResults::open(state, config.max_store_bytes)?.with_decoded(config.decoded),
            recent: RecentObservations::default(),
            reports: StoredReports::open(state)?,
            settings: config.settings,
            request: config.request,
            proctor: format!("{} {helper} {itself}", env!("CARGO_PKG_VERSION")),
            machine: machine_facts(),
            inherited: inherited_attributes(),
            user: config.user,
            state: state_path.to_owned(),
            clock: config.clock,
            shared: config.shared,
            has_stored: AtomicBool::new(false),
            has_young_inputs: AtomicBool::new(false),
        })
    }

    /// Returns whether stored results are used, in which case a step need not be executed.
    pub(crate) fn uses_stored(&self) -> bool {
        self.request.uses_stored
    }

    /// Returns whether a step runs on a view.
    pub(crate) fn observes(&self, skill: &PlannedSkill, step: &PlannedStep) -> bool {
        plan_obstacle(skill, step).is_none()
    }

    /// Returns the key of a step with this policy and these mounts in the tree. `below` stands for the earlier steps whose
    /// files it sees.
    pub(crate) fn key(
        &self,
        skill: &PlannedSkill,
        step: &PlannedStep,
        policy: &Policy,
        below: (&[MountedDirectory], &[Sha256Hex]),
    ) -> Sha256Hex {
        self.identity(skill, step, policy, below).key(self.results.secret())
    }

    fn identity<'a>(
        &self,
        skill: &'a PlannedSkill,
        step: &'a PlannedStep,
        policy: &'a Policy,
        (mounts, below): (&'a [MountedDirectory], &'a [Sha256Hex]),
    ) -> StepIdentity<'a> {
        let text = |path: &Path| escape_output(path.as_os_str().as_bytes());
        let env = policy.env.iter().filter(|(name, _)| !is_trace_variable(name));
        StepIdentity {
            proctor: self.proctor.clone(),
            skill: (skill.name.as_str(), skill.determinism),
            step,
            command: (policy.argv.words(), policy.files.digest()),
            env: env.map(|(name, value)| (name.clone(), value.clone())).collect(),
            repository: text(&policy.repo),
            user: (self.user.0, self.user.1, text(&policy.home)),
            hidden: policy.hide.iter().map(|path| text(path)).collect(),
            tools: policy
                .tools
                .iter()
                .map(|tool| ShownTool {
                    source: text(&tool.source),
                    at: text(&tool.at),
                    kind: format!("{:?} {:?}", tool.kind, tool.rights),
                })
                .collect(),
            tolerated: &policy.tolerated,
            machine: self.machine.clone(),
            inherited: self.inherited.clone(),
            mounts,
            below,
        }
    }

    /// Returns why results of a step are never used; `None` if they can be.
    pub(crate) fn obstacle(skill: &PlannedSkill, step: &PlannedStep) -> Option<ReuseObstacle> {
        plan_obstacle(skill, step)
    }

    /// Returns the newest stored result of a key, and the reason why the result of the last execution was not stored.
    ///
    /// # Errors
    /// The results cannot be read.
    pub(crate) fn last_results(&self, key: &Sha256Hex) -> Result<LastResults, StoreError> {
        let newest = self.results.candidates(key)?.next().transpose()?;
        Ok(LastResults { newest, not_stored: self.results.not_stored(key)? })
    }

    /// Searches for a stored result whose inputs are unchanged.
    pub(crate) fn find(&self, key: &Sha256Hex, tree: ObservedTree<'_>) -> ReuseSearch {
        match self.search(key, tree) {
            Ok(result) => ReuseSearch::Found(result),
            Err(reason) => ReuseSearch::Nothing(reason),
        }
    }

    fn search(&self, key: &Sha256Hex, tree: ObservedTree<'_>) -> Result<Arc<StoredResult>, NoResult> {
        let inputs = TreeInputs(tree);
        let newest = self.holding_results(key, |result| self.refusal(result, &inputs), |_| true)?.swap_remove(0);
        self.mark_used(std::slice::from_ref(&newest));
        if self.is_chosen_for_recheck()? { Err(NoResult::Recheck) } else { Ok(newest) }
    }

    /// Returns why an observed result is not valid; `None` if its inputs are unchanged.
    fn refusal(&self, result: &StoredResult, inputs: &TreeInputs<'_>) -> Option<NoResult> {
        if result.worker.is_some() {
            return Some(NoResult::NotStored);
        }
        let dated = self.is_dated(result, u64::MAX).then_some(NoResult::TooOld);
        let inputs = RecentInputs { inputs, recent: &self.recent };
        let replaced = || replaced_image(&result.images, &result.inputs);
        dated.or_else(|| result.inputs.first_change(&inputs).or_else(replaced).map(NoResult::Changed))
    }

    /// Returns the valid results, which have no `refusal`, newest first; at least one. Stops the search as soon as
    /// `are_enough` returns true.
    fn holding_results(
        &self,
        key: &Sha256Hex,
        refusal: impl Fn(&StoredResult) -> Option<NoResult>,
        mut are_enough: impl FnMut(&StoredResult) -> bool,
    ) -> Result<Vec<Arc<StoredResult>>, NoResult> {
        if !self.request.uses_stored {
            return Err(NoResult::NotWanted);
        }
        if let Some(reason) = self.results.distrust(key)? {
            return Err(NoResult::Distrusted(reason));
        }
        let (mut holding, mut miss) = (Vec::new(), NoResult::NotStored);
        for result in self.results.candidates(key)? {
            let result = result?;
            if !self.trusts_origin(&result) {
                continue;
            }
            let lost_report = || self.reports.first_missing(&result.evidence).map(NoResult::ReportRemoved);
            let reason = match refusal(&result).or_else(lost_report) {
                Some(reason) => reason,
                None => {
                    let ends = are_enough(&result);
                    holding.push(result);
                    if ends {
                        break;
                    }
                    continue;
                }
            };
            // The newest result is the nearest one.
            if matches!(miss, NoResult::NotStored) {
                miss = reason;
            }
        }
        if holding.is_empty() { Err(miss) } else { Ok(holding) }
    }

    fn is_chosen_for_recheck(&self) -> Result<bool, StoreError> {
        Ok(!self.request.is_preview && random_u64()? % 100 < u64::from(self.settings.recheck_percent))
    }

    /// Returns whether this run has stored a result.
    pub(crate) fn has_stored(&self) -> bool {
        self.has_stored.load(Ordering::Relaxed)
    }

    /// Returns whether a file of the host changed while a step of this run executed, or shortly before, so that it is not
    /// known which of its states the step saw.
    pub(crate) fn has_young_inputs(&self) -> bool {
        self.has_young_inputs.load(Ordering::Relaxed)
    }

    /// Notes the reason why a file of the host is too young.
    fn note_young(&self, reason: String) -> String {
        self.has_young_inputs.store(true, Ordering::Relaxed);
        reason
    }

    /// Returns the trace of an execution.
    fn require_trace(&self, trace: ViewTrace) -> Result<AccessTrace, String> {
        trace.map_err(|reason| match reason {
            NoTrace::Changed { .. } | NoTrace::Failed { .. } => self.note_young(reason.to_string()),
            _ => reason.to_string(),
        })
    }

    fn store(&self, result: &StoredResult) -> Result<(), ReuseObstacle> {
        match self.results.store(result) {
            Ok(StoreDecision::Stored) => {
                self.has_stored.store(true, Ordering::Relaxed);
                Ok(())
            }
            Ok(StoreDecision::TooLarge { bytes, max_bytes }) => Err(ReuseObstacle::TooLarge { bytes, max_bytes }),
            Err(error) => Err(ReuseObstacle::NotObserved { message: error.to_string() }),
        }
    }

    /// Records that results are used, so that results which are used less are removed first. A preview uses no result.
    fn mark_used(&self, results: &[Arc<StoredResult>]) {
        for result in results.iter().filter(|_| !self.request.is_preview) {
            let marked = self.results.mark_used(result).and_then(|()| self.reports.mark_used(&result.evidence));
            if let Err(error) = marked {
                tracing::debug!(%error, "the use of a stored result cannot be recorded");
            }
        }
    }

    fn new_result(
        &self,
        key: &Sha256Hex,
        evidence: &StepEvidence,
        has_files: bool,
        ((inputs, images), files, transparent_caches): (RecordedInputs, Vec<PassedFile>, Vec<TransparentCache>),
    ) -> StoredResult {
        StoredResult {
            key: key.clone(),
            run_id: self.request.run_id.clone(),
            executed_at: self.clock.now_text(),
            executed_ms: self.clock.now_ms(),
            has_files,
            evidence: evidence.clone(),
            inputs_sha256: inputs.digest(),
            inputs,
            worker: None,
            files,
            transparent_caches,
            origin: None,
            images,
        }
    }

    /// Returns whether a result is older than all results may be, or than this one may be, in milliseconds.
    fn is_dated(&self, result: &StoredResult, max_age_ms: u64) -> bool {
        let now = self.clock.now_ms();
        let max_age_ms = u64::try_from(MAX_AGE.as_millis()).unwrap_or(u64::MAX).min(max_age_ms);
        result.executed_ms > now.saturating_add(MAX_CLOCK_STEP_MS)
            || now.saturating_sub(result.executed_ms) > max_age_ms
    }

    /// Stores the result of an execution, if it can be reused. Returns the stored result.
    ///
    /// # Errors
    /// The reason why it is not stored.
    pub(crate) fn record(
        &self,
        key: &Sha256Hex,
        evidence: &StepEvidence,
        execution: ObservedExecution,
        tree: ObservedTree<'_>,
    ) -> Result<StoredResult, ReuseObstacle> {
        let recorded = self.try_record(key, evidence, execution, tree);
        recorded.inspect_err(|obstacle| self.keep_obstacle(key, obstacle))
    }

    /// Stores the reason why the result of an execution is not stored, for `proctor explain cache`.
    pub(crate) fn keep_obstacle(&self, key: &Sha256Hex, obstacle: &ReuseObstacle) {
        if let Err(error) = self.results.set_not_stored(key, &obstacle.to_string()) {
            tracing::warn!(%error, "the reason why a result is not stored cannot be stored");
        }
    }

    fn try_record(
        &self,
        key: &Sha256Hex,
        evidence: &StepEvidence,
        execution: ObservedExecution,
        tree: ObservedTree<'_>,
    ) -> Result<StoredResult, ReuseObstacle> {
        if let Some(obstacle) = result_obstacle(evidence) {
            return Err(obstacle);
        }
        let not_observed = |message: String| ReuseObstacle::NotObserved { message };
        let ObservedExecution { trace, has_files, transparent_caches } = execution;
        let trace = self.require_trace(trace).map_err(not_observed)?;
        let inputs = self.observed_inputs(&trace, tree).map_err(not_observed)?;
        let result = self.new_result(key, evidence, has_files, (inputs, Vec::new(), transparent_caches));
        self.store(&result)?;
        Ok(result)
    }

    /// Excludes a step from reuse, because an execution did not confirm a stored result.
    pub(crate) fn distrust(&self, key: &Sha256Hex, reason: &str) {
        if let Err(error) = self.results.set_distrust(key, reason) {
            tracing::error!(%error, "a step cannot be excluded from reuse");
        }
    }

    /// Returns the observation that contradicts `per_file` of the step with this key.
    ///
    /// # Errors
    /// The record cannot be read.
    pub(crate) fn per_file_refutation(&self, key: &Sha256Hex) -> Result<Option<FileDependence>, StoreError> {
        self.results.per_file_refutation(key)
    }

    /// Records an observation that contradicts `per_file` of the step with this key.
    pub(crate) fn refute_per_file(&self, key: &Sha256Hex, dependence: &FileDependence) {
        if let Err(error) = self.results.refute_per_file(key, dependence) {
            tracing::error!(%error, "a wrong `per_file` cannot be recorded");
        }
    }

    /// Returns the inputs of an execution that has just ended.
    fn observed_inputs(&self, trace: &AccessTrace, tree: ObservedTree<'_>) -> Result<RecordedInputs, String> {
        let recorded = self.recorded_inputs(trace, tree)?;
        self.require_unchanged(&recorded.0, tree)?;
        Ok(recorded)
    }

    /// Refuses inputs that changed since the step looked at them: it can have seen either state.
    fn require_unchanged(&self, inputs: &ObservedInputs, tree: ObservedTree<'_>) -> Result<(), String> {
        let change = inputs.first_change(&TreeInputs(tree));
        change.map_or(Ok(()), |change| Err(self.note_young(format!("{change} since it ran"))))
    }

    /// Separates the accesses to the tree from the others, and adds the content of the tree's files.
    fn recorded_inputs(&self, trace: &AccessTrace, tree: ObservedTree<'_>) -> Result<RecordedInputs, String> {
        let copies = self.state.join(MIRRORS_DIR);
        let (copies, top) = (copies.as_os_str().as_bytes(), tree.directory.as_os_str().as_bytes());
        let now_ns = i64::try_from(self.clock.now_ns()).unwrap_or(i64::MAX);
        let inputs = TreeInputs(tree);
        let is_file = |entry: &AccessedPath| matches!(entry.state, PathState::File { .. });
        let (mut paths, mut contents, mut host) = (Vec::new(), Vec::new(), Vec::new());
        let mut devices = HostDevices::default();
        for entry in trace.entries() {
            if let Some(below) = strip_directory(&entry.path, top) {
                contents.push(inputs.pin(entry, below)?);
                paths.push(AccessedPath { path: [b"/", below].concat(), ..entry.clone() });
            } else if strip_directory(&entry.path, copies).is_none() {
                require_settled(entry, now_ns).map_err(|reason| self.note_young(reason))?;
                devices.require_reliable_stamp(entry)?;
                // A program can conclude from the stamp of a file that it need not read it.
                host.push(AccessedPath { read: entry.read || is_file(entry), ..entry.clone() });
            } else if entry.read || entry.listing.is_some() {
                // Only the directories above the copy have no meaning for the step.
                return Err(format!("it read `{}`", escape_output(&entry.path)));
            }
        }
        let traces = (AccessTrace::new(paths), AccessTrace::new(host));
        let (Ok(paths), Ok(host)) = traces else { return Err("its trace is not valid".to_owned()) };
        let inputs = ObservedInputs::new(paths, contents, host).map_err(|error| error.to_string())?;
        Ok((inputs, devices.images()))
    }
}

/// Returns the part of a path below a directory; empty for the directory itself.
pub(crate) fn strip_directory<'a>(path: &'a [u8], directory: &[u8]) -> Option<&'a [u8]> {
    match path.strip_prefix(directory)? {
        b"" => Some(b""),
        rest => rest.strip_prefix(b"/"),
    }
}

#[cfg(test)]
mod tests;

//! Uses the stored results of steps, and stores new ones.
//!
//! A step that may be reused runs on a view, which records what it reads of the host, the private copy of the tree
//! included. After a pass, [`StepReuse::record`] stores these inputs with the evidence. Before the next execution,
//! [`StepReuse::find`] compares the stored inputs with the current ones.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use proctor_core::model::drift::stamp_detects_settled_changes;
use proctor_core::model::names::RunId;
use proctor_core::model::plan::{PlannedSkill, PlannedStep};
use proctor_core::model::trace::{AccessTrace, AccessedPath, NoTrace};
use proctor_core::record::evidence::{StepEvidence, escape_output};
use proctor_core::reuse::{
    ChangedInput, InheritedAttributes, MachineFacts, ObservedInputs, PassedFile, ReuseObstacle, ShownTool,
    StepIdentity, StoredResult, plan_obstacle, result_obstacle,
};
use proctor_core::spec::ReuseSettings;
use proctor_core::telemetry::is_trace_variable;
use proctor_core::text::digest::Sha256Hex;
use proctor_sandbox::{Policy, ViewTrace};

use crate::clock::Clock;
use crate::error::EngineError;
use crate::step::process_facts::{inherited_attributes, machine_facts};
use crate::step::tree_inputs::{ObservedTree, TreeInputs};
use crate::store::StoreError;
use crate::store::directory::{Directory, random_u64};
use crate::store::private_copies::MIRRORS_DIR;
use crate::store::results::{MAX_AGE, StepResults};

/// A file of the host that changed within this time may have changed since without other stat data: a write through a
/// shared mapping sets no time until the kernel has written the page.
const UNSETTLED_NS: i64 = 40_000_000_000;
/// Largest accepted difference between the clock and the time of a result in the future, in milliseconds.
const MAX_CLOCK_STEP_MS: u64 = 5 * 60 * 1_000;
const SECONDS_PER_DAY: u64 = 24 * 60 * 60;

/// The reuse of results in one run.
#[derive(Debug)]
pub(crate) struct StepReuse {
    results: StepResults,
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
}

/// The request of a run.
#[derive(Debug, Clone)]
pub(crate) struct ReuseRequest {
    /// The run.
    pub(crate) run_id: RunId,
    /// True if stored results are used. New ones are stored in any case.
    pub(crate) uses_stored: bool,
    /// True if the operator's share of the usable results is checked by an execution.
    pub(crate) rechecks: bool,
}

impl ReuseRequest {
    /// Creates the request of a run.
    pub(crate) fn new(run_id: &RunId, uses_stored: bool) -> Self {
        Self { run_id: run_id.clone(), uses_stored, rechecks: true }
    }
}

/// The settings of a run that its reuse depends on.
pub(crate) struct ReuseConfig<'a> {
    pub(crate) settings: ReuseSettings,
    pub(crate) request: ReuseRequest,
    /// The program that sets up sandboxes.
    pub(crate) helper: &'a Path,
    pub(crate) user: (u32, u32),
    pub(crate) clock: Clock,
}

/// The last executions of a step.
#[derive(Debug)]
pub(crate) struct LastResults {
    /// The newest stored result.
    pub(crate) newest: Option<StoredResult>,
    /// The reason why the result of the last execution was not stored; `None` if it was stored.
    pub(crate) not_stored: Option<String>,
}

/// The files of a step with `per_file` that need not be checked again.
#[derive(Debug)]
pub(crate) struct PassedFiles {
    /// The positions of these files in the list of files.
    pub(crate) passed: Vec<usize>,
    /// The results that hold, newest first; at least one.
    pub(crate) holding: Vec<StoredResult>,
}

/// The reason why the result of a step with `per_file` is not stored.
#[derive(Debug)]
pub(crate) enum FilesNotStored {
    /// A rule forbids it, or the inputs are not known.
    Obstacle(ReuseObstacle),
    /// The step read a file that it was not to check, so that `per_file` is wrong.
    ReadsOthers {
        /// The path.
        path: String,
    },
}

/// The search for a stored result.
#[derive(Debug)]
pub(crate) enum ReuseSearch {
    /// A result holds.
    Found(Box<StoredResult>),
    /// These results of a step with `per_file` hold, but not for all of its files.
    Files(Vec<StoredResult>),
    /// No result is used.
    Nothing(NoResult),
}

/// The reason why no stored result is used.
#[derive(Debug)]
pub(crate) enum NoResult {
    /// The step is never reused.
    Obstacle(ReuseObstacle),
    /// There is no result for the step as it is now.
    NotStored,
    /// The request does not want stored results.
    NotWanted,
    /// This input differs from that of the newest result.
    Changed(ChangedInput),
    /// All results are too old.
    TooOld,
    /// A check found a wrong result.
    Distrusted(String),
    /// A result holds, and the step is executed to check it.
    Recheck,
    /// The results cannot be read.
    Unreadable(StoreError),
}

impl From<StoreError> for NoResult {
    fn from(error: StoreError) -> Self {
        Self::Unreadable(error)
    }
}

impl fmt::Display for NoResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Obstacle(obstacle) => write!(f, "its results are not reused: {obstacle}"),
            Self::NotStored => f.write_str(
                "no result is stored for this command with these settings, variables and programs of Proctor",
            ),
            Self::NotWanted => f.write_str("the request does not use stored results (`--no-cache`)"),
            Self::Changed(change) => change.fmt(f),
            Self::TooOld => write!(f, "every stored result is older than {} days", MAX_AGE.as_secs() / SECONDS_PER_DAY),
            Self::Distrusted(reason) => write!(f, "it is excluded from reuse: {reason}"),
            Self::Recheck => f.write_str("a stored result holds, and this execution checks it"),
            Self::Unreadable(error) => write!(f, "the stored results cannot be read: {error}"),
        }
    }
}

impl StepReuse {
    /// Opens the stored results of a state directory.
    ///
    /// # Errors
    /// The directory cannot be written, or the helper program cannot be examined.
    pub(crate) fn open(state: &Directory, state_path: &Path, config: &ReuseConfig<'_>) -> Result<Self, EngineError> {
        let program = fs::metadata(config.helper).map_err(|error| {
            EngineError::Internal(format!("`{}` cannot be examined: {error}", config.helper.display()))
        })?;
        Ok(Self {
            results: StepResults::open(state)?,
            settings: config.settings,
            request: config.request.clone(),
            proctor: format!(
                "{} {} {} {}.{:09}",
                env!("CARGO_PKG_VERSION"),
                program.ino(),
                program.size(),
                program.ctime(),
                program.ctime_nsec()
            ),
            machine: machine_facts(),
            inherited: inherited_attributes(),
            user: config.user,
            state: state_path.to_owned(),
            clock: config.clock,
        })
    }

    /// Returns whether stored results are used, so that it is not certain that a step is executed.
    pub(crate) fn uses_stored(&self) -> bool {
        self.request.uses_stored
    }

    /// Returns whether a step runs on a view.
    pub(crate) fn observes(&self, skill: &PlannedSkill, step: &PlannedStep) -> bool {
        plan_obstacle(skill, step).is_none()
    }

    /// Returns the key of a step with this policy. `below` stands for the earlier steps whose files it sees.
    pub(crate) fn key(
        &self,
        skill: &PlannedSkill,
        step: &PlannedStep,
        policy: &Policy,
        below: &[Sha256Hex],
    ) -> Sha256Hex {
        let text = |path: &Path| escape_output(path.as_os_str().as_bytes());
        let env = policy.env.iter().filter(|(name, _)| !is_trace_variable(name));
        let identity = StepIdentity {
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
            below,
        };
        identity.key(self.results.secret())
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
        let newest = self.results.candidates(key)?.into_iter().next();
        Ok(LastResults { newest, not_stored: self.results.not_stored(key)? })
    }

    /// Searches a stored result whose inputs are the same now.
    pub(crate) fn find(&self, key: &Sha256Hex, tree: ObservedTree<'_>) -> ReuseSearch {
        match self.search(key, tree) {
            Ok(result) => ReuseSearch::Found(Box::new(result)),
            Err(reason) => ReuseSearch::Nothing(reason),
        }
    }

    fn search(&self, key: &Sha256Hex, tree: ObservedTree<'_>) -> Result<StoredResult, NoResult> {
        let newest = self.holding_results(key, TreeInputs(tree), 1)?.swap_remove(0);
        if self.is_chosen_for_recheck()? { Err(NoResult::Recheck) } else { Ok(newest) }
    }

    /// Returns the results whose inputs are the same now, newest first: at least one, at most `limit`.
    fn holding_results(
        &self,
        key: &Sha256Hex,
        inputs: TreeInputs<'_>,
        limit: usize,
    ) -> Result<Vec<StoredResult>, NoResult> {
        if !self.request.uses_stored {
            return Err(NoResult::NotWanted);
        }
        if let Some(reason) = self.results.distrust(key)? {
            return Err(NoResult::Distrusted(reason));
        }
        let (mut holding, mut miss) = (Vec::new(), NoResult::NotStored);
        for result in self.results.candidates(key)? {
            let reason = match (self.is_dated(&result), result.inputs.first_change(&inputs)) {
                (true, _) => NoResult::TooOld,
                (false, Some(change)) => NoResult::Changed(change),
                (false, None) => {
                    holding.push(result);
                    if holding.len() == limit {
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
        Ok(self.request.rechecks && random_u64()? % 100 < u64::from(self.settings.recheck_percent))
    }

    /// Searches the files of a step with `per_file` that have passed, and need not be checked again. `files` are the paths
    /// in the tree; the positions of those that have passed are returned.
    ///
    /// # Errors
    /// No result is used, and the reason for it.
    pub(crate) fn find_files(
        &self,
        key: &Sha256Hex,
        tree: ObservedTree<'_>,
        files: &[Vec<u8>],
    ) -> Result<PassedFiles, NoResult> {
        let inputs = TreeInputs(tree);
        let holding = self.holding_results(key, inputs, usize::MAX)?;
        if self.is_chosen_for_recheck()? {
            return Err(NoResult::Recheck);
        }
        let known: BTreeSet<&PassedFile> = holding.iter().flat_map(|result| &result.files).collect();
        let has_passed = |path: &Vec<u8>| inputs.file(path).is_some_and(|file| known.contains(&file));
        let passed = files.iter().enumerate().filter(|(_, path)| has_passed(path)).map(|(at, _)| at).collect();
        Ok(PassedFiles { passed, holding })
    }

    /// Stores the result of an execution of a step with `per_file` over the files `checked`, together with the earlier
    /// results that hold.
    ///
    /// # Errors
    /// The reason why it is not stored. [`FilesNotStored::ReadsOthers`] if the result of a file depends on another one
    /// of `all`.
    pub(crate) fn record_files(
        &self,
        key: &Sha256Hex,
        evidence: &StepEvidence,
        (trace, has_files): (ViewTrace, bool),
        tree: ObservedTree<'_>,
        files: (&[Vec<u8>], &[Vec<u8>], &[StoredResult]),
    ) -> Result<Sha256Hex, FilesNotStored> {
        let recorded = self.try_record_files(key, evidence, (trace, has_files), tree, files);
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
        (trace, has_files): (ViewTrace, bool),
        tree: ObservedTree<'_>,
        (checked, all, earlier): (&[Vec<u8>], &[Vec<u8>], &[StoredResult]),
    ) -> Result<Sha256Hex, FilesNotStored> {
        let not_observed = |message: String| FilesNotStored::Obstacle(ReuseObstacle::NotObserved { message });
        if let Some(obstacle) = result_obstacle(evidence) {
            return Err(FilesNotStored::Obstacle(obstacle));
        }
        let trace = trace.map_err(|reason| not_observed(reason.to_string()))?;
        let observed = self.observed_inputs(&trace, tree).map_err(not_observed)?;
        let own: BTreeSet<&[u8]> = checked.iter().map(Vec::as_slice).collect();
        let listed: BTreeSet<&[u8]> = all.iter().map(Vec::as_slice).collect();
        if let Some(other) = observed.read_files().find(|path| listed.contains(path) && !own.contains(path)) {
            return Err(FilesNotStored::ReadsOthers { path: escape_output(other) });
        }
        let invalid = |error: proctor_core::model::trace::DamagedTrace| not_observed(error.to_string());
        let mut inputs = observed.without_files(&own).map_err(invalid)?;
        let source = TreeInputs(tree);
        let mut files: BTreeSet<PassedFile> = checked.iter().filter_map(|path| source.file(path)).collect();
        for result in earlier {
            inputs = inputs.union(&result.inputs).map_err(invalid)?;
            files.extend(result.files.iter().cloned());
        }
        // Only files of the tree as it is now are of use.
        files.retain(|file| source.file(file.path.as_bytes()).as_ref() == Some(file));
        let files = files.into_iter().collect();
        let mut result = self.new_result(key, evidence, has_files, (inputs, files));
        // The passes of other files do not become younger.
        let oldest = earlier.iter().map(|result| result.executed_ms).min();
        result.executed_ms = oldest.map_or(result.executed_ms, |oldest| oldest.min(result.executed_ms));
        self.results.store(&result).map_err(|error| not_observed(error.to_string()))?;
        Ok(result.chain_digest())
    }

    fn new_result(
        &self,
        key: &Sha256Hex,
        evidence: &StepEvidence,
        has_files: bool,
        (inputs, files): (ObservedInputs, Vec<PassedFile>),
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
            files,
        }
    }

    fn is_dated(&self, result: &StoredResult) -> bool {
        let now = self.clock.now_ms();
        let max_age_ms = u64::try_from(MAX_AGE.as_millis()).unwrap_or(u64::MAX);
        result.executed_ms > now.saturating_add(MAX_CLOCK_STEP_MS)
            || now.saturating_sub(result.executed_ms) > max_age_ms
    }

    /// Stores the result of an execution, if it can be reused.
    ///
    /// # Errors
    /// The reason why it is not stored.
    pub(crate) fn record(
        &self,
        key: &Sha256Hex,
        evidence: &StepEvidence,
        (trace, has_files): (ViewTrace, bool),
        tree: ObservedTree<'_>,
    ) -> Result<Sha256Hex, ReuseObstacle> {
        let recorded = self.try_record(key, evidence, (trace, has_files), tree);
        recorded.inspect_err(|obstacle| self.keep_obstacle(key, obstacle))
    }

    /// Stores the reason why the result of an execution is not stored, for `proctor explain cache`.
    fn keep_obstacle(&self, key: &Sha256Hex, obstacle: &ReuseObstacle) {
        if let Err(error) = self.results.set_not_stored(key, &obstacle.to_string()) {
            tracing::warn!(%error, "the reason why a result is not stored cannot be stored");
        }
    }

    fn try_record(
        &self,
        key: &Sha256Hex,
        evidence: &StepEvidence,
        (trace, has_files): (ViewTrace, bool),
        tree: ObservedTree<'_>,
    ) -> Result<Sha256Hex, ReuseObstacle> {
        if let Some(obstacle) = result_obstacle(evidence) {
            return Err(obstacle);
        }
        let not_observed = |message: String| ReuseObstacle::NotObserved { message };
        let trace = trace.map_err(|reason: NoTrace| not_observed(reason.to_string()))?;
        let inputs = self.observed_inputs(&trace, tree).map_err(not_observed)?;
        let result = self.new_result(key, evidence, has_files, (inputs, Vec::new()));
        self.results.store(&result).map_err(|error| not_observed(error.to_string()))?;
        Ok(result.chain_digest())
    }

    /// Excludes a step from reuse, because an execution did not confirm a stored result.
    pub(crate) fn distrust(&self, key: &Sha256Hex, reason: &str) {
        if let Err(error) = self.results.set_distrust(key, reason) {
            tracing::error!(%error, "a step cannot be excluded from reuse");
        }
    }

    /// Separates the accesses to the tree from the others, and adds the content of the tree's files.
    fn observed_inputs(&self, trace: &AccessTrace, tree: ObservedTree<'_>) -> Result<ObservedInputs, String> {
        let copies = self.state.join(MIRRORS_DIR);
        let (copies, top) = (copies.as_os_str().as_bytes(), tree.directory.as_os_str().as_bytes());
        let now_ns = i64::try_from(self.clock.now_ns()).unwrap_or(i64::MAX);
        let (mut paths, mut contents, mut host) = (Vec::new(), Vec::new(), Vec::new());
        let mut devices = BTreeMap::new();
        for entry in trace.entries() {
            if let Some(below) = strip_directory(&entry.path, top) {
                contents.push(TreeInputs(tree).pin(entry, below)?);
                paths.push(AccessedPath { path: [b"/", below].concat(), ..entry.clone() });
            } else if strip_directory(&entry.path, copies).is_none() {
                require_settled(entry, now_ns)?;
                require_reliable_stamp(entry, &mut devices)?;
                host.push(entry.clone());
            } else if entry.read || entry.listing.is_some() {
                // Only the directories above the copy have no meaning for the step.
                return Err(format!("it read `{}`", escape_output(&entry.path)));
            }
        }
        let inputs = (AccessTrace::new(paths), AccessTrace::new(host));
        let (Ok(paths), Ok(host)) = inputs else { return Err("its trace is not valid".to_owned()) };
        let inputs = ObservedInputs::new(paths, contents, host).map_err(|error| error.to_string())?;
        // What has changed in between could have been read in either state.
        match inputs.first_change(&TreeInputs(tree)) {
            Some(change) => Err(format!("{change} since it ran")),
            None => Ok(inputs),
        }
    }
}

/// Refuses a file of the host that changed a moment ago.
fn require_settled(entry: &AccessedPath, now_ns: i64) -> Result<(), String> {
    let Some(stamp) = entry.stamp.filter(|_| entry.read) else { return Ok(()) };
    if stamp.ctime_ns.saturating_add(UNSETTLED_NS) < now_ns {
        return Ok(());
    }
    Err(format!("`{}` changed less than {} s ago", escape_output(&entry.path), UNSETTLED_NS / 1_000_000_000))
}

/// Refuses a file of the host if its file system does not show every change in the stamp. `devices` are the file systems
/// that are known already.
fn require_reliable_stamp(entry: &AccessedPath, devices: &mut BTreeMap<u64, bool>) -> Result<(), String> {
    let Some(stamp) = entry.stamp.filter(|_| entry.read) else { return Ok(()) };
    let path = Path::new(OsStr::from_bytes(&entry.path));
    let is_reliable = match devices.get(&stamp.dev) {
        Some(known) => *known,
        None => {
            let found = rustix::fs::statfs(path);
            let found =
                found.map_err(|error| format!("`{}` cannot be examined: {error}", escape_output(&entry.path)))?;
            let is_reliable = u64::try_from(found.f_type).is_ok_and(stamp_detects_settled_changes);
            devices.insert(stamp.dev, is_reliable);
            is_reliable
        }
    };
    if is_reliable {
        return Ok(());
    }
    Err(format!("`{}` is on a file system whose times do not show every change", escape_output(&entry.path)))
}

/// Returns the part of a path below a directory; empty for the directory itself.
fn strip_directory<'a>(path: &'a [u8], directory: &[u8]) -> Option<&'a [u8]> {
    match path.strip_prefix(directory)? {
        b"" => Some(b""),
        rest => rest.strip_prefix(b"/"),
    }
}

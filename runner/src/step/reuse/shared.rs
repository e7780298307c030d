//! Uses the results of other machines, and prepares the results of this machine for them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use proctor_core::model::trace::{AccessTrace, AccessedPath, PathState};
use proctor_core::record::evidence::ResultOrigin;
use proctor_core::reuse::{
    CurrentInputs as _, ExpectedRecord, InputArea, MountedDirectory, ObservedInputs, PathSet, SharedPath, SharedRecord,
    StoredResult, strong_fingerprint,
};
use proctor_core::text::redact::Redactor;
use proctor_sandbox::ToolKind;

use super::{
    HostDevices, MAX_AGE, Path, PlannedSkill, PlannedStep, Policy, Sha256Hex, StepReuse, StoreError, require_settled,
};
use crate::shared_results::{SharedDraft, SharedRun};
use crate::step::tree_inputs::{ObservedTree, SharedInputs, TreeInputs};

/// Replaces the path of the state directory in the identity of a step, because the path differs between machines.
const STATE_DIR: &str = "<state>";

/// The identity of a step on all machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SharedKey {
    /// The weak fingerprint.
    pub(crate) weak: Sha256Hex,
    /// The files that the step sees as empty on this machine, because they contain secrets. The secrets differ between
    /// machines, so these files are not part of the fingerprint. A result of a step that looks up such a file is not
    /// shared.
    masked: Vec<PathBuf>,
}

impl SharedKey {
    fn has_masked_path(&self, set: &PathSet) -> bool {
        let is_masked = |path: &SharedPath| {
            let path = Path::new(OsStr::from_bytes(&path.path));
            self.masked.iter().any(|masked| path.starts_with(masked))
        };
        set.paths().iter().any(|path| path.area == InputArea::Host && is_masked(path))
    }
}

/// The inputs that a path set names, as they are on this machine.
#[derive(Debug)]
pub(crate) struct SharedCandidate {
    /// The strong fingerprint.
    pub(crate) strong: Sha256Hex,
    inputs: ObservedInputs,
    /// True if the stamps of the inputs show every later change, so a result can be stored here.
    is_storable: bool,
}

/// A valid result of another machine.
#[derive(Debug, Clone)]
pub(crate) struct AdoptedResult {
    pub(crate) result: StoredResult,
    /// True if it can be stored here.
    is_storable: bool,
}

impl AdoptedResult {
    pub(crate) fn new(
        key: &Sha256Hex,
        SharedCandidate { inputs, is_storable, .. }: &SharedCandidate,
        (record, key_id): (SharedRecord, Sha256Hex),
    ) -> Self {
        let result = StoredResult {
            key: key.clone(),
            run_id: record.run_id,
            executed_at: record.executed_at,
            executed_ms: record.executed_ms,
            has_files: false,
            evidence: record.evidence,
            inputs_sha256: inputs.digest(),
            inputs: inputs.clone(),
            worker: None,
            files: record.files,
            transparent_caches: record.transparent_caches,
            origin: Some(ResultOrigin { key_id, host: record.host }),
            // It is not stored if an input is in an image.
            images: Vec::new(),
        };
        Self { result, is_storable: *is_storable }
    }
}

impl StepReuse {
    /// Returns the exchange of results with other machines, if there is one.
    pub(crate) fn shared(&self) -> Option<&SharedRun> {
        self.shared.as_ref()
    }

    /// Returns whether a stored result is of this machine, or is signed by a key that is trusted now.
    pub(super) fn trusts_origin(&self, result: &StoredResult) -> bool {
        let Some(origin) = &result.origin else { return true };
        self.shared.as_ref().is_some_and(|shared| shared.trusts(&origin.key_id))
    }

    /// Returns what identifies a step on all machines; `None` if its results are not shared: without a remote cache, if it has
    /// `reports`, whose files are only on this machine, or if its environment or command contains a secret, which the
    /// fingerprint could reveal.
    pub(crate) fn weak_fingerprint(
        &self,
        (skill, step): (&PlannedSkill, &PlannedStep),
        policy: &Policy,
        mounts: &[MountedDirectory],
        redactor: &Redactor,
    ) -> Option<SharedKey> {
        let portable = &self.shared.as_ref()?.identity;
        let mounts: Vec<MountedDirectory> = mounts.iter().map(MountedDirectory::without_times).collect();
        let mut identity = self.identity(skill, step, policy, (&mounts, &[]));
        let is_secret = |text: &String| redactor.redact_text(text) != text.as_str();
        if !step.reports.is_empty() || identity.env.values().chain(identity.command.0).any(is_secret) {
            return None;
        }
        identity.proctor.clone_from(&portable.programs);
        identity.machine = identity.machine.without(&portable.ignored);
        identity.inherited = identity.inherited.without(&portable.ignored);
        let state = self.state.display().to_string();
        for tool in &mut identity.tools {
            if Path::new(&tool.source).starts_with(&self.state) {
                tool.source = tool.source.replacen(&state, STATE_DIR, 1);
            }
        }
        let masked = policy.tools.iter().filter(|tool| tool.kind == ToolKind::Masked);
        let masked: Vec<PathBuf> = masked.map(|tool| tool.at.clone()).collect();
        identity.tools.retain(|tool| masked.iter().all(|at| at.as_os_str().as_bytes() != tool.at.as_bytes()));
        Some(SharedKey { weak: identity.weak_fingerprint(), masked })
    }

    /// Looks up the inputs of a path set on this machine; `None` if one of them cannot be determined. Blocks the thread.
    pub(crate) fn shared_candidate(
        &self,
        key: &SharedKey,
        set: &PathSet,
        tree: ObservedTree<'_>,
    ) -> Option<SharedCandidate> {
        if key.has_masked_path(set) {
            tracing::debug!("an input of another machine is a file that steps on this machine see as empty");
            return None;
        }
        let looked_up = self.look_up(set, tree).inspect_err(|path| {
            tracing::debug!(path, "an input of another machine cannot be determined");
        });
        let (inputs, is_storable) = looked_up.ok()?;
        let strong = self.strong_fingerprint(set, &inputs, tree)?;
        Some(SharedCandidate { strong, inputs, is_storable })
    }

    fn strong_fingerprint(&self, set: &PathSet, inputs: &ObservedInputs, tree: ObservedTree<'_>) -> Option<Sha256Hex> {
        let shared = self.shared.as_ref()?;
        let contents = SharedInputs { tree: TreeInputs(tree), hashes: &shared.hashes, now_ns: self.now_ns() };
        let strong = strong_fingerprint(set, inputs, &contents);
        strong.inspect_err(|path| tracing::debug!(path, "an input cannot be hashed")).ok()
    }

    fn now_ns(&self) -> i64 {
        i64::try_from(self.clock.now_ns()).unwrap_or(i64::MAX)
    }

    /// Returns the present state of the paths, and whether their stamps show every later change.
    ///
    /// # Errors
    /// The path whose state cannot be determined.
    fn look_up(&self, set: &PathSet, tree: ObservedTree<'_>) -> Result<(ObservedInputs, bool), String> {
        let now = TreeInputs(tree);
        let (mut paths, mut contents, mut host) = (Vec::new(), Vec::new(), Vec::new());
        let (mut is_storable, mut devices) = (true, HostDevices::default());
        for path in set.paths() {
            let entry = present_state(path, now)?;
            match path.area {
                InputArea::Tree => {
                    contents.push(now.pin(&entry, &path.path)?);
                    paths.push(entry);
                }
                InputArea::Host => {
                    let settled = require_settled(&entry, self.now_ns());
                    is_storable &= settled.and_then(|()| devices.require_lasting_stamp(&entry)).is_ok();
                    host.push(entry);
                }
            }
        }
        let invalid = |error: proctor_core::model::trace::DamagedTrace| error.to_string();
        let (paths, host) = (AccessTrace::new(paths).map_err(invalid)?, AccessTrace::new(host).map_err(invalid)?);
        Ok((ObservedInputs::new(paths, contents, host).map_err(invalid)?, is_storable))
    }

    /// Returns the fingerprints and the age that a record must have.
    pub(crate) fn expected_record<'a>(
        &self,
        weak: &'a Sha256Hex,
        path_set: &'a Sha256Hex,
        strong: &'a Sha256Hex,
        is_per_file: bool,
    ) -> ExpectedRecord<'a> {
        let max_age_ms = u64::try_from(MAX_AGE.as_millis()).unwrap_or(u64::MAX);
        ExpectedRecord { weak, path_set, strong, now_ms: self.clock.now_ms(), max_age_ms, is_per_file }
    }

    /// Returns the result of another machine, and stores it here, if possible.
    pub(crate) fn adopt(
        &self,
        key: &Sha256Hex,
        candidate: &SharedCandidate,
        record: (SharedRecord, Sha256Hex),
    ) -> StoredResult {
        let adopted = AdoptedResult::new(key, candidate, record);
        self.keep_adopted(&adopted);
        adopted.result
    }

    /// Stores a result of another machine that is used, if possible.
    pub(super) fn keep_adopted(&self, AdoptedResult { result, is_storable }: &AdoptedResult) {
        if *is_storable
            && !self.request.is_preview
            && let Err(obstacle) = self.store(result)
        {
            tracing::debug!(%obstacle, "a result of another machine is not stored here");
        }
        if let Some(shared) = self.shared.as_ref().filter(|_| !self.request.is_preview) {
            shared.note_hit();
        }
    }

    /// Returns whether the step is executed to check a valid result of another machine.
    ///
    /// # Errors
    /// There are no random numbers.
    pub(crate) fn rechecks_shared(&self) -> Result<bool, StoreError> {
        self.is_chosen_for_recheck()
    }

    /// Returns an execution on this machine in the form that other machines can use; `None` if an input has changed
    /// since or cannot be hashed. Blocks the thread.
    pub(crate) fn shared_draft(
        &self,
        result: &StoredResult,
        key: &SharedKey,
        (skill, redactor): (&PlannedSkill, &Redactor),
        tree: ObservedTree<'_>,
    ) -> Option<SharedDraft> {
        // The files that the step left are not shared, so later steps on other machines would lack them.
        if result.has_files || !self.shared.as_ref()?.writes() {
            return None;
        }
        let weak = &key.weak;
        let paths = PathSet::from_inputs(weak.clone(), &result.inputs);
        if key.has_masked_path(&paths) {
            return None;
        }
        let strong = self.strong_fingerprint(&paths, &result.inputs, tree)?;
        let mut evidence = result.evidence.clone();
        redactor.redact_step(&mut evidence);
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let record = SharedRecord {
            skill: skill.name.clone(),
            weak: weak.clone(),
            path_set: Sha256Hex::digest(&paths.encode()),
            strong,
            host,
            run_id: result.run_id.clone(),
            executed_at: result.executed_at.clone(),
            executed_ms: result.executed_ms,
            evidence,
            transparent_caches: result.transparent_caches.clone(),
            files: result.files.clone(),
        };
        Some(SharedDraft { paths, record })
    }

    /// Waits until all uploads to the server have ended, and stores the digests of files.
    pub(crate) async fn finish_sharing(&self) {
        let Some(shared) = &self.shared else { return };
        shared.finish().await;
        if let Err(error) = shared.hashes.store(self.results.directory()) {
            tracing::debug!(%error, "the digests of files cannot be stored");
        }
    }
}

/// Returns the present state of a path, as a step would observe it.
fn present_state(path: &SharedPath, now: TreeInputs<'_>) -> Result<AccessedPath, String> {
    let unknown = || proctor_core::record::evidence::escape_output(&path.path);
    let (state, stamp) = now.state(path.area, &path.path).ok_or_else(unknown)?;
    let is_directory = matches!(state, PathState::Directory { .. });
    let is_file = matches!(state, PathState::File { .. });
    let listing =
        if path.listed && is_directory { Some(now.listing(path.area, &path.path).ok_or_else(unknown)?) } else { None };
    let read = (path.read && state != PathState::Absent) || (is_file && path.area == InputArea::Host);
    let absolute = match path.area {
        InputArea::Tree => [b"/", path.path.as_slice()].concat(),
        InputArea::Host => path.path.clone(),
    };
    Ok(AccessedPath { path: absolute, state, stamp, read, listing })
}

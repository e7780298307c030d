//! The documents in `changes/<id>/verify/`: durable, hashed evidence of a run.
//!
//! Each document has a stable part and a measured part. The same inputs reproduce the stable part byte for byte. The
//! measured part contains durations, times, resource usage and the run ID. The `sha256` of a document is the hash of
//! its stable part as canonical JSON; [`stable_part`] defines which fields belong to it.

mod checked_files;
mod declared_reports;
mod exit_code_field;
mod input_enforcement;
mod measured;
mod result_origin;
mod reuse_source;
mod scope_coverage;
mod step_end;
mod step_executor;
mod step_reuse;
mod tree_source;

pub use crate::text::escape::escape_output;
pub use checked_files::{CheckedFiles, FileDependence, MAX_NAMED_FILES};
pub use declared_reports::{MAX_REPORT_BYTES, ReportEvidence, ReportFault, ReportState};
pub use input_enforcement::InputEnforcement;
pub use measured::Measured;
pub use result_origin::ResultOrigin;
pub use reuse_source::{CACHED, ReuseSource, cached_of_steps, cached_skill_note};
pub use scope_coverage::covered_scope;
pub use step_executor::{RemoteExecution, StepExecutor, WorkerEvidence, WorkerProgram};
pub use tree_source::{TreeKind, TreeSource};

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::drift::{DriftMethod, StepDrift};
use crate::model::enforcement::{Enforcement, SandboxMode};
use crate::model::leak::LeakedProcesses;
use crate::model::names::{ChangesetId, ProfileName, RunId, SkillName, StepName, ToolchainName};
use crate::model::outcome::{LimitKind, Outcome, Termination};
use crate::model::plan::{Determinism, Network, PlannedStep, ReadOnly, RelPath, VersionDemand};
use crate::model::run_scope::RunScope;
use crate::model::tier::{Tier, TierReason};
use crate::text::canonical::{self, Json};
use crate::text::digest::{Sha256Hex, SnapshotId};

/// Version of the document format.
pub const VERSION: u32 = 1;
/// Maximum number of bytes in a preview of the start of a stream, and in a preview of its end.
pub const PREVIEW_BYTES: usize = 4 << 10;

/// `verify/<skill>.json`: the evidence of one skill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SkillEvidence {
    /// Version of the document format.
    #[schemars(extend("const" = VERSION))]
    pub version: u32,
    /// The changeset; `null` if the run had none.
    pub changeset_id: Option<ChangesetId>,
    /// The profile of the run.
    pub profile: ProfileName,
    /// The skill.
    pub skill: SkillName,
    /// The determinism class.
    pub determinism: Determinism,
    /// The tier declared in the spec.
    pub declared_tier: Tier,
    /// The effective tier.
    pub tier: Tier,
    /// Reasons why the effective tier is higher than the declared one.
    pub tier_reasons: BTreeSet<TierReason>,
    /// The requested sandbox mode, which determines how missing controls are handled. `enforcement` of each step
    /// records what was enforced.
    pub sandbox: SandboxMode,
    /// The tree at the start of the skill, as the skill saw it.
    pub repo_snapshot_before: SnapshotId,
    /// The tree at the end of the skill, including the changes in its writable layers.
    pub repo_snapshot_after: SnapshotId,
    /// Git's description of the verified tree.
    pub repo_git: GitIdentity,
    /// The kind of the verified tree; the worktree if absent.
    #[serde(default)]
    pub source: TreeSource,
    /// Summary of drift in the v1 format; `drift` of each step has the details.
    pub tracked_drift: TrackedDrift,
    /// The sha256 of the spec file.
    pub spec_sha256: Sha256Hex,
    /// The directory that contains `spec/`, relative to the repository; absent for the repository itself.
    #[serde(default = "RelPath::repository", skip_serializing_if = "RelPath::is_repository")]
    pub spec_dir: RelPath,
    /// The sha256 of the plan's canonical JSON.
    pub plan_sha256: Sha256Hex,
    /// Skills of the profile that the plan left out; absent if the plan was complete.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<SkillName>,
    /// The part of the profile that the run executed; absent if it executed all steps over all files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<RunScope>,
    /// True if a step passed only on a retry.
    pub flaky: bool,
    /// The run whose result was reused; `null` if the skill ran.
    pub cached_from: Option<RunId>,
    /// The steps in order, including those that did not run.
    pub steps: Vec<StepEvidence>,
    /// The combined result of the steps.
    pub summary: Summary,
    /// Values that differ between runs with the same inputs.
    pub measured: Measured,
    /// The sha256 of the stable part.
    pub sha256: Sha256Hex,
}

/// Git's description of the verified tree. It allows anyone to find the tree again with git alone; docs/snapshot.md has
/// the commands. Untracked content is only part of the snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GitIdentity {
    /// The commit of HEAD; `null` before the first commit.
    pub head_commit: Option<String>,
    /// The branch of HEAD; `null` if HEAD is detached.
    pub branch: Option<String>,
    /// The tree that `git add -u` and `git write-tree` would create from the current tracked content; `null` if it
    /// cannot be determined.
    pub tree: Option<String>,
    /// The reason why `tree` is `null`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_tree: Option<String>,
    /// True if content that the snapshot covers, tracked or untracked, differs from `head_commit`; `null` if it cannot
    /// be determined.
    #[serde(default)]
    pub dirty: Option<bool>,
}

/// Summary of drift in the v1 format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TrackedDrift {
    /// The strictest mode of the skill's steps.
    pub mode: ReadOnly,
    /// Paths that steps changed although they were protected, sorted.
    pub changed_files: Vec<String>,
}

/// The evidence of one step: the planned step, as flat fields, and the observations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StepEvidence {
    /// The planned step that the executor ran.
    #[serde(flatten)]
    pub planned: PlannedStep,
    /// The outcome.
    pub outcome: Outcome,
    /// How the last attempt ended.
    pub termination: Termination,
    /// The exit code as reported by a shell, or -1 if no process exited or was killed by a signal; the v1 format
    /// requires an integer. Records of earlier versions contain `null` instead.
    #[serde(with = "exit_code_field")]
    #[schemars(with = "i16", range(min = -1, max = 255))]
    pub exit_code: Option<u8>,
    /// Time from the start of the command to the end of its process tree, in milliseconds; 0 if it never ran.
    pub duration_ms: u64,
    /// Standard output.
    #[serde(flatten, with = "stdout_fields")]
    #[schemars(with = "StdoutFields")]
    pub stdout: StreamEvidence,
    /// Standard error.
    #[serde(flatten, with = "stderr_fields")]
    #[schemars(with = "StderrFields")]
    pub stderr: StreamEvidence,
    /// The sandbox controls and their enforcement.
    pub enforcement: Enforcement,
    /// Changes to protected files, and the detection method.
    pub drift: DriftEvidence,
    /// True if the step passed only on a retry.
    pub flaky: bool,
    /// The attempts before the last one.
    pub earlier_attempts: Vec<AttemptEvidence>,
    /// The declared reports as found after the step, in the order of their declaration. Absent if the step declares
    /// none, did not run, or its files cannot be trusted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub found_reports: Vec<ReportEvidence>,
    /// The files that the step checked; absent if the step has no `files`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked_files: Option<CheckedFiles>,
    /// Whether the step saw only its `inputs`; absent if it declares none, or did not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_enforcement: Option<InputEnforcement>,
    /// Names of the environment variables of the step, without the trace context of the run.
    pub env_names: BTreeSet<String>,
    /// Resource usage.
    pub resources: Resources,
    /// Processes that the step left behind. Absent if there were none, if the step was ended because of its timeout or
    /// a limit, and for `leaks: ignore`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaked: Option<LeakedProcesses>,
    /// The earlier execution whose result this is, because every input that it read is the same; absent if the step was
    /// executed. The other observations are those of that execution, and the duration is 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reused: Option<ReuseSource>,
    /// Where the last attempt was executed; absent if it was this machine, as planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor: Option<StepExecutor>,
}

impl StepEvidence {
    /// Returns whether a process was started; in that case the sandbox recorded its enforcement.
    pub fn was_started(&self) -> bool {
        !self.enforcement.0.is_empty()
    }
}

/// Changes of a step to protected files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DriftEvidence {
    /// The detection method; `null` if the step did not run.
    pub method: Option<DriftMethod>,
    /// The changes.
    #[serde(flatten)]
    pub found: StepDrift,
    /// Paths that a `read_only: off` step changed and that were applied to the worktree.
    pub applied: Vec<String>,
    /// The changes of a `fix` command that were applied to the worktree; absent for other steps.
    #[serde(default, skip_serializing_if = "StepDrift::is_empty")]
    pub fixed: StepDrift,
    /// True if a passed `read_only: off` step changed or removed files of the recorded tree, so that later steps saw other
    /// files; absent otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub changed_tree: bool,
}

/// An attempt that was retried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AttemptEvidence {
    /// The outcome.
    pub outcome: Outcome,
    /// How the attempt ended.
    pub termination: Termination,
    /// Time from the start of the command to the end of its process tree, in milliseconds.
    pub duration_ms: u64,
    /// The sha256 of the complete standard output.
    pub stdout_sha256: Sha256Hex,
    /// The sha256 of the complete standard error.
    pub stderr_sha256: Sha256Hex,
    /// Processes that the attempt left behind; absent in the same cases as in the evidence of the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaked: Option<LeakedProcesses>,
}

/// One output stream: the hash of all original bytes, and previews of both ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamEvidence {
    /// The sha256 of all bytes.
    pub sha256: Sha256Hex,
    /// Total number of bytes.
    pub bytes: u64,
    /// Number of bytes that are kept in the store.
    pub kept_bytes: u64,
    /// True if the stream was read completely; `false` if a process kept it open past the deadline.
    pub complete: bool,
    /// Number of places in the stored and shown output where a secret of the caller was removed.
    pub redacted: u64,
    /// The first [`PREVIEW_BYTES`], without secrets and escaped.
    pub preview: String,
    /// The last [`PREVIEW_BYTES`] after the preview, without secrets and escaped.
    pub tail: String,
}

impl StreamEvidence {
    /// Creates the evidence of an empty stream.
    pub fn empty() -> Self {
        let (preview, tail) = (String::new(), String::new());
        Self { sha256: Sha256Hex::digest(b""), bytes: 0, kept_bytes: 0, complete: true, redacted: 0, preview, tail }
    }
}

macro_rules! stream_fields {
    ($module:ident, $fields:ident, $sha:ident, $bytes:ident, $kept:ident, $complete:ident, $redacted:ident, $preview:ident, $tail:ident) => {
        /// The flat fields of a [`StreamEvidence`].
        #[derive(Serialize, Deserialize, JsonSchema)]
        #[expect(missing_docs, reason = "StreamEvidence documents them")]
        pub struct $fields {
            pub $sha: Sha256Hex,
            pub $bytes: u64,
            pub $kept: u64,
            pub $complete: bool,
            pub $redacted: u64,
            pub $preview: String,
            pub $tail: String,
        }

        mod $module {
            use super::{StreamEvidence, $fields};
            use serde::{Deserialize, Deserializer, Serialize, Serializer};

            pub(crate) fn serialize<S: Serializer>(s: &StreamEvidence, serializer: S) -> Result<S::Ok, S::Error> {
                let fields = $fields {
                    $sha: s.sha256.clone(),
                    $bytes: s.bytes,
                    $kept: s.kept_bytes,
                    $complete: s.complete,
                    $redacted: s.redacted,
                    $preview: s.preview.clone(),
                    $tail: s.tail.clone(),
                };
                fields.serialize(serializer)
            }

            pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<StreamEvidence, D::Error> {
                let fields = $fields::deserialize(deserializer)?;
                Ok(StreamEvidence {
                    sha256: fields.$sha,
                    bytes: fields.$bytes,
                    kept_bytes: fields.$kept,
                    complete: fields.$complete,
                    redacted: fields.$redacted,
                    preview: fields.$preview,
                    tail: fields.$tail,
                })
            }
        }
    };
}
stream_fields!(
    stdout_fields,
    StdoutFields,
    stdout_sha256,
    stdout_bytes,
    stdout_kept_bytes,
    stdout_complete,
    stdout_redacted,
    stdout_preview,
    stdout_tail
);
stream_fields!(
    stderr_fields,
    StderrFields,
    stderr_sha256,
    stderr_bytes,
    stderr_kept_bytes,
    stderr_complete,
    stderr_redacted,
    stderr_preview,
    stderr_tail
);

/// Resource usage of an attempt, as counted by the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Resources {
    /// CPU time in user mode of all processes that were waited for, in milliseconds.
    pub user_ms: u64,
    /// CPU time in kernel mode, in milliseconds.
    pub system_ms: u64,
    /// The largest resident set of any of these processes, in KiB.
    pub max_rss_kib: u64,
    /// Peak memory of all processes together, including files in memory, in KiB; `null` if no control group counts it.
    pub memory_peak_kib: Option<u64>,
    /// Limits that the attempt hit, as far as this can be detected, whether or not it ended because of them.
    pub limits_hit: BTreeSet<LimitKind>,
}

/// The combined result of the steps of a skill, or of the toolchain checks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// The combined outcome.
    pub outcome: Outcome,
    /// The exit code that `proctor run` would have for this result alone.
    pub overall_exit_code: u8,
    /// Sum of the durations of the steps, in milliseconds.
    pub duration_ms: u64,
}

/// `verify/_toolchain.json`: the evidence of the checks that must pass before any skill runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ToolchainEvidence {
    /// Version of the document format.
    #[schemars(extend("const" = VERSION))]
    pub version: u32,
    /// The changeset; `null` if the run had none.
    pub changeset_id: Option<ChangesetId>,
    /// The profile of the run.
    pub profile: ProfileName,
    /// The requested sandbox mode, which determines how missing controls are handled. `enforcement` of each check
    /// records what was enforced.
    pub sandbox: SandboxMode,
    /// The sha256 of the spec file.
    pub spec_sha256: Sha256Hex,
    /// The directory that contains `spec/`, relative to the repository; absent for the repository itself.
    #[serde(default = "RelPath::repository", skip_serializing_if = "RelPath::is_repository")]
    pub spec_dir: RelPath,
    /// The sha256 of the plan's canonical JSON.
    pub plan_sha256: Sha256Hex,
    /// Skills of the profile that the plan left out; absent if the plan was complete.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<SkillName>,
    /// The part of the profile that the run executed; absent if it executed all steps over all files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<RunScope>,
    /// The verified tree.
    pub repo_snapshot: SnapshotId,
    /// Git's description of the verified tree.
    pub repo_git: GitIdentity,
    /// The kind of the verified tree; the worktree if absent.
    #[serde(default)]
    pub source: TreeSource,
    /// The checks, in order.
    pub checks: Vec<CheckEvidence>,
    /// The combined result of the checks.
    pub summary: Summary,
    /// Values that differ between runs with the same inputs.
    pub measured: Measured,
    /// The sha256 of the stable part.
    pub sha256: Sha256Hex,
}

/// A program that the caller finds, and that steps do not see.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HiddenProgram {
    /// The directory of the program, with `~` for the home.
    pub directory: String,
    /// How to make steps run this program.
    pub advice: String,
}

/// The evidence of one toolchain check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckEvidence {
    /// The toolchain that the check belongs to.
    pub toolchain: ToolchainName,
    /// The required version.
    pub demand: VersionDemand,
    /// The version found in the output; `null` if the output contains no version.
    pub version_read: Option<String>,
    /// True if the check passed: the command passed and the version satisfies the requirement.
    pub satisfied: bool,
    /// The directory in which the caller's `PATH` first finds the program of the check, if steps do not see it there and
    /// run another program of this name; absent if they run the caller's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hidden_program: Option<HiddenProgram>,
    /// The command and the observations.
    #[serde(flatten)]
    pub step: StepEvidence,
}

/// A document that contains the hash of its stable part.
pub trait Document: Serialize {
    /// Returns whether the outputs of the commands belong to the stable part.
    fn outputs_are_stable(&self) -> bool;
    /// Returns the `sha256` field.
    fn digest_field_mut(&mut self) -> &mut Sha256Hex;
}

impl Document for SkillEvidence {
    fn outputs_are_stable(&self) -> bool {
        self.determinism == Determinism::D0
    }
    fn digest_field_mut(&mut self) -> &mut Sha256Hex {
        &mut self.sha256
    }
}

impl Document for ToolchainEvidence {
    fn outputs_are_stable(&self) -> bool {
        true
    }
    fn digest_field_mut(&mut self) -> &mut Sha256Hex {
        &mut self.sha256
    }
}

/// Fills in the `sha256` of the document.
pub fn seal<D: Document>(mut document: D) -> D {
    let digest = Sha256Hex::digest(&stable_part(&document).to_vec());
    *document.digest_field_mut() = digest;
    document
}

/// Returns the content of the document's file.
pub fn to_bytes<D: Document>(document: &D) -> Vec<u8> {
    canonical::to_vec(document)
}

/// Returns the part of a document that the same inputs reproduce byte for byte. It excludes `sha256`, `measured`,
/// `cached_from`, each `duration_ms`, `resources`, `leaked`, `reused`, `input_enforcement` and `executor`, the same of
/// `checked_files`, and `mechanism`, `reason` and `hint` of controls. If the determinism class allows different output,
/// it also excludes the fields about output and reports.
pub fn stable_part<D: Document>(document: &D) -> Json {
    let mut json = Json::from_serializable(document);
    if let Some(members) = json.as_object_mut() {
        for key in ["sha256", "measured", "cached_from"] {
            members.remove(key);
        }
        let outputs = document.outputs_are_stable();
        if let Some(summary) = members.get_mut("summary") {
            remove_keys(summary, |key| key == "duration_ms");
        }
        for list in ["steps", "checks"] {
            if let Some(Json::Array(steps)) = members.get_mut(list) {
                steps.iter_mut().for_each(|step| remove_measured_fields(step, outputs));
            }
        }
    }
    json
}

/// The measured fields of a step.
const MEASURED_FIELDS: [&str; 6] = ["duration_ms", "resources", "leaked", "reused", "input_enforcement", "executor"];

fn remove_measured_fields(step: &mut Json, outputs: bool) {
    let is_output = |key: &str| key.starts_with("stdout_") || key.starts_with("stderr_") || key == "found_reports";
    let is_removed = |key: &str| MEASURED_FIELDS.contains(&key) || !outputs && is_output(key);
    remove_keys(step, is_removed);
    if let Some(files) = step.as_object_mut().and_then(|s| s.get_mut("checked_files")) {
        remove_keys(files, |key| matches!(key, "reused" | "reused_executed_at" | "origins" | "dependence"));
    }
    // The state of a control is stable. The mechanism is not, because it contains IDs and paths of this host.
    if let Some(Json::Object(controls)) = step.as_object_mut().and_then(|s| s.get_mut("enforcement")) {
        let is_removed = |key: &str| matches!(key, "mechanism" | "reason" | "hint");
        controls.values_mut().for_each(|control| remove_keys(control, is_removed));
    }
    if let Some(Json::Array(attempts)) = step.as_object_mut().and_then(|s| s.get_mut("earlier_attempts")) {
        attempts.iter_mut().for_each(|attempt| remove_keys(attempt, is_removed));
    }
}

fn remove_keys(json: &mut Json, is_removed: impl Fn(&str) -> bool) {
    if let Some(members) = json.as_object_mut() {
        members.retain(|key, _| !is_removed(key));
    }
}

/// Evidence files of a run: path relative to the changeset → sha256 of the file.
pub type EvidenceIndex = BTreeMap<String, Sha256Hex>;

/// Returns the outcome of a skill: the most severe outcome of its steps.
pub fn combined_outcome<'a>(steps: impl IntoIterator<Item = &'a Outcome>) -> Outcome {
    let rank = |outcome: &Outcome| match outcome {
        Outcome::Drifted => 7,
        Outcome::TimedOut => 6,
        Outcome::Failed => 5,
        Outcome::Cancelled => 4,
        Outcome::Inconclusive => 3,
        Outcome::Skipped => 2,
        Outcome::Passed => 1,
        Outcome::NoFiles => 0,
    };
    steps.into_iter().max_by_key(|outcome| rank(outcome)).copied().unwrap_or(Outcome::Skipped)
}

/// Returns the reasons to raise the effective tier above the declared one.
pub fn tier_reasons<'a>(steps: impl IntoIterator<Item = &'a StepEvidence>) -> BTreeSet<TierReason> {
    let mut reasons = BTreeSet::new();
    for step in steps {
        if !step.drift.found.is_empty() {
            reasons.insert(TierReason::Drift);
        }
        if step.planned.network == Network::Allow {
            reasons.insert(TierReason::NetworkAllowed);
        }
        let mut terminations =
            step.earlier_attempts.iter().map(|attempt| &attempt.termination).chain([&step.termination]);
        if terminations.any(|termination| matches!(termination, Termination::TimedOut { .. })) {
            reasons.insert(TierReason::Timeout);
        }
        if step.was_started() && step.enforcement.missing().next().is_some() {
            reasons.insert(TierReason::ControlNotEnforced);
        }
    }
    reasons
}

/// Returns the name of a step for messages: `skill/step`.
pub fn step_path(skill: &SkillName, step: &StepName) -> String {
    format!("{skill}/{step}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_terminal_control_sequences() {
        assert_eq!(escape_output(b"a\x1b[31m\r\n\xff\x07\tb"), "a\\x1b[31m\\x0d\n\\xff\\x07\tb");
        assert_eq!(escape_output("\u{202e}x\u{9b}".as_bytes()), "\\u{202e}x\\x9b");
    }

    #[test]
    fn most_severe_step_determines_skill_outcome() {
        use Outcome::{Drifted, Failed, Inconclusive, Passed, Skipped};
        assert_eq!(combined_outcome(&[Passed, Failed, Skipped]), Failed);
        assert_eq!(combined_outcome(&[Drifted, Failed]), Drifted);
        assert_eq!(combined_outcome(&[Passed, Inconclusive, Skipped]), Inconclusive);
        assert_eq!(combined_outcome(&[]), Skipped);
    }
}

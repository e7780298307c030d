//! The documents below `changes/<id>/verify/`: observations made durable and hashed.
//!
//! Each document has a stable part, which the same inputs reproduce byte for byte, and a
//! measured part: durations, times, resource use, the run's id. The document's `sha256` is
//! that of its stable part as canonical JSON; [`stable_part`] says which fields those are.

mod measured;
mod reports;
mod source;

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::canonical::{self, Json};
use crate::digest::{Sha256Hex, SnapshotId};
use crate::drift::{DriftMethod, StepDrift};
use crate::enforcement::{Enforcement, SandboxMode};
use crate::leak::LeakedProcesses;
use crate::names::{ChangesetId, ProfileName, RunId, SkillName, StepName, ToolchainName};
use crate::outcome::{LimitKind, Outcome, Termination};
use crate::plan::{Determinism, Network, PlannedStep, ReadOnly, VersionDemand};
use crate::tier::{Tier, TierReason};

pub use measured::Measured;
pub use reports::{MAX_REPORT_BYTES, ReportEvidence, ReportFault, ReportState};
pub use source::{TreeKind, TreeSource};

/// The version of the documents' format.
pub const VERSION: u32 = 1;
/// How many bytes of a stream a preview shows from its start, and another from its end.
pub const PREVIEW_BYTES: usize = 4 << 10;

/// `verify/<skill>.json`: what one skill did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SkillEvidence {
    /// The version of the documents' format: [`VERSION`].
    #[schemars(extend("const" = VERSION))]
    pub version: u32,
    /// The changeset; `null` where the run had none.
    pub changeset_id: Option<ChangesetId>,
    /// The profile that was run.
    pub profile: ProfileName,
    /// The skill.
    pub skill: SkillName,
    /// Its determinism class.
    pub determinism: Determinism,
    /// What the spec declares.
    pub declared_tier: Tier,
    /// The effective tier.
    pub tier: Tier,
    /// Why the effective tier is higher than the declared one.
    pub tier_reasons: BTreeSet<TierReason>,
    /// What was to be done where controls are missing; `enforcement` of each step has what held.
    pub sandbox: SandboxMode,
    /// The tree as the skill saw it at its start.
    pub repo_snapshot_before: SnapshotId,
    /// The tree as its steps left it in their layers.
    pub repo_snapshot_after: SnapshotId,
    /// What git says of the tree that the run verifies.
    pub repo_git: GitIdentity,
    /// Which tree that is; where it is absent, the worktree.
    #[serde(default)]
    pub source: TreeSource,
    /// The format's own summary of drift; `drift` of each step says more.
    pub tracked_drift: TrackedDrift,
    /// The sha256 of the spec's bytes.
    pub spec_sha256: Sha256Hex,
    /// The sha256 of the plan's canonical JSON.
    pub plan_sha256: Sha256Hex,
    /// The skills of the profile that the plan of this run left out; absent where it was the whole plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<SkillName>,
    /// Whether some step passed only on a repeated attempt.
    pub flaky: bool,
    /// The run whose result this repeats; `null` where the skill ran.
    pub cached_from: Option<RunId>,
    /// The steps, in order, those that did not run too.
    pub steps: Vec<StepEvidence>,
    /// The fold over the steps.
    pub summary: Summary,
    /// What the same inputs need not reproduce.
    pub measured: Measured,
    /// The sha256 of the stable part.
    pub sha256: Sha256Hex,
}

/// What git alone says of the tree that was verified, so that anyone can find it again without
/// us; docs/snapshot.md has the commands. Untracked content is in the snapshot only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GitIdentity {
    /// The commit that HEAD names; `null` before the first.
    pub head_commit: Option<String>,
    /// The branch that HEAD names; `null` where it names a commit.
    pub branch: Option<String>,
    /// The tree that `git add -u` and `git write-tree` would make of the tracked content as it
    /// stands; `null` where that cannot be told.
    pub tree: Option<String>,
    /// Why `tree` is `null`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_tree: Option<String>,
    /// Whether something that the snapshot covers is not as in `head_commit`: tracked content, or
    /// something untracked; `null` where that cannot be told.
    #[serde(default)]
    pub dirty: Option<bool>,
}

/// The v1 format's summary of drift.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TrackedDrift {
    /// The strictest mode of the skill's steps.
    pub mode: ReadOnly,
    /// The paths that a step must not have changed and did, sorted.
    pub changed_files: Vec<String>,
}

/// What one step did: the plan's own value, flat, and what was observed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StepEvidence {
    /// The value that the executor ran from.
    #[serde(flatten)]
    pub planned: PlannedStep,
    /// What it means.
    pub outcome: Outcome,
    /// How its last attempt ended.
    pub termination: Termination,
    /// The exit code as a shell reports it, or -1 where no process ended by itself or by a signal: the v1 format
    /// requires an integer. Records of earlier versions have `null` instead.
    #[serde(with = "exit_code_field")]
    #[schemars(with = "i16", range(min = -1, max = 255))]
    pub exit_code: Option<u8>,
    /// From spawn to the end of its process tree, in milliseconds; 0 where it never ran.
    pub duration_ms: u64,
    /// Its standard output.
    #[serde(flatten, with = "stdout_fields")]
    #[schemars(with = "StdoutFields")]
    pub stdout: StreamEvidence,
    /// Its standard error.
    #[serde(flatten, with = "stderr_fields")]
    #[schemars(with = "StderrFields")]
    pub stderr: StreamEvidence,
    /// What the kernel was made to enforce.
    pub enforcement: Enforcement,
    /// What it changed that it must not, and how that was found.
    pub drift: DriftEvidence,
    /// Whether it passed only on a repeated attempt.
    pub flaky: bool,
    /// The attempts before the last one.
    pub earlier_attempts: Vec<AttemptEvidence>,
    /// What it left of the reports that it declares, in their order; absent where it declares none,
    /// did not run, or left nothing that can be trusted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub found_reports: Vec<ReportEvidence>,
    /// The names of the variables that it was given, without the trace context of the run.
    pub env_names: BTreeSet<String>,
    /// What it used.
    pub resources: Resources,
    /// The processes that it left behind; absent where it left none, where it was ended for its
    /// time or a limit, and where its plan has `leaks: ignore`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaked: Option<LeakedProcesses>,
}

impl StepEvidence {
    /// Whether there was a process: its sandbox says what was enforced.
    pub fn was_started(&self) -> bool {
        !self.enforcement.0.is_empty()
    }
}

/// What a step changed that it must not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DriftEvidence {
    /// How it was looked for; `null` where the step did not run.
    pub method: Option<DriftMethod>,
    /// What was found.
    #[serde(flatten)]
    pub found: StepDrift,
    /// The paths that a `read_only: off` step changed and that were applied to the worktree.
    pub applied: Vec<String>,
}

/// An attempt that was repeated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AttemptEvidence {
    /// What it meant.
    pub outcome: Outcome,
    /// How it ended.
    pub termination: Termination,
    /// From spawn to the end of its process tree, in milliseconds.
    pub duration_ms: u64,
    /// The sha256 of its whole standard output.
    pub stdout_sha256: Sha256Hex,
    /// The sha256 of its whole standard error.
    pub stderr_sha256: Sha256Hex,
    /// The processes that it left behind; absent as in the step's own evidence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaked: Option<LeakedProcesses>,
}

/// One output stream: its hash covers all bytes as they came, the previews its two ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamEvidence {
    /// The sha256 of all bytes.
    pub sha256: Sha256Hex,
    /// How many bytes there were.
    pub bytes: u64,
    /// How many of them are kept in the store.
    pub kept_bytes: u64,
    /// Whether its end was seen; `false` where something held it open past our deadline.
    pub complete: bool,
    /// In how many places of what is kept and shown a secret of the caller was taken out.
    pub redacted: u64,
    /// The first [`PREVIEW_BYTES`], without secrets, escaped.
    pub preview: String,
    /// The last [`PREVIEW_BYTES`] of what follows the preview, without secrets, escaped.
    pub tail: String,
}

impl StreamEvidence {
    /// A stream of which nothing came.
    pub fn empty() -> Self {
        let (preview, tail) = (String::new(), String::new());
        Self { sha256: Sha256Hex::of(b""), bytes: 0, kept_bytes: 0, complete: true, redacted: 0, preview, tail }
    }
}

macro_rules! stream_fields {
    ($module:ident, $fields:ident, $sha:ident, $bytes:ident, $kept:ident, $complete:ident, $redacted:ident, $preview:ident, $tail:ident) => {
        /// The flat spelling of a [`StreamEvidence`].
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

            pub(super) fn serialize<S: Serializer>(s: &StreamEvidence, serializer: S) -> Result<S::Ok, S::Error> {
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

            pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<StreamEvidence, D::Error> {
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

/// What an attempt used, as the kernel counted it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Resources {
    /// CPU time in user mode, in milliseconds, of all waited-for processes.
    pub user_ms: u64,
    /// CPU time in the kernel, in milliseconds.
    pub system_ms: u64,
    /// The largest resident set of any of them, in KiB.
    pub max_rss_kib: u64,
    /// The most memory of all processes at one time, files in memory included, in KiB; `null`
    /// where no control group counts it.
    pub memory_peak_kib: Option<u64>,
    /// The limits that it ran into, whether it ended of that or not, as far as that can be seen.
    pub limits_hit: BTreeSet<LimitKind>,
}

/// The fold over the steps of a skill, or over the toolchain checks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// What they mean together.
    pub outcome: Outcome,
    /// The code that `proctor run` would end with if this were all.
    pub overall_exit_code: u8,
    /// The sum of the steps' durations, in milliseconds.
    pub duration_ms: u64,
}

/// `verify/_toolchain.json`: the checks that gate every skill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ToolchainEvidence {
    /// The version of the documents' format: [`VERSION`].
    #[schemars(extend("const" = VERSION))]
    pub version: u32,
    /// The changeset; `null` where the run had none.
    pub changeset_id: Option<ChangesetId>,
    /// The profile that was run.
    pub profile: ProfileName,
    /// What was to be done where controls are missing; `enforcement` of each check has what held.
    pub sandbox: SandboxMode,
    /// The sha256 of the spec's bytes.
    pub spec_sha256: Sha256Hex,
    /// The sha256 of the plan's canonical JSON.
    pub plan_sha256: Sha256Hex,
    /// The skills of the profile that the plan of this run left out; absent where it was the whole plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<SkillName>,
    /// The tree that the run verifies.
    pub repo_snapshot: SnapshotId,
    /// What git says of it.
    pub repo_git: GitIdentity,
    /// Which tree that is; where it is absent, the worktree.
    #[serde(default)]
    pub source: TreeSource,
    /// The checks, in order.
    pub checks: Vec<CheckEvidence>,
    /// The fold over them.
    pub summary: Summary,
    /// What the same inputs need not reproduce.
    pub measured: Measured,
    /// The sha256 of the stable part.
    pub sha256: Sha256Hex,
}

/// One toolchain check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckEvidence {
    /// The toolchain that it proves.
    pub toolchain: ToolchainName,
    /// What its version must be.
    pub demand: VersionDemand,
    /// The version that was read from its output; `null` where none could be.
    pub version_read: Option<String>,
    /// Whether the check holds: the command passed and the version satisfies the demand.
    pub satisfied: bool,
    /// The command and what was observed.
    #[serde(flatten)]
    pub step: StepEvidence,
}

/// An exit code in a document: `None` is written as -1; `null` is read too.
mod exit_code_field {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, clippy::ref_option, reason = "serde demands this signature")]
    pub(super) fn serialize<S: Serializer>(code: &Option<u8>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i16(code.map_or(-1, i16::from))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u8>, D::Error> {
        match Option::<i16>::deserialize(deserializer)? {
            None | Some(-1) => Ok(None),
            Some(code) => u8::try_from(code).map(Some).map_err(|_| D::Error::custom("an exit code is from -1 to 255")),
        }
    }
}

/// A document of ours that carries the hash of its stable part.
pub trait Document: Serialize {
    /// Whether the outputs of its commands belong to the stable part.
    fn outputs_are_stable(&self) -> bool;
    /// Where its `sha256` stands.
    fn seal_slot(&mut self) -> &mut Sha256Hex;
}

impl Document for SkillEvidence {
    fn outputs_are_stable(&self) -> bool {
        self.determinism == Determinism::D0
    }
    fn seal_slot(&mut self) -> &mut Sha256Hex {
        &mut self.sha256
    }
}

impl Document for ToolchainEvidence {
    fn outputs_are_stable(&self) -> bool {
        true
    }
    fn seal_slot(&mut self) -> &mut Sha256Hex {
        &mut self.sha256
    }
}

/// Fills in the document's `sha256`.
pub fn seal<D: Document>(mut document: D) -> D {
    let digest = Sha256Hex::of(&stable_part(&document).to_vec());
    *document.seal_slot() = digest;
    document
}

/// The bytes of a document as they stand in its file.
pub fn to_bytes<D: Document>(document: &D) -> Vec<u8> {
    canonical::to_vec(document)
}

/// The part of a document that the same inputs reproduce byte for byte: everything but
/// `sha256`, `measured`, `cached_from`, each `duration_ms`, `resources`, `leaked`, `mechanism`, `reason` and
/// `hint` of a control, and, where the determinism class lets the output differ, but what tells of
/// the output and of reports.
pub fn stable_part<D: Document>(document: &D) -> Json {
    let mut json = Json::of(document);
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
                steps.iter_mut().for_each(|step| strip_step(step, outputs));
            }
        }
    }
    json
}

fn strip_step(step: &mut Json, outputs: bool) {
    let is_output = |key: &str| key.starts_with("stdout_") || key.starts_with("stderr_") || key == "found_reports";
    let goes = |key: &str| matches!(key, "duration_ms" | "resources" | "leaked") || !outputs && is_output(key);
    remove_keys(step, goes);
    // That a control held is stable; by what, with which ids and paths of this host, is not.
    if let Some(Json::Object(controls)) = step.as_object_mut().and_then(|s| s.get_mut("enforcement")) {
        let goes = |key: &str| matches!(key, "mechanism" | "reason" | "hint");
        controls.values_mut().for_each(|control| remove_keys(control, goes));
    }
    if let Some(Json::Array(attempts)) = step.as_object_mut().and_then(|s| s.get_mut("earlier_attempts")) {
        attempts.iter_mut().for_each(|attempt| remove_keys(attempt, goes));
    }
}

fn remove_keys(json: &mut Json, goes: impl Fn(&str) -> bool) {
    if let Some(members) = json.as_object_mut() {
        members.retain(|key, _| !goes(key));
    }
}

/// Where a run's evidence stands: file name below the changeset → sha256 of the file's bytes.
pub type EvidenceIndex = BTreeMap<String, Sha256Hex>;

/// What one skill means as a whole, from its steps: the gravest of them.
pub fn fold_steps<'a>(steps: impl IntoIterator<Item = &'a Outcome>) -> Outcome {
    let rank = |outcome: &Outcome| match outcome {
        Outcome::Drifted => 6,
        Outcome::TimedOut => 5,
        Outcome::Failed => 4,
        Outcome::Cancelled => 3,
        Outcome::Inconclusive => 2,
        Outcome::Skipped => 1,
        Outcome::Passed => 0,
    };
    steps.into_iter().max_by_key(|outcome| rank(outcome)).copied().unwrap_or(Outcome::Skipped)
}

/// Why an effective tier is higher than the declared one, from what the steps did.
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

/// Names a step in messages: `skill/step`.
pub fn step_path(skill: &SkillName, step: &StepName) -> String {
    format!("{skill}/{step}")
}

/// Text from a step, made safe for a terminal and for JSON: valid UTF-8, control characters
/// but newline and tab shown as `\xNN`, bidirectional controls as `\u{NNNN}`.
pub fn escape_output(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\n' | '\t' => text.push(c),
                c if c.is_control() => text.push_str(&format!("\\x{:02x}", u32::from(c))),
                c if crate::safe_text::affects_display(c) => text.push_str(&format!("\\u{{{:04x}}}", u32::from(c))),
                c => text.push(c),
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_cannot_reach_a_terminal_unescaped() {
        assert_eq!(escape_output(b"a\x1b[31m\r\n\xff\x07\tb"), "a\\x1b[31m\\x0d\n\\xff\\x07\tb");
        assert_eq!(escape_output("\u{202e}x\u{9b}".as_bytes()), "\\u{202e}x\\x9b");
    }

    #[test]
    fn an_absent_exit_code_is_the_integer_minus_one() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Code(#[serde(with = "exit_code_field")] Option<u8>);
        for (code, text) in [(Some(0), "0"), (Some(255), "255"), (None, "-1")] {
            assert_eq!(serde_json::to_string(&Code(code)).expect("serialises"), text);
            assert_eq!(serde_json::from_str::<Code>(text).expect("deserialises"), Code(code));
        }
        assert_eq!(serde_json::from_str::<Code>("null").expect("earlier versions wrote it"), Code(None));
        for bad in ["-2", "256", "\"0\"", "1.5"] {
            assert!(serde_json::from_str::<Code>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_gravest_step_speaks_for_its_skill() {
        use Outcome::{Drifted, Failed, Inconclusive, Passed, Skipped};
        assert_eq!(fold_steps(&[Passed, Failed, Skipped]), Failed);
        assert_eq!(fold_steps(&[Drifted, Failed]), Drifted);
        assert_eq!(fold_steps(&[Passed, Inconclusive, Skipped]), Inconclusive);
        assert_eq!(fold_steps(&[]), Skipped);
    }
}

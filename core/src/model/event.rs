//! The events of a run, as a closed list. The log of a run consists of these events; output, streams and records are
//! computed from it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::{Problem, RecordedRequest};
use crate::decision::rerun::Rerun;
use crate::decision::verdict::{InconclusiveReason, Verdict};
use crate::model::enforcement::SandboxMode;
use crate::model::names::{ChangesetId, ProfileName, RunId, SkillName, StepName};
use crate::model::outcome::Outcome;
use crate::model::run_scope::RunScope;
use crate::model::tier::Tier;
use crate::record::evidence::{CheckEvidence, GitIdentity, StepEvidence, TreeSource};
use crate::record::run_reuse::RunReuse;
use crate::telemetry::TraceContext;
use crate::text::digest::{Sha256Hex, SnapshotId};

/// An event of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum RunEvent {
    /// The daemon accepted the run and queued it.
    RunQueued {
        /// ID of the run.
        run_id: RunId,
        /// Time of the event, RFC 3339 in UTC.
        at: String,
        /// The request, without the caller's environment.
        #[serde(alias = "asked")]
        request: RecordedRequest,
        /// User ID of the caller.
        uid: u32,
        /// The sha256 of everything that determines which toolchains the run uses: the caller's home directory, `PATH`,
        /// `CARGO_HOME`, `RUSTUP_HOME`, visible host paths, and the program files in the plan. Absent in logs of
        /// daemons that did not record it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        toolchain_env_sha256: Option<Sha256Hex>,
        /// The caller's trace span that is the parent of the run; absent if the caller sent none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        trace: Option<TraceContext>,
    },
    /// The plan is resolved and the snapshot is taken.
    RunStarted {
        /// ID of the run.
        run_id: RunId,
        /// Time when the run left the queue, before the snapshot was taken: RFC 3339 in UTC.
        at: String,
        /// The profile.
        profile: ProfileName,
        /// The changeset, if there is one.
        changeset_id: Option<ChangesetId>,
        /// The sha256 of the spec file.
        spec_sha256: Sha256Hex,
        /// The sha256 of the plan.
        plan_sha256: Sha256Hex,
        /// The verified tree.
        snapshot: SnapshotId,
        /// The kind of the verified tree.
        source: TreeSource,
        /// Git's description of the tree. Absent in logs of daemons that did not record it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        git: Option<GitIdentity>,
        /// The sha256 of the list of ignored files that the steps see in a private copy of the worktree. Absent if
        /// they see none, or see the worktree itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unverified_inputs_sha256: Option<Sha256Hex>,
        /// The sandbox mode, which determines how missing controls are handled.
        sandbox: SandboxMode,
        /// Number of toolchain checks.
        checks: u32,
        /// The skills and their steps, in order.
        skills: Vec<PlannedOutline>,
        /// The selection of skills for a request to run only those that had not passed; absent for other requests.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rerun: Option<Rerun>,
        /// The part of the profile that the run executes; absent if it executes all steps over all files.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        scope: Option<RunScope>,
    },
    /// A toolchain check has ended.
    CheckFinished {
        /// The evidence of the check.
        check: CheckEvidence,
    },
    /// A skill starts.
    SkillStarted {
        /// The skill.
        skill: SkillName,
    },
    /// An attempt of a step starts.
    StepStarted {
        /// The skill.
        skill: SkillName,
        /// The step.
        step: StepName,
        /// Number of the attempt, from 1.
        attempt: u32,
        /// Timeout, in milliseconds.
        timeout_ms: u64,
        /// Duration of the step when it last passed in this profile and repository, in milliseconds. It is an estimate,
        /// not a limit. Absent if it is not known or was less than a second.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expected_ms: Option<u64>,
    },
    /// An attempt is being terminated: all of its processes get SIGTERM.
    StepTerminating {
        /// The skill.
        skill: SkillName,
        /// The step.
        step: StepName,
        /// The reason.
        reason: EndReason,
        /// Time until SIGKILL, in milliseconds.
        grace_ms: u64,
    },
    /// An attempt failed and will be retried.
    StepRetrying {
        /// The skill.
        skill: SkillName,
        /// The step.
        step: StepName,
        /// Number of the failed attempt, from 1.
        attempt: u32,
        /// Outcome of the failed attempt.
        outcome: Outcome,
    },
    /// A step has ended.
    StepFinished {
        /// The skill.
        skill: SkillName,
        /// The evidence of the step.
        step: StepEvidence,
    },
    /// A skill has ended.
    SkillFinished {
        /// The skill.
        skill: SkillName,
        /// The combined outcome of the steps.
        outcome: Outcome,
        /// The effective tier.
        tier: Tier,
        /// The reason why the skill did not run as planned; empty if it did.
        reason: String,
    },
    /// A problem makes the run inconclusive.
    Doubted {
        /// The kind of the problem.
        doubt: InconclusiveReason,
        /// A human-readable sentence: the problem, its location, and the remedy.
        message: String,
    },
    /// A patch of the steps' changes was requested but cannot be created.
    PatchRefused {
        /// The reason, as a phrase.
        reason: String,
    },
    /// The request, the spec or the machine does not allow the run. `run_finished` follows.
    RunRefused {
        /// The reason, and the remedy.
        problem: Problem,
    },
    /// A caller or a signal cancels the run.
    Cancelling {
        /// The origin of the cancellation, such as `SIGINT`.
        by: String,
    },
    /// An evidence document was written durably.
    EvidenceWritten {
        /// Path of the document, relative to the changeset or to the run's directory in the state directory.
        file: String,
        /// The sha256 of the document.
        sha256: Sha256Hex,
    },
    /// The run has ended; this is the last event.
    RunFinished {
        /// The verdict.
        verdict: Verdict,
        /// The highest effective tier of the skills and checks.
        tier: Tier,
        /// The exit code of `proctor run`.
        exit_code: u8,
        /// Time from `at` of `run_started` to the end, in milliseconds; 0 if the run did not start.
        duration_ms: u64,
        /// Absolute path of the directory with the evidence; `null` if the run ended before there was any.
        evidence_dir: Option<String>,
        /// The reuse of results. Absent if the run ended before its steps, and in logs of earlier versions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reuse: Option<RunReuse>,
    },
}

/// A skill and the names of its steps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedOutline {
    /// The skill.
    pub skill: SkillName,
    /// The steps, in order.
    pub steps: Vec<StepName>,
}

/// The reason to terminate an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// The attempt reached its deadline.
    Timeout,
    /// The run was cancelled.
    Cancelled,
}

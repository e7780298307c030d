//! What happens in a run, as one closed list. The log of these is the truth about a run;
//! screens, streams and records are folds over it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::{Asked, Problem};
use crate::digest::{Sha256Hex, SnapshotId};
use crate::enforcement::SandboxMode;
use crate::evidence::{CheckEvidence, GitIdentity, StepEvidence, TreeSource};
use crate::names::{ChangesetId, ProfileName, RunId, SkillName, StepName};
use crate::outcome::Outcome;
use crate::rerun::Rerun;
use crate::telemetry::TraceContext;
use crate::tier::Tier;
use crate::verdict::{Doubt, Verdict};

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum RunEvent {
    /// A daemon has taken the run on, and it waits for its turn.
    RunQueued {
        /// The run.
        run_id: RunId,
        /// When, RFC 3339 in UTC.
        at: String,
        /// What was asked for, without the caller's environment.
        asked: Asked,
        /// The user who asked.
        uid: u32,
        /// The sha256 of which toolchains the run finds, and what decides that: the caller's home, `PATH`,
        /// `CARGO_HOME` and `RUSTUP_HOME`, what of the host is shown to steps, and what tells the files of
        /// the programs that the plan names from others. `None` in the logs of daemons before it was kept.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        toolchain_env_sha256: Option<Sha256Hex>,
        /// The span of the caller that the run is a part of; absent where the caller named none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        trace: Option<TraceContext>,
    },
    /// The plan stands, and the snapshot is taken.
    RunStarted {
        /// The run.
        run_id: RunId,
        /// When the turn of the run came, before the snapshot was taken: RFC 3339 in UTC.
        at: String,
        /// The profile.
        profile: ProfileName,
        /// The changeset, where there is one.
        changeset_id: Option<ChangesetId>,
        /// The spec.
        spec_sha256: Sha256Hex,
        /// The plan.
        plan_sha256: Sha256Hex,
        /// The tree that is verified.
        snapshot: SnapshotId,
        /// Which tree that is.
        source: TreeSource,
        /// What git says of it. `None` in the logs of daemons before it was kept.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        git: Option<GitIdentity>,
        /// The sha256 of the list of ignored files that the steps see in a private copy of the worktree. Absent where
        /// they see none, or the worktree itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unverified_inputs_sha256: Option<Sha256Hex>,
        /// What is done where controls are missing.
        sandbox: SandboxMode,
        /// How many toolchain checks there are.
        checks: u32,
        /// The skills with their steps, in order.
        skills: Vec<PlannedOutline>,
        /// What was made of it that only what had not passed was to run; absent where that was not asked for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rerun: Option<Rerun>,
    },
    /// A toolchain check has ended.
    CheckFinished {
        /// What it did.
        check: CheckEvidence,
    },
    /// A skill begins.
    SkillStarted {
        /// The skill.
        skill: SkillName,
    },
    /// An attempt of a step begins.
    StepStarted {
        /// The skill.
        skill: SkillName,
        /// The step.
        step: StepName,
        /// Which attempt, from 1.
        attempt: u32,
        /// When it must have ended, in milliseconds.
        timeout_ms: u64,
        /// How long the step took when it passed last in this profile of the repository, in milliseconds:
        /// something to expect, and no bound. `None` where that is not on record, or was less than a second.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expected_ms: Option<u64>,
    },
    /// An attempt is asked to end: SIGTERM to all of its processes.
    StepTerminating {
        /// The skill.
        skill: SkillName,
        /// The step.
        step: StepName,
        /// Why.
        reason: EndReason,
        /// How long it has until SIGKILL, in milliseconds.
        grace_ms: u64,
    },
    /// An attempt failed and will be repeated.
    StepRetrying {
        /// The skill.
        skill: SkillName,
        /// The step.
        step: StepName,
        /// The attempt that failed, from 1.
        attempt: u32,
        /// What it meant.
        outcome: Outcome,
    },
    /// A step has its outcome.
    StepFinished {
        /// The skill.
        skill: SkillName,
        /// What it did.
        step: StepEvidence,
    },
    /// A skill has its outcome.
    SkillFinished {
        /// The skill.
        skill: SkillName,
        /// What its steps mean together.
        outcome: Outcome,
        /// The effective tier.
        tier: Tier,
        /// Why it did not run as planned; empty where it did.
        reason: String,
    },
    /// Something makes an honest answer impossible.
    Doubted {
        /// What.
        doubt: Doubt,
        /// What happened, where, and what to do: a sentence for people.
        message: String,
    },
    /// What the steps changed was asked for as a patch, and cannot be written as one.
    PatchRefused {
        /// Why, as a phrase.
        reason: String,
    },
    /// There is nothing to verify, or nothing may be: the request, the spec or the machine does not
    /// allow a run. Its end follows.
    RunRefused {
        /// Why, and what to do.
        problem: Problem,
    },
    /// A caller or a signal asks the run to end.
    Cancelling {
        /// What asked, such as `SIGINT`.
        by: String,
    },
    /// A document is durable.
    EvidenceWritten {
        /// Its path: below the changeset, or below the run's directory in the state directory.
        file: String,
        /// The sha256 of its bytes.
        sha256: Sha256Hex,
    },
    /// The run has ended; nothing follows.
    RunFinished {
        /// What it means.
        verdict: Verdict,
        /// The highest effective tier of its skills and checks.
        tier: Tier,
        /// The exit code of `proctor run`.
        exit_code: u8,
        /// From the `at` of `run_started` to the end, in milliseconds; 0 where the run did not begin.
        duration_ms: u64,
        /// The directory that holds the evidence, as an absolute path; `null` where the run ended
        /// before there was any.
        evidence_dir: Option<String>,
    },
}

/// A skill and the names of its steps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedOutline {
    /// The skill.
    pub skill: SkillName,
    /// Its steps, in order.
    pub steps: Vec<StepName>,
}

/// Why an attempt is asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// Its deadline has come.
    Timeout,
    /// The run is cancelled.
    Cancelled,
}

//! The output of `proctor exec --format json`: the record and the verdict of one command.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decision::verdict::{InconclusiveDetail, Verdict};
use crate::model::enforcement::SandboxMode;
use crate::model::outcome::Outcome;
use crate::model::tier::{Tier, TierReason};
use crate::record::evidence::{StepEvidence, VERSION};

/// A single command that ran like a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExecRecord {
    /// Version of the document's format: [`VERSION`].
    #[schemars(extend("const" = VERSION))]
    pub version: u32,
    /// The requested behaviour if controls are missing; `enforcement` of the step lists what was enforced.
    pub sandbox: SandboxMode,
    /// The record of the command, as in the evidence of a skill.
    pub step: StepEvidence,
    /// The verdict.
    pub verdict: Verdict,
    /// The exit code of `proctor exec`, which differs from that of the command.
    pub exit_code: u8,
    /// The effective tier; the declared tier of a command is 1.
    pub tier: Tier,
    /// The reasons why it is higher.
    pub tier_reasons: BTreeSet<TierReason>,
    /// The reasons why the command is inconclusive, if it is.
    pub doubts: Vec<InconclusiveDetail>,
}

impl ExecRecord {
    /// Returns whether the command passed and a human reader needs nothing but its output: no process was left behind,
    /// no limit was met, no control was missing, nothing was changed, and the whole output was kept.
    pub fn is_plain_pass(&self) -> bool {
        let step = &self.step;
        let is_pass = self.verdict == Verdict::Passed && self.exit_code == 0 && step.outcome == Outcome::Passed;
        let is_whole = [&step.stdout, &step.stderr].iter().all(|stream| stream.kept_bytes == stream.bytes);
        let has_no_remark = self.doubts.is_empty()
            && step.leak_warning().is_none()
            && step.resources.limits_hit.is_empty()
            && step.enforcement.missing().next().is_none()
            && step.drift.found.changes.is_empty()
            && step.drift.found.omitted == 0;
        is_pass && is_whole && has_no_remark
    }
}

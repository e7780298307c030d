//! The output of `proctor exec --format json`: the record and the verdict of one command.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decision::verdict::{InconclusiveDetail, Verdict};
use crate::model::enforcement::SandboxMode;
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

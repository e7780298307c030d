//! What `proctor exec --format json` prints: one command's record, and what it means.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::enforcement::SandboxMode;
use crate::evidence::{StepEvidence, VERSION};
use crate::tier::{Tier, TierReason};
use crate::verdict::{Doubt, Verdict};

/// One command that ran by itself, as a step would have run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExecRecord {
    /// The version of the documents' format: [`VERSION`].
    #[schemars(extend("const" = VERSION))]
    pub version: u32,
    /// What was to be done where controls are missing; `enforcement` of the step has what held.
    pub sandbox: SandboxMode,
    /// What the command did, as in the evidence of a skill.
    pub step: StepEvidence,
    /// What it means.
    pub verdict: Verdict,
    /// The exit code of `proctor exec`, which is not that of the command.
    pub exit_code: u8,
    /// The effective tier; a command declares the lowest.
    pub tier: Tier,
    /// Why it is higher.
    pub tier_reasons: BTreeSet<TierReason>,
    /// Why no honest answer is possible, where that is so.
    pub doubts: Vec<DoubtRecord>,
}

/// One reason why no honest answer is possible.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DoubtRecord {
    /// Which.
    pub doubt: Doubt,
    /// What happened, where, and what to do.
    pub message: String,
}

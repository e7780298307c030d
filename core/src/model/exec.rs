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
    /// The reasons why the tier is higher.
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::decision::verdict::InconclusiveReason;
    use crate::model::enforcement::Control;
    use crate::model::leak::{LeakedProcess, LeakedProcesses};
    use crate::model::outcome::LimitKind;
    use crate::record::run_record::RunRecord;

    /// Returns the record of a command that passed, from the step of a recorded run.
    fn passed() -> ExecRecord {
        let mut run = RunRecord::default();
        for line in include_str!("../../../fixtures/logs/passed.jsonl").lines() {
            run.apply(serde_json::from_str(line).expect("an event"), Duration::ZERO);
        }
        let (_, step) = run.steps().next().expect("a step");
        ExecRecord {
            version: VERSION,
            sandbox: SandboxMode::Strict,
            step: step.clone(),
            verdict: Verdict::Passed,
            exit_code: 0,
            tier: Tier::ONE,
            tier_reasons: BTreeSet::new(),
            doubts: Vec::new(),
        }
    }

    #[test]
    fn pass_with_a_remark_is_not_plain() {
        assert!(passed().is_plain_pass());
        let changes: [fn(&mut ExecRecord); 10] = [
            |record| record.verdict = Verdict::Inconclusive,
            |record| record.exit_code = 1,
            |record| record.step.outcome = Outcome::Failed,
            |record| record.step.stdout.bytes += 1,
            |record| record.step.stderr.bytes += 1,
            |record| record.doubts.push(InconclusiveReason::Interrupted.with_message("x".to_owned())),
            |record| record.step.resources.limits_hit = BTreeSet::from([LimitKind::Memory]),
            |record| record.step.leaked = Some(LeakedProcesses::new(1, vec![LeakedProcess::new(2, b"sleep")])),
            |record| record.step.enforcement.record_not_enforced(Control::MemoryLimit, "no group"),
            |record| record.step.drift.found.omitted = 1,
        ];
        for (index, change) in changes.iter().enumerate() {
            let mut record = passed();
            change(&mut record);
            assert!(!record.is_plain_pass(), "change {index}");
        }
    }
}

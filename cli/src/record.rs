//! What a run's events say, folded into one value: the JSON document of `run --format json`
//! and what the human report is written from. A pure fold; it decides nothing.

use std::collections::BTreeMap;

use proctor_core::digest::{Sha256Hex, SnapshotId};
use proctor_core::enforcement::SandboxMode;
use proctor_core::event::{PlannedOutline, RunEvent};
use proctor_core::evidence::{CheckEvidence, StepEvidence, TreeSource};
use proctor_core::exec::DoubtRecord;
use proctor_core::names::{ChangesetId, ProfileName, RunId, SkillName, StepName};
use proctor_core::outcome::Outcome;
use proctor_core::tier::Tier;
use proctor_core::verdict::{Doubt, Verdict};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One run, as far as its events tell.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct RunRecord {
    /// How it began; `null` where it ended before a snapshot could be taken.
    pub started: Option<Started>,
    /// The toolchain checks, in order.
    pub checks: Vec<CheckEvidence>,
    /// The skills, in the order of the plan.
    pub skills: Vec<SkillRecord>,
    /// Why no honest answer is possible, where that is so.
    pub doubts: Vec<DoubtRecord>,
    /// What asked the run to end early, such as `SIGINT`; `null` where nothing did.
    pub cancelled_by: Option<String>,
    /// The durable documents: file → sha256 of its bytes.
    pub evidence: BTreeMap<String, Sha256Hex>,
    /// How it ended; `null` where its last event never came.
    pub finished: Option<Finished>,
}

/// How a run began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Started {
    /// The run.
    pub run_id: RunId,
    /// When, RFC 3339 in UTC.
    pub at: String,
    /// The profile.
    pub profile: ProfileName,
    /// The changeset, where there is one.
    pub changeset_id: Option<ChangesetId>,
    /// The spec.
    pub spec_sha256: Sha256Hex,
    /// The plan.
    pub plan_sha256: Sha256Hex,
    /// The tree that is verified.
    pub snapshot: SnapshotId,
    /// Which tree that is.
    pub source: TreeSource,
    /// What is done where controls of the sandbox are missing.
    pub sandbox: SandboxMode,
    /// How many toolchain checks there are.
    pub checks: u32,
}

/// One skill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct SkillRecord {
    /// Its name.
    pub skill: SkillName,
    /// The steps that the plan has, in order.
    pub planned: Vec<StepName>,
    /// The steps that have an outcome, in order.
    pub steps: Vec<StepEvidence>,
    /// What they mean together; `null` where the skill has not ended.
    pub outcome: Option<Outcome>,
    /// Its effective tier; `null` where it has not ended.
    pub tier: Option<Tier>,
    /// Why it did not run as planned; empty where it did.
    pub reason: String,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Finished {
    /// What it means.
    pub verdict: Verdict,
    /// The highest effective tier of its skills.
    pub tier: Tier,
    /// The exit code of `proctor run`.
    pub exit_code: u8,
    /// From start to end, in milliseconds.
    pub duration_ms: u64,
    /// The directory that holds the evidence, as an absolute path; `null` where there is none.
    pub evidence_dir: Option<String>,
}

impl RunRecord {
    /// Takes in the next event.
    pub(crate) fn apply(&mut self, event: RunEvent) {
        match event {
            RunEvent::RunStarted {
                run_id,
                at,
                profile,
                changeset_id,
                spec_sha256,
                plan_sha256,
                snapshot,
                source,
                sandbox,
                checks,
                skills,
            } => {
                self.skills = skills.into_iter().map(SkillRecord::planned).collect();
                self.started = Some(Started {
                    run_id,
                    at,
                    profile,
                    changeset_id,
                    spec_sha256,
                    plan_sha256,
                    snapshot,
                    source,
                    sandbox,
                    checks,
                });
            }
            RunEvent::CheckFinished { check } => self.checks.push(check),
            RunEvent::StepFinished { skill, step } => self.skill(&skill).steps.push(step),
            RunEvent::SkillFinished { skill, outcome, tier, reason } => {
                let record = self.skill(&skill);
                record.outcome = Some(outcome);
                record.tier = Some(tier);
                record.reason = reason;
            }
            RunEvent::Doubted { doubt, message } => self.doubts.push(DoubtRecord { doubt, message }),
            RunEvent::Cancelling { by } => self.cancelled_by = Some(by),
            RunEvent::EvidenceWritten { file, sha256 } => {
                self.evidence.insert(file, sha256);
            }
            RunEvent::RunFinished { verdict, tier, exit_code, duration_ms, evidence_dir } => {
                self.finished = Some(Finished { verdict, tier, exit_code, duration_ms, evidence_dir });
            }
            RunEvent::RunQueued { .. }
            | RunEvent::RunRefused { .. }
            | RunEvent::PatchRefused { .. }
            | RunEvent::SkillStarted { .. }
            | RunEvent::StepStarted { .. }
            | RunEvent::StepTerminating { .. }
            | RunEvent::StepRetrying { .. } => {}
        }
    }

    /// Takes in the reasons for doubt that the run ended with and no event named.
    pub(crate) fn add_doubts(&mut self, doubts: &[(Doubt, String)]) {
        for (doubt, message) in doubts {
            let record = DoubtRecord { doubt: *doubt, message: message.clone() };
            if !self.doubts.contains(&record) {
                self.doubts.push(record);
            }
        }
    }

    /// Every step that has an outcome, with its skill, in order.
    pub(crate) fn steps(&self) -> impl Iterator<Item = (&SkillName, &StepEvidence)> {
        self.skills.iter().flat_map(|skill| skill.steps.iter().map(move |step| (&skill.skill, step)))
    }

    fn skill(&mut self, name: &SkillName) -> &mut SkillRecord {
        let index = self.skills.iter().position(|record| record.skill == *name).unwrap_or_else(|| {
            self.skills.push(SkillRecord::planned(PlannedOutline { skill: name.clone(), steps: Vec::new() }));
            self.skills.len() - 1
        });
        &mut self.skills[index]
    }
}

impl SkillRecord {
    fn planned(outline: PlannedOutline) -> Self {
        let PlannedOutline { skill, steps } = outline;
        Self { skill, planned: steps, steps: Vec::new(), outcome: None, tier: None, reason: String::new() }
    }
}

//! What a run's events say, folded into one value: the JSON document of `run --format json`
//! and what every report is written from. A pure fold; it decides nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::digest::{Sha256Hex, SnapshotId};
use crate::enforcement::SandboxMode;
use crate::event::{PlannedOutline, RunEvent};
use crate::evidence::{CheckEvidence, GitIdentity, StepEvidence, TreeSource};
use crate::exec::DoubtRecord;
use crate::names::{ChangesetId, ProfileName, RunId, SkillName, StepName};
use crate::outcome::Outcome;
use crate::rerun::Rerun;
use crate::tier::Tier;
use crate::verdict::{Doubt, Verdict};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One run, as far as its events tell.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunRecord {
    /// How it began; `null` where it ended before a snapshot could be taken.
    pub started: Option<Started>,
    /// The toolchain checks, in order.
    pub checks: Vec<CheckEvidence>,
    /// When each of them ran, as who followed the run saw it.
    pub check_spans: Vec<Span>,
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
pub struct Started {
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
    /// What git says of it; `null` where the log of the run does not tell.
    pub git: Option<GitIdentity>,
    /// What is done where controls of the sandbox are missing.
    pub sandbox: SandboxMode,
    /// How many toolchain checks there are.
    pub checks: u32,
    /// What was made of it that only what had not passed was to run; `null` where that was not asked for.
    pub rerun: Option<Rerun>,
}

/// One skill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SkillRecord {
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
    /// When it ran, as who followed the run saw it; `null` where it never began.
    pub span: Option<Span>,
    /// When each attempt of its steps ran, in the order in which they began.
    pub attempts: Vec<AttemptSpan>,
}

/// A stretch of time, in milliseconds from the beginning of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Span {
    /// When it began.
    pub began_ms: u64,
    /// When it ended; `null` where it has not.
    pub ended_ms: Option<u64>,
}

/// When one attempt of a step ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AttemptSpan {
    /// The step.
    pub step: StepName,
    /// Which attempt, from 1.
    pub attempt: u32,
    /// When.
    #[serde(flatten)]
    pub span: Span,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finished {
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
    /// Takes in the next event, which was told `at` after the run began.
    pub fn apply(&mut self, event: RunEvent, at: Duration) {
        let at = u64::try_from(at.as_millis()).unwrap_or(u64::MAX);
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
                git,
                unverified_inputs_sha256: _,
                sandbox,
                checks,
                skills,
                rerun,
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
                    git,
                    sandbox,
                    checks,
                    rerun,
                });
            }
            RunEvent::CheckFinished { check } => {
                let began_ms = at.saturating_sub(check.step.duration_ms);
                self.check_spans.push(Span { began_ms, ended_ms: Some(at) });
                self.checks.push(check);
            }
            RunEvent::SkillStarted { skill } => {
                self.skill(&skill).span = Some(Span { began_ms: at, ended_ms: None });
            }
            // A toolchain check starts like a step of a skill that has not begun.
            RunEvent::StepStarted { skill, step, attempt, .. } => {
                if let Some(record) = self.begun(&skill) {
                    let span = Span { began_ms: at, ended_ms: None };
                    record.attempts.push(AttemptSpan { step, attempt, span });
                }
            }
            RunEvent::StepRetrying { skill, step, .. } => self.skill(&skill).attempt_ended(&step, at),
            RunEvent::StepFinished { skill, step } => {
                let record = self.skill(&skill);
                record.attempt_ended(&step.planned.name, at);
                record.steps.push(step);
            }
            RunEvent::SkillFinished { skill, outcome, tier, reason } => {
                let record = self.skill(&skill);
                if let Some(span) = &mut record.span {
                    span.ended_ms = Some(at);
                }
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
            | RunEvent::StepTerminating { .. } => {}
        }
    }

    /// Takes in the reasons for doubt that the run ended with and no event named.
    pub fn add_doubts(&mut self, doubts: &[(Doubt, String)]) {
        for (doubt, message) in doubts {
            let record = DoubtRecord { doubt: *doubt, message: message.clone() };
            if !self.doubts.contains(&record) {
                self.doubts.push(record);
            }
        }
    }

    /// What a reader of the verdict must know of a run that was asked to run only what had not passed, as a sentence.
    pub fn rerun_sentence(&self) -> Option<String> {
        let rerun = self.started.as_ref()?.rerun.as_ref()?;
        Some(rerun.sentence(self.skills.len()))
    }

    /// What the run left out, where it was a partial one.
    pub fn partial(&self) -> Option<&Rerun> {
        self.started.as_ref()?.rerun.as_ref().filter(|rerun| rerun.is_partial())
    }

    /// Every step that has an outcome, with its skill, in order.
    pub fn steps(&self) -> impl Iterator<Item = (&SkillName, &StepEvidence)> {
        self.skills.iter().flat_map(|skill| skill.steps.iter().map(move |step| (&skill.skill, step)))
    }

    fn begun(&mut self, name: &SkillName) -> Option<&mut SkillRecord> {
        self.skills.iter_mut().find(|record| record.skill == *name && record.span.is_some())
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
        Self {
            skill,
            planned: steps,
            steps: Vec::new(),
            outcome: None,
            tier: None,
            reason: String::new(),
            span: None,
            attempts: Vec::new(),
        }
    }

    fn attempt_ended(&mut self, step: &StepName, at: u64) {
        let running = self.attempts.iter_mut().rev().find(|attempt| attempt.step == *step);
        if let Some(attempt) = running {
            attempt.span.ended_ms.get_or_insert(at);
        }
    }
}

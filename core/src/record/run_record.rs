//! Folds the events of a run into one value: the JSON document of `run --format json`, and the source of every
//! report. It makes no decisions.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::api::Problem;
use crate::decision::rerun::Rerun;
use crate::decision::verdict::{InconclusiveDetail, Verdict};
use crate::model::enforcement::SandboxMode;
use crate::model::event::{PlannedOutline, RunEvent};
use crate::model::names::{ChangesetId, ProfileName, RunId, SkillName, StepName};
use crate::model::outcome::Outcome;
use crate::model::run_scope::RunScope;
use crate::model::tier::Tier;
use crate::record::evidence::{
    CACHED, CheckEvidence, GitIdentity, StepEvidence, TreeSource, cached_of_steps, covered_scope, step_path,
};
use crate::record::run_reuse::RunReuse;
use crate::text::digest::{Sha256Hex, SnapshotId};
use crate::text::humanize::duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A run, as described by its events.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunRecord {
    /// The start of the run; `null` if it ended before a snapshot was taken.
    pub started: Option<Started>,
    /// The toolchain checks, in order.
    pub checks: Vec<CheckEvidence>,
    /// The times of the toolchain checks, as observed by the process that recorded the run.
    pub check_spans: Vec<Span>,
    /// The skills, in the order of the plan.
    pub skills: Vec<SkillRecord>,
    /// The reasons why the run is inconclusive, if it is.
    pub doubts: Vec<InconclusiveDetail>,
    /// The signal or request that cancelled the run, such as `SIGINT`; `null` if it was not cancelled.
    pub cancelled_by: Option<String>,
    /// The evidence documents: file name → sha256 of its bytes.
    pub evidence: BTreeMap<String, Sha256Hex>,
    /// The end of the run; `null` if its last event is missing.
    pub finished: Option<Finished>,
    /// The reason why the run was refused; absent if it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
    /// The reason why a requested patch of the steps' changes is not available; absent if it is, or if none was
    /// requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch_refused: Option<String>,
    /// The step or toolchain check that started last; `None` after the end of the run.
    #[serde(skip)]
    latest_start: Option<(SkillName, StepName)>,
}

/// The start of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Started {
    /// The run's id.
    pub run_id: RunId,
    /// The start time, RFC 3339 in UTC.
    pub at: String,
    /// The profile.
    pub profile: ProfileName,
    /// The changeset, if there is one.
    pub changeset_id: Option<ChangesetId>,
    /// The sha256 of the spec.
    pub spec_sha256: Sha256Hex,
    /// The sha256 of the plan.
    pub plan_sha256: Sha256Hex,
    /// The snapshot that is verified.
    pub snapshot: SnapshotId,
    /// The source of the tree.
    pub source: TreeSource,
    /// The state of the git repository; `null` if the run's log does not contain it.
    pub git: Option<GitIdentity>,
    /// The sha256 of the list of ignored files that the steps see in a private copy of the worktree; absent if they see
    /// none, or see the worktree itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unverified_inputs_sha256: Option<Sha256Hex>,
    /// The behaviour if controls of the sandbox are missing.
    pub sandbox: SandboxMode,
    /// The number of toolchain checks.
    pub checks: u32,
    /// The selection of `--last-failed`; `null` if it was not given.
    pub rerun: Option<Rerun>,
    /// The part of the profile that the run executes; absent if it executes all steps over all files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<RunScope>,
}

/// A skill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SkillRecord {
    /// The name of the skill.
    pub skill: SkillName,
    /// The planned steps, in order.
    pub planned: Vec<StepName>,
    /// The steps that have an outcome, in order.
    pub steps: Vec<StepEvidence>,
    /// The combined outcome of the steps; `null` if the skill has not ended.
    pub outcome: Option<Outcome>,
    /// The effective tier; `null` if the skill has not ended.
    pub tier: Option<Tier>,
    /// The reason why it did not run as planned; empty if it did.
    pub reason: String,
    /// The time of the skill, as observed by the process that recorded the run; `null` if it never began.
    pub span: Option<Span>,
    /// The times of the attempts of the steps, in the order in which they began.
    pub attempts: Vec<AttemptSpan>,
}

/// A time span, in milliseconds since the start of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Span {
    /// The start.
    pub began_ms: u64,
    /// The end; `null` if the span has not ended.
    pub ended_ms: Option<u64>,
}

/// The time of one attempt of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AttemptSpan {
    /// The step.
    pub step: StepName,
    /// The number of the attempt, starting at 1.
    pub attempt: u32,
    /// The time of the attempt.
    #[serde(flatten)]
    pub span: Span,
}

/// The end of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finished {
    /// The verdict.
    pub verdict: Verdict,
    /// The highest effective tier of the skills.
    pub tier: Tier,
    /// The exit code of `proctor run`.
    pub exit_code: u8,
    /// The duration, in milliseconds.
    pub duration_ms: u64,
    /// The absolute path of the directory with the evidence; `null` if the run left no evidence.
    pub evidence_dir: Option<String>,
    /// The reuse of results; absent if the run ended before its steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reuse: Option<RunReuse>,
}

impl RunRecord {
    /// Adds the next event, which was received `at` after the start of the run.
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
                unverified_inputs_sha256,
                sandbox,
                checks,
                skills,
                rerun,
                scope,
            } => {
                self.skills = skills.into_iter().map(SkillRecord::from_outline).collect();
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
                    unverified_inputs_sha256,
                    sandbox,
                    checks,
                    rerun,
                    scope,
                });
            }
            RunEvent::CheckFinished { check } => {
                let began_ms = at.saturating_sub(check.step.duration_ms);
                self.check_spans.push(Span { began_ms, ended_ms: Some(at) });
                self.checks.push(check);
            }
            RunEvent::SkillStarted { skill } => {
                self.skill_mut(&skill).span = Some(Span { began_ms: at, ended_ms: None });
            }
            RunEvent::StepStarted { skill, step, attempt, .. } => {
                // The event of a toolchain check looks like a step of a skill that has not begun.
                if let Some(record) = self.started_skill_mut(&skill) {
                    let span = Span { began_ms: at, ended_ms: None };
                    record.attempts.push(AttemptSpan { step: step.clone(), attempt, span });
                }
                self.latest_start = Some((skill, step));
            }
            RunEvent::StepRetrying { skill, step, .. } => self.skill_mut(&skill).end_attempt(&step, at),
            RunEvent::StepFinished { skill, step } => {
                let record = self.skill_mut(&skill);
                record.end_attempt(&step.planned.name, at);
                record.steps.push(step);
            }
            RunEvent::SkillFinished { skill, outcome, tier, reason } => {
                let record = self.skill_mut(&skill);
                if let Some(span) = &mut record.span {
                    span.ended_ms = Some(at);
                }
                record.outcome = Some(outcome);
                record.tier = Some(tier);
                record.reason = reason;
            }
            RunEvent::Doubted { doubt, message } => {
                self.add_inconclusive_reasons(&[InconclusiveDetail { doubt, message }]);
            }
            RunEvent::Cancelling { by } => self.cancelled_by = Some(by),
            RunEvent::EvidenceWritten { file, sha256 } => {
                self.evidence.insert(file, sha256);
            }
            RunEvent::RunFinished { verdict, tier, exit_code, duration_ms, evidence_dir, reuse } => {
                self.finished = Some(Finished { verdict, tier, exit_code, duration_ms, evidence_dir, reuse });
                self.latest_start = None;
            }
            RunEvent::RunRefused { problem } => self.problem = Some(problem),
            RunEvent::PatchRefused { reason } => self.patch_refused = Some(reason),
            RunEvent::RunQueued { .. } | RunEvent::StepTerminating { .. } => {}
        }
    }

    /// Adds reasons for an inconclusive verdict that are known at the end of the run and had no event.
    pub fn add_inconclusive_reasons(&mut self, doubts: &[InconclusiveDetail]) {
        for detail in doubts {
            if !self.doubts.contains(detail) {
                self.doubts.push(detail.clone());
            }
        }
    }

    /// Returns a sentence about the selection of the run's steps and files, which readers need to interpret the verdict.
    pub fn selection_sentence(&self) -> Option<String> {
        let started = self.started.as_ref()?;
        let rerun = started.rerun.as_ref().map(|rerun| rerun.sentence(self.skills.len()));
        rerun.or_else(|| self.scope().map(RunScope::sentence))
    }

    /// Returns whether the run covers only a part of the profile or of the files.
    pub fn is_partial(&self) -> bool {
        self.partial_rerun().is_some() || self.scope().is_some()
    }

    /// Returns the selection if the run left out skills.
    pub fn partial_rerun(&self) -> Option<&Rerun> {
        self.started.as_ref()?.rerun.as_ref().filter(|rerun| rerun.is_partial())
    }

    /// Returns the part of the profile that the run covers; `None` if it covers all. A restriction to some files counts
    /// until the run has ended, and then only if it left out files that had not passed.
    pub fn scope(&self) -> Option<&RunScope> {
        let scope = self.started.as_ref()?.scope.as_ref()?;
        match self.finished {
            None => Some(scope),
            Some(_) => covered_scope(Some(scope), self.steps().map(|(_, step)| step)),
        }
    }

    /// Returns every step that has an outcome, with its skill, in order.
    pub fn steps(&self) -> impl Iterator<Item = (&SkillName, &StepEvidence)> {
        self.skills.iter().flat_map(|skill| skill.steps.iter().map(move |step| (&skill.skill, step)))
    }

    /// Returns the number of steps whose result was reused.
    pub fn cached_steps(&self) -> usize {
        self.skills.iter().map(SkillRecord::cached_steps).sum()
    }

    /// Returns the number of steps whose result was reused, as a phrase with the keys of other machines; `None` if there
    /// are none.
    pub fn cached_phrase(&self) -> Option<String> {
        let cached = self.cached_steps();
        let mut by_key: BTreeMap<String, usize> = BTreeMap::new();
        let origins = self.steps().filter_map(|(_, step)| step.reused.as_ref()?.origin.as_ref());
        origins.for_each(|origin| *by_key.entry(origin.short_key()).or_default() += 1);
        let keys = by_key.iter().map(|(key, count)| format!("{count} from {key}")).collect::<Vec<_>>().join(", ");
        let keys = if keys.is_empty() { keys } else { format!(" ({keys})") };
        (cached > 0).then(|| format!("{cached} {CACHED}{keys}"))
    }

    /// Returns a sentence about the steps whose result was reused; `None` if there are none.
    pub fn cached_sentence(&self) -> Option<String> {
        let cached = cached_of_steps(self.cached_steps(), self.steps().count())?;
        Some(format!("{cached}: not executed, because everything that an earlier execution read is unchanged"))
    }

    /// Returns a sentence for each step that checked only some of its files again, or whose `per_file` is wrong.
    pub fn files_sentences(&self) -> impl Iterator<Item = String> {
        let steps = self.steps();
        steps.filter_map(|(skill, step)| {
            Some(format!("{}: {}", step_path(skill, &step.planned.name), step.files_note()?))
        })
    }

    /// Returns a sentence for each step that looked for files that are not its inputs, or whose `inputs` were not enforced.
    pub fn inputs_sentences(&self) -> impl Iterator<Item = String> {
        let steps = self.steps();
        steps.filter_map(|(skill, step)| {
            Some(format!("{} {}", step_path(skill, &step.planned.name), step.inputs_note()?))
        })
    }

    /// Returns the step or toolchain check that started last; `None` before the first one and after the end of the run.
    pub fn latest_start(&self) -> Option<(&SkillName, &StepName)> {
        self.latest_start.as_ref().map(|(skill, step)| (skill, step))
    }

    fn started_skill_mut(&mut self, name: &SkillName) -> Option<&mut SkillRecord> {
        self.skills.iter_mut().find(|record| record.skill == *name && record.span.is_some())
    }

    fn skill_mut(&mut self, name: &SkillName) -> &mut SkillRecord {
        let index = self.skills.iter().position(|record| record.skill == *name).unwrap_or_else(|| {
            self.skills.push(SkillRecord::from_outline(PlannedOutline { skill: name.clone(), steps: Vec::new() }));
            self.skills.len() - 1
        });
        &mut self.skills[index]
    }
}

impl SkillRecord {
    fn from_outline(outline: PlannedOutline) -> Self {
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

    /// Returns whether the result of every step was reused, so nothing of the skill was executed.
    pub fn is_cached(&self) -> bool {
        !self.steps.is_empty() && self.steps.iter().all(StepEvidence::is_cached)
    }

    /// Returns the number of steps whose result was reused.
    pub fn cached_steps(&self) -> usize {
        self.steps.iter().filter(|step| step.is_cached()).count()
    }

    /// Returns the duration of the steps together; [`CACHED`] if none of them was executed.
    pub fn time_text(&self) -> String {
        let spent = self.steps.iter().fold(0, |sum: u64, step| sum.saturating_add(step.duration_ms));
        if self.is_cached() { CACHED.to_owned() } else { duration(spent) }
    }

    fn end_attempt(&mut self, step: &StepName, at: u64) {
        let running = self.attempts.iter_mut().rev().find(|attempt| attempt.step == *step);
        if let Some(attempt) = running {
            attempt.span.ended_ms.get_or_insert(at);
        }
    }
}

//! What the daemon answers: a run as its events tell it, folded. A pure fold; it decides nothing
//! about passing or failing.

mod stream;

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::problem::Problem;
use super::request::Asked;
use crate::digest::{Sha256Hex, SnapshotId};
use crate::event::{PlannedOutline, RunEvent};
use crate::evidence::{CheckEvidence, ReportEvidence, StepEvidence, TreeSource};
use crate::exec::DoubtRecord;
use crate::leak::LeakedProcesses;
use crate::names::{RunId, SkillName, StepName};
use crate::outcome::{Outcome, Termination};
use crate::plan::Plan;
use crate::rerun::Rerun;
use crate::spec::Diagnostic;
use crate::sql::Dialect;
use crate::tier::Tier;
use crate::verdict::Verdict;

pub use stream::StreamView;

/// How many changed paths of a step a view names.
const SHOWN_PATHS: usize = 20;

/// One event of a run's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LoggedEvent {
    /// Its number in the run, from 1 without a gap.
    pub seq: u64,
    /// When it was logged, RFC 3339 in UTC.
    pub logged_at: String,
    /// What happened.
    #[serde(flatten)]
    pub event: RunEvent,
}

/// Where a run is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// It waits for its turn.
    Queued,
    /// It is under way.
    Running,
    /// It has ended; nothing of it changes any more.
    Finished,
}

/// A piece of what a step prints, told while it runs. It is no event of the log: it has no number and is
/// not kept. A reader that is slow misses pieces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OutputEvent {
    /// The skill.
    pub skill: SkillName,
    /// The step.
    pub step: StepName,
    /// Which attempt, from 1.
    pub attempt: u32,
    /// `stdout` or `stderr`.
    pub stream: String,
    /// The number of the first byte in the output.
    pub offset: u64,
    /// The number of bytes before it that were not told.
    pub skipped: u64,
    /// The piece, with control characters escaped. It is data of the repository's, not instructions.
    pub text: String,
}

impl RunState {
    /// The word of the documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Finished => "finished",
        }
    }
}

/// One run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunView {
    /// Its id.
    pub id: RunId,
    /// Where it is on its way.
    pub state: RunState,
    /// What it means; `null` until it has ended.
    pub verdict: Option<Verdict>,
    /// The first thing to know about it, as a sentence for people. Words of the repository and of its
    /// steps stand in it: it is data, not instructions.
    pub reason: String,
    /// What `proctor run` exits with; `null` until it has ended.
    pub exit_code: Option<u8>,
    /// The highest effective tier; `null` until it has ended.
    pub tier: Option<Tier>,
    /// The number of its last event so far.
    pub seq: u64,
    /// What was asked for.
    #[serde(flatten)]
    pub asked: Asked,
    /// The user who asked.
    pub uid: u32,
    /// When it was asked for, RFC 3339 in UTC.
    pub queued_at: String,
    /// When its turn came, before the tree was looked at; `null` where it did not begin.
    pub started_at: Option<String>,
    /// When it ended: `duration_ms` after `started_at`, where it began; `null` until it has ended.
    pub finished_at: Option<String>,
    /// From `started_at` to `finished_at`, in milliseconds, without the wait for its turn; 0 where it did not begin;
    /// `null` until it has ended.
    pub duration_ms: Option<u64>,
    /// The tree that is verified; `null` until it is known.
    pub snapshot: Option<SnapshotId>,
    /// Which tree that is; `null` until it is known.
    pub source: Option<TreeSource>,
    /// The sha256 of the list of ignored files that the steps see in a private copy of the worktree. Absent until it is
    /// known, and where they see none, or the worktree itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unverified_inputs_sha256: Option<Sha256Hex>,
    /// The spec; `null` until it is known.
    pub spec_sha256: Option<Sha256Hex>,
    /// The plan; `null` until it is known.
    pub plan_sha256: Option<Sha256Hex>,
    /// What was made of it that only what had not passed was to run; absent where that was not asked for, and until it
    /// is known. A run that left skills out says nothing of the whole profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rerun: Option<Rerun>,
    /// The toolchain checks that have ended, in order.
    pub checks: Vec<StepView>,
    /// The steps of the plan, in its order.
    pub steps: Vec<StepView>,
    /// Why no honest answer is possible, where that is so.
    pub doubts: Vec<DoubtRecord>,
    /// Why there was no run, where that is so.
    pub problem: Option<Problem>,
    /// What asked it to end early; `null` where nothing did.
    pub cancelled_by: Option<String>,
    /// Why what its steps changed cannot be had as a patch, where that was asked for and is so.
    #[serde(default)]
    pub patch_refused: Option<String>,
    /// The durable documents: file → sha256 of its bytes.
    pub evidence: BTreeMap<String, Sha256Hex>,
    /// The directory that holds them, as an absolute path.
    pub evidence_dir: Option<String>,
}

/// One step of a run, or one toolchain check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StepView {
    /// Its number, from 0: among the steps of the plan, or among the checks.
    pub n: u32,
    /// Its skill; the toolchain of a check.
    pub skill: String,
    /// Its name; the command of a check.
    pub name: String,
    /// The dialect of the SQL that it judges; absent where it runs a command, and until it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sql: Option<Dialect>,
    /// What it means; `null` until it has ended.
    pub outcome: Option<Outcome>,
    /// Which attempt runs or ran, from 1; 0 where none began.
    pub attempt: u32,
    /// How it ended; `null` until it has.
    pub termination: Option<Termination>,
    /// The code as a shell has it; `null` where no process ended by itself or by a signal.
    pub exit_code: Option<u8>,
    /// How long it took, in milliseconds; `null` until it has ended.
    pub duration_ms: Option<u64>,
    /// The paths that it changed and must not; the first ones.
    pub changed: Vec<String>,
    /// How many more there are.
    pub changed_more: u64,
    /// Its standard output; `null` until it has ended.
    pub stdout: Option<StreamView>,
    /// Its standard error; `null` until it has ended.
    pub stderr: Option<StreamView>,
    /// What it left of the reports that it declares; absent where that is nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub found_reports: Vec<ReportEvidence>,
    /// The processes that it left behind; absent where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaked: Option<LeakedProcesses>,
}

impl StepView {
    fn waiting(n: usize, skill: &str, name: &str) -> Self {
        Self {
            n: u32::try_from(n).unwrap_or(u32::MAX),
            skill: skill.to_owned(),
            name: name.to_owned(),
            sql: None,
            outcome: None,
            attempt: 0,
            termination: None,
            exit_code: None,
            duration_ms: None,
            changed: Vec::new(),
            changed_more: 0,
            stdout: None,
            stderr: None,
            found_reports: Vec::new(),
            leaked: None,
        }
    }

    fn of_check(n: usize, check: &CheckEvidence) -> Self {
        let command = check.step.planned.cmd.words().join(" ");
        let mut view = Self { attempt: 1, ..Self::waiting(n, check.toolchain.as_str(), &command) };
        view.end(&check.step);
        view
    }

    fn end(&mut self, evidence: &StepEvidence) {
        let found = &evidence.drift.found;
        self.sql = evidence.planned.sql;
        self.outcome = Some(evidence.outcome);
        self.termination = Some(evidence.termination.clone());
        self.exit_code = evidence.exit_code;
        self.duration_ms = Some(evidence.duration_ms);
        self.changed = found.changes.iter().take(SHOWN_PATHS).map(|change| change.path.clone()).collect();
        self.changed_more = (found.changes.len() - self.changed.len()) as u64 + found.omitted;
        self.stdout = Some(StreamView::from(&evidence.stdout));
        self.stderr = Some(StreamView::from(&evidence.stderr));
        self.found_reports.clone_from(&evidence.found_reports);
        self.leaked.clone_from(&evidence.leaked);
    }

    /// Why it did not pass, as a sentence; `None` where it passed or has not ended.
    pub fn why(&self) -> Option<String> {
        let outcome = self.outcome.filter(|outcome| *outcome != Outcome::Passed)?;
        let manner = match (outcome, &self.termination) {
            (Outcome::Drifted, _) => format!("changed what it must not: {}", self.paths()),
            (_, Some(Termination::NotStarted { reason, .. })) => format!("{}: {reason}", self.manner()),
            _ => self.manner(),
        };
        Some(format!("{}/{} {manner}", self.skill, self.name))
    }

    /// How it ended, as a phrase that follows its name, in our own words alone.
    pub fn manner(&self) -> String {
        let Some(termination) = &self.termination else { return "has no end on record".to_owned() };
        match &self.leaked {
            Some(leaked) => format!("{} and left {} behind", termination.phrase(), leaked.number()),
            None => termination.phrase(),
        }
    }

    fn paths(&self) -> String {
        let more = self.changed_more + self.changed.len().saturating_sub(3) as u64;
        let named = self.changed.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
        if more == 0 { named } else { format!("{named} and {more} more") }
    }
}

impl RunView {
    /// Whether it left skills of its profile out: then it says nothing of the whole profile.
    pub fn is_partial(&self) -> bool {
        self.rerun.as_ref().is_some_and(Rerun::is_partial)
    }

    /// A run that was just taken on: what its first event says.
    pub fn queued(id: RunId, at: String, asked: Asked, uid: u32) -> Self {
        Self {
            id,
            state: RunState::Queued,
            verdict: None,
            reason: "it waits for its turn".to_owned(),
            exit_code: None,
            tier: None,
            seq: 0,
            asked,
            uid,
            queued_at: at,
            started_at: None,
            finished_at: None,
            duration_ms: None,
            snapshot: None,
            source: None,
            unverified_inputs_sha256: None,
            spec_sha256: None,
            plan_sha256: None,
            rerun: None,
            checks: Vec::new(),
            steps: Vec::new(),
            doubts: Vec::new(),
            problem: None,
            cancelled_by: None,
            patch_refused: None,
            evidence: BTreeMap::new(),
            evidence_dir: None,
        }
    }

    /// The run that a log tells of; `None` where its first event does not say what was asked for.
    pub fn fold<'a>(log: impl IntoIterator<Item = &'a LoggedEvent>) -> Option<Self> {
        let mut log = log.into_iter();
        let first = log.next()?;
        let RunEvent::RunQueued { run_id, at, asked, uid, .. } = &first.event else { return None };
        let mut view = Self::queued(run_id.clone(), at.clone(), asked.clone(), *uid);
        view.seq = first.seq;
        log.for_each(|logged| view.apply(logged));
        Some(view)
    }

    /// Takes in the next event.
    pub fn apply(&mut self, logged: &LoggedEvent) {
        self.seq = logged.seq;
        match &logged.event {
            RunEvent::RunQueued { .. } | RunEvent::SkillStarted { .. } | RunEvent::StepTerminating { .. } => {}
            RunEvent::RunStarted {
                at,
                snapshot,
                source,
                unverified_inputs_sha256,
                spec_sha256,
                plan_sha256,
                skills,
                rerun,
                ..
            } => {
                self.state = RunState::Running;
                self.reason = "it is under way".to_owned();
                self.started_at = Some(at.clone());
                self.snapshot = Some(snapshot.clone());
                self.source = Some(source.clone());
                self.unverified_inputs_sha256.clone_from(unverified_inputs_sha256);
                self.spec_sha256 = Some(spec_sha256.clone());
                self.plan_sha256 = Some(plan_sha256.clone());
                self.rerun.clone_from(rerun);
                self.steps = planned(skills);
            }
            RunEvent::CheckFinished { check } => self.checks.push(StepView::of_check(self.checks.len(), check)),
            RunEvent::StepStarted { skill, step, attempt, .. } => {
                self.change(skill, step, |view| view.attempt = *attempt);
                self.reason = format!("{skill}/{step} runs");
            }
            RunEvent::StepRetrying { skill, step, attempt, .. } => {
                self.change(skill, step, |view| view.attempt = attempt + 1);
            }
            RunEvent::StepFinished { skill, step } => self.change(skill, &step.planned.name, |view| view.end(step)),
            RunEvent::SkillFinished { .. } => {}
            RunEvent::Doubted { doubt, message } => {
                let record = DoubtRecord { doubt: *doubt, message: message.clone() };
                if !self.doubts.contains(&record) {
                    self.doubts.push(record);
                }
            }
            RunEvent::PatchRefused { reason } => self.patch_refused = Some(reason.clone()),
            RunEvent::RunRefused { problem } => self.problem = Some(problem.clone()),
            RunEvent::Cancelling { by } => self.cancelled_by = Some(by.clone()),
            RunEvent::EvidenceWritten { file, sha256 } => {
                self.evidence.insert(file.clone(), sha256.clone());
            }
            RunEvent::RunFinished { verdict, tier, exit_code, duration_ms, evidence_dir } => {
                self.state = RunState::Finished;
                self.verdict = Some(*verdict);
                self.tier = Some(*tier);
                self.exit_code = Some(*exit_code);
                self.duration_ms = Some(*duration_ms);
                let ended_at = self.started_at.as_deref().and_then(|began| later(began, *duration_ms));
                self.finished_at = Some(ended_at.unwrap_or_else(|| logged.logged_at.clone()));
                self.evidence_dir.clone_from(evidence_dir);
                let partial = self.rerun.as_ref().and_then(Rerun::phrase);
                self.reason = partial.map_or_else(|| self.why(), |partial| format!("{}; {partial}", self.why()));
            }
        }
    }

    /// The first thing to know about a run that has ended.
    fn why(&self) -> String {
        let steps = || self.checks.iter().chain(&self.steps);
        let failed = steps().filter(|step| step.outcome.is_some_and(Outcome::is_failure)).find_map(StepView::why);
        let problem = || self.problem.as_ref().map(|problem| problem.detail.clone());
        let doubt = || self.doubts.first().map(|doubt| doubt.message.clone());
        let unsure = || steps().find_map(StepView::why);
        let passed = || {
            let count = self.steps.iter().filter(|step| step.outcome == Some(Outcome::Passed)).count();
            all_passed(count)
        };
        failed.or_else(problem).or_else(doubt).or_else(unsure).unwrap_or_else(passed)
    }

    /// Changes the view of a step. Commands that the plan has no step for are toolchain checks, which
    /// are seen when they have ended.
    fn change(&mut self, skill: &SkillName, step: &StepName, change: impl FnOnce(&mut StepView)) {
        let mut steps = self.steps.iter_mut();
        if let Some(view) = steps.find(|view| view.skill == skill.as_str() && view.name == step.as_str()) {
            change(view);
        }
    }

    /// The run as lists show it.
    pub fn summary(&self) -> RunSummary {
        RunSummary {
            id: self.id.clone(),
            state: self.state,
            verdict: self.verdict,
            reason: self.reason.clone(),
            exit_code: self.exit_code,
            tier: self.tier,
            asked: self.asked.clone(),
            uid: self.uid,
            queued_at: self.queued_at.clone(),
            started_at: self.started_at.clone(),
            finished_at: self.finished_at.clone(),
            duration_ms: self.duration_ms,
            snapshot: self.snapshot.clone(),
        }
    }
}

/// Returns the time that is `ms` milliseconds after `at`, in RFC 3339; `None` where `at` is no such time.
fn later(at: &str, ms: u64) -> Option<String> {
    let time = humantime::parse_rfc3339(at).ok()?.checked_add(Duration::from_millis(ms))?;
    Some(humantime::format_rfc3339_millis(time).to_string())
}

/// That a run passed, in words.
pub fn all_passed(steps: usize) -> String {
    match steps {
        1 => "its one step passed".to_owned(),
        steps => format!("all {steps} steps passed"),
    }
}

fn planned(skills: &[PlannedOutline]) -> Vec<StepView> {
    let steps = skills.iter().flat_map(|outline| outline.steps.iter().map(move |step| (&outline.skill, step)));
    steps.enumerate().map(|(n, (skill, step))| StepView::waiting(n, skill.as_str(), step.as_str())).collect()
}

/// One run, as lists show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunSummary {
    /// Its id.
    pub id: RunId,
    /// Where it is on its way.
    pub state: RunState,
    /// What it means; `null` until it has ended.
    pub verdict: Option<Verdict>,
    /// The first thing to know about it.
    pub reason: String,
    /// What `proctor run` exits with; `null` until it has ended.
    pub exit_code: Option<u8>,
    /// The highest effective tier; `null` until it has ended.
    pub tier: Option<Tier>,
    /// What was asked for.
    #[serde(flatten)]
    pub asked: Asked,
    /// The user who asked.
    pub uid: u32,
    /// When it was asked for, RFC 3339 in UTC.
    pub queued_at: String,
    /// When its turn came, before the tree was looked at; `null` where it did not begin.
    pub started_at: Option<String>,
    /// When it ended: `duration_ms` after `started_at`, where it began; `null` until it has ended.
    pub finished_at: Option<String>,
    /// From `started_at` to `finished_at`, in milliseconds, without the wait for its turn; 0 where it did not begin;
    /// `null` until it has ended.
    pub duration_ms: Option<u64>,
    /// The tree that is verified; `null` until it is known.
    pub snapshot: Option<SnapshotId>,
}

/// The answer of `GET /v1/runs`: newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunPage {
    /// The runs.
    pub runs: Vec<RunSummary>,
    /// What `cursor` must be for the next page; `null` where there is none.
    pub next_cursor: Option<String>,
}

/// The answer of `POST /v1/runs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Submitted {
    /// How the request was met.
    pub how: How,
    /// The run.
    pub run: RunView,
}

/// How a request for a run was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// A new run waits for its turn, or is under way.
    Queued,
    /// The same was asked for already, and its run has not ended.
    Joined,
    /// An earlier run of this very tree passed, and its evidence still stands.
    Verified,
    /// The request carries the `Idempotency-Key` of an earlier one.
    Repeated,
}

/// The answer of `GET /v1/runs/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Watched {
    /// The run.
    #[serde(flatten)]
    pub run: RunView,
    /// The events after the one that `after` names, where that was given; a bounded number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<Vec<LoggedEvent>>,
    /// Whether there are more events than these already; absent where there are none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more_events: bool,
}

/// The answer of `POST /v1/plans`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlanAnswer {
    /// The spec.
    pub spec_sha256: Sha256Hex,
    /// What probably is not meant, sorted by where it stands.
    pub warnings: Vec<Diagnostic>,
    /// The names of the profiles.
    pub profiles: Vec<String>,
    /// The plan; `null` where no profile was named.
    pub plan: Option<Plan>,
    /// The sha256 of the plan's canonical JSON; `null` where no profile was named.
    pub plan_sha256: Option<Sha256Hex>,
}

/// The answer of `GET /healthz`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Health {
    /// Whether new runs are taken on.
    pub status: HealthStatus,
    /// The daemon's version.
    pub version: String,
    /// The daemon's process.
    pub pid: u32,
    /// The daemon's user.
    pub uid: u32,
    /// How long it has been running, in milliseconds.
    pub uptime_ms: u64,
    /// How many runs there are.
    pub runs: RunCounts,
}

/// Whether new runs are taken on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HealthStatus {
    /// They are.
    Ok,
    /// The daemon ends when those that are under way have ended.
    Draining,
}

/// The answer of `GET /readyz`, if the daemon takes new runs on. If it does not, the answer is a problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Readiness {
    /// Always `ready`.
    pub status: ReadinessStatus,
    /// Free bytes on the disk of the state directory; `null` if the system does not say.
    pub state_free_bytes: Option<u64>,
}

/// Whether the daemon takes new runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReadinessStatus {
    /// It does: it is not ending, and it can write to its state directory.
    Ready,
}

/// How many runs there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunCounts {
    /// Those that wait for their turn.
    pub queued: u32,
    /// Those that are under way.
    pub running: u32,
}

#[cfg(test)]
mod tests;

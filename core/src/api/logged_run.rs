//! A run as its log describes it. The state of the run is that of [`RunRecord`]; this module adds what only the log
//! contains and derives the responses of the API. It does not decide whether a run passed.

use std::time::{Duration, SystemTime};

use super::request::RecordedRequest;
use super::view::{LoggedEvent, RunState, RunSummary, RunView, StepView, all_passed_message};
use crate::decision::rerun::Rerun;
use crate::model::event::RunEvent;
use crate::model::names::{RunId, StepName};
use crate::model::outcome::Outcome;
use crate::model::run_scope::RunScope;
use crate::record::run_record::{RunRecord, SkillRecord};
use crate::record::run_reuse::count_steps;

/// A run, up to the last event that was applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedRun {
    id: RunId,
    request: RecordedRequest,
    uid: u32,
    queued_at: String,
    seq: u64,
    last_logged_at: String,
    record: RunRecord,
}

impl LoggedRun {
    /// Creates a queued run without events from the data of its first event.
    pub fn new_queued(id: RunId, at: String, request: RecordedRequest, uid: u32) -> Self {
        Self { id, request, uid, last_logged_at: at.clone(), queued_at: at, seq: 0, record: RunRecord::default() }
    }

    /// Reads a log; `None` if it does not start with the request.
    pub fn from_log<'a>(log: impl IntoIterator<Item = &'a LoggedEvent>) -> Option<Self> {
        let mut log = log.into_iter();
        let first = log.next()?;
        let RunEvent::RunQueued { run_id, at, request, uid, .. } = &first.event else { return None };
        let mut run = Self::new_queued(run_id.clone(), at.clone(), request.clone(), *uid);
        run.apply(first);
        log.for_each(|logged| run.apply(logged));
        Some(run)
    }

    /// Applies the next event.
    pub fn apply(&mut self, logged: &LoggedEvent) {
        self.seq = logged.seq;
        self.last_logged_at.clone_from(&logged.logged_at);
        let started_at = match &logged.event {
            RunEvent::RunStarted { at, .. } => at,
            _ => self.started_at().unwrap_or(&self.queued_at),
        };
        let offset = elapsed(started_at, &logged.logged_at).unwrap_or_default();
        self.record.apply(logged.event.clone(), offset);
    }

    /// Returns the id.
    pub fn id(&self) -> &RunId {
        &self.id
    }

    /// Returns the request.
    pub fn request(&self) -> &RecordedRequest {
        &self.request
    }

    /// Returns the user ID of the caller.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Returns the time of the request, RFC 3339 in UTC.
    pub fn queued_at(&self) -> &str {
        &self.queued_at
    }

    /// Returns the time when the run left the queue, RFC 3339 in UTC; `None` if it did not start.
    pub fn started_at(&self) -> Option<&str> {
        self.record.started.as_ref().map(|started| started.at.as_str())
    }

    /// Returns the milliseconds from the start of the run to `end`, RFC 3339; 0 if the run did not start.
    pub fn elapsed_ms(&self, end: &str) -> u64 {
        let elapsed = self.started_at().and_then(|started| elapsed(started, end));
        elapsed.map_or(0, |elapsed| u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX))
    }

    /// Returns the time at which the last event was logged, RFC 3339 in UTC.
    pub fn last_logged_at(&self) -> &str {
        &self.last_logged_at
    }

    /// Returns the sequence number of the last event.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Returns the record. Its times count from the start of the run; before that, from the request.
    pub fn record(&self) -> &RunRecord {
        &self.record
    }

    /// Returns the record.
    pub fn into_record(self) -> RunRecord {
        self.record
    }

    /// Returns the state.
    pub fn state(&self) -> RunState {
        match (&self.record.started, &self.record.finished) {
            (_, Some(_)) => RunState::Finished,
            (Some(_), None) => RunState::Running,
            (None, None) => RunState::Queued,
        }
    }

    /// Returns the view.
    pub fn view(&self) -> RunView {
        self.view_with(self.checks().collect(), self.steps().collect())
    }

    /// Returns the summary for lists.
    pub fn summary(&self) -> RunSummary {
        let has_ended = self.state() == RunState::Finished;
        let planned = self.record.skills.iter().filter(|_| has_ended).flat_map(|skill| {
            let result_of = |step: &StepName| skill.steps.iter().find(|evidence| evidence.planned.name == *step);
            skill.planned.iter().filter_map(result_of)
        });
        let (steps, cached_steps) = count_steps(planned);
        RunSummary { steps, cached_steps, ..self.view_with(Vec::new(), Vec::new()).summary() }
    }

    fn view_with(&self, checks: Vec<StepView>, steps: Vec<StepView>) -> RunView {
        let record = &self.record;
        let (started, finished) = (record.started.as_ref(), record.finished.as_ref());
        RunView {
            id: self.id.clone(),
            state: self.state(),
            verdict: finished.map(|finished| finished.verdict),
            reason: self.reason(),
            exit_code: finished.map(|finished| finished.exit_code),
            tier: finished.map(|finished| finished.tier),
            seq: self.seq,
            request: self.request.clone(),
            uid: self.uid,
            queued_at: self.queued_at.clone(),
            started_at: self.started_at().map(str::to_owned),
            finished_at: self.finished_at(),
            duration_ms: finished.map(|finished| finished.duration_ms),
            snapshot: started.map(|started| started.snapshot.clone()),
            source: started.map(|started| started.source.clone()),
            unverified_inputs_sha256: started.and_then(|started| started.unverified_inputs_sha256.clone()),
            spec_sha256: started.map(|started| started.spec_sha256.clone()),
            plan_sha256: started.map(|started| started.plan_sha256.clone()),
            rerun: self.rerun().cloned(),
            scope: self.record.scope().cloned(),
            checks,
            steps,
            doubts: record.doubts.clone(),
            problem: record.problem.clone(),
            cancelled_by: record.cancelled_by.clone(),
            patch_refused: record.patch_refused.clone(),
            evidence: record.evidence.clone(),
            evidence_dir: finished.and_then(|finished| finished.evidence_dir.clone()),
            reuse: finished.and_then(|finished| finished.reuse.clone()),
        }
    }

    fn rerun(&self) -> Option<&Rerun> {
        self.record.started.as_ref()?.rerun.as_ref()
    }

    fn checks(&self) -> impl Iterator<Item = StepView> {
        self.record.checks.iter().enumerate().map(|(n, check)| StepView::from_check(n, check))
    }

    /// Returns the planned steps in order.
    fn steps(&self) -> impl Iterator<Item = StepView> {
        let planned = self.record.skills.iter().flat_map(|skill| skill.planned.iter().map(move |step| (skill, step)));
        planned.enumerate().map(|(n, (skill, step))| {
            let SkillRecord { skill, steps, attempts, .. } = skill;
            let evidence = steps.iter().find(|evidence| evidence.planned.name == *step);
            let attempt = attempts.iter().rev().find(|attempt| attempt.step == *step).map_or(0, |last| last.attempt);
            StepView::new(n, skill.as_str(), step.as_str(), attempt, evidence)
        })
    }

    fn finished_at(&self) -> Option<String> {
        let duration_ms = self.record.finished.as_ref()?.duration_ms;
        let ended_at = self.started_at().and_then(|started| add_milliseconds(started, duration_ms));
        Some(ended_at.unwrap_or_else(|| self.last_logged_at.clone()))
    }

    /// Returns the most important fact about the run.
    fn reason(&self) -> String {
        match self.state() {
            RunState::Finished => match self.partial_phrase() {
                Some(partial) => format!("{}; {partial}", self.outcome_reason()),
                None => self.outcome_reason(),
            },
            RunState::Queued | RunState::Running => match self.record.latest_start() {
                Some((skill, step)) => format!("{skill}/{step} runs"),
                None if self.state() == RunState::Queued => "it waits for its turn".to_owned(),
                None => "it is running".to_owned(),
            },
        }
    }

    /// Returns a phrase that marks a run of a part of the profile or of the files.
    fn partial_phrase(&self) -> Option<String> {
        self.rerun().and_then(Rerun::phrase).or_else(|| self.record.scope().map(RunScope::phrase))
    }

    /// Returns the most important fact about a run that has ended.
    fn outcome_reason(&self) -> String {
        let steps = || self.checks().chain(self.steps());
        let failed =
            steps().filter(|step| step.outcome.is_some_and(Outcome::is_failure)).find_map(|step| step.failure_reason());
        let problem = || self.record.problem.as_ref().map(|problem| problem.detail.clone());
        let doubt = || self.record.doubts.first().map(|doubt| doubt.message.clone());
        let unsure = || steps().find_map(|step| step.failure_reason());
        let passed = || {
            let passed = self.steps().filter(|step| step.outcome == Some(Outcome::Passed)).count();
            all_passed_message(passed, self.record.cached_steps())
        };
        failed.or_else(problem).or_else(doubt).or_else(unsure).unwrap_or_else(passed)
    }
}

/// Returns the time between two RFC 3339 times; `None` if one is invalid or they are in the wrong order.
fn elapsed(from: &str, to: &str) -> Option<Duration> {
    let time = |text| -> Option<SystemTime> { humantime::parse_rfc3339(text).ok() };
    time(to)?.duration_since(time(from)?).ok()
}

/// Returns the time `ms` milliseconds after `at`, in RFC 3339; `None` if `at` is not a valid time.
fn add_milliseconds(at: &str, ms: u64) -> Option<String> {
    let time = humantime::parse_rfc3339(at).ok()?.checked_add(Duration::from_millis(ms))?;
    Some(humantime::format_rfc3339_millis(time).to_string())
}

#[cfg(test)]
mod tests;

//! Builds the spans of a run from its record: the run, its toolchain checks, its skills and their steps.
//!
//! A span contains names, outcomes, codes and times. It contains no output, command, environment or path, because
//! more people can read a trace than the record of a run.

use std::time::UNIX_EPOCH;

use super::{RunTrace, SpanId};
use crate::evidence::{CheckEvidence, StepEvidence, TreeSource};
use crate::names::{RunId, StepName};
use crate::outcome::{Outcome, Termination};
use crate::record::{AttemptSpan, RunRecord, SkillRecord, Span as Stretch, Started};
use crate::verdict::Verdict;

/// Maximum number of attempts of a step that become events of its span.
const MAX_ATTEMPTS: usize = 32;
const NANOS_PER_MS: u64 = 1_000_000;

/// A span, without its trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The id of the span.
    pub id: SpanId,
    /// The parent span. For the run, this is the span of the caller, if there is one.
    pub parent: Option<SpanId>,
    /// The name of the span, of low cardinality.
    pub name: String,
    /// Start time, in nanoseconds since 1970.
    pub start_ns: u64,
    /// End time, in nanoseconds since 1970.
    pub end_ns: u64,
    /// The attributes of the span.
    pub attributes: Vec<Attribute>,
    /// Events in the span.
    pub events: Vec<SpanEvent>,
    /// The reason why it failed; `None` if it succeeded.
    pub error: Option<String>,
}

/// An event in a span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpanEvent {
    /// The name of the event.
    pub name: &'static str,
    /// The time of the event, in nanoseconds since 1970.
    pub at_ns: u64,
    /// The attributes of the event.
    pub attributes: Vec<Attribute>,
}

/// The name and the value of an attribute.
pub type Attribute = (&'static str, Value);

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A text.
    Text(String),
    /// Several texts.
    Texts(Vec<String>),
    /// A number.
    Number(i64),
    /// A boolean.
    Flag(bool),
}

/// The times of a run, and other facts that its record lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunTimes {
    /// The start of the record's time offsets, in milliseconds since 1970.
    pub base_ms: u64,
    /// The time of the request for the run, in milliseconds since 1970.
    pub asked_ms: u64,
    /// The time of its last event, in milliseconds since 1970.
    pub ended_ms: u64,
    /// The time that it waited in the queue, in milliseconds; `None` if there was no queue.
    pub queued_ms: Option<u64>,
    /// The last component of the repository's path.
    pub repository: Option<String>,
    /// The requested profile.
    pub profile: String,
    /// The code of the problem that prevented the run, if it did not start.
    pub problem: Option<String>,
}

/// Returns the spans of a finished run, the run first.
pub fn spans(record: &RunRecord, times: &RunTimes, trace: &RunTrace) -> Vec<Span> {
    let builder = Builder { record, times, trace };
    let mut spans = vec![builder.run()];
    let checks = record.checks.iter().zip(&record.check_spans);
    spans.extend(checks.map(|(check, stretch)| builder.check(check, *stretch)));
    for skill in &record.skills {
        let Some(stretch) = skill.span else { continue };
        spans.push(builder.skill(skill, stretch));
        spans.extend(skill.planned.iter().filter_map(|step| builder.step(skill, step)));
    }
    spans
}

struct Builder<'a> {
    record: &'a RunRecord,
    times: &'a RunTimes,
    trace: &'a RunTrace,
}

impl Builder<'_> {
    fn run(&self) -> Span {
        let (start_ns, end_ns) = (nanos(self.times.asked_ms), nanos(self.times.ended_ms.max(self.times.asked_ms)));
        let began = self.record.started.as_ref().and_then(|started| {
            let since = humantime::parse_rfc3339(&started.at).ok()?.duration_since(UNIX_EPOCH).ok()?;
            let at_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX).clamp(start_ns, end_ns);
            Some(SpanEvent { name: "run started", at_ns, attributes: Vec::new() })
        });
        Span {
            id: self.trace.run_span(),
            parent: self.trace.parent().map(super::TraceContext::span),
            name: "proctor run".to_owned(),
            start_ns,
            end_ns,
            attributes: self.run_attributes(),
            events: began.into_iter().collect(),
            error: self.run_error(),
        }
    }

    fn run_error(&self) -> Option<String> {
        let verdict = self.record.finished.as_ref().map_or(Verdict::Inconclusive, |finished| finished.verdict);
        let why = match &self.times.problem {
            Some(problem) => vec![problem.clone()],
            None => self.doubts(),
        };
        let why = if why.is_empty() { String::new() } else { format!(": {}", why.join(", ")) };
        (verdict != Verdict::Passed).then(|| format!("{}{why}", verdict.as_str()))
    }

    fn run_attributes(&self) -> Vec<Attribute> {
        let (record, times) = (self.record, self.times);
        let mut attributes = Attributes::default();
        attributes.text("proctor.run.id", self.trace.run().as_str());
        attributes.text("cicd.pipeline.run.id", self.trace.run().as_str());
        attributes.text("proctor.profile", &times.profile);
        attributes.text("cicd.pipeline.name", &times.profile);
        attributes.maybe_text("proctor.repository.name", times.repository.as_deref());
        attributes.maybe_number("proctor.run.queue_ms", times.queued_ms);
        if let Some(started) = &record.started {
            attributes.started(started);
        }
        if let Some(finished) = &record.finished {
            attributes.text("proctor.verdict", finished.verdict.as_str());
            attributes.text("cicd.pipeline.result", result_of(finished.verdict, record.cancelled_by.is_some()));
            attributes.number("proctor.exit_code", u64::from(finished.exit_code));
            attributes.number("proctor.tier", u64::from(u8::from(finished.tier)));
            attributes.number("proctor.run.execution_ms", finished.duration_ms);
        }
        attributes.maybe_text("proctor.problem", times.problem.as_deref());
        let doubts = self.doubts();
        if !doubts.is_empty() {
            attributes.0.push(("proctor.doubts", Value::Texts(doubts)));
        }
        attributes.0
    }

    /// Returns the codes of the reasons why the run is inconclusive, without the messages.
    fn doubts(&self) -> Vec<String> {
        let mut codes: Vec<String> = Vec::new();
        for code in self.record.doubts.iter().map(|record| record.doubt.as_str()) {
            if !codes.iter().any(|known| known == code) {
                codes.push(code.to_owned());
            }
        }
        codes
    }

    fn check(&self, check: &CheckEvidence, stretch: Stretch) -> Span {
        let step = &check.step;
        let mut attributes = Attributes::default();
        attributes.text("proctor.toolchain", check.toolchain.as_str());
        attributes.text("proctor.step", step.planned.name.as_str());
        attributes.flag("proctor.check.satisfied", check.satisfied);
        attributes.step(step);
        let why = match step.outcome {
            Outcome::Passed => "the version is not the one that is demanded".to_owned(),
            _ => error_of(step),
        };
        Span {
            id: self.trace.step_span(check.toolchain.as_str(), &step.planned.name),
            parent: Some(self.trace.run_span()),
            name: format!("check {}", check.toolchain),
            start_ns: self.at(stretch.began_ms),
            end_ns: self.end(stretch),
            attributes: attributes.0,
            events: Vec::new(),
            error: (!check.satisfied).then_some(why),
        }
    }

    fn skill(&self, skill: &SkillRecord, stretch: Stretch) -> Span {
        let mut attributes = Attributes::default();
        attributes.text("proctor.skill", skill.skill.as_str());
        attributes.maybe_text("proctor.outcome", skill.outcome.map(Outcome::as_str));
        attributes.maybe_number("proctor.tier", skill.tier.map(|tier| u64::from(u8::from(tier))));
        Span {
            id: self.trace.skill_span(&skill.skill),
            parent: Some(self.trace.run_span()),
            name: format!("skill {}", skill.skill),
            start_ns: self.at(stretch.began_ms),
            end_ns: self.end(stretch),
            attributes: attributes.0,
            events: Vec::new(),
            error: skill.outcome.map_or_else(|| Some("did not end".to_owned()), failure),
        }
    }

    /// Returns the span of a step; `None` if no attempt of it began.
    fn step(&self, skill: &SkillRecord, name: &StepName) -> Option<Span> {
        let attempts: Vec<&AttemptSpan> = skill.attempts.iter().filter(|attempt| attempt.step == *name).collect();
        let (first, last) = (attempts.first()?, attempts.last()?);
        let evidence = skill.steps.iter().find(|step| step.planned.name == *name);
        let mut attributes = Attributes::default();
        attributes.text("proctor.skill", skill.skill.as_str());
        attributes.text("proctor.step", name.as_str());
        attributes.text("cicd.pipeline.task.name", name.as_str());
        attributes.number("proctor.step.attempts", attempts.len() as u64);
        if let Some(evidence) = evidence {
            attributes.step(evidence);
        }
        Some(Span {
            id: self.trace.step_span(skill.skill.as_str(), name),
            parent: Some(self.trace.skill_span(&skill.skill)),
            name: format!("step {name}"),
            start_ns: self.at(first.span.began_ms),
            end_ns: self.end(last.span),
            attributes: attributes.0,
            events: self.attempts(&attempts, evidence),
            error: match evidence {
                Some(step) => failure(step.outcome).map(|_| error_of(step)),
                None => Some("did not end".to_owned()),
            },
        })
    }

    /// Returns an event for each attempt of a step that was retried.
    fn attempts(&self, attempts: &[&AttemptSpan], evidence: Option<&StepEvidence>) -> Vec<SpanEvent> {
        if attempts.len() < 2 {
            return Vec::new();
        }
        let outcome = |index: usize| {
            let earlier = evidence?.earlier_attempts.get(index).map(|attempt| attempt.outcome);
            earlier.or_else(|| evidence.map(|step| step.outcome))
        };
        let event = |(index, attempt): (usize, &&AttemptSpan)| {
            let mut attributes = Attributes::default();
            attributes.number("proctor.attempt", u64::from(attempt.attempt));
            attributes.maybe_text("proctor.outcome", outcome(index).map(Outcome::as_str));
            SpanEvent { name: "attempt started", at_ns: self.at(attempt.span.began_ms), attributes: attributes.0 }
        };
        attempts.iter().enumerate().take(MAX_ATTEMPTS).map(event).collect()
    }

    fn at(&self, offset_ms: u64) -> u64 {
        nanos(self.times.base_ms.saturating_add(offset_ms))
    }

    /// Returns the end of a time span; one without an end lasts until the run ends.
    fn end(&self, stretch: Stretch) -> u64 {
        let end = stretch.ended_ms.map_or_else(|| nanos(self.times.ended_ms), |ended| self.at(ended));
        end.max(self.at(stretch.began_ms))
    }
}

impl RunTrace {
    fn run(&self) -> &RunId {
        &self.run
    }
}

/// Collects attributes.
#[derive(Default)]
struct Attributes(Vec<Attribute>);

impl Attributes {
    fn text(&mut self, name: &'static str, value: &str) {
        self.0.push((name, Value::Text(value.to_owned())));
    }

    fn maybe_text(&mut self, name: &'static str, value: Option<&str>) {
        self.0.extend(value.map(|value| (name, Value::Text(value.to_owned()))));
    }

    fn number(&mut self, name: &'static str, value: u64) {
        self.0.push((name, Value::Number(i64::try_from(value).unwrap_or(i64::MAX))));
    }

    fn maybe_number(&mut self, name: &'static str, value: Option<u64>) {
        if let Some(value) = value {
            self.number(name, value);
        }
    }

    fn flag(&mut self, name: &'static str, value: bool) {
        self.0.push((name, Value::Flag(value)));
    }

    fn started(&mut self, started: &Started) {
        self.maybe_text("proctor.changeset.id", started.changeset_id.as_ref().map(|id| id.as_str()));
        self.text("proctor.spec.sha256", started.spec_sha256.as_str());
        self.text("proctor.plan.sha256", started.plan_sha256.as_str());
        self.text("proctor.snapshot", started.snapshot.as_str());
        let head = started.git.as_ref().and_then(|git| git.head_commit.as_deref());
        let (source, tree, commit) = match &started.source {
            TreeSource::Worktree { tree } => ("worktree", Some(tree.as_str()), head),
            TreeSource::Rev { commit, .. } => ("rev", None, Some(commit.as_str())),
        };
        self.text("proctor.source", source);
        self.maybe_text("proctor.source.tree", tree);
        self.maybe_text("vcs.ref.head.revision", commit);
        self.flag("proctor.run.partial", started.rerun.as_ref().is_some_and(|rerun| rerun.is_partial()));
    }

    /// Adds the termination and the resource use of a command.
    fn step(&mut self, step: &StepEvidence) {
        self.text("proctor.outcome", step.outcome.as_str());
        self.text("proctor.step.termination", termination_word(&step.termination));
        self.maybe_number("process.exit.code", step.termination.exit_code().map(u64::from));
        if let Termination::LimitHit { limit, .. } = step.termination {
            self.text("proctor.step.limit", limit.as_str());
        }
        self.number("proctor.step.execution_ms", step.duration_ms);
        self.flag("proctor.step.flaky", step.flaky);
        if step.outcome != Outcome::Passed {
            self.text("error.type", step.outcome.as_str());
        }
    }
}

/// Returns the result of a run as defined by OpenTelemetry's conventions for CI/CD.
fn result_of(verdict: Verdict, is_cancelled: bool) -> &'static str {
    match verdict {
        Verdict::Passed => "success",
        Verdict::Failed => "failure",
        Verdict::Inconclusive if is_cancelled => "cancellation",
        Verdict::Inconclusive => "error",
    }
}

fn termination_word(termination: &Termination) -> &'static str {
    match termination {
        Termination::Exited { .. } => "exited",
        Termination::Signaled { .. } => "signaled",
        Termination::TimedOut { .. } => "timed_out",
        Termination::LimitHit { .. } => "limit_hit",
        Termination::Cancelled => "cancelled",
        Termination::NotStarted { .. } => "not_started",
    }
}

/// Returns the error for an outcome; `None` for a pass.
fn failure(outcome: Outcome) -> Option<String> {
    (outcome != Outcome::Passed).then(|| outcome.as_str().to_owned())
}

/// Returns the outcome of a step and how its process ended. The text contains nothing from the repository.
fn error_of(step: &StepEvidence) -> String {
    format!("{}: {}", step.outcome.as_str(), step.termination.phrase())
}

fn nanos(ms: u64) -> u64 {
    ms.saturating_mul(NANOS_PER_MS)
}

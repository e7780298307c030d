//! Builds the spans of a run from its record: the run, its toolchain checks, its skills and their steps.
//!
//! A span contains names, outcomes, codes and times. It contains no output, command, environment or path, because
//! more people can read a trace than the record of a run.

use std::time::UNIX_EPOCH;

use super::span_attributes::SpanAttributes;
use super::{AttributeValue, RunTrace, SpanAttribute, SpanEvent, TraceSpan};
use crate::decision::verdict::Verdict;
use crate::model::names::{RunId, StepName};
use crate::model::outcome::{Outcome, Termination};
use crate::record::evidence::{CheckEvidence, StepEvidence, TreeSource};
use crate::record::run_record::{AttemptSpan, RunRecord, SkillRecord, Span as Stretch, Started};

/// Maximum number of attempts of a step that become events of its span.
const MAX_ATTEMPTS: usize = 32;
const NANOS_PER_MS: u64 = 1_000_000;

/// The times of a run, and other facts that its record lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunTimes {
    /// The start of the record's time offsets, in milliseconds since 1970.
    pub base_ms: u64,
    /// The time of the request for the run, in milliseconds since 1970.
    pub requested_ms: u64,
    /// The time of the last event, in milliseconds since 1970.
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
pub fn build_spans(record: &RunRecord, times: &RunTimes, trace: &RunTrace) -> Vec<TraceSpan> {
    let builder = SpanBuilder { record, times, trace };
    let mut spans = vec![builder.run_span()];
    let checks = record.checks.iter().zip(&record.check_spans);
    spans.extend(checks.map(|(check, stretch)| builder.check_span(check, *stretch)));
    for skill in &record.skills {
        let Some(stretch) = skill.span else { continue };
        spans.push(builder.skill_span(skill, stretch));
        spans.extend(skill.planned.iter().filter_map(|step| builder.step_span(skill, step)));
    }
    spans
}

struct SpanBuilder<'a> {
    record: &'a RunRecord,
    times: &'a RunTimes,
    trace: &'a RunTrace,
}

impl SpanBuilder<'_> {
    fn run_span(&self) -> TraceSpan {
        let (start_ns, end_ns) =
            (to_nanoseconds(self.times.requested_ms), to_nanoseconds(self.times.ended_ms.max(self.times.requested_ms)));
        let began = self.record.started.as_ref().and_then(|started| {
            let since = humantime::parse_rfc3339(&started.at).ok()?.duration_since(UNIX_EPOCH).ok()?;
            let at_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX).clamp(start_ns, end_ns);
            Some(SpanEvent { name: "run started", at_ns, attributes: Vec::new() })
        });
        TraceSpan {
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
            None => self.inconclusive_codes(),
        };
        let why = if why.is_empty() { String::new() } else { format!(": {}", why.join(", ")) };
        (verdict != Verdict::Passed).then(|| format!("{}{why}", verdict.as_str()))
    }

    fn run_attributes(&self) -> Vec<SpanAttribute> {
        let (record, times) = (self.record, self.times);
        let mut attributes = SpanAttributes::default();
        attributes.push_text("proctor.run.id", self.trace.run_id().as_str());
        attributes.push_text("cicd.pipeline.run.id", self.trace.run_id().as_str());
        attributes.push_text("proctor.profile", &times.profile);
        attributes.push_text("cicd.pipeline.name", &times.profile);
        attributes.push_optional_text("proctor.repository.name", times.repository.as_deref());
        attributes.push_optional_number("proctor.run.queue_ms", times.queued_ms);
        if let Some(started) = &record.started {
            attributes.add_run_start(started);
        }
        if let Some(finished) = &record.finished {
            attributes.push_text("proctor.verdict", finished.verdict.as_str());
            attributes
                .push_text("cicd.pipeline.result", pipeline_result(finished.verdict, record.cancelled_by.is_some()));
            attributes.push_number("proctor.exit_code", u64::from(finished.exit_code));
            attributes.push_number("proctor.tier", u64::from(u8::from(finished.tier)));
            attributes.push_number("proctor.run.execution_ms", finished.duration_ms);
        }
        attributes.push_optional_text("proctor.problem", times.problem.as_deref());
        let doubts = self.inconclusive_codes();
        if !doubts.is_empty() {
            attributes.0.push(("proctor.doubts", AttributeValue::Texts(doubts)));
        }
        attributes.0
    }

    /// Returns the codes of the reasons why the run is inconclusive, without the messages.
    fn inconclusive_codes(&self) -> Vec<String> {
        let mut codes: Vec<String> = Vec::new();
        for code in self.record.doubts.iter().map(|record| record.doubt.as_str()) {
            if !codes.iter().any(|known| known == code) {
                codes.push(code.to_owned());
            }
        }
        codes
    }

    fn check_span(&self, check: &CheckEvidence, stretch: Stretch) -> TraceSpan {
        let step = &check.step;
        let mut attributes = SpanAttributes::default();
        attributes.push_text("proctor.toolchain", check.toolchain.as_str());
        attributes.push_text("proctor.step", step.planned.name.as_str());
        attributes.push_flag("proctor.check.satisfied", check.satisfied);
        attributes.add_step(step);
        let why = match step.outcome {
            Outcome::Passed => "the version is not the required one".to_owned(),
            _ => step_error(step),
        };
        TraceSpan {
            id: self.trace.step_span(check.toolchain.as_str(), &step.planned.name),
            parent: Some(self.trace.run_span()),
            name: format!("check {}", check.toolchain),
            start_ns: self.offset_ns(stretch.began_ms),
            end_ns: self.end_ns(stretch),
            attributes: attributes.0,
            events: Vec::new(),
            error: (!check.satisfied).then_some(why),
        }
    }

    fn skill_span(&self, skill: &SkillRecord, stretch: Stretch) -> TraceSpan {
        let mut attributes = SpanAttributes::default();
        attributes.push_text("proctor.skill", skill.skill.as_str());
        attributes.push_optional_text("proctor.outcome", skill.outcome.map(Outcome::as_str));
        attributes.push_optional_number("proctor.tier", skill.tier.map(|tier| u64::from(u8::from(tier))));
        TraceSpan {
            id: self.trace.skill_span(&skill.skill),
            parent: Some(self.trace.run_span()),
            name: format!("skill {}", skill.skill),
            start_ns: self.offset_ns(stretch.began_ms),
            end_ns: self.end_ns(stretch),
            attributes: attributes.0,
            events: Vec::new(),
            error: skill.outcome.map_or_else(|| Some("did not end".to_owned()), outcome_error),
        }
    }

    /// Returns the span of a step; `None` if no attempt of it began. The span of a cached step has no length.
    fn step_span(&self, skill: &SkillRecord, name: &StepName) -> Option<TraceSpan> {
        let attempts: Vec<&AttemptSpan> = skill.attempts.iter().filter(|attempt| attempt.step == *name).collect();
        let evidence = skill.steps.iter().find(|step| step.planned.name == *name);
        let stretch = match (attempts.first(), attempts.last()) {
            (Some(first), Some(last)) => Stretch { began_ms: first.span.began_ms, ended_ms: last.span.ended_ms },
            _ => {
                let began_ms = evidence.filter(|step| step.is_cached()).and(skill.span)?.began_ms;
                Stretch { began_ms, ended_ms: Some(began_ms) }
            }
        };
        let mut attributes = SpanAttributes::default();
        attributes.push_text("proctor.skill", skill.skill.as_str());
        attributes.push_text("proctor.step", name.as_str());
        attributes.push_text("cicd.pipeline.task.name", name.as_str());
        attributes.push_number("proctor.step.attempts", attempts.len() as u64);
        if let Some(evidence) = evidence {
            attributes.add_step(evidence);
        }
        Some(TraceSpan {
            id: self.trace.step_span(skill.skill.as_str(), name),
            parent: Some(self.trace.skill_span(&skill.skill)),
            name: format!("step {name}"),
            start_ns: self.offset_ns(stretch.began_ms),
            end_ns: self.end_ns(stretch),
            attributes: attributes.0,
            events: self.attempt_events(&attempts, evidence),
            error: match evidence {
                Some(step) => outcome_error(step.outcome).map(|_| step_error(step)),
                None => Some("did not end".to_owned()),
            },
        })
    }

    /// Returns an event for each attempt of a step that was retried.
    fn attempt_events(&self, attempts: &[&AttemptSpan], evidence: Option<&StepEvidence>) -> Vec<SpanEvent> {
        if attempts.len() < 2 {
            return Vec::new();
        }
        let outcome = |index: usize| {
            let earlier = evidence?.earlier_attempts.get(index).map(|attempt| attempt.outcome);
            earlier.or_else(|| evidence.map(|step| step.outcome))
        };
        let event = |(index, attempt): (usize, &&AttemptSpan)| {
            let mut attributes = SpanAttributes::default();
            attributes.push_number("proctor.attempt", u64::from(attempt.attempt));
            attributes.push_optional_text("proctor.outcome", outcome(index).map(Outcome::as_str));
            SpanEvent {
                name: "attempt started",
                at_ns: self.offset_ns(attempt.span.began_ms),
                attributes: attributes.0,
            }
        };
        attempts.iter().enumerate().take(MAX_ATTEMPTS).map(event).collect()
    }

    fn offset_ns(&self, offset_ms: u64) -> u64 {
        to_nanoseconds(self.times.base_ms.saturating_add(offset_ms))
    }

    /// Returns the end of a time span; one without an end lasts until the run ends.
    fn end_ns(&self, stretch: Stretch) -> u64 {
        let end = stretch.ended_ms.map_or_else(|| to_nanoseconds(self.times.ended_ms), |ended| self.offset_ns(ended));
        end.max(self.offset_ns(stretch.began_ms))
    }
}

impl RunTrace {
    fn run_id(&self) -> &RunId {
        &self.run
    }
}

impl SpanAttributes {
    fn add_run_start(&mut self, started: &Started) {
        self.push_optional_text("proctor.changeset.id", started.changeset_id.as_ref().map(|id| id.as_str()));
        self.push_text("proctor.spec.sha256", &started.spec_sha256.to_string());
        self.push_text("proctor.plan.sha256", &started.plan_sha256.to_string());
        self.push_text("proctor.snapshot", started.snapshot.as_str());
        let head = started.git.as_ref().and_then(|git| git.head_commit.as_deref());
        let (source, tree, commit) = match &started.source {
            TreeSource::Worktree { tree } => ("worktree", Some(tree.as_str()), head),
            TreeSource::Rev { commit, .. } => ("rev", None, Some(commit.as_str())),
        };
        self.push_text("proctor.source", source);
        self.push_optional_text("proctor.source.tree", tree);
        self.push_optional_text("vcs.ref.head.revision", commit);
        self.push_flag(
            "proctor.run.partial",
            started.scope.is_some() || started.rerun.as_ref().is_some_and(|rerun| rerun.is_partial()),
        );
    }

    /// Adds the termination and the resource use of a command.
    fn add_step(&mut self, step: &StepEvidence) {
        self.push_text("proctor.outcome", step.outcome.as_str());
        self.push_text("proctor.step.termination", termination_word(&step.termination));
        self.push_optional_number("process.exit.code", step.termination.exit_code().map(u64::from));
        if let Termination::LimitHit { limit, .. } = step.termination {
            self.push_text("proctor.step.limit", limit.as_str());
        }
        self.push_number("proctor.step.execution_ms", step.duration_ms);
        self.push_flag("proctor.step.flaky", step.flaky);
        self.push_flag("proctor.step.cached", step.is_cached());
        self.push_optional_text("proctor.step.cached_from", step.reused.as_ref().map(|source| source.run_id.as_str()));
        if step.outcome != Outcome::Passed {
            self.push_text("error.type", step.outcome.as_str());
        }
    }
}

/// Returns the result of a run as defined by OpenTelemetry's conventions for CI/CD.
fn pipeline_result(verdict: Verdict, is_cancelled: bool) -> &'static str {
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
fn outcome_error(outcome: Outcome) -> Option<String> {
    (outcome != Outcome::Passed).then(|| outcome.as_str().to_owned())
}

/// Returns the outcome of a step and how its process ended. The text contains nothing from the repository.
fn step_error(step: &StepEvidence) -> String {
    format!("{}: {}", step.outcome.as_str(), step.termination.phrase())
}

fn to_nanoseconds(ms: u64) -> u64 {
    ms.saturating_mul(NANOS_PER_MS)
}

//! Translates runs, and requests about SQL, into the spans of a distributed trace, as OpenTelemetry defines them.
//!
//! The ids of a run's spans are derived from the id of the run, so a step can get the id of its span before the span is
//! exported. This module sends nothing.

mod run_spans;
mod span_attributes;
mod sql_spans;
#[cfg(test)]
mod sql_tests;
#[cfg(test)]
mod tests;
mod trace_context;

pub use run_spans::{RunTimes, build_spans};
pub use span_attributes::{AttributeValue, SpanAttribute, SpanEvent, TraceSpan};
pub use sql_spans::{
    AttemptRecord, QuestionRecord, SpanFrame, TracedAnswer, answer_span, attempt_span_id, question_spans,
    refused_question_span, refused_span,
};
pub use trace_context::{
    MAX_TRACESTATE_BYTES, TRACEPARENT, TRACESTATE, TraceContext, TraceState, is_trace_variable, take_context,
};

use crate::model::names::{RunId, SkillName, StepName};
use crate::text::digest::Sha256Hex;

/// The id of a trace: 16 bytes that are not all zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId([u8; 16]);

/// The id of a span: 8 bytes that are not all zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId([u8; 8]);

impl TraceId {
    /// Returns the id with these bytes; `None` if all of them are zero.
    pub fn new(bytes: [u8; 16]) -> Option<Self> {
        (bytes != [0; 16]).then_some(Self(bytes))
    }

    /// Returns the bytes of the id.
    pub fn bytes(self) -> [u8; 16] {
        self.0
    }
}

impl SpanId {
    /// Returns the id with these bytes; `None` if all of them are zero.
    pub fn new(bytes: [u8; 8]) -> Option<Self> {
        (bytes != [0; 8]).then_some(Self(bytes))
    }

    /// Returns the bytes of the id.
    pub fn bytes(self) -> [u8; 8] {
        self.0
    }

    /// Derives the id of a span below this span from its kind and number.
    fn derive_child(self, kind: &str, number: u32) -> Self {
        let (own, number) = (u64::from_be_bytes(self.0).to_string(), number.to_string());
        Self::from_digest(&hash_words(&["proctor.span", &own, kind, &number]))
    }

    fn from_digest(digest: &[u8; 32]) -> Self {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&digest[..8]);
        // Zero means "no span". A digest that begins with eight zero bytes is practically impossible.
        Self::new(bytes).unwrap_or(Self([1; 8]))
    }
}

/// The position of a run in a trace, and the ids of its spans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunTrace {
    run: RunId,
    trace: TraceId,
    parent: Option<TraceContext>,
}

impl RunTrace {
    /// Places a run below the span of its caller, or in a new trace.
    pub fn new(run: RunId, parent: Option<TraceContext>) -> Self {
        let trace = parent.as_ref().map_or_else(|| derive_trace_id(&run), |parent| parent.trace);
        Self { run, trace, parent }
    }

    /// Returns the trace.
    pub fn trace(&self) -> TraceId {
        self.trace
    }

    /// Returns the span of the caller, if the caller named one.
    pub fn parent(&self) -> Option<&TraceContext> {
        self.parent.as_ref()
    }

    /// Returns the id of the root span of the run.
    pub fn run_span(&self) -> SpanId {
        self.derive_span_id(&["run"])
    }

    /// Returns the id of the span of a skill.
    pub fn skill_span(&self, skill: &SkillName) -> SpanId {
        self.derive_span_id(&["skill", skill.as_str()])
    }

    /// Returns the id of the span of a step. A toolchain check is a step of a skill that has the name of the toolchain.
    pub fn step_span(&self, skill: &str, step: &StepName) -> SpanId {
        self.derive_span_id(&["step", skill, step.as_str()])
    }

    /// Returns the context that the processes of a step continue.
    pub fn step_context(&self, skill: &str, step: &StepName) -> TraceContext {
        TraceContext {
            trace: self.trace,
            span: self.step_span(skill, step),
            flags: self.parent.as_ref().map_or(0, |parent| parent.flags) | trace_context::SAMPLED_FLAG,
            state: self.parent.as_ref().map(|parent| parent.state.clone()).unwrap_or_default(),
        }
    }

    fn derive_span_id(&self, path: &[&str]) -> SpanId {
        let mut words = vec!["proctor.span", self.run.as_str()];
        words.extend(path);
        SpanId::from_digest(&hash_words(&words))
    }
}

fn derive_trace_id(run: &RunId) -> TraceId {
    let digest = hash_words(&["proctor.trace", run.as_str()]);
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    TraceId::new(bytes).unwrap_or(TraceId([1; 16]))
}

/// Hashes a list of words. Names cannot contain the separator.
fn hash_words(words: &[&str]) -> [u8; 32] {
    Sha256Hex::digest(words.join("\0").as_bytes()).to_raw()
}

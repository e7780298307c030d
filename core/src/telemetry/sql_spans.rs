//! Builds the spans of requests about SQL: judgements, runs of statements, descriptions of schemas, and questions with
//! their attempts.
//!
//! A span contains names, outcomes, codes, numbers and times. It contains no SQL, message, row, question or prompt,
//! because more people can read a trace than an answer.

use super::{AttributeValue, SpanAttribute, SpanEvent, SpanId, TraceSpan, span_attributes::SpanAttributes};
use crate::code::Coded as _;
use crate::sql::{
    AskAnswer, AskVerdict, AttemptOutcome, Dialect, Judgement, ModelCallOutcome, SchemaAnswer, SqlPolicy, SqlRunAnswer,
    SqlSeverity, SqlVerdict, TokenCounts,
};

/// The name of the span of a question.
const QUESTION_SPAN: &str = "sql question";

/// The id, the parent and the times of a span, in nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanFrame {
    /// The id of the span.
    pub id: SpanId,
    /// The parent span, if there is one.
    pub parent: Option<SpanId>,
    /// The start of the span.
    pub start_ns: u64,
    /// The end of the span.
    pub end_ns: u64,
}

/// An answer that has a span.
pub trait TracedAnswer {
    /// The name of the span.
    const SPAN_NAME: &'static str;

    /// Returns the judgement in the answer, if there is one.
    fn judgement(&self) -> Option<&Judgement>;

    /// Returns the attributes of the answer.
    fn attributes(&self) -> Vec<SpanAttribute>;

    /// Returns the reason why the request failed, without text of the request; `None` if it succeeded.
    fn error(&self) -> Option<String>;
}

impl TracedAnswer for Judgement {
    const SPAN_NAME: &'static str = "sql judgement";

    fn judgement(&self) -> Option<&Judgement> {
        Some(self)
    }

    fn attributes(&self) -> Vec<SpanAttribute> {
        let mut attributes = SpanAttributes::default();
        attributes.add_judgement(self);
        attributes.0
    }

    fn error(&self) -> Option<String> {
        let codes = distinct_codes(self, |severity| severity == SqlSeverity::Error);
        let codes = if codes.is_empty() { String::new() } else { format!(": {}", codes.join(", ")) };
        (self.verdict != SqlVerdict::Ok).then(|| format!("{}{codes}", self.verdict.as_str()))
    }
}

impl TracedAnswer for SqlRunAnswer {
    const SPAN_NAME: &'static str = "sql run";

    fn judgement(&self) -> Option<&Judgement> {
        Some(&self.judgement)
    }

    fn attributes(&self) -> Vec<SpanAttribute> {
        let mut attributes = SpanAttributes::default();
        attributes.add_judgement(&self.judgement);
        if let Some(result) = &self.result {
            attributes.push_number("proctor.sql.rows", result.rows.len() as u64);
            if let Some(changed) = result.changed {
                attributes.push_number("proctor.sql.changed_rows", changed);
            }
            attributes.push_flag("proctor.sql.truncated", result.truncated);
            attributes.push_flag("proctor.sql.committed", result.committed);
        }
        attributes.0
    }

    fn error(&self) -> Option<String> {
        let failed = self.error.is_some() || self.result.is_none();
        self.judgement.error().or_else(|| failed.then(|| "the statement failed when it ran".to_owned()))
    }
}

impl TracedAnswer for SchemaAnswer {
    const SPAN_NAME: &'static str = "sql schema";

    fn judgement(&self) -> Option<&Judgement> {
        None
    }

    fn attributes(&self) -> Vec<SpanAttribute> {
        let mut attributes = SpanAttributes::default();
        attributes.push_text("proctor.sql.dialect", self.dialect.as_str());
        let tables = self.schema.as_ref().map(|schema| schema.tables.len() as u64);
        attributes.push_optional_number("proctor.sql.tables", tables);
        attributes.0
    }

    fn error(&self) -> Option<String> {
        let failed = self.error.is_some() || self.schema.is_none();
        failed.then(|| "the schema could not be described".to_owned())
    }
}

/// Returns the span of an answered request. A worker began to answer it at `worker_ns`.
pub fn answer_span<T: TracedAnswer>(frame: SpanFrame, worker_ns: u64, answer: &T) -> TraceSpan {
    let at_ns = worker_ns.clamp(frame.start_ns, frame.end_ns.max(frame.start_ns));
    let started = SpanEvent { name: "worker started", at_ns, attributes: Vec::new() };
    TraceSpan { events: vec![started], ..frame.span(T::SPAN_NAME, answer.attributes(), answer.error()) }
}

/// Returns the span of a request that no worker received. `problem` is the name of its problem.
pub fn refused_span<T: TracedAnswer>(frame: SpanFrame, problem: &str) -> TraceSpan {
    frame.refused(T::SPAN_NAME, problem)
}

/// Returns the span of a question that was refused. `problem` is the name of its problem.
pub fn refused_question_span(frame: SpanFrame, problem: &str) -> TraceSpan {
    frame.refused(QUESTION_SPAN, problem)
}

/// A question, as its spans show it.
#[derive(Debug)]
pub struct QuestionRecord<'a> {
    /// The SQL dialect.
    pub dialect: Dialect,
    /// The policy.
    pub policy: SqlPolicy,
    /// The provider by its name in the operator's config.
    pub provider: &'a str,
    /// The model.
    pub model: Option<&'a str>,
    /// The attempts, in order.
    pub attempts: &'a [AttemptRecord],
    /// The answer; `None` if the caller abandoned the question.
    pub answer: Option<&'a AskAnswer>,
}

/// An attempt, as its spans show it. The judgement and the run of its statement have separate spans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptRecord {
    /// The number of the attempt, starting at 1.
    pub number: u32,
    /// The start of the attempt and of its model call, in nanoseconds since 1970.
    pub start_ns: u64,
    /// The end of the attempt.
    pub end_ns: u64,
    /// The end of the model call.
    pub call_end_ns: u64,
    /// The result of the model call.
    pub call: ModelCallOutcome,
    /// The tokens of the model call, if it was answered.
    pub tokens: Option<TokenCounts>,
    /// The result of the attempt; `None` if the attempt did not end.
    pub outcome: Option<AttemptOutcome>,
}

/// Returns the id of the span of an attempt.
pub fn attempt_span_id(question: SpanId, number: u32) -> SpanId {
    question.derive_child("attempt", number)
}

/// Returns the spans of a question, the question first, then each attempt and its model call.
pub fn question_spans(frame: SpanFrame, question: &QuestionRecord<'_>) -> Vec<TraceSpan> {
    let mut attributes = SpanAttributes::default();
    attributes.push_text("proctor.sql.dialect", question.dialect.as_str());
    attributes.push_text("proctor.sql.policy", question.policy.as_str());
    attributes.add_model(question);
    attributes.push_number("proctor.sql.attempts", question.attempts.len() as u64);
    let error = match question.answer {
        Some(answer) => {
            attributes.push_text("proctor.sql.verdict", answer.verdict.as_str());
            attributes.push_text("proctor.sql.end", answer.end.as_str());
            attributes.push_text("proctor.sql.audit_id", &answer.id);
            attributes.add_tokens(answer.tokens);
            let is_answered = answer.verdict == AskVerdict::Answered;
            (!is_answered).then(|| format!("{}: {}", answer.verdict.as_str(), answer.end.as_str()))
        }
        None => Some("cancelled".to_owned()),
    };
    let mut spans = vec![frame.span(QUESTION_SPAN, attributes.0, error)];
    for attempt in question.attempts {
        spans.extend(attempt_spans(frame.id, question, attempt));
    }
    spans
}

fn attempt_spans(parent: SpanId, question: &QuestionRecord<'_>, attempt: &AttemptRecord) -> [TraceSpan; 2] {
    let id = attempt_span_id(parent, attempt.number);
    let of_attempt = SpanFrame { id, parent: Some(parent), start_ns: attempt.start_ns, end_ns: attempt.end_ns };
    let of_call = SpanFrame {
        id: parent.derive_child("model call", attempt.number),
        parent: Some(id),
        end_ns: attempt.call_end_ns,
        ..of_attempt
    };
    let mut attributes = SpanAttributes::default();
    attributes.push_number("proctor.sql.attempt", u64::from(attempt.number));
    attributes.push_optional_text("proctor.sql.outcome", attempt.outcome.map(AttemptOutcome::as_str));
    let attempt_error = match attempt.outcome {
        Some(AttemptOutcome::Answered) => None,
        Some(outcome) => Some(outcome.as_str().to_owned()),
        None => Some("did not end".to_owned()),
    };
    let attempt_span = of_attempt.span("sql attempt", attributes.0, attempt_error);
    let mut attributes = SpanAttributes::default();
    attributes.push_number("proctor.sql.attempt", u64::from(attempt.number));
    attributes.add_model(question);
    attributes.push_text("proctor.sql.outcome", attempt.call.as_str());
    if let Some(tokens) = attempt.tokens {
        attributes.add_tokens(tokens);
    }
    let call_error = (attempt.call != ModelCallOutcome::Answered).then(|| attempt.call.as_str().to_owned());
    [attempt_span, of_call.span("model call", attributes.0, call_error)]
}

impl SpanFrame {
    fn span(self, name: &str, attributes: Vec<SpanAttribute>, error: Option<String>) -> TraceSpan {
        TraceSpan {
            id: self.id,
            parent: self.parent,
            name: name.to_owned(),
            start_ns: self.start_ns,
            end_ns: self.end_ns.max(self.start_ns),
            attributes,
            events: Vec::new(),
            error,
        }
    }

    fn refused(self, name: &str, problem: &str) -> TraceSpan {
        let attributes = vec![("proctor.problem", AttributeValue::Text(problem.to_owned()))];
        self.span(name, attributes, Some(format!("refused: {problem}")))
    }
}

impl SpanAttributes {
    fn add_judgement(&mut self, judgement: &Judgement) {
        self.push_text("proctor.sql.dialect", judgement.dialect.as_str());
        self.push_text("proctor.sql.policy", judgement.policy.as_str());
        self.push_text("proctor.sql.verdict", judgement.verdict.as_str());
        let codes = distinct_codes(judgement, |_| true);
        if !codes.is_empty() {
            self.0.push(("proctor.sql.codes", AttributeValue::Texts(codes)));
        }
    }

    fn add_model(&mut self, question: &QuestionRecord<'_>) {
        self.push_text("proctor.sql.provider", question.provider);
        self.push_optional_text("gen_ai.request.model", question.model);
    }

    fn add_tokens(&mut self, tokens: TokenCounts) {
        self.push_number("gen_ai.usage.input_tokens", tokens.input);
        self.push_number("gen_ai.usage.output_tokens", tokens.output);
        self.push_flag("proctor.sql.tokens_estimated", tokens.estimated);
    }
}

/// Returns the codes of the findings with these severities, each once, in the order of the findings. The codes follow
/// from the kinds of the findings, so a worker cannot add a text.
fn distinct_codes(judgement: &Judgement, is_listed: impl Fn(SqlSeverity) -> bool) -> Vec<String> {
    let mut kinds = Vec::new();
    for found in judgement.diagnostics.iter().filter(|found| is_listed(found.severity)) {
        if !kinds.contains(&found.code) {
            kinds.push(found.code);
        }
    }
    kinds.iter().map(|kind| kind.code().to_string()).collect()
}

//! Observes the loop of one question: counts its attempts and model calls, and exports its spans. A question that is
//! dropped before its end counts as cancelled.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use proctor_ask::ask_loop::AskProgress;
use proctor_core::sql::{AskAnswer, AttemptOutcome, Dialect, ModelCallOutcome, SqlPolicy, SqlVerdict, TokenCounts};
use proctor_core::telemetry::{AttemptRecord, QuestionRecord, attempt_span_id};
use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::telemetry::RequestSpan;

/// The observer of one question.
pub(super) struct QuestionObserver {
    metrics: Metrics,
    span: Arc<QuestionSpan>,
    facts: QuestionFacts,
    attempts: Vec<AttemptRecord>,
    /// The attempt in progress, if there is one.
    current: Option<CurrentAttempt>,
    has_ended: bool,
}

/// The question, as metrics and spans show it.
#[derive(Debug, Clone)]
pub(super) struct QuestionFacts {
    pub(super) dialect: Dialect,
    pub(super) policy: SqlPolicy,
    /// The name of the provider in the operator's config.
    pub(super) provider: String,
    pub(super) model: Option<String>,
}

/// The span of a question, and the attempt that its requests to workers belong to.
pub(super) struct QuestionSpan {
    span: RequestSpan,
    /// The number of the current attempt; 0 before the first one.
    attempt: AtomicU32,
}

/// An attempt in progress.
struct CurrentAttempt {
    number: u32,
    start_ns: u64,
    call_started_at: Instant,
    call: Option<FinishedCall>,
    outcome: Option<AttemptOutcome>,
}

/// The end of a model call.
#[derive(Clone, Copy)]
struct FinishedCall {
    outcome: ModelCallOutcome,
    tokens: Option<TokenCounts>,
    end_ns: u64,
}

impl QuestionSpan {
    pub(super) fn new(span: RequestSpan) -> Arc<Self> {
        Arc::new(Self { span, attempt: AtomicU32::new(0) })
    }

    /// Starts the span of a request to a worker, below the span of the current attempt.
    pub(super) fn start_child(&self) -> RequestSpan {
        self.span.start_child(|question| match self.attempt.load(Ordering::Relaxed) {
            0 => question,
            number => attempt_span_id(question, number),
        })
    }
}

impl QuestionObserver {
    pub(super) fn new(metrics: Metrics, span: Arc<QuestionSpan>, facts: QuestionFacts) -> Self {
        Self { metrics, span, facts, attempts: Vec::new(), current: None, has_ended: false }
    }

    /// Applies a step of the loop.
    pub(super) fn apply(&mut self, step: AskProgress) {
        match step {
            AskProgress::Prompting { number, .. } => {
                // The loop continues only after a statement that was not accepted. If no step gave the reason, the
                // statement was rejected when it should have run.
                self.end_attempt(Some(AttemptOutcome::Rejected));
                self.span.attempt.store(number, Ordering::Relaxed);
                self.current = Some(CurrentAttempt {
                    number,
                    start_ns: self.span.span.now_ns(),
                    call_started_at: Instant::now(),
                    call: None,
                    outcome: None,
                });
            }
            AskProgress::Answered { tokens, .. } => self.end_call(ModelCallOutcome::Answered, Some(tokens)),
            AskProgress::Unanswered { outcome, .. } => self.end_call(outcome, None),
            AskProgress::Unreadable { .. } => self.set_outcome(AttemptOutcome::Unreadable),
            AskProgress::Judged { verdict: SqlVerdict::Reject, .. } => self.set_outcome(AttemptOutcome::Rejected),
            AskProgress::Judged { verdict: SqlVerdict::Error, .. } => self.set_outcome(AttemptOutcome::NotJudged),
            AskProgress::RunFailed { .. } => self.set_outcome(AttemptOutcome::RunFailed),
            AskProgress::Judged { verdict: SqlVerdict::Ok, .. }
            | AskProgress::Describing
            | AskProgress::Described { .. }
            | AskProgress::Judging { .. }
            | AskProgress::Running { .. } => {}
        }
    }

    /// Ends the question with its answer.
    pub(super) fn finish(mut self, answer: &AskAnswer) {
        let number = self.current.as_ref().map(|current| current.number);
        let last = answer.attempts.iter().rev().find(|attempt| Some(attempt.number) == number);
        self.end(last.map(|attempt| attempt.outcome), Some(answer));
    }

    fn end(&mut self, last: Option<AttemptOutcome>, answer: Option<&AskAnswer>) {
        self.end_attempt(last);
        self.has_ended = true;
        self.metrics.count_question(answer.map(|answer| answer.verdict));
        let QuestionFacts { dialect, policy, provider, model } = &self.facts;
        self.span.span.finish_question(&QuestionRecord {
            dialect: *dialect,
            policy: *policy,
            provider,
            model: model.as_deref(),
            attempts: &self.attempts,
            answer,
        });
    }

    fn set_outcome(&mut self, outcome: AttemptOutcome) {
        if let Some(current) = &mut self.current {
            current.outcome = Some(outcome);
        }
    }

    fn end_call(&mut self, outcome: ModelCallOutcome, tokens: Option<TokenCounts>) {
        let Some(current) = &mut self.current else { return };
        let took: Duration = current.call_started_at.elapsed();
        self.metrics.observe_model_call(&self.facts.provider, outcome, took, tokens);
        current.call = Some(FinishedCall { outcome, tokens, end_ns: self.span.span.now_ns() });
    }

    /// Ends the current attempt. `otherwise` is its outcome if no step has reported one.
    fn end_attempt(&mut self, otherwise: Option<AttemptOutcome>) {
        if self.current.as_ref().is_some_and(|current| current.call.is_none()) {
            self.end_call(ModelCallOutcome::Cancelled, None);
        }
        let Some(CurrentAttempt { number, start_ns, call: Some(call), outcome, .. }) = self.current.take() else {
            return;
        };
        let outcome = outcome.or(otherwise);
        self.metrics.count_attempt(outcome);
        if self.span.span.id().is_some() {
            let FinishedCall { outcome: result, tokens, end_ns: call_end_ns } = call;
            let end_ns = self.span.span.now_ns();
            self.attempts.push(AttemptRecord { number, start_ns, end_ns, call_end_ns, call: result, tokens, outcome });
        }
    }
}

impl Drop for QuestionObserver {
    fn drop(&mut self) {
        if !self.has_ended {
            self.end(None, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proctor_ask::answer_reader::UnreadableAnswer;
    use proctor_core::sql::AskAnswer;
    use serde_json::json;

    use super::*;
    use crate::metrics::sql_tests::{assert_lines, judgement};
    use crate::telemetry::tests::{QueuedSpans, telemetry};

    const TOKENS: TokenCounts = TokenCounts { input: 30, output: 5, estimated: false };

    fn observer(is_traced: bool) -> (QuestionObserver, Arc<QuestionSpan>, Metrics, QueuedSpans) {
        let metrics = Metrics::new(0);
        let (telemetry, queue) = telemetry(is_traced, metrics.clone());
        let span = QuestionSpan::new(telemetry.start_span(|| None));
        let (dialect, policy, provider) = (Dialect::Sqlite, SqlPolicy::Read, "local".to_owned());
        let facts = QuestionFacts { dialect, policy, provider, model: None };
        (QuestionObserver::new(metrics.clone(), Arc::clone(&span), facts), span, metrics, queue)
    }

    fn answer(verdict: &str, end: &str, attempts: &[(u32, &str)]) -> AskAnswer {
        let tokens = json!({ "input": 1, "output": 1 });
        let attempt = |(number, outcome): &(u32, &str)| json!({ "number": number, "outcome": outcome, "tokens": tokens, "ms": 1 });
        let attempts: Vec<serde_json::Value> = attempts.iter().map(attempt).collect();
        let value = json!({ "version": 1, "id": "q", "verdict": verdict, "end": end, "reason": "r",
            "dialect": "sqlite", "provider": "local", "attempts": attempts, "tokens": tokens, "ms": 1 });
        serde_json::from_value(value).expect("an answer")
    }

    fn judged(number: u32, verdict: SqlVerdict) -> AskProgress {
        AskProgress::Judged { number, verdict, errors: 0, warnings: 0 }
    }

    fn apply_all(observer: &mut QuestionObserver, steps: impl IntoIterator<Item = AskProgress>) {
        steps.into_iter().for_each(|step| observer.apply(step));
    }

    #[tokio::test(start_paused = true)]
    async fn counts_every_attempt_once_with_its_outcome() {
        let (mut observer, _, metrics, _) = observer(false);
        let prompt = |number| AskProgress::Prompting { number, attempts: 9 };
        let reply = |number| AskProgress::Answered { number, tokens: TOKENS };
        observer.apply(AskProgress::Describing);
        observer.apply(prompt(1));
        tokio::time::advance(Duration::from_secs(2)).await;
        let why = UnreadableAnswer::Truncated;
        apply_all(&mut observer, [reply(1), AskProgress::Unreadable { number: 1, why }]);
        apply_all(&mut observer, [prompt(2), reply(2), judged(2, SqlVerdict::Reject)]);
        let runs = |number| AskProgress::Running { number };
        let ok = |number| judged(number, SqlVerdict::Ok);
        apply_all(&mut observer, [prompt(3), reply(3), ok(3), runs(3), AskProgress::RunFailed { number: 3 }]);
        // The database changed, so the statement was rejected when it should have run.
        apply_all(&mut observer, [prompt(4), reply(4), ok(4), runs(4)]);
        // The last attempt repeats a statement, which no step reports.
        apply_all(&mut observer, [prompt(5), reply(5)]);
        observer.finish(&answer("gave_up", "repeated", &[(4, "rejected"), (5, "repeated")]));
        assert_lines(
            &metrics,
            &[
                "proctor_sql_questions_total{verdict=\"gave_up\"} 1",
                "proctor_sql_attempts_total{outcome=\"unreadable\"} 1",
                "proctor_sql_attempts_total{outcome=\"rejected\"} 2",
                "proctor_sql_attempts_total{outcome=\"run_failed\"} 1",
                "proctor_sql_attempts_total{outcome=\"repeated\"} 1",
                "proctor_sql_model_calls_total{provider=\"local\",outcome=\"answered\"} 5",
                "proctor_sql_model_tokens_total{provider=\"local\",direction=\"input\"} 150",
                "proctor_sql_model_call_seconds_sum{provider=\"local\"} 2.0",
            ],
        );
    }

    #[tokio::test]
    async fn call_without_answer_leaves_its_attempt_unfinished() {
        let (mut observer, _, metrics, mut queue) = observer(true);
        observer.apply(AskProgress::Prompting { number: 1, attempts: 4 });
        observer.apply(AskProgress::Unanswered { number: 1, outcome: ModelCallOutcome::TimedOut });
        observer.finish(&answer("error", "provider", &[]));
        assert_lines(
            &metrics,
            &[
                "proctor_sql_attempts_total{outcome=\"unfinished\"} 1",
                "proctor_sql_model_calls_total{provider=\"local\",outcome=\"timed_out\"} 1",
            ],
        );
        let spans = queue.take();
        let errors: Vec<Option<&str>> = spans.iter().map(|span| span.error.as_deref()).collect();
        assert_eq!(errors, [Some("error: provider"), Some("did not end"), Some("timed_out")]);
    }

    #[tokio::test]
    async fn dropped_question_is_cancelled() {
        let (mut observer, _, metrics, mut queue) = observer(true);
        observer.apply(AskProgress::Prompting { number: 1, attempts: 4 });
        drop(observer);
        assert_lines(
            &metrics,
            &[
                "proctor_sql_questions_total{verdict=\"cancelled\"} 1",
                "proctor_sql_attempts_total{outcome=\"unfinished\"} 1",
                "proctor_sql_model_calls_total{provider=\"local\",outcome=\"cancelled\"} 1",
            ],
        );
        assert_eq!(queue.take()[0].error.as_deref(), Some("cancelled"));
    }

    #[tokio::test]
    async fn requests_to_workers_are_below_their_attempt() {
        let (mut observer, span, _, mut queue) = observer(true);
        span.start_child().finish(&judgement("ok"));
        observer.apply(AskProgress::Prompting { number: 1, attempts: 4 });
        span.start_child().finish(&judgement("ok"));
        observer.finish(&answer("answered", "answered", &[(1, "answered")]));
        let spans = queue.take();
        let [first, second, question, attempt, call] = spans.as_slice() else { panic!("five spans: {spans:?}") };
        assert_eq!((first.parent, second.parent), (Some(question.id), Some(attempt.id)));
        assert_eq!((attempt.parent, call.parent), (Some(question.id), Some(attempt.id)));
    }
}

//! Metrics of questions to databases, and of the calls of language models.

use std::time::Duration;

use proctor_core::sql::{AskVerdict, AttemptOutcome, ModelCallOutcome, TokenCounts};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::Metrics;
use super::label_sets::VerdictLabels;

/// The verdict of a question that its caller abandoned.
const CANCELLED: &str = "cancelled";
/// The outcome of an attempt that did not end.
const UNFINISHED: &str = "unfinished";

/// Counters and histograms of questions.
#[derive(Debug)]
pub(super) struct QuestionMetrics {
    questions: Family<VerdictLabels, Counter>,
    attempts: Family<AttemptLabels, Counter>,
    calls: Family<CallLabels, Counter>,
    tokens: Family<TokenLabels, Counter>,
    call_duration: Family<ProviderLabels, Histogram, fn() -> Histogram>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AttemptLabels {
    outcome: &'static str,
}

/// Labels of a model call. The operator chooses the names of providers; a caller can only select a configured one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    provider: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TokenLabels {
    provider: String,
    direction: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProviderLabels {
    provider: String,
}

/// Returns a histogram from 50 ms to ten minutes.
fn call_time_histogram() -> Histogram {
    Histogram::new([0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0])
}

impl QuestionMetrics {
    pub(super) fn new() -> Self {
        Self {
            questions: Family::default(),
            attempts: Family::default(),
            calls: Family::default(),
            tokens: Family::default(),
            call_duration: Family::new_with_constructor(call_time_histogram as fn() -> Histogram),
        }
    }

    pub(super) fn register(&self, to: &mut Registry) {
        let help = "Questions to databases that have ended, by verdict";
        to.register("proctor_sql_questions", help, self.questions.clone());
        let help = "Attempts to answer questions to databases, by outcome";
        to.register("proctor_sql_attempts", help, self.attempts.clone());
        let help = "Calls of language models, by the configured provider and the outcome";
        to.register("proctor_sql_model_calls", help, self.calls.clone());
        let help = "Tokens of answered calls of language models: of prompts (input) and of answers (output)";
        to.register("proctor_sql_model_tokens", help, self.tokens.clone());
        let help = "Duration of calls of language models, by the configured provider";
        to.register_with_unit("proctor_sql_model_call", help, Unit::Seconds, self.call_duration.clone());
    }
}

impl Metrics {
    /// Counts a question that has ended; `None` means that its caller abandoned it.
    pub fn count_question(&self, verdict: Option<AskVerdict>) {
        let verdict = verdict.map_or(CANCELLED, AskVerdict::as_str);
        self.0.questions.questions.get_or_create(&VerdictLabels { verdict }).inc();
    }

    /// Counts an attempt; `None` means that the question ended during the attempt.
    pub fn count_attempt(&self, outcome: Option<AttemptOutcome>) {
        let outcome = outcome.map_or(UNFINISHED, AttemptOutcome::as_str);
        self.0.questions.attempts.get_or_create(&AttemptLabels { outcome }).inc();
    }

    /// Counts a call of a model; `tokens` are those of an answered call.
    pub fn observe_model_call(
        &self,
        provider: &str,
        outcome: ModelCallOutcome,
        took: Duration,
        tokens: Option<TokenCounts>,
    ) {
        let own = || provider.to_owned();
        let metrics = &self.0.questions;
        metrics.calls.get_or_create(&CallLabels { provider: own(), outcome: outcome.as_str() }).inc();
        metrics.call_duration.get_or_create(&ProviderLabels { provider: own() }).observe(took.as_secs_f64());
        for (direction, count) in tokens.iter().flat_map(|tokens| [("input", tokens.input), ("output", tokens.output)])
        {
            metrics.tokens.get_or_create(&TokenLabels { provider: own(), direction }).inc_by(count);
        }
    }
}

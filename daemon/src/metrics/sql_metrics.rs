//! Metrics of SQL judgements.

use std::time::Duration;

use proctor_core::api::{Problem, ProblemType};
use proctor_core::sql::SqlVerdict;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::label_sets::StateLabels;

/// Counters and histograms of judgements.
#[derive(Debug)]
pub(super) struct SqlMetrics {
    judged: Family<JudgementLabels, Counter>,
    refused: Family<SqlRefusalLabels, Counter>,
    wait: Histogram,
    duration: Family<JudgementLabels, Histogram, fn() -> Histogram>,
    requests: Family<StateLabels, Gauge>,
}

/// Number of SQL requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SqlCounts {
    /// Requests that wait for a worker.
    pub queued: usize,
    /// Requests being judged.
    pub running: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct JudgementLabels {
    verdict: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SqlRefusalLabels {
    reason: &'static str,
}

/// Returns a histogram from 0.25 ms to two minutes, the maximum duration of a judgement.
fn judgement_time_histogram() -> Histogram {
    Histogram::new([0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0])
}

impl SqlMetrics {
    pub(super) fn new() -> Self {
        Self {
            judged: Family::default(),
            refused: Family::default(),
            wait: judgement_time_histogram(),
            duration: Family::new_with_constructor(judgement_time_histogram as fn() -> Histogram),
            requests: Family::default(),
        }
    }

    pub(super) fn register(&self, to: &mut Registry) {
        to.register("proctor_sql_judgements", "Judgements of SQL for callers, by verdict", self.judged.clone());
        let help = "Rejected requests for judgements of SQL, by reason";
        to.register("proctor_sql_refused", help, self.refused.clone());
        let help = "Waiting and active requests for judgements of SQL";
        to.register("proctor_sql_requests", help, self.requests.clone());
        let help = "Time that requests for judgements of SQL waited for a worker";
        to.register_with_unit("proctor_sql_wait", help, Unit::Seconds, self.wait.clone());
        let help = "Duration of judgements of SQL without the wait for a worker, by verdict";
        to.register_with_unit("proctor_sql_judgement", help, Unit::Seconds, self.duration.clone());
    }

    pub(super) fn observe_start(&self, waited: Duration) {
        self.wait.observe(waited.as_secs_f64());
    }

    pub(super) fn observe_end(&self, verdict: SqlVerdict, took: Duration) {
        let judged = JudgementLabels { verdict: verdict.as_str() };
        self.duration.get_or_create(&judged).observe(took.as_secs_f64());
        self.judged.get_or_create(&judged).inc();
    }

    /// Counts a refused request: the queue was full, or no worker became free in time.
    pub(super) fn count_refused(&self, problem: &Problem) {
        let reason = if problem.kind == ProblemType::TooManyRequests { "full" } else { "late" };
        self.refused.get_or_create(&SqlRefusalLabels { reason }).inc();
    }

    pub(super) fn set_counts(&self, counts: SqlCounts) {
        for (state, count) in [("queued", counts.queued), ("running", counts.running)] {
            self.requests.get_or_create(&StateLabels { state }).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}

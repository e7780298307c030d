//! Metrics of SQL judgements.

use std::fmt::{self, Write as _};
use std::time::Duration;

use proctor_core::api::{Problem, ProblemType};
use proctor_core::code::Coded as _;
use proctor_core::sql::{Judgement, SqlCode};
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::label_sets::{StateLabels, VerdictLabels};

/// Counters and histograms of judgements.
#[derive(Debug)]
pub(super) struct SqlMetrics {
    judged: Family<JudgementLabels, Counter>,
    findings: Family<FindingLabels, Counter>,
    refused: Family<SqlRefusalLabels, Counter>,
    wait: Histogram,
    duration: Family<VerdictLabels, Histogram, fn() -> Histogram>,
    stages: Family<StageLabels, Histogram, fn() -> Histogram>,
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
    dialect: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FindingLabels {
    code: FindingCode,
    severity: &'static str,
}

/// The code of a finding, such as `P0612`. It follows from the kind of the finding, so a worker cannot add values.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct FindingCode(SqlCode);

impl EncodeLabelValue for FindingCode {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        write!(encoder, "{}", self.0.code())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StageLabels {
    stage: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SqlRefusalLabels {
    reason: &'static str,
}

/// Returns a histogram from 0.25 ms to two minutes, the maximum duration of a judgement.
fn judgement_time_histogram() -> Histogram {
    Histogram::new([0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0])
}

/// Returns a histogram from 10 µs to one minute: most stages need much less time than a judgement.
fn stage_time_histogram() -> Histogram {
    Histogram::new([0.000_01, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.01, 0.05, 0.25, 1.0, 10.0, 60.0])
}

impl SqlMetrics {
    pub(super) fn new() -> Self {
        Self {
            judged: Family::default(),
            findings: Family::default(),
            refused: Family::default(),
            wait: judgement_time_histogram(),
            duration: Family::new_with_constructor(judgement_time_histogram as fn() -> Histogram),
            stages: Family::new_with_constructor(stage_time_histogram as fn() -> Histogram),
            requests: Family::default(),
        }
    }

    pub(super) fn register(&self, to: &mut Registry) {
        let help = "Judgements of SQL for callers, by verdict and dialect";
        to.register("proctor_sql_judgements", help, self.judged.clone());
        let help = "Findings of judgements of SQL, by code and severity";
        to.register("proctor_sql_findings", help, self.findings.clone());
        let help = "Rejected requests for judgements of SQL, by reason";
        to.register("proctor_sql_refused", help, self.refused.clone());
        let help = "Waiting and active requests for judgements of SQL";
        to.register("proctor_sql_requests", help, self.requests.clone());
        let help = "Time that requests for judgements of SQL waited for a worker";
        to.register_with_unit("proctor_sql_wait", help, Unit::Seconds, self.wait.clone());
        let help = "Duration of judgements of SQL without the wait for a worker, by verdict";
        to.register_with_unit("proctor_sql_judgement", help, Unit::Seconds, self.duration.clone());
        let help = "Duration of the stages of judgements of SQL, by stage";
        to.register_with_unit("proctor_sql_stage", help, Unit::Seconds, self.stages.clone());
    }

    pub(super) fn observe_start(&self, waited: Duration) {
        self.wait.observe(waited.as_secs_f64());
    }

    pub(super) fn observe_end(&self, judgement: &Judgement, took: Duration) {
        let verdict = judgement.verdict.as_str();
        self.duration.get_or_create(&VerdictLabels { verdict }).observe(took.as_secs_f64());
        self.judged.get_or_create(&JudgementLabels { verdict, dialect: judgement.dialect.as_str() }).inc();
        for found in &judgement.diagnostics {
            let labels = FindingLabels { code: FindingCode(found.code), severity: found.severity.as_str() };
            self.findings.get_or_create(&labels).inc();
        }
        for (stage, micros) in &judgement.timing.stages_us {
            let took = Duration::from_micros(*micros);
            self.stages.get_or_create(&StageLabels { stage: stage.as_str() }).observe(took.as_secs_f64());
        }
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

//! Tests the metrics of judgements and questions.

use std::time::Duration;

use proctor_core::api::{HealthStatus, Problem, ProblemType, RunCounts};
use proctor_core::sql::{
    AskVerdict, AttemptOutcome, Judgement, ModelCallOutcome, SqlCode, SqlDiagnostic, StageName, TokenCounts,
};
use serde_json::json;

use super::{Metrics, SampledValues, SqlCounts, TextFormat};

/// Returns a judgement of PostgreSQL with an error and a warning.
pub(crate) fn judgement(verdict: &str) -> Judgement {
    let digest = "0".repeat(64);
    let found = [
        SqlDiagnostic::error(StageName::Bind, SqlCode::UnknownColumn, "m"),
        SqlDiagnostic::warning(StageName::Semantic, SqlCode::LimitExpected, "m", 80),
    ];
    let value = json!({
        "version": 1, "verdict": verdict, "dialect": "postgres", "policy": "read", "statements": [], "stages": [],
        "diagnostics": found, "feedback": "", "retry": { "worth": true, "why": "" },
        "audit": { "sql": digest, "request": digest, "engine": "e", "proctor": "1" }, "digest": digest,
        "timing": { "total_us": 2_500_000, "stages_us": [["parse", 500_000], ["bind", 2_000_000]] },
    });
    serde_json::from_value(value).expect("a judgement")
}

/// Gives each metric of judgements and questions a sample.
pub(super) fn observe_one_of_each(metrics: &Metrics) {
    metrics.observe_judgement(&judgement("reject"), Duration::from_millis(1));
    metrics.count_question(None);
    metrics.count_attempt(None);
    let tokens = Some(TokenCounts::default());
    metrics.observe_model_call("p", ModelCallOutcome::Answered, Duration::from_millis(1), tokens);
}

/// Asserts that the metrics have these lines.
#[track_caller]
pub(crate) fn assert_lines(metrics: &Metrics, lines: &[&str]) {
    let (runs, sql) = (RunCounts::default(), SqlCounts { queued: 3, running: 4 });
    let sampled = SampledValues { status: HealthStatus::Ok, runs, sql, is_ready: true, state_free_bytes: None };
    let text = metrics.encode(sampled, TextFormat::OpenMetrics);
    for line in lines {
        assert!(text.lines().any(|found| found == *line), "no {line} in\n{text}");
    }
}

#[test]
fn measures_judgements_apart_from_their_wait() {
    let metrics = Metrics::new(0);
    metrics.observe_sql_start(Duration::from_secs(3));
    metrics.observe_judgement(&judgement("reject"), Duration::from_secs(1));
    for kind in [ProblemType::TooManyRequests, ProblemType::Unavailable, ProblemType::Unavailable] {
        metrics.count_refused_sql(&Problem::new(kind, "x"));
    }
    assert_lines(
        &metrics,
        &[
            "proctor_sql_judgements_total{verdict=\"reject\",dialect=\"postgres\"} 1",
            "proctor_sql_judgement_seconds_sum{verdict=\"reject\"} 1.0",
            "proctor_sql_wait_seconds_sum 3.0",
            "proctor_sql_refused_total{reason=\"full\"} 1",
            "proctor_sql_refused_total{reason=\"late\"} 2",
            "proctor_sql_requests{state=\"queued\"} 3",
            "proctor_sql_requests{state=\"running\"} 4",
        ],
    );
}

#[test]
fn counts_findings_and_stages() {
    let metrics = Metrics::new(0);
    metrics.observe_judgement(&judgement("reject"), Duration::from_secs(3));
    metrics.observe_judgement(&judgement("ok"), Duration::from_secs(3));
    assert_lines(
        &metrics,
        &[
            "proctor_sql_findings_total{code=\"P0612\",severity=\"error\"} 2",
            "proctor_sql_findings_total{code=\"P0651\",severity=\"warning\"} 2",
            "proctor_sql_stage_seconds_sum{stage=\"bind\"} 4.0",
            "proctor_sql_stage_seconds_count{stage=\"parse\"} 2",
        ],
    );
}

#[test]
fn counts_questions_attempts_and_model_calls() {
    let metrics = Metrics::new(0);
    for verdict in [Some(AskVerdict::GaveUp), None] {
        metrics.count_question(verdict);
    }
    for outcome in [Some(AttemptOutcome::Rejected), Some(AttemptOutcome::Rejected), None] {
        metrics.count_attempt(outcome);
    }
    let second = Duration::from_secs(1);
    let tokens = TokenCounts { input: 30, output: 5, estimated: true };
    metrics.observe_model_call("local", ModelCallOutcome::Answered, second, Some(tokens));
    metrics.observe_model_call("local", ModelCallOutcome::Answered, second, Some(tokens));
    metrics.observe_model_call("local", ModelCallOutcome::TimedOut, second, None);
    assert_lines(
        &metrics,
        &[
            "proctor_sql_questions_total{verdict=\"gave_up\"} 1",
            "proctor_sql_questions_total{verdict=\"cancelled\"} 1",
            "proctor_sql_attempts_total{outcome=\"rejected\"} 2",
            "proctor_sql_attempts_total{outcome=\"unfinished\"} 1",
            "proctor_sql_model_calls_total{provider=\"local\",outcome=\"answered\"} 2",
            "proctor_sql_model_calls_total{provider=\"local\",outcome=\"timed_out\"} 1",
            "proctor_sql_model_tokens_total{provider=\"local\",direction=\"input\"} 60",
            "proctor_sql_model_tokens_total{provider=\"local\",direction=\"output\"} 10",
            "proctor_sql_model_call_seconds_sum{provider=\"local\"} 3.0",
        ],
    );
}

//! Collects metrics in the text formats of Prometheus. Label values are bounded: routes, methods, codes and outcomes,
//! never text from callers.

mod exposition_format;
mod label_sets;
mod process_metrics;
mod question_metrics;
mod sql_metrics;
#[cfg(test)]
pub(crate) mod sql_tests;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use proctor_core::api::{HealthStatus, Problem, RunCounts, RunView, StepView, SubmissionOutcome};
use proctor_core::code::Coded as _;
use proctor_core::decision::verdict::Verdict;
use proctor_core::record::evidence::CACHED;
use proctor_core::sql::Judgement;
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tokio::sync::watch;

use label_sets::{
    ConnectionRefusalLabels, RefusedSubmissionLabels, ReloadLabels, RequestLabels, RouteLabels, SpanLabels,
    StateLabels, StepLabels, SubmissionLabels, VerdictLabels,
};

pub use exposition_format::TextFormat;
pub use sql_metrics::SqlCounts;

/// The metrics of this process. Cheap to clone; all clones share the same counters.
#[derive(Debug, Clone)]
pub struct Metrics(Arc<MetricSet>);

#[derive(Debug)]
struct MetricSet {
    registry: Registry,
    submitted: Family<SubmissionLabels, Counter>,
    refused_submissions: Family<RefusedSubmissionLabels, Counter>,
    finished: Family<VerdictLabels, Counter>,
    run_wait: Histogram,
    run_duration: Histogram,
    run_execution: Family<VerdictLabels, Histogram, fn() -> Histogram>,
    steps: Family<StepLabels, Histogram, fn() -> Histogram>,
    runs: Family<StateLabels, Gauge>,
    judgements: sql_metrics::SqlMetrics,
    questions: question_metrics::QuestionMetrics,
    requests: Family<RequestLabels, Counter>,
    response_times: Family<RouteLabels, Histogram, fn() -> Histogram>,
    refused_connections: Family<ConnectionRefusalLabels, Counter>,
    reloads: Family<ReloadLabels, Counter>,
    reload_succeeded: Gauge,
    reloaded_at: FloatGauge,
    panics: Counter,
    spans: Family<SpanLabels, Counter>,
    draining: Gauge,
    ready: Gauge,
    state_free: Gauge,
    open: Gauge,
    process: process_metrics::ProcessGauges,
    connections: watch::Sender<ConnectionCount>,
}

/// The open connections.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionCount {
    /// Number of open connections.
    pub open: u32,
}

/// Reason why a connection was refused or closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionRefusal {
    /// The user may not connect.
    UserNotAllowed,
    /// The connection was evicted at the limit of connections.
    Evicted,
    /// `accept` failed, for example for lack of descriptors.
    Failed,
}

/// Result of exporting spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanResult {
    /// The receiver accepted the spans.
    Exported,
    /// The export queue was full.
    Dropped,
    /// The spans could not be sent, or the receiver rejected them.
    Failed,
}

/// Returns buckets from 0.25 ms to two minutes, which is twice the maximum wait.
fn response_time_histogram() -> Histogram {
    Histogram::new([0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0])
}

/// Returns buckets from 5 ms to two hours.
fn run_time_histogram() -> Histogram {
    Histogram::new([
        0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0, 1_200.0,
        2_400.0, 3_600.0, 7_200.0,
    ])
}

/// Values sampled when the metrics are read.
#[derive(Debug, Clone, Copy)]
pub struct SampledValues {
    /// Health status of the daemon.
    pub status: HealthStatus,
    /// Number of runs.
    pub runs: RunCounts,
    /// Number of SQL requests.
    pub sql: SqlCounts,
    /// `true` if new runs are accepted.
    pub is_ready: bool,
    /// Free bytes on the disk of the state directory, if known.
    pub state_free_bytes: Option<u64>,
}

impl Metrics {
    /// Creates the metrics; `started_ms` is the start of the process in milliseconds since 1970.
    pub fn new(started_ms: u64) -> Self {
        let mut registry = Registry::default();
        let counted = MetricSet {
            submitted: Family::default(),
            refused_submissions: Family::default(),
            finished: Family::default(),
            run_wait: run_time_histogram(),
            run_duration: run_time_histogram(),
            run_execution: Family::new_with_constructor(run_time_histogram as fn() -> Histogram),
            steps: Family::new_with_constructor(run_time_histogram as fn() -> Histogram),
            runs: Family::default(),
            judgements: sql_metrics::SqlMetrics::new(),
            questions: question_metrics::QuestionMetrics::new(),
            requests: Family::default(),
            response_times: Family::new_with_constructor(response_time_histogram as fn() -> Histogram),
            refused_connections: Family::default(),
            reloads: Family::default(),
            reload_succeeded: Gauge::default(),
            reloaded_at: FloatGauge::default(),
            panics: Counter::default(),
            spans: Family::default(),
            draining: Gauge::default(),
            ready: Gauge::default(),
            state_free: Gauge::default(),
            open: Gauge::default(),
            process: process_metrics::ProcessGauges::register(&mut registry, started_ms),
            connections: watch::Sender::new(ConnectionCount { open: 0 }),
            registry,
        };
        // The daemon starts only with a valid config.
        counted.reload_succeeded.set(1);
        counted.reloaded_at.set(seconds(started_ms));
        Self(Arc::new(counted.register_all()))
    }

    /// Counts a connection as open until the returned value is dropped.
    pub fn open_connection(&self) -> ConnectionGuard {
        self.0.count_connections(|open| open.saturating_add(1));
        ConnectionGuard(self.clone())
    }

    /// Returns a receiver of the number of open connections.
    pub fn subscribe_connections(&self) -> watch::Receiver<ConnectionCount> {
        self.0.connections.subscribe()
    }

    /// Counts a refused or evicted connection.
    pub fn count_refused_connection(&self, reason: ConnectionRefusal) {
        let reason = match reason {
            ConnectionRefusal::UserNotAllowed => "foreign",
            ConnectionRefusal::Evicted => "evicted",
            ConnectionRefusal::Failed => "failed",
        };
        self.0.refused_connections.get_or_create(&ConnectionRefusalLabels { reason }).inc();
    }

    /// Counts a response. `route` is the pattern of the route and never the requested path; `None` means that no
    /// route matched.
    pub fn observe_response(&self, route: Option<&'static str>, method: &str, code: u16, took: Duration) {
        let route = route.unwrap_or("none");
        let method = method_label(method);
        self.0.requests.get_or_create(&RequestLabels { route, method, code }).inc();
        self.0.response_times.get_or_create(&RouteLabels { route }).observe(took.as_secs_f64());
    }

    /// Counts a request for a run by how it was answered.
    pub fn count_submission(&self, how: SubmissionOutcome) {
        self.0.submitted.get_or_create(&SubmissionLabels { how: how_label(how) }).inc();
    }

    /// Counts a refused request for a run.
    pub fn count_refused_submission(&self, problem: &Problem) {
        let name = problem.kind.code().name();
        let reason = name.rsplit_once("::").map_or(name, |(_, reason)| reason);
        let refused = RefusedSubmissionLabels { reason, code: problem.kind.status() };
        self.0.refused_submissions.get_or_create(&refused).inc();
        self.0.submitted.get_or_create(&SubmissionLabels { how: "refused" }).inc();
    }

    /// Records the queue time of a run that starts.
    pub fn observe_run_start(&self, waited: Duration) {
        self.0.run_wait.observe(waited.as_secs_f64());
    }

    /// Counts a finished run; `run_duration` counts from its request, and `run_execution` from its start, if it
    /// started.
    pub fn observe_run_end(&self, view: &RunView, verdict: Verdict, took: Duration, executed: Option<Duration>) {
        let finish = VerdictLabels { verdict: verdict.as_str() };
        self.0.finished.get_or_create(&finish).inc();
        self.0.run_duration.observe(took.as_secs_f64());
        if let Some(executed) = executed {
            self.0.run_execution.get_or_create(&finish).observe(executed.as_secs_f64());
        }
        view.checks.iter().for_each(|check| self.observe_step("check", check));
        for step in &view.steps {
            self.observe_step(if step.sql.is_some() { "sql" } else { "step" }, step);
        }
    }

    fn observe_step(&self, kind: &'static str, step: &StepView) {
        if let (Some(outcome), Some(duration_ms)) = (step.outcome, step.duration_ms) {
            // The duration of a step that was not executed would distort that of the others.
            let outcome = if step.cached_from.is_some() { CACHED } else { outcome.as_str() };
            self.0.steps.get_or_create(&StepLabels { kind, outcome }).observe(seconds(duration_ms));
        }
    }

    /// Records the queue time of an SQL request.
    pub fn observe_sql_start(&self, waited: Duration) {
        self.0.judgements.observe_start(waited);
    }

    /// Counts a judgement of SQL and its findings; `took` excludes the queue time.
    pub fn observe_judgement(&self, judgement: &Judgement, took: Duration) {
        self.0.judgements.observe_end(judgement, took);
    }

    /// Counts an SQL request that the queue refused.
    pub fn count_refused_sql(&self, problem: &Problem) {
        self.0.judgements.count_refused(problem);
    }

    /// Counts a reload of the operator's config at `now_ms` since 1970; `valid` says whether it was applied.
    pub fn count_reload(&self, valid: bool, now_ms: u64) {
        let result = if valid { "applied" } else { "refused" };
        self.0.reload_succeeded.set(i64::from(valid));
        if valid {
            self.0.reloaded_at.set(seconds(now_ms));
        }
        self.0.reloads.get_or_create(&ReloadLabels { result }).inc();
    }

    /// Counts spans by the result of their export.
    pub fn count_spans(&self, result: SpanResult, count: u64) {
        let result = match result {
            SpanResult::Exported => "exported",
            SpanResult::Dropped => "dropped",
            SpanResult::Failed => "failed",
        };
        self.0.spans.get_or_create(&SpanLabels { result }).inc_by(count);
    }

    /// Counts a caught panic.
    pub fn count_panic(&self) {
        self.0.panics.inc();
    }

    /// Returns all metrics as text.
    pub fn encode(&self, sampled: SampledValues, format: TextFormat) -> String {
        let SampledValues { status, runs, sql, is_ready, state_free_bytes } = sampled;
        self.0.judgements.set_counts(sql);
        self.0.draining.set(i64::from(status == HealthStatus::Draining));
        self.0.ready.set(i64::from(is_ready));
        if let Some(free) = state_free_bytes {
            self.0.state_free.set(i64::try_from(free).unwrap_or(i64::MAX));
        }
        for (state, count) in [("queued", runs.queued), ("running", runs.running)] {
            self.0.runs.get_or_create(&StateLabels { state }).set(i64::from(count));
        }
        self.0.process.update();
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = text::encode(&mut text, &self.0.registry);
        format.convert(text)
    }
}

impl MetricSet {
    fn register_all(mut self) -> Self {
        let to = &mut self.registry;
        to.register("proctor_submissions", "Requests for a run, by the kind of their answer", self.submitted.clone());
        let help = "Rejected requests for a run, by the kind of the problem and its status code";
        to.register("proctor_submissions_refused", help, self.refused_submissions.clone());
        to.register("proctor_runs_finished", "Runs that have ended, by verdict", self.finished.clone());
        to.register("proctor_runs", "Waiting and active runs", self.runs.clone());
        let help = "Time that runs waited in the queue";
        to.register_with_unit("proctor_run_wait", help, Unit::Seconds, self.run_wait.clone());
        let help = "Duration of runs from the request to their end, including the wait in the queue";
        to.register_with_unit("proctor_run_duration", help, Unit::Seconds, self.run_duration.clone());
        let help = "Duration of runs from their start to their end, by verdict";
        to.register_with_unit("proctor_run_execution", help, Unit::Seconds, self.run_execution.clone());
        let help = "Duration of steps, steps that judge SQL, and toolchain checks, by outcome";
        to.register_with_unit("proctor_step_duration", help, Unit::Seconds, self.steps.clone());
        self.judgements.register(to);
        self.questions.register(to);
        to.register("proctor_http_requests", "Answered requests", self.requests.clone());
        let help = "Time until the head of an answer was ready; a long poll waits on purpose";
        to.register_with_unit("proctor_http_request_duration", help, Unit::Seconds, self.response_times.clone());
        to.register("proctor_connections", "Open connections", self.open.clone());
        to.register(
            "proctor_connections_refused",
            "Connections that were rejected or closed early",
            self.refused_connections.clone(),
        );
        to.register("proctor_config_reloads", "Number of times that the config was reloaded", self.reloads.clone());
        let help = "1 if the last reload of the config was successful, 0 if the new config was not valid and the old \
            one remains in use";
        to.register("proctor_config_last_reload_successful", help, self.reload_succeeded.clone());
        let help = "Time of the last successful reload of the config, in seconds since 1970";
        to.register_with_unit(
            "proctor_config_last_reload_success_timestamp",
            help,
            Unit::Seconds,
            self.reloaded_at.clone(),
        );
        let help = "Spans for OpenTelemetry, by the result of their export";
        to.register("proctor_otlp_spans", help, self.spans.clone());
        to.register("proctor_panics", "Panics that were caught", self.panics.clone());
        let help = "1 if the daemon accepts new runs: it is not shutting down, and can write to its state directory";
        to.register("proctor_ready", help, self.ready.clone());
        let help = "Free bytes on the disk of the state directory";
        to.register_with_unit("proctor_state_free", help, Unit::Bytes, self.state_free.clone());
        to.register("proctor_draining", "1 if no new runs are accepted", self.draining.clone());
        self
    }

    fn count_connections(&self, change: impl Fn(u32) -> u32) {
        self.connections.send_modify(|connections| {
            connections.open = change(connections.open);
            self.open.set(i64::from(connections.open));
        });
    }
}

/// An open connection; dropping it decrements the count.
#[derive(Debug)]
pub struct ConnectionGuard(Metrics);

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.0.count_connections(|open| open.saturating_sub(1));
    }
}

fn how_label(how: SubmissionOutcome) -> &'static str {
    match how {
        SubmissionOutcome::Queued => "queued",
        SubmissionOutcome::Joined => "joined",
        SubmissionOutcome::Verified => "verified",
        SubmissionOutcome::Repeated => "repeated",
    }
}

/// Returns a bounded label value, because callers can send arbitrary methods.
fn method_label(method: &str) -> &'static str {
    const KNOWN: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"];
    KNOWN.into_iter().find(|known| *known == method).unwrap_or("other")
}

fn seconds(ms: u64) -> f64 {
    Duration::from_millis(ms).as_secs_f64()
}

/// A gauge with a floating-point value.
type FloatGauge = Gauge<f64, AtomicU64>;

#[cfg(test)]
mod tests {
    use proctor_core::api::LoggedRun;

    use super::*;

    fn encode_metrics(metrics: &Metrics) -> String {
        encode_as(metrics, TextFormat::OpenMetrics)
    }

    fn encode_as(metrics: &Metrics, format: TextFormat) -> String {
        let runs = RunCounts { queued: 2, running: 1 };
        let sql = SqlCounts { queued: 3, running: 4 };
        let sampled = SampledValues { status: HealthStatus::Ok, runs, sql, is_ready: true, state_free_bytes: Some(7) };
        metrics.encode(sampled, format)
    }

    fn view() -> RunView {
        let request = r#"{"repo":"/r","profile":"pr","changeset_id":null,"rev":null,"submodules":false,
            "max_tier":2,"sandbox":"strict","fail_fast":false,"changes":"applied"}"#;
        let request = serde_json::from_str(request).expect("reads");
        LoggedRun::new_queued("r1".parse().expect("an id"), "t".into(), request, 7).view()
    }

    #[test]
    fn counts_every_refusal_by_its_reason_and_status() {
        use proctor_core::api::ProblemType;
        let metrics = Metrics::new(0);
        for kind in [ProblemType::TooManyRequests, ProblemType::InvalidSpec, ProblemType::InvalidSpec] {
            metrics.count_refused_submission(&Problem::new(kind, "x"));
        }
        let text = encode_metrics(&metrics);
        for line in [
            "proctor_submissions_total{how=\"refused\"} 3",
            "proctor_submissions_refused_total{reason=\"too_many\",code=\"429\"} 1",
            "proctor_submissions_refused_total{reason=\"invalid_spec\",code=\"422\"} 2",
        ] {
            assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
        }
    }

    #[test]
    fn measures_runs_without_their_wait() {
        let metrics = Metrics::new(0);
        metrics.observe_run_end(&view(), Verdict::Passed, Duration::from_secs(30), Some(Duration::from_secs(1)));
        metrics.observe_run_end(&view(), Verdict::Inconclusive, Duration::from_secs(30), None);
        let text = encode_metrics(&metrics);
        for line in [
            "proctor_run_duration_seconds_sum 60.0",
            "proctor_run_execution_seconds_sum{verdict=\"passed\"} 1.0",
            "proctor_run_execution_seconds_count{verdict=\"passed\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
        }
        assert!(!text.contains("execution_seconds_count{verdict=\"inconclusive\"}"), "{text}");
    }

    #[test]
    fn separates_sql_steps_from_commands() {
        let (metrics, mut view) = (Metrics::new(0), view());
        let step = |sql: &str| {
            let step = format!(
                r#"{{"n":0,"skill":"a","name":"b","outcome":"failed","attempt":1,"termination":null,"exit_code":1,
                "duration_ms":1500,"changed":[],"changed_more":0,"stdout":null,"stderr":null{sql}}}"#
            );
            serde_json::from_str(&step).expect("a step")
        };
        view.steps = vec![step(r#","sql":"duckdb""#), step("")];
        view.checks = vec![step("")];
        metrics.observe_run_end(&view, Verdict::Failed, Duration::from_secs(3), Some(Duration::from_secs(3)));
        let text = encode_metrics(&metrics);
        for kind in ["sql", "step", "check"] {
            let line = format!("proctor_step_duration_seconds_sum{{kind=\"{kind}\",outcome=\"failed\"}} 1.5");
            assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
        }
    }

    /// Checks a rule of `promtool check metrics`: every sample has a type and a help text under its own name.
    #[test]
    fn prometheus_format_has_help_for_every_counter() {
        let metrics = Metrics::new(1_500);
        metrics.count_submission(SubmissionOutcome::Queued);
        metrics.count_panic();
        sql_tests::observe_one_of_each(&metrics);
        metrics.count_refused_sql(&Problem::new(proctor_core::api::ProblemType::Unavailable, "x"));
        metrics.observe_response(None, "GET", 200, Duration::from_millis(1));
        let text = encode_as(&metrics, TextFormat::Prometheus);
        let described = |name: &str| {
            ["HELP", "TYPE"].iter().all(|kind| text.lines().any(|line| line.starts_with(&format!("# {kind} {name} "))))
        };
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().expect("a name");
            let family = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
            assert!(described(name) || family.is_some_and(described), "{line}");
        }
        assert!(!text.contains("# EOF") && !text.contains("# UNIT"), "{text}");
    }

    #[test]
    fn counts_events_by_label() {
        let metrics = Metrics::new(1_500);
        metrics.observe_response(Some("/v1/runs/{id}"), "GET", 200, Duration::from_millis(1));
        metrics.observe_response(None, "BREW\"\n", 404, Duration::from_millis(1));
        metrics.count_submission(SubmissionOutcome::Queued);
        metrics.observe_run_end(&view(), Verdict::Passed, Duration::from_secs(2), None);
        metrics.count_refused_connection(ConnectionRefusal::UserNotAllowed);
        metrics.count_spans(SpanResult::Failed, 3);
        let text = encode_metrics(&metrics);
        for line in [
            "proctor_http_requests_total{route=\"/v1/runs/{id}\",method=\"GET\",code=\"200\"} 1",
            "proctor_http_requests_total{route=\"none\",method=\"other\",code=\"404\"} 1",
            "proctor_runs_finished_total{verdict=\"passed\"} 1",
            "proctor_submissions_total{how=\"queued\"} 1",
            "proctor_runs{state=\"queued\"} 2",
            "proctor_connections_refused_total{reason=\"foreign\"} 1",
            "proctor_otlp_spans_total{result=\"failed\"} 3",
            "process_start_time_seconds 1.5",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
        }
    }

    #[test]
    fn shows_whether_the_last_reload_was_successful() {
        let metrics = Metrics::new(1_500);
        let shown = |successful: u8, at: &str| {
            let text = encode_metrics(&metrics);
            for line in [
                format!("proctor_config_last_reload_successful {successful}"),
                format!("proctor_config_last_reload_success_timestamp_seconds {at}"),
            ] {
                assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
            }
        };
        shown(1, "1.5");
        metrics.count_reload(false, 2_000);
        shown(0, "1.5");
        metrics.count_reload(true, 3_500);
        shown(1, "3.5");
    }

    #[test]
    fn counts_open_connections() {
        let metrics = Metrics::new(0);
        let seen = metrics.subscribe_connections();
        let (one, two) = (metrics.open_connection(), metrics.open_connection());
        assert_eq!(seen.borrow().open, 2);
        drop((one, two));
        assert_eq!(seen.borrow().open, 0);
        assert!(encode_metrics(&metrics).contains("proctor_connections 0"));
    }
}

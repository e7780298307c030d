//! Collects metrics in the text formats of Prometheus. Label values are bounded: routes, methods, codes and outcomes,
//! never text from callers.

mod format;
mod process;
mod sql;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use proctor_core::api::{HealthStatus, How, Problem, RunCounts, RunView, StepView};
use proctor_core::code::Coded as _;
use proctor_core::sql::Verdict as SqlVerdict;
use proctor_core::verdict::Verdict;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tokio::sync::watch;

pub use format::TextFormat;
pub use sql::SqlCounts;

/// The metrics of this process. Cheap to clone; all clones share the same counters.
#[derive(Debug, Clone)]
pub struct Metrics(Arc<Counted>);

#[derive(Debug)]
struct Counted {
    registry: Registry,
    submitted: Family<Submission, Counter>,
    refused_submissions: Family<RefusedSubmission, Counter>,
    finished: Family<Finish, Counter>,
    waited: Histogram,
    took: Histogram,
    executed: Family<Finish, Histogram, fn() -> Histogram>,
    steps: Family<Step, Histogram, fn() -> Histogram>,
    runs: Family<Standing, Gauge>,
    judgements: sql::Judgements,
    requests: Family<Request, Counter>,
    answered: Family<Route, Histogram, fn() -> Histogram>,
    refused: Family<Refusal, Counter>,
    reloads: Family<Reload, Counter>,
    reload_succeeded: Gauge,
    reloaded_at: FloatGauge,
    panics: Counter,
    spans: Family<Exported, Counter>,
    draining: Gauge,
    ready: Gauge,
    state_free: Gauge,
    open: Gauge,
    process: process::Gauges,
    connections: watch::Sender<Connections>,
}

/// The open connections.
#[derive(Debug, Clone, Copy)]
pub struct Connections {
    /// Number of open connections.
    pub open: u32,
}

/// Reason why a connection was refused or closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionRefused {
    /// The user may not connect.
    Foreign,
    /// The connection was evicted at the limit of connections.
    Evicted,
    /// `accept` failed, for example for lack of descriptors.
    Failed,
}

/// Result of exporting spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanResult {
    /// The receiver accepted them.
    Exported,
    /// The export queue was full.
    Dropped,
    /// They could not be sent, or the receiver rejected them.
    Failed,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Exported {
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Submission {
    how: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusedSubmission {
    reason: &'static str,
    code: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Step {
    kind: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Finish {
    verdict: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Standing {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    route: &'static str,
    method: &'static str,
    code: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Route {
    route: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Refusal {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reload {
    result: &'static str,
}

/// Returns buckets from 0.25 ms to two minutes, which is twice the maximum wait.
fn answer_times() -> Histogram {
    Histogram::new([0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0])
}

/// Returns buckets from 5 ms to two hours.
fn run_times() -> Histogram {
    Histogram::new([
        0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0, 1_200.0,
        2_400.0, 3_600.0, 7_200.0,
    ])
}

/// Values sampled when the metrics are read.
#[derive(Debug, Clone, Copy)]
pub struct Sampled {
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
        let counted = Counted {
            submitted: Family::default(),
            refused_submissions: Family::default(),
            finished: Family::default(),
            waited: run_times(),
            took: run_times(),
            executed: Family::new_with_constructor(run_times as fn() -> Histogram),
            steps: Family::new_with_constructor(run_times as fn() -> Histogram),
            runs: Family::default(),
            judgements: sql::Judgements::new(),
            requests: Family::default(),
            answered: Family::new_with_constructor(answer_times as fn() -> Histogram),
            refused: Family::default(),
            reloads: Family::default(),
            reload_succeeded: Gauge::default(),
            reloaded_at: FloatGauge::default(),
            panics: Counter::default(),
            spans: Family::default(),
            draining: Gauge::default(),
            ready: Gauge::default(),
            state_free: Gauge::default(),
            open: Gauge::default(),
            process: process::Gauges::register(&mut registry, started_ms),
            connections: watch::Sender::new(Connections { open: 0 }),
            registry,
        };
        // The daemon starts only with a valid config.
        counted.reload_succeeded.set(1);
        counted.reloaded_at.set(seconds(started_ms));
        Self(Arc::new(counted.registered()))
    }

    /// Counts a connection as open until the returned value is dropped.
    pub fn connected(&self) -> Connected {
        self.0.count_connections(|open| open.saturating_add(1));
        Connected(self.clone())
    }

    /// Returns a receiver of the number of open connections.
    pub fn connections(&self) -> watch::Receiver<Connections> {
        self.0.connections.subscribe()
    }

    /// Counts a refused or evicted connection.
    pub fn refused(&self, reason: ConnectionRefused) {
        let reason = match reason {
            ConnectionRefused::Foreign => "foreign",
            ConnectionRefused::Evicted => "evicted",
            ConnectionRefused::Failed => "failed",
        };
        self.0.refused.get_or_create(&Refusal { reason }).inc();
    }

    /// Counts a response. `route` is the pattern of the route and never the requested path; `None` means that no
    /// route matched.
    pub fn answered(&self, route: Option<&'static str>, method: &str, code: u16, took: Duration) {
        let route = route.unwrap_or("none");
        let method = known_method(method);
        self.0.requests.get_or_create(&Request { route, method, code }).inc();
        self.0.answered.get_or_create(&Route { route }).observe(took.as_secs_f64());
    }

    /// Counts a request for a run by how it was answered.
    pub fn submitted(&self, how: How) {
        self.0.submitted.get_or_create(&Submission { how: how_word(how) }).inc();
    }

    /// Counts a refused request for a run.
    pub fn not_submitted(&self, problem: &Problem) {
        let name = problem.kind.code().name();
        let reason = name.rsplit_once("::").map_or(name, |(_, reason)| reason);
        let refused = RefusedSubmission { reason, code: problem.kind.status() };
        self.0.refused_submissions.get_or_create(&refused).inc();
        self.0.submitted.get_or_create(&Submission { how: "refused" }).inc();
    }

    /// Records the queue time of a run that starts.
    pub fn started(&self, waited: Duration) {
        self.0.waited.observe(waited.as_secs_f64());
    }

    /// Counts a finished run; `took` counts from its request, and `executed` from its start, if it started.
    pub fn finished(&self, view: &RunView, verdict: Verdict, took: Duration, executed: Option<Duration>) {
        let finish = Finish { verdict: verdict.as_str() };
        self.0.finished.get_or_create(&finish).inc();
        self.0.took.observe(took.as_secs_f64());
        if let Some(executed) = executed {
            self.0.executed.get_or_create(&finish).observe(executed.as_secs_f64());
        }
        view.checks.iter().for_each(|check| self.step("check", check));
        for step in &view.steps {
            self.step(if step.sql.is_some() { "sql" } else { "step" }, step);
        }
    }

    fn step(&self, kind: &'static str, step: &StepView) {
        if let (Some(outcome), Some(duration_ms)) = (step.outcome, step.duration_ms) {
            self.0.steps.get_or_create(&Step { kind, outcome: outcome.as_str() }).observe(seconds(duration_ms));
        }
    }

    /// Records the queue time of an SQL request.
    pub fn sql_started(&self, waited: Duration) {
        self.0.judgements.started(waited);
    }

    /// Counts a judgement of SQL; `took` excludes the queue time.
    pub fn sql_judged(&self, verdict: SqlVerdict, took: Duration) {
        self.0.judgements.ended(verdict, took);
    }

    /// Counts an SQL request that the queue refused.
    pub fn sql_refused(&self, problem: &Problem) {
        self.0.judgements.refused(problem);
    }

    /// Counts a reload of the operator's config at `now_ms` since 1970; `valid` says whether it was applied.
    pub fn reloaded(&self, valid: bool, now_ms: u64) {
        let result = if valid { "applied" } else { "refused" };
        self.0.reload_succeeded.set(i64::from(valid));
        if valid {
            self.0.reloaded_at.set(seconds(now_ms));
        }
        self.0.reloads.get_or_create(&Reload { result }).inc();
    }

    /// Counts spans of runs by the result of their export.
    pub fn spans(&self, result: SpanResult, count: u64) {
        let result = match result {
            SpanResult::Exported => "exported",
            SpanResult::Dropped => "dropped",
            SpanResult::Failed => "failed",
        };
        self.0.spans.get_or_create(&Exported { result }).inc_by(count);
    }

    /// Counts a caught panic.
    pub fn panicked(&self) {
        self.0.panics.inc();
    }

    /// Returns all metrics as text.
    pub fn text(&self, sampled: Sampled, format: TextFormat) -> String {
        let Sampled { status, runs, sql, is_ready, state_free_bytes } = sampled;
        self.0.judgements.count(sql);
        self.0.draining.set(i64::from(status == HealthStatus::Draining));
        self.0.ready.set(i64::from(is_ready));
        if let Some(free) = state_free_bytes {
            self.0.state_free.set(i64::try_from(free).unwrap_or(i64::MAX));
        }
        for (state, count) in [("queued", runs.queued), ("running", runs.running)] {
            self.0.runs.get_or_create(&Standing { state }).set(i64::from(count));
        }
        self.0.process.look();
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = text::encode(&mut text, &self.0.registry);
        format.text(text)
    }
}

impl Counted {
    fn registered(mut self) -> Self {
        let to = &mut self.registry;
        to.register("proctor_submissions", "Requests for a run, by how they were answered", self.submitted.clone());
        let help = "Requests for a run that were refused, by the kind of the problem and its status code";
        to.register("proctor_submissions_refused", help, self.refused_submissions.clone());
        to.register("proctor_runs_finished", "Runs that have ended, by verdict", self.finished.clone());
        to.register("proctor_runs", "Runs that wait and that are under way", self.runs.clone());
        let help = "How long runs waited for their turn";
        to.register_with_unit("proctor_run_wait", help, Unit::Seconds, self.waited.clone());
        let help = "How long runs took, from the request to their end, with the wait for their turn";
        to.register_with_unit("proctor_run_duration", help, Unit::Seconds, self.took.clone());
        let help = "How long runs took, from their beginning to their end, by verdict";
        to.register_with_unit("proctor_run_execution", help, Unit::Seconds, self.executed.clone());
        let help = "How long steps, steps that judge SQL, and toolchain checks took, by outcome";
        to.register_with_unit("proctor_step_duration", help, Unit::Seconds, self.steps.clone());
        self.judgements.register(to);
        to.register("proctor_http_requests", "Answered requests", self.requests.clone());
        let help = "How long answers took until their head was ready; a long poll waits on purpose";
        to.register_with_unit("proctor_http_request_duration", help, Unit::Seconds, self.answered.clone());
        to.register("proctor_connections", "Open connections", self.open.clone());
        to.register(
            "proctor_connections_refused",
            "Connections that were not served, or no longer",
            self.refused.clone(),
        );
        to.register("proctor_config_reloads", "Times that the config was read again", self.reloads.clone());
        let help = "1 if the daemon uses the config as it was when it was last read, 0 if that one was not valid";
        to.register("proctor_config_last_reload_successful", help, self.reload_succeeded.clone());
        let help = "When a valid config was last read, since 1970";
        to.register_with_unit(
            "proctor_config_last_reload_success_timestamp",
            help,
            Unit::Seconds,
            self.reloaded_at.clone(),
        );
        let help = "Spans of runs for OpenTelemetry, by whether they were exported";
        to.register("proctor_otlp_spans", help, self.spans.clone());
        to.register("proctor_panics", "Panics that were caught", self.panics.clone());
        let help = "1 if new runs are taken on: the daemon does not end, and can write to its state directory";
        to.register("proctor_ready", help, self.ready.clone());
        let help = "Free bytes on the disk of the state directory";
        to.register_with_unit("proctor_state_free", help, Unit::Bytes, self.state_free.clone());
        to.register("proctor_draining", "1 where no new runs are taken on", self.draining.clone());
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
pub struct Connected(Metrics);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.0.count_connections(|open| open.saturating_sub(1));
    }
}

fn how_word(how: How) -> &'static str {
    match how {
        How::Queued => "queued",
        How::Joined => "joined",
        How::Verified => "verified",
        How::Repeated => "repeated",
    }
}

/// Returns a bounded label value, because callers can send arbitrary methods.
fn known_method(method: &str) -> &'static str {
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
    use super::*;

    fn text(metrics: &Metrics) -> String {
        formatted(metrics, TextFormat::OpenMetrics)
    }

    fn formatted(metrics: &Metrics, format: TextFormat) -> String {
        let runs = RunCounts { queued: 2, running: 1 };
        let sql = SqlCounts { queued: 3, running: 4 };
        let sampled = Sampled { status: HealthStatus::Ok, runs, sql, is_ready: true, state_free_bytes: Some(7) };
        metrics.text(sampled, format)
    }

    fn view() -> RunView {
        let asked = r#"{"repo":"/r","profile":"pr","changeset_id":null,"rev":null,"submodules":false,
            "max_tier":2,"sandbox":"strict","fail_fast":false,"changes":"applied"}"#;
        let asked = serde_json::from_str(asked).expect("reads");
        RunView::queued("r1".parse().expect("an id"), "t".into(), asked, 7)
    }

    #[test]
    fn counts_every_refusal_by_its_reason_and_status() {
        use proctor_core::api::ProblemType;
        let metrics = Metrics::new(0);
        for kind in [ProblemType::TooManyRequests, ProblemType::InvalidSpec, ProblemType::InvalidSpec] {
            metrics.not_submitted(&Problem::new(kind, "x"));
        }
        let text = text(&metrics);
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
        metrics.finished(&view(), Verdict::Passed, Duration::from_secs(30), Some(Duration::from_secs(1)));
        metrics.finished(&view(), Verdict::Inconclusive, Duration::from_secs(30), None);
        let text = text(&metrics);
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
    fn measures_judgements_of_sql_apart_from_their_wait() {
        use proctor_core::api::ProblemType;
        let metrics = Metrics::new(0);
        metrics.sql_started(Duration::from_secs(3));
        metrics.sql_judged(SqlVerdict::Reject, Duration::from_secs(1));
        for kind in [ProblemType::TooManyRequests, ProblemType::Unavailable, ProblemType::Unavailable] {
            metrics.sql_refused(&Problem::new(kind, "x"));
        }
        let text = text(&metrics);
        for line in [
            "proctor_sql_judgements_total{verdict=\"reject\"} 1",
            "proctor_sql_judgement_seconds_sum{verdict=\"reject\"} 1.0",
            "proctor_sql_wait_seconds_sum 3.0",
            "proctor_sql_refused_total{reason=\"full\"} 1",
            "proctor_sql_refused_total{reason=\"late\"} 2",
            "proctor_sql_requests{state=\"queued\"} 3",
            "proctor_sql_requests{state=\"running\"} 4",
        ] {
            assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
        }
    }

    #[test]
    fn tells_steps_that_judge_sql_from_commands() {
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
        metrics.finished(&view, Verdict::Failed, Duration::from_secs(3), Some(Duration::from_secs(3)));
        let text = text(&metrics);
        for kind in ["sql", "step", "check"] {
            let line = format!("proctor_step_duration_seconds_sum{{kind=\"{kind}\",outcome=\"failed\"}} 1.5");
            assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
        }
    }

    /// Checks a rule of `promtool check metrics`: every sample has a type and a help text under its own name.
    #[test]
    fn the_prometheus_format_has_help_for_every_counter() {
        let metrics = Metrics::new(1_500);
        metrics.submitted(How::Queued);
        metrics.panicked();
        metrics.sql_judged(SqlVerdict::Ok, Duration::from_millis(1));
        metrics.sql_refused(&Problem::new(proctor_core::api::ProblemType::Unavailable, "x"));
        metrics.answered(None, "GET", 200, Duration::from_millis(1));
        let text = formatted(&metrics, TextFormat::Prometheus);
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
    fn what_happened_is_told() {
        let metrics = Metrics::new(1_500);
        metrics.answered(Some("/v1/runs/{id}"), "GET", 200, Duration::from_millis(1));
        metrics.answered(None, "BREW\"\n", 404, Duration::from_millis(1));
        metrics.submitted(How::Queued);
        metrics.finished(&view(), Verdict::Passed, Duration::from_secs(2), None);
        metrics.refused(ConnectionRefused::Foreign);
        metrics.spans(SpanResult::Failed, 3);
        let text = text(&metrics);
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
            let text = text(&metrics);
            for line in [
                format!("proctor_config_last_reload_successful {successful}"),
                format!("proctor_config_last_reload_success_timestamp_seconds {at}"),
            ] {
                assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
            }
        };
        shown(1, "1.5");
        metrics.reloaded(false, 2_000);
        shown(0, "1.5");
        metrics.reloaded(true, 3_500);
        shown(1, "3.5");
    }

    #[test]
    fn a_connection_counts_while_it_is_open() {
        let metrics = Metrics::new(0);
        let seen = metrics.connections();
        let (one, two) = (metrics.connected(), metrics.connected());
        assert_eq!(seen.borrow().open, 2);
        drop((one, two));
        assert_eq!(seen.borrow().open, 0);
        assert!(text(&metrics).contains("proctor_connections 0"));
    }
}

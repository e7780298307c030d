//! What is counted and measured, in the text format that Prometheus reads (OpenMetrics 1.0). Labels
//! are bounded: routes, methods and codes, never what a caller wrote.

mod process;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use proctor_core::api::{HealthStatus, How, RunCounts};
use proctor_core::verdict::Verdict;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use tokio::sync::watch;

/// The content type of [`Metrics::text`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Counts what happens. Cheap to clone; all clones count into the same.
#[derive(Debug, Clone)]
pub struct Metrics(Arc<Counted>);

#[derive(Debug)]
struct Counted {
    registry: Registry,
    submitted: Family<Submission, Counter>,
    finished: Family<Finish, Counter>,
    waited: Histogram,
    took: Histogram,
    runs: Family<Standing, Gauge>,
    requests: Family<Request, Counter>,
    answered: Family<Route, Histogram, fn() -> Histogram>,
    refused: Family<Refusal, Counter>,
    reloads: Family<Reload, Counter>,
    panics: Counter,
    draining: Gauge,
    open: Gauge,
    process: process::Gauges,
    connections: watch::Sender<Connections>,
}

/// The open connections.
#[derive(Debug, Clone, Copy)]
pub struct Connections {
    /// How many there are.
    pub open: u32,
}

/// Why a connection was not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionRefused {
    /// Its user may not connect.
    Foreign,
    /// It made room for another, since there were too many.
    Evicted,
    /// It could not be accepted; there were no descriptors left, for instance.
    Failed,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Submission {
    how: &'static str,
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

/// From a tenth of a millisecond to about two minutes, which is twice the longest wait.
fn answer_times() -> Histogram {
    Histogram::new(exponential_buckets(0.000_1, 4.0, 11))
}

/// From ten milliseconds to about three hours.
fn run_times() -> Histogram {
    Histogram::new(exponential_buckets(0.01, 4.0, 11))
}

impl Metrics {
    /// Nothing has happened yet; the process began at `started_ms` of 1970.
    pub fn new(started_ms: u64) -> Self {
        let mut registry = Registry::default();
        let counted = Counted {
            submitted: Family::default(),
            finished: Family::default(),
            waited: run_times(),
            took: run_times(),
            runs: Family::default(),
            requests: Family::default(),
            answered: Family::new_with_constructor(answer_times as fn() -> Histogram),
            refused: Family::default(),
            reloads: Family::default(),
            panics: Counter::default(),
            draining: Gauge::default(),
            open: Gauge::default(),
            process: process::Gauges::register(&mut registry, started_ms),
            connections: watch::Sender::new(Connections { open: 0 }),
            registry,
        };
        Self(Arc::new(counted.registered()))
    }

    /// A connection is open for as long as the answer lives.
    pub fn connected(&self) -> Connected {
        self.0.count_connections(|open| open.saturating_add(1));
        Connected(self.clone())
    }

    /// The open connections, now and from now on.
    pub fn connections(&self) -> watch::Receiver<Connections> {
        self.0.connections.subscribe()
    }

    /// A connection was not served, or no longer.
    pub fn refused(&self, reason: ConnectionRefused) {
        let reason = match reason {
            ConnectionRefused::Foreign => "foreign",
            ConnectionRefused::Evicted => "evicted",
            ConnectionRefused::Failed => "failed",
        };
        self.0.refused.get_or_create(&Refusal { reason }).inc();
    }

    /// A request was answered. `route` is the pattern of the route, never the path that was asked
    /// for; `None` where no route was meant.
    pub fn answered(&self, route: Option<&'static str>, method: &str, code: u16, took: Duration) {
        let route = route.unwrap_or("none");
        let method = known_method(method);
        self.0.requests.get_or_create(&Request { route, method, code }).inc();
        self.0.answered.get_or_create(&Route { route }).observe(took.as_secs_f64());
    }

    /// A run was asked for, and answered in this way.
    pub fn submitted(&self, how: How) {
        self.0.submitted.get_or_create(&Submission { how: how_word(how) }).inc();
    }

    /// A run was not taken on.
    pub fn not_submitted(&self) {
        self.0.submitted.get_or_create(&Submission { how: "refused" }).inc();
    }

    /// A run began after it had waited for its turn.
    pub fn started(&self, waited: Duration) {
        self.0.waited.observe(waited.as_secs_f64());
    }

    /// A run ended, some time after it had been asked for.
    pub fn finished(&self, verdict: Verdict, took: Duration) {
        self.0.finished.get_or_create(&Finish { verdict: verdict.as_str() }).inc();
        self.0.took.observe(took.as_secs_f64());
    }

    /// The operator's config was read again, and holds now, or was not valid.
    pub fn reloaded(&self, valid: bool) {
        let result = if valid { "applied" } else { "refused" };
        self.0.reloads.get_or_create(&Reload { result }).inc();
    }

    /// A panic was caught.
    pub fn panicked(&self) {
        self.0.panics.inc();
    }

    /// Everything, as text.
    pub fn text(&self, status: HealthStatus, runs: RunCounts) -> String {
        self.0.draining.set(i64::from(status == HealthStatus::Draining));
        for (state, count) in [("queued", runs.queued), ("running", runs.running)] {
            self.0.runs.get_or_create(&Standing { state }).set(i64::from(count));
        }
        self.0.process.look();
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = text::encode(&mut text, &self.0.registry);
        text
    }
}

impl Counted {
    fn registered(mut self) -> Self {
        let to = &mut self.registry;
        to.register("proctor_submissions", "Requests for a run, by how they were answered", self.submitted.clone());
        to.register("proctor_runs_finished", "Runs that have ended, by verdict", self.finished.clone());
        to.register("proctor_runs", "Runs that wait and that are under way", self.runs.clone());
        let help = "How long runs waited for their turn";
        to.register_with_unit("proctor_run_wait", help, Unit::Seconds, self.waited.clone());
        let help = "How long runs took, from the request to their end";
        to.register_with_unit("proctor_run_duration", help, Unit::Seconds, self.took.clone());
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
        to.register("proctor_panics", "Panics that were caught", self.panics.clone());
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

/// An open connection.
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

/// A caller can make up any method.
fn known_method(method: &str) -> &'static str {
    const KNOWN: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"];
    KNOWN.into_iter().find(|known| *known == method).unwrap_or("other")
}

/// A gauge of a number that is no integer.
type FloatGauge = Gauge<f64, AtomicU64>;

#[cfg(test)]
mod tests {
    use super::*;

    fn text(metrics: &Metrics) -> String {
        metrics.text(HealthStatus::Ok, RunCounts { queued: 2, running: 1 })
    }

    #[test]
    fn what_happened_is_told() {
        let metrics = Metrics::new(1_500);
        metrics.answered(Some("/v1/runs/{id}"), "GET", 200, Duration::from_millis(1));
        metrics.answered(None, "BREW\"\n", 404, Duration::from_millis(1));
        metrics.submitted(How::Queued);
        metrics.finished(Verdict::Passed, Duration::from_secs(2));
        metrics.refused(ConnectionRefused::Foreign);
        let text = text(&metrics);
        for line in [
            "proctor_http_requests_total{route=\"/v1/runs/{id}\",method=\"GET\",code=\"200\"} 1",
            "proctor_http_requests_total{route=\"none\",method=\"other\",code=\"404\"} 1",
            "proctor_runs_finished_total{verdict=\"passed\"} 1",
            "proctor_submissions_total{how=\"queued\"} 1",
            "proctor_runs{state=\"queued\"} 2",
            "proctor_connections_refused_total{reason=\"foreign\"} 1",
            "process_start_time_seconds 1.5",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
        }
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

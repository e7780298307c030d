//! Task that exports finished runs from a bounded queue. Nothing waits for it except the shutdown of the daemon, for
//! a limited time.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use proctor_core::api::RunView;
use proctor_core::names::RunId;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::otlp::{self, Request};
use super::run_log::RunLog;
use super::sender::{Sender, SenderError, Sent};
use super::target::Target;
use crate::history::History;
use crate::metrics::{Metrics, SpanResult};
use crate::throttle::Throttle;

/// Maximum number of runs waiting for export. Spans of further runs are dropped.
const QUEUE: usize = 256;
/// Delays before a request is sent again.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];
/// Minimum interval between two log records about failed exports.
const LOGGED: Duration = Duration::from_secs(60);
/// Time that the shutdown of the daemon waits for the last spans.
pub(crate) const LAST_SPANS: Duration = Duration::from_secs(3);

/// Exporter of finished runs.
pub struct Telemetry {
    queue: mpsc::Sender<EndedRun>,
    target: watch::Sender<Option<Arc<Target>>>,
    metrics: Metrics,
    stopping: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// A run that has ended.
#[derive(Debug, Clone)]
pub(crate) struct EndedRun {
    id: RunId,
    queued: Option<Duration>,
    /// Number of spans of the run, counted if they are dropped.
    spans: u64,
}

impl EndedRun {
    /// Describes a finished run; `took` counts from its request, and `executed` from its start, if it started.
    pub(crate) fn new(view: &RunView, took: Duration, executed: Option<Duration>) -> Self {
        let ran = view.steps.iter().filter(|step| step.attempt > 0);
        let mut skills: Vec<&str> = ran.clone().map(|step| step.skill.as_str()).collect();
        skills.dedup();
        let spans = 1 + view.checks.len() + ran.count() + skills.len();
        Self {
            id: view.id.clone(),
            queued: executed.map(|executed| took.saturating_sub(executed)),
            spans: spans as u64,
        }
    }
}

impl Telemetry {
    /// Starts the task. It reads runs from `history` and sends them to `target`, if there is one.
    pub(crate) fn start(history: History, target: Option<Target>, metrics: Metrics) -> Arc<Self> {
        let (queue, inbox) = mpsc::channel(QUEUE);
        let target = watch::Sender::new(target.map(Arc::new));
        let stopping = CancellationToken::new();
        let exporter = Exporter {
            history,
            target: target.subscribe(),
            metrics: metrics.clone(),
            stopping: stopping.clone(),
            failures: Throttle::new(LOGGED),
            sender: None,
        };
        let task = Mutex::new(Some(tokio::spawn(exporter.serve(inbox))));
        Arc::new(Self { queue, target, metrics, stopping, task })
    }

    /// Returns whether runs are exported.
    pub(crate) fn is_on(&self) -> bool {
        self.target.borrow().is_some()
    }

    /// Changes the target.
    pub(crate) fn aim(&self, target: Option<Target>) {
        let target = target.map(Arc::new);
        self.target.send_if_modified(|known| {
            let is_new = *known != target;
            *known = target;
            is_new
        });
    }

    /// Queues a run for export. Never waits: if the queue is full, the spans of the run are dropped.
    pub(crate) fn ended(&self, run: EndedRun) {
        if !self.is_on() {
            return;
        }
        if let Err(mpsc::error::TrySendError::Full(run) | mpsc::error::TrySendError::Closed(run)) =
            self.queue.try_send(run)
        {
            self.metrics.spans(SpanResult::Dropped, run.spans);
        }
    }

    /// Sends the remaining spans within [`LAST_SPANS`] and ends the task.
    pub(crate) async fn shut_down(&self) {
        self.stopping.cancel();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task
            && tokio::time::timeout(LAST_SPANS, task).await.is_err()
        {
            tracing::warn!("the last spans were not exported: the receiver did not answer in time");
        }
    }
}

struct Exporter {
    history: History,
    target: watch::Receiver<Option<Arc<Target>>>,
    metrics: Metrics,
    stopping: CancellationToken,
    failures: Throttle<()>,
    /// Client of the last used target.
    sender: Option<(Arc<Target>, Arc<Sender>)>,
}

impl Exporter {
    async fn serve(mut self, mut inbox: mpsc::Receiver<EndedRun>) {
        loop {
            let run = tokio::select! {
                biased;
                run = inbox.recv() => run,
                () = self.stopping.cancelled() => None,
            };
            let Some(run) = run else { return };
            self.export(run, &mut inbox).await;
        }
    }

    /// Exports a run together with the queued runs that fit into the same request.
    async fn export(&mut self, first: EndedRun, inbox: &mut mpsc::Receiver<EndedRun>) {
        // The export may have been disabled since the run was queued.
        let Some(target) = self.target.borrow_and_update().clone() else {
            return self.metrics.spans(SpanResult::Dropped, first.spans);
        };
        let mut spans = self.spans(first).await;
        while spans.len() < otlp::MAX_SPANS
            && let Ok(next) = inbox.try_recv()
        {
            spans.extend(self.spans(next).await);
        }
        for request in otlp::requests(&target, spans) {
            self.send(&target, request).await;
        }
    }

    /// Returns the spans of a run. Returns none if the caller's trace is not sampled or the log cannot be read.
    async fn spans(&self, run: EndedRun) -> Vec<opentelemetry_proto::tonic::trace::v1::Span> {
        let (history, EndedRun { id, queued, spans: count }) = (self.history.clone(), run);
        let read = tokio::task::spawn_blocking(move || {
            let read = RunLog::read(&history, &id).map_err(|error| error.to_string())?;
            let Some((trace, spans)) = read.spans(queued) else { return Ok(Vec::new()) };
            Ok(spans.into_iter().map(|span| otlp::span(span, &trace)).collect())
        });
        let read = read.await.unwrap_or_else(|error| Err(format!("it ended badly: {error}")));
        read.unwrap_or_else(|why| {
            self.failed(count, &format!("the log of a run cannot be read: {why}"));
            Vec::new()
        })
    }

    async fn send(&mut self, target: &Arc<Target>, request: Request) {
        let Request { bytes, spans } = request;
        let sender = match self.sender(target) {
            Ok(sender) => sender,
            Err(error) => return self.failed(spans, &error.to_string()),
        };
        let mut pauses = PAUSES.into_iter();
        loop {
            match sender.send(bytes.clone()).await {
                Sent::Taken { rejected } => {
                    let rejected = rejected.min(spans);
                    self.metrics.spans(SpanResult::Exported, spans - rejected);
                    if rejected > 0 {
                        self.failed(rejected, "the receiver refused a part of the spans");
                    }
                    return;
                }
                Sent::Refused { why } => return self.failed(spans, &why),
                Sent::Again { why, after } => {
                    let Some(pause) = pauses.next() else { return self.failed(spans, &why) };
                    tokio::select! {
                        () = tokio::time::sleep(after.unwrap_or(pause)) => {}
                        () = self.stopping.cancelled() => return self.failed(spans, &why),
                    }
                }
            }
        }
    }

    fn sender(&mut self, target: &Arc<Target>) -> Result<Arc<Sender>, SenderError> {
        if let Some((_, sender)) = self.sender.as_ref().filter(|(known, _)| known == target) {
            return Ok(Arc::clone(sender));
        }
        let sender = Arc::new(Sender::new(target)?);
        self.sender = Some((Arc::clone(target), Arc::clone(&sender)));
        Ok(sender)
    }

    /// Counts lost spans, and logs the reason at a limited rate.
    fn failed(&self, spans: u64, why: &str) {
        self.metrics.spans(SpanResult::Failed, spans);
        if let Some(suppressed) = self.failures.admit(()) {
            tracing::warn!(
                suppressed,
                "spans of runs were not exported: {why}; hint: check the receiver of `OTEL_EXPORTER_OTLP_ENDPOINT` or `telemetry.endpoint`; runs are not affected"
            );
        }
    }
}

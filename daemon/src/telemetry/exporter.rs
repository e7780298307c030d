//! Task that exports finished runs and requests from a bounded queue. Nothing waits for it except the shutdown of the
//! daemon, for a limited time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry_proto::tonic::trace::v1::Span;
use proctor_core::api::RunView;
use proctor_core::model::names::RunId;
use proctor_core::telemetry::{TraceContext, TraceId, TraceSpan};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::export_target::ExportTarget;
use super::otlp::{self, OtlpRequest};
use super::otlp_sender::{OtlpSender, SendResult, SenderError};
use super::traced_run::TracedRun;
use crate::history::History;
use crate::metrics::{Metrics, SpanResult};
use crate::throttle::Throttle;

/// Number of places in the queue that only runs use. Spans of further runs are dropped.
const RUN_CAPACITY: usize = 256;
/// Maximum number of requests about SQL waiting for export. Spans of further requests are dropped.
pub(super) const SQL_CAPACITY: usize = 1024;
/// Delays before a request is sent again.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];
/// Minimum interval between two log records about failed exports.
const FAILURE_LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Time that the shutdown of the daemon waits for the last spans.
pub(crate) const FINAL_EXPORT_TIMEOUT: Duration = Duration::from_secs(3);

/// Exporter of finished runs and requests.
pub struct Telemetry {
    queue: mpsc::Sender<FinishedWork>,
    target: watch::Sender<Option<Arc<ExportTarget>>>,
    /// True if there is a target. Reading it takes no lock.
    is_enabled: AtomicBool,
    metrics: Metrics,
    stopping: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// Work whose spans wait for export.
#[derive(Debug)]
pub(super) enum FinishedWork {
    Run(EndedRun),
    Sql(FinishedSpans),
}

impl FinishedWork {
    /// Returns the number of spans, counted if they are dropped.
    fn span_count(&self) -> u64 {
        match self {
            Self::Run(run) => run.spans,
            Self::Sql(finished) => finished.spans.len() as u64,
        }
    }
}

/// The spans of a finished request about SQL.
#[derive(Debug)]
pub(super) struct FinishedSpans {
    pub(super) trace: TraceId,
    /// The span of the caller, if the caller named one.
    pub(super) caller: Option<TraceContext>,
    pub(super) spans: Vec<TraceSpan>,
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
    pub(crate) fn start(history: History, target: Option<ExportTarget>, metrics: Metrics) -> Arc<Self> {
        let (queue, inbox) = mpsc::channel(RUN_CAPACITY + SQL_CAPACITY);
        let is_enabled = AtomicBool::new(target.is_some());
        let target = watch::Sender::new(target.map(Arc::new));
        let stopping = CancellationToken::new();
        let exporter = SpanExporter {
            history,
            target: target.subscribe(),
            metrics: metrics.clone(),
            stopping: stopping.clone(),
            failures: Throttle::new(FAILURE_LOG_INTERVAL),
            sender: None,
        };
        let task = Mutex::new(Some(tokio::spawn(exporter.run(inbox))));
        Arc::new(Self { queue, target, is_enabled, metrics, stopping, task })
    }

    /// Creates an exporter without a task, and returns the receiver of its queue.
    #[cfg(test)]
    pub(super) fn without_task(
        target: Option<ExportTarget>,
        metrics: Metrics,
    ) -> (Arc<Self>, mpsc::Receiver<FinishedWork>) {
        let (queue, inbox) = mpsc::channel(RUN_CAPACITY + SQL_CAPACITY);
        let is_enabled = AtomicBool::new(target.is_some());
        let (target, stopping, task) =
            (watch::Sender::new(target.map(Arc::new)), CancellationToken::new(), Mutex::default());
        (Arc::new(Self { queue, target, is_enabled, metrics, stopping, task }), inbox)
    }

    /// Returns whether spans are exported.
    pub(crate) fn is_enabled(&self) -> bool {
        self.is_enabled.load(Ordering::Relaxed)
    }

    /// Changes the target.
    pub(crate) fn set_target(&self, target: Option<ExportTarget>) {
        let target = target.map(Arc::new);
        self.is_enabled.store(target.is_some(), Ordering::Relaxed);
        self.target.send_if_modified(|known| {
            let is_new = *known != target;
            *known = target;
            is_new
        });
    }

    /// Queues a run for export. Never waits: if the queue is full, the spans of the run are dropped.
    pub(crate) fn queue_run(&self, run: EndedRun) {
        if self.is_enabled() {
            self.queue(FinishedWork::Run(run));
        }
    }

    /// Queues the spans of a request for export. Never waits, and leaves the places of runs free.
    pub(super) fn queue_spans(&self, finished: FinishedSpans) {
        let work = FinishedWork::Sql(finished);
        if self.queue.capacity() > RUN_CAPACITY {
            self.queue(work);
        } else {
            self.metrics.count_spans(SpanResult::Dropped, work.span_count());
        }
    }

    fn queue(&self, work: FinishedWork) {
        if let Err(mpsc::error::TrySendError::Full(work) | mpsc::error::TrySendError::Closed(work)) =
            self.queue.try_send(work)
        {
            self.metrics.count_spans(SpanResult::Dropped, work.span_count());
        }
    }

    /// Sends the remaining spans within [`FINAL_EXPORT_TIMEOUT`] and ends the task.
    pub(crate) async fn shut_down(&self) {
        self.stopping.cancel();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task
            && tokio::time::timeout(FINAL_EXPORT_TIMEOUT, task).await.is_err()
        {
            tracing::warn!("the last spans were not exported: the receiver did not answer in time");
        }
    }
}

struct SpanExporter {
    history: History,
    target: watch::Receiver<Option<Arc<ExportTarget>>>,
    metrics: Metrics,
    stopping: CancellationToken,
    failures: Throttle<()>,
    /// Client of the last used target.
    sender: Option<(Arc<ExportTarget>, Arc<OtlpSender>)>,
}

impl SpanExporter {
    async fn run(mut self, mut inbox: mpsc::Receiver<FinishedWork>) {
        loop {
            let work = tokio::select! {
                biased;
                work = inbox.recv() => work,
                () = self.stopping.cancelled() => None,
            };
            let Some(work) = work else { return };
            self.export(work, &mut inbox).await;
        }
    }

    /// Exports finished work together with queued work that fits into the same request.
    async fn export(&mut self, first: FinishedWork, inbox: &mut mpsc::Receiver<FinishedWork>) {
        // The export may have been disabled since the work was queued.
        let Some(target) = self.target.borrow_and_update().clone() else {
            return self.metrics.count_spans(SpanResult::Dropped, first.span_count());
        };
        let mut spans = self.spans(first).await;
        while spans.len() < otlp::MAX_SPANS
            && let Ok(next) = inbox.try_recv()
        {
            spans.extend(self.spans(next).await);
        }
        for request in otlp::encode_requests(&target, spans) {
            self.send(&target, request).await;
        }
    }

    async fn spans(&self, work: FinishedWork) -> Vec<Span> {
        match work {
            FinishedWork::Run(run) => self.run_spans(run).await,
            FinishedWork::Sql(FinishedSpans { trace, caller, spans }) => {
                spans.into_iter().map(|span| otlp::encode_span(span, trace, caller.as_ref())).collect()
            }
        }
    }

    /// Returns the spans of a run. Returns none if the caller's trace is not sampled or the log cannot be read.
    async fn run_spans(&self, run: EndedRun) -> Vec<Span> {
        let (history, EndedRun { id, queued, spans: count }) = (self.history.clone(), run);
        let read = tokio::task::spawn_blocking(move || {
            let read = TracedRun::read(&history, &id).map_err(|error| error.to_string())?;
            let Some((trace, spans)) = read.and_then(|run| run.spans(queued)) else { return Ok(Vec::new()) };
            Ok(spans.into_iter().map(|span| otlp::encode_span(span, trace.trace(), trace.parent())).collect())
        });
        let read = read.await.unwrap_or_else(|error| Err(format!("reading it failed unexpectedly: {error}")));
        read.unwrap_or_else(|why| {
            self.record_failure(count, &format!("the log of a run cannot be read: {why}"));
            Vec::new()
        })
    }

    async fn send(&mut self, target: &Arc<ExportTarget>, request: OtlpRequest) {
        let OtlpRequest { bytes, spans } = request;
        let sender = match self.sender_for(target) {
            Ok(sender) => sender,
            Err(error) => return self.record_failure(spans, &error.to_string()),
        };
        let mut pauses = RETRY_DELAYS.into_iter();
        loop {
            match sender.send(bytes.clone()).await {
                SendResult::Accepted { rejected } => {
                    let rejected = rejected.min(spans);
                    self.metrics.count_spans(SpanResult::Exported, spans - rejected);
                    if rejected > 0 {
                        self.record_failure(rejected, "the receiver rejected some of the spans");
                    }
                    return;
                }
                SendResult::Refused { why } => return self.record_failure(spans, &why),
                SendResult::Retry { why, after } => {
                    let Some(pause) = pauses.next() else { return self.record_failure(spans, &why) };
                    tokio::select! {
                        () = tokio::time::sleep(after.unwrap_or(pause)) => {}
                        () = self.stopping.cancelled() => return self.record_failure(spans, &why),
                    }
                }
            }
        }
    }

    fn sender_for(&mut self, target: &Arc<ExportTarget>) -> Result<Arc<OtlpSender>, SenderError> {
        if let Some((_, sender)) = self.sender.as_ref().filter(|(known, _)| known == target) {
            return Ok(Arc::clone(sender));
        }
        let sender = Arc::new(OtlpSender::new(target)?);
        self.sender = Some((Arc::clone(target), Arc::clone(&sender)));
        Ok(sender)
    }

    /// Counts lost spans, and logs the reason at a limited rate.
    fn record_failure(&self, spans: u64, why: &str) {
        self.metrics.count_spans(SpanResult::Failed, spans);
        if let Some(suppressed) = self.failures.admit(()) {
            tracing::warn!(
                suppressed,
                "spans were not exported: {why}; hint: check the receiver of `OTEL_EXPORTER_OTLP_ENDPOINT` or `telemetry.endpoint`; runs and judgements are not affected"
            );
        }
    }
}

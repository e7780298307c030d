//! Tests the spans of requests about SQL, up to the queue of the exporter.

use std::collections::BTreeMap;
use std::sync::Arc;

use proctor_core::api::{Problem, ProblemType};
use proctor_core::spec::OperatorConfig;
use proctor_core::sql::Judgement;
use proctor_core::telemetry::{TraceContext, TraceSpan};
use tokio::sync::mpsc::Receiver;

use super::exporter::{FinishedWork, SQL_CAPACITY};
use super::{ExportTarget, RequestSpan, Telemetry};
use crate::metrics::Metrics;
use crate::metrics::sql_tests::{assert_lines, judgement};

const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// The queue of an exporter without a task.
pub(crate) struct QueuedSpans(Receiver<FinishedWork>);

impl QueuedSpans {
    /// Returns the spans that were queued since the last call.
    pub(crate) fn take(&mut self) -> Vec<TraceSpan> {
        let mut spans = Vec::new();
        while let Ok(FinishedWork::Sql(finished)) = self.0.try_recv() {
            spans.extend(finished.spans);
        }
        spans
    }
}

/// Returns an exporter without a task, which exports spans if it is enabled.
pub(crate) fn telemetry(enabled: bool, metrics: Metrics) -> (Arc<Telemetry>, QueuedSpans) {
    let operator = OperatorConfig::parse("[telemetry]\nendpoint = 'http://c:1'\n").expect("a config");
    let target = ExportTarget::resolve(&operator.telemetry, &BTreeMap::new(), "proctord").expect("valid");
    let (telemetry, queue) = Telemetry::without_task(target.filter(|_| enabled), metrics);
    (telemetry, QueuedSpans(queue))
}

fn context(flags: &str) -> Option<TraceContext> {
    TraceContext::parse(&TRACEPARENT.replace("-01", flags), None)
}

#[test]
fn disabled_export_creates_no_span() {
    let (telemetry, mut queue) = telemetry(false, Metrics::new(0));
    let mut span = telemetry.start_span(|| panic!("the trace of the caller is not read"));
    assert!(span.id().is_none() && span.now_ns() == 0);
    let child = span.start_child(|_| panic!("no id is derived"));
    span.start_work();
    span.finish(&judgement("ok"));
    child.refuse::<Judgement>(&Problem::new(ProblemType::Unavailable, "x"));
    assert!(queue.take().is_empty());
    assert_eq!(size_of::<RequestSpan>(), size_of::<usize>(), "an absent span costs one word");
}

#[test]
fn unsampled_trace_has_no_span() {
    let (telemetry, mut queue) = telemetry(true, Metrics::new(0));
    telemetry.start_span(|| context("-00")).finish(&judgement("ok"));
    assert!(queue.take().is_empty());
    telemetry.start_span(|| context("-01")).finish(&judgement("ok"));
    assert_eq!(queue.take().len(), 1);
    telemetry.set_target(None);
    assert!(telemetry.start_span(|| None).id().is_none(), "a reload disables the export");
}

#[test]
fn finished_span_continues_the_callers_trace() {
    let (telemetry, mut queue) = telemetry(true, Metrics::new(0));
    let caller = context("-01").expect("valid");
    let mut span = telemetry.start_span(|| Some(caller.clone()));
    let (id, child) = (span.id(), span.start_child(|own| own));
    span.start_work();
    span.finish(&judgement("reject"));
    child.refuse::<Judgement>(&Problem::new(ProblemType::TooManyRequests, "private"));
    let spans = queue.take();
    let [own, refused] = spans.as_slice() else { panic!("two spans: {spans:?}") };
    assert_eq!((Some(own.id), own.parent), (id, Some(caller.span())));
    assert!(own.start_ns <= own.events[0].at_ns && own.events[0].at_ns <= own.end_ns, "{own:?}");
    assert_eq!(own.error.as_deref(), Some("reject: P0612"));
    assert_eq!(refused.parent, id);
    assert!(refused.error.as_deref().is_some_and(|error| error.contains("too_many")), "{refused:?}");
    assert!(!format!("{refused:?}").contains("private"));
}

#[test]
fn many_judgements_leave_room_for_runs() {
    let metrics = Metrics::new(0);
    let (telemetry, mut queue) = telemetry(true, metrics.clone());
    for _ in 0..SQL_CAPACITY + 3 {
        telemetry.start_span(|| None).finish(&judgement("ok"));
    }
    assert_lines(&metrics, &["proctor_otlp_spans_total{result=\"dropped\"} 3"]);
    assert_eq!(queue.take().len(), SQL_CAPACITY);
}

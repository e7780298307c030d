//! Represents the span of a request about SQL while the request is answered. If spans are not exported, there is no
//! such span, and nothing is allocated, locked or measured for it.

use std::sync::Arc;

use proctor_core::api::Problem;
use proctor_core::code::Coded as _;
use proctor_core::telemetry::{
    QuestionRecord, SpanFrame, SpanId, TraceContext, TraceId, TraceSpan, TracedAnswer, answer_span, question_spans,
    refused_question_span, refused_span,
};
use proctor_runner::Clock;
use tokio::time::Instant;

use super::exporter::{FinishedSpans, Telemetry};

/// The span of a request, if spans are exported and the caller records its trace.
#[derive(Default)]
pub struct RequestSpan(Option<Box<ActiveSpan>>);

/// The start of a span.
struct ActiveSpan {
    origin: Arc<TraceOrigin>,
    id: SpanId,
    parent: Option<SpanId>,
    start_ns: u64,
    started_at: Instant,
    /// The time at which a worker began to answer.
    worker_ns: Option<u64>,
}

/// The trace of a request, and the exporter of its spans.
struct TraceOrigin {
    telemetry: Arc<Telemetry>,
    trace: TraceId,
    caller: Option<TraceContext>,
}

impl Telemetry {
    /// Starts the span of a request. `caller` returns the caller's span; it is called only if spans are exported.
    pub(crate) fn start_span(self: &Arc<Self>, caller: impl FnOnce() -> Option<TraceContext>) -> RequestSpan {
        if !self.is_enabled() {
            return RequestSpan::default();
        }
        let caller = caller();
        if !caller.as_ref().is_none_or(TraceContext::is_sampled) {
            return RequestSpan::default();
        }
        let trace = caller.as_ref().map(TraceContext::trace).or_else(|| TraceId::new(random_bytes()?));
        let parent = caller.as_ref().map(TraceContext::span);
        let Some(trace) = trace else { return RequestSpan::default() };
        let origin = Arc::new(TraceOrigin { telemetry: Arc::clone(self), trace, caller });
        RequestSpan(ActiveSpan::start(origin, parent).map(Box::new))
    }
}

impl ActiveSpan {
    /// Starts a span; `None` if there are no random bytes for its id.
    fn start(origin: Arc<TraceOrigin>, parent: Option<SpanId>) -> Option<Self> {
        let id = SpanId::new(random_bytes()?)?;
        let (start_ns, started_at) = (Clock::system().now_ns(), Instant::now());
        Some(Self { origin, id, parent, start_ns, started_at, worker_ns: None })
    }

    /// Returns the current time. It never precedes the start, even if the time of day is changed.
    fn now_ns(&self) -> u64 {
        let elapsed = u64::try_from(self.started_at.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.start_ns.saturating_add(elapsed)
    }

    fn frame(&self) -> SpanFrame {
        SpanFrame { id: self.id, parent: self.parent, start_ns: self.start_ns, end_ns: self.now_ns() }
    }

    fn export(&self, spans: Vec<TraceSpan>) {
        let TraceOrigin { telemetry, trace, caller } = &*self.origin;
        telemetry.queue_spans(FinishedSpans { trace: *trace, caller: caller.clone(), spans });
    }
}

impl RequestSpan {
    /// Returns the id of the span; `None` if there is no span.
    pub(crate) fn id(&self) -> Option<SpanId> {
        self.0.as_ref().map(|span| span.id)
    }

    /// Returns the current time in nanoseconds since 1970, or 0 if there is no span.
    pub(crate) fn now_ns(&self) -> u64 {
        self.0.as_ref().map_or(0, |span| span.now_ns())
    }

    /// Starts a span below the span `parent` of the same trace. `parent` is called only if there is a trace.
    pub(crate) fn start_child(&self, parent: impl FnOnce(SpanId) -> SpanId) -> Self {
        let child = self.0.as_ref().and_then(|own| ActiveSpan::start(Arc::clone(&own.origin), Some(parent(own.id))));
        Self(child.map(Box::new))
    }

    /// Records that a worker begins to answer.
    pub(crate) fn start_work(&mut self) {
        if let Some(span) = &mut self.0 {
            span.worker_ns = Some(span.now_ns());
        }
    }

    /// Ends and exports the span of an answered request.
    pub(crate) fn finish<T: TracedAnswer>(self, answer: &T) {
        if let Some(span) = self.0 {
            let worker_ns = span.worker_ns.unwrap_or(span.start_ns);
            span.export(vec![answer_span(span.frame(), worker_ns, answer)]);
        }
    }

    /// Ends and exports the span of a request that no worker received.
    pub(crate) fn refuse<T: TracedAnswer>(self, problem: &Problem) {
        if let Some(span) = self.0 {
            span.export(vec![refused_span::<T>(span.frame(), problem.kind.code().name())]);
        }
    }

    /// Ends and exports the span of a refused question.
    pub(crate) fn refuse_question(self, problem: &Problem) {
        if let Some(span) = self.0 {
            span.export(vec![refused_question_span(span.frame(), problem.kind.code().name())]);
        }
    }

    /// Ends and exports the spans of a question.
    pub(crate) fn finish_question(&self, question: &QuestionRecord<'_>) {
        if let Some(span) = &self.0 {
            span.export(question_spans(span.frame(), question));
        }
    }
}

/// Returns random bytes; `None` if the kernel has none.
fn random_bytes<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).ok()?;
    (filled == N).then_some(bytes)
}

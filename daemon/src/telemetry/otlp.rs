//! Converts spans to OTLP requests in protobuf.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Kind;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::{Event, SpanKind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span as Proto, SpanFlags, Status};
use proctor_core::telemetry::{AttributeValue, SpanAttribute, SpanEvent, TraceContext, TraceId, TraceSpan};
use prost::Message as _;

use super::export_target::ExportTarget;

/// Maximum number of spans in a request.
pub(super) const MAX_SPANS: usize = 512;
/// Name of the instrumentation scope.
const SCOPE: &str = "proctor";
/// Flag of a sampled trace.
const SAMPLED: u32 = 1;

/// An encoded request.
pub(super) struct OtlpRequest {
    /// The encoded bytes.
    pub bytes: Vec<u8>,
    /// Number of spans in the request.
    pub spans: u64,
}

/// Converts a span of a trace to protobuf. `caller` is the span of the caller, if the caller named one.
pub(super) fn encode_span(span: TraceSpan, trace: TraceId, caller: Option<&TraceContext>) -> Proto {
    let has_remote_parent = span.parent.is_some() && span.parent == caller.map(TraceContext::span);
    let remote = if has_remote_parent { SpanFlags::ContextIsRemoteMask as u32 } else { 0 };
    let message = span.error.clone().unwrap_or_default();
    let code = if span.error.is_some() { StatusCode::Error } else { StatusCode::Unset };
    Proto {
        trace_id: trace.bytes().to_vec(),
        span_id: span.id.bytes().to_vec(),
        parent_span_id: span.parent.map(|parent| parent.bytes().to_vec()).unwrap_or_default(),
        trace_state: caller.and_then(TraceContext::tracestate).unwrap_or_default().to_owned(),
        flags: SAMPLED | SpanFlags::ContextHasIsRemoteMask as u32 | remote,
        name: span.name,
        kind: SpanKind::Internal.into(),
        start_time_unix_nano: span.start_ns,
        end_time_unix_nano: span.end_ns,
        attributes: span.attributes.into_iter().map(encode_attribute).collect(),
        events: span.events.into_iter().map(encode_event).collect(),
        status: Some(Status { message, code: code.into() }),
        ..Proto::default()
    }
}

/// Returns the requests for these spans.
pub(super) fn encode_requests<'a>(
    target: &'a ExportTarget,
    spans: Vec<Proto>,
) -> impl Iterator<Item = OtlpRequest> + use<'a> {
    let mut rest = spans;
    std::iter::from_fn(move || {
        let later = rest.split_off(rest.len().min(MAX_SPANS));
        let now = std::mem::replace(&mut rest, later);
        (!now.is_empty()).then(|| encode_request(target, now))
    })
}

fn encode_request(target: &ExportTarget, spans: Vec<Proto>) -> OtlpRequest {
    let count = spans.len() as u64;
    let resource = Resource {
        attributes: target.resource.iter().map(|(name, value)| key_value(name, text_value(value.clone()))).collect(),
        ..Resource::default()
    };
    let scope = InstrumentationScope {
        name: SCOPE.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let scope_spans = ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() };
    let resource_spans =
        ResourceSpans { resource: Some(resource), scope_spans: vec![scope_spans], ..ResourceSpans::default() };
    let request = ExportTraceServiceRequest { resource_spans: vec![resource_spans] };
    OtlpRequest { bytes: request.encode_to_vec(), spans: count }
}

fn encode_event(event: SpanEvent) -> Event {
    Event {
        time_unix_nano: event.at_ns,
        name: event.name.to_owned(),
        attributes: event.attributes.into_iter().map(encode_attribute).collect(),
        dropped_attributes_count: 0,
    }
}

fn encode_attribute((name, value): SpanAttribute) -> KeyValue {
    let texts = |texts: Vec<String>| {
        let values = texts.into_iter().map(|value| AnyValue { value: Some(text_value(value)) }).collect();
        Kind::ArrayValue(ArrayValue { values })
    };
    key_value(
        name,
        match value {
            AttributeValue::Text(value) => text_value(value),
            AttributeValue::Texts(values) => texts(values),
            AttributeValue::Number(number) => Kind::IntValue(number),
            AttributeValue::Flag(flag) => Kind::BoolValue(flag),
        },
    )
}

fn text_value(value: String) -> Kind {
    Kind::StringValue(value)
}

fn key_value(name: &str, value: Kind) -> KeyValue {
    KeyValue { key: name.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

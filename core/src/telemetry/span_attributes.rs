//! Represents a span without its trace, and collects its attributes.

use super::SpanId;

/// A span, without its trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceSpan {
    /// The id of the span.
    pub id: SpanId,
    /// The parent span. For the run, this is the span of the caller, if there is one.
    pub parent: Option<SpanId>,
    /// The name of the span, of low cardinality.
    pub name: String,
    /// Start time, in nanoseconds since 1970.
    pub start_ns: u64,
    /// End time, in nanoseconds since 1970.
    pub end_ns: u64,
    /// The attributes of the span.
    pub attributes: Vec<SpanAttribute>,
    /// Events in the span.
    pub events: Vec<SpanEvent>,
    /// The reason why it failed; `None` if it succeeded.
    pub error: Option<String>,
}

/// An event in a span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpanEvent {
    /// The name of the event.
    pub name: &'static str,
    /// The time of the event, in nanoseconds since 1970.
    pub at_ns: u64,
    /// The attributes of the event.
    pub attributes: Vec<SpanAttribute>,
}

/// The name and the value of an attribute.
pub type SpanAttribute = (&'static str, AttributeValue);

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttributeValue {
    /// A text.
    Text(String),
    /// Several texts.
    Texts(Vec<String>),
    /// A number.
    Number(i64),
    /// A boolean.
    Flag(bool),
}

/// Collects attributes.
#[derive(Default)]
pub(super) struct SpanAttributes(pub(super) Vec<SpanAttribute>);

impl SpanAttributes {
    pub(super) fn push_text(&mut self, name: &'static str, value: &str) {
        self.0.push((name, AttributeValue::Text(value.to_owned())));
    }

    pub(super) fn push_optional_text(&mut self, name: &'static str, value: Option<&str>) {
        self.0.extend(value.map(|value| (name, AttributeValue::Text(value.to_owned()))));
    }

    pub(super) fn push_number(&mut self, name: &'static str, value: u64) {
        self.0.push((name, AttributeValue::Number(i64::try_from(value).unwrap_or(i64::MAX))));
    }

    pub(super) fn push_optional_number(&mut self, name: &'static str, value: Option<u64>) {
        if let Some(value) = value {
            self.push_number(name, value);
        }
    }

    pub(super) fn push_flag(&mut self, name: &'static str, value: bool) {
        self.0.push((name, AttributeValue::Flag(value)));
    }
}

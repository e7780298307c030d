//! Parses and writes W3C trace contexts: the headers `traceparent` and `tracestate`, and the environment variables
//! of the same names.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{SpanId, TraceId};

/// The environment variable for `traceparent`.
pub const TRACEPARENT: &str = "TRACEPARENT";
/// The environment variable for `tracestate`.
pub const TRACESTATE: &str = "TRACESTATE";
/// Maximum size of a `tracestate` that is passed on, in bytes: the minimum that W3C requires.
pub const MAX_TRACESTATE_BYTES: usize = 512;
/// Maximum number of members of a `tracestate`.
const MAX_MEMBERS: usize = 32;
/// Maximum size of a member's key or value, in bytes.
const MAX_MEMBER_PART_BYTES: usize = 256;
/// The length of a `traceparent` of version 00, in bytes.
const TRACEPARENT_BYTES: usize = 55;
/// The flag of a `traceparent` for a trace that the caller records.
pub(super) const SAMPLED_FLAG: u8 = 1;
/// The flags that are passed on: the caller records the trace, and its id is random.
const KNOWN_FLAGS: u8 = 3;

/// The span of a caller, and the trace that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Headers", into = "Headers")]
pub struct TraceContext {
    pub(super) trace: TraceId,
    pub(super) span: SpanId,
    pub(super) flags: u8,
    pub(super) state: TraceState,
}

/// The vendor-specific part of a trace context, which is passed on unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TraceState(String);

/// A trace context in serialized form.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "TraceContext")]
struct Headers {
    /// The span of the caller, as the header `traceparent` of W3C Trace Context.
    #[schemars(extend("pattern" = "^00-[0-9a-f]{32}-[0-9a-f]{16}-0[0-3]$"))]
    traceparent: String,
    /// The vendor-specific part, as the header `tracestate`; absent if it is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tracestate: Option<String>,
}

/// The error for a text that is not a valid trace context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a `traceparent` such as `00-<32 hex digits>-<16 hex digits>-01` is expected")]
struct BadContext;

impl TraceContext {
    /// Parses the values of both headers. Returns `None` if the `traceparent` is not valid; a new trace begins in
    /// that case. Ignores a `tracestate` that is not valid or too long.
    pub fn parse(traceparent: &str, tracestate: Option<&str>) -> Option<Self> {
        let text = traceparent.trim_matches([' ', '\t']);
        if !text.is_ascii() || text.len() < TRACEPARENT_BYTES {
            return None;
        }
        let (known, rest) = text.split_at(TRACEPARENT_BYTES);
        let mut parts = known.split('-');
        let [version] = decode_hex(parts.next()?)?;
        let trace = TraceId::new(decode_hex(parts.next()?)?)?;
        let span = SpanId::new(decode_hex(parts.next()?)?)?;
        let [flags] = decode_hex(parts.next()?)?;
        let is_readable = match version {
            0 => rest.is_empty(),
            0xff => false,
            // Of a later version, only the parts of this version are parsed.
            _ => rest.is_empty() || rest.starts_with('-'),
        };
        let state = tracestate.and_then(TraceState::parse).unwrap_or_default();
        is_readable.then_some(Self { trace, span, flags: flags & KNOWN_FLAGS, state })
    }

    /// Returns the trace.
    pub fn trace(&self) -> TraceId {
        self.trace
    }

    /// Returns the span of the caller.
    pub fn span(&self) -> SpanId {
        self.span
    }

    /// Returns whether the caller records the trace. A run is exported only if its trace is recorded.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED_FLAG != 0
    }

    /// Returns the value of `traceparent`.
    pub fn traceparent(&self) -> String {
        let flags = self.flags;
        format!("00-{}-{}-{flags:02x}", encode_hex(&self.trace.bytes()), encode_hex(&self.span.bytes()))
    }

    /// Returns the value of `tracestate`, if there is any.
    pub fn tracestate(&self) -> Option<&str> {
        Some(self.state.as_str()).filter(|state| !state.is_empty())
    }
}

impl TraceState {
    /// Parses a `tracestate`; `None` if it is not valid or longer than [`MAX_TRACESTATE_BYTES`].
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim_matches([' ', '\t']);
        if text.len() > MAX_TRACESTATE_BYTES {
            return None;
        }
        let members: Vec<&str> = text
            .split(',')
            .map(|member| member.trim_matches([' ', '\t']))
            .filter(|member| !member.is_empty())
            .collect();
        let keys: Option<BTreeSet<&str>> = members.iter().map(|member| member_key(member)).collect();
        let are_distinct = keys?.len() == members.len();
        (are_distinct && members.len() <= MAX_MEMBERS).then(|| Self(members.join(",")))
    }

    /// Returns the text, which can be empty.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns the key of a member of a `tracestate`; `None` if the member is not valid.
fn member_key(member: &str) -> Option<&str> {
    let (key, value) = member.split_once('=')?;
    let is_key_byte = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-*/@".contains(&byte);
    let has_valid_start = key.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let is_key = has_valid_start
        && key.len() <= MAX_MEMBER_PART_BYTES
        && key.bytes().all(is_key_byte)
        && key.matches('@').count() < 2;
    let is_value_byte = |byte: u8| (0x20..=0x7e).contains(&byte) && byte != b'=';
    let is_value = (1..=MAX_MEMBER_PART_BYTES).contains(&value.len()) && value.bytes().all(is_value_byte);
    (is_key && is_value).then_some(key)
}

/// Parses lower-case hex digits that fill the array exactly.
fn decode_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

fn encode_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl From<TraceContext> for Headers {
    fn from(context: TraceContext) -> Self {
        Self { traceparent: context.traceparent(), tracestate: context.tracestate().map(str::to_owned) }
    }
}

impl TryFrom<Headers> for TraceContext {
    type Error = BadContext;
    fn try_from(headers: Headers) -> Result<Self, BadContext> {
        Self::parse(&headers.traceparent, headers.tracestate.as_deref()).ok_or(BadContext)
    }
}

impl JsonSchema for TraceContext {
    fn schema_name() -> Cow<'static, str> {
        Headers::schema_name()
    }
    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        Headers::json_schema(generator)
    }
}

/// Returns whether an environment variable contains a trace context. Its value differs from run to run, so it is
/// neither an input of a run nor part of its evidence.
pub fn is_trace_variable(name: &str) -> bool {
    name == TRACEPARENT || name == TRACESTATE
}

/// Removes the variables of a trace context from an environment, and returns the context if it is valid.
pub fn take_context(env: &mut BTreeMap<String, String>) -> Option<TraceContext> {
    let (traceparent, tracestate) = (env.remove(TRACEPARENT), env.remove(TRACESTATE));
    TraceContext::parse(&traceparent?, tracestate.as_deref())
}

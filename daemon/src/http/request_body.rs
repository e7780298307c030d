//! Reads the body of a request within a size limit, and parses it as JSON. Duplicate keys are errors.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use axum::body::Body;
use bytes::Bytes;
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Body as _;
use proctor_core::api::{Problem, ProblemType};
use proctor_core::record::evidence::escape_output;
use proctor_core::spec::quoted;
use proctor_core::text::strict_deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::limited_body::{is_timed_out, memory_budget_exceeded};
use super::limits::MAX_BODY;
use super::query_parameters::invalid_request;

/// Maximum number of characters of a parser message in a response.
const MAX_MESSAGE_CHARS: usize = 400;

/// Reads the body, of at most `most` bytes, and deserializes it.
///
/// # Errors
/// The content type is not JSON, the body is too large, late, incomplete or invalid, or it does not match the type.
pub(super) async fn read_json<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: Body,
    max_bytes: usize,
) -> Result<T, Problem> {
    check_json_content_type(headers)?;
    let bytes = read_limited(body, max_bytes).await?;
    parse(&bytes)
}

fn check_json_content_type(headers: &HeaderMap) -> Result<(), Problem> {
    let unsupported = |detail| Problem::new(ProblemType::UnsupportedMediaType, detail);
    if headers.contains_key(CONTENT_ENCODING) {
        return Err(unsupported("the body has a content encoding; send it without one".to_owned()));
    }
    let kind = headers.get(CONTENT_TYPE).map(|kind| String::from_utf8_lossy(kind.as_bytes()).into_owned());
    let mut parts = kind.as_deref().unwrap_or_default().split(';').map(str::trim);
    let is_json = parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case("application/json"));
    if is_json && parts.all(|part| part.is_empty() || part.eq_ignore_ascii_case("charset=utf-8")) {
        return Ok(());
    }
    let found = kind.map_or_else(|| "no content type".to_owned(), |kind| format!("the content type {}", quoted(&kind)));
    Err(unsupported(format!("the request has {found}")).with_hint("send JSON with `Content-Type: application/json`"))
}

/// Reads the whole body.
///
/// # Errors
/// The body is too large, late or incomplete, or exceeds the caller's memory limit.
pub(crate) async fn read_body(body: Body) -> Result<Bytes, Problem> {
    read_limited(body, MAX_BODY).await
}

async fn read_limited(body: Body, max_bytes: usize) -> Result<Bytes, Problem> {
    let too_large =
        || Problem::new(ProblemType::TooLarge, format!("the body is larger than {max_bytes} bytes, the maximum"));
    let unframed = || invalid_request("the body is truncated, or its framing is not valid HTTP/1.1".to_owned());
    // A declared length over the limit is refused without reading.
    if body.size_hint().lower() > max_bytes as u64 {
        return Err(too_large());
    }
    match Limited::new(body, max_bytes).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_large()),
        Err(error) if is_timed_out(&*error) => {
            Err(Problem::new(ProblemType::RequestTimeout, "the body was not received in time"))
        }
        Err(error) => Err(memory_budget_exceeded(&*error).map_or_else(unframed, Problem::from)),
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    reject_duplicate_keys(bytes)
        .and_then(|()| strict_deserialize::from_json(bytes))
        .map_err(|error| parse_problem(&error))
}

/// Refuses JSON with duplicate keys, because parsers differ on it: most silently keep the last value.
///
/// # Errors
/// The bytes are not JSON, are nested too deeply, or contain an object with duplicate keys.
pub(crate) fn reject_duplicate_keys(bytes: &[u8]) -> Result<(), serde_json::Error> {
    serde_json::from_slice::<UniqueKeyJson>(bytes).map(drop)
}

fn parse_problem(error: &serde_json::Error) -> Problem {
    let message = strict_deserialize::use_json_terms(&error.to_string());
    let cut: String = message.chars().take(MAX_MESSAGE_CHARS).collect();
    let ellipsis = if cut.len() < message.len() { " …" } else { "" };
    let shown = escape_output(cut.as_bytes()).replace('\n', "\\n");
    invalid_request(format!("the body does not have the expected form: {shown}{ellipsis}"))
}

/// Number of keys of an object that are compared linearly before further keys are hashed.
const FEW_KEYS: usize = 16;

/// JSON without duplicate keys in any object. The value keeps nothing; the parser bounds the depth.
struct UniqueKeyJson;

impl<'de> serde::Deserialize<'de> for UniqueKeyJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

/// The key of a member, borrowed from the text where it has no escapes.
struct JsonKey<'de>(Cow<'de, str>);

impl<'de> serde::Deserialize<'de> for JsonKey<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(JsonKeyVisitor)
    }
}

struct JsonKeyVisitor;

impl<'de> Visitor<'de> for JsonKeyVisitor {
    type Value = JsonKey<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Self::Value, E> {
        Ok(JsonKey(Cow::Borrowed(key)))
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        Ok(JsonKey(Cow::Owned(key.to_owned())))
    }
}

macro_rules! any_scalar {
    ($($visit:ident: $kind:ty),*) => {
        $(fn $visit<E>(self, _: $kind) -> Result<Self, E> {
            Ok(self)
        })*
    };
}

impl<'de> Visitor<'de> for UniqueKeyJson {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    any_scalar!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self, A::Error> {
        while items.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self, A::Error> {
        // Most objects have few keys, for which linear comparison is faster than hashing.
        let mut few: Vec<Cow<'de, str>> = Vec::with_capacity(FEW_KEYS);
        let mut many: HashSet<Cow<'de, str>> = HashSet::new();
        while let Some(JsonKey(key)) = members.next_key()? {
            if few.contains(&key) || many.contains(&key) {
                return Err(A::Error::custom(format_args!("the key {} occurs twice", quoted(&key))));
            }
            if few.len() < FEW_KEYS {
                few.push(key);
            } else {
                many.insert(key);
            }
            members.next_value::<Self>()?;
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use http::HeaderValue;
    use serde_json::Value;

    use super::*;

    #[test]
    fn rejects_duplicate_keys_at_any_depth() {
        assert!(parse::<Value>(br#"{"a":{"b":[1,{"c":null,"d":"x"}]},"b":1.5}"#).is_ok());
        for text in [r#"{"a":1,"a":1}"#, r#"{"env":{"A":"1","\u0041":"2"}}"#, r#"[[{"x":{"y":1,"y":2}}]]"#] {
            let problem = parse::<Value>(text.as_bytes()).expect_err(text);
            assert!(problem.detail.contains("occurs twice"), "{}", problem.detail);
        }
    }

    #[test]
    fn bounds_depth_and_escapes_messages() {
        let deep = "[".repeat(10_000);
        assert!(parse::<Value>(deep.as_bytes()).expect_err("deep").detail.contains("recursion limit"));
        let long = format!("{{\"\\u001b[2J{}\":1}}", "x".repeat(100_000));
        let problem = parse::<proctor_core::api::PlanRequest>(long.as_bytes()).expect_err("unknown");
        assert!(problem.detail.len() < 1_000 && !problem.detail.contains('\u{1b}'), "{}", problem.detail);
        for text in ["", "{", "{} {}", "\u{feff}{}", "{\"a\":\"\\ud800\"}", "{\"a\":1e999}", "nul"] {
            assert!(parse::<BTreeMap<String, Value>>(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn recognizes_json_content_types() {
        let with = |kind: &'static str| HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]);
        for kind in ["application/json", "Application/JSON; charset=UTF-8", "application/json;"] {
            assert_eq!(check_json_content_type(&with(kind)), Ok(()), "{kind}");
        }
        for kind in ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin1", ""] {
            assert_eq!(check_json_content_type(&with(kind)).expect_err(kind).status, 415, "{kind}");
        }
        assert!(check_json_content_type(&HeaderMap::new()).is_err());
    }
}

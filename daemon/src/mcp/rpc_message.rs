//! Parses a JSON-RPC message and answers invalid bytes: with -32700 if they are not JSON, with -32600 if they are not
//! a message, and with -32602 if the params of a request do not match its method.

use std::borrow::Cow;
use std::fmt;

use rmcp::model::{CallToolRequestParams, ClientJsonRpcMessage, ClientRequest, ErrorCode, JsonRpcMessage};
use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::error::Category;
use serde_json::{Value, json};

use super::untrusted::one_line;
use crate::http::reject_duplicate_keys;

/// Maximum length of an id that an answer repeats, in bytes of JSON.
const MAX_ID: usize = 256;
/// Byte order mark that some programs write before UTF-8.
const BOM: &[u8] = b"\xef\xbb\xbf";
/// Methods of this server. Their requests have typed params.
const METHODS: [&str; 8] = [
    "initialize",
    "ping",
    "resources/list",
    "resources/read",
    "resources/templates/list",
    "server/discover",
    "tools/call",
    "tools/list",
];

/// Reason why bytes are not a valid message, reported to the client.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct InvalidRpcMessage {
    code: ErrorCode,
    message: String,
    /// Id of the request if it can be parsed, else null.
    id: Value,
}

impl InvalidRpcMessage {
    /// Returns the fault for a message of more than `most` bytes; `start` is the part that was read.
    pub(super) fn too_long(max_bytes: usize, start: &[u8]) -> Self {
        let message = format!("the message is longer than {max_bytes} bytes");
        Self { code: ErrorCode::INVALID_REQUEST, message, id: extract_id(start) }
    }

    /// Returns the fault as a JSON-RPC error.
    pub(super) fn to_response(&self) -> String {
        let error = json!({ "code": self.code, "message": self.message });
        json!({ "jsonrpc": "2.0", "id": self.id, "error": error }).to_string()
    }
}

/// Parses a message. Returns `None` for a notification or response that has no meaning here. It gets no answer,
/// because two peers that answer such messages with errors would never stop.
///
/// # Errors
/// The bytes are not a valid message.
pub(super) fn parse_message(bytes: &[u8]) -> Result<Option<ClientJsonRpcMessage>, InvalidRpcMessage> {
    let bytes = bytes.strip_prefix(BOM).unwrap_or(bytes);
    let fault =
        |code, message: Cow<'_, str>| InvalidRpcMessage { code, message: one_line(&message), id: extract_id(bytes) };
    if std::str::from_utf8(bytes).is_err() {
        return Err(fault(ErrorCode::PARSE_ERROR, "the message is not UTF-8".into()));
    }
    let read = reject_duplicate_keys(bytes).and_then(|()| serde_json::from_slice::<Value>(bytes));
    let message = read.map_err(|error| match error.classify() {
        Category::Data => fault(ErrorCode::INVALID_REQUEST, format!("the message is not valid: {error}").into()),
        _ => fault(ErrorCode::PARSE_ERROR, format!("the message is not JSON: {error}").into()),
    })?;
    let Value::Object(members) = &message else {
        let hint = if message.is_array() { "; batches are not supported" } else { "" };
        return Err(fault(ErrorCode::INVALID_REQUEST, format!("a message must be an object{hint}").into()));
    };
    let is_answer =
        !members.contains_key("method") && (members.contains_key("result") || members.contains_key("error"));
    let is_notification = members.contains_key("method") && !members.contains_key("id");
    match serde_json::from_slice::<ClientJsonRpcMessage>(bytes) {
        Ok(JsonRpcMessage::Request(request)) => match invalid_params_reason(&request.request, members.get("params")) {
            Some(reason) => Err(fault(ErrorCode::INVALID_PARAMS, reason.into())),
            None => Ok(Some(JsonRpcMessage::Request(request))),
        },
        Ok(message) => Ok(Some(message)),
        Err(_) if is_answer || is_notification => Ok(None),
        Err(_) if has_params_by_position(&message) => {
            Err(fault(ErrorCode::INVALID_PARAMS, "`params` is not an object".into()))
        }
        Err(_) => Err(fault(
            ErrorCode::INVALID_REQUEST,
            "a request has `jsonrpc`: \"2.0\", an `id` that is a string or an integer, and a `method`".into(),
        )),
    }
}

/// Returns whether a message is a request of this server's methods with params that are not an object. JSON-RPC
/// allows this, but MCP does not.
fn has_params_by_position(message: &Value) -> bool {
    let is_method = message["method"].as_str().is_some_and(|method| METHODS.contains(&method));
    is_method && message["jsonrpc"] == "2.0" && message.get("params").is_some_and(|params| !params.is_object())
}

/// Returns why the params do not match the method. The SDK treats such a request like one with an unknown method.
fn invalid_params_reason(request: &ClientRequest, params: Option<&Value>) -> Option<String> {
    let ClientRequest::CustomRequest(custom) = request else { return None };
    if !METHODS.contains(&custom.method.as_str()) {
        return None;
    }
    let params = params.unwrap_or(&Value::Null);
    let reason = match custom.method.as_str() {
        "tools/call" => match params.get("arguments") {
            Some(arguments) if !arguments.is_object() && !arguments.is_null() => {
                "`arguments` is not an object".to_owned()
            }
            _ => serde_json::from_value::<CallToolRequestParams>(params.clone()).err()?.to_string(),
        },
        _ => "they have a different form".to_owned(),
    };
    Some(format!("the params of `{}` are not valid: {reason}", custom.method))
}

/// Returns the id of a request that cannot be parsed completely, or null if the id cannot be parsed either.
fn extract_id(bytes: &[u8]) -> Value {
    let mut found = Value::Null;
    // The error is already being reported.
    let _ = serde_json::Deserializer::from_slice(bytes).deserialize_map(IdVisitor(&mut found));
    let is_id = found.is_string() || found.is_i64() || found.is_u64();
    if is_id && found.to_string().len() <= MAX_ID { found } else { Value::Null }
}

/// Extracts the `id` of an object, even if the rest is invalid.
struct IdVisitor<'a>(&'a mut Value);

impl<'de> Visitor<'de> for IdVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(key) = members.next_key::<Cow<'_, str>>()? {
            if key == "id" {
                *self.0 = members.next_value_seed(ScalarSeed)?;
            } else {
                members.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// Deserializes a value that is not nested.
struct ScalarSeed;

impl<'de> serde::de::DeserializeSeed<'de> for ScalarSeed {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ScalarSeed {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or an integer")
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn error_code_and_id(bytes: &[u8]) -> (i64, Value) {
        let fault = parse_message(bytes).expect_err("no message");
        let answer: Value = serde_json::from_str(&fault.to_response()).expect("JSON");
        assert_eq!(answer["jsonrpc"], "2.0");
        assert!(answer["error"]["message"].as_str().is_some_and(|text| !text.contains('\n')), "{answer}");
        (answer["error"]["code"].as_i64().expect("a code"), answer["id"].clone())
    }

    #[test]
    fn answers_bytes_that_are_not_json() {
        let deep = format!(r#"{{"id":7,"method":"x","params":{}{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
        assert_eq!(error_code_and_id(b"no JSON"), (-32700, Value::Null));
        assert_eq!(error_code_and_id(b""), (-32700, Value::Null));
        assert_eq!(error_code_and_id(b"{\"id\":\"a\",\"method\":\"\xff\"}"), (-32700, json!("a")));
        assert_eq!(error_code_and_id(br#"{"id":1,"method":"x" "#), (-32700, json!(1)));
        assert_eq!(error_code_and_id(deep.as_bytes()), (-32700, json!(7)));
        assert_eq!(error_code_and_id(b"[[[[").0, -32700);
    }

    #[test]
    fn answers_json_that_is_not_a_message() {
        for (text, id) in [
            ("{}", Value::Null),
            ("7", Value::Null),
            (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, Value::Null),
            (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, json!(1)),
            (r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#, json!(1)),
            (r#"{"jsonrpc":"2.0","id":{"a":1},"method":"ping"}"#, Value::Null),
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping","method":"ping"}"#, json!(1)),
        ] {
            assert_eq!(error_code_and_id(text.as_bytes()), (-32600, id), "{text}");
        }
        let long = format!(r#"{{"id":"{}","method":7}}"#, "x".repeat(1_000));
        assert_eq!(error_code_and_id(long.as_bytes()), (-32600, Value::Null), "a long id is not repeated");
    }

    #[test]
    fn answers_params_of_another_type() {
        for params in [
            r#"{"name":"antigravity_verify","arguments":["/r"]}"#,
            r#"{"name":"antigravity_verify","arguments":"x"}"#,
            r#"{"arguments":{}}"#,
            "[]",
        ] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":"q","method":"tools/call","params":{params}}}"#);
            assert_eq!(error_code_and_id(text.as_bytes()), (-32602, json!("q")), "{text}");
        }
        assert_eq!(error_code_and_id(br#"{"jsonrpc":"2.0","id":2,"method":"tools/call"}"#), (-32602, json!(2)));
        assert_eq!(
            error_code_and_id(br#"{"jsonrpc":"2.0","id":2,"method":"initialize","params":{}}"#),
            (-32602, json!(2))
        );
    }

    #[test]
    fn passes_messages_on_and_drops_unanswerable_ones() {
        for text in [
            r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"no/such/method"}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":{"a":[]}}}"#,
            "\u{feff}{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\"}",
        ] {
            assert!(parse_message(text.as_bytes()).expect(text).is_some(), "{text}");
        }
        for text in
            [r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700}}"#, r#"{"jsonrpc":"2.0","id":{},"result":{}}"#]
        {
            assert!(parse_message(text.as_bytes()).expect(text).is_none(), "{text}");
        }
    }

    #[test]
    fn answers_long_message_with_its_id() {
        let fault = InvalidRpcMessage::too_long(10, br#"{"jsonrpc":"2.0","id":9,"params":{"x":"yyyyy"#);
        let answer: Value = serde_json::from_str(&fault.to_response()).expect("JSON");
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(9), &json!(-32600)));
    }
}

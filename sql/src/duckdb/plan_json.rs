//! Parses the JSON of a plan and skips the fields that do not matter. A list of fifty thousand numbers consists of as
//! many small objects; without this, each would become a full tree.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::query_error::QueryError;

/// The maximum nesting depth of a plan.
const MAX_PLAN_DEPTH: usize = 1_200;
/// The maximum size of a plan, in bytes.
const MAX_PLAN_BYTES: usize = 64 << 20;

/// Fields that do not matter: types, positions, parts of the statement's text.
const IGNORED_FIELDS: &[&str] = &[
    "alias",
    "arguments",
    "cast_type",
    "comment",
    "expected_types",
    "expr_types",
    "input_table_types",
    "original_arguments",
    "query_location",
    "return_type",
    "returned_types",
    "sql",
    "types",
];

/// Parses a plan or a tree.
///
/// # Errors
/// The JSON nests too deeply or is too large. The message has the format of DuckDB, so that it is parsed as one of
/// DuckDB's errors.
pub(super) fn parse_plan(json: &str) -> Result<Value, QueryError> {
    if json.len() > MAX_PLAN_BYTES {
        return Err(QueryError::PlanTooLarge);
    }
    if nesting_depth(json) > MAX_PLAN_DEPTH {
        return Err(QueryError::PlanTooDeep);
    }
    let json = replace_non_finite(json);
    let mut reader = serde_json::Deserializer::from_str(&json);
    reader.disable_recursion_limit();
    Ok(SlimJson::deserialize(&mut reader)?.0)
}

/// Returns the nesting depth of a JSON text.
fn nesting_depth(json: &str) -> usize {
    let (mut depth, mut max_depth, mut is_text, mut is_escaped) = (0_usize, 0, false, false);
    for byte in json.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => is_text = !is_text,
            b'{' | b'[' if !is_text => {
                depth += 1;
                max_depth = max_depth.max(depth);
            }
            b'}' | b']' if !is_text => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    max_depth
}

/// Replaces `Infinity` and `NaN`, which DuckDB writes and JSON does not allow, by zero. The value does not matter.
fn replace_non_finite(json: &str) -> Cow<'_, str> {
    const NON_FINITE: [&str; 3] = ["-Infinity", "Infinity", "NaN"];
    if !NON_FINITE.iter().any(|odd| json.contains(odd)) {
        return Cow::Borrowed(json);
    }
    let (mut text, mut rest, mut is_text) = (String::with_capacity(json.len()), json, false);
    while let Some(first) = rest.chars().next() {
        let odd = NON_FINITE.iter().find(|odd| !is_text && rest.starts_with(**odd));
        let length = match (odd, first) {
            (Some(odd), _) => odd.len(),
            (None, '\\') => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            (None, _) => first.len_utf8(),
        };
        is_text ^= first == '"';
        text.push_str(if odd.is_some() { "0" } else { &rest[..length] });
        rest = &rest[length..];
    }
    Cow::Owned(text)
}

struct SlimJson(Value);

impl<'de> Deserialize<'de> for SlimJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SlimJsonVisitor).map(Self)
    }
}

struct SlimJsonVisitor;

impl<'de> Visitor<'de> for SlimJsonVisitor {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(SlimJson(part)) = parts.next_element()? {
            list.push(part);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut parts: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        let mut is_constant = false;
        while let Some(name) = parts.next_key::<String>()? {
            // The content of a constant is data, even if it looks like a part of a plan.
            if is_constant || IGNORED_FIELDS.contains(&name.as_str()) {
                parts.next_value::<IgnoredAny>()?;
                continue;
            }
            let SlimJson(part) = parts.next_value()?;
            is_constant = match name.as_str() {
                "class" => part == "CONSTANT",
                "expression_class" => part == "BOUND_CONSTANT",
                _ => false,
            };
            map.insert(name, part);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn skips_ignored_fields() {
        let json = r#"{"type": "X", "sql": "a", "list": [{"class": "CONSTANT", "value": {"type": "LOGICAL_ATTACH"}}, 1, null]}"#;
        assert_eq!(parse_plan(json).unwrap(), json!({"type": "X", "list": [{"class": "CONSTANT"}, 1, null]}));
    }

    #[test]
    fn reads_non_finite_numbers() {
        let json = r#"{"a": -Infinity, "b": [NaN, 1e9], "c": "é\"Infinity\\", "d": Infinity}"#;
        assert_eq!(parse_plan(json).unwrap(), json!({"a": 0, "b": [0, 1e9], "c": "é\"Infinity\\", "d": 0}));
    }

    #[test]
    fn rejects_deep_nesting_outside_strings() {
        let deep = |by: usize| "[".repeat(by) + &"]".repeat(by);
        assert!(parse_plan(&deep(MAX_PLAN_DEPTH)).is_ok());
        assert!(parse_plan(&deep(MAX_PLAN_DEPTH + 1)).unwrap_err().to_string().contains("too deep"));
        let text = serde_json::to_string(&(deep(5_000) + "\"\\")).unwrap();
        assert!(parse_plan(&text).is_ok());
    }
}

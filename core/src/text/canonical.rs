//! Canonical JSON: UTF-8, keys sorted by bytes, no whitespace, normalized numbers, no trailing newline.
//!
//! Proctor writes all of its documents in this form. The reader is lossless, for documents that other tools also write
//! (`05-status.json`).

mod canonical_writer;

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::value::RawValue;

use canonical_writer::CanonicalWriter;

/// A JSON value that keeps numbers as text, so that reading a document from another tool loses nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Json {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number in normalized format, as returned by `shortest_number`.
    Number(String),
    /// A string.
    String(String),
    /// An array.
    Array(Vec<Json>),
    /// An object; its keys are unique.
    Object(BTreeMap<String, Json>),
}

/// The reason why a document cannot be read without losing content.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// The document is not valid JSON.
    #[error("not JSON: {0}")]
    Syntax(#[from] serde_json::Error),
    /// An object contains a key twice; writing it back would lose one of the values.
    #[error("the key `{0}` occurs twice in one object")]
    DuplicateKey(String),
    /// The document is nested deeper than [`MAX_DEPTH`].
    #[error("nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
}

/// Maximum nesting depth of a document.
pub const MAX_DEPTH: usize = 64;

/// Returns the canonical JSON of `value`.
///
/// # Panics
/// Panics if `value` cannot be serialized. This does not happen for the types of this crate: their map keys are strings
/// and their serializers do not fail. A test serializes each of them.
pub fn to_vec<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    to_vec_without(value, &[])
}

/// Returns the canonical JSON of `value`. If it is an object, the given members of its top level are omitted.
///
/// # Panics
/// Panics in the same cases as [`to_vec`].
pub fn to_vec_without<T: Serialize + ?Sized>(value: &T, omitted: &[&str]) -> Vec<u8> {
    #[expect(clippy::expect_used, reason = "our types serialise; a document that did not would be our bug")]
    CanonicalWriter::new(omitted).write(value).expect("Proctor's types serialise")
}

fn format_number(number: &serde_json::Number) -> String {
    match number.is_f64() {
        true => shortest_number(&number.to_string()),
        // Integers have at most 20 digits, too few for the format with an exponent.
        false => number.to_string(),
    }
}

impl Json {
    /// Converts a value to JSON.
    ///
    /// # Panics
    /// Panics in the same cases as [`to_vec`].
    pub fn from_serializable<T: Serialize + ?Sized>(value: &T) -> Self {
        #[expect(clippy::expect_used, reason = "our types serialise; a document that did not would be our bug")]
        Self::from(serde_json::to_value(value).expect("Proctor's types serialise"))
    }

    /// Parses a document that another tool may have written.
    ///
    /// # Errors
    /// Returns an error if the document is not JSON, contains a duplicate key, or is nested too deeply.
    pub fn parse(bytes: &[u8]) -> Result<Self, JsonError> {
        let raw: &RawValue = serde_json::from_slice(bytes)?;
        Self::from_raw(raw, 0)
    }

    fn from_raw(raw: &RawValue, depth: usize) -> Result<Self, JsonError> {
        if depth > MAX_DEPTH {
            return Err(JsonError::TooDeep);
        }
        let text = raw.get().trim();
        Ok(match text.as_bytes().first() {
            Some(b'{') => Self::Object(parse_members(text, depth)?),
            Some(b'[') => {
                let items: Vec<&RawValue> = serde_json::from_str(text)?;
                Self::Array(items.into_iter().map(|item| Self::from_raw(item, depth + 1)).collect::<Result<_, _>>()?)
            }
            Some(b'"') => Self::String(serde_json::from_str(text)?),
            Some(b't' | b'f') => Self::Bool(text == "true"),
            Some(b'n') => Self::Null,
            _ => Self::Number(shortest_number(text)),
        })
    }

    /// Returns the canonical bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut out);
        out
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Null => out.extend_from_slice(b"null"),
            Self::Bool(true) => out.extend_from_slice(b"true"),
            Self::Bool(false) => out.extend_from_slice(b"false"),
            Self::Number(text) => out.extend_from_slice(text.as_bytes()),
            Self::String(text) => write_string(text, out),
            Self::Array(items) => {
                out.push(b'[');
                for (i, item) in items.iter().enumerate() {
                    if i > 0 {
                        out.push(b',');
                    }
                    item.write(out);
                }
                out.push(b']');
            }
            Self::Object(members) => {
                out.push(b'{');
                for (i, (key, value)) in members.iter().enumerate() {
                    if i > 0 {
                        out.push(b',');
                    }
                    write_string(key, out);
                    out.push(b':');
                    value.write(out);
                }
                out.push(b'}');
            }
        }
    }

    /// Returns the document with one member per line, each level indented by `indent`, and without a trailing newline.
    pub fn to_indented_vec(&self, indent: &str) -> Vec<u8> {
        let mut out = Vec::new();
        self.write_lines(indent, 0, &mut out);
        out
    }

    fn write_lines(&self, indent: &str, depth: usize, out: &mut Vec<u8>) {
        let line = |depth: usize, out: &mut Vec<u8>| {
            out.push(b'\n');
            (0..depth).for_each(|_| out.extend_from_slice(indent.as_bytes()));
        };
        match self {
            Self::Array(items) if !items.is_empty() => {
                for (at, item) in items.iter().enumerate() {
                    out.push(if at == 0 { b'[' } else { b',' });
                    line(depth + 1, out);
                    item.write_lines(indent, depth + 1, out);
                }
                line(depth, out);
                out.push(b']');
            }
            Self::Object(members) if !members.is_empty() => {
                for (at, (key, value)) in members.iter().enumerate() {
                    out.push(if at == 0 { b'{' } else { b',' });
                    line(depth + 1, out);
                    write_string(key, out);
                    out.extend_from_slice(b": ");
                    value.write_lines(indent, depth + 1, out);
                }
                line(depth, out);
                out.push(b'}');
            }
            other => other.write(out),
        }
    }

    /// Returns the members of an object; `None` for other values.
    pub fn as_object_mut(&mut self) -> Option<&mut BTreeMap<String, Json>> {
        match self {
            Self::Object(members) => Some(members),
            _ => None,
        }
    }

    /// Returns the value of `key`; `None` if this is not an object or has no such key.
    pub fn get(&self, key: &str) -> Option<&Json> {
        match self {
            Self::Object(members) => members.get(key),
            _ => None,
        }
    }
}

fn write_string(text: &str, out: &mut Vec<u8>) {
    #[expect(clippy::expect_used, reason = "a string serialises, and memory takes all bytes")]
    serde_json::to_writer(out, text).expect("a string is written");
}

/// Returns the members of an object; fails if a key is duplicated.
fn parse_members(text: &str, depth: usize) -> Result<BTreeMap<String, Json>, JsonError> {
    struct Pairs<'a>(Vec<(String, &'a RawValue)>);
    impl<'de: 'a, 'a> serde::Deserialize<'de> for Pairs<'a> {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Visitor;
            impl<'de> serde::de::Visitor<'de> for Visitor {
                type Value = Vec<(String, &'de RawValue)>;
                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("an object")
                }
                fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                    let mut pairs = Vec::new();
                    while let Some(pair) = map.next_entry()? {
                        pairs.push(pair);
                    }
                    Ok(pairs)
                }
            }
            deserializer.deserialize_map(Visitor).map(Pairs)
        }
    }
    let Pairs(pairs) = serde_json::from_str(text)?;
    let mut members = BTreeMap::new();
    for (key, value) in pairs {
        let value = Json::from_raw(value, depth + 1)?;
        if members.insert(key.clone(), value).is_some() {
            return Err(JsonError::DuplicateKey(key));
        }
    }
    Ok(members)
}

impl From<serde_json::Value> for Json {
    fn from(value: serde_json::Value) -> Self {
        match value {
            serde_json::Value::Null => Self::Null,
            serde_json::Value::Bool(b) => Self::Bool(b),
            serde_json::Value::Number(n) => Self::Number(format_number(&n)),
            serde_json::Value::String(s) => Self::String(s),
            serde_json::Value::Array(items) => Self::Array(items.into_iter().map(Self::from).collect()),
            serde_json::Value::Object(members) => {
                Self::Object(members.into_iter().map(|(k, v)| (k, Self::from(v))).collect())
            }
        }
    }
}

/// Returns the normalized format of the JSON number `text`, which is short and depends only on the decimal value. The
/// value is never rounded, even if a float cannot hold all digits.
fn shortest_number(text: &str) -> String {
    let (sign, unsigned) = match text.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", text),
    };
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i64>()),
        None => (unsigned, Ok(0)),
    };
    let Ok(exponent) = exponent else { return text.to_owned() };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = format!("{whole}{fraction}");
    let digits = all.trim_start_matches('0');
    if digits.is_empty() {
        return "0".to_owned();
    }
    let significant = digits.trim_end_matches('0');
    let dropped = i64::try_from(digits.len() - significant.len()).unwrap_or(0);
    let Some(scale) = i64::try_from(fraction.len()).ok().and_then(|f| exponent.checked_sub(f)?.checked_add(dropped))
    else {
        return text.to_owned();
    };
    format!("{sign}{}", shortest_decimal(significant, scale))
}

/// Formats `digits × 10^scale`, where `digits` neither starts nor ends with a zero. Uses plain digits up to a length of
/// 21 characters. Longer numbers have an exponent if that is shorter, and always above 400 characters.
fn shortest_decimal(digits: &str, scale: i64) -> String {
    let with_exponent = format!("{digits}e{scale}");
    let count = i64::try_from(digits.len()).unwrap_or(i64::MAX);
    let plain_len = match scale {
        0.. => count.saturating_add(scale),
        _ if count > -scale => count + 1,
        _ => scale.saturating_neg().saturating_add(2),
    };
    if plain_len > 400 || plain_len > i64::try_from(with_exponent.len()).unwrap_or(0) && plain_len > 21 {
        return with_exponent;
    }
    let width = usize::try_from(scale.unsigned_abs()).unwrap_or(0);
    match scale {
        0.. => format!("{digits}{}", "0".repeat(width)),
        _ if count > -scale => {
            let (whole, fraction) = digits.split_at(digits.len() - width);
            format!("{whole}.{fraction}")
        }
        _ => format!("0.{}{digits}", "0".repeat(width - digits.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn canonical(text: &str) -> String {
        String::from_utf8(Json::parse(text.as_bytes()).expect("json").to_vec()).expect("utf-8")
    }

    #[test]
    fn sorts_keys_and_removes_whitespace() {
        assert_eq!(
            canonical(r#" { "b" : [ 1 , true ], "a" : null, "Z": "\u00e4\n" } "#),
            "{\"Z\":\"ä\\n\",\"a\":null,\"b\":[1,true]}"
        );
    }

    #[test]
    fn normalizes_numbers_without_rounding() {
        let cases = [
            ("0", "0"),
            ("-0.0", "0"),
            ("1.50", "1.5"),
            ("100", "100"),
            ("1e2", "100"),
            ("1E-2", "0.01"),
            ("12345678901234567890123", "12345678901234567890123"),
            ("0.1000", "0.1"),
            ("-12.0", "-12"),
            ("1e400", "1e400"),
            ("18446744073709551616", "18446744073709551616"),
        ];
        for (given, expected) in cases {
            assert_eq!(canonical(given), expected, "{given}");
        }
    }

    #[test]
    fn rejects_duplicate_keys() {
        assert!(matches!(Json::parse(br#"{"a":1,"a":2}"#), Err(JsonError::DuplicateKey(k)) if k == "a"));
    }

    #[test]
    fn rejects_deep_nesting() {
        let deep = "[".repeat(100) + &"]".repeat(100);
        assert!(matches!(Json::parse(deep.as_bytes()), Err(JsonError::TooDeep)));
        let absurd = "[".repeat(100_000);
        assert!(Json::parse(absurd.as_bytes()).is_err());
    }

    #[test]
    fn direct_output_matches_tree_output() {
        #[derive(Serialize)]
        #[serde(rename_all = "snake_case")]
        enum SampleEnum {
            Unit,
            New(u8),
            Pair(u8, i8),
            Fields { z: u8, a: Vec<SampleEnum> },
        }
        #[derive(Serialize)]
        struct FlattenedSample {
            z: u64,
            a: Option<f32>,
        }
        #[derive(Serialize)]
        struct SampleDocument {
            z: SampleEnum,
            y: SampleEnum,
            x: SampleEnum,
            w: SampleEnum,
            empty: BTreeMap<String, u8>,
            by_number: BTreeMap<i32, char>,
            // `\n` sorts before `#` as a byte, but after `#` in its escaped form.
            by_text: BTreeMap<&'static str, Option<f64>>,
            #[serde(flatten)]
            inner: FlattenedSample,
            bytes: (u8, [bool; 2], ()),
        }
        let fields = SampleEnum::Fields { z: 1, a: vec![SampleEnum::Fields { z: 2, a: Vec::new() }, SampleEnum::Unit] };
        let outer = SampleDocument {
            z: SampleEnum::Unit,
            y: SampleEnum::New(255),
            x: SampleEnum::Pair(1, -1),
            w: fields,
            empty: BTreeMap::new(),
            by_number: [(10, 'ä'), (9, '"'), (-1, '\\')].into(),
            by_text: [("#", Some(1e300)), ("\n", Some(f64::NAN)), ("", None), ("é", Some(-0.0))].into(),
            inner: FlattenedSample { z: u64::MAX, a: Some(0.1) },
            bytes: (7, [true, false], ()),
        };
        let written = String::from_utf8(to_vec(&outer)).expect("UTF-8");
        assert_eq!(written, String::from_utf8(Json::from_serializable(&outer).to_vec()).expect("UTF-8"));
        assert!(written.contains(r#""w":{"fields":{"a":[{"fields":{"a":[],"z":2}},"unit"],"z":1}}"#), "{written}");
        let mut without = Json::from_serializable(&outer);
        without.as_object_mut().expect("an object").retain(|key, _| key != "w" && key != "z");
        assert_eq!(to_vec_without(&outer, &["w", "z"]), without.to_vec());
        assert_eq!(to_vec(&[1, 2]), b"[1,2]");
        assert_eq!(to_vec("text"), b"\"text\"");
    }

    proptest! {
        #[test]
        fn writing_is_idempotent_and_agrees_with_serde(text in "[ -~äß\\n]{0,40}", number in any::<i64>(), float in -1e9..1e9f64) {
            let value = serde_json::json!({ "t": text, "n": number, "f": float });
            let once = to_vec(&value);
            let nested = serde_json::json!({ "z": [value.clone(), null, [], true], "a": { "é": {}, "b": false } });
            prop_assert_eq!(to_vec(&nested), Json::from_serializable(&nested).to_vec());
            prop_assert_eq!(to_vec_without(&nested, &["z"]), "{\"a\":{\"b\":false,\"é\":{}}}".as_bytes());
            let again = Json::parse(&once).expect("own output").to_vec();
            prop_assert_eq!(&once, &again);
            // serde_json's float parser may be off by one unit in the last place; the one of std is exact.
            let json = Json::parse(&once).expect("own output");
            let Some(Json::Number(spelled)) = json.get("f") else { panic!("a number") };
            prop_assert_eq!(spelled.parse::<f64>(), Ok(float));
            let back: serde_json::Value = serde_json::from_slice(&once).expect("own output");
            prop_assert_eq!(&back["n"], &value["n"]);
            prop_assert_eq!(&back["t"], &value["t"]);
        }
    }
}

//! Converts values of engines to JSON. A number that JSON cannot represent exactly becomes a string, and bytes become
//! an object with the key `base64`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Number, Value, json};

/// The largest integer for which every smaller one is a floating-point number too. Readers of JSON may store numbers
/// as floating-point numbers.
const MAX_EXACT_INTEGER: u64 = 1 << 53;

/// Converts an integer.
pub(crate) fn integer(number: i64) -> Value {
    match number.unsigned_abs() <= MAX_EXACT_INTEGER {
        true => Value::from(number),
        false => Value::from(number.to_string()),
    }
}

/// Converts an integer without a sign.
pub(crate) fn unsigned(number: u64) -> Value {
    match number <= MAX_EXACT_INTEGER {
        true => Value::from(number),
        false => Value::from(number.to_string()),
    }
}

/// Converts a floating-point number.
pub(crate) fn real(number: f64) -> Value {
    let name = if number.is_nan() {
        "NaN"
    } else if number > 0.0 {
        "Infinity"
    } else {
        "-Infinity"
    };
    Number::from_f64(number).map_or_else(|| Value::from(name), Value::Number)
}

/// Converts bytes.
pub(crate) fn bytes(bytes: &[u8]) -> Value {
    json!({ "base64": STANDARD.encode(bytes) })
}

/// Converts a text; a text that is not UTF-8 is converted like bytes.
pub(crate) fn text(text: &[u8]) -> Value {
    std::str::from_utf8(text).map_or_else(|_| bytes(text), Value::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inexact_numbers_are_strings() {
        assert_eq!(integer(-9_007_199_254_740_992), json!(-9_007_199_254_740_992_i64));
        assert_eq!(integer(9_007_199_254_740_993), json!("9007199254740993"));
        assert_eq!(integer(i64::MIN), json!("-9223372036854775808"));
        assert_eq!(unsigned(u64::MAX), json!("18446744073709551615"));
        assert_eq!(real(1.5), json!(1.5));
        assert_eq!([f64::NAN, f64::INFINITY, f64::NEG_INFINITY].map(real), ["NaN", "Infinity", "-Infinity"]);
    }

    #[test]
    fn bytes_and_broken_texts_are_base64() {
        assert_eq!(bytes(&[0, 255]), json!({"base64": "AP8="}));
        assert_eq!(text("ä".as_bytes()), json!("ä"));
        assert_eq!(text(&[0xff]), json!({"base64": "/w=="}));
    }
}

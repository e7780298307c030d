//! Converts the texts in which PostgreSQL sends values to JSON. Numbers, truth values, arrays and JSON keep their
//! structure; dates, decimals, intervals and all other types stay the texts of the server.

use std::iter::Peekable;
use std::str::CharIndices;

use serde_json::Value;
use tokio_postgres::types::{Kind, Type};

use crate::row_values;

/// The deepest array that is converted. The server allows six dimensions.
const MAX_DIMENSIONS: usize = 6;

/// Converts a value of a type; `None` is NULL.
pub(super) fn to_json(text: Option<&str>, kind: &Type) -> Value {
    let Some(text) = text else { return Value::Null };
    match kind.kind() {
        Kind::Domain(base) => to_json(Some(text), base),
        // The elements of this type contain commas.
        Kind::Array(element) if *element != Type::BOX => {
            ArrayReader::new(text, element).read().unwrap_or_else(|| Value::from(text))
        }
        _ => scalar(text, kind),
    }
}

fn scalar(text: &str, kind: &Type) -> Value {
    let as_text = || Value::from(text);
    match *kind {
        Type::BOOL => Value::Bool(text == "t"),
        Type::INT2 | Type::INT4 | Type::INT8 | Type::OID => {
            text.parse().map_or_else(|_| as_text(), row_values::integer)
        }
        Type::FLOAT4 | Type::FLOAT8 => text.parse().map_or_else(|_| as_text(), row_values::real),
        Type::JSON | Type::JSONB => serde_json::from_str(text).map_or_else(|_| as_text(), exact_json),
        Type::BYTEA => {
            text.strip_prefix("\\x").and_then(decode_hex).map_or_else(as_text, |bytes| row_values::bytes(&bytes))
        }
        _ => as_text(),
    }
}

/// Replaces integers that readers of JSON may round.
fn exact_json(value: Value) -> Value {
    match value {
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(integer), _) => row_values::integer(integer),
            (None, Some(integer)) => row_values::unsigned(integer),
            _ => Value::Number(number),
        },
        Value::Array(values) => values.into_iter().map(exact_json).collect(),
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(name, value)| (name, exact_json(value))).collect())
        }
        other => other,
    }
}

fn decode_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
    Some(digits?.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

/// Reads the text of an array, such as `{1,NULL,"a b"}`.
struct ArrayReader<'a> {
    text: &'a str,
    rest: Peekable<CharIndices<'a>>,
    element: &'a Type,
}

impl<'a> ArrayReader<'a> {
    fn new(text: &'a str, element: &'a Type) -> Self {
        Self { text, rest: text.char_indices().peekable(), element }
    }

    /// Returns the array; `None` for a text of another form, such as one with explicit bounds.
    fn read(mut self) -> Option<Value> {
        let array = self.array(0)?;
        self.rest.next().is_none().then_some(array)
    }

    fn array(&mut self, depth: usize) -> Option<Value> {
        self.take('{').filter(|()| depth < MAX_DIMENSIONS)?;
        let mut values = Vec::new();
        if self.take('}').is_some() {
            return Some(Value::Array(values));
        }
        loop {
            values.push(match self.rest.peek()?.1 {
                '{' => self.array(depth + 1)?,
                '"' => self.quoted()?,
                _ => self.plain()?,
            });
            if self.take(',').is_none() {
                self.take('}')?;
                return Some(Value::Array(values));
            }
        }
    }

    fn take(&mut self, sign: char) -> Option<()> {
        self.rest.next_if(|(_, next)| *next == sign).map(drop)
    }

    fn quoted(&mut self) -> Option<Value> {
        self.take('"')?;
        let mut value = String::new();
        loop {
            match self.rest.next()?.1 {
                '"' => return Some(to_json(Some(&value), self.element)),
                '\\' => value.push(self.rest.next()?.1),
                sign => value.push(sign),
            }
        }
    }

    fn plain(&mut self) -> Option<Value> {
        let start = self.rest.peek()?.0;
        while self.rest.next_if(|(_, sign)| !matches!(sign, ',' | '}')).is_some() {}
        let value = &self.text[start..self.rest.peek()?.0];
        Some(to_json(Some(value).filter(|value| *value != "NULL"), self.element))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn value(text: &str, kind: &Type) -> Value {
        to_json(Some(text), kind)
    }

    #[test]
    fn converts_scalars() {
        assert_eq!(value("t", &Type::BOOL), json!(true));
        assert_eq!(value("9007199254740993", &Type::INT8), json!("9007199254740993"));
        assert_eq!(value("-7", &Type::INT2), json!(-7));
        assert_eq!(value("0.1", &Type::FLOAT4), json!(0.1));
        assert_eq!(value("-Infinity", &Type::FLOAT8), json!("-Infinity"));
        assert_eq!(value("1.50", &Type::NUMERIC), json!("1.50"));
        assert_eq!(value("\\x00ff", &Type::BYTEA), json!({"base64": "AP8="}));
        assert_eq!(value(r#"{"a": [1, 9007199254740993]}"#, &Type::JSONB), json!({"a": [1, "9007199254740993"]}));
        assert_eq!(value("2026-11-26", &Type::DATE), json!("2026-11-26"));
        assert_eq!(to_json(None, &Type::INT4), Value::Null);
    }

    #[test]
    fn converts_arrays() {
        assert_eq!(value("{}", &Type::INT4_ARRAY), json!([]));
        assert_eq!(value("{{1,2},{3,NULL}}", &Type::INT4_ARRAY), json!([[1, 2], [3, null]]));
        let texts = r#"{plain,"a b","q\"\\","NULL",NULL,""}"#;
        assert_eq!(value(texts, &Type::TEXT_ARRAY), json!(["plain", "a b", "q\"\\", "NULL", null, ""]));
        assert_eq!(value("[0:1]={1,2}", &Type::INT4_ARRAY), json!("[0:1]={1,2}"));
        assert_eq!(value("{1,2", &Type::INT4_ARRAY), json!("{1,2"));
    }

    proptest! {
        #[test]
        fn reads_any_text(text in "[{},\"\\\\aNUL0-9]{0,30}") {
            let _ = value(&text, &Type::TEXT_ARRAY);
        }
    }
}

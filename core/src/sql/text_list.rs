//! Deserializes a list of texts that callers may also give as one text.

use std::fmt;

use schemars::JsonSchema;
use serde::de::{Deserializer, SeqAccess, Visitor};

/// One text, or a list of texts: the schema of what [`one_or_many`] accepts.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema)]
#[schemars(untagged, inline)]
pub enum OneOrMany {
    /// One text; an empty one is an empty list.
    One(String),
    /// Texts in their order.
    Many(Vec<String>),
}

/// Deserializes one text or a list of texts as a list.
///
/// # Errors
/// The value is neither.
pub fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    deserializer.deserialize_any(TextListVisitor)
}

/// The visitor for one text or a list of texts. It does not buffer values, so checks of the deserializer apply to each
/// text.
struct TextListVisitor;

impl<'de> Visitor<'de> for TextListVisitor {
    type Value = Vec<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a list of texts")
    }

    fn visit_str<E>(self, text: &str) -> Result<Vec<String>, E> {
        Ok(if text.is_empty() { Vec::new() } else { vec![text.to_owned()] })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<String>, A::Error> {
        let mut texts = Vec::new();
        while let Some(text) = items.next_element()? {
            texts.push(text);
        }
        Ok(texts)
    }
}

#[cfg(test)]
mod tests {
    use crate::sql::SqlRequest;

    #[test]
    fn accepts_one_text_or_a_list() {
        let schema = |json: &str| {
            let request = format!(r#"{{"sql":"SELECT 1","dialect":"sqlite","schema":{json}}}"#);
            serde_json::from_str::<SqlRequest>(&request).map(|request| request.schema)
        };
        assert_eq!(schema(r#""CREATE""#).expect("reads"), ["CREATE"]);
        assert_eq!(schema(r#"["CREATE","ALTER"]"#).expect("reads"), ["CREATE", "ALTER"]);
        assert!(schema(r#""""#).expect("reads").is_empty());
        let error = schema("7").expect_err("a number").to_string();
        assert!(error.contains("expected a text or a list of texts"), "{error}");
    }
}

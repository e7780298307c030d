//! Represents a text of a spec.

use std::borrow::Borrow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Text exactly as written: `1.10` stays `1.10`, and `no` stays `no`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SpecText(pub String);

impl JsonSchema for SpecText {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Text".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "number", "boolean", "null"] })
    }
}

impl Borrow<str> for SpecText {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl SpecText {
    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

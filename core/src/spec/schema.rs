//! JSON Schemas (2020-12) of what people write, made from the types that read it.

use serde_json::Value;

use super::operator::Operator;
use super::written::Spec;

/// The schema of `spec/verification.yaml`, for editors and for other readers.
pub fn schema() -> Value {
    titled(schemars::schema_for!(Spec), "Proctor verification spec, version 1")
}

/// The schema of `proctord.toml`.
pub fn operator_schema() -> Value {
    titled(Operator::schema(), "Proctor operator's config")
}

fn titled(mut schema: schemars::Schema, title: &str) -> Value {
    schema.insert("title".to_owned(), title.into());
    schema.to_value()
}

//! Constructs the parts of an operation's description: schemas, request bodies, parameters and JSON responses.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;

use super::{Parameter, ParameterLocation, RequestBody, ResponseContent, SchemaFn, SuccessResponse};
use crate::text::strict_deserialize;

pub(super) fn schema_for<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

pub(super) const fn request_body<T: JsonSchema + DeserializeOwned>() -> Option<RequestBody> {
    Some(RequestBody { schema: schema_for::<T>, validate: validate_body::<T> })
}

fn validate_body<T: DeserializeOwned>(bytes: &[u8]) -> Result<(), serde_json::Error> {
    strict_deserialize::from_json::<T>(bytes).map(drop)
}

pub(super) const fn path_parameter(name: &'static str, schema: SchemaFn, description: &'static str) -> Parameter {
    Parameter { name, location: ParameterLocation::Path, description, schema, required: true }
}

pub(super) const fn query_parameter(name: &'static str, schema: SchemaFn, description: &'static str) -> Parameter {
    Parameter { name, location: ParameterLocation::Query, description, schema, required: false }
}

pub(super) const fn header_parameter(name: &'static str, schema: SchemaFn, description: &'static str) -> Parameter {
    Parameter { name, location: ParameterLocation::Header, description, schema, required: false }
}

pub(super) const fn json_response<T: JsonSchema>(status: u16, when: &'static str) -> SuccessResponse {
    SuccessResponse { status, condition: when, content: ResponseContent::Json(schema_for::<T>) }
}

//! Schemas of parameters and responses that have no Rust type.

use schemars::{Schema, SchemaGenerator, json_schema};

use crate::api::{LoggedEvent, OutputEvent};

/// Returns the schema of event data. Events of the type `output` have a different schema, which is added to the
/// definitions.
pub(super) fn event_data(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<OutputEvent>();
    generator.subschema_for::<LoggedEvent>()
}

pub(super) fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object" })
}

pub(super) fn unsigned_integer(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "integer", "format": "uint64", "minimum": 0 })
}

pub(super) fn step_number(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "integer", "format": "uint32", "minimum": 0, "maximum": u32::MAX })
}

pub(super) fn page_size(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "integer", "minimum": 1, "maximum": crate::api::MAX_PAGE })
}

pub(super) fn range_size(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "integer", "format": "uint64", "minimum": 1 })
}

pub(super) fn boolean(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "boolean" })
}

pub(super) fn file_name(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "pattern": "^(verify/)?[A-Za-z0-9_-][A-Za-z0-9._-]*$" })
}

pub(super) fn any_text(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string" })
}

pub(super) fn absolute_path(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "pattern": "^/" })
}

pub(super) fn wait_duration(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "pattern": "^[0-9]{1,9}(ms|s|m)?$", "examples": ["45s", "500ms"] })
}

pub(super) fn output_unit(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["steps", "checks"] })
}

pub(super) fn stream_name(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["stdout", "stderr"] })
}

//! Generates the OpenAPI 3.1 document of the daemon's HTTP API from the table of operations and their types.

mod schema_rewrite;

use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::Problem;
use super::operation::{OperationDescription, Parameter, ParameterLocation, ResponseContent, SuccessResponse};

/// The location of type schemas in the document.
const SCHEMAS_PATH: &str = "/components/schemas";

/// Returns the document; it is the same on every call.
pub fn document() -> Value {
    // Requests may omit fields that have defaults; responses contain them.
    let settings = || SchemaSettings::draft2020_12().with(|settings| settings.definitions_path = SCHEMAS_PATH.into());
    let mut request_schemas = settings().for_deserialize().into_generator();
    let mut response_schemas = settings().for_serialize().into_generator();
    let mut paths = Map::new();
    for outline in OperationDescription::ALL {
        let item = paths.entry(outline.path).or_insert_with(|| json!({}));
        item[outline.method.as_str().to_lowercase()] =
            operation_object(outline, &mut request_schemas, &mut response_schemas);
    }
    let problem = response_schemas.subschema_for::<Problem>();
    let mut schemas = request_schemas.take_definitions(true);
    schemas.extend(response_schemas.take_definitions(true));
    schema_rewrite::rewrite(&mut schemas);
    let mut document = json!({
        "openapi": "3.1.0",
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "info": {
            "title": "Proctor",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "HTTP/1.1 on a Unix socket. Every error is a problem document (RFC 9457). Unknown fields, \
                            unknown parameters and duplicate keys are errors.",
            "license": { "name": env!("CARGO_PKG_LICENSE") },
        },
        "servers": [{ "url": "http://localhost", "description": "The socket; the host name is ignored." }],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {
                "Problem": {
                    "description": "The reason why there is no result.",
                    "content": { "application/problem+json": { "schema": problem } },
                },
            },
        },
    });
    document.sort_all_objects();
    document
}

fn operation_object(
    outline: &OperationDescription,
    request_schemas: &mut SchemaGenerator,
    response_schemas: &mut SchemaGenerator,
) -> Value {
    let mut responses: Map<String, Value> = outline
        .responses
        .iter()
        .map(|answer| (answer.status.to_string(), response_object(answer, response_schemas)))
        .collect();
    for errors in ["4XX", "5XX"] {
        responses.insert(errors.to_owned(), json!({ "$ref": "#/components/responses/Problem" }));
    }
    let mut operation = json!({
        "operationId": outline.id,
        "summary": outline.summary,
        "responses": responses,
    });
    if !outline.description.is_empty() {
        operation["description"] = outline.description.into();
    }
    if !outline.parameters.is_empty() {
        operation["parameters"] = outline.parameters.iter().map(|of| parameter_object(of, request_schemas)).collect();
    }
    if let Some(body) = outline.body {
        let content = json!({ "application/json": { "schema": (body.schema)(request_schemas) } });
        operation["requestBody"] = json!({ "required": true, "content": content });
    }
    operation
}

fn parameter_object(parameter: &Parameter, request_schemas: &mut SchemaGenerator) -> Value {
    let location = match parameter.location {
        ParameterLocation::Path => "path",
        ParameterLocation::Query => "query",
        ParameterLocation::Header => "header",
    };
    json!({
        "name": parameter.name,
        "in": location,
        "description": parameter.description,
        "required": parameter.required,
        "schema": (parameter.schema)(request_schemas),
    })
}

fn response_object(answer: &SuccessResponse, response_schemas: &mut SchemaGenerator) -> Value {
    let text = json!({ "schema": { "type": "string" } });
    let content = match answer.content {
        ResponseContent::Json(schema) => json!({ "application/json": { "schema": schema(response_schemas) } }),
        ResponseContent::Text(kind) => json!({ kind: text }),
        ResponseContent::EventStream(schema) => {
            json!({ "text/event-stream": { "schema": event_stream_schema(&schema(response_schemas)) } })
        }
        ResponseContent::JsonLines(schema) => {
            json!({ "text/x-ndjson": { "schema": json_lines_schema(&schema(response_schemas)) } })
        }
        ResponseContent::JsonOrLines(document, line) => {
            let document = document(response_schemas);
            let lines = json_lines_schema(&line(response_schemas));
            json!({ "application/json": { "schema": document }, "text/x-ndjson": { "schema": lines } })
        }
        ResponseContent::Bytes => json!({ "text/plain": text, "application/octet-stream": {} }),
        ResponseContent::NoContent => return json!({ "description": answer.condition }),
    };
    json!({ "description": answer.condition, "content": content })
}

/// Returns the schema of JSON lines, as a string. Client generators skip operations whose response has an unknown
/// content type.
fn json_lines_schema(line: &Schema) -> Value {
    json!({ "type": "string", "contentMediaType": "application/x-ndjson", "contentSchema": line })
}

/// Returns the schema of one server-sent event.
fn event_stream_schema(data: &Schema) -> Value {
    json!({
        "type": "object",
        "properties": {
            "id": { "type": "string", "pattern": "^[0-9]+$" },
            "data": { "type": "string", "contentMediaType": "application/json", "contentSchema": data },
        },
        "required": ["id", "data"],
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The schemas for serialization and deserialization must be equal, because the document contains only one of them.
    #[test]
    fn request_and_response_schemas_of_a_type_are_equal() {
        let settings = SchemaSettings::draft2020_12;
        let (mut requests, mut responses) =
            (settings().for_deserialize().into_generator(), settings().for_serialize().into_generator());
        for outline in OperationDescription::ALL {
            let _ = operation_object(outline, &mut requests, &mut responses);
        }
        let responses = responses.take_definitions(true);
        for (name, schema) in requests.take_definitions(true) {
            assert!(responses.get(&name).is_none_or(|other| *other == schema), "{name}: {schema:#}");
        }
    }

    #[test]
    fn every_reference_resolves() {
        let document = document();
        let mut found = BTreeSet::new();
        collect_references(&document, &mut found);
        assert!(found.contains("#/components/schemas/RunView"), "{found:?}");
        for reference in found {
            let pointer = reference.strip_prefix('#').expect("one of this document");
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
    }

    fn collect_references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(members) => {
                found.extend(members.get("$ref").and_then(Value::as_str).map(str::to_owned));
                members.values().for_each(|member| collect_references(member, found));
            }
            Value::Array(items) => items.iter().for_each(|item| collect_references(item, found)),
            _ => {}
        }
    }
}

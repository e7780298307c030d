//! Tests that each request body rejects an array in place of any of its objects, and integers out of range, with
//! bodies generated from the schemas.

use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::operation::OperationDescription;
use crate::sql::MAX_TIME_MS;

/// Returns a value that matches the schema, with all properties set.
fn example_value(schema: &Value, root: &Value) -> Value {
    if let Some(reference) = schema["$ref"].as_str() {
        let target = reference.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
        return example_value(target.expect("a definition"), root);
    }
    let choices = schema["anyOf"].as_array().or(schema["oneOf"].as_array());
    if let Some(first) = choices.and_then(|choices| choices.iter().find(|choice| choice["type"] != "null")) {
        return example_value(first, root);
    }
    if let Some(word) = schema.get("const").or_else(|| schema["enum"].get(0)) {
        return word.clone();
    }
    let kind = schema["type"].as_str().or_else(|| schema["type"][0].as_str());
    match kind.unwrap_or_else(|| panic!("a type: {schema}")) {
        "object" => {
            let properties = schema["properties"].as_object();
            let members =
                properties.into_iter().flatten().map(|(name, schema)| (name.clone(), example_value(schema, root)));
            let mut members: serde_json::Map<String, Value> = members.collect();
            if let Some(of_all) = schema.get("additionalProperties").filter(|schema| schema.is_object()) {
                members.insert("KEY".to_owned(), example_value(of_all, root));
            }
            members.into()
        }
        "array" => json!([example_value(&schema["items"], root)]),
        "integer" => schema.get("minimum").cloned().unwrap_or_else(|| 1.into()),
        "boolean" => true.into(),
        "string" if schema["pattern"] == "^/" => "/r".into(),
        "string" => "pr".into(),
        other => panic!("a {other} in a body: {schema}"),
    }
}

/// Calls `check` with copies of the value in which one object is replaced by an array of its values.
fn for_each_array_replacement(value: &Value, keyed: bool, check: &mut dyn FnMut(Value)) {
    match value {
        Value::Object(members) => {
            if !keyed {
                check(members.values().cloned().collect());
                check(json!([]));
            }
            for (name, inner) in members {
                let is_map = matches!(name.as_str(), "env" | "set_env");
                for_each_array_replacement(inner, is_map, &mut |broken| {
                    let mut whole = members.clone();
                    whole.insert(name.clone(), broken);
                    check(whole.into());
                });
            }
        }
        Value::Array(items) => {
            for (index, inner) in items.iter().enumerate() {
                for_each_array_replacement(inner, false, &mut |broken| {
                    let mut whole = items.clone();
                    whole[index] = broken;
                    check(whole.into());
                });
            }
        }
        _ => {}
    }
}

/// Calls `check` with the example of the schema in which one integer is less than its minimum or greater than its
/// maximum.
fn for_each_integer_out_of_range(schema: &Value, root: &Value, check: &mut dyn FnMut(Value)) {
    if let Some(reference) = schema["$ref"].as_str() {
        let target = reference.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
        return for_each_integer_out_of_range(target.expect("a definition"), root, check);
    }
    for choice in ["anyOf", "oneOf"].iter().filter_map(|key| schema[key].as_array()).flatten() {
        for_each_integer_out_of_range(choice, root, check);
    }
    let (minimum, maximum) = (schema["minimum"].as_i64(), schema["maximum"].as_i64());
    for bad in minimum.map(|minimum| minimum - 1).into_iter().chain(maximum.map(|maximum| maximum + 1)) {
        check(bad.into());
    }
    if schema["items"].is_object() {
        for_each_integer_out_of_range(&schema["items"], root, &mut |broken| check(json!([broken])));
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        for_each_integer_out_of_range(property, root, &mut |broken| {
            let mut whole = example_value(schema, root);
            whole[name] = broken;
            check(whole);
        });
    }
}

/// Validates bytes as a body.
type BodyValidator = fn(&[u8]) -> Result<(), serde_json::Error>;

/// Returns the id, the schema, the definitions and the validator of each request body.
fn request_bodies() -> impl Iterator<Item = (&'static str, Value, Value, BodyValidator)> {
    OperationDescription::ALL.iter().filter_map(|outline| {
        let body = outline.body?;
        let mut generator = SchemaSettings::draft2020_12().for_deserialize().into_generator();
        let schema = (body.schema)(&mut generator).to_value();
        Some((outline.id, schema, json!({ "$defs": generator.take_definitions(true) }), body.validate))
    })
}

#[test]
fn rejects_integers_out_of_range_in_request_bodies() {
    let mut integers = 0;
    for (id, schema, root, validate) in request_bodies() {
        for_each_integer_out_of_range(&schema, &root, &mut |broken| {
            // The daemon rejects such a time after it has read the body.
            let limits = if id == "runSql" { &broken["request"]["limits"] } else { &broken["limits"] };
            let time = limits["time_ms"].as_u64();
            if id.ends_with("Sql") && time.is_some_and(|time| !(1..=MAX_TIME_MS).contains(&time)) {
                return;
            }
            assert!(validate(broken.to_string().as_bytes()).is_err(), "{id} accepts {broken}");
            integers += 1;
        });
    }
    assert!(integers >= 8, "integers out of range: {integers}");
}

#[test]
fn rejects_array_in_place_of_object_in_request_bodies() {
    let mut bodies = 0;
    for (id, schema, root, validate) in request_bodies() {
        let whole = example_value(&schema, &root);
        let read = |value: &Value| validate(value.to_string().as_bytes());
        read(&whole).unwrap_or_else(|error| panic!("{id}: {error}: {whole}"));
        for_each_array_replacement(&whole, false, &mut |broken| {
            let error = read(&broken).expect_err(&broken.to_string()).to_string();
            assert!(error.contains("expected an object") && !error.contains("struct"), "{id}: {error}");
            bodies += 1;
        });
    }
    assert!(bodies >= 8, "every body has been broken: {bodies}");
}

//! Tests that each request body rejects an array in place of any of its objects, with bodies generated from the
//! schemas.

use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::operation::OperationDescription;

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

#[test]
fn rejects_array_in_place_of_object_in_request_bodies() {
    let mut bodies = 0;
    for outline in OperationDescription::ALL {
        let Some(body) = outline.body else { continue };
        let mut generator = SchemaSettings::draft2020_12().for_deserialize().into_generator();
        let schema = (body.schema)(&mut generator);
        let root = json!({ "$defs": generator.take_definitions(true) });
        let whole = example_value(schema.as_value(), &root);
        let read = |value: &Value| (body.validate)(value.to_string().as_bytes());
        read(&whole).unwrap_or_else(|error| panic!("{}: {error}: {whole}", outline.id));
        for_each_array_replacement(&whole, false, &mut |broken| {
            let error = read(&broken).expect_err(&broken.to_string()).to_string();
            assert!(error.contains("expected an object") && !error.contains("struct"), "{}: {error}", outline.id);
            bodies += 1;
        });
    }
    assert!(bodies >= 8, "every body has been broken: {bodies}");
}

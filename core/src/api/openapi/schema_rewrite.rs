//! Rewrites the schemas of the document to forms that client generators understand. The set of accepted values does not
//! change.

use serde_json::{Map, Value, json};

/// Rewrites the schemas of all types. Closed lists of words become an `enum`, times get the format `date-time`, items of
/// any type get an object as their schema, and each variant of a tagged type becomes a named schema with a discriminator.
pub(super) fn rewrite(schemas: &mut Map<String, Value>) {
    for schema in schemas.values_mut() {
        visit(schema, &mut rewrite_constants_as_enum);
        visit(schema, &mut mark_date_times);
        visit(schema, &mut rewrite_any_items);
    }
    let names: Vec<String> = schemas.keys().cloned().collect();
    for name in names {
        let variants = schemas.get_mut(&name).map(|schema| extract_named_variants(&name, schema)).unwrap_or_default();
        schemas.extend(variants);
    }
}

/// Calls `change` for all objects in a value, inner objects first.
fn visit(value: &mut Value, change: &mut impl FnMut(&mut Map<String, Value>)) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| visit(item, change)),
        Value::Object(members) => {
            members.values_mut().for_each(|member| visit(member, change));
            change(members);
        }
        _ => {}
    }
}

/// Rewrites a `oneOf` of constant strings as an `enum`, and appends the descriptions of the words to the description of
/// the type.
fn rewrite_constants_as_enum(schema: &mut Map<String, Value>) {
    let Some(choices) = schema.get("oneOf").and_then(Value::as_array) else { return };
    let Some(words) = choices.iter().map(|choice| choice["const"].as_str()).collect::<Option<Vec<_>>>() else { return };
    let lines = choices.iter().zip(&words).filter_map(|(choice, word)| {
        choice["description"].as_str().map(|description| format!("- `{word}`: {description}"))
    });
    let description = schema.get("description").and_then(Value::as_str).map(|text| format!("{text}\n"));
    let description: Vec<String> = description.into_iter().chain(lines).collect();
    let words = json!(words);
    schema.remove("oneOf");
    schema.insert("type".to_owned(), "string".into());
    schema.insert("enum".to_owned(), words);
    if !description.is_empty() {
        schema.insert("description".to_owned(), description.join("\n").into());
    }
}

/// Sets the format of properties that hold a time: those named `at` or ending in `_at`.
fn mark_date_times(schema: &mut Map<String, Value>) {
    let Some(Value::Object(properties)) = schema.get_mut("properties") else { return };
    for (name, property) in properties {
        let is_text = property["type"] == "string" || property["type"] == json!(["string", "null"]);
        if is_text && (name == "at" || name.ends_with("_at")) {
            property["format"] = "date-time".into();
        }
    }
}

/// Replaces the schema `true` of items, which generators do not expect, with the equal schema `{}`.
fn rewrite_any_items(schema: &mut Map<String, Value>) {
    if schema.get("items") == Some(&Value::Bool(true)) {
        schema.insert("items".to_owned(), json!({}));
    }
}

/// Replaces the variants of a tagged type with references, and returns the variants with their names. Each variant gets
/// the properties that all variants share.
fn extract_named_variants(parent: &str, schema: &mut Value) -> Vec<(String, Value)> {
    let Some(variants) = schema["oneOf"].as_array() else { return Vec::new() };
    let Some((tag, words)) = find_tag(variants) else { return Vec::new() };
    let names: Vec<String> = words.iter().map(|word| format!("{parent}{}", pascal_case(word))).collect();
    let named = variants.iter().zip(&names).map(|(variant, name)| {
        let mut variant = variant.clone();
        variant["title"] = name.as_str().into();
        copy_shared_properties(schema, &mut variant);
        (name.clone(), variant)
    });
    let named: Vec<(String, Value)> = named.collect();
    let reference = |name: &String| Value::from(format!("#{}/{name}", super::SCHEMAS_PATH));
    let references: Vec<Value> = names.iter().map(|name| json!({ "$ref": reference(name) })).collect();
    let mapping: Map<String, Value> = words.into_iter().zip(names.iter().map(reference)).collect();
    let mut whole = json!({
        "oneOf": references,
        "discriminator": { "propertyName": tag, "mapping": mapping },
    });
    if let Some(description) = schema.get("description") {
        whole["description"] = description.clone();
    }
    *schema = whole;
    named
}

/// Returns the property that distinguishes the variants, and its value in each of them.
fn find_tag(variants: &[Value]) -> Option<(String, Vec<String>)> {
    let constants = |variant: &Value| -> Vec<(String, String)> {
        let properties = variant["properties"].as_object();
        let constant = |(name, value): (&String, &Value)| Some((name.clone(), value["const"].as_str()?.to_owned()));
        properties.into_iter().flatten().filter_map(constant).collect()
    };
    let (tag, _) = variants.first().map(&constants)?.into_iter().next()?;
    let word = |variant| constants(variant).into_iter().find(|(name, _)| *name == tag).map(|(_, word)| word);
    Some((tag.clone(), variants.iter().map(word).collect::<Option<Vec<_>>>()?))
}

/// Adds the shared properties of a type to one of its variants.
fn copy_shared_properties(schema: &Value, variant: &mut Value) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        variant["properties"][name.as_str()] = property.clone();
    }
    let shared = schema["required"].as_array().cloned().unwrap_or_default();
    if let Some(required) = variant["required"].as_array_mut() {
        required.extend(shared);
    }
}

fn pascal_case(word: &str) -> String {
    let capitalized = |part: &str| {
        let mut letters = part.chars();
        letters.next().map(|first| first.to_ascii_uppercase().to_string() + letters.as_str()).unwrap_or_default()
    };
    word.split(['_', '-']).map(capitalized).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewrites_constant_choices_as_enum() {
        let mut schemas = Map::new();
        let words = json!({
            "description": "How.",
            "oneOf": [
                { "const": "a", "type": "string", "description": "One." },
                { "const": "b", "type": "string" },
            ],
        });
        schemas.insert("How".to_owned(), words);
        rewrite(&mut schemas);
        assert_eq!(
            schemas["How"],
            json!({ "type": "string", "enum": ["a", "b"], "description": "How.\n\n- `a`: One." })
        );
    }

    #[test]
    fn rewrites_items_of_any_type() {
        let mut schemas = Map::new();
        schemas.insert("Rows".to_owned(), json!({ "items": { "items": true, "type": "array" }, "type": "array" }));
        rewrite(&mut schemas);
        assert_eq!(schemas["Rows"], json!({ "items": { "items": {}, "type": "array" }, "type": "array" }));
    }

    #[test]
    fn tagged_variants_get_names_and_discriminator() {
        let variant = |word: &str| {
            json!({
                "type": "object",
                "properties": { "event": { "type": "string", "const": word }, "at": { "type": "string" } },
                "required": ["event", "at"],
            })
        };
        let logged = json!({
            "description": "One event.",
            "type": "object",
            "properties": { "seq": { "type": "integer" } },
            "required": ["seq"],
            "oneOf": [variant("run_started"), variant("log")],
        });
        let mut schemas = Map::from_iter([("Logged".to_owned(), logged)]);
        rewrite(&mut schemas);
        let reference = "#/components/schemas/LoggedRunStarted";
        assert_eq!(schemas["Logged"]["oneOf"][0]["$ref"], reference);
        assert_eq!(schemas["Logged"]["discriminator"]["propertyName"], "event");
        assert_eq!(schemas["Logged"]["discriminator"]["mapping"]["run_started"], reference);
        assert_eq!(schemas["Logged"].get("properties"), None);
        let started = &schemas["LoggedRunStarted"];
        assert_eq!(
            (&started["title"], &started["required"]),
            (&json!("LoggedRunStarted"), &json!(["event", "at", "seq"]))
        );
        assert_eq!(started["properties"]["at"]["format"], "date-time");
    }

    #[test]
    fn keeps_mixed_choices() {
        let mixed = json!({ "oneOf": [{ "const": "all", "type": "string" }, { "type": "integer" }] });
        let mut schemas = Map::from_iter([("Mixed".to_owned(), mixed.clone())]);
        rewrite(&mut schemas);
        assert_eq!(schemas["Mixed"], mixed);
    }
}

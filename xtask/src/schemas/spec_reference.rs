//! Generates `docs/spec-reference.md`: every key of the spec, from its schema. A pure function from a schema to a
//! page. [`docs/spec.md`] explains how the keys work together.
//!
//! [`docs/spec.md`]: ../../../docs/spec.md

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// The file of the page.
pub(super) const PAGE: &str = "docs/spec-reference.md";

const PAGE_HEADER: &str = "# Reference of the spec

Every key of `spec/verification.yaml`, generated from [its schema](../schemas/spec.schema.json) by
`cargo xtask schemas`; do not edit it. How the keys work together is in [spec.md](spec.md). A key without a value
counts as left out, and one that is not listed here is an error.

Words: *text* may be written as a number or as `true` too, and counts as it is written. A *path* is relative to the
repository.
";

/// The location of definitions in a schema.
const DEFINITIONS: &str = "#/$defs/";

/// Returns the page for a schema.
pub(super) fn page(schema: &Value) -> String {
    let sections = sections(schema);
    PAGE_HEADER.to_owned() + &sections.iter().map(|(name, found)| section(name, found)).collect::<String>()
}

/// Returns the file and each definition that it refers to, by name, in order of first reference.
pub(super) fn sections(schema: &Value) -> Vec<(String, &Value)> {
    let mut waiting = vec![("The file".to_owned(), schema)];
    let mut listed = BTreeSet::new();
    let mut sections = Vec::new();
    while !waiting.is_empty() {
        let (name, found) = waiting.remove(0);
        if listed.insert(name.clone()) {
            let next = referenced_definitions(found)
                .into_iter()
                .filter_map(|name| Some((name.to_owned(), definition(schema, name)?)));
            waiting.extend(next);
            sections.push((name, found));
        }
    }
    sections
}

fn definition<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    schema.get("$defs")?.get(name)
}

/// Returns the definitions that a schema and its parts refer to, in order.
fn referenced_definitions(schema: &Value) -> Vec<&str> {
    match schema {
        Value::Object(members) => {
            let own = members.get("$ref").and_then(Value::as_str).and_then(|at| at.strip_prefix(DEFINITIONS));
            let rest =
                members.iter().filter(|(key, _)| *key != "$defs").flat_map(|(_, value)| referenced_definitions(value));
            own.into_iter().chain(rest).collect()
        }
        Value::Array(items) => items.iter().flat_map(referenced_definitions).collect(),
        _ => Vec::new(),
    }
}

fn section(name: &str, schema: &Value) -> String {
    let mut text = format!("\n## {name}\n\n");
    let meaning = description(schema);
    if !meaning.is_empty() {
        text.push_str(&format!("{meaning}\n\n"));
    }
    let properties = schema.get("properties").and_then(Value::as_object);
    match (properties, value_list(schema)) {
        (Some(properties), _) => text.push_str(&key_table(schema, properties)),
        (None, Some(values)) => text.push_str(&values),
        (None, None) => text.push_str(&format!("Value: {}.\n", describe_type(schema))),
    }
    text
}

/// Returns the table of an object's keys.
fn key_table(schema: &Value, properties: &Map<String, Value>) -> String {
    let required = required(schema);
    let row = |(key, value): (&String, &Value)| {
        let must = if required.contains(&key.as_str()) { " *required*" } else { "" };
        format!("| `{key}`{must} | {} | {} |\n", cell(&describe_type(value)), cell(&description(value)))
    };
    let rows: String = properties.iter().map(row).collect();
    format!("| key | value | meaning |\n|---|---|---|\n{rows}")
}

/// Returns the required keys.
pub(super) fn required(schema: &Value) -> Vec<&str> {
    schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Returns the list of possible values, if the schema lists them.
fn value_list(schema: &Value) -> Option<String> {
    Some(variants(schema)?.iter().map(|(value, what)| format!("- `{value}`: {what}\n")).collect())
}

/// Returns the possible values with their meanings, if the schema lists them.
pub(super) fn variants(schema: &Value) -> Option<Vec<(&str, String)>> {
    let variants = schema.get("oneOf")?.as_array()?;
    variants.iter().map(|it| Some((it.get("const")?.as_str()?, description(it)))).collect()
}

/// Describes the type of a value.
pub(super) fn describe_type(schema: &Value) -> String {
    let member = |name| schema.get(name);
    if let Some(at) = member("$ref").and_then(Value::as_str) {
        let name = at.strip_prefix(DEFINITIONS).unwrap_or(at);
        return format!("[{name}](#{})", name.to_lowercase());
    }
    if let Some(variants) = member("anyOf").and_then(Value::as_array) {
        let kinds: Vec<String> = variants.iter().filter(|variant| !is_null(variant)).map(describe_type).collect();
        return kinds.join(" or ");
    }
    if let Some(values) = member("enum").and_then(Value::as_array) {
        let words: Vec<String> =
            values.iter().filter(|value| !value.is_null()).map(|value| format!("`{value}`")).collect();
        return words.join(" or ");
    }
    if let Some(value) = member("const") {
        return format!("`{value}`");
    }
    describe_plain_type(schema, &types(schema))
}

fn is_null(schema: &Value) -> bool {
    schema.get("type").and_then(Value::as_str) == Some("null")
}

/// Returns the types except `null`, because every key may be without a value.
fn types(schema: &Value) -> Vec<&str> {
    let named = schema.get("type");
    let one = named.and_then(Value::as_str);
    let many = named.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    one.into_iter().chain(many).filter(|word| *word != "null").collect()
}

fn describe_plain_type(schema: &Value, types: &[&str]) -> String {
    let inner = |name| schema.get(name).map(describe_type).unwrap_or_else(|| "anything".to_owned());
    match types {
        ["array"] => format!("list of {}{}", inner("items"), bounds(schema, "minItems")),
        ["object"] if schema.get("additionalProperties").is_some_and(Value::is_object) => {
            format!("map of names to {}", inner("additionalProperties"))
        }
        ["object"] => "map".to_owned(),
        ["integer"] => format!("number{}", bounds(schema, "minimum")),
        ["boolean"] => "`true` or `false`".to_owned(),
        ["string"] => match schema.get("pattern").and_then(Value::as_str) {
            Some(pattern) => format!("text that matches `{pattern}`"),
            None => "text".to_owned(),
        },
        words if words.contains(&"string") => "text".to_owned(),
        _ => "anything".to_owned(),
    }
}

/// Returns the minimum and maximum, if the schema sets them.
fn bounds(schema: &Value, min_key: &str) -> String {
    let bound = |name: &str| schema.get(name).and_then(Value::as_u64);
    let (unit, max_key) = if min_key == "minItems" { (" of them", "maxItems") } else { ("", "maximum") };
    match (bound(min_key).filter(|least| *least > 0), bound(max_key)) {
        (Some(least), Some(most)) => format!(", {least} to {most}{unit}"),
        (Some(least), None) => format!(", at least {least}{unit}"),
        (None, Some(most)) => format!(", at most {most}{unit}"),
        (None, None) => String::new(),
    }
}

/// Returns the description of a schema on one line.
pub(super) fn description(schema: &Value) -> String {
    schema.get("description").and_then(Value::as_str).unwrap_or_default().replace('\n', " ")
}

/// Escapes text for a table cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn describes_key_with_type_and_meaning() {
        let schema = json!({
            "properties": {
                "list": { "type": ["array", "null"], "minItems": 1, "items": { "$ref": "#/$defs/Kind" }, "description": "A\n| b" },
                "map": { "type": "object", "additionalProperties": { "type": ["string", "number"] } },
                "number": { "anyOf": [{ "type": "integer", "minimum": 1, "maximum": 9 }, { "type": "null" }] },
                "tier": { "enum": [1, 2, null] }
            },
            "required": ["map"],
            "$defs": {
                "Kind": { "oneOf": [{ "const": "a", "description": "One." }, { "const": "b", "description": "Two." }] },
                "Unused": { "type": "string" }
            }
        });
        let page = page(&schema);
        for line in [
            "| `list` | list of [Kind](#kind), at least 1 of them | A \\| b |",
            "| `map` *required* | map of names to text |  |",
            "| `number` | number, 1 to 9 |  |",
            "| `tier` | `1` or `2` |  |",
            "- `b`: Two.",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
        assert!(!page.contains("Unused"), "{page}");
    }

    #[test]
    fn describes_every_key_of_spec() {
        let schema = proctor_core::spec::schema();
        let page = page(&schema);
        for name in ["version", "profiles", "skills", "toolchains", "timeout_ms", "env_allowlist", "retries", "limits"]
        {
            assert!(page.contains(&format!("| `{name}`")), "{name}\n{page}");
        }
        assert!(!page.contains("| anything |"), "{page}");
    }
}

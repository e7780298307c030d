//! Generates the JSON Schemas (draft 2020-12) of the spec and of the operator's config from the types that parse them.

use serde_json::Value;

use super::operator_config::OperatorConfig;
use super::spec_types::Spec;

/// Returns the schema of `spec/verification.yaml`, for editors and other tools.
pub fn schema() -> Value {
    with_title(schemars::schema_for!(Spec), "Proctor verification spec, version 1")
}

/// Returns the schema of `proctord.toml`.
pub fn operator_schema() -> Value {
    with_title(OperatorConfig::schema(), "Proctor operator's config")
}

fn with_title(mut schema: schemars::Schema, title: &str) -> Value {
    schema.insert("title".to_owned(), title.into());
    schema.to_value()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::caches::CacheMap;
    use super::super::decode::SpecRecord;
    use super::super::needed_paths::{NeededPathMap, Prepare};
    use super::super::spec_types::{
        Defaults, Expect, Profile, Reports, Skill, SqlLimits, SqlStep, Step, StepFiles, StepLimits, ToolCheck,
        Toolchain,
    };
    use super::*;

    /// Returns the map types of the spec: the JSON pointer of each schema, and the keys that the decoder accepts.
    fn record_keys() -> Vec<(&'static str, &'static [&'static str])> {
        vec![
            ("", Spec::KEYS),
            ("/$defs/Toolchain", Toolchain::KEYS),
            ("/$defs/ToolCheck", ToolCheck::KEYS),
            ("/$defs/Defaults", Defaults::KEYS),
            ("/$defs/Profile", Profile::KEYS),
            ("/$defs/Skill", Skill::KEYS),
            ("/$defs/Step", Step::KEYS),
            ("/$defs/StepFiles", StepFiles::KEYS),
            ("/$defs/SqlStep", SqlStep::KEYS),
            ("/$defs/SqlLimits", SqlLimits::KEYS),
            ("/$defs/StepLimits", StepLimits::KEYS),
            ("/$defs/Reports", Reports::KEYS),
            ("/$defs/Expect", Expect::KEYS),
            ("/$defs/CacheMap", CacheMap::KEYS),
            ("/$defs/NeededPathMap", NeededPathMap::KEYS),
            ("/$defs/Prepare", Prepare::KEYS),
        ]
    }

    #[test]
    fn schema_and_decoder_know_the_same_keys() {
        let schema = schema();
        for (pointer, keys) in record_keys() {
            let record = schema.pointer(pointer).unwrap_or_else(|| panic!("no {pointer}"));
            let properties = record["properties"].as_object().expect(pointer);
            let in_schema: BTreeSet<&str> = properties.keys().map(String::as_str).collect();
            assert_eq!(in_schema, keys.iter().copied().collect(), "{pointer}");
            assert_eq!(record["additionalProperties"], Value::Bool(false), "{pointer}");
            for (key, property) in properties {
                assert!(property["description"].is_string(), "{pointer}/{key} has no description for editors");
            }
        }
        let maps =
            schema["$defs"].as_object().expect("definitions").values().filter(|def| def.get("properties").is_some());
        assert_eq!(maps.count() + 1, record_keys().len(), "a map of the schema is not in this test's list");
    }

    #[test]
    fn schemas_use_draft_2020_12() {
        for schema in [schema(), operator_schema()] {
            assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
            assert!(jsonschema::draft202012::meta::is_valid(&schema));
        }
    }
}

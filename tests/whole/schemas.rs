//! Compiles the published schemas once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::Value;

/// Names of the schemas, without `.schema.json`.
const SCHEMA_NAMES: [&str; 11] = [
    "sql-judgement",
    "sql-ask-answer",
    "comparison",
    "spec",
    "plan",
    "skill-evidence",
    "toolchain-evidence",
    "status",
    "event",
    "exec",
    "gate",
];

static VALIDATORS: LazyLock<BTreeMap<&str, Validator>> =
    LazyLock::new(|| SCHEMA_NAMES.into_iter().map(|name| (name, compile_schema(name))).collect());

/// Returns the root of the workspace.
pub(crate) fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace").to_owned()
}

/// Reads a published schema.
pub(crate) fn read_schema(name: &str) -> Value {
    let path = workspace_root().join(format!("schemas/{name}.schema.json"));
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}: run `make schemas`", path.display()));
    serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn compile_schema(name: &str) -> Validator {
    jsonschema::draft202012::new(&read_schema(name)).unwrap_or_else(|error| panic!("the schema {name}: {error}"))
}

/// Returns the validation errors of `document` under the schema `name`.
pub(crate) fn validation_errors(name: &str, document: &Value) -> Vec<String> {
    let validator = VALIDATORS.get(name).unwrap_or_else(|| panic!("no schema {name}"));
    validator.iter_errors(document).map(|error| format!("{}: {error}", error.instance_path())).collect()
}

/// Asserts that `document` is valid under the schema `name`.
#[track_caller]
pub(crate) fn assert_valid(name: &str, document: &Value, document_name: &dyn std::fmt::Display) {
    let errors = validation_errors(name, document);
    assert!(errors.is_empty(), "{document_name} breaks the schema {name}: {errors:#?}");
}

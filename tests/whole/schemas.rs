//! Compiles the published schemas once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::Value;

/// Names of the schemas, without `.schema.json`.
const NAMES: [&str; 10] = [
    "sql-judgement",
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
    LazyLock::new(|| NAMES.into_iter().map(|name| (name, compile(name))).collect());

/// Returns the root of the workspace.
pub(crate) fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace").to_owned()
}

/// Reads a published schema.
pub(crate) fn read(name: &str) -> Value {
    let path = project().join(format!("schemas/{name}.schema.json"));
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}: run `make schemas`", path.display()));
    serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn compile(name: &str) -> Validator {
    jsonschema::draft202012::new(&read(name)).unwrap_or_else(|error| panic!("the schema {name}: {error}"))
}

/// Returns the validation errors of `document` under the schema `name`.
pub(crate) fn errors(name: &str, document: &Value) -> Vec<String> {
    let validator = VALIDATORS.get(name).unwrap_or_else(|| panic!("no schema {name}"));
    validator.iter_errors(document).map(|error| format!("{}: {error}", error.instance_path())).collect()
}

/// Asserts that `document` is valid under the schema `name`.
#[track_caller]
pub(crate) fn demand(name: &str, document: &Value, what: &dyn std::fmt::Display) {
    let errors = errors(name, document);
    assert!(errors.is_empty(), "{what} breaks the schema {name}: {errors:#?}");
}

//! Generates `schemas/*.schema.json` (JSON Schema 2020-12) and `schemas/openapi.json` (OpenAPI 3.1) from the types
//! of `proctor-core`, and checks that the files are up to date. Each schema is validated as well. Also generates
//! `docs/spec-reference.md` and `docs/man/verification.yaml.5` from the schema of the spec.

mod manual;
mod reference;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use proctor_core::api::openapi;
use proctor_core::event::RunEvent;
use proctor_core::evidence::{SkillEvidence, ToolchainEvidence};
use proctor_core::exec::ExecRecord;
use proctor_core::gate::GateAnswer;
use proctor_core::plan::Plan;
use proctor_core::status::LastRun;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use crate::files;

/// The JSON Schema draft of every schema.
const DRAFT: &str = "https://json-schema.org/draft/2020-12/schema";

/// A document that has a schema.
struct Document {
    /// The schema's file is `schemas/<name>.schema.json`.
    name: &'static str,
    title: &'static str,
    schema: fn() -> Value,
}

const DOCUMENTS: [Document; 13] = [
    Document { name: "spec", title: "spec/verification.yaml", schema: proctor_core::spec::schema },
    Document { name: "operator", title: "proctord.toml", schema: proctor_core::spec::operator_schema },
    Document { name: "plan", title: "A plan: spec × profile, every default applied", schema: written::<Plan> },
    Document { name: "skill-evidence", title: "changes/<id>/verify/<skill>.json", schema: written::<SkillEvidence> },
    Document {
        name: "toolchain-evidence",
        title: "changes/<id>/verify/_toolchain.json",
        schema: written::<ToolchainEvidence>,
    },
    Document {
        name: "status-last-run",
        title: "`verification.last_run` of changes/<id>/05-status.json",
        schema: written::<LastRun>,
    },
    Document { name: "status", title: "changes/<id>/05-status.json", schema: status },
    Document { name: "event", title: "One line of `proctor run --format jsonl`", schema: written::<RunEvent> },
    Document { name: "exec", title: "Output of `proctor exec --format json`", schema: written::<ExecRecord> },
    Document {
        name: "comparison",
        title: "Output of `proctor compare --format json`",
        schema: written::<proctor_core::compare::Comparison>,
    },
    Document {
        name: "sql-judgement",
        title: "Output of `proctor sql verify --format json`, and answer of `POST /v1/sql/verify`",
        schema: written::<proctor_core::sql::Judgement>,
    },
    Document {
        name: "sql-request",
        title: "Body of `POST /v1/sql/verify`",
        schema: accepted::<proctor_core::sql::Request>,
    },
    Document { name: "gate", title: "Output of `proctor gate --format json`", schema: written::<GateAnswer> },
];

/// The description of the daemon's HTTP API.
const OPENAPI: &str = "schemas/openapi.json";

/// The manual page about error codes.
const ERRORS: &str = "docs/errors.md";

/// Writes all generated files.
///
/// # Errors
/// A schema is not valid, or a file cannot be written.
pub(crate) fn write(root: &Path) -> Result<ExitCode> {
    for (name, text) in generated()? {
        let path = root.join(&name);
        if std::fs::read_to_string(&path).is_ok_and(|old| old == text) {
            continue;
        }
        files::write(&path, &text)?;
        println!("wrote {name}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns each generated file, relative to the repository, with its contents.
fn generated() -> Result<Vec<(String, String)>> {
    let schemas = DOCUMENTS.iter().map(|document| Ok((document.path(), document.text()?)));
    let spec = proctor_core::spec::schema();
    let others = [
        Ok((OPENAPI.to_owned(), api()?)),
        Ok((reference::PAGE.to_owned(), reference::page(&spec))),
        Ok((manual::PAGE.to_owned(), manual::page(&spec))),
        Ok((ERRORS.to_owned(), proctor_core::code::page())),
    ];
    schemas.chain(others).collect()
}

/// Returns the description of the API, after validating each schema in it.
fn api() -> Result<String> {
    let document = openapi::document();
    let schemas = document.pointer("/components/schemas").and_then(Value::as_object);
    for (name, schema) in schemas.context("it has schemas")? {
        if let Err(error) = jsonschema::draft202012::meta::validate(schema) {
            bail!("the schema `{name}` of {OPENAPI}, at `{}`: {error}", error.instance_path());
        }
    }
    Ok(format!("{document:#}\n"))
}

/// Compares every generated file with the file on disk, and reports schema files without a type.
///
/// # Errors
/// A schema is not valid, or the directory cannot be listed.
pub(crate) fn check(root: &Path) -> Result<ExitCode> {
    let mut complaints = Vec::new();
    let generated = generated()?;
    for (name, text) in &generated {
        match std::fs::read_to_string(root.join(name)) {
            Ok(found) if found == *text => {}
            Ok(_) => complaints.push(format!("{name} differs from the types of `proctor-core`")),
            Err(error) => complaints.push(format!("{name} cannot be read: {error}")),
        }
    }
    for path in files::all(&root.join("schemas"))? {
        let name = path.to_string_lossy();
        let stem = name.strip_suffix(".schema.json");
        if stem.is_some_and(|stem| DOCUMENTS.iter().all(|document| document.name != stem)) {
            complaints.push(format!("schemas/{name} belongs to no document"));
        }
    }
    for complaint in &complaints {
        eprintln!("error: {complaint}");
    }
    if complaints.is_empty() {
        println!("schemas: {} files match the types", generated.len());
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("hint: run `cargo xtask schemas` and read the difference");
    Ok(ExitCode::FAILURE)
}

impl Document {
    /// Returns the schema's file, relative to the repository.
    fn path(&self) -> String {
        format!("schemas/{}.schema.json", self.name)
    }

    fn id(&self) -> String {
        id_of(self.name)
    }

    /// Returns the schema with its id and title, with sorted keys.
    fn value(&self) -> Result<Value> {
        let mut value = (self.schema)();
        let members = value.as_object_mut().context("a schema is an object")?;
        members.insert("$id".to_owned(), json!(self.id()));
        members.insert("title".to_owned(), json!(self.title));
        value.sort_all_objects();
        validate(&value).with_context(|| format!("the schema `{}`", self.name))?;
        Ok(value)
    }

    fn text(&self) -> Result<String> {
        Ok(format!("{:#}\n", self.value()?))
    }
}

fn id_of(name: &str) -> String {
    format!("{}/schemas/{name}.schema.json", env!("CARGO_PKG_REPOSITORY"))
}

/// Returns the schema of `T` as we write it: members that are always present are required.
fn written<T: JsonSchema>() -> Value {
    SchemaSettings::draft2020_12().for_serialize().into_generator().into_root_schema_for::<T>().to_value()
}

/// Returns the schema of a document that others send: members with a default are optional.
fn accepted<T: JsonSchema>() -> Value {
    SchemaSettings::draft2020_12().for_deserialize().into_generator().into_root_schema_for::<T>().to_value()
}

/// Returns the schema of the status file. The file belongs to others; only one object in it is ours.
fn status() -> Value {
    let mut ours = written::<LastRun>();
    let members = ours.as_object_mut();
    let definitions = members.and_then(|members| {
        members.remove("$schema");
        members.remove("$defs")
    });
    json!({
        "$schema": DRAFT,
        "description": "Others own this file. What is ours in it is `verification.last_run`; \
                        every other field may hold anything and stays as it was.",
        "type": "object",
        "properties": {
            "verification": { "type": "object", "properties": { "last_run": ours } }
        },
        "$defs": definitions.unwrap_or_else(|| json!({}))
    })
}

/// Checks that `schema` is a valid schema of draft 2020-12 and can be compiled.
fn validate(schema: &Value) -> Result<()> {
    if schema.get("$schema").and_then(Value::as_str) != Some(DRAFT) {
        bail!("it does not say that it is one of draft 2020-12");
    }
    if let Err(error) = jsonschema::draft202012::meta::validate(schema) {
        bail!("at `{}`: {error}", error.instance_path());
    }
    if let Err(error) = jsonschema::draft202012::new(schema) {
        bail!("it cannot be compiled: {error}");
    }
    Ok(())
}

#[cfg(test)]
mod tests;

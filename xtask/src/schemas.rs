//! Generates `schemas/*.schema.json` (JSON Schema 2020-12) and `schemas/openapi.json` (OpenAPI 3.1) from the types
//! of `proctor-core`, and checks that the files are up to date. Each schema is validated as well. Also generates
//! `docs/spec-reference.md` and `docs/man/verification.yaml.5` from the schema of the spec.

mod spec_man_page;
mod spec_reference;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use proctor_core::api::openapi;
use proctor_core::decision::gate::GateAnswer;
use proctor_core::model::event::RunEvent;
use proctor_core::model::exec::ExecRecord;
use proctor_core::model::plan::Plan;
use proctor_core::record::evidence::{SkillEvidence, ToolchainEvidence};
use proctor_core::record::status::LastRun;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use crate::files;

/// The JSON Schema draft of every schema.
const DRAFT: &str = "https://json-schema.org/draft/2020-12/schema";

/// A document that has a schema.
struct SchemaDocument {
    /// The schema's file is `schemas/<name>.schema.json`.
    name: &'static str,
    title: &'static str,
    schema: fn() -> Value,
}

const DOCUMENTS: [SchemaDocument; 15] = [
    SchemaDocument { name: "spec", title: "spec/verification.yaml", schema: proctor_core::spec::schema },
    SchemaDocument { name: "operator", title: "proctord.toml", schema: proctor_core::spec::operator_schema },
    SchemaDocument {
        name: "plan",
        title: "A plan: spec × profile, every default applied",
        schema: output_schema::<Plan>,
    },
    SchemaDocument {
        name: "skill-evidence",
        title: "changes/<id>/verify/<skill>.json",
        schema: output_schema::<SkillEvidence>,
    },
    SchemaDocument {
        name: "toolchain-evidence",
        title: "changes/<id>/verify/_toolchain.json",
        schema: output_schema::<ToolchainEvidence>,
    },
    SchemaDocument {
        name: "status-last-run",
        title: "`verification.last_run` of changes/<id>/05-status.json",
        schema: output_schema::<LastRun>,
    },
    SchemaDocument { name: "status", title: "changes/<id>/05-status.json", schema: status_schema },
    SchemaDocument {
        name: "event",
        title: "One line of `proctor run --format jsonl`",
        schema: output_schema::<RunEvent>,
    },
    SchemaDocument {
        name: "exec",
        title: "Output of `proctor exec --format json`",
        schema: output_schema::<ExecRecord>,
    },
    SchemaDocument {
        name: "comparison",
        title: "Output of `proctor compare --format json`",
        schema: output_schema::<proctor_core::decision::compare::Comparison>,
    },
    SchemaDocument {
        name: "sql-judgement",
        title: "Output of `proctor sql verify --format json`, and answer of `POST /v1/sql/verify`",
        schema: output_schema::<proctor_core::sql::Judgement>,
    },
    SchemaDocument {
        name: "sql-request",
        title: "Body of `POST /v1/sql/verify`",
        schema: input_schema::<proctor_core::sql::SqlRequest>,
    },
    SchemaDocument {
        name: "sql-ask-answer",
        title: "Output of `proctor sql ask --format json`, and answer of `POST /v1/sql/ask`",
        schema: output_schema::<proctor_core::sql::AskAnswer>,
    },
    SchemaDocument {
        name: "sql-ask-request",
        title: "Body of `POST /v1/sql/ask`",
        schema: input_schema::<proctor_core::sql::AskRequest>,
    },
    SchemaDocument {
        name: "gate",
        title: "Output of `proctor gate --format json`",
        schema: output_schema::<GateAnswer>,
    },
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
    for (name, text) in generated_files()? {
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
fn generated_files() -> Result<Vec<(String, String)>> {
    let schemas = DOCUMENTS.iter().map(|document| Ok((document.path(), document.text()?)));
    let spec = proctor_core::spec::schema();
    let others = [
        Ok((OPENAPI.to_owned(), openapi_text()?)),
        Ok((spec_reference::PAGE.to_owned(), spec_reference::page(&spec))),
        Ok((spec_man_page::PAGE.to_owned(), spec_man_page::page(&spec))),
        Ok((ERRORS.to_owned(), proctor_core::code::render_manual_page())),
    ];
    schemas.chain(others).collect()
}

/// Returns the description of the API, after validating each schema in it.
fn openapi_text() -> Result<String> {
    let document = openapi::document();
    let schemas = document.pointer("/components/schemas").and_then(Value::as_object);
    for (name, schema) in schemas.context("the API description has no schemas")? {
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
    let mut problems = Vec::new();
    let generated = generated_files()?;
    for (name, text) in &generated {
        match std::fs::read_to_string(root.join(name)) {
            Ok(found) if found == *text => {}
            Ok(_) => problems.push(format!("{name} differs from the types of `proctor-core`")),
            Err(error) => problems.push(format!("{name} cannot be read: {error}")),
        }
    }
    for path in files::list_files(&root.join("schemas"))? {
        let name = path.to_string_lossy();
        let stem = name.strip_suffix(".schema.json");
        if stem.is_some_and(|stem| DOCUMENTS.iter().all(|document| document.name != stem)) {
            problems.push(format!("schemas/{name} has no document in xtask/src/schemas.rs"));
        }
    }
    for complaint in &problems {
        eprintln!("error: {complaint}");
    }
    if problems.is_empty() {
        println!("schemas: {} files match the types", generated.len());
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("hint: run `cargo xtask schemas` and review the diff");
    Ok(ExitCode::FAILURE)
}

impl SchemaDocument {
    /// Returns the schema's file, relative to the repository.
    fn path(&self) -> String {
        format!("schemas/{}.schema.json", self.name)
    }

    fn id(&self) -> String {
        schema_id(self.name)
    }

    /// Returns the schema with its id and title, with sorted keys.
    fn value(&self) -> Result<Value> {
        let mut value = (self.schema)();
        let members = value.as_object_mut().context("the schema is not an object")?;
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

fn schema_id(name: &str) -> String {
    format!("{}/schemas/{name}.schema.json", env!("CARGO_PKG_REPOSITORY"))
}

/// Returns the schema of a document that Proctor writes: members that are always present are required.
fn output_schema<T: JsonSchema>() -> Value {
    SchemaSettings::draft2020_12().for_serialize().into_generator().into_root_schema_for::<T>().to_value()
}

/// Returns the schema of a document that a client sends: members with a default are optional.
fn input_schema<T: JsonSchema>() -> Value {
    SchemaSettings::draft2020_12().for_deserialize().into_generator().into_root_schema_for::<T>().to_value()
}

/// Returns the schema of the status file. Other tools own the file; Proctor writes only one object in it.
fn status_schema() -> Value {
    let mut ours = output_schema::<LastRun>();
    let members = ours.as_object_mut();
    let definitions = members.and_then(|members| {
        members.remove("$schema");
        members.remove("$defs")
    });
    json!({
        "$schema": DRAFT,
        "description": "Other tools own this file. Proctor writes only `verification.last_run`, \
                        and keeps all other fields, whatever they contain.",
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
        bail!("`$schema` is not `{DRAFT}`");
    }
    if let Err(error) = jsonschema::draft202012::meta::validate(schema) {
        bail!("at `{}`: {error}", error.instance_path());
    }
    if let Err(error) = jsonschema::draft202012::new(schema) {
        bail!("the schema cannot be compiled: {error}");
    }
    Ok(())
}

#[cfg(test)]
mod tests;

//! Returns the JSON Schemas (2020-12) of Proctor's documents: the files of `schemas/` as of build time, and generated
//! schemas for documents that only this program writes.

use clap::ValueEnum;
use proctor_core::api::{RunPage, RunView};
use schemars::{JsonSchema, schema_for};

use crate::commands::daemon::DaemonRecord;
use crate::commands::doctor::DoctorRecord;
use crate::commands::gc::GcRecord;
use crate::commands::import::ImportRecord;
use crate::commands::run::RangeRecord;
use crate::diagnostics::DiagnosticRecord;
use crate::error::ErrorRecord;
use proctor_core::record::run_record::RunRecord;

/// A document that has a JSON Schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SchemaName {
    /// `spec/verification.yaml`.
    Spec,
    /// `proctord.toml`, as JSON.
    Operator,
    /// `proctor plan --format json`.
    Plan,
    /// One line of `proctor run --format jsonl`.
    Event,
    /// `proctor run --format json`.
    Run,
    /// `proctor run --rev A..B --format json`.
    Range,
    /// `proctor exec --format json`.
    Exec,
    /// `proctor gate --format json`.
    Gate,
    /// `proctor sql verify --format json`.
    SqlJudgement,
    /// `POST /v1/sql/verify`.
    SqlRequest,
    /// `verify/<skill>.json`.
    SkillEvidence,
    /// `verify/_toolchain.json`.
    ToolchainEvidence,
    /// `verification.last_run` of `05-status.json`.
    StatusLastRun,
    /// `05-status.json`, as far as we know it.
    Status,
    /// `proctor compare --format json`.
    Comparison,
    /// `proctor validate --format json`.
    Diagnostics,
    /// `proctor import --format json`.
    Import,
    /// `proctor doctor --format json`.
    Doctor,
    /// `proctor gc --format json`.
    Gc,
    /// `proctor status RUN --format json`.
    RunView,
    /// `proctor status --format json`.
    RunList,
    /// `proctor daemon status --format json`.
    Daemon,
    /// What `--format json` prints where there is no result.
    Error,
}

impl SchemaName {
    /// Returns the name on the command line.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Spec => "spec",
            Self::Operator => "operator",
            Self::Plan => "plan",
            Self::Event => "event",
            Self::Run => "run",
            Self::Range => "range",
            Self::Exec => "exec",
            Self::Gate => "gate",
            Self::SqlJudgement => "sql-judgement",
            Self::SqlRequest => "sql-request",
            Self::SkillEvidence => "skill-evidence",
            Self::ToolchainEvidence => "toolchain-evidence",
            Self::StatusLastRun => "status-last-run",
            Self::Status => "status",
            Self::Comparison => "comparison",
            Self::Diagnostics => "diagnostics",
            Self::Import => "import",
            Self::Doctor => "doctor",
            Self::Gc => "gc",
            Self::RunView => "run-view",
            Self::RunList => "run-list",
            Self::Daemon => "daemon",
            Self::Error => "error",
        }
    }

    /// Returns a short description of the document.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::Spec => "spec/verification.yaml, for editors too",
            Self::Operator => "proctord.toml, the operator's config",
            Self::Plan => "what `plan --format json` prints",
            Self::Event => "one line of `run --format jsonl`",
            Self::Run => "what `run --format json` prints",
            Self::Range => "what `run --rev A..B --format json` prints",
            Self::Exec => "what `exec --format json` prints",
            Self::Gate => "what `gate --format json` prints",
            Self::SqlJudgement => "what `sql verify --format json` prints",
            Self::SqlRequest => "what `POST /v1/sql/verify` takes",
            Self::SkillEvidence => "verify/<skill>.json",
            Self::ToolchainEvidence => "verify/_toolchain.json",
            Self::StatusLastRun => "`verification.last_run` in 05-status.json",
            Self::Status => "05-status.json, as far as we know it",
            Self::Comparison => "what `compare --format json` prints",
            Self::Diagnostics => "what `validate --format json` prints",
            Self::Import => "what `import --format json` prints",
            Self::Doctor => "what `doctor --format json` prints",
            Self::Gc => "what `gc --format json` prints",
            Self::RunView => "what `status RUN --format json` prints",
            Self::RunList => "what `status --format json` prints",
            Self::Daemon => "what `daemon status --format json` prints",
            Self::Error => "what `--format json` prints where there is no result",
        }
    }
}

/// Returns the schema of a document, as text that ends with a newline.
///
/// # Errors
/// A generated schema cannot be serialised, which would be a bug in proctor.
pub(crate) fn schema_text(name: SchemaName) -> Result<String, serde_json::Error> {
    Ok(match name {
        SchemaName::Spec => include_str!("../../schemas/spec.schema.json").to_owned(),
        SchemaName::Operator => include_str!("../../schemas/operator.schema.json").to_owned(),
        SchemaName::Plan => include_str!("../../schemas/plan.schema.json").to_owned(),
        SchemaName::Event => include_str!("../../schemas/event.schema.json").to_owned(),
        SchemaName::Exec => include_str!("../../schemas/exec.schema.json").to_owned(),
        SchemaName::Gate => include_str!("../../schemas/gate.schema.json").to_owned(),
        SchemaName::SqlJudgement => include_str!("../../schemas/sql-judgement.schema.json").to_owned(),
        SchemaName::SqlRequest => include_str!("../../schemas/sql-request.schema.json").to_owned(),
        SchemaName::SkillEvidence => include_str!("../../schemas/skill-evidence.schema.json").to_owned(),
        SchemaName::ToolchainEvidence => include_str!("../../schemas/toolchain-evidence.schema.json").to_owned(),
        SchemaName::StatusLastRun => include_str!("../../schemas/status-last-run.schema.json").to_owned(),
        SchemaName::Status => include_str!("../../schemas/status.schema.json").to_owned(),
        SchemaName::Comparison => include_str!("../../schemas/comparison.schema.json").to_owned(),
        SchemaName::Run => generate_schema::<RunRecord>()?,
        SchemaName::Range => generate_schema::<RangeRecord>()?,
        SchemaName::Diagnostics => generate_schema::<Vec<DiagnosticRecord>>()?,
        SchemaName::Import => generate_schema::<ImportRecord>()?,
        SchemaName::Doctor => generate_schema::<DoctorRecord>()?,
        SchemaName::Gc => generate_schema::<GcRecord>()?,
        SchemaName::RunView => generate_schema::<RunView>()?,
        SchemaName::RunList => generate_schema::<RunPage>()?,
        SchemaName::Daemon => generate_schema::<DaemonRecord>()?,
        SchemaName::Error => generate_schema::<ErrorRecord>()?,
    })
}

fn generate_schema<T: JsonSchema>() -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string_pretty(&schema_for!(T))? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_schema_is_json_with_draft_and_name() {
        for name in SchemaName::value_variants() {
            let schema: serde_json::Value = serde_json::from_str(&schema_text(*name).expect("text")).expect("json");
            assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema", "{name:?}");
            assert_eq!(name.to_possible_value().expect("shown").get_name(), name.as_str());
        }
    }
}

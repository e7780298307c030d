//! Returns the JSON Schemas (2020-12) of Proctor's documents: the files of `schemas/` as of build time, and generated
//! schemas for documents that only this program writes.

use proctor_core::api::{RunPage, RunView};
use schemars::{JsonSchema, schema_for};

use crate::args::SchemaName;
use crate::commands::cache::CacheRecord;
use crate::commands::daemon::DaemonRecord;
use crate::commands::doctor::DoctorRecord;
use crate::commands::du::DiskUsageRecord;
use crate::commands::gc::GcRecord;
use crate::commands::import::ImportRecord;
use crate::commands::run::RangeRecord;
use crate::commands::runs::RecordedRun;
use crate::diagnostics::DiagnosticRecord;
use crate::error::ErrorRecord;
use proctor_core::record::run_record::RunRecord;

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
        SchemaName::SqlAskAnswer => include_str!("../../schemas/sql-ask-answer.schema.json").to_owned(),
        SchemaName::SqlAskRequest => include_str!("../../schemas/sql-ask-request.schema.json").to_owned(),
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
        SchemaName::DiskUsage => generate_schema::<DiskUsageRecord>()?,
        SchemaName::Cache => generate_schema::<CacheRecord>()?,
        SchemaName::RecordedRuns => generate_schema::<Vec<RecordedRun>>()?,
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
    use clap::ValueEnum as _;

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

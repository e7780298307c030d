//! The spec as a person wrote it, and the way from its bytes to a plan.
//!
//! [`read`] takes bytes to a [`Spec`] and says everything that is wrong with them at once;
//! [`resolve()`] takes a spec and a profile to a [`crate::plan::Plan`]. Files are not opened here.

pub mod built_in;
mod command;
mod decode;
mod diagnostic;
mod layer;
mod operator;
mod provenance;
pub(crate) mod report;
mod resolve;
mod rules;
mod schema;
mod size;
mod span;
mod written;
pub(crate) mod yaml;

pub use command::{BadCommand, Command};
pub use diagnostic::{Code, Diagnostic, Label, Severity, nearest, quoted};
pub use layer::Adhoc;
pub use operator::{
    CacheRetention, DaemonSettings, LimitSettings, LogFormat, LogSettings, Operator, OperatorDefaults, Retention,
    SecretHeaders, TelemetrySettings, TreeSettings, UserRef,
};
pub use provenance::{Origin, Provenance, Sourced};
pub use resolve::{Resolved, adhoc_step, resolve};
pub use schema::{operator_schema, schema};
pub use size::{BadBound, BadSize, Size};
pub use span::{Span, Spanned};
pub use written::{
    Defaults, Expect, Profile, Reports, Skill, Spec, Step, StepLimits, Table, Text, ToolCheck, Toolchain,
};
pub use yaml::MAX_BYTES;

/// Where a repository keeps its spec, relative to its root.
pub const PATH: &str = "spec/verification.yaml";

/// A spec that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// What is written.
    pub spec: Spec,
    /// What probably is not meant, sorted by where it stands.
    pub warnings: Vec<Diagnostic>,
}

/// Reads a spec.
///
/// # Errors
/// Everything that is wrong with it, warnings too, sorted by where it stands.
pub fn read(bytes: &[u8]) -> Result<Reading, Vec<Diagnostic>> {
    let mut report = report::Report::default();
    let spec = decode::read(bytes, &mut report);
    let diagnostics = report.finish();
    match spec {
        Some(spec) if diagnostics.iter().all(|d| d.severity == Severity::Warning) => {
            Ok(Reading { spec, warnings: diagnostics })
        }
        _ => Err(diagnostics),
    }
}

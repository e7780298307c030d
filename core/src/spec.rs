//! Parses specs and resolves them to plans.
//!
//! [`read`] parses the bytes of a spec to a [`Spec`] and reports all problems at once. [`resolve()`] turns a spec and a
//! profile into a [`crate::plan::Plan`]. This module opens no files.

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

/// Path of the spec, relative to the root of the repository.
pub const PATH: &str = "spec/verification.yaml";

/// A spec without errors, and its warnings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// The parsed spec.
    pub spec: Spec,
    /// Warnings, sorted by position.
    pub warnings: Vec<Diagnostic>,
}

/// Parses a spec.
///
/// # Errors
/// Returns all errors and warnings, sorted by position, if the spec has at least one error.
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

//! Parses specs and resolves them to plans.
//!
//! [`parse`] parses the bytes of a spec to a [`Spec`] and reports all problems at once. [`resolve()`] turns a spec and
//! a profile into a [`crate::model::plan::Plan`]. This module opens no files.

pub mod built_in;
mod caches;
mod command;
mod decode;
mod diagnostic;
pub(crate) mod diagnostic_collector;
mod include;
mod needed_paths;
mod operator_config;
mod provenance;
mod resolve;
mod rules;
mod schema;
mod setting_layers;
mod size;
mod span;
mod spanned_map;
pub(crate) mod spec_text;
mod spec_types;
pub(crate) mod yaml;
mod yaml_agreement;

pub use crate::spec::spec_text::SpecText;
pub use crate::text::escape::quoted;
pub use caches::{CacheMap, WrittenCache};
pub use command::{CommandSyntaxError, SpecCommand};
pub use diagnostic::{Code, Diagnostic, Label, Severity, closest_match};
pub use include::{
    IMPLICIT_PROFILE, IncludeError, IncludeProblems, SpecSource, digest_sources, parse_with_includes, read_includes,
    select_file,
};
pub use needed_paths::{NeededPathMap, Prepare, WrittenPath};
pub use operator_config::{
    AskSettings, AuditRetention, CacheRetention, CommandSettings, DaemonSettings, Endpoint, ExecutorMode, KeySource,
    LogFormat, LogSettings, OperatorConfig, OperatorDefaults, ProviderApi, ProviderSettings, RemoteCacheSettings,
    RemoteExecutorSettings, RemoteServer, Retention, ReuseSettings, SecretHeaders, SqlSettings, TelemetrySettings,
    TidbZeroSettings, TreeSettings, UserRef, VerifierSettings,
};
pub use provenance::{Provenance, SourcedValue, ValueOrigin};
pub use resolve::{ResolvedPlan, adhoc_step, resolve};
pub use schema::{operator_schema, schema};
pub use setting_layers::AdhocCommand;
pub use size::{ByteSize, LimitParseError, SizeParseError};
pub use span::{Span, Spanned};
pub use spec_types::{
    Defaults, Expect, Profile, Reports, Skill, SpannedMap, Spec, Step, StepLimits, ToolCheck, Toolchain,
};
pub use yaml::MAX_BYTES;

/// Path of the spec, relative to the root of the repository.
pub const PATH: &str = "spec/verification.yaml";

/// A spec without errors, and its warnings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedSpec {
    /// The parsed spec.
    pub spec: Spec,
    /// Warnings, sorted by position.
    pub warnings: Vec<Diagnostic>,
}

/// Parses a spec.
///
/// # Errors
/// Returns all errors and warnings, sorted by position, if the spec has at least one error.
pub fn parse(bytes: &[u8]) -> Result<ParsedSpec, Vec<Diagnostic>> {
    parse_with_includes(bytes, &[])
}

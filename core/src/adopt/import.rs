//! Converts the configuration of another hook runner to a spec, and lists everything that has no equivalent.
//!
//! Each hook of the configuration is in exactly one of two lists: [`ImportResult::imported`], with the step that makes
//! the same check, or [`ImportResult::skipped`], with the reason. This module opens no files.

mod builtin_checks;
mod check_mode;
mod config_map;
mod file_selection;
mod import_draft;
pub(crate) mod import_result;
mod known_hooks;
mod lefthook;
mod merge;
mod path_pattern;
mod pre_commit;
mod pygrep_hooks;
mod rejection;
mod shell_words;
mod spec_yaml;

pub(crate) use crate::adopt::import::check_mode::to_fix_mode;
pub use crate::adopt::import::import_result::{ImportedHook, Setting, SkippedHook, Source, Tool};
pub use crate::adopt::import::merge::{MergeError, MergedSpec, RepeatedSkill, merge};
pub(crate) use crate::adopt::import::shell_words::quote_all;
pub(crate) use crate::adopt::import::spec_yaml::files_field;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::names::ProfileName;
use crate::model::plan::FileRules;
use crate::spec::diagnostic_collector::DiagnosticCollector;
use crate::spec::yaml::{self, YamlFileKind};
use crate::spec::{self, Diagnostic};
use import_draft::ImportDraft;
use pre_commit::ToolEnvironment;

/// The result of an import.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImportResult {
    /// The hook runner whose configuration was imported.
    pub source: Source,
    /// The text of the spec; `null` if no hook was imported.
    pub spec: Option<String>,
    /// The imported hooks, in their original order.
    pub imported: Vec<ImportedHook>,
    /// The hooks that were not imported, in their original order.
    pub skipped: Vec<SkippedHook>,
    /// Settings of the configuration outside of all hooks.
    pub settings: Vec<Setting>,
    /// The tools that the spec needs.
    pub tools: Vec<Tool>,
}

/// Parameters of an import.
#[derive(Debug, Clone)]
pub struct ImportRequest<'a> {
    /// The hook runner whose configuration is imported.
    pub source: Source,
    /// The name of the configuration file, for a comment in the spec.
    pub file: &'a str,
    /// The profile that will include the imported hooks.
    pub profile: &'a ProfileName,
}

/// The reason why an import failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImportError {
    /// The configuration is invalid; holds its problems.
    InvalidConfig(Vec<Diagnostic>),
    /// The generated text is not a valid spec, for example because it is too large.
    InvalidSpec {
        /// The generated text.
        spec: String,
        /// The problems of the text.
        diagnostics: Vec<Diagnostic>,
    },
}

/// Converts a configuration to a spec.
///
/// # Errors
/// The configuration is invalid, or the generated text is not a valid spec.
pub fn import(bytes: &[u8], request: &ImportRequest<'_>) -> Result<ImportResult, ImportError> {
    let mut report = DiagnosticCollector::default();
    let root = yaml::parse_file(YamlFileKind::Foreign, bytes, &mut report);
    let read = root.as_ref().and_then(|root| match request.source {
        Source::PreCommit => pre_commit::read(bytes, root, ToolEnvironment::Machine, &mut report),
        Source::Lefthook => lefthook::read(root, &mut report),
    });
    let diagnostics = report.finish();
    let Some((items, settings)) = read.filter(|_| diagnostics.is_empty()) else {
        return Err(ImportError::InvalidConfig(diagnostics));
    };
    let draft = ImportDraft::from_conversions(items);
    let spec = draft.render(request.file, request.profile.as_str());
    if let Some(text) = &spec {
        validate_generated_spec(text)?;
    }
    let ImportDraft { imported, skipped, tools, .. } = draft;
    let tools = tools.into_values().flatten().collect();
    Ok(ImportResult { source: request.source, spec, imported, skipped, settings, tools })
}

/// A check that a hook of pre-commit makes in the environment of its project.
pub(crate) struct HookCheck {
    /// The words of the command.
    pub cmd: Vec<String>,
    /// The files that it checks; `None` if it always runs.
    pub files: Option<FileRules>,
}

/// Returns the check of the first hook of pre-commit whose command begins with `command`.
pub(crate) fn hook_check(config: &[u8], command: &[&str]) -> Option<HookCheck> {
    let mut report = DiagnosticCollector::default();
    let root = yaml::parse_file(YamlFileKind::Foreign, config, &mut report)?;
    let (hooks, _) = pre_commit::read(config, &root, ToolEnvironment::Project, &mut report)?;
    let mut checks = hooks.into_iter().filter_map(|hook| hook.result.ok());
    let begins =
        |cmd: &[String]| cmd.len() >= command.len() && cmd.iter().zip(command).all(|(word, wanted)| word == wanted);
    let check = checks.find(|check| begins(&check.cmd))?;
    Some(HookCheck { cmd: check.cmd, files: check.files })
}

/// Returns the files of the first hook of pre-commit whose check begins with `command`, if it excludes any.
pub(crate) fn excluding_hook(config: &[u8], command: &[&str]) -> Option<FileRules> {
    hook_check(config, command)?.files.filter(|files| !files.exclude.is_empty())
}

/// Checks that a generated spec parses without errors and without warnings.
fn validate_generated_spec(text: &str) -> Result<(), ImportError> {
    let diagnostics = match spec::parse(text.as_bytes()) {
        Ok(reading) => reading.warnings,
        Err(diagnostics) => diagnostics,
    };
    if diagnostics.is_empty() {
        return Ok(());
    }
    Err(ImportError::InvalidSpec { spec: text.to_owned(), diagnostics })
}

/// Guesses the hook runner from the contents of a configuration; `None` if it looks like neither.
///
/// # Errors
/// The contents are not valid YAML.
pub fn detect(bytes: &[u8]) -> Result<Option<Source>, Vec<Diagnostic>> {
    let mut report = DiagnosticCollector::default();
    let root = yaml::parse_file(YamlFileKind::Foreign, bytes, &mut report);
    let map = root.as_ref().and_then(config_map::ConfigMap::from_node);
    let source = map.and_then(|map| match map.get("repos") {
        Some(_) => Some(Source::PreCommit),
        None if map.iter().any(|(key, _)| lefthook::is_git_hook(key)) => Some(Source::Lefthook),
        None => None,
    });
    let diagnostics = report.finish();
    if diagnostics.is_empty() { Ok(source) } else { Err(diagnostics) }
}

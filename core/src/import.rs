//! From the configuration of another hook runner to a spec, and a list of what could not be carried over.
//!
//! Each hook of the configuration is in exactly one of two lists: [`Imported::carried`], with the step that
//! makes the same check, or [`Imported::left`], with the reason. Files are not opened here.

mod builtin;
mod check_form;
mod config;
mod draft;
mod known;
mod lefthook;
mod pattern;
mod pre_commit;
mod selection;
mod shell;
mod types;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names::ProfileName;
use crate::spec::report::Report;
use crate::spec::yaml::{self, Kind};
use crate::spec::{self, Code, Diagnostic};
use draft::Draft;

/// Whose configuration is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// `.pre-commit-config.yaml`.
    PreCommit,
    /// `lefthook.yml`.
    Lefthook,
}

impl Source {
    /// The names that the configuration may have in a repository, the usual one first.
    pub fn files(self) -> &'static [&'static str] {
        match self {
            Self::PreCommit => &[".pre-commit-config.yaml", ".pre-commit-config.yml"],
            Self::Lefthook => &["lefthook.yml", "lefthook.yaml", ".lefthook.yml", ".lefthook.yaml"],
        }
    }

    /// What people call it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PreCommit => "pre-commit",
            Self::Lefthook => "lefthook",
        }
    }
}

/// A tool that the carried checks need, and how a run asks whether it is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tool {
    /// The program.
    pub name: String,
    /// The command of its toolchain check.
    pub cmd: Vec<String>,
    /// The range that its version must be in; `null` where any will do.
    pub version: Option<String>,
}

impl Tool {
    /// A tool that tells its version, or at least that it is there.
    fn asked(name: &str, version: &[&str], range: Option<String>) -> Self {
        let cmd = std::iter::once(name).chain(version.iter().copied()).map(str::to_owned).collect();
        Self { name: name.to_owned(), cmd, version: range }
    }

    fn is_only_found(&self) -> bool {
        self.cmd.first().is_some_and(|program| *program != self.name)
    }

    /// A tool of which is only known that it must be there.
    fn found(name: &str) -> Self {
        let look = format!("command -v {}", shell::quote(name));
        Self { name: name.to_owned(), cmd: vec!["sh".to_owned(), "-c".to_owned(), look], version: None }
    }
}

/// A hook that is carried over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Carried {
    /// What the configuration calls it.
    pub name: String,
    /// The line that it begins at.
    pub line: u32,
    /// The skill that it became.
    pub skill: String,
    /// The step of that skill.
    pub step: String,
    /// The tools that it needs.
    pub tools: Vec<String>,
    /// What is not as it was, a phrase each.
    pub notes: Vec<String>,
}

/// A hook that is not carried over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Left {
    /// What the configuration calls it.
    pub name: String,
    /// The line that it begins at.
    pub line: u32,
    /// Why.
    pub reason: String,
}

/// A setting of the configuration that belongs to no hook and means nothing in a spec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Setting {
    /// Its key.
    pub key: String,
    /// What stands for it, or why nothing does.
    pub note: String,
}

/// What a configuration comes to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Imported {
    /// Whose configuration it was.
    pub source: Source,
    /// The spec; `null` where no hook is carried over.
    pub spec: Option<String>,
    /// The hooks that are carried over, in their order.
    pub carried: Vec<Carried>,
    /// The hooks that are not, in their order.
    pub left: Vec<Left>,
    /// Settings that belong to no hook.
    pub settings: Vec<Setting>,
    /// The tools that the spec needs.
    pub tools: Vec<Tool>,
}

/// What is asked for.
#[derive(Debug, Clone)]
pub struct ImportRequest<'a> {
    /// Whose configuration it is.
    pub source: Source,
    /// What its file is called, for comments.
    pub file: &'a str,
    /// The profile that the carried hooks become.
    pub profile: &'a ProfileName,
}

/// Why there is no spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImportError {
    /// The configuration cannot be read, and why.
    Invalid(Vec<Diagnostic>),
    /// The spec that would come of it is none, such as one that is too large; its text and what is wrong with it.
    Unusable {
        /// The text.
        spec: String,
        /// What is wrong with it.
        diagnostics: Vec<Diagnostic>,
    },
}

/// Makes a spec of a configuration.
///
/// # Errors
/// The configuration cannot be read, or what comes of it is no spec.
pub fn import(bytes: &[u8], request: &ImportRequest<'_>) -> Result<Imported, ImportError> {
    let mut report = Report::default();
    let root = yaml::parse_as(Kind::Foreign, bytes, &mut report);
    let read = root.as_ref().and_then(|root| match request.source {
        Source::PreCommit => pre_commit::read(bytes, root, &mut report),
        Source::Lefthook => lefthook::read(root, &mut report),
    });
    let diagnostics = report.finish();
    let Some((items, settings)) = read.filter(|_| diagnostics.is_empty()) else {
        return Err(ImportError::Invalid(diagnostics));
    };
    let draft = Draft::of(items);
    let spec = draft.text(request.file, request.profile.as_str());
    if let Some(text) = &spec {
        accepted(text)?;
    }
    let Draft { carried, left, tools, .. } = draft;
    let tools = tools.into_values().flatten().collect();
    Ok(Imported { source: request.source, spec, carried, left, settings, tools })
}

/// Reads a spec of ours as anybody's: nothing may be wrong with it, and nothing doubtful.
fn accepted(text: &str) -> Result<(), ImportError> {
    let diagnostics = match spec::read(text.as_bytes()) {
        Ok(reading) => reading.warnings,
        Err(diagnostics) => diagnostics,
    };
    if diagnostics.is_empty() {
        return Ok(());
    }
    Err(ImportError::Unusable { spec: text.to_owned(), diagnostics })
}

/// Whose configuration these bytes look like; `None` where they look like neither.
///
/// # Errors
/// They cannot be read at all.
pub fn detect(bytes: &[u8]) -> Result<Option<Source>, Vec<Diagnostic>> {
    let mut report = Report::default();
    let root = yaml::parse_as(Kind::Foreign, bytes, &mut report);
    let map = root.as_ref().and_then(config::Map::of);
    let source = map.and_then(|map| match map.get("repos") {
        Some(_) => Some(Source::PreCommit),
        None if map.iter().any(|(key, _)| lefthook::is_hook(key)) => Some(Source::Lefthook),
        None => None,
    });
    let diagnostics = report.finish();
    if diagnostics.is_empty() { Ok(source) } else { Err(diagnostics) }
}

/// A value of the configuration has another shape than it can have.
fn misshapen(node: &yaml::Node<'_>, message: impl Into<String>) -> Diagnostic {
    Diagnostic::error(Code::WrongType, node.head, message)
}

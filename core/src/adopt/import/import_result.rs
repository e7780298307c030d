//! Describes the imported and the skipped hooks of a configuration.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::shell_words;
use crate::spec::{Code, Diagnostic, yaml};

/// The hook runner whose configuration is imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// `.pre-commit-config.yaml`.
    PreCommit,
    /// `lefthook.yml`.
    Lefthook,
}

impl Source {
    /// Returns the file names that the configuration may have in a repository, the usual one first.
    pub fn files(self) -> &'static [&'static str] {
        match self {
            Self::PreCommit => &[".pre-commit-config.yaml", ".pre-commit-config.yml"],
            Self::Lefthook => &["lefthook.yml", "lefthook.yaml", ".lefthook.yml", ".lefthook.yaml"],
        }
    }

    /// Returns the human-readable name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PreCommit => "pre-commit",
            Self::Lefthook => "lefthook",
        }
    }
}

/// A tool that the imported checks need, and the toolchain check for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tool {
    /// The name of the program.
    pub name: String,
    /// The command of the toolchain check.
    pub cmd: Vec<String>,
    /// The required version range; `null` if any version is accepted.
    pub version: Option<String>,
}

impl Tool {
    /// Creates a tool with a check that runs the program, for example to print its version.
    pub(crate) fn with_version_check(name: &str, version_args: &[&str], range: Option<String>) -> Self {
        let cmd = std::iter::once(name).chain(version_args.iter().copied()).map(str::to_owned).collect();
        Self { name: name.to_owned(), cmd, version: range }
    }

    pub(crate) fn is_path_lookup(&self) -> bool {
        self.cmd.first().is_some_and(|program| *program != self.name)
    }

    /// Creates a tool whose check only looks for the program on `PATH`.
    pub(crate) fn on_path(name: &str) -> Self {
        let lookup = format!("command -v {}", shell_words::quote(name));
        Self { name: name.to_owned(), cmd: vec!["sh".to_owned(), "-c".to_owned(), lookup], version: None }
    }
}

/// A hook that was imported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImportedHook {
    /// The name of the hook in the configuration.
    pub name: String,
    /// The line on which the hook begins.
    pub line: u32,
    /// The skill that contains its step.
    pub skill: String,
    /// The step of that skill.
    pub step: String,
    /// The tools that the hook needs.
    pub tools: Vec<String>,
    /// Differences from the original hook, one phrase each.
    pub notes: Vec<String>,
}

/// A hook that was not imported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SkippedHook {
    /// The name of the hook in the configuration.
    pub name: String,
    /// The line on which the hook begins.
    pub line: u32,
    /// The reason why it was not imported.
    pub reason: String,
}

/// A setting of the configuration that belongs to no hook and has no effect in a spec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Setting {
    /// The key of the setting.
    pub key: String,
    /// The equivalent in Proctor, or the reason why it is missing.
    pub note: String,
}

/// Returns the diagnostic for a value of a wrong type.
pub(crate) fn wrong_type(node: &yaml::Node<'_>, message: impl Into<String>) -> Diagnostic {
    Diagnostic::error(Code::WrongType, node.head, message)
}

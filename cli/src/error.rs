//! Errors that end a command before there is a verdict: a message, what to do next, and the exit code.

use std::path::{Path, PathBuf};

use proctor_core::code::{Coded as _, CommandCode, EngineCode, ErrorCode};
use proctor_core::decision::verdict::{EXIT_INCONCLUSIVE, EXIT_USAGE};
use proctor_core::model::drift::display_path;
use proctor_core::spec::Diagnostic;
use schemars::JsonSchema;
use serde::Serialize;

use crate::diagnostics::{self, DiagnosticRecord, FileDiagnostics};
use crate::style;
use crate::text::escape_text;

/// The reason why a command has no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// The request of the caller is invalid, or names something that does not exist.
    #[error("{message}")]
    Usage {
        /// The cause and its location.
        message: String,
        /// The suggested action.
        hint: String,
    },
    /// This machine or installation lacks something.
    #[error("{message}")]
    Environment {
        /// The cause and its location.
        message: String,
        /// The suggested action.
        hint: String,
    },
    /// A spec or the operator's config is wrong.
    #[error("`{}` is not valid", display_path(file.as_os_str().as_encoded_bytes()))]
    Invalid {
        /// The file.
        file: PathBuf,
        /// The text of the file.
        text: String,
        /// The diagnostics.
        diagnostics: Vec<Diagnostic>,
    },
    /// The engine could not do its job.
    #[error("{message}")]
    Engine {
        /// The cause and its location.
        message: String,
        /// The suggested action.
        hint: Option<String>,
        /// The exit code of the process.
        exit_code: u8,
        /// The code of the message.
        code: ErrorCode,
    },
    /// A bug in proctor.
    #[error("{0}; this is a bug in proctor")]
    Internal(String),
}

/// An error as `--format json` and `jsonl` print it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct ErrorRecord {
    /// The error.
    pub error: ErrorBody,
}

/// An error with suggested actions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct ErrorBody {
    /// The code of the message, such as `P0202`; `proctor explain P0202` says more.
    pub code: ErrorCode,
    /// The cause and its location.
    pub message: String,
    /// Suggested actions, one line each.
    pub hints: Vec<String>,
    /// The exit code of the process.
    pub exit_code: u8,
    /// The diagnostics, if the spec or the operator's config is wrong.
    pub diagnostics: Vec<DiagnosticRecord>,
}

impl CliError {
    /// Makes the path of the invalid file relative to `cwd`.
    pub(crate) fn with_path_relative_to(self, cwd: &Path) -> Self {
        match self {
            Self::Invalid { file, text, diagnostics } => {
                Self::Invalid { file: relative_to(&file, cwd), text, diagnostics }
            }
            other => other,
        }
    }

    /// Returns the exit code of the process.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage { .. } | Self::Invalid { .. } => EXIT_USAGE,
            Self::Environment { .. } | Self::Internal(_) => EXIT_INCONCLUSIVE,
            Self::Engine { exit_code, .. } => *exit_code,
        }
    }

    /// Returns what the user can do next, one line each.
    pub(crate) fn hints(&self) -> Vec<String> {
        match self {
            Self::Usage { hint, .. } | Self::Environment { hint, .. } => vec![hint.clone()],
            Self::Engine { hint, .. } => hint.iter().cloned().collect(),
            Self::Invalid { .. } => Vec::new(),
            Self::Internal(_) => vec!["please report it, with the command that you ran".to_owned()],
        }
    }

    /// Renders the error for a screen.
    pub(crate) fn render(&self) -> String {
        match self.file_diagnostics() {
            Some(problems) => diagnostics::render(problems),
            None => {
                let hints: Vec<String> = self.hints().iter().map(|hint| escape_text(hint)).collect();
                style::error(self.code(), &escape_text(&self.to_string()), &hints)
            }
        }
    }

    /// Converts the error to its JSON document.
    pub(crate) fn to_record(&self) -> ErrorRecord {
        let diagnostics = self.file_diagnostics().map(diagnostics::records).unwrap_or_default();
        let (message, hints, exit_code) = (self.to_string(), self.hints(), self.exit_code());
        ErrorRecord { error: ErrorBody { code: self.code(), message, hints, exit_code, diagnostics } }
    }

    /// Returns the code of the message.
    pub(crate) fn code(&self) -> ErrorCode {
        match self {
            Self::Usage { .. } => CommandCode::Usage.code(),
            Self::Environment { .. } => CommandCode::Environment.code(),
            Self::Invalid { .. } => EngineCode::Spec.code(),
            Self::Engine { code, .. } => *code,
            Self::Internal(_) => CommandCode::Internal.code(),
        }
    }

    fn file_diagnostics(&self) -> Option<FileDiagnostics<'_>> {
        match self {
            Self::Invalid { file, text, diagnostics } => Some(FileDiagnostics { file, source: text, diagnostics }),
            _ => None,
        }
    }
}

/// Returns the path relative to `cwd` if it is below it, otherwise unchanged.
pub(crate) fn relative_to(file: &Path, cwd: &Path) -> PathBuf {
    file.strip_prefix(cwd).unwrap_or(file).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proctor_core::spec::Code;

    #[test]
    fn exit_code_follows_the_kind_of_error() {
        let (message, hint) = (String::from("m"), String::from("h"));
        let usage = CliError::Usage { message: message.clone(), hint: hint.clone() };
        let environment = CliError::Environment { message: message.clone(), hint };
        let invalid = CliError::Invalid { file: "a".into(), text: String::new(), diagnostics: Vec::new() };
        let engine =
            CliError::Engine { message: message.clone(), hint: None, exit_code: 130, code: CommandCode::Lost.code() };
        let codes = [usage, environment, invalid, engine, CliError::Internal(message)].map(|error| error.exit_code());
        assert_eq!(codes, [2, 5, 2, 130, 5]);
    }

    #[test]
    fn renders_message_and_hint() {
        let error = CliError::Usage { message: "no `x`\x1b".into(), hint: "make one".into() };
        let text = anstream::adapter::strip_str(&error.render()).to_string();
        assert_eq!(text, "error[P0001]: no `x`\\x1b\nhint: make one\n");
    }

    #[test]
    fn invalid_spec_has_diagnostics_in_text_and_json() {
        let diagnostics = vec![Diagnostic::without_span(Code::Empty, "there is nothing in it")];
        let error = CliError::Invalid { file: "spec/verification.yaml".into(), text: String::new(), diagnostics };
        assert!(error.render().contains("1 problem in spec/verification.yaml"), "{}", error.render());
        assert_eq!(error.to_record().error.diagnostics.len(), 1);
    }
}

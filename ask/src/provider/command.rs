//! Calls a model through a program of the operator: JSON on standard input, JSON on standard output, in a sandbox. The
//! program has no network unless the operator allows it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant as StdInstant;

use proctor_core::model::plan::Network;
use proctor_core::record::evidence::escape_output;
use proctor_core::spec::CommandSettings;
use proctor_sql::sandboxed_command::SandboxedCommand;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::completion::{Completion, Prompt};
use super::model_provider::{BoxFuture, Provider, ProviderContext};
use super::provider_error::{CommandError, ProviderError};
use crate::secret::Secret;

/// The variable with the key in the environment of a program.
const KEY_VARIABLE: &str = "PROCTOR_KEY";

/// The document on standard input.
#[derive(Serialize)]
struct CommandInput<'a> {
    version: u32,
    system: &'a str,
    prompt: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    max_tokens: u32,
}

/// The document on standard output.
#[derive(Deserialize)]
struct CommandOutput {
    #[serde(default)]
    text: String,
    error: Option<String>,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    #[serde(default)]
    truncated: bool,
}

/// A program that calls a model.
pub struct CommandProvider {
    command: SandboxedCommand,
    key: Option<Secret>,
    model: Option<String>,
    max_tokens: u32,
}

impl CommandProvider {
    /// Prepares a program without starting it.
    ///
    /// # Errors
    /// A path of the config does not exist, or the state directory is not writable.
    pub fn new(
        command: &CommandSettings,
        key: Option<Secret>,
        model: Option<String>,
        max_tokens: u32,
        context: &ProviderContext,
    ) -> Result<Self, CommandError> {
        if command.network == Network::Allow && !context.allow_network {
            return Err(CommandError::NetworkRefused);
        }
        let launcher = context.launcher.clone().ok_or(CommandError::NoLauncher)?;
        let secrets: BTreeMap<String, String> =
            key.iter().map(|key| (KEY_VARIABLE.to_owned(), key.expose().to_owned())).collect();
        let command = SandboxedCommand::new(command, secrets, launcher, &context.tolerated)?;
        Ok(Self { command, key, model, max_tokens })
    }

    /// Removes the key from a text.
    fn redact(&self, text: &str) -> String {
        self.key.as_ref().map_or_else(|| text.to_owned(), |key| key.redact(text))
    }

    fn run(&self, input: &[u8], deadline: StdInstant) -> Result<CommandOutput, CommandError> {
        let output = self.command.run(input, deadline)?;
        serde_json::from_slice(&output).map_err(CommandError::NotAnAnswer)
    }
}

impl Provider for Arc<CommandProvider> {
    fn complete<'a>(
        &'a self,
        prompt: &'a Prompt,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Completion, ProviderError>> {
        Box::pin(async move {
            let document = CommandInput {
                version: 1,
                system: &prompt.system,
                prompt: &prompt.user,
                model: self.model.as_deref(),
                max_tokens: self.max_tokens,
            };
            let input = serde_json::to_vec(&document).map_err(CommandError::InputNotWritten)?;
            let (own, until) = (Arc::clone(self), deadline.into_std());
            let run = tokio::task::spawn_blocking(move || own.run(&input, until)).await;
            let output = run.map_err(CommandError::from)??;
            if let Some(error) = output.error {
                let error = escape_output(self.redact(&error).as_bytes()).replace('\n', " ");
                return Err(CommandError::Reported(error).into());
            }
            if output.text.trim().is_empty() && !output.truncated {
                return Err(ProviderError::Empty);
            }
            Ok(Completion {
                text: self.redact(&output.text),
                input_tokens: output.input_tokens,
                output_tokens: output.output_tokens,
                is_truncated: output.truncated,
            })
        })
    }
}

//! Reaches language models: one trait, and one implementation for each way to call a model.

mod anthropic;
mod command;
mod completion;
mod http_client;
mod model_provider;
mod openai;
mod provider_error;
mod recorded;
mod retry;

use std::path::Path;
use std::sync::Arc;

use proctor_core::spec::{ProviderApi, ProviderSettings};

use crate::secret::read_key;

pub use command::CommandProvider;
pub use completion::{Completion, Prompt};
pub use http_client::HttpError;
pub use model_provider::{BoxFuture, NamedProvider, Provider, ProviderContext};
pub use provider_error::{CommandError, ProviderError, RecordedError};
pub use recorded::RecordedAnswers;

/// Opens a provider of the operator's config. Sends nothing yet.
///
/// # Errors
/// The key cannot be read, or the settings cannot be used on this machine.
pub fn open(
    name: &str,
    settings: &ProviderSettings,
    context: &ProviderContext,
) -> Result<NamedProvider, ProviderError> {
    let key = settings.key.as_ref().map(|source| read_key(source, &context.env)).transpose()?;
    let model = settings.model.clone().unwrap_or_default();
    let max_tokens = settings.max_answer_tokens;
    let provider: Arc<dyn Provider> = match &settings.api {
        ProviderApi::OpenAi(endpoint) => {
            Arc::new(openai::OpenAiProvider::new(endpoint, key, model, max_tokens, context.clock)?)
        }
        ProviderApi::Anthropic(endpoint) => {
            Arc::new(anthropic::AnthropicProvider::new(endpoint, key, model, max_tokens, context.clock)?)
        }
        ProviderApi::Command(command) => {
            Arc::new(Arc::new(CommandProvider::new(command, key, settings.model.clone(), max_tokens, context)?))
        }
    };
    Ok(NamedProvider { name: name.to_owned(), model: settings.model.clone(), provider })
}

/// Opens a file with recorded answers.
///
/// # Errors
/// The file cannot be read, or has a malformed line.
pub fn open_recorded(file: &Path) -> Result<NamedProvider, ProviderError> {
    let answers = RecordedAnswers::read(file)?;
    Ok(NamedProvider { name: "recorded".to_owned(), model: None, provider: Arc::new(answers) })
}

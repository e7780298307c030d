//! Reaches language models: one trait, and one implementation for each way to call a model.

mod anthropic;
mod command;
mod http_client;
mod openai;
mod recorded;
mod retry;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use proctor_core::model::enforcement::Tolerated;
use proctor_core::spec::{ProviderApi, ProviderSettings};
use proctor_core::sql::TokenCounts;
use proctor_core::text::canonical;
use proctor_core::text::digest::Sha256Hex;
use proctor_runner::Clock;
use proctor_sandbox::Launcher;
use serde::Serialize;
use tokio::time::Instant;

use crate::secret::{KeyError, read_key};

pub use command::{CommandError, CommandProvider};
pub use http_client::HttpError;
pub use recorded::{RecordedAnswers, RecordedError};

/// Maximum size of the body of an answer, in bytes.
pub(crate) const MAX_BODY_BYTES: u64 = 4 << 20;
/// Number of bytes that count as one token if a provider does not report tokens.
const BYTES_PER_TOKEN: u64 = 4;

/// A prompt: the instructions of Proctor, and the message with the schema and the question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Prompt {
    /// The instructions.
    pub system: String,
    /// The message.
    pub user: String,
}

impl Prompt {
    /// Returns the hash of the prompt, by which a recorded answer can name it.
    pub fn digest(&self) -> Sha256Hex {
        Sha256Hex::digest(&canonical::to_vec(self))
    }

    /// Estimates the number of tokens.
    pub fn estimated_tokens(&self) -> u64 {
        estimate_tokens(self.system.len() + self.user.len())
    }
}

/// Estimates the number of tokens of a text with this many bytes.
pub(crate) fn estimate_tokens(bytes: usize) -> u64 {
    (bytes as u64).div_ceil(BYTES_PER_TOKEN)
}

/// The answer of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    /// The text. Tool calls are JSON in the format of the provider.
    pub text: String,
    /// The number of tokens of the prompt, if the provider reports it.
    pub input_tokens: Option<u64>,
    /// The number of tokens of the answer, if the provider reports it.
    pub output_tokens: Option<u64>,
    /// True if the model stopped because of the maximum number of tokens.
    pub is_truncated: bool,
}

impl Completion {
    /// Returns the tokens; estimates numbers that the provider did not report.
    pub fn tokens(&self, prompt: &Prompt) -> TokenCounts {
        TokenCounts {
            input: self.input_tokens.unwrap_or_else(|| prompt.estimated_tokens()),
            output: self.output_tokens.unwrap_or_else(|| estimate_tokens(self.text.len())),
            estimated: self.input_tokens.is_none() || self.output_tokens.is_none(),
        }
    }
}

/// A future that a trait object returns.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A language model.
pub trait Provider: Send + Sync {
    /// Returns the answer of the model to a prompt, before the deadline.
    ///
    /// # Errors
    /// There is no answer.
    fn complete<'a>(
        &'a self,
        prompt: &'a Prompt,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Completion, ProviderError>>;
}

/// A provider with its name and model.
#[derive(Clone)]
pub struct NamedProvider {
    /// The name in the operator's config, or of the file with recorded answers.
    pub name: String,
    /// The model.
    pub model: Option<String>,
    /// The provider.
    pub provider: Arc<dyn Provider>,
}

impl fmt::Debug for NamedProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamedProvider").field("name", &self.name).field("model", &self.model).finish_non_exhaustive()
    }
}

/// The reason why a model gave no answer. No message contains a key.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// The key cannot be read.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The HTTP request failed.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The command failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// There is no recorded answer.
    #[error(transparent)]
    Recorded(#[from] RecordedError),
    /// The answer has no text.
    #[error("the answer of the model is empty")]
    Empty,
    /// The answer is not in the format of the provider.
    #[error("the answer is not in the format `{format}`: {why}")]
    Format {
        /// The format.
        format: &'static str,
        /// The reason.
        why: &'static str,
    },
    /// The time was over.
    #[error("the model gave no complete answer in time")]
    Deadline,
}

/// The parts of the process that providers need.
#[derive(Clone)]
pub struct ProviderContext {
    /// The environment of the process.
    pub env: BTreeMap<String, String>,
    /// Starts the sandboxes of commands; `None` if no command can be used.
    pub launcher: Option<Arc<Launcher>>,
    /// The sandbox controls that may be missing.
    pub tolerated: Tolerated,
    /// True if the operator allows the network.
    pub allow_network: bool,
    /// The time of day.
    pub clock: Clock,
}

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

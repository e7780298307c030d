//! Prompts, and the answers of models.

use proctor_core::sql::TokenCounts;
use proctor_core::text::canonical;
use proctor_core::text::digest::Sha256Hex;
use serde::Serialize;

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

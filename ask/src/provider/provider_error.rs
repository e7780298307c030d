//! Reasons why a model gave no answer. No message contains a key.

use std::io;
use std::path::PathBuf;

use proctor_core::sql::ModelCallOutcome;
use proctor_core::text::digest::Sha256Hex;

use super::http_client::HttpError;
use crate::secret::KeyError;

/// Maximum size of a file with recorded answers, in bytes.
pub(super) const MAX_FILE_BYTES: u64 = 64 << 20;

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

impl ProviderError {
    /// Returns the outcome of the call, for metrics and traces.
    pub fn outcome(&self) -> ModelCallOutcome {
        match self {
            Self::Deadline => ModelCallOutcome::TimedOut,
            Self::Empty | Self::Format { .. } | Self::Command(CommandError::NotAnAnswer(_)) => {
                ModelCallOutcome::Malformed
            }
            Self::Key(_) | Self::Http(_) | Self::Command(_) | Self::Recorded(_) => ModelCallOutcome::Failed,
        }
    }
}

/// The reason why a program gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The program cannot be run, or failed.
    #[error(transparent)]
    Run(#[from] proctor_sql::sandboxed_command::CommandError),
    /// Sandboxes are not available in this process.
    #[error("commands cannot be used here, because there are no sandboxes")]
    NoLauncher,
    /// The config of the provider and the operator's own bound contradict each other.
    #[error("the command needs the network, but `allow_network` is false")]
    NetworkRefused,
    /// The input cannot be written as JSON.
    #[error("the input of the command cannot be written: {0}")]
    InputNotWritten(#[source] serde_json::Error),
    /// The output is not an answer.
    #[error("the output of the command is not an answer: {0}")]
    NotAnAnswer(#[source] serde_json::Error),
    /// The program reports an error.
    #[error("the command reports an error: {0}")]
    Reported(String),
    /// A thread panicked.
    #[error("an internal task of proctor failed: {0}")]
    Broken(#[from] tokio::task::JoinError),
}

/// The reason why there is no recorded answer.
#[derive(Debug, thiserror::Error)]
pub enum RecordedError {
    /// The file cannot be read.
    #[error("the recorded answers in `{}` cannot be read: {source}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file is too long.
    #[error("the file `{}` with recorded answers is longer than {} MiB", file.display(), MAX_FILE_BYTES >> 20)]
    TooLong {
        /// The file.
        file: PathBuf,
    },
    /// A line is not a recorded answer.
    #[error("line {line} of `{}` is not a recorded answer: {source}", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// The line, starting at 1.
        line: usize,
        /// The cause.
        source: serde_json::Error,
    },
    /// All answers were used.
    #[error("`{}` has no further answer: all {count} were used", file.display())]
    Exhausted {
        /// The file.
        file: PathBuf,
        /// The number of answers.
        count: usize,
    },
    /// The next answer belongs to another prompt.
    #[error(
        "answer {number} of `{}` belongs to the prompt {}, but the prompt is {}",
        file.display(), expected, found
    )]
    OtherPrompt {
        /// The file.
        file: PathBuf,
        /// The number of the answer, starting at 1.
        number: usize,
        /// The hash of the prompt in the file.
        expected: Sha256Hex,
        /// The hash of the actual prompt.
        found: Sha256Hex,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcome_separates_late_malformed_and_failed_calls() {
        let not_json = serde_json::from_str::<u8>("x").expect_err("no JSON");
        for (error, outcome) in [
            (ProviderError::Deadline, ModelCallOutcome::TimedOut),
            (ProviderError::Empty, ModelCallOutcome::Malformed),
            (ProviderError::Command(CommandError::NotAnAnswer(not_json)), ModelCallOutcome::Malformed),
            (ProviderError::Command(CommandError::NoLauncher), ModelCallOutcome::Failed),
            (ProviderError::Http(HttpError::Url), ModelCallOutcome::Failed),
        ] {
            assert_eq!(error.outcome(), outcome, "{error}");
        }
    }
}

//! Answers with recorded texts, for tests and repeatable runs. The file has one JSON object in each line.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use proctor_core::text::digest::Sha256Hex;
use serde::Deserialize;
use tokio::time::Instant;

use super::completion::{Completion, Prompt};
use super::model_provider::{BoxFuture, Provider};
use super::provider_error::{MAX_FILE_BYTES, ProviderError, RecordedError};

/// A recorded answer.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordedAnswer {
    /// The text of the answer.
    answer: String,
    /// The hash of the prompt that it answers; without it, the answer fits every prompt.
    prompt_sha256: Option<Sha256Hex>,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    /// True if the model stopped because of the maximum number of tokens.
    #[serde(default)]
    truncated: bool,
}

/// Recorded answers, which are used in order.
#[derive(Debug)]
pub struct RecordedAnswers {
    file: PathBuf,
    answers: Vec<RecordedAnswer>,
    /// The number of answers that were used.
    used: Mutex<usize>,
}

impl RecordedAnswers {
    /// Reads the answers of a file. Empty lines are skipped.
    ///
    /// # Errors
    /// The file cannot be read, or a line is malformed.
    pub fn read(file: &Path) -> Result<Self, RecordedError> {
        let unreadable = |source| RecordedError::Unreadable { file: file.to_owned(), source };
        let mut text = String::new();
        let open = File::open(file).map_err(unreadable)?;
        open.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
        if text.len() as u64 > MAX_FILE_BYTES {
            return Err(RecordedError::TooLong { file: file.to_owned() });
        }
        Self::parse(file, &text)
    }

    fn parse(file: &Path, text: &str) -> Result<Self, RecordedError> {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let answers = lines.map(|(at, line)| {
            let malformed = |source| RecordedError::Malformed { file: file.to_owned(), line: at + 1, source };
            serde_json::from_str(line).map_err(malformed)
        });
        Ok(Self { file: file.to_owned(), answers: answers.collect::<Result<_, _>>()?, used: Mutex::new(0) })
    }

    fn next(&self, prompt: &Prompt) -> Result<Completion, RecordedError> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(next) = self.answers.get(*used) else {
            return Err(RecordedError::Exhausted { file: self.file.clone(), count: self.answers.len() });
        };
        let found = prompt.digest();
        if let Some(expected) = next.prompt_sha256.as_ref().filter(|expected| **expected != found) {
            let (file, expected) = (self.file.clone(), expected.clone());
            return Err(RecordedError::OtherPrompt { file, number: *used + 1, expected, found });
        }
        *used += 1;
        Ok(Completion {
            text: next.answer.clone(),
            input_tokens: next.input_tokens,
            output_tokens: next.output_tokens,
            is_truncated: next.truncated,
        })
    }
}

impl Provider for RecordedAnswers {
    fn complete<'a>(
        &'a self,
        prompt: &'a Prompt,
        _deadline: Instant,
    ) -> BoxFuture<'a, Result<Completion, ProviderError>> {
        Box::pin(async move {
            let answer = self.next(prompt)?;
            if answer.text.trim().is_empty() && !answer.is_truncated { Err(ProviderError::Empty) } else { Ok(answer) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<RecordedAnswers, RecordedError> {
        RecordedAnswers::parse(Path::new("a.jsonl"), text)
    }

    fn prompt(user: &str) -> Prompt {
        Prompt { system: String::new(), user: user.to_owned() }
    }

    #[test]
    fn answers_in_order_until_none_is_left() {
        let answers = parse("{\"answer\":\"a\"}\n\n{\"answer\":\"b\",\"output_tokens\":3}\n").expect("reads");
        assert_eq!(answers.next(&prompt("x")).expect("the first").text, "a");
        assert_eq!(answers.next(&prompt("x")).expect("the second").output_tokens, Some(3));
        let error = answers.next(&prompt("x")).expect_err("none left");
        assert_eq!(error.to_string(), "`a.jsonl` has no further answer: all 2 were used");
    }

    #[test]
    fn answer_with_digest_fits_only_its_prompt() {
        let digest = prompt("right").digest();
        let text = format!("{{\"answer\":\"a\",\"prompt_sha256\":\"{digest}\"}}");
        let answers = parse(&text).expect("reads");
        let error = answers.next(&prompt("wrong")).expect_err("another prompt");
        assert!(matches!(error, RecordedError::OtherPrompt { number: 1, .. }), "{error}");
        assert_eq!(answers.next(&prompt("right")).expect("its prompt").text, "a");
    }

    #[test]
    fn reports_malformed_line() {
        for line in ["nothing", "{}", "{\"answer\":1}", "{\"answer\":\"a\",\"more\":1}"] {
            let error = parse(&format!("{{\"answer\":\"a\"}}\n{line}\n")).expect_err(line);
            assert!(error.to_string().starts_with("line 2 of `a.jsonl`"), "{error}");
        }
    }
}

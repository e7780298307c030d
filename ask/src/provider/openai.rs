//! Speaks the chat completions of OpenAI, which many other servers also speak.

use std::sync::Arc;

use proctor_core::spec::Endpoint;
use proctor_runner::Clock;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::completion::{Completion, Prompt};
use super::http_client::{HttpClient, secret_header};
use super::model_provider::{BoxFuture, Provider};
use super::provider_error::ProviderError;
use crate::secret::Secret;

const FORMAT: &str = "openai";
/// The host whose newer models accept the maximum number of tokens only under its new name.
const OPENAI_HOST: &str = "://api.openai.com/";

/// A server of chat completions.
pub(super) struct OpenAiProvider {
    client: Arc<HttpClient>,
    model: String,
    max_tokens: u32,
    /// The name of the maximum number of tokens in requests.
    max_tokens_key: &'static str,
}

impl OpenAiProvider {
    pub(super) fn new(
        endpoint: &Endpoint,
        key: Option<Secret>,
        model: String,
        max_tokens: u32,
        clock: Clock,
    ) -> Result<Self, ProviderError> {
        let bearer = key.as_ref().map(|key| secret_header("authorization", &format!("Bearer {}", key.expose())));
        let headers = bearer.transpose()?.into_iter().collect();
        let client = HttpClient::new(endpoint, "/chat/completions", headers, key, clock)?;
        let is_openai = endpoint.url.contains(OPENAI_HOST);
        let max_tokens_key = if is_openai { "max_completion_tokens" } else { "max_tokens" };
        Ok(Self { client: Arc::new(client), model, max_tokens, max_tokens_key })
    }
}

impl Provider for OpenAiProvider {
    fn complete<'a>(
        &'a self,
        prompt: &'a Prompt,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Completion, ProviderError>> {
        let mut body = json!({
            "model": self.model,
            "messages": [
                { "role": "system", "content": prompt.system },
                { "role": "user", "content": prompt.user },
            ],
        });
        body[self.max_tokens_key] = self.max_tokens.into();
        Box::pin(async move { read_response(&self.client.post(&body, deadline).await?) })
    }
}

/// Reads a response.
///
/// # Errors
/// The response has no message, or the message is empty.
fn read_response(response: &Value) -> Result<Completion, ProviderError> {
    let malformed = |why| ProviderError::Format { format: FORMAT, why };
    let choice = response["choices"].get(0).ok_or(malformed("its list `choices` is empty"))?;
    let message = choice["message"].as_object().ok_or(malformed("the choice has no message"))?;
    let calls = message.get("tool_calls").and_then(Value::as_array).filter(|calls| !calls.is_empty());
    let text = match calls {
        Some(calls) => json!({ "tool_calls": calls }).to_string(),
        None => message.get("content").map(content_text).unwrap_or_default(),
    };
    let is_truncated = choice["finish_reason"] == "length";
    if text.trim().is_empty() && !is_truncated {
        return Err(ProviderError::Empty);
    }
    let usage = &response["usage"];
    Ok(Completion {
        text,
        input_tokens: usage["prompt_tokens"].as_u64(),
        output_tokens: usage["completion_tokens"].as_u64(),
        is_truncated,
    })
}

/// Returns the text of a content: a string, or a list of parts.
fn content_text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_text_parts_and_tool_calls() {
        let answer = |message: Value| json!({ "choices": [{ "message": message, "finish_reason": "stop" }] });
        let text = |message| read_response(&answer(message)).expect("an answer").text;
        assert_eq!(text(json!({ "content": "SELECT 1" })), "SELECT 1");
        assert_eq!(text(json!({ "content": [{ "type": "text", "text": "SELECT" }, { "text": " 1" }] })), "SELECT 1");
        let call = json!({ "type": "function", "function": { "name": "sql", "arguments": "{\"sql\":\"SELECT 1\"}" } });
        let calls = text(json!({ "content": null, "tool_calls": [call] }));
        assert!(calls.starts_with("{\"tool_calls\":["), "{calls}");
    }

    #[test]
    fn reads_tokens_and_truncation() {
        let answer = json!({
            "choices": [{ "message": { "content": "SELECT" }, "finish_reason": "length" }],
            "usage": { "prompt_tokens": 11, "completion_tokens": 3 },
        });
        let answer = read_response(&answer).expect("an answer");
        assert_eq!((answer.input_tokens, answer.output_tokens, answer.is_truncated), (Some(11), Some(3), true));
    }

    #[test]
    fn refuses_empty_and_malformed_answers() {
        for message in [json!({ "content": null }), json!({ "content": "  " }), json!({ "content": [] })] {
            let answer = json!({ "choices": [{ "message": message, "finish_reason": "stop" }] });
            assert!(matches!(read_response(&answer), Err(ProviderError::Empty)));
        }
        for answer in [json!({}), json!([]), json!({ "choices": [] }), json!({ "choices": [{ "message": "x" }] })] {
            assert!(matches!(read_response(&answer), Err(ProviderError::Format { .. })), "{answer}");
        }
    }
}

//! Speaks the messages of Anthropic.

use std::sync::Arc;

use http::{HeaderName, HeaderValue};
use proctor_core::spec::Endpoint;
use proctor_runner::Clock;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::completion::{Completion, Prompt};
use super::http_client::{HttpClient, secret_header};
use super::model_provider::{BoxFuture, Provider};
use super::provider_error::ProviderError;
use crate::secret::Secret;

const FORMAT: &str = "anthropic";
/// The version of the API.
const API_VERSION: &str = "2023-06-01";

/// A server of messages.
pub(super) struct AnthropicProvider {
    client: Arc<HttpClient>,
    model: String,
    max_tokens: u32,
}

impl AnthropicProvider {
    pub(super) fn new(
        endpoint: &Endpoint,
        key: Option<Secret>,
        model: String,
        max_tokens: u32,
        clock: Clock,
    ) -> Result<Self, ProviderError> {
        let version = (HeaderName::from_static("anthropic-version"), HeaderValue::from_static(API_VERSION));
        let own = key.as_ref().map(|key| secret_header("x-api-key", key.expose())).transpose()?;
        let headers = std::iter::once(version).chain(own).collect();
        let client = HttpClient::new(endpoint, "/messages", headers, key, clock)?;
        Ok(Self { client: Arc::new(client), model, max_tokens })
    }
}

impl Provider for AnthropicProvider {
    fn complete<'a>(
        &'a self,
        prompt: &'a Prompt,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Completion, ProviderError>> {
        let body = json!({
            "model": self.model,
            "max_tokens": self.max_tokens,
            "system": prompt.system,
            "messages": [{ "role": "user", "content": prompt.user }],
        });
        Box::pin(async move { read_response(&self.client.post(&body, deadline).await?) })
    }
}

/// Reads a response.
///
/// # Errors
/// The response has no content, or the content is empty.
fn read_response(response: &Value) -> Result<Completion, ProviderError> {
    let blocks = response["content"].as_array();
    let blocks = blocks.ok_or(ProviderError::Format { format: FORMAT, why: "it has no list `content`" })?;
    let calls: Vec<&Value> = blocks.iter().filter(|block| block["type"] == "tool_use").collect();
    let text = match calls.as_slice() {
        [] => blocks.iter().filter_map(|block| block["text"].as_str()).collect(),
        calls => json!({ "content": calls }).to_string(),
    };
    let is_truncated = response["stop_reason"] == "max_tokens";
    if text.trim().is_empty() && !is_truncated {
        return Err(ProviderError::Empty);
    }
    let usage = &response["usage"];
    let cached = ["cache_creation_input_tokens", "cache_read_input_tokens"];
    let cached: u64 = cached.iter().filter_map(|key| usage[*key].as_u64()).fold(0, u64::saturating_add);
    Ok(Completion {
        text,
        input_tokens: usage["input_tokens"].as_u64().map(|input| input.saturating_add(cached)),
        output_tokens: usage["output_tokens"].as_u64(),
        is_truncated,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_text_tool_calls_and_tokens() {
        let answer = json!({
            "content": [{ "type": "text", "text": "SELECT " }, { "type": "text", "text": "1" }],
            "stop_reason": "end_turn",
            "usage": { "input_tokens": 7, "cache_read_input_tokens": 100, "output_tokens": 2 },
        });
        let answer = read_response(&answer).expect("an answer");
        assert_eq!((answer.text.as_str(), answer.input_tokens, answer.output_tokens), ("SELECT 1", Some(107), Some(2)));
        let call = json!({ "type": "tool_use", "name": "sql", "input": { "sql": "SELECT 1" } });
        let answer = json!({ "content": [{ "type": "text", "text": "I will" }, call], "stop_reason": "tool_use" });
        let text = read_response(&answer).expect("an answer").text;
        assert!(text.contains("tool_use") && !text.contains("I will"), "{text}");
    }

    #[test]
    fn refuses_empty_and_malformed_answers() {
        for answer in [json!({ "content": [] }), json!({ "content": [{ "type": "text", "text": " " }] })] {
            assert!(matches!(read_response(&answer), Err(ProviderError::Empty)));
        }
        assert!(matches!(read_response(&json!({ "content": "x" })), Err(ProviderError::Format { .. })));
        let cut = json!({ "content": [], "stop_reason": "max_tokens" });
        assert!(read_response(&cut).expect("an answer").is_truncated);
    }
}

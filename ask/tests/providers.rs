//! Tests the providers over HTTP against a local server that speaks both formats, refuses, stalls, and cuts its
//! answers.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proctor_ask::provider::{Completion, NamedProvider, Prompt, ProviderContext, ProviderError, open};
use proctor_core::model::enforcement::Tolerated;
use proctor_core::spec::{Endpoint, KeySource, ProviderApi, ProviderSettings};
use proctor_runner::Clock;
use serde_json::{Value, json};
use tokio::time::Instant;

const KEY: &str = "sk-very-secret";

/// What the server does with a connection.
#[derive(Clone)]
enum Reply {
    /// Sends these bytes and closes the connection.
    Bytes(Vec<u8>),
    /// Sends these bytes, and then nothing until the client closes the connection.
    Stall(Vec<u8>),
    /// Sends these bytes one by one until the client closes the connection.
    Slow(Vec<u8>),
}

/// A server that answers each connection with the next reply.
struct Server {
    url: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start(replies: Vec<Reply>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let url = format!("http://{}/v1", listener.local_addr().expect("an address"));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        std::thread::spawn(move || {
            for reply in replies {
                let Ok((stream, _)) = listener.accept() else { return };
                serve(stream, reply, &seen);
            }
        });
        Self { url, requests }
    }

    fn request(&self, at: usize) -> (String, Value) {
        let request = self.requests.lock().expect("not poisoned")[at].clone();
        let (head, body) = request.split_once("\r\n\r\n").expect("a head");
        (head.to_owned(), serde_json::from_str(body).expect("JSON"))
    }

    fn count(&self) -> usize {
        self.requests.lock().expect("not poisoned").len()
    }
}

fn serve(mut stream: TcpStream, reply: Reply, seen: &Mutex<Vec<String>>) {
    let request = read_request(&mut stream);
    seen.lock().expect("not poisoned").push(request);
    match reply {
        Reply::Bytes(bytes) => {
            let _ = stream.write_all(&bytes);
            let _ = stream.shutdown(Shutdown::Write);
        }
        Reply::Stall(bytes) => {
            let _ = stream.write_all(&bytes);
            let _ = stream.read(&mut [0]);
        }
        Reply::Slow(bytes) => {
            stream.set_read_timeout(Some(Duration::from_millis(20))).expect("sets");
            for byte in bytes {
                // The read ends when the client closes the connection, and otherwise paces the bytes.
                if stream.write_all(&[byte]).is_err() || matches!(stream.read(&mut [0]), Ok(0)) {
                    return;
                }
            }
        }
    }
}

fn read_request(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ").map(str::to_owned));
            let length: usize = length.and_then(|length| length.trim().parse().ok()).unwrap_or(0);
            if body.len() >= length {
                return text;
            }
        }
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return text,
            Ok(length) => bytes.extend_from_slice(&buffer[..length]),
        }
    }
}

fn response(status: &str, headers: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n{headers}\r\n{body}", body.len()).into_bytes()
}

fn ok(body: &Value) -> Reply {
    Reply::Bytes(response("200 OK", "content-type: application/json\r\n", &body.to_string()))
}

fn error(status: &str, headers: &str) -> Reply {
    Reply::Bytes(response(
        status,
        headers,
        &json!({ "error": { "message": format!("no: {KEY}\u{1b}[1m") } }).to_string(),
    ))
}

fn openai_answer() -> Value {
    json!({
        "choices": [{ "message": { "role": "assistant", "content": "SELECT 1" }, "finish_reason": "stop" }],
        "usage": { "prompt_tokens": 20, "completion_tokens": 4 },
    })
}

fn anthropic_answer() -> Value {
    json!({
        "content": [{ "type": "text", "text": "SELECT 1" }],
        "stop_reason": "end_turn",
        "usage": { "input_tokens": 20, "output_tokens": 4 },
    })
}

fn settings(api: ProviderApi) -> ProviderSettings {
    let key = Some(KeySource::Variable("TEST_KEY".to_owned()));
    ProviderSettings { api, model: Some("the-model".to_owned()), key, max_answer_tokens: 99 }
}

fn provider(api: ProviderApi) -> NamedProvider {
    let context = ProviderContext {
        env: BTreeMap::from([("TEST_KEY".to_owned(), KEY.to_owned())]),
        launcher: None,
        tolerated: Tolerated::default(),
        allow_network: true,
        clock: Clock::system(),
    };
    open("test", &settings(api), &context).expect("opens")
}

fn openai(url: &str) -> NamedProvider {
    provider(ProviderApi::OpenAi(Endpoint { url: url.to_owned(), certificates: None }))
}

fn anthropic(url: &str) -> NamedProvider {
    provider(ProviderApi::Anthropic(Endpoint { url: url.to_owned(), certificates: None }))
}

async fn complete_within(provider: &NamedProvider, time: Duration) -> Result<Completion, ProviderError> {
    let prompt = Prompt { system: "the rules".to_owned(), user: "the question".to_owned() };
    provider.provider.complete(&prompt, Instant::now() + time).await
}

async fn complete(provider: &NamedProvider) -> Result<Completion, ProviderError> {
    complete_within(provider, Duration::from_secs(30)).await
}

/// Returns the message of an error, after checking that nothing about it shows the key.
fn message(result: Result<Completion, ProviderError>) -> String {
    let error = result.expect_err("no answer");
    let text = error.to_string();
    assert!(!format!("{text} {error:?}").contains(KEY), "{error:?}");
    assert!(!text.contains('\u{1b}'), "{text:?}");
    text
}

#[tokio::test]
async fn speaks_chat_completions() {
    let server = Server::start(vec![ok(&openai_answer())]);
    let provider = openai(&format!("{}/", server.url));
    let answer = complete(&provider).await.expect("an answer");
    assert_eq!((answer.text.as_str(), answer.input_tokens, answer.output_tokens), ("SELECT 1", Some(20), Some(4)));
    let (head, body) = server.request(0);
    assert!(head.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"), "{head}");
    assert!(head.to_ascii_lowercase().contains(&format!("authorization: bearer {KEY}")), "{head}");
    assert_eq!((&body["model"], &body["max_tokens"]), (&json!("the-model"), &json!(99)));
    assert_eq!(body["messages"][0], json!({ "role": "system", "content": "the rules" }));
    assert_eq!(body["messages"][1], json!({ "role": "user", "content": "the question" }));
    assert!(!format!("{provider:?}").contains(KEY));
}

#[tokio::test]
async fn speaks_messages() {
    let server = Server::start(vec![ok(&anthropic_answer())]);
    let answer = complete(&anthropic(&server.url)).await.expect("an answer");
    assert_eq!((answer.text.as_str(), answer.input_tokens, answer.output_tokens), ("SELECT 1", Some(20), Some(4)));
    let (head, body) = server.request(0);
    let head = head.to_ascii_lowercase();
    assert!(head.starts_with("post /v1/messages http/1.1\r\n"), "{head}");
    assert!(head.contains(&format!("x-api-key: {KEY}")) && head.contains("anthropic-version: 2023-06-01"), "{head}");
    assert_eq!((&body["system"], &body["max_tokens"]), (&json!("the rules"), &json!(99)));
    assert_eq!(body["messages"], json!([{ "role": "user", "content": "the question" }]));
}

#[tokio::test]
async fn answer_never_contains_the_key() {
    let echo = json!({ "choices": [{ "message": { "content": format!("SELECT '{KEY}'") }, "finish_reason": "stop" }] });
    let server = Server::start(vec![ok(&echo)]);
    assert_eq!(complete(&openai(&server.url)).await.expect("an answer").text, "SELECT '[redacted]'");
}

#[tokio::test]
async fn retries_after_429_500_and_lost_connections() {
    for (name, first) in [
        ("429 with seconds", error("429 Too Many Requests", "retry-after: 0\r\n")),
        ("429 with a date", error("429 Too Many Requests", "retry-after: Sun, 06 Nov 1994 08:49:37 GMT\r\n")),
        ("500", error("500 Internal Server Error", "")),
        ("529", error("529 Overloaded", "")),
        ("no answer", Reply::Bytes(Vec::new())),
        ("cut by its length", Reply::Bytes(response("200 OK", "", &openai_answer().to_string())[..120].to_vec())),
        (
            "cut chunks",
            Reply::Bytes(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n20\r\n{\"choices\":".to_vec()),
        ),
        ("cut without a length", Reply::Bytes(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{\"choices\":[".to_vec())),
    ] {
        let server = Server::start(vec![first, ok(&openai_answer())]);
        let answer = complete(&openai(&server.url)).await;
        assert_eq!(answer.expect(name).text, "SELECT 1", "{name}");
        assert_eq!(server.count(), 2, "{name}");
    }
}

#[tokio::test]
async fn waits_as_long_as_the_server_asks() {
    let server = Server::start(vec![error("429 Too Many Requests", "retry-after: 1\r\n"), ok(&anthropic_answer())]);
    let begun = Instant::now();
    complete(&anthropic(&server.url)).await.expect("an answer");
    assert!(begun.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn long_pause_of_the_server_ends_at_once() {
    let server = Server::start(vec![error("429 Too Many Requests", "retry-after: 3600\r\n")]);
    let begun = Instant::now();
    let text = message(complete(&openai(&server.url)).await);
    assert!(text.contains("status 429; it asks to wait 3600 s"), "{text}");
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn refusals_are_not_retried() {
    for (status, expected) in [
        ("400 Bad Request", "returned status 400: no: [redacted]"),
        ("404 Not Found", "returned status 404: no: [redacted]"),
        ("422 Unprocessable", "returned status 422: no: [redacted]"),
        ("401 Unauthorized", "returned status 401: it does not accept the key"),
        ("403 Forbidden", "returned status 403: it does not accept the key"),
        ("301 Moved", "returned status 301: Proctor follows no redirect"),
    ] {
        let headers = if status.starts_with("301") { "location: http://127.0.0.1:1/\r\n" } else { "" };
        let server = Server::start(vec![error(status, headers), ok(&openai_answer())]);
        let text = message(complete(&openai(&server.url)).await);
        assert!(text.contains(expected), "{status}: {text}");
        assert_eq!(server.count(), 1, "{status}");
    }
}

#[tokio::test]
async fn gives_up_before_the_deadline_when_nothing_helps() {
    let replies = vec![error("503 Service Unavailable", ""); 20];
    let server = Server::start(replies);
    let begun = Instant::now();
    let text = message(complete_within(&openai(&server.url), Duration::from_secs(2)).await);
    assert!(text.contains("status 503") && text.contains("tries)"), "{text}");
    assert!(begun.elapsed() <= Duration::from_secs(2) && server.count() >= 2, "{}", server.count());
}

#[tokio::test]
async fn slow_bytes_and_stalls_end_at_the_deadline() {
    let bytes = response("200 OK", "", &openai_answer().to_string());
    let head = bytes[..60].to_vec();
    for (name, reply) in
        [("slow", Reply::Slow(bytes)), ("stalled body", Reply::Stall(head)), ("silent", Reply::Stall(Vec::new()))]
    {
        let server = Server::start(vec![reply]);
        let begun = Instant::now();
        let text = message(complete_within(&openai(&server.url), Duration::from_millis(400)).await);
        assert!(text.contains("did not answer completely in time"), "{name}: {text}");
        assert!(begun.elapsed() < Duration::from_secs(5), "{name}");
    }
}

#[tokio::test]
async fn rejects_truncated_empty_long_and_malformed_answers() {
    let cut = || Reply::Bytes(response("200 OK", "", &openai_answer().to_string())[..120].to_vec());
    let server = Server::start(vec![cut(); 20]);
    let text = message(complete_within(&openai(&server.url), Duration::from_secs(2)).await);
    assert!(text.contains("cut off"), "{text}");
    let empty = json!({ "choices": [{ "message": { "content": "" }, "finish_reason": "stop" }] });
    let long = Value::String("x".repeat(5 << 20));
    for (reply, expected) in [
        (ok(&empty), "the answer of the model is empty"),
        (ok(&json!({ "content": [] })), "is not in the format `openai`"),
        (ok(&long), "is longer than 4 MiB"),
        (Reply::Bytes(response("200 OK", "", "<html>")), "is not JSON"),
    ] {
        let server = Server::start(vec![reply, ok(&openai_answer())]);
        let text = message(complete(&openai(&server.url)).await);
        assert!(text.contains(expected), "{text}");
        assert_eq!(server.count(), 1, "{expected}");
    }
}

#[tokio::test]
async fn unreachable_server_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let url = format!("http://{}/v1", listener.local_addr().expect("an address"));
    drop(listener);
    let text = message(complete_within(&openai(&url), Duration::from_secs(1)).await);
    assert!(text.contains("tries)") || text.contains("in time"), "{text}");
}

//! Posts JSON to a provider over HTTP. Every wait has a deadline, and every body is bounded. Requests that may succeed
//! later are sent again. Redirects are not followed, because the key is meant for one receiver only.

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::{HeaderName, HeaderValue, Uri};
use proctor_core::record::evidence::escape_output;
use proctor_core::spec::Endpoint;
use proctor_runner::Clock;
use serde_json::Value;
use tokio::time::Instant;
use ureq::Agent;
use ureq::tls::{PemItem, RootCerts, TlsConfig};

use super::completion::MAX_BODY_BYTES;
use super::retry::{MAX_TRIES, backoff, parse_retry_after, random};
use crate::secret::Secret;

/// Maximum length of the message of a provider that is shown, in characters.
const MAX_MESSAGE_CHARS: usize = 300;

/// The reason why a request has no answer. No message contains a key.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The URL is not an address.
    #[error("the URL of the provider is not an address")]
    Url,
    /// The key or a name cannot be sent in a header.
    #[error("the key cannot be sent in a header")]
    Header,
    /// The certificates cannot be read.
    #[error("the certificates in `{file}` cannot be read: {source}")]
    Certificates {
        /// The file.
        file: String,
        /// The cause.
        source: io::Error,
    },
    /// The provider refused the request; another try would not help.
    #[error("{receiver} returned status {status}{message}")]
    Refused {
        /// The receiver.
        receiver: String,
        /// The status.
        status: u16,
        /// The provider's own message, with a colon before it; can be empty.
        message: String,
    },
    /// The request failed several times.
    #[error("{receiver}: {why} ({tries} tries)")]
    Unavailable {
        /// The receiver.
        receiver: String,
        /// The last failure.
        why: String,
        /// The number of requests.
        tries: u32,
    },
    /// The provider requests a pause beyond the deadline.
    #[error("{receiver}: {why}; it asks to wait {} s, which is longer than the time that is left", wait.as_secs())]
    WaitTooLong {
        /// The receiver.
        receiver: String,
        /// The failure.
        why: String,
        /// The pause.
        wait: Duration,
    },
    /// No answer arrived before the deadline.
    #[error("{receiver} did not answer completely in time")]
    TimedOut {
        /// The receiver.
        receiver: String,
    },
    /// The answer is too long.
    #[error("the answer of {receiver} is longer than {} MiB", MAX_BODY_BYTES >> 20)]
    TooLong {
        /// The receiver.
        receiver: String,
    },
    /// The answer is not JSON.
    #[error("the answer of {receiver} is not JSON")]
    NotJson {
        /// The receiver.
        receiver: String,
    },
    /// The connection is not secure.
    #[error("{receiver}: no secure connection: {why}")]
    Tls {
        /// The receiver.
        receiver: String,
        /// The reason.
        why: String,
    },
    /// A thread panicked.
    #[error("an internal task of proctor failed: {0}")]
    Broken(#[from] tokio::task::JoinError),
}

/// A client of one endpoint.
pub(super) struct HttpClient {
    agent: Agent,
    url: String,
    headers: Vec<(HeaderName, HeaderValue)>,
    receiver: String,
    key: Option<Secret>,
    clock: Clock,
}

/// The result of one request.
enum Response {
    Json(Value),
    Failed(HttpError),
    /// The request may succeed later.
    Retry {
        why: String,
        after: Option<Duration>,
    },
}

impl HttpClient {
    /// Creates a client that posts to `path` below the endpoint's URL. Sends nothing yet.
    pub(super) fn new(
        endpoint: &Endpoint,
        path: &str,
        headers: Vec<(HeaderName, HeaderValue)>,
        key: Option<Secret>,
        clock: Clock,
    ) -> Result<Self, HttpError> {
        let url = format!("{}{path}", endpoint.url.trim_end_matches('/'));
        let uri: Uri = url.parse().map_err(|_| HttpError::Url)?;
        let host = uri.host().ok_or(HttpError::Url)?;
        let receiver =
            format!("{}://{}", uri.scheme_str().unwrap_or("http"), uri.authority().map_or(host, |at| at.as_str()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = TlsConfig::builder()
            .root_certs(root_certificates(endpoint.certificates.as_deref())?)
            .unversioned_rustls_crypto_provider(provider)
            .build();
        let config = Agent::config_builder()
            .tls_config(tls)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .user_agent(concat!("proctor/", env!("CARGO_PKG_VERSION")));
        let config = if is_loopback(host) { config.proxy(None) } else { config };
        Ok(Self { agent: config.build().into(), url, headers, receiver, key, clock })
    }

    /// Posts a document and returns the answer. Sends the request again if it may succeed later.
    ///
    /// # Errors
    /// The provider refuses the request, or does not answer before the deadline.
    pub(super) async fn post(self: &Arc<Self>, body: &Value, deadline: Instant) -> Result<Value, HttpError> {
        let body: Arc<[u8]> = body.to_string().into_bytes().into();
        for tries in 1.. {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.timed_out());
            }
            let (client, request) = (Arc::clone(self), Arc::clone(&body));
            let response = tokio::task::spawn_blocking(move || client.send(&request, left)).await?;
            let (why, after) = match response {
                Response::Json(value) => return Ok(value),
                Response::Failed(error) => return Err(error),
                Response::Retry { why, after } => (why, after),
            };
            let receiver = self.receiver.clone();
            if tries == MAX_TRIES {
                return Err(HttpError::Unavailable { receiver, why, tries });
            }
            let wait = after.map_or_else(|| backoff(tries, random()), |after| after.max(backoff(1, random()) / 2));
            if wait >= deadline.saturating_duration_since(Instant::now()) {
                return Err(match after {
                    Some(wait) => HttpError::WaitTooLong { receiver, why, wait },
                    None => HttpError::Unavailable { receiver, why, tries },
                });
            }
            tokio::time::sleep(wait).await;
        }
        Err(self.timed_out())
    }

    fn timed_out(&self) -> HttpError {
        HttpError::TimedOut { receiver: self.receiver.clone() }
    }

    /// Sends one request; blocks for at most `timeout`.
    fn send(&self, body: &[u8], timeout: Duration) -> Response {
        let mut post = self.agent.post(&self.url).content_type("application/json");
        for (name, value) in &self.headers {
            post = post.header(name, value);
        }
        let post = post.config().timeout_global(Some(timeout)).build();
        let mut answer = match post.send(body) {
            Ok(answer) => answer,
            Err(error) => return self.failure(&error, "the connection was lost before an answer"),
        };
        let status = answer.status().as_u16();
        let after = answer.headers().get("retry-after").and_then(|value| value.to_str().ok());
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(self.clock.now_ms());
        let after = after.and_then(|value| parse_retry_after(value, now));
        let body = answer.body_mut().with_config().limit(MAX_BODY_BYTES).read_to_vec();
        match (status, body) {
            // A gateway may repeat the headers of a request in its answer.
            (200..=299, Ok(body)) => match serde_json::from_str(&self.redact(&String::from_utf8_lossy(&body))) {
                Ok(value) => Response::Json(value),
                // Without a length, a cut answer looks like a complete one.
                Err(error) if error.is_eof() => {
                    Response::Retry { why: "the answer was cut off".to_owned(), after: None }
                }
                Err(_) => Response::Failed(HttpError::NotJson { receiver: self.receiver.clone() }),
            },
            (200..=299, Err(error)) => self.failure(&error, "the answer was cut off"),
            // 529 is the status of Anthropic for an overload.
            (408 | 429 | 500 | 502 | 503 | 504 | 529, _) => Response::Retry { why: format!("status {status}"), after },
            (status, body) => {
                let message = self.message(status, &body.unwrap_or_default());
                Response::Failed(HttpError::Refused { receiver: self.receiver.clone(), status, message })
            }
        }
    }

    fn failure(&self, error: &ureq::Error, lost: &str) -> Response {
        let receiver = self.receiver.clone();
        match error {
            ureq::Error::Timeout(_) => Response::Failed(HttpError::TimedOut { receiver }),
            ureq::Error::BodyExceedsLimit(_) => Response::Failed(HttpError::TooLong { receiver }),
            ureq::Error::Rustls(error) => Response::Failed(HttpError::Tls { receiver, why: error.to_string() }),
            ureq::Error::Io(error) if is_tls_error(error) => {
                Response::Failed(HttpError::Tls { receiver, why: error.to_string() })
            }
            ureq::Error::Io(error) if error.kind() == io::ErrorKind::TimedOut => {
                Response::Failed(HttpError::TimedOut { receiver })
            }
            ureq::Error::Io(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
                Response::Retry { why: error.to_string(), after: None }
            }
            ureq::Error::HostNotFound => Response::Retry { why: "there is no such host".to_owned(), after: None },
            ureq::Error::ConnectionFailed => Response::Retry { why: "no connection".to_owned(), after: None },
            _ => Response::Retry { why: lost.to_owned(), after: None },
        }
    }

    /// Returns a text of the provider without the key.
    fn redact(&self, text: &str) -> String {
        self.key.as_ref().map_or_else(|| text.to_owned(), |key| key.redact(text))
    }

    /// Returns the message of a refusal. After a refused key it is left out, since providers repeat a part of the key.
    fn message(&self, status: u16, body: &[u8]) -> String {
        if matches!(status, 401 | 403) {
            return ": it does not accept the key".to_owned();
        }
        if (300..400).contains(&status) {
            return ": Proctor follows no redirect".to_owned();
        }
        let Ok(body) = serde_json::from_slice::<Value>(body) else { return String::new() };
        let error = &body["error"];
        let Some(text) = error["message"].as_str().or_else(|| error.as_str()).or_else(|| body["message"].as_str())
        else {
            return String::new();
        };
        let text: String = self.redact(text).chars().take(MAX_MESSAGE_CHARS).collect();
        format!(": {}", escape_output(text.as_bytes()).replace('\n', " "))
    }
}

/// Returns whether an error of a connection comes from TLS.
fn is_tls_error(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|source| source.downcast_ref::<rustls::Error>().is_some())
}

fn is_loopback(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Returns the trusted certificate authorities: those in the file, or those of the system.
fn root_certificates(file: Option<&str>) -> Result<RootCerts, HttpError> {
    let Some(file) = file else { return Ok(RootCerts::PlatformVerifier) };
    let unreadable = |source| HttpError::Certificates { file: file.to_owned(), source };
    let pem = std::fs::read(file).map_err(unreadable)?;
    let certificates: Vec<_> = ureq::tls::parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        return Err(unreadable(io::Error::other("there is no certificate in PEM format")));
    }
    Ok(RootCerts::Specific(Arc::new(certificates)))
}

/// Returns a header with a secret value, which libraries do not print.
pub(super) fn secret_header(name: &'static str, value: &str) -> Result<(HeaderName, HeaderValue), HttpError> {
    let mut value = HeaderValue::from_str(value).map_err(|_| HttpError::Header)?;
    value.set_sensitive(true);
    Ok((HeaderName::from_static(name), value))
}

//! Posts requests to the receiver. Every wait has a deadline, and every response is bounded. Redirects are not
//! followed, because the headers are meant for one receiver only.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message as _;
use ureq::Agent;
use ureq::tls::{PemItem, RootCerts, TlsConfig};

use super::export_target::ExportTarget;

/// Maximum number of bytes read of a response.
const MAX_RESPONSE_BYTES: u64 = 64 << 10;
/// Maximum delay that a receiver can request before the next attempt.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);
const PROTOBUF: &str = "application/x-protobuf";

/// Client of one receiver.
pub(super) struct OtlpSender {
    agent: Agent,
    target: ExportTarget,
}

/// Result of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SendResult {
    /// The receiver accepted the spans, except for rejected ones.
    Accepted {
        /// Number of spans that the receiver rejected.
        rejected: u64,
    },
    /// The receiver may accept the spans later.
    Retry {
        /// Reason why the receiver did not accept the spans at the moment.
        why: String,
        /// Delay that the receiver requested, if any.
        after: Option<Duration>,
    },
    /// The receiver does not accept the spans.
    Refused {
        /// Reason for the refusal.
        why: String,
    },
}

/// Reason why no requests can be sent.
#[derive(Debug, thiserror::Error)]
pub enum SenderError {
    /// The certificate file cannot be read.
    #[error("the certificates of `OTEL_EXPORTER_OTLP_CERTIFICATE` cannot be read: {0}")]
    Unreadable(#[source] std::io::Error),
    /// The certificate file contains no certificate.
    #[error("the file of `OTEL_EXPORTER_OTLP_CERTIFICATE` contains no certificate in PEM format")]
    NoCertificate,
}

impl OtlpSender {
    /// Creates a client of a receiver. Sends nothing yet.
    pub(super) fn new(target: &ExportTarget) -> Result<Self, SenderError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = TlsConfig::builder()
            .root_certs(root_certificates(target)?)
            .unversioned_rustls_crypto_provider(provider)
            .build();
        let config = Agent::config_builder()
            .tls_config(tls)
            .timeout_global(Some(target.timeout))
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .user_agent(concat!("proctor/", env!("CARGO_PKG_VERSION")));
        let config = if target.is_local() { config.proxy(None) } else { config };
        Ok(Self { agent: config.build().into(), target: target.clone() })
    }

    /// Posts a request on a blocking thread.
    pub(super) async fn send(self: &Arc<Self>, request: Vec<u8>) -> SendResult {
        let sender = Arc::clone(self);
        let posted = tokio::task::spawn_blocking(move || sender.post(&request)).await;
        posted.unwrap_or_else(|error| SendResult::Refused { why: format!("the export failed unexpectedly: {error}") })
    }

    fn post(&self, request: &[u8]) -> SendResult {
        let mut post = self.agent.post(&self.target.url).content_type(PROTOBUF);
        for (name, value) in &self.target.headers {
            post = post.header(name, value);
        }
        let receiver = self.target.receiver();
        let mut answer = match post.send(request) {
            Ok(answer) => answer,
            Err(error) => {
                return SendResult::Retry { why: format!("{receiver}: {}", error_reason(&error)), after: None };
            }
        };
        let status = answer.status().as_u16();
        let header = |name| answer.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (after, content) = (header("retry-after"), header("content-type").unwrap_or_default());
        let body = answer.body_mut().with_config().limit(MAX_RESPONSE_BYTES).read_to_vec();
        interpret_response(&receiver, status, after.as_deref(), &content, body)
    }
}

/// Interprets a response as OTLP defines it.
fn interpret_response(
    receiver: &str,
    status: u16,
    after: Option<&str>,
    content: &str,
    body: Result<Vec<u8>, ureq::Error>,
) -> SendResult {
    match (status, body) {
        (200..=299, Ok(body)) => match rejected_spans(content, &body) {
            Some(rejected) => SendResult::Accepted { rejected },
            None => SendResult::Refused { why: format!("the answer of {receiver} is not OTLP over HTTP") },
        },
        (200..=299, Err(error)) => {
            SendResult::Refused { why: format!("{receiver}: the answer cannot be read: {}", error_reason(&error)) }
        }
        (429 | 502 | 503 | 504, _) => {
            let after = after.and_then(|seconds| seconds.trim().parse().ok()).map(Duration::from_secs);
            let after = after.map(|after| after.min(MAX_RETRY_AFTER));
            SendResult::Retry { why: format!("{receiver} returned status {status}"), after }
        }
        (status, _) => SendResult::Refused { why: format!("{receiver} returned status {status}") },
    }
}

/// Returns the number of rejected spans, or `None` if the response is invalid.
fn rejected_spans(content: &str, body: &[u8]) -> Option<u64> {
    if content.starts_with("application/json") {
        return Some(0);
    }
    let answer = ExportTraceServiceResponse::decode(body).ok()?;
    Some(answer.partial_success.map_or(0, |partial| u64::try_from(partial.rejected_spans).unwrap_or_default()))
}

/// Describes a connection error briefly. The text contains no address beyond the host.
fn error_reason(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Timeout(_) => "no answer in time".to_owned(),
        ureq::Error::Io(error) => error.to_string(),
        ureq::Error::HostNotFound => "there is no such host".to_owned(),
        ureq::Error::ConnectionFailed => "no connection".to_owned(),
        ureq::Error::Rustls(error) => format!("TLS: {error}"),
        ureq::Error::BodyExceedsLimit(_) => "the answer is too long".to_owned(),
        _ => "the answer is not HTTP, or the connection was lost".to_owned(),
    }
}

/// Returns the trusted certificate authorities: those in the file, or those of the system.
fn root_certificates(target: &ExportTarget) -> Result<RootCerts, SenderError> {
    let Some(file) = &target.certificates else { return Ok(RootCerts::PlatformVerifier) };
    let pem = std::fs::read(file).map_err(SenderError::Unreadable)?;
    let certificates: Vec<_> = ureq::tls::parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        return Err(SenderError::NoCertificate);
    }
    Ok(RootCerts::Specific(Arc::new(certificates)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTracePartialSuccess;

    fn interpret(status: u16, after: Option<&str>, content: &str, body: &[u8]) -> SendResult {
        interpret_response("http://c", status, after, content, Ok(body.to_vec()))
    }

    #[test]
    fn reads_number_of_rejected_spans() {
        let partial = ExportTracePartialSuccess { rejected_spans: 3, error_message: "too many".into() };
        let partial = ExportTraceServiceResponse { partial_success: Some(partial) }.encode_to_vec();
        assert_eq!(interpret(200, None, PROTOBUF, b""), SendResult::Accepted { rejected: 0 });
        assert_eq!(interpret(200, None, PROTOBUF, &partial), SendResult::Accepted { rejected: 3 });
        assert_eq!(
            interpret(202, None, "application/json; charset=utf-8", b"{}"),
            SendResult::Accepted { rejected: 0 }
        );
    }

    #[test]
    fn refuses_responses_that_are_not_otlp() {
        assert!(matches!(interpret(200, None, "text/html", b"<!doctype html><html>"), SendResult::Refused { .. }));
        assert!(matches!(interpret(302, None, "", b""), SendResult::Refused { .. }));
        assert!(matches!(interpret(404, None, "", b""), SendResult::Refused { .. }));
        let unread = interpret_response("http://c", 200, None, "", Err(ureq::Error::Timeout(ureq::Timeout::Global)));
        assert!(matches!(unread, SendResult::Refused { why } if why.contains("no answer in time")));
    }

    #[test]
    fn retries_when_receiver_is_busy() {
        let after = |status, after| match interpret(status, after, "", b"") {
            SendResult::Retry { after, .. } => Some(after),
            _ => None,
        };
        assert_eq!([429, 502, 503, 504].map(|status| after(status, None)), [Some(None); 4]);
        assert_eq!(after(503, Some("7")), Some(Some(Duration::from_secs(7))));
        assert_eq!(after(503, Some("86400")), Some(Some(MAX_RETRY_AFTER)));
        assert_eq!(after(503, Some("Fri, 31 Dec 1999 23:59:59 GMT")), Some(None));
        assert_eq!(after(500, None), None);
    }
}

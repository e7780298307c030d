//! Cancels calls over HTTP when the client sends a cancellation message, as in protocol revisions before 2026-07-28.
//!
//! Connections are stateless, so such a client gets a session id when it starts. The session id and the request id
//! identify the call. Nothing else is stored, and only while the call is active.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use proctor_core::api::{Problem, ProblemType};
use proctor_core::spec::quoted;
use rmcp::RoleServer;
use rmcp::service::RequestContext;
use serde::Deserialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tower::{Service, ServiceExt as _};

use super::rpc_message::{self, InvalidRpcMessage};
use super::untrusted::one_line;
use crate::caller::Caller;
use crate::http::{problem_response, read_body};

/// Header with the session id.
const SESSION_HEADER: HeaderName = HeaderName::from_static("mcp-session-id");
/// Maximum length of an accepted session id in bytes; generated ones are shorter.
const MAX_SESSION_ID: usize = 64;

/// The active calls that can be cancelled by a message.
#[derive(Debug, Clone, Default)]
pub(super) struct ActiveCalls(Arc<Mutex<HashMap<CallKey, CancellationToken>>>);

/// Identity of a call: caller, session and request id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct CallKey {
    caller: Caller,
    session: String,
    /// As JSON, so that `1` and `"1"` differ.
    request_id: String,
}

/// An active call; dropping it removes the call from `ActiveCalls`.
#[derive(Debug)]
pub(super) struct ActiveCall {
    calls: ActiveCalls,
    key: CallKey,
}

impl Drop for ActiveCall {
    fn drop(&mut self) {
        self.calls.lock().remove(&self.key);
    }
}

impl ActiveCalls {
    fn lock(&self) -> MutexGuard<'_, HashMap<CallKey, CancellationToken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a call of a client with a session; returns `None` for a client without one.
    pub(super) fn register(&self, context: &RequestContext<RoleServer>) -> Option<ActiveCall> {
        let parts = context.extensions.get::<http::request::Parts>()?;
        let caller = *parts.extensions.get::<Caller>()?;
        let request = serde_json::to_string(&context.id).ok()?;
        let key = CallKey { caller, session: session_id(&parts.headers)?, request_id: request };
        self.lock().insert(key.clone(), context.ct.clone());
        Some(ActiveCall { calls: self.clone(), key })
    }

    fn cancel(&self, key: &CallKey) {
        if let Some(call) = self.lock().get(key) {
            call.cancel();
        }
    }
}

fn session_id(headers: &HeaderMap) -> Option<String> {
    let name = headers.get(&SESSION_HEADER)?.to_str().ok()?;
    (name.len() <= MAX_SESSION_ID).then(|| name.to_owned())
}

/// The relevant fields of a message.
#[derive(Debug, Default, Deserialize)]
struct CallMessage {
    #[serde(default)]
    method: String,
    #[serde(default)]
    params: Value,
}

/// MCP over HTTP with support for cancellation messages.
#[derive(Clone)]
pub struct CancellableService<S> {
    inner: S,
    calls: ActiveCalls,
}

impl<S> CancellableService<S> {
    /// Wraps `inner`, whose active calls are registered in `calls`.
    pub(super) fn new(inner: S, calls: ActiveCalls) -> Self {
        Self { inner, calls }
    }
}

/// Response of the SDK.
type SdkResponse = http::Response<BoxBody<Bytes, Infallible>>;

impl<S> Service<Request<Body>> for CancellableService<S>
where
    S: Service<Request<Full<Bytes>>, Response = SdkResponse, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (inner, calls) = (self.inner.clone(), self.calls.clone());
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = match read_body(body).await {
                Ok(body) => body,
                Err(reason) => return Ok(problem_response(&reason)),
            };
            let message = match parts.method {
                Method::POST => match rpc_message::parse_message(&body) {
                    Ok(_) => serde_json::from_slice(&body).unwrap_or_default(),
                    Err(fault) if is_json(&parts.headers) => return Ok(invalid_message_response(&fault)),
                    Err(_) => CallMessage::default(),
                },
                _ => CallMessage::default(),
            };
            let method = parts.method.clone();
            if let Some(key) = cancelled_call(&parts, &message) {
                calls.cancel(&key);
            }
            let mut answered = inner.oneshot(Request::from_parts(parts, Full::new(body))).await?;
            if message.method == "initialize" && answered.status().is_success() {
                answered.headers_mut().extend(new_session_id().map(|name| (SESSION_HEADER, name)));
            }
            Ok(into_problem_response(&method, answered).await)
        })
    }
}

/// Returns whether the content type of a body is JSON.
fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

/// Returns the response to an invalid message.
fn invalid_message_response(fault: &InvalidRpcMessage) -> Response {
    let mut response = Response::new(Body::from(fault.to_response()));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Converts an error that the SDK returns as plain text to a problem, as on all other routes.
async fn into_problem_response(method: &Method, answered: SdkResponse) -> Response {
    let status = answered.status();
    let is_error = status.is_client_error() || status.is_server_error();
    if !is_error || is_json(answered.headers()) {
        return answered.map(Body::new);
    }
    let (parts, body) = answered.into_parts();
    let text = match body.collect().await {
        Ok(body) => String::from_utf8_lossy(&body.to_bytes()).into_owned(),
        Err(never) => match never {},
    };
    let mut response = problem_response(&sdk_error_problem(method, status, &text));
    if let Some(allowed) = parts.headers.get(ALLOW) {
        response.headers_mut().insert(ALLOW, allowed.clone());
    }
    response
}

fn sdk_error_problem(method: &Method, status: StatusCode, text: &str) -> Problem {
    let text = one_line(text);
    match status {
        StatusCode::FORBIDDEN => {
            Problem::new(ProblemType::Forbidden, text).with_hint("send no `Origin`, and `localhost` as `Host`")
        }
        StatusCode::NOT_FOUND => Problem::new(ProblemType::NotFound, text),
        StatusCode::METHOD_NOT_ALLOWED => {
            Problem::new(ProblemType::MethodNotAllowed, format!("`/mcp` is not for {}", quoted(method.as_str())))
                .with_hint("send each message by `POST`")
        }
        StatusCode::NOT_ACCEPTABLE => Problem::new(ProblemType::NotAcceptable, "an answer of `/mcp` is JSON or events")
            .with_hint("send `Accept: application/json, text/event-stream`"),
        StatusCode::PAYLOAD_TOO_LARGE => Problem::new(ProblemType::TooLarge, text),
        StatusCode::UNSUPPORTED_MEDIA_TYPE => {
            Problem::new(ProblemType::UnsupportedMediaType, "a message of `/mcp` is JSON")
                .with_hint("send `Content-Type: application/json`")
        }
        status if status.is_client_error() => Problem::new(ProblemType::InvalidRequest, text),
        _ => Problem::new(ProblemType::Internal, text),
    }
}

/// Returns the call that a message cancels.
fn cancelled_call(parts: &http::request::Parts, message: &CallMessage) -> Option<CallKey> {
    let is_it = message.method == "notifications/cancelled";
    let request = is_it.then(|| message.params.get("requestId"))??.to_string();
    Some(CallKey {
        caller: *parts.extensions.get::<Caller>()?,
        session: session_id(&parts.headers)?,
        request_id: request,
    })
}

/// Generates a unique session id. Without random numbers from the system, there are no sessions.
fn new_session_id() -> Option<HeaderValue> {
    let mut bytes = [0; 16];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).ok()?;
    let name: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    (filled == bytes.len()).then(|| HeaderValue::try_from(name).ok())?
}

#[cfg(test)]
mod tests {
    use tower::service_fn;

    use super::*;
    use crate::http::MAX_BODY;

    #[tokio::test]
    async fn rejects_large_or_ambiguous_message() {
        async fn accepted(_: Request<Full<Bytes>>) -> Result<SdkResponse, Infallible> {
            Ok(http::Response::new(BoxBody::default()))
        }
        let server = || CancellableService::new(service_fn(accepted), ActiveCalls::default());
        const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
        let message = |size: usize| format!("{}{PING}", " ".repeat(size - PING.len()));
        let sized = |size: usize| Request::post("/mcp").body(Body::from(message(size))).expect("a request");
        assert_eq!(server().oneshot(sized(MAX_BODY)).await.expect("an answer").status(), 200);
        let refused = server().oneshot(sized(MAX_BODY + 1)).await.expect("an answer");
        assert_eq!(refused.status(), ProblemType::TooLarge.status());
        assert_eq!(refused.headers()[http::header::CONTENT_TYPE], "application/problem+json");
        let twice =
            Request::post("/mcp").header(CONTENT_TYPE, "application/json").body(Body::from(r#"{"id":1,"id":2}"#));
        let answered = server().oneshot(twice.expect("a request")).await.expect("an answer");
        assert_eq!(
            (answered.status(), &answered.headers()[CONTENT_TYPE]),
            (StatusCode::BAD_REQUEST, &HeaderValue::from_static("application/json"))
        );
    }

    #[tokio::test]
    async fn converts_sdk_errors_to_problems() {
        for status in [400, 403, 404, 405, 406, 413, 415, 500] {
            let answered = move |_: Request<Full<Bytes>>| {
                let body = BoxBody::new(Full::new(Bytes::from_static(b"Bare Text")));
                let mut response = http::Response::new(body);
                *response.status_mut() = StatusCode::from_u16(status).expect("a status");
                response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
                std::future::ready(Ok::<SdkResponse, Infallible>(response))
            };
            let server = CancellableService::new(service_fn(answered), ActiveCalls::default());
            let request = Request::get("/mcp").body(Body::empty()).expect("a request");
            let response = server.oneshot(request).await.expect("an answer");
            assert_eq!(response.status(), status);
            assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
            assert_eq!(response.headers()[ALLOW], "POST");
            let body = response.into_body().collect().await.expect("a body").to_bytes();
            let problem: Problem = serde_json::from_slice(&body).expect("a problem");
            assert_eq!(problem.status, status);
        }
    }
}

//! Calls over HTTP that are called off by a message of its own, as revisions before 2026-07-28 have it. A
//! connection has no memory, so such a client is given a name for its session when it begins; with that
//! name and the request's id the call is found. Nothing else is kept, and only while the call goes on.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Method, Request};
use http_body_util::Full;
use http_body_util::combinators::BoxBody;
use rmcp::RoleServer;
use rmcp::service::RequestContext;
use serde::Deserialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tower::{Service, ServiceExt as _};

use crate::caller::Caller;
use crate::http::{problem, unambiguous, whole};

/// The header that names a session.
const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
/// The longest name of a session that is looked at, in bytes; ours are shorter.
const MAX_NAME: usize = 64;

/// The calls that may be called off so.
#[derive(Debug, Clone, Default)]
pub(super) struct Calls(Arc<Mutex<HashMap<Key, CancellationToken>>>);

/// Whose call, in which session, by which id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    caller: Caller,
    session: String,
    /// As JSON: `1` and `"1"` are two.
    request: String,
}

/// A call under way; it is forgotten when this is dropped.
#[derive(Debug)]
pub(super) struct UnderWay {
    calls: Calls,
    key: Key,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.calls.held().remove(&self.key);
    }
}

impl Calls {
    fn held(&self) -> MutexGuard<'_, HashMap<Key, CancellationToken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a call of a client that has a session; `None` where it has none.
    pub(super) fn begin(&self, context: &RequestContext<RoleServer>) -> Option<UnderWay> {
        let parts = context.extensions.get::<http::request::Parts>()?;
        let caller = *parts.extensions.get::<Caller>()?;
        let request = serde_json::to_string(&context.id).ok()?;
        let key = Key { caller, session: session(&parts.headers)?, request };
        self.held().insert(key.clone(), context.ct.clone());
        Some(UnderWay { calls: self.clone(), key })
    }

    fn call_off(&self, key: &Key) {
        if let Some(call) = self.held().get(key) {
            call.cancel();
        }
    }
}

fn session(headers: &HeaderMap) -> Option<String> {
    let name = headers.get(&SESSION)?.to_str().ok()?;
    (name.len() <= MAX_NAME).then(|| name.to_owned())
}

/// What a message is, as far as it matters here.
#[derive(Debug, Default, Deserialize)]
struct Message {
    #[serde(default)]
    method: String,
    #[serde(default)]
    params: Value,
}

/// The protocol over HTTP, where calls can be called off by a message.
#[derive(Clone)]
pub struct Cancellable<S> {
    inner: S,
    calls: Calls,
}

impl<S> Cancellable<S> {
    /// `inner`, whose calls are remembered in `calls`.
    pub(super) fn new(inner: S, calls: Calls) -> Self {
        Self { inner, calls }
    }
}

/// What the SDK answers.
type Answered = http::Response<BoxBody<Bytes, Infallible>>;

impl<S> Service<Request<Body>> for Cancellable<S>
where
    S: Service<Request<Full<Bytes>>, Response = Answered, Error = Infallible> + Clone + Send + 'static,
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
            let body = match whole(body).await {
                Ok(body) => body,
                Err(reason) => return Ok(problem(&reason)),
            };
            let message = match parts.method {
                Method::POST => match unambiguous(&body) {
                    Ok(()) => serde_json::from_slice(&body).unwrap_or_default(),
                    Err(reason) => return Ok(problem(&reason)),
                },
                _ => Message::default(),
            };
            if let Some(key) = called_off(&parts, &message) {
                calls.call_off(&key);
            }
            let mut answered = inner.oneshot(Request::from_parts(parts, Full::new(body))).await?;
            if message.method == "initialize" && answered.status().is_success() {
                answered.headers_mut().extend(new_session().map(|name| (SESSION, name)));
            }
            Ok(answered.map(Body::new))
        })
    }
}

/// The call that a message calls off.
fn called_off(parts: &http::request::Parts, message: &Message) -> Option<Key> {
    let is_it = message.method == "notifications/cancelled";
    let request = is_it.then(|| message.params.get("requestId"))??.to_string();
    Some(Key { caller: *parts.extensions.get::<Caller>()?, session: session(&parts.headers)?, request })
}

/// A name that no other session has; a system without random numbers has no sessions.
fn new_session() -> Option<HeaderValue> {
    let mut bytes = [0; 16];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).ok()?;
    let name: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    (filled == bytes.len()).then(|| HeaderValue::try_from(name).ok())?
}

#[cfg(test)]
mod tests {
    use proctor_core::api::ProblemType;
    use tower::service_fn;

    use super::*;
    use crate::http::MAX_BODY;

    #[tokio::test]
    async fn a_message_that_is_too_large_or_that_readers_differ_on_is_a_problem() {
        async fn accepted(_: Request<Full<Bytes>>) -> Result<Answered, Infallible> {
            Ok(http::Response::new(BoxBody::default()))
        }
        let server = || Cancellable::new(service_fn(accepted), Calls::default());
        let message = |size: usize| format!("{}{{}}", " ".repeat(size - 2));
        let sized = |size: usize| Request::post("/mcp").body(Body::from(message(size))).expect("a request");
        assert_eq!(server().oneshot(sized(MAX_BODY)).await.expect("an answer").status(), 200);
        let refused = server().oneshot(sized(MAX_BODY + 1)).await.expect("an answer");
        assert_eq!(refused.status(), ProblemType::TooLarge.status());
        assert_eq!(refused.headers()[http::header::CONTENT_TYPE], "application/problem+json");
        let twice = Request::post("/mcp").body(Body::from(r#"{"id":1,"id":2}"#)).expect("a request");
        assert_eq!(server().oneshot(twice).await.expect("an answer").status(), 400);
    }
}

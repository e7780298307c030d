//! Calls over HTTP that are called off by a message of its own, as revisions before 2026-07-28 have it. A
//! connection has no memory, so such a client is given a name for its session when it begins; with that
//! name and the request's id the call is found. Nothing else is kept, and only while the call goes on.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, Limited};
use rmcp::RoleServer;
use rmcp::service::RequestContext;
use serde::Deserialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tower::{Service, ServiceExt as _};

use super::MAX_MESSAGE;
use crate::caller::Caller;

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

type Answered = Response<BoxBody<Bytes, Infallible>>;

impl<S> Service<Request<Body>> for Cancellable<S>
where
    S: Service<Request<Full<Bytes>>, Response = Answered, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Answered;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Answered, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (inner, calls) = (self.inner.clone(), self.calls.clone());
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let Ok(body) = Limited::new(body, MAX_MESSAGE).collect().await else { return Ok(too_large()) };
            let body = body.to_bytes();
            let message = match parts.method {
                Method::POST => serde_json::from_slice(&body).unwrap_or_default(),
                _ => Message::default(),
            };
            if let Some(key) = called_off(&parts, &message) {
                calls.call_off(&key);
            }
            let mut answered = inner.oneshot(Request::from_parts(parts, Full::new(body))).await?;
            if message.method == "initialize" && answered.status().is_success() {
                answered.headers_mut().extend(new_session().map(|name| (SESSION, name)));
            }
            Ok(answered)
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

fn too_large() -> Answered {
    let text = Full::new(Bytes::from_static(b"the message is too large, or did not arrive")).boxed();
    let mut response = Response::new(text);
    *response.status_mut() = StatusCode::PAYLOAD_TOO_LARGE;
    response
}

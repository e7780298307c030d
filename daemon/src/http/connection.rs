//! Serves the requests of one connection in order. The connection ends when the client closes it, when a deadline
//! expires, when it is evicted, or when the transport stops.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use futures_util::FutureExt as _;
use http::Version;
use http::header::{EXPECT, HOST};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use proctor_core::api::{Problem, ProblemType};
use proctor_runner::QuietStream;
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;
use tracing::{debug, warn};

use super::client_stream::{ClientStream, head_too_large};
use super::connection_state::ConnectionState;
use super::limited_body::LimitedRequestBody;
use super::limits::{MAX_HEAD, SHUTDOWN_GRACE};
use super::memory_budget::MemoryBudgets;
use super::metered_body::MeteredBody;
use super::response;
use super::routes::MatchedRoute;
use crate::caller::Caller;
use crate::metrics::{ConnectionGuard, Metrics};

/// State of the transport that a connection uses.
#[derive(Clone)]
pub(super) struct ConnectionContext {
    pub(super) router: Router,
    pub(super) metrics: Metrics,
    pub(super) stop: CancellationToken,
    pub(super) memory_budgets: MemoryBudgets,
    pub(super) request_timeout: Duration,
}

/// Serves a connection until it ends.
pub(super) async fn serve(
    context: ConnectionContext,
    stream: UnixStream,
    state: Arc<ConnectionState>,
    connected: ConnectionGuard,
) {
    let (request_timeout, stop) = (context.request_timeout, context.stop.clone());
    let stream = match stream.into_std().and_then(QuietStream::new) {
        Ok(stream) => stream,
        Err(error) => {
            warn!(uid = state.uid(), "a connection cannot be registered and is closed: {error}");
            return;
        }
    };
    let wire = TokioIo::new(ClientStream::new(stream, Arc::clone(&state), request_timeout));
    let answering = service_fn({
        let state = Arc::clone(&state);
        move |request| respond(context.clone(), Arc::clone(&state), request)
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(request_timeout).max_buf_size(MAX_HEAD);
    let mut connection = pin!(builder.serve_connection(wire, answering));
    let ended = tokio::select! {
        ended = &mut connection => Some(ended),
        () = state.wait_for_eviction() => None,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = timeout(SHUTDOWN_GRACE, &mut connection) => ended.ok(),
                () = state.wait_for_eviction() => None,
            }
        }
    };
    if let Some(Err(error)) = ended {
        debug!(uid = state.uid(), "a connection ended early: {error}");
    }
    drop(connected);
}

async fn respond(
    context: ConnectionContext,
    state: Arc<ConnectionState>,
    request: hyper::Request<Incoming>,
) -> Result<hyper::Response<MeteredBody>, std::convert::Infallible> {
    let (began, turn) = (Instant::now(), state.begin_request());
    let (method, caller) = (request.method().clone(), Caller { uid: state.uid() });
    let rejected = head_problem(&request);
    let expects_continue = request.headers().contains_key(EXPECT);
    // Held until the response is ready, because the handler may keep the body until then.
    let budget = context.memory_budgets.reservation(caller);
    let mut request = request.map(|body| match body.is_end_stream() {
        true => Body::empty(),
        // A client that waits for `100 Continue` sends no body if it gets a response immediately.
        false => {
            Body::new(LimitedRequestBody::new(body, context.request_timeout, Arc::clone(&budget), !expects_continue))
        }
    });
    request.extensions_mut().insert(caller);
    let mut response = match rejected {
        Some(problem) => response::problem_response(&problem),
        None => route_request(context.router, request).await,
    };
    drop(budget);
    response::add_common_headers(response.headers_mut());
    let route = response.extensions_mut().remove::<MatchedRoute>().map(|MatchedRoute(path)| path);
    let (code, took) = (response.status().as_u16(), began.elapsed());
    context.metrics.observe_response(route, method.as_str(), code, took);
    let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    debug!(uid = state.uid(), method = method.as_str(), route = route.unwrap_or("none"), code, took_ms, "answered");
    Ok(response.map(|body| MeteredBody::new(body, turn)))
}

/// Checks the rules for a request head that `hyper` does not (RFC 9112, section 3.2): one `Host`, and the size limit.
fn head_problem<B>(request: &hyper::Request<B>) -> Option<Problem> {
    let hosts = request.headers().get_all(HOST).iter().count();
    if hosts > 1 || hosts == 0 && request.version() == Version::HTTP_11 {
        let detail = format!("an HTTP/1.1 request must have exactly one `Host`, but this one has {hosts}");
        return Some(Problem::new(ProblemType::InvalidRequest, detail).with_hint("send `Host: localhost`"));
    }
    let fields: usize = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    let line = request.method().as_str().len() + request.uri().to_string().len();
    (fields + line > MAX_HEAD).then(|| head_too_large(&format!("is larger than {MAX_HEAD} bytes, the maximum")))
}

/// Routes a request. A panic of a handler, which is logged, ends only its own request.
async fn route_request(router: Router, request: Request) -> Response {
    match AssertUnwindSafe(router.oneshot(request)).catch_unwind().await {
        Ok(Ok(response)) => response,
        Ok(Err(never)) => match never {},
        Err(_) => {
            let problem =
                Problem::new(ProblemType::Internal, "a bug in proctor ended this request; the log has more details");
            response::problem_response(&problem)
        }
    }
}

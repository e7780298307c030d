//! HTTP/1.1 over a Unix socket: converts requests to calls of the service, and results to responses.
//!
//! Each wait for a client has a deadline, and the memory used for each client is bounded, so no client can block
//! another. [`crate::service`] decides the content of responses; [`proctor_core::api::operation`] defines the
//! operations.

mod accept_loop;
mod byte_range;
mod client_stream;
mod connection;
mod connection_state;
mod document_limit;
mod event_stream;
mod exec_response;
mod handlers;
mod limited_body;
mod memory_budget;
mod metered_body;
mod output_response;
mod query_parameters;
mod repoll;
mod request_body;
mod request_head;
mod response;
mod routes;

#[cfg(test)]
mod tests;

use std::io;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::service::Service;
use crate::settings::ResolvedSettings;
pub(crate) use output_response::{ATTEMPT_HEADER, OUTPUT_STATE_HEADER};

use accept_loop::AcceptLoop;
use document_limit::DocumentLimit;
use routes::AppState;

pub(crate) use request_body::{read_body, reject_duplicate_keys};
pub(crate) use response::{problem_response, raw_problem_response};

/// Maximum size of a request body in bytes.
pub const MAX_BODY: usize = 1 << 20;
/// Maximum size of a request body for SQL: the default `input` of 1 MiB and a schema, escaped as JSON.
pub const MAX_SQL_BODY: usize = 4 << 20;
/// Maximum size of a request head in bytes, and of the response bytes buffered for a slow reader.
const MAX_HEAD: usize = 64 << 10;
/// Maximum number of bytes discarded from a request that was answered before it was completely read. Most clients
/// send the whole request before they read the response, and fail if the connection is closed earlier.
const MAX_DISCARDED: usize = 8 << 20;
/// Maximum pause of a client while the rest of its request is discarded.
const DISCARD_PAUSE: Duration = Duration::from_secs(2);
/// Maximum number of header fields in a request: the default of `hyper`.
const MAX_FIELDS: usize = 100;
/// Time for active responses to end when the transport is stopped. It is shorter than the time for which the daemon
/// waits for the transport.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(4);

/// Accepts connections and serves requests until `stop`, then waits briefly for active responses.
///
/// `settings` determine who may connect, the number of connections, and the request timeout; changes apply to new
/// connections. When `listener` changes, the new socket is used immediately.
///
/// # Errors
/// The listener cannot be used.
pub async fn serve(
    listener: watch::Receiver<Arc<UnixListener>>,
    service: Arc<Service>,
    settings: watch::Receiver<Arc<ResolvedSettings>>,
    stop: CancellationToken,
    metrics: Metrics,
) -> io::Result<()> {
    let app =
        AppState { service, metrics: metrics.clone(), stop: stop.clone(), document_limit: DocumentLimit::default() };
    let router = routes::router(app);
    AcceptLoop::new(router, settings, stop, metrics).run(listener).await
}

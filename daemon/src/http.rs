//! HTTP/1.1 over a Unix socket: converts requests to calls of the service, and results to responses.
//!
//! Each wait for a client has a deadline, and the memory used for each client is bounded, so no client can block
//! another. [`crate::service`] decides the content of responses; [`proctor_core::api::operation`] defines the
//! operations.

mod accept_loop;
mod app_state;
mod ask_response;
mod byte_range;
mod client_stream;
mod connection;
mod connection_state;
mod document_limit;
mod event_stream;
mod exec_response;
mod handlers;
mod limited_body;
mod limits;
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

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::service::Service;
use crate::settings::ResolvedSettings;
pub(crate) use output_response::{ATTEMPT_HEADER, OUTPUT_STATE_HEADER};

use accept_loop::AcceptLoop;
use app_state::AppState;
use document_limit::DocumentLimit;

pub(crate) use limits::MAX_BODY;
pub(crate) use request_body::{read_body, reject_duplicate_keys};
pub(crate) use response::{problem_response, raw_problem_response};

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

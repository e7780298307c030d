//! HTTP/1.1 on a Unix socket: bytes become calls of the service, its answers become bytes. Each wait
//! for a client has a deadline, and what is kept for one has a bound; no client can keep another
//! from being answered. What an answer says is decided by [`crate::service`], what can be asked for
//! stands in [`proctor_core::api::operation`].

mod answer;
mod asked;
mod body;
mod connection;
mod connections;
mod documents;
mod events;
mod handlers;
mod metered;
mod output;
mod query;
mod range;
mod room;
mod routes;
mod seat;
mod timed;
mod wire;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::service::Service;
use crate::settings::Settings;
use connections::Connections;
use documents::Documents;
use routes::App;

pub(crate) use answer::problem;
pub(crate) use body::{unambiguous, whole};

/// How many bytes the body of a request has at most.
pub const MAX_BODY: usize = 1 << 20;
/// How many bytes the head of a request has at most, and how many bytes of an answer are kept for
/// one that reads slowly.
const MAX_HEAD: usize = 64 << 10;
/// How long answers may take that are under way when the transport is told to end: less than the daemon
/// waits for the transport.
const LAST_ANSWERS: Duration = Duration::from_secs(4);

/// Accepts connections and answers what they ask, until `stop`; then gives answers that are under
/// way a moment to end. `settings` say who may connect, how many connections there are, and how
/// long a client may take; a change holds for connections that come after it.
pub async fn serve(
    listener: UnixListener,
    service: Arc<Service>,
    settings: watch::Receiver<Arc<Settings>>,
    stop: CancellationToken,
    metrics: Metrics,
) {
    let app = App { service, metrics: metrics.clone(), stop: stop.clone(), documents: Documents::default() };
    let router = routes::router(app);
    Connections::new(router, settings, stop, metrics).accept(listener).await;
}

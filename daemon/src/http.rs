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
mod exec;
mod handlers;
mod metered;
mod output;
mod query;
mod range;
mod repoll;
mod room;
mod routes;
mod seat;
mod timed;
mod wire;

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
use crate::settings::Settings;
pub(crate) use output::{ATTEMPT, OUTPUT_STATE};

use connections::Connections;
use documents::Documents;
use routes::App;

pub(crate) use answer::{last_words, problem};
pub(crate) use body::{repeated_key, whole};

/// How many bytes the body of a request has at most.
pub const MAX_BODY: usize = 1 << 20;
/// The largest body of a request for SQL: its default `input` of 1 MiB beside a schema, escaped as JSON.
pub const MAX_SQL_BODY: usize = 4 << 20;
/// How many bytes the head of a request has at most, and how many bytes of an answer are kept for
/// one that reads slowly.
const MAX_HEAD: usize = 64 << 10;
/// How many bytes of a request are discarded that is answered before it was read to its end. Most clients send all of
/// it before they read the answer, and break where the connection is closed meanwhile.
const MAX_DISCARDED: usize = 8 << 20;
/// How long a client that was answered is waited for while it sends nothing of what is discarded.
const LINGER: Duration = Duration::from_secs(2);
/// How many fields the head of a request has at most: the default of `hyper`.
const MAX_FIELDS: usize = 100;
/// How long answers may take that are under way when the transport is told to end: less than the daemon
/// waits for the transport.
const LAST_ANSWERS: Duration = Duration::from_secs(4);

/// Accepts connections and answers what they ask, until `stop`; then gives answers that are under
/// way a moment to end. `settings` say who may connect, how many connections there are, and how
/// long a client may take; a change holds for connections that come after it. Accepts from a new
/// `listener` as soon as there is one.
///
/// # Errors
/// The listener cannot be used.
pub async fn serve(
    listener: watch::Receiver<Arc<UnixListener>>,
    service: Arc<Service>,
    settings: watch::Receiver<Arc<Settings>>,
    stop: CancellationToken,
    metrics: Metrics,
) -> io::Result<()> {
    let app = App { service, metrics: metrics.clone(), stop: stop.clone(), documents: Documents::default() };
    let router = routes::router(app);
    Connections::new(router, settings, stop, metrics).accept(listener).await
}

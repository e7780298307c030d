//! Runs the transport. If it ends unexpectedly, which only a bug can cause, it is restarted on the same socket.

use std::io;
use std::os::unix::net::UnixListener as StdListener;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::error;

use crate::http;
use crate::metrics::Metrics;
use crate::service::Service;
use crate::settings::ResolvedSettings;

/// Delay before the transport is restarted, so that a bug does not keep a CPU busy.
const PAUSE: Duration = Duration::from_secs(1);

/// The running transport.
pub(super) struct TransportTask(JoinHandle<()>);

/// Parts of the daemon that the transport uses.
pub(super) struct TransportParts {
    pub(super) listener: watch::Receiver<Arc<StdListener>>,
    pub(super) service: Arc<Service>,
    pub(super) settings: watch::Receiver<Arc<ResolvedSettings>>,
    pub(super) stop: CancellationToken,
    pub(super) metrics: Metrics,
}

impl TransportTask {
    /// Starts to accept connections.
    pub(super) fn start(parts: TransportParts) -> Self {
        Self(tokio::spawn(parts.serve()))
    }

    /// Completes after the last response.
    pub(super) async fn wait(self) {
        // A panic was already logged.
        let _ = self.0.await;
    }
}

impl TransportParts {
    async fn serve(self) {
        loop {
            if let Err(error) = self.serve_once().await {
                error!("cannot listen on the socket: {error}");
            }
            if self.stop.is_cancelled() {
                return;
            }
            error!("the daemon unexpectedly stopped accepting connections; it starts again in {PAUSE:?}");
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                () = self.stop.cancelled() => return,
            }
        }
    }

    async fn serve_once(&self) -> io::Result<()> {
        let (service, settings) = (Arc::clone(&self.service), self.settings.clone());
        let (listener, stop, metrics) = (self.listener.clone(), self.stop.clone(), self.metrics.clone());
        let serving = http::serve(listener, service, settings, stop, metrics);
        // A separate task confines a panic, which the panic hook logs.
        tokio::spawn(serving).await.unwrap_or(Ok(()))
    }
}

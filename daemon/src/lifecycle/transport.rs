//! Runs the transport. If it ends unexpectedly, which only a bug can cause, it is restarted on the same socket.

use std::io;
use std::os::unix::net::UnixListener as StdListener;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::error;

use super::RunningDaemon;
use crate::http;
use crate::metrics::Metrics;
use crate::service::Service;
use crate::settings::ResolvedSettings;

/// Delay before the transport is restarted, so that a bug does not keep a CPU busy.
const PAUSE: Duration = Duration::from_secs(1);

/// The running transport.
pub(super) struct TransportTask(JoinHandle<()>);

struct TransportParts {
    listener: watch::Receiver<Arc<StdListener>>,
    service: Arc<Service>,
    settings: watch::Receiver<Arc<ResolvedSettings>>,
    stop: CancellationToken,
    metrics: Metrics,
}

impl TransportTask {
    /// Starts to accept connections.
    pub(super) fn start(daemon: &RunningDaemon, stop: CancellationToken) -> Self {
        let serving = TransportParts {
            listener: daemon.listener.subscribe(),
            service: Arc::clone(&daemon.service),
            settings: daemon.settings.subscribe(),
            stop,
            metrics: daemon.metrics.clone(),
        };
        Self(tokio::spawn(serving.serve()))
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

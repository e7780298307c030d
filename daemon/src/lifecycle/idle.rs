//! Detects when the daemon is not needed any more, and returns unused memory to the system.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use crate::metrics::ConnectionCount;
use crate::service::Service;
use crate::settings::ResolvedSettings;

/// Completes when there has been no run and no connection for `idle_exit`; never if that is not configured. After a
/// reload, the time starts again.
pub(super) async fn wait_until_idle(
    service: &Service,
    connections: watch::Receiver<ConnectionCount>,
    mut settings: watch::Receiver<Arc<ResolvedSettings>>,
) {
    loop {
        let limit = settings.borrow_and_update().operator.daemon.idle_exit;
        let idle = async {
            match limit {
                Some(limit) => {
                    wait_without_connections(connections.clone(), async || service.wait_until_idle(limit).await).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = idle => return,
            Ok(()) = settings.changed() => {}
        }
    }
}

/// Time without activity before memory is returned to the system. Returning it takes some milliseconds, and new
/// activity would allocate it again.
const QUIET_PERIOD: Duration = Duration::from_secs(2);

/// Returns memory to the system after each period of activity. Never completes.
pub(super) async fn release_memory_when_idle(service: &Service, mut connections: watch::Receiver<ConnectionCount>) {
    loop {
        // Idle connections do not prevent the daemon from being idle.
        service.wait_until_idle(QUIET_PERIOD).await;
        while let Ok(Ok(())) = timeout(QUIET_PERIOD, connections.changed()).await {}
        if tokio::task::spawn_blocking(proctor_runner::trim_memory).await.is_err() {
            tracing::error!("releasing memory failed unexpectedly");
        }
        tokio::select! {
            () = service.wait_until_busy() => {}
            // Waits only for changes that follow this call.
            changed = connections.changed() => if changed.is_err() { std::future::pending::<()>().await },
        }
    }
}

/// Completes when `without_run` completes during a period without connections.
async fn wait_without_connections(mut connections: watch::Receiver<ConnectionCount>, without_run: impl AsyncFn()) {
    loop {
        let is_open = connections.borrow_and_update().open > 0;
        tokio::select! {
            () = without_run(), if !is_open => return,
            changed = connections.changed() => if changed.is_err() { return },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use tokio::time::{Instant, sleep, sleep_until};

    const LIMIT: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn idle_time_starts_after_last_connection() {
        let metrics = Metrics::new(0);
        let began = Instant::now();
        let connection = metrics.open_connection();
        let closing = async {
            sleep(Duration::from_secs(25)).await;
            drop(connection);
        };
        tokio::join!(wait_without_connections(metrics.subscribe_connections(), async || sleep(LIMIT).await), closing);
        assert_eq!(began.elapsed().as_secs(), 35);
    }

    /// A run starts after the last connection was closed and ends much later. The idle time must be free of both
    /// connections and runs.
    #[tokio::test(start_paused = true)]
    async fn idle_time_starts_after_last_run() {
        let metrics = Metrics::new(0);
        let began = Instant::now();
        let last_run = began + Duration::from_secs(21);
        let connection = metrics.open_connection();
        let closing = async {
            sleep(Duration::from_secs(11)).await;
            drop(connection);
        };
        // Imitates the service: the run from 11 s to 21 s delays every wait that starts after its beginning.
        let without_run = async || {
            let start = Instant::now();
            let from = if start < began + Duration::from_secs(11) { start } else { start.max(last_run) };
            sleep_until(from + LIMIT).await;
        };
        tokio::join!(wait_without_connections(metrics.subscribe_connections(), without_run), closing);
        assert_eq!(began.elapsed().as_secs(), 31);
    }
}

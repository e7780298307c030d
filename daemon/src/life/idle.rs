//! Detects when the daemon is not needed any more, and returns unused memory to the system.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use crate::metrics::Connections;
use crate::service::Service;
use crate::settings::Settings;

/// Completes when there has been no run and no connection for `idle_exit`; never if that is not configured. After a
/// reload, the time starts again.
pub(super) async fn idle(
    service: &Service,
    connections: watch::Receiver<Connections>,
    mut settings: watch::Receiver<Arc<Settings>>,
) {
    loop {
        let limit = settings.borrow_and_update().operator.daemon.idle_exit;
        let idle = async {
            match limit {
                Some(limit) => unneeded(connections.clone(), async || service.idle(limit).await).await,
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
const CALM: Duration = Duration::from_secs(2);

/// Returns memory to the system after each period of activity. Never completes.
pub(super) async fn give_back(service: &Service, mut connections: watch::Receiver<Connections>) {
    loop {
        // Open but idle connections do not prevent this.
        service.idle(CALM).await;
        while let Ok(Ok(())) = timeout(CALM, connections.changed()).await {}
        if tokio::task::spawn_blocking(proctor_runner::give_back_memory).await.is_err() {
            tracing::error!("giving memory back ended badly");
        }
        tokio::select! {
            () = service.busy() => {}
            // Waits for changes from here on only.
            changed = connections.changed() => if changed.is_err() { std::future::pending::<()>().await },
        }
    }
}

/// Completes when `without_run` completes during a period without connections.
async fn unneeded(mut connections: watch::Receiver<Connections>, without_run: impl AsyncFn()) {
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
    async fn silence_counts_from_the_last_connection_on() {
        let metrics = Metrics::new(0);
        let began = Instant::now();
        let connection = metrics.connected();
        let closing = async {
            sleep(Duration::from_secs(25)).await;
            drop(connection);
        };
        tokio::join!(unneeded(metrics.connections(), async || sleep(LIMIT).await), closing);
        assert_eq!(began.elapsed().as_secs(), 35);
    }

    /// A run starts after the last connection was closed and ends much later. The idle time must be free of both
    /// connections and runs.
    #[tokio::test(start_paused = true)]
    async fn silence_counts_from_the_last_run_on() {
        let metrics = Metrics::new(0);
        let began = Instant::now();
        let last_run = began + Duration::from_secs(21);
        let connection = metrics.connected();
        let closing = async {
            sleep(Duration::from_secs(11)).await;
            drop(connection);
        };
        // Imitates the service: the run from 11 s to 21 s delays every wait that starts after its beginning.
        let without_run = async || {
            let asked = Instant::now();
            let from = if asked < began + Duration::from_secs(11) { asked } else { asked.max(last_run) };
            sleep_until(from + LIMIT).await;
        };
        tokio::join!(unneeded(metrics.connections(), without_run), closing);
        assert_eq!(began.elapsed().as_secs(), 31);
    }
}

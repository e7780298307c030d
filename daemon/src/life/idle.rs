//! When nobody needs the daemon any more.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use crate::metrics::Connections;
use crate::service::Service;
use crate::settings::Settings;

/// Completes when there has been no run and no connection for as long as the operator says; never
/// where the operator says nothing. A reload counts from its own time on.
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

/// How long nothing may have begun or ended before memory is given back: what comes sooner would only take
/// it again, and giving it back takes some milliseconds.
const CALM: Duration = Duration::from_secs(2);

/// After each time that something was done, gives memory back that was needed for it only. Never
/// completes.
pub(super) async fn give_back(service: &Service, mut connections: watch::Receiver<Connections>) {
    loop {
        // Who stays connected and asks nothing is no reason to keep memory.
        service.idle(CALM).await;
        while let Ok(Ok(())) = timeout(CALM, connections.changed()).await {}
        if tokio::task::spawn_blocking(proctor_runner::give_back_memory).await.is_err() {
            tracing::error!("giving memory back ended badly");
        }
        tokio::select! {
            () = service.busy() => {}
            // What was seen before counts no more.
            changed = connections.changed() => if changed.is_err() { std::future::pending::<()>().await },
        }
    }
}

/// Completes when no run was there for as long as `without_run` waits for, and no connection meanwhile.
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

    /// A run that began when no connection was open any more, and ended long after: silence without
    /// connections and silence without runs must have been at the same time.
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
        // As the service has it: the run of 11 to 21 s puts off what is asked from its beginning on.
        let without_run = async || {
            let asked = Instant::now();
            let from = if asked < began + Duration::from_secs(11) { asked } else { asked.max(last_run) };
            sleep_until(from + LIMIT).await;
        };
        tokio::join!(unneeded(metrics.connections(), without_run), closing);
        assert_eq!(began.elapsed().as_secs(), 31);
    }
}

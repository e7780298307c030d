//! When nobody needs the daemon any more.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep_until, timeout};

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
                Some(limit) => unneeded(service, connections.clone(), limit).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = idle => return,
            Ok(()) = settings.changed() => {}
        }
    }
}

/// How long nothing may have begun or ended before memory is given back.
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

async fn unneeded(service: &Service, mut connections: watch::Receiver<Connections>, limit: Duration) {
    loop {
        tokio::join!(service.idle(limit), quiet(&mut connections, limit));
        // One of the two may have ended long before the other.
        let runs = service.health().runs;
        if runs.queued + runs.running == 0 && connections.borrow().open == 0 {
            return;
        }
    }
}

/// Completes when no connection has been open for `limit`.
async fn quiet(connections: &mut watch::Receiver<Connections>, limit: Duration) {
    loop {
        let now = *connections.borrow_and_update();
        let silence = async {
            if now.open > 0 {
                std::future::pending::<()>().await;
            }
            sleep_until(now.since + limit).await;
        };
        tokio::select! {
            () = silence => return,
            changed = connections.changed() => if changed.is_err() { return },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn silence_counts_from_the_last_connection_on() {
        let metrics = Metrics::new(0);
        let limit = Duration::from_secs(10);
        let began = Instant::now();
        let connection = metrics.connected();
        let mut seen = metrics.connections();
        let closing = async {
            tokio::time::sleep(Duration::from_secs(25)).await;
            drop(connection);
        };
        tokio::join!(quiet(&mut seen, limit), closing);
        assert_eq!(began.elapsed().as_secs(), 35);
    }
}

//! Sends notifications to the service manager (sd_notify(3)). Without a service manager, they do nothing.

use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{error, warn};

use crate::service::Service;

/// Reports that the daemon is ready, initially or after a reload, with a status text.
pub(super) fn ready(status: &str) {
    send_states(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Reports that the config is being reloaded.
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send_states(&[NotifyState::Reloading, now]),
        Err(error) => warn!("the service manager cannot be notified of a reload: {error}"),
    }
}

/// Reports that the daemon is shutting down, which takes at most `bound`.
pub(super) fn stopping(bound: Duration) {
    let bound = u32::try_from(bound.as_micros()).unwrap_or(u32::MAX);
    let status = NotifyState::Status("shutting down: active runs may continue for a while");
    send_states(&[NotifyState::Stopping, NotifyState::ExtendTimeoutUsec(bound), status]);
}

fn send_states(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        warn!("the service manager cannot be notified: {error}");
    }
}

/// Sends watchdog notifications to the service manager while the owner of runs responds.
pub(super) struct Watchdog(Option<JoinHandle<()>>);

impl Watchdog {
    /// Starts the notifications if the service manager expects them.
    pub(super) fn start(service: Arc<Service>) -> Self {
        // Half of the timeout, as sd_watchdog_enabled(3) recommends.
        Self(sd_notify::watchdog_enabled().map(|limit| tokio::spawn(run_watchdog(service, limit / 2))))
    }

    /// Stops the notifications.
    pub(super) fn stop(self) {
        if let Some(task) = self.0 {
            task.abort();
        }
    }
}

async fn run_watchdog(service: Arc<Service>, every: Duration) {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if timeout(every / 2, service.is_responsive()).await == Ok(true) {
            send_states(&[NotifyState::Watchdog]);
        } else {
            error!("the run manager does not answer; if this lasts, the service manager stops the daemon");
        }
    }
}

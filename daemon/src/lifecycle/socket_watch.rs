//! Schedules the checks of whether the daemon's socket file is still at its path.

use std::time::Duration;

use tokio::time::sleep;
use tracing::error;

use super::socket::{ListeningSocket, SocketError};

/// Interval between two checks. A check makes three stat(2) calls.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Watcher of the path of a socket that this process created.
pub(super) struct SocketWatch {
    is_own: bool,
    /// Last logged error; the same error is logged once.
    last_error: Option<String>,
}

impl SocketWatch {
    /// Creates a watcher for a socket.
    pub(super) fn new(listening: &ListeningSocket) -> Self {
        Self { is_own: listening.is_own(), last_error: None }
    }

    /// Completes when a check is due. Never completes for a socket of the service manager, which only the service
    /// manager can recreate.
    pub(super) async fn wait_until_due(&self) {
        match self.is_own {
            true => sleep(CHECK_INTERVAL).await,
            false => std::future::pending().await,
        }
    }

    /// Records that the daemon is reachable at the path.
    pub(super) fn clear_error(&mut self) {
        self.last_error = None;
    }

    /// Logs why the daemon cannot listen again.
    pub(super) fn log_error_once(&mut self, error: &SocketError) {
        let complaint = error.to_string();
        if self.last_error.as_ref() != Some(&complaint) {
            error!("the socket file no longer exists, and the daemon cannot listen at its path again yet: {complaint}");
            self.last_error = Some(complaint);
        }
    }
}

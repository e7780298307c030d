//! Schedules the checks of whether the daemon's socket file is still at its path.

use std::time::Duration;

use tokio::time::sleep;
use tracing::error;

use super::socket::{Listening, SocketError};

/// Interval between two checks. A check makes three stat(2) calls.
const CHECK: Duration = Duration::from_secs(1);

/// Watcher of the path of a socket that this process created.
pub(super) struct SocketWatch {
    is_own: bool,
    /// Last logged error; the same error is logged once.
    complaint: Option<String>,
}

impl SocketWatch {
    /// Creates a watcher for a socket.
    pub(super) fn new(listening: &Listening) -> Self {
        Self { is_own: listening.is_own(), complaint: None }
    }

    /// Completes when a check is due. Never completes for a socket of the service manager, which only the service
    /// manager can recreate.
    pub(super) async fn due(&self) {
        match self.is_own {
            true => sleep(CHECK).await,
            false => std::future::pending().await,
        }
    }

    /// Records that the daemon is reachable at the path.
    pub(super) fn restored(&mut self) {
        self.complaint = None;
    }

    /// Logs why the daemon cannot listen again.
    pub(super) fn complain(&mut self, error: &SocketError) {
        let complaint = error.to_string();
        if self.complaint.as_ref() != Some(&complaint) {
            error!("the socket file is gone, and the daemon cannot listen at its path again yet: {complaint}");
            self.complaint = Some(complaint);
        }
    }
}

//! Decides when the daemon checks that its socket file is still at its path.

use std::time::Duration;

use tokio::time::sleep;
use tracing::error;

use super::socket::{Listening, SocketError};

/// How often the path is checked. A check is three calls of stat(2).
const CHECK: Duration = Duration::from_secs(1);

/// Watches the path of a socket that this process made.
pub(super) struct SocketWatch {
    is_own: bool,
    /// The last complaint; the same one is logged once.
    complaint: Option<String>,
}

impl SocketWatch {
    /// Nothing was checked yet.
    pub(super) fn new(listening: &Listening) -> Self {
        Self { is_own: listening.is_own(), complaint: None }
    }

    /// Completes when it is time for a check; never for a socket of the service manager's, which only the service
    /// manager can make again.
    pub(super) async fn due(&self) {
        match self.is_own {
            true => sleep(CHECK).await,
            false => std::future::pending().await,
        }
    }

    /// Notes that the daemon can be reached at the path.
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

//! A service within this process for one MCP client, used when no daemon answers.

use std::sync::Arc;
use std::time::Duration;

use proctor_runner::{Clock, EngineConfig};

use crate::caller::Caller;
use crate::history::OpenHistoryError;
use crate::metrics::Metrics;
use crate::service::{Service, ServiceConfig, StartError};
use crate::telemetry::ExportTarget;

/// Directory below the state directory for the histories of these services. Each process uses its own subdirectory,
/// because a history belongs to one process at a time, and the main one belongs to the daemon.
const SESSIONS_DIR: &str = "sessions";
/// Maximum number of concurrent services with one state directory.
const MAX_SESSIONS: u32 = 64;

/// A service within this process.
pub struct LocalBackend {
    service: Arc<Service>,
    caller: Caller,
}

impl LocalBackend {
    /// Opens a service for the user `uid`. It uses the first subdirectory that no other process has open, and finds
    /// there the runs of earlier sessions that used it.
    ///
    /// # Errors
    /// The state directory cannot be used, or all subdirectories are in use.
    pub async fn open(engine: EngineConfig, uid: u32) -> Result<Self, StartError> {
        let sessions = engine.state_dir.join(SESSIONS_DIR);
        let mut index = 0;
        let target = ExportTarget::resolve(&engine.operator.telemetry, &engine.caller_env, "proctor");
        let target = target.inspect_err(|error| tracing::warn!("runs are not exported: {error}")).ok().flatten();
        loop {
            let config = ServiceConfig {
                engine: engine.clone(),
                config: None,
                metrics: Metrics::new(Clock::system().now_ms()),
                telemetry: target.clone(),
            };
            match Service::open_with_history(config, sessions.join(index.to_string())).await {
                Ok(service) => return Ok(Self { service, caller: Caller { uid } }),
                Err(StartError::History(OpenHistoryError::InUse(_))) if index + 1 < MAX_SESSIONS => index += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the backend for the tools.
    pub fn backend(&self) -> (Arc<Service>, Caller) {
        (Arc::clone(&self.service), self.caller)
    }

    /// Cancels active runs, because their client is gone, and exports the remaining spans.
    pub async fn close(self) {
        self.service.drain(Duration::ZERO).await;
        self.service.flush_spans().await;
    }
}

//! A service of this process, for one client of the tools: where no daemon answers.

use std::sync::Arc;
use std::time::Duration;

use proctor_runner::{Clock, EngineConfig};

use crate::caller::Caller;
use crate::metrics::Metrics;
use crate::service::{Service, ServiceConfig, StartError};
use crate::telemetry::Target;

/// The directory of such services' histories, below the state directory. Each has a place of its own in
/// it: a history belongs to one process at a time, and the state's own to the daemon.
const SESSIONS: &str = "sessions";
/// How many such services there may be at once with one state directory.
const MAX_SESSIONS: u32 = 64;

/// A service of this process.
pub struct Local {
    service: Arc<Service>,
    caller: Caller,
}

impl Local {
    /// Opens a service for the user `uid`. It remembers its runs in the first place that no other
    /// process has, and so those of earlier sessions that had that place.
    ///
    /// # Errors
    /// The state directory cannot be used, or all places are taken.
    pub async fn open(engine: EngineConfig, uid: u32) -> Result<Self, StartError> {
        let sessions = engine.state_dir.join(SESSIONS);
        let mut place = 0;
        let target = Target::resolve(&engine.operator.telemetry, &engine.caller_env, "proctor");
        let target = target.inspect_err(|error| tracing::warn!("runs are not exported: {error}")).ok().flatten();
        loop {
            let config = ServiceConfig {
                engine: engine.clone(),
                config: None,
                metrics: Metrics::new(Clock::system().now_ms()),
                telemetry: target.clone(),
            };
            match Service::open_apart(config, sessions.join(place.to_string())).await {
                Ok(service) => return Ok(Self { service, caller: Caller { uid } }),
                Err(StartError::StateInUse(_)) if place + 1 < MAX_SESSIONS => place += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// What the tools ask.
    pub fn backend(&self) -> (Arc<Service>, Caller) {
        (Arc::clone(&self.service), self.caller)
    }

    /// Ends what is under way: whoever wanted it is gone.
    pub async fn close(self) {
        self.service.drain(Duration::ZERO).await;
        self.service.flush_spans().await;
    }
}

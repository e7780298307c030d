//! Keeps the connection to the cluster, which the runs of a process share.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use proctor_core::spec::RemoteExecutorSettings;
use proctor_remote::{Client, RetryPolicy, Timeouts};

use crate::remote_server::{ServerError, connect_to};

/// The client for the last settings.
#[derive(Debug, Default)]
pub(crate) struct RemoteClients {
    last: Mutex<Option<(RemoteExecutorSettings, Client)>>,
}

impl RemoteClients {
    /// Returns a client of the cluster. It connects when it is first used.
    ///
    /// # Errors
    /// The settings of the server cannot be used.
    pub(crate) fn client(&self, settings: &RemoteExecutorSettings) -> Result<Client, ServerError> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, client)) = last.as_ref().filter(|(known, _)| known == settings) {
            return Ok(client.clone());
        }
        let limit = Duration::from_millis(settings.timeout_ms);
        let timeouts = Timeouts { connect: limit, call: limit, idle: limit };
        let client = connect_to(&settings.server, RetryPolicy::default(), timeouts)?;
        *last = Some((settings.clone(), client.clone()));
        Ok(client)
    }
}

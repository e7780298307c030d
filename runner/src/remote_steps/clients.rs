//! Keeps what the runs of a process share: the connection to the cluster, and the git objects of the last tree.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use proctor_core::spec::RemoteExecutorSettings;
use proctor_remote::{Client, RetryPolicy, Timeouts};

use super::git_objects::GitObjectReader;
use crate::remote_server::{ServerError, connect_to};

/// The client for the last settings, and what runs remember about the last tree.
#[derive(Debug, Default)]
pub(crate) struct RemoteClients {
    last: Mutex<Option<(RemoteExecutorSettings, Client)>>,
    pub(crate) git_objects: Arc<GitObjectReader>,
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

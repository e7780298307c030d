//! Errors that prevent the daemon from starting.

use std::io;
use std::path::Path;

use proctor_core::decision::verdict::{EXIT_INCONCLUSIVE, EXIT_USAGE};
use proctor_core::text::redact::Redactor;
use tracing::error;

use super::socket::SocketError;
use crate::service::StartError;
use proctor_client::installation::{InstallationError, ProcessEnvironment};

/// Reason why the daemon cannot start.
#[derive(Debug, thiserror::Error)]
pub(super) enum LifecycleError {
    /// The current directory or the path of the executable cannot be determined.
    #[error("the current directory or the path of this program cannot be determined: {0}")]
    Environment(io::Error),
    /// A file is missing, or the config is invalid.
    #[error(transparent)]
    Installation(#[from] InstallationError),
    /// The socket cannot be used.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The state directory cannot be used.
    #[error(transparent)]
    Service(#[from] StartError),
    /// No threads can be started.
    #[error("threads could not be started: {0}")]
    Threads(io::Error),
    /// Signals cannot be received.
    #[error("signal handlers cannot be installed: {0}")]
    Signals(io::Error),
    /// The listener cannot be used.
    #[error("cannot listen on the socket: {0}")]
    Listener(io::Error),
}

impl LifecycleError {
    /// Returns the exit code: 2 for invalid arguments or config, where a retry does not help; otherwise 5.
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::Installation(error) => error.exit_code(),
            Self::Socket(error) if error.is_usage() => EXIT_USAGE,
            _ => EXIT_INCONCLUSIVE,
        }
    }

    /// Reports the error in the log, or on standard error if there is no log yet.
    pub(super) fn report(&self) {
        for line in self.lines() {
            if tracing::dispatcher::has_been_set() {
                error!("{line}");
            } else {
                eprintln!("error: {line}");
            }
        }
    }

    /// Returns one line per problem, without secrets from this process's environment.
    pub(super) fn lines(&self) -> Vec<String> {
        let lines = self.full_lines();
        match ProcessEnvironment::read() {
            Ok(environment) => lines.iter().map(|line| redactor(&environment).redact_text(line).into_owned()).collect(),
            Err(_) => lines,
        }
    }

    fn full_lines(&self) -> Vec<String> {
        match self {
            Self::Installation(error) => {
                let hint = error.hint().map(|hint| format!("hint: {hint}"));
                error.lines().into_iter().chain(hint).collect()
            }
            other => other.to_string().lines().map(str::to_owned).collect(),
        }
    }
}

/// Returns a redactor of the secrets in this process's environment.
pub(super) fn redactor(environment: &ProcessEnvironment) -> Redactor {
    let variables = environment.env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    Redactor::from_environment(variables, |path| Path::new(path).exists())
}

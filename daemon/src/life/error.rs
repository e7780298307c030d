//! Why the daemon cannot begin.

use std::io;

use proctor_core::verdict::{EXIT_INCONCLUSIVE, EXIT_USAGE};
use tracing::error;

use super::redactor;
use super::socket::SocketError;
use crate::installation::{InstallationError, Surroundings};
use crate::service::StartError;

/// Why the daemon cannot begin.
#[derive(Debug, thiserror::Error)]
pub(super) enum LifeError {
    /// What we were started with cannot be read.
    #[error("the current directory or the path of this program cannot be determined: {0}")]
    Surroundings(io::Error),
    /// Something is not where it belongs, or the config is wrong.
    #[error(transparent)]
    Installation(#[from] InstallationError),
    /// The socket cannot be had.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The state cannot be had.
    #[error(transparent)]
    Service(#[from] StartError),
    /// There are no threads left.
    #[error("threads could not be started: {0}")]
    Threads(io::Error),
    /// Signals cannot be listened to.
    #[error("signal handlers cannot be installed: {0}")]
    Signals(io::Error),
    /// The listener cannot be used.
    #[error("cannot listen on the socket: {0}")]
    Listener(io::Error),
}

impl LifeError {
    /// 2 where somebody named or wrote something wrong, so that trying again does not help; else 5.
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::Installation(error) => error.exit_code(),
            Self::Socket(error) if error.is_usage() => EXIT_USAGE,
            _ => EXIT_INCONCLUSIVE,
        }
    }

    /// Says it where the log goes, or on standard error where there is no log yet.
    pub(super) fn report(&self) {
        for line in self.lines() {
            if tracing::dispatcher::has_been_set() {
                error!("{line}");
            } else {
                eprintln!("error: {line}");
            }
        }
    }

    /// Returns what happened, a line for each thing that is wrong, without secrets of this process's environment.
    pub(super) fn lines(&self) -> Vec<String> {
        let lines = self.full_lines();
        match Surroundings::read() {
            Ok(around) => lines.iter().map(|line| redactor(&around).text(line).into_owned()).collect(),
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

//! Errors of the client.

use std::io::{self, ErrorKind};
use std::path::PathBuf;

use proctor_core::api::Problem;

use crate::daemon_address::DaemonAddress;
use crate::installation::show;

/// Reason why a request to a daemon failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No daemon listens at the socket.
    #[error("no daemon listens at `{}`: {reason}", show(socket))]
    NotListening {
        /// Path of the socket.
        socket: PathBuf,
        /// Error reported by the system.
        reason: String,
    },
    /// This user has no permission to use the socket or its directory.
    #[error("this user may not use the daemon's socket `{}`: {reason}", show(socket))]
    PermissionDenied {
        /// Path of the socket.
        socket: PathBuf,
        /// Error reported by the system.
        reason: String,
    },
    /// A process listens at the socket but does not respond in time.
    #[error("the daemon at `{}` does not answer: {reason}", show(socket))]
    NoResponse {
        /// Path of the socket.
        socket: PathBuf,
        /// Description of the failure.
        reason: String,
    },
    /// The connection broke before the response was complete, for example because the daemon was killed or restarted.
    /// The daemon may have executed the request.
    #[error("the daemon at `{}` does not answer: the connection broke ({reason})", show(socket))]
    ConnectionBroken {
        /// Path of the socket.
        socket: PathBuf,
        /// Description of the failure.
        reason: String,
    },
    /// The process that listens at the socket is not trusted.
    #[error("the program that listens at `{}` belongs to user {uid}, who is not trusted to run a daemon", show(socket))]
    UntrustedDaemon {
        /// Path of the socket.
        socket: PathBuf,
        /// User of that process.
        uid: u32,
    },
    /// The response does not conform to the API.
    #[error("the answer of the daemon at `{}` is invalid: {reason}", show(socket))]
    InvalidResponse {
        /// Path of the socket.
        socket: PathBuf,
        /// Description of the deviation.
        reason: String,
    },
    /// A request cannot be serialized, which is a bug.
    #[error("a request to the daemon cannot be written: {0}")]
    UnserializableRequest(String),
    /// The daemon refused the request.
    #[error("{}", .0.detail)]
    Problem(Box<Problem>),
}

impl ClientError {
    /// Returns whether a retry may succeed: the connection was refused or lost, and the daemon did not refuse the
    /// request.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::NotListening { .. } | Self::NoResponse { .. } | Self::ConnectionBroken { .. })
    }
}

/// Returns the error for a failed connection.
pub fn connect_error(address: &DaemonAddress, error: &io::Error) -> ClientError {
    let (socket, reason) = (address.socket.clone(), error.to_string());
    match error.kind() {
        ErrorKind::WouldBlock => no_response(address, reason),
        // No permission to write to the socket or to search a directory of its path (unix(7)).
        ErrorKind::PermissionDenied => ClientError::PermissionDenied { socket, reason },
        _ => ClientError::NotListening { socket, reason },
    }
}

/// Returns the error for a daemon that does not respond.
pub fn no_response(address: &DaemonAddress, reason: String) -> ClientError {
    ClientError::NoResponse { socket: address.socket.clone(), reason }
}

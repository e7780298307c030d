//! Errors of the client.

use std::io;
use std::time::Duration;

use proctor_core::record::evidence::escape_output;
use tonic::{Code, Status};

use crate::blob::BlobDigest;

/// The name of the method that executes an action.
pub(crate) const EXECUTE_NAME: &str = "Execute";
/// The name of the method that waits for an accepted action.
pub(crate) const WAIT_NAME: &str = "WaitExecution";
/// The name of the time until a worker starts an action.
pub(crate) const QUEUE_WAIT: &str = "the wait for a worker";
/// Maximum number of characters of a server's message in an error.
const MAX_MESSAGE: usize = 300;

/// The reason why a request has no result.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// A file of the configuration cannot be used.
    #[error("{what} `{path}` cannot be used: {source}")]
    File {
        /// The purpose of the file.
        what: &'static str,
        /// The file.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// TLS cannot be set up.
    #[error("TLS cannot be set up: {0}")]
    Tls(String),
    /// There are no credentials.
    #[error("no credentials for `{endpoint}`: {problem}")]
    Credentials {
        /// The server.
        endpoint: String,
        /// The cause, without secrets.
        problem: String,
    },
    /// The server cannot be reached.
    #[error("`{endpoint}` cannot be reached: {problem}")]
    Unreachable {
        /// The server.
        endpoint: String,
        /// The cause.
        problem: String,
    },
    /// The server did not answer in time.
    #[error("`{endpoint}` did not finish {what} within {}", humantime::format_duration(*.after))]
    Deadline {
        /// The server.
        endpoint: String,
        /// The request.
        what: &'static str,
        /// The deadline.
        after: Duration,
    },
    /// The server refused a request, or failed.
    #[error("`{endpoint}` answered {method} with {code:?}: {message}")]
    Status {
        /// The server.
        endpoint: String,
        /// The name of the method.
        method: &'static str,
        /// The code.
        code: Code,
        /// The message, escaped and shortened.
        message: String,
    },
    /// The server returned bytes that do not match the requested digest.
    #[error("`{endpoint}` returned bytes that do not match the digest of blob {digest}: the server is at fault")]
    WrongBlob {
        /// The server.
        endpoint: String,
        /// The requested digest.
        digest: BlobDigest,
    },
    /// The server does not have a blob.
    #[error("`{endpoint}` does not have blob {digest}")]
    Missing {
        /// The server.
        endpoint: String,
        /// The requested digest.
        digest: BlobDigest,
    },
    /// An answer does not follow the API.
    #[error("an answer of `{endpoint}` to {method} does not follow the Remote Execution API: {problem}")]
    Violation {
        /// The server.
        endpoint: String,
        /// The name of the method.
        method: &'static str,
        /// The violation.
        problem: String,
    },
    /// A blob is larger than permitted.
    #[error("{what} has {bytes} bytes, and at most {max} are permitted")]
    TooLarge {
        /// The description.
        what: String,
        /// The size.
        bytes: u64,
        /// The maximum.
        max: u64,
    },
    /// A file changed before it was uploaded.
    #[error("`{0}` changed while it was uploaded")]
    Changed(String),
    /// The server does not offer a function that is needed.
    #[error("`{endpoint}` {problem}")]
    Unsupported {
        /// The server.
        endpoint: String,
        /// The missing function.
        problem: &'static str,
    },
    /// The server failed several times in a row, so no request is sent for some time.
    #[error("`{endpoint}` gets no further requests after {failures} failures in a row")]
    CircuitOpen {
        /// The server.
        endpoint: String,
        /// Number of failures in a row.
        failures: u32,
    },
    /// The caller cancelled the execution.
    #[error("the execution was cancelled")]
    Cancelled,
}

impl RemoteError {
    /// Returns whether the same request can succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Deadline { .. } => true,
            Self::Status { code, .. } => {
                matches!(code, Code::Unavailable | Code::ResourceExhausted | Code::Aborted | Code::DeadlineExceeded)
            }
            _ => false,
        }
    }

    /// Returns whether the error shows that the server as a whole does not work.
    pub(crate) fn counts_for_circuit(&self) -> bool {
        let is_internal = matches!(self, Self::Status { code: Code::Internal | Code::Unknown, .. });
        (self.is_transient() || is_internal) && !self.is_busy()
    }

    /// Returns whether the server temporarily cannot execute an action: it has no worker for it, or its scheduler is
    /// restarting.
    pub(crate) fn is_busy(&self) -> bool {
        let is_execution = |method: &str| [EXECUTE_NAME, WAIT_NAME].contains(&method);
        matches!(self, Self::Status { method, code: Code::Unavailable | Code::ResourceExhausted, .. } if is_execution(method))
    }

    /// Returns whether no worker started an action in time.
    pub fn is_without_worker(&self) -> bool {
        matches!(self, Self::Deadline { what: QUEUE_WAIT, .. })
    }

    /// Returns whether the server ended an action at its timeout.
    pub fn is_timeout_of_action(&self) -> bool {
        matches!(self, Self::Status { method, code: Code::DeadlineExceeded, .. } if *method == EXECUTE_NAME)
    }

    /// Returns whether the server rejected an action as invalid.
    pub fn refuses_action(&self) -> bool {
        matches!(self, Self::Status { method, code: Code::InvalidArgument, .. } if *method == EXECUTE_NAME)
    }

    /// Returns whether an action was not executed because the server lacks one of its inputs.
    pub fn lacks_input(&self) -> bool {
        matches!(self, Self::Status { code: Code::FailedPrecondition | Code::NotFound, .. })
    }

    pub(crate) fn has_code(&self, expected: Code) -> bool {
        matches!(self, Self::Status { code, .. } if *code == expected)
    }

    /// Maps a status. `secrets` are removed from its message, because a server can repeat them.
    pub(crate) fn from_status(endpoint: &str, method: &'static str, status: &Status, secrets: &[String]) -> Self {
        let message = displayed_message(status.message(), secrets);
        // hyper reports a broken connection as a status with a source.
        let is_transport = std::error::Error::source(status).is_some();
        if is_transport && matches!(status.code(), Code::Unknown | Code::Unavailable | Code::Internal | Code::Cancelled)
        {
            return Self::Unreachable { endpoint: endpoint.to_owned(), problem: message };
        }
        Self::Status { endpoint: endpoint.to_owned(), method, code: status.code(), message }
    }
}

/// Returns the message of a server for a screen: without secrets and control characters, and not too long.
pub(crate) fn displayed_message(message: &str, secrets: &[String]) -> String {
    let mut message = message.to_owned();
    for secret in secrets.iter().filter(|secret| !secret.is_empty()) {
        message = message.replace(secret.as_str(), "[redacted]");
    }
    let shown = escape_output(message.as_bytes());
    match shown.char_indices().nth(MAX_MESSAGE) {
        Some((end, _)) => format!("{}…", &shown[..end]),
        None => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_of_a_server_has_no_secret_and_no_control_character() {
        let status = Status::permission_denied(format!("bad Bearer s3cr3t-token\u{1b}[31m {}", "x".repeat(5_000)));
        let secrets = ["s3cr3t-token".to_owned()];
        let text = RemoteError::from_status("grpc://h", "Execute", &status, &secrets).to_string();
        assert!(!text.contains("s3cr3t") && !text.contains('\u{1b}') && text.len() < 1_000, "{text}");
        assert!(text.contains("[redacted]"), "{text}");
    }

    #[test]
    fn missing_worker_is_not_a_server_failure() {
        let error = |method| RemoteError::from_status("e", method, &Status::unavailable("no worker"), &[]);
        assert!(error(EXECUTE_NAME).is_busy() && !error(EXECUTE_NAME).counts_for_circuit());
        assert!(!error("GetCapabilities").is_busy() && error("GetCapabilities").counts_for_circuit());
    }

    #[test]
    fn only_some_errors_are_worth_another_attempt() {
        let status = |code| RemoteError::from_status("e", "m", &Status::new(code, ""), &[]);
        assert!(status(Code::Unavailable).is_transient());
        for code in [Code::InvalidArgument, Code::PermissionDenied, Code::NotFound, Code::Internal] {
            assert!(!status(code).is_transient(), "{code:?}");
        }
        assert!(status(Code::Internal).counts_for_circuit());
        assert!(!status(Code::NotFound).counts_for_circuit());
    }
}

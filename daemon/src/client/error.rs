//! Why a daemon gave no answer, or not the one that was asked for.

use std::path::{Path, PathBuf};

use proctor_core::api::Problem;
use proctor_core::drift::display_path;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nothing listens there.
    #[error("no daemon listens at `{}`: {reason}", show(socket))]
    NotThere {
        /// The socket.
        socket: PathBuf,
        /// The system's answer.
        reason: String,
    },
    /// A daemon may listen there, and not for this user: by the rights on its socket or its directory.
    #[error("this user may not use the daemon's socket `{}`: {reason}", show(socket))]
    NotAllowed {
        /// The socket.
        socket: PathBuf,
        /// The system's answer.
        reason: String,
    },
    /// Somebody listens there, and does not answer, or not to the end.
    #[error("the daemon at `{}` does not answer: {reason}", show(socket))]
    NotAnswering {
        /// The socket.
        socket: PathBuf,
        /// What happened instead.
        reason: String,
    },
    /// Somebody listened there, and the connection broke before the whole answer was there: of a daemon that was
    /// killed or started anew, say. What was asked for may have been heard.
    #[error("the daemon at `{}` does not answer: the connection broke ({reason})", show(socket))]
    Broken {
        /// The socket.
        socket: PathBuf,
        /// How it broke.
        reason: String,
    },
    /// Whoever listens there is not to be believed.
    #[error("the program that listens at `{}` belongs to user {uid}, who is not trusted to run a daemon", show(socket))]
    Foreign {
        /// The socket.
        socket: PathBuf,
        /// Whose it is.
        uid: u32,
    },
    /// The answer is none of our API.
    #[error("the answer of the daemon at `{}` is invalid: {reason}", show(socket))]
    NotUnderstood {
        /// The socket.
        socket: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A request of ours cannot be written, which would be our bug.
    #[error("a request to the daemon cannot be written: {0}")]
    Unsayable(String),
    /// The daemon says why not.
    #[error("{}", .0.detail)]
    Problem(Box<Problem>),
}

impl ClientError {
    /// Whether it may be worth asking again: the connection was refused or lost, and nothing was
    /// said against the request.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::NotThere { .. } | Self::NotAnswering { .. } | Self::Broken { .. })
    }
}

fn show(path: &Path) -> String {
    display_path(path.as_os_str().as_encoded_bytes())
}

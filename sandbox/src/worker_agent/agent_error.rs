//! Defines the reasons why an agent writes no report.

use std::io;
use std::path::PathBuf;

use crate::error::SandboxError;
use crate::layer_changes::LayerChangeError;

/// The reason why there is no report.
#[derive(Debug, thiserror::Error)]
pub(super) enum AgentError {
    /// The request cannot be read or contains an invalid value.
    #[error("the request is not valid: {0}\nhint: the worker must run the agent of the version that wrote the request")]
    BadRequest(String),
    /// A file or directory of the worker cannot be used.
    #[error("{what} `{}`: {source}", path.display())]
    Path { what: &'static str, path: PathBuf, source: io::Error },
    /// A system call failed.
    #[error("{what}: {source}")]
    System { what: &'static str, source: io::Error },
    /// An earlier layer cannot be created.
    #[error("cannot apply the writes of an earlier step: {0}")]
    Layer(#[from] LayerChangeError),
    /// No sandbox can be started.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
}

impl AgentError {
    pub(super) fn path<E: Into<io::Error>>(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(E) -> Self {
        let path = path.into();
        move |source| Self::Path { what, path, source: source.into() }
    }

    pub(super) fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System { what, source: source.into() }
    }
}

//! Defines the errors on proctor's side of the sandbox, before or during a step.

use std::io;
use std::path::PathBuf;

use proctor_core::model::enforcement::Control;
use rustix::io::Errno;

/// An error that keeps the sandbox from doing its job. A refusal by the kernel during the set-up is reported as
/// [`SandboxEvent::Refused`](crate::SandboxEvent::Refused) instead, since it names a control.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The helper program could not be started.
    #[error("the sandbox helper `{}` could not be started: {source}\nhint: install `proctor-sandbox` next to `proctor`", helper.display())]
    Helper {
        /// Path at which the helper was expected.
        helper: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// A required path could not be read or created.
    #[error("{what} `{}`: {source}", path.display())]
    Path {
        /// The failed action, such as `cannot create the state directory`.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// The failed action.
        what: &'static str,
        /// Error of the system call.
        source: io::Error,
    },
    /// No layer could be made for the writes of a step.
    #[error("cannot create a layer for a step: {source}\nhint: {}", layer_hint(source))]
    Layer {
        /// Error of the system call.
        source: io::Error,
    },
    /// The policy cannot be enforced with this arrangement of paths.
    #[error("{message}\nhint: {hint}")]
    Policy {
        /// Description of the problem.
        message: String,
        /// How to fix the problem.
        hint: String,
    },
    /// The kernel refused the run space, which holds the layers of a run.
    #[error("the sandbox control `{}` cannot be enforced for the layers of a run: {message}\nhint: {hint}", control.as_str())]
    RunSpaceRefused {
        /// The missing control.
        control: Control,
        /// The helper's message.
        message: String,
        /// How to fix the problem.
        hint: String,
    },
    /// The helper sent an unexpected answer.
    #[error(
        "the sandbox helper uses an unknown protocol: {0}\nhint: install `proctor` and `proctor-sandbox` of the same version"
    )]
    Protocol(String),
    /// The launcher's thread has ended.
    #[error("the launcher has stopped; no further process can be started")]
    LauncherGone,
}

/// Returns the hint for a layer that cannot be made. Layers use memory, or, without namespaces, the state directory.
fn layer_hint(source: &io::Error) -> &'static str {
    match source.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOSPC | Errno::DQUOT | Errno::NOMEM) => {
            "earlier steps have used up the write limit of the run: raise `limits.disk`, keep large outputs in `caches`, or free space"
        }
        Some(Errno::MFILE | Errno::NFILE) => "raise the limit of open files (`ulimit -n`), or run fewer steps at once",
        _ => "`proctor doctor` sets up a sandbox once and lists the missing controls",
    }
}

/// Extends a hint for a missing control with the option to run in best-effort mode, for controls that may be missing.
pub(crate) fn with_best_effort_hint(hint: &str) -> String {
    format!("{hint}; or accept a run with fewer controls, which its evidence records, with `--sandbox=best-effort`")
}

impl SandboxError {
    pub(crate) fn system(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |errno| Self::System { what, source: errno.into() }
    }

    pub(crate) fn path(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Path { what, path, source }
    }

    pub(crate) fn policy(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Policy { message: message.into(), hint: hint.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layer_hint_names_exhausted_resource() {
        let message = |errno: Errno| SandboxError::Layer { source: errno.into() }.to_string();
        assert!(message(Errno::NOSPC).contains("hint: earlier steps") && message(Errno::NOSPC).contains("limits.disk"));
        assert!(message(Errno::MFILE).contains("ulimit -n"));
        assert!(message(Errno::ACCESS).contains("proctor doctor"));
    }
}

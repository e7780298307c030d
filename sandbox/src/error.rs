//! What can go wrong on our side of the sandbox, before or beside the step.

use std::io;
use std::path::PathBuf;

use proctor_core::enforcement::Control;
use rustix::io::Errno;

/// We could not do our job. What the kernel refuses inside the set-up comes as
/// [`Report::Refused`](crate::Report::Refused) instead, since it names a control.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The helper program could not be started.
    #[error("the sandbox helper `{}` could not be started: {source}\nhint: install `proctor-sandbox` next to `proctor`", helper.display())]
    Helper {
        /// Where it was expected.
        helper: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A path that we need could not be read or made.
    #[error("{what} `{}`: {source}", path.display())]
    Path {
        /// What was to be done, such as `cannot make the state directory`.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A system call of ours failed.
    #[error("{what}: {source}")]
    System {
        /// What was to be done.
        what: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// There is no room for what a step is going to write.
    #[error("cannot create a layer for a step: {source}\nhint: {}", layer_hint(source))]
    Layer {
        /// What the system says.
        source: io::Error,
    },
    /// The policy cannot hold in this arrangement of paths.
    #[error("{message}\nhint: {hint}")]
    Policy {
        /// What is wrong.
        message: String,
        /// How to mend it.
        hint: String,
    },
    /// The kernel refused the place where the layers of a run are held.
    #[error("the sandbox control `{}` cannot be enforced for the layers of a run: {message}\nhint: {hint}", control.as_str())]
    NoSpace {
        /// What is missing.
        control: Control,
        /// What the helper says.
        message: String,
        /// How to mend it.
        hint: String,
    },
    /// The helper answered what we did not ask.
    #[error(
        "the sandbox helper uses an unknown protocol: {0}\nhint: install `proctor` and `proctor-sandbox` of the same version"
    )]
    Protocol(String),
    /// The launcher's thread has ended.
    #[error("the launcher has stopped; no further process can be started")]
    LauncherGone,
}

/// What to do where a layer cannot be made: they lie in memory, or, without namespaces, in the state directory.
fn layer_hint(source: &io::Error) -> &'static str {
    match source.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOSPC | Errno::DQUOT | Errno::NOMEM) => {
            "the steps before have used up what a run may write: raise `limits.disk`, keep large outputs in `caches`, or make room"
        }
        Some(Errno::MFILE | Errno::NFILE) => "raise the limit of open files (`ulimit -n`), or run less at once",
        _ => "`proctor doctor` sets a sandbox up once and says what is missing",
    }
}

/// A way to mend what is missing, and what else can be done where a step could run with less.
pub(crate) fn or_with_less(hint: &str) -> String {
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
    fn who_has_no_room_for_a_layer_is_told_where_it_went() {
        let told = |errno: Errno| SandboxError::Layer { source: errno.into() }.to_string();
        assert!(told(Errno::NOSPC).contains("hint: the steps before") && told(Errno::NOSPC).contains("limits.disk"));
        assert!(told(Errno::MFILE).contains("ulimit -n"));
        assert!(told(Errno::ACCESS).contains("proctor doctor"));
    }
}

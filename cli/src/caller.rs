//! Describes the caller: the environment that this process was started with, and its streams. All other code receives
//! these as values.

use std::io::IsTerminal as _;
use std::ops::Deref;

use proctor_client::installation::ProcessEnvironment;

/// The environment, working directory, user and streams of this process.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// The environment, the directories and the user.
    pub environment: ProcessEnvironment,
    /// True if standard output is a terminal.
    pub stdout_is_terminal: bool,
    /// True if standard error is a terminal.
    pub stderr_is_terminal: bool,
}

impl Deref for Caller {
    type Target = ProcessEnvironment;

    fn deref(&self) -> &ProcessEnvironment {
        &self.environment
    }
}

impl Caller {
    /// Reads the environment of this process.
    ///
    /// # Errors
    /// The path of the current directory or of our own executable cannot be determined.
    pub(crate) fn read() -> std::io::Result<Self> {
        Ok(Self {
            environment: ProcessEnvironment::read()?,
            stdout_is_terminal: std::io::stdout().is_terminal(),
            stderr_is_terminal: std::io::stderr().is_terminal(),
        })
    }
}

#[cfg(test)]
impl Caller {
    /// Returns a caller for tests with exactly these variables.
    pub(crate) fn for_tests(env: &[(&str, &str)]) -> Self {
        let around = ProcessEnvironment {
            env: env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            unreadable: Vec::new(),
            home: Some("/home/a".into()),
            cwd: "/".into(),
            bin_dir: "/usr/bin".into(),
            uid: 1000,
            user_dirs: "/nonexistent".into(),
        };
        Self { environment: around, stdout_is_terminal: false, stderr_is_terminal: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_xdg_directories_are_ignored() {
        let caller = Caller::for_tests(&[("XDG_STATE_HOME", "x"), ("XDG_CONFIG_HOME", "/c")]);
        assert_eq!(caller.xdg_dir("XDG_STATE_HOME", ".local/state"), Some("/home/a/.local/state".into()));
        assert_eq!(caller.xdg_dir("XDG_CONFIG_HOME", ".config"), Some("/c".into()));
    }
}

//! Starts comparison programs outside of any sandbox, and reads the settings of a measurement.

use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::time::Instant;

/// Returns a command with empty input and discarded output.
#[expect(clippy::disallowed_methods, reason = "a peer runs outside the sandbox, and git makes the repository")]
pub(crate) fn silent_command(name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(name);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Returns the time from the start of a program to its exit.
///
/// # Errors
/// The program cannot be started, or it fails.
pub(crate) fn run_timed(command: &mut Command) -> Result<Duration> {
    let began = Instant::now();
    let status = command.status().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    let took = began.elapsed();
    require_success(command, status)?;
    Ok(took)
}

/// Checks that a program succeeded.
///
/// # Errors
/// The program failed.
pub(crate) fn require_success(command: &Command, status: ExitStatus) -> Result<()> {
    ensure!(status.success(), "{:?} ended with {status}", command.get_program());
    Ok(())
}

/// Returns whether a program of this name is installed.
pub(crate) fn is_installed(name: &str) -> bool {
    ["/usr/local/bin", "/usr/bin", "/bin"].iter().any(|dir| Path::new(dir).join(name).exists())
}

/// Returns a setting from an environment variable, or the default.
///
/// # Errors
/// The variable has an invalid value.
#[expect(clippy::disallowed_methods, reason = "settings of a measurement come from the environment")]
pub(crate) fn setting<T: FromStr>(name: &str, default: T) -> Result<T> {
    match std::env::var(name) {
        Ok(text) => text.parse().ok().with_context(|| format!("invalid value: {name}={text}")),
        Err(_) => Ok(default),
    }
}

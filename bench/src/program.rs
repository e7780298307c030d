//! Peers: programs that a measurement starts itself, outside of any sandbox; and its settings.

use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::time::Instant;

/// A program with empty input and no output.
#[expect(clippy::disallowed_methods, reason = "a peer runs outside the sandbox, and git makes the repository")]
pub(crate) fn quiet(name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(name);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// How long it takes from the start of a program to its end.
///
/// # Errors
/// It cannot be started, or does not end well.
pub(crate) fn timed(command: &mut Command) -> Result<Duration> {
    let began = Instant::now();
    let status = command.status().with_context(|| format!("{:?} cannot be started", command.get_program()))?;
    let took = began.elapsed();
    succeeded(command, status)?;
    Ok(took)
}

/// Makes sure that a program ended well.
///
/// # Errors
/// It did not.
pub(crate) fn succeeded(command: &Command, status: ExitStatus) -> Result<()> {
    ensure!(status.success(), "{:?} ended with {status}", command.get_program());
    Ok(())
}

/// Whether a program of this name stands where programs stand.
pub(crate) fn is_there(name: &str) -> bool {
    ["/usr/local/bin", "/usr/bin", "/bin"].iter().any(|dir| Path::new(dir).join(name).exists())
}

/// A setting of the caller: a variable of the environment, or what holds without it.
///
/// # Errors
/// It is there and cannot be read as such.
#[expect(clippy::disallowed_methods, reason = "a measurement's settings come from its environment")]
pub(crate) fn setting<T: FromStr>(name: &str, otherwise: T) -> Result<T> {
    match std::env::var(name) {
        Ok(text) => text.parse().ok().with_context(|| format!("{name}={text} makes no sense")),
        Err(_) => Ok(otherwise),
    }
}

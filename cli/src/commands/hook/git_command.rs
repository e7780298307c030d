//! Runs the caller's own `git` to find out where hooks are. Only `git` itself knows, because the answer
//! depends on its config, environment and version. The commands are chosen so that git starts no other program.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::caller::Caller;
use crate::error::CliError;
use crate::text::escape_text;

/// Time limit for a git command.
const GIT_TIMEOUT: Duration = Duration::from_secs(20);
/// Largest output of a git command, in bytes.
const MAX_OUTPUT: usize = 1 << 20;
/// Variables that select a repository other than that of the current directory.
const REPOSITORY_VARIABLES: [&str; 5] = ["GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_PREFIX"];

/// The context of a git command.
#[derive(Debug, Clone, Copy)]
pub(super) struct GitContext<'a> {
    /// The directory in which git runs.
    pub directory: &'a Path,
    /// True if the caller named the directory. Variables that select another repository are then removed.
    pub is_directory_named: bool,
    pub caller: &'a Caller,
}

/// The result of a git command.
#[derive(Debug)]
pub(super) struct GitCommandOutput {
    /// The exit code; `None` if a signal ended git.
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl GitContext<'_> {
    /// Runs git with these arguments.
    ///
    /// # Errors
    /// `git` is not installed, or does not finish in time.
    #[expect(clippy::disallowed_methods, reason = "the caller's own git; these queries start no other program")]
    pub(super) fn run(&self, words: &[&str]) -> Result<GitCommandOutput, CliError> {
        let mut command = Command::new("git");
        command.args(["--no-pager", "-c", "core.fsmonitor=false"]).args(words).current_dir(self.directory);
        command.env_clear().envs(&self.caller.env).env("LC_ALL", "C").env("GIT_OPTIONAL_LOCKS", "0");
        if self.is_directory_named {
            for name in REPOSITORY_VARIABLES {
                command.env_remove(name);
            }
        }
        let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = started.map_err(GitCommandError::NotStarted)?;
        let outputs = read_pipes(&mut child, Instant::now() + GIT_TIMEOUT);
        if outputs.is_err() {
            // Ignore the error: the process has already exited.
            let _ = child.kill();
        }
        let ended = child.wait();
        let [stdout, stderr] = outputs?;
        let status = ended.map_err(GitCommandError::Io)?;
        Ok(GitCommandOutput {
            code: status.code(),
            stdout,
            stderr: escape_text(String::from_utf8_lossy(&stderr).trim()),
        })
    }
}

/// Reason why git gave no complete answer.
#[derive(Debug, thiserror::Error)]
enum GitCommandError {
    /// Git cannot be started.
    #[error("`git` cannot be started: {0}")]
    NotStarted(#[source] io::Error),
    /// Git did not end within [`GIT_TIMEOUT`].
    #[error("it took longer than {} s", GIT_TIMEOUT.as_secs())]
    Timeout,
    /// The output exceeds [`MAX_OUTPUT`].
    #[error("it printed more than {MAX_OUTPUT} bytes")]
    TooMuchOutput,
    /// The output or the exit status cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<GitCommandError> for CliError {
    fn from(error: GitCommandError) -> Self {
        Self::Environment {
            message: format!("cannot determine where git looks for hooks: {error}"),
            hint: "run `git rev-parse --git-path hooks` there to see the problem".to_owned(),
        }
    }
}

/// Reads both pipes completely.
fn read_pipes(child: &mut Child, deadline: Instant) -> Result<[Vec<u8>; 2], GitCommandError> {
    let stdout = child.stdout.take().map(|pipe| File::from(OwnedFd::from(pipe)));
    let stderr = child.stderr.take().map(|pipe| File::from(OwnedFd::from(pipe)));
    let (mut pipes, mut outputs) = ([stdout, stderr], [Vec::new(), Vec::new()]);
    while pipes.iter().any(Option::is_some) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(GitCommandError::Timeout);
        }
        let ready = wait_until_readable(&pipes, left)?;
        for ((pipe, bytes), is_ready) in pipes.iter_mut().zip(&mut outputs).zip(ready) {
            if is_ready {
                read_available(pipe, bytes)?;
            }
        }
    }
    Ok(outputs)
}

/// Waits until a pipe is readable or closed, and returns which of them are.
fn wait_until_readable(pipes: &[Option<File>; 2], left: Duration) -> io::Result<[bool; 2]> {
    let open = pipes.each_ref().map(Option::is_some);
    let mut fds: Vec<PollFd<'_>> = pipes.iter().flatten().map(|pipe| PollFd::new(pipe, PollFlags::IN)).collect();
    match poll(&mut fds, Some(&Timespec::try_from(left).map_err(io::Error::other)?)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
    Ok(open.map(|open| open && ready.next().unwrap_or_default()))
}

/// Reads available bytes, and drops the pipe at its end.
fn read_available(pipe: &mut Option<File>, bytes: &mut Vec<u8>) -> Result<(), GitCommandError> {
    let Some(file) = pipe else { return Ok(()) };
    let mut piece = [0; 4096];
    match file.read(&mut piece)? {
        0 => *pipe = None,
        count => bytes.extend_from_slice(&piece[..count]),
    }
    if bytes.len() > MAX_OUTPUT {
        return Err(GitCommandError::TooMuchOutput);
    }
    Ok(())
}

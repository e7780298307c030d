//! The reasons why a worker could not be started or gave no answer.

use std::io::{self, Read as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use proctor_core::model::outcome::LimitKind;
use proctor_core::model::plan::{BadArgv, BadRelPath};
use proctor_core::sql::SqlCode;
use proctor_sandbox::{EventPoll, RunningSandbox, SandboxError, SandboxEvent};

use super::PooledWorker;
use crate::worker_client::{self, WorkerError};
use crate::worker_request::{Unanswered, WorkerRequest};

/// The message about a worker that exceeded its memory limit.
const MEMORY_LIMIT_MESSAGE: &str = "it reached its memory limit";
/// The maximum size of the stderr output of a dead worker that is shown, in bytes.
const MAX_STDERR_BYTES: usize = 2_000;

/// The reason why no worker could be started.
#[derive(Debug, thiserror::Error)]
pub(super) enum WorkerStartError {
    /// The sandbox cannot be set up.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The socket of the worker cannot be used.
    #[error(transparent)]
    Socket(#[from] io::Error),
    /// The worker ended before it was ready; the message says why.
    #[error("{0}")]
    NotReady(String),
    /// The program of the worker cannot be read.
    #[error("`{}`: {source}", file.display())]
    Program { file: PathBuf, source: io::Error },
    /// The command line of the worker is invalid.
    #[error(transparent)]
    Argv(#[from] BadArgv),
    /// The working directory of the worker is invalid.
    #[error(transparent)]
    Workdir(#[from] BadRelPath),
    /// The thread that starts the worker panicked.
    #[error(transparent)]
    Broken(#[from] BrokenTask),
}

/// A panic of a blocking task.
#[derive(Debug, thiserror::Error)]
#[error("an internal task of proctor failed: {0}")]
pub(super) struct BrokenTask(#[from] tokio::task::JoinError);

/// The reason why a worker gave no answer.
pub(super) enum WorkerFailure {
    /// The answer did not arrive in time. The value is the time that the pool waited.
    TimedOut(Duration),
    /// The sandbox killed the worker because of its memory, after this time.
    MemoryExceeded(Duration),
    /// The worker died. The value is the last message of the worker or its sandbox.
    Died(String),
}

impl PooledWorker {
    /// Kills a worker that gave no answer, and returns the reason. Blocks until the sandbox has reported it.
    pub(super) fn kill_and_diagnose(self, error: WorkerError, begun: Instant) -> WorkerFailure {
        match error {
            WorkerError::TimedOut(took) => WorkerFailure::TimedOut(took),
            WorkerError::Disconnected(error) => match failure_message(&self.running, &error) {
                words if words == MEMORY_LIMIT_MESSAGE => WorkerFailure::MemoryExceeded(begun.elapsed()),
                words => WorkerFailure::Died(words),
            },
        }
    }
}

impl WorkerFailure {
    pub(super) fn into_unanswered(self, request: &impl WorkerRequest) -> Unanswered {
        match self {
            Self::TimedOut(took) => worker_client::timed_out(request, took),
            Self::MemoryExceeded(took) => {
                let message = "it exceeded the memory limit, so its worker was ended";
                match request.is_committing() {
                    true => worker_client::engine_died(request, message),
                    false => Unanswered::Limit(SqlCode::MemoryLimit, message.to_owned(), took),
                }
            }
            Self::Died(why) => worker_client::engine_died(request, &why),
        }
    }
}

/// Returns the last message of a worker or its sandbox.
pub(super) fn failure_message(running: &RunningSandbox, error: &io::Error) -> String {
    let mut messages = Vec::new();
    let until = Instant::now() + Duration::from_secs(2);
    loop {
        match running.recv() {
            Ok(EventPoll::Event(SandboxEvent::Refused { message, hint, .. })) => return format!("{message}; {hint}"),
            Ok(EventPoll::Event(SandboxEvent::NotStarted { message, .. })) => return message,
            Ok(EventPoll::Event(SandboxEvent::Exited { status, limit, .. })) => {
                if limit == Some(LimitKind::Memory) {
                    return MEMORY_LIMIT_MESSAGE.to_owned();
                }
                if let Some(limit) = limit {
                    return format!("it reached its limit of {}", limit.as_str());
                }
                messages.push(format!("{status:?}"));
            }
            Ok(EventPoll::Event(SandboxEvent::Ready { .. })) => {}
            Ok(EventPoll::Closed) | Err(_) => break,
            // The cause that closed the socket ends the worker too, slightly later.
            Ok(EventPoll::WouldBlock) if !wait_for_report(running, until) => break,
            Ok(EventPoll::WouldBlock) => {}
        }
    }
    let mut bytes = vec![0; MAX_STDERR_BYTES];
    let is_set = rustix::io::ioctl_fionbio(&running.stderr, true).is_ok();
    if let (true, Ok(stderr)) = (is_set, running.stderr.try_clone()) {
        let length = std::fs::File::from(stderr).read(&mut bytes).unwrap_or(0);
        messages.push(String::from_utf8_lossy(&bytes[..length]).trim().to_owned());
    }
    messages.push(error.to_string());
    messages.join("; ")
}

/// Waits until a sandbox sends a report; returns `false` if the time limit was reached.
fn wait_for_report(running: &RunningSandbox, until: Instant) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    let left = until.saturating_duration_since(Instant::now());
    let Ok(left) = rustix::event::Timespec::try_from(left) else { return false };
    matches!(poll(&mut [PollFd::new(running, PollFlags::IN)], Some(&left)), Ok(ready) if ready > 0)
}

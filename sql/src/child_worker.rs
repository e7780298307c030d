//! Runs a worker for a step's check as a child process, in the sandbox of the step. A worker that exceeds the time
//! limit is killed. If a worker dies, one answer is lost and the next text gets a new worker.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use proctor_core::sql::{Dialect, Judgement, SqlCode, SqlRequest};
use proctor_duckdb::LibraryNotFound;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::chain;
use crate::worker::WorkerOptions;
use crate::worker_client::{self, WorkerConnection, WorkerError};
use crate::worker_request::WorkerRequest as _;

/// The program to start: the current one.
const CURRENT_EXE: &str = "/proc/self/exe";
/// The time in which a worker ends after its connection was closed.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// A worker that is started when it is first needed.
pub struct ChildWorker {
    duckdb: Result<PathBuf, LibraryNotFound>,
    running: Option<RunningSqlWorker>,
}

struct RunningSqlWorker {
    connection: WorkerConnection,
    child: Child,
}

impl ChildWorker {
    /// Creates a handle without a running worker. `duckdb` is the path of the shared library, or the reason why it is
    /// missing.
    pub fn new(duckdb: Result<PathBuf, LibraryNotFound>) -> Self {
        Self { duckdb, running: None }
    }

    /// Judges a text. Blocks until the worker has answered or the time limit was reached.
    pub fn judge(&mut self, request: &SqlRequest) -> Judgement {
        if let (Dialect::Duckdb, Err(missing)) = (request.dialect, &self.duckdb) {
            return chain::error_judgement(
                request,
                request.dialect.display_name(),
                SqlCode::EngineMissing,
                missing.to_string(),
            );
        }
        let running = match self.running.take().map_or_else(|| self.start_worker(request.dialect), Ok) {
            Ok(running) => running,
            Err(error) => {
                let message = format!("the SQL worker cannot be started: {error}");
                return chain::error_judgement(request, request.dialect.display_name(), SqlCode::EngineFailed, message);
            }
        };
        match running.connection.send_request(request) {
            Ok(judgement) => {
                self.running = Some(running);
                judgement
            }
            Err(WorkerError::TimedOut(took)) => {
                // The worker does not notice that the connection is closed.
                running.kill();
                request.unanswered(worker_client::timed_out(request, took))
            }
            Err(WorkerError::Disconnected(error)) => {
                request.unanswered(worker_client::engine_died(request, &running.exit_message(&error)))
            }
        }
    }

    #[expect(clippy::disallowed_methods, reason = "this program is a step in its sandbox, and starts itself there")]
    fn start_worker(&self, dialect: Dialect) -> io::Result<RunningSqlWorker> {
        let (ours, theirs) = UnixStream::pair()?;
        let library = self.duckdb.as_ref().ok().and_then(|file| file.to_str()).filter(|_| dialect == Dialect::Duckdb);
        let mut command = Command::new(CURRENT_EXE);
        command.arg("worker").args(WorkerOptions::arguments(dialect, library));
        command.stdin(Stdio::null()).stdout(OwnedFd::from(theirs));
        let running = RunningSqlWorker { connection: WorkerConnection::new(ours), child: command.spawn()? };
        // The command still holds the other end of the socket, which must be closed here.
        drop(command);
        running.connection.wait_until_ready()?;
        Ok(running)
    }
}

impl RunningSqlWorker {
    fn kill(mut self) {
        // A child that has exited needs no signal.
        let _ = self.child.kill();
    }

    fn exit_message(mut self, error: &io::Error) -> String {
        // The cause that closed the socket has ended the child too, or this kill does.
        let _ = self.child.kill();
        match self.child.wait() {
            Ok(status) => format!("{status}; {error}"),
            Err(_) => error.to_string(),
        }
    }
}

/// Lets the worker end by itself, so that it ends its server too.
impl Drop for RunningSqlWorker {
    fn drop(&mut self) {
        self.connection.close();
        if !exits_within(&self.child, EXIT_TIMEOUT) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// Reports whether a child has exited, or does within a time.
fn exits_within(child: &Child, timeout: Duration) -> bool {
    let Ok(pidfd) = pidfd_open(Pid::from_child(child), PidfdFlags::empty()) else { return false };
    let Ok(timeout) = Timespec::try_from(timeout) else { return false };
    poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout)).is_ok_and(|ready| ready > 0)
}

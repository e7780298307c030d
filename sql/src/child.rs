//! Runs a worker for a step's check as a child process, in the sandbox of the step. A worker that exceeds the time
//! limit is killed. If a worker dies, one answer is lost and the next text gets a new worker.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use proctor_core::sql::{Dialect, Judgement, Request, SqlCode};

use crate::ask::{self, Line, Silence};
use crate::chain;

/// The program to start: the current one.
const OURSELVES: &str = "/proc/self/exe";

/// A worker that is started when it is first needed.
pub struct ChildWorker {
    duckdb: Result<PathBuf, String>,
    running: Option<Running>,
}

struct Running {
    line: Line,
    child: Child,
}

impl ChildWorker {
    /// Creates a handle without a running worker. `duckdb` is the path of the shared library, or the reason why it is
    /// missing.
    pub fn new(duckdb: Result<PathBuf, String>) -> Self {
        Self { duckdb, running: None }
    }

    /// Judges a text. Blocks until the worker has answered or the time is over.
    pub fn judge(&mut self, request: &Request) -> Judgement {
        if let (Dialect::Duckdb, Err(missing)) = (request.dialect, &self.duckdb) {
            return chain::unjudged(request, request.dialect.title(), SqlCode::EngineMissing, missing.clone());
        }
        let running = match self.running.take().map_or_else(|| start(self.duckdb.as_ref().ok()), Ok) {
            Ok(running) => running,
            Err(error) => {
                let message = format!("the SQL worker cannot be started: {error}");
                return chain::unjudged(request, request.dialect.title(), SqlCode::EngineFailed, message);
            }
        };
        match running.line.ask(request) {
            Ok(judgement) => {
                self.running = Some(running);
                judgement
            }
            Err(Silence::Late(took)) => ask::late(request, took),
            Err(Silence::Gone(error)) => ask::died(request, &running.last_words(&error)),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "this program is a step in its sandbox, and starts itself there")]
fn start(duckdb: Option<&PathBuf>) -> io::Result<Running> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut command = Command::new(OURSELVES);
    command.arg("worker").args(duckdb).stdin(Stdio::null()).stdout(OwnedFd::from(theirs));
    let running = Running { line: Line::new(ours), child: command.spawn()? };
    // The command still holds the other end of the socket, which must be closed here.
    drop(command);
    running.line.hello()?;
    Ok(running)
}

impl Running {
    fn last_words(mut self, error: &io::Error) -> String {
        // The cause that closed the socket has ended the child too, or this kill does.
        let _ = self.child.kill();
        match self.child.wait() {
            Ok(status) => format!("{status}; {error}"),
            Err(_) => error.to_string(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

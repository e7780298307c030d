//! Runs the `proctord` of a case, with a minimal HTTP client for its socket.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::environment::TestEnvironment;
use crate::machine;
use crate::process::{Finished, Running};

/// Time limit for a response, which is longer than any long poll.
const PATIENCE: Duration = Duration::from_secs(70);
/// Log message of a daemon that is ready.
pub(crate) const LISTENS: &str = "the daemon listens";

/// A running daemon.
pub(crate) struct Daemon<'e> {
    env: &'e TestEnvironment,
    pub(crate) running: Running,
    socket: PathBuf,
}

/// An HTTP response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl TestEnvironment {
    /// Returns the path of the daemon's socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.root().join("run/proctord.sock")
    }

    /// Starts a daemon and waits until it is ready.
    pub(crate) fn daemon(&self) -> Daemon<'_> {
        self.daemon_with(&[])
    }

    /// Starts a daemon with more arguments and waits until it is ready.
    pub(crate) fn daemon_with(&self, arguments: &[&str]) -> Daemon<'_> {
        let mut daemon = Daemon { env: self, running: self.start_daemon(arguments), socket: self.socket() };
        daemon.running.wait_for_message(LISTENS);
        daemon
    }

    /// Starts a daemon without waiting, because it may fail to start.
    pub(crate) fn start_daemon(&self, arguments: &[&str]) -> Running {
        let mut command = self.daemon_at(&self.socket(), &self.state());
        command.args(arguments);
        Running::start(command)
    }

    /// Returns the command for a daemon with this socket and state directory.
    pub(crate) fn daemon_at(&self, socket: &Path, state: &Path) -> Command {
        self.daemon_through(&[], socket, state)
    }

    /// Returns the same command, started through a wrapper program that executes the daemon.
    pub(crate) fn daemon_through(&self, wrapper: &[&str], socket: &Path, state: &Path) -> Command {
        let mut command = self.command_of("proctord", self.root(), wrapper);
        command.arg("--socket").arg(socket).arg("--state-dir").arg(state);
        command
    }

    /// Configures runs to use the worktree itself instead of a private copy.
    pub(crate) fn share_worktrees(&self) {
        self.configure("[tree]\nmode = \"shared\"\n");
    }

    /// Writes the operator's config at its default path.
    pub(crate) fn configure(&self, text: &str) {
        machine::write(&self.root().join("config/proctor/proctord.toml"), text);
        self.hand_over(self.root());
    }
}

impl<'e> Daemon<'e> {
    /// Wraps a daemon that a case started itself at the usual socket.
    pub(crate) fn of(env: &'e TestEnvironment, running: Running) -> Self {
        Self { env, running, socket: env.socket() }
    }

    /// Sends a request with an optional body, and reads the response to its end.
    pub(crate) fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        ask(&self.socket, method, path, body).unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// Sends a `GET` request, which must succeed.
    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Value {
        let answer = self.ask("GET", path, None);
        assert_eq!(answer.code, 200, "GET {path}: {answer:?}");
        answer.json()
    }

    /// Submits a run of the profile `pr`, and returns its id.
    #[track_caller]
    pub(crate) fn submit(&self, repo: &Path) -> String {
        let body = serde_json::json!({ "repo": repo, "profile": "pr", "reuse": "never" });
        let answer = self.ask("POST", "/v1/runs", Some(&body));
        assert_eq!(answer.code, 202, "{answer:?}");
        answer.json()["run"]["id"].as_str().expect("an id").to_owned()
    }

    /// Waits for the end of a run, and returns the run.
    #[track_caller]
    pub(crate) fn finished(&self, id: &str) -> Value {
        for _ in 0..4 {
            let run = self.get(&format!("/v1/runs/{id}?wait=30s"));
            if run["state"] == "finished" {
                return run;
            }
        }
        panic!("run {id} does not end");
    }

    /// Sends SIGTERM to the daemon, and waits until it has exited.
    pub(crate) fn end(self) -> Finished {
        self.running.signal(Signal::TERM);
        self.ended()
    }

    /// Waits until the daemon has exited.
    pub(crate) fn ended(self) -> Finished {
        self.env.finish(self.running)
    }
}

impl Answer {
    /// Parses the body.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("no JSON: {error}: {self:?}"))
    }
}

/// Sends a request to a socket, and reads the response to its end.
pub(crate) fn ask(socket: &Path, method: &str, path: &str, body: Option<&Value>) -> std::io::Result<Answer> {
    ask_with(socket, method, path, "", body)
}

/// Sends a request with additional header lines, each with its line break.
pub(crate) fn ask_with(
    socket: &Path,
    method: &str,
    path: &str,
    head: &str,
    body: Option<&Value>,
) -> std::io::Result<Answer> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let body = body.map(Value::to_string).unwrap_or_default();
    let kind = if body.is_empty() { "" } else { "Content-Type: application/json\r\n" };
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{head}{kind}Content-Length: {length}\r\n\r\n{body}"
    )?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    let code = code.ok_or_else(|| std::io::Error::other(format!("no answer of HTTP: {text:?}")))?;
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let body = if chunked { dechunked(body) } else { body.to_owned() };
    Ok(Answer { code, head: head.to_owned(), body })
}

fn dechunked(body: &str) -> String {
    let mut rest = body;
    let mut whole = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap_or(0);
        if size == 0 || size > after.len() {
            break;
        }
        whole.push_str(&after[..size]);
        rest = after[size..].trim_start_matches("\r\n");
    }
    whole
}

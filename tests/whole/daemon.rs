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
use crate::process::{FinishedProcess, RunningProcess};

/// Time limit for a response, which is longer than any long poll.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(70);
/// Log message of a daemon that is ready.
pub(crate) const READY_MESSAGE: &str = "the daemon listens";

/// A running daemon.
pub(crate) struct TestDaemon<'e> {
    env: &'e TestEnvironment,
    pub(crate) process: RunningProcess,
    socket: PathBuf,
}

/// An HTTP response.
#[derive(Debug)]
pub(crate) struct RawResponse {
    pub(crate) status: u16,
    pub(crate) header_text: String,
    pub(crate) body: String,
}

impl TestEnvironment {
    /// Returns the path of the daemon's socket.
    pub(crate) fn socket_path(&self) -> PathBuf {
        self.root().join("run/proctord.sock")
    }

    /// Starts a daemon and waits until it is ready.
    pub(crate) fn start_ready_daemon(&self) -> TestDaemon<'_> {
        self.start_ready_daemon_with(&[])
    }

    /// Starts a daemon with more arguments and waits until it is ready.
    pub(crate) fn start_ready_daemon_with(&self, arguments: &[&str]) -> TestDaemon<'_> {
        let mut daemon = TestDaemon { env: self, process: self.spawn_daemon(arguments), socket: self.socket_path() };
        daemon.process.wait_for_stderr(READY_MESSAGE);
        daemon
    }

    /// Starts a daemon without waiting, because it may fail to start.
    pub(crate) fn spawn_daemon(&self, arguments: &[&str]) -> RunningProcess {
        let mut command = self.daemon_command(&self.socket_path(), &self.state_dir());
        command.args(arguments);
        RunningProcess::start(command)
    }

    /// Returns the command for a daemon with this socket and state directory.
    pub(crate) fn daemon_command(&self, socket: &Path, state: &Path) -> Command {
        self.daemon_command_through(&[], socket, state)
    }

    /// Returns the same command, started through a wrapper program that executes the daemon.
    pub(crate) fn daemon_command_through(&self, wrapper: &[&str], socket: &Path, state: &Path) -> Command {
        let mut command = self.program_command("proctord", self.root(), wrapper);
        command.arg("--socket").arg(socket).arg("--state-dir").arg(state);
        command
    }

    /// Configures runs to use the worktree itself instead of a private copy.
    pub(crate) fn use_shared_worktrees(&self) {
        self.write_operator_config("[tree]\nmode = \"shared\"\n");
    }

    /// Writes the operator's config at its default path.
    pub(crate) fn write_operator_config(&self, text: &str) {
        machine::write(&self.root().join("config/proctor/proctord.toml"), text);
        self.give_to_actor(self.root());
    }
}

impl<'e> TestDaemon<'e> {
    /// Wraps a daemon that a case started itself at the usual socket.
    pub(crate) fn from_process(env: &'e TestEnvironment, running: RunningProcess) -> Self {
        Self { env, process: running, socket: env.socket_path() }
    }

    /// Sends a request with an optional body, and reads the complete response.
    pub(crate) fn request(&self, method: &str, path: &str, body: Option<&Value>) -> RawResponse {
        send_request(&self.socket, method, path, body).unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// Sends a `GET` request, which must succeed.
    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Value {
        let answer = self.request("GET", path, None);
        assert_eq!(answer.status, 200, "GET {path}: {answer:?}");
        answer.parse_json_body()
    }

    /// Submits a run of the profile `pr`, and returns its id.
    #[track_caller]
    pub(crate) fn submit(&self, repo: &Path) -> String {
        let body = serde_json::json!({ "repo": repo, "profile": "pr", "reuse": "never" });
        let answer = self.request("POST", "/v1/runs", Some(&body));
        assert_eq!(answer.status, 202, "{answer:?}");
        answer.parse_json_body()["run"]["id"].as_str().expect("an id").to_owned()
    }

    /// Waits for the end of a run, and returns the run.
    #[track_caller]
    pub(crate) fn wait_for_run(&self, id: &str) -> Value {
        for _ in 0..4 {
            let run = self.get(&format!("/v1/runs/{id}?wait=30s"));
            if run["state"] == "finished" {
                return run;
            }
        }
        panic!("run {id} does not end");
    }

    /// Waits until the daemon has logged a message.
    pub(crate) fn wait_for_log(&mut self, message: &str) {
        self.process.wait_for_stderr(message);
    }

    /// Sends SIGTERM to the daemon, and waits until it has exited.
    pub(crate) fn stop(self) -> FinishedProcess {
        self.process.signal(Signal::TERM);
        self.wait_for_exit()
    }

    /// Waits until the daemon has exited.
    pub(crate) fn wait_for_exit(self) -> FinishedProcess {
        self.env.finish(self.process)
    }
}

impl RawResponse {
    /// Parses the body.
    #[track_caller]
    pub(crate) fn parse_json_body(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("no JSON: {error}: {self:?}"))
    }
}

/// Sends a request to a socket, and reads the complete response.
pub(crate) fn send_request(
    socket: &Path,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> std::io::Result<RawResponse> {
    send_request_with_headers(socket, method, path, "", body)
}

/// Sends a request with additional header lines, each with its line break.
pub(crate) fn send_request_with_headers(
    socket: &Path,
    method: &str,
    path: &str,
    headers: &str,
    body: Option<&Value>,
) -> std::io::Result<RawResponse> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
    let body = body.map(Value::to_string).unwrap_or_default();
    let kind = if body.is_empty() { "" } else { "Content-Type: application/json\r\n" };
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}{kind}Content-Length: {length}\r\n\r\n{body}"
    )?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    let code = code.ok_or_else(|| std::io::Error::other(format!("no answer of HTTP: {text:?}")))?;
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let body = if chunked { decode_chunked(body) } else { body.to_owned() };
    Ok(RawResponse { status: code, header_text: head.to_owned(), body })
}

fn decode_chunked(body: &str) -> String {
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

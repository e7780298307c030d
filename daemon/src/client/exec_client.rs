//! Client side of a single command on a runtime.

use std::io::ErrorKind;
use std::time::Duration;

use http::Method;
use proctor_client::blocking_connection::{BlockingConnection, MAX_JSON, QUICK_TIMEOUT};
use proctor_client::error::{ClientError, no_response};
use proctor_client::exec_response::{ExecResponse, is_last};
use proctor_core::api::{ExecEvent, ExecSubmission};
use proctor_core::model::names::ExecId;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::connection::{connect, empty_request};
use super::{Client, WORK_TIMEOUT};

/// Maximum silence of a daemon, which sends a heartbeat every fifteen seconds.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(60);

/// An active command. Dropping it cancels the command.
pub struct RemoteExecution {
    response: ExecResponse,
    /// The connection, registered with a runtime.
    stream: Option<UnixStream>,
    is_finished: bool,
}

impl Client {
    /// Runs a single command.
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub async fn exec(&self, submission: &ExecSubmission) -> Result<RemoteExecution, ClientError> {
        let stream = connect(&self.address).await?;
        let stream = stream.into_std().map_err(|error| no_response(&self.address, error.to_string()))?;
        let connection = BlockingConnection::from_stream(self.address.clone(), stream);
        let mut execution = RemoteExecution::new(ExecResponse::send(connection, submission)?);
        execution.head().await?;
        Ok(execution)
    }

    /// Requests cancellation of a command. The response to the command reports its end.
    ///
    /// # Errors
    /// As [`Client::submit`]; also if the command has ended.
    pub async fn cancel_exec(&self, id: &ExecId) -> Result<(), ClientError> {
        self.exchange(empty_request(Method::DELETE, &format!("/v1/exec/{id}")), QUICK_TIMEOUT, MAX_JSON).await.map(drop)
    }
}

impl RemoteExecution {
    /// Continues a response on a runtime.
    pub fn new(response: ExecResponse) -> Self {
        Self { response, stream: None, is_finished: false }
    }

    /// Waits until the daemon has accepted the command.
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub async fn head(&mut self) -> Result<(), ClientError> {
        while !self.response.parse()? && !self.response.is_accepted() {
            self.read_more(WORK_TIMEOUT).await?;
        }
        Ok(())
    }

    /// Returns the next event, or `None` after `finished` or `failed`. Cancellation is safe: no event is lost.
    ///
    /// # Errors
    /// The connection is lost before the last line, or a line is invalid.
    pub async fn next(&mut self) -> Result<Option<ExecEvent>, ClientError> {
        while !self.is_finished {
            if let Some(event) = self.response.next_event() {
                self.is_finished = is_last(&event);
                return Ok(Some(event));
            }
            if !self.response.parse()? && !self.response.has_event() {
                self.read_more(HEARTBEAT_TIMEOUT).await?;
            }
        }
        Ok(None)
    }

    /// Waits for more bytes of the response on the runtime, at most `time_limit`.
    async fn read_more(&mut self, time_limit: Duration) -> Result<(), ClientError> {
        let mut part = [0; 16 << 10];
        let count = loop {
            let stream = self.stream()?;
            let is_ready = timeout(time_limit, stream.readable()).await;
            let read = match is_ready {
                Ok(is_ready) => is_ready.and_then(|()| stream.try_read(&mut part)),
                Err(_) => {
                    let reason = format!("no data arrived within {} s", time_limit.as_secs());
                    return Err(no_response(self.response.address(), reason));
                }
            };
            match read {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => break read,
            }
        };
        match count {
            Ok(0) => Err(self.response.unfinished_error()),
            Ok(count) => {
                self.response.push_bytes(&part[..count]);
                Ok(())
            }
            Err(error) => Err(self.response.connection_broken(&error)),
        }
    }

    fn stream(&mut self) -> Result<&UnixStream, ClientError> {
        if self.stream.is_none() {
            let stream = self.response.stream().try_clone().and_then(UnixStream::from_std);
            self.stream = Some(stream.map_err(|error| self.response.connection_broken(&error))?);
        }
        self.stream.as_ref().ok_or_else(|| self.response.connection_broken(&ErrorKind::NotConnected.into()))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixListener;
    use std::sync::mpsc::{Receiver, channel};
    use std::thread::JoinHandle;

    use futures_util::FutureExt as _;
    use proctor_core::api::{ExecEvent, Health, HealthStatus, Problem, ProblemType, RunCounts};
    use proctor_core::model::names::ExecId;
    use tempfile::TempDir;

    use std::time::Duration;

    use super::*;
    use proctor_client::daemon_address::{DaemonAddress, DaemonTrust};

    /// A fake daemon that sends its next response whenever the test signals it, and then closes the connection.
    struct FakeDaemon {
        dir: TempDir,
        thread: JoinHandle<()>,
    }

    impl FakeDaemon {
        fn start(answers: Vec<String>, next_signal: Receiver<()>) -> Self {
            let dir = tempfile::tempdir().expect("a directory");
            let listener = UnixListener::bind(dir.path().join("s")).expect("a socket");
            let thread = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().expect("a connection");
                for answer in answers {
                    next_signal.recv().expect("the test continues");
                    stream.write_all(answer.as_bytes()).expect("it is read");
                }
                // Unread requests would reset the connection, so read them before closing it.
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let _ = stream.read_to_end(&mut Vec::new());
            });
            Self { dir, thread }
        }

        fn connect(&self) -> BlockingConnection {
            BlockingConnection::open(&DaemonAddress { socket: self.dir.path().join("s"), trust: DaemonTrust::AnyUser })
                .expect("it listens")
        }

        fn finish(self, execution: RemoteExecution) {
            drop(execution);
            self.thread.join().expect("it has ended");
        }
    }

    fn sized_response(status: u16, body: &str) -> String {
        format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    }

    fn chunk(event: &ExecEvent) -> String {
        let line = serde_json::to_string(event).expect("JSON") + "\n";
        format!("{:x}\r\n{line}\r\n", line.len())
    }

    const HEAD: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

    fn started() -> ExecEvent {
        ExecEvent::Started { id: ExecId::new("0123456789abcdef0123456789abcdef").expect("an id") }
    }

    fn failed() -> ExecEvent {
        ExecEvent::Failed { problem: Box::new(Problem::new(ProblemType::Internal, "no")) }
    }

    fn has_whole(response: &mut ExecResponse, time_limit: Duration) -> bool {
        response.wait(time_limit, &mut Vec::new(), usize::MAX)
    }

    fn submission() -> ExecSubmission {
        serde_json::from_value(serde_json::json!({ "repo": "/r", "cmd": ["ls"] })).expect("a submission")
    }

    #[test]
    fn reads_short_command_without_runtime() {
        let (go_on, wait) = channel();
        let health = Health {
            status: HealthStatus::Ok,
            version: "1.2.3".to_owned(),
            pid: 1,
            uid: 2,
            uptime_ms: 3,
            runs: RunCounts::default(),
        };
        let health = sized_response(200, &serde_json::to_string(&health).expect("JSON"));
        let daemon = FakeDaemon::start(vec![health, [HEAD, &chunk(&started()), &chunk(&failed())].concat()], wait);
        let mut link = daemon.connect();
        link.request_health().expect("sent");
        go_on.send(()).expect("it waits");
        assert_eq!(link.health().expect("healthy").version, "1.2.3");
        let mut response = ExecResponse::send(link, &submission()).expect("sent");
        go_on.send(()).expect("it waits");
        assert!(has_whole(&mut response, QUICK_TIMEOUT));
        let mut execution = RemoteExecution::new(response);
        execution.head().now_or_never().expect("at once").expect("taken on");
        for event in [Some(started()), Some(failed()), None] {
            assert_eq!(execution.next().now_or_never().expect("at once").expect("heard"), event);
        }
        daemon.finish(execution);
    }

    #[tokio::test]
    async fn runtime_takes_over_long_command() {
        let (go_on, wait) = channel();
        let daemon = FakeDaemon::start(vec![[HEAD, &chunk(&started())].concat(), chunk(&failed())], wait);
        let mut response = ExecResponse::send(daemon.connect(), &submission()).expect("sent");
        assert!(!has_whole(&mut response, Duration::ZERO), "nothing was sent");
        let mut execution = RemoteExecution::new(response);
        go_on.send(()).expect("it waits");
        execution.head().await.expect("taken on");
        assert_eq!(execution.next().await.expect("heard"), Some(started()));
        assert!(execution.next().now_or_never().is_none(), "nothing more was sent");
        go_on.send(()).expect("it waits");
        assert_eq!(execution.next().await.expect("heard"), Some(failed()));
        assert_eq!(execution.next().await.expect("over"), None);
        daemon.finish(execution);
    }

    #[tokio::test]
    async fn missing_last_line_is_an_error() {
        for last in ["", "0\r\n\r\n"] {
            let (go_on, wait) = channel();
            let daemon = FakeDaemon::start(vec![[HEAD, &chunk(&started()), last].concat()], wait);
            let mut response = ExecResponse::send(daemon.connect(), &submission()).expect("sent");
            go_on.send(()).expect("it waits");
            has_whole(&mut response, QUICK_TIMEOUT);
            let mut execution = RemoteExecution::new(response);
            let first = execution.next().await;
            let error = match first {
                Err(error) => error,
                Ok(event) => {
                    assert_eq!(event, Some(started()));
                    execution.next().await.expect_err("no end")
                }
            };
            assert!(matches!(error, ClientError::ConnectionBroken { .. }), "{error}");
            daemon.finish(execution);
        }
    }

    #[tokio::test]
    async fn returns_problem_of_refused_command() {
        let problem = serde_json::to_string(&Problem::new(ProblemType::Forbidden, "not yours")).expect("JSON");
        let cases = [(sized_response(403, &problem), "not yours"), (sized_response(500, "oh"), "is invalid")];
        for (answer, says) in cases {
            let (go_on, wait) = channel();
            let daemon = FakeDaemon::start(vec![answer], wait);
            let mut response = ExecResponse::send(daemon.connect(), &submission()).expect("sent");
            go_on.send(()).expect("it waits");
            has_whole(&mut response, QUICK_TIMEOUT);
            let mut execution = RemoteExecution::new(response);
            let error = execution.head().await.expect_err("refused");
            assert!(error.to_string().contains(says), "{error}");
            daemon.finish(execution);
        }
    }
}

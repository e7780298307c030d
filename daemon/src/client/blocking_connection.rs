//! A connection to a daemon that needs no async runtime. Starting a runtime takes longer than a short command; for a
//! long command, a runtime takes the connection over.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use proctor_core::api::{ExecSubmission, Health};
use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::connection::{connect_error, no_response};
use super::daemon_address::DaemonAddress;
use super::error::ClientError;
use super::exec_client::{RemoteExecution, serialize_request};
use super::response_parser::{ResponseParser, ResponsePart};
use super::{MAX_JSON, QUICK_TIMEOUT};

/// Number of bytes read at a time.
const READ_BYTES: usize = 16 << 10;
/// Request for the health of a daemon; the connection stays open.
const HEALTH: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// A connection for consecutive requests.
#[derive(Debug)]
pub struct BlockingConnection {
    pub(super) address: DaemonAddress,
    pub(super) stream: UnixStream,
    pub(super) response: ResponseParser,
}

impl BlockingConnection {
    /// Connects and checks whose daemon it is before sending anything.
    ///
    /// # Errors
    /// No daemon listens there, this user has no permission, the daemon is not trusted, or the queue of the socket is
    /// full.
    pub fn open(address: &DaemonAddress) -> Result<Self, ClientError> {
        let stream = connect_nonblocking(address).map_err(|error| connect_error(address, &error))?;
        let peer =
            rustix::net::sockopt::socket_peercred(&stream).map_err(|errno| no_response(address, errno.to_string()))?;
        if !address.trust.trusts_user(peer.uid.as_raw()) {
            return Err(ClientError::UntrustedDaemon { socket: address.socket.clone(), uid: peer.uid.as_raw() });
        }
        Ok(Self { address: address.clone(), stream, response: ResponseParser::default() })
    }

    /// Returns the location of the daemon.
    pub fn address(&self) -> &DaemonAddress {
        &self.address
    }

    /// Requests the health of the daemon; [`health`](Self::health) returns it.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn request_health(&mut self) -> Result<(), ClientError> {
        self.send(HEALTH)
    }

    /// Waits for the response to [`request_health`](Self::request_health).
    ///
    /// # Errors
    /// The connection is lost, or the response is invalid.
    pub fn health(&mut self) -> Result<Health, ClientError> {
        let until = Instant::now() + QUICK_TIMEOUT;
        let (mut status, mut body) = (0, Vec::new());
        loop {
            match self.response.next_part().map_err(|why| self.invalid_response(why.to_owned()))? {
                Some(ResponsePart::Head(told)) => status = told,
                Some(ResponsePart::Body(part)) if body.len() + part.len() <= MAX_JSON => body.extend(part),
                Some(ResponsePart::Body(_)) => return Err(self.invalid_response("it is too long".to_owned())),
                Some(ResponsePart::End) if status == 200 => {
                    return serde_json::from_slice(&body).map_err(|error| self.invalid_response(error.to_string()));
                }
                Some(ResponsePart::End) => return Err(self.invalid_response(format!("it has the status {status}"))),
                None => self.read(until)?,
            }
        }
    }

    /// Sends a command. The connection is closed after the response.
    ///
    /// # Errors
    /// The connection is lost; the daemon may have received the command.
    pub fn exec(mut self, submission: &ExecSubmission) -> Result<RemoteExecution, ClientError> {
        self.send(&serialize_request(submission)?)?;
        Ok(RemoteExecution::new(self))
    }

    fn send(&mut self, mut bytes: &[u8]) -> Result<(), ClientError> {
        let until = Instant::now() + QUICK_TIMEOUT;
        while !bytes.is_empty() {
            match rustix::net::send(&self.stream, bytes, rustix::net::SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(rustix::io::Errno::AGAIN) => self.wait(PollFlags::OUT, until)?,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(self.connection_broken(&errno.into())),
            }
        }
        Ok(())
    }

    /// Reads more of the response, until `until` at the latest.
    pub(super) fn read(&mut self, until: Instant) -> Result<(), ClientError> {
        let mut part = [0; READ_BYTES];
        loop {
            match rustix::io::read(&self.stream, &mut part) {
                Ok(0) => return Err(self.connection_broken(&ErrorKind::UnexpectedEof.into())),
                Ok(count) => {
                    self.response.push_bytes(&part[..count]);
                    return Ok(());
                }
                Err(rustix::io::Errno::AGAIN) => self.wait(PollFlags::IN, until)?,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(self.connection_broken(&errno.into())),
            }
        }
    }

    fn wait(&self, what: PollFlags, until: Instant) -> Result<(), ClientError> {
        match wait_ready(&self.stream, what, until.saturating_duration_since(Instant::now())) {
            Ok(true) => Ok(()),
            Ok(false) => Err(no_response(&self.address, format!("nothing came within {} s", QUICK_TIMEOUT.as_secs()))),
            Err(error) => Err(self.connection_broken(&error)),
        }
    }

    pub(super) fn connection_broken(&self, error: &io::Error) -> ClientError {
        ClientError::ConnectionBroken { socket: self.address.socket.clone(), reason: error.to_string() }
    }

    pub(super) fn invalid_response(&self, reason: String) -> ClientError {
        ClientError::InvalidResponse { socket: self.address.socket.clone(), reason }
    }
}

/// Waits until the socket is readable or writable, at most `most`.
pub(super) fn wait_ready(stream: &UnixStream, events: PollFlags, time_limit: Duration) -> io::Result<bool> {
    let timeout = rustix::time::Timespec::try_from(time_limit).map_err(io::Error::other)?;
    let mut waited = [PollFd::from_borrowed_fd(stream.as_fd(), events)];
    Ok(rustix::io::retry_on_intr(|| rustix::event::poll(&mut waited, Some(&timeout)))? > 0)
}

/// Connects a nonblocking socket. Fails instead of waiting if the queue is full.
fn connect_nonblocking(address: &DaemonAddress) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(&address.socket)?)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixListener;
    use std::sync::mpsc::{Receiver, channel};
    use std::thread::JoinHandle;

    use futures_util::FutureExt as _;
    use proctor_core::api::{ExecEvent, HealthStatus, Problem, ProblemType, RunCounts};
    use proctor_core::model::names::ExecId;
    use tempfile::TempDir;

    use super::*;
    use crate::client::DaemonTrust;

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
        let mut execution = link.exec(&submission()).expect("sent");
        go_on.send(()).expect("it waits");
        assert!(execution.wait(QUICK_TIMEOUT));
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
        let mut execution = daemon.connect().exec(&submission()).expect("sent");
        assert!(!execution.wait(Duration::ZERO), "nothing was sent");
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
            let mut execution = daemon.connect().exec(&submission()).expect("sent");
            go_on.send(()).expect("it waits");
            execution.wait(QUICK_TIMEOUT);
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
            let mut execution = daemon.connect().exec(&submission()).expect("sent");
            go_on.send(()).expect("it waits");
            execution.wait(QUICK_TIMEOUT);
            let error = execution.head().await.expect_err("refused");
            assert!(error.to_string().contains(says), "{error}");
            daemon.finish(execution);
        }
    }

    #[test]
    fn reports_missing_listener() {
        let dir = tempfile::tempdir().expect("a directory");
        let address = DaemonAddress { socket: dir.path().join("s"), trust: DaemonTrust::AnyUser };
        assert!(matches!(BlockingConnection::open(&address), Err(ClientError::NotListening { .. })));
    }
}

//! A connection to a daemon that needs no async runtime. Starting a runtime takes longer than a short command; for a
//! long command, a runtime takes the connection over.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use proctor_core::api::{ExecSubmission, Health};
use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::answer::{Answer, Piece};
use super::connection::{not_there, silent};
use super::error::ClientError;
use super::exec::{Execution, body_of};
use super::place::Place;
use super::{AT_ONCE, MAX_JSON};

/// Number of bytes read at a time.
const PART: usize = 16 << 10;
/// Request for the health of a daemon; the connection stays open.
const HEALTH: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// A connection for consecutive requests.
#[derive(Debug)]
pub struct Link {
    pub(super) place: Place,
    pub(super) stream: UnixStream,
    pub(super) answer: Answer,
}

impl Link {
    /// Connects and checks whose daemon it is before sending anything.
    ///
    /// # Errors
    /// No daemon listens there, this user has no permission, the daemon is not trusted, or the queue of the socket is
    /// full.
    pub fn open(place: &Place) -> Result<Self, ClientError> {
        let stream = connected(place).map_err(|error| not_there(place, &error))?;
        let peer = rustix::net::sockopt::socket_peercred(&stream).map_err(|errno| silent(place, errno.to_string()))?;
        if !place.trust.covers(peer.uid.as_raw()) {
            return Err(ClientError::Foreign { socket: place.socket.clone(), uid: peer.uid.as_raw() });
        }
        Ok(Self { place: place.clone(), stream, answer: Answer::default() })
    }

    /// Returns the location of the daemon.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Requests the health of the daemon; [`health`](Self::health) returns it.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn ask_health(&mut self) -> Result<(), ClientError> {
        self.send(HEALTH)
    }

    /// Waits for the response to [`ask_health`](Self::ask_health).
    ///
    /// # Errors
    /// The connection is lost, or the response is invalid.
    pub fn health(&mut self) -> Result<Health, ClientError> {
        let until = Instant::now() + AT_ONCE;
        let (mut status, mut body) = (0, Vec::new());
        loop {
            match self.answer.next().map_err(|why| self.not_understood(why.to_owned()))? {
                Some(Piece::Head(told)) => status = told,
                Some(Piece::Body(part)) if body.len() + part.len() <= MAX_JSON => body.extend(part),
                Some(Piece::Body(_)) => return Err(self.not_understood("it is too long".to_owned())),
                Some(Piece::End) if status == 200 => {
                    return serde_json::from_slice(&body).map_err(|error| self.not_understood(error.to_string()));
                }
                Some(Piece::End) => return Err(self.not_understood(format!("it has the status {status}"))),
                None => self.read(until)?,
            }
        }
    }

    /// Sends a command. The connection is closed after the response.
    ///
    /// # Errors
    /// The connection is lost; the daemon may have received the command.
    pub fn exec(mut self, submission: &ExecSubmission) -> Result<Execution, ClientError> {
        self.send(&body_of(submission)?)?;
        Ok(Execution::new(self))
    }

    fn send(&mut self, mut bytes: &[u8]) -> Result<(), ClientError> {
        let until = Instant::now() + AT_ONCE;
        while !bytes.is_empty() {
            match rustix::net::send(&self.stream, bytes, rustix::net::SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(rustix::io::Errno::AGAIN) => self.wait(PollFlags::OUT, until)?,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(self.broken(&errno.into())),
            }
        }
        Ok(())
    }

    /// Reads more of the response, until `until` at the latest.
    pub(super) fn read(&mut self, until: Instant) -> Result<(), ClientError> {
        let mut part = [0; PART];
        loop {
            match rustix::io::read(&self.stream, &mut part) {
                Ok(0) => return Err(self.broken(&ErrorKind::UnexpectedEof.into())),
                Ok(count) => {
                    self.answer.take(&part[..count]);
                    return Ok(());
                }
                Err(rustix::io::Errno::AGAIN) => self.wait(PollFlags::IN, until)?,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(self.broken(&errno.into())),
            }
        }
    }

    fn wait(&self, what: PollFlags, until: Instant) -> Result<(), ClientError> {
        match ready(&self.stream, what, until.saturating_duration_since(Instant::now())) {
            Ok(true) => Ok(()),
            Ok(false) => Err(silent(&self.place, format!("nothing came within {} s", AT_ONCE.as_secs()))),
            Err(error) => Err(self.broken(&error)),
        }
    }

    pub(super) fn broken(&self, error: &io::Error) -> ClientError {
        ClientError::Broken { socket: self.place.socket.clone(), reason: error.to_string() }
    }

    pub(super) fn not_understood(&self, reason: String) -> ClientError {
        ClientError::NotUnderstood { socket: self.place.socket.clone(), reason }
    }
}

/// Waits until the socket is readable or writable, at most `most`.
pub(super) fn ready(stream: &UnixStream, what: PollFlags, most: Duration) -> io::Result<bool> {
    let timeout = rustix::time::Timespec::try_from(most).map_err(io::Error::other)?;
    let mut waited = [PollFd::from_borrowed_fd(stream.as_fd(), what)];
    Ok(rustix::io::retry_on_intr(|| rustix::event::poll(&mut waited, Some(&timeout)))? > 0)
}

/// Connects a nonblocking socket. Fails instead of waiting if the queue is full.
fn connected(place: &Place) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(&place.socket)?)?;
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
    use proctor_core::names::ExecId;
    use tempfile::TempDir;

    use super::*;
    use crate::client::Trust;

    /// A fake daemon that sends its next response whenever the test signals it, and then closes the connection.
    struct Played {
        dir: TempDir,
        thread: JoinHandle<()>,
    }

    impl Played {
        fn start(answers: Vec<String>, go_on: Receiver<()>) -> Self {
            let dir = tempfile::tempdir().expect("a directory");
            let listener = UnixListener::bind(dir.path().join("s")).expect("a socket");
            let thread = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().expect("a connection");
                for answer in answers {
                    go_on.recv().expect("the test continues");
                    stream.write_all(answer.as_bytes()).expect("it is read");
                }
                // Unread requests would reset the connection, so read them before closing it.
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let _ = stream.read_to_end(&mut Vec::new());
            });
            Self { dir, thread }
        }

        fn link(&self) -> Link {
            Link::open(&Place { socket: self.dir.path().join("s"), trust: Trust::Named }).expect("it listens")
        }

        fn end(self, execution: Execution) {
            drop(execution);
            self.thread.join().expect("it has ended");
        }
    }

    fn sized(status: u16, body: &str) -> String {
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
    fn a_short_command_is_told_without_a_runtime() {
        let (go_on, wait) = channel();
        let health = Health {
            status: HealthStatus::Ok,
            version: "1.2.3".to_owned(),
            pid: 1,
            uid: 2,
            uptime_ms: 3,
            runs: RunCounts::default(),
        };
        let health = sized(200, &serde_json::to_string(&health).expect("JSON"));
        let daemon = Played::start(vec![health, [HEAD, &chunk(&started()), &chunk(&failed())].concat()], wait);
        let mut link = daemon.link();
        link.ask_health().expect("sent");
        go_on.send(()).expect("it waits");
        assert_eq!(link.health().expect("healthy").version, "1.2.3");
        let mut execution = link.exec(&submission()).expect("sent");
        go_on.send(()).expect("it waits");
        assert!(execution.wait(AT_ONCE));
        execution.head().now_or_never().expect("at once").expect("taken on");
        for event in [Some(started()), Some(failed()), None] {
            assert_eq!(execution.next().now_or_never().expect("at once").expect("heard"), event);
        }
        daemon.end(execution);
    }

    #[tokio::test]
    async fn a_runtime_takes_over_where_the_command_takes_its_time() {
        let (go_on, wait) = channel();
        let daemon = Played::start(vec![[HEAD, &chunk(&started())].concat(), chunk(&failed())], wait);
        let mut execution = daemon.link().exec(&submission()).expect("sent");
        assert!(!execution.wait(Duration::ZERO), "nothing was sent");
        go_on.send(()).expect("it waits");
        execution.head().await.expect("taken on");
        assert_eq!(execution.next().await.expect("heard"), Some(started()));
        assert!(execution.next().now_or_never().is_none(), "nothing more was sent");
        go_on.send(()).expect("it waits");
        assert_eq!(execution.next().await.expect("heard"), Some(failed()));
        assert_eq!(execution.next().await.expect("over"), None);
        daemon.end(execution);
    }

    #[tokio::test]
    async fn an_answer_without_its_last_line_is_no_end() {
        for last in ["", "0\r\n\r\n"] {
            let (go_on, wait) = channel();
            let daemon = Played::start(vec![[HEAD, &chunk(&started()), last].concat()], wait);
            let mut execution = daemon.link().exec(&submission()).expect("sent");
            go_on.send(()).expect("it waits");
            execution.wait(AT_ONCE);
            let first = execution.next().await;
            let error = match first {
                Err(error) => error,
                Ok(event) => {
                    assert_eq!(event, Some(started()));
                    execution.next().await.expect_err("no end")
                }
            };
            assert!(matches!(error, ClientError::Broken { .. }), "{error}");
            daemon.end(execution);
        }
    }

    #[tokio::test]
    async fn a_refusal_is_the_daemons_problem() {
        let problem = serde_json::to_string(&Problem::new(ProblemType::Forbidden, "not yours")).expect("JSON");
        let cases = [(sized(403, &problem), "not yours"), (sized(500, "oh"), "is invalid")];
        for (answer, says) in cases {
            let (go_on, wait) = channel();
            let daemon = Played::start(vec![answer], wait);
            let mut execution = daemon.link().exec(&submission()).expect("sent");
            go_on.send(()).expect("it waits");
            execution.wait(AT_ONCE);
            let error = execution.head().await.expect_err("refused");
            assert!(error.to_string().contains(says), "{error}");
            daemon.end(execution);
        }
    }

    #[test]
    fn nothing_is_asked_where_nothing_listens() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = Place { socket: dir.path().join("s"), trust: Trust::Named };
        assert!(matches!(Link::open(&place), Err(ClientError::NotThere { .. })));
    }
}

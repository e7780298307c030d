//! Answers connections on the service manager's socket if the daemon cannot start.
//!
//! A waiting connection makes the service manager restart the daemon immediately. Without an answer, a few such
//! restarts exhaust the start limit, and the socket unit fails permanently. So a daemon that cannot start first
//! answers waiting connections with 503, for [`REFUSAL_TIME`], and then exits; the next connection starts it again.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use proctor_core::api::{Problem, ProblemType};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use tracing::warn;

use super::error::LifecycleError;
use crate::http::raw_problem_response;

/// Time during which connections are answered. Five starts within ten seconds exhaust systemd's default start limit,
/// so a failed start must take longer than two seconds.
const REFUSAL_TIME: Duration = Duration::from_secs(3);
/// Time limit for a client to send its request and to read the answer.
const CLIENT_TIMEOUT: Duration = Duration::from_millis(250);
/// Maximum number of request bytes read before the connection is closed.
const MAX_READ: usize = 1 << 20;

/// Answers all connections with 503 during [`REFUSAL_TIME`]. The daemon's own user and root also get the reason.
pub(super) fn refuse_connections(listener: &UnixListener, error: &LifecycleError) {
    if let Err(error) = listener.set_nonblocking(true) {
        return warn!("connections cannot be accepted: {error}");
    }
    let until = Instant::now() + REFUSAL_TIME;
    while is_readable(listener, until) {
        if let Ok((stream, _)) = listener.accept() {
            // Errors are ignored: the client may be gone.
            let _ = refuse(stream, error);
        }
    }
}

/// Waits for a connection. Returns `false` at the deadline.
fn is_readable(listener: &UnixListener, until: Instant) -> bool {
    let left = until.saturating_duration_since(Instant::now());
    let Ok(left) = Timespec::try_from(left) else { return false };
    poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&left)).is_ok_and(|ready| ready > 0)
}

fn refuse(mut stream: UnixStream, error: &LifecycleError) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(CLIENT_TIMEOUT))?;
    stream.set_write_timeout(Some(CLIENT_TIMEOUT))?;
    let mut buffer = [0_u8; 8 << 10];
    let mut read = stream.read(&mut buffer)?;
    stream.write_all(&raw_problem_response(&problem(&stream, error)))?;
    stream.shutdown(Shutdown::Write)?;
    // Closing a socket with unread bytes resets the connection, and the client might lose the answer.
    let until = Instant::now() + CLIENT_TIMEOUT;
    while read < MAX_READ && Instant::now() < until {
        match stream.read(&mut buffer)? {
            0 => break,
            count => read += count,
        }
    }
    Ok(())
}

fn problem(stream: &UnixStream, error: &LifecycleError) -> Problem {
    let own = rustix::process::geteuid();
    let may_know = socket_peercred(stream).is_ok_and(|peer| peer.uid == own || peer.uid.is_root());
    let reason = if may_know { format!(": {}", error.lines().join("; ")) } else { String::new() };
    Problem::new(ProblemType::Unavailable, format!("the daemon cannot start{reason}"))
        .with_hint("the operator can find the reason in the daemon's log (`journalctl -u proctord`); `proctord --check-config` checks the configuration")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn answers_waiting_connections_with_503_and_then_returns() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).expect("bound");
        let mut client = UnixStream::connect(&path).expect("connects");
        client.write_all(b"POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nsome body").expect("sent");
        let error = LifecycleError::Threads(io::Error::other("none left"));
        let began = Instant::now();
        let refusing = std::thread::spawn(move || refuse_connections(&listener, &error));
        let mut answer = String::new();
        client.read_to_string(&mut answer).expect("an answer to its end");
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("none left"), "{answer}");
        assert!(answer.to_ascii_lowercase().contains("\r\nretry-after: "), "{answer}");
        refusing.join().expect("returns");
        assert!(began.elapsed() >= REFUSAL_TIME);
    }
}

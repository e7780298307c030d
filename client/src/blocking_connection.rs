//! A connection to a daemon that needs no async runtime. Starting a runtime takes longer than a short command; for a
//! long command, a runtime takes the connection over.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use proctor_core::api::Health;
use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::daemon_address::DaemonAddress;
use crate::error::{ClientError, connect_error, no_response};
use crate::response_parser::{ResponseParser, ResponsePart};

/// Timeout of requests that need no work: long enough for a machine busy with runs, and short for a user of a hanging
/// daemon.
pub const QUICK_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a JSON response in bytes.
pub const MAX_JSON: usize = 64 << 20;

/// Number of bytes read at a time.
const READ_BYTES: usize = 16 << 10;
/// Request for the health of a daemon; the connection stays open.
const HEALTH: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// A connection for consecutive requests.
#[derive(Debug)]
pub struct BlockingConnection {
    pub(crate) address: DaemonAddress,
    pub(crate) stream: UnixStream,
    pub(crate) response: ResponseParser,
}

impl BlockingConnection {
    /// Connects and checks the owner of the daemon before sending anything.
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
        Ok(Self::from_stream(address.clone(), stream))
    }

    /// Uses a nonblocking stream that is connected to a trusted daemon.
    pub fn from_stream(address: DaemonAddress, stream: UnixStream) -> Self {
        Self { address, stream, response: ResponseParser::default() }
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
                Some(ResponsePart::Head(head_status)) => status = head_status,
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

    /// Sends a request. Its response is the next one that is read.
    pub(crate) fn send(&mut self, mut bytes: &[u8]) -> Result<(), ClientError> {
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
    fn read(&mut self, until: Instant) -> Result<(), ClientError> {
        let bytes = self.read_bytes(until)?;
        self.response.push_bytes(&bytes);
        Ok(())
    }

    /// Reads the next bytes of the response, until `until` at the latest.
    pub(crate) fn read_bytes(&mut self, until: Instant) -> Result<Vec<u8>, ClientError> {
        let mut part = [0; READ_BYTES];
        loop {
            match rustix::io::read(&self.stream, &mut part) {
                Ok(0) => return Err(self.connection_broken(&ErrorKind::UnexpectedEof.into())),
                Ok(count) => return Ok(part[..count].to_vec()),
                Err(rustix::io::Errno::AGAIN) => self.wait(PollFlags::IN, until)?,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(self.connection_broken(&errno.into())),
            }
        }
    }

    fn wait(&self, what: PollFlags, until: Instant) -> Result<(), ClientError> {
        match wait_ready(&self.stream, what, until.saturating_duration_since(Instant::now())) {
            Ok(true) => Ok(()),
            Ok(false) => {
                Err(no_response(&self.address, format!("no data arrived within {} s", QUICK_TIMEOUT.as_secs())))
            }
            Err(error) => Err(self.connection_broken(&error)),
        }
    }

    pub(crate) fn connection_broken(&self, error: &io::Error) -> ClientError {
        ClientError::ConnectionBroken { socket: self.address.socket.clone(), reason: error.to_string() }
    }

    pub(crate) fn invalid_response(&self, reason: String) -> ClientError {
        ClientError::InvalidResponse { socket: self.address.socket.clone(), reason }
    }
}

/// Waits until the socket is readable or writable, at most `most`.
pub(crate) fn wait_ready(stream: &UnixStream, events: PollFlags, time_limit: Duration) -> io::Result<bool> {
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
    use super::*;
    use crate::daemon_address::DaemonTrust;

    #[test]
    fn reports_missing_listener() {
        let dir = tempfile::tempdir().expect("a directory");
        let address = DaemonAddress { socket: dir.path().join("s"), trust: DaemonTrust::AnyUser };
        assert!(matches!(BlockingConnection::open(&address), Err(ClientError::NotListening { .. })));
    }
}

//! The response to a single command: lines of JSON, parsed as they arrive.

use std::collections::VecDeque;
use std::io;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use proctor_core::api::{ExecEvent, ExecSubmission};
use rustix::event::PollFlags;

use crate::blocking_connection::{BlockingConnection, wait_ready};
use crate::daemon_address::DaemonAddress;
use crate::error::ClientError;
use crate::response_parser::ResponsePart;

/// Maximum length of a line in bytes.
const MAX_LINE: usize = 32 << 20;

/// The response to a command. Dropping it cancels the command.
#[derive(Debug)]
pub struct ExecResponse {
    connection: BlockingConnection,
    /// Status of the response, once its head was received.
    status: Option<u16>,
    /// The bytes of an incomplete line, or of a refusal.
    line: Vec<u8>,
    pending: VecDeque<ExecEvent>,
    /// Error that occurred while no call could return it.
    deferred_error: Option<ClientError>,
    /// `true` if the last line was received.
    has_last_event: bool,
}

impl ExecResponse {
    /// Sends a command. The connection is closed after the response.
    ///
    /// # Errors
    /// The connection is lost; the daemon may have received the command.
    pub fn send(mut connection: BlockingConnection, submission: &ExecSubmission) -> Result<Self, ClientError> {
        connection.send(&serialize_request(submission)?)?;
        Ok(Self::new(connection))
    }

    fn new(connection: BlockingConnection) -> Self {
        Self {
            connection,
            status: None,
            line: Vec::new(),
            pending: VecDeque::new(),
            deferred_error: None,
            has_last_event: false,
        }
    }

    /// Continues a response of which another process has read the first bytes.
    pub fn resume(address: DaemonAddress, stream: UnixStream, received: &[u8]) -> Self {
        let mut response = Self::new(BlockingConnection::from_stream(address, stream));
        response.push_bytes(received);
        response
    }

    /// Returns the location of the daemon.
    pub fn address(&self) -> &DaemonAddress {
        &self.connection.address
    }

    /// Returns the connection.
    pub fn stream(&self) -> &UnixStream {
        &self.connection.stream
    }

    /// Waits until the whole response was received, at most `time_limit`. Returns whether it was: then
    /// [`parse`](Self::parse) returns `true` or the error of the response. Adds the received bytes to `received`, and
    /// stops waiting when it has more than `max_bytes`.
    pub fn wait(&mut self, time_limit: Duration, received: &mut Vec<u8>, max_bytes: usize) -> bool {
        let until = Instant::now() + time_limit;
        loop {
            match self.parse() {
                Ok(true) => return true,
                Ok(false) => {}
                Err(error) => {
                    self.deferred_error = Some(error);
                    return true;
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if received.len() > max_bytes
                || !wait_ready(&self.connection.stream, PollFlags::IN, left).unwrap_or_default()
            {
                return false;
            }
            match self.connection.read_bytes(until) {
                Ok(bytes) => {
                    received.extend_from_slice(&bytes);
                    self.push_bytes(&bytes);
                }
                Err(_) => return false,
            }
        }
    }

    /// Returns the error for a connection that broke.
    pub fn connection_broken(&self, error: &io::Error) -> ClientError {
        self.connection.connection_broken(error)
    }

    /// Adds received bytes.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        self.connection.response.push_bytes(bytes);
    }

    /// Returns whether the response, parsed so far, shows that the daemon has accepted the command.
    pub fn is_accepted(&self) -> bool {
        self.status.is_some_and(is_success)
    }

    /// Returns whether an event was parsed but not yet returned.
    pub fn has_event(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Takes the next event that was parsed.
    pub fn next_event(&mut self) -> Option<ExecEvent> {
        self.pending.pop_front()
    }

    /// Parses the received bytes into events. Returns whether the last event was received.
    ///
    /// # Errors
    /// The daemon refused the command, or the response is invalid.
    pub fn parse(&mut self) -> Result<bool, ClientError> {
        if let Some(error) = self.deferred_error.take() {
            return Err(error);
        }
        while !self.has_last_event {
            let piece =
                self.connection.response.next_part().map_err(|why| self.connection.invalid_response(why.to_owned()))?;
            match piece {
                None => break,
                Some(ResponsePart::Head(status)) => self.status = Some(status),
                Some(ResponsePart::Body(bytes)) => self.push_body(&bytes)?,
                Some(ResponsePart::End) => return Err(self.unfinished_error()),
            }
        }
        Ok(self.has_last_event)
    }

    /// Interprets a response without a last line: a refusal, which is a problem document, or an incomplete response.
    pub fn unfinished_error(&self) -> ClientError {
        match self.status {
            Some(status) if !is_success(status) => match serde_json::from_slice(&self.line) {
                Ok(problem) => ClientError::Problem(Box::new(problem)),
                Err(_) => {
                    self.connection.invalid_response(format!("it has the status {status} without a problem document"))
                }
            },
            _ => {
                let reason = "the answer ended before the command did".to_owned();
                ClientError::ConnectionBroken { socket: self.connection.address.socket.clone(), reason }
            }
        }
    }

    fn push_body(&mut self, bytes: &[u8]) -> Result<(), ClientError> {
        let mut rest = bytes;
        let is_lines = self.status.is_some_and(is_success);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n').filter(|_| is_lines) {
            self.line.extend_from_slice(&rest[..end]);
            rest = &rest[end + 1..];
            let event: ExecEvent = serde_json::from_slice(&self.line)
                .map_err(|error| self.connection.invalid_response(error.to_string()))?;
            self.line.clear();
            self.has_last_event |= is_last(&event);
            self.pending.push_back(event);
        }
        if self.line.len() + rest.len() > MAX_LINE {
            return Err(self.connection.invalid_response(format!("a line has more than {MAX_LINE} bytes")));
        }
        self.line.extend_from_slice(rest);
        Ok(())
    }
}

/// Returns the bytes of the request for a command.
///
/// # Errors
/// The request cannot be serialized, which is a bug.
fn serialize_request(submission: &ExecSubmission) -> Result<Vec<u8>, ClientError> {
    let body = serde_json::to_vec(submission).map_err(|error| ClientError::UnserializableRequest(error.to_string()))?;
    let fields = "host: localhost\r\ncontent-type: application/json\r\nconnection: close";
    let mut request =
        format!("POST /v1/exec HTTP/1.1\r\n{fields}\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
    request.extend(body);
    Ok(request)
}

fn is_success(status: u16) -> bool {
    (200..300).contains(&status)
}

/// Returns whether this event is the last of a response.
pub fn is_last(event: &ExecEvent) -> bool {
    matches!(event, ExecEvent::Finished { .. } | ExecEvent::Failed { .. })
}

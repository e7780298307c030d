//! Client side of a single command: reads the response line by line.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use http::Method;
use proctor_core::api::{ExecEvent, ExecSubmission};
use proctor_core::model::names::ExecId;
use rustix::event::PollFlags;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::blocking_connection::{BlockingConnection, wait_ready};
use super::connection::{connect, no_response};
use super::error::ClientError;
use super::response_parser::ResponsePart;
use super::{Client, MAX_JSON, QUICK_TIMEOUT, WORK_TIMEOUT, empty_request};

/// Maximum silence of a daemon, which sends a heartbeat every fifteen seconds.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum length of a line in bytes.
const MAX_LINE: usize = 32 << 20;

/// An active command. Dropping it cancels the command.
pub struct RemoteExecution {
    connection: BlockingConnection,
    /// The same connection, registered with a runtime.
    stream: Option<UnixStream>,
    /// Status of the response, once its head was received.
    status: Option<u16>,
    line: Vec<u8>,
    pending: VecDeque<ExecEvent>,
    /// Error that occurred while no call could return it.
    deferred_error: Option<ClientError>,
    /// `true` if the last line was received.
    has_last_event: bool,
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
        let link = BlockingConnection { address: self.address.clone(), stream, response: Default::default() };
        let mut execution = link.exec(submission)?;
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

/// Returns the bytes of the request for a command.
///
/// # Errors
/// The request cannot be serialized, which is a bug.
pub(super) fn serialize_request(submission: &ExecSubmission) -> Result<Vec<u8>, ClientError> {
    let body = serde_json::to_vec(submission).map_err(|error| ClientError::UnserializableRequest(error.to_string()))?;
    let fields = "host: localhost\r\ncontent-type: application/json\r\nconnection: close";
    let mut request =
        format!("POST /v1/exec HTTP/1.1\r\n{fields}\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
    request.extend(body);
    Ok(request)
}

impl RemoteExecution {
    pub(super) fn new(link: BlockingConnection) -> Self {
        let (line, ready) = (Vec::new(), VecDeque::new());
        Self {
            connection: link,
            stream: None,
            status: None,
            line,
            pending: ready,
            deferred_error: None,
            has_last_event: false,
            is_finished: false,
        }
    }

    /// Waits without a runtime until the whole response was received, at most `most`. Returns whether it was: then
    /// neither [`head`](Self::head) nor [`next`](Self::next) waits. These also report errors of the response.
    pub fn wait(&mut self, time_limit: Duration) -> bool {
        let until = Instant::now() + time_limit;
        loop {
            match self.parse_events() {
                Ok(true) => return true,
                Ok(false) => {}
                Err(error) => {
                    self.deferred_error = Some(error);
                    return true;
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if !wait_ready(&self.connection.stream, PollFlags::IN, left).unwrap_or_default()
                || self.connection.read(until).is_err()
            {
                return false;
            }
        }
    }

    /// Waits until the daemon has accepted the command.
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub async fn head(&mut self) -> Result<(), ClientError> {
        while !self.parse_events()? && self.status.is_none_or(|status| !is_success(status)) {
            self.read_more(WORK_TIMEOUT).await?;
        }
        Ok(())
    }

    /// Returns the next event, or `None` after `finished` or `failed`. Cancellation is safe: no event is lost.
    ///
    /// # Errors
    /// The connection is lost before the last line, or a line is invalid.
    pub async fn next(&mut self) -> Result<Option<ExecEvent>, ClientError> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                self.is_finished = is_last(&event);
                return Ok(Some(event));
            }
            if self.is_finished {
                return Ok(None);
            }
            self.parse_events()?;
            if self.pending.is_empty() {
                self.read_more(HEARTBEAT_TIMEOUT).await?;
            }
        }
    }

    /// Parses the received bytes into events. Returns whether the last event was received.
    fn parse_events(&mut self) -> Result<bool, ClientError> {
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
    fn unfinished_error(&self) -> ClientError {
        match self.status {
            Some(status) if !is_success(status) => match serde_json::from_slice(&self.line) {
                Ok(problem) => ClientError::Problem(Box::new(problem)),
                Err(_) => self.connection.invalid_response(format!("it has the status {status} and no problem in it")),
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

    /// Waits for more bytes of the response on the runtime, at most `most`.
    async fn read_more(&mut self, time_limit: Duration) -> Result<(), ClientError> {
        let mut part = [0; 16 << 10];
        let count = loop {
            let stream = self.stream()?;
            let is_ready = timeout(time_limit, stream.readable()).await;
            let read = match is_ready {
                Ok(is_ready) => is_ready.and_then(|()| stream.try_read(&mut part)),
                Err(_) => {
                    return Err(no_response(
                        &self.connection.address,
                        format!("nothing came within {} s", time_limit.as_secs()),
                    ));
                }
            };
            match read {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => break read,
            }
        };
        match count {
            Ok(0) => Err(self.unfinished_error()),
            Ok(count) => {
                self.connection.response.push_bytes(&part[..count]);
                Ok(())
            }
            Err(error) => Err(self.connection.connection_broken(&error)),
        }
    }

    fn stream(&mut self) -> Result<&UnixStream, ClientError> {
        if self.stream.is_none() {
            let stream = self.connection.stream.try_clone().and_then(UnixStream::from_std);
            self.stream = Some(stream.map_err(|error| self.connection.connection_broken(&error))?);
        }
        self.stream.as_ref().ok_or_else(|| self.connection.connection_broken(&ErrorKind::NotConnected.into()))
    }
}

fn is_success(status: u16) -> bool {
    (200..300).contains(&status)
}

fn is_last(event: &ExecEvent) -> bool {
    matches!(event, ExecEvent::Finished { .. } | ExecEvent::Failed { .. })
}

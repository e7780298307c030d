//! Client side of a single command: reads the response line by line.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use http::Method;
use proctor_core::api::{ExecEvent, ExecSubmission};
use proctor_core::names::ExecId;
use rustix::event::PollFlags;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::answer::Piece;
use super::connection::{connect, silent};
use super::error::ClientError;
use super::link::{Link, ready};
use super::{AT_ONCE, Client, MAX_JSON, WORK, empty};

/// Maximum silence of a daemon, which sends a heartbeat every fifteen seconds.
const SILENCE: Duration = Duration::from_secs(60);
/// Maximum length of a line in bytes.
const MAX_LINE: usize = 32 << 20;

/// An active command. Dropping it cancels the command.
pub struct Execution {
    link: Link,
    /// The same connection, registered with a runtime.
    stream: Option<UnixStream>,
    /// Status of the response, once its head was received.
    status: Option<u16>,
    line: Vec<u8>,
    ready: VecDeque<ExecEvent>,
    /// Error that occurred while no call could return it.
    failed: Option<ClientError>,
    /// `true` if the last line was received.
    is_told: bool,
    is_over: bool,
}

impl Client {
    /// Runs a single command.
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub async fn exec(&self, submission: &ExecSubmission) -> Result<Execution, ClientError> {
        let stream = connect(&self.place).await?;
        let stream = stream.into_std().map_err(|error| silent(&self.place, error.to_string()))?;
        let link = Link { place: self.place.clone(), stream, answer: Default::default() };
        let mut execution = link.exec(submission)?;
        execution.head().await?;
        Ok(execution)
    }

    /// Requests cancellation of a command. The response to the command reports its end.
    ///
    /// # Errors
    /// As [`Client::submit`]; also if the command has ended.
    pub async fn cancel_exec(&self, id: &ExecId) -> Result<(), ClientError> {
        self.exchange(empty(Method::DELETE, &format!("/v1/exec/{id}")), AT_ONCE, MAX_JSON).await.map(drop)
    }
}

/// Returns the bytes of the request for a command.
///
/// # Errors
/// The request cannot be serialized, which is a bug.
pub(super) fn body_of(submission: &ExecSubmission) -> Result<Vec<u8>, ClientError> {
    let body = serde_json::to_vec(submission).map_err(|error| ClientError::Unsayable(error.to_string()))?;
    let fields = "host: localhost\r\ncontent-type: application/json\r\nconnection: close";
    let mut request =
        format!("POST /v1/exec HTTP/1.1\r\n{fields}\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
    request.extend(body);
    Ok(request)
}

impl Execution {
    pub(super) fn new(link: Link) -> Self {
        let (line, ready) = (Vec::new(), VecDeque::new());
        Self { link, stream: None, status: None, line, ready, failed: None, is_told: false, is_over: false }
    }

    /// Waits without a runtime until the whole response was received, at most `most`. Returns whether it was: then
    /// neither [`head`](Self::head) nor [`next`](Self::next) waits. These also report errors of the response.
    pub fn wait(&mut self, most: Duration) -> bool {
        let until = Instant::now() + most;
        loop {
            match self.sort() {
                Ok(true) => return true,
                Ok(false) => {}
                Err(error) => {
                    self.failed = Some(error);
                    return true;
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if !ready(&self.link.stream, PollFlags::IN, left).unwrap_or_default() || self.link.read(until).is_err() {
                return false;
            }
        }
    }

    /// Waits until the daemon has accepted the command.
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub async fn head(&mut self) -> Result<(), ClientError> {
        while !self.sort()? && self.status.is_none_or(|status| !is_success(status)) {
            self.more(WORK).await?;
        }
        Ok(())
    }

    /// Returns the next event, or `None` after `finished` or `failed`. Cancellation is safe: no event is lost.
    ///
    /// # Errors
    /// The connection is lost before the last line, or a line is invalid.
    pub async fn next(&mut self) -> Result<Option<ExecEvent>, ClientError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.is_over = is_last(&event);
                return Ok(Some(event));
            }
            if self.is_over {
                return Ok(None);
            }
            self.sort()?;
            if self.ready.is_empty() {
                self.more(SILENCE).await?;
            }
        }
    }

    /// Parses the received bytes into events. Returns whether the last event was received.
    fn sort(&mut self) -> Result<bool, ClientError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        while !self.is_told {
            let piece = self.link.answer.next().map_err(|why| self.link.not_understood(why.to_owned()))?;
            match piece {
                None => break,
                Some(Piece::Head(status)) => self.status = Some(status),
                Some(Piece::Body(bytes)) => self.take(&bytes)?,
                Some(Piece::End) => return Err(self.ended_early()),
            }
        }
        Ok(self.is_told)
    }

    /// Interprets a response without a last line: a refusal, which is a problem document, or an incomplete response.
    fn ended_early(&self) -> ClientError {
        match self.status {
            Some(status) if !is_success(status) => match serde_json::from_slice(&self.line) {
                Ok(problem) => ClientError::Problem(Box::new(problem)),
                Err(_) => self.link.not_understood(format!("it has the status {status} and no problem in it")),
            },
            _ => {
                let reason = "the answer ended before the command did".to_owned();
                ClientError::Broken { socket: self.link.place.socket.clone(), reason }
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), ClientError> {
        let mut rest = bytes;
        let is_lines = self.status.is_some_and(is_success);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n').filter(|_| is_lines) {
            self.line.extend_from_slice(&rest[..end]);
            rest = &rest[end + 1..];
            let event: ExecEvent =
                serde_json::from_slice(&self.line).map_err(|error| self.link.not_understood(error.to_string()))?;
            self.line.clear();
            self.is_told |= is_last(&event);
            self.ready.push_back(event);
        }
        if self.line.len() + rest.len() > MAX_LINE {
            return Err(self.link.not_understood(format!("a line has more than {MAX_LINE} bytes")));
        }
        self.line.extend_from_slice(rest);
        Ok(())
    }

    /// Waits for more bytes of the response on the runtime, at most `most`.
    async fn more(&mut self, most: Duration) -> Result<(), ClientError> {
        let mut part = [0; 16 << 10];
        let count = loop {
            let stream = self.stream()?;
            let is_ready = timeout(most, stream.readable()).await;
            let read = match is_ready {
                Ok(is_ready) => is_ready.and_then(|()| stream.try_read(&mut part)),
                Err(_) => return Err(silent(&self.link.place, format!("nothing came within {} s", most.as_secs()))),
            };
            match read {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => break read,
            }
        };
        match count {
            Ok(0) => Err(self.ended_early()),
            Ok(count) => {
                self.link.answer.take(&part[..count]);
                Ok(())
            }
            Err(error) => Err(self.link.broken(&error)),
        }
    }

    fn stream(&mut self) -> Result<&UnixStream, ClientError> {
        if self.stream.is_none() {
            let stream = self.link.stream.try_clone().and_then(UnixStream::from_std);
            self.stream = Some(stream.map_err(|error| self.link.broken(&error))?);
        }
        self.stream.as_ref().ok_or_else(|| self.link.broken(&ErrorKind::NotConnected.into()))
    }
}

fn is_success(status: u16) -> bool {
    (200..300).contains(&status)
}

fn is_last(event: &ExecEvent) -> bool {
    matches!(event, ExecEvent::Finished { .. } | ExecEvent::Failed { .. })
}

//! Reads the events of a run as server-sent events (HTML standard, section 9.2) until the end of the run. A lost
//! connection is re-established after the last received event. A missing event is an error.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use http::{Method, Response, StatusCode};
use hyper::body::Incoming;
use proctor_client::blocking_connection::{MAX_JSON, QUICK_TIMEOUT};
use proctor_client::daemon_address::DaemonAddress;
use proctor_client::error::{ClientError, no_response};
use proctor_core::api::{LoggedEvent, OutputEvent};
use proctor_core::model::event::RunEvent;
use proctor_core::model::names::RunId;
use tokio::time::{Instant, sleep};

use super::connection::{IdleConnection, ResponseBody, empty_request, next_body_part, send_request, send_request_over};

/// Maximum silence of a stream, on which the daemon sends a heartbeat every fifteen seconds.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(60);
/// Time during which the client tries to restore a lost connection. A daemon that restarts on a busy machine with a
/// long history may need many seconds. A connection counts as restored when it brings an event or lasts this long.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Delay between two attempts: a starting daemon sends no notification.
const RECONNECT_DELAY: Duration = Duration::from_millis(100);
/// Maximum size of an event in bytes.
const MAX_EVENT: usize = 32 << 20;

/// The events of one run.
pub struct RunEventReader {
    address: DaemonAddress,
    idle: IdleConnection,
    run: RunId,
    /// Number of the last event that was returned or is in `ready`.
    last_seq: u64,
    stream: Option<EventConnection>,
    parser: SseParser,
    pending: VecDeque<LoggedEvent>,
    lost_since: Option<Instant>,
    ended: bool,
}

/// A connection that delivers events.
struct EventConnection {
    body: Incoming,
    since: Instant,
}

impl RunEventReader {
    pub(super) fn new((address, idle): (DaemonAddress, IdleConnection), run: RunId, after: u64) -> Self {
        Self {
            address,
            idle,
            run,
            last_seq: after,
            stream: None,
            parser: SseParser::default(),
            pending: VecDeque::new(),
            lost_since: None,
            ended: false,
        }
    }

    /// Returns the next event, or `None` after the last event of the run. Cancellation is safe: no event is lost.
    ///
    /// # Errors
    /// The daemon is gone and does not return, it refuses the request, or its response is not the log of a run.
    pub async fn next(&mut self) -> Result<Option<LoggedEvent>, ClientError> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Ok(Some(event));
            }
            if self.ended {
                return Ok(None);
            }
            match self.read_events().await {
                Err(error) if error.is_retryable() => self.wait_before_reconnect(error).await?,
                read => read?,
            }
        }
    }

    /// Reads once and stores the events that are complete.
    async fn read_events(&mut self) -> Result<(), ClientError> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => {
                let body = self.open().await?;
                self.parser = SseParser::default();
                self.stream.insert(EventConnection { body, since: Instant::now() })
            }
        };
        let Some(part) = next_body_part(&mut stream.body, &self.address, HEARTBEAT_TIMEOUT).await? else {
            return Err(no_response(&self.address, "the stream of events ended before the run did".to_owned()));
        };
        for data in self.parser.push_bytes(&part).map_err(|error| self.invalid_response(error.to_string()))? {
            self.queue_event(&data)?;
        }
        Ok(())
    }

    async fn open(&self) -> Result<Incoming, ClientError> {
        let mut request = empty_request(Method::GET, &format!("/v1/runs/{}/events", self.run));
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        if self.last_seq > 0 {
            request.headers_mut().insert("last-event-id", HeaderValue::from(self.last_seq));
        }
        // The connection ends with the stream, because nothing else uses it.
        let (response, _) = send_request_over(&self.idle, &self.address, request, QUICK_TIMEOUT).await?;
        let (head, body) = response.into_parts();
        let kind = head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if head.status.is_success() && kind.starts_with("text/event-stream") {
            return Ok(body);
        }
        let status = Response::from_parts(head, ()).status();
        let bytes = ResponseBody::new(body, &self.address).read_all(MAX_JSON).await?;
        Err(match serde_json::from_slice(&bytes) {
            Ok(problem) => ClientError::Problem(Box::new(problem)),
            Err(_) => self.invalid_response(format!("it has the status {status} and is not an event stream")),
        })
    }

    /// Waits before the next attempt after a lost connection, or returns the error if the time limit was reached.
    async fn wait_before_reconnect(&mut self, lost: ClientError) -> Result<(), ClientError> {
        if self.stream.take().is_some_and(|stream| stream.since.elapsed() >= RECONNECT_TIMEOUT) {
            self.lost_since = None;
        }
        let since = *self.lost_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= RECONNECT_TIMEOUT {
            return Err(lost);
        }
        sleep(RECONNECT_DELAY).await;
        Ok(())
    }

    fn queue_event(&mut self, data: &str) -> Result<(), ClientError> {
        let event: LoggedEvent = serde_json::from_str(data)
            .map_err(|error| self.invalid_response(format!("an event of the run: {error}")))?;
        if event.seq <= self.last_seq {
            return Ok(());
        }
        if event.seq != self.last_seq + 1 || self.ended {
            return Err(self.invalid_response(format!("event {} follows event {}", event.seq, self.last_seq)));
        }
        self.last_seq = event.seq;
        self.lost_since = None;
        self.ended = matches!(event.event, RunEvent::RunFinished { .. });
        self.pending.push_back(event);
        Ok(())
    }

    fn invalid_response(&self, reason: String) -> ClientError {
        ClientError::InvalidResponse { socket: self.address.socket.clone(), reason }
    }
}

/// Live output of the steps of a run. Pieces may be skipped, and a lost connection ends it.
pub struct LiveOutputReader {
    address: DaemonAddress,
    body: Incoming,
    parser: SseParser,
    pending: VecDeque<OutputEvent>,
}

impl LiveOutputReader {
    pub(super) async fn open(address: &DaemonAddress, run: &RunId) -> Result<Self, ClientError> {
        let mut request = empty_request(Method::GET, &format!("/v1/runs/{run}/events?output=true"));
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        let (head, body) = send_request(address, request, QUICK_TIMEOUT).await?.into_parts();
        if head.status != StatusCode::OK {
            let reason = format!("the stream of outputs has the status {}", head.status);
            return Err(ClientError::InvalidResponse { socket: address.socket.clone(), reason });
        }
        Ok(Self { address: address.clone(), body, parser: SseParser::default(), pending: VecDeque::new() })
    }

    /// Returns the next piece, or `None` at the end of the run.
    ///
    /// # Errors
    /// The connection is lost, or the response is not an event stream.
    pub async fn next(&mut self) -> Result<Option<OutputEvent>, ClientError> {
        loop {
            if let Some(piece) = self.pending.pop_front() {
                return Ok(Some(piece));
            }
            let Some(part) = next_body_part(&mut self.body, &self.address, HEARTBEAT_TIMEOUT).await? else {
                return Ok(None);
            };
            let whole = self.parser.push_bytes(&part).map_err(|error| ClientError::InvalidResponse {
                socket: self.address.socket.clone(),
                reason: error.to_string(),
            })?;
            // Events of the log in the same stream are ignored.
            self.pending.extend(whole.iter().filter_map(|data| serde_json::from_str::<OutputEvent>(data).ok()));
        }
    }
}

/// The reason why bytes are not part of an event stream.
#[derive(Debug, thiserror::Error)]
enum EventStreamError {
    #[error("an event has more than {MAX_EVENT} bytes")]
    EventTooLarge,
    #[error("an event is not UTF-8")]
    NotUtf8(#[from] std::str::Utf8Error),
}

/// Extracts the data of server-sent events from bytes. `id:`, `event:`, `retry:` and comments are ignored, because
/// the data contains the event's number.
#[derive(Default)]
struct SseParser {
    line: Vec<u8>,
    data: String,
    has_data: bool,
    after_cr: bool,
}

impl SseParser {
    /// Returns the data of the events that these bytes complete.
    fn push_bytes(&mut self, bytes: &Bytes) -> Result<Vec<String>, EventStreamError> {
        let mut whole = Vec::new();
        for &byte in bytes.iter() {
            let ends = byte == b'\r' || byte == b'\n' && !self.after_cr;
            if ends {
                whole.extend(self.end_line()?);
            } else if byte != b'\n' {
                self.line.push(byte);
            }
            self.after_cr = byte == b'\r';
            if self.line.len() + self.data.len() > MAX_EVENT {
                return Err(EventStreamError::EventTooLarge);
            }
        }
        Ok(whole)
    }

    fn end_line(&mut self) -> Result<Option<String>, EventStreamError> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            let data = std::mem::take(&mut self.data);
            return Ok(std::mem::take(&mut self.has_data).then_some(data));
        }
        if let Some(value) = line.strip_prefix(b"data:") {
            let value = value.strip_prefix(b" ").unwrap_or(value);
            let text = std::str::from_utf8(value)?;
            if std::mem::replace(&mut self.has_data, true) {
                self.data.push('\n');
            }
            self.data.push_str(text);
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_events(parts: &[&str]) -> Vec<String> {
        let mut parser = SseParser::default();
        parts
            .iter()
            .flat_map(|part| parser.push_bytes(&Bytes::copy_from_slice(part.as_bytes())).expect("fine"))
            .collect()
    }

    #[test]
    fn parses_events_in_any_split() {
        let stream =
            ": hello\n\nid: 1\ndata: {\"a\":1}\n\nevent: x\r\ndata:b\r\ndata: c\r\n\r\n: still here\n\ndata: cut";
        let expected = vec!["{\"a\":1}".to_owned(), "b\nc".to_owned()];
        assert_eq!(parse_events(&[stream]), expected);
        for at in 0..stream.len() {
            assert_eq!(parse_events(&[&stream[..at], &stream[at..]]), expected, "cut at {at}");
        }
    }

    #[test]
    fn rejects_oversized_event() {
        let mut parser = SseParser::default();
        let part = Bytes::from(vec![b'x'; MAX_EVENT / 2 + 1]);
        parser.push_bytes(&part).expect("half of it");
        parser.push_bytes(&part).expect_err("too much");
    }
}

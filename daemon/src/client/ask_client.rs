//! Client side of a question to a database: reads the steps of the loop until its answer.

use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use proctor_client::blocking_connection::MAX_JSON;
use proctor_client::error::{ClientError, no_response};
use proctor_core::api::AskEvent;
use proctor_core::sql::{AskAnswer, AskRequest};

use super::connection::{ResponseBody, next_body_part, send_request};
use super::{Client, WORK_TIMEOUT, post_request};

/// Maximum silence of a daemon, which sends a heartbeat every fifteen seconds.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(60);

impl Client {
    /// Asks a question to a database. `progress` receives a message for each step.
    ///
    /// # Errors
    /// As [`Client::submit`]; also if the connection is lost before the answer.
    pub async fn ask_sql(
        &self,
        request: &AskRequest,
        mut progress: impl FnMut(String) + Send,
    ) -> Result<AskAnswer, ClientError> {
        let request = self.in_own_trace(post_request("/v1/sql/ask?progress=true", request)?)?;
        let (head, mut body) = send_request(&self.address, request, WORK_TIMEOUT).await?.into_parts();
        let is_lines = head.headers.get(CONTENT_TYPE).is_some_and(is_json_lines);
        if !head.status.is_success() || !is_lines {
            let status = Response::from_parts(head, ()).status();
            let bytes = ResponseBody::new(body, &self.address).read_all(MAX_JSON).await?;
            return Err(match serde_json::from_slice(&bytes) {
                Ok(problem) => ClientError::Problem(Box::new(problem)),
                Err(_) => self.invalid_response(&format!("it has the status {status} and is not a list of steps")),
            });
        }
        let mut lines = LineBuffer::default();
        while let Some(part) = next_body_part(&mut body, &self.address, HEARTBEAT_TIMEOUT).await? {
            lines.push(&part).map_err(|reason| self.invalid_response(reason))?;
            while let Some(line) = lines.next() {
                match serde_json::from_slice(&line).map_err(|error| self.invalid_response(&error.to_string()))? {
                    AskEvent::Step { message } => progress(message),
                    AskEvent::Alive => {}
                    AskEvent::Finished { answer } => return Ok(*answer),
                    AskEvent::Failed { problem } => return Err(ClientError::Problem(problem)),
                }
            }
        }
        Err(no_response(&self.address, "the connection ended before the answer".to_owned()))
    }
}

fn is_json_lines(kind: &HeaderValue) -> bool {
    kind.to_str().is_ok_and(|kind| kind.starts_with("text/x-ndjson"))
}

/// Received bytes that are not yet complete lines. A line has at most [`MAX_JSON`] bytes.
#[derive(Debug, Default)]
struct LineBuffer(Vec<u8>);

impl LineBuffer {
    /// Appends bytes.
    ///
    /// # Errors
    /// A line is too long. The value says so.
    fn push(&mut self, part: &[u8]) -> Result<(), &'static str> {
        self.0.extend_from_slice(part);
        if self.0.len() > MAX_JSON { Err("a line of it is too long") } else { Ok(()) }
    }

    /// Removes and returns the first complete line, without its end.
    fn next(&mut self) -> Option<Bytes> {
        let end = self.0.iter().position(|byte| *byte == b'\n')?;
        let rest = self.0.split_off(end + 1);
        let mut line = std::mem::replace(&mut self.0, rest);
        line.pop();
        Some(line.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_lines_across_parts() {
        let mut lines = LineBuffer::default();
        lines.push(b"{\"a\":").expect("short");
        assert_eq!(lines.next(), None);
        lines.push(b"1}\n{}\n{\"b").expect("short");
        assert_eq!(lines.next().as_deref(), Some(b"{\"a\":1}".as_slice()));
        assert_eq!(lines.next().as_deref(), Some(b"{}".as_slice()));
        assert_eq!(lines.next(), None);
        assert!(lines.push(&vec![b'x'; MAX_JSON]).is_err());
    }
}

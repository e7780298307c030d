//! A command that a daemon runs by itself: its answer, line by line.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use hyper::body::Incoming;
use proctor_core::api::{ExecEvent, ExecSubmission};
use proctor_core::names::ExecId;

use super::connection::{Body, ask, next_part};
use super::error::ClientError;
use super::place::Place;
use super::{AT_ONCE, Client, MAX_JSON, WORK, empty, post};

/// How long a daemon may be silent: it says every fifteen seconds that it is there.
const SILENCE: Duration = Duration::from_secs(60);
/// How many bytes one line has at most.
const MAX_LINE: usize = 32 << 20;

/// A command under way. Dropping it ends the command.
pub struct Execution {
    place: Place,
    body: Incoming,
    line: Vec<u8>,
    ready: VecDeque<ExecEvent>,
    ended: bool,
}

impl Client {
    /// Runs one command by itself.
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub async fn exec(&self, submission: &ExecSubmission) -> Result<Execution, ClientError> {
        let (head, body) = ask(&self.place, post("/v1/exec", submission)?, WORK).await?.into_parts();
        if head.status.is_success() {
            let (place, line, ready) = (self.place.clone(), Vec::new(), VecDeque::new());
            return Ok(Execution { place, body, line, ready, ended: false });
        }
        let bytes = Body::new(body, &self.place).all(MAX_JSON).await?;
        Err(match serde_json::from_slice(&bytes) {
            Ok(problem) => ClientError::Problem(Box::new(problem)),
            Err(_) => self.cannot(&format!("it has the status {} and no problem in it", head.status)),
        })
    }

    /// Asks such a command to end. Its own answer tells the end.
    ///
    /// # Errors
    /// As [`Client::submit`]; it has ended.
    pub async fn cancel_exec(&self, id: &ExecId) -> Result<(), ClientError> {
        self.exchange(empty(Method::DELETE, &format!("/v1/exec/{id}")), AT_ONCE, MAX_JSON).await.map(drop)
    }
}

impl Execution {
    /// What happens next; `None` behind `finished` or `failed`. Can be dropped and called again without losing
    /// anything.
    ///
    /// # Errors
    /// The connection is lost before the last line, or a line is none that is understood.
    pub async fn next(&mut self) -> Result<Option<ExecEvent>, ClientError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.ended = matches!(event, ExecEvent::Finished { .. } | ExecEvent::Failed { .. });
                return Ok(Some(event));
            }
            if self.ended {
                return Ok(None);
            }
            match next_part(&mut self.body, &self.place, SILENCE).await? {
                Some(bytes) => self.take(&bytes)?,
                None => {
                    let reason = "the answer ended before the command did".to_owned();
                    return Err(ClientError::Broken { socket: self.place.socket.clone(), reason });
                }
            }
        }
    }

    fn take(&mut self, bytes: &Bytes) -> Result<(), ClientError> {
        let mut rest = &bytes[..];
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.line.extend_from_slice(&rest[..end]);
            rest = &rest[end + 1..];
            let event = serde_json::from_slice(&self.line).map_err(|error| self.not_understood(error.to_string()))?;
            self.line.clear();
            self.ready.push_back(event);
        }
        if self.line.len() + rest.len() > MAX_LINE {
            return Err(self.not_understood(format!("a line has more than {MAX_LINE} bytes")));
        }
        self.line.extend_from_slice(rest);
        Ok(())
    }

    fn not_understood(&self, reason: String) -> ClientError {
        ClientError::NotUnderstood { socket: self.place.socket.clone(), reason }
    }
}

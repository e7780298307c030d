//! Follows the output of a running step.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use hyper::body::Incoming;
use proctor_core::names::RunId;

use super::connection::{Body, ask, next_part};
use super::error::ClientError;
use super::place::Place;
use super::{AT_ONCE, MAX_JSON, empty};
use crate::http::{ATTEMPT, OUTPUT_STATE};
use crate::service::{MAX_WAIT, OutputOf};

/// Maximum pause of an output. A step may be silent until its own time limit, so a caller that must notice a hanging
/// daemon also follows the events of the run.
const QUIET: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The output of one attempt of a step, as it is produced.
pub struct FollowedOutput {
    place: Place,
    body: Incoming,
    attempt: Option<u32>,
}

impl FollowedOutput {
    pub(super) async fn open(place: &Place, id: &RunId, of: OutputOf, offset: u64) -> Result<Self, ClientError> {
        let path = format!("/v1/runs/{id}/{}?follow=true&offset={offset}", of.path());
        let (head, body) = ask(place, empty(Method::GET, &path), MAX_WAIT + AT_ONCE).await?.into_parts();
        if head.status.is_success() {
            let is_running = head.headers.get(OUTPUT_STATE).is_some_and(|state| state == "running");
            let attempt = head.headers.get(ATTEMPT).and_then(|attempt| attempt.to_str().ok()?.parse().ok());
            return Ok(Self { place: place.clone(), body, attempt: attempt.filter(|_| is_running) });
        }
        let bytes = Body::new(body, place).all(MAX_JSON).await?;
        Err(match serde_json::from_slice(&bytes) {
            Ok(problem) => ClientError::Problem(Box::new(problem)),
            Err(error) => ClientError::NotUnderstood { socket: place.socket.clone(), reason: error.to_string() },
        })
    }

    /// Returns the running attempt, or `None` if the step has ended and the output is the recorded one.
    pub fn attempt(&self) -> Option<u32> {
        self.attempt
    }

    /// Returns the next bytes, or `None` at the end of the output. Cancellation is safe: no bytes are lost.
    ///
    /// # Errors
    /// The connection is lost, or the daemon cannot send the rest.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        next_part(&mut self.body, &self.place, QUIET).await
    }
}

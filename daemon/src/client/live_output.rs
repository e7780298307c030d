//! Follows the output of a running step.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use hyper::body::Incoming;
use proctor_client::blocking_connection::{MAX_JSON, QUICK_TIMEOUT};
use proctor_client::daemon_address::DaemonAddress;
use proctor_client::error::ClientError;
use proctor_core::model::names::RunId;

use super::connection::{ResponseBody, empty_request, next_body_part, send_request};
use crate::http::{ATTEMPT_HEADER, OUTPUT_STATE_HEADER};
use crate::service::{MAX_WAIT, OutputId};

/// Maximum pause of an output. A step may be silent until its own time limit, so a caller that must notice a hanging
/// daemon also follows the events of the run.
const OUTPUT_PAUSE_TIMEOUT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The output of one attempt of a step, as it is produced.
pub struct FollowedOutput {
    address: DaemonAddress,
    body: Incoming,
    attempt: Option<u32>,
}

impl FollowedOutput {
    pub(super) async fn open(
        address: &DaemonAddress,
        id: &RunId,
        output: OutputId,
        offset: u64,
    ) -> Result<Self, ClientError> {
        let path = format!("/v1/runs/{id}/{}?follow=true&offset={offset}", output.path());
        let (head, body) =
            send_request(address, empty_request(Method::GET, &path), MAX_WAIT + QUICK_TIMEOUT).await?.into_parts();
        if head.status.is_success() {
            let is_running = head.headers.get(OUTPUT_STATE_HEADER).is_some_and(|state| state == "running");
            let attempt = head.headers.get(ATTEMPT_HEADER).and_then(|attempt| attempt.to_str().ok()?.parse().ok());
            return Ok(Self { address: address.clone(), body, attempt: attempt.filter(|_| is_running) });
        }
        let bytes = ResponseBody::new(body, address).read_all(MAX_JSON).await?;
        Err(match serde_json::from_slice(&bytes) {
            Ok(problem) => ClientError::Problem(Box::new(problem)),
            Err(error) => ClientError::InvalidResponse { socket: address.socket.clone(), reason: error.to_string() },
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
        next_body_part(&mut self.body, &self.address, OUTPUT_PAUSE_TIMEOUT).await
    }
}

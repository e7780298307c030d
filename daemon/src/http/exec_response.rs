//! Executes single commands over HTTP. The response is a stream of JSON lines that lasts as long as the command. If
//! the client disconnects, the command is cancelled.

use std::convert::Infallible;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use proctor_core::api::{ExecEvent, Problem, ProblemType};
use proctor_core::model::names::ExecId;
use proctor_core::spec::quoted;
use tokio_util::sync::CancellationToken;

use super::app_state::AppState;
use super::request_head::RequestHead;
use super::response::{HandlerResult, NDJSON_CONTENT_TYPE};
use crate::service::ExecSession;

/// Runs a command.
///
/// # Errors
/// The command is refused.
pub(super) async fn start_exec(app: &AppState, head: &RequestHead, body: Body) -> HandlerResult {
    let submission = head.read_json(body).await?;
    let mut execution = app.service.exec(head.caller, submission).await?;
    execution.wait_briefly().await;
    let following = ExecLineStream { execution, stop: app.stop.clone() };
    let lines =
        stream::unfold(following, async |mut following| following.next_line().await.map(|line| (line, following)));
    let mut response = Response::new(Body::from_stream(lines.map(Ok::<_, Infallible>)));
    response.headers_mut().insert(CONTENT_TYPE, NDJSON_CONTENT_TYPE);
    Ok(response)
}

/// Requests cancellation of a command.
///
/// # Errors
/// No command has this id.
pub(super) fn cancel_exec(app: &AppState, head: &RequestHead) -> HandlerResult {
    let named = head.segment("id");
    let none = |_| Problem::new(ProblemType::NotFound, format!("there is no command {}", quoted(named)));
    app.service.cancel_exec(head.caller, &ExecId::new(named).map_err(none)?)?;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::ACCEPTED;
    Ok(response)
}

struct ExecLineStream {
    execution: ExecSession,
    stop: CancellationToken,
}

impl ExecLineStream {
    /// Returns the next line, or `None` after the last one or when the transport stops.
    async fn next_line(&mut self) -> Option<Bytes> {
        let event = tokio::select! {
            biased;
            event = self.execution.next() => event?,
            () = self.stop.cancelled() => return None,
        };
        Some(event_line(&event))
    }
}

fn event_line(event: &ExecEvent) -> Bytes {
    // Serialization to memory cannot fail, and compact JSON contains no line breaks.
    let mut line = serde_json::to_vec(event).unwrap_or_default();
    line.push(b'\n');
    line.into()
}

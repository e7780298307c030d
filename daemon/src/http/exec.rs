//! Executes single commands over HTTP. The response is a stream of JSON lines that lasts as long as the command. If
//! the client disconnects, the command is cancelled.

use std::convert::Infallible;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue};
use proctor_core::api::{ExecEvent, Problem, ProblemType};
use proctor_core::names::ExecId;
use proctor_core::spec::quoted;
use tokio_util::sync::CancellationToken;

use super::answer::Answer;
use super::asked::Asked;
use super::routes::App;
use crate::service::Execution;

/// Content type of JSON lines.
const LINES: HeaderValue = HeaderValue::from_static("text/x-ndjson");

/// Runs a command.
///
/// # Errors
/// The command is refused.
pub(super) async fn start(app: &App, asked: &Asked, body: Body) -> Answer {
    let submission = asked.json(body).await?;
    let mut execution = app.service.exec(asked.caller, submission).await?;
    execution.wait_briefly().await;
    let following = Following { execution, stop: app.stop.clone() };
    let lines = stream::unfold(following, async |mut following| following.line().await.map(|line| (line, following)));
    let mut response = Response::new(Body::from_stream(lines.map(Ok::<_, Infallible>)));
    response.headers_mut().insert(CONTENT_TYPE, LINES);
    Ok(response)
}

/// Requests cancellation of a command.
///
/// # Errors
/// No command has this id.
pub(super) fn cancel(app: &App, asked: &Asked) -> Answer {
    let named = asked.segment("id");
    let none = |_| Problem::new(ProblemType::NotFound, format!("there is no command {}", quoted(named)));
    app.service.cancel_exec(asked.caller, &ExecId::new(named).map_err(none)?)?;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::ACCEPTED;
    Ok(response)
}

struct Following {
    execution: Execution,
    stop: CancellationToken,
}

impl Following {
    /// Returns the next line, or `None` after the last one or when the transport stops.
    async fn line(&mut self) -> Option<Bytes> {
        let event = tokio::select! {
            biased;
            event = self.execution.next() => event?,
            () = self.stop.cancelled() => return None,
        };
        Some(line(&event))
    }
}

fn line(event: &ExecEvent) -> Bytes {
    // Serialization to memory cannot fail, and compact JSON contains no line breaks.
    let mut line = serde_json::to_vec(event).unwrap_or_default();
    line.push(b'\n');
    line.into()
}

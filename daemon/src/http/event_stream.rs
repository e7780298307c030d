//! Streams the events of a run as server-sent events (HTML standard, section 9.2): `data` is the event as JSON, and
//! `id` its number.
//!
//! The stream ends after the last event of the run, or when the transport stops. A disconnected client resumes after
//! the last number that it received.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use proctor_core::api::{LoggedEvent, OutputEvent, Problem, RunState};
use proctor_core::model::event::RunEvent;
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::app_state::AppState;
use super::query_parameters::{invalid_request, parse_number};
use super::request_head::RequestHead;
use super::response::{self, HandlerResult};
use crate::service::{OutputFeed, RunEventStream};

/// Maximum silence in a stream. It lets a client distinguish a quiet run from a dead daemon, and lets the daemon
/// notice a disconnected client. Proxies and browsers time out after at least half a minute.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Comment that serves as a heartbeat and detects a broken connection.
const COMMENT: Bytes = Bytes::from_static(b":\n\n");
/// Request header in which a browser names the last event that it received.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Streams the events of a run.
///
/// # Errors
/// The run does not exist, or the event number is invalid.
pub(super) async fn stream_events(app: &AppState, head: &RequestHead) -> HandlerResult {
    let id = head.run_id()?;
    let after = resume_after(head)?;
    let wants_output = head.query.parse_with("output", "`true` or `false`", |text| text.parse::<bool>().ok())?;
    let run = app.service.run(head.caller, &id).await?;
    if run.view.state == RunState::Finished && after >= run.view.seq {
        // Status 204 tells a browser not to reconnect (HTML standard, section 9.2.1).
        return Ok(response::no_content());
    }
    let output = match wants_output {
        Some(true) => app.service.output_feed(head.caller, &id).await?,
        _ => None,
    };
    let events = app.service.events(head.caller, &id, after).await?;
    let following = EventFrameStream {
        events,
        output,
        pending_event: None,
        // Existing events are sent before output.
        was_output: true,
        heartbeat: heartbeat(),
        stop: app.stop.clone(),
        has_ended: false,
    };
    let frames =
        stream::unfold(following, async |mut following| following.next().await.map(|frame| (frame, following)));
    let mut response = Response::new(Body::from_stream(frames.map(Ok::<_, Infallible>)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    Ok(response)
}

fn resume_after(head: &RequestHead) -> Result<u64, Problem> {
    let header = head.header(&LAST_EVENT_ID)?;
    let from_header = header
        .map(|text| parse_number(text).ok_or_else(|| invalid_request("`Last-Event-ID` must be a number".to_owned())));
    let from_query = head.query.parse_with("after", "the number of an event", parse_number)?;
    Ok(from_header.transpose()?.or(from_query).unwrap_or(0))
}

fn heartbeat() -> Interval {
    let mut interval = tokio::time::interval(HEARTBEAT);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

struct EventFrameStream {
    events: RunEventStream,
    /// Output of the steps, if the client requested it.
    output: Option<OutputFeed>,
    /// End of a step that waits until the last output of the step is sent.
    pending_event: Option<Arc<LoggedEvent>>,
    /// `true` if the last frame was output. If so, a pending event goes next.
    was_output: bool,
    heartbeat: Interval,
    stop: CancellationToken,
    has_ended: bool,
}

impl EventFrameStream {
    /// Returns the next frame, or `None` after the last event or when the transport stops.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.has_ended {
                return None;
            }
            if let Some(held) = self.pending_event.take() {
                let piece = self.last_output(&held).await;
                return Some(match piece {
                    Some(piece) => {
                        self.pending_event = Some(held);
                        output_frame(&piece)
                    }
                    None => self.emit(&held),
                });
            }
            if let (Some(output), false) = (&mut self.output, self.was_output)
                && let Some(piece) = output.next(None).await
            {
                self.was_output = true;
                return Some(output_frame(&piece));
            }
            let may_be_more = std::mem::take(&mut self.was_output);
            tokio::select! {
                biased;
                event = self.events.next() => self.pending_event = Some(event?),
                () = std::future::ready(()), if may_be_more => {}
                () = output_changed(&mut self.output) => {}
                _ = self.heartbeat.tick() => return Some(COMMENT),
                () = self.stop.cancelled() => return None,
            }
        }
    }

    /// Returns remaining output of a step if `event` is the end of that step.
    async fn last_output(&mut self, event: &LoggedEvent) -> Option<OutputEvent> {
        let RunEvent::StepFinished { skill, step } = &event.event else { return None };
        self.output.as_mut()?.next(Some((skill, &step.planned.name))).await
    }

    fn emit(&mut self, event: &Arc<LoggedEvent>) -> Bytes {
        self.has_ended = matches!(event.event, RunEvent::RunFinished { .. });
        self.heartbeat.reset_at(Instant::now() + HEARTBEAT);
        event_frame(event)
    }
}

/// Waits until steps may have produced more output.
async fn output_changed(output: &mut Option<OutputFeed>) {
    match output {
        Some(output) => output.changed().await,
        None => std::future::pending().await,
    }
}

/// Formats a piece of output. It has no `id`, so that a client resumes after the last event of the log.
fn output_frame(piece: &OutputEvent) -> Bytes {
    let mut frame = b"event: output\ndata: ".to_vec();
    // Serialization to memory cannot fail.
    let _ = serde_json::to_writer(&mut frame, piece);
    frame.extend_from_slice(b"\n\n");
    frame.into()
}

/// Formats an event. Compact JSON contains no line breaks.
fn event_frame(event: &Arc<LoggedEvent>) -> Bytes {
    let mut frame = format!("id: {}\ndata: ", event.seq).into_bytes();
    // Serialization to memory cannot fail, and every event is serializable.
    let _ = serde_json::to_writer(&mut frame, &**event);
    frame.extend_from_slice(b"\n\n");
    frame.into()
}

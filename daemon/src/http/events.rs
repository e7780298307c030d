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
use proctor_core::event::RunEvent;
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::answer::{self, Answer};
use super::asked::Asked;
use super::query::{invalid, number};
use super::routes::App;
use crate::service::{EventStream, OutputFeed};

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
pub(super) async fn stream(app: &App, asked: &Asked) -> Answer {
    let id = asked.run()?;
    let after = after(asked)?;
    let wants_output = asked.query.read("output", "`true` or `false`", |text| text.parse::<bool>().ok())?;
    let run = app.service.run(asked.caller, &id).await?;
    if run.view.state == RunState::Finished && after >= run.view.seq {
        // Status 204 tells a browser not to reconnect (HTML standard, section 9.2.1).
        return Ok(answer::nothing_more());
    }
    let output = match wants_output {
        Some(true) => app.service.output_feed(asked.caller, &id).await?,
        _ => None,
    };
    let events = app.service.events(asked.caller, &id, after).await?;
    let following = Following {
        events,
        output,
        held: None,
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

fn after(asked: &Asked) -> Result<u64, Problem> {
    let said = asked.header(&LAST_EVENT_ID)?;
    let of_header = said.map(|said| number(said).ok_or_else(|| invalid("`Last-Event-ID` must be a number".to_owned())));
    let of_query = asked.query.read("after", "the number of an event", number)?;
    Ok(of_header.transpose()?.or(of_query).unwrap_or(0))
}

fn heartbeat() -> Interval {
    let mut interval = tokio::time::interval(HEARTBEAT);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

struct Following {
    events: EventStream,
    /// Output of the steps, if the client requested it.
    output: Option<OutputFeed>,
    /// End of a step that waits until the last output of the step is sent.
    held: Option<Arc<LoggedEvent>>,
    /// `true` if the last frame was output. If so, a pending event goes next.
    was_output: bool,
    heartbeat: Interval,
    stop: CancellationToken,
    has_ended: bool,
}

impl Following {
    /// Returns the next frame, or `None` after the last event or when the transport stops.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.has_ended {
                return None;
            }
            if let Some(held) = self.held.take() {
                let piece = self.last_output(&held).await;
                return Some(match piece {
                    Some(piece) => {
                        self.held = Some(held);
                        output_frame(&piece)
                    }
                    None => self.tell(&held),
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
                event = self.events.next() => self.held = Some(event?),
                () = std::future::ready(()), if may_be_more => {}
                () = changed(&mut self.output) => {}
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

    fn tell(&mut self, event: &Arc<LoggedEvent>) -> Bytes {
        self.has_ended = matches!(event.event, RunEvent::RunFinished { .. });
        self.heartbeat.reset_at(Instant::now() + HEARTBEAT);
        frame(event)
    }
}

/// Waits until steps may have produced more output.
async fn changed(output: &mut Option<OutputFeed>) {
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
fn frame(event: &Arc<LoggedEvent>) -> Bytes {
    let mut frame = format!("id: {}\ndata: ", event.seq).into_bytes();
    // Serialization to memory cannot fail, and every event is serializable.
    let _ = serde_json::to_writer(&mut frame, &**event);
    frame.extend_from_slice(b"\n\n");
    frame.into()
}

//! The events of a run as they happen, as server-sent events (HTML standard, section 9.2): `data` is
//! the event as JSON, `id` its number. The stream ends behind the last event of the run, or when the
//! transport does; whoever was cut off goes on behind the last number that came.

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

/// How long nothing is said at most: by this a reader tells a run that is quiet from a daemon that is gone,
/// and we learn that a reader is. Proxies and browsers give up after half a minute at the earliest.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// A comment: whoever reads knows that we are there, and whether the connection still stands.
const COMMENT: Bytes = Bytes::from_static(b":\n\n");
/// By which a browser says how far it came.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Follows the events of a run.
///
/// # Errors
/// There is no such run, or the number to go on behind is none.
pub(super) async fn stream(app: &App, asked: &Asked) -> Answer {
    let id = asked.run()?;
    let after = after(asked)?;
    let wants_output = asked.query.read("output", "`true` or `false`", |text| text.parse::<bool>().ok())?;
    let run = app.service.run(asked.caller, &id).await?;
    if run.view.state == RunState::Finished && after >= run.view.seq {
        // By this a browser knows not to ask again (HTML standard, section 9.2.1).
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
        // Events that are there already come first.
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
    /// What steps print, where the reader asked for it.
    output: Option<OutputFeed>,
    /// The end of a step whose last output goes out first.
    held: Option<Arc<LoggedEvent>>,
    /// Whether the last frame was output: then an event is next, where there is one.
    was_output: bool,
    heartbeat: Interval,
    stop: CancellationToken,
    has_ended: bool,
}

impl Following {
    /// What is said next; `None` behind the last event, and where the transport ends.
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

    /// What a step printed last, where `event` is its end.
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

/// Waits until steps may have printed more.
async fn changed(output: &mut Option<OutputFeed>) {
    match output {
        Some(output) => output.changed().await,
        None => std::future::pending().await,
    }
}

/// A piece of output. It has no number, so that a reader goes on behind the last event of the log.
fn output_frame(piece: &OutputEvent) -> Bytes {
    let mut frame = b"event: output\ndata: ".to_vec();
    // Writing to memory does not fail.
    let _ = serde_json::to_writer(&mut frame, piece);
    frame.extend_from_slice(b"\n\n");
    frame.into()
}

/// One event. JSON has no line breaks in it.
fn frame(event: &Arc<LoggedEvent>) -> Bytes {
    let mut frame = format!("id: {}\ndata: ", event.seq).into_bytes();
    // Writing to memory does not fail, and an event has nothing in it that could not be written.
    let _ = serde_json::to_writer(&mut frame, &**event);
    frame.extend_from_slice(b"\n\n");
    frame.into()
}

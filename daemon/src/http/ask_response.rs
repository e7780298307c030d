//! Answers questions to databases with their progress: JSON lines that last as long as the loop. If the client
//! disconnects, the loop ends.

use std::convert::Infallible;
use std::pin::Pin;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::header::CONTENT_TYPE;
use proctor_core::api::{AskEvent, Problem};
use proctor_core::sql::{AskAnswer, AskRequest};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::app_state::AppState;
use super::response::{HandlerResult, NDJSON_CONTENT_TYPE};
use crate::caller::Caller;
use crate::telemetry::RequestSpan;

/// Maximum silence in a response. It lets a client distinguish a slow model from a dead daemon.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Answers a question with its progress.
///
/// # Errors
/// The question is refused before its loop begins.
pub(super) async fn start_question(
    app: &AppState,
    caller: Caller,
    request: AskRequest,
    span: RequestSpan,
) -> HandlerResult {
    // The number of steps is bounded by the number of attempts.
    let (sender, steps) = unbounded_channel();
    let service = std::sync::Arc::clone(&app.service);
    let asking = async move {
        // The receiver lives as long as this future.
        service.ask_sql(caller, request, span, |step| drop(sender.send(step.to_string()))).await
    };
    let events = AskEvents::new(Box::pin(asking), steps);
    let mut lines = AskLineStream { events, stop: app.stop.clone(), first: None };
    lines.first = lines.events.next().await;
    if let Some(AskEvent::Failed { problem }) = lines.first {
        return Err(*problem);
    }
    let lines = stream::unfold(lines, async |mut lines| lines.next_line().await.map(|line| (line, lines)));
    let mut response = Response::new(Body::from_stream(lines.map(Ok::<_, Infallible>)));
    response.headers_mut().insert(CONTENT_TYPE, NDJSON_CONTENT_TYPE);
    Ok(response)
}

type AskFuture = Pin<Box<dyn Future<Output = Result<AskAnswer, Problem>> + Send>>;

/// The events of a question. Dropping it ends the loop.
struct AskEvents {
    /// `None` after the end of the loop.
    asking: Option<AskFuture>,
    steps: UnboundedReceiver<String>,
    /// The last event, until the steps before it have been returned.
    last: Option<AskEvent>,
    heartbeat: Interval,
}

impl AskEvents {
    fn new(asking: AskFuture, steps: UnboundedReceiver<String>) -> Self {
        let mut heartbeat = tokio::time::interval_at(Instant::now() + HEARTBEAT, HEARTBEAT);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { asking: Some(asking), steps, last: None, heartbeat }
    }

    /// Returns the next event, or `None` after `finished` or `failed`.
    async fn next(&mut self) -> Option<AskEvent> {
        while let Some(asking) = &mut self.asking {
            tokio::select! {
                biased;
                Some(message) = self.steps.recv() => return Some(AskEvent::Step { message }),
                answer = asking => {
                    self.last = Some(match answer {
                        Ok(answer) => AskEvent::Finished { answer: Box::new(answer) },
                        Err(problem) => AskEvent::Failed { problem: Box::new(problem) },
                    });
                    self.asking = None;
                }
                _ = self.heartbeat.tick() => return Some(AskEvent::Alive),
            }
        }
        match self.steps.try_recv() {
            Ok(message) => Some(AskEvent::Step { message }),
            Err(_) => self.last.take(),
        }
    }
}

struct AskLineStream {
    events: AskEvents,
    stop: CancellationToken,
    /// The event that was read before the response began.
    first: Option<AskEvent>,
}

impl AskLineStream {
    /// Returns the next line, or `None` after the last one or when the transport stops.
    async fn next_line(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(event_line(&first));
        }
        let event = tokio::select! {
            biased;
            event = self.events.next() => event?,
            () = self.stop.cancelled() => return None,
        };
        Some(event_line(&event))
    }
}

fn event_line(event: &AskEvent) -> Bytes {
    // Serialization to memory cannot fail, and compact JSON contains no line breaks.
    let mut line = serde_json::to_vec(event).unwrap_or_default();
    line.push(b'\n');
    line.into()
}

#[cfg(test)]
mod tests {
    use proctor_core::api::ProblemType;

    use super::*;

    fn refusal() -> Problem {
        Problem::new(ProblemType::Unavailable, "no provider")
    }

    async fn all(mut events: AskEvents) -> Vec<String> {
        let mut words = Vec::new();
        while let Some(event) = events.next().await {
            words.push(match event {
                AskEvent::Step { message } => message,
                AskEvent::Alive => "alive".to_owned(),
                AskEvent::Finished { .. } => "finished".to_owned(),
                AskEvent::Failed { problem } => problem.detail,
            });
        }
        words
    }

    #[tokio::test]
    async fn steps_before_the_end_are_not_lost() {
        let (sender, steps) = unbounded_channel();
        let asking = async move {
            let _ = sender.send("one".to_owned());
            tokio::task::yield_now().await;
            let _ = sender.send("two".to_owned());
            let _ = sender.send("three".to_owned());
            Err(refusal())
        };
        assert_eq!(all(AskEvents::new(Box::pin(asking), steps)).await, ["one", "two", "three", "no provider"]);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_model_does_not_silence_the_response() {
        let (_sender, steps) = unbounded_channel();
        let asking = async {
            tokio::time::sleep(HEARTBEAT * 2 + Duration::from_secs(1)).await;
            Err(refusal())
        };
        assert_eq!(all(AskEvents::new(Box::pin(asking), steps)).await, ["alive", "alive", "no provider"]);
    }
}

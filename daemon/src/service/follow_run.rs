//! Lets callers follow a run: wait until it has new events or a new state, or read its events as a stream. Followers
//! never delay the run.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use proctor_core::api::{LoggedEvent, Problem, RunWithEvents};
use proctor_core::model::event::RunEvent;
use proctor_core::model::names::RunId;
use tokio::time::Instant;

use super::{MAX_EVENTS, MAX_WAIT, RunEventStream, Service};
use crate::caller::Caller;
use crate::history::History;
use crate::runs::{LiveRun, NewEvents, RunPhase, SerializedRun};

/// A run and the events since the caller's last request.
#[derive(Debug, Clone)]
pub struct RunUpdate {
    /// Current state of the run. Callers that wait for the same end share it and its JSON.
    pub run: Arc<SerializedRun>,
    /// Events after the one that the caller named, at most [`MAX_EVENTS`]; `None` if the caller named no event.
    pub events: Option<Vec<Arc<LoggedEvent>>>,
    /// `true` if more events exist than these.
    pub more_events: bool,
}

impl Service {
    /// Waits for an event after `after`, or without `after` for the end of the run, and returns the run. Returns its
    /// current state after `wait` (at most [`MAX_WAIT`]). With `after`, the result contains the events after it.
    ///
    /// # Errors
    /// As [`Service::run`].
    pub async fn watch(
        &self,
        caller: Caller,
        id: &RunId,
        after: Option<u64>,
        wait: Duration,
    ) -> Result<RunWithEvents, Problem> {
        let RunUpdate { run: shown, events, more_events } = self.watch_shared(caller, id, after, wait).await?;
        let events = events.map(|events| events.iter().map(|event| (**event).clone()).collect());
        Ok(RunWithEvents { run: shown.view.clone(), events, more_events })
    }

    /// Like [`Service::watch`], but without copies: all waiting callers share the run and its events.
    ///
    /// # Errors
    /// As [`Service::run`].
    pub async fn watch_shared(
        &self,
        caller: Caller,
        id: &RunId,
        after: Option<u64>,
        wait: Duration,
    ) -> Result<RunUpdate, Problem> {
        let found = self.find_run(caller, id).await?;
        let live = found.live().map(Arc::as_ref);
        if let Some(live) = live {
            wait_for_update(live, after, wait.min(MAX_WAIT)).await;
        }
        let shown = found.current();
        let Some(after) = after else { return Ok(RunUpdate { run: shown, events: None, more_events: false }) };
        // Leaves out events that are newer than the returned view.
        let mut events = self.events_after(live, id, after, MAX_EVENTS).await?;
        events.retain(|event| event.seq <= shown.view.seq);
        let more_events = events.last().map_or(after, |last| last.seq) < shown.view.seq;
        Ok(RunUpdate { run: shown, events: Some(events), more_events })
    }

    /// Returns at most `limit` events after number `after`.
    async fn events_after(
        &self,
        live: Option<&LiveRun>,
        id: &RunId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Arc<LoggedEvent>>, Problem> {
        if let Some(NewEvents::Events(events)) = live.map(|live| live.events_after(after, limit)) {
            return Ok(events);
        }
        read_logged_events(&self.history, id, after, limit).await
    }

    /// Returns the events of a run after `after`, including future ones.
    ///
    /// # Errors
    /// As [`Service::run`].
    pub async fn events(&self, caller: Caller, id: &RunId, after: u64) -> Result<RunEventStream, Problem> {
        let live = self.find_run(caller, id).await?.live().cloned();
        let history = self.history.clone();
        let follower =
            EventFollower { history, id: id.clone(), live, after, pending: VecDeque::new(), is_finished: false };
        Ok(Box::pin(stream::unfold(follower, EventFollower::next)))
    }
}

/// Waits for an event after `after`, or without `after` for the end of the run. Waits at most `wait`.
async fn wait_for_update(live: &LiveRun, after: Option<u64>, wait: Duration) {
    let is_news = |seq: u64, phase: RunPhase| phase == RunPhase::Ended || after.is_some_and(|after| seq > after);
    let mut progress = live.progress();
    let waited = progress.wait_for(|progress| is_news(progress.seq, progress.phase));
    // On timeout, the caller gets the current state.
    let _ = tokio::time::timeout_at(Instant::now() + wait, waited).await;
}

async fn read_logged_events(
    history: &History,
    id: &RunId,
    after: u64,
    limit: usize,
) -> Result<Vec<Arc<LoggedEvent>>, Problem> {
    let (history, id) = (history.clone(), id.clone());
    let read = super::run_blocking(move || history.events(&id, after, limit)).await?;
    let (events, _) = read.map_err(|error| error.problem())?.unwrap_or_default();
    Ok(events.into_iter().map(Arc::new).collect())
}

/// A reader of the events of a run.
struct EventFollower {
    history: History,
    id: RunId,
    /// `None` if the run has ended; the log then contains all events.
    live: Option<Arc<LiveRun>>,
    after: u64,
    pending: VecDeque<Arc<LoggedEvent>>,
    /// `true` if the last event was returned.
    is_finished: bool,
}

impl EventFollower {
    async fn next(mut self) -> Option<(Arc<LoggedEvent>, Self)> {
        if self.is_finished {
            return None;
        }
        if self.pending.is_empty() {
            self.pending = self.next_events().await.into();
        }
        let event = self.pending.pop_front()?;
        self.after = event.seq;
        self.is_finished = matches!(event.event, RunEvent::RunFinished { .. });
        Some((event, self))
    }

    /// Waits for and returns the next events. An empty result means that none will follow.
    async fn next_events(&self) -> Vec<Arc<LoggedEvent>> {
        loop {
            let Some(live) = &self.live else { return self.read_log().await };
            let ended = live.progress().borrow().phase == RunPhase::Ended;
            match live.events_after(self.after, MAX_EVENTS) {
                NewEvents::InLog => return self.read_log().await,
                NewEvents::Events(events) if !events.is_empty() || ended => return events,
                NewEvents::Events(_) => wait_for_update(live, Some(self.after), MAX_WAIT).await,
            }
        }
    }

    async fn read_log(&self) -> Vec<Arc<LoggedEvent>> {
        read_logged_events(&self.history, &self.id, self.after, MAX_EVENTS).await.unwrap_or_else(|problem| {
            tracing::error!(run = %self.id, problem = problem.detail, "the events of a run cannot be read");
            Vec::new()
        })
    }
}

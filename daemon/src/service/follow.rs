//! Lets callers follow a run: wait for news of it, or read its events as a stream. Followers never delay the run.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use proctor_core::api::{LoggedEvent, Problem, Watched};
use proctor_core::event::RunEvent;
use proctor_core::names::RunId;
use tokio::time::Instant;

use super::{EventStream, MAX_EVENTS, MAX_WAIT, Service, Shown};
use crate::caller::Caller;
use crate::history::History;
use crate::runs::{Live, News, Phase};

/// A run and the events since the caller's last request.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Current state of the run. Callers that wait for the same end share it and its JSON.
    pub shown: Arc<Shown>,
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
    ) -> Result<Watched, Problem> {
        let Seen { shown, events, more_events } = self.see(caller, id, after, wait).await?;
        let events = events.map(|events| events.iter().map(|event| (**event).clone()).collect());
        Ok(Watched { run: shown.view.clone(), events, more_events })
    }

    /// Like [`Service::watch`], but without copies: all waiting callers share the run and its events.
    ///
    /// # Errors
    /// As [`Service::run`].
    pub async fn see(&self, caller: Caller, id: &RunId, after: Option<u64>, wait: Duration) -> Result<Seen, Problem> {
        let found = self.found(caller, id).await?;
        let live = found.live().map(Arc::as_ref);
        if let Some(live) = live {
            news(live, after, wait.min(MAX_WAIT)).await;
        }
        let shown = found.shown();
        let Some(after) = after else { return Ok(Seen { shown, events: None, more_events: false }) };
        // Leaves out events that are newer than the returned view.
        let mut events = self.behind(live, id, after, MAX_EVENTS).await?;
        events.retain(|event| event.seq <= shown.view.seq);
        let more_events = events.last().map_or(after, |last| last.seq) < shown.view.seq;
        Ok(Seen { shown, events: Some(events), more_events })
    }

    /// Returns at most `limit` events after number `after`.
    async fn behind(
        &self,
        live: Option<&Live>,
        id: &RunId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Arc<LoggedEvent>>, Problem> {
        if let Some(News::Events(events)) = live.map(|live| live.after(after, limit)) {
            return Ok(events);
        }
        logged(&self.history, id, after, limit).await
    }

    /// Returns the events of a run after `after`, including future ones.
    ///
    /// # Errors
    /// As [`Service::run`].
    pub async fn events(&self, caller: Caller, id: &RunId, after: u64) -> Result<EventStream, Problem> {
        let live = self.found(caller, id).await?.live().cloned();
        let history = self.history.clone();
        let follower = Follower { history, id: id.clone(), live, after, ready: VecDeque::new(), over: false };
        Ok(Box::pin(stream::unfold(follower, Follower::next)))
    }
}

/// Waits for an event after `after`, or without `after` for the end of the run. Waits at most `wait`.
async fn news(live: &Live, after: Option<u64>, wait: Duration) {
    let is_news = |seq: u64, phase: Phase| phase == Phase::Ended || after.is_some_and(|after| seq > after);
    let mut progress = live.progress();
    let waited = progress.wait_for(|progress| is_news(progress.seq, progress.phase));
    // On timeout, the caller gets the current state.
    let _ = tokio::time::timeout_at(Instant::now() + wait, waited).await;
}

async fn logged(history: &History, id: &RunId, after: u64, limit: usize) -> Result<Vec<Arc<LoggedEvent>>, Problem> {
    let (history, id) = (history.clone(), id.clone());
    let read = super::apart(move || history.events(&id, after, limit)).await?;
    let (events, _) = read.map_err(|error| error.problem())?.unwrap_or_default();
    Ok(events.into_iter().map(Arc::new).collect())
}

/// A reader of the events of a run.
struct Follower {
    history: History,
    id: RunId,
    /// `None` if the run has ended; the log then contains all events.
    live: Option<Arc<Live>>,
    after: u64,
    ready: VecDeque<Arc<LoggedEvent>>,
    /// `true` if the last event was returned.
    over: bool,
}

impl Follower {
    async fn next(mut self) -> Option<(Arc<LoggedEvent>, Self)> {
        if self.over {
            return None;
        }
        if self.ready.is_empty() {
            self.ready = self.more().await.into();
        }
        let event = self.ready.pop_front()?;
        self.after = event.seq;
        self.over = matches!(event.event, RunEvent::RunFinished { .. });
        Some((event, self))
    }

    /// Waits for and returns the next events. An empty result means that none will follow.
    async fn more(&self) -> Vec<Arc<LoggedEvent>> {
        loop {
            let Some(live) = &self.live else { return self.read_log().await };
            let ended = live.progress().borrow().phase == Phase::Ended;
            match live.after(self.after, MAX_EVENTS) {
                News::InLog => return self.read_log().await,
                News::Events(events) if !events.is_empty() || ended => return events,
                News::Events(_) => news(live, Some(self.after), MAX_WAIT).await,
            }
        }
    }

    async fn read_log(&self) -> Vec<Arc<LoggedEvent>> {
        logged(&self.history, &self.id, self.after, MAX_EVENTS).await.unwrap_or_else(|problem| {
            tracing::error!(run = %self.id, problem = problem.detail, "the events of a run cannot be read");
            Vec::new()
        })
    }
}

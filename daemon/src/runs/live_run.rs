//! An active run as its readers see it: the current view, the latest events, and a way to wait for more.
//!
//! The run itself is the only writer and never waits for readers. A reader that falls too far behind reads the log.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use proctor_core::api::{LoggedEvent, LoggedRun};
use proctor_core::model::event::RunEvent;
use proctor_core::model::names::RunId;
use proctor_runner::LiveOutputs;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::history::inconclusive_event;

use super::admission_refusal::AdmissionRefusal;
use super::serialized_run::SerializedRun;

/// Number of events that are kept in memory for readers that are close behind.
const MAX_RECENT_EVENTS: usize = 128;

/// An active run.
pub struct LiveRun {
    id: RunId,
    uid: u32,
    published: Mutex<PublishedRun>,
    progress: watch::Sender<RunProgress>,
    refused: OnceLock<AdmissionRefusal>,
    cancel: CancellationToken,
    cancelled_by: OnceLock<String>,
    outputs: LiveOutputs,
}

/// Published state of a run.
struct PublishedRun {
    run: LoggedRun,
    recent: VecDeque<Arc<LoggedEvent>>,
    /// The view as last requested; `None` if an event changed it since.
    serialized: Option<Arc<SerializedRun>>,
}

/// Progress of a run, for tasks that wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunProgress {
    /// Number of the last event.
    pub seq: u64,
    /// Phase of the run.
    pub phase: RunPhase,
}

/// Phase of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunPhase {
    /// The run is being recorded.
    Recording,
    /// The run is recorded.
    Recorded,
    /// The last event is published, or the run could not be recorded and has no events.
    Ended,
}

/// Events after the last one that a reader has seen.
#[derive(Debug)]
pub enum NewEvents {
    /// The events; empty if there are none yet.
    Events(Vec<Arc<LoggedEvent>>),
    /// The events are no longer in memory; the reader finds them in the log.
    InLog,
}

impl LiveRun {
    /// Creates a run that is not recorded yet.
    pub(super) fn new(run: LoggedRun) -> Self {
        let progress = watch::Sender::new(RunProgress { seq: 0, phase: RunPhase::Recording });
        Self {
            id: run.id().clone(),
            uid: run.uid(),
            published: Mutex::new(PublishedRun { run, recent: VecDeque::new(), serialized: None }),
            progress,
            refused: OnceLock::new(),
            cancel: CancellationToken::new(),
            cancelled_by: OnceLock::new(),
            outputs: LiveOutputs::default(),
        }
    }

    /// Returns the id.
    pub fn id(&self) -> &RunId {
        &self.id
    }

    /// Returns the outputs of the steps that are running.
    pub fn outputs(&self) -> &LiveOutputs {
        &self.outputs
    }

    /// Returns the user who requested the run.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Waits until the run is recorded.
    ///
    /// # Errors
    /// The run cannot be recorded.
    pub(super) async fn wait_until_recorded(&self) -> Result<(), &AdmissionRefusal> {
        // Waiting cannot fail: `self` owns the sender.
        let _ = self.progress.subscribe().wait_for(|progress| progress.phase != RunPhase::Recording).await;
        self.refused.get().map_or(Ok(()), Err)
    }

    /// Returns a receiver of the progress.
    pub fn progress(&self) -> watch::Receiver<RunProgress> {
        self.progress.subscribe()
    }

    /// Waits until the verified tree is known or the run has ended.
    pub async fn wait_for_tree(&self) {
        let mut progress = self.progress.subscribe();
        while !self.knows_tree() && progress.borrow_and_update().phase != RunPhase::Ended {
            if progress.changed().await.is_err() {
                return;
            }
        }
    }

    fn knows_tree(&self) -> bool {
        self.published().run.started_at().is_some()
    }

    /// Returns the current state of the run.
    pub fn current(&self) -> Arc<SerializedRun> {
        let mut published = self.published();
        if let Some(shown) = &published.serialized {
            return Arc::clone(shown);
        }
        let shown = Arc::new(SerializedRun::new(published.run.view()));
        published.serialized = Some(Arc::clone(&shown));
        shown
    }

    /// Returns the end of this run as inconclusive, `took` after its start. A run that never started has a duration of 0.
    pub(super) fn inconclusive_end(&self, exit_code: u8, took: Option<Duration>) -> RunEvent {
        let published = self.published();
        let took = took.filter(|_| published.run.started_at().is_some());
        let duration_ms = took.map_or(0, |took| u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
        inconclusive_event(&published.run, exit_code, duration_ms)
    }

    /// Returns at most `limit` events after number `after`.
    pub fn events_after(&self, after: u64, limit: usize) -> NewEvents {
        let published = self.published();
        match published.recent.front() {
            Some(oldest) if oldest.seq > after.saturating_add(1) => NewEvents::InLog,
            Some(oldest) => {
                let known = usize::try_from(after.saturating_add(1) - oldest.seq).unwrap_or(usize::MAX);
                NewEvents::Events(published.recent.iter().skip(known).take(limit).cloned().collect())
            }
            None if published.run.seq() > after => NewEvents::InLog,
            None => NewEvents::Events(Vec::new()),
        }
    }

    /// Marks the run as recorded, with its log so far and first event.
    pub(super) fn mark_recorded(&self, run: LoggedRun, first: Arc<LoggedEvent>) {
        self.published().run = run;
        self.publish([first]);
    }

    /// Publishes logged events in order.
    pub(super) fn publish(&self, events: impl IntoIterator<Item = Arc<LoggedEvent>>) {
        let mut published = self.published();
        let mut recorded = Vec::new();
        for event in events {
            published.run.apply(&event);
            if matches!(event.event, RunEvent::StepFinished { .. }) {
                recorded.push(Arc::clone(&event));
            }
            if published.recent.len() >= MAX_RECENT_EVENTS {
                published.recent.pop_front();
            }
            published.recent.push_back(event);
        }
        published.serialized = None;
        let seq = published.run.seq();
        drop(published);
        // The view now names the recorded output, so a reader always finds the live output or the recorded output.
        for event in recorded {
            if let RunEvent::StepFinished { skill, step } = &event.event {
                self.outputs.remove(skill, &step.planned.name);
            }
        }
        self.progress.send_replace(RunProgress { seq, phase: RunPhase::Recorded });
    }

    /// Marks the run as ended; no event follows.
    pub(super) fn mark_ended(&self) {
        self.progress.send_modify(|progress| progress.phase = RunPhase::Ended);
    }

    /// Marks the run as refused because it cannot be recorded.
    pub(super) fn mark_refused(&self, why: AdmissionRefusal) {
        // Only the first refusal counts.
        let _ = self.refused.set(why);
        self.mark_ended();
    }

    /// Requests cancellation; `by` names the requester. Only the first request counts.
    pub(super) fn cancel(&self, by: String) {
        let _ = self.cancelled_by.set(by);
        self.cancel.cancel();
    }

    /// Returns the requester of the cancellation.
    pub(super) fn cancelled_by(&self) -> Option<&str> {
        self.cancelled_by.get().map(String::as_str)
    }

    /// Returns whether the run was refused because it could not be recorded.
    pub(super) fn is_refused(&self) -> bool {
        self.refused.get().is_some()
    }

    /// Returns whether other requests may join this run. A refused or cancelled run does not answer them.
    pub(super) fn is_joinable(&self) -> bool {
        !self.is_refused() && !self.cancel.is_cancelled()
    }

    /// Returns the token that cancels the run.
    pub(super) fn token(&self) -> &CancellationToken {
        &self.cancel
    }

    /// Locks the published state. A poisoned lock is still consistent, because readers change nothing.
    fn published(&self) -> MutexGuard<'_, PublishedRun> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proctor_core::api::RunSubmission;
    use proctor_core::model::names::ProfileName;

    fn live_run() -> LiveRun {
        let request = RunSubmission::new("/r".into(), ProfileName::new("pr").expect("a name")).to_recorded("/r".into());
        LiveRun::new(LoggedRun::new_queued(RunId::new("r1").expect("an id"), "t".into(), request, 7))
    }

    fn event(seq: u64) -> Arc<LoggedEvent> {
        Arc::new(LoggedEvent { seq, logged_at: "t".into(), event: RunEvent::Cancelling { by: seq.to_string() } })
    }

    fn seqs(news: NewEvents) -> Option<Vec<u64>> {
        match news {
            NewEvents::Events(events) => Some(events.iter().map(|event| event.seq).collect()),
            NewEvents::InLog => None,
        }
    }

    #[test]
    fn keeps_recent_events_and_leaves_older_ones_in_the_log() {
        let live = live_run();
        assert_eq!(seqs(live.events_after(0, 9)), Some(vec![]));
        live.publish((1..=3).map(event));
        assert_eq!(seqs(live.events_after(0, 2)), Some(vec![1, 2]));
        assert_eq!(seqs(live.events_after(2, 9)), Some(vec![3]));
        assert_eq!(seqs(live.events_after(3, 9)), Some(vec![]));
        assert_eq!(seqs(live.events_after(u64::MAX, 9)), Some(vec![]));
        live.publish((4..=MAX_RECENT_EVENTS as u64 + 2).map(event));
        assert_eq!(seqs(live.events_after(1, 1)), None);
        assert_eq!(seqs(live.events_after(2, 1)), Some(vec![3]));
    }

    #[test]
    fn serializes_run_once_per_change() {
        let live = live_run();
        let first = live.current();
        assert!(Arc::ptr_eq(&first, &live.current()));
        live.publish([event(1)]);
        assert!(!Arc::ptr_eq(&first, &live.current()));
        assert_eq!((first.view.seq, live.current().view.seq), (0, 1));
    }

    #[tokio::test]
    async fn waiter_learns_that_run_is_not_recorded() {
        let live = live_run();
        live.mark_refused(AdmissionRefusal::KeyUsed(RunId::new("r0").expect("an id")));
        assert!(matches!(live.wait_until_recorded().await, Err(AdmissionRefusal::KeyUsed(_))));
    }

    #[test]
    fn refused_or_cancelled_run_is_not_joinable() {
        let live = [live_run(), live_run(), live_run()];
        live[1].cancel("somebody".to_owned());
        live[2].mark_refused(AdmissionRefusal::KeyUsed(RunId::new("r0").expect("an id")));
        assert_eq!(live.each_ref().map(LiveRun::is_joinable), [true, false, false]);
        assert_eq!(live.each_ref().map(LiveRun::is_refused), [false, false, true]);
    }
}

//! An active run as its readers see it: the current view, the latest events, and a way to wait for more.
//!
//! The run itself is the only writer and never waits for readers. A reader that falls too far behind reads the log.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use proctor_core::api::{LoggedEvent, RunView};
use proctor_core::event::RunEvent;
use proctor_core::names::RunId;
use proctor_runner::LiveOutputs;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Refused;
use crate::service::Shown;

/// Number of events that are kept in memory for readers that are close behind.
const RECENT: usize = 128;

/// An active run.
pub struct Live {
    id: RunId,
    uid: u32,
    told: Mutex<Told>,
    progress: watch::Sender<Progress>,
    refused: OnceLock<Refused>,
    cancel: CancellationToken,
    cancelled_by: OnceLock<String>,
    outputs: LiveOutputs,
}

/// Published state of a run.
struct Told {
    view: RunView,
    recent: VecDeque<Arc<LoggedEvent>>,
    /// The view as last requested; `None` if an event changed it since.
    shown: Option<Arc<Shown>>,
}

/// Progress of a run, for tasks that wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Number of the last event.
    pub seq: u64,
    /// Phase of the run.
    pub phase: Phase,
}

/// Phase of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The run is being recorded.
    Beginning,
    /// The run is recorded.
    Begun,
    /// The last event is published, or the run could not be recorded and has no events.
    Ended,
}

/// Events after the last one that a reader has seen.
#[derive(Debug)]
pub enum News {
    /// The events; empty if there are none yet.
    Events(Vec<Arc<LoggedEvent>>),
    /// The events are no longer in memory; the reader finds them in the log.
    InLog,
}

impl Live {
    /// Creates a run that is not recorded yet.
    pub(super) fn new(view: RunView) -> Self {
        let progress = watch::Sender::new(Progress { seq: 0, phase: Phase::Beginning });
        Self {
            id: view.id.clone(),
            uid: view.uid,
            told: Mutex::new(Told { view, recent: VecDeque::new(), shown: None }),
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
    pub(super) async fn begun(&self) -> Result<(), &Refused> {
        // Waiting cannot fail: `self` owns the sender.
        let _ = self.progress.subscribe().wait_for(|progress| progress.phase != Phase::Beginning).await;
        self.refused.get().map_or(Ok(()), Err)
    }

    /// Returns a receiver of the progress.
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Waits until the verified tree is known or the run has ended.
    pub async fn tree_known(&self) {
        let mut progress = self.progress.subscribe();
        while !self.knows_tree() && progress.borrow_and_update().phase != Phase::Ended {
            if progress.changed().await.is_err() {
                return;
            }
        }
    }

    fn knows_tree(&self) -> bool {
        self.told().view.snapshot.is_some()
    }

    /// Returns the current state of the run.
    pub fn shown(&self) -> Arc<Shown> {
        let mut told = self.told();
        if let Some(shown) = &told.shown {
            return Arc::clone(shown);
        }
        let shown = Arc::new(Shown::new(told.view.clone()));
        told.shown = Some(Arc::clone(&shown));
        shown
    }

    /// Returns at most `limit` events after number `after`.
    pub fn after(&self, after: u64, limit: usize) -> News {
        let told = self.told();
        match told.recent.front() {
            Some(oldest) if oldest.seq > after.saturating_add(1) => News::InLog,
            Some(oldest) => {
                let known = usize::try_from(after.saturating_add(1) - oldest.seq).unwrap_or(usize::MAX);
                News::Events(told.recent.iter().skip(known).take(limit).cloned().collect())
            }
            None if told.view.seq > after => News::InLog,
            None => News::Events(Vec::new()),
        }
    }

    /// Marks the run as recorded, with its view and first event.
    pub(super) fn begin(&self, view: RunView, first: Arc<LoggedEvent>) {
        self.told().view = view;
        self.tell([first]);
    }

    /// Publishes logged events in order.
    pub(super) fn tell(&self, events: impl IntoIterator<Item = Arc<LoggedEvent>>) {
        let mut told = self.told();
        let mut recorded = Vec::new();
        for event in events {
            told.view.apply(&event);
            if matches!(event.event, RunEvent::StepFinished { .. }) {
                recorded.push(Arc::clone(&event));
            }
            if told.recent.len() >= RECENT {
                told.recent.pop_front();
            }
            told.recent.push_back(event);
        }
        told.shown = None;
        let seq = told.view.seq;
        drop(told);
        // The view names the recorded output now, so a reader always finds one of the two.
        for event in recorded {
            if let RunEvent::StepFinished { skill, step } = &event.event {
                self.outputs.remove(skill, &step.planned.name);
            }
        }
        self.progress.send_replace(Progress { seq, phase: Phase::Begun });
    }

    /// Marks the run as ended; no event follows.
    pub(super) fn end(&self) {
        self.progress.send_modify(|progress| progress.phase = Phase::Ended);
    }

    /// Marks the run as refused because it cannot be recorded.
    pub(super) fn refuse(&self, why: Refused) {
        // Only the first refusal counts.
        let _ = self.refused.set(why);
        self.end();
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
    pub(super) fn meets_others(&self) -> bool {
        !self.is_refused() && !self.cancel.is_cancelled()
    }

    /// Returns the token that cancels the run.
    pub(super) fn token(&self) -> &CancellationToken {
        &self.cancel
    }

    /// Locks the published state. A poisoned lock is still consistent, because readers change nothing.
    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proctor_core::api::RunSubmission;
    use proctor_core::names::ProfileName;

    fn live() -> Live {
        let asked = RunSubmission::new("/r".into(), ProfileName::new("pr").expect("a name")).asked("/r".into());
        Live::new(RunView::queued(RunId::new("r1").expect("an id"), "t".into(), asked, 7))
    }

    fn event(seq: u64) -> Arc<LoggedEvent> {
        Arc::new(LoggedEvent { seq, logged_at: "t".into(), event: RunEvent::Cancelling { by: seq.to_string() } })
    }

    fn seqs(news: News) -> Option<Vec<u64>> {
        match news {
            News::Events(events) => Some(events.iter().map(|event| event.seq).collect()),
            News::InLog => None,
        }
    }

    #[test]
    fn the_last_events_are_at_hand_and_older_ones_in_the_log() {
        let live = live();
        assert_eq!(seqs(live.after(0, 9)), Some(vec![]));
        live.tell((1..=3).map(event));
        assert_eq!(seqs(live.after(0, 2)), Some(vec![1, 2]));
        assert_eq!(seqs(live.after(2, 9)), Some(vec![3]));
        assert_eq!(seqs(live.after(3, 9)), Some(vec![]));
        assert_eq!(seqs(live.after(u64::MAX, 9)), Some(vec![]));
        live.tell((4..=RECENT as u64 + 2).map(event));
        assert_eq!(seqs(live.after(1, 1)), None);
        assert_eq!(seqs(live.after(2, 1)), Some(vec![3]));
    }

    #[test]
    fn what_is_shown_is_made_once_until_something_happens() {
        let live = live();
        let first = live.shown();
        assert!(Arc::ptr_eq(&first, &live.shown()));
        live.tell([event(1)]);
        assert!(!Arc::ptr_eq(&first, &live.shown()));
        assert_eq!((first.view.seq, live.shown().view.seq), (0, 1));
    }

    #[tokio::test]
    async fn who_waits_for_the_record_learns_that_there_is_none() {
        let live = live();
        live.refuse(Refused::KeyUsed(RunId::new("r0").expect("an id")));
        assert!(matches!(live.begun().await, Err(Refused::KeyUsed(_))));
    }

    #[test]
    fn one_that_is_refused_or_to_end_is_no_answer_to_others() {
        let live = [live(), live(), live()];
        live[1].cancel("somebody".to_owned());
        live[2].refuse(Refused::KeyUsed(RunId::new("r0").expect("an id")));
        assert_eq!(live.each_ref().map(Live::meets_others), [true, false, false]);
        assert_eq!(live.each_ref().map(Live::is_refused), [false, false, true]);
    }
}

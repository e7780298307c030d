//! A run while it goes on, for those who look at it: the view so far, its last events, and a way to
//! wait for more. One writer, the run itself; readers never keep it waiting: who is behind what is
//! held here reads the log.

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

/// How many events are held for those who follow closely.
const RECENT: usize = 128;

/// A run while it goes on.
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

/// What is known of it by now.
struct Told {
    view: RunView,
    recent: VecDeque<Arc<LoggedEvent>>,
    /// The view as it was last asked for; none where something has happened since.
    shown: Option<Arc<Shown>>,
}

/// How far it is: what others wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The number of its last event.
    pub seq: u64,
    /// Where it stands.
    pub phase: Phase,
}

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It is being put on record.
    Beginning,
    /// It is on record.
    Begun,
    /// Its last event is told; or there is none, since it could not be put on record.
    Ended,
}

/// Events behind one that a reader knows.
#[derive(Debug)]
pub enum News {
    /// These; there may be none yet.
    Events(Vec<Arc<LoggedEvent>>),
    /// They are not held any more: the log has them.
    InLog,
}

impl Live {
    /// A run of which nothing is on record yet. `cancel` ends it.
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

    /// Its id.
    pub fn id(&self) -> &RunId {
        &self.id
    }

    /// The outputs of the steps that run now.
    pub fn outputs(&self) -> &LiveOutputs {
        &self.outputs
    }

    /// The user who asked for it.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Waits until it is on record.
    ///
    /// # Errors
    /// It cannot be.
    pub(super) async fn begun(&self) -> Result<(), &Refused> {
        // The sender is this value's own, so that waiting cannot fail.
        let _ = self.progress.subscribe().wait_for(|progress| progress.phase != Phase::Beginning).await;
        self.refused.get().map_or(Ok(()), Err)
    }

    /// How far it is, as that changes.
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Waits until the tree that it verifies is known, or it has ended.
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

    /// The run by now.
    pub fn shown(&self) -> Arc<Shown> {
        let mut told = self.told();
        if let Some(shown) = &told.shown {
            return Arc::clone(shown);
        }
        let shown = Arc::new(Shown::new(told.view.clone()));
        told.shown = Some(Arc::clone(&shown));
        shown
    }

    /// The events after number `after`, at most `limit`.
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

    /// It is on record now, as `view`.
    pub(super) fn begin(&self, view: RunView, first: Arc<LoggedEvent>) {
        self.told().view = view;
        self.tell([first]);
    }

    /// Tells what was logged, in order.
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
        // The view names the recorded output by now: a reader finds one of the two at any moment.
        for event in recorded {
            if let RunEvent::StepFinished { skill, step } = &event.event {
                self.outputs.remove(skill, &step.planned.name);
            }
        }
        self.progress.send_replace(Progress { seq, phase: Phase::Begun });
    }

    /// Nothing more will be told.
    pub(super) fn end(&self) {
        self.progress.send_modify(|progress| progress.phase = Phase::Ended);
    }

    /// It cannot be put on record, so that there is no such run.
    pub(super) fn refuse(&self, why: Refused) {
        // Whoever refused it first was right.
        let _ = self.refused.set(why);
        self.end();
    }

    /// Asks it to end; `by` says what asked. The first one counts.
    pub(super) fn cancel(&self, by: String) {
        let _ = self.cancelled_by.set(by);
        self.cancel.cancel();
    }

    /// What asked it to end.
    pub(super) fn cancelled_by(&self) -> Option<&str> {
        self.cancelled_by.get().map(String::as_str)
    }

    /// Whether there is no such run, since it could not be put on record.
    pub(super) fn is_refused(&self) -> bool {
        self.refused.get().is_some()
    }

    /// Whether it may be the answer to another request: what refused this one, or was asked to end
    /// it, says nothing of the next.
    pub(super) fn meets_others(&self) -> bool {
        !self.is_refused() && !self.cancel.is_cancelled()
    }

    /// What ends it.
    pub(super) fn token(&self) -> &CancellationToken {
        &self.cancel
    }

    /// A reader that panicked has changed nothing.
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

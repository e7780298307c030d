//! Owns all runs in one task that processes messages. The task decides when a run starts, joins requests to a matching
//! run, forwards cancellations, and drops finished runs.
//!
//! The run itself (`run_task`) publishes its events for readers (`live_run`). The service decides which callers may
//! read them.

mod admission_refusal;
mod live_run;
mod manager_message;
mod run_key;
mod run_manager;
mod run_task;
mod serialized_run;

use std::sync::Arc;

use proctor_core::api::{RunCounts, SubmissionOutcome};
use proctor_core::model::names::RunId;
use proctor_core::spec::DaemonSettings;
use tokio::sync::{mpsc, oneshot, watch};

use crate::history::History;
use crate::queue::QueueLimits;

use admission_refusal::manager_gone;
use manager_message::{ManagerMessage, RecentRuns};

pub use admission_refusal::AdmissionRefusal;
pub use live_run::{LiveRun, NewEvents, RunPhase};
pub use manager_message::{FoundRun, LastRunOfKey, RunAdmission};
pub use run_key::{RequestedTree, RunKey};
pub(crate) use run_manager::{RunNotification, RunObserver, key_conflict};
pub use run_task::RunJob;
pub use serialized_run::SerializedRun;

/// Capacity of the owner's inbox; senders wait while it is full.
const INBOX_CAPACITY: usize = 256;

/// Handle of the runs of this daemon. Clones share the same runs.
#[derive(Clone)]
pub struct RunsHandle {
    manager: mpsc::Sender<ManagerMessage>,
    counts: watch::Receiver<RunCounts>,
    limits: watch::Sender<QueueLimits>,
    /// The runs that ended last, published by the owner. They no longer change, so reading one needs no message.
    recent: watch::Receiver<RecentRuns>,
}

impl RunsHandle {
    /// Starts the owner task. It writes runs to `history` and reports them to `observer`.
    pub(crate) fn start(history: History, limits: QueueLimits, observer: RunObserver) -> Self {
        let (owner, inbox) = mpsc::channel(INBOX_CAPACITY);
        let (counted, counts) = watch::channel(RunCounts::default());
        let (held, ended) = watch::channel(RecentRuns::default());
        let limits = watch::Sender::new(limits);
        let owned = run_manager::RunManager::new(history, limits.subscribe(), counted, held, observer);
        tokio::spawn(owned.run(inbox));
        Self { manager: owner, counts, limits, recent: ended }
    }

    /// Starts a run or joins an existing one. The run is recorded in the history when this returns.
    ///
    /// # Errors
    /// Too many runs wait, the run cannot be recorded, or the daemon is shutting down.
    pub async fn admit(&self, admission: RunAdmission) -> Result<(SubmissionOutcome, Arc<LiveRun>), AdmissionRefusal> {
        let answer = self.request(|reply| ManagerMessage::Admit(Box::new(admission), reply)).await;
        let (how, live) = answer.unwrap_or_else(|| Err(AdmissionRefusal::from(manager_gone())))?;
        live.wait_until_recorded().await.map_err(AdmissionRefusal::clone)?;
        Ok((how, live))
    }

    /// Finds a run that is active or ended recently.
    pub async fn find(&self, id: &RunId) -> Option<FoundRun> {
        let ended = self.recent.borrow().iter().find(|shown| shown.view.id == *id).cloned();
        if let Some(shown) = ended {
            return Some(FoundRun::Ended(shown));
        }
        self.request(|reply| ManagerMessage::Find(id.clone(), reply)).await.flatten()
    }

    /// Returns an active run with this key, unless a run with this key is waiting.
    pub async fn find_active(&self, key: RunKey) -> Option<Arc<LiveRun>> {
        self.request(|reply| ManagerMessage::FindActive(key, reply)).await.flatten()
    }

    /// Returns how the last run with this key ended, if known.
    pub async fn find_last(&self, key: RunKey) -> Option<LastRunOfKey> {
        self.request(|reply| ManagerMessage::FindLast(key, reply)).await.flatten()
    }

    /// Caches a finished run for a while.
    pub async fn cache(&self, run: Arc<SerializedRun>) {
        self.send(ManagerMessage::Cache(run)).await;
    }

    /// Requests cancellation of a run; `by` names the requester.
    pub async fn cancel(&self, id: &RunId, by: String) {
        self.send(ManagerMessage::Cancel(id.clone(), by)).await;
    }

    /// Withdraws one request from a run. The run is cancelled when no request is left.
    pub async fn abandon(&self, id: &RunId, by: String) {
        self.send(ManagerMessage::Abandon(id.clone(), by)).await;
    }

    /// Applies new limits.
    pub fn set_limits(&self, limits: QueueLimits) {
        self.limits.send_replace(limits);
    }

    /// Stops accepting runs. Waiting runs end, with `by` as the reason.
    pub async fn drain(&self, by: String) {
        self.send(ManagerMessage::Drain(by)).await;
    }

    /// Requests cancellation of all runs.
    pub async fn cancel_all(&self, by: String) {
        self.send(ManagerMessage::CancelAll(by)).await;
    }

    /// Checks whether the owner is alive. The reply comes after all earlier messages are processed.
    pub async fn ping(&self) -> bool {
        self.request(ManagerMessage::Ping).await.is_some()
    }

    /// Returns the number of runs. Takes no lock that is held for long.
    pub fn counts(&self) -> RunCounts {
        *self.counts.borrow()
    }

    /// Returns a receiver of the number of runs.
    pub fn subscribe_counts(&self) -> watch::Receiver<RunCounts> {
        self.counts.clone()
    }

    async fn request<T>(&self, message: impl FnOnce(oneshot::Sender<T>) -> ManagerMessage) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.manager.send(message(reply)).await.ok()?;
        answer.await.ok()
    }

    async fn send(&self, message: ManagerMessage) {
        if self.manager.send(message).await.is_err() {
            tracing::error!("the run manager has stopped");
        }
    }
}

impl QueueLimits {
    /// Derives the limits from the operator's settings; `cpus` is the default for the number of active runs.
    pub fn from_settings(settings: &DaemonSettings, cpus: usize) -> Self {
        let count = |number: u32| usize::try_from(number).unwrap_or(usize::MAX).max(1);
        let active = settings.max_runs.map_or(cpus.max(1), count);
        Self {
            active,
            active_per_caller: settings.max_runs_per_caller.map_or(active, count),
            waiting: count(settings.max_queued),
            waiting_per_caller: count(settings.max_queued_per_caller),
        }
    }
}

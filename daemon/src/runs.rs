//! Owns all runs in one task that processes messages. The task decides when a run starts, joins requests to a
//! matching run, forwards cancellations, and forgets finished runs.
//!
//! The run itself (`conduct`) publishes its events for readers (`live`). The service decides which callers may read
//! them.

mod conduct;
mod key;
mod live;
mod owner;

use std::sync::Arc;

use proctor_core::api::{How, Problem, ProblemType, RunCounts};
use proctor_core::names::RunId;
use proctor_core::spec::DaemonSettings;
use tokio::sync::{mpsc, oneshot, watch};

use crate::history::History;
use crate::queue::Limits;
use crate::service::Shown;

pub use conduct::Job;
pub use key::{KeyTree, RunKey};
pub use live::{Live, News, Phase};
pub(crate) use owner::{Observed, Observer, key_conflict};

/// Capacity of the owner's inbox; senders wait while it is full.
const INBOX: usize = 256;

/// Handle of the runs of this daemon. Clones share the same runs.
#[derive(Clone)]
pub struct Runs {
    owner: mpsc::Sender<Message>,
    counts: watch::Receiver<RunCounts>,
    limits: watch::Sender<Limits>,
    /// The runs that ended last, published by the owner. They no longer change, so reading one needs no message.
    ended: watch::Receiver<Ended>,
}

/// Cached finished runs.
type Ended = Arc<[Arc<Shown>]>;

/// A request to start or join a run.
pub struct Admission {
    /// Identity of the request: equal keys mean the same run.
    pub key: RunKey,
    /// An active run of the same key that verifies the requested tree.
    pub same_tree: Option<RunId>,
    /// The job to start if no run can be joined.
    pub job: Job,
}

/// Reason why no run serves a request.
#[derive(Debug, Clone)]
pub enum Refused {
    /// The request is refused.
    Problem(Box<Problem>),
    /// The `Idempotency-Key` belongs to this run, which has ended in the meantime.
    KeyUsed(RunId),
}

/// A run that the owner knows.
pub enum Found {
    /// The run is active or has just ended.
    Live(Arc<Live>),
    /// The run has ended.
    Ended(Arc<Shown>),
}

impl Found {
    /// Returns the current state of the run.
    pub fn shown(&self) -> Arc<Shown> {
        match self {
            Self::Live(live) => live.shown(),
            Self::Ended(shown) => Arc::clone(shown),
        }
    }

    /// Returns the run if it is still tracked live.
    pub fn live(&self) -> Option<&Arc<Live>> {
        match self {
            Self::Live(live) => Some(live),
            Self::Ended(_) => None,
        }
    }
}

/// Result of the last run with a key, as far as this daemon knows. It is only an optimization.
#[derive(Debug, Clone)]
pub struct Last {
    /// Key of the request.
    pub key: RunKey,
    /// The run.
    pub run: RunId,
    /// `true` if the run passed.
    pub passed: bool,
}

/// A message to the owner of runs.
enum Message {
    Admit(Box<Admission>, oneshot::Sender<Result<(How, Arc<Live>), Refused>>),
    Find(RunId, oneshot::Sender<Option<Found>>),
    UnderWay(RunKey, oneshot::Sender<Option<Arc<Live>>>),
    Last(RunKey, oneshot::Sender<Option<Last>>),
    Remember(Arc<Shown>),
    Cancel(RunId, String),
    Abandon(RunId, String),
    Drain(String),
    CancelAll(String),
    Ping(oneshot::Sender<()>),
}

impl Runs {
    /// Starts the owner task. It writes runs to `history` and reports them to `observer`.
    pub(crate) fn start(history: History, limits: Limits, observer: Observer) -> Self {
        let (owner, inbox) = mpsc::channel(INBOX);
        let (counted, counts) = watch::channel(RunCounts::default());
        let (held, ended) = watch::channel(Ended::default());
        let limits = watch::Sender::new(limits);
        let owned = owner::Owner::new(history, limits.subscribe(), counted, held, observer);
        tokio::spawn(owned.serve(inbox));
        Self { owner, counts, limits, ended }
    }

    /// Starts a run or joins an existing one. The run is recorded in the history when this returns.
    ///
    /// # Errors
    /// Too many runs wait, the run cannot be recorded, or the daemon is shutting down.
    pub async fn admit(&self, admission: Admission) -> Result<(How, Arc<Live>), Refused> {
        let asked = self.ask(|reply| Message::Admit(Box::new(admission), reply)).await;
        let (how, live) = asked.unwrap_or_else(|| Err(Refused::from(gone())))?;
        live.begun().await.map_err(Refused::clone)?;
        Ok((how, live))
    }

    /// Finds a run that is active or ended recently.
    pub async fn find(&self, id: &RunId) -> Option<Found> {
        let ended = self.ended.borrow().iter().find(|shown| shown.view.id == *id).cloned();
        if let Some(shown) = ended {
            return Some(Found::Ended(shown));
        }
        self.ask(|reply| Message::Find(id.clone(), reply)).await.flatten()
    }

    /// Returns an active run with this key, unless a run with this key is waiting.
    pub async fn under_way(&self, key: RunKey) -> Option<Arc<Live>> {
        self.ask(|reply| Message::UnderWay(key, reply)).await.flatten()
    }

    /// Returns how the last run with this key ended, if known.
    pub async fn last(&self, key: RunKey) -> Option<Last> {
        self.ask(|reply| Message::Last(key, reply)).await.flatten()
    }

    /// Caches a finished run for a while.
    pub async fn remember(&self, shown: Arc<Shown>) {
        self.tell(Message::Remember(shown)).await;
    }

    /// Requests cancellation of a run; `by` names the requester.
    pub async fn cancel(&self, id: &RunId, by: String) {
        self.tell(Message::Cancel(id.clone(), by)).await;
    }

    /// Withdraws one request from a run. The run is cancelled when no request is left.
    pub async fn abandon(&self, id: &RunId, by: String) {
        self.tell(Message::Abandon(id.clone(), by)).await;
    }

    /// Applies new limits.
    pub fn limit(&self, limits: Limits) {
        self.limits.send_replace(limits);
    }

    /// Stops accepting runs. Waiting runs end, with `by` as the reason.
    pub async fn drain(&self, by: String) {
        self.tell(Message::Drain(by)).await;
    }

    /// Requests cancellation of all runs.
    pub async fn cancel_all(&self, by: String) {
        self.tell(Message::CancelAll(by)).await;
    }

    /// Checks whether the owner is alive. The reply comes after all earlier messages are processed.
    pub async fn ping(&self) -> bool {
        self.ask(Message::Ping).await.is_some()
    }

    /// Returns the number of runs. Takes no lock that is held for long.
    pub fn counts(&self) -> RunCounts {
        *self.counts.borrow()
    }

    /// Returns a receiver of the number of runs.
    pub fn counts_watched(&self) -> watch::Receiver<RunCounts> {
        self.counts.clone()
    }

    async fn ask<T>(&self, message: impl FnOnce(oneshot::Sender<T>) -> Message) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.owner.send(message(reply)).await.ok()?;
        answer.await.ok()
    }

    async fn tell(&self, message: Message) {
        if self.owner.send(message).await.is_err() {
            tracing::error!("the owner of all runs is gone");
        }
    }
}

impl Limits {
    /// Derives the limits from the operator's settings; `cpus` is the default for the number of active runs.
    pub fn of(settings: &DaemonSettings, cpus: usize) -> Self {
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

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Self::Problem(Box::new(problem))
    }
}

fn gone() -> Problem {
    Problem::new(ProblemType::Internal, "an internal task of the daemon has stopped").with_hint("restart the daemon")
}

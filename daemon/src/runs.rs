//! The one owner of all runs: a task with messages. It decides when a run starts, joins requests for
//! the same run, passes on who wants one to end, and forgets those that have ended. What happens in
//! a run is told by the run itself (`conduct`) to whoever looks at it (`live`); who may look is
//! decided by the service.

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

/// How many messages to the owner may wait; who sends one more waits too.
const INBOX: usize = 256;

/// The runs of this daemon. Clones share them.
#[derive(Clone)]
pub struct Runs {
    owner: mpsc::Sender<Message>,
    counts: watch::Receiver<RunCounts>,
    limits: watch::Sender<Limits>,
    /// The runs that ended last, as the owner tells them: nothing of those changes any more, so that
    /// looking at one needs no answer of its.
    ended: watch::Receiver<Ended>,
}

/// Runs that have ended, and are held at hand.
type Ended = Arc<[Arc<Shown>]>;

/// A request that is to be met by a run.
pub struct Admission {
    /// What makes two requests the same.
    pub key: RunKey,
    /// A run of the same key that is under way on the very tree that is meant.
    pub same_tree: Option<RunId>,
    /// What is done where there is none.
    pub job: Job,
}

/// Why a request is not met by a run.
#[derive(Debug, Clone)]
pub enum Refused {
    /// It is not taken on.
    Problem(Box<Problem>),
    /// Its `Idempotency-Key` stands for this run, which has ended meanwhile.
    KeyUsed(RunId),
}

/// A run that is remembered here.
pub enum Found {
    /// It has not ended, or has just ended.
    Live(Arc<Live>),
    /// It has ended.
    Ended(Arc<Shown>),
}

impl Found {
    /// The run by now.
    pub fn shown(&self) -> Arc<Shown> {
        match self {
            Self::Live(live) => live.shown(),
            Self::Ended(shown) => Arc::clone(shown),
        }
    }

    /// The run while it goes on.
    pub fn live(&self) -> Option<&Arc<Live>> {
        match self {
            Self::Live(live) => Some(live),
            Self::Ended(_) => None,
        }
    }
}

/// How the last run of a key ended, as far as this daemon knows: no more than a way to save time.
#[derive(Debug, Clone)]
pub struct Last {
    /// What was asked for.
    pub key: RunKey,
    /// The run.
    pub run: RunId,
    /// Whether it passed.
    pub passed: bool,
}

/// What the owner is told and asked.
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
    /// Starts the owner: runs are written to `history`, and told to `observer`.
    pub(crate) fn start(history: History, limits: Limits, observer: Observer) -> Self {
        let (owner, inbox) = mpsc::channel(INBOX);
        let (counted, counts) = watch::channel(RunCounts::default());
        let (held, ended) = watch::channel(Ended::default());
        let limits = watch::Sender::new(limits);
        let owned = owner::Owner::new(history, limits.subscribe(), counted, held, observer);
        tokio::spawn(owned.serve(inbox));
        Self { owner, counts, limits, ended }
    }

    /// Takes a run on, or joins one. It is on record when this returns.
    ///
    /// # Errors
    /// Too many wait, it cannot be put on record, or the daemon is ending.
    pub async fn admit(&self, admission: Admission) -> Result<(How, Arc<Live>), Refused> {
        let asked = self.ask(|reply| Message::Admit(Box::new(admission), reply)).await;
        let (how, live) = asked.unwrap_or_else(|| Err(Refused::from(gone())))?;
        live.begun().await.map_err(Refused::clone)?;
        Ok((how, live))
    }

    /// A run that has not ended, or ended not long ago.
    pub async fn find(&self, id: &RunId) -> Option<Found> {
        let ended = self.ended.borrow().iter().find(|shown| shown.view.id == *id).cloned();
        if let Some(shown) = ended {
            return Some(Found::Ended(shown));
        }
        self.ask(|reply| Message::Find(id.clone(), reply)).await.flatten()
    }

    /// A run of this key that is under way, where none of it waits.
    pub async fn under_way(&self, key: RunKey) -> Option<Arc<Live>> {
        self.ask(|reply| Message::UnderWay(key, reply)).await.flatten()
    }

    /// How the last run of this key ended, where that is known.
    pub async fn last(&self, key: RunKey) -> Option<Last> {
        self.ask(|reply| Message::Last(key, reply)).await.flatten()
    }

    /// Keeps a run that has ended at hand for a while.
    pub async fn remember(&self, shown: Arc<Shown>) {
        self.tell(Message::Remember(shown)).await;
    }

    /// Asks a run to end; `by` says what asked.
    pub async fn cancel(&self, id: &RunId, by: String) {
        self.tell(Message::Cancel(id.clone(), by)).await;
    }

    /// One of those whose requests a run meets wants it no longer: it is asked to end where nobody
    /// else does.
    pub async fn abandon(&self, id: &RunId, by: String) {
        self.tell(Message::Abandon(id.clone(), by)).await;
    }

    /// From now on `limits` hold.
    pub fn limit(&self, limits: Limits) {
        self.limits.send_replace(limits);
    }

    /// Takes nothing on any more; what waits ends, because of `by`.
    pub async fn drain(&self, by: String) {
        self.tell(Message::Drain(by)).await;
    }

    /// Asks all runs to end.
    pub async fn cancel_all(&self, by: String) {
        self.tell(Message::CancelAll(by)).await;
    }

    /// Whether the owner is alive. It answers after what it was told before.
    pub async fn ping(&self) -> bool {
        self.ask(Message::Ping).await.is_some()
    }

    /// How many runs there are. Needs no lock that anybody holds for long.
    pub fn counts(&self) -> RunCounts {
        *self.counts.borrow()
    }

    /// How many runs there are, as that changes.
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
    /// What the operator wants; `cpus` stands in where they do not say.
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

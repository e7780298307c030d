//! Task that owns all runs: waiting, active, and recently finished ones. It handles each message quickly and without
//! disk access; each run has its own task for slow work.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use proctor_core::api::{How, Problem, ProblemType, RunCounts, RunView};
use proctor_core::names::RunId;
use proctor_core::verdict::Verdict;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;

use super::conduct::{Conduct, end_unrecorded, too_much_held};
use super::live::Live;
use super::{Admission, Ended, Found, Job, Last, Message, Refused, RunKey};
use crate::history::{History, Key};
use crate::queue::{Entry, Full, Limits, Queue};
use crate::service::Shown;

/// Number of finished runs kept in memory, so that clients waiting for them need no disk access.
const ENDED: usize = 64;
/// Maximum number of steps of a finished run that is kept in memory.
const ENDED_STEPS: usize = 256;
/// Number of keys for which the result of the last run is remembered.
const MOST_LAST: usize = 1_024;
/// Maximum value of `Retry-After`, in seconds.
const MAX_RETRY: u32 = 600;
/// Maximum number of bytes of callers' environments held for all unfinished runs.
const MAX_HELD: usize = 64 << 20;

/// Receives notifications about runs. The owner calls it, so it must return quickly.
pub(crate) type Observer = Box<dyn Fn(Observed<'_>) + Send>;

/// A notification about a run.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Observed<'a> {
    /// A request was accepted: it started a run or joined one.
    Admitted(How),
    /// A run started after waiting for this time.
    Started(Duration),
    /// A run ended: its view, the time since its request, and the time since its start if it started.
    Ended(&'a RunView, Duration, Option<Duration>),
}

/// State of the owner task.
pub(super) struct Owner {
    history: History,
    queue: Queue,
    limits: watch::Receiver<Limits>,
    runs: HashMap<RunId, Owned>,
    tasks: JoinSet<()>,
    by_task: HashMap<Id, RunId>,
    ended: VecDeque<Arc<Shown>>,
    last: VecDeque<Last>,
    counted: watch::Sender<RunCounts>,
    /// Publishes `ended` to readers.
    held_at_hand: watch::Sender<Ended>,
    observer: Observer,
    /// Reason why no run is accepted any more; `None` while runs are accepted.
    draining: Option<String>,
    held: usize,
    /// Moving average of the duration of recent runs.
    usual: Duration,
}

/// A run that has not ended.
struct Owned {
    live: Arc<Live>,
    key: RunKey,
    /// `Idempotency-Key` of the request.
    sent: Option<Key>,
    /// Signals that the run may start; `None` once it was sent.
    turn: Option<oneshot::Sender<()>>,
    held: usize,
    /// Number of joined requests that were not withdrawn.
    wanted: usize,
    since: Instant,
    /// Start of the execution.
    started: Option<Instant>,
}

impl Owner {
    pub(super) fn new(
        history: History,
        limits: watch::Receiver<Limits>,
        counted: watch::Sender<RunCounts>,
        held_at_hand: watch::Sender<Ended>,
        observer: Observer,
    ) -> Self {
        let allowed = *limits.borrow();
        Self {
            history,
            queue: Queue::new(allowed),
            limits,
            runs: HashMap::new(),
            tasks: JoinSet::new(),
            by_task: HashMap::new(),
            ended: VecDeque::new(),
            last: VecDeque::new(),
            counted,
            held_at_hand,
            observer,
            draining: None,
            held: 0,
            usual: Duration::ZERO,
        }
    }

    /// Processes messages until all handles are dropped and no run is left.
    pub(super) async fn serve(mut self, mut inbox: mpsc::Receiver<Message>) {
        let mut is_open = true;
        while is_open || !self.tasks.is_empty() {
            tokio::select! {
                message = inbox.recv(), if is_open => match message {
                    Some(message) => self.hear(message),
                    None => {
                        is_open = false;
                        self.cancel_all("proctor: the daemon is gone");
                    }
                },
                Ok(()) = self.limits.changed() => {
                    let limits = *self.limits.borrow_and_update();
                    self.queue.limit(limits);
                }
                Some(joined) = self.tasks.join_next_with_id() => self.ended(joined),
            }
            self.start_what_may();
            self.count();
        }
    }

    fn hear(&mut self, message: Message) {
        match message {
            Message::Admit(admission, reply) => {
                let admitted = self.admit(*admission);
                // The caller may have disconnected; the run continues for other readers.
                let _ = reply.send(admitted);
            }
            Message::Find(id, reply) => drop(reply.send(self.find(&id))),
            Message::UnderWay(key, reply) => drop(reply.send(self.under_way(&key))),
            Message::Remember(shown) => self.remember(shown),
            Message::Cancel(id, by) => self.cancel(&id, &by),
            Message::Abandon(id, by) => self.abandon(&id, &by),
            Message::Last(key, reply) => drop(reply.send(self.last.iter().find(|last| last.key == key).cloned())),
            Message::Drain(by) => self.drain(by),
            Message::CancelAll(by) => self.cancel_all(&by),
            Message::Ping(reply) => drop(reply.send(())),
        }
    }

    fn admit(&mut self, admission: Admission) -> Result<(How, Arc<Live>), Refused> {
        let Admission { key, same_tree, job } = admission;
        if let Some(met) = self.repeated(job.new.uid, job.new.key.as_ref())? {
            (self.observer)(Observed::Admitted(How::Repeated));
            return Ok(met);
        }
        if let Some(why) = &self.draining {
            let problem = Problem::new(ProblemType::Unavailable, format!("no new requests are accepted: {why}"));
            return Err(problem.with_hint("try again after the daemon has restarted").into());
        }
        if let Some(live) = self.joinable(&key, same_tree.as_ref()) {
            (self.observer)(Observed::Admitted(How::Joined));
            return Ok((How::Joined, live));
        }
        let live = self.take_on(key, job)?;
        (self.observer)(Observed::Admitted(How::Queued));
        Ok((How::Queued, live))
    }

    /// Returns the unfinished run of an earlier request with the same `Idempotency-Key`.
    fn repeated(&self, uid: u32, sent: Option<&Key>) -> Result<Option<(How, Arc<Live>)>, Refused> {
        let Some(sent) = sent else { return Ok(None) };
        let of_key = |owned: &&Owned| {
            let same = owned.live.uid() == uid && owned.sent.as_ref().is_some_and(|k| k.text == sent.text);
            same && !owned.live.is_refused()
        };
        let Some(owned) = self.runs.values().find(of_key) else { return Ok(None) };
        match owned.sent.as_ref().is_some_and(|known| known.request == sent.request) {
            true => Ok(Some((How::Repeated, Arc::clone(&owned.live)))),
            false => Err(key_conflict(owned.live.id()).into()),
        }
    }

    /// Finds a run that a request can join. A waiting run will read the tree later; an active run must verify the
    /// requested tree already.
    fn joinable(&mut self, key: &RunKey, same_tree: Option<&RunId>) -> Option<Arc<Live>> {
        let joins = |owned: &&mut Owned| {
            let alike = owned.key == *key && owned.live.meets_others();
            alike && (owned.turn.is_some() || Some(owned.live.id()) == same_tree)
        };
        let joined = self.runs.values_mut().find(joins)?;
        joined.wanted += 1;
        Some(Arc::clone(&joined.live))
    }

    fn under_way(&self, key: &RunKey) -> Option<Arc<Live>> {
        let mut same = self.runs.values().filter(|owned| owned.key == *key && owned.live.meets_others());
        if same.clone().any(|owned| owned.turn.is_some()) {
            return None;
        }
        same.next().map(|owned| Arc::clone(&owned.live))
    }

    fn take_on(&mut self, key: RunKey, job: Job) -> Result<Arc<Live>, Refused> {
        let Job { new, claim, engine, request, held_bytes } = job;
        if self.held.saturating_add(held_bytes) > MAX_HELD {
            return Err(too_much_held(MAX_HELD)
                .retry_after(until_next_turn(self.usual, self.limits.borrow().active))
                .into());
        }
        let entry = Entry { id: new.id.clone(), uid: new.uid, claim };
        let next_turn = until_next_turn(self.usual, self.limits.borrow().active);
        self.queue.push(entry).map_err(|full| too_many(full).retry_after(next_turn))?;
        let view = RunView::queued(new.id.clone(), String::new(), new.asked.clone(), new.uid);
        let live = Arc::new(Live::new(view));
        let (turn, wait) = oneshot::channel();
        let sent = new.key.clone();
        let conduct = Conduct { history: self.history.clone(), live: Arc::clone(&live), new, engine, request };
        let task = self.tasks.spawn(conduct.conduct(wait));
        self.by_task.insert(task.id(), live.id().clone());
        let owned = Owned {
            live: Arc::clone(&live),
            key,
            sent,
            turn: Some(turn),
            held: held_bytes,
            wanted: 1,
            since: Instant::now(),
            started: None,
        };
        self.runs.insert(live.id().clone(), owned);
        self.held += held_bytes;
        Ok(live)
    }

    fn start_what_may(&mut self) {
        if self.draining.is_some() {
            return;
        }
        while let Some(next) = self.queue.start_next() {
            let Some(owned) = self.runs.get_mut(&next.id) else { continue };
            // A cancelled run does not start; its task is about to end.
            if owned.turn.take().is_some_and(|turn| turn.send(()).is_ok()) {
                owned.started = Some(Instant::now());
                (self.observer)(Observed::Started(owned.since.elapsed()));
            }
        }
    }

    /// Handles the end of a run's task.
    fn ended(&mut self, joined: Result<(Id, ()), JoinError>) {
        let (task, panicked) = match joined {
            Ok((task, ())) => (task, false),
            Err(error) => (error.id(), true),
        };
        let Some(owned) = self.by_task.remove(&task).and_then(|id| self.runs.remove(&id)) else { return };
        self.queue.remove(owned.live.id());
        self.held = self.held.saturating_sub(owned.held);
        if panicked {
            tracing::error!(run = %owned.live.id(), "what conducts a run broke");
            end_unrecorded(&owned.live, "a part of proctor broke, so there is no result; please report it");
            owned.live.end();
        }
        let shown = owned.live.shown();
        // A run that was never recorded has nothing to report.
        if shown.view.verdict.is_some() {
            let executed = owned.started.map(|started| started.elapsed());
            if let Some(executed) = executed {
                self.usual = (self.usual * 3 + executed) / 4;
            }
            (self.observer)(Observed::Ended(&shown.view, owned.since.elapsed(), executed));
            self.note(owned.key, &shown.view);
            self.remember(shown);
        }
    }

    fn find(&self, id: &RunId) -> Option<Found> {
        let live = self.runs.get(id).map(|owned| Found::Live(Arc::clone(&owned.live)));
        let ended =
            || self.ended.iter().find(|shown| shown.view.id == *id).map(|shown| Found::Ended(Arc::clone(shown)));
        live.or_else(ended)
    }

    fn remember(&mut self, shown: Arc<Shown>) {
        self.ended.retain(|other| other.view.id != shown.view.id);
        if shown.view.steps.len() <= ENDED_STEPS {
            if self.ended.len() >= ENDED {
                self.ended.pop_front();
            }
            self.ended.push_back(shown);
        }
        self.held_at_hand.send_replace(self.ended.iter().cloned().collect());
    }

    fn note(&mut self, key: RunKey, view: &RunView) {
        self.last.retain(|last| last.key != key);
        self.last.truncate(MOST_LAST - 1);
        self.last.push_front(Last { key, run: view.id.clone(), passed: view.verdict == Some(Verdict::Passed) });
    }

    fn cancel(&mut self, id: &RunId, by: &str) {
        if let Some(owned) = self.runs.get(id) {
            owned.live.cancel(by.to_owned());
        }
    }

    /// Withdraws one request, and cancels the run when none is left.
    fn abandon(&mut self, id: &RunId, by: &str) {
        if let Some(owned) = self.runs.get_mut(id) {
            owned.wanted = owned.wanted.saturating_sub(1);
            if owned.wanted == 0 {
                owned.live.cancel(by.to_owned());
            }
        }
    }

    /// Cancels waiting runs and refuses new ones.
    fn drain(&mut self, by: String) {
        for owned in self.runs.values().filter(|owned| owned.turn.is_some()) {
            owned.live.cancel(by.clone());
        }
        self.draining = Some(by);
    }

    fn cancel_all(&mut self, by: &str) {
        self.runs.values().for_each(|owned| owned.live.cancel(by.to_owned()));
    }

    fn count(&mut self) {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let waiting = self.runs.values().filter(|owned| owned.turn.is_some()).count();
        let now = RunCounts { queued: count(waiting), running: count(self.runs.len() - waiting) };
        self.counted.send_if_modified(|known| std::mem::replace(known, now) != now);
    }
}

/// Estimates the number of seconds until one of `active` runs ends, from their usual duration.
fn until_next_turn(usual: Duration, active: usize) -> u32 {
    let active = u32::try_from(active).unwrap_or(u32::MAX).max(1);
    let seconds = (usual / active).as_millis().div_ceil(1_000);
    u32::try_from(seconds).unwrap_or(MAX_RETRY).clamp(1, MAX_RETRY)
}

fn too_many(full: Full) -> Problem {
    Problem::new(ProblemType::TooManyRequests, full.to_string()).with_hint("try again when some of them have ended")
}

/// Returns the problem for an `Idempotency-Key` that belongs to another request.
pub(crate) fn key_conflict(run: &RunId) -> Problem {
    let detail = format!("this `Idempotency-Key` was used for another request, which the run `{run}` meets");
    Problem::new(ProblemType::Conflict, detail).with_hint("use a new key for a new request")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_caller_asks_again_when_a_run_has_probably_ended() {
        let after = |seconds, active| until_next_turn(Duration::from_secs(seconds), active);
        assert_eq!([after(0, 2), after(60, 1), after(60, 4), after(7, 2)], [1, 60, 15, 4]);
        assert_eq!([after(100_000, 1), after(100, 0)], [MAX_RETRY, 100]);
    }
}

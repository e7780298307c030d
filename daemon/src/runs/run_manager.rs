//! Task that owns all runs: waiting, active, and recently finished ones. It handles each message quickly and without
//! disk access; each run has its own task for slow work.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use proctor_core::api::{LoggedRun, Problem, ProblemType, RunCounts, RunView, SubmissionOutcome};
use proctor_core::decision::verdict::Verdict;
use proctor_core::model::names::RunId;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;

use super::admission_refusal::AdmissionRefusal;
use super::live_run::LiveRun;
use super::manager_message::{FoundRun, LastRunOfKey, ManagerMessage, RecentRuns, RunAdmission};
use super::run_key::RunKey;
use super::run_task::{RunJob, RunTask, end_unrecorded, request_bytes_exceeded};
use super::serialized_run::SerializedRun;
use crate::history::{History, KeyedRequest};
use crate::queue::{FairQueue, QueueEntry, QueueFull, QueueLimits};

/// Number of finished runs kept in memory, so that clients waiting for them need no disk access.
const MAX_RECENT_RUNS: usize = 64;
/// Maximum number of steps of a finished run that is kept in memory.
const MAX_RECENT_RUN_STEPS: usize = 256;
/// Number of keys for which the result of the last run is remembered.
const MAX_LAST_RESULTS: usize = 1_024;
/// Maximum value of `Retry-After`, in seconds.
const MAX_RETRY_AFTER: u32 = 600;
/// Maximum number of bytes of callers' environments held for all unfinished runs.
const MAX_REQUEST_BYTES: usize = 64 << 20;

/// Receives notifications about runs. The owner calls it, so it must return quickly.
pub(crate) type RunObserver = Box<dyn Fn(RunNotification<'_>) + Send>;

/// A notification about a run.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RunNotification<'a> {
    /// A request was accepted: it started a run or joined one.
    Admitted(SubmissionOutcome),
    /// A run started; the value is the time for which it had waited.
    Started(Duration),
    /// A run ended: its view, the time since its request, and the time since its start if it started.
    Ended(&'a RunView, Duration, Option<Duration>),
}

/// State of the owner task.
pub(super) struct RunManager {
    history: History,
    queue: FairQueue,
    limits: watch::Receiver<QueueLimits>,
    runs: HashMap<RunId, ManagedRun>,
    tasks: JoinSet<()>,
    by_task: HashMap<Id, RunId>,
    recent: VecDeque<Arc<SerializedRun>>,
    last_results: VecDeque<LastRunOfKey>,
    counts: watch::Sender<RunCounts>,
    /// Publishes `ended` to readers.
    recent_sender: watch::Sender<RecentRuns>,
    observer: RunObserver,
    /// Reason why no run is accepted any more; `None` while runs are accepted.
    drain_reason: Option<String>,
    request_bytes: usize,
    /// Moving average of the duration of recent runs.
    average_duration: Duration,
}

/// A run that has not ended.
struct ManagedRun {
    live: Arc<LiveRun>,
    key: RunKey,
    /// `Idempotency-Key` of the request.
    idempotency_key: Option<KeyedRequest>,
    /// Signals that the run may start; `None` once it was sent.
    start_signal: Option<oneshot::Sender<()>>,
    request_bytes: usize,
    /// Number of joined requests that were not withdrawn.
    request_count: usize,
    requested_at: Instant,
    /// Start of the execution.
    started_at: Option<Instant>,
}

impl RunManager {
    pub(super) fn new(
        history: History,
        limits: watch::Receiver<QueueLimits>,
        counted: watch::Sender<RunCounts>,
        held_at_hand: watch::Sender<RecentRuns>,
        observer: RunObserver,
    ) -> Self {
        let allowed = *limits.borrow();
        Self {
            history,
            queue: FairQueue::new(allowed),
            limits,
            runs: HashMap::new(),
            tasks: JoinSet::new(),
            by_task: HashMap::new(),
            recent: VecDeque::new(),
            last_results: VecDeque::new(),
            counts: counted,
            recent_sender: held_at_hand,
            observer,
            drain_reason: None,
            request_bytes: 0,
            average_duration: Duration::ZERO,
        }
    }

    /// Processes messages until all handles are dropped and no run is left.
    pub(super) async fn run(mut self, mut inbox: mpsc::Receiver<ManagerMessage>) {
        let mut is_open = true;
        while is_open || !self.tasks.is_empty() {
            tokio::select! {
                message = inbox.recv(), if is_open => match message {
                    Some(message) => self.handle(message),
                    None => {
                        is_open = false;
                        self.cancel_all("proctor: the daemon has stopped");
                    }
                },
                Ok(()) = self.limits.changed() => {
                    let limits = *self.limits.borrow_and_update();
                    self.queue.set_limits(limits);
                }
                Some(joined) = self.tasks.join_next_with_id() => self.handle_task_end(joined),
            }
            self.start_ready();
            self.publish_counts();
        }
    }

    fn handle(&mut self, message: ManagerMessage) {
        match message {
            ManagerMessage::Admit(admission, reply) => {
                let admitted = self.admit(*admission);
                // The caller may have disconnected; the run continues for other readers.
                let _ = reply.send(admitted);
            }
            ManagerMessage::Find(id, reply) => drop(reply.send(self.find(&id))),
            ManagerMessage::FindActive(key, reply) => drop(reply.send(self.find_active(&key))),
            ManagerMessage::Cache(shown) => self.cache(shown),
            ManagerMessage::Cancel(id, by) => self.cancel(&id, &by),
            ManagerMessage::Abandon(id, by) => self.abandon(&id, &by),
            ManagerMessage::FindLast(key, reply) => {
                drop(reply.send(self.last_results.iter().find(|last| last.key == key).cloned()));
            }
            ManagerMessage::Drain(by) => self.drain(by),
            ManagerMessage::CancelAll(by) => self.cancel_all(&by),
            ManagerMessage::Ping(reply) => drop(reply.send(())),
        }
    }

    fn admit(&mut self, admission: RunAdmission) -> Result<(SubmissionOutcome, Arc<LiveRun>), AdmissionRefusal> {
        let RunAdmission { key, same_tree, job } = admission;
        if let Some(earlier) = self.find_by_idempotency_key(job.new.uid, job.new.key.as_ref())? {
            (self.observer)(RunNotification::Admitted(SubmissionOutcome::Repeated));
            return Ok(earlier);
        }
        if let Some(why) = &self.drain_reason {
            let problem = Problem::new(ProblemType::Unavailable, format!("no new requests are accepted: {why}"));
            return Err(problem.with_hint("try again after the daemon has restarted").into());
        }
        if let Some(live) = self.find_joinable(&key, same_tree.as_ref()) {
            (self.observer)(RunNotification::Admitted(SubmissionOutcome::Joined));
            return Ok((SubmissionOutcome::Joined, live));
        }
        let live = self.queue_run(key, job)?;
        (self.observer)(RunNotification::Admitted(SubmissionOutcome::Queued));
        Ok((SubmissionOutcome::Queued, live))
    }

    /// Returns the unfinished run of an earlier request with the same `Idempotency-Key`.
    fn find_by_idempotency_key(
        &self,
        uid: u32,
        sent: Option<&KeyedRequest>,
    ) -> Result<Option<(SubmissionOutcome, Arc<LiveRun>)>, AdmissionRefusal> {
        let Some(sent) = sent else { return Ok(None) };
        let has_key = |owned: &&ManagedRun| {
            let same = owned.live.uid() == uid && owned.idempotency_key.as_ref().is_some_and(|k| k.key == sent.key);
            same && !owned.live.is_refused()
        };
        let Some(owned) = self.runs.values().find(has_key) else { return Ok(None) };
        match owned.idempotency_key.as_ref().is_some_and(|known| known.request_sha256 == sent.request_sha256) {
            true => Ok(Some((SubmissionOutcome::Repeated, Arc::clone(&owned.live)))),
            false => Err(key_conflict(owned.live.id()).into()),
        }
    }

    /// Finds a run that a request can join. A waiting run will read the tree later; an active run must verify the
    /// requested tree already.
    fn find_joinable(&mut self, key: &RunKey, same_tree: Option<&RunId>) -> Option<Arc<LiveRun>> {
        let can_join = |owned: &&mut ManagedRun| {
            let alike = owned.key == *key && owned.live.is_joinable();
            alike && (owned.start_signal.is_some() || Some(owned.live.id()) == same_tree)
        };
        let joined = self.runs.values_mut().find(can_join)?;
        joined.request_count += 1;
        Some(Arc::clone(&joined.live))
    }

    fn find_active(&self, key: &RunKey) -> Option<Arc<LiveRun>> {
        let mut same = self.runs.values().filter(|owned| owned.key == *key && owned.live.is_joinable());
        if same.clone().any(|owned| owned.start_signal.is_some()) {
            return None;
        }
        same.next().map(|owned| Arc::clone(&owned.live))
    }

    fn queue_run(&mut self, key: RunKey, job: RunJob) -> Result<Arc<LiveRun>, AdmissionRefusal> {
        let RunJob { new, claim, engine, request, request_bytes: held_bytes } = job;
        if self.request_bytes.saturating_add(held_bytes) > MAX_REQUEST_BYTES {
            return Err(request_bytes_exceeded(MAX_REQUEST_BYTES)
                .with_retry_after(seconds_until_next_start(self.average_duration, self.limits.borrow().active))
                .into());
        }
        let entry = QueueEntry { id: new.id.clone(), uid: new.uid, claim };
        let next_turn = seconds_until_next_start(self.average_duration, self.limits.borrow().active);
        self.queue.push(entry).map_err(|full| too_many(full).with_retry_after(next_turn))?;
        let run = LoggedRun::new_queued(new.id.clone(), String::new(), new.request.clone(), new.uid);
        let live = Arc::new(LiveRun::new(run));
        let (turn, wait) = oneshot::channel();
        let sent = new.key.clone();
        let conduct = RunTask { history: self.history.clone(), live: Arc::clone(&live), new, engine, request };
        let task = self.tasks.spawn(conduct.run(wait));
        self.by_task.insert(task.id(), live.id().clone());
        let owned = ManagedRun {
            live: Arc::clone(&live),
            key,
            idempotency_key: sent,
            start_signal: Some(turn),
            request_bytes: held_bytes,
            request_count: 1,
            requested_at: Instant::now(),
            started_at: None,
        };
        self.runs.insert(live.id().clone(), owned);
        self.request_bytes += held_bytes;
        Ok(live)
    }

    fn start_ready(&mut self) {
        if self.drain_reason.is_some() {
            return;
        }
        while let Some(next) = self.queue.start_next() {
            let Some(owned) = self.runs.get_mut(&next.id) else { continue };
            // A cancelled run does not start; its task is about to end.
            if owned.start_signal.take().is_some_and(|turn| turn.send(()).is_ok()) {
                owned.started_at = Some(Instant::now());
                (self.observer)(RunNotification::Started(owned.requested_at.elapsed()));
            }
        }
    }

    /// Handles the end of a run's task.
    fn handle_task_end(&mut self, joined: Result<(Id, ()), JoinError>) {
        let (task, panicked) = match joined {
            Ok((task, ())) => (task, false),
            Err(error) => (error.id(), true),
        };
        let Some(owned) = self.by_task.remove(&task).and_then(|id| self.runs.remove(&id)) else { return };
        self.queue.remove(owned.live.id());
        self.request_bytes = self.request_bytes.saturating_sub(owned.request_bytes);
        if panicked {
            tracing::error!(run = %owned.live.id(), "the task of a run failed unexpectedly");
            end_unrecorded(&owned.live, "an internal part of proctor failed, so there is no result; please report it");
            owned.live.mark_ended();
        }
        let run = owned.live.current();
        // A run that was never recorded has nothing to report.
        if run.view.verdict.is_some() {
            let executed = owned.started_at.map(|started| started.elapsed());
            if let Some(executed) = executed {
                self.average_duration = (self.average_duration * 3 + executed) / 4;
            }
            (self.observer)(RunNotification::Ended(&run.view, owned.requested_at.elapsed(), executed));
            self.record_last_result(owned.key, &run.view);
            self.cache(run);
        }
    }

    fn find(&self, id: &RunId) -> Option<FoundRun> {
        let live = self.runs.get(id).map(|owned| FoundRun::Live(Arc::clone(&owned.live)));
        let ended =
            || self.recent.iter().find(|shown| shown.view.id == *id).map(|shown| FoundRun::Ended(Arc::clone(shown)));
        live.or_else(ended)
    }

    fn cache(&mut self, run: Arc<SerializedRun>) {
        self.recent.retain(|other| other.view.id != run.view.id);
        if run.view.steps.len() <= MAX_RECENT_RUN_STEPS {
            if self.recent.len() >= MAX_RECENT_RUNS {
                self.recent.pop_front();
            }
            self.recent.push_back(run);
        }
        self.recent_sender.send_replace(self.recent.iter().cloned().collect());
    }

    fn record_last_result(&mut self, key: RunKey, view: &RunView) {
        self.last_results.retain(|last| last.key != key);
        self.last_results.truncate(MAX_LAST_RESULTS - 1);
        self.last_results.push_front(LastRunOfKey {
            key,
            run: view.id.clone(),
            passed: view.verdict == Some(Verdict::Passed),
        });
    }

    fn cancel(&mut self, id: &RunId, by: &str) {
        if let Some(owned) = self.runs.get(id) {
            owned.live.cancel(by.to_owned());
        }
    }

    /// Withdraws one request, and cancels the run when none is left.
    fn abandon(&mut self, id: &RunId, by: &str) {
        if let Some(owned) = self.runs.get_mut(id) {
            owned.request_count = owned.request_count.saturating_sub(1);
            if owned.request_count == 0 {
                owned.live.cancel(by.to_owned());
            }
        }
    }

    /// Cancels waiting runs and refuses new ones.
    fn drain(&mut self, by: String) {
        for owned in self.runs.values().filter(|owned| owned.start_signal.is_some()) {
            owned.live.cancel(by.clone());
        }
        self.drain_reason = Some(by);
    }

    fn cancel_all(&mut self, by: &str) {
        self.runs.values().for_each(|owned| owned.live.cancel(by.to_owned()));
    }

    fn publish_counts(&mut self) {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let waiting = self.runs.values().filter(|owned| owned.start_signal.is_some()).count();
        let now = RunCounts { queued: count(waiting), running: count(self.runs.len() - waiting) };
        self.counts.send_if_modified(|known| std::mem::replace(known, now) != now);
    }
}

/// Estimates the number of seconds until one of `active` runs ends, from their usual duration.
fn seconds_until_next_start(average: Duration, active: usize) -> u32 {
    let active = u32::try_from(active).unwrap_or(u32::MAX).max(1);
    let seconds = (average / active).as_millis().div_ceil(1_000);
    u32::try_from(seconds).unwrap_or(MAX_RETRY_AFTER).clamp(1, MAX_RETRY_AFTER)
}

fn too_many(full: QueueFull) -> Problem {
    Problem::new(ProblemType::TooManyRequests, full.to_string()).with_hint("try again when some of them have ended")
}

/// Returns the problem for an `Idempotency-Key` that belongs to another request.
pub(crate) fn key_conflict(run: &RunId) -> Problem {
    let detail =
        format!("this `Idempotency-Key` was already used for a different request, which started the run `{run}`");
    Problem::new(ProblemType::Conflict, detail).with_hint("use a new key for a new request")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_retry_after_from_run_durations() {
        let after = |seconds, active| seconds_until_next_start(Duration::from_secs(seconds), active);
        assert_eq!([after(0, 2), after(60, 1), after(60, 4), after(7, 2)], [1, 60, 15, 4]);
        assert_eq!([after(100_000, 1), after(100, 0)], [MAX_RETRY_AFTER, 100]);
    }
}

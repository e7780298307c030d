//! Decides which SQL request a worker judges next. The queue is bounded per caller and in total, callers take turns,
//! and no request waits longer than [`SqlQueueLimits::wait`].
//!
//! [`SqlQueueState`] makes the decision without a clock or tasks. [`SqlQueue`] lets requests wait for it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proctor_core::api::{Problem, ProblemType};
use proctor_core::code::{Coded as _, SqlQueueCode};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::caller::Caller;
use crate::metrics::SqlCounts;

/// Maximum value of `Retry-After`, in seconds.
const MAX_RETRY_AFTER: u32 = 600;
/// Weight of the newest request in the mean duration is one divided by this number.
const MEAN_WEIGHT: u32 = 8;

/// Limits of the queue. Each number is at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SqlQueueLimits {
    /// Maximum number of requests judged concurrently.
    pub(super) active: usize,
    /// Maximum number of one caller's requests judged concurrently.
    pub(super) active_per_caller: usize,
    /// Maximum number of waiting requests.
    pub(super) waiting: usize,
    /// Maximum number of one caller's waiting requests.
    pub(super) waiting_per_caller: usize,
    /// Maximum waiting time of one request.
    pub(super) wait: Duration,
}

/// Reason why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SqlQueueRefusal {
    /// This many requests of the caller are already waiting.
    CallerFull(usize),
    /// This many requests of all callers are already waiting.
    Full(usize),
    /// No worker became free within the maximum waiting time.
    Late,
}

/// Sequence number of a request in the line.
type SqlTicket = u64;

/// The waiting requests by caller, and the number of active requests.
#[derive(Debug)]
struct SqlQueueState<W> {
    limits: SqlQueueLimits,
    last: SqlTicket,
    active: HashMap<Caller, usize>,
    /// The most recently served caller is at the end.
    waiting: VecDeque<(Caller, VecDeque<(SqlTicket, W)>)>,
    /// Mean time that a worker needs for a request.
    mean_duration: Duration,
}

impl<W> SqlQueueState<W> {
    fn new(bounds: SqlQueueLimits) -> Self {
        Self {
            limits: bounds,
            last: 0,
            active: HashMap::new(),
            waiting: VecDeque::new(),
            mean_duration: Duration::ZERO,
        }
    }

    /// Adds a request after the other requests of the same caller.
    fn push(&mut self, caller: Caller, waiter: W) -> Result<SqlTicket, SqlQueueRefusal> {
        let own = self.waiting_count(caller);
        if own >= self.limits.waiting_per_caller {
            return Err(SqlQueueRefusal::CallerFull(own));
        }
        let all = self.waiting.iter().map(|(_, requests)| requests.len()).sum();
        if all >= self.limits.waiting {
            return Err(SqlQueueRefusal::Full(all));
        }
        self.last += 1;
        let request = (self.last, waiter);
        match self.waiting.iter_mut().find(|(owner, _)| *owner == caller) {
            Some((_, requests)) => requests.push_back(request),
            None => self.waiting.push_back((caller, [request].into())),
        }
        Ok(self.last)
    }

    /// Removes a request that no longer waits.
    fn remove(&mut self, caller: Caller, ticket: SqlTicket) {
        if let Some((_, requests)) = self.waiting.iter_mut().find(|(owner, _)| *owner == caller) {
            requests.retain(|(id, _)| *id != ticket);
        }
        self.waiting.retain(|(_, requests)| !requests.is_empty());
    }

    /// Starts the next request. It belongs to the caller with the fewest active requests; among equals, to the one
    /// served least recently.
    fn next(&mut self) -> Option<(Caller, W)> {
        if self.active.values().sum::<usize>() >= self.limits.active {
            return None;
        }
        let active = |caller: &Caller| self.active.get(caller).copied().unwrap_or(0);
        let callers = self.waiting.iter().enumerate().map(|(at, (caller, _))| (active(caller), at));
        let at = callers.filter(|(active, _)| *active < self.limits.active_per_caller).min()?.1;
        let (caller, mut requests) = self.waiting.remove(at)?;
        let (_, waiter) = requests.pop_front()?;
        if !requests.is_empty() {
            self.waiting.push_back((caller, requests));
        }
        *self.active.entry(caller).or_default() += 1;
        Some((caller, waiter))
    }

    /// Ends a request that was active for `took`.
    fn end(&mut self, caller: Caller, took: Duration) {
        self.mean_duration = match self.mean_duration {
            Duration::ZERO => took,
            mean => (mean * (MEAN_WEIGHT - 1) + took) / MEAN_WEIGHT,
        };
        if let Some(active) = self.active.get_mut(&caller) {
            *active -= 1;
            if *active == 0 {
                self.active.remove(&caller);
            }
        }
    }

    fn waiting_count(&self, caller: Caller) -> usize {
        self.waiting.iter().find(|(owner, _)| *owner == caller).map_or(0, |(_, requests)| requests.len())
    }

    /// Estimates the number of seconds until a new request of the caller is judged, from the requests before it, the
    /// caller's share of the workers, and the mean duration.
    fn retry_after(&self, caller: Caller) -> u32 {
        let others = self.waiting.iter().filter(|(owner, _)| *owner != caller).count();
        let share = (self.limits.active / (others + 1)).clamp(1, self.limits.active_per_caller);
        let before = self.waiting_count(caller) + self.active.get(&caller).copied().unwrap_or(0);
        let rounds = u32::try_from(before.div_ceil(share)).unwrap_or(u32::MAX);
        let seconds = self.mean_duration.saturating_mul(rounds).as_secs_f64().ceil();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped; it is not negative")]
        let seconds = seconds.min(f64::from(MAX_RETRY_AFTER)) as u32;
        seconds.max(1)
    }
}

/// Queue of all SQL requests of this daemon.
#[derive(Debug, Clone)]
pub(super) struct SqlQueue(Arc<Mutex<SqlQueueState<oneshot::Sender<SqlPermit>>>>);

/// Permission to occupy a worker; dropping it starts the next request.
#[derive(Debug)]
pub(super) struct SqlPermit {
    queue: SqlQueue,
    caller: Caller,
    began: Instant,
}

/// A waiting request; dropping it removes the request from the line.
struct WaitingSqlRequest<'q> {
    queue: &'q SqlQueue,
    caller: Caller,
    ticket: SqlTicket,
}

impl SqlQueue {
    /// Creates an empty queue.
    pub(super) fn new(bounds: SqlQueueLimits) -> Self {
        Self(Arc::new(Mutex::new(SqlQueueState::new(bounds))))
    }

    /// Waits until a worker is free for a request of the caller.
    ///
    /// # Errors
    /// Too many requests wait, or no worker becomes free in time.
    pub(super) async fn enter(&self, caller: Caller) -> Result<SqlPermit, Problem> {
        let (sender, receiver) = oneshot::channel();
        let pushed = {
            let mut line = self.lock();
            let pushed = line.push(caller, sender);
            pushed.map(|ticket| (ticket, line.limits.wait)).map_err(|refusal| (refusal, line.retry_after(caller)))
        };
        let (ticket, wait) = pushed.map_err(|(refusal, seconds)| refusal.into_problem(seconds))?;
        let waiting = WaitingSqlRequest { queue: self, caller, ticket };
        self.start();
        let permit = tokio::time::timeout(wait, receiver).await;
        drop(waiting);
        match permit {
            Ok(Ok(permit)) => Ok(permit),
            // The sender is dropped only after it sends, so only the timeout can end the wait early.
            Ok(Err(_)) | Err(_) => Err(SqlQueueRefusal::Late.into_problem(self.lock().retry_after(caller))),
        }
    }

    /// Returns the numbers of waiting and active requests.
    pub(super) fn counts(&self) -> SqlCounts {
        let line = self.lock();
        let queued = line.waiting.iter().map(|(_, requests)| requests.len()).sum();
        SqlCounts { queued, running: line.active.values().sum() }
    }

    /// Starts requests while a worker is free.
    fn start(&self) {
        loop {
            // A separate statement releases the lock before a permit can be dropped.
            let next = self.lock().next();
            let Some((caller, sender)) = next else { return };
            // If the request no longer waits, `send` returns the permit, and dropping it frees the worker.
            drop(sender.send(SqlPermit { queue: self.clone(), caller, began: Instant::now() }));
        }
    }

    fn lock(&self) -> MutexGuard<'_, SqlQueueState<oneshot::Sender<SqlPermit>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SqlPermit {
    fn drop(&mut self) {
        self.queue.lock().end(self.caller, self.began.elapsed());
        self.queue.start();
    }
}

impl Drop for WaitingSqlRequest<'_> {
    fn drop(&mut self) {
        self.queue.lock().remove(self.caller, self.ticket);
    }
}

impl SqlQueueRefusal {
    fn into_problem(self, seconds: u32) -> Problem {
        let (kind, code, detail) = match self {
            Self::CallerFull(count) => (
                ProblemType::TooManyRequests,
                SqlQueueCode::Full,
                format!("{count} of your SQL requests are already waiting, the maximum"),
            ),
            Self::Full(count) => (
                ProblemType::TooManyRequests,
                SqlQueueCode::Full,
                format!("{count} SQL requests of all callers are already waiting, the maximum"),
            ),
            Self::Late => (
                ProblemType::Unavailable,
                SqlQueueCode::WaitExpired,
                "no SQL worker became free in time; the request was not judged".to_owned(),
            ),
        };
        let hint = format!("send it again in about {seconds} s, and send fewer requests at once");
        Problem::new(kind, detail).with_code(code.code()).with_hint(hint).with_retry_after(seconds)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use futures_util::FutureExt as _;
    use proptest::prelude::*;

    use super::*;

    const LIMITS: SqlQueueLimits = SqlQueueLimits {
        active: 4,
        active_per_caller: 3,
        waiting: 20,
        waiting_per_caller: 8,
        wait: Duration::from_secs(10),
    };

    fn caller(uid: u32) -> Caller {
        Caller { uid }
    }

    fn state_with(pushed: impl IntoIterator<Item = u32>) -> SqlQueueState<()> {
        let mut line = SqlQueueState::new(LIMITS);
        for uid in pushed {
            let _ = line.push(caller(uid), ());
        }
        line
    }

    fn start_all(line: &mut SqlQueueState<()>) -> Vec<u32> {
        std::iter::from_fn(|| line.next()).map(|(caller, ())| caller.uid).collect()
    }

    #[test]
    fn leaves_a_worker_to_other_callers() {
        let mut line = state_with([1, 1, 1, 1, 1, 1]);
        assert_eq!(start_all(&mut line), [1, 1, 1]);
        line.push(caller(2), ()).expect("there is room");
        assert_eq!(start_all(&mut line), [2], "a later caller does not wait for an earlier one");
    }

    #[test]
    fn callers_take_turns() {
        let mut line = state_with([1, 1, 1, 1, 2, 2, 2, 3, 3]);
        assert_eq!(start_all(&mut line), [1, 2, 3, 1]);
        line.end(caller(1), Duration::ZERO);
        line.end(caller(2), Duration::ZERO);
        assert_eq!(start_all(&mut line), [2, 3], "the caller that was served least recently is first");
    }

    #[test]
    fn rejects_requests_above_limits() {
        let mut line = state_with([1; 8]);
        assert_eq!(line.push(caller(1), ()), Err(SqlQueueRefusal::CallerFull(8)));
        for uid in 0..12 {
            line.push(caller(10 + uid), ()).expect("there is room");
        }
        assert_eq!(line.push(caller(2), ()), Err(SqlQueueRefusal::Full(20)));
    }

    #[test]
    fn estimates_the_wait_from_the_mean_duration() {
        let mut line = state_with([1; 8]);
        assert_eq!(start_all(&mut line).len(), 3);
        assert_eq!(line.retry_after(caller(1)), 1, "nothing is known yet");
        line.end(caller(1), Duration::from_secs(5));
        assert_eq!(start_all(&mut line).len(), 1);
        // Seven requests of the caller run first, three at a time, five seconds each.
        assert_eq!(line.retry_after(caller(1)), 15);
        line.push(caller(2), ()).expect("there is room");
        assert_eq!(line.retry_after(caller(1)), 20, "another caller takes half of the workers");
        assert_eq!(line.retry_after(caller(9)), 1);
        line.mean_duration = Duration::from_secs(86_400);
        assert_eq!(line.retry_after(caller(1)), MAX_RETRY_AFTER);
    }

    proptest! {
        /// No caller waits while another caller with more active requests is served.
        #[test]
        fn serves_caller_with_fewest_active_requests(steps in prop::collection::vec((0..5_u32, any::<bool>()), 1..200)) {
            let mut line = SqlQueueState::new(LIMITS);
            let mut active: Vec<u32> = Vec::new();
            for (uid, is_end) in steps {
                if is_end {
                    if let Some(at) = active.iter().position(|of| *of == uid) {
                        active.remove(at);
                        line.end(caller(uid), Duration::from_millis(1));
                    }
                } else {
                    let _ = line.push(caller(uid), ());
                }
                let count = |active: &[u32], uid: u32| active.iter().filter(|of| **of == uid).count();
                loop {
                    let waiting: Vec<u32> = line.waiting.iter().map(|(caller, _)| caller.uid).collect();
                    let Some((next, ())) = line.next() else {
                        let is_idle = active.len() < LIMITS.active;
                        prop_assert!(!is_idle || waiting.iter().all(|uid| count(&active, *uid) >= LIMITS.active_per_caller));
                        break;
                    };
                    prop_assert!(waiting.iter().all(|uid| count(&active, next.uid) <= count(&active, *uid)));
                    active.push(next.uid);
                }
                prop_assert!(active.len() <= LIMITS.active);
            }
        }
    }

    type EnterFuture<'q> = Pin<Box<dyn Future<Output = Result<SqlPermit, Problem>> + 'q>>;

    fn entering(queue: &SqlQueue, uid: u32) -> EnterFuture<'_> {
        Box::pin(queue.enter(caller(uid)))
    }

    fn try_permit(entering: &mut EnterFuture<'_>) -> Option<SqlPermit> {
        entering.as_mut().now_or_never().map(|entered| entered.expect("it is not refused"))
    }

    #[tokio::test(start_paused = true)]
    async fn refuses_request_that_waits_too_long_with_estimate() {
        let queue = SqlQueue::new(LIMITS);
        let held: Vec<SqlPermit> =
            (0..3).map(|_| try_permit(&mut entering(&queue, 1)).expect("a worker is free")).collect();
        tokio::time::advance(Duration::from_secs(6)).await;
        drop(held);
        let _held: Vec<SqlPermit> =
            (0..3).map(|_| try_permit(&mut entering(&queue, 1)).expect("a worker is free")).collect();
        let refused = queue.enter(caller(1)).await.expect_err("the workers are held");
        assert_eq!((refused.status, refused.retry_after_s), (503, Some(6)), "{refused:?}");
        assert_eq!(refused.code(), SqlQueueCode::WaitExpired.code());
        assert_eq!(queue.lock().waiting_count(caller(1)), 0);
        assert!(queue.enter(caller(2)).await.is_ok(), "another caller has a worker");
    }

    #[tokio::test]
    async fn full_queue_refuses_immediately() {
        let queue = SqlQueue::new(LIMITS);
        let mut all: Vec<EnterFuture<'_>> = (0..11).map(|_| entering(&queue, 1)).collect();
        let held: Vec<SqlPermit> = all.iter_mut().filter_map(try_permit).collect();
        assert_eq!(held.len(), 3);
        let refused = entering(&queue, 1).now_or_never().expect("at once").expect_err("the queue is full");
        assert_eq!((refused.status, refused.code()), (429, SqlQueueCode::Full.code()), "{refused:?}");
        assert!(refused.retry_after_s.is_some());
        drop(all);
        assert_eq!(queue.lock().waiting_count(caller(1)), 0, "requests that are given up leave the queue");
        drop(held);
        assert!(queue.lock().active.is_empty());
    }

    #[tokio::test]
    async fn permit_of_disconnected_request_is_reused() {
        let queue = SqlQueue::new(SqlQueueLimits { active: 1, active_per_caller: 1, ..LIMITS });
        let held = try_permit(&mut entering(&queue, 1)).expect("a worker is free");
        let (mut lost, mut next) = (entering(&queue, 1), entering(&queue, 2));
        assert!(try_permit(&mut lost).is_none() && try_permit(&mut next).is_none());
        drop(held);
        // `lost` has the permit now, but its caller disconnects before receiving it.
        drop(lost);
        assert!(try_permit(&mut next).is_some());
    }
}

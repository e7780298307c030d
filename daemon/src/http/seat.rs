//! State of one connection that the accept loop needs to choose a connection to evict. The connection writes the
//! state and the loop reads it, both without waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Time after connecting during which a silent connection does not count as idle. Both the client and the daemon may
/// wait for a CPU before the first request is read.
const GRACE: Duration = Duration::from_millis(250);

/// State of one connection.
#[derive(Debug)]
pub(super) struct Seat {
    uid: u32,
    opened: Instant,
    /// Time of the last change of `answering`, in milliseconds after `opened`.
    since_ms: AtomicU64,
    answering: AtomicBool,
    /// `true` if a request was read since all written bytes were flushed.
    asked: AtomicBool,
    leaves: AtomicBool,
    leave: Notify,
}

/// The time during which a request is answered; dropping it ends that time.
#[derive(Debug)]
pub(super) struct Turn(Arc<Seat>);

impl Seat {
    /// Creates the state of a connection that was just accepted.
    pub(super) fn new(uid: u32) -> Arc<Self> {
        Arc::new(Self {
            uid,
            opened: Instant::now(),
            since_ms: AtomicU64::new(0),
            answering: AtomicBool::new(false),
            asked: AtomicBool::new(false),
            leaves: AtomicBool::new(false),
            leave: Notify::new(),
        })
    }

    /// Returns the user that connected.
    pub(super) fn uid(&self) -> u32 {
        self.uid
    }

    /// Records that a request was read.
    pub(super) fn begin(self: &Arc<Self>) -> Turn {
        self.asked.store(true, Ordering::Relaxed);
        self.set(true);
        Turn(Arc::clone(self))
    }

    fn set(&self, answering: bool) {
        let now = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.since_ms.store(now, Ordering::Relaxed);
        self.answering.store(answering, Ordering::Relaxed);
    }

    /// Records that all written bytes were flushed.
    pub(super) fn flushed(&self) {
        if !self.answering.load(Ordering::Relaxed) {
            self.asked.store(false, Ordering::Relaxed);
        }
    }

    /// Returns whether the bytes being written belong to a request that was read.
    pub(super) fn was_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Returns the eviction order: whether a request is being answered, whether the connection is in its grace
    /// period, and the time of the last change. Among the connections of one user, the smallest rank is evicted
    /// first: idle connections before new ones, and among equals the oldest.
    pub(super) fn rank(&self) -> (bool, bool, Instant) {
        let since = Duration::from_millis(self.since_ms.load(Ordering::Relaxed));
        (self.answering.load(Ordering::Relaxed), self.settles().is_some(), self.opened + since)
    }

    /// Returns the end of the grace period if the connection is in it: it is new and has not sent a request.
    pub(super) fn settles(&self) -> Option<Instant> {
        let asked = self.answering.load(Ordering::Relaxed) || self.since_ms.load(Ordering::Relaxed) > 0;
        let until = self.opened + GRACE;
        (!asked && Instant::now() < until).then_some(until)
    }

    /// Asks the connection to close.
    pub(super) fn evict(&self) {
        self.leaves.store(true, Ordering::Relaxed);
        self.leave.notify_one();
    }

    /// Returns whether the connection was asked to close.
    pub(super) fn leaves(&self) -> bool {
        self.leaves.load(Ordering::Relaxed)
    }

    /// Completes when the connection is asked to close.
    pub(super) async fn evicted(&self) {
        self.leave.notified().await;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

//! State of one connection that the accept loop needs to choose a connection to evict. The connection writes the
//! state and the loop reads it, both without waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Time after connecting during which a silent connection does not count as idle. Both the client and the daemon may
/// wait for a CPU before the first request is read.
const IDLE_GRACE: Duration = Duration::from_millis(250);

/// State of one connection.
#[derive(Debug)]
pub(super) struct ConnectionState {
    uid: u32,
    opened: Instant,
    /// Time of the last change of `answering`, in milliseconds after `opened`.
    since_ms: AtomicU64,
    is_answering: AtomicBool,
    /// `true` if a request was read since all written bytes were flushed.
    has_request: AtomicBool,
    is_evicted: AtomicBool,
    eviction: Notify,
}

/// The time during which a request is answered; dropping it ends that time.
#[derive(Debug)]
pub(super) struct ActiveRequest(Arc<ConnectionState>);

impl ConnectionState {
    /// Creates the state of a connection that was just accepted.
    pub(super) fn new(uid: u32) -> Arc<Self> {
        Arc::new(Self {
            uid,
            opened: Instant::now(),
            since_ms: AtomicU64::new(0),
            is_answering: AtomicBool::new(false),
            has_request: AtomicBool::new(false),
            is_evicted: AtomicBool::new(false),
            eviction: Notify::new(),
        })
    }

    /// Returns the user that connected.
    pub(super) fn uid(&self) -> u32 {
        self.uid
    }

    /// Records that a request was read.
    pub(super) fn begin_request(self: &Arc<Self>) -> ActiveRequest {
        self.has_request.store(true, Ordering::Relaxed);
        self.set_answering(true);
        ActiveRequest(Arc::clone(self))
    }

    fn set_answering(&self, answering: bool) {
        let now = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.since_ms.store(now, Ordering::Relaxed);
        self.is_answering.store(answering, Ordering::Relaxed);
    }

    /// Records that all written bytes were flushed.
    pub(super) fn record_flush(&self) {
        if !self.is_answering.load(Ordering::Relaxed) {
            self.has_request.store(false, Ordering::Relaxed);
        }
    }

    /// Returns whether the bytes being written belong to a request that was read.
    pub(super) fn has_request(&self) -> bool {
        self.has_request.load(Ordering::Relaxed)
    }

    /// Returns the eviction order: whether a request is being answered, whether the connection is in its grace
    /// period, and the time of the last change. Among the connections of one user, the smallest rank is evicted
    /// first: idle connections before new ones, and among equals the oldest.
    pub(super) fn eviction_rank(&self) -> (bool, bool, Instant) {
        let since = Duration::from_millis(self.since_ms.load(Ordering::Relaxed));
        (self.is_answering.load(Ordering::Relaxed), self.grace_end().is_some(), self.opened + since)
    }

    /// Returns the end of the grace period if the connection is in it: it is new and has not sent a request.
    pub(super) fn grace_end(&self) -> Option<Instant> {
        let is_used = self.is_answering.load(Ordering::Relaxed) || self.since_ms.load(Ordering::Relaxed) > 0;
        let until = self.opened + IDLE_GRACE;
        (!is_used && Instant::now() < until).then_some(until)
    }

    /// Asks the connection to close.
    pub(super) fn evict(&self) {
        self.is_evicted.store(true, Ordering::Relaxed);
        self.eviction.notify_one();
    }

    /// Returns whether the connection was asked to close.
    pub(super) fn is_evicted(&self) -> bool {
        self.is_evicted.load(Ordering::Relaxed)
    }

    /// Completes when the connection is asked to close.
    pub(super) async fn wait_for_eviction(&self) {
        self.eviction.notified().await;
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.set_answering(false);
    }
}

//! The place of one connection among all: what the accept loop must know to choose which one makes room
//! for another. The connection writes it, the loop reads it; nothing waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// How long whoever has just connected may take to say what it wants before it is one that asks for nothing: a
/// client waits for a processor between two calls, and so do we before we read what it said.
const GRACE: Duration = Duration::from_millis(250);

/// The place of one connection.
#[derive(Debug)]
pub(super) struct Seat {
    uid: u32,
    opened: Instant,
    /// Since when it has been answering, or not: milliseconds after it was opened.
    since_ms: AtomicU64,
    answering: AtomicBool,
    /// Whether a request was read since everything that was written went out.
    asked: AtomicBool,
    leaves: AtomicBool,
    leave: Notify,
}

/// The time during which one request is answered; it is over when this is dropped.
#[derive(Debug)]
pub(super) struct Turn(Arc<Seat>);

impl Seat {
    /// The place of a connection that was opened just now.
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

    /// Who connected.
    pub(super) fn uid(&self) -> u32 {
        self.uid
    }

    /// A request was read.
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

    /// Everything that was written went out.
    pub(super) fn flushed(&self) {
        if !self.answering.load(Ordering::Relaxed) {
            self.asked.store(false, Ordering::Relaxed);
        }
    }

    /// Whether what is written now belongs to a request that was read.
    pub(super) fn was_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Whether a request is being answered, whether it has only just come, and since when all that is so. Of those of
    /// one user, the least one makes room first: idle ones before newcomers, and among equals the oldest.
    pub(super) fn rank(&self) -> (bool, bool, Instant) {
        let since = Duration::from_millis(self.since_ms.load(Ordering::Relaxed));
        (self.answering.load(Ordering::Relaxed), self.settles().is_some(), self.opened + since)
    }

    /// Until when it counts as one that has only just come and has not asked yet; none where it does not.
    pub(super) fn settles(&self) -> Option<Instant> {
        let asked = self.answering.load(Ordering::Relaxed) || self.since_ms.load(Ordering::Relaxed) > 0;
        let until = self.opened + GRACE;
        (!asked && Instant::now() < until).then_some(until)
    }

    /// Tells the connection to make room.
    pub(super) fn evict(&self) {
        self.leaves.store(true, Ordering::Relaxed);
        self.leave.notify_one();
    }

    /// Whether it was told to make room.
    pub(super) fn leaves(&self) -> bool {
        self.leaves.load(Ordering::Relaxed)
    }

    /// Completes when it is told to make room.
    pub(super) async fn evicted(&self) {
        self.leave.notified().await;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

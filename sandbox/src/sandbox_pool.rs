//! Holds prepared sandboxes that wait for a command: new ones, and reusable ones whose commands left nothing behind.
//! They belong to the run space of one run, and end with it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::host::StepUser;
use crate::host_view::HostView;
use crate::layer_slot::LayerSlot;
use crate::policy::{CacheSource, Frame};
use crate::running_sandbox::RunningSandbox;
use crate::setup::SetupOp;

/// The largest number of waiting sandboxes for one run.
pub(crate) const MAX_WAITING: usize = 8;
/// How long an unused sandbox waits. It occupies two processes and a network namespace.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// The time of the next check for expired sandboxes: the earliest expiry. A sandbox that begins to wait after a check
/// does not expire before the next one.
#[derive(Debug)]
pub(crate) struct ExpirySchedule {
    next_check: Instant,
}

impl ExpirySchedule {
    /// Creates a schedule of a process without waiting sandboxes.
    pub(crate) fn new(now: Instant) -> Self {
        Self { next_check: now + IDLE_TIMEOUT }
    }

    /// Returns the time that is left until the next check; zero if it is due.
    pub(crate) fn time_left(&self, now: Instant) -> Duration {
        self.next_check.saturating_duration_since(now)
    }

    /// Sets the next check after a check at the time `now`. `first` is when the oldest waiting sandbox began to wait.
    pub(crate) fn set_next_check(&mut self, first: Option<Instant>, now: Instant) {
        self.next_check = first.unwrap_or(now) + IDLE_TIMEOUT;
    }
}

/// Returns whether a sandbox that began to wait at `since` has expired.
fn has_expired(since: Instant, now: Instant) -> bool {
    now.saturating_duration_since(since) >= IDLE_TIMEOUT
}

/// The waiting sandboxes, oldest first.
#[derive(Debug, Default)]
pub(crate) struct SandboxPool(Mutex<Vec<WaitingSandbox>>);

#[derive(Debug)]
struct WaitingSandbox {
    frame: Frame,
    user: StepUser,
    prepared: PreparedSandbox,
    waiting_since: Instant,
}

/// A sandbox with the layer that its command will write.
#[derive(Debug)]
pub(crate) struct PreparedSandbox {
    pub(crate) sandbox: RunningSandbox,
    pub(crate) slot: LayerSlot,
    /// The layers below, as expected when it was prepared; newest first.
    pub(crate) lowers: Vec<u32>,
    /// `true` if the sandbox has served a command. It can then serve only commands over these layers.
    pub(crate) has_served: bool,
    /// The operations of the sandbox and its view of the host, if it may wait for longer than a run.
    pub(crate) host_baseline: Option<HostBaseline>,
}

/// The operations and the view of the host of a sandbox that waits for a command outside of a run.
#[derive(Debug)]
pub(crate) struct HostBaseline {
    pub(crate) ops: Vec<SetupOp>,
    pub(crate) view: HostView,
}

impl PreparedSandbox {
    /// Returns whether a new sandbox for this frame would show the same parts of the host.
    pub(crate) fn has_current_host_view(&self, frame: &Frame) -> bool {
        self.host_baseline.as_ref().is_none_or(|made| made.view.is_current(&made.ops, frame))
    }

    /// Ends a sandbox that will not be used.
    pub(crate) fn release(self) {
        drop(self.sandbox);
        // The directories of the sandbox are empty. If they cannot be removed, they remain until the run ends.
        let _ = self.slot.discard();
    }
}

impl SandboxPool {
    /// Removes and returns the oldest sandbox that was made for this frame, preferably one that expects these layers.
    /// Also ends sandboxes that have become unusable.
    pub(crate) fn take_matching(&self, frame: &Frame, user: StepUser, lowers: &[u32]) -> Option<PreparedSandbox> {
        let (taken, dead) = {
            let mut waiting = self.lock_waiting();
            let dead: Vec<WaitingSandbox> =
                waiting.extract_if(.., |one| one.prepared.sandbox.is_prepared().is_none()).collect();
            let fits = |one: &WaitingSandbox| one.user == user && one.frame == *frame;
            let expected = waiting.iter().position(|one| fits(one) && one.prepared.lowers == lowers);
            let at = expected.or_else(|| waiting.iter().position(|one| fits(one) && !one.prepared.has_served));
            (at.map(|at| waiting.remove(at).prepared), dead)
        };
        dead.into_iter().for_each(|one| one.prepared.release());
        taken
    }

    /// Adds a sandbox; ends the oldest one if the pool is full.
    pub(crate) fn put(&self, frame: Frame, user: StepUser, prepared: PreparedSandbox) {
        let oldest = {
            let mut waiting = self.lock_waiting();
            let oldest = (waiting.len() >= MAX_WAITING).then(|| waiting.remove(0));
            waiting.push(WaitingSandbox { frame, user, prepared, waiting_since: Instant::now() });
            oldest
        };
        if let Some(oldest) = oldest {
            oldest.prepared.release();
        }
    }

    /// Returns the number of sandboxes for this frame, whether still being prepared or ready.
    pub(crate) fn count(&self, frame: &Frame, user: StepUser) -> usize {
        self.lock_waiting().iter().filter(|one| one.user == user && one.frame == *frame).count()
    }

    /// Returns the layers of the waiting sandboxes.
    pub(crate) fn layer_ids(&self) -> Vec<u32> {
        self.lock_waiting().iter().map(|one| one.prepared.slot.id()).collect()
    }

    /// Returns the number of sandboxes that are ready for a command.
    pub(crate) fn ready_count(&self) -> usize {
        self.lock_waiting().iter().filter(|one| one.prepared.sandbox.is_prepared() == Some(true)).count()
    }

    /// Ends the sandboxes that have waited for at least `min_idle`.
    pub(crate) fn release_idle(&self, min_idle: Duration) {
        self.release_all(|one| one.waiting_since.elapsed() >= min_idle);
    }

    /// Ends the sandboxes that have waited for [`IDLE_TIMEOUT`] at the time `now`.
    pub(crate) fn release_expired(&self, now: Instant) {
        self.release_all(|one| has_expired(one.waiting_since, now));
    }

    /// Returns when the oldest waiting sandbox began to wait.
    pub(crate) fn first_waiting_since(&self) -> Option<Instant> {
        self.lock_waiting().iter().map(|one| one.waiting_since).min()
    }

    /// Ends the sandboxes that hold a cache with this source.
    pub(crate) fn release_cache(&self, source: &CacheSource) {
        self.release_all(|one| one.frame.caches.iter().any(|cache| cache.source == *source));
    }

    fn release_all(&self, is_released: impl Fn(&WaitingSandbox) -> bool) {
        // Releases the lock before it waits for the sandboxes to end.
        let released: Vec<WaitingSandbox> = self.lock_waiting().extract_if(.., |one| is_released(one)).collect();
        released.into_iter().for_each(|one| one.prepared.release());
    }

    fn lock_waiting(&self) -> MutexGuard<'_, Vec<WaitingSandbox>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A daemon that starts a helper every 40 seconds never waits for 60 seconds without one.
    #[test]
    fn sandbox_expires_although_helpers_start_more_often() {
        let start = Instant::now();
        let since = start + Duration::from_secs(5);
        let mut schedule = ExpirySchedule::new(start);
        let mut helper_starts = (1..10).map(|number| start + Duration::from_secs(40 * number));
        let mut next_start = helper_starts.next().expect("a start");
        let (mut now, mut checks) = (start, 0);
        loop {
            now = (now + schedule.time_left(now)).min(next_start);
            if now == next_start {
                next_start = helper_starts.next().expect("it expires before the last start");
            }
            if schedule.time_left(now).is_zero() {
                checks += 1;
                if has_expired(since, now) {
                    break;
                }
                schedule.set_next_check((since <= now).then_some(since), now);
            }
        }
        assert_eq!((now, checks), (since + IDLE_TIMEOUT, 2));
    }

    #[test]
    fn next_check_is_at_the_earliest_expiry() {
        let now = Instant::now();
        let mut schedule = ExpirySchedule::new(now);
        assert_eq!(schedule.time_left(now), IDLE_TIMEOUT);
        let later = now + Duration::from_secs(20);
        schedule.set_next_check(Some(now), later);
        assert_eq!(schedule.time_left(later), IDLE_TIMEOUT - Duration::from_secs(20));
        assert_eq!(schedule.time_left(now + 2 * IDLE_TIMEOUT), Duration::ZERO);
        schedule.set_next_check(None, later);
        assert_eq!(schedule.time_left(later), IDLE_TIMEOUT);
        assert!(has_expired(now, now + IDLE_TIMEOUT) && !has_expired(now, later) && !has_expired(later, now));
    }
}

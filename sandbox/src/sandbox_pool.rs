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
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

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
    /// `true` if it has served a command. It can then serve over these layers only.
    pub(crate) has_served: bool,
    /// Its operations and its view of the host, if it may wait for longer than a run.
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
        // Its directories are empty. If they cannot be removed they stay until the run ends.
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

    /// Ends the sandboxes that have waited for at least `patience`.
    pub(crate) fn release_idle(&self, min_idle: Duration) {
        // Releases the lock before it waits for the sandboxes to end.
        let idle: Vec<WaitingSandbox> =
            self.lock_waiting().extract_if(.., |one| one.waiting_since.elapsed() >= min_idle).collect();
        idle.into_iter().for_each(|one| one.prepared.release());
    }

    /// Ends the sandboxes that hold a cache with this source.
    pub(crate) fn release_cache(&self, source: &CacheSource) {
        let holds = |one: &mut WaitingSandbox| one.frame.caches.iter().any(|cache| cache.source == *source);
        let held: Vec<WaitingSandbox> = self.lock_waiting().extract_if(.., holds).collect();
        held.into_iter().for_each(|one| one.prepared.release());
    }

    fn lock_waiting(&self) -> MutexGuard<'_, Vec<WaitingSandbox>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

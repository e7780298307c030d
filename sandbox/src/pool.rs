//! Holds prepared sandboxes that wait for a command: new ones, and reusable ones whose commands left nothing behind.
//! They belong to the run space of one run, and end with it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::host::StepUser;
use crate::host_view::HostView;
use crate::policy::{CacheSource, Frame};
use crate::running::Running;
use crate::setup::SetupOp;
use crate::space::Slot;

/// The largest number of waiting sandboxes for one run.
pub(crate) const MOST: usize = 8;
/// How long an unused sandbox waits. It occupies two processes and a network namespace.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The waiting sandboxes, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Pool(Mutex<Vec<Waiting>>);

#[derive(Debug)]
struct Waiting {
    frame: Frame,
    user: StepUser,
    prepared: Prepared,
    since: Instant,
}

/// A sandbox with the layer that its command will write.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) sandbox: Running,
    pub(crate) slot: Slot,
    /// The layers below, as expected when it was prepared; newest first.
    pub(crate) lowers: Vec<u32>,
    /// `true` if it has served a command. It can then serve over these layers only.
    pub(crate) has_served: bool,
    /// Its operations and its view of the host, if it may wait for longer than a run.
    pub(crate) made_ahead: Option<MadeAhead>,
}

/// The operations and the view of the host of a sandbox that waits for a command outside of a run.
#[derive(Debug)]
pub(crate) struct MadeAhead {
    pub(crate) ops: Vec<SetupOp>,
    pub(crate) view: HostView,
}

impl Prepared {
    /// Returns whether a new sandbox for this frame would show the same parts of the host.
    pub(crate) fn is_like_new(&self, frame: &Frame) -> bool {
        self.made_ahead.as_ref().is_none_or(|made| made.view.still_holds(&made.ops, frame))
    }

    /// Ends a sandbox that will not be used.
    pub(crate) fn let_go(self) {
        drop(self.sandbox);
        // Its directories are empty. If they cannot be removed they stay until the run ends.
        let _ = self.slot.discard();
    }
}

impl Pool {
    /// Removes and returns the oldest sandbox that was made for this frame, preferably one that expects these layers.
    /// Also ends sandboxes that have become unusable.
    pub(crate) fn take(&self, frame: &Frame, user: StepUser, lowers: &[u32]) -> Option<Prepared> {
        let (taken, dead) = {
            let mut waiting = self.waiting();
            let dead: Vec<Waiting> =
                waiting.extract_if(.., |one| one.prepared.sandbox.is_prepared().is_none()).collect();
            let fits = |one: &Waiting| one.user == user && one.frame == *frame;
            let expected = waiting.iter().position(|one| fits(one) && one.prepared.lowers == lowers);
            let at = expected.or_else(|| waiting.iter().position(|one| fits(one) && !one.prepared.has_served));
            (at.map(|at| waiting.remove(at).prepared), dead)
        };
        dead.into_iter().for_each(|one| one.prepared.let_go());
        taken
    }

    /// Adds a sandbox; ends the oldest one if the pool is full.
    pub(crate) fn put(&self, frame: Frame, user: StepUser, prepared: Prepared) {
        let oldest = {
            let mut waiting = self.waiting();
            let oldest = (waiting.len() >= MOST).then(|| waiting.remove(0));
            waiting.push(Waiting { frame, user, prepared, since: Instant::now() });
            oldest
        };
        if let Some(oldest) = oldest {
            oldest.prepared.let_go();
        }
    }

    /// Returns the number of sandboxes for this frame, whether still being prepared or ready.
    pub(crate) fn count(&self, frame: &Frame, user: StepUser) -> usize {
        self.waiting().iter().filter(|one| one.user == user && one.frame == *frame).count()
    }

    /// Returns the layers of the waiting sandboxes.
    pub(crate) fn layers(&self) -> Vec<u32> {
        self.waiting().iter().map(|one| one.prepared.slot.id()).collect()
    }

    /// Returns the number of sandboxes that are ready for a command.
    pub(crate) fn ready(&self) -> usize {
        self.waiting().iter().filter(|one| one.prepared.sandbox.is_prepared() == Some(true)).count()
    }

    /// Ends the sandboxes that have waited for at least `patience`.
    pub(crate) fn release(&self, patience: Duration) {
        // Releases the lock before it waits for the sandboxes to end.
        let idle: Vec<Waiting> = self.waiting().extract_if(.., |one| one.since.elapsed() >= patience).collect();
        idle.into_iter().for_each(|one| one.prepared.let_go());
    }

    /// Ends the sandboxes that hold a cache with this source.
    pub(crate) fn release_cache(&self, source: &CacheSource) {
        let holds = |one: &mut Waiting| one.frame.caches.iter().any(|cache| cache.source == *source);
        let held: Vec<Waiting> = self.waiting().extract_if(.., holds).collect();
        held.into_iter().for_each(|one| one.prepared.let_go());
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! Sandboxes that are prepared and wait for a command: new ones, and such as have served commands that left nothing.
//! They belong to the place for layers of one run, and end with it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::host::StepUser;
use crate::host_view::HostView;
use crate::policy::{CacheSource, Frame};
use crate::running::Running;
use crate::setup::SetupOp;
use crate::space::Slot;

/// How many sandboxes wait at most for one run.
pub(crate) const MOST: usize = 8;
/// How long one waits that nobody asks for: it holds two processes and a network namespace.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The sandboxes that wait, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Pool(Mutex<Vec<Waiting>>);

#[derive(Debug)]
struct Waiting {
    frame: Frame,
    user: StepUser,
    prepared: Prepared,
    since: Instant,
}

/// A sandbox with the layer that its command is going to write.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) sandbox: Running,
    pub(crate) slot: Slot,
    /// The layers below, as they were expected; newest first.
    pub(crate) lowers: Vec<u32>,
    /// Whether it has served before: then these layers are the only ones that it can serve over.
    pub(crate) has_served: bool,
    /// What it was made of, where it may wait for longer than a run.
    pub(crate) made_ahead: Option<MadeAhead>,
}

/// What a sandbox was made of that waits for a command by itself.
#[derive(Debug)]
pub(crate) struct MadeAhead {
    pub(crate) ops: Vec<SetupOp>,
    pub(crate) view: HostView,
}

impl Prepared {
    /// Returns whether a new sandbox of this frame would show the same of the host.
    pub(crate) fn is_like_new(&self, frame: &Frame) -> bool {
        self.made_ahead.as_ref().is_none_or(|made| made.view.still_holds(&made.ops, frame))
    }

    /// Ends one that nobody is going to use.
    pub(crate) fn let_go(self) {
        drop(self.sandbox);
        // Empty directories, which stay until the run ends where they cannot be removed.
        let _ = self.slot.discard();
    }
}

impl Pool {
    /// Takes the oldest one that is made for this frame, rather one that expects these layers; those
    /// that are of no use any more go.
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

    /// Puts one in; the oldest goes where there is no room.
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

    /// How many there are for this frame, being prepared or ready.
    pub(crate) fn count(&self, frame: &Frame, user: StepUser) -> usize {
        self.waiting().iter().filter(|one| one.user == user && one.frame == *frame).count()
    }

    /// The layers of those that wait.
    pub(crate) fn layers(&self) -> Vec<u32> {
        self.waiting().iter().map(|one| one.prepared.slot.id()).collect()
    }

    /// How many of all are ready for their command.
    pub(crate) fn ready(&self) -> usize {
        self.waiting().iter().filter(|one| one.prepared.sandbox.is_prepared() == Some(true)).count()
    }

    /// Lets those go that have waited for longer than `patience`.
    pub(crate) fn release(&self, patience: Duration) {
        // Their ends are waited for, and nobody else's: the lock goes first.
        let idle: Vec<Waiting> = self.waiting().extract_if(.., |one| one.since.elapsed() >= patience).collect();
        idle.into_iter().for_each(|one| one.prepared.let_go());
    }

    /// Ends those that hold a cache with this source.
    pub(crate) fn release_cache(&self, source: &CacheSource) {
        let holds = |one: &mut Waiting| one.frame.caches.iter().any(|cache| cache.source == *source);
        let held: Vec<Waiting> = self.waiting().extract_if(.., holds).collect();
        held.into_iter().for_each(|one| one.prepared.let_go());
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

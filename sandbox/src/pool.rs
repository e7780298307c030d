//! Sandboxes that are prepared and wait for a command. Each serves one command and no second one;
//! they belong to the place for layers of one run, and end with it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::host::StepUser;
use crate::policy::Frame;
use crate::running::Running;

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
    sandbox: Running,
    since: Instant,
}

impl Pool {
    /// Takes the oldest one that is made for this frame; those that are of no use any more go.
    pub(crate) fn take(&self, frame: &Frame, user: StepUser) -> Option<Running> {
        let mut waiting = self.waiting();
        waiting.retain(|one| one.sandbox.is_prepared().is_some());
        let at = waiting.iter().position(|one| one.user == user && one.frame == *frame)?;
        Some(waiting.remove(at).sandbox)
    }

    /// Puts one in; the oldest goes where there is no room.
    pub(crate) fn put(&self, frame: Frame, user: StepUser, sandbox: Running) {
        let mut waiting = self.waiting();
        if waiting.len() >= MOST {
            waiting.remove(0);
        }
        waiting.push(Waiting { frame, user, sandbox, since: Instant::now() });
    }

    /// How many there are for this frame, being prepared or ready.
    pub(crate) fn count(&self, frame: &Frame, user: StepUser) -> usize {
        self.waiting().iter().filter(|one| one.user == user && one.frame == *frame).count()
    }

    /// How many of all are ready for their command.
    pub(crate) fn ready(&self) -> usize {
        self.waiting().iter().filter(|one| one.sandbox.is_prepared() == Some(true)).count()
    }

    /// Lets those go that have waited for longer than `patience`.
    pub(crate) fn release(&self, patience: Duration) {
        // Their ends are waited for, and nobody else's: the lock goes first.
        let idle: Vec<Waiting> = self.waiting().extract_if(.., |one| one.since.elapsed() >= patience).collect();
        drop(idle);
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

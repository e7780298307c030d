//! Keeps run spaces with a prepared sandbox for single commands. A run space belongs to one caller and one
//! repository, and each of its sandboxes serves one command.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proctor_sandbox::{RunSpace, RunSpaceConfig};
use tokio::time::Instant;

/// Maximum number of run spaces that are kept for one caller.
const MOST_PER_CALLER: usize = 4;
/// Maximum number of run spaces that are kept for all callers.
const MOST: usize = 16;
/// Time after which an unused run space is released: each one holds processes, namespaces and a control group.
const PATIENCE: Duration = Duration::from_secs(60);

/// The run spaces that are kept.
#[derive(Debug, Clone, Default)]
pub(super) struct WarmPlaces(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    /// The entries, most recently used last.
    places: Vec<(Owner, RunSpace, Instant)>,
    is_watched: bool,
}

/// The caller of a run space, and the settings that it was made for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    /// Required owner of this caller's repositories; `None` is root.
    pub(super) caller: Option<u32>,
    /// Canonical path of the repository.
    pub(super) repo: PathBuf,
    /// The settings of the run space.
    pub(super) config: RunSpaceConfig,
}

impl WarmPlaces {
    /// Takes a run space out of the pool, so that no other command can use it.
    pub(super) fn take(&self, owner: &Owner) -> Option<RunSpace> {
        let mut kept = self.kept();
        let at = kept.places.iter().rposition(|(of, ..)| of == owner)?;
        Some(kept.places.remove(at).1)
    }

    /// Keeps a run space for the next command, and releases the least recently used ones beyond the maximum. Blocks
    /// until their sandboxes have ended.
    pub(super) fn keep(&self, owner: Owner, space: RunSpace) {
        let gone = self.kept().keep(owner, space, Instant::now());
        drop(gone);
    }

    /// Starts a task that releases run spaces that are unused for [`PATIENCE`]. Call this after
    /// [`keep`](Self::keep).
    pub(super) fn watch(&self) {
        if !std::mem::replace(&mut self.kept().is_watched, true) {
            tokio::spawn(self.clone().release_in_time());
        }
    }

    /// Releases idle run spaces until none is left.
    async fn release_in_time(self) {
        loop {
            let Some(until) = self.kept().next_release() else { return };
            tokio::time::sleep_until(until).await;
            let idle = self.kept().idle(Instant::now());
            // Wait until their sandboxes have ended.
            let _ = tokio::task::spawn_blocking(move || drop(idle)).await;
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// Adds a run space, and returns the ones beyond the maximum.
    fn keep(&mut self, owner: Owner, space: RunSpace, now: Instant) -> Vec<RunSpace> {
        let caller = owner.caller;
        self.places.push((owner, space, now));
        let mut gone = Vec::new();
        let own = self.places.iter().filter(|(of, ..)| of.caller == caller).count();
        let first_of = |caller: Option<u32>| move |(of, ..): &(Owner, RunSpace, Instant)| of.caller == caller;
        if own > MOST_PER_CALLER
            && let Some(at) = self.places.iter().position(first_of(caller))
        {
            gone.push(self.places.remove(at).1);
        }
        if self.places.len() > MOST {
            gone.push(self.places.remove(0).1);
        }
        gone
    }

    fn idle(&mut self, now: Instant) -> Vec<RunSpace> {
        let idle = self.places.extract_if(.., |(.., since)| now.duration_since(*since) >= PATIENCE);
        idle.map(|(_, space, _)| space).collect()
    }

    /// Returns the time of the next release; `None` if there are no run spaces, which ends the task.
    fn next_release(&mut self) -> Option<Instant> {
        let first = self.places.iter().map(|(.., since)| *since + PATIENCE).min();
        self.is_watched = first.is_some();
        first
    }
}

//! Places for layers with a prepared sandbox in each, kept for commands by themselves. A place belongs to one caller and
//! one repository, and each of its sandboxes serves one command.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proctor_sandbox::{RunSpace, RunSpaceConfig};
use tokio::time::Instant;

/// How many places are kept for one caller.
const MOST_PER_CALLER: usize = 4;
/// How many are kept for all callers.
const MOST: usize = 16;
/// How long a place is kept that nobody asks for: each holds processes, namespaces and a control group.
const PATIENCE: Duration = Duration::from_secs(60);

/// The places that are kept.
#[derive(Debug, Clone, Default)]
pub(super) struct WarmPlaces(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    /// The one that was used last comes last.
    places: Vec<(Owner, RunSpace, Instant)>,
    is_watched: bool,
}

/// Whose place it is, and what it was made for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    /// Whose a repository must be for this caller; `None` is root.
    pub(super) caller: Option<u32>,
    /// The repository, canonical.
    pub(super) repo: PathBuf,
    /// The bounds of the place.
    pub(super) config: RunSpaceConfig,
}

impl WarmPlaces {
    /// Takes a place out: nobody else gets it meanwhile.
    pub(super) fn take(&self, owner: &Owner) -> Option<RunSpace> {
        let mut kept = self.kept();
        let at = kept.places.iter().rposition(|(of, ..)| of == owner)?;
        Some(kept.places.remove(at).1)
    }

    /// Keeps a place for the next command. The ones that were used longest ago go where there are too many. Blocks
    /// until their sandboxes have ended.
    pub(super) fn keep(&self, owner: Owner, space: RunSpace) {
        let gone = self.kept().keep(owner, space, Instant::now());
        drop(gone);
    }

    /// Has places go that nobody has asked for during [`PATIENCE`]. To be called behind [`keep`](Self::keep).
    pub(super) fn watch(&self) {
        if !std::mem::replace(&mut self.kept().is_watched, true) {
            tokio::spawn(self.clone().release_in_time());
        }
    }

    /// Ends when there is no place left.
    async fn release_in_time(self) {
        loop {
            let Some(until) = self.kept().next_release() else { return };
            tokio::time::sleep_until(until).await;
            let idle = self.kept().idle(Instant::now());
            // The end of their sandboxes is waited for.
            let _ = tokio::task::spawn_blocking(move || drop(idle)).await;
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// Returns what there is no room for.
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

    /// When the next place goes; `None` where there is none, and nobody watches from then on.
    fn next_release(&mut self) -> Option<Instant> {
        let first = self.places.iter().map(|(.., since)| *since + PATIENCE).min();
        self.is_watched = first.is_some();
        first
    }
}

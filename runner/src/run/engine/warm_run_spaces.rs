//! Keeps run spaces with a prepared sandbox for single commands. A run space belongs to one caller and one
//! repository, and each of its sandboxes serves one command.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proctor_sandbox::{RunSpace, RunSpaceConfig};
use tokio::time::Instant;

/// Maximum number of run spaces that are kept for one caller.
const MAX_PER_CALLER: usize = 4;
/// Maximum number of run spaces that are kept for all callers.
const MAX_TOTAL: usize = 16;
/// Time after which an unused run space is released: each one holds processes, namespaces and a control group.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// The run spaces that are kept.
#[derive(Debug, Clone, Default)]
pub(super) struct WarmRunSpaces(Arc<Mutex<WarmEntries>>);

#[derive(Debug, Default)]
struct WarmEntries {
    /// The entries, most recently used last.
    entries: Vec<(WarmSpaceKey, RunSpace, Instant)>,
    has_release_task: bool,
}

/// The caller of a run space, and the settings that it was made for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WarmSpaceKey {
    /// Required owner of this caller's repositories; `None` is root.
    pub(super) caller: Option<u32>,
    /// Canonical path of the repository.
    pub(super) repo: PathBuf,
    /// The settings of the run space.
    pub(super) config: RunSpaceConfig,
}

impl WarmRunSpaces {
    /// Takes a run space out of the pool, so that no other command can use it.
    pub(super) fn take(&self, owner: &WarmSpaceKey) -> Option<RunSpace> {
        let mut kept = self.lock();
        let at = kept.entries.iter().rposition(|(of, ..)| of == owner)?;
        Some(kept.entries.remove(at).1)
    }

    /// Keeps a run space for the next command, and releases the least recently used ones beyond the maximum. Blocks
    /// until their sandboxes have ended.
    pub(super) fn keep(&self, owner: WarmSpaceKey, space: RunSpace) {
        let gone = self.lock().keep(owner, space, Instant::now());
        drop(gone);
    }

    /// Starts a task that releases run spaces that are unused for [`IDLE_TIMEOUT`]. Call this after
    /// [`keep`](Self::keep).
    pub(super) fn start_release_task(&self) {
        if !std::mem::replace(&mut self.lock().has_release_task, true) {
            tokio::spawn(self.clone().release_idle());
        }
    }

    /// Releases idle run spaces until none is left.
    async fn release_idle(self) {
        loop {
            let Some(until) = self.lock().next_release() else { return };
            tokio::time::sleep_until(until).await;
            let idle = self.lock().take_idle(Instant::now());
            // Wait until their sandboxes have ended.
            let _ = tokio::task::spawn_blocking(move || drop(idle)).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, WarmEntries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WarmEntries {
    /// Adds a run space, and returns the ones beyond the maximum.
    fn keep(&mut self, owner: WarmSpaceKey, space: RunSpace, now: Instant) -> Vec<RunSpace> {
        let caller = owner.caller;
        self.entries.push((owner, space, now));
        let mut gone = Vec::new();
        let own = self.entries.iter().filter(|(of, ..)| of.caller == caller).count();
        let first_of = |caller: Option<u32>| move |(of, ..): &(WarmSpaceKey, RunSpace, Instant)| of.caller == caller;
        if own > MAX_PER_CALLER
            && let Some(at) = self.entries.iter().position(first_of(caller))
        {
            gone.push(self.entries.remove(at).1);
        }
        if self.entries.len() > MAX_TOTAL {
            gone.push(self.entries.remove(0).1);
        }
        gone
    }

    fn take_idle(&mut self, now: Instant) -> Vec<RunSpace> {
        let idle = self.entries.extract_if(.., |(.., since)| now.duration_since(*since) >= IDLE_TIMEOUT);
        idle.map(|(_, space, _)| space).collect()
    }

    /// Returns the time of the next release; `None` if there are no run spaces, which ends the task.
    fn next_release(&mut self) -> Option<Instant> {
        let first = self.entries.iter().map(|(.., since)| *since + IDLE_TIMEOUT).min();
        self.has_release_task = first.is_some();
        first
    }
}

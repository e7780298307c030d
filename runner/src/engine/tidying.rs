//! Keeps the state directory bounded. No run depends on it.

use std::sync::atomic::Ordering;
use std::time::SystemTime;

use proctor_core::gc::Collected;

use super::Engine;
use crate::store::garbage::{self, Extent};
use crate::store::{caches, retention};

/// After how many runs the state directory is looked through again: it takes longer the more is kept.
const RUNS_UNTIDIED: usize = 32;

impl Engine {
    /// Keeps the state directory bounded, after the first run and every [`RUNS_UNTIDIED`]. A run does
    /// not depend on it. Checkouts and caches are looked through after a run that used or filled some, as of `now`.
    pub(super) async fn tidy(&self, now: Option<SystemTime>) {
        let is_due = self.runs.fetch_add(1, Ordering::Relaxed).is_multiple_of(RUNS_UNTIDIED);
        if !is_due && now.is_none() {
            return;
        }
        let (state, clock) = (self.state_path.clone(), self.clock);
        let retention = &self.config.operator.daemon.retention;
        let (bounds, kept) = (retention::Bounds::from(retention), retention.caches);
        let work = tokio::task::spawn_blocking(move || {
            let mut collected = Collected::default();
            if let Some(now) = now {
                garbage::copies(&state, &kept, Extent::Excess, now, &mut collected)?;
            }
            if !is_due {
                return Ok(());
            }
            let (now, keep) = (clock.system_time(), (&kept, Extent::Excess));
            caches::eviction::evict(&state, keep, now, &mut collected.caches).map_err(std::io::Error::other)?;
            retention::tidy(&state, bounds, now, &mut collected)
        });
        match work.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the state directory could not be tidied"),
            Err(error) => tracing::error!(%error, "tidying ended badly"),
        }
    }
}

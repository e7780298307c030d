//! Limits the size of the state directory. No run depends on it.

use std::sync::atomic::Ordering;
use std::time::SystemTime;

use proctor_core::decision::gc::Collected;

use super::Engine;
use crate::store::garbage_collection;
use crate::store::gc_extent::GcExtent;
use crate::store::{caches, retention};

/// Number of runs between two clean-ups of the state directory, which take longer the more it contains.
const RUNS_BETWEEN_CLEANUPS: usize = 32;

impl Engine {
    /// Cleans up the state directory after the first run, and then after every [`RUNS_BETWEEN_CLEANUPS`] runs. If `now`
    /// is given, because the run used a private copy or committed caches, copies and caches are cleaned up as of `now`
    /// in any case.
    pub(super) async fn clean_up(&self, now: Option<SystemTime>) {
        let is_due = self.run_count.fetch_add(1, Ordering::Relaxed).is_multiple_of(RUNS_BETWEEN_CLEANUPS);
        if !is_due && now.is_none() {
            return;
        }
        let (state, clock) = (self.state_path.clone(), self.clock);
        let retention = &self.config.operator.daemon.retention;
        let (bounds, kept) = (retention::RetentionBounds::from(retention), retention.clone());
        let work = tokio::task::spawn_blocking(move || {
            let mut collected = Collected::default();
            if let Some(now) = now {
                garbage_collection::collect_copies_and_caches(&state, &kept, GcExtent::Excess, now, &mut collected)?;
            }
            if !is_due {
                return Ok(());
            }
            let (now, keep) = (clock.system_time(), (&kept.caches, GcExtent::Excess));
            caches::eviction::evict(&state, keep, now, &mut collected.caches).map_err(std::io::Error::other)?;
            retention::apply_retention(&state, bounds, now, &mut collected)
        });
        match work.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the state directory could not be cleaned up"),
            Err(error) => tracing::error!(%error, "cleaning up the state directory failed unexpectedly"),
        }
    }
}

//! Limits the size of the state directory. No run depends on it.

use std::time::{Duration, SystemTime};

use proctor_core::decision::gc::FreedItems;
use rustix::fs::Mode;

use super::Engine;
use crate::run::run_context::RunContext;
use crate::step::reuse::StepReuse;
use crate::store::directory::Directory;
use crate::store::gc_extent::GcExtent;
use crate::store::{StoreError, caches, garbage_collection};

/// Minimum time between two clean-ups of the whole state directory by runs. A clean-up takes longer the more the directory
/// contains.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(10 * 60);
/// The file whose time of modification is that of the last clean-up, in the state directory.
const MARKER_FILE: &str = "cleaned";

impl Engine {
    /// Cleans up the state directory after a run: applies the bounds of copies, results and caches as far as the run added
    /// some. Applies all bounds if no run has done so for [`CLEANUP_INTERVAL`].
    pub(super) async fn clean_up(&self, context: &RunContext) {
        let has_grown_copy = context.tree.private_copy.as_ref().is_some_and(|copy| copy.has_grown);
        let has_new_results = context.reuse.as_ref().is_some_and(StepReuse::has_stored);
        let has_new_caches = context.caches.any_committed();
        let (root, state, now) = (self.state.clone(), self.state_path.clone(), self.clock.system_time());
        let has_grown = has_grown_copy || has_new_results || has_new_caches;
        // The check is one system call, and handing it over to another thread would take longer.
        if !has_grown && matches!(is_due(&root, now), Ok(false)) {
            return;
        }
        let kept = self.config.operator.daemon.retention.clone();
        let work = tokio::task::spawn_blocking(move || {
            let extent = GcExtent::Excess;
            if is_due(&root, now)? {
                // Must come first, so that another process does not do the same now.
                mark_cleaned(&root)?;
                return garbage_collection::collect_as_of(&state, &kept, extent, now).map(drop);
            }
            let freed = &mut FreedItems::default();
            if has_grown_copy {
                garbage_collection::evict_copies(&state, &kept, (now, extent), freed)?;
            }
            if has_new_results {
                garbage_collection::evict_results(&state, &kept, (now, extent), freed)?;
            }
            if has_new_caches {
                caches::eviction::evict(&state, (&kept.caches, extent), now, freed)?;
            }
            Ok::<(), StoreError>(())
        });
        match work.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the state directory could not be cleaned up"),
            Err(error) => tracing::error!(%error, "cleaning up the state directory failed unexpectedly"),
        }
    }
}

/// Returns whether the last clean-up was too long ago, or in the future, as after a change of the clock.
fn is_due(state: &Directory, now: SystemTime) -> Result<bool, StoreError> {
    let Some((seconds, _)) = state.modified_at(MARKER_FILE)? else { return Ok(true) };
    let last = u64::try_from(seconds).ok().map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
    let age = last.and_then(|last| now.duration_since(last).ok());
    Ok(age.is_none_or(|age| age > CLEANUP_INTERVAL))
}

/// Records that a clean-up takes place now, in a file that other users cannot read.
fn mark_cleaned(state: &Directory) -> Result<(), StoreError> {
    let temporary = state.create_temporary(MARKER_FILE)?;
    let set_mode = rustix::fs::fchmod(&temporary.file, Mode::RUSR | Mode::WUSR);
    set_mode.map_err(StoreError::io("write", format!("{}/{MARKER_FILE}", state.name())))?;
    temporary.publish(MARKER_FILE)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn clean_up_is_due_without_a_recent_one() {
        let temp = tempfile::tempdir().expect("a directory");
        let state = Directory::open(temp.path()).expect("opens");
        let now = crate::clock::Clock::system().system_time();
        let is_due_at = |time| is_due(&state, time).expect("reads");
        assert!(is_due_at(now), "there was none");
        mark_cleaned(&state).expect("writes");
        let marker = std::fs::metadata(temp.path().join(MARKER_FILE)).expect("a file");
        assert_eq!(marker.permissions().mode() & 0o777, 0o600);
        let second = Duration::from_secs(2);
        assert!(!is_due_at(now + second));
        assert!(is_due_at(now + CLEANUP_INTERVAL + second));
        assert!(is_due_at(now - second), "the clock was set back");
    }
}

//! Limits the state directory, or removes everything from it that can be made again.
//!
//! Each kind of file has its own locks: files that a run holds are kept, and a run that starts during the clean-up
//! finds complete copies and caches only.

use std::io;
use std::path::Path;
use std::time::SystemTime;

use proctor_core::decision::gc::{FreedItems, RemovedItems};
use proctor_core::spec::Retention;

use super::freed_bytes::remove_dir_counted;
use super::gc_extent::GcExtent;
use super::private_copies::{self, MIRRORS_DIR};
use super::{SNAPSHOTS_DIR, StoreError, caches, results, retention};
use crate::clock::Clock;

/// Directory of the trees of commits in an earlier version.
const OLD_CHECKOUTS: &str = "checkouts";

/// Removes from the state directory what a run would remove or, with [`GcExtent::All`], also each private copy and
/// cache that no run holds.
///
/// # Errors
/// `state` is not a state directory, or a directory in it cannot be read or written.
pub fn collect(state: &Path, keep: &Retention, extent: GcExtent) -> Result<RemovedItems, StoreError> {
    if !state.join(SNAPSHOTS_DIR).is_dir() {
        return Err(StoreError::NotState { path: state.display().to_string() });
    }
    collect_as_of(state, keep, extent, Clock::system().system_time())
}

/// Does the same for a state directory that is known to be one, as of `now`.
///
/// # Errors
/// A directory in it cannot be read or written.
pub(crate) fn collect_as_of(
    state: &Path,
    keep: &Retention,
    extent: GcExtent,
    now: SystemTime,
) -> Result<RemovedItems, StoreError> {
    let mut collected = RemovedItems::default();
    collect_copies_and_caches(state, keep, extent, now, &mut collected)?;
    retention::apply_retention(state, retention::RetentionBounds::from(keep), now, &mut collected)
        .map_err(|error| cleanup_error(state, error))?;
    Ok(collected)
}

/// Removes private copies and caches.
///
/// # Errors
/// A directory in the state directory cannot be read.
fn collect_copies_and_caches(
    state: &Path,
    keep: &Retention,
    extent: GcExtent,
    now: SystemTime,
    collected: &mut RemovedItems,
) -> Result<(), StoreError> {
    remove_dir_counted(&mut collected.other, &state.join(OLD_CHECKOUTS));
    evict_results(state, keep, (now, extent), &mut collected.other)?;
    evict_copies(state, keep, (now, extent), &mut collected.copies)?;
    caches::eviction::evict(state, (&keep.caches, extent), now, &mut collected.caches)
}

/// Removes stored results beyond their bounds.
///
/// # Errors
/// A directory in the state directory cannot be read.
pub(crate) fn evict_results(
    state: &Path,
    keep: &Retention,
    (now, extent): (SystemTime, GcExtent),
    freed: &mut FreedItems,
) -> Result<(), StoreError> {
    results::evict(state, now, (keep.max_result_bytes, extent), freed).map_err(|error| cleanup_error(state, error))
}

/// Removes private copies beyond their bounds.
///
/// # Errors
/// A directory in the state directory cannot be read.
pub(crate) fn evict_copies(
    state: &Path,
    keep: &Retention,
    (now, extent): (SystemTime, GcExtent),
    freed: &mut FreedItems,
) -> Result<(), StoreError> {
    private_copies::copy_maintenance::evict(&state.join(MIRRORS_DIR), now, (keep.max_copy_bytes, extent), freed)
        .map_err(|error| cleanup_error(state, error))
}

fn cleanup_error(state: &Path, source: io::Error) -> StoreError {
    StoreError::Io { action: "clean up", path: state.display().to_string(), source }
}

#[cfg(test)]
mod tests {
    use proctor_core::spec::DaemonSettings;

    use super::*;

    #[test]
    fn removes_nothing_from_a_directory_that_no_run_has_used() {
        let directory = tempfile::tempdir().expect("temp");
        let file = directory.path().join("caches/mine");
        std::fs::create_dir_all(&file).expect("makes");
        let keep = DaemonSettings::default().retention;
        let refused = collect(directory.path(), &keep, GcExtent::All);
        assert!(matches!(refused, Err(StoreError::NotState { .. })), "{refused:?}");
        assert!(file.exists());
        std::fs::create_dir(directory.path().join(SNAPSHOTS_DIR)).expect("makes");
        let collected = collect(directory.path(), &keep, GcExtent::All).expect("collects");
        assert_eq!(collected.other.number, 1);
    }
}

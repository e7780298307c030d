//! Limits the state directory, or removes everything from it that can be made again.
//!
//! Each kind of file has its own locks: files that a run holds are kept, and a run that starts during the clean-up
//! finds complete copies and caches only.

use std::io;
use std::path::Path;
use std::time::SystemTime;

use proctor_core::gc::Collected;
use proctor_core::spec::{CacheRetention, Retention};

use super::freed::remove_counted;
use super::mirrors::{self, MIRRORS};
use super::{SNAPSHOTS, StoreError, caches, retention};
use crate::clock::Clock;

/// Directory of the trees of commits in an earlier version.
const OLD_CHECKOUTS: &str = "checkouts";

/// The copies and caches to remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Those beyond the limits.
    Excess,
    /// All that no run holds.
    All,
}

/// Removes from the state directory what a run would remove or, with [`Extent::All`], also each private copy and
/// cache that no run holds.
///
/// # Errors
/// `state` is not a state directory, or a directory in it cannot be read or written.
pub fn collect(state: &Path, keep: &Retention, extent: Extent) -> Result<Collected, StoreError> {
    if !state.join(SNAPSHOTS).is_dir() {
        return Err(StoreError::NotState { path: state.display().to_string() });
    }
    let now = Clock::system().system_time();
    let mut collected = Collected::default();
    copies(state, &keep.caches, extent, now, &mut collected).map_err(|error| failed(state, error))?;
    retention::tidy(state, retention::Bounds::from(keep), now, &mut collected).map_err(|error| failed(state, error))?;
    Ok(collected)
}

/// Removes private copies and caches.
///
/// # Errors
/// A directory in the state directory cannot be read.
pub(crate) fn copies(
    state: &Path,
    keep: &CacheRetention,
    extent: Extent,
    now: SystemTime,
    collected: &mut Collected,
) -> io::Result<()> {
    remove_counted(&mut collected.other, &state.join(OLD_CHECKOUTS));
    mirrors::upkeep::evict(&state.join(MIRRORS), now, extent, &mut collected.copies)?;
    caches::eviction::evict(state, (keep, extent), now, &mut collected.caches).map_err(io::Error::other)
}

fn failed(state: &Path, source: io::Error) -> StoreError {
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
        let refused = collect(directory.path(), &keep, Extent::All);
        assert!(matches!(refused, Err(StoreError::NotState { .. })), "{refused:?}");
        assert!(file.exists());
        std::fs::create_dir(directory.path().join(SNAPSHOTS)).expect("makes");
        let collected = collect(directory.path(), &keep, Extent::All).expect("collects");
        assert_eq!(collected.other.number, 1);
    }
}

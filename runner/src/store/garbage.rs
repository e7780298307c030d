//! Keeps the state directory bounded, or empties it of what can be made anew.
//!
//! Each kind of file has its own locks: what a run holds stays, and a run that starts meanwhile finds a whole copy,
//! or cache, or none.

use std::io;
use std::path::Path;
use std::time::SystemTime;

use proctor_core::gc::Collected;
use proctor_core::spec::{CacheRetention, Retention};

use super::freed::remove_counted;
use super::mirrors::{self, MIRRORS};
use super::{SNAPSHOTS, StoreError, caches, retention};
use crate::clock::Clock;

/// Where an earlier version kept the trees of commits.
const OLD_CHECKOUTS: &str = "checkouts";

/// Which copies and caches are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Those beyond the bounds.
    Excess,
    /// All that no run holds.
    All,
}

/// Removes what a run would remove from the state directory, or also each private copy and cache that no run
/// holds.
///
/// # Errors
/// It is no state directory, or a directory in it cannot be read or written.
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
/// A directory of ours cannot be read.
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

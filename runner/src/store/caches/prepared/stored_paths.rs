//! Lists and removes stored paths for the clean-up.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use rustix::fs::{self, FlockOperation};

use super::{ENTRY_FILE, MAX_ENTRY_FILE, PREPARED_DIR, PathRecord, lock_entry, removed_name};
use crate::store::StoreError;
use crate::store::caches::CacheStore;

/// A stored path, for the clean-up.
pub(in super::super) struct StoredPath {
    pub(in super::super) name: String,
    pub(in super::super) repository: String,
    pub(in super::super) last_used: SystemTime,
    pub(in super::super) bytes: u64,
}

/// Lists the stored paths. A malformed entry counts as unused since 1970.
pub(in super::super) fn stored_paths(store: &CacheStore) -> Result<Vec<StoredPath>, StoreError> {
    let prepared = store.prepared()?;
    let mut stored = Vec::new();
    for name in prepared.names()?.into_iter().filter(|name| is_entry_name(name)) {
        let Ok(entry) = prepared.descend(&name) else { continue };
        let record = entry.read(ENTRY_FILE, MAX_ENTRY_FILE).ok().flatten().and_then(|bytes| PathRecord::parse(&bytes));
        let written = entry.modified_at(ENTRY_FILE)?.and_then(|(seconds, _)| u64::try_from(seconds).ok()).unwrap_or(0);
        let (repository, bytes) = record.map(|record| (record.scope.repository, record.disk_bytes)).unwrap_or_default();
        let last_used = SystemTime::UNIX_EPOCH + Duration::from_secs(written);
        stored.push(StoredPath { name, repository, last_used, bytes });
    }
    Ok(stored)
}

/// Returns whether a run uses a stored path.
pub(in super::super) fn is_path_in_use(store: &CacheStore, name: &str) -> bool {
    let Ok(prepared) = store.prepared() else { return false };
    matches!(lock_entry(&prepared, name, FlockOperation::NonBlockingLockExclusive), Ok(None))
}

/// Gives a stored path that no run uses another name, and calls `remove` with the directory, its path and this name.
/// Returns whether the path was removed.
pub(in super::super) fn remove_path(
    store: &CacheStore,
    name: &str,
    remove: impl FnOnce(&crate::store::directory::Directory, PathBuf, &str),
) -> Result<bool, StoreError> {
    let prepared = store.prepared()?;
    let Some((_, _lock)) = lock_entry(&prepared, name, FlockOperation::NonBlockingLockExclusive)? else {
        return Ok(false);
    };
    let removed = removed_name()?;
    fs::renameat(&prepared, name, &prepared, &removed).map_err(StoreError::io("remove", name.to_owned()))?;
    remove(&prepared, store.path.join(PREPARED_DIR), &removed);
    Ok(true)
}

/// Removes the remains of a removal that was killed.
pub(in super::super) fn remove_abandoned_paths(
    store: &CacheStore,
    mut remove: impl FnMut(&crate::store::directory::Directory, PathBuf, &str),
) -> Result<(), StoreError> {
    let prepared = store.prepared()?;
    for name in prepared.names()?.iter().filter(|name| !is_entry_name(name)) {
        remove(&prepared, store.path.join(PREPARED_DIR), name);
    }
    Ok(())
}

fn is_entry_name(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

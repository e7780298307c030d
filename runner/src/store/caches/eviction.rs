//! Limits the caches: removes those that are unused for too long, then the least recently used ones beyond a size.
//! A layer that no base names is removed once no run uses it. The same bounds apply to prepared paths.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, SystemTime};

use proctor_core::decision::gc::FreedItems;
use proctor_core::spec::CacheRetention;
use rustix::fs::{self, FlockOperation};

use super::cache_manifest::CacheManifest;
use super::prepared::{self, StoredPath};
use super::{
    BASE_FILE, CACHE_RUNS_DIR, CacheScope, CacheStore, LAYERS_DIR, MAX_FILE, SCOPE_FILE, SCOPES_DIR, SKILL_CACHES_DIR,
    cache_layer, remove_directory,
};
use crate::store::StoreError;
use crate::store::directory::Directory;
use crate::store::freed_bytes::remove_and_count;
use crate::store::gc_extent::GcExtent;

/// One stored cache or prepared path.
#[derive(Clone)]
struct StoredCache {
    key: StoreKey,
    repository: String,
    last_used: SystemTime,
    /// The layers, with their sizes in bytes.
    layers: BTreeMap<String, u64>,
}

/// The place of a stored cache or prepared path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum StoreKey {
    /// A scope with a base.
    Scope(String),
    /// A prepared path.
    Path(String),
}

/// Removes old and excess caches as of `now`, or all caches, and what killed runs left behind. Keeps everything
/// that a run uses.
///
/// # Errors
/// A directory in the state directory cannot be listed.
pub(crate) fn evict(
    state: &Path,
    (bounds, extent): (&CacheRetention, GcExtent),
    now: SystemTime,
    freed: &mut FreedItems,
) -> Result<(), StoreError> {
    let state_directory = Directory::open(state)?;
    match state_directory.descend(SKILL_CACHES_DIR) {
        Ok(_) => {}
        Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    }
    let store = CacheStore::open(&state_directory, state)?;
    remove_abandoned_runs(&store, freed)?;
    prepared::remove_abandoned_paths(&store, |parent, at, name| remove_measured((parent, &at), name, freed))?;
    let kept = stored_caches(&store)?;
    let keys = match extent {
        GcExtent::Excess => excess_keys(kept, bounds, now),
        GcExtent::All => {
            let (used, unused): (Vec<_>, Vec<_>) = kept.into_iter().partition(|cache| is_in_use(&store, cache));
            freed.in_use += used.len() as u64;
            unused.into_iter().map(|cache| cache.key).collect()
        }
    };
    for key in keys {
        match key {
            StoreKey::Scope(key) => remove_cache(&store, &key, freed),
            StoreKey::Path(name) => remove_prepared(&store, &name, freed),
        }
    }
    remove_unnamed_layers(&store, freed)
}

/// Returns whether a run holds a layer of a cache.
fn is_in_use(store: &CacheStore, cache: &StoredCache) -> bool {
    match &cache.key {
        StoreKey::Scope(_) => {
            cache.layers.keys().any(|id| layer_exists(store, id) && try_lock_layer(store, id).is_none())
        }
        StoreKey::Path(name) => prepared::is_path_in_use(store, name),
    }
}

fn layer_exists(store: &CacheStore, id: &str) -> bool {
    store.layer_path(id).symlink_metadata().is_ok()
}

/// Removes a directory of the store, and counts its bytes.
fn remove_measured(parent: (&Directory, &Path), name: &str, freed: &mut FreedItems) {
    let mut removed = FreedItems::default();
    remove_and_count(&mut removed, &parent.1.join(name), || remove_directory(parent.0, name));
    freed.add_bytes(removed.bytes);
}

/// Removes the directories of killed runs, whose locks the kernel has released.
fn remove_abandoned_runs(store: &CacheStore, freed: &mut FreedItems) -> Result<(), StoreError> {
    for name in store.runs.names()? {
        if store.runs.descend(&name).and_then(|run| run.try_lock()).unwrap_or(false) {
            remove_measured((&store.runs, &store.path.join(CACHE_RUNS_DIR)), &name, freed);
        }
    }
    Ok(())
}

/// Returns the size of the caches of each repository. A layer that several repositories share counts for each.
///
/// # Errors
/// A directory in the state directory cannot be listed.
pub(crate) fn bytes_by_repository(state: &Path) -> Result<BTreeMap<String, u64>, StoreError> {
    let directory = Directory::open(state)?;
    if let Err(StoreError::Io { source, .. }) = directory.descend(SKILL_CACHES_DIR)
        && source.kind() == io::ErrorKind::NotFound
    {
        return Ok(BTreeMap::new());
    }
    let mut layers: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    for cache in stored_caches(&CacheStore::open(&directory, state)?)? {
        layers.entry(cache.repository).or_default().extend(cache.layers);
    }
    Ok(layers.into_iter().map(|(repository, layers)| (repository, layers.values().sum())).collect())
}

fn stored_caches(store: &CacheStore) -> Result<Vec<StoredCache>, StoreError> {
    let keys = store.scopes.names()?;
    let paths = prepared::stored_paths(store)?.into_iter().map(StoredCache::from);
    Ok(keys.into_iter().filter_map(|key| read_cache(store, key).ok()).chain(paths).collect())
}

/// Reads a stored cache. An unreadable scope or base counts as unused since 1970 and without layers.
fn read_cache(store: &CacheStore, key: String) -> Result<StoredCache, StoreError> {
    let directory = store.scopes.descend(&key)?;
    let scope = directory.read(SCOPE_FILE, MAX_FILE).ok().flatten();
    let scope: Option<CacheScope> = scope.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let base = directory.read(BASE_FILE, MAX_FILE).ok().flatten().and_then(|bytes| CacheManifest::parse(&bytes));
    let layers = base.map(|base| base.layers).unwrap_or_default();
    let written = directory.modified_at(SCOPE_FILE)?.and_then(|(seconds, _)| u64::try_from(seconds).ok()).unwrap_or(0);
    Ok(StoredCache {
        key: StoreKey::Scope(key),
        repository: scope.map(|scope| scope.repository).unwrap_or_default(),
        last_used: SystemTime::UNIX_EPOCH + Duration::from_secs(written),
        layers: layers.into_iter().map(|layer| (layer.id, layer.bytes)).collect(),
    })
}

/// Returns the keys of the caches to remove. A layer that several caches share counts once, for the most recently
/// used one.
fn excess_keys(mut kept: Vec<StoredCache>, bounds: &CacheRetention, now: SystemTime) -> Vec<StoreKey> {
    kept.sort_by(|a, b| (b.last_used, &a.key).cmp(&(a.last_used, &b.key)));
    let (mut counted, mut all) = (BTreeSet::new(), 0u64);
    let mut of_repository: BTreeMap<String, u64> = BTreeMap::new();
    let mut keys = Vec::new();
    for one in kept {
        let new = one.layers.iter().filter(|(id, _)| counted.insert((*id).clone()));
        let bytes: u64 = new.map(|(_, bytes)| bytes).sum();
        let own = of_repository.entry(one.repository).or_default();
        all = all.saturating_add(bytes);
        *own = own.saturating_add(bytes);
        let is_old = now.duration_since(one.last_used).unwrap_or_default() > bounds.max_unused;
        if is_old || all > bounds.max_bytes || *own > bounds.max_bytes_per_repository {
            keys.push(one.key);
        }
    }
    keys
}

/// Removes the base of a scope, unless a run is committing to it.
fn remove_cache(store: &CacheStore, key: &str, freed: &mut FreedItems) {
    let Ok(directory) = store.scopes.descend(key) else { return };
    if !directory.try_lock().unwrap_or(false) {
        freed.in_use += 1;
        return;
    }
    // The base goes first, so that no run finds a base whose scope is half removed.
    let removed = directory.remove(BASE_FILE);
    match removed {
        Ok(()) => {
            freed.number += 1;
            remove_measured((&store.scopes, &store.path.join(SCOPES_DIR)), key, freed);
        }
        Err(error) => tracing::debug!(%error, key, "a cache could not be removed"),
    }
}

/// Removes a prepared path, unless a run uses it.
fn remove_prepared(store: &CacheStore, name: &str, freed: &mut FreedItems) {
    let removed = prepared::remove_path(store, name, |parent, at, name| remove_measured((parent, &at), name, freed));
    match removed {
        Ok(true) => freed.number += 1,
        Ok(false) => freed.in_use += 1,
        Err(error) => tracing::debug!(%error, name, "a prepared path could not be removed"),
    }
}

impl From<StoredPath> for StoredCache {
    fn from(path: StoredPath) -> Self {
        let StoredPath { name, repository, last_used, bytes } = path;
        // A prepared path shares its content with no other one.
        let layers = BTreeMap::from([(format!("path {name}"), bytes)]);
        Self { key: StoreKey::Path(name), repository, last_used, layers }
    }
}

/// Removes the layers that no manifest names. A run locks the layers of a base before it uses them, and its own
/// layer before it commits it. If this function holds a layer's lock and no manifest names the layer afterwards, no
/// run uses it.
fn remove_unnamed_layers(store: &CacheStore, freed: &mut FreedItems) -> Result<(), StoreError> {
    let named = named_layers(store)?;
    let unnamed = store.layers.names()?.into_iter().filter(|id| !named.contains(id));
    let held: Vec<(String, OwnedFd)> =
        unnamed.filter_map(|id| Some((id.clone(), try_lock_layer(store, &id)?))).collect();
    if held.is_empty() {
        return Ok(());
    }
    let named = self::named_layers(store)?;
    for (id, _lock) in held.iter().filter(|(id, _)| !named.contains(id)) {
        remove_measured((&store.layers, &store.path.join(LAYERS_DIR)), id, freed);
    }
    Ok(())
}

fn named_layers(store: &CacheStore) -> Result<BTreeSet<String>, StoreError> {
    Ok(stored_caches(store)?.into_iter().flat_map(|one| one.layers.into_keys()).collect())
}

fn try_lock_layer(store: &CacheStore, id: &str) -> Option<OwnedFd> {
    let name = CString::new(id).ok()?;
    let layer = cache_layer::open_dir(store.layers.as_fd(), &name).ok()?;
    fs::flock(&layer, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(layer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds() -> CacheRetention {
        CacheRetention {
            max_bytes: 100,
            max_bytes_per_repository: 50,
            max_bytes_per_run: 10,
            max_unused: Duration::from_secs(1_000),
        }
    }

    fn stored_cache(key: &str, repository: &str, used: u64, layers: &[(&str, u64)]) -> StoredCache {
        StoredCache {
            key: StoreKey::Scope(key.to_owned()),
            repository: repository.to_owned(),
            last_used: SystemTime::UNIX_EPOCH + Duration::from_secs(used),
            layers: layers.iter().map(|(id, bytes)| ((*id).to_owned(), *bytes)).collect(),
        }
    }

    fn removed_keys(kept: Vec<StoredCache>) -> Vec<String> {
        let keys = excess_keys(kept, &bounds(), SystemTime::UNIX_EPOCH + Duration::from_secs(2_000));
        let text = |key| match key {
            StoreKey::Scope(key) | StoreKey::Path(key) => key,
        };
        let mut keys: Vec<String> = keys.into_iter().map(text).collect();
        keys.sort();
        keys
    }

    #[test]
    fn removes_least_recently_used_beyond_each_bound() {
        let fits = || vec![stored_cache("a", "r", 1_900, &[("1", 30)]), stored_cache("b", "s", 1_800, &[("2", 40)])];
        assert_eq!(removed_keys(fits()), Vec::<String>::new());
        let unused = [fits(), vec![stored_cache("c", "t", 999, &[("3", 1)])]].concat();
        assert_eq!(removed_keys(unused), ["c"]);
        let same = [fits(), vec![stored_cache("c", "r", 1_700, &[("3", 25)])]].concat();
        assert_eq!(removed_keys(same), ["c"], "more than one repository may have");
        let much = [fits(), vec![stored_cache("c", "t", 1_850, &[("3", 35)])]].concat();
        assert_eq!(removed_keys(much), ["b"], "more than all may have");
    }

    #[test]
    fn counts_prepared_paths_with_the_caches() {
        let used = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let path = |name: &str, seconds, bytes| {
            StoredCache::from(StoredPath { name: name.into(), repository: "r".into(), last_used: used(seconds), bytes })
        };
        assert_eq!(removed_keys(vec![stored_cache("a", "r", 1_900, &[("1", 30)]), path("b", 1_800, 20)]), [""; 0]);
        assert_eq!(removed_keys(vec![stored_cache("a", "r", 1_900, &[("1", 30)]), path("b", 1_800, 21)]), ["b"]);
        assert_eq!(removed_keys(vec![path("old", 999, 1)]), ["old"]);
    }

    #[test]
    fn counts_a_shared_layer_once() {
        let shared =
            vec![stored_cache("a", "r", 1_900, &[("1", 45)]), stored_cache("b", "r", 1_800, &[("1", 45), ("2", 5)])];
        assert_eq!(removed_keys(shared), Vec::<String>::new());
    }
}

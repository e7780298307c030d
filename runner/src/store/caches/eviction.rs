//! Limits the caches: removes those that are unused for too long, then the least recently used ones beyond a size.
//! A layer that no base names is removed once no run uses it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, SystemTime};

use proctor_core::gc::Freed;
use proctor_core::spec::CacheRetention;
use rustix::fs::{self, FlockOperation};

use super::manifest::Manifest;
use super::{BASE, CacheStore, LAYERS, MAX_FILE, RUNS, SCOPE, SCOPES, SKILL_CACHES, Scope, layer, remove};
use crate::store::StoreError;
use crate::store::directory::Directory;
use crate::store::freed::counted;
use crate::store::garbage::Extent;

/// One stored cache.
#[derive(Clone)]
struct Kept {
    key: String,
    repository: String,
    used: SystemTime,
    /// The layers, with their sizes in bytes.
    layers: BTreeMap<String, u64>,
}

/// Removes old and excess caches as of `now`, or all caches, and what killed runs left behind. Keeps everything
/// that a run uses.
///
/// # Errors
/// A directory in the state directory cannot be listed.
pub(crate) fn evict(
    state: &Path,
    (bounds, extent): (&CacheRetention, Extent),
    now: SystemTime,
    freed: &mut Freed,
) -> Result<(), StoreError> {
    let state_directory = Directory::open(state)?;
    match state_directory.descend(SKILL_CACHES) {
        Ok(_) => {}
        Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    }
    let store = CacheStore::open(&state_directory, state)?;
    abandoned_runs(&store, freed)?;
    let kept = kept(&store)?;
    let goes = match extent {
        Extent::Excess => excess(kept, bounds, now),
        Extent::All => {
            let (used, unused): (Vec<_>, Vec<_>) = kept.into_iter().partition(|cache| is_used(&store, cache));
            freed.in_use += used.len() as u64;
            unused.into_iter().map(|cache| cache.key).collect()
        }
    };
    for key in goes {
        forget(&store, &key, freed);
    }
    unnamed_layers(&store, freed)
}

/// Returns whether a run holds a layer of a cache.
fn is_used(store: &CacheStore, cache: &Kept) -> bool {
    cache.layers.keys().any(|id| is_there(store, id) && hold(store, id).is_none())
}

fn is_there(store: &CacheStore, id: &str) -> bool {
    store.layer_path(id).symlink_metadata().is_ok()
}

/// Removes a directory of the store, and counts its bytes.
fn remove_measured(parent: (&Directory, &Path), name: &str, freed: &mut Freed) {
    let mut removed = Freed::default();
    counted(&mut removed, &parent.1.join(name), || remove(parent.0, name));
    freed.add_bytes(removed.bytes);
}

/// Removes the directories of killed runs, whose locks the kernel has released.
fn abandoned_runs(store: &CacheStore, freed: &mut Freed) -> Result<(), StoreError> {
    for name in store.runs.names()? {
        if store.runs.descend(&name).and_then(|run| run.try_lock()).unwrap_or(false) {
            remove_measured((&store.runs, &store.path.join(RUNS)), &name, freed);
        }
    }
    Ok(())
}

fn kept(store: &CacheStore) -> Result<Vec<Kept>, StoreError> {
    let keys = store.scopes.names()?;
    Ok(keys.into_iter().filter_map(|key| look(store, key).ok()).collect())
}

/// Reads a stored cache. An unreadable scope or base counts as unused since 1970 and without layers.
fn look(store: &CacheStore, key: String) -> Result<Kept, StoreError> {
    let directory = store.scopes.descend(&key)?;
    let scope = directory.read(SCOPE, MAX_FILE).ok().flatten();
    let scope: Option<Scope> = scope.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let base = directory.read(BASE, MAX_FILE).ok().flatten().and_then(|bytes| Manifest::parse(&bytes));
    let layers = base.map(|base| base.layers).unwrap_or_default();
    let written = directory.written(SCOPE)?.and_then(|(seconds, _)| u64::try_from(seconds).ok()).unwrap_or(0);
    Ok(Kept {
        key,
        repository: scope.map(|scope| scope.repository).unwrap_or_default(),
        used: SystemTime::UNIX_EPOCH + Duration::from_secs(written),
        layers: layers.into_iter().map(|layer| (layer.id, layer.bytes)).collect(),
    })
}

/// Returns the keys of the caches to remove. A layer that several caches share counts once, for the most recently
/// used one.
fn excess(mut kept: Vec<Kept>, bounds: &CacheRetention, now: SystemTime) -> Vec<String> {
    kept.sort_by(|a, b| (b.used, &a.key).cmp(&(a.used, &b.key)));
    let (mut counted, mut all) = (BTreeSet::new(), 0u64);
    let mut of_repository: BTreeMap<String, u64> = BTreeMap::new();
    let mut goes = Vec::new();
    for one in kept {
        let new = one.layers.iter().filter(|(id, _)| counted.insert((*id).clone()));
        let bytes: u64 = new.map(|(_, bytes)| bytes).sum();
        let own = of_repository.entry(one.repository).or_default();
        all = all.saturating_add(bytes);
        *own = own.saturating_add(bytes);
        let is_old = now.duration_since(one.used).unwrap_or_default() > bounds.max_unused;
        if is_old || all > bounds.max_bytes || *own > bounds.max_bytes_per_repository {
            goes.push(one.key);
        }
    }
    goes
}

/// Removes the base of a scope, unless a run is committing to it.
fn forget(store: &CacheStore, key: &str, freed: &mut Freed) {
    let Ok(directory) = store.scopes.descend(key) else { return };
    if !directory.try_lock().unwrap_or(false) {
        freed.in_use += 1;
        return;
    }
    // The base goes first, so that no run finds a base whose scope is half removed.
    let removed = directory.remove(BASE);
    match removed {
        Ok(()) => {
            freed.number += 1;
            remove_measured((&store.scopes, &store.path.join(SCOPES)), key, freed);
        }
        Err(error) => tracing::debug!(%error, key, "a cache stays"),
    }
}

/// Removes the layers that no manifest names. A run locks the layers of a base before it uses them, and its own
/// layer before it commits it. If this function holds a layer's lock and no manifest names the layer afterwards, no
/// run uses it.
fn unnamed_layers(store: &CacheStore, freed: &mut Freed) -> Result<(), StoreError> {
    let named = named(store)?;
    let unnamed = store.layers.names()?.into_iter().filter(|id| !named.contains(id));
    let held: Vec<(String, OwnedFd)> = unnamed.filter_map(|id| Some((id.clone(), hold(store, &id)?))).collect();
    if held.is_empty() {
        return Ok(());
    }
    let named = self::named(store)?;
    for (id, _lock) in held.iter().filter(|(id, _)| !named.contains(id)) {
        remove_measured((&store.layers, &store.path.join(LAYERS)), id, freed);
    }
    Ok(())
}

fn named(store: &CacheStore) -> Result<BTreeSet<String>, StoreError> {
    Ok(kept(store)?.into_iter().flat_map(|one| one.layers.into_keys()).collect())
}

fn hold(store: &CacheStore, id: &str) -> Option<OwnedFd> {
    let name = CString::new(id).ok()?;
    let layer = layer::open_dir(store.layers.as_fd(), &name).ok()?;
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

    fn one(key: &str, repository: &str, used: u64, layers: &[(&str, u64)]) -> Kept {
        Kept {
            key: key.to_owned(),
            repository: repository.to_owned(),
            used: SystemTime::UNIX_EPOCH + Duration::from_secs(used),
            layers: layers.iter().map(|(id, bytes)| ((*id).to_owned(), *bytes)).collect(),
        }
    }

    fn goes(kept: Vec<Kept>) -> Vec<String> {
        let mut keys = excess(kept, &bounds(), SystemTime::UNIX_EPOCH + Duration::from_secs(2_000));
        keys.sort();
        keys
    }

    #[test]
    fn removes_what_was_used_longest_ago_beyond_each_bound() {
        let fits = || vec![one("a", "r", 1_900, &[("1", 30)]), one("b", "s", 1_800, &[("2", 40)])];
        assert_eq!(goes(fits()), Vec::<String>::new());
        let unused = [fits(), vec![one("c", "t", 999, &[("3", 1)])]].concat();
        assert_eq!(goes(unused), ["c"]);
        let same = [fits(), vec![one("c", "r", 1_700, &[("3", 25)])]].concat();
        assert_eq!(goes(same), ["c"], "more than one repository may have");
        let much = [fits(), vec![one("c", "t", 1_850, &[("3", 35)])]].concat();
        assert_eq!(goes(much), ["b"], "more than all may have");
    }

    #[test]
    fn counts_a_shared_layer_once() {
        let shared = vec![one("a", "r", 1_900, &[("1", 45)]), one("b", "r", 1_800, &[("1", 45), ("2", 5)])];
        assert_eq!(goes(shared), Vec::<String>::new());
    }
}

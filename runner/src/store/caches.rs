//! Stores the caches of skills, in `skill-caches/` of the state directory: a base of immutable layers for each
//! scope, and a private directory for the writes of each run. docs/caches.md describes the bytes and the state
//! after a crash.
//!
//! ```text
//! scopes/<key>/        one cache of one skill; locked (exclusively) while a run commits to it
//!   scope.json         its scope; the modification time is the time of the last use
//!   base.json          the layers of its base, newest first; replaced atomically
//! layers/<id>/         a layer; locked (shared) by the runs that use it
//! runs/<id>/<n>/upper  the writes of a skill of a run; the run holds the lock (exclusive) of `runs/<id>`
//! prepared/<name>/     a path that skills need and that no commit contains: see `prepared.rs`
//! ```

mod cache_layer;
mod cache_manifest;
pub(crate) mod eviction;
mod merge;
pub(crate) mod prepared;
mod skill_cache_error;
#[cfg(test)]
mod tests;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use proctor_core::model::cache::{CacheBase, CacheTrust};
use proctor_core::text::digest::Sha256Hex;
use proctor_sandbox::CACHE_UPPER;
use rustix::fs::{self, FlockOperation, RenameFlags};
use rustix::io::Errno;

use super::StoreError;
use super::directory::{Directory, random_u64};
use cache_layer::LayerRules;
use cache_manifest::{CacheManifest, LayerRef};
use merge::{MergeMode, merge};

pub(crate) use cache_manifest::CacheScope;
pub(crate) use skill_cache_error::SkillCacheError;

/// Directory of all caches, in the state directory.
pub(crate) const SKILL_CACHES_DIR: &str = "skill-caches";
const SCOPES_DIR: &str = "scopes";
const LAYERS_DIR: &str = "layers";
const CACHE_RUNS_DIR: &str = "runs";
const SCOPE_FILE: &str = "scope.json";
const BASE_FILE: &str = "base.json";
/// Directory in which a stack of layers is merged, next to the writes of a skill.
const MERGED_DIR: &str = "merged";
/// Maximum size of `scope.json` and of `base.json`, in bytes.
const MAX_FILE: u64 = 64 << 10;
/// Maximum number of layers of a base. A commit that would exceed it merges them into one.
const MAX_LAYERS: usize = 8;
/// Maximum number of attempts to read a base while other runs replace it, or to create a run's directory.
const MAX_ATTEMPTS: u32 = 3;

/// The caches in a state directory.
#[derive(Debug, Clone)]
pub(crate) struct CacheStore {
    root: Directory,
    scopes: Directory,
    layers: Directory,
    runs: Directory,
    path: PathBuf,
}

/// A base in use: its layers cannot be removed until this is dropped.
#[derive(Debug)]
pub(crate) struct LockedBase {
    manifest: CacheManifest,
    id: Sha256Hex,
    scope: String,
    layers: Vec<OwnedFd>,
    paths: Vec<PathBuf>,
}

/// The initial content of a cache.
#[derive(Debug, Default)]
pub(crate) struct BaseLookup {
    /// The base; `None` if no base is usable.
    pub(crate) base: Option<LockedBase>,
    /// Id of the current base of the run's own scope, whether it is usable or not.
    own_base_id: Option<Sha256Hex>,
    /// The reason why a stored base was not used.
    pub(crate) reason: Option<String>,
}

/// Directory for the writes of one run's skills. Removed on drop.
#[derive(Debug)]
pub(crate) struct RunCacheDir {
    runs: Directory,
    directory: Directory,
    name: String,
    path: PathBuf,
}

/// The inputs of a commit.
pub(crate) struct CacheCommit<'a> {
    pub(crate) scope: &'a CacheScope,
    pub(crate) lookup: &'a BaseLookup,
    /// Directory of the writes, from [`RunCacheDir::create_write_dir`].
    pub(crate) write_dir: &'a Path,
    /// True if the writes are the upper directory of an overlay over the base; otherwise they are the whole cache.
    pub(crate) is_overlay: bool,
    /// User and group that own the layer afterwards, if the steps of each run have a separate user id.
    pub(crate) owner: Option<(u32, u32)>,
    /// Maximum size in bytes.
    pub(crate) max_bytes: u64,
}

/// The result of a commit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CommitOutcome {
    /// There is a new base, without the entries that were sockets, FIFOs or devices.
    New {
        /// Paths of the entries that were left out.
        left_out: Vec<String>,
    },
    /// There was nothing to commit.
    Unchanged,
    /// Another run has committed to the scope since the base was read, or is committing now.
    Stale,
}

impl LockedBase {
    /// Returns the base as it appears in the run's record.
    pub(crate) fn to_record(&self) -> CacheBase {
        CacheBase { id: self.id.clone(), scope: self.scope.clone() }
    }

    /// Returns the widest scope that a layer of the base comes from.
    pub(crate) fn trust(&self) -> CacheTrust {
        self.manifest.trust
    }

    /// Returns the paths of the layers, newest first.
    pub(crate) fn layer_paths(&self) -> &[PathBuf] {
        &self.paths
    }
}

impl CacheStore {
    /// Opens the store, and creates it if it does not exist.
    ///
    /// # Errors
    /// The state directory cannot be written.
    pub(crate) fn open(state: &Directory, state_path: &Path) -> Result<Self, StoreError> {
        // Only we may enter these directories: steps reach their caches through mounts.
        let root = state.ensure(SKILL_CACHES_DIR, 0o700)?;
        let [scopes, layers, runs] = [SCOPES_DIR, LAYERS_DIR, CACHE_RUNS_DIR].map(|name| root.ensure(name, 0o700));
        Ok(Self { scopes: scopes?, layers: layers?, runs: runs?, root, path: state_path.join(SKILL_CACHES_DIR) })
    }

    /// Finds the initial content of a cache: the base of its scope, or else the first base in the trust scopes
    /// `fallbacks`.
    ///
    /// # Errors
    /// A directory in the state directory cannot be read.
    pub(crate) fn find_base(&self, scope: &CacheScope, fallbacks: &[String]) -> Result<BaseLookup, StoreError> {
        let mut found =
            BaseLookup { own_base_id: self.current_manifest(scope)?.map(|(id, _)| id), ..BaseLookup::default() };
        for (scope, trust) in candidate_scopes(scope, fallbacks) {
            match self.lock_base(&scope, trust) {
                Ok(Some(base)) => return Ok(BaseLookup { base: Some(base), ..found }),
                Ok(None) => {}
                Err(fault) => {
                    let reason = format!("the base of `{}` was not used: {fault}", scope.trust_scope);
                    found.reason.get_or_insert(reason);
                }
            }
        }
        Ok(found)
    }

    /// Returns the layers that a cache would start with, without verifying them.
    pub(crate) fn peek(&self, scope: &CacheScope, fallbacks: &[String]) -> Vec<PathBuf> {
        let mut known =
            candidate_scopes(scope, fallbacks).filter_map(|(scope, _)| self.current_manifest(&scope).ok().flatten());
        let manifest = known.find_map(|(_, bytes)| CacheManifest::parse(&bytes));
        let layers = manifest.map(|manifest| manifest.layers).unwrap_or_default();
        layers.iter().map(|layer| self.layer_path(&layer.id)).collect()
    }

    fn layer_path(&self, id: &str) -> PathBuf {
        self.path.join(LAYERS_DIR).join(id)
    }

    /// Returns the manifest of a scope's base, with its id.
    fn current_manifest(&self, scope: &CacheScope) -> Result<Option<(Sha256Hex, Vec<u8>)>, StoreError> {
        let directory = match self.scopes.descend(&scope.directory_name()) {
            Ok(directory) => directory,
            Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let bytes = directory.read(BASE_FILE, MAX_FILE)?;
        Ok(bytes.map(|bytes| (CacheManifest::id_of(&bytes), bytes)))
    }

    /// Returns the base of one scope, locked and verified to be unchanged since its commit.
    fn lock_base(&self, scope: &CacheScope, trust: CacheTrust) -> Result<Option<LockedBase>, SkillCacheError> {
        for _ in 0..MAX_ATTEMPTS {
            let Some((id, bytes)) = self.current_manifest(scope)? else { return Ok(None) };
            let Some(manifest) = CacheManifest::parse(&bytes) else {
                return Err(SkillCacheError::with_reason("read", BASE_FILE, "it is malformed"));
            };
            let layers: Option<Vec<OwnedFd>> = manifest.layers.iter().map(|layer| self.lock_layer(&layer.id)).collect();
            // Another run may have replaced the base and removed layers before we locked them.
            let still = self.current_manifest(scope)?.is_some_and(|(now, _)| now == id);
            match layers {
                Some(layers) if still => return self.verify_layers(scope, trust, (id, manifest), layers).map(Some),
                None if still => {
                    return Err(SkillCacheError::with_reason(
                        "hold",
                        LAYERS_DIR,
                        "a layer is missing, or is being removed",
                    ));
                }
                _ => {}
            }
        }
        Err(SkillCacheError::with_reason("hold", BASE_FILE, "other runs replaced it each time it was read"))
    }

    /// Opens a layer and takes the shared lock that prevents its removal.
    fn lock_layer(&self, id: &str) -> Option<OwnedFd> {
        let name = CString::new(id).ok()?;
        let layer = cache_layer::open_dir(self.layers.as_fd(), &name).ok()?;
        fs::flock(&layer, FlockOperation::NonBlockingLockShared).ok()?;
        Some(layer)
    }

    fn verify_layers(
        &self,
        scope: &CacheScope,
        trust: CacheTrust,
        (id, manifest): (Sha256Hex, CacheManifest),
        layers: Vec<OwnedFd>,
    ) -> Result<LockedBase, SkillCacheError> {
        for (known, layer) in manifest.layers.iter().zip(&layers) {
            if cache_layer::summarize(layer.as_fd())?.seal != known.seal {
                return Err(SkillCacheError::with_reason(
                    "use",
                    &known.id,
                    "its content differs from the committed content; another program has written to it",
                ));
            }
        }
        self.touch(scope);
        let paths = manifest.layers.iter().map(|layer| self.layer_path(&layer.id)).collect();
        let manifest = CacheManifest::new(manifest.layers, manifest.trust.max(trust));
        Ok(LockedBase { manifest, id, scope: scope.trust_scope.clone(), layers, paths })
    }

    /// Updates the time of a cache's last use. A failure is only logged, since the cache is usable all the same.
    fn touch(&self, scope: &CacheScope) {
        let now = fs::Timespec { tv_sec: 0, tv_nsec: fs::UTIME_NOW };
        let times = fs::Timestamps { last_access: now, last_modification: now };
        let noted = self
            .scopes
            .descend(&scope.directory_name())
            .map(|directory| fs::utimensat(&directory, SCOPE_FILE, &times, fs::AtFlags::SYMLINK_NOFOLLOW));
        if let Err(error) = noted {
            tracing::debug!(%error, "the use of a cache could not be recorded");
        }
    }

    /// Creates the directory for the writes of one run.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub(crate) fn create_run_dir(&self) -> Result<RunCacheDir, StoreError> {
        for _ in 0..MAX_ATTEMPTS {
            let name = random_name()?;
            let directory = self.runs.ensure(&name, 0o700)?;
            // Until this process holds the lock, another process may remove the directory as a leftover of a killed
            // run.
            if directory.try_lock()? && self.runs.require_same(&name, &directory).is_ok() {
                let path = self.path.join(CACHE_RUNS_DIR).join(&name);
                return Ok(RunCacheDir { runs: self.runs.clone(), directory, name, path });
            }
        }
        Err(StoreError::Busy { path: self.runs.name().to_owned() })
    }

    /// Copies the content of a base into an empty directory, with `owner` as the owner of the copies if it is
    /// given.
    ///
    /// # Errors
    /// The disk is full, or an entry cannot be copied.
    pub(crate) fn copy_base(
        &self,
        base: &LockedBase,
        write_dir: &Path,
        owner: Option<(u32, u32)>,
    ) -> Result<(), SkillCacheError> {
        let to = Directory::open(&write_dir.join(CACHE_UPPER))?;
        merge(&base.layers, to.as_fd(), MergeMode::Copy { owner })
    }

    /// Adds the writes of a skill to the base of its scope. All processes of the skill must have ended, and its mounts
    /// must be removed.
    ///
    /// # Errors
    /// The writes cannot become a layer, or the disk fails; the old base remains.
    pub(crate) fn commit(&self, commit: &CacheCommit<'_>) -> Result<CommitOutcome, SkillCacheError> {
        let write_dir = Directory::open(commit.write_dir)?;
        let upper = write_dir.descend(CACHE_UPPER)?;
        if upper.entries(1)?.is_empty() && (commit.is_overlay || commit.lookup.base.is_none()) {
            return Ok(CommitOutcome::Unchanged);
        }
        let left_out =
            cache_layer::sanitize(upper.as_fd(), LayerRules { is_overlay: commit.is_overlay, owner: commit.owner })?;
        let written = cache_layer::summarize(upper.as_fd())?;
        if written.bytes > commit.max_bytes {
            return Err(SkillCacheError::TooLarge { bytes: written.bytes, most: commit.max_bytes });
        }
        let base = commit.lookup.base.as_ref().filter(|_| commit.is_overlay);
        let below = base.map_or(&[][..], |base| &base.manifest.layers);
        let is_full = below.len() >= MAX_LAYERS;
        let (new, survey) = match base.filter(|_| is_full) {
            Some(base) => merge_layers(&write_dir, &upper, base)?,
            None => (upper, written),
        };
        let below = if is_full { &[][..] } else { below };
        let trust = commit.lookup.base.as_ref().map_or(CacheTrust::Branch, LockedBase::trust).max(CacheTrust::Branch);
        let name = if is_full { MERGED_DIR } else { CACHE_UPPER };
        let published =
            self.publish(commit, (&write_dir, name, &new), LayerRef::new(random_name()?, survey), below, trust)?;
        Ok(if published { CommitOutcome::New { left_out } } else { CommitOutcome::Stale })
    }

    /// Names a layer and puts it on top of `below` in a new manifest; `false` if another run committed first.
    fn publish(
        &self,
        commit: &CacheCommit<'_>,
        (room, name, layer): (&Directory, &str, &Directory),
        new: LayerRef,
        below: &[LayerRef],
        trust: CacheTrust,
    ) -> Result<bool, SkillCacheError> {
        let scope = self.scopes.ensure(&commit.scope.directory_name(), 0o700)?;
        if !scope.try_lock()? || self.current_manifest(commit.scope)?.map(|(id, _)| id) != commit.lookup.own_base_id {
            return Ok(false);
        }
        if scope.read(SCOPE_FILE, MAX_FILE)?.is_none() {
            scope.write(SCOPE_FILE, &serde_json::to_vec(commit.scope).unwrap_or_default())?;
        }
        // Until the manifest names the layer, only this lock keeps a clean-up from removing it.
        fs::flock(layer, FlockOperation::NonBlockingLockShared).map_err(StoreError::io("lock", layer.name()))?;
        fs::renameat_with(room, name, &self.layers, &new.id, RenameFlags::NOREPLACE)
            .map_err(StoreError::io("name", self.layer_path(&new.id).display().to_string()))?;
        let id = new.id.clone();
        let layers = std::iter::once(new).chain(below.iter().cloned()).collect();
        let written = self.make_durable(&scope, &CacheManifest::new(layers, trust));
        if written.is_err() {
            remove_directory(&self.layers, &id);
        }
        written.map(|()| true)
    }

    /// Makes the layer durable, then the manifest that names it.
    fn make_durable(&self, scope: &Directory, manifest: &CacheManifest) -> Result<(), SkillCacheError> {
        fs::syncfs(&self.root).map_err(StoreError::io("sync", self.root.name()))?;
        Ok(scope.write(BASE_FILE, &manifest.to_bytes())?)
    }
}

/// Returns the trust scopes in which to look for a base, each with the minimum trust to record for its base.
fn candidate_scopes(scope: &CacheScope, fallbacks: &[String]) -> impl Iterator<Item = (CacheScope, CacheTrust)> {
    let own = (scope.clone(), CacheTrust::Branch);
    let wider: Vec<_> = fallbacks.iter().map(|name| (scope.with_trust_scope(name), CacheTrust::Default)).collect();
    std::iter::once(own).chain(wider)
}

/// Merges all layers of a base and the writes above it into one new layer, which shares their files by hard links.
fn merge_layers(
    room: &Directory,
    upper: &Directory,
    base: &LockedBase,
) -> Result<(Directory, cache_layer::LayerSummary), SkillCacheError> {
    let made = room.ensure(MERGED_DIR, 0o700)?;
    let own = |fd: BorrowedFd<'_>| fd.try_clone_to_owned();
    let layers = std::iter::once(own(upper.as_fd())).chain(base.layers.iter().map(|layer| own(layer.as_fd())));
    let layers: Result<Vec<OwnedFd>, _> = layers.collect();
    let layers =
        layers.map_err(|source| SkillCacheError::Entry { action: "hold", path: MERGED_DIR.to_owned(), source })?;
    merge(&layers, made.as_fd(), MergeMode::Link)?;
    let owner = fs::fstat(upper).map_err(StoreError::io("stat", upper.name()))?;
    let (uid, gid) = (fs::Uid::from_raw(owner.st_uid), fs::Gid::from_raw(owner.st_gid));
    fs::fchown(&made, Some(uid), Some(gid)).map_err(StoreError::io("give away", made.name()))?;
    let survey = cache_layer::summarize(made.as_fd())?;
    Ok((made, survey))
}

impl RunCacheDir {
    /// Creates the directory for the writes of one cache of one skill.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub(crate) fn create_write_dir(&self, number: usize) -> Result<PathBuf, StoreError> {
        let name = number.to_string();
        self.directory.ensure(&name, 0o700)?.ensure(CACHE_UPPER, 0o700)?;
        Ok(self.path.join(name))
    }
}

impl Drop for RunCacheDir {
    fn drop(&mut self) {
        remove_directory(&self.runs, &self.name);
    }
}

/// Removes a directory of the store with all its content. The next clean-up repeats a removal that fails.
fn remove_directory(parent: &Directory, name: &str) {
    let Ok(c_name) = CString::new(name) else { return };
    match proctor_sandbox::remove_dir(parent.as_fd(), &c_name) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => tracing::debug!(%error, name, "the remaining files of a cache could not be removed"),
    }
}

fn random_name() -> Result<String, StoreError> {
    Ok(format!("{:016x}{:016x}", random_u64()?, random_u64()?))
}

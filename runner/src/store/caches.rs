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
//! ```

pub(crate) mod eviction;
mod layer;
mod manifest;
mod merge;
#[cfg(test)]
mod tests;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use proctor_core::cache::{CacheBase, CacheTrust};
use proctor_core::digest::Sha256Hex;
use proctor_sandbox::CACHE_UPPER;
use rustix::fs::{self, FlockOperation, RenameFlags};
use rustix::io::Errno;

use super::StoreError;
use super::directory::{Directory, random_u64};
use layer::{MAX_DEPTH, MAX_ENTRIES, Rules};
use manifest::{LayerRef, Manifest};
use merge::{How, merge};

pub(crate) use manifest::Scope;

/// Directory of all caches, in the state directory.
pub(crate) const SKILL_CACHES: &str = "skill-caches";
const SCOPES: &str = "scopes";
const LAYERS: &str = "layers";
const RUNS: &str = "runs";
const SCOPE: &str = "scope.json";
const BASE: &str = "base.json";
/// Directory in which a stack of layers is merged, next to the writes of a skill.
const MERGED: &str = "merged";
/// Maximum size of `scope.json` and of `base.json`, in bytes.
const MAX_FILE: u64 = 64 << 10;
/// Maximum number of layers of a base. A commit that would exceed it merges them into one.
const MAX_LAYERS: usize = 8;
/// Maximum number of attempts to read a base while other runs replace it, or to create a run's directory.
const ATTEMPTS: u32 = 3;

/// Why a cache cannot be stored or used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CacheFault {
    /// A directory in the state directory cannot be accessed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An entry that a step created cannot be processed.
    #[error("cannot {action} `{path}` in it: {source}")]
    Entry {
        /// The attempted action.
        action: &'static str,
        /// The entry's path.
        path: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The directories are nested too deep: each level needs a descriptor.
    #[error("its directories are nested more than {MAX_DEPTH} levels deep")]
    TooDeep,
    /// There are too many entries to read.
    #[error("it has more than {MAX_ENTRIES} entries")]
    TooMany,
    /// The skill wrote more bytes than may be kept.
    #[error("the skill wrote {bytes} bytes, but at most {most} are kept (`retention.max_cache_bytes_per_run`)")]
    TooLarge {
        /// Size in bytes.
        bytes: u64,
        /// Maximum size in bytes.
        most: u64,
    },
    /// An entry has an extended attribute that overlayfs interprets.
    #[error("`{path}` has the attribute `{name}`, which overlayfs would interpret")]
    Attribute {
        /// The entry.
        path: String,
        /// The attribute.
        name: String,
    },
}

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
pub(crate) struct Base {
    manifest: Manifest,
    id: Sha256Hex,
    scope: String,
    layers: Vec<OwnedFd>,
    paths: Vec<PathBuf>,
}

/// The initial content of a cache.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The base; `None` if no base is usable.
    pub(crate) base: Option<Base>,
    /// Id of the current base of the run's own scope, whether it is usable or not.
    own: Option<Sha256Hex>,
    /// Why a stored base was not used.
    pub(crate) reason: Option<String>,
}

/// Directory for the writes of one run's skills. Removed on drop.
#[derive(Debug)]
pub(crate) struct RunRoom {
    runs: Directory,
    directory: Directory,
    name: String,
    path: PathBuf,
}

/// The inputs of a commit.
pub(crate) struct Commit<'a> {
    pub(crate) scope: &'a Scope,
    pub(crate) found: &'a Found,
    /// Directory of the writes, from [`RunRoom::make`].
    pub(crate) room: &'a Path,
    /// True if the writes are the upper directory of an overlay over the base; otherwise they are the whole cache.
    pub(crate) is_overlay: bool,
    /// User and group that own the layer afterwards, if the steps of each run have a separate user id.
    pub(crate) owner: Option<(u32, u32)>,
    /// Maximum size in bytes.
    pub(crate) most: u64,
}

/// The result of a commit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Committed {
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

impl Base {
    /// Returns the base as it appears in the run's record.
    pub(crate) fn record(&self) -> CacheBase {
        CacheBase { id: self.id.clone(), scope: self.scope.clone() }
    }

    /// Returns the widest scope that a layer of the base comes from.
    pub(crate) fn trust(&self) -> CacheTrust {
        self.manifest.trust
    }

    /// Returns the paths of the layers, newest first.
    pub(crate) fn lowers(&self) -> &[PathBuf] {
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
        let root = state.ensure(SKILL_CACHES, 0o700)?;
        let [scopes, layers, runs] = [SCOPES, LAYERS, RUNS].map(|name| root.ensure(name, 0o700));
        Ok(Self { scopes: scopes?, layers: layers?, runs: runs?, root, path: state_path.join(SKILL_CACHES) })
    }

    /// Finds the initial content of a cache: the base of its scope, or else the first base in the trust scopes
    /// `fallbacks`.
    ///
    /// # Errors
    /// A directory in the state directory cannot be read.
    pub(crate) fn find(&self, scope: &Scope, fallbacks: &[String]) -> Result<Found, StoreError> {
        let mut found = Found { own: self.current(scope)?.map(|(id, _)| id), ..Found::default() };
        for (scope, trust) in candidates(scope, fallbacks) {
            match self.base(&scope, trust) {
                Ok(Some(base)) => return Ok(Found { base: Some(base), ..found }),
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
    pub(crate) fn peek(&self, scope: &Scope, fallbacks: &[String]) -> Vec<PathBuf> {
        let mut known = candidates(scope, fallbacks).filter_map(|(scope, _)| self.current(&scope).ok().flatten());
        let manifest = known.find_map(|(_, bytes)| Manifest::parse(&bytes));
        let layers = manifest.map(|manifest| manifest.layers).unwrap_or_default();
        layers.iter().map(|layer| self.layer_path(&layer.id)).collect()
    }

    fn layer_path(&self, id: &str) -> PathBuf {
        self.path.join(LAYERS).join(id)
    }

    /// Returns the manifest of a scope's base, with its id.
    fn current(&self, scope: &Scope) -> Result<Option<(Sha256Hex, Vec<u8>)>, StoreError> {
        let directory = match self.scopes.descend(&scope.key()) {
            Ok(directory) => directory,
            Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let bytes = directory.read(BASE, MAX_FILE)?;
        Ok(bytes.map(|bytes| (Manifest::id_of(&bytes), bytes)))
    }

    /// Returns the base of one scope, locked and verified to be unchanged since its commit.
    fn base(&self, scope: &Scope, trust: CacheTrust) -> Result<Option<Base>, CacheFault> {
        for _ in 0..ATTEMPTS {
            let Some((id, bytes)) = self.current(scope)? else { return Ok(None) };
            let Some(manifest) = Manifest::parse(&bytes) else {
                return Err(fault("read", BASE, "it is malformed"));
            };
            let layers: Option<Vec<OwnedFd>> = manifest.layers.iter().map(|layer| self.hold(&layer.id)).collect();
            // Another run may have replaced the base and removed layers before we locked them.
            let still = self.current(scope)?.is_some_and(|(now, _)| now == id);
            match layers {
                Some(layers) if still => return self.verified(scope, trust, (id, manifest), layers).map(Some),
                None if still => return Err(fault("hold", LAYERS, "a layer is missing, or is being removed")),
                _ => {}
            }
        }
        Err(fault("hold", BASE, "other runs replaced it each time it was read"))
    }

    /// Opens a layer and takes the shared lock that prevents its removal.
    fn hold(&self, id: &str) -> Option<OwnedFd> {
        let name = CString::new(id).ok()?;
        let layer = layer::open_dir(self.layers.as_fd(), &name).ok()?;
        fs::flock(&layer, FlockOperation::NonBlockingLockShared).ok()?;
        Some(layer)
    }

    fn verified(
        &self,
        scope: &Scope,
        trust: CacheTrust,
        (id, manifest): (Sha256Hex, Manifest),
        layers: Vec<OwnedFd>,
    ) -> Result<Base, CacheFault> {
        for (known, layer) in manifest.layers.iter().zip(&layers) {
            if layer::survey(layer.as_fd())?.seal != known.seal {
                return Err(fault("use", &known.id, "it is not as it was committed; something else has written to it"));
            }
        }
        self.touch(scope);
        let paths = manifest.layers.iter().map(|layer| self.layer_path(&layer.id)).collect();
        let manifest = Manifest::new(manifest.layers, manifest.trust.max(trust));
        Ok(Base { manifest, id, scope: scope.trust_scope.clone(), layers, paths })
    }

    /// Updates the time of a cache's last use. A failure is only logged, since the cache is usable all the same.
    fn touch(&self, scope: &Scope) {
        let now = fs::Timespec { tv_sec: 0, tv_nsec: fs::UTIME_NOW };
        let times = fs::Timestamps { last_access: now, last_modification: now };
        let noted = self
            .scopes
            .descend(&scope.key())
            .map(|directory| fs::utimensat(&directory, SCOPE, &times, fs::AtFlags::SYMLINK_NOFOLLOW));
        if let Err(error) = noted {
            tracing::debug!(%error, "it could not be noted that a cache was used");
        }
    }

    /// Creates the directory for the writes of one run.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub(crate) fn run_room(&self) -> Result<RunRoom, StoreError> {
        for _ in 0..ATTEMPTS {
            let name = random_name()?;
            let directory = self.runs.ensure(&name, 0o700)?;
            // Until we hold the lock, another process may remove the directory as a leftover of a killed run.
            if directory.try_lock()? && self.runs.demand_still(&name, &directory).is_ok() {
                let path = self.path.join(RUNS).join(&name);
                return Ok(RunRoom { runs: self.runs.clone(), directory, name, path });
            }
        }
        Err(StoreError::Busy { path: self.runs.name().to_owned() })
    }

    /// Copies the content of a base into an empty directory, with `owner` as the owner of the copies if it is
    /// given.
    ///
    /// # Errors
    /// The disk is full, or an entry cannot be copied.
    pub(crate) fn copy_base(&self, base: &Base, room: &Path, owner: Option<(u32, u32)>) -> Result<(), CacheFault> {
        let to = Directory::open(&room.join(CACHE_UPPER))?;
        merge(&base.layers, to.as_fd(), How::Copy { owner })
    }

    /// Adds the writes of a skill to the base of its scope. All processes and mounts of the skill must be gone.
    ///
    /// # Errors
    /// The writes cannot become a layer, or the disk fails; the old base remains.
    pub(crate) fn commit(&self, commit: &Commit<'_>) -> Result<Committed, CacheFault> {
        let room = Directory::open(commit.room)?;
        let upper = room.descend(CACHE_UPPER)?;
        if upper.entries(1)?.is_empty() && (commit.is_overlay || commit.found.base.is_none()) {
            return Ok(Committed::Unchanged);
        }
        let left_out = layer::purify(upper.as_fd(), Rules { is_overlay: commit.is_overlay, owner: commit.owner })?;
        let written = layer::survey(upper.as_fd())?;
        if written.bytes > commit.most {
            return Err(CacheFault::TooLarge { bytes: written.bytes, most: commit.most });
        }
        let base = commit.found.base.as_ref().filter(|_| commit.is_overlay);
        let below = base.map_or(&[][..], |base| &base.manifest.layers);
        let is_full = below.len() >= MAX_LAYERS;
        let (new, survey) = match base.filter(|_| is_full) {
            Some(base) => merged(&room, &upper, base)?,
            None => (upper, written),
        };
        let below = if is_full { &[][..] } else { below };
        let trust = commit.found.base.as_ref().map_or(CacheTrust::Branch, Base::trust).max(CacheTrust::Branch);
        let name = if is_full { MERGED } else { CACHE_UPPER };
        let published =
            self.publish(commit, (&room, name, &new), LayerRef::new(random_name()?, survey), below, trust)?;
        Ok(if published { Committed::New { left_out } } else { Committed::Stale })
    }

    /// Names a layer and puts it on top of `below` in a new manifest; `false` if another run committed first.
    fn publish(
        &self,
        commit: &Commit<'_>,
        (room, name, layer): (&Directory, &str, &Directory),
        new: LayerRef,
        below: &[LayerRef],
        trust: CacheTrust,
    ) -> Result<bool, CacheFault> {
        let scope = self.scopes.ensure(&commit.scope.key(), 0o700)?;
        if !scope.try_lock()? || self.current(commit.scope)?.map(|(id, _)| id) != commit.found.own {
            return Ok(false);
        }
        if scope.read(SCOPE, MAX_FILE)?.is_none() {
            scope.write(SCOPE, &serde_json::to_vec(commit.scope).unwrap_or_default())?;
        }
        // Until the manifest names the layer, only this lock keeps a clean-up from removing it.
        fs::flock(layer, FlockOperation::NonBlockingLockShared).map_err(StoreError::io("lock", layer.name()))?;
        fs::renameat_with(room, name, &self.layers, &new.id, RenameFlags::NOREPLACE)
            .map_err(StoreError::io("name", self.layer_path(&new.id).display().to_string()))?;
        let id = new.id.clone();
        let layers = std::iter::once(new).chain(below.iter().cloned()).collect();
        let written = self.settle(&scope, &Manifest::new(layers, trust));
        if written.is_err() {
            remove(&self.layers, &id);
        }
        written.map(|()| true)
    }

    /// Makes the layer durable, then the manifest that names it.
    fn settle(&self, scope: &Directory, manifest: &Manifest) -> Result<(), CacheFault> {
        fs::syncfs(&self.root).map_err(StoreError::io("sync", self.root.name()))?;
        Ok(scope.write(BASE, &manifest.to_bytes())?)
    }
}

/// Returns the trust scopes in which to look for a base, each with the minimum trust to record for its base.
fn candidates(scope: &Scope, fallbacks: &[String]) -> impl Iterator<Item = (Scope, CacheTrust)> {
    let own = (scope.clone(), CacheTrust::Branch);
    let wider: Vec<_> = fallbacks.iter().map(|name| (scope.of(name), CacheTrust::Default)).collect();
    std::iter::once(own).chain(wider)
}

/// Merges all layers of a base and the writes above it into one new layer, which shares their files by hard links.
fn merged(room: &Directory, upper: &Directory, base: &Base) -> Result<(Directory, layer::Survey), CacheFault> {
    let made = room.ensure(MERGED, 0o700)?;
    let own = |fd: BorrowedFd<'_>| fd.try_clone_to_owned();
    let layers = std::iter::once(own(upper.as_fd())).chain(base.layers.iter().map(|layer| own(layer.as_fd())));
    let layers: Result<Vec<OwnedFd>, _> = layers.collect();
    let layers = layers.map_err(|source| CacheFault::Entry { action: "hold", path: MERGED.to_owned(), source })?;
    merge(&layers, made.as_fd(), How::Link)?;
    let owner = fs::fstat(upper).map_err(StoreError::io("stat", upper.name()))?;
    let (uid, gid) = (fs::Uid::from_raw(owner.st_uid), fs::Gid::from_raw(owner.st_gid));
    fs::fchown(&made, Some(uid), Some(gid)).map_err(StoreError::io("give away", made.name()))?;
    let survey = layer::survey(made.as_fd())?;
    Ok((made, survey))
}

impl RunRoom {
    /// Creates the directory for the writes of one cache of one skill.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub(crate) fn make(&self, number: usize) -> Result<PathBuf, StoreError> {
        let name = number.to_string();
        self.directory.ensure(&name, 0o700)?.ensure(CACHE_UPPER, 0o700)?;
        Ok(self.path.join(name))
    }
}

impl Drop for RunRoom {
    fn drop(&mut self) {
        remove(&self.runs, &self.name);
    }
}

/// Removes a directory of the store with all its content. The next clean-up repeats a removal that fails.
fn remove(parent: &Directory, name: &str) {
    let Ok(c_name) = CString::new(name) else { return };
    match proctor_sandbox::remove_dir(parent.as_fd(), &c_name) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => tracing::debug!(%error, name, "the rest of a cache could not be removed"),
    }
}

fn random_name() -> Result<String, StoreError> {
    Ok(format!("{:016x}{:016x}", random_u64()?, random_u64()?))
}

fn fault(action: &'static str, path: &str, why: &'static str) -> CacheFault {
    CacheFault::Entry { action, path: path.to_owned(), source: io::Error::other(why) }
}

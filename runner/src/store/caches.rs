//! Caches of skills: below `skill-caches/` of the state directory, a base of immutable layers for each scope and a
//! private place for the writes of each run. docs/caches.md describes the bytes and what a crash leaves.
//!
//! ```text
//! scopes/<key>/        one cache of one skill; locked (exclusively) while a run commits to it
//!   scope.json         whose it is; its time says when it was last used
//!   base.json          the layers of its base, newest first; replaced atomically
//! layers/<id>/         a layer; locked (shared) by the runs that use it
//! runs/<id>/<n>/upper  what a skill of a run writes; the run holds the lock (exclusive) of `runs/<id>`
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

/// The directory of all of it, in the state directory.
pub(crate) const SKILL_CACHES: &str = "skill-caches";
const SCOPES: &str = "scopes";
const LAYERS: &str = "layers";
const RUNS: &str = "runs";
const SCOPE: &str = "scope.json";
const BASE: &str = "base.json";
/// Where a stack of layers becomes one, beside the writes of a skill.
const MERGED: &str = "merged";
/// The largest of both files that is read, in bytes.
const MAX_FILE: u64 = 64 << 10;
/// How many layers a base has at most. One more, and they become one.
const MAX_LAYERS: usize = 8;
/// How often a base is read that another run replaces meanwhile.
const ATTEMPTS: u32 = 3;

/// Why a cache cannot be stored, or not be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CacheFault {
    /// A directory of ours.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Something that a step has made.
    #[error("cannot {action} `{path}` in it: {source}")]
    Entry {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: String,
        /// The system's answer.
        source: io::Error,
    },
    /// A directory would need more descriptors than there may be.
    #[error("its directories are nested more than {MAX_DEPTH} levels deep")]
    TooDeep,
    /// It would take too long to look at.
    #[error("it has more than {MAX_ENTRIES} entries")]
    TooMany,
    /// It takes too much room.
    #[error("the skill wrote {bytes} bytes, but at most {most} are kept (`retention.max_cache_bytes_per_run`)")]
    TooLarge {
        /// What it takes.
        bytes: u64,
        /// What it may take.
        most: u64,
    },
    /// Overlayfs would act on it.
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

/// A base in use: its layers stay until this is dropped.
#[derive(Debug)]
pub(crate) struct Base {
    manifest: Manifest,
    id: Sha256Hex,
    scope: String,
    layers: Vec<OwnedFd>,
    paths: Vec<PathBuf>,
}

/// What a cache can begin with.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The base; `None` where there is none that can be used.
    pub(crate) base: Option<Base>,
    /// What the run's own scope holds by now, whether it can be used or not.
    own: Option<Sha256Hex>,
    /// Why there is no base although one is stored.
    pub(crate) reason: Option<String>,
}

/// A directory of one run for the writes of its skills. Dropped, it is removed.
#[derive(Debug)]
pub(crate) struct RunRoom {
    runs: Directory,
    directory: Directory,
    name: String,
    path: PathBuf,
}

/// What is to be committed.
pub(crate) struct Commit<'a> {
    pub(crate) scope: &'a Scope,
    pub(crate) found: &'a Found,
    /// The directory that holds the writes, as [`RunRoom::make`] gave it.
    pub(crate) room: &'a Path,
    /// Whether they are the upper directory of an overlay over the base; else they are the whole cache.
    pub(crate) is_overlay: bool,
    /// Whose the layer becomes, where steps of each run are a user of their own.
    pub(crate) owner: Option<(u32, u32)>,
    /// The largest number of bytes.
    pub(crate) most: u64,
}

/// What a commit came to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Committed {
    /// There is a new base. These paths are not part of it: they were sockets, fifos or devices.
    New {
        /// The paths.
        left_out: Vec<String>,
    },
    /// There was nothing to commit.
    Unchanged,
    /// Another run committed to the scope since the base was read, or does at this moment.
    Stale,
}

impl Base {
    /// What the record says of it.
    pub(crate) fn record(&self) -> CacheBase {
        CacheBase { id: self.id.clone(), scope: self.scope.clone() }
    }

    /// From how wide a scope it comes.
    pub(crate) fn trust(&self) -> CacheTrust {
        self.manifest.trust
    }

    /// Where its layers are, newest first.
    pub(crate) fn lowers(&self) -> &[PathBuf] {
        &self.paths
    }
}

impl CacheStore {
    /// Opens the store; makes it where it is absent.
    ///
    /// # Errors
    /// The state directory cannot be written.
    pub(crate) fn open(state: &Directory, state_path: &Path) -> Result<Self, StoreError> {
        // Nobody but us walks in: what a step makes of its caches is reached by its mounts alone.
        let root = state.ensure(SKILL_CACHES, 0o700)?;
        let [scopes, layers, runs] = [SCOPES, LAYERS, RUNS].map(|name| root.ensure(name, 0o700));
        Ok(Self { scopes: scopes?, layers: layers?, runs: runs?, root, path: state_path.join(SKILL_CACHES) })
    }

    /// Finds what a cache begins with: the base of its scope, or else the first that one of the trust scopes
    /// `fallbacks` has for it.
    ///
    /// # Errors
    /// A directory of ours cannot be read.
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

    /// The layers that a cache would begin with, without a look at them.
    pub(crate) fn peek(&self, scope: &Scope, fallbacks: &[String]) -> Vec<PathBuf> {
        let mut known = candidates(scope, fallbacks).filter_map(|(scope, _)| self.current(&scope).ok().flatten());
        let manifest = known.find_map(|(_, bytes)| Manifest::parse(&bytes));
        let layers = manifest.map(|manifest| manifest.layers).unwrap_or_default();
        layers.iter().map(|layer| self.layer_path(&layer.id)).collect()
    }

    fn layer_path(&self, id: &str) -> PathBuf {
        self.path.join(LAYERS).join(id)
    }

    /// The manifest of a scope's base, with its id.
    fn current(&self, scope: &Scope) -> Result<Option<(Sha256Hex, Vec<u8>)>, StoreError> {
        let directory = match self.scopes.descend(&scope.key()) {
            Ok(directory) => directory,
            Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let bytes = directory.read(BASE, MAX_FILE)?;
        Ok(bytes.map(|bytes| (Manifest::id_of(&bytes), bytes)))
    }

    /// The base of one scope, locked and found to be as it was committed.
    fn base(&self, scope: &Scope, trust: CacheTrust) -> Result<Option<Base>, CacheFault> {
        for _ in 0..ATTEMPTS {
            let Some((id, bytes)) = self.current(scope)? else { return Ok(None) };
            let Some(manifest) = Manifest::parse(&bytes) else {
                return Err(fault("read", BASE, "it is malformed"));
            };
            let layers: Option<Vec<OwnedFd>> = manifest.layers.iter().map(|layer| self.hold(&layer.id)).collect();
            // A run that replaced it meanwhile may have removed layers before they were held.
            let still = self.current(scope)?.is_some_and(|(now, _)| now == id);
            match layers {
                Some(layers) if still => return self.verified(scope, trust, (id, manifest), layers).map(Some),
                None if still => return Err(fault("hold", LAYERS, "a layer is missing, or is being removed")),
                _ => {}
            }
        }
        Err(fault("hold", BASE, "other runs replaced it each time it was read"))
    }

    /// Opens a layer and holds it against its removal.
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

    /// Notes that a cache was used. That it cannot be noted is no reason not to use it.
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

    /// Makes the place for the writes of one run.
    ///
    /// # Errors
    /// It cannot be made.
    pub(crate) fn run_room(&self) -> Result<RunRoom, StoreError> {
        for _ in 0..ATTEMPTS {
            let name = random_name()?;
            let directory = self.runs.ensure(&name, 0o700)?;
            // Another process may take it for one that a killed run has left, until it is held.
            if directory.try_lock()? && self.runs.demand_still(&name, &directory).is_ok() {
                let path = self.path.join(RUNS).join(&name);
                return Ok(RunRoom { runs: self.runs.clone(), directory, name, path });
            }
        }
        Err(StoreError::Busy { path: self.runs.name().to_owned() })
    }

    /// Fills an empty directory with a copy of what a base shows, for this user where one is named.
    ///
    /// # Errors
    /// There is no room, or something cannot be copied.
    pub(crate) fn copy_base(&self, base: &Base, room: &Path, owner: Option<(u32, u32)>) -> Result<(), CacheFault> {
        let to = Directory::open(&room.join(CACHE_UPPER))?;
        merge(&base.layers, to.as_fd(), How::Copy { owner })
    }

    /// Makes the writes of a skill part of the base of its scope. For a skill whose processes and mounts are gone.
    ///
    /// # Errors
    /// They cannot become a layer, or the disk refuses; the old base stays.
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

    /// Gives a layer its name and puts it on top of `below` in a new manifest; `false` where another run was faster.
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
        // Until the manifest names it, this alone keeps it from being cleared away.
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

/// The trust scopes in which a base is looked for, with the least trust that it has.
fn candidates(scope: &Scope, fallbacks: &[String]) -> impl Iterator<Item = (Scope, CacheTrust)> {
    let own = (scope.clone(), CacheTrust::Branch);
    let wider: Vec<_> = fallbacks.iter().map(|name| (scope.of(name), CacheTrust::Default)).collect();
    std::iter::once(own).chain(wider)
}

/// All layers of a base and the writes above it as one new layer, which shares their files.
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
    /// Makes the directory for the writes of one cache of one skill.
    ///
    /// # Errors
    /// It cannot be made.
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

/// Removes a directory of ours with all that steps have put into it; what cannot be removed is left to the next time.
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

//! Stores the paths that skills need and that no commit contains, in `skill-caches/prepared/` of the state directory. A
//! stored path is never written again: steps see it below a separate layer, which is discarded.
//!
//! ```text
//! prepared/<name>/     one path; locked (shared) by the runs that use it
//!   entry.json         its origin, its digest and its seal
//!   content/           the directory that steps see
//!   listing            the digests of its files, once a worker of a cluster needed it
//! ```
//!
//! An entry appears by one rename of a complete, synced directory, and disappears by one rename. A kill at any point
//! leaves a complete entry, or none. The next clean-up removes directories with other names.

mod content;
mod listing;
mod stored_paths;

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use proctor_core::model::plan::Network;
use proctor_core::text::canonical;
use proctor_core::text::digest::Sha256Hex;
use proctor_sandbox::CACHE_UPPER;
use proctor_snapshot::StepRights;
use rustix::fs::{self, FlockOperation, RenameFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::cache_layer::{self, LayerRules, open_dir};
use super::merge::{MergeMode, merge};
use super::{CacheStore, SkillCacheError};
use crate::store::StoreError;
use crate::store::directory::{Directory, random_u64};

pub(crate) use content::{ContentDigest, SourceState};
pub(crate) use listing::{ListedEntry, ListedKind, PathListing};
pub(super) use stored_paths::{StoredPath, is_path_in_use, remove_abandoned_paths, remove_path, stored_paths};

/// Directory of the prepared paths, in that of all caches.
pub(super) const PREPARED_DIR: &str = "prepared";
const ENTRY_FILE: &str = "entry.json";
const CONTENT_DIR: &str = "content";
/// Directory in which an entry is completed before it gets its name, next to the writes of a command.
const STAGED_DIR: &str = "entry";
/// Directory to which a replaced or damaged entry is moved before its removal.
const REPLACED_DIR: &str = "replaced";
/// Maximum size of `entry.json`, in bytes.
const MAX_ENTRY_FILE: u64 = 64 << 10;
/// Version of `entry.json`.
const VERSION: u32 = 3;
/// Prefix of the names of entries that are being removed.
const REMOVED_PREFIX: &str = "removed-";

/// The identity of a prepared path. Different scopes share nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PathScope {
    /// The user who requested the run.
    pub(crate) caller: u32,
    /// The user that owns the files.
    pub(crate) owner: u32,
    /// Path of the repository, as text.
    pub(crate) repository: String,
    /// The path, relative to the repository.
    pub(crate) path: String,
    pub(crate) origin: PathOrigin,
}

/// The origin of a prepared path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum PathOrigin {
    /// The worktree. A newer copy replaces an older one.
    Worktree,
    /// A command, in a run of this trust scope, with these inputs.
    Command { trust_scope: String, inputs: Sha256Hex },
}

/// The record of a prepared path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PathRecord {
    version: u32,
    pub(crate) scope: PathScope,
    /// The state of the source from which the content was copied; `None` for the result of a command.
    pub(crate) source: Option<Sha256Hex>,
    /// The command, if there is one.
    pub(crate) command: Option<CommandRecord>,
    pub(crate) content: ContentDigest,
    /// A digest of names and stat data that changes if the stored content is changed.
    seal: Sha256Hex,
    /// Size on disk, in bytes.
    pub(crate) disk_bytes: u64,
}

/// The record of the command that produced a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CommandRecord {
    /// The command, without secrets.
    pub(crate) cmd: String,
    /// The digest of its inputs without the caller's values, which may be secret.
    pub(crate) key: Sha256Hex,
    pub(crate) network: Network,
    /// End time in UTC, RFC 3339.
    pub(crate) at: String,
}

/// A prepared path in use: it cannot be removed until this is dropped.
#[derive(Debug)]
pub(crate) struct HeldPath {
    pub(crate) record: PathRecord,
    /// Path of the directory that steps see.
    pub(crate) content: PathBuf,
    _lock: Option<OwnedFd>,
}

/// A path that is ready to be stored, in the directory `room` from `RunCacheDir::create_write_dir`.
pub(crate) struct NewPath<'a> {
    pub(crate) scope: PathScope,
    pub(crate) source: Option<Sha256Hex>,
    pub(crate) command: Option<CommandRecord>,
    pub(crate) room: &'a Path,
    /// True if the content is the upper directory of an overlay over an empty directory.
    pub(crate) is_overlay: bool,
    /// User and group that own the content afterwards, if the steps of each run have a separate user id.
    pub(crate) owner: Option<(u32, u32)>,
    /// Maximum size in bytes.
    pub(crate) max_bytes: u64,
}

impl PathScope {
    /// Returns the name of the entry's directory.
    fn directory_name(&self) -> String {
        Sha256Hex::digest(&canonical::to_vec(self)).prefix(32)
    }
}

impl PathRecord {
    /// Parses the record of an entry; `None` if the bytes are not in this format.
    fn parse(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok().filter(|record: &Self| record.version == VERSION)
    }
}

impl CacheStore {
    fn prepared(&self) -> Result<Directory, StoreError> {
        self.root.ensure(PREPARED_DIR, 0o700)
    }

    /// Returns the stored path of a scope, if its content is the one that was stored; for a copy, if `source` is
    /// still the state of the source. Removes a damaged entry.
    ///
    /// # Errors
    /// The state directory cannot be read.
    pub(crate) fn find_path(
        &self,
        scope: &PathScope,
        source: Option<&Sha256Hex>,
    ) -> Result<Option<HeldPath>, SkillCacheError> {
        let (prepared, name) = (self.prepared()?, scope.directory_name());
        let Some((entry, lock)) = lock_entry(&prepared, &name, FlockOperation::NonBlockingLockShared)? else {
            return Ok(None);
        };
        let record = entry.read(ENTRY_FILE, MAX_ENTRY_FILE)?.and_then(|bytes| PathRecord::parse(&bytes));
        let Some(record) = record.filter(|record| record.scope == *scope) else {
            return self.drop_damaged(&prepared, &name, &lock, "its record is malformed");
        };
        if record.source.as_ref() != source {
            return Ok(None);
        }
        match verify_content(&entry, record) {
            Ok(Some(record)) => {
                touch(&entry);
                let content = self.path.join(PREPARED_DIR).join(&name).join(CONTENT_DIR);
                Ok(Some(HeldPath { record, content, _lock: Some(lock) }))
            }
            Ok(None) => self.drop_damaged(&prepared, &name, &lock, "its content differs from the stored content"),
            Err(error) => self.drop_damaged(&prepared, &name, &lock, &error.to_string()),
        }
    }

    /// Returns the stored copy of a directory in this state. If its stat data may not show each change since the copy was
    /// made, the bytes are compared.
    ///
    /// # Errors
    /// The state directory or the source cannot be read.
    pub(crate) fn find_copy(
        &self,
        scope: &PathScope,
        source: &Directory,
        state: &SourceState,
    ) -> Result<Option<HeldPath>, SkillCacheError> {
        if let Some(settled) = state.recorded_settled()
            && let Some(held) = self.find_path(scope, Some(settled))?
        {
            return Ok(Some(held));
        }
        let Some(mut held) = self.find_path(scope, Some(&state.recorded_unsettled()))? else { return Ok(None) };
        let content = Directory::open(&held.content)?;
        if !content::has_same_bytes(source.as_fd(), content.as_fd())? {
            return Ok(None);
        }
        if let Some(settled) = state.recorded_settled() {
            // From now on, the stat data suffice.
            held.record.source = Some(settled.clone());
            let entry = self.prepared()?.descend(&scope.directory_name())?;
            entry.write(ENTRY_FILE, &canonical::to_vec(&held.record))?;
        }
        Ok(Some(held))
    }

    /// Returns whether the store has a copy with the given content of a directory in this state, for this caller, repository
    /// and path.
    pub(crate) fn has_copy(
        &self,
        stored: (u32, &str, &str),
        (source, state): (&Directory, &SourceState),
        sha256: &Sha256Hex,
    ) -> bool {
        let has_same_bytes = |entry: &Directory| {
            let content = entry.descend(CONTENT_DIR)?;
            content::has_same_bytes(source.as_fd(), content.as_fd())
        };
        self.has_path(stored, |record, entry| {
            let is_settled = state.recorded_settled().is_some_and(|settled| record.source.as_ref() == Some(settled));
            let is_unsettled = || record.source == Some(state.recorded_unsettled());
            record.content.sha256 == *sha256
                && (is_settled || (is_unsettled() && has_same_bytes(entry).unwrap_or(false)))
        })
    }

    /// Returns whether the store has an entry for this caller, repository and path that satisfies `is_wanted`. The
    /// files of the entry may have any owner. The content is not verified.
    pub(crate) fn has_path(
        &self,
        (caller, repository, path): (u32, &str, &str),
        is_wanted: impl Fn(&PathRecord, &Directory) -> bool,
    ) -> bool {
        let Ok(prepared) = self.prepared() else { return false };
        let record = |name: &String| {
            let entry = prepared.descend(name).ok()?;
            let bytes = entry.read(ENTRY_FILE, MAX_ENTRY_FILE).ok().flatten()?;
            Some((PathRecord::parse(&bytes)?, entry))
        };
        let is_of_path = |record: &PathRecord| {
            let PathScope { caller: of, repository: at, path: below, owner: _, origin: _ } = &record.scope;
            (*of, at.as_str(), below.as_str()) == (caller, repository, path)
        };
        let names = prepared.names().unwrap_or_default();
        names.iter().filter_map(record).any(|(record, entry)| is_of_path(&record) && is_wanted(&record, &entry))
    }

    /// Removes a damaged entry, unless another run uses it.
    fn drop_damaged(
        &self,
        prepared: &Directory,
        name: &str,
        lock: &OwnedFd,
        reason: &str,
    ) -> Result<Option<HeldPath>, SkillCacheError> {
        tracing::warn!(entry = name, "a prepared path is not used: {reason}");
        if fs::flock(lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let removed = removed_name()?;
            fs::renameat(prepared, name, prepared, &removed).map_err(StoreError::io("remove", name))?;
            super::remove_directory(prepared, &removed);
        }
        Ok(None)
    }

    /// Stores the content of `room`. If another run has stored the same path, or uses the copy that this one would
    /// replace, the content stays in `room` and serves this run only.
    ///
    /// # Errors
    /// The content is too large or cannot be stored, or the disk fails.
    pub(crate) fn store_path(&self, new: NewPath<'_>) -> Result<HeldPath, SkillCacheError> {
        let room = Directory::open(new.room)?;
        let content = room.descend(CACHE_UPPER)?;
        cache_layer::sanitize(content.as_fd(), LayerRules { is_overlay: new.is_overlay, owner: new.owner })?;
        let disk_bytes = cache_layer::summarize(content.as_fd())?.bytes;
        if disk_bytes > new.max_bytes {
            return Err(SkillCacheError::TooLarge { bytes: disk_bytes, most: new.max_bytes });
        }
        let digest = content::digest(content.as_fd())?;
        let staged = room.ensure(STAGED_DIR, 0o700)?;
        fs::renameat(&room, CACHE_UPPER, &staged, CONTENT_DIR).map_err(StoreError::io("name", content.name()))?;
        let seal = content::seal(content.as_fd())?;
        let name = new.scope.directory_name();
        let NewPath { scope, source, command, .. } = new;
        let record = PathRecord { version: VERSION, scope, source, command, content: digest, seal, disk_bytes };
        fs::syncfs(&self.root).map_err(StoreError::io("sync", self.root.name()))?;
        staged.write(ENTRY_FILE, &canonical::to_vec(&record))?;
        let lock = staged.as_fd().try_clone_to_owned().map_err(|source| SkillCacheError::Entry {
            action: "hold",
            path: STAGED_DIR.to_owned(),
            source,
        })?;
        fs::flock(&lock, FlockOperation::NonBlockingLockShared).map_err(StoreError::io("lock", staged.name()))?;
        let prepared = self.prepared()?;
        let is_stored = publish(&prepared, &room, &name)?;
        let stored = self.path.join(PREPARED_DIR).join(&name);
        let path = if is_stored { stored } else { new.room.join(STAGED_DIR) };
        Ok(HeldPath { record, content: path.join(CONTENT_DIR), _lock: Some(lock) })
    }

    /// Copies a directory into the empty directory `room/upper`. `source` must not change during the call; the caller
    /// checks that.
    ///
    /// # Errors
    /// The disk is full, or an entry cannot be copied.
    pub(crate) fn copy_directory(
        source: OwnedFd,
        room: &Path,
        owner: Option<(u32, u32)>,
    ) -> Result<(), SkillCacheError> {
        let to = Directory::open(&room.join(CACHE_UPPER))?;
        merge(&[source], to.as_fd(), MergeMode::Copy { owner })
    }
}

/// Prepares the upper directory with the writes of steps to a stored path for use as a lower layer.
///
/// # Errors
/// The directory cannot be read or changed.
pub(crate) fn seal_writes(upper: &Directory, owner: Option<(u32, u32)>) -> Result<(), SkillCacheError> {
    cache_layer::sanitize(upper.as_fd(), LayerRules { is_overlay: true, owner }).map(drop)
}

/// Sets the owner of a directory, if one is given.
///
/// # Errors
/// The owner cannot be changed.
pub(crate) fn set_owner(directory: &Directory, owner: Option<(u32, u32)>) -> Result<(), SkillCacheError> {
    let Some((uid, gid)) = owner else { return Ok(()) };
    let set = fs::fchown(directory, Some(fs::Uid::from_raw(uid)), Some(fs::Gid::from_raw(gid)));
    Ok(set.map_err(StoreError::io("change the owner of", directory.name()))?)
}

/// Returns the state of a directory from which a path is copied. With `rights`, refuses an entry that this user cannot read.
///
/// # Errors
/// The directory cannot be read.
pub(crate) fn source_state(
    directory: std::os::fd::BorrowedFd<'_>,
    rights: Option<StepRights>,
) -> Result<SourceState, SkillCacheError> {
    content::source_state(directory, rights)
}

/// Returns a digest of the names and stat data of all entries of a directory.
///
/// # Errors
/// The directory cannot be read.
pub(crate) fn stat_digest(directory: std::os::fd::BorrowedFd<'_>) -> Result<Sha256Hex, SkillCacheError> {
    content::seal(directory)
}

/// Renames the staged entry to its final name. Returns `false` if an entry with this name exists and cannot be
/// replaced.
fn publish(prepared: &Directory, room: &Directory, name: &str) -> Result<bool, StoreError> {
    for _ in 0..2 {
        match fs::renameat_with(room, STAGED_DIR, prepared, name, RenameFlags::NOREPLACE) {
            Ok(()) => {
                prepared.sync()?;
                return Ok(true);
            }
            Err(Errno::EXIST | Errno::NOTEMPTY) => {}
            Err(errno) => return Err(StoreError::io("name", name.to_owned())(errno)),
        }
        // An entry that a run uses is never replaced.
        let Some((_, _lock)) = lock_entry(prepared, name, FlockOperation::NonBlockingLockExclusive)? else {
            return Ok(false);
        };
        match fs::renameat_with(prepared, name, room, REPLACED_DIR, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(_) => return Ok(false),
        }
    }
    Ok(false)
}

/// Opens an entry and locks it; `None` if it does not exist, or if the lock is not free.
fn lock_entry(
    prepared: &Directory,
    name: &str,
    how: FlockOperation,
) -> Result<Option<(Directory, OwnedFd)>, StoreError> {
    let Ok(c_name) = CString::new(name) else { return Ok(None) };
    let lock = match open_dir(prepared.as_fd(), &c_name) {
        Ok(lock) => lock,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(StoreError::io("open", name.to_owned())(errno)),
    };
    if fs::flock(&lock, how).is_err() {
        return Ok(None);
    }
    let fd = lock.try_clone().map_err(|source| StoreError::Io { action: "hold", path: name.to_owned(), source })?;
    let entry = Directory::from_fd(fd, name.to_owned());
    // Another run may have replaced or removed the entry before we locked it.
    Ok(prepared.require_same(name, &entry).is_ok().then_some((entry, lock)))
}

/// Returns the record if the content is unchanged; `None` if it has changed. If only stat data differ, for example
/// after a restored backup, the content is hashed.
fn verify_content(entry: &Directory, record: PathRecord) -> Result<Option<PathRecord>, SkillCacheError> {
    let content = entry.descend(CONTENT_DIR)?;
    let seal = content::seal(content.as_fd())?;
    if seal == record.seal {
        return Ok(Some(record));
    }
    let digest = content::digest(content.as_fd())?;
    if digest.sha256 != record.content.sha256 {
        return Ok(None);
    }
    // The times of the files may have changed, for example after a restoration.
    let record = PathRecord { seal, content: digest, ..record };
    entry.write(ENTRY_FILE, &canonical::to_vec(&record))?;
    Ok(Some(record))
}

/// Updates the time of an entry's last use. A failure is only logged, since the entry is usable all the same.
fn touch(entry: &Directory) {
    let now = fs::Timespec { tv_sec: 0, tv_nsec: fs::UTIME_NOW };
    let times = fs::Timestamps { last_access: now, last_modification: now };
    if let Err(error) = fs::utimensat(entry, ENTRY_FILE, &times, fs::AtFlags::SYMLINK_NOFOLLOW) {
        tracing::debug!(error = %io::Error::from(error), "the use of a prepared path could not be recorded");
    }
}

/// Returns a name for an entry that is being removed.
fn removed_name() -> Result<String, StoreError> {
    Ok(format!("{REMOVED_PREFIX}{:016x}", random_u64()?))
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "fixtures, not Proctor documents")]
mod tests;

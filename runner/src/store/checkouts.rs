//! Trees of commits, checked out apart from their worktrees and kept for the next run of the same
//! commit: below `checkouts/<repository>/` of the state directory, one directory for each.
//!
//! ```text
//! <commit>[+submodules]/     ours; appears whole, by a rename
//!   checkout.json            what it held when it was made; its time says when it was last used
//!   own/                     the repository's owner's alone
//!     tree/                  the tree, with a git directory of its own
//! ```
//!
//! Who uses one holds a shared lock on its directory, and who removes one an exclusive one. A tree
//! that does not have the snapshot that was recorded is made anew.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proctor_core::digest::SnapshotId;
use proctor_core::drift::display_path;
use proctor_snapshot::protocol::CommitRef;
use proctor_snapshot::{CheckoutOf, GitHelper, Snapshot, SnapshotStore};
use rustix::fs::{self, FlockOperation, Gid, Mode, OFlags, RenameFlags, Timestamps, Uid};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::StoreError;
use super::directory::{Directory, random_u64};
use crate::error::EngineError;
use crate::repository::Repository;

pub(crate) mod eviction;

/// The directory of all checkouts, in the state directory.
pub(crate) const CHECKOUTS: &str = "checkouts";
/// What a checkout that is being made is called at first.
pub(crate) const UNFINISHED: &str = "new-";
/// What a checkout is called that nobody shall use any more.
pub(crate) const DISCARDED: &str = "old-";
/// What a checkout held when it was made.
pub(crate) const MANIFEST: &str = "checkout.json";
const OWN: &str = "own";
const TREE: &str = "tree";
/// The largest manifest that is read, in bytes.
const MAX_MANIFEST: u64 = 64 << 10;
/// How often a checkout is looked for or made: another run may take one away that was not used.
const ATTEMPTS: u32 = 3;

/// What is checked out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// The commit.
    pub(crate) commit: CommitRef,
    pub(crate) submodules: bool,
}

impl Wanted {
    fn name(&self) -> String {
        let suffix = if self.submodules { "+submodules" } else { "" };
        format!("{}{suffix}", self.commit.id)
    }
}

/// What a checkout held when it was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    /// The identity of the tree; another one is none of ours.
    pub(crate) snapshot: SnapshotId,
    /// The id of the commit's tree.
    pub(crate) tree: String,
    /// How many bytes its files have.
    pub(crate) bytes: u64,
    /// How many of its files are pointers of git-lfs.
    pub(crate) lfs_pointers: u64,
}

/// A checkout in use: nobody removes it until this is dropped.
#[derive(Debug)]
pub(crate) struct Checkout {
    pub(crate) manifest: Manifest,
    /// Its tree.
    pub(crate) tree: PathBuf,
    /// The objects of the repository, which its git directory borrows.
    pub(crate) objects: PathBuf,
    /// Ours, and locked for as long as this is open.
    _lock: Directory,
    /// What was read of its tree, for the next look; kept nowhere else.
    pub(crate) snapshots: Arc<SnapshotStore>,
    /// Who says what git makes of its tree.
    pub(crate) helper: GitHelper,
}

/// The checkouts of one repository.
pub(crate) struct Checkouts<'a> {
    repository: &'a Repository,
    helper: &'a GitHelper,
    root: Directory,
    path: PathBuf,
}

impl<'a> Checkouts<'a> {
    /// Those of `repository`, in the directory `key`.
    ///
    /// # Errors
    /// The state directory cannot be written.
    pub(crate) fn of(
        repository: &'a Repository,
        helper: &'a GitHelper,
        state: &Directory,
        (state_path, key): (&Path, &str),
    ) -> Result<Self, StoreError> {
        if repository.facts.uid != rustix::process::geteuid().as_raw() {
            let_through(state)?;
        }
        let root = state.ensure(CHECKOUTS, 0o711)?.ensure(key, 0o711)?;
        Ok(Self { repository, helper, root, path: state_path.join(CHECKOUTS).join(key) })
    }

    /// The checkout of a commit, from an earlier run where that is as it was made, with the snapshot
    /// that was taken of it now.
    ///
    /// # Errors
    /// The commit's tree is refused, or cannot be written.
    pub(crate) fn get(&self, wanted: &Wanted) -> Result<(Checkout, Snapshot), EngineError> {
        for _ in 0..ATTEMPTS {
            if let Some(found) = self.existing(wanted)? {
                return Ok(found);
            }
            if let Some(made) = self.make(wanted)? {
                return Ok(made);
            }
        }
        let what = format!("the checkout of {} was taken away each time it was made", wanted.commit.id);
        Err(EngineError::Internal(what))
    }

    /// A checkout that is there. One that cannot be stood by is put aside: half of it may be missing since
    /// the machine lost power, or somebody has changed it.
    fn existing(&self, wanted: &Wanted) -> Result<Option<(Checkout, Snapshot)>, EngineError> {
        let name = wanted.name();
        let Some(directory) = self.hold(&name)? else { return Ok(None) };
        match self.verified(wanted, directory) {
            Ok(found) => Ok(Some(found)),
            Err(reason) => {
                tracing::warn!(checkout = name, reason, "a checkout is not as it was made, and is made anew");
                self.discard(&name)?;
                Ok(None)
            }
        }
    }

    /// Opens a checkout and holds it against its removal.
    fn hold(&self, name: &str) -> Result<Option<Directory>, StoreError> {
        let directory = match self.root.descend(name) {
            Ok(directory) => directory,
            Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        match fs::flock(&directory, FlockOperation::NonBlockingLockShared) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(StoreError::io("lock", directory.name())(errno)),
        }
        // Somebody may have put it aside before it was held.
        let still = self.root.descend(name).and_then(|there| there.identity());
        let is_same = still.is_ok_and(|there| directory.identity().is_ok_and(|own| own == there));
        Ok(is_same.then_some(directory))
    }

    fn verified(&self, wanted: &Wanted, directory: Directory) -> Result<(Checkout, Snapshot), String> {
        let told = |error: &dyn std::fmt::Display| error.to_string();
        let bytes = directory.read(MANIFEST, MAX_MANIFEST).map_err(|error| told(&error))?;
        let manifest: Manifest =
            serde_json::from_slice(&bytes.ok_or("it has no manifest")?).map_err(|error| told(&error))?;
        let path = self.path.join(wanted.name());
        let own = path.join(OWN);
        let objects =
            self.helper.refresh(self.repository.path(), &wanted.commit.id, &own).map_err(|error| told(&error))?;
        // Every byte is read: what an earlier run remembers of it is not asked.
        let helper = self.over(&objects);
        let snapshots = Arc::new(SnapshotStore::new(helper.clone(), None));
        let snapshot = snapshots.take(&own.join(TREE)).map_err(|error| told(&error))?;
        let snapshot = Arc::unwrap_or_clone(snapshot);
        if snapshot.id != manifest.snapshot {
            return Err(format!("it has the snapshot {}, and had {}", snapshot.id, manifest.snapshot));
        }
        if let Some(stray) = snapshot.first_stray().map_err(|error| told(&error))? {
            return Err(format!("`{}` was put into it", display_path(&stray)));
        }
        used_now(&directory).map_err(|error| told(&error))?;
        Ok((Checkout { manifest, tree: own.join(TREE), objects, _lock: directory, snapshots, helper }, snapshot))
    }

    /// Makes a checkout under another name, and puts it in its place when it is whole. `None` where
    /// another run was faster.
    fn make(&self, wanted: &Wanted) -> Result<Option<(Checkout, Snapshot)>, EngineError> {
        let temporary = format!("{UNFINISHED}{:016x}", random_u64()?);
        let directory = self.root.ensure(&temporary, 0o711)?;
        // Held exclusively until it has its name, so that nobody clears it away.
        if !directory.try_lock()? {
            return Ok(None);
        }
        let made = self.fill(wanted, &temporary, &directory).and_then(|filled| {
            let published = self.publish(&temporary, &wanted.name())?;
            Ok(published.then_some(filled))
        });
        if !matches!(made, Ok(Some(_))) {
            remove(&self.path.join(&temporary));
        }
        let Some((manifest, objects, snapshot)) = made? else { return Ok(None) };
        // Not in one step: somebody who clears away may come in between, and then it is made once more.
        match fs::flock(&directory, FlockOperation::NonBlockingLockShared) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(StoreError::io("lock", directory.name())(errno).into()),
        }
        let path = self.path.join(wanted.name());
        let snapshot = moved(snapshot, &path.join(OWN).join(TREE));
        let helper = self.over(&objects);
        let snapshots = Arc::new(SnapshotStore::new(helper.clone(), None));
        let tree = path.join(OWN).join(TREE);
        Ok(Some((Checkout { manifest, tree, objects, _lock: directory, snapshots, helper }, snapshot)))
    }

    fn fill(
        &self,
        wanted: &Wanted,
        temporary: &str,
        directory: &Directory,
    ) -> Result<(Manifest, PathBuf, Snapshot), EngineError> {
        let own = directory.ensure(OWN, 0o700)?;
        let facts = &self.repository.facts;
        fs::fchown(&own, Some(Uid::from_raw(facts.uid)), Some(Gid::from_raw(facts.gid)))
            .map_err(StoreError::io("give to the repository's owner", own.name()))?;
        let into = self.path.join(temporary).join(OWN);
        let made = self.helper.check_out(self.repository.path(), &wanted.commit, &into, wanted.submodules)?;
        let snapshot = Snapshot::take(&into.join(TREE), &self.over(&made.objects))?;
        let manifest = Manifest {
            snapshot: snapshot.id.clone(),
            tree: made.tree,
            bytes: made.bytes,
            lfs_pointers: made.lfs_pointers,
        };
        let bytes = serde_json::to_vec(&manifest).map_err(|error| EngineError::Internal(error.to_string()))?;
        put_manifest(directory, &bytes).map_err(StoreError::io("write", directory.name()))?;
        Ok((manifest, made.objects, snapshot))
    }

    /// The helper for a checkout, which borrows `objects`.
    fn over(&self, objects: &Path) -> GitHelper {
        let of = CheckoutOf { seen_at: self.repository.path().to_path_buf(), objects: objects.to_owned() };
        self.helper.clone().over_checkouts(of)
    }

    /// Gives a whole checkout its name; `false` where another one has it.
    fn publish(&self, temporary: &str, name: &str) -> Result<bool, StoreError> {
        match fs::renameat_with(&self.root, temporary, &self.root, name, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(errno) => Err(StoreError::io("name", self.path.join(name).display().to_string())(errno)),
        }
    }

    /// Puts a checkout aside and removes it, unless somebody still uses it.
    fn discard(&self, name: &str) -> Result<(), StoreError> {
        let aside = format!("{DISCARDED}{:016x}", random_u64()?);
        match fs::renameat_with(&self.root, name, &self.root, &aside, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(StoreError::io("put aside", self.path.join(name).display().to_string())(errno)),
        }
        if self.root.descend(&aside)?.try_lock()? {
            remove(&self.path.join(&aside));
        }
        Ok(())
    }
}

/// The snapshot of a tree that was moved since.
fn moved(mut snapshot: Snapshot, tree: &Path) -> Snapshot {
    let git = tree.join(".git");
    snapshot.git.worktree = tree.to_owned();
    (snapshot.git.git_dir, snapshot.git.common_dir) = (git.clone(), git);
    snapshot
}

/// The owner's helper comes to its own directory below the state directory, and sees nothing of what
/// is beside it: all of that is closed by its own modes.
pub(crate) fn let_through(state: &Directory) -> Result<(), StoreError> {
    let stat = fs::fstat(state).map_err(StoreError::io("stat", state.name()))?;
    fs::fchmod(state, Mode::from_raw_mode(stat.st_mode & 0o7777 | 0o011))
        .map_err(StoreError::io("let the repository's owner through", state.name()))
}

/// Writes the manifest without waiting for the disk, which would wait for every file of the tree: half a
/// checkout, as after a loss of power, is noticed when it is looked at.
fn put_manifest(directory: &Directory, bytes: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = fs::openat(directory, MANIFEST, flags, Mode::from_raw_mode(0o600))?;
    let mut rest = bytes;
    while !rest.is_empty() {
        let count = rustix::io::retry_on_intr(|| rustix::io::write(&file, rest))?;
        rest = &rest[count..];
    }
    Ok(())
}

/// Notes that a checkout was used.
fn used_now(directory: &Directory) -> Result<(), StoreError> {
    let now = fs::Timespec { tv_sec: 0, tv_nsec: fs::UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    fs::utimensat(directory, MANIFEST, &times, fs::AtFlags::SYMLINK_NOFOLLOW)
        .map_err(StoreError::io("touch", directory.name()))
}

/// Removes a directory of ours; what cannot be removed is left to the next time.
pub(crate) fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_dir_all(path) {
        tracing::debug!(%error, path = %path.display(), "a checkout could not be removed");
    }
}

/// Holds a checkout for its removal; `None` where somebody uses it.
pub(crate) fn hold_to_remove(path: &Path) -> Option<File> {
    let directory = File::open(path).ok()?;
    fs::flock(directory.as_fd(), FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(directory)
}

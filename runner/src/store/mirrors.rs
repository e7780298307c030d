//! Manages the private copies of trees, in `mirrors/<repository>/` of the state directory, which only we can enter.
//! The trees of commits have separate copies in `mirrors/<repository>-commits/`, which contain no ignored files.
//!
//! ```text
//! lock                     held while a copy is prepared or removed
//! old-<sequence>-<random>/ a copy that is being removed
//! <sequence>/              a copy; the one with the highest number is the newest
//!   state                  identifies what the git directories of the tree were made from
//!   own/                   owned by the step's user, with mode 0700
//!     tree/ record journal as proctor-snapshot keeps them
//! ```
//!
//! A run holds a shared lock on its copy, and nothing changes a copy that is held. If no run holds the newest copy,
//! it is updated; for a commit, the blobs that it lacks are read from the repository. If a run holds it, a run of
//! the same tree joins it, and a run of another tree gets a new copy, made of hard links. Older copies are removed
//! when no run holds them. A tree that returns later therefore gets new modification times, so that the cached
//! build of another tree does not count as current.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proctor_core::digest::Sha256Hex;
use proctor_core::drift::display_path;
use proctor_core::gc::Freed;
use proctor_core::plan::RelPath;
use proctor_sandbox::{NestedGit, StepUser};
use proctor_snapshot::protocol::{CommitRef, GitHistory, RepoPath};
use proctor_snapshot::{
    CheckoutOf, CommitSource, GitHelper, IgnoredInput, MIRROR_RECORD, MIRROR_TREE, Mirror, MirrorError, MirrorOwner,
    Snapshot, SnapshotError, SnapshotStore, StepRights, TreePlace,
};
use rustix::fs::{FlockOperation, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, Uid, fchown, flock, futimens};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::StoreError;
use super::directory::{Directory, random_u64};
use crate::error::EngineError;
use crate::repository::Repository;
use crate::source::Keeping;

mod contents;
mod owner;
pub(crate) mod upkeep;

use contents::{Contents, Moment, Shown, is_one_moment};
use owner::{is_mapped, let_through, owner_for};

/// Directory of all private copies, in the state directory.
pub(crate) const MIRRORS: &str = "mirrors";
const LOCK: &str = "lock";
const OWN: &str = "own";
const STATE: &str = "state";
/// Maximum size of a `state` file, in bytes.
const MAX_STATE: u64 = 16 << 20;
/// Maximum wait for another run that prepares a copy of the same repository.
const PATIENCE: Duration = Duration::from_secs(120);
/// Maximum wait for the lock when an earlier run may answer the request.
const SHORT_PATIENCE: Duration = Duration::from_secs(2);
/// Pause between two attempts to take the lock.
const PAUSE: Duration = Duration::from_millis(5);
/// Maximum number of attempts to read a tree that is being edited, or to enter a directory that is being removed.
const ATTEMPTS: usize = 5;
/// Number of files of a copy that are hashed again before each run.
const SAMPLE: usize = 8;

/// A private copy in use. Nothing changes it until this is dropped.
#[derive(Debug)]
pub(crate) struct PrivateTree {
    /// Directory of the files.
    pub(crate) tree: PathBuf,
    /// The repository's object directory, which the git directory of the copy borrows from.
    pub(crate) objects: PathBuf,
    /// Repositories inside the tree that have git directories.
    pub(crate) nested: Vec<NestedGit>,
    /// Reads the git directory of the copy.
    pub(crate) helper: GitHelper,
    /// Holds the shared lock.
    _held: Directory,
    copies: Copies,
    number: u64,
}

impl PrivateTree {
    /// Removes the record of the copy, so that the next run reads every byte of it again.
    pub(crate) fn distrust(&self) {
        let record = self.tree.with_file_name(MIRROR_RECORD);
        if let Err(error) = fs::remove_file(&record)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(%error, path = %record.display(), "the record of a private copy cannot be removed");
        }
    }

    /// Returns the lock of the repository's copies if this copy is the newest one; `None` if there is a newer one.
    /// While the lock is held, no newer copy is made.
    ///
    /// # Errors
    /// The state directory cannot be read, or another run holds the lock for too long.
    pub(crate) fn lock_if_newest(&self) -> Result<Option<OwnedFd>, StoreError> {
        let lock = self.copies.lock()?;
        Ok((self.copies.numbers()?.last() == Some(&self.number)).then_some(lock))
    }
}

/// The directory of one repository's copies.
#[derive(Debug, Clone)]
struct Copies {
    root: Directory,
    path: PathBuf,
}

impl Copies {
    /// Uses the copies in `root`, whose path is `path`, and locks the directory against removal; `None` if it was
    /// just removed.
    fn in_use(root: Directory, path: PathBuf) -> Result<Option<Self>, StoreError> {
        match flock(&root, FlockOperation::NonBlockingLockShared) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(StoreError::io("lock", path.display().to_string())(errno)),
        }
        let is_there = rustix::fs::fstat(&root).is_ok_and(|found| found.st_nlink > 0);
        Ok(is_there.then_some(Self { root, path }))
    }

    /// Creates the directory at `path`, whose name in `mirrors` is `key`, and uses it.
    #[expect(clippy::disallowed_methods, reason = "no event tells that a clean-up has removed a directory")]
    fn make(mirrors: &Directory, key: &str, path: &Path, mode: u32) -> Result<Self, StoreError> {
        for _ in 0..ATTEMPTS {
            match mirrors.ensure_with_mode(key, mode) {
                Ok(root) => {
                    if let Some(copies) = Self::in_use(root, path.to_owned())? {
                        return Ok(copies);
                    }
                }
                // It was removed between creation and opening.
                Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            std::thread::sleep(PAUSE);
        }
        Err(StoreError::Busy { path: path.display().to_string() })
    }

    /// Takes the repository's lock, which the returned descriptor holds, and updates the time of the last use.
    fn lock(&self) -> Result<OwnedFd, StoreError> {
        let lock = self.lock_unused()?;
        used_now(&lock).map_err(|errno| self.lock_failed(errno))?;
        Ok(lock)
    }

    /// Takes the repository's lock without updating the time of the last use.
    fn lock_unused(&self) -> Result<OwnedFd, StoreError> {
        self.lock_within(PATIENCE)?.ok_or_else(|| StoreError::Busy { path: self.path.display().to_string() })
    }

    /// Takes the repository's lock; `None` on timeout.
    #[expect(clippy::disallowed_methods, reason = "flock(2) has no deadline, and no event reports a released lock")]
    fn lock_within(&self, patience: Duration) -> Result<Option<OwnedFd>, StoreError> {
        let deadline = Instant::now() + patience;
        loop {
            match self.try_lock()? {
                Some(lock) => return Ok(Some(lock)),
                None if Instant::now() < deadline => std::thread::sleep(PAUSE),
                None => return Ok(None),
            }
        }
    }

    /// Takes the repository's lock; `None` if a run or another process holds it.
    fn try_lock(&self) -> Result<Option<OwnedFd>, StoreError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.root, LOCK, flags, Mode::from_raw_mode(0o600));
        let file = file.map_err(|errno| self.lock_failed(errno))?;
        match rustix::io::retry_on_intr(|| flock(&file, FlockOperation::NonBlockingLockExclusive)) {
            Ok(()) => Ok(Some(file)),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(self.lock_failed(errno)),
        }
    }

    fn lock_failed(&self, errno: Errno) -> StoreError {
        StoreError::io("lock", self.path.join(LOCK).display().to_string())(errno)
    }

    /// Returns the numbers of the copies in ascending order.
    fn numbers(&self) -> Result<Vec<u64>, StoreError> {
        let mut numbers: Vec<u64> = self.root.names()?.iter().filter_map(|name| name.parse().ok()).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }
}

/// The private copies of one repository.
pub(crate) struct Mirrors<'a> {
    repository: &'a Repository,
    helper: &'a GitHelper,
    snapshots: &'a SnapshotStore,
    copies: Copies,
    owner: Option<MirrorOwner>,
    /// User and group id that the owner has inside steps; `None` if they are our own.
    seen_as: Option<(u32, u32)>,
}

/// The kind of trees that a directory of copies is for. Worktrees and commits may share files, but their copies
/// assign modification times independently, so that times of one kind cannot be compared with those of the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line {
    /// The worktree, with ignored files.
    Worktree,
    /// Commits and staged content.
    Commits,
}

impl Line {
    const ALL: [Self; 2] = [Self::Worktree, Self::Commits];

    /// Returns the name of the directory.
    fn key(self, repository: &Repository) -> String {
        let key = key_of(repository);
        match self {
            Self::Worktree => key,
            Self::Commits => format!("{key}-commits"),
        }
    }
}

/// The commit whose tree is copied.
#[derive(Debug, Clone)]
pub(crate) struct WantedCommit {
    pub(crate) commit: CommitRef,
    /// True if the trees of submodules are included.
    pub(crate) submodules: bool,
}

/// The ignored files that a private copy contains, and the bounds on its size.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Show<'a> {
    /// The paths to leave out when ignored files are copied; `None` if all ignored files are hidden.
    pub(crate) ignored: Option<&'a [RelPath]>,
    /// The user whose permission bits apply to reading them; `None` if steps have our own rights.
    pub(crate) rights: Option<StepRights>,
    /// Maximum number of covered and ignored files together.
    pub(crate) max_entries: usize,
    /// Maximum total size of these files in bytes.
    pub(crate) max_bytes: u64,
}

/// A private copy, or the bound that prevents it.
pub(crate) enum Copied {
    /// The copy.
    Ready(Box<Ready>),
    /// The covered files exceed this bound.
    TooLarge(TooLarge),
}

/// A bound that the covered files exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TooLarge {
    /// There are more than this number of files.
    Entries(usize),
    /// They have more than this number of bytes.
    Bytes(u64),
}

/// A private copy of a tree.
pub(crate) struct Ready {
    pub(crate) tree: PrivateTree,
    pub(crate) snapshot: Arc<Snapshot>,
    /// The ignored files in the copy; `None` if they are hidden.
    pub(crate) inputs: Option<Vec<IgnoredInput>>,
    /// Number of files of a commit that are git-lfs pointers.
    pub(crate) lfs_pointers: u64,
}

impl<'a> Mirrors<'a> {
    /// Opens the copies of `repository`; `None` if the copies of a worktree cannot be given to a separate user id.
    ///
    /// # Errors
    /// The state directory cannot be written.
    pub(crate) fn open(
        repository: &'a Repository,
        keeping: &Keeping<'a>,
        line: Line,
    ) -> Result<Option<Self>, EngineError> {
        let Keeping { helper, snapshots, state, state_path, host, .. } = *keeping;
        let is_root = host.is_root();
        let key = line.key(repository);
        let owner = match is_root.then(|| owner_for(&key)) {
            Some(owner) if !is_mapped(owner) && line == Line::Worktree => return Ok(None),
            // A container may map only few ids; the repository's owner then owns the copies of commits.
            Some(owner) if !is_mapped(owner) => {
                Some(MirrorOwner { uid: repository.facts.uid, gid: repository.facts.gid })
            }
            owner => owner,
        };
        // Under root, the git helper runs as the owner of the copy and must be able to traverse the directory.
        let mode = if is_root { 0o711 } else { 0o700 };
        if is_root {
            let_through(state)?;
        }
        let mirrors = state.ensure_with_mode(MIRRORS, mode)?;
        let copies = Copies::make(&mirrors, &key, &state_path.join(MIRRORS).join(&key), mode)?;
        let seen_as = is_root.then(|| StepUser::choose(host, &repository.facts)).transpose()?.map(StepUser::seen_as);
        Ok(Some(Self { repository, helper, snapshots, copies, owner, seen_as }))
    }

    /// Takes a snapshot of the worktree and updates or creates a private copy of it.
    ///
    /// # Errors
    /// The tree cannot be read or copied, or keeps changing.
    pub(crate) fn worktree(&self, show: Show<'_>) -> Result<Copied, EngineError> {
        let lock = self.copies.lock()?;
        for attempt in 1.. {
            let snapshot = self.snapshots.take(self.repository.path())?;
            if !self.repository.is_in_its_place()? {
                return Err(unstable(b"."));
            }
            let wanted = match show.wanted(&snapshot) {
                Ok(wanted) => wanted,
                Err(bound) => return Ok(Copied::TooLarge(bound)),
            };
            let nested = snapshot.repositories_inside();
            let history = self.helper.history(self.repository.path(), &nested)?;
            let moment = Moment { snapshot: &snapshot, history: &history, wanted: wanted.as_ref() };
            let prepared = match is_one_moment(&snapshot, &history) {
                true => self.prepare(&Contents::Worktree(moment))?,
                false => Prepared::Changed(b".git/HEAD".to_vec()),
            };
            match prepared {
                Prepared::Ready(ready) => {
                    drop(lock);
                    let inputs = wanted.is_some().then_some(ready.inputs.clone());
                    let tree = self.in_use(*ready, &history);
                    return Ok(Copied::Ready(Box::new(Ready { tree, snapshot, inputs, lfs_pointers: 0 })));
                }
                Prepared::Changed(path) if attempt >= ATTEMPTS => return Err(unstable(&path)),
                Prepared::Changed(_) => {}
            }
        }
        Err(unstable(b"."))
    }

    /// Updates or creates a private copy of a commit's tree.
    ///
    /// # Errors
    /// The commit or its tree is refused, or the copy cannot be written.
    pub(crate) fn commit(&self, wanted: &WantedCommit) -> Result<Ready, EngineError> {
        let lock = self.copies.lock()?;
        let WantedCommit { commit, submodules } = wanted;
        let (repo, submodules) = (self.repository.path(), *submodules);
        let history = self.helper.history(repo, &[])?;
        let tree = self.helper.tree(repo, commit, submodules)?;
        let source = CommitSource { repo, helper: self.helper, commit, tree: &tree, submodules };
        let head = source.head(&history);
        let contents = Contents::Commit { source, history: &history, head };
        let Prepared::Ready(ready) = self.prepare(&contents)? else { return Err(unstable(b".")) };
        drop(lock);
        let (lfs_pointers, number) = (ready.lfs_pointers, ready.number);
        let snapshot = Arc::new(ready.mirror.snapshot_of_commit(&self.tree_of(number), &source));
        let tree = self.in_use(*ready, &history);
        Ok(Ready { tree, snapshot, inputs: None, lfs_pointers })
    }

    /// Returns the ignored files that a copy made from `snapshot` now would contain. Returns `None` if the covered
    /// files exceed a bound, or if the lock is not free in time.
    ///
    /// # Errors
    /// The tree cannot be read.
    pub(crate) fn inputs_now(
        &self,
        show: Show<'_>,
        snapshot: &Snapshot,
    ) -> Result<Option<Vec<IgnoredInput>>, EngineError> {
        let Ok(wanted) = show.wanted(snapshot) else { return Ok(None) };
        let Some(wanted) = wanted else { return Ok(Some(Vec::new())) };
        // No process changes a record while we hold the lock.
        let Some(_lock) = self.copies.lock_within(SHORT_PATIENCE)? else { return Ok(None) };
        let newest = self.copies.numbers()?.pop().map(|number| self.copies.root.descend(&number.to_string()));
        let own = newest.and_then(Result::ok).and_then(|copy| copy.descend(OWN).ok());
        let own = own.as_ref().map(|own| own.as_fd());
        Ok(Mirror::inputs_now(own, self.repository.path(), snapshot, &wanted)?)
    }

    /// Returns the directory of a copy's files.
    fn tree_of(&self, number: u64) -> PathBuf {
        self.copies.path.join(number.to_string()).join(OWN).join(MIRROR_TREE)
    }

    fn in_use(&self, ready: Held, history: &GitHistory) -> PrivateTree {
        let of = CheckoutOf { seen_at: self.repository.path().to_path_buf(), objects: history.objects.clone() };
        let helper = self.helper.clone().over_checkouts(of);
        let Held { directory, number, nested, .. } = ready;
        let (tree, objects) = (self.tree_of(number), history.objects.clone());
        let path = |path: RepoPath| PathBuf::from(OsString::from_vec(path.0));
        let nested = nested.into_iter().map(|(at, objects)| NestedGit {
            git: self.repository.path().join(path(at)).join(".git"),
            objects: path(objects),
        });
        let nested = nested.collect();
        PrivateTree { tree, objects, nested, helper, _held: directory, copies: self.copies.clone(), number }
    }

    /// Updates the newest copy, or makes a new one, for a tree. The caller holds the lock.
    fn prepare(&self, contents: &Contents<'_>) -> Result<Prepared, EngineError> {
        let mut generations = self.copies.numbers()?;
        let newest = generations.pop();
        generations.iter().for_each(|old| self.remove_unused(*old));
        self.copies.remove_discarded(&mut Freed::default());
        let identity = contents.identity();
        let Some(newest) = newest else { return self.fill(&self.make(1)?, contents, &identity) };
        let generation = self.enter(newest)?;
        if generation.is_free()? {
            return match self.fill(&generation, contents, &identity) {
                Err(EngineError::Mirror(MirrorError::Damaged { path, problem })) => {
                    tracing::warn!(path, problem, "a private copy is damaged; Proctor creates it again");
                    drop(generation);
                    self.remove_unused(newest);
                    self.fill(&self.make(newest + 1)?, contents, &identity)
                }
                other => other,
            };
        }
        let copy = Mirror::open(generation.own.as_fd().try_clone_to_owned().map_err(internal)?, self.owner)?;
        if let Some(state) = generation.state()?.filter(|state| state.identity == identity)
            && let Some(shown) = contents.shown(self.repository.path(), &copy)?
        {
            return generation.join(copy, shown, state);
        }
        let next = self.make(newest + 1)?;
        copy.link_into(next.own.as_fd().try_clone_to_owned().map_err(internal)?)?;
        self.fill(&next, contents, &identity)
    }

    /// Updates a copy that no other run holds, then holds it.
    fn fill(
        &self,
        generation: &Generation,
        contents: &Contents<'_>,
        identity: &Sha256Hex,
    ) -> Result<Prepared, EngineError> {
        let current = generation.state()?.filter(|state| state.identity == *identity);
        if current.is_none() {
            // A crash must not leave the old state next to a new tree: the tree changes before the git directory
            // does.
            generation.forget_state()?;
        }
        let own = generation.own.as_fd().try_clone_to_owned().map_err(internal)?;
        let mut mirror = Mirror::open(own, self.owner)?;
        mirror.verify_sample(SAMPLE, random_u64()?)?;
        let shown = match contents.update(self.repository.path(), &mut mirror)? {
            Ok(shown) => shown,
            Err(path) => return Ok(Prepared::Changed(path)),
        };
        let tree = self.tree_of(generation.number);
        // A copy whose record was lost has lost its nested git directories too.
        let state = match current.filter(|state| has_git_dirs(&tree, state)) {
            Some(state) => state,
            None => {
                let place = TreePlace { tree: &tree, seen_at: self.repository.path(), seen_as: self.seen_as };
                let nested = contents.write_git(&mirror, place)?;
                let bytes = |path: PathBuf| RepoPath(path.into_os_string().into_encoded_bytes());
                let nested = nested.into_iter().map(|nested| (RepoPath(nested.at), bytes(nested.objects)));
                let state = State { identity: identity.clone(), nested: nested.collect() };
                generation.remember(&state)?;
                state
            }
        };
        generation.join(mirror, shown, state)
    }

    fn make(&self, number: u64) -> Result<Generation, EngineError> {
        let mode = if self.owner.is_some() { 0o711 } else { 0o700 };
        let directory = self.copies.root.ensure_with_mode(&number.to_string(), mode)?;
        let own = directory.ensure_with_mode(OWN, 0o700)?;
        if let Some(MirrorOwner { uid, gid }) = self.owner {
            fchown(&own, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
                .map_err(StoreError::io("give to the step's user", own.name()))?;
        }
        Ok(Generation { directory, own, number })
    }

    fn enter(&self, number: u64) -> Result<Generation, EngineError> {
        self.make(number)
    }

    /// Removes a copy that no run holds. If the removal fails, a later run repeats it.
    fn remove_unused(&self, number: u64) {
        match self.copies.discard(number) {
            Ok(Some(copy)) => copy.remove(&mut Freed::default()),
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, number, "a private copy stays"),
        }
    }
}

/// A copy, or the path that prevents one.
enum Prepared {
    Ready(Box<Held>),
    /// This path was edited during the update.
    Changed(Vec<u8>),
}

/// A copy that is held, and its content besides the tree.
struct Held {
    directory: Directory,
    mirror: Mirror,
    number: u64,
    inputs: Vec<IgnoredInput>,
    lfs_pointers: u64,
    nested: Vec<(RepoPath, RepoPath)>,
}

/// The identity of what the git directories of a copy were made from, and the object directories that they borrow
/// from.
#[derive(Serialize, Deserialize)]
struct State {
    identity: Sha256Hex,
    /// Each repository inside the tree, with the object directory that it borrows from.
    nested: Vec<(RepoPath, RepoPath)>,
}

/// The directory of one copy.
struct Generation {
    directory: Directory,
    own: Directory,
    number: u64,
}

impl Generation {
    /// Returns whether no run holds the copy; if so, takes the exclusive lock.
    fn is_free(&self) -> Result<bool, StoreError> {
        is_free(&self.directory)
    }

    /// Takes a shared lock on the copy, along with other runs of the same tree.
    fn join(&self, mirror: Mirror, shown: Shown, state: State) -> Result<Prepared, EngineError> {
        flock(&self.directory, FlockOperation::NonBlockingLockShared)
            .map_err(StoreError::io("lock", self.directory.name()))?;
        let Shown { inputs, lfs_pointers } = shown;
        let (directory, number, nested) = (self.directory.clone(), self.number, state.nested);
        Ok(Prepared::Ready(Box::new(Held { directory, mirror, number, inputs, lfs_pointers, nested })))
    }

    fn state(&self) -> Result<Option<State>, StoreError> {
        let bytes = self.directory.read(STATE, MAX_STATE)?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    fn forget_state(&self) -> Result<(), StoreError> {
        self.directory.remove(STATE)
    }

    fn remember(&self, state: &State) -> Result<(), EngineError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.directory, STATE, flags, Mode::from_raw_mode(0o600))
            .map_err(StoreError::io("write", self.directory.name()))?;
        serde_json::to_writer(fs::File::from(file), state).map_err(internal)
    }
}

/// Returns whether the nested git directories of a copy are complete: HEAD is the last file that is written.
fn has_git_dirs(tree: &Path, state: &State) -> bool {
    state.nested.iter().all(|(at, _)| tree.join(OsStr::from_bytes(&at.0)).join(".git/HEAD").is_file())
}

/// Returns whether no other process holds a copy; if so, takes the exclusive lock until `directory` is closed.
fn is_free(directory: &Directory) -> Result<bool, StoreError> {
    match flock(directory, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(StoreError::io("lock", directory.name())(errno)),
    }
}

/// Updates the time of the last use of a repository's copies.
fn used_now(lock: &OwnedFd) -> Result<(), Errno> {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    futimens(lock, &Timestamps { last_access: now, last_modification: now })
}

/// Returns the name of the directory of a repository's copies. The name depends on the path and the repository's
/// owner.
fn key_of(repository: &Repository) -> String {
    let path = repository.path().as_os_str().as_encoded_bytes();
    Sha256Hex::of(&[path, b"\0", &repository.facts.uid.to_le_bytes()].concat()).as_str()[..32].to_owned()
}

fn unstable(path: &[u8]) -> EngineError {
    EngineError::Snapshot(SnapshotError::Unstable { path: display_path(path) })
}

fn internal(error: impl std::fmt::Display) -> EngineError {
    EngineError::Internal(error.to_string())
}

//! Private copies of trees: below `mirrors/<repository>/` of the state directory, which only we can enter. The trees of
//! commits have copies of their own, in `mirrors/<repository>-commits/`: they show no ignored files.
//!
//! ```text
//! lock                     held while a copy is prepared, verified or taken away
//! old-<sequence>-<random>/ a copy that is being removed
//! <sequence>/              a copy; the one with the highest number is the newest
//!   state                  identifies what the git directories of the tree were made from
//!   own/                   the step user's, with mode 0700
//!     tree/ record journal as proctor-snapshot keeps them
//! ```
//!
//! A run holds a shared lock on its copy, and nothing changes a copy that is held. The newest copy is brought up to
//! date where no run holds it: of a commit, the blobs that it lacks are read from the repository. Where one does, a run of
//! the same tree joins it, and a run of another tree gets a new
//! copy, made of hard links. Older copies are removed when no run holds them: a tree that comes back later gets new
//! modification times, so that a cache that another tree's build has left is not taken for current.

use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
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
    Borrowed, CheckoutOf, CommitSource, CommitUpdate, GitHelper, IgnoredInput, IgnoredWanted, MIRROR_RECORD,
    MIRROR_TREE, Mirror, MirrorError, MirrorOwner, MirrorUpdate, Snapshot, SnapshotError, SnapshotStore, StepRights,
    TreePlace,
};
use rustix::fs::{FlockOperation, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, Uid, fchown, flock, futimens};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::StoreError;
use super::directory::{Directory, random_u64};
use crate::error::EngineError;
use crate::repository::Repository;
use crate::source::Keeping;

pub(crate) mod upkeep;

/// The directory of all private copies, in the state directory.
pub(crate) const MIRRORS: &str = "mirrors";
const LOCK: &str = "lock";
const OWN: &str = "own";
const STATE: &str = "state";
/// The largest file that says what a copy was made from, in bytes.
const MAX_STATE: u64 = 16 << 20;
/// The time that a run waits for another one that prepares a copy of the same repository.
const PATIENCE: Duration = Duration::from_secs(120);
/// The pause between two attempts to take the lock.
const PAUSE: Duration = Duration::from_millis(5);
/// The number of times that a tree is read which is edited meanwhile.
const ATTEMPTS: usize = 5;
/// The number of files of a copy that are hashed again before each run.
const SAMPLE: usize = 8;
/// The first user id of those that belong to nobody and own the copies of a root daemon, and how many there are.
const FIRST_OWNER: u32 = 1_879_113_728;
const OWNERS: u32 = (1 << 31) - FIRST_OWNER;

/// A private copy in use. Nothing changes it until this is dropped.
#[derive(Debug)]
pub(crate) struct PrivateTree {
    /// The directory that holds the files.
    pub(crate) tree: PathBuf,
    /// The objects of the repository, which the git directory of the copy borrows.
    pub(crate) objects: PathBuf,
    /// The repositories inside the tree that have git directories.
    pub(crate) nested: Vec<NestedGit>,
    /// Reads the git directory of the copy.
    pub(crate) helper: GitHelper,
    /// Holds the shared lock.
    _held: Directory,
    copies: Copies,
    number: u64,
}

impl PrivateTree {
    /// Has the next run read every byte of the copy again.
    pub(crate) fn distrust(&self) {
        let record = self.tree.with_file_name(MIRROR_RECORD);
        if let Err(error) = fs::remove_file(&record)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(%error, path = %record.display(), "the record of a private copy cannot be removed");
        }
    }

    /// Returns the lock of the repository's copies if this copy is the newest one; `None` if there is a newer one. While
    /// the lock is held, no newer copy is made.
    ///
    /// # Errors
    /// The state directory cannot be read, or another run holds the lock for too long.
    pub(crate) fn lock_if_newest(&self) -> Result<Option<OwnedFd>, StoreError> {
        let lock = self.copies.lock()?;
        Ok((self.copies.numbers()?.last() == Some(&self.number)).then_some(lock))
    }
}

/// The directory of the copies of one repository.
#[derive(Debug, Clone)]
struct Copies {
    root: Directory,
    path: PathBuf,
}

impl Copies {
    /// Takes the lock of the repository, which ends with what is returned, and notes that the copies are used.
    fn lock(&self) -> Result<OwnedFd, StoreError> {
        let lock = self.lock_unused()?;
        used_now(&lock).map_err(|errno| self.lock_failed(errno))?;
        Ok(lock)
    }

    /// Takes the lock of the repository and leaves the time of the last use as it is.
    #[expect(clippy::disallowed_methods, reason = "flock(2) has no deadline, and no event reports a released lock")]
    fn lock_unused(&self) -> Result<OwnedFd, StoreError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.try_lock()? {
                Some(lock) => return Ok(lock),
                None if Instant::now() < deadline => std::thread::sleep(PAUSE),
                None => return Err(StoreError::Busy { path: self.path.display().to_string() }),
            }
        }
    }

    /// Takes the lock of the repository; `None` where a run or another process holds it.
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

    /// Returns the numbers of the copies, in their order.
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
    /// The user and group as which steps see the owner; `None` where they are our own.
    seen_as: Option<(u32, u32)>,
}

/// Which trees of a repository a directory of copies is for. Files of both may be the same, but the modification times
/// that the one gives out say nothing of the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line {
    /// The worktree, with ignored files.
    Worktree,
    /// Commits, and what is staged.
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

/// A commit whose tree is wanted.
#[derive(Debug, Clone)]
pub(crate) struct WantedCommit {
    pub(crate) commit: CommitRef,
    /// Whether the trees of submodules belong to it.
    pub(crate) submodules: bool,
}

/// What a private copy is to show beside the covered files, and how large it may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Show<'a> {
    /// The ignored files; `None` where they are hidden.
    pub(crate) ignored: Option<&'a [RelPath]>,
    /// By whose permission bits they are read; `None` where our own rights are those of the steps.
    pub(crate) rights: Option<StepRights>,
    /// The number of covered and ignored files together.
    pub(crate) max_entries: usize,
    /// The number of their bytes.
    pub(crate) max_bytes: u64,
}

/// A private copy, or why there is none.
pub(crate) enum Copied {
    /// The copy.
    Ready(Box<Ready>),
    /// The covered files exceed this bound.
    TooLarge(TooLarge),
}

/// A bound that covered files exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TooLarge {
    /// There are more than this number.
    Entries(usize),
    /// They have more than this number of bytes.
    Bytes(u64),
}

/// A private copy of a tree.
pub(crate) struct Ready {
    pub(crate) tree: PrivateTree,
    pub(crate) snapshot: Arc<Snapshot>,
    /// The ignored files that it shows; `None` where they are hidden.
    pub(crate) inputs: Option<Vec<IgnoredInput>>,
    /// The number of files of a commit that are pointers of git-lfs.
    pub(crate) lfs_pointers: u64,
}

impl<'a> Mirrors<'a> {
    /// Opens the copies of `repository`; `None` where those of a worktree cannot be given to a user of their own.
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
            // In a container that has few ids.
            Some(owner) if !is_mapped(owner) => {
                Some(MirrorOwner { uid: repository.facts.uid, gid: repository.facts.gid })
            }
            owner => owner,
        };
        // Under root the reader of git runs as the owner of the copy and has to come through.
        let mode = if is_root { 0o711 } else { 0o700 };
        if is_root {
            let_through(state)?;
        }
        let root = state.ensure_with_mode(MIRRORS, mode)?.ensure_with_mode(&key, mode)?;
        let copies = Copies { root, path: state_path.join(MIRRORS).join(key) };
        let seen_as = is_root.then(|| StepUser::choose(host, &repository.facts)).transpose()?.map(StepUser::seen_as);
        Ok(Some(Self { repository, helper, snapshots, copies, owner, seen_as }))
    }

    /// Takes a snapshot of the work tree and brings a private copy to it.
    ///
    /// # Errors
    /// The tree cannot be read or copied, or is edited all the time.
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
                    let tree = self.in_use(ready, &history);
                    return Ok(Copied::Ready(Box::new(Ready { tree, snapshot, inputs, lfs_pointers: 0 })));
                }
                Prepared::Changed(path) if attempt >= ATTEMPTS => return Err(unstable(&path)),
                Prepared::Changed(_) => {}
            }
        }
        Err(unstable(b"."))
    }

    /// Brings a private copy to the tree of a commit.
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
        let tree = self.in_use(ready, &history);
        Ok(Ready { tree, snapshot, inputs: None, lfs_pointers })
    }

    /// Returns the directory of the files of a copy.
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

    /// Brings the newest copy, or a new one, to a tree. The caller holds the lock.
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

    /// Brings a copy that no other run holds to a tree, and holds it.
    fn fill(
        &self,
        generation: &Generation,
        contents: &Contents<'_>,
        identity: &Sha256Hex,
    ) -> Result<Prepared, EngineError> {
        let current = generation.state()?.filter(|state| state.identity == *identity);
        if current.is_none() {
            // The tree changes before the git directory does.
            generation.forget_state()?;
        }
        let own = generation.own.as_fd().try_clone_to_owned().map_err(internal)?;
        let mut mirror = Mirror::open(own, self.owner)?;
        mirror.verify_sample(SAMPLE, random_u64()?)?;
        let shown = match contents.update(self.repository.path(), &mut mirror)? {
            Ok(shown) => shown,
            Err(path) => return Ok(Prepared::Changed(path)),
        };
        let state = match current {
            Some(state) => state,
            None => {
                let tree = self.tree_of(generation.number);
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

    /// Removes a copy that no run holds; one that cannot be removed is left to the next time.
    fn remove_unused(&self, number: u64) {
        match self.copies.discard(number) {
            Ok(Some(copy)) => copy.remove(&mut Freed::default()),
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, number, "a private copy stays"),
        }
    }
}

impl<'a> Show<'a> {
    /// Returns what is left of the bounds for ignored files.
    fn wanted(&self, snapshot: &Snapshot) -> Result<Option<IgnoredWanted<'a>>, TooLarge> {
        let Show { ignored, rights, max_entries, max_bytes } = *self;
        let (entries, bytes) = snapshot.entries.size();
        let entries = max_entries.checked_sub(entries).ok_or(TooLarge::Entries(max_entries))?;
        let bytes = max_bytes.checked_sub(bytes).ok_or(TooLarge::Bytes(max_bytes))?;
        Ok(ignored.map(|except| IgnoredWanted { except, rights, max_entries: entries, max_bytes: bytes }))
    }
}

/// What a copy is to hold.
enum Contents<'a> {
    Worktree(Moment<'a>),
    Commit {
        source: CommitSource<'a>,
        history: &'a GitHistory,
        /// The line in HEAD.
        head: String,
    },
}

/// A work tree at one moment.
#[derive(Clone, Copy)]
struct Moment<'a> {
    snapshot: &'a Snapshot,
    history: &'a GitHistory,
    wanted: Option<&'a IgnoredWanted<'a>>,
}

/// What a copy shows beside the tree.
#[derive(Default)]
struct Shown {
    inputs: Vec<IgnoredInput>,
    lfs_pointers: u64,
}

impl Contents<'_> {
    /// Identifies the tree and the content of its git directories.
    fn identity(&self) -> Sha256Hex {
        match self {
            Self::Worktree(moment) => state_of(moment.snapshot, moment.history),
            Self::Commit { source, history, head } => {
                // Plain data of ours is always written.
                let parts = (&source.commit.id, source.submodules, head, history);
                Sha256Hex::of(&serde_json::to_vec(&parts).unwrap_or_default())
            }
        }
    }

    /// Returns what a copy that another run holds shows, if it can be used as it is.
    fn shown(&self, worktree: &Path, copy: &Mirror) -> Result<Option<Shown>, EngineError> {
        match self {
            Self::Worktree(Moment { snapshot, wanted, .. }) => {
                let inputs = copy.shown(worktree, snapshot, *wanted)?;
                Ok(inputs.map(|inputs| Shown { inputs, lfs_pointers: 0 }))
            }
            Self::Commit { source, .. } => {
                let lfs_pointers = copy.lfs_pointers_of(source)?;
                Ok(lfs_pointers.map(|lfs_pointers| Shown { inputs: Vec::new(), lfs_pointers }))
            }
        }
    }

    /// Brings a copy to the tree; answers with a path that was edited meanwhile, if there is one.
    fn update(&self, worktree: &Path, mirror: &mut Mirror) -> Result<Result<Shown, Vec<u8>>, EngineError> {
        let (written, bytes, shown) = match self {
            Self::Worktree(Moment { snapshot, wanted, .. }) => match mirror.update(worktree, snapshot, *wanted)? {
                MirrorUpdate::Changed(paths) => return Ok(Err(paths.into_iter().next().unwrap_or_default())),
                MirrorUpdate::Equal { copied, bytes, ignored } => {
                    (copied, bytes, Shown { inputs: ignored, lfs_pointers: 0 })
                }
            },
            Self::Commit { source, .. } => {
                let CommitUpdate { written, bytes, lfs_pointers } = mirror.update_to_commit(source)?;
                (written, bytes, Shown { inputs: Vec::new(), lfs_pointers })
            }
        };
        tracing::debug!(repo = %worktree.display(), written, bytes, "private copy prepared");
        if let Self::Worktree(Moment { snapshot, .. }) = self
            && mirror.id() != snapshot.id
        {
            let what = format!("the private copy has the tree {}, not {}", mirror.id(), snapshot.id);
            return Err(EngineError::Internal(what));
        }
        Ok(Ok(shown))
    }

    fn write_git(&self, mirror: &Mirror, place: TreePlace<'_>) -> Result<Vec<Borrowed>, EngineError> {
        Ok(match self {
            Self::Worktree(Moment { snapshot, history, .. }) => mirror.write_git(place, snapshot, history)?,
            Self::Commit { source, history, head } => mirror.write_git_of_commit(place, source, head, history)?,
        })
    }
}

/// A copy, or why there is none.
enum Prepared {
    Ready(Held),
    /// This path was edited meanwhile.
    Changed(Vec<u8>),
}

/// A copy that is held, and what it shows beside the tree.
struct Held {
    directory: Directory,
    mirror: Mirror,
    number: u64,
    inputs: Vec<IgnoredInput>,
    lfs_pointers: u64,
    nested: Vec<(RepoPath, RepoPath)>,
}

/// What the git directories of a copy were made from, and what they borrow.
#[derive(Serialize, Deserialize)]
struct State {
    identity: Sha256Hex,
    /// The directories of repositories inside the tree, and those of the objects that they borrow.
    nested: Vec<(RepoPath, RepoPath)>,
}

/// The directory of one copy.
struct Generation {
    directory: Directory,
    own: Directory,
    number: u64,
}

impl Generation {
    /// Returns whether no run holds the copy. Then this one holds it against all others.
    fn is_free(&self) -> Result<bool, StoreError> {
        is_free(&self.directory)
    }

    /// Holds the copy together with other runs of the same tree.
    fn join(&self, mirror: Mirror, shown: Shown, state: State) -> Result<Prepared, EngineError> {
        flock(&self.directory, FlockOperation::NonBlockingLockShared)
            .map_err(StoreError::io("lock", self.directory.name()))?;
        let Shown { inputs, lfs_pointers } = shown;
        let (directory, number, nested) = (self.directory.clone(), self.number, state.nested);
        Ok(Prepared::Ready(Held { directory, mirror, number, inputs, lfs_pointers, nested }))
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

/// Returns whether no other process holds a copy. Then this one holds it until `directory` is closed.
fn is_free(directory: &Directory) -> Result<bool, StoreError> {
    match flock(directory, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(StoreError::io("lock", directory.name())(errno)),
    }
}

/// Lets the helper of a copy's owner come to its own directory below the state directory. It sees nothing of what is
/// beside it: all of that is closed by its own modes.
fn let_through(state: &Directory) -> Result<(), StoreError> {
    let stat = rustix::fs::fstat(state).map_err(StoreError::io("stat", state.name()))?;
    rustix::fs::fchmod(state, Mode::from_raw_mode(stat.st_mode & 0o7777 | 0o011))
        .map_err(StoreError::io("let the owner of private copies through", state.name()))
}

/// Notes that the copies of a repository were used.
fn used_now(lock: &OwnedFd) -> Result<(), Errno> {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    futimens(lock, &Timestamps { last_access: now, last_modification: now })
}

/// Returns whether the refs say of HEAD's branch what the snapshot says: a commit may have come in between.
fn is_one_moment(snapshot: &Snapshot, history: &GitHistory) -> bool {
    let (Some(commit), Some(branch)) = (&snapshot.git.head_commit, &snapshot.git.branch) else { return true };
    let line = format!("{commit} refs/heads/{branch}");
    history.refs.0.split(|byte| *byte == b'\n').any(|found| found == line.as_bytes())
}

/// Identifies a work tree and the content of its git directories.
fn state_of(snapshot: &Snapshot, history: &GitHistory) -> Sha256Hex {
    let git = &snapshot.git;
    let index = snapshot.index_identity();
    let nested = if history.nested.is_empty() { None } else { snapshot.listing_identity() };
    let parts = (snapshot.id.as_str(), &git.head_commit, &git.branch, git.tree.as_ref().ok(), index, nested, history);
    // Plain data of ours is always written.
    Sha256Hex::of(&serde_json::to_vec(&parts).unwrap_or_default())
}

/// Returns the name of the directory of a repository's copies, which belong to another user where the repository does.
fn key_of(repository: &Repository) -> String {
    let path = repository.path().as_os_str().as_encoded_bytes();
    Sha256Hex::of(&[path, b"\0", &repository.facts.uid.to_le_bytes()].concat()).as_str()[..32].to_owned()
}

/// Picks the user that owns the copies of a repository under a root daemon: an id that belongs to nobody, so that no
/// process outside of sandboxes can change the copy or a step.
fn owner_for(key: &str) -> MirrorOwner {
    let digest = Sha256Hex::of(key.as_bytes()).to_raw();
    let number = u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]]);
    let id = FIRST_OWNER + number % OWNERS;
    MirrorOwner { uid: id, gid: id }
}

/// Returns whether our user namespace has the ids of an owner: in a container it may have few.
fn is_mapped(owner: MirrorOwner) -> bool {
    let maps = |file: &str, id: u32| fs::read_to_string(file).is_ok_and(|map| has_id(&map, id));
    maps("/proc/self/uid_map", owner.uid) && maps("/proc/self/gid_map", owner.gid)
}

/// Returns whether a map of ids as user_namespaces(7) describes it has `id`.
fn has_id(map: &str, id: u32) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_ascii_whitespace().map(str::parse::<u64>);
        let (Some(Ok(first)), _, Some(Ok(count))) = (numbers.next(), numbers.next(), numbers.next()) else {
            return false;
        };
        (first..first.saturating_add(count)).contains(&u64::from(id))
    })
}

fn unstable(path: &[u8]) -> EngineError {
    EngineError::Snapshot(SnapshotError::Unstable { path: display_path(path) })
}

fn internal(error: impl std::fmt::Display) -> EngineError {
    EngineError::Internal(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_which_ids_a_user_namespace_has() {
        let host = "         0          0 4294967295\n";
        assert!(has_id(host, FIRST_OWNER));
        assert!(!has_id("0 1000 1\n1 100000 65536\n", FIRST_OWNER) && has_id("0 1000 1\n1 100000 65536\n", 65_536));
        assert!(!has_id("", 0) && !has_id("no map", 0));
    }
}

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
use std::time::Duration;

use proctor_core::decision::gc::FreedItems;
use proctor_core::model::drift::display_path;
use proctor_core::text::digest::Sha256Hex;
use proctor_git::error::GitError;
use proctor_git::files::repo_path::RepoPath;
use proctor_git::helper::GitHelper;
use proctor_git::protocol::{CommitRef, GitHistory};
use proctor_git::repository_paths::OriginalRepository;
use proctor_sandbox::{Host, NestedGit, StepUser};
use proctor_snapshot::{
    CommitSource, IgnoredInput, MIRROR_RECORD, MIRROR_TREE, Mirror, MirrorError, MirrorOwner, Snapshot, SnapshotError,
    SnapshotStore, TreeLocation,
};
use rustix::fs::{FlockOperation, Gid, Mode, OFlags, Uid, fchown, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::StoreError;
use super::directory::{Directory, random_u64};
use crate::error::EngineError;
use crate::host::repository::Repository;

mod copy_directory;
pub(crate) mod copy_maintenance;
mod copy_owner;
mod copy_source;

use copy_directory::CopyDirectory;
use copy_owner::{allow_traversal, is_mapped, owner_for};
use copy_source::{CopyExtras, PrivateCopySource, WorktreeMoment, is_consistent};

pub(crate) use copy_source::{CopyContent, ExceededBound};

/// Directory of all private copies, in the state directory.
pub(crate) const MIRRORS_DIR: &str = "mirrors";
const OWN_DIR: &str = "own";
const STATE_FILE: &str = "state";
/// Maximum size of a `state` file, in bytes.
const MAX_STATE: u64 = 16 << 20;
/// Maximum wait for the lock when an earlier run may answer the request.
const SHORT_LOCK_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of attempts to read a tree that is being edited.
const MAX_ATTEMPTS: usize = 5;
/// Number of files of a copy that are hashed again before each run.
const SAMPLE_SIZE: usize = 8;

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
    copies: CopyDirectory,
    number: u64,
    /// True if the copies may occupy more space than before.
    pub(crate) has_grown: bool,
}

impl PrivateTree {
    /// Removes the record of the copy, so that the next run reads every byte of it again.
    pub(crate) fn discard_record(&self) {
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

/// The private copies of one repository.
pub(crate) struct PrivateCopies<'a> {
    repository: &'a Repository,
    helper: &'a GitHelper,
    snapshots: &'a SnapshotStore,
    copies: CopyDirectory,
    owner: Option<MirrorOwner>,
    /// User and group id that the owner has inside steps; `None` if they are our own.
    seen_as: Option<(u32, u32)>,
}

/// The kind of trees that a directory of copies is for. Worktrees and commits may share files, but their copies
/// assign modification times independently, so that times of one kind cannot be compared with those of the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopyKind {
    /// The worktree, with ignored files.
    Worktree,
    /// Commits and staged content.
    Commits,
}

impl CopyKind {
    const ALL: [Self; 2] = [Self::Worktree, Self::Commits];

    /// Returns the name of the directory.
    fn directory_name(self, repository: &Repository) -> String {
        let key = repository_key(repository);
        match self {
            Self::Worktree => key,
            Self::Commits => format!("{key}-commits"),
        }
    }
}

/// The resources for preparing trees.
pub(crate) struct TreeResources<'a> {
    pub(crate) helper: &'a GitHelper,
    pub(crate) snapshots: &'a SnapshotStore,
    pub(crate) state: &'a Directory,
    pub(crate) state_path: &'a Path,
    pub(crate) host: &'a Host,
    /// The content of a private copy of a worktree; `None` if steps see the worktree itself.
    pub(crate) copy_content: Option<CopyContent<'a>>,
}

/// The commit whose tree is copied.
#[derive(Debug, Clone)]
pub(crate) struct WantedCommit {
    pub(crate) commit: CommitRef,
    /// True if the trees of submodules are included.
    pub(crate) submodules: bool,
}

/// A private copy, or the bound that prevents it.
pub(crate) enum PrivateCopyResult {
    /// The copy.
    Ready(Box<PreparedCopy>),
    /// The covered files exceed the bound.
    TooLarge(ExceededBound),
}

/// A private copy of a tree.
pub(crate) struct PreparedCopy {
    pub(crate) tree: PrivateTree,
    pub(crate) snapshot: Arc<Snapshot>,
    /// The ignored files in the copy; `None` if they are hidden.
    pub(crate) inputs: Option<Vec<IgnoredInput>>,
    /// Number of files of a commit that are git-lfs pointers.
    pub(crate) lfs_pointers: u64,
}

impl<'a> PrivateCopies<'a> {
    /// Opens the copies of `repository`; `None` if the copies of a worktree cannot be given to a separate user id.
    ///
    /// # Errors
    /// The state directory cannot be written.
    pub(crate) fn open(
        repository: &'a Repository,
        resources: &TreeResources<'a>,
        kind: CopyKind,
    ) -> Result<Option<Self>, EngineError> {
        let TreeResources { helper, snapshots, state, state_path, host, .. } = *resources;
        let is_root = host.is_root();
        let key = kind.directory_name(repository);
        let owner = match is_root.then(|| owner_for(&key)) {
            Some(owner) if !is_mapped(owner) && kind == CopyKind::Worktree => return Ok(None),
            // A container may map only few ids; the repository's owner then owns the copies of commits.
            Some(owner) if !is_mapped(owner) => {
                Some(MirrorOwner { uid: repository.facts.uid, gid: repository.facts.gid })
            }
            owner => owner,
        };
        // Under root, the git helper runs as the owner of the copy and must be able to traverse the directory.
        let mode = if is_root { 0o711 } else { 0o700 };
        if is_root {
            allow_traversal(state)?;
        }
        let mirrors = state.ensure_with_mode(MIRRORS_DIR, mode)?;
        let copies = CopyDirectory::create_locked(&mirrors, &key, &state_path.join(MIRRORS_DIR).join(&key), mode)?;
        let seen_as =
            is_root.then(|| StepUser::choose(host, &repository.facts)).transpose()?.map(StepUser::ids_in_sandbox);
        Ok(Some(Self { repository, helper, snapshots, copies, owner, seen_as }))
    }

    /// Takes a snapshot of the worktree and updates or creates a private copy of it.
    ///
    /// # Errors
    /// The tree cannot be read or copied, or keeps changing.
    pub(crate) fn copy_worktree(&self, show: CopyContent<'_>) -> Result<PrivateCopyResult, EngineError> {
        let lock = self.copies.lock()?;
        for attempt in 1.. {
            let (snapshot, history) = self.with_history(|| self.snapshots.take(self.repository.path()));
            let snapshot = snapshot?;
            if !self.repository.is_still_at_path()? {
                return Err(unstable_error(b"."));
            }
            let wanted = match show.ignored_to_copy(&snapshot) {
                Ok(wanted) => wanted,
                Err(bound) => return Ok(PrivateCopyResult::TooLarge(bound)),
            };
            let nested = snapshot.nested_repositories();
            let history = match nested.is_empty() {
                true => history?,
                false => Arc::new(self.helper.history(self.repository.path(), &nested)?),
            };
            let moment = WorktreeMoment { snapshot: &snapshot, history: &history, ignored: wanted.as_ref() };
            let prepared = match is_consistent(&snapshot, &history) {
                true => self.prepare(&PrivateCopySource::Worktree(moment))?,
                false => PrepareOutcome::Changed(b".git/HEAD".to_vec()),
            };
            match prepared {
                PrepareOutcome::Ready(ready) => {
                    drop(lock);
                    let inputs = wanted.is_some().then_some(ready.inputs.clone());
                    let tree = self.private_tree_of_copy(*ready, &history);
                    return Ok(PrivateCopyResult::Ready(Box::new(PreparedCopy {
                        tree,
                        snapshot,
                        inputs,
                        lfs_pointers: 0,
                    })));
                }
                PrepareOutcome::Changed(path) if attempt >= MAX_ATTEMPTS => return Err(unstable_error(&path)),
                PrepareOutcome::Changed(_) => {}
            }
        }
        Err(unstable_error(b"."))
    }

    /// Returns the refs of the repository, without those of nested repositories. They are read while `work` runs, unless they
    /// are known.
    fn with_history<T>(&self, work: impl FnOnce() -> T) -> (T, Result<Arc<GitHistory>, GitError>) {
        let repo = self.repository.path();
        if let Some(known) = self.snapshots.known_history(repo) {
            return (work(), Ok(known));
        }
        let read = || self.snapshots.read_history(repo);
        std::thread::scope(|scope| {
            let reader = std::thread::Builder::new().name("refs".to_owned()).spawn_scoped(scope, read);
            let done = work();
            // Without another thread, or if it has ended badly, the refs are read afterwards.
            let history = reader.ok().and_then(|reader| reader.join().ok());
            (done, history.unwrap_or_else(read))
        })
    }

    /// Updates or creates a private copy of a commit's tree.
    ///
    /// # Errors
    /// The commit or its tree is refused, or the copy cannot be written.
    pub(crate) fn copy_commit(&self, wanted: &WantedCommit) -> Result<PreparedCopy, EngineError> {
        let lock = self.copies.lock()?;
        let WantedCommit { commit, submodules } = wanted;
        let (repo, submodules) = (self.repository.path(), *submodules);
        let (tree, history) = self.with_history(|| self.helper.tree(repo, commit, submodules));
        let (tree, history) = (tree?, history?);
        let source = CommitSource { repo, helper: self.helper, commit, tree: &tree, submodules };
        let head = source.head_line(&history);
        let contents = PrivateCopySource::Commit { source, history: &history, head };
        let prepared = self.prepare(&contents).map_err(|error| match error {
            // The blobs are read while the copy is updated; such an error is about the commit.
            EngineError::Mirror(MirrorError::Snapshot(SnapshotError::Git(error))) => EngineError::Git(error),
            other => other,
        });
        let PrepareOutcome::Ready(ready) = prepared? else { return Err(unstable_error(b".")) };
        drop(lock);
        let (lfs_pointers, number) = (ready.lfs_pointers, ready.number);
        let snapshot = Arc::new(ready.mirror.snapshot_of_commit(&self.tree_path(number), &source));
        let tree = self.private_tree_of_copy(*ready, &history);
        Ok(PreparedCopy { tree, snapshot, inputs: None, lfs_pointers })
    }

    /// Returns the ignored files that a copy made from `snapshot` now would contain. Returns `None` if the covered
    /// files exceed a bound, or if the lock is not free in time.
    ///
    /// # Errors
    /// The tree cannot be read.
    pub(crate) fn current_inputs(
        &self,
        show: CopyContent<'_>,
        snapshot: &Snapshot,
    ) -> Result<Option<Vec<IgnoredInput>>, EngineError> {
        let Ok(wanted) = show.ignored_to_copy(snapshot) else { return Ok(None) };
        let Some(wanted) = wanted else { return Ok(Some(Vec::new())) };
        // No other process changes a record while this process holds the lock.
        let Some(_lock) = self.copies.lock_with_timeout(SHORT_LOCK_TIMEOUT)? else { return Ok(None) };
        let newest = self.copies.numbers()?.pop().map(|number| self.copies.root.descend(&number.to_string()));
        let own = newest.and_then(Result::ok).and_then(|copy| copy.descend(OWN_DIR).ok());
        let own = own.as_ref().map(|own| own.as_fd());
        Ok(Mirror::current_inputs(own, self.repository.path(), snapshot, &wanted)?)
    }

    /// Returns the directory of a copy's files.
    fn tree_path(&self, number: u64) -> PathBuf {
        self.copies.path.join(number.to_string()).join(OWN_DIR).join(MIRROR_TREE)
    }

    fn private_tree_of_copy(&self, ready: HeldCopy, history: &GitHistory) -> PrivateTree {
        let of = OriginalRepository { seen_at: self.repository.path().to_path_buf(), objects: history.objects.clone() };
        let helper = self.helper.clone().for_checkouts(of);
        let HeldCopy { directory, number, nested, has_grown, .. } = ready;
        let (tree, objects) = (self.tree_path(number), history.objects.clone());
        let path = |path: RepoPath| PathBuf::from(OsString::from_vec(path.0));
        let nested = nested.into_iter().map(|(at, objects)| NestedGit {
            git: self.repository.path().join(path(at)).join(".git"),
            objects: path(objects),
        });
        let nested = nested.collect();
        PrivateTree { tree, objects, nested, helper, _held: directory, copies: self.copies.clone(), number, has_grown }
    }

    /// Updates the newest copy, or makes a new one, for a tree. The caller holds the lock.
    fn prepare(&self, contents: &PrivateCopySource<'_>) -> Result<PrepareOutcome, EngineError> {
        let mut older = self.copies.numbers()?;
        let newest = older.pop();
        older.iter().for_each(|old| self.remove_unused(*old));
        self.copies.remove_discarded(&mut FreedItems::default());
        let identity = contents.identity();
        let Some(newest) = newest else {
            return self.update_and_hold(&self.create_generation(1)?, contents, &identity);
        };
        let generation = self.open_generation(newest)?;
        if generation.is_free()? {
            return match self.update_and_hold(&generation, contents, &identity) {
                Err(EngineError::Mirror(MirrorError::Damaged { path, problem })) => {
                    tracing::warn!(path, problem, "a private copy is damaged; Proctor creates it again");
                    drop(generation);
                    self.remove_unused(newest);
                    self.update_and_hold(&self.create_generation(newest + 1)?, contents, &identity)
                }
                other => other,
            };
        }
        let copy = Mirror::open(generation.own_dir.as_fd().try_clone_to_owned().map_err(internal_error)?, self.owner)?;
        if let Some(state) = generation.read_state()?.filter(|state| state.identity == identity)
            && let Some(shown) = contents.reusable_extras(self.repository.path(), &copy)?
        {
            return generation.join(copy, shown, state, false);
        }
        let next = self.create_generation(newest + 1)?;
        copy.link_into(next.own_dir.as_fd().try_clone_to_owned().map_err(internal_error)?)?;
        self.update_and_hold(&next, contents, &identity)
    }

    /// Updates a copy that no other run holds, then holds it.
    fn update_and_hold(
        &self,
        generation: &CopyGeneration,
        contents: &PrivateCopySource<'_>,
        identity: &Sha256Hex,
    ) -> Result<PrepareOutcome, EngineError> {
        let current = generation.read_state()?.filter(|state| state.identity == *identity);
        if current.is_none() {
            // A crash must not leave the old state next to a new tree: the tree changes before the git directory
            // does.
            generation.remove_state()?;
        }
        let own = generation.own_dir.as_fd().try_clone_to_owned().map_err(internal_error)?;
        let mut mirror = Mirror::open(own, self.owner)?;
        mirror.verify_sample(SAMPLE_SIZE, random_u64()?)?;
        let shown = match contents.update(self.repository.path(), &mut mirror)? {
            Ok(shown) => shown,
            Err(path) => return Ok(PrepareOutcome::Changed(path)),
        };
        let tree = self.tree_path(generation.number);
        let is_same = current.is_some() && shown.written == 0;
        // A copy whose record was lost has lost its nested git directories too.
        let state = match current.filter(|state| has_git_dirs(&tree, state)) {
            Some(state) => state,
            None => {
                let place = TreeLocation { tree: &tree, seen_at: self.repository.path(), seen_as: self.seen_as };
                let nested = contents.write_git(&mirror, place)?;
                let bytes = |path: PathBuf| RepoPath(path.into_os_string().into_encoded_bytes());
                let nested = nested.into_iter().map(|nested| (RepoPath(nested.repository), bytes(nested.objects)));
                let state = GitDirState { identity: identity.clone(), nested: nested.collect() };
                generation.write_state(&state)?;
                state
            }
        };
        generation.join(mirror, shown, state, !is_same)
    }

    fn create_generation(&self, number: u64) -> Result<CopyGeneration, EngineError> {
        let mode = if self.owner.is_some() { 0o711 } else { 0o700 };
        let directory = self.copies.root.ensure_with_mode(&number.to_string(), mode)?;
        let own = directory.ensure_with_mode(OWN_DIR, 0o700)?;
        if let Some(MirrorOwner { uid, gid }) = self.owner {
            fchown(&own, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
                .map_err(StoreError::io("change the owner to the step's user", own.name()))?;
        }
        Ok(CopyGeneration { directory, own_dir: own, number })
    }

    fn open_generation(&self, number: u64) -> Result<CopyGeneration, EngineError> {
        self.create_generation(number)
    }

    /// Removes a copy that no run holds. If the removal fails, a later run repeats it.
    fn remove_unused(&self, number: u64) {
        match self.copies.discard(number) {
            Ok(Some(copy)) => copy.remove(&mut FreedItems::default()),
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, number, "a private copy could not be removed"),
        }
    }
}

/// A copy, or the path that prevents one.
enum PrepareOutcome {
    Ready(Box<HeldCopy>),
    /// The path was edited during the update.
    Changed(Vec<u8>),
}

/// A copy that is held, and its content besides the tree.
struct HeldCopy {
    directory: Directory,
    mirror: Mirror,
    number: u64,
    inputs: Vec<IgnoredInput>,
    lfs_pointers: u64,
    nested: Vec<(RepoPath, RepoPath)>,
    /// True if the copies may occupy more space than before.
    has_grown: bool,
}

/// The identity of what the git directories of a copy were made from, and the object directories that they borrow
/// from.
#[derive(Serialize, Deserialize)]
struct GitDirState {
    identity: Sha256Hex,
    /// Each repository inside the tree, with the object directory that it borrows from.
    nested: Vec<(RepoPath, RepoPath)>,
}

/// The directory of one copy.
struct CopyGeneration {
    directory: Directory,
    own_dir: Directory,
    number: u64,
}

impl CopyGeneration {
    /// Returns whether no run holds the copy; if so, takes the exclusive lock.
    fn is_free(&self) -> Result<bool, StoreError> {
        is_free(&self.directory)
    }

    /// Takes a shared lock on the copy, along with other runs of the same tree.
    fn join(
        &self,
        mirror: Mirror,
        shown: CopyExtras,
        state: GitDirState,
        has_grown: bool,
    ) -> Result<PrepareOutcome, EngineError> {
        flock(&self.directory, FlockOperation::NonBlockingLockShared)
            .map_err(StoreError::io("lock", self.directory.name()))?;
        let CopyExtras { inputs, lfs_pointers, .. } = shown;
        let (directory, number, nested) = (self.directory.clone(), self.number, state.nested);
        let held = HeldCopy { directory, mirror, number, inputs, lfs_pointers, nested, has_grown };
        Ok(PrepareOutcome::Ready(Box::new(held)))
    }

    fn read_state(&self) -> Result<Option<GitDirState>, StoreError> {
        let bytes = self.directory.read(STATE_FILE, MAX_STATE)?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    fn remove_state(&self) -> Result<(), StoreError> {
        self.directory.remove(STATE_FILE)
    }

    fn write_state(&self, state: &GitDirState) -> Result<(), EngineError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.directory, STATE_FILE, flags, Mode::from_raw_mode(0o600))
            .map_err(StoreError::io("write", self.directory.name()))?;
        serde_json::to_writer(fs::File::from(file), state).map_err(internal_error)
    }
}

/// Returns whether the nested git directories of a copy are complete: HEAD is the last file that is written.
fn has_git_dirs(tree: &Path, state: &GitDirState) -> bool {
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

/// Returns the name of the directory of a repository's copies. The name depends on the path and the repository's
/// owner.
fn repository_key(repository: &Repository) -> String {
    copies_name(repository.path().as_os_str().as_encoded_bytes(), repository.facts.uid)
}

/// Returns the name of the directory of the worktree copies of the repository at `path`, which belongs to `uid`.
pub(crate) fn copies_name(path: &[u8], uid: u32) -> String {
    Sha256Hex::digest(&[path, b"\0", &uid.to_le_bytes()].concat()).prefix(32)
}

fn unstable_error(path: &[u8]) -> EngineError {
    EngineError::Snapshot(SnapshotError::Unstable { path: display_path(path) })
}

fn internal_error(error: impl std::fmt::Display) -> EngineError {
    EngineError::Internal(error.to_string())
}

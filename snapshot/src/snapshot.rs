//! The content identity of a work tree.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proctor_core::digest::{Sha256Hex, SnapshotId};
use proctor_core::drift::{EntryKind, display_path, is_our_artifact};
use proctor_core::plan::RelPath;

use crate::beneath;
use crate::entries::{Difference, Entries, Found, Kind};
use crate::git::GitError;
use crate::git::helper::GitHelper;
use crate::git::object::ObjectFormat;
use crate::git::protocol::Listing;
use crate::git::state::{TreeState, tree_state};

/// How many threads hash.
const READERS: usize = 2;

/// What the tree of a repository was at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The Merkle root over `entries`.
    pub id: SnapshotId,
    /// What stands at each covered path.
    pub entries: Arc<Entries>,
    /// What git alone says of the same tree.
    pub git: GitFacts,
}

/// What git says of a work tree, so that a reader can find the same tree without us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitFacts {
    /// The top of the work tree, absolute, without symbolic links.
    pub worktree: PathBuf,
    /// Where HEAD and the index are.
    pub git_dir: PathBuf,
    /// Where objects, refs and config are.
    pub common_dir: PathBuf,
    /// The commit that HEAD names; none before the first.
    pub head_commit: Option<String>,
    /// The branch that HEAD names; none where it names a commit.
    pub branch: Option<String>,
    /// The tree that `git add -u` and `git write-tree` would make of the tracked content, or why
    /// there is none.
    pub tree: Result<String, String>,
    /// Whether something covered is not that of HEAD; none where that cannot be told.
    pub dirty: Option<bool>,
    /// How the object ids above were made.
    pub object_format: ObjectFormat,
}

/// Why no snapshot could be taken.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The repository could not be read.
    #[error(transparent)]
    Git(#[from] GitError),
    /// A file of the tree could not be read.
    #[error("cannot read `{path}`: {source}\nhint: mend its permissions, or have git ignore it")]
    Io {
        /// The path, for people.
        path: String,
        /// The system's own words.
        source: std::io::Error,
    },
    /// A file did not stand still.
    #[error("`{path}` kept changing while it was read\nhint: end what writes to it, and run again")]
    Unstable {
        /// The path, for people.
        path: String,
    },
}

/// The nearest directory at or above `start` that holds a `.git`.
pub fn find_root(start: &Path) -> Option<PathBuf> {
    start.ancestors().find(|dir| dir.join(".git").symlink_metadata().is_ok()).map(Path::to_owned)
}

impl Snapshot {
    /// Takes the snapshot of the work tree whose top is `repo`.
    ///
    /// # Errors
    /// The repository is refused, a file cannot be read, or one does not stand still.
    pub fn take(repo: &Path, helper: &GitHelper) -> Result<Self, SnapshotError> {
        let mut told = Vec::new();
        let mut listing = helper.list(repo, &mut |ahead| told.extend(ahead.tracked))?;
        listing.tracked.extend(told);
        let top = beneath::open_real(&listing.worktree)
            .map_err(|error| io_error(listing.worktree.as_os_str().as_bytes(), error))?;
        let paths: Vec<&[u8]> = listing.tracked.iter().chain(&listing.untracked).map(|path| &*path.0).collect();
        let mut found = read_all(top.as_fd(), &paths)?;
        // What is tracked and missing is none of the tree, and would be covered once it is there.
        for path in listing.tracked.iter().filter(|path| !is_our_artifact(&path.0)) {
            if !found.contains_key(&path.0) {
                found.insert(path.0.clone(), Found::MISSING);
            }
        }
        for nested in &listing.nested {
            let path = &nested.path.0;
            let looked = beneath::read(top.as_fd(), path, 0).map_err(|source| io_error(path, source))?;
            if looked == beneath::Found::Directory {
                let sha256 = Sha256Hex::of(nested.commit.as_deref().unwrap_or_default().as_bytes()).to_raw();
                found.insert(path.clone(), Found { kind: Kind::Gitlink, sha256, ..Found::MISSING });
            }
        }
        let entries = Entries::of_leaves(found.into_iter().map(|(path, found)| (path, true, found)));
        let id = entries.id();
        let state = tree_state(&listing, top.as_fd(), helper.program())
            .map_err(|error| io_error(listing.worktree.as_os_str().as_bytes(), error))?;
        Ok(Self { id, entries: Arc::new(entries), git: facts(listing, state) })
    }

    /// The first covered path that lies at or below `directory`. A cache that is mounted there
    /// would hide it, and a step would verify other bytes than those of the tree.
    pub fn first_in(&self, directory: &RelPath) -> Option<Vec<u8>> {
        let directory = directory.as_str().as_bytes();
        if directory == b"." {
            return self.entries.paths().next();
        }
        let own = self.entries.contains(directory).then(|| directory.to_vec());
        own.or_else(|| self.entries.below(directory).next().map(|(path, _)| path))
    }

    /// The paths at which the two differ, sorted.
    pub fn difference(&self, other: &Self) -> Vec<Vec<u8>> {
        self.entries.difference(&other.entries, Difference::Identity)
    }

    /// The paths that somebody touched between this snapshot and a later one of the same tree,
    /// sorted: where the two differ, and where a file was changed and is the same again. Who
    /// read it in between saw something else.
    pub fn touched(&self, later: &Self) -> Vec<Vec<u8>> {
        self.entries.difference(&later.entries, Difference::Change)
    }
}

fn facts(listing: Listing, state: TreeState) -> GitFacts {
    GitFacts {
        object_format: listing.indexes.first().map_or(ObjectFormat::Sha1, |index| index.format),
        worktree: listing.worktree,
        git_dir: listing.git_dir,
        common_dir: listing.common_dir,
        head_commit: listing.head_commit,
        branch: listing.branch,
        tree: state.tree.map(|id| id.to_string()),
        dirty: state.dirty,
    }
}

/// Reads what stands at each path, by [`READERS`] threads that take the next path in turn.
fn read_all(top: BorrowedFd<'_>, paths: &[&[u8]]) -> Result<BTreeMap<Vec<u8>, Found>, SnapshotError> {
    let next = AtomicUsize::new(0);
    let read_some = || {
        let mut entries = Vec::new();
        while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
            match read_one(top, path) {
                Ok(Some(entry)) => entries.push((path.to_vec(), entry)),
                Ok(None) => {}
                Err(error) => {
                    next.store(paths.len(), Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
        Ok(entries)
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (1..READERS).map(|_| scope.spawn(read_some)).collect();
        let mut entries: BTreeMap<_, _> = read_some()?.into_iter().collect();
        for reader in readers {
            entries.extend(reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok(entries)
    })
}

/// What stands at a path; nothing where it is not covered or gone.
fn read_one(top: BorrowedFd<'_>, path: &[u8]) -> Result<Option<Found>, SnapshotError> {
    if is_our_artifact(path) {
        return Ok(None);
    }
    let (found, stamp) = beneath::read_stamped(top, path, u64::MAX).map_err(|source| io_error(path, source))?;
    match found {
        beneath::Found::Entry(entry) => {
            let kind = match (entry.kind, entry.executable) {
                (EntryKind::File, false) => Kind::File,
                (EntryKind::File, true) => Kind::Executable,
                (EntryKind::Symlink, _) => Kind::Symlink,
                (EntryKind::Special | EntryKind::Gitlink | EntryKind::Directory, _) => Kind::Special,
            };
            Ok(Some(Found { kind, racy: true, sha256: entry.sha256.to_raw(), stamp }))
        }
        beneath::Found::Directory | beneath::Found::Nothing => Ok(None),
        beneath::Found::Unread(_) => Err(SnapshotError::Unstable { path: display_path(path) }),
    }
}

fn io_error(path: &[u8], source: std::io::Error) -> SnapshotError {
    SnapshotError::Io { path: display_path(path), source }
}

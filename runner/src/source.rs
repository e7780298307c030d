//! Finds the tree of a run: the worktree as it is, a private copy of it, or a commit that is checked out apart from it.
//! Steps see each of them at the repository's own path.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use proctor_core::evidence::TreeSource;
use proctor_sandbox::GitDirs;
use proctor_snapshot::protocol::CommitRef;
use proctor_snapshot::{GitFacts, GitHelper, Snapshot, SnapshotStore};

use crate::error::EngineError;
use crate::repository::Repository;
use crate::request::RunSource;
use crate::store::checkouts::{Checkout, Checkouts, Wanted};
use crate::store::directory::Directory;
use crate::store::mirrors::{Mirrors, PrivateTree};

/// The tree of a run.
pub(crate) struct Source {
    /// The directory that is verified.
    pub(crate) repository: Repository,
    /// The worktree.
    pub(crate) worktree: Repository,
    /// The path at which steps see it: the repository's own.
    pub(crate) seen_at: PathBuf,
    /// For the record.
    pub(crate) recorded: TreeSource,
    /// The directory of ours that holds it, with its snapshot; `None` for the worktree.
    pub(crate) apart: Option<(Apart, Arc<Snapshot>)>,
    /// The snapshot of the worktree, where it was taken ahead.
    pub(crate) taken: Option<Arc<Snapshot>>,
}

/// A directory of ours that holds the tree of a run, held until the run ends.
#[derive(Debug)]
pub(crate) enum Apart {
    /// A commit's tree.
    Checkout(Box<Checkout>),
    /// A copy of the worktree.
    Mirror(PrivateTree),
}

impl Apart {
    /// Returns the directory of the tree.
    pub(crate) fn tree(&self) -> &Path {
        match self {
            Self::Checkout(checkout) => &checkout.tree,
            Self::Mirror(mirror) => &mirror.tree,
        }
    }

    /// Returns the directory of the repository's objects, which the git directory of the tree borrows.
    pub(crate) fn objects(&self) -> &Path {
        match self {
            Self::Checkout(checkout) => &checkout.objects,
            Self::Mirror(mirror) => &mirror.objects,
        }
    }

    /// Returns the helper that reads the git directory of the tree.
    pub(crate) fn helper(&self) -> &GitHelper {
        match self {
            Self::Checkout(checkout) => &checkout.helper,
            Self::Mirror(mirror) => &mirror.helper,
        }
    }
}

/// The directories that trees are kept in.
pub(crate) struct Keeping<'a> {
    pub(crate) helper: &'a GitHelper,
    pub(crate) snapshots: &'a SnapshotStore,
    pub(crate) state: &'a Directory,
    pub(crate) state_path: &'a Path,
    /// The name of the repository's directory among them.
    pub(crate) key: String,
}

impl Source {
    /// The worktree.
    pub(crate) fn worktree(repository: Repository) -> Self {
        let seen_at = repository.path().to_path_buf();
        let (worktree, recorded) = (repository.clone(), TreeSource::Worktree);
        Self { worktree, repository, seen_at, recorded, apart: None, taken: None }
    }

    /// The tree that was asked for. Checks a commit out where no earlier run did.
    ///
    /// # Errors
    /// The commit's tree is refused, or cannot be written.
    pub(crate) fn open(real: &Repository, asked: &RunSource, keeping: &Keeping<'_>) -> Result<Self, EngineError> {
        let (commit, submodules) = match asked {
            RunSource::Worktree => return Ok(Self::worktree(real.clone())),
            RunSource::Private => return Self::private(real, keeping),
            RunSource::Commit { id, submodules } => (CommitRef::from(id), *submodules),
            RunSource::Staged { id, index } => (CommitRef { id: id.clone(), staged: Some(index.clone()) }, false),
        };
        let checkouts = Checkouts::of(real, keeping.helper, keeping.state, (keeping.state_path, &keeping.key))?;
        let wanted = Wanted { commit, submodules };
        let (checkout, snapshot) = checkouts.get(&wanted)?;
        let repository = opened(&checkout.tree)?;
        let recorded =
            TreeSource::Rev { commit: wanted.commit.id, submodules, lfs_pointers: checkout.manifest.lfs_pointers };
        let snapshot = Arc::new(as_committed(snapshot, &checkout));
        let apart = Some((Apart::Checkout(Box::new(checkout)), snapshot));
        let (worktree, seen_at) = (real.clone(), real.path().to_path_buf());
        Ok(Self { repository, worktree, seen_at, recorded, apart, taken: None })
    }

    fn private(real: &Repository, keeping: &Keeping<'_>) -> Result<Self, EngineError> {
        let place = (keeping.state_path, keeping.key.as_str());
        let mirrors = Mirrors::open(real, keeping.helper, keeping.snapshots, keeping.state, place)?;
        let (mirror, snapshot) = mirrors.get()?;
        let repository = opened(&mirror.tree)?;
        let apart = Some((Apart::Mirror(mirror), snapshot));
        let (worktree, seen_at) = (real.clone(), real.path().to_path_buf());
        Ok(Self { repository, worktree, seen_at, recorded: TreeSource::Private, apart, taken: None })
    }
}

/// Opens a directory of ours.
fn opened(tree: &Path) -> Result<Repository, EngineError> {
    let repository = Repository::open(tree)?;
    if repository.path() == tree {
        return Ok(repository);
    }
    Err(EngineError::Internal(format!("`{}` is no directory of ours any more", tree.display())))
}

/// What git says of a checkout is what the commit says: git's own reading of a file can differ from
/// its blob, such as where a blob has line ends that `.gitattributes` would convert.
fn as_committed(mut snapshot: Snapshot, checkout: &Checkout) -> Snapshot {
    snapshot.git.tree = Ok(checkout.manifest.tree.clone());
    snapshot.git.dirty = Some(false);
    snapshot
}

/// Where git's data of a worktree lies, for the sandbox.
pub(crate) fn git_dirs(facts: &GitFacts) -> GitDirs {
    let worktree_git = facts.worktree.join(".git");
    let common = (facts.common_dir != worktree_git).then(|| facts.common_dir.clone());
    GitDirs { worktree_git: Some(worktree_git), common }
}

/// Where it lies for a checkout: its own git directory in place of the repository's, and the objects
/// of the repository, of which nothing else is shown.
pub(crate) fn git_dirs_of_checkout(seen_at: &Path, objects: &Path) -> GitDirs {
    GitDirs { worktree_git: Some(seen_at.join(".git")), common: Some(objects.to_owned()) }
}

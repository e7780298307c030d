//! Where the tree of a run comes from: the worktree as it is, or a commit that is checked out apart
//! from it. What steps see is the same in both: the tree at the repository's own path.

use std::path::{Path, PathBuf};

use proctor_core::evidence::TreeSource;
use proctor_sandbox::GitDirs;
use proctor_snapshot::protocol::CommitRef;
use proctor_snapshot::{GitFacts, GitHelper, Snapshot};

use crate::error::EngineError;
use crate::repository::Repository;
use crate::request::RunSource;
use crate::store::checkouts::{Checkout, Checkouts, Wanted};
use crate::store::directory::Directory;

/// The tree of a run.
pub(crate) struct Source {
    /// The directory that is verified.
    pub(crate) repository: Repository,
    /// The path at which steps see it: the repository's own.
    pub(crate) seen_at: PathBuf,
    /// For the record.
    pub(crate) recorded: TreeSource,
    /// Where it is a commit's.
    pub(crate) checkout: Option<(Checkout, Snapshot)>,
}

/// Where checkouts are kept.
pub(crate) struct Keeping<'a> {
    pub(crate) helper: &'a GitHelper,
    pub(crate) state: &'a Directory,
    pub(crate) state_path: &'a Path,
    /// The name of the repository's directory among them.
    pub(crate) key: String,
}

impl Source {
    /// The worktree.
    pub(crate) fn worktree(repository: Repository) -> Self {
        let seen_at = repository.path().to_path_buf();
        Self { repository, seen_at, recorded: TreeSource::Worktree, checkout: None }
    }

    /// The tree that was asked for. Checks a commit out where no earlier run did.
    ///
    /// # Errors
    /// The commit's tree is refused, or cannot be written.
    pub(crate) fn open(real: &Repository, asked: &RunSource, keeping: &Keeping<'_>) -> Result<Self, EngineError> {
        let (commit, submodules) = match asked {
            RunSource::Worktree => return Ok(Self::worktree(real.clone())),
            RunSource::Commit { id, submodules } => (CommitRef::from(id), *submodules),
            RunSource::Staged { id, index } => (CommitRef { id: id.clone(), staged: Some(index.clone()) }, false),
        };
        let checkouts = Checkouts::of(real, keeping.helper, keeping.state, (keeping.state_path, &keeping.key))?;
        let wanted = Wanted { commit, submodules };
        let (checkout, snapshot) = checkouts.get(&wanted)?;
        let repository = Repository::open(&checkout.tree)?;
        if repository.path() != checkout.tree {
            let what = format!("`{}` is no directory of ours any more", checkout.tree.display());
            return Err(EngineError::Internal(what));
        }
        let recorded =
            TreeSource::Rev { commit: wanted.commit.id, submodules, lfs_pointers: checkout.manifest.lfs_pointers };
        let snapshot = as_committed(snapshot, &checkout);
        Ok(Self { repository, seen_at: real.path().to_path_buf(), recorded, checkout: Some((checkout, snapshot)) })
    }
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

//! Finds the tree of a run: a private copy of the worktree or of a commit, or the worktree itself. Steps see it at
//! the repository's own path.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use proctor_core::digest::Sha256Hex;
use proctor_core::drift::display_path;
use proctor_core::evidence::TreeSource;
use proctor_core::unverified::{self, InputShown, UnverifiedInput, UnverifiedInputs};
use proctor_sandbox::{GitDirs, Host, NestedGit};
use proctor_snapshot::protocol::CommitRef;
use proctor_snapshot::{GitFacts, GitHelper, IgnoredInput, InputKind, Snapshot, SnapshotStore};

use crate::error::EngineError;
use crate::repository::Repository;
use crate::request::RunSource;
use crate::store::directory::Directory;
use crate::store::mirrors::{Copied, Line, Mirrors, PrivateTree, Ready, Show, TooLarge, WantedCommit};

/// The tree of a run.
pub(crate) struct Source {
    /// The directory to verify.
    pub(crate) repository: Repository,
    /// The worktree.
    pub(crate) worktree: Repository,
    /// Path at which steps see the tree: that of the repository.
    pub(crate) seen_at: PathBuf,
    /// The source of the tree, for the record.
    pub(crate) recorded: TreeSource,
    /// The private copy with its snapshot; `None` for the worktree itself.
    pub(crate) apart: Option<(PrivateTree, Arc<Snapshot>)>,
    /// The ignored files in the private copy; `None` if they are hidden, if the tree is a commit's, or if steps see
    /// the worktree itself.
    pub(crate) unverified: Option<UnverifiedInputs>,
    /// The snapshot of the worktree, if it was taken earlier.
    pub(crate) taken: Option<Arc<Snapshot>>,
}

/// The resources for preparing trees.
pub(crate) struct Keeping<'a> {
    pub(crate) helper: &'a GitHelper,
    pub(crate) snapshots: &'a SnapshotStore,
    pub(crate) state: &'a Directory,
    pub(crate) state_path: &'a Path,
    pub(crate) host: &'a Host,
    /// The content of a private copy of a worktree; `None` if steps see the worktree itself.
    pub(crate) show: Option<Show<'a>>,
}

impl Source {
    /// Returns the worktree itself.
    pub(crate) fn worktree(repository: Repository) -> Self {
        let seen_at = repository.path().to_path_buf();
        Self {
            worktree: repository.clone(),
            repository,
            seen_at,
            recorded: TreeSource::SHARED,
            apart: None,
            unverified: None,
            taken: None,
        }
    }

    /// Replaces a private copy of the worktree by the worktree itself: without namespaces, a step could change
    /// modes and times of the copy.
    pub(crate) fn without_copy(self) -> Self {
        match (&self.apart, &self.recorded) {
            (Some(_), TreeSource::Worktree { .. }) => Self::worktree(self.worktree),
            _ => self,
        }
    }

    /// Prepares a private copy of the requested tree, or returns the worktree itself.
    ///
    /// # Errors
    /// The commit's tree is refused, the tree cannot be read, or the copy cannot be written.
    pub(crate) fn open(real: &Repository, asked: &RunSource, keeping: &Keeping<'_>) -> Result<Self, EngineError> {
        let (commit, submodules) = match asked {
            RunSource::Worktree => return Self::of_worktree(real, keeping),
            RunSource::Commit { id, submodules } => (CommitRef::from(id), *submodules),
            RunSource::Staged { id, index } => (CommitRef { id: id.clone(), staged: Some(index.clone()) }, false),
        };
        let mirrors = Mirrors::open(real, keeping, Line::Commits)?;
        let mirrors = mirrors.ok_or_else(|| EngineError::Internal("a commit has no private copy".to_owned()))?;
        let wanted = WantedCommit { commit, submodules };
        let ready = mirrors.commit(&wanted)?;
        let recorded = TreeSource::Rev { commit: wanted.commit.id, submodules, lfs_pointers: ready.lfs_pointers };
        Self::of_copy(real, ready, recorded, keeping.host)
    }

    /// Returns a private copy of the worktree; returns the worktree itself if the operator configured that or the
    /// tree is too large.
    fn of_worktree(real: &Repository, keeping: &Keeping<'_>) -> Result<Self, EngineError> {
        let Some(show) = keeping.show else { return Ok(Self::worktree(real.clone())) };
        let Some(mirrors) = Mirrors::open(real, keeping, Line::Worktree)? else {
            tracing::info!(repo = %real.path().display(), "{NO_OWNER}");
            return Ok(Self::worktree(real.clone()));
        };
        match mirrors.worktree(show)? {
            Copied::Ready(ready) => Self::of_copy(real, *ready, TreeSource::PRIVATE, keeping.host),
            Copied::TooLarge(bound) => {
                tracing::warn!(repo = %real.path().display(), "{}", too_large(bound));
                Ok(Self::worktree(real.clone()))
            }
        }
    }

    fn of_copy(real: &Repository, ready: Ready, recorded: TreeSource, host: &Host) -> Result<Self, EngineError> {
        let Ready { tree, snapshot, inputs, lfs_pointers: _ } = ready;
        let mut repository = opened(&tree.tree)?;
        repository.facts = repository.facts.as_copy_of(&real.facts, host)?;
        let unverified = inputs.map(|inputs| UnverifiedInputs::new(inputs.into_iter().map(self::recorded).collect()));
        let (worktree, seen_at) = (real.clone(), real.path().to_path_buf());
        Ok(Self { repository, worktree, seen_at, recorded, apart: Some((tree, snapshot)), unverified, taken: None })
    }
}

/// Returns the digest of the ignored files that a private copy of the worktree would contain now, as a run records
/// it. Returns `None` if there would be no copy, or if the lock is not free in time.
pub(crate) fn unverified_now(
    real: &Repository,
    keeping: &Keeping<'_>,
    snapshot: &Snapshot,
) -> Result<Option<Sha256Hex>, EngineError> {
    let Some(show) = keeping.show else { return Ok(None) };
    let Some(mirrors) = Mirrors::open(real, keeping, Line::Worktree)? else { return Ok(None) };
    let inputs = mirrors.inputs_now(show, snapshot)?;
    Ok(inputs.map(|inputs| UnverifiedInputs::new(inputs.into_iter().map(recorded).collect()).sha256))
}

/// Returns the record of an ignored input.
fn recorded(input: IgnoredInput) -> UnverifiedInput {
    let kind = match input.kind {
        InputKind::File | InputKind::Special => unverified::InputKind::File,
        InputKind::Symlink => unverified::InputKind::Symlink,
        InputKind::Directory => unverified::InputKind::Directory,
    };
    let reason = input.left_out.map(|(count, reason)| match input.kind {
        InputKind::Directory if count > 0 => format!("{count} files were left out; of the first, {reason}"),
        _ => reason.to_owned(),
    });
    UnverifiedInput {
        path: display_path(&input.path),
        kind,
        files: input.files,
        bytes: input.bytes,
        shown: if input.sha256.is_some() { InputShown::Copied } else { InputShown::LeftOut },
        sha256: input.sha256,
        reason,
    }
}

const NO_OWNER: &str = "the worktree is not copied, and steps see the worktree itself: this user namespace maps no user \
                        id for the copy";

fn too_large(bound: TooLarge) -> String {
    let bound = match bound {
        TooLarge::Entries(entries) => format!("more than {entries} files"),
        TooLarge::Bytes(bytes) => format!("more than {bytes} bytes"),
    };
    format!(
        "the worktree has {bound}, which git does not ignore, and is not copied: steps see the worktree itself; raise \
         `tree.max_entries` or `tree.max_bytes` in proctord.toml"
    )
}

/// Opens the directory of a private copy.
fn opened(tree: &Path) -> Result<Repository, EngineError> {
    let repository = Repository::open(tree)?;
    if repository.path() == tree {
        return Ok(repository);
    }
    Err(EngineError::Internal(format!("`{}` is no longer a directory of Proctor", tree.display())))
}

/// Returns the git directories of a worktree, for the sandbox.
pub(crate) fn git_dirs(facts: &GitFacts) -> GitDirs {
    let worktree_git = facts.worktree.join(".git");
    let common = (facts.common_dir != worktree_git).then(|| facts.common_dir.clone());
    GitDirs { worktree_git: Some(worktree_git), common, nested: Vec::new() }
}

/// Returns the git directories of a private copy: its own in place of the repository's, the object directory of the
/// repository, and the same for the repositories inside the tree. Nothing else of the repository's git directory is
/// visible.
pub(crate) fn git_dirs_of_copy(seen_at: &Path, objects: &Path, nested: Vec<NestedGit>) -> GitDirs {
    GitDirs { worktree_git: Some(seen_at.join(".git")), common: Some(objects.to_owned()), nested }
}

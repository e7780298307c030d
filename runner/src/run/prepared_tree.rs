//! Finds the tree of a run: a private copy of the worktree or of a commit, or the worktree itself. Steps see it at
//! the repository's own path.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use proctor_core::model::drift::display_path;
use proctor_core::record::evidence::TreeSource;
use proctor_core::record::unverified_inputs::{self, InputShown, UnverifiedInput, UnverifiedInputs};
use proctor_core::text::digest::Sha256Hex;
use proctor_git::protocol::CommitRef;
use proctor_sandbox::{GitDirs, Host, NestedGit};
use proctor_snapshot::{GitFacts, IgnoredInput, IgnoredInputKind, OmittedFiles, Snapshot};

use crate::error::EngineError;
use crate::host::repository::Repository;
use crate::run::request::RunSource;
use crate::store::private_copies::{
    CopyKind, ExceededBound, PreparedCopy, PrivateCopies, PrivateCopyResult, PrivateTree, TreeResources, WantedCommit,
};

/// The tree of a run.
pub(crate) struct PreparedTree {
    /// The directory to verify.
    pub(crate) repository: Repository,
    /// The worktree.
    pub(crate) worktree: Repository,
    /// Path at which steps see the tree: that of the repository.
    pub(crate) seen_at: PathBuf,
    /// The source of the tree, for the record.
    pub(crate) recorded: TreeSource,
    /// The private copy with its snapshot; `None` for the worktree itself.
    pub(crate) private_copy: Option<(PrivateTree, Arc<Snapshot>)>,
    /// The ignored files in the private copy; `None` if they are hidden, if the tree is a commit's, or if steps see
    /// the worktree itself.
    pub(crate) unverified: Option<UnverifiedInputs>,
    /// The snapshot of the worktree, if it was taken earlier.
    pub(crate) worktree_snapshot: Option<Arc<Snapshot>>,
}

impl PreparedTree {
    /// Returns the worktree itself.
    pub(crate) fn from_worktree(repository: Repository) -> Self {
        let seen_at = repository.path().to_path_buf();
        Self {
            worktree: repository.clone(),
            repository,
            seen_at,
            recorded: TreeSource::SHARED,
            private_copy: None,
            unverified: None,
            worktree_snapshot: None,
        }
    }

    /// Replaces a private copy of the worktree by the worktree itself: without namespaces, a step could change
    /// modes and times of the copy.
    pub(crate) fn without_copy(self) -> Self {
        match (&self.private_copy, &self.recorded) {
            (Some(_), TreeSource::Worktree { .. }) => Self::from_worktree(self.worktree),
            _ => self,
        }
    }

    /// Prepares a private copy of the requested tree, or returns the worktree itself.
    ///
    /// # Errors
    /// The commit's tree is refused, the tree cannot be read, or the copy cannot be written.
    pub(crate) fn prepare(
        real: &Repository,
        source: &RunSource,
        resources: &TreeResources<'_>,
    ) -> Result<Self, EngineError> {
        let (commit, submodules) = match source {
            RunSource::Worktree => return Self::copy_worktree(real, resources),
            RunSource::Commit { id, submodules } => (CommitRef::from(id), *submodules),
            RunSource::Staged(commit) => (commit.clone(), false),
        };
        let mirrors = PrivateCopies::open(real, resources, CopyKind::Commits)?;
        let mirrors = mirrors.ok_or_else(|| EngineError::Internal("a commit has no private copy".to_owned()))?;
        let wanted = WantedCommit { commit, submodules };
        let ready = mirrors.copy_commit(&wanted)?;
        let recorded = TreeSource::Rev { commit: wanted.commit.id, submodules, lfs_pointers: ready.lfs_pointers };
        Self::from_copy(real, ready, recorded, resources.host)
    }

    /// Returns a private copy of the worktree; returns the worktree itself if the operator configured that or the
    /// tree is too large.
    fn copy_worktree(real: &Repository, resources: &TreeResources<'_>) -> Result<Self, EngineError> {
        let Some(show) = resources.copy_content else { return Ok(Self::from_worktree(real.clone())) };
        let Some(mirrors) = PrivateCopies::open(real, resources, CopyKind::Worktree)? else {
            tracing::info!(repo = %real.path().display(), "{NO_COPY_OWNER}");
            return Ok(Self::from_worktree(real.clone()));
        };
        match mirrors.copy_worktree(show)? {
            PrivateCopyResult::Ready(ready) => Self::from_copy(real, *ready, TreeSource::PRIVATE, resources.host),
            PrivateCopyResult::TooLarge(bound) => {
                tracing::warn!(repo = %real.path().display(), "{}", too_large_message(bound));
                Ok(Self::from_worktree(real.clone()))
            }
        }
    }

    fn from_copy(
        real: &Repository,
        ready: PreparedCopy,
        recorded: TreeSource,
        host: &Host,
    ) -> Result<Self, EngineError> {
        let PreparedCopy { tree, snapshot, inputs, lfs_pointers: _ } = ready;
        let mut repository = open_copy(&tree.tree)?.with_spec_dir(real.spec_dir.clone());
        repository.facts = repository.facts.as_copy_of(&real.facts, host)?;
        let unverified =
            inputs.map(|inputs| UnverifiedInputs::new(inputs.into_iter().map(self::record_input).collect()));
        let (worktree, seen_at) = (real.clone(), real.path().to_path_buf());
        Ok(Self {
            repository,
            worktree,
            seen_at,
            recorded,
            private_copy: Some((tree, snapshot)),
            unverified,
            worktree_snapshot: None,
        })
    }
}

/// Returns the digest of the ignored files that a private copy of the worktree would contain now, as a run records
/// it. Returns `None` if there would be no copy, or if the lock is not free in time.
pub(crate) fn current_unverified_digest(
    real: &Repository,
    resources: &TreeResources<'_>,
    snapshot: &Snapshot,
) -> Result<Option<Sha256Hex>, EngineError> {
    let Some(show) = resources.copy_content else { return Ok(None) };
    let Some(mirrors) = PrivateCopies::open(real, resources, CopyKind::Worktree)? else { return Ok(None) };
    let inputs = mirrors.current_inputs(show, snapshot)?;
    Ok(inputs.map(|inputs| UnverifiedInputs::new(inputs.into_iter().map(record_input).collect()).sha256))
}

/// Returns the record of an ignored input.
fn record_input(input: IgnoredInput) -> UnverifiedInput {
    let kind = match input.kind {
        IgnoredInputKind::File | IgnoredInputKind::Special => unverified_inputs::InputKind::File,
        IgnoredInputKind::Symlink => unverified_inputs::InputKind::Symlink,
        IgnoredInputKind::Directory => unverified_inputs::InputKind::Directory,
    };
    let reason = input.left_out.map(|OmittedFiles { count, reason }| match input.kind {
        IgnoredInputKind::Directory if count > 0 => format!("{count} files were left out; of the first, {reason}"),
        _ => reason.to_string(),
    });
    UnverifiedInput {
        path: display_path(&input.path),
        kind,
        files: input.files,
        bytes: input.bytes,
        shown: if input.sha256.is_some() { InputShown::Copied } else { InputShown::LeftOut },
        sha256: input.sha256,
        permissions: input.permissions,
        prepared: None,
        reason,
    }
}

const NO_COPY_OWNER: &str = "the worktree is not copied, and steps see the worktree itself: this user namespace maps no user \
                        id for the copy";

fn too_large_message(bound: ExceededBound) -> String {
    let bound = match bound {
        ExceededBound::Entries(entries) => format!("more than {entries} files"),
        ExceededBound::Bytes(bytes) => format!("more than {bytes} bytes"),
    };
    format!(
        "the worktree has {bound}, which git does not ignore, and is not copied: steps see the worktree itself; raise \
         `tree.max_entries` or `tree.max_bytes` in proctord.toml"
    )
}

/// Opens the directory of a private copy.
fn open_copy(tree: &Path) -> Result<Repository, EngineError> {
    let repository = Repository::open(tree)?;
    if repository.path() == tree {
        return Ok(repository);
    }
    Err(EngineError::Internal(format!("`{}` is no longer a directory of Proctor", tree.display())))
}

/// Returns the git directories of a worktree, for the sandbox.
pub(crate) fn worktree_git_dirs(facts: &GitFacts) -> GitDirs {
    let worktree_git = facts.worktree.join(".git");
    let common = (facts.common_dir != worktree_git).then(|| facts.common_dir.clone());
    GitDirs { worktree_git: Some(worktree_git), common, nested: Vec::new() }
}

/// Returns the git directories of a private copy: its own in place of the repository's, the object directory of the
/// repository, and the same for the repositories inside the tree. Nothing else of the repository's git directory is
/// visible.
pub(crate) fn copy_git_dirs(seen_at: &Path, objects: &Path, nested: Vec<NestedGit>) -> GitDirs {
    GitDirs { worktree_git: Some(seen_at.join(".git")), common: Some(objects.to_owned()), nested }
}

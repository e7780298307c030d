//! Represents the directories of a repository.

use std::path::{Path, PathBuf};

/// The paths of a repository.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RepositoryPaths {
    /// The top of the work tree, absolute, without symbolic links.
    pub worktree: PathBuf,
    /// The directory that contains HEAD and the index.
    pub git_dir: PathBuf,
    /// The directory that contains objects, refs and config; differs from `git_dir` in a linked worktree.
    pub common_dir: PathBuf,
    /// The original repository, if this one is a checkout that Proctor made.
    pub checkout_of: Option<OriginalRepository>,
}

impl RepositoryPaths {
    /// Returns the common directory if it is not the work tree's `.git`.
    pub fn external_common_dir(&self) -> Option<&Path> {
        (self.common_dir != self.worktree.join(".git")).then_some(self.common_dir.as_path())
    }
}

/// The repository that a checkout belongs to.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct OriginalRepository {
    /// The top of the work tree, where steps see the checkout.
    pub seen_at: PathBuf,
    /// The directory of the objects, which the checkout borrows.
    pub objects: PathBuf,
}

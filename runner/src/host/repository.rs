//! Holds the repository's directory open, so that all reads and writes use the same directory even after its path
//! is replaced.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use proctor_core::decision::spec_selection::spec_directory;
use proctor_core::model::drift::display_path;
use proctor_core::model::plan::RelPath;
use proctor_core::spec;
use proctor_sandbox::{RepoFacts, SandboxError};

use crate::error::EngineError;
use crate::store::StoreError;
use crate::store::directory::Directory;

/// The top directory of a worktree, and the directory in it whose spec applies.
#[derive(Debug, Clone)]
pub(crate) struct Repository {
    /// Facts about the directory, read when it was opened.
    pub(crate) facts: RepoFacts,
    pub(crate) directory: Directory,
    /// The directory that contains `spec/`, relative to the top.
    pub(crate) spec_dir: RelPath,
}

impl Repository {
    /// Opens the directory at `path`. Links in the path are the caller's and are followed once.
    ///
    /// # Errors
    /// The path does not exist, is not a directory, or was replaced during the call.
    pub(crate) fn open(path: &Path) -> Result<Self, SandboxError> {
        let facts = RepoFacts::read(path)?;
        let directory = Directory::from_fd(facts.open()?, facts.path.display().to_string());
        Ok(Self { facts, directory, spec_dir: RelPath::repository() })
    }

    /// Opens the worktree that contains `path`, for the spec in `path`. If `path` is not in a worktree, it counts as
    /// a top itself.
    ///
    /// # Errors
    /// Same as [`Repository::open`], and no spec in `path` can be verified.
    pub(crate) fn find(path: &Path) -> Result<Self, EngineError> {
        let place = WorktreePlace::find(path)?;
        let repository = Self::open(&place.top)?;
        if place.spec_dir.as_os_str().is_empty() {
            return Ok(repository);
        }
        let spec_dir = place.spec_dir.to_str().and_then(|text| RelPath::new(text).ok());
        repository.for_spec_in(spec_dir.ok_or_else(|| EngineError::SpecDirectory(path.to_path_buf()))?)
    }

    /// Returns the same directory, for the spec in `spec_dir`, which need not exist.
    ///
    /// # Errors
    /// No spec in `spec_dir` can be verified.
    pub(crate) fn for_spec_in(self, spec_dir: RelPath) -> Result<Self, EngineError> {
        let found = self.with_spec_dir(spec_dir);
        match spec_directory(found.spec_path().as_bytes()) {
            Some(_) => Ok(found),
            None => Err(EngineError::SpecDirectory(found.spec_root(found.path()))),
        }
    }

    /// Returns the same directory, for the spec in `spec_dir`.
    pub(crate) fn with_spec_dir(self, spec_dir: RelPath) -> Self {
        Self { spec_dir, ..self }
    }

    /// Returns the canonical path of the top.
    pub(crate) fn path(&self) -> &Path {
        &self.facts.path
    }

    /// Returns the path of the spec relative to the top.
    pub(crate) fn spec_path(&self) -> String {
        match self.spec_dir.is_repository() {
            true => spec::PATH.to_owned(),
            false => format!("{}/{}", self.spec_dir, spec::PATH),
        }
    }

    /// Returns the directory that contains `spec/` in a tree whose top is `top`.
    pub(crate) fn spec_root(&self, top: &Path) -> PathBuf {
        if self.spec_dir.is_repository() { top.to_path_buf() } else { top.join(self.spec_dir.as_str()) }
    }

    /// Returns the path of the directory that contains `spec/` as it appears in our records. Records of two specs of
    /// one repository thus have different subjects. Bytes that are not valid text are written as `\xNN`.
    pub(crate) fn record_name(&self) -> String {
        display_path(self.spec_root(self.path()).as_os_str().as_encoded_bytes())
    }

    /// Returns whether the path still refers to the open directory. The sandbox and the git helper use the path.
    ///
    /// # Errors
    /// The open directory cannot be examined.
    pub(crate) fn is_still_at_path(&self) -> Result<bool, StoreError> {
        let held = self.directory.identity()?;
        Ok(self
            .facts
            .open()
            .is_ok_and(|fd| Directory::from_fd(fd, String::new()).identity().is_ok_and(|there| there == held)))
    }
}

/// Returns the name by which records refer to the spec in the directory `path`.
pub fn repository_record_name(path: &Path) -> String {
    let canonical = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    display_path(canonical.as_os_str().as_encoded_bytes())
}

/// A directory in a worktree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorktreePlace {
    /// The top of the worktree, canonical.
    pub top: PathBuf,
    /// The directory, relative to the top; empty for the top itself.
    pub spec_dir: PathBuf,
}

impl WorktreePlace {
    /// Returns the innermost worktree that contains `path`, if it belongs to the owner of `path`. Otherwise, `path`
    /// counts as a top.
    ///
    /// # Errors
    /// The path does not exist.
    pub fn find(path: &Path) -> Result<Self, SandboxError> {
        let facts = RepoFacts::read(path)?;
        let is_top = |directory: &&Path| directory.join(".git").symlink_metadata().is_ok();
        let top = facts.path.ancestors().find(is_top).unwrap_or(&facts.path);
        // A user must not be able to make another user's directory a part of a worktree.
        let is_same_owner = top.metadata().is_ok_and(|found| found.uid() == facts.uid);
        let top = if is_same_owner { top.to_path_buf() } else { facts.path.clone() };
        let spec_dir = facts.path.strip_prefix(&top).map(Path::to_path_buf).unwrap_or_default();
        Ok(Self { top, spec_dir })
    }
}

impl AsFd for Repository {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn finds_worktree_and_directory_of_spec() {
        let temp = tempfile::tempdir().expect("temp");
        let top = temp.path().canonicalize().expect("there").join("r");
        for made in [".git", "svc/a", "svc/inner/.git", "changes/9/verify"] {
            std::fs::create_dir_all(top.join(made)).expect("makes");
        }
        let found = |below: &str| Repository::find(&top.join(below)).expect(below);
        assert_eq!((found("").path(), found("").spec_path().as_str()), (top.as_path(), spec::PATH));
        let below = found("svc/a");
        assert_eq!((below.path(), below.spec_dir.as_str()), (top.as_path(), "svc/a"));
        assert_eq!(below.spec_path(), "svc/a/spec/verification.yaml");
        assert_eq!(below.record_name(), top.join("svc/a").display().to_string());
        assert_eq!(found("svc/inner").path(), top.join("svc/inner"), "a nested repository is a repository itself");
        let evidence = Repository::find(&top.join("changes/9/verify"));
        assert!(matches!(evidence, Err(EngineError::SpecDirectory(_))), "no tree covers a spec there");
    }

    #[test]
    fn directory_without_git_counts_as_top() {
        let temp = tempfile::tempdir().expect("temp");
        let place = temp.path().canonicalize().expect("there");
        let found = WorktreePlace::find(&place).expect("finds");
        // A repository above the temporary directory would contain it.
        if found.top == place {
            assert_eq!(found.spec_dir, Path::new(""));
        }
    }

    #[test]
    fn detects_replaced_directory_and_does_not_write_to_it() {
        let temp = tempfile::tempdir().expect("temp");
        let (path, aside, victim) = (temp.path().join("r"), temp.path().join("aside"), temp.path().join("victim"));
        std::fs::create_dir(&path).expect("makes");
        std::fs::create_dir(&victim).expect("makes");
        let repository = Repository::open(&path).expect("opens");
        assert!(repository.is_still_at_path().expect("looks"));
        std::fs::rename(&path, &aside).expect("moves");
        symlink(&victim, &path).expect("links");
        repository.directory.write("a", b"x").expect("writes");
        assert!(!repository.is_still_at_path().expect("looks"));
        assert!(aside.join("a").exists() && !victim.join("a").exists());
    }
}

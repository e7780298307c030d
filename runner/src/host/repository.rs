//! Holds the repository's directory open, so that all reads and writes use the same directory even after its path
//! is replaced.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use proctor_core::model::drift::display_path;
use proctor_sandbox::{RepoFacts, SandboxError};

use crate::store::StoreError;
use crate::store::directory::Directory;

/// The top directory of a worktree.
#[derive(Debug, Clone)]
pub(crate) struct Repository {
    /// Facts about the directory, read when it was opened.
    pub(crate) facts: RepoFacts,
    pub(crate) directory: Directory,
}

impl Repository {
    /// Opens the directory at `path`. Links in the path are the caller's and are followed once.
    ///
    /// # Errors
    /// The path does not exist, is not a directory, or was replaced during the call.
    pub(crate) fn open(path: &Path) -> Result<Self, SandboxError> {
        let facts = RepoFacts::read(path)?;
        let directory = Directory::from_fd(facts.open()?, facts.path.display().to_string());
        Ok(Self { facts, directory })
    }

    /// Returns the canonical path.
    pub(crate) fn path(&self) -> &Path {
        &self.facts.path
    }

    /// Returns the path as it appears in our records; bytes that are not valid text are written as `\xNN`.
    pub(crate) fn record_name(&self) -> String {
        display_path(self.path().as_os_str().as_encoded_bytes())
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

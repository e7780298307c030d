//! Starts `proctor-git` and waits for its answer, with a deadline.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use super::GitError;
use super::protocol::Listing;

/// The program that reads repositories for us.
#[derive(Debug, Clone)]
pub struct GitHelper {
    /// Where it is: an absolute path.
    pub exe: PathBuf,
    /// How long one answer may take.
    pub deadline: Duration,
}

/// How long one answer of the helper may take by default.
pub const DEADLINE: Duration = Duration::from_secs(60);

impl GitHelper {
    /// The helper at `exe`, with the default deadline.
    pub fn new(exe: impl Into<PathBuf>) -> Self {
        Self { exe: exe.into(), deadline: DEADLINE }
    }

    /// Lists the tree of the repository whose work tree is `repo`.
    ///
    /// # Errors
    /// The repository is refused or cannot be read; [`GitError`] says why and how to mend it.
    pub fn list(&self, _repo: &Path) -> Result<Listing, GitError> {
        unimplemented!()
    }

    /// Says for each path, none of them a directory, whether the rules on disk ignore it.
    ///
    /// # Errors
    /// As [`GitHelper::list`].
    pub fn ignored(&self, _repo: &Path, _paths: &[&[u8]]) -> Result<Vec<bool>, GitError> {
        unimplemented!()
    }
}

/// The ignore rules of one real tree, asked in batches and remembered.
#[derive(Debug)]
pub struct IgnoreQuery {
    helper: GitHelper,
    repo: PathBuf,
    known: Mutex<HashMap<Vec<u8>, bool>>,
}

impl IgnoreQuery {
    /// The rules of the work tree `repo`.
    pub fn new(helper: GitHelper, repo: impl Into<PathBuf>) -> Self {
        Self { helper, repo: repo.into(), known: Mutex::new(HashMap::new()) }
    }
}

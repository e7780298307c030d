//! Where the documents of one run go: below `changes/<id>/` of the repository, or, without a
//! changeset, below `runs/<run id>/` of the state directory. The same layout in both.

use std::path::{Path, PathBuf};

use proctor_core::digest::Sha256Hex;
use proctor_core::names::{ChangesetId, RunId};
use proctor_core::status::{self, LastRun};

use super::StoreError;
use super::directory::Directory;

const STATUS: &str = "05-status.json";
const VERIFY: &str = "verify";

/// The place of one run's documents.
#[derive(Debug)]
pub struct Documents {
    root: Directory,
    path: PathBuf,
}

impl Documents {
    /// The changeset's directory, which must exist.
    ///
    /// # Errors
    /// It is not there, or its path leads through a symlink.
    pub fn of_changeset(repo: &Path, id: &ChangesetId) -> Result<Self, StoreError> {
        let below = format!("changes/{id}");
        let root = match Directory::open(repo)?.descend(&below) {
            Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                return Err(StoreError::NoChangeset { path: below });
            }
            other => other?,
        };
        let documents = Self { root, path: repo.join(below) };
        documents.check()?;
        Ok(documents)
    }

    /// The run's own directory in the state directory, made now.
    ///
    /// # Errors
    /// The system refuses.
    pub fn of_run(state: &Directory, state_path: &Path, run: &RunId) -> Result<Self, StoreError> {
        let root = state.ensure("runs", 0o700)?.ensure(run.as_str(), 0o700)?;
        Ok(Self { root, path: state_path.join("runs").join(run.as_str()) })
    }

    /// Finds out before anything runs what would keep the documents from being written.
    fn check(&self) -> Result<(), StoreError> {
        self.new_status(None).map(drop)?;
        match self.root.descend(VERIFY) {
            Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(()),
            other => other.map(drop),
        }
    }

    /// The directory that holds them.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes one evidence document; answers its path below the directory and its sha256.
    ///
    /// # Errors
    /// The system refuses, or a link stands in the way.
    pub fn write_evidence(&self, file: &str, bytes: &[u8]) -> Result<(String, Sha256Hex), StoreError> {
        self.root.ensure(VERIFY, 0o755)?.write(file, bytes)?;
        Ok((format!("{VERIFY}/{file}"), Sha256Hex::of(bytes)))
    }

    /// Writes `verification.last_run` into the status file, everything else kept.
    ///
    /// # Errors
    /// The file is none that can be updated without loss, or the system refuses.
    pub fn write_status(&self, last_run: &LastRun) -> Result<(), StoreError> {
        if let Some(bytes) = self.new_status(Some(last_run))? {
            self.root.write(STATUS, &bytes)?;
        }
        Ok(())
    }

    /// The status file's bytes with `last_run` in it; with `None`, only whether it could be
    /// updated.
    fn new_status(&self, last_run: Option<&LastRun>) -> Result<Option<Vec<u8>>, StoreError> {
        let old = self.root.read(STATUS, status::MAX_BYTES)?;
        let wrong = |source| StoreError::Status { path: self.path.join(STATUS).display().to_string(), source };
        match last_run {
            Some(last_run) => status::update(old.as_deref(), last_run).map(Some).map_err(wrong),
            None => status::check(old.as_deref()).map(|()| None).map_err(wrong),
        }
    }
}

//! Where the documents of one run go: below `changes/<id>/` of the repository, or, without a
//! changeset, below `runs/<run id>/` of the state directory. The same layout in both.

use std::path::{Path, PathBuf};

use proctor_core::digest::Sha256Hex;
use proctor_core::names::{ChangesetId, RunId};
use proctor_core::status::{self, LastRun};

use super::StoreError;
use super::directory::Directory;
use crate::repository::Repository;

const STATUS: &str = "05-status.json";
const VERIFY: &str = "verify";

/// The place of one run's documents.
#[derive(Debug)]
pub(crate) struct Documents {
    root: Directory,
    path: PathBuf,
}

impl Documents {
    /// The changeset's directory, which must exist. It is ours alone until this is dropped.
    ///
    /// # Errors
    /// It is not there, its path leads through a symlink, another run holds it, or its status
    /// file could not be updated without loss.
    pub(crate) fn of_changeset(repository: &Repository, id: &ChangesetId) -> Result<Self, StoreError> {
        let below = format!("changes/{id}");
        let root = match repository.directory.descend(&below) {
            Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                return Err(StoreError::NoChangeset { path: below });
            }
            other => other?,
        };
        if !root.try_lock()? {
            return Err(StoreError::Busy { path: below });
        }
        let documents = Self { root, path: repository.path().join(below) };
        documents.check()?;
        Ok(documents)
    }

    /// The run's own directory in the state directory, made now.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn of_run(state: &Directory, state_path: &Path, run: &RunId) -> Result<Self, StoreError> {
        let root = state.ensure("runs", 0o700)?.ensure(run.as_str(), 0o700)?;
        Ok(Self { root, path: state_path.join("runs").join(run.as_str()) })
    }

    /// Finds out before anything runs what would keep the documents from being written, and
    /// clears away what a killed run left.
    fn check(&self) -> Result<(), StoreError> {
        self.new_status(None).map(drop)?;
        self.root.sweep()?;
        match self.root.descend(VERIFY) {
            Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(()),
            other => other?.sweep(),
        }
    }

    /// The directory that holds them.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes one evidence document; answers its path below the directory and its sha256.
    ///
    /// # Errors
    /// The system refuses, or a link stands in the way.
    pub(crate) fn write_evidence(&self, file: &str, bytes: &[u8]) -> Result<(String, Sha256Hex), StoreError> {
        self.root.ensure(VERIFY, 0o755)?.write(file, bytes)?;
        Ok((format!("{VERIFY}/{file}"), Sha256Hex::of(bytes)))
    }

    /// Writes `verification.last_run` into the status file, everything else kept.
    ///
    /// # Errors
    /// The file is none that can be updated without loss, or the system refuses.
    pub(crate) fn write_status(&self, last_run: &LastRun) -> Result<(), StoreError> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proctor_core::digest::SnapshotId;
    use proctor_core::evidence::EvidenceIndex;
    use proctor_core::names::ProfileName;
    use proctor_core::tier::Tier;
    use proctor_core::verdict::Verdict;
    use std::os::unix::fs::symlink;

    fn repository(status: Option<&str>) -> tempfile::TempDir {
        let repo = tempfile::tempdir().expect("temp");
        let changeset = repo.path().join("changes/009_x");
        std::fs::create_dir_all(&changeset).expect("makes");
        if let Some(text) = status {
            Directory::open(&changeset).expect("opens").write(STATUS, text.as_bytes()).expect("writes");
        }
        repo
    }

    fn changeset(repo: &Path, id: &ChangesetId) -> Result<Documents, StoreError> {
        Documents::of_changeset(&Repository::open(repo).expect("opens"), id)
    }

    fn id() -> ChangesetId {
        ChangesetId::new("009_x").expect("an id")
    }

    fn last_run() -> LastRun {
        LastRun {
            version: status::VERSION,
            profile: ProfileName::new("pr").expect("a name"),
            outcome: Verdict::Passed,
            timestamp: "2026-01-02T03:04:05.678Z".into(),
            run_id: RunId::new("r1").expect("an id"),
            tier: Tier::ONE,
            snapshot: SnapshotId::from_root(&Sha256Hex::of(b"tree")),
            snapshot_after: None,
            spec_sha256: Sha256Hex::of(b"spec"),
            evidence: EvidenceIndex::new(),
        }
    }

    #[test]
    fn evidence_and_status_stand_below_the_changeset() {
        let repo = repository(Some(r#"{"state":"executed"}"#));
        let documents = changeset(repo.path(), &id()).expect("opens");
        let (file, sha256) = documents.write_evidence("a.json", b"{}").expect("writes");
        documents.write_status(&last_run()).expect("writes");
        assert_eq!((file.as_str(), sha256), ("verify/a.json", Sha256Hex::of(b"{}")));
        let status = std::fs::read_to_string(repo.path().join("changes/009_x/05-status.json")).expect("reads");
        assert!(status.starts_with(r#"{"state":"executed","verification":{"last_run":{"#), "{status}");
    }

    #[test]
    fn what_cannot_be_written_is_known_before_anything_runs() {
        assert!(matches!(
            changeset(tempfile::tempdir().expect("temp").path(), &id()),
            Err(StoreError::NoChangeset { .. })
        ));
        let broken = repository(Some("not json"));
        assert!(matches!(changeset(broken.path(), &id()), Err(StoreError::Status { .. })));
        let led_away = repository(None);
        symlink("/tmp", led_away.path().join("changes/009_x/verify")).expect("links");
        assert!(matches!(changeset(led_away.path(), &id()), Err(StoreError::Symlink { .. })));
    }

    #[test]
    fn two_runs_never_write_to_one_changeset() {
        let repo = repository(None);
        let first = changeset(repo.path(), &id()).expect("opens");
        assert!(matches!(changeset(repo.path(), &id()), Err(StoreError::Busy { .. })));
        drop(first);
        changeset(repo.path(), &id()).expect("opens again");
    }

    #[test]
    fn a_changeset_that_is_a_link_is_refused() {
        let (repo, outside) = (repository(None), tempfile::tempdir().expect("temp"));
        symlink(outside.path(), repo.path().join("changes/linked")).expect("links");
        let linked = ChangesetId::new("linked").expect("an id");
        assert!(matches!(changeset(repo.path(), &linked), Err(StoreError::Symlink { .. })));
    }
}

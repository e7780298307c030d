//! Where the documents of one run go: below `changes/<id>/` of the repository, or, without a
//! changeset, below `runs/<run id>/` of the state directory. The same layout in both.

use std::path::{Path, PathBuf};

use proctor_core::attestation::{Attestation, Subject};
use proctor_core::digest::Sha256Hex;
use proctor_core::names::{ChangesetId, ProfileName, RunId};
use proctor_core::status::{self, LastRun};

use super::StoreError;
use super::attestations::Attestations;
use super::directory::Directory;
use crate::repository::Repository;

pub(crate) const STATUS: &str = "05-status.json";
pub(crate) const VERIFY: &str = "verify";
/// The directory of the runs without a changeset, below the state directory.
pub(crate) const RUNS: &str = "runs";

/// The place of one run's documents.
#[derive(Debug)]
pub(crate) struct Documents {
    root: Directory,
    path: PathBuf,
    attestations: Attestations,
    repository: String,
    changeset: Option<ChangesetId>,
    /// Which tools the run finds.
    toolchain_env: Option<Sha256Hex>,
}

/// One document of a run as it is on record: `file` below `directory`, where its bytes still are
/// those of `sha256`. `None` where they are not, because a later run replaced them, say.
///
/// # Errors
/// It is no regular file, a link leads to it, it is larger than `limit`, or it cannot be read.
pub fn recorded_document(
    directory: &Path,
    file: &str,
    sha256: &Sha256Hex,
    limit: u64,
) -> Result<Option<Vec<u8>>, StoreError> {
    let there = |error: StoreError| match error {
        StoreError::Io { ref source, .. } if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        error => Err(error),
    };
    let (below, name) = file.rsplit_once('/').unwrap_or((".", file));
    let read = Directory::open(directory).and_then(|directory| directory.descend(below)?.read(name, limit));
    let bytes = read.or_else(there)?;
    Ok(bytes.filter(|bytes| Sha256Hex::of(bytes) == *sha256))
}

/// Where the documents of a changeset lie, below the repository.
pub(crate) fn changeset_path(id: &ChangesetId) -> String {
    format!("changes/{id}")
}

/// The file by which a person approves a changeset.
const APPROVED: &str = "APPROVED";
/// The largest one that is read, in bytes.
const MAX_APPROVED: u64 = 1 << 20;

/// Whether a changeset has a regular file `APPROVED`. What is none approves nothing.
///
/// # Errors
/// The system refuses.
pub(crate) fn is_approved(repository: &Repository, id: &ChangesetId) -> Result<bool, StoreError> {
    match repository.directory.descend(&changeset_path(id)) {
        Ok(root) => Ok(root.read(APPROVED, MAX_APPROVED).is_ok_and(|file| file.is_some())),
        Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

impl Documents {
    /// The changeset's directory, which must exist. It is ours alone until this is dropped.
    ///
    /// # Errors
    /// It is not there, its path leads through a symlink, another run holds it, or its status
    /// file could not be updated without loss.
    pub(crate) fn of_changeset(
        state: &Directory,
        repository: &Repository,
        id: &ChangesetId,
    ) -> Result<Self, StoreError> {
        let below = changeset_path(id);
        let root = match repository.directory.descend(&below) {
            Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                return Err(StoreError::NoChangeset { path: below });
            }
            other => other?,
        };
        if !root.try_lock()? {
            return Err(StoreError::Busy { path: below });
        }
        let documents = Self {
            root,
            path: repository.path().join(below),
            attestations: Attestations::of(state),
            repository: repository.name(),
            changeset: Some(id.clone()),
            toolchain_env: None,
        };
        documents.check()?;
        Ok(documents)
    }

    /// The run's own directory in the state directory, made now.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn of_run(
        state: &Directory,
        state_path: &Path,
        repository: &Repository,
        run: &RunId,
    ) -> Result<Self, StoreError> {
        let root = state.ensure(RUNS, 0o700)?.ensure(run.as_str(), 0o700)?;
        if !root.try_lock()? {
            return Err(StoreError::Busy { path: format!("{RUNS}/{run}") });
        }
        Ok(Self {
            root,
            path: state_path.join(RUNS).join(run.as_str()),
            attestations: Attestations::of(state),
            repository: repository.name(),
            changeset: None,
            toolchain_env: None,
        })
    }

    /// The same place, of a run that finds these tools.
    pub(crate) fn finding(self, toolchain_env: Option<Sha256Hex>) -> Self {
        Self { toolchain_env, ..self }
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

    /// Puts a run on record: in the state directory first, so that no status file tells of a run
    /// that our own state does not know.
    ///
    /// # Errors
    /// As [`Documents::write_status`]; the status file is as it was then.
    pub(crate) fn conclude(&self, last_run: &LastRun) -> Result<(), StoreError> {
        self.attest(last_run)?;
        self.write_status(last_run)
    }

    /// Takes a run that was concluded back: `nothing` is what is on record of it from now on, in the status file
    /// and in the state directory. The latter too where the former cannot be written: a status that says more than
    /// our own record, whoever put it there, is not believed.
    ///
    /// # Errors
    /// As [`Documents::write_status`], or the record cannot be written; what can be is.
    pub(crate) fn withdraw(&self, nothing: &LastRun) -> Result<(), StoreError> {
        // The status first: no run is on record as inconclusive whose status says, while nobody has touched it,
        // that it passed.
        let status = self.write_status(nothing);
        let record = self.attest(nothing);
        status.and(record)
    }

    fn attest(&self, last_run: &LastRun) -> Result<(), StoreError> {
        let attestation = Attestation::new(self.subject(&last_run.profile), last_run.clone());
        self.attestations.write(&attestation.finding(self.toolchain_env.clone()))
    }

    fn subject(&self, profile: &ProfileName) -> Subject {
        let (repository, changeset_id) = (self.repository.clone(), self.changeset.clone());
        Subject { repository, changeset_id, profile: profile.clone() }
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
    use crate::test_support::last_run;
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

    fn changeset(state: &tempfile::TempDir, repo: &Path, id: &ChangesetId) -> Result<Documents, StoreError> {
        let state = Directory::open(state.path()).expect("opens");
        Documents::of_changeset(&state, &Repository::open(repo).expect("opens"), id)
    }

    fn state() -> tempfile::TempDir {
        tempfile::tempdir().expect("temp")
    }

    fn id() -> ChangesetId {
        ChangesetId::new("009_x").expect("an id")
    }

    #[test]
    fn evidence_and_status_stand_below_the_changeset() {
        let repo = repository(Some(r#"{"state":"executed"}"#));
        let documents = changeset(&state(), repo.path(), &id()).expect("opens");
        let (file, sha256) = documents.write_evidence("a.json", b"{}").expect("writes");
        documents.write_status(&last_run()).expect("writes");
        assert_eq!((file.as_str(), sha256), ("verify/a.json", Sha256Hex::of(b"{}")));
        let status = std::fs::read_to_string(repo.path().join("changes/009_x/05-status.json")).expect("reads");
        assert!(status.starts_with(r#"{"state":"executed","verification":{"last_run":{"#), "{status}");
    }

    #[test]
    fn a_document_reads_back_as_long_as_it_is_the_one_on_record() {
        let repo = repository(None);
        let documents = changeset(&state(), repo.path(), &id()).expect("opens");
        let (file, sha256) = documents.write_evidence("a.json", b"{}").expect("writes");
        let read = || recorded_document(documents.path(), &file, &sha256, 9);
        assert_eq!(read().expect("reads").as_deref(), Some(b"{}".as_slice()));
        documents.write_evidence("a.json", b"{} ").expect("writes");
        assert_eq!(read().expect("reads"), None, "a later run's");
        documents.write_evidence("a.json", b"0123456789").expect("writes");
        read().expect_err("too large");
        let path = documents.path().join(&file);
        std::fs::remove_file(&path).expect("removes");
        assert_eq!(read().expect("looks"), None, "gone");
        symlink("/dev/zero", &path).expect("links");
        read().expect_err("a link");
    }

    #[test]
    fn what_cannot_be_written_is_known_before_anything_runs() {
        assert!(matches!(changeset(&state(), state().path(), &id()), Err(StoreError::NoChangeset { .. })));
        let broken = repository(Some("not json"));
        assert!(matches!(changeset(&state(), broken.path(), &id()), Err(StoreError::Status { .. })));
        let led_away = repository(None);
        symlink("/tmp", led_away.path().join("changes/009_x/verify")).expect("links");
        assert!(matches!(changeset(&state(), led_away.path(), &id()), Err(StoreError::Symlink { .. })));
    }

    #[test]
    fn two_runs_never_write_to_one_changeset() {
        let repo = repository(None);
        let first = changeset(&state(), repo.path(), &id()).expect("opens");
        assert!(matches!(changeset(&state(), repo.path(), &id()), Err(StoreError::Busy { .. })));
        drop(first);
        changeset(&state(), repo.path(), &id()).expect("opens again");
    }

    #[test]
    fn a_changeset_that_is_a_link_is_refused() {
        let (repo, outside) = (repository(None), tempfile::tempdir().expect("temp"));
        symlink(outside.path(), repo.path().join("changes/linked")).expect("links");
        let linked = ChangesetId::new("linked").expect("an id");
        assert!(matches!(changeset(&state(), repo.path(), &linked), Err(StoreError::Symlink { .. })));
    }

    #[test]
    fn a_run_is_known_before_its_status_tells_of_it() {
        let (state, repo) = (state(), repository(None));
        let documents = changeset(&state, repo.path(), &id()).expect("opens");
        documents.conclude(&last_run()).expect("writes");
        let records = Attestations::of(&Directory::open(state.path()).expect("opens"));
        let subject = documents.subject(&last_run().profile);
        let kept = records.on_tree(&subject, &last_run().snapshot).expect("reads").expect("one");
        assert_eq!(Attestation::parse(&kept).map(|record| record.last_run), Some(last_run()));
        let status = std::fs::read(repo.path().join("changes/009_x/05-status.json")).expect("reads");
        assert_eq!(status::last_run(&status).expect("reads"), Some(last_run()));
    }

    #[test]
    fn what_is_taken_back_is_vouched_for_by_nobody() {
        let (state, repo) = (state(), repository(None));
        let documents = changeset(&state, repo.path(), &id()).expect("opens");
        let path = repo.path().join("changes/009_x/05-status.json");
        let nothing = LastRun { outcome: Verdict::Inconclusive, ..last_run() };
        let on_record = || {
            let records = Attestations::of(&Directory::open(state.path()).expect("opens"));
            let kept = records.on_tree(&documents.subject(&last_run().profile), &last_run().snapshot);
            Attestation::parse(&kept.expect("reads").expect("one")).map(|record| record.last_run)
        };
        documents.conclude(&last_run()).expect("writes");
        documents.withdraw(&nothing).expect("writes");
        let status = std::fs::read(&path).expect("reads");
        assert_eq!(status::last_run(&status).expect("reads").as_ref(), Some(&nothing));
        assert_eq!(on_record().as_ref(), Some(&nothing));
        documents.conclude(&last_run()).expect("writes");
        std::fs::remove_file(&path).expect("ours");
        std::fs::create_dir(&path).expect("in its place");
        documents.withdraw(&nothing).expect_err("the status cannot be written");
        assert_eq!(on_record().as_ref(), Some(&nothing), "and nobody vouches for what it says");
    }
}

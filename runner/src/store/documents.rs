//! Where the documents of one run go: below `changes/<id>/` of the repository, or, without a
//! changeset, below `runs/<run id>/` of the state directory. The same layout in both.

use std::path::{Path, PathBuf};

use proctor_core::attestation::{Attestation, Subject};
use proctor_core::digest::Sha256Hex;
use proctor_core::evidence::EvidenceIndex;
use proctor_core::names::{ChangesetId, ProfileName, RunId};
use proctor_core::plan::Plan;
use proctor_core::status::{self, LastRun};

use super::StoreError;
use super::attestations::{self, Attestations};
use super::directory::{Directory, Durable, STAGED_AT_ONCE, Staged, sync_all};
use crate::repository::Repository;
use crate::rerun;

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
    /// The directory in which this one was made, where that is not durable yet.
    unsynced: Option<Directory>,
}

/// The path of a document below the directory of a run's, and its sha256.
pub(crate) type Cited = (String, Sha256Hex);

/// The documents of a run, written and durable, and not yet at their names. Dropped, they go away.
pub(crate) struct StagedRun<'a> {
    evidence: Vec<Durable>,
    cited: Vec<Cited>,
    conclusion: Conclusion<'a>,
}

/// What is said of a run once its evidence is at its place.
pub(crate) struct Conclusion<'a> {
    documents: &'a Documents,
    /// Where evidence lies.
    verify: Directory,
    /// Where our own record lies, and the record.
    subject: Directory,
    record: Durable,
    status: Durable,
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
            unsynced: None,
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
        let runs = state.ensure(RUNS, 0o700)?;
        let (root, made) = runs.ensure_unsynced(run.as_str(), 0o700)?;
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
            unsynced: made.then_some(runs),
        })
    }

    /// The same place, of a run that finds these tools.
    pub(crate) fn finding(self, toolchain_env: Option<Sha256Hex>) -> Self {
        Self { toolchain_env, ..self }
    }

    /// The newest run that is on record about the same thing, where that can be told.
    pub(crate) fn newest_run(&self, plan: &Plan) -> Option<RunId> {
        let newest = rerun::newest(&self.attestations, &self.subject(&plan.profile));
        let newest = newest.inspect_err(|error| tracing::debug!(%error, "earlier runs cannot be looked up"));
        newest.ok().flatten().map(|run| run.run_id)
    }

    /// Finds out before anything runs what would keep the documents from being written, and
    /// clears away what a killed run left.
    fn check(&self) -> Result<(), StoreError> {
        let old = self.root.read(STATUS, status::MAX_BYTES)?;
        status::check(old.as_deref()).map_err(|source| self.wrong(source))?;
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

    /// Has the status stop citing evidence that is about to be overwritten: a kill before the next one is
    /// written leaves a status that cites nothing, and never one that cites what is gone. One that tells of no
    /// run is left as it is.
    ///
    /// # Errors
    /// As [`Documents::write_status`].
    pub(crate) fn cite_nothing(&self, nothing: &LastRun) -> Result<(), StoreError> {
        let old = self.root.read(STATUS, status::MAX_BYTES)?;
        // One that cannot be read is refused where it is written.
        let is_silent = old.is_none_or(|old| matches!(status::last_run(&old), Ok(None)));
        if is_silent { Ok(()) } else { self.write_status(nothing) }
    }

    /// Writes what is to be on record of a run, its evidence by name and `last_run` of what cites that, under
    /// other names, and makes the bytes durable.
    ///
    /// # Errors
    /// The system refuses, a link stands in the way, or the status file is none that can be updated without
    /// loss; nothing of it appears.
    pub(crate) fn stage(
        &self,
        evidence: &[(String, Vec<u8>)],
        last_run: impl FnOnce(EvidenceIndex) -> LastRun,
    ) -> Result<StagedRun<'_>, StoreError> {
        let (verify, made) = self.root.ensure_unsynced(VERIFY, 0o755)?;
        let cite = |(file, bytes): &(String, Vec<u8>)| (format!("{VERIFY}/{file}"), Sha256Hex::of(bytes));
        let cited: Vec<Cited> = evidence.iter().map(cite).collect();
        let stage = |(file, bytes): &(String, Vec<u8>)| verify.stage(file, bytes);
        let (many, last) = evidence.split_at(evidence.len().saturating_sub(STAGED_AT_ONCE));
        let mut durable = Vec::with_capacity(evidence.len());
        for some in many.chunks(STAGED_AT_ONCE) {
            durable.extend(sync_all(some.iter().map(stage).collect::<Result<_, _>>()?, [], &[])?.0);
        }
        let last: Vec<Staged> = last.iter().map(stage).collect::<Result<_, _>>()?;
        let last_run = last_run(cited.iter().cloned().collect());
        let (subject, record) = self.attestations.stage(&self.attestation(&last_run))?;
        let status = self.root.stage(STATUS, &self.new_status(&last_run)?)?;
        let directories: Vec<&Directory> = made.then_some(&self.root).into_iter().chain(&self.unsynced).collect();
        let (last, [record, status]) = sync_all(last, [record, status], &directories)?;
        durable.extend(last);
        let conclusion = Conclusion { documents: self, verify, subject, record, status };
        Ok(StagedRun { evidence: durable, cited, conclusion })
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
        let record = self.attestations.write(&self.attestation(nothing));
        status.and(record)
    }

    fn attestation(&self, last_run: &LastRun) -> Attestation {
        Attestation::new(self.subject(&last_run.profile), last_run.clone()).finding(self.toolchain_env.clone())
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
        self.root.write(STATUS, &self.new_status(last_run)?)
    }

    /// The status file's bytes with `last_run` in it.
    fn new_status(&self, last_run: &LastRun) -> Result<Vec<u8>, StoreError> {
        let old = self.root.read(STATUS, status::MAX_BYTES)?;
        status::update(old.as_deref(), last_run).map_err(|source| self.wrong(source))
    }

    fn wrong(&self, source: status::StatusError) -> StoreError {
        StoreError::Status { path: self.path.join(STATUS).display().to_string(), source }
    }
}

impl<'a> StagedRun<'a> {
    /// Has the evidence appear, durably; answers what that is, in its order, and what is left to be published.
    ///
    /// # Errors
    /// The system refuses, or something else stands in the place of their directory.
    pub(crate) fn publish_evidence(self) -> Result<(Vec<Cited>, Conclusion<'a>), StoreError> {
        let Self { evidence, cited, conclusion } = self;
        for document in evidence {
            conclusion.demand_place()?;
            document.publish()?;
        }
        conclusion.verify.sync()?;
        Ok((cited, conclusion))
    }
}

impl Conclusion<'_> {
    /// Puts the run on record: in the state directory first, so that no status file tells of a run that our own
    /// state does not know.
    ///
    /// # Errors
    /// The system refuses, or something else stands in the place of the evidence; the status file is as it was
    /// then, unless it was the last sync that failed.
    pub(crate) fn publish(self) -> Result<(), StoreError> {
        self.demand_place()?;
        attestations::publish(&self.subject, self.record)?;
        self.status.publish()?;
        self.documents.root.sync()
    }

    /// What is cited is found where it is cited.
    fn demand_place(&self) -> Result<(), StoreError> {
        self.documents.root.demand_still(VERIFY, &self.verify)
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

    /// Puts a run with these documents on record.
    fn put(documents: &Documents, evidence: &[(&str, &[u8])]) -> LastRun {
        let evidence: Vec<_> = evidence.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect();
        let mut cited = EvidenceIndex::new();
        let run = |index: EvidenceIndex| {
            cited = index.clone();
            LastRun { evidence: index, ..last_run() }
        };
        let staged = documents.stage(&evidence, run).and_then(StagedRun::publish_evidence);
        staged.and_then(|(_, conclusion)| conclusion.publish()).expect("writes");
        LastRun { evidence: cited, ..last_run() }
    }

    fn state() -> tempfile::TempDir {
        tempfile::tempdir().expect("temp")
    }

    fn id() -> ChangesetId {
        ChangesetId::new("009_x").expect("an id")
    }

    #[test]
    fn evidence_and_status_stand_below_the_changeset() {
        let (state, repo) = (state(), repository(Some(r#"{"state":"executed"}"#)));
        let documents = changeset(&state, repo.path(), &id()).expect("opens");
        let concluded = put(&documents, &[("a.json", b"{}"), ("b.json", b"[]")]);
        let cited = [("verify/a.json", b"{}"), ("verify/b.json", b"[]")];
        assert_eq!(concluded.evidence, cited.map(|(file, bytes)| (file.to_owned(), Sha256Hex::of(bytes))).into());
        for (file, bytes) in cited {
            assert_eq!(std::fs::read(documents.path().join(file)).expect("reads"), bytes);
        }
        let status = std::fs::read_to_string(repo.path().join("changes/009_x/05-status.json")).expect("reads");
        assert!(status.starts_with(r#"{"state":"executed","verification":{"last_run":{"#), "{status}");
    }

    #[test]
    fn a_document_reads_back_as_long_as_it_is_the_one_on_record() {
        let (state, repo) = (state(), repository(None));
        let documents = changeset(&state, repo.path(), &id()).expect("opens");
        put(&documents, &[("a.json", b"{}")]);
        let (file, sha256) = ("verify/a.json", Sha256Hex::of(b"{}"));
        let read = || recorded_document(documents.path(), file, &sha256, 9);
        assert_eq!(read().expect("reads").as_deref(), Some(b"{}".as_slice()));
        put(&documents, &[("a.json", b"{} ")]);
        assert_eq!(read().expect("reads"), None, "a later run's");
        put(&documents, &[("a.json", b"0123456789")]);
        read().expect_err("too large");
        let path = documents.path().join(file);
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
        let concluded = put(&documents, &[]);
        let records = Attestations::of(&Directory::open(state.path()).expect("opens"));
        let subject = documents.subject(&last_run().profile);
        let kept = records.on_tree(&subject, &last_run().snapshot).expect("reads").expect("one");
        assert_eq!(Attestation::parse(&kept).map(|record| record.last_run), Some(concluded.clone()));
        let status = std::fs::read(repo.path().join("changes/009_x/05-status.json")).expect("reads");
        assert_eq!(status::last_run(&status).expect("reads"), Some(concluded));
    }

    /// Whoever is killed between two of these leaves a status that cites what is there, or nothing.
    #[test]
    fn what_is_staged_is_on_record_in_its_order_or_not_at_all() {
        let (state, repo) = (state(), repository(Some(r#"{"state":"executed"}"#)));
        let documents = changeset(&state, repo.path(), &id()).expect("opens");
        let files = || {
            let mut names = documents.root.names().expect("lists");
            names.extend(documents.root.descend(VERIFY).expect("there").names().expect("lists"));
            names.retain(|name| !name.ends_with(".tmp"));
            names
        };
        let told = || {
            let status = std::fs::read(documents.path().join(STATUS)).expect("reads");
            status::last_run(&status).expect("reads").map(|run| run.evidence.len())
        };
        let nothing = LastRun { outcome: Verdict::Inconclusive, evidence: EvidenceIndex::new(), ..last_run() };
        documents.cite_nothing(&nothing).expect("reads");
        assert_eq!(told(), None, "it tells of no run as it is");
        let evidence = [("a.json".to_owned(), b"{}".to_vec())];
        let run = |index| LastRun { evidence: index, ..last_run() };
        let staged = || documents.stage(&evidence, run).expect("stages");
        drop(staged());
        assert_eq!((files(), told()), (vec![STATUS.to_owned(), VERIFY.to_owned()], None));
        let (cited, conclusion) = staged().publish_evidence().expect("publishes");
        assert_eq!((cited.len(), files().len(), told()), (1, 3, None));
        drop(conclusion);
        let (_, conclusion) = staged().publish_evidence().expect("publishes");
        conclusion.publish().expect("publishes");
        assert_eq!((files().len(), told()), (3, Some(1)));
        documents.cite_nothing(&nothing).expect("writes");
        assert_eq!(told(), Some(0));
        let left: Vec<_> =
            documents.root.names().expect("lists").into_iter().filter(|name| name.ends_with(".tmp")).collect();
        assert!(left.is_empty(), "{left:?}");
    }

    #[test]
    fn more_documents_than_are_staged_at_once_are_all_put_on_record() {
        let (state, repo) = (state(), repository(None));
        let documents = changeset(&state, repo.path(), &id()).expect("opens");
        let names: Vec<String> = (0..2 * STAGED_AT_ONCE + 3).map(|number| format!("{number:03}.json")).collect();
        let evidence: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), name.as_bytes())).collect();
        assert_eq!(put(&documents, &evidence).evidence.len(), names.len());
        assert_eq!(documents.root.descend(VERIFY).and_then(|verify| verify.names()).expect("lists"), names);
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
        put(&documents, &[]);
        documents.withdraw(&nothing).expect("writes");
        let status = std::fs::read(&path).expect("reads");
        assert_eq!(status::last_run(&status).expect("reads").as_ref(), Some(&nothing));
        assert_eq!(on_record().as_ref(), Some(&nothing));
        put(&documents, &[]);
        std::fs::remove_file(&path).expect("ours");
        std::fs::create_dir(&path).expect("in its place");
        documents.withdraw(&nothing).expect_err("the status cannot be written");
        assert_eq!(on_record().as_ref(), Some(&nothing), "and nobody vouches for what it says");
    }
}

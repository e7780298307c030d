//! Writes the documents of one run: to `changes/<id>/` of the repository or, without a changeset, to `runs/<run
//! id>/` of the state directory. Both have the same layout.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use proctor_core::decision::verdict::Verdict;
use proctor_core::model::names::{ChangesetId, ProfileName, RunId};
use proctor_core::model::plan::Plan;
use proctor_core::record::attestation::{Attestation, ObservedResult, Subject};
use proctor_core::record::evidence::EvidenceIndex;
use proctor_core::record::status::{self, LastRun};
use proctor_core::text::digest::Sha256Hex;

use super::StoreError;
use super::attestations::{self, Attestations};
use super::directory::{Directory, DurableFile, MAX_STAGED, RenamedFile, StagedFile, SyncTarget, sync_all};
use crate::host::repository::Repository;

pub(crate) const STATUS_FILE: &str = "05-status.json";
pub(crate) const VERIFY_DIR: &str = "verify";
/// Directory of the runs without a changeset, in the state directory.
pub(crate) const RUNS_DIR: &str = "runs";

/// The directory of one run's documents.
#[derive(Debug)]
pub(crate) struct RunDocumentDir {
    root: Directory,
    path: PathBuf,
    attestations: Attestations,
    repository: String,
    changeset: Option<ChangesetId>,
    /// Digest of the tools that the run finds.
    toolchain_env: Option<Sha256Hex>,
    /// True if the run answers no later request.
    answers_no_request: AtomicBool,
    /// The stored results of the observed steps, once all steps have ended.
    observed_results: OnceLock<Vec<ObservedResult>>,
    /// Digest of the variables that the steps take from the caller.
    step_env: Option<Sha256Hex>,
    /// The verified tree in git's terms, if git's tree contains every file of the snapshot.
    git_tree: Option<String>,
    /// The parent directory, if it was not synced after this directory was created.
    unsynced: Option<Directory>,
}

/// Path of a document relative to the run's directory, and its sha256.
pub(crate) type Citation = (String, Sha256Hex);

/// The documents of a run, written under temporary names. They are removed on drop.
pub(crate) struct StagedRun<'a> {
    documents: &'a RunDocumentDir,
    /// Evidence whose content is durable.
    synced: Vec<DurableFile>,
    /// Evidence whose content is not durable yet.
    evidence: Vec<StagedFile>,
    cited: Vec<Citation>,
    /// Directory of the evidence.
    verify: Directory,
    /// True if the directory of the evidence is new, so its name is not durable yet.
    is_new: bool,
    /// Directory of Proctor's own record, and the record.
    subject: Directory,
    record: StagedFile,
    status: StagedFile,
}

/// The status file and the record of a run, which are durable under temporary names. They are published after the evidence.
pub(crate) struct StagedConclusion<'a> {
    documents: &'a RunDocumentDir,
    /// Directory of the evidence.
    verify: Directory,
    /// Directory of Proctor's own record, and the record.
    subject: Directory,
    record: DurableFile,
    status: DurableFile,
}

/// Returns the document `file` in `directory` if its content still has the hash `sha256`; `None` if it does not,
/// for example because a later run replaced it.
///
/// # Errors
/// The document is not a regular file, its path contains a symlink, it is larger than `limit`, or it cannot be read.
pub fn recorded_document(
    directory: &Path,
    file: &str,
    sha256: &Sha256Hex,
    limit: u64,
) -> Result<Option<Vec<u8>>, StoreError> {
    let none_if_missing = |error: StoreError| match error {
        StoreError::Io { ref source, .. } if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        error => Err(error),
    };
    let (below, name) = file.rsplit_once('/').unwrap_or((".", file));
    let read = Directory::open(directory).and_then(|directory| directory.descend(below)?.read(name, limit));
    let bytes = read.or_else(none_if_missing)?;
    Ok(bytes.filter(|bytes| Sha256Hex::digest(bytes) == *sha256))
}

/// Returns the directory of a changeset's documents, relative to the repository.
pub(crate) fn changeset_path(id: &ChangesetId) -> String {
    format!("changes/{id}")
}

/// Name of the file with which a person approves a changeset.
const APPROVED_FILE: &str = "APPROVED";
/// Maximum size of an `APPROVED` file, in bytes.
const MAX_APPROVED: u64 = 1 << 20;

/// Returns whether a changeset has a regular file `APPROVED`. Any other kind of entry does not approve it.
///
/// # Errors
/// A system call fails.
pub(crate) fn is_approved(repository: &Repository, id: &ChangesetId) -> Result<bool, StoreError> {
    match repository.directory.descend(&changeset_path(id)) {
        Ok(root) => Ok(root.read(APPROVED_FILE, MAX_APPROVED).is_ok_and(|file| file.is_some())),
        Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

impl RunDocumentDir {
    /// Opens and locks the changeset's directory, which must exist. The lock is held until this is dropped.
    ///
    /// # Errors
    /// The directory does not exist, its path contains a symlink, another run holds it, or its status file cannot
    /// be updated without loss.
    pub(crate) fn for_changeset(
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
            attestations: Attestations::in_state(state),
            repository: repository.record_name(),
            changeset: Some(id.clone()),
            toolchain_env: None,
            answers_no_request: AtomicBool::new(false),
            observed_results: OnceLock::new(),
            step_env: None,
            git_tree: None,
            unsynced: None,
        };
        documents.check_writable()?;
        Ok(documents)
    }

    /// Creates and locks the run's own directory in the state directory.
    ///
    /// # Errors
    /// A system call fails.
    pub(crate) fn for_run(
        state: &Directory,
        state_path: &Path,
        repository: &Repository,
        run: &RunId,
    ) -> Result<Self, StoreError> {
        let runs = state.ensure(RUNS_DIR, 0o700)?;
        let (root, made) = runs.ensure_unsynced(run.as_str(), 0o700)?;
        if !root.try_lock()? {
            return Err(StoreError::Busy { path: format!("{RUNS_DIR}/{run}") });
        }
        Ok(Self {
            root,
            path: state_path.join(RUNS_DIR).join(run.as_str()),
            attestations: Attestations::in_state(state),
            repository: repository.record_name(),
            changeset: None,
            toolchain_env: None,
            answers_no_request: AtomicBool::new(false),
            observed_results: OnceLock::new(),
            step_env: None,
            git_tree: None,
            unsynced: made.then_some(runs),
        })
    }

    /// Sets the digest of the tools that the run finds.
    pub(crate) fn with_toolchain_env(self, toolchain_env: Option<Sha256Hex>) -> Self {
        Self { toolchain_env, ..self }
    }

    /// Sets the stored results of the observed steps.
    pub(crate) fn set_observed_results(&self, results: Vec<ObservedResult>) {
        self.observed_results.get_or_init(|| results);
    }

    /// Leaves the digest of the tools out of the record, so that the run answers no later request.
    pub(crate) fn forget_toolchain_env(&self) {
        self.answers_no_request.store(true, Ordering::Relaxed);
    }

    /// Sets the digest of the variables that the steps take from the caller.
    pub(crate) fn with_step_env(self, step_env: Option<Sha256Hex>) -> Self {
        Self { step_env, ..self }
    }

    /// Sets the verified tree in git's terms, if git's tree contains every file of the snapshot.
    pub(crate) fn with_git_tree(self, git_tree: Option<String>) -> Self {
        Self { git_tree, ..self }
    }

    /// Returns the newest recorded run of the same subject, other than `own`; `None` if the newest one is `own` or
    /// the records cannot be read.
    pub(crate) fn newest_other_run(&self, own: &RunId, plan: &Plan) -> Option<RunId> {
        let newest = self.attestations.newest_run(&self.subject(&plan.profile));
        let newest = newest.inspect_err(|error| tracing::debug!(%error, "earlier runs cannot be read"));
        newest.ok().flatten().map(|run| run.run_id).filter(|newest| newest != own)
    }

    /// Withdraws, durably, every earlier pass that a failure of this run would contradict: the pass in the status
    /// file and the recorded pass for the same tree. It must complete before the first command starts. A run that
    /// is killed afterwards, or that cannot record its result, then leaves no pass behind.
    ///
    /// # Errors
    /// The status file or the record cannot be read or written; the run must not start.
    pub(crate) fn withdraw_earlier_pass(&self, pending: &LastRun) -> Result<(), StoreError> {
        let status = self.root.read(STATUS_FILE, status::MAX_STATUS_BYTES)?;
        let recorded = status.and_then(|status| status::last_run(&status).ok().flatten());
        if recorded.is_some_and(|run| run.outcome == Verdict::Passed) {
            self.write_status(pending)?;
        }
        let recorded = self.attestations.read_for_tree(&self.subject(&pending.profile), &pending.snapshot)?;
        if recorded.as_deref().is_some_and(is_pass) {
            self.attestations.write(&self.attestation(pending))?;
        }
        Ok(())
    }

    /// Records, as far as possible, that the run has no result. If the disk is too full for a record, it removes a
    /// pass that another run has recorded for the same tree.
    pub(crate) fn record_no_result(&self, no_result: &LastRun) {
        let run = &no_result.run_id;
        if let Err(error) = self.write_status(no_result) {
            tracing::warn!(%run, %error, "the status file could not be updated for a run without a result");
        }
        let subject = self.subject(&no_result.profile);
        let passed = self.attestations.read_for_tree(&subject, &no_result.snapshot);
        if !passed.is_ok_and(|recorded| recorded.as_deref().is_some_and(is_pass)) {
            return;
        }
        let written = self.attestations.write(&self.attestation(no_result));
        let removed = written.or_else(|_| self.attestations.remove(&subject, &no_result.snapshot));
        if let Err(error) = removed {
            tracing::error!(%run, %error, "a pass of another run on the same tree cannot be withdrawn");
        }
    }

    /// Checks, before anything runs, for problems that would prevent writing the documents, and removes files that
    /// a killed run left.
    fn check_writable(&self) -> Result<(), StoreError> {
        let old = self.root.read(STATUS_FILE, status::MAX_STATUS_BYTES)?;
        status::check_updatable(old.as_deref()).map_err(|source| self.status_error(source))?;
        self.root.remove_temporaries()?;
        match self.root.descend(VERIFY_DIR) {
            Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(()),
            other => other?.remove_temporaries(),
        }
    }

    /// Returns the directory of the documents.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the status by `nothing`, which cites no evidence, before the evidence is overwritten. If the
    /// process is killed before it writes the next status, the file cites nothing instead of missing evidence. A
    /// status file that describes no run is not changed.
    ///
    /// # Errors
    /// Same as [`RunDocumentDir::write_status`].
    pub(crate) fn clear_citations(&self, no_result: &LastRun) -> Result<(), StoreError> {
        let old = self.root.read(STATUS_FILE, status::MAX_STATUS_BYTES)?;
        // An unreadable status file is refused when the status is written.
        let has_no_run = old.is_none_or(|old| matches!(status::last_run(&old), Ok(None)));
        if has_no_run { Ok(()) } else { self.write_status(no_result) }
    }

    /// Writes the documents of a run under temporary names: the evidence by name, and the `last_run` that cites it.
    ///
    /// # Errors
    /// A system call fails, a symlink is in the way, or the status file cannot be updated without loss; no document
    /// appears.
    pub(crate) fn stage(
        &self,
        evidence: &[(String, Vec<u8>)],
        last_run: impl FnOnce(EvidenceIndex) -> LastRun,
    ) -> Result<StagedRun<'_>, StoreError> {
        let (verify, is_new) = self.root.ensure_unsynced(VERIFY_DIR, 0o755)?;
        let cite = |(file, bytes): &(String, Vec<u8>)| (format!("{VERIFY_DIR}/{file}"), Sha256Hex::digest(bytes));
        let cited: Vec<Citation> = evidence.iter().map(cite).collect();
        // A run without a changeset has its own directory, whose evidence is read only after the status exists.
        let is_private = is_new && self.changeset.is_none();
        let stage = |(file, bytes): &(String, Vec<u8>)| match is_private {
            true => verify.stage_with_final_name(file, bytes),
            false => verify.stage(file, bytes),
        };
        let (many, last) = evidence.split_at(evidence.len().saturating_sub(MAX_STAGED));
        let mut synced = Vec::with_capacity(many.len());
        for some in many.chunks(MAX_STAGED) {
            let staged: Vec<StagedFile> = some.iter().map(stage).collect::<Result<_, _>>()?;
            sync_all(&staged.iter().map(SyncTarget::Staged).collect::<Vec<_>>())?;
            synced.extend(staged.into_iter().map(StagedFile::into_unsynced));
        }
        let evidence: Vec<StagedFile> = last.iter().map(stage).collect::<Result<_, _>>()?;
        let last_run = last_run(cited.iter().cloned().collect());
        let (subject, record) = self.attestations.stage(&self.attestation(&last_run))?;
        let status = self.root.stage_in(&verify, STATUS_FILE, &self.new_status(&last_run)?)?;
        Ok(StagedRun { documents: self, synced, evidence, cited, verify, is_new, subject, record, status })
    }

    /// Withdraws a run that was already published: `nothing` replaces it in the status file and in the state directory.
    /// The record is written even if the status file cannot be: the gate does not accept a status that claims more than
    /// Proctor's own record.
    ///
    /// # Errors
    /// Same as [`RunDocumentDir::write_status`], or the record cannot be written. A failure of one write does not
    /// prevent the other.
    pub(crate) fn withdraw(&self, no_result: &LastRun) -> Result<(), StoreError> {
        // The status comes first, so that a run that is recorded as inconclusive never has an unmodified status
        // file with a pass.
        let status = self.write_status(no_result);
        let record = self.attestations.write(&self.attestation(no_result));
        status.and(record)
    }

    fn attestation(&self, last_run: &LastRun) -> Attestation {
        let may_answer = !self.answers_no_request.load(Ordering::Relaxed);
        Attestation::new(self.subject(&last_run.profile), last_run.clone())
            .with_toolchain_env(self.toolchain_env.clone().filter(|_| may_answer))
            .with_step_env(self.step_env.clone())
            .with_git_tree(self.git_tree.clone())
            .with_observed_results(self.observed_results.get().cloned().unwrap_or_default())
    }

    fn subject(&self, profile: &ProfileName) -> Subject {
        let (repository, changeset_id) = (self.repository.clone(), self.changeset.clone());
        Subject { repository, changeset_id, profile: profile.clone() }
    }

    /// Writes `verification.last_run` into the status file and keeps everything else.
    ///
    /// # Errors
    /// The file cannot be updated without loss, or a system call fails.
    pub(crate) fn write_status(&self, last_run: &LastRun) -> Result<(), StoreError> {
        let status = self.new_status(last_run)?;
        // A kill may leave the temporary file behind. No snapshot covers the `verify` directory, so the tree keeps
        // its identity.
        let verify = self.root.ensure(VERIFY_DIR, 0o755)?;
        self.root.stage_in(&verify, STATUS_FILE, &status)?.into_durable()?.publish()?;
        self.root.sync()
    }

    /// Returns the content of the status file with `last_run` in it.
    fn new_status(&self, last_run: &LastRun) -> Result<Vec<u8>, StoreError> {
        let old = self.root.read(STATUS_FILE, status::MAX_STATUS_BYTES)?;
        status::set_last_run(old.as_deref(), last_run).map_err(|source| self.status_error(source))
    }

    /// Checks that the path that the citations use still refers to the evidence directory.
    fn require_evidence_dir(&self, verify: &Directory) -> Result<(), StoreError> {
        self.root.require_same(VERIFY_DIR, verify)
    }

    fn status_error(&self, source: status::StatusError) -> StoreError {
        StoreError::Status { path: self.path.join(STATUS_FILE).display().to_string(), source }
    }
}

/// Returns whether a record is that of a run that passed.
fn is_pass(record: &[u8]) -> bool {
    Attestation::parse(record).is_some_and(|known| known.last_run.outcome == Verdict::Passed)
}

impl<'a> StagedRun<'a> {
    /// Publishes the evidence durably. Returns its citations, in order, and the documents that remain to be
    /// published, whose content is durable then.
    ///
    /// # Errors
    /// A system call fails, or the evidence directory was replaced.
    pub(crate) fn publish_evidence(self) -> Result<(Vec<Citation>, StagedConclusion<'a>), StoreError> {
        let Self { documents, synced, evidence, cited, verify, is_new, subject, record, status } = self;
        for document in synced {
            documents.require_evidence_dir(&verify)?;
            document.publish()?;
        }
        // No status cites the evidence yet, so its content may become durable together with its names.
        let mut renamed: Vec<RenamedFile> = Vec::with_capacity(evidence.len());
        for document in evidence {
            if !document.has_final_name() {
                documents.require_evidence_dir(&verify)?;
            }
            renamed.push(document.rename_unsynced()?);
        }
        let directories = is_new.then_some(&documents.root).into_iter().chain(&documents.unsynced).chain([&verify]);
        let files = renamed.iter().map(SyncTarget::Renamed).chain([&record, &status].map(SyncTarget::Staged));
        sync_all(&files.chain(directories.map(SyncTarget::Names)).collect::<Vec<_>>())?;
        let (record, status) = (record.into_unsynced(), status.into_unsynced());
        Ok((cited, StagedConclusion { documents, verify, subject, record, status }))
    }
}

impl StagedConclusion<'_> {
    /// Publishes the record in the state directory, then the status file, so that no status file reports a run that
    /// is missing from our own state.
    ///
    /// # Errors
    /// A system call fails, or the evidence directory was replaced. The status file is unchanged then, unless only
    /// the last sync failed.
    pub(crate) fn publish(self) -> Result<(), StoreError> {
        self.documents.require_evidence_dir(&self.verify)?;
        if self.documents.changeset.is_some() {
            // The status may be on another file system.
            attestations::publish_record(&self.subject, self.record)?;
            self.status.publish()?;
            return self.documents.root.sync();
        }
        self.record.publish()?;
        self.status.publish()?;
        self.subject.sync()?;
        self.documents.root.sync()?;
        attestations::remove_excess_records(&self.subject)
    }
}

#[cfg(test)]
mod tests;

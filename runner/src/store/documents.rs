//! Writes the documents of one run: to `changes/<id>/` of the repository or, without a changeset, to `runs/<run
//! id>/` of the state directory. Both have the same layout.

use std::path::{Path, PathBuf};

use proctor_core::attestation::{Attestation, Subject};
use proctor_core::digest::Sha256Hex;
use proctor_core::evidence::EvidenceIndex;
use proctor_core::names::{ChangesetId, ProfileName, RunId};
use proctor_core::plan::Plan;
use proctor_core::status::{self, LastRun};
use proctor_core::verdict::Verdict;

use super::StoreError;
use super::attestations::{self, Attestations};
use super::directory::{Directory, Durable, STAGED_AT_ONCE, Staged, sync_all};
use crate::repository::Repository;
use crate::rerun;

pub(crate) const STATUS: &str = "05-status.json";
pub(crate) const VERIFY: &str = "verify";
/// Directory of the runs without a changeset, in the state directory.
pub(crate) const RUNS: &str = "runs";

/// The directory of one run's documents.
#[derive(Debug)]
pub(crate) struct Documents {
    root: Directory,
    path: PathBuf,
    attestations: Attestations,
    repository: String,
    changeset: Option<ChangesetId>,
    /// Digest of the tools that the run finds.
    toolchain_env: Option<Sha256Hex>,
    /// The parent directory, if it was not synced after this directory was created.
    unsynced: Option<Directory>,
}

/// Path of a document relative to the run's directory, and its sha256.
pub(crate) type Cited = (String, Sha256Hex);

/// The documents of a run, written and durable, but not yet renamed to their final names. They are removed on drop.
pub(crate) struct StagedRun<'a> {
    evidence: Vec<Durable>,
    cited: Vec<Cited>,
    conclusion: Conclusion<'a>,
}

/// The status file and the record of a run, published after its evidence.
pub(crate) struct Conclusion<'a> {
    documents: &'a Documents,
    /// Directory of the evidence.
    verify: Directory,
    /// Directory of our own record, and the record.
    subject: Directory,
    record: Durable,
    status: Durable,
}

/// Returns the document `file` in `directory` if its content still has the hash `sha256`; `None` if it does not,
/// for example because a later run replaced it.
///
/// # Errors
/// It is not a regular file, its path contains a symlink, it is larger than `limit`, or it cannot be read.
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

/// Returns the directory of a changeset's documents, relative to the repository.
pub(crate) fn changeset_path(id: &ChangesetId) -> String {
    format!("changes/{id}")
}

/// Name of the file with which a person approves a changeset.
const APPROVED: &str = "APPROVED";
/// Maximum size of an `APPROVED` file, in bytes.
const MAX_APPROVED: u64 = 1 << 20;

/// Returns whether a changeset has a regular file `APPROVED`. Any other kind of entry does not approve it.
///
/// # Errors
/// A system call fails.
pub(crate) fn is_approved(repository: &Repository, id: &ChangesetId) -> Result<bool, StoreError> {
    match repository.directory.descend(&changeset_path(id)) {
        Ok(root) => Ok(root.read(APPROVED, MAX_APPROVED).is_ok_and(|file| file.is_some())),
        Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

impl Documents {
    /// Opens and locks the changeset's directory, which must exist. The lock is held until this is dropped.
    ///
    /// # Errors
    /// The directory does not exist, its path contains a symlink, another run holds it, or its status file cannot
    /// be updated without loss.
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

    /// Creates and locks the run's own directory in the state directory.
    ///
    /// # Errors
    /// A system call fails.
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

    /// Sets the digest of the tools that the run finds.
    pub(crate) fn finding(self, toolchain_env: Option<Sha256Hex>) -> Self {
        Self { toolchain_env, ..self }
    }

    /// Returns the newest recorded run of the same subject, other than `own`; `None` if the newest one is `own` or
    /// the records cannot be read.
    pub(crate) fn newest_run_but(&self, own: &RunId, plan: &Plan) -> Option<RunId> {
        let newest = rerun::newest(&self.attestations, &self.subject(&plan.profile));
        let newest = newest.inspect_err(|error| tracing::debug!(%error, "earlier runs cannot be looked up"));
        newest.ok().flatten().map(|run| run.run_id).filter(|newest| newest != own)
    }

    /// Withdraws, durably, every earlier pass that a failure of this run would contradict: the pass in the status
    /// file and the recorded pass for the same tree. It must complete before the first command starts. A run that
    /// is killed afterwards, or that cannot record its result, then leaves no pass behind.
    ///
    /// # Errors
    /// The status file or the record cannot be read or written; the run must not start.
    pub(crate) fn withdraw_earlier_pass(&self, pending: &LastRun) -> Result<(), StoreError> {
        let status = self.root.read(STATUS, status::MAX_BYTES)?;
        let recorded = status.and_then(|status| status::last_run(&status).ok().flatten());
        if recorded.is_some_and(|run| run.outcome == Verdict::Passed) {
            self.write_status(pending)?;
        }
        let recorded = self.attestations.on_tree(&self.subject(&pending.profile), &pending.snapshot)?;
        if recorded.as_deref().is_some_and(is_pass) {
            self.attestations.write(&self.attestation(pending))?;
        }
        Ok(())
    }

    /// Records, as far as possible, that the run has no result. If the disk is too full for a record, it removes a
    /// pass that another run has recorded for the same tree.
    pub(crate) fn record_no_result(&self, nothing: &LastRun) {
        let run = &nothing.run_id;
        if let Err(error) = self.write_status(nothing) {
            tracing::warn!(%run, %error, "the status file does not show that the run came to no result");
        }
        let subject = self.subject(&nothing.profile);
        let passed = self.attestations.on_tree(&subject, &nothing.snapshot);
        if !passed.is_ok_and(|recorded| recorded.as_deref().is_some_and(is_pass)) {
            return;
        }
        let written = self.attestations.write(&self.attestation(nothing));
        let removed = written.or_else(|_| self.attestations.remove(&subject, &nothing.snapshot));
        if let Err(error) = removed {
            tracing::error!(%run, %error, "a pass of another run on the same tree cannot be withdrawn");
        }
    }

    /// Checks, before anything runs, for problems that would prevent writing the documents, and removes files that
    /// a killed run left.
    fn check(&self) -> Result<(), StoreError> {
        let old = self.root.read(STATUS, status::MAX_BYTES)?;
        status::check(old.as_deref()).map_err(|source| self.wrong(source))?;
        self.root.sweep()?;
        match self.root.descend(VERIFY) {
            Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(()),
            other => other?.sweep(),
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
    /// Same as [`Documents::write_status`].
    pub(crate) fn cite_nothing(&self, nothing: &LastRun) -> Result<(), StoreError> {
        let old = self.root.read(STATUS, status::MAX_BYTES)?;
        // An unreadable status file is refused when the status is written.
        let is_silent = old.is_none_or(|old| matches!(status::last_run(&old), Ok(None)));
        if is_silent { Ok(()) } else { self.write_status(nothing) }
    }

    /// Writes the documents of a run under temporary names and makes their content durable: the evidence by name,
    /// and the `last_run` that cites it.
    ///
    /// # Errors
    /// A system call fails, a symlink is in the way, or the status file cannot be updated without loss; no document
    /// appears.
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
        let status = self.root.stage_by(&verify, STATUS, &self.new_status(&last_run)?)?;
        let directories: Vec<&Directory> = made.then_some(&self.root).into_iter().chain(&self.unsynced).collect();
        let (last, [record, status]) = sync_all(last, [record, status], &directories)?;
        durable.extend(last);
        let conclusion = Conclusion { documents: self, verify, subject, record, status };
        Ok(StagedRun { evidence: durable, cited, conclusion })
    }

    /// Withdraws a run that was already published: `nothing` replaces it in the status file and in the state
    /// directory. The record is written even if the status file cannot be: the gate does not accept a status that
    /// claims more than our own record.
    ///
    /// # Errors
    /// Same as [`Documents::write_status`], or the record cannot be written. A failure of one write does not
    /// prevent the other.
    pub(crate) fn withdraw(&self, nothing: &LastRun) -> Result<(), StoreError> {
        // The status comes first, so that a run that is recorded as inconclusive never has an unmodified status
        // file with a pass.
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

    /// Writes `verification.last_run` into the status file and keeps everything else.
    ///
    /// # Errors
    /// The file cannot be updated without loss, or a system call fails.
    pub(crate) fn write_status(&self, last_run: &LastRun) -> Result<(), StoreError> {
        let status = self.new_status(last_run)?;
        // A kill may leave the temporary file behind. No snapshot covers the `verify` directory, so the tree keeps
        // its identity.
        let verify = self.root.ensure(VERIFY, 0o755)?;
        self.root.stage_by(&verify, STATUS, &status)?.settle()?.publish()?;
        self.root.sync()
    }

    /// Returns the content of the status file with `last_run` in it.
    fn new_status(&self, last_run: &LastRun) -> Result<Vec<u8>, StoreError> {
        let old = self.root.read(STATUS, status::MAX_BYTES)?;
        status::update(old.as_deref(), last_run).map_err(|source| self.wrong(source))
    }

    fn wrong(&self, source: status::StatusError) -> StoreError {
        StoreError::Status { path: self.path.join(STATUS).display().to_string(), source }
    }
}

/// Returns whether a record is that of a run that passed.
fn is_pass(record: &[u8]) -> bool {
    Attestation::parse(record).is_some_and(|known| known.last_run.outcome == Verdict::Passed)
}

impl<'a> StagedRun<'a> {
    /// Publishes the evidence durably. Returns its citations, in order, and the documents that remain to be
    /// published.
    ///
    /// # Errors
    /// A system call fails, or the evidence directory was replaced.
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
    /// Publishes the record in the state directory, then the status file, so that no status file reports a run that
    /// is missing from our own state.
    ///
    /// # Errors
    /// A system call fails, or the evidence directory was replaced. The status file is unchanged then, unless only
    /// the last sync failed.
    pub(crate) fn publish(self) -> Result<(), StoreError> {
        self.demand_place()?;
        attestations::publish(&self.subject, self.record)?;
        self.status.publish()?;
        self.documents.root.sync()
    }

    /// Checks that the path that the citations use still refers to the evidence directory.
    fn demand_place(&self) -> Result<(), StoreError> {
        self.documents.root.demand_still(VERIFY, &self.verify)
    }
}

#[cfg(test)]
mod tests;

//! Stores Proctor's own records of runs in `attestations/<subject>/<snapshot>.json` of the state directory: for each
//! subject and tree the newest run, which can be found without reading the other records.
//!
//! The state directory belongs to the user, and no step sees it. A record is written before the status file that it
//! confirms.

use std::path::Path;

use proctor_core::record::attestation::{Attestation, Subject};
use proctor_core::record::status::LastRun;
use proctor_core::text::digest::SnapshotId;

use super::StoreError;
use super::directory::{Directory, DurableFile, StagedFile};

/// Directory of all records, in the state directory.
pub(crate) const ATTESTATIONS_DIR: &str = "attestations";
/// Maximum number of trees of one subject whose records are kept: the newest ones.
const MAX_TREES: usize = 64;
/// Maximum number of subjects that a list covers.
const MAX_LISTED_SUBJECTS: usize = 10_000;
/// Maximum size of a record, in bytes.
const MAX_BYTES: u64 = 8 << 20;

/// The records of a state directory.
#[derive(Debug, Clone)]
pub(crate) struct Attestations {
    state: Directory,
}

impl Attestations {
    /// Returns the records in the state directory. Directories are created only by the first write.
    pub(crate) fn in_state(state: &Directory) -> Self {
        Self { state: state.clone() }
    }

    /// Writes the record of a run, which becomes the newest one of its subject.
    ///
    /// # Errors
    /// A system call fails.
    pub(crate) fn write(&self, attestation: &Attestation) -> Result<(), StoreError> {
        let (subject, file) = self.stage(attestation)?;
        publish_record(&subject, file.into_durable()?)
    }

    /// Stages the record of a run without publishing it. Returns the directory of its subject, and the file.
    ///
    /// # Errors
    /// A system call fails.
    pub(crate) fn stage(&self, attestation: &Attestation) -> Result<(Directory, StagedFile), StoreError> {
        let all = self.state.ensure(ATTESTATIONS_DIR, 0o700)?;
        let subject = all.ensure(&attestation.subject.key().to_string(), 0o700)?;
        let file = subject.stage(&file_name(&attestation.last_run.snapshot), &attestation.to_bytes())?;
        Ok((subject, file))
    }

    /// Returns the bytes of the record of the newest run of `subject` on the tree `snapshot`.
    ///
    /// # Errors
    /// The record cannot be read.
    pub(crate) fn read_for_tree(
        &self,
        subject: &Subject,
        snapshot: &SnapshotId,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        match self.subject_directory(subject)? {
            Some(directory) => directory.read(&file_name(snapshot), MAX_BYTES),
            None => Ok(None),
        }
    }

    /// Removes the record of the newest run of `subject` on the tree `snapshot`. Needs no free space on the disk.
    ///
    /// # Errors
    /// A system call fails.
    pub(crate) fn remove(&self, subject: &Subject, snapshot: &SnapshotId) -> Result<(), StoreError> {
        let Some(directory) = self.subject_directory(subject)? else { return Ok(()) };
        directory.remove(&file_name(snapshot))?;
        directory.sync()
    }

    /// Returns the bytes of the record of the newest run of `subject` on any tree.
    ///
    /// # Errors
    /// The record cannot be read.
    pub(crate) fn read_newest(&self, subject: &Subject) -> Result<Option<Vec<u8>>, StoreError> {
        self.read_newest_matching(subject, |_| true)
    }

    /// Returns the bytes of the newest record of `subject` that `is_wanted` accepts.
    ///
    /// # Errors
    /// A record cannot be read.
    pub(crate) fn read_newest_matching(
        &self,
        subject: &Subject,
        is_wanted: impl Fn(&[u8]) -> bool,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(directory) = self.subject_directory(subject)? else { return Ok(None) };
        for (_, name) in records_by_age(&directory)?.iter().rev() {
            // Another process may have removed the record.
            if let Some(bytes) = directory.read(name, MAX_BYTES)?.filter(|bytes| is_wanted(bytes)) {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }

    /// Returns whether a recorded run of `subject` may answer for the tree `git_tree` of a commit. Reads the records, but
    /// no file of the tree.
    ///
    /// # Errors
    /// The records cannot be read.
    pub(crate) fn may_answer_for(&self, subject: &Subject, git_tree: &str) -> Result<bool, StoreError> {
        let is_candidate = |bytes: &[u8]| Attestation::parse(bytes).is_some_and(|known| known.may_answer_for(git_tree));
        Ok(self.read_newest_matching(subject, is_candidate)?.is_some())
    }

    /// Returns the newest recorded run of a subject; `None` if its record is not valid.
    ///
    /// # Errors
    /// The records cannot be read.
    pub(crate) fn newest_run(&self, subject: &Subject) -> Result<Option<LastRun>, StoreError> {
        Ok(self.read_newest(subject)?.and_then(|bytes| parse_last_run(&bytes, subject)))
    }

    /// Returns the newest recorded run of the worktree.
    ///
    /// # Errors
    /// The records cannot be read.
    pub(crate) fn newest_worktree_run(&self, subject: &Subject) -> Result<Option<LastRun>, StoreError> {
        let is_wanted = |bytes: &[u8]| parse_last_run(bytes, subject).is_some_and(|run| run.source.is_worktree());
        Ok(self.read_newest_matching(subject, is_wanted)?.and_then(|bytes| parse_last_run(&bytes, subject)))
    }

    fn subject_directory(&self, subject: &Subject) -> Result<Option<Directory>, StoreError> {
        let path = format!("{ATTESTATIONS_DIR}/{}", subject.key());
        match self.state.descend(&path) {
            Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
            other => other.map(Some),
        }
    }
}

/// Returns the records of a state directory: for each subject and tree the newest run, newest first. Records that cannot
/// be read are skipped. The list is empty if there has been no run yet.
///
/// # Errors
/// A directory cannot be read.
pub fn recorded_runs(state: &Path) -> Result<Vec<Attestation>, StoreError> {
    let all = match Directory::open(state).and_then(|state| state.descend(ATTESTATIONS_DIR)) {
        Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut runs = Vec::new();
    for subject in all.names()?.iter().take(MAX_LISTED_SUBJECTS) {
        // A clean-up may remove a subject.
        let Ok(directory) = all.descend(subject) else { continue };
        let records = records_by_age(&directory)?;
        runs.extend(records.iter().filter_map(|(_, name)| Attestation::parse(&directory.read(name, MAX_BYTES).ok()??)));
    }
    let age = |run: &Attestation| (run.last_run.timestamp.clone(), run.last_run.run_id.clone());
    runs.sort_by_key(|run| std::cmp::Reverse(age(run)));
    Ok(runs)
}

fn parse_last_run(bytes: &[u8], subject: &Subject) -> Option<LastRun> {
    Attestation::parse(bytes).filter(|known| known.subject == *subject).map(|known| known.last_run)
}

/// Publishes a record durably as the newest one of its subject.
///
/// # Errors
/// A system call fails.
pub(crate) fn publish_record(subject: &Directory, record: DurableFile) -> Result<(), StoreError> {
    record.publish()?;
    subject.sync()?;
    remove_excess_records(subject)
}

/// Removes the oldest records of a subject beyond the bound.
///
/// # Errors
/// A system call fails.
pub(crate) fn remove_excess_records(subject: &Directory) -> Result<(), StoreError> {
    remove_excess(subject, MAX_TREES)
}

fn file_name(snapshot: &SnapshotId) -> String {
    format!("{}.json", snapshot.as_str().trim_start_matches("sha256:"))
}

/// Modification time of a file, in seconds and nanoseconds.
type ModifiedAt = (i64, i64);

/// Returns the records in a directory, oldest first.
fn records_by_age(directory: &Directory) -> Result<Vec<(ModifiedAt, String)>, StoreError> {
    let mut records = Vec::new();
    for name in directory.names()?.into_iter().filter(|name| name.ends_with(".json")) {
        // Another process may have removed the record.
        if let Some(written) = directory.modified_at(&name)? {
            records.push((written, name));
        }
    }
    records.sort();
    Ok(records)
}

/// Removes the oldest records beyond the newest `keep`.
fn remove_excess(directory: &Directory, keep: usize) -> Result<(), StoreError> {
    let records = records_by_age(directory)?;
    let excess = records.len().saturating_sub(keep);
    records.into_iter().take(excess).try_for_each(|(_, name)| directory.remove(&name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::last_run;
    use proctor_core::decision::verdict::Verdict;
    use proctor_core::model::names::{ProfileName, RunId};
    use proctor_core::model::run_scope::RunScope;
    use proctor_core::text::digest::Sha256Hex;

    fn subject(repository: &str) -> Subject {
        let profile = ProfileName::new("pr").expect("a profile");
        Subject { repository: repository.to_owned(), changeset_id: None, profile }
    }

    fn tree(number: usize) -> SnapshotId {
        SnapshotId::from_root(&Sha256Hex::digest(&number.to_le_bytes()))
    }

    fn run_on(number: usize, id: &str) -> Attestation {
        let run_id = RunId::new(id).expect("an id");
        Attestation::new(subject("/r"), LastRun { run_id, snapshot: tree(number), ..last_run() })
    }

    #[test]
    fn finds_newest_run_on_tree_of_same_subject() {
        let temp = tempfile::tempdir().expect("temp");
        let records = Attestations::in_state(&Directory::open(temp.path()).expect("opens"));
        assert_eq!(records.read_newest(&subject("/r")).expect("reads"), None);
        for (number, id) in [(1, "r1"), (1, "r2"), (2, "r3")] {
            records.write(&run_on(number, id)).expect("writes");
        }
        let on_tree = |number| records.read_for_tree(&subject("/r"), &tree(number)).expect("reads");
        assert_eq!(on_tree(1), Some(run_on(1, "r2").to_bytes()));
        assert_eq!(on_tree(3), None);
        assert_eq!(records.read_newest(&subject("/r")).expect("reads"), Some(run_on(2, "r3").to_bytes()));
        assert_eq!(records.read_newest(&subject("/s")).expect("reads"), None);
    }

    #[test]
    fn finds_candidates_for_the_tree_of_a_commit() {
        let temp = tempfile::tempdir().expect("temp");
        let records = Attestations::in_state(&Directory::open(temp.path()).expect("opens"));
        let may_answer = |tree: &str| records.may_answer_for(&subject("/r"), tree).expect("reads");
        assert!(!may_answer("aa"));
        let passed = |number| {
            let mut run = run_on(number, "r1");
            run.last_run.outcome = Verdict::Passed;
            run
        };
        let failed = Attestation { git_tree: Some("aa".to_owned()), ..run_on(1, "r2") };
        let failed = Attestation { last_run: LastRun { outcome: Verdict::Failed, ..failed.last_run }, ..failed };
        records.write(&failed).expect("writes");
        records.write(&passed(2).with_git_tree(Some("bb".to_owned()))).expect("writes");
        assert_eq!((may_answer("aa"), may_answer("bb"), may_answer("cc")), (false, true, false));
        let mut restricted = passed(3).with_git_tree(Some("dd".to_owned()));
        restricted.last_run.scope = Some(RunScope::default());
        records.write(&restricted).expect("writes");
        assert!(!may_answer("dd"));
        records.write(&passed(4)).expect("writes");
        assert!(may_answer("cc"), "the tree of a run with untracked files is unknown");
    }

    #[test]
    fn lists_runs_of_all_subjects_newest_first() {
        let temp = tempfile::tempdir().expect("temp");
        assert_eq!(recorded_runs(temp.path()).expect("lists"), []);
        let records = Attestations::in_state(&Directory::open(temp.path()).expect("opens"));
        let other = Attestation { subject: subject("/s"), ..run_on(1, "r2") };
        for run in [&run_on(1, "r1"), &other, &run_on(2, "r3")] {
            records.write(run).expect("writes");
        }
        std::fs::create_dir(temp.path().join(ATTESTATIONS_DIR).join("empty")).expect("makes");
        let listed = recorded_runs(temp.path()).expect("lists");
        let ids: Vec<&str> = listed.iter().map(|run| run.last_run.run_id.as_str()).collect();
        assert_eq!((ids, &listed[1].subject), (vec!["r3", "r2", "r1"], &subject("/s")));
    }

    #[test]
    fn limits_trees_per_subject() {
        let temp = tempfile::tempdir().expect("temp");
        let records = Attestations::in_state(&Directory::open(temp.path()).expect("opens"));
        for number in 0..=MAX_TREES {
            records.write(&run_on(number, "r1")).expect("writes");
        }
        assert!(records.read_for_tree(&subject("/r"), &tree(MAX_TREES)).expect("reads").is_some());
        let path = temp.path().join(ATTESTATIONS_DIR).join(subject("/r").key().to_string());
        assert_eq!(std::fs::read_dir(path).expect("lists").count(), MAX_TREES);
    }

    #[test]
    fn refuses_linked_record() {
        let temp = tempfile::tempdir().expect("temp");
        let records = Attestations::in_state(&Directory::open(temp.path()).expect("opens"));
        records.write(&run_on(1, "r1")).expect("writes");
        let path = temp.path().join(ATTESTATIONS_DIR).join(subject("/r").key().to_string()).join(file_name(&tree(1)));
        std::fs::remove_file(&path).expect("removes");
        std::os::unix::fs::symlink("/etc/passwd", &path).expect("links");
        assert!(records.read_for_tree(&subject("/r"), &tree(1)).is_err());
    }
}

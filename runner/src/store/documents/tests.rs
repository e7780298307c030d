//! Tests the documents of a run.

use super::*;
use crate::test_support::last_run;
use proctor_core::text::digest::SnapshotId;
use std::os::unix::fs::symlink;

fn repository(status: Option<&str>) -> tempfile::TempDir {
    let repo = tempfile::tempdir().expect("temp");
    let changeset = repo.path().join("changes/009_x");
    std::fs::create_dir_all(&changeset).expect("makes");
    if let Some(text) = status {
        Directory::open(&changeset).expect("opens").write(STATUS_FILE, text.as_bytes()).expect("writes");
    }
    repo
}

fn changeset(state: &tempfile::TempDir, repo: &Path, id: &ChangesetId) -> Result<RunDocumentDir, StoreError> {
    let state = Directory::open(state.path()).expect("opens");
    RunDocumentDir::for_changeset(&state, &Repository::open(repo).expect("opens"), id)
}

/// Records a run with these documents.
fn record_documents(documents: &RunDocumentDir, evidence: &[(&str, &[u8])]) -> LastRun {
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
fn writes_evidence_and_status_to_changeset() {
    let (state, repo) = (state(), repository(Some(r#"{"state":"executed"}"#)));
    let documents = changeset(&state, repo.path(), &id()).expect("opens");
    let concluded = record_documents(&documents, &[("a.json", b"{}"), ("b.json", b"[]")]);
    let cited = [("verify/a.json", b"{}"), ("verify/b.json", b"[]")];
    assert_eq!(concluded.evidence, cited.map(|(file, bytes)| (file.to_owned(), Sha256Hex::digest(bytes))).into());
    for (file, bytes) in cited {
        assert_eq!(std::fs::read(documents.path().join(file)).expect("reads"), bytes);
    }
    let status = std::fs::read_to_string(repo.path().join("changes/009_x/05-status.json")).expect("reads");
    assert!(status.starts_with(r#"{"state":"executed","verification":{"last_run":{"#), "{status}");
}

#[test]
fn reads_document_only_with_recorded_hash() {
    let (state, repo) = (state(), repository(None));
    let documents = changeset(&state, repo.path(), &id()).expect("opens");
    record_documents(&documents, &[("a.json", b"{}")]);
    let (file, sha256) = ("verify/a.json", Sha256Hex::digest(b"{}"));
    let read = || recorded_document(documents.path(), file, &sha256, 9);
    assert_eq!(read().expect("reads").as_deref(), Some(b"{}".as_slice()));
    record_documents(&documents, &[("a.json", b"{} ")]);
    assert_eq!(read().expect("reads"), None, "a later run's");
    record_documents(&documents, &[("a.json", b"0123456789")]);
    read().expect_err("too large");
    let path = documents.path().join(file);
    std::fs::remove_file(&path).expect("removes");
    assert_eq!(read().expect("looks"), None, "gone");
    symlink("/dev/zero", &path).expect("links");
    read().expect_err("a link");
}

#[test]
fn refuses_unwritable_documents_before_run() {
    assert!(matches!(changeset(&state(), state().path(), &id()), Err(StoreError::NoChangeset { .. })));
    let broken = repository(Some("not json"));
    assert!(matches!(changeset(&state(), broken.path(), &id()), Err(StoreError::Status { .. })));
    let linked = repository(None);
    symlink("/tmp", linked.path().join("changes/009_x/verify")).expect("links");
    assert!(matches!(changeset(&state(), linked.path(), &id()), Err(StoreError::Symlink { .. })));
}

#[test]
fn locks_changeset_for_one_run() {
    let repo = repository(None);
    let first = changeset(&state(), repo.path(), &id()).expect("opens");
    assert!(matches!(changeset(&state(), repo.path(), &id()), Err(StoreError::Busy { .. })));
    drop(first);
    changeset(&state(), repo.path(), &id()).expect("opens again");
}

#[test]
fn refuses_linked_changeset() {
    let (repo, outside) = (repository(None), tempfile::tempdir().expect("temp"));
    symlink(outside.path(), repo.path().join("changes/linked")).expect("links");
    let linked = ChangesetId::new("linked").expect("an id");
    assert!(matches!(changeset(&state(), repo.path(), &linked), Err(StoreError::Symlink { .. })));
}

#[test]
fn writes_attestation_with_status() {
    let (state, repo) = (state(), repository(None));
    let documents = changeset(&state, repo.path(), &id()).expect("opens");
    let concluded = record_documents(&documents, &[]);
    let records = Attestations::in_state(&Directory::open(state.path()).expect("opens"));
    let subject = documents.subject(&last_run().profile);
    let kept = records.read_for_tree(&subject, &last_run().snapshot).expect("reads").expect("one");
    assert_eq!(Attestation::parse(&kept).map(|record| record.last_run), Some(concluded.clone()));
    let status = std::fs::read(repo.path().join("changes/009_x/05-status.json")).expect("reads");
    assert_eq!(status::last_run(&status).expect("reads"), Some(concluded));
}

/// A kill between two of these steps leaves a status that cites existing documents, or none.
#[test]
fn publishes_staged_documents_in_order() {
    let (state, repo) = (state(), repository(Some(r#"{"state":"executed"}"#)));
    let documents = changeset(&state, repo.path(), &id()).expect("opens");
    let files = || {
        let mut names = documents.root.names().expect("lists");
        names.extend(documents.root.descend(VERIFY_DIR).expect("there").names().expect("lists"));
        names.retain(|name| !name.ends_with(".tmp"));
        names
    };
    let recorded_evidence = || {
        let status = std::fs::read(documents.path().join(STATUS_FILE)).expect("reads");
        status::last_run(&status).expect("reads").map(|run| run.evidence.len())
    };
    let nothing = LastRun { outcome: Verdict::Inconclusive, evidence: EvidenceIndex::new(), ..last_run() };
    documents.clear_citations(&nothing).expect("reads");
    assert_eq!(recorded_evidence(), None, "it describes no run in its current form");
    let evidence = [("a.json".to_owned(), b"{}".to_vec())];
    let run = |index| LastRun { evidence: index, ..last_run() };
    let staged = || documents.stage(&evidence, run).expect("stages");
    let pending = staged();
    let at_the_top = documents.root.names().expect("lists");
    assert!(at_the_top.iter().all(|name| !name.ends_with(".tmp")), "a snapshot covers it: {at_the_top:?}");
    drop(pending);
    assert_eq!((files(), recorded_evidence()), (vec![STATUS_FILE.to_owned(), VERIFY_DIR.to_owned()], None));
    let (cited, conclusion) = staged().publish_evidence().expect("publishes");
    assert_eq!((cited.len(), files().len(), recorded_evidence()), (1, 3, None));
    drop(conclusion);
    let (_, conclusion) = staged().publish_evidence().expect("publishes");
    conclusion.publish().expect("publishes");
    assert_eq!((files().len(), recorded_evidence()), (3, Some(1)));
    documents.clear_citations(&nothing).expect("writes");
    assert_eq!(recorded_evidence(), Some(0));
    let left: Vec<_> =
        documents.root.names().expect("lists").into_iter().filter(|name| name.ends_with(".tmp")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn writes_more_documents_than_are_staged_at_once() {
    let (state, repo) = (state(), repository(None));
    let documents = changeset(&state, repo.path(), &id()).expect("opens");
    let names: Vec<String> = (0..2 * MAX_STAGED + 3).map(|number| format!("{number:03}.json")).collect();
    let evidence: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), name.as_bytes())).collect();
    assert_eq!(record_documents(&documents, &evidence).evidence.len(), names.len());
    assert_eq!(documents.root.descend(VERIFY_DIR).and_then(|verify| verify.names()).expect("lists"), names);
}

/// Returns Proctor's own record of the run on the tree of `last_run`.
fn recorded(state: &tempfile::TempDir, documents: &RunDocumentDir) -> Option<LastRun> {
    let records = Attestations::in_state(&Directory::open(state.path()).expect("opens"));
    let kept = records.read_for_tree(&documents.subject(&last_run().profile), &last_run().snapshot).expect("reads");
    kept.as_deref().and_then(Attestation::parse).map(|record| record.last_run)
}

#[test]
fn withdraws_earlier_pass_of_same_tree_only() {
    let (state, repo) = (state(), repository(None));
    let documents = changeset(&state, repo.path(), &id()).expect("opens");
    let nothing = LastRun { outcome: Verdict::Inconclusive, run_id: RunId::new("r2").expect("an id"), ..last_run() };
    let recorded_run = || {
        let status = std::fs::read(documents.path().join(STATUS_FILE)).expect("reads");
        status::last_run(&status).expect("reads").expect("one").run_id
    };
    documents.withdraw_earlier_pass(&nothing).expect("nothing to withdraw");
    assert_eq!(recorded(&state, &documents), None);
    assert!(!documents.path().join(STATUS_FILE).exists());
    record_documents(&documents, &[("a.json", b"{}")]);
    let elsewhere = LastRun { snapshot: SnapshotId::from_root(&Sha256Hex::digest(b"other")), ..nothing.clone() };
    documents.withdraw_earlier_pass(&elsewhere).expect("withdraws");
    assert_eq!(recorded_run().as_str(), "r2", "the status file describes one run");
    assert_eq!(recorded(&state, &documents).expect("one").outcome, Verdict::Passed, "another tree");
    documents.withdraw_earlier_pass(&nothing).expect("withdraws");
    assert_eq!(recorded(&state, &documents), Some(nothing));
}

#[test]
fn fails_if_earlier_pass_cannot_be_withdrawn() {
    let (state, repo) = (state(), repository(None));
    let documents = changeset(&state, repo.path(), &id()).expect("opens");
    record_documents(&documents, &[]);
    let path = state.path().join("attestations").join(documents.subject(&last_run().profile).key().to_string());
    let record = std::fs::read_dir(&path).expect("lists").next().expect("one").expect("reads").path();
    std::fs::remove_file(&record).expect("ours");
    symlink("/dev/null", &record).expect("links");
    let nothing = LastRun { outcome: Verdict::Inconclusive, ..last_run() };
    documents.withdraw_earlier_pass(&nothing).expect_err("a link");
}

#[test]
fn run_without_result_withdraws_pass_recorded_meanwhile() {
    let (state, repo) = (state(), repository(None));
    let documents = changeset(&state, repo.path(), &id()).expect("opens");
    record_documents(&documents, &[]);
    let nothing = LastRun { outcome: Verdict::Inconclusive, ..last_run() };
    documents.record_no_result(&nothing);
    assert_eq!(recorded(&state, &documents), Some(nothing));
}

#[test]
fn withdrawn_run_has_no_attested_pass() {
    let (state, repo) = (state(), repository(None));
    let documents = changeset(&state, repo.path(), &id()).expect("opens");
    let path = repo.path().join("changes/009_x/05-status.json");
    let nothing = LastRun { outcome: Verdict::Inconclusive, ..last_run() };
    let attested_run = || {
        let records = Attestations::in_state(&Directory::open(state.path()).expect("opens"));
        let kept = records.read_for_tree(&documents.subject(&last_run().profile), &last_run().snapshot);
        Attestation::parse(&kept.expect("reads").expect("one")).map(|record| record.last_run)
    };
    record_documents(&documents, &[]);
    documents.withdraw(&nothing).expect("writes");
    let status = std::fs::read(&path).expect("reads");
    assert_eq!(status::last_run(&status).expect("reads").as_ref(), Some(&nothing));
    assert_eq!(attested_run().as_ref(), Some(&nothing));
    record_documents(&documents, &[]);
    std::fs::remove_file(&path).expect("ours");
    std::fs::create_dir(&path).expect("in its place");
    documents.withdraw(&nothing).expect_err("the status cannot be written");
    assert_eq!(attested_run().as_ref(), Some(&nothing), "and nothing attests its content");
}

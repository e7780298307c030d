//! Tests of the age of results, and of the identity of programs.

use std::fs;
use std::time::{Duration, SystemTime};

use proctor_core::model::enforcement::{Control, Tolerated};
use proctor_snapshot::EntryTree;

use super::*;

const DAY_MS: u64 = SECONDS_PER_DAY * 1_000;

fn first_day() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(100 * SECONDS_PER_DAY)
}

fn third_day() -> SystemTime {
    first_day() + Duration::from_secs(2 * SECONDS_PER_DAY)
}

fn ninth_day() -> SystemTime {
    first_day() + Duration::from_secs(8 * SECONDS_PER_DAY)
}

/// The results of one state directory.
struct TestStore {
    state: tempfile::TempDir,
    tree: tempfile::TempDir,
    entries: EntryTree,
}

impl TestStore {
    fn new() -> Self {
        let temp = || tempfile::tempdir().expect("temp");
        Self { state: temp(), tree: temp(), entries: EntryTree::default() }
    }

    /// Opens the results at a time.
    fn at(&self, now: fn() -> SystemTime) -> StepReuse {
        let config = ReuseConfig {
            settings: ReuseSettings { enabled: true, recheck_percent: 0 },
            request: ReuseRequest::new(&RunId::new("r1").expect("an id"), true),
            max_store_bytes: u64::MAX,
            helper: Path::new(OWN_PROGRAM),
            user: (0, 0),
            clock: Clock::from_fn(now),
            shared: None,
        };
        StepReuse::open(&Directory::open(self.state.path()).expect("opens"), self.state.path(), config).expect("opens")
    }

    fn observed(&self) -> ObservedTree<'_> {
        ObservedTree { entries: &self.entries, directory: self.tree.path(), inputs: None }
    }
}

fn passed_evidence() -> StepEvidence {
    let mut evidence = crate::test_support::step_evidence("s");
    Control::ALL.iter().for_each(|control| evidence.enforcement.record_enforced(*control, "test"));
    assert_eq!(evidence.enforcement.gaps(&Tolerated::default()).count(), 0);
    evidence
}

#[test]
fn passes_of_files_do_not_become_younger_when_they_are_stored_again() {
    let store = TestStore::new();
    let (key, evidence) = (Sha256Hex::digest(b"key"), passed_evidence());
    let files = [b"a.py".to_vec(), b"b.py".to_vec()];
    let record = |reuse: &StepReuse, checked: &[Vec<u8>], earlier: &[StoredResult]| {
        let trace =
            ObservedExecution { trace: Ok(AccessTrace::default()), has_files: false, transparent_caches: Vec::new() };
        reuse.record_files(&key, &evidence, trace, store.observed(), (checked, &files, earlier)).expect("stores");
    };
    record(&store.at(first_day), &files, &[]);
    let reuse = store.at(third_day);
    let found = reuse.find_files(&key, store.observed(), &files).expect("holds");
    record(&reuse, &files[..1], &found.holding);
    let stored = reuse.last_results(&key).expect("reads").newest.expect("a result");
    assert_eq!(stored.executed_ms, reuse.clock.now_ms() - 2 * DAY_MS, "the pass of `b.py` is of the first day");
    assert_eq!(stored.executed_at, store.at(first_day).clock.now_text());
    let found = reuse.find_files(&key, store.observed(), &files).expect("holds");
    assert_eq!(found.executed_at, stored.executed_at);
    let late = store.at(ninth_day).find_files(&key, store.observed(), &files);
    assert!(matches!(late, Err(NoResult::TooOld)), "{late:?}");
}

#[test]
fn files_that_an_earlier_check_left_are_made_again() {
    let store = TestStore::new();
    let (key, evidence) = (Sha256Hex::digest(b"key"), passed_evidence());
    let files = [b"a.py".to_vec(), b"b.py".to_vec()];
    let reuse = store.at(first_day);
    let record = |has_files, checked: &[Vec<u8>], earlier: &[StoredResult]| {
        let execution =
            ObservedExecution { trace: Ok(AccessTrace::default()), has_files, transparent_caches: Vec::new() };
        reuse.record_files(&key, &evidence, execution, store.observed(), (checked, &files, earlier)).expect("stores");
        reuse.find_files(&key, store.observed(), &files).expect("holds").holding
    };
    let earlier = record(true, &files, &[]);
    assert!(record(false, &files[..1], &earlier)[0].has_files, "the check of `b.py` left files");
}

#[test]
fn identity_of_a_program_depends_on_the_file_and_not_on_the_path() {
    let directory = tempfile::tempdir().expect("temp");
    let [program, link, copy] = ["program", "link", "copy"].map(|name| directory.path().join(name));
    fs::copy(OWN_PROGRAM, &program).expect("copies");
    std::os::unix::fs::symlink(&program, &link).expect("links");
    fs::copy(&program, &copy).expect("copies");
    let identity = |path: &Path| program_identity(path).expect("a program");
    assert_eq!(identity(&program), identity(&link));
    assert_ne!(identity(&program), identity(&copy));
    assert_ne!(identity(&program), identity(Path::new(OWN_PROGRAM)));
    let before = identity(&program);
    fs::File::options().append(true).open(&program).and_then(|file| file.set_len(1)).expect("cuts");
    assert_ne!(identity(&program), before);
    assert!(program_identity(&directory.path().join("absent")).is_err());
}

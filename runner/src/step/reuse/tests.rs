//! Tests of the age of results, and of the identity of programs.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use proctor_core::model::enforcement::{Control, Tolerated};
use proctor_core::record::evidence::{RemoteExecution, StepExecutor, WorkerEvidence};
use proctor_core::reuse::{WorkerChange, WorkerInputs};
use proctor_remote::TreeBuilder;
use proctor_snapshot::EntryTree;

use super::worker::{WorkerKey, WorkerTrees};
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
            decoded: Arc::default(),
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
fn passes_of_files_keep_their_age_when_stored_again() {
    let store = TestStore::new();
    let (key, evidence) = (Sha256Hex::digest(b"key"), passed_evidence());
    let files = [b"a.py".to_vec(), b"b.py".to_vec()];
    let record = |reuse: &StepReuse, checked: &[Vec<u8>], earlier: &[Arc<StoredResult>]| {
        let trace =
            ObservedExecution { trace: Ok(AccessTrace::default()), has_files: false, transparent_caches: Vec::new() };
        reuse.record_files(&key, &evidence, trace, store.observed(), (checked, &files, earlier)).expect("stores");
    };
    record(&store.at(first_day), &files, &[]);
    let reuse = store.at(third_day);
    let found = reuse.find_files(&key, store.observed(), &files, &[]).expect("holds");
    record(&reuse, &files[..1], &found.holding);
    let stored = reuse.last_results(&key).expect("reads").newest.expect("a result");
    assert_eq!(stored.executed_ms, reuse.clock.now_ms() - 2 * DAY_MS, "the pass of `b.py` is of the first day");
    assert_eq!(stored.executed_at, store.at(first_day).clock.now_text());
    let found = reuse.find_files(&key, store.observed(), &files, &[]).expect("holds");
    assert_eq!(found.executed_at, stored.executed_at);
    let late = store.at(ninth_day).find_files(&key, store.observed(), &files, &[]);
    assert!(matches!(late, Err(NoResult::TooOld)), "{late:?}");
}

#[test]
fn recreates_files_of_an_earlier_check() {
    let store = TestStore::new();
    let (key, evidence) = (Sha256Hex::digest(b"key"), passed_evidence());
    let files = [b"a.py".to_vec(), b"b.py".to_vec()];
    let reuse = store.at(first_day);
    let record = |has_files, checked: &[Vec<u8>], earlier: &[Arc<StoredResult>]| {
        let execution =
            ObservedExecution { trace: Ok(AccessTrace::default()), has_files, transparent_caches: Vec::new() };
        reuse.record_files(&key, &evidence, execution, store.observed(), (checked, &files, earlier)).expect("stores");
        reuse.find_files(&key, store.observed(), &files, &[]).expect("holds").holding
    };
    let earlier = record(true, &files, &[]);
    assert!(record(false, &files[..1], &earlier)[0].has_files, "the check of `b.py` left files");
}

/// Returns an execution that looked up one path of the host, as it is now.
fn execution_that_looked_up(path: &Path) -> ObservedExecution {
    let (state, stamp) = proctor_sandbox::observe_path(path).expect("examined");
    let path = path.as_os_str().as_bytes().to_vec();
    let trace = AccessTrace::new(vec![AccessedPath { path, state, stamp, read: false, listing: None }]);
    ObservedExecution { trace: Ok(trace.expect("a trace")), has_files: false, transparent_caches: Vec::new() }
}

#[test]
fn passes_of_files_do_not_count_if_an_input_changed_since_they_were_found() {
    let store = TestStore::new();
    let (key, evidence) = (Sha256Hex::digest(b"key"), passed_evidence());
    let files = [b"a.py".to_vec(), b"b.py".to_vec()];
    let reuse = store.at(first_day);
    let record = |execution: ObservedExecution, checked: &[Vec<u8>], earlier: &[Arc<StoredResult>]| {
        let files = (checked, &files[..], earlier);
        reuse.record_files(&key, &evidence, execution, store.observed(), files).map(drop)
    };
    let outside = tempfile::tempdir().expect("temp");
    let [config, other] = ["config", "other"].map(|name| outside.path().join(name));
    std::os::unix::fs::symlink("lenient", &config).expect("links");
    record(execution_that_looked_up(&config), &files, &[]).expect("stores");
    let found = reuse.find_files(&key, store.observed(), &files, &[]).expect("holds");
    let set_rule = |target: &str| {
        fs::remove_file(&config).expect("removes");
        std::os::unix::fs::symlink(target, &config).expect("links");
    };
    set_rule("strict");
    for execution in [execution_that_looked_up(&config), execution_that_looked_up(&other)] {
        let stored = record(execution, &files[..1], &found.holding);
        assert!(matches!(stored, Err(FilesNotStored::Obstacle(ReuseObstacle::NotObserved { .. }))), "{stored:?}");
    }
    // A run uses its look-ups for a second.
    let later = store.at(first_day).find_files(&key, store.observed(), &files, &[]);
    assert!(matches!(later, Err(NoResult::Changed(_))), "{later:?}");
    set_rule("lenient");
    record(execution_that_looked_up(&other), &files[..1], &found.holding).expect("stores");
}

#[test]
fn young_input_of_the_host_is_noted() {
    let store = TestStore::new();
    let file = tempfile::NamedTempFile::new().expect("a file");
    let (state, stamp) = proctor_sandbox::observe_path(file.path()).expect("examined");
    let path = file.path().as_os_str().as_bytes().to_vec();
    let read = || AccessedPath { path: path.clone(), state: state.clone(), stamp, read: true, listing: None };
    let stored = |now| {
        let reuse = store.at(now);
        let trace = AccessTrace::new(vec![read()]).expect("a trace");
        let execution = ObservedExecution { trace: Ok(trace), has_files: false, transparent_caches: Vec::new() };
        let stored = reuse.record(&Sha256Hex::digest(b"key"), &passed_evidence(), execution, store.observed());
        (stored.is_ok(), reuse.has_young_inputs())
    };
    // The file is of the future for this clock.
    assert_eq!(stored(first_day), (false, true));
    assert!(!stored(|| SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 33)).1);
}

#[test]
fn result_holds_while_the_image_with_an_input_is_mounted() {
    let store = TestStore::new();
    let reuse = store.at(first_day);
    let file = std::env::current_exe().expect("a program");
    let execution = execution_that_looked_up(&file);
    let device = execution.trace.as_ref().ok().and_then(|trace| trace.entries()[0].stamp).expect("a stamp").dev;
    let key = Sha256Hex::digest(b"key");
    let mut result = reuse.record(&key, &passed_evidence(), execution, store.observed()).expect("stores");
    assert!(matches!(reuse.find(&key, store.observed()), ReuseSearch::Found(_)));
    // The file is not in an image, so it has no such mount.
    result.add_images(&[proctor_core::reuse::ImageMount { device, mount: "earlier".to_owned() }]);
    reuse.store(&result).expect("stores");
    let later = reuse.find(&key, store.observed());
    assert!(matches!(later, ReuseSearch::Nothing(NoResult::Changed(_))), "{later:?}");
}

/// Returns the evidence of a pass on a worker that lacks these controls.
fn passed_on_worker(missing: &[Control]) -> StepEvidence {
    let mut evidence = passed_evidence();
    missing.iter().for_each(|control| evidence.enforcement.record_not_enforced(*control, "test"));
    let worker = WorkerEvidence {
        architecture: "x86_64".to_owned(),
        kernel: "6.8.0".to_owned(),
        os: String::new(),
        processors: 4,
        programs: Vec::new(),
        toolchains: BTreeMap::new(),
    };
    evidence.executor = Some(StepExecutor::Remote(Box::new(RemoteExecution {
        endpoint: "grpcs://cluster:1".to_owned(),
        instance: String::new(),
        action: "00/1".to_owned(),
        platform: BTreeMap::new(),
        trusted: true,
        repo: "/srv/r".to_owned(),
        no_git_objects: None,
        worker,
    })));
    evidence
}

fn worker_key() -> WorkerKey {
    let inputs = WorkerInputs {
        endpoint: "grpcs://cluster:1".to_owned(),
        instance: String::new(),
        platform: BTreeMap::new(),
        agent: Sha256Hex::digest(b"agent"),
        request: Sha256Hex::digest(b"request"),
        tree: Sha256Hex::digest(b"tree"),
        git: None,
        needed_paths: BTreeMap::new(),
    };
    let trees = WorkerTrees { tree: Arc::new(TreeBuilder::default().finish()), git: None };
    WorkerKey { key: Sha256Hex::digest(b"key"), inputs, trees, max_age_ms: u64::MAX, programs: Vec::new() }
}

#[test]
fn result_of_a_worker_holds_for_what_the_worker_got() {
    let (store, key) = (TestStore::new(), worker_key());
    let plan = crate::test_support::plan(&[("a", &[])]);
    let skill = &plan.skills[0];
    let reuse = store.at(first_day);
    let found = |reuse: &StepReuse, key: &WorkerKey| match reuse.find_of_worker(key) {
        ReuseSearch::Nothing(reason) => Err(reason),
        _ => Ok(()),
    };
    reuse.record_of_worker(&key, &passed_on_worker(&[]), false, (skill, &key.inputs)).expect("stores");
    found(&reuse, &key).expect("holds");
    let other = WorkerInputs { tree: Sha256Hex::digest(b"other"), ..key.inputs.clone() };
    let changed = found(&reuse, &WorkerKey { inputs: other.clone(), ..key.clone() });
    assert!(matches!(changed, Err(NoResult::ChangedForWorkers(WorkerChange::Tree(None)))), "{changed:?}");
    let old = found(&store.at(third_day), &WorkerKey { max_age_ms: DAY_MS, ..key.clone() });
    assert!(matches!(old, Err(NoResult::TooOldOfWorkers)), "{old:?}");
    let old = found(&store.at(ninth_day), &key);
    assert!(matches!(old, Err(NoResult::TooOldOfWorkers)), "{old:?}");
    // The worker got inputs that differ from those of the search for a result.
    let sent = reuse.record_of_worker(&key, &passed_on_worker(&[]), false, (skill, &other));
    assert!(matches!(sent, Err(ReuseObstacle::NotObserved { .. })), "{sent:?}");
}

#[test]
fn results_of_workers_and_of_this_machine_never_replace_each_other() {
    let (store, key) = (TestStore::new(), worker_key());
    let plan = crate::test_support::plan(&[("a", &[])]);
    let reuse = store.at(first_day);
    reuse.record_of_worker(&key, &passed_on_worker(&[]), false, (&plan.skills[0], &key.inputs)).expect("stores");
    let local = reuse.find(&key.key, store.observed());
    assert!(matches!(local, ReuseSearch::Nothing(NoResult::NotStored)), "{local:?}");
    let store = TestStore::new();
    let reuse = store.at(first_day);
    let observed =
        ObservedExecution { trace: Ok(AccessTrace::default()), has_files: false, transparent_caches: Vec::new() };
    reuse.record(&key.key, &passed_evidence(), observed, store.observed()).expect("stores");
    let of_worker = reuse.find_of_worker(&key);
    assert!(matches!(of_worker, ReuseSearch::Nothing(NoResult::NotStored)), "{of_worker:?}");
}

#[test]
fn result_of_a_worker_without_isolation_is_not_stored() {
    let (store, key) = (TestStore::new(), worker_key());
    let plan = crate::test_support::plan(&[("a", &[])]);
    let reuse = store.at(first_day);
    let stored = |missing: &[Control]| {
        reuse.record_of_worker(&key, &passed_on_worker(missing), false, (&plan.skills[0], &key.inputs)).map(drop)
    };
    assert_eq!(stored(&[Control::Cgroup, Control::PidsLimit, Control::PrivateProc]), Ok(()));
    for control in [Control::NetworkNamespace, Control::PidNamespace, Control::PrivateTmp, Control::ReadOnlyRoot] {
        assert_eq!(stored(&[control]), Err(ReuseObstacle::MissingControl), "{control:?}");
    }
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

//! Tests of a history in a temporary directory: storing runs, finding them again, and refusals.

mod damage;
mod limits;
mod properties;

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use proctor_core::api::{LoggedRun, RunState, RunSubmission, RunSummary};
use proctor_core::decision::verdict::{EXIT_INCONCLUSIVE, EXIT_INTERRUPTED, InconclusiveReason, Verdict};
use proctor_core::model::names::{ChangesetId, IdempotencyKey, ProfileName};
use proctor_core::model::tier::Tier;

use super::*;

/// Events of a run that passed, as an engine reported them.
const PASSED: &str = include_str!("../../../fixtures/logs/passed.jsonl");

/// A state directory, in memory where possible because its contents need not survive.
struct TestStateDir(tempfile::TempDir);

impl TestStateDir {
    fn new() -> Self {
        Self(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("temp"))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn open(&self) -> (History, RecoverySummary) {
        History::open(self.path(), Clock::system()).expect("opens")
    }

    fn history(&self) -> History {
        self.open().0
    }

    fn log_path(&self, run: &RunId) -> PathBuf {
        self.path().join(format!("history/events/{run}.jsonl"))
    }

    /// Returns a copy of the state as a kill at this moment would leave it.
    fn copy_after_kill(&self) -> Self {
        let copy = Self::new();
        copy_all(&self.path().join("history"), &copy.path().join("history"));
        copy
    }
}

fn copy_all(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("makes");
    for entry in std::fs::read_dir(from).expect("lists") {
        let entry = entry.expect("an entry");
        let to = to.join(entry.file_name());
        match entry.file_type().expect("a type").is_dir() {
            true => copy_all(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).expect("copies")),
        }
    }
}

fn id(name: &str) -> RunId {
    RunId::new(name).expect("an id")
}

fn run_request(repo: &str, profile: &str, changeset: Option<&str>) -> RecordedRequest {
    let changeset_id = changeset.map(|id| ChangesetId::new(id).expect("an id"));
    let profile = ProfileName::new(profile).expect("a name");
    RunSubmission { changeset_id, ..RunSubmission::new(repo.to_owned(), profile) }.to_recorded(repo.to_owned())
}

fn run(name: &str) -> NewRun {
    let toolchain_env = Sha256Hex::digest(b"PATH");
    NewRun { id: id(name), request: run_request("/r", "pr", None), uid: 7, key: None, toolchain_env, trace: None }
}

fn idempotency_key(text: &str) -> IdempotencyKey {
    IdempotencyKey::new(text).expect("a key")
}

fn key(text: &str, request: &str) -> KeyedRequest {
    KeyedRequest { key: idempotency_key(text), request_sha256: Sha256Hex::digest(request.as_bytes()) }
}

fn passed_events() -> Vec<RunEvent> {
    PASSED.lines().map(|line| serde_json::from_str(line).expect("an event")).collect()
}

fn end_event(verdict: Verdict) -> RunEvent {
    let exit_code = if verdict == Verdict::Passed { 0 } else { 1 };
    RunEvent::RunFinished {
        verdict,
        tier: Tier::ONE,
        exit_code,
        duration_ms: 3,
        evidence_dir: Some("/e".into()),
        reuse: None,
    }
}

fn tree_changed_event(message: &str) -> RunEvent {
    RunEvent::Doubted { doubt: InconclusiveReason::TreeChanged, message: message.to_owned() }
}

/// Records a run that passed.
fn complete(history: &History, run: NewRun) -> RecordedEnd {
    let mut log = history.begin(run).expect("begins");
    let mut events = passed_events();
    // The run starts now and takes no time.
    for event in &mut events {
        match event {
            RunEvent::RunStarted { at, .. } => *at = Clock::system().now_text(),
            RunEvent::RunFinished { duration_ms, .. } => *duration_ms = 0,
            _ => {}
        }
    }
    let end = events.pop().expect("an end");
    for event in events {
        log.append(event).expect("logs");
    }
    log.finish(end)
}

fn list_all(history: &History) -> Vec<RunSummary> {
    history.list(&RunFilter::default(), None).expect("lists").runs
}

fn names(runs: &[RunSummary]) -> Vec<&str> {
    runs.iter().map(|run| run.id.as_str()).collect()
}

/// Checks that every run has ended, that each row matches the fold of its log, and that each log has a row.
fn assert_consistent(history: &History) {
    let mut runs = list_all(history);
    for run in &runs {
        assert_eq!(run.state, RunState::Finished, "{run:?}");
        assert_eq!(history.view(&run.id).expect("reads").expect("there").summary(), *run);
    }
    runs.sort_by(|a, b| a.id.cmp(&b.id));
    let logs = history.shared.files.runs().expect("lists");
    assert_eq!(logs.iter().map(RunId::as_str).collect::<Vec<_>>(), names(&runs));
}

#[test]
fn stores_run_and_reads_it_back() {
    let state = TestStateDir::new();
    let (history, recovered) = state.open();
    assert_eq!((recovered.runs, recovered.rebuild_reason.as_deref()), (0, Some("there is none")));
    let ended = complete(&history, run("r1"));
    assert_eq!((ended.view.verdict, ended.view.seq, ended.events.len()), (Some(Verdict::Passed), 9, 1));
    assert_eq!(history.view(&id("r1")).expect("reads").as_ref(), Some(&ended.view));
    assert_eq!(list_all(&history), [ended.view.summary()]);
    let (events, more) = history.events(&id("r1"), 0, 100).expect("reads").expect("there");
    assert_eq!((events.len(), more), (9, false));
    assert_eq!(LoggedRun::from_log(&events).map(|run| run.view()), Some(ended.view.clone()));
    assert_eq!(history.view(&id("r2")).expect("looks"), None);
    assert_eq!(history.events(&id("r2"), 0, 1).expect("looks"), None);
    drop(history);
    let (history, recovered) = state.open();
    assert_eq!(recovered, RecoverySummary { runs: 1, ..RecoverySummary::default() });
    assert_eq!(history.view(&id("r1")).expect("reads"), Some(ended.view));
}

#[test]
fn pages_events() {
    let state = TestStateDir::new();
    let history = state.history();
    complete(&history, run("r1"));
    let numbers = |after, limit| {
        let (events, more) = history.events(&id("r1"), after, limit).expect("reads").expect("there");
        (events.iter().map(|event| event.seq).collect::<Vec<_>>(), more)
    };
    assert_eq!(numbers(0, 2), (vec![1, 2], true));
    assert_eq!(numbers(7, 2), (vec![8, 9], false));
    assert_eq!(numbers(8, 5), (vec![9], false));
    assert_eq!(numbers(9, 5), (vec![], false));
    assert_eq!(numbers(u64::MAX, 5), (vec![], false));
}

#[test]
fn files_are_private_and_hold_no_reserved_space() {
    let state = TestStateDir::new();
    let history = state.history();
    complete(&history, run("r1"));
    history.store_patch(&id("r1"), b"patch").expect("keeps");
    let mode = |path: &str| std::fs::metadata(state.path().join(path)).expect("there").permissions().mode() & 0o777;
    for directory in ["history", "history/events", "history/patches", "history/damaged"] {
        assert_eq!(mode(directory), 0o700, "{directory}");
    }
    for file in ["lock", "index.sqlite", "index.sqlite-wal", "events/r1.jsonl", "patches/r1.patch"] {
        assert_eq!(mode(&format!("history/{file}")), 0o600, "{file}");
    }
    let log = std::fs::metadata(state.log_path(&id("r1"))).expect("there");
    assert!(log.blocks() * 512 <= log.len().next_multiple_of(4096), "{} of {}", log.blocks() * 512, log.len());
}

#[test]
fn stores_patch() {
    let state = TestStateDir::new();
    let history = state.history();
    complete(&history, run("r1"));
    history.store_patch(&id("r1"), b"one").expect("keeps");
    history.store_patch(&id("r1"), b"two").expect("keeps");
    history.store_patch(&id("gone"), b"whose?").expect("keeps");
    assert_eq!(history.patch(&id("r1")).expect("reads").as_deref(), Some(&b"two"[..]));
    assert_eq!(history.patch(&id("r2")).expect("looks"), None);
    drop(history);
    let history = state.history();
    assert_eq!(history.patch(&id("gone")).expect("looks"), None);
    assert_eq!(history.patch(&id("r1")).expect("reads").as_deref(), Some(&b"two"[..]));
}

#[test]
fn only_one_process_opens_a_history() {
    let state = TestStateDir::new();
    let history = state.history();
    match History::open(state.path(), Clock::system()) {
        Err(OpenHistoryError::InUse(path)) => assert_eq!(path, state.path()),
        other => panic!("opened: {:?}", other.map(|(_, recovered)| recovered)),
    }
    let log = history.begin(run("r1")).expect("begins");
    drop(history);
    assert!(History::open(state.path(), Clock::system()).is_err(), "a run is under way");
    drop(log);
    assert_consistent(&state.history());
}

#[test]
fn dropped_run_is_recorded_as_interrupted() {
    let state = TestStateDir::new();
    let history = state.history();
    let mut log = history.begin(run("r1")).expect("begins");
    log.append(passed_events().remove(0)).expect("logs");
    assert_eq!(list_all(&history)[0].state, RunState::Running);
    drop(log);
    let view = history.view(&id("r1")).expect("reads").expect("there");
    assert_eq!((view.verdict, view.exit_code), (Some(Verdict::Inconclusive), Some(EXIT_INTERRUPTED)));
    assert_consistent(&history);
}

#[test]
fn first_and_last_events_are_logged_once() {
    let state = TestStateDir::new();
    let history = state.history();
    let mut log = history.begin(run("r1")).expect("begins");
    let first = history.events(&id("r1"), 0, 1).expect("reads").expect("there").0.remove(0);
    assert!(matches!(log.append(first.event), Err(HistoryError::MisplacedEvent)));
    assert!(matches!(log.append(end_event(Verdict::Passed)), Err(HistoryError::MisplacedEvent)));
    assert!(matches!(history.begin(run("r1")), Err(HistoryError::Store(_))), "the same id twice");
    let ended = log.finish(end_event(Verdict::Passed));
    assert_eq!((ended.view.verdict, ended.view.seq), (Some(Verdict::Passed), 2));
    assert_consistent(&history);
}

#[test]
fn key_identifies_one_run() {
    let state = TestStateDir::new();
    let history = state.history();
    let with_key = |name, text| NewRun { key: Some(key(text, "request")), ..run(name) };
    let run_of_key = |history: &History, uid, text| history.run_for_key(uid, &idempotency_key(text)).expect("asks");
    complete(&history, with_key("r1", "a"));
    assert_eq!(run_of_key(&history, 7, "a"), Some((id("r1"), Sha256Hex::digest(b"request"))));
    assert_eq!((run_of_key(&history, 8, "a"), run_of_key(&history, 7, "b")), (None, None));
    assert!(matches!(history.begin(with_key("r2", "a")), Err(HistoryError::KeyUsed(run)) if run == id("r1")));
    assert_eq!(names(&list_all(&history)), ["r1"], "nothing is left of what was refused");
    history.assign_key(8, &key("a", "other"), &id("r1")).expect("remembers");
    complete(&history, run("r3"));
    let again = history.assign_key(8, &key("a", "other"), &id("r3")).expect("the same request, sent twice");
    assert_eq!(again, id("r1"));
    assert!(matches!(history.assign_key(8, &key("a", "x"), &id("r1")), Err(HistoryError::KeyUsed(_))));
    assert!(matches!(history.assign_key(8, &key("c", "x"), &id("r9")), Err(HistoryError::UnknownRun(_))));
    assert_eq!(run_of_key(&history, 8, "a"), Some((id("r1"), Sha256Hex::digest(b"other"))));
    drop(history);
    let history = state.history();
    assert_eq!(run_of_key(&history, 8, "a"), Some((id("r1"), Sha256Hex::digest(b"other"))));
    drop(history);
    std::fs::remove_file(state.path().join("history/index.sqlite")).expect("removes");
    let history = state.history();
    assert_eq!(run_of_key(&history, 7, "a"), Some((id("r1"), Sha256Hex::digest(b"request"))), "it is in the log");
    assert_eq!(run_of_key(&history, 8, "a"), None, "and this one does not");
}

#[test]
fn stores_only_hash_of_key() {
    let state = TestStateDir::new();
    let history = state.history();
    complete(&history, NewRun { key: Some(key("a-token-of-the-caller", "r")), ..run("r1") });
    drop(history);
    for file in ["index.sqlite", "events/r1.jsonl"] {
        let bytes = std::fs::read(state.path().join("history").join(file)).expect("reads");
        assert!(!bytes.windows(10).any(|part| part == b"a-token-of"), "{file}");
    }
}

#[test]
fn lists_only_runs_that_match_filter() {
    let state = TestStateDir::new();
    let history = state.history();
    let new_run = |name, repo, profile, changeset, uid| NewRun {
        id: id(name),
        request: run_request(repo, profile, changeset),
        uid,
        ..run(name)
    };
    complete(&history, new_run("r1", "/a", "pr", Some("c1"), 7));
    complete(&history, new_run("r2", "/b", "pr", None, 8));
    let waiting = history.begin(new_run("r3", "/a", "full", Some("c1"), 7)).expect("begins");
    let found = |filter: RunFilter, uid| {
        let mut runs = history.list(&filter, uid).expect("lists").runs;
        runs.sort_by(|a, b| a.id.cmp(&b.id));
        names(&runs).join(" ")
    };
    let all = RunFilter::default;
    assert_eq!(found(all(), None), "r1 r2 r3");
    assert_eq!(found(all(), Some(7)), "r1 r3");
    assert_eq!(found(all(), Some(9)), "");
    assert_eq!(found(RunFilter { repo: Some("/a".into()), ..all() }, None), "r1 r3");
    assert_eq!(found(RunFilter { repo: Some("/a' OR true --".into()), ..all() }, None), "");
    assert_eq!(found(RunFilter { changeset: ChangesetId::new("c1").ok(), ..all() }, Some(7)), "r1 r3");
    assert_eq!(found(RunFilter { profile: ProfileName::new("pr").ok(), ..all() }, None), "r1 r2");
    assert_eq!(found(RunFilter { state: Some(RunState::Queued), ..all() }, None), "r3");
    assert_eq!(found(RunFilter { verdict: Some(Verdict::Passed), ..all() }, None), "r1 r2");
    let refused = history.list(&RunFilter { cursor: Some("x".into()), ..all() }, None);
    assert!(matches!(refused, Err(HistoryError::InvalidCursor(_))));
    drop(waiting);
}

#[test]
fn removes_outdated_runs() {
    let state = TestStateDir::new();
    let history = state.history();
    let waiting = history.begin(run("r0")).expect("begins");
    for name in ["r1", "r2", "r3", "r4"] {
        complete(&history, NewRun { key: Some(key(name, "request")), ..run(name) });
        history.store_patch(&id(name), b"patch").expect("keeps");
    }
    let retention = |max_age, max_runs| Retention {
        max_age,
        max_runs,
        max_output_bytes: 1,
        max_copy_bytes: 1,
        max_result_bytes: 1,
        caches: proctor_core::spec::DaemonSettings::default().retention.caches,
    };
    assert_eq!(
        history.remove_outdated(&retention(None, 4)).expect("tidies"),
        RetentionResult { removed: 0, runs: 5, has_more: false }
    );
    let before = list_all(&history);
    assert_eq!(
        history.remove_outdated(&retention(None, 2)).expect("tidies"),
        RetentionResult { removed: 2, runs: 3, has_more: false }
    );
    let kept = list_all(&history);
    let newest: Vec<_> = before.iter().filter(|run| run.id != id("r0")).take(2).map(|run| &run.id).collect();
    assert_eq!(kept.iter().filter(|run| run.id != id("r0")).map(|run| &run.id).collect::<Vec<_>>(), newest);
    let gone: Vec<_> = before.iter().filter(|run| !kept.contains(run)).collect();
    for run in &gone {
        assert_eq!(history.view(&run.id).expect("looks"), None);
        assert_eq!(history.patch(&run.id).expect("looks"), None);
        assert_eq!(history.run_for_key(7, &idempotency_key(run.id.as_str())).expect("asks"), None);
    }
    let day = Duration::from_secs(24 * 60 * 60);
    assert_eq!(history.remove_outdated(&retention(Some(day), 9)).expect("tidies").removed, 0);
    // A run that ended within the current millisecond is not older than zero.
    let now = Clock::system().now_text();
    while Clock::system().now_text() == now {
        std::hint::spin_loop();
    }
    assert_eq!(history.remove_outdated(&retention(Some(Duration::ZERO), 9)).expect("tidies").runs, 1);
    assert_eq!(names(&list_all(&history)), ["r0"], "one that has not ended stays");
    drop(waiting);
    assert_consistent(&history);
}

#[test]
fn removes_thousands_of_runs_in_batches() {
    let state = TestStateDir::new();
    let history = state.history();
    for n in 0..600 {
        drop(history.begin(run(&format!("r{n:03}"))).expect("begins"));
    }
    let keep = Retention {
        max_age: None,
        max_runs: 10,
        max_output_bytes: 1,
        max_copy_bytes: 1,
        max_result_bytes: 1,
        caches: proctor_core::spec::DaemonSettings::default().retention.caches,
    };
    let calls: Vec<RetentionResult> = std::iter::from_fn(|| Some(history.remove_outdated(&keep).expect("tidies")))
        .scan(true, |more, retained| std::mem::replace(more, retained.has_more).then_some(retained))
        .collect();
    assert!(calls.iter().all(|retained| retained.removed <= MAX_REMOVED_RUNS as u64), "{calls:?}");
    assert_eq!(calls.iter().map(|retained| retained.removed).sum::<u64>(), 590);
    assert_eq!(calls.last().map(|retained| (retained.runs, retained.has_more)), Some((10, false)));
    assert_consistent(&history);
}

//! Simulates a full disk at every byte of every file. Reported and recorded results must agree, and no run passes
//! without a record.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};

use super::*;

/// Set in the child process in which files cannot grow. The limit applies to a whole process, so it must not affect
/// other tests.
const CHILD_VARIABLE: &str = "PROCTOR_TEST_OF_LIMITS";
const TEST_NAME: &str = "history::tests::limits::reports_full_disk_at_each_byte";

#[test]
#[expect(clippy::disallowed_methods, reason = "the test starts itself, and finds out which of both it is")]
fn reports_full_disk_at_each_byte() {
    if std::env::var_os(CHILD_VARIABLE).is_some() {
        return run_in_child_process();
    }
    let itself = std::env::current_exe().expect("a program");
    let mut child = std::process::Command::new(itself);
    let output = child.args(["--exact", TEST_NAME, "--nocapture"]).env(CHILD_VARIABLE, "1").output().expect("runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.contains("tried: "), "{stderr}");
}

fn run_in_child_process() {
    let mut large = SigSet::empty();
    large.add(Signal::SIGXFSZ);
    large.thread_block().expect("blocks");
    let mut counts = BTreeMap::new();
    for since in [LimitedFrom::Opening, LimitedFrom::Beginning, LimitedFrom::Going] {
        // The log of this run has 6 KB, and the index somewhat more.
        for bytes in (0..2_000).step_by(61).chain((2_000..250_000).step_by(1_009)) {
            let outcome = run_with_limit(since, bytes);
            *counts.entry(format!("{since:?} {outcome}")).or_insert(0) += 1;
        }
    }
    eprintln!("tried: {counts:#?}");
    for what in [
        "Opening not opened",
        "Opening refused",
        "Opening Passed",
        "Beginning refused",
        "Beginning Passed",
        "Going Inconclusive",
        "Going Passed",
    ] {
        assert!(counts.contains_key(what), "{what} in {counts:?}");
    }
}

/// Moment from which files cannot grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LimitedFrom {
    Opening,
    Beginning,
    Going,
}

fn limit_file_size(bytes: Option<u64>) {
    let (_, hard) = getrlimit(Resource::RLIMIT_FSIZE).expect("reads");
    setrlimit(Resource::RLIMIT_FSIZE, bytes.unwrap_or(hard), hard).expect("sets");
}

/// Executes a run while no file can grow beyond `bytes`, and returns its result.
fn run_with_limit(since: LimitedFrom, bytes: u64) -> String {
    let state = TestStateDir::new();
    let new = NewRun { key: Some(key("a", "request")), ..run("r1") };
    if since == LimitedFrom::Opening {
        limit_file_size(Some(bytes));
        let opened = History::open(state.path(), Clock::system());
        let outcome = opened.map(|(history, _)| append_and_finish(&history, history.begin(new), &state)).ok();
        limit_file_size(None);
        assert_consistent(&state.history());
        return outcome.unwrap_or_else(|| "not opened".to_owned());
    }
    let history = state.history();
    complete(&history, run("r0"));
    if since == LimitedFrom::Beginning {
        limit_file_size(Some(bytes));
    }
    let begun = history.begin(new);
    limit_file_size(Some(bytes));
    let outcome = append_and_finish(&history, begun, &state);
    limit_file_size(None);
    // With free space again, the reported results are unchanged and new runs work.
    let recorded = history.view(&id("r1")).expect("reads");
    assert_eq!(list_all(&history).len(), 1 + usize::from(recorded.is_some()), "{outcome}");
    complete(&history, run("r2"));
    assert_eq!(history.view(&id("r1")).expect("reads"), recorded);
    assert_consistent(&history);
    drop(history);
    let (history, recovered) = state.open();
    assert_eq!((recovered.interrupted, recovered.quarantined), (vec![], vec![]));
    assert_eq!(history.view(&id("r1")).expect("reads"), recorded);
    assert_consistent(&history);
    outcome
}

fn append_and_finish(history: &History, begun: Result<RunLogWriter, HistoryError>, state: &TestStateDir) -> String {
    let Ok(mut log) = begun else {
        assert!(!state.log_path(&id("r1")).exists(), "what was refused is gone");
        return "refused".to_owned();
    };
    let mut events = passed_events();
    let end = events.pop().expect("an end");
    let all = events.into_iter().map(|event| log.append(event)).all(|logged| logged.is_ok());
    let ended = log.finish(end);
    let verdict = ended.view.verdict.expect("an end");
    assert!(all || verdict == Verdict::Inconclusive, "an event is lost");
    assert_eq!(history.view(&id("r1")).expect("reads").as_ref(), Some(&ended.view));
    let (events, _) = history.events(&id("r1"), 0, 100).expect("reads").expect("there");
    assert_eq!(LoggedRun::from_log(&events).map(|run| run.view()).as_ref(), Some(&ended.view));
    if let Ok(page) = history.list(&RunFilter::default(), None) {
        assert!(page.runs.contains(&ended.view.summary()), "{page:?}");
    }
    // After a kill at this point, the next daemon must not report a better result.
    limit_file_size(None);
    let killed = state.copy_after_kill();
    let after = killed.history();
    assert_consistent(&after);
    let view = after.view(&id("r1")).expect("reads").expect("there");
    assert!(view.verdict == Some(Verdict::Inconclusive) || view == ended.view);
    format!("{verdict:?}")
}

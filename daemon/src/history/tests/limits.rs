//! Simulates a full disk at every byte of every file. Reported and recorded results must agree, and no run passes
//! without a record.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};

use super::*;

/// Set in the child process in which files cannot grow. The limit applies to a whole process, so it must not affect
/// other tests.
const ROLE: &str = "PROCTOR_TEST_OF_LIMITS";
const NAME: &str = "history::tests::limits::no_room_at_any_byte";

#[test]
#[expect(clippy::disallowed_methods, reason = "the test starts itself, and finds out which of both it is")]
fn no_room_at_any_byte() {
    if std::env::var_os(ROLE).is_some() {
        return in_a_process_of_its_own();
    }
    let itself = std::env::current_exe().expect("a program");
    let mut child = std::process::Command::new(itself);
    let output = child.args(["--exact", NAME, "--nocapture"]).env(ROLE, "1").output().expect("runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("tried: "), "{said}");
}

fn in_a_process_of_its_own() {
    let mut large = SigSet::empty();
    large.add(Signal::SIGXFSZ);
    large.thread_block().expect("blocks");
    let mut seen = BTreeMap::new();
    for since in [Since::Opening, Since::Beginning, Since::Going] {
        // The log of this run has 6 KB, and the index somewhat more.
        for bytes in (0..2_000).step_by(61).chain((2_000..250_000).step_by(1_009)) {
            let came_to = one_try(since, bytes);
            *seen.entry(format!("{since:?} {came_to}")).or_insert(0) += 1;
        }
    }
    eprintln!("tried: {seen:#?}");
    for what in [
        "Opening not opened",
        "Opening refused",
        "Opening Passed",
        "Beginning refused",
        "Beginning Passed",
        "Going Inconclusive",
        "Going Passed",
    ] {
        assert!(seen.contains_key(what), "{what} in {seen:?}");
    }
}

/// Moment from which files cannot grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Since {
    Opening,
    Beginning,
    Going,
}

fn limit(bytes: Option<u64>) {
    let (_, hard) = getrlimit(Resource::RLIMIT_FSIZE).expect("reads");
    setrlimit(Resource::RLIMIT_FSIZE, bytes.unwrap_or(hard), hard).expect("sets");
}

/// Executes a run while no file can grow beyond `bytes`, and returns its result.
fn one_try(since: Since, bytes: u64) -> String {
    let state = State::new();
    let new = NewRun { key: Some(key("a", "request")), ..run("r1") };
    if since == Since::Opening {
        limit(Some(bytes));
        let opened = History::open(state.path(), Clock::system());
        let came_to = opened.map(|(history, _)| under_way(&history, history.begin(new), &state)).ok();
        limit(None);
        assert_settled(&state.history());
        return came_to.unwrap_or_else(|| "not opened".to_owned());
    }
    let history = state.history();
    complete(&history, run("r0"));
    if since == Since::Beginning {
        limit(Some(bytes));
    }
    let begun = history.begin(new);
    limit(Some(bytes));
    let came_to = under_way(&history, begun, &state);
    limit(None);
    // With free space again, the reported results are unchanged and new runs work.
    let told = history.view(&id("r1")).expect("reads");
    assert_eq!(listed(&history).len(), 1 + usize::from(told.is_some()), "{came_to}");
    complete(&history, run("r2"));
    assert_eq!(history.view(&id("r1")).expect("reads"), told);
    assert_settled(&history);
    drop(history);
    let (history, recovered) = state.open();
    assert_eq!((recovered.interrupted, recovered.set_aside), (vec![], vec![]));
    assert_eq!(history.view(&id("r1")).expect("reads"), told);
    assert_settled(&history);
    came_to
}

fn under_way(history: &History, begun: Result<RunLog, HistoryError>, state: &State) -> String {
    let Ok(mut log) = begun else {
        assert!(!state.log(&id("r1")).exists(), "what was refused is gone");
        return "refused".to_owned();
    };
    let mut events = passed();
    let end = events.pop().expect("an end");
    let all = events.into_iter().map(|event| log.append(event)).all(|logged| logged.is_ok());
    let ended = log.finish(end);
    let verdict = ended.view.verdict.expect("an end");
    assert!(all || verdict == Verdict::Inconclusive, "an event is lost");
    assert_eq!(history.view(&id("r1")).expect("reads").as_ref(), Some(&ended.view));
    let (events, _) = history.events(&id("r1"), 0, 100).expect("reads").expect("there");
    assert_eq!(RunView::fold(&events).as_ref(), Some(&ended.view));
    if let Ok(page) = history.list(&RunFilter::default(), None) {
        assert!(page.runs.contains(&ended.view.summary()), "{page:?}");
    }
    // After a kill at this point, the next daemon must not report a better result.
    limit(None);
    let killed = state.killed();
    let after = killed.history();
    assert_settled(&after);
    let view = after.view(&id("r1")).expect("reads").expect("there");
    assert!(view.verdict == Some(Verdict::Inconclusive) || view == ended.view);
    format!("{verdict:?}")
}

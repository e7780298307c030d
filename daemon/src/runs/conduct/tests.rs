//! Endings of a run that only a broken engine or a failing disk can cause.

use super::*;
use proctor_core::api::{ProblemType, RunState, RunSubmission, RunView};
use proctor_core::digest::Sha256Hex;
use proctor_core::names::{ProfileName, RunId};
use proctor_core::tier::Tier;
use tempfile::TempDir;

/// Records a run in the state before it starts.
async fn begun() -> (TempDir, History, Arc<Live>, Record) {
    let state = tempfile::tempdir().expect("a directory");
    let (history, _) = History::open(state.path(), Clock::system()).expect("a history");
    let asked = RunSubmission::new("/r".into(), ProfileName::new("pr").expect("a name")).asked("/r".into());
    let id = RunId::new("20260102T030405Z-00000001").expect("an id");
    let live = Arc::new(Live::new(RunView::queued(id.clone(), String::new(), asked.clone(), 7)));
    let new = NewRun { id, asked, uid: 7, key: None, toolchain_env: Sha256Hex::of(b"PATH"), trace: None };
    let record = Record::begin(&history, &live, new).await.expect("it is recorded");
    (state, history, live, record)
}

/// Returns the events of a run, and checks that readers and the log saw the same.
fn told(history: &History, live: &Live) -> Vec<RunEvent> {
    let (logged, more) = history.events(live.id(), 0, 100).expect("reads").expect("there");
    assert!(!more);
    let view = RunView::fold(&logged).expect("a run");
    assert_eq!(view, live.shown().view, "clients get the recorded result");
    logged.into_iter().map(|logged| logged.event).collect()
}

fn passed() -> RunEvent {
    let (verdict, exit_code) = (Verdict::Passed, 0);
    RunEvent::RunFinished { verdict, tier: Tier::ONE, exit_code, duration_ms: 1, evidence_dir: None }
}

#[tokio::test]
async fn a_panic_in_a_run_is_an_inconclusive_end() {
    let (_state, history, live, record) = begun().await;
    let how = tokio::spawn(async { panic!("of the test") }).await;
    let how: Outcome = how.map(|()| Err(EngineError::Interrupted));
    assert!(how.is_err());
    record.conclude(Course::Ran { how: Box::new(how), end: None, took: Duration::ZERO, pass: None }, &history, &live);
    let view = live.shown().view.clone();
    assert_eq!((view.verdict, view.exit_code), (Some(Verdict::Inconclusive), Some(EXIT_INCONCLUSIVE)));
    assert_eq!(view.doubts[0].doubt, Doubt::Internal);
    assert_eq!(told(&history, &live).len(), 3);
}

/// Imitates an engine that records a pass and then panics. `taken_back` counts how often the pass is withdrawn.
async fn broken_behind_its_pass(
    passed: oneshot::Sender<Pass>,
    taken_back: mpsc::Sender<()>,
) -> Result<RunReport, EngineError> {
    let pass = Pass::new(move || {
        taken_back.try_send(()).expect("once");
        Ok(())
    });
    assert!(passed.send(pass).is_ok(), "somebody keeps it");
    panic!("of the test")
}

#[tokio::test]
async fn a_panic_behind_a_pass_takes_the_pass_back() {
    let (_state, history, live, record) = begun().await;
    let (sender, taken_back) = mpsc::channel(1);
    let (record, course) = under_way(record, &live, |_, _, passed| broken_behind_its_pass(passed, sender)).await;
    assert!(taken_back.is_empty(), "it remains until the run has another result");
    record.conclude(course, &history, &live);
    assert_eq!((live.shown().view.verdict, taken_back.len()), (Some(Verdict::Inconclusive), 1));
    told(&history, &live);
}

/// The run may have done anything that was allowed, like a run that was killed.
#[tokio::test]
async fn a_panic_in_a_run_that_had_begun_has_the_highest_tier_that_was_allowed() {
    const PASSED: &str = include_str!("../../../../fixtures/logs/passed.jsonl");
    let (_state, history, live, mut record) = begun().await;
    let started = PASSED.lines().next().and_then(|line| serde_json::from_str(line).ok()).expect("an event");
    record.log(started, &live);
    let how = tokio::spawn(async { panic!("of the test") }).await;
    let how: Outcome = how.map(|()| Err(EngineError::Interrupted));
    record.conclude(Course::Ran { how: Box::new(how), end: None, took: Duration::ZERO, pass: None }, &history, &live);
    let view = live.shown().view.clone();
    assert_eq!((view.verdict, view.tier), (Some(Verdict::Inconclusive), Some(view.asked.max_tier)));
    assert_ne!(view.tier, Some(Tier::ONE), "the case says nothing otherwise");
    told(&history, &live);
}

#[tokio::test]
async fn a_pass_without_the_engines_own_end_is_none() {
    let (_state, history, live, record) = begun().await;
    let report = RunReport {
        verdict: Verdict::Passed,
        exit_code: 0,
        tier: Tier::ONE,
        run_id: live.id().clone(),
        evidence_dir: "/e".into(),
        doubts: vec![],
        patch: None,
    };
    record.conclude(
        Course::Ran { how: Box::new(Ok(Ok(report))), end: None, took: Duration::ZERO, pass: None },
        &history,
        &live,
    );
    assert_eq!(live.shown().view.verdict, Some(Verdict::Inconclusive));
    told(&history, &live);
}

#[tokio::test]
async fn who_is_refused_is_told_why_and_how_to_exit() {
    let (_state, history, live, record) = begun().await;
    let how = Ok(Err(EngineError::NoSpec("/r/spec".into())));
    record.conclude(Course::Ran { how: Box::new(how), end: None, took: Duration::ZERO, pass: None }, &history, &live);
    let view = live.shown().view.clone();
    assert_eq!((view.state, view.exit_code), (RunState::Finished, Some(2)));
    assert_eq!(view.problem.map(|problem| problem.kind), Some(ProblemType::Unprocessable));
    assert!(matches!(told(&history, &live)[1], RunEvent::RunRefused { .. }));
}

#[tokio::test]
async fn who_asked_it_to_end_is_named_once() {
    let (_state, history, live, record) = begun().await;
    live.cancel("DELETE".into());
    live.cancel("somebody else".into());
    let (mut events, mut end) = (vec![RunEvent::Cancelling { by: "the caller".into() }], None);
    let record = record.take(&mut events, &mut end, &live).await;
    let how = Ok(Err(EngineError::Interrupted));
    record.conclude(Course::Ran { how: Box::new(how), end, took: Duration::ZERO, pass: None }, &history, &live);
    let told = told(&history, &live);
    let named: Vec<_> = told.iter().filter(|event| matches!(event, RunEvent::Cancelling { .. })).collect();
    assert_eq!(named, [&RunEvent::Cancelling { by: "DELETE".into() }]);
    assert_eq!(live.shown().view.exit_code, Some(EXIT_INTERRUPTED));
}

#[tokio::test]
async fn an_event_that_cannot_be_logged_ends_the_run_and_it_does_not_pass() {
    let (state, _history, live, mut record) = begun().await;
    let events = state.path().join("history/events");
    std::fs::rename(&events, state.path().join("aside")).expect("moved");
    std::fs::create_dir(&events).expect("another directory, in which the log is not");
    for entry in std::fs::read_dir(state.path().join("aside")).expect("reads").flatten() {
        std::fs::remove_file(entry.path()).expect("gone from its directory");
    }
    record.log(RunEvent::Doubted { doubt: Doubt::TreeChanged, message: "m".into() }, &live);
    assert!(live.token().is_cancelled(), "it is not worth its time any more");
    record.finish(passed(), None, &live);
    let view = live.shown().view.clone();
    assert_eq!((view.state, view.verdict), (RunState::Finished, Some(Verdict::Inconclusive)), "{view:#?}");
}

#[tokio::test]
async fn an_end_without_a_record_is_told_once() {
    let (_state, _history, live, record) = begun().await;
    end_unrecorded(&live, "why");
    end_unrecorded(&live, "again");
    let view = live.shown().view.clone();
    assert_eq!((view.verdict, view.reason.as_str(), view.seq), (Some(Verdict::Inconclusive), "why", 3));
    drop(record);
}

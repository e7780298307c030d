//! Endings of a run that only a broken engine or a failing disk can cause.

use super::*;
use proctor_core::api::{LoggedRun, ProblemType, RunState, RunSubmission};
use proctor_core::model::names::{ProfileName, RunId};
use proctor_core::model::tier::Tier;
use proctor_core::text::digest::Sha256Hex;
use proctor_runner::EngineError;
use tempfile::TempDir;

/// Records a run in the state before it starts.
async fn begin_record() -> (TempDir, History, Arc<LiveRun>, RunRecorder) {
    let state = tempfile::tempdir().expect("a directory");
    let (history, _) = History::open(state.path(), Clock::system()).expect("a history");
    let request = RunSubmission::new("/r".into(), ProfileName::new("pr").expect("a name")).to_recorded("/r".into());
    let id = RunId::new("20260102T030405Z-00000001").expect("an id");
    let live = Arc::new(LiveRun::new(LoggedRun::new_queued(id.clone(), String::new(), request.clone(), 7)));
    let new = NewRun { id, request, uid: 7, key: None, toolchain_env: Sha256Hex::digest(b"PATH"), trace: None };
    let record = RunRecorder::begin(&history, &live, new).await.expect("it is recorded");
    (state, history, live, record)
}

/// Returns the events of a run, and checks that readers and the log saw the same.
fn logged_events(history: &History, live: &LiveRun) -> Vec<RunEvent> {
    let (logged, more) = history.events(live.id(), 0, 100).expect("reads").expect("there");
    assert!(!more);
    let view = LoggedRun::from_log(&logged).expect("a run").view();
    assert_eq!(view, live.current().view, "clients get the recorded result");
    logged.into_iter().map(|logged| logged.event).collect()
}

fn passed_event() -> RunEvent {
    let (verdict, exit_code) = (Verdict::Passed, 0);
    RunEvent::RunFinished { verdict, tier: Tier::ONE, exit_code, duration_ms: 1, evidence_dir: None, reuse: None }
}

#[tokio::test]
async fn panic_of_engine_ends_run_as_inconclusive() {
    let (_state, history, live, record) = begin_record().await;
    let how = tokio::spawn(async { panic!("of the test") }).await;
    let how: EngineOutcome = how.map(|()| Err(EngineError::Interrupted.problem()));
    assert!(how.is_err());
    record.conclude(
        RunExecution::Ran { how: Box::new(how), end: None, took: Duration::ZERO, pass: None },
        &history,
        &live,
    );
    let view = live.current().view.clone();
    assert_eq!((view.verdict, view.exit_code), (Some(Verdict::Inconclusive), Some(EXIT_INCONCLUSIVE)));
    assert_eq!(view.doubts[0].doubt, InconclusiveReason::Internal);
    assert_eq!(logged_events(&history, &live).len(), 3);
}

/// Imitates an engine that records a pass and then panics. `taken_back` counts how often the pass is withdrawn.
async fn panic_after_pass(
    passed: oneshot::Sender<RevocablePass>,
    withdrawals: mpsc::Sender<()>,
) -> Result<FinishedRun, Problem> {
    let pass = RevocablePass::new(move || {
        withdrawals.try_send(()).expect("once");
        Ok(())
    });
    assert!(passed.send(pass).is_ok(), "somebody keeps it");
    panic!("of the test")
}

#[tokio::test]
async fn panic_after_pass_withdraws_the_pass() {
    let (_state, history, live, record) = begin_record().await;
    let (sender, withdrawals) = mpsc::channel(1);
    let (record, course) = execute(record, &live, |_, _, passed| panic_after_pass(passed, sender)).await;
    assert!(withdrawals.is_empty(), "it remains until the run has another result");
    record.conclude(course, &history, &live);
    assert_eq!((live.current().view.verdict, withdrawals.len()), (Some(Verdict::Inconclusive), 1));
    logged_events(&history, &live);
}

/// The run may have done anything that was allowed, like a run that was killed.
#[tokio::test]
async fn panic_of_started_run_records_max_tier() {
    const PASSED: &str = include_str!("../../../../fixtures/logs/passed.jsonl");
    let (_state, history, live, mut record) = begin_record().await;
    let started = PASSED.lines().next().and_then(|line| serde_json::from_str(line).ok()).expect("an event");
    record.log_event(started, &live);
    let how = tokio::spawn(async { panic!("of the test") }).await;
    let how: EngineOutcome = how.map(|()| Err(EngineError::Interrupted.problem()));
    record.conclude(
        RunExecution::Ran { how: Box::new(how), end: None, took: Duration::ZERO, pass: None },
        &history,
        &live,
    );
    let view = live.current().view.clone();
    assert_eq!((view.verdict, view.tier), (Some(Verdict::Inconclusive), Some(view.request.max_tier)));
    assert_ne!(view.tier, Some(Tier::ONE), "the case says nothing otherwise");
    logged_events(&history, &live);
}

#[tokio::test]
async fn pass_without_final_event_is_inconclusive() {
    let (_state, history, live, record) = begin_record().await;
    let report = FinishedRun {
        verdict: Verdict::Passed,
        exit_code: 0,
        tier: Tier::ONE,
        run_id: live.id().clone(),
        evidence_dir: "/e".into(),
        inconclusive_reasons: vec![],
        patch: None,
    };
    record.conclude(
        RunExecution::Ran { how: Box::new(Ok(Ok(report))), end: None, took: Duration::ZERO, pass: None },
        &history,
        &live,
    );
    assert_eq!(live.current().view.verdict, Some(Verdict::Inconclusive));
    logged_events(&history, &live);
}

#[tokio::test]
async fn refused_run_records_problem_and_exit_code() {
    let (_state, history, live, record) = begin_record().await;
    let how = Ok(Err(EngineError::NoSpec("/r/spec".into()).problem()));
    record.conclude(
        RunExecution::Ran { how: Box::new(how), end: None, took: Duration::ZERO, pass: None },
        &history,
        &live,
    );
    let view = live.current().view.clone();
    assert_eq!((view.state, view.exit_code), (RunState::Finished, Some(2)));
    assert_eq!(view.problem.map(|problem| problem.kind), Some(ProblemType::Unprocessable));
    assert!(matches!(logged_events(&history, &live)[1], RunEvent::RunRefused { .. }));
}

#[tokio::test]
async fn records_who_cancelled_once() {
    let (_state, history, live, mut record) = begin_record().await;
    live.cancel("DELETE".into());
    live.cancel("somebody else".into());
    let (mut events, mut end) = (vec![RunEvent::Cancelling { by: "the caller".into() }], None);
    record.log_batch(&mut events, &mut end, &live);
    let how = Ok(Err(EngineError::Interrupted.problem()));
    record.conclude(RunExecution::Ran { how: Box::new(how), end, took: Duration::ZERO, pass: None }, &history, &live);
    let events = logged_events(&history, &live);
    let named: Vec<_> = events.iter().filter(|event| matches!(event, RunEvent::Cancelling { .. })).collect();
    assert_eq!(named, [&RunEvent::Cancelling { by: "DELETE".into() }]);
    assert_eq!(live.current().view.exit_code, Some(EXIT_INTERRUPTED));
}

#[tokio::test]
async fn unloggable_event_cancels_run_and_prevents_pass() {
    let (state, _history, live, mut record) = begin_record().await;
    let events = state.path().join("history/events");
    std::fs::rename(&events, state.path().join("aside")).expect("moved");
    std::fs::create_dir(&events).expect("another directory, in which the log is not");
    for entry in std::fs::read_dir(state.path().join("aside")).expect("reads").flatten() {
        std::fs::remove_file(entry.path()).expect("gone from its directory");
    }
    record.log_event(RunEvent::Doubted { doubt: InconclusiveReason::TreeChanged, message: "m".into() }, &live);
    assert!(live.token().is_cancelled(), "it is not worth its time any more");
    record.finish(passed_event(), None, &live);
    let view = live.current().view.clone();
    assert_eq!((view.state, view.verdict), (RunState::Finished, Some(Verdict::Inconclusive)), "{view:#?}");
}

#[tokio::test]
async fn unrecorded_end_is_published_once() {
    let (_state, _history, live, record) = begin_record().await;
    end_unrecorded(&live, "why");
    end_unrecorded(&live, "again");
    let view = live.current().view.clone();
    assert_eq!((view.verdict, view.reason.as_str(), view.seq), (Some(Verdict::Inconclusive), "why", 3));
    drop(record);
}

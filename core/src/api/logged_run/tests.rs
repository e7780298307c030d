//! Tests of runs that are read from their log.

use super::*;
use crate::api::RunSubmission;
use crate::decision::verdict::{InconclusiveReason, Verdict};
use crate::model::names::{ProfileName, SkillName, StepName};
use crate::model::tier::Tier;

fn numbered_log(events: Vec<RunEvent>) -> Vec<LoggedEvent> {
    let logged = |(index, event)| LoggedEvent { seq: index as u64 + 1, logged_at: format!("t{index}"), event };
    events.into_iter().enumerate().map(logged).collect()
}

fn view(log: &[LoggedEvent]) -> RunView {
    let run = LoggedRun::from_log(log).expect("a run");
    assert_eq!(run.summary(), run.view().summary());
    run.view()
}

fn queued_event() -> RunEvent {
    let request = RunSubmission::new("/r".into(), ProfileName::new("pr").expect("a name")).to_recorded("/r".into());
    let run_id = RunId::new("r1").expect("an id");
    RunEvent::RunQueued { run_id, at: "t".into(), request, uid: 7, toolchain_env_sha256: None, trace: None }
}

#[test]
fn reports_interruption_before_run_start() {
    let doubt = RunEvent::Doubted { doubt: InconclusiveReason::Interrupted, message: "the daemon was killed".into() };
    let end = RunEvent::RunFinished {
        verdict: Verdict::Inconclusive,
        tier: Tier::ONE,
        exit_code: 130,
        duration_ms: 0,
        evidence_dir: None,
        reuse: None,
    };
    let view = view(&numbered_log(vec![queued_event(), doubt, end]));
    assert_eq!((view.state, view.verdict, view.seq), (RunState::Finished, Some(Verdict::Inconclusive), 3));
    assert_eq!((view.reason.as_str(), view.finished_at.as_deref()), ("the daemon was killed", Some("t2")));
    let text = serde_json::to_string(&view).expect("writes");
    assert_eq!(serde_json::from_str::<RunView>(&text).expect("reads"), view);
}

fn started_event(at: &str) -> RunEvent {
    let event = serde_json::json!({
        "event": "run_started", "run_id": "r1", "at": at, "profile": "pr", "changeset_id": null,
        "spec_sha256": "0".repeat(64), "plan_sha256": "0".repeat(64), "snapshot": format!("sha256:{}", "0".repeat(64)),
        "source": { "kind": "worktree" }, "sandbox": "strict", "checks": 0, "skills": [],
    });
    serde_json::from_value(event).expect("an event")
}

/// Returns the end of a run that took `duration_ms`.
fn finished_event(duration_ms: u64) -> RunEvent {
    let (verdict, tier) = (Verdict::Passed, Tier::ONE);
    RunEvent::RunFinished { verdict, tier, exit_code: 0, duration_ms, evidence_dir: None, reuse: None }
}

#[test]
fn duration_is_the_time_between_start_and_end() {
    let log = numbered_log(vec![queued_event(), started_event("2026-01-02T23:59:59.900Z"), finished_event(1_250)]);
    let view = view(&log);
    assert_eq!(view.started_at.as_deref(), Some("2026-01-02T23:59:59.900Z"));
    assert_eq!((view.finished_at.as_deref(), view.duration_ms), (Some("2026-01-03T00:00:01.150Z"), Some(1_250)));
}

#[test]
fn running_check_is_not_a_step() {
    let event = RunEvent::StepStarted {
        skill: SkillName::new("posix").expect("a name"),
        step: StepName::new("posix.1").expect("a name"),
        attempt: 1,
        timeout_ms: 1,
        expected_ms: None,
    };
    let view = view(&numbered_log(vec![queued_event(), event]));
    assert_eq!((view.steps.len(), view.reason.as_str()), (0, "posix/posix.1 runs"));
}

#[test]
fn rejects_log_without_initial_request() {
    let end = RunEvent::Cancelling { by: "x".into() };
    assert_eq!(LoggedRun::from_log(&numbered_log(vec![end])), None);
    assert_eq!(LoggedRun::from_log([]), None);
}

//! Tests the events of a run over HTTP: the event stream, and the long poll for new events.

use serde_json::{Value, json};

use super::{assert_matches_schema, curl, start_curl, submit_run, submitted_run_id};
use crate::environment::{TestEnvironment, release_step, wait_for_step, waiting_step};
use crate::process::RunningProcess;
use crate::test_spec::TestSpec;

pub(super) fn event_stream_resumes(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([waiting_step(env, "wait")]));
    let mut daemon = env.start_ready_daemon();
    let id = submitted_run_id(&submit_run(env, &repo, &json!({})).assert_status(202).json_of_schema("SubmittedRun"));
    let step = wait_for_step(env, &mut daemon.process);
    // One reader follows the run from the start.
    let path = format!("/v1/runs/{id}/events");
    let following = start_curl(env, &["-N"], &path);
    release_step(&step);
    let stream = following.wait().exits(0).stdout;
    assert!(stream.contains("content-type: text/event-stream"), "{stream}");
    let all = parse_event_stream(stream.split_once("\r\n\r\n").expect("a head").1);
    let numbers: Vec<u64> = all.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (1..=all.len() as u64).collect::<Vec<_>>());
    for (number, event) in &all {
        assert_matches_schema("LoggedEvent", event);
        assert_eq!(event["seq"], *number);
    }
    assert_eq!(all.last().expect("events").1["event"], "run_finished");
    // Another reader resumes after each event, in both ways; after the last event nothing follows.
    for last in 0..all.len() {
        let last_event_header = format!("Last-Event-ID: {last}");
        let rest = parse_event_stream(
            &curl(env, &["-H", &last_event_header, &format!("{path}?after=0")]).assert_status(200).body,
        );
        assert_eq!(rest, all[last..], "behind {last}");
    }
    let rest = parse_event_stream(&curl(env, &[&format!("{path}?after=2")]).assert_status(200).body);
    assert_eq!(rest, all[2..]);
    assert_eq!(curl(env, &["-H", &format!("Last-Event-ID: {}", all.len()), &path]).assert_status(204).body, "");
    curl(env, &["-H", "Last-Event-ID: x", &path]).assert_problem(400, "invalid-request");
    daemon.stop().exits(0);
}

/// Parses the events of a stream with their numbers.
fn parse_event_stream(body: &str) -> Vec<(u64, Value)> {
    let frames = body.split("\n\n").filter(|frame| frame.starts_with("id: "));
    let event = |frame: &str| {
        let (id, data) = frame.strip_prefix("id: ")?.split_once("\ndata: ")?;
        Some((id.parse().ok()?, serde_json::from_str(data).ok()?))
    };
    frames.map(|frame| event(frame).unwrap_or_else(|| panic!("no event: {frame:?}"))).collect()
}

pub(super) fn long_poll_returns_new_events(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([waiting_step(env, "wait")]));
    let mut daemon = env.start_ready_daemon();
    let id = submitted_run_id(&submit_run(env, &repo, &json!({})).assert_status(202).json_of_schema("SubmittedRun"));
    let step = wait_for_step(env, &mut daemon.process);
    let path = format!("/v1/runs/{id}");
    // The wait times out while the run continues.
    let run = curl(env, &[&format!("{path}?wait=50ms")]).assert_status(200).json_of_schema("RunWithEvents");
    assert_eq!((&run["state"], run.get("events")), (&json!("running"), None));
    let known = run["seq"].as_u64().expect("a number");
    // Earlier events are returned at once, without duplicates.
    let run = curl(env, &[&format!("{path}?wait=55s&after=1")]).assert_status(200).json_of_schema("RunWithEvents");
    let numbers: Vec<u64> = event_numbers(&run);
    assert_eq!(numbers, (2..=known).collect::<Vec<_>>());
    let waiting: Vec<RunningProcess> =
        (0..20).map(|_| start_curl(env, &[], &format!("{path}?wait=55s&after={known}"))).collect();
    let end_waiters: Vec<RunningProcess> = (0..20).map(|_| start_curl(env, &[], &format!("{path}?wait=55s"))).collect();
    release_step(&step);
    for waiting in waiting {
        let output = waiting.wait().exits(0).stdout;
        let run: Value = serde_json::from_str(output.split_once("\r\n\r\n").expect("a head").1).expect("JSON");
        assert_matches_schema("RunWithEvents", &run);
        assert_eq!(event_numbers(&run)[0], known + 1, "{run:#}");
    }
    for end in end_waiters {
        end.wait().exits(0).prints(&["\"state\":\"finished\"", "\"verdict\":\"passed\""]);
    }
    daemon.stop().exits(0);
}

fn event_numbers(watched: &Value) -> Vec<u64> {
    let events = watched["events"].as_array().unwrap_or_else(|| panic!("no events: {watched:#}"));
    events.iter().map(|event| event["seq"].as_u64().expect("a number")).collect()
}

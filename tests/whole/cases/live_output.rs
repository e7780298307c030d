//! Tests the output of running steps: over HTTP, as events, and with `proctor logs --follow`.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::daemon_cli::{
    TERMINAL_WRAPPER, newest_run_id, run_with_socket, start_in_dir_with_socket, start_with_socket,
};
use super::http::{
    CurlResponse, assert_matches_schema, curl, parse_response, start_curl, submit_run, submitted_run_id, wait_for_end,
};
use crate::environment::{
    TestEnvironment, fail_step, release_step, wait_for_attempt_after, wait_for_step, waiting_command,
};
use crate::needs::{CaseDefinition, NEEDS_PYTHON, Needs, case};
use crate::process::RunningProcess;
use crate::test_spec::{TestSpec, TestStep};

const NEEDS_CURL: &[Needs] = &[Needs::Sandbox, Needs::Program("curl")];
const SECRET: &str = "s3cr3t-value-of-a-token";

pub(super) const CASES: &[CaseDefinition] = &[
    case("live_output::can_be_read_and_followed_without_secrets", output_is_followed_without_secrets).needs(NEEDS_CURL),
    case("live_output::is_sent_as_events_on_request", output_events_are_sent_on_request).needs(NEEDS_CURL),
    case("live_output::stream_contains_one_attempt", stream_contains_one_attempt).needs(NEEDS_CURL),
    case("live_output::stream_ends_with_a_cancelled_run_or_a_killed_daemon", stream_ends_with_run_or_daemon)
        .needs(NEEDS_CURL),
    case("live_output::slow_reader_does_not_delay_the_run", slow_reader_does_not_delay_run).needs(NEEDS_CURL),
    case("live_output::logs_shows_a_running_step", logs_shows_running_step),
    case("live_output::logs_follows_a_whole_run", logs_follows_whole_run),
    case("live_output::progress_row_shows_the_last_line", progress_row_in_process).needs(NEEDS_PYTHON),
    case("live_output::progress_row_shows_the_last_line_through_a_daemon", progress_row_through_daemon)
        .needs(NEEDS_PYTHON),
];

/// Returns a step that runs `first`, waits, and runs `last` before it passes.
fn printing_step(env: &TestEnvironment, first: &str, last: &str) -> TestStep {
    let [shell, option, script, name] = waiting_command(env);
    let script = script.replace("trap 'exit 0' USR1", &format!("{first}; trap '{last}; exit 0' USR1"));
    TestStep::argv("it", &[&shell, &option, &script, &name])
}

fn submission_with_secret() -> Value {
    json!({ "env": { "PATH": "/usr/bin:/bin", "DEPLOY_TOKEN": SECRET } })
}

/// Repeats the request until the output is `expected`: held-back output is released after a short delay.
fn poll_until_output(env: &TestEnvironment, path: &str, expected: &str) -> CurlResponse {
    loop {
        let reply = curl(env, &[path]).assert_status(200);
        if reply.body == expected {
            return reply;
        }
        assert!(expected.starts_with(&reply.body), "{reply:#?}");
    }
}

fn output_is_followed_without_secrets(env: &TestEnvironment) {
    let first = "echo building; printf \"key %.6s\" \"$DEPLOY_TOKEN\"";
    let last = "printf \"%s\\n\" \"${DEPLOY_TOKEN#??????}\"; echo late";
    let step = printing_step(env, first, last).with_field("env_allowlist: [DEPLOY_TOKEN]");
    let repo = env.repo(&TestSpec::from_steps([step, TestStep::sh("after", "true")]));
    let mut daemon = env.start_ready_daemon();
    let id = submitted_run_id(
        &submit_run(env, &repo, &submission_with_secret()).assert_status(202).json_of_schema("SubmittedRun"),
    );
    let path = format!("/v1/runs/{id}/steps/0/stdout");
    // The request waits until the step starts.
    let mut following = start_curl(env, &["-N"], &format!("{path}?follow"));
    let following_from_offset = start_curl(env, &["-N"], &format!("{path}?follow=true&offset=9"));
    let step = wait_for_step(env, &mut daemon.process);
    following.wait_for_stdout("building");

    let so_far = poll_until_output(env, &path, "building\nkey ");
    assert_eq!((so_far.header("proctor-output-state"), so_far.header("proctor-attempt")), (Some("running"), Some("1")));
    assert_eq!(curl(env, &[&format!("{path}?offset=9&limit=2")]).assert_status(206).body, "ke");
    assert_eq!(curl(env, &["-r", "-4", &path]).assert_status(206).body, "key ");
    curl(env, &[&format!("{path}?follow=true&limit=1")]).assert_problem(400, "invalid-request");
    curl(env, &[&format!("{path}?follow=1")]).assert_problem(400, "invalid-request");
    curl(env, &[&format!("/v1/runs/{id}/steps/1/stdout")]).assert_problem(404, "not-found");
    curl(env, &[&format!("/v1/runs/{id}/steps/2/stdout?follow")]).assert_problem(404, "not-found");
    release_step(&step);

    let whole = "building\nkey [redacted]\nlate\n";
    let live = parse_response(&following.wait().exits(0));
    assert_eq!((live.code, live.body.as_str()), (200, whole));
    assert_eq!(live.header("transfer-encoding"), Some("chunked"));
    assert_eq!(parse_response(&following_from_offset.wait().exits(0)).body, whole[9..]);
    wait_for_end(env, &id);
    let recorded = curl(env, &[&path]).assert_status(200);
    assert_eq!((recorded.body.as_str(), recorded.header("proctor-output-state")), (whole, Some("ended")));
    assert_eq!(curl(env, &[&format!("{path}?follow")]).assert_status(200).body, whole);
    daemon.stop().exits(0);
}

fn output_events_are_sent_on_request(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([printing_step(env, "echo early", "echo late >&2")]));
    let mut daemon = env.start_ready_daemon();
    let id = submitted_run_id(&submit_run(env, &repo, &json!({})).assert_status(202).json_of_schema("SubmittedRun"));
    let mut following = start_curl(env, &["-N"], &format!("/v1/runs/{id}/events?output=true"));
    let step = wait_for_step(env, &mut daemon.process);
    following.wait_for_stdout("early");
    release_step(&step);
    let whole = following.wait().exits(0).stdout;
    // The head of the response ends with another kind of blank line.
    let (_, body) = whole.split_once("\r\n\r\n").unwrap_or(("", &whole));
    let pieces: Vec<Value> = body
        .split("\n\n")
        .filter_map(|frame| frame.strip_prefix("event: output\ndata: "))
        .map(|data| serde_json::from_str(data).expect("JSON"))
        .collect();
    pieces.iter().for_each(|piece| assert_matches_schema("OutputEvent", piece));
    let texts: Vec<_> = pieces.iter().map(|piece| (piece["stream"].clone(), piece["text"].clone())).collect();
    assert_eq!(texts, [(json!("stdout"), json!("early\n")), (json!("stderr"), json!("late\n"))]);
    let last = whole.find("late").expect("the late output");
    assert!(last < whole.find("\"step_finished\"").expect("it ended"), "before the end of its step: {whole}");
    // Clients that did not request output events do not get them.
    let plain = curl(env, &[&format!("/v1/runs/{id}/events")]).assert_status(200).body;
    assert!(!plain.contains("event: output"), "{plain}");
    daemon.stop().exits(0);
}

fn stream_contains_one_attempt(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([printing_step(env, "echo try", "echo done").with_field("retries: 1")]));
    let mut daemon = env.start_ready_daemon();
    let id = submitted_run_id(&submit_run(env, &repo, &json!({})).assert_status(202).json_of_schema("SubmittedRun"));
    let first = wait_for_step(env, &mut daemon.process);
    let path = format!("/v1/runs/{id}/steps/0/stdout?follow");
    let mut following = start_curl(env, &["-N"], &path);
    let mut shown = start_with_socket(env, &["logs", &id, "verify.it/it", "--follow"]);
    following.wait_for_stdout("try");
    shown.wait_for_stdout("try");
    fail_step(&first);
    let second = wait_for_attempt_after(env, &mut daemon.process, &first);
    // The stream ends with its attempt.
    let one = parse_response(&following.wait().exits(0));
    assert_eq!((one.header("proctor-attempt"), one.body.as_str()), (Some("1"), "try\n"));
    let mut following = start_curl(env, &["-N"], &path);
    following.wait_for_stdout("try");
    release_step(&second);
    let two = parse_response(&following.wait().exits(0));
    assert_eq!((two.header("proctor-attempt"), two.body.as_str()), (Some("2"), "try\ndone\n"));
    let shown = shown.wait().exits(0).prints_to_stderr(&["attempt 2 begins"]);
    assert_eq!(shown.stdout, "try\ntry\ndone\n");
    wait_for_end(env, &id);
    daemon.stop().exits(0);
}

fn stream_ends_with_run_or_daemon(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([printing_step(env, "echo early", "true")]));
    let mut daemon = env.start_ready_daemon();
    let id = submitted_run_id(&submit_run(env, &repo, &json!({})).assert_status(202).json_of_schema("SubmittedRun"));
    let step = wait_for_step(env, &mut daemon.process);
    let mut following = start_curl(env, &["-N"], &format!("/v1/runs/{id}/steps/0/stdout?follow"));
    following.wait_for_stdout("early");
    curl(env, &["-X", "DELETE", &format!("/v1/runs/{id}")]).assert_status(202);
    assert_eq!(parse_response(&following.wait().exits(0)).body, "early\n");
    wait_for_end(env, &id);

    let id = submitted_run_id(&submit_run(env, &repo, &json!({})).assert_status(202).json_of_schema("SubmittedRun"));
    wait_for_attempt_after(env, &mut daemon.process, &step);
    let mut following = start_curl(env, &["-N"], &format!("/v1/runs/{id}/steps/0/stdout?follow"));
    following.wait_for_stdout("early");
    daemon.process.signal(Signal::KILL);
    let cut = following.wait();
    assert_ne!(cut.code, Some(0), "a body that breaks off is not the whole: {cut}");
}

fn slow_reader_does_not_delay_run(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([printing_step(env, "echo early", "seq 1 1000000; echo the end")]));
    let mut daemon = env.start_ready_daemon();
    let id = submitted_run_id(&submit_run(env, &repo, &json!({})).assert_status(202).json_of_schema("SubmittedRun"));
    let step = wait_for_step(env, &mut daemon.process);
    let mut slow = start_curl(env, &["-N", "--limit-rate", "1000"], &format!("/v1/runs/{id}/steps/0/stdout?follow"));
    let swift = start_curl(env, &["-N"], &format!("/v1/runs/{id}/steps/0/stdout?follow"));
    slow.wait_for_stdout("early");
    release_step(&step);
    let run = wait_for_end(env, &id);
    assert_eq!(run["verdict"], "passed", "{run:#}");
    let whole = parse_response(&swift.wait().exits(0)).body;
    assert_eq!(whole.len() as u64, run["steps"][0]["stdout"]["bytes"].as_u64().expect("a number"));
    assert!(whole.ends_with("1000000\nthe end\n"));
    slow.signal_if_alive(Signal::KILL);
    daemon.stop().exits(0);
}

fn logs_shows_running_step(env: &TestEnvironment) {
    let first = "printf \"early\\033[2J\\n\"; echo aside >&2";
    let repo = env.repo(&TestSpec::from_steps([printing_step(env, first, "echo late"), TestStep::sh("last", "true")]));
    let daemon = env.start_ready_daemon();
    let mut run = start_in_dir_with_socket(env, repo.path(), &["run"]);
    let step = wait_for_step(env, &mut run);
    let id = newest_run_id(env);
    let so_far =
        run_with_socket(env, &["logs", &id, "verify.it/it"]).exits(0).prints_to_stderr(&["has not ended", "--follow"]);
    assert_eq!(so_far.stdout, "early\\x1b[2J\n");
    let mut followed = start_with_socket(env, &["logs", &id, "verify.it/it", "-f"]);
    let aside = start_with_socket(env, &["logs", &id, "verify.it/it", "-f", "--stderr"]);
    followed.wait_for_stdout("early");
    release_step(&step);
    assert_eq!(followed.wait().exits(0).stdout, "early\\x1b[2J\nlate\n");
    assert_eq!(aside.wait().exits(0).stdout, "aside\n");
    run.wait().exits(0);
    daemon.stop().exits(0);
}

/// Returns the lines of `text` that start with `head`, without it.
fn lines_after_prefix<'a>(text: &'a str, head: &str) -> Vec<&'a str> {
    text.lines().filter_map(|line| line.strip_prefix(head)).collect()
}

fn logs_follows_whole_run(env: &TestEnvironment) {
    let first = "printf \"early\\033[2J\\n\"; echo aside >&2";
    let checks = "toolchains:\n  tool: { required: [ { cmd: [echo, found] } ] }";
    let steps = [
        TestStep::sh("before", "echo done before"),
        printing_step(env, first, "printf end").with_field("retries: 1"),
        TestStep::sh("last", "seq 1 20000"),
    ];
    let repo = env.repo(&TestSpec::from_steps(steps).with_top_level(checks));
    let mut daemon = env.start_ready_daemon();
    let id = submitted_run_id(&submit_run(env, &repo, &json!({})).assert_status(202).json_of_schema("SubmittedRun"));
    let step = wait_for_step(env, &mut daemon.process);
    let mut followed = start_with_socket(env, &["logs", "-f", &id]);
    // Both streams of the step are shown while it runs, together with the earlier output.
    for line in ["tool/0 | found", "it/before | done before", "it/it | early\\x1b[2J", "it/it err | aside"] {
        followed.wait_for_stdout(line);
    }
    fail_step(&step);
    let second = wait_for_attempt_after(env, &mut daemon.process, &step);
    release_step(&second);
    let followed = followed.wait().exits(0).prints_to_stderr(&["verify.it/it: attempt 2 begins"]);
    let early = "early\\x1b[2J";
    assert_eq!(lines_after_prefix(&followed.stdout, "verify.it/it | "), [early, early, "end"], "{followed}");
    assert_eq!(lines_after_prefix(&followed.stdout, "verify.it/it err | "), ["aside", "aside"], "{followed}");
    let last = lines_after_prefix(&followed.stdout, "verify.it/last | ");
    assert!(last.len() == 20_000 && last.last() == Some(&"20000"), "all lines of the last step: {}", last.len());
    let again = run_with_socket(env, &["logs", "-f", &id]).exits(0);
    assert_eq!(lines_after_prefix(&again.stdout, "verify.it/it | "), [early, "end"], "a run that has ended");
    wait_for_end(env, &id);
    daemon.stop().exits(0);
}

/// Returns a spec with a step that prints a coloured line with a secret, and waits.
fn coloured_output_spec(env: &TestEnvironment) -> TestSpec {
    let first = "printf \"\\033[32mcompiling %s\\033[0m\\n\" \"$DEPLOY_TOKEN\"";
    TestSpec::from_steps([
        printing_step(env, first, "true").with_field("env_allowlist: [DEPLOY_TOKEN]"),
        TestStep::sh("last", "true"),
    ])
}

/// Runs a profile on a terminal, and asserts that the row of the waiting step shows its last line, without the secret
/// and without colours.
fn assert_row_shows_last_line(env: &TestEnvironment, words: &[&str]) {
    env.set_caller_var("DEPLOY_TOKEN", SECRET);
    env.set_caller_var("TERM", "xterm");
    let repo = env.repo(&coloured_output_spec(env));
    let mut command = env.program_command("proctor", repo.path(), &TERMINAL_WRAPPER);
    command.arg("run").args(words);
    let mut run = RunningProcess::start(command);
    let step = wait_for_step(env, &mut run);
    run.wait_for_stdout("verify.it/it | compiling [redacted]");
    release_step(&step);
    let run = run.wait().exits(0);
    assert!(!run.all_output().contains(SECRET), "{run}");
}

fn progress_row_in_process(env: &TestEnvironment) {
    let state = env.state_dir();
    assert_row_shows_last_line(env, &["--no-daemon", "--state-dir", state.to_str().expect("UTF-8")]);
}

fn progress_row_through_daemon(env: &TestEnvironment) {
    let daemon = env.start_ready_daemon();
    let socket = env.socket_path();
    assert_row_shows_last_line(env, &["--socket", socket.to_str().expect("UTF-8")]);
    daemon.stop().exits(0);
}

//! Tests the output of running steps: over HTTP, as events, and with `proctor logs --follow`.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::daemon_cli::{ON_A_TERMINAL, ask, newest, start, start_in};
use super::http::{Reply, curl, demand, ended, id_of, reply, start_curl, submit};
use crate::environment::{TestEnvironment, fail, release, wait_for_attempt_after, wait_for_step, waiting_command};
use crate::needs::{Case, NEEDS_PYTHON, Needs, case};
use crate::process::Running;
use crate::spec::{Spec, Step};

const NEEDS: &[Needs] = &[Needs::Sandbox, Needs::Program("curl")];
const SECRET: &str = "s3cr3t-value-of-a-token";

pub(super) const CASES: &[Case] = &[
    case("live_output::is_read_and_followed_without_secrets", followed).needs(NEEDS),
    case("live_output::comes_as_events_on_request", events).needs(NEEDS),
    case("live_output::is_of_one_attempt", attempts).needs(NEEDS),
    case("live_output::ends_with_a_cancelled_run_and_breaks_off_with_the_daemon", ends).needs(NEEDS),
    case("live_output::does_not_wait_for_a_slow_reader", slow_reader).needs(NEEDS),
    case("live_output::of_a_running_step_is_shown_by_logs", logs),
    case("live_output::of_a_whole_run_is_followed_by_logs", logs_of_a_run),
    case("live_output::its_last_line_is_in_the_row_of_its_step", rows).needs(NEEDS_PYTHON),
    case("live_output::its_last_line_comes_from_a_daemon_too", rows_of_a_daemon).needs(NEEDS_PYTHON),
];

/// Returns a step that runs `first`, waits, and runs `last` before it passes.
fn printing_step(env: &TestEnvironment, first: &str, last: &str) -> Step {
    let [shell, option, script, name] = waiting_command(env);
    let script = script.replace("trap 'exit 0' USR1", &format!("{first}; trap '{last}; exit 0' USR1"));
    Step::argv("it", &[&shell, &option, &script, &name])
}

fn with_secret() -> Value {
    json!({ "env": { "PATH": "/usr/bin:/bin", "DEPLOY_TOKEN": SECRET } })
}

/// Repeats the request until the output is `expected`: held-back output is released after a short delay.
fn until(env: &TestEnvironment, path: &str, expected: &str) -> Reply {
    loop {
        let found = curl(env, &[path]).is(200);
        if found.body == expected {
            return found;
        }
        assert!(expected.starts_with(&found.body), "{found:#?}");
    }
}

fn followed(env: &TestEnvironment) {
    let first = "echo building; printf \"key %.6s\" \"$DEPLOY_TOKEN\"";
    let last = "printf \"%s\\n\" \"${DEPLOY_TOKEN#??????}\"; echo late";
    let step = printing_step(env, first, last).with("env_allowlist: [DEPLOY_TOKEN]");
    let repo = env.repo(&Spec::of_steps([step, Step::sh("after", "true")]));
    let mut daemon = env.daemon();
    let id = id_of(&submit(env, &repo, &with_secret()).is(202).of("Submitted"));
    let path = format!("/v1/runs/{id}/steps/0/stdout");
    // The request waits until the step starts.
    let mut following = start_curl(env, &["-N"], &format!("{path}?follow"));
    let behind = start_curl(env, &["-N"], &format!("{path}?follow=true&offset=9"));
    let step = wait_for_step(env, &mut daemon.running);
    following.wait_for_output("building");

    let so_far = until(env, &path, "building\nkey ");
    assert_eq!((so_far.header("proctor-output-state"), so_far.header("proctor-attempt")), (Some("running"), Some("1")));
    assert_eq!(curl(env, &[&format!("{path}?offset=9&limit=2")]).is(206).body, "ke");
    assert_eq!(curl(env, &["-r", "-4", &path]).is(206).body, "key ");
    curl(env, &[&format!("{path}?follow=true&limit=1")]).refuses(400, "invalid-request");
    curl(env, &[&format!("{path}?follow=1")]).refuses(400, "invalid-request");
    curl(env, &[&format!("/v1/runs/{id}/steps/1/stdout")]).refuses(404, "not-found");
    curl(env, &[&format!("/v1/runs/{id}/steps/2/stdout?follow")]).refuses(404, "not-found");
    release(&step);

    let whole = "building\nkey [redacted]\nlate\n";
    let live = reply(&following.wait().exits(0));
    assert_eq!((live.code, live.body.as_str()), (200, whole));
    assert_eq!(live.header("transfer-encoding"), Some("chunked"));
    assert_eq!(reply(&behind.wait().exits(0)).body, whole[9..]);
    ended(env, &id);
    let recorded = curl(env, &[&path]).is(200);
    assert_eq!((recorded.body.as_str(), recorded.header("proctor-output-state")), (whole, Some("ended")));
    assert_eq!(curl(env, &[&format!("{path}?follow")]).is(200).body, whole);
    daemon.end().exits(0);
}

fn events(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([printing_step(env, "echo early", "echo late >&2")]));
    let mut daemon = env.daemon();
    let id = id_of(&submit(env, &repo, &json!({})).is(202).of("Submitted"));
    let mut following = start_curl(env, &["-N"], &format!("/v1/runs/{id}/events?output=true"));
    let step = wait_for_step(env, &mut daemon.running);
    following.wait_for_output("early");
    release(&step);
    let whole = following.wait().exits(0).stdout;
    // The head of the response ends with another kind of blank line.
    let (_, body) = whole.split_once("\r\n\r\n").unwrap_or(("", &whole));
    let pieces: Vec<Value> = body
        .split("\n\n")
        .filter_map(|frame| frame.strip_prefix("event: output\ndata: "))
        .map(|data| serde_json::from_str(data).expect("JSON"))
        .collect();
    pieces.iter().for_each(|piece| demand("OutputEvent", piece));
    let texts: Vec<_> = pieces.iter().map(|piece| (piece["stream"].clone(), piece["text"].clone())).collect();
    assert_eq!(texts, [(json!("stdout"), json!("early\n")), (json!("stderr"), json!("late\n"))]);
    let last = whole.find("late").expect("it was told");
    assert!(last < whole.find("\"step_finished\"").expect("it ended"), "before the end of its step: {whole}");
    // Clients that did not request output events do not get them.
    let plain = curl(env, &[&format!("/v1/runs/{id}/events")]).is(200).body;
    assert!(!plain.contains("event: output"), "{plain}");
    daemon.end().exits(0);
}

fn attempts(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([printing_step(env, "echo try", "echo done").with("retries: 1")]));
    let mut daemon = env.daemon();
    let id = id_of(&submit(env, &repo, &json!({})).is(202).of("Submitted"));
    let first = wait_for_step(env, &mut daemon.running);
    let path = format!("/v1/runs/{id}/steps/0/stdout?follow");
    let mut following = start_curl(env, &["-N"], &path);
    let mut shown = start(env, &["logs", &id, "verify.it/it", "--follow"]);
    following.wait_for_output("try");
    shown.wait_for_output("try");
    fail(&first);
    let second = wait_for_attempt_after(env, &mut daemon.running, &first);
    // The stream ends with its attempt.
    let one = reply(&following.wait().exits(0));
    assert_eq!((one.header("proctor-attempt"), one.body.as_str()), (Some("1"), "try\n"));
    let mut following = start_curl(env, &["-N"], &path);
    following.wait_for_output("try");
    release(&second);
    let two = reply(&following.wait().exits(0));
    assert_eq!((two.header("proctor-attempt"), two.body.as_str()), (Some("2"), "try\ndone\n"));
    let shown = shown.wait().exits(0).complains(&["attempt 2 begins"]);
    assert_eq!(shown.stdout, "try\ntry\ndone\n");
    ended(env, &id);
    daemon.end().exits(0);
}

fn ends(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([printing_step(env, "echo early", "true")]));
    let mut daemon = env.daemon();
    let id = id_of(&submit(env, &repo, &json!({})).is(202).of("Submitted"));
    let step = wait_for_step(env, &mut daemon.running);
    let mut following = start_curl(env, &["-N"], &format!("/v1/runs/{id}/steps/0/stdout?follow"));
    following.wait_for_output("early");
    curl(env, &["-X", "DELETE", &format!("/v1/runs/{id}")]).is(202);
    assert_eq!(reply(&following.wait().exits(0)).body, "early\n");
    ended(env, &id);

    let id = id_of(&submit(env, &repo, &json!({})).is(202).of("Submitted"));
    wait_for_attempt_after(env, &mut daemon.running, &step);
    let mut following = start_curl(env, &["-N"], &format!("/v1/runs/{id}/steps/0/stdout?follow"));
    following.wait_for_output("early");
    daemon.running.signal(Signal::KILL);
    let cut = following.wait();
    assert_ne!(cut.code, Some(0), "a body that breaks off is not the whole: {cut}");
}

fn slow_reader(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([printing_step(env, "echo early", "seq 1 1000000; echo the end")]));
    let mut daemon = env.daemon();
    let id = id_of(&submit(env, &repo, &json!({})).is(202).of("Submitted"));
    let step = wait_for_step(env, &mut daemon.running);
    let mut slow = start_curl(env, &["-N", "--limit-rate", "1000"], &format!("/v1/runs/{id}/steps/0/stdout?follow"));
    let swift = start_curl(env, &["-N"], &format!("/v1/runs/{id}/steps/0/stdout?follow"));
    slow.wait_for_output("early");
    release(&step);
    let run = ended(env, &id);
    assert_eq!(run["verdict"], "passed", "{run:#}");
    let whole = reply(&swift.wait().exits(0)).body;
    assert_eq!(whole.len() as u64, run["steps"][0]["stdout"]["bytes"].as_u64().expect("a number"));
    assert!(whole.ends_with("1000000\nthe end\n"));
    slow.signal_if_there(Signal::KILL);
    daemon.end().exits(0);
}

fn logs(env: &TestEnvironment) {
    let first = "printf \"early\\033[2J\\n\"; echo aside >&2";
    let repo = env.repo(&Spec::of_steps([printing_step(env, first, "echo late"), Step::sh("last", "true")]));
    let daemon = env.daemon();
    let mut run = start_in(env, repo.path(), &["run"]);
    let step = wait_for_step(env, &mut run);
    let id = newest(env);
    let so_far = ask(env, &["logs", &id, "verify.it/it"]).exits(0).complains(&["has not ended", "--follow"]);
    assert_eq!(so_far.stdout, "early\\x1b[2J\n");
    let mut followed = start(env, &["logs", &id, "verify.it/it", "-f"]);
    let aside = start(env, &["logs", &id, "verify.it/it", "-f", "--stderr"]);
    followed.wait_for_output("early");
    release(&step);
    assert_eq!(followed.wait().exits(0).stdout, "early\\x1b[2J\nlate\n");
    assert_eq!(aside.wait().exits(0).stdout, "aside\n");
    run.wait().exits(0);
    daemon.end().exits(0);
}

/// Returns the lines of `text` that start with `head`, without it.
fn behind<'a>(text: &'a str, head: &str) -> Vec<&'a str> {
    text.lines().filter_map(|line| line.strip_prefix(head)).collect()
}

fn logs_of_a_run(env: &TestEnvironment) {
    let first = "printf \"early\\033[2J\\n\"; echo aside >&2";
    let checks = "toolchains:\n  tool: { required: [ { cmd: [echo, found] } ] }";
    let steps = [
        Step::sh("before", "echo done before"),
        printing_step(env, first, "printf end").with("retries: 1"),
        Step::sh("last", "seq 1 20000"),
    ];
    let repo = env.repo(&Spec::of_steps(steps).top(checks));
    let mut daemon = env.daemon();
    let id = id_of(&submit(env, &repo, &json!({})).is(202).of("Submitted"));
    let step = wait_for_step(env, &mut daemon.running);
    let mut followed = start(env, &["logs", "-f", &id]);
    // Both streams of the step are shown while it runs, together with the earlier output.
    for line in ["tool/0 | found", "it/before | done before", "it/it | early\\x1b[2J", "it/it err | aside"] {
        followed.wait_for_output(line);
    }
    fail(&step);
    let second = wait_for_attempt_after(env, &mut daemon.running, &step);
    release(&second);
    let followed = followed.wait().exits(0).complains(&["verify.it/it: attempt 2 begins"]);
    let early = "early\\x1b[2J";
    assert_eq!(behind(&followed.stdout, "verify.it/it | "), [early, early, "end"], "{followed}");
    assert_eq!(behind(&followed.stdout, "verify.it/it err | "), ["aside", "aside"], "{followed}");
    let last = behind(&followed.stdout, "verify.it/last | ");
    assert!(last.len() == 20_000 && last.last() == Some(&"20000"), "all lines of the last step: {}", last.len());
    let again = ask(env, &["logs", "-f", &id]).exits(0);
    assert_eq!(behind(&again.stdout, "verify.it/it | "), [early, "end"], "a run that has ended");
    ended(env, &id);
    daemon.end().exits(0);
}

/// Returns a spec with a step that prints a coloured line with a secret, and waits.
fn colourful(env: &TestEnvironment) -> Spec {
    let first = "printf \"\\033[32mcompiling %s\\033[0m\\n\" \"$DEPLOY_TOKEN\"";
    Spec::of_steps([printing_step(env, first, "true").with("env_allowlist: [DEPLOY_TOKEN]"), Step::sh("last", "true")])
}

/// Runs a profile on a terminal, and asserts that the row of the waiting step shows its last line, without the secret
/// and without colours.
fn row_shows_last_line(env: &TestEnvironment, words: &[&str]) {
    env.caller_has("DEPLOY_TOKEN", SECRET);
    env.caller_has("TERM", "xterm");
    let repo = env.repo(&colourful(env));
    let mut command = env.command_of("proctor", repo.path(), &ON_A_TERMINAL);
    command.arg("run").args(words);
    let mut run = Running::start(command);
    let step = wait_for_step(env, &mut run);
    run.wait_for_output("verify.it/it | compiling [redacted]");
    release(&step);
    let run = run.wait().exits(0);
    assert!(!run.everything().contains(SECRET), "{run}");
}

fn rows(env: &TestEnvironment) {
    let state = env.state();
    row_shows_last_line(env, &["--no-daemon", "--state-dir", state.to_str().expect("UTF-8")]);
}

fn rows_of_a_daemon(env: &TestEnvironment) {
    let daemon = env.daemon();
    let socket = env.socket();
    row_shows_last_line(env, &["--socket", socket.to_str().expect("UTF-8")]);
    daemon.end().exits(0);
}

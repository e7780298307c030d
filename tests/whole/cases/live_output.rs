//! The output of steps while they run: over HTTP, as events, and by `proctor logs --follow`.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::daemon_cli::{ask, newest, start, start_in};
use super::http::{Reply, curl, demand, ended, id_of, reply, start_curl, submit};
use crate::environment::{TestEnvironment, fail, release, wait_for_attempt_after, wait_for_step, waiting_command};
use crate::needs::{Case, Needs, case};
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
];

/// A step that does `first`, waits, and does `last` before it passes.
fn printing_step(env: &TestEnvironment, first: &str, last: &str) -> Step {
    let [shell, option, script, name] = waiting_command(env);
    let script = script.replace("trap 'exit 0' USR1", &format!("{first}; trap '{last}; exit 0' USR1"));
    Step::argv("it", &[&shell, &option, &script, &name])
}

fn with_secret() -> Value {
    json!({ "env": { "PATH": "/usr/bin:/bin", "DEPLOY_TOKEN": SECRET } })
}

/// Asks again until the output is `expected`: what a pause releases comes a moment later.
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
    // It waits for the step to begin.
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
    let pieces: Vec<Value> = whole
        .split("\n\n")
        .filter_map(|frame| frame.strip_prefix("event: output\ndata: "))
        .map(|data| serde_json::from_str(data).expect("JSON"))
        .collect();
    pieces.iter().for_each(|piece| demand("OutputEvent", piece));
    let texts: Vec<_> = pieces.iter().map(|piece| (piece["stream"].clone(), piece["text"].clone())).collect();
    assert_eq!(texts, [(json!("stdout"), json!("early\n")), (json!("stderr"), json!("late\n"))]);
    let last = whole.find("late").expect("it was told");
    assert!(last < whole.find("\"step_finished\"").expect("it ended"), "before the end of its step: {whole}");
    // Nobody gets it who did not ask.
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
    // It ends with its attempt.
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

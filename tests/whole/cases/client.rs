//! Tests `proctor run` and related commands through a daemon: which daemon is used, which results are the same as
//! without one, and the messages for a daemon that is missing, exits, or is incompatible.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::daemon::LISTENS;
use crate::environment::{CHANGESET, Repo, TestEnvironment, release, wait_for_step, waiting_step};
use crate::needs::{Case, Needs, case, dry_case};
use crate::process::{Finished, Running};
use crate::spec::{Spec, Step};
use crate::{binaries, documents, machine};

pub(super) const CASES: &[Case] = &[
    dry_case("client::a_daemon_that_is_demanded_and_absent_is_code_6", demanded),
    case("client::where_none_answers_the_work_is_done_here", absent),
    case("client::the_users_own_daemon_is_found", found).unprivileged("client::the_users_own_daemon_is_found"),
    case("client::the_systems_daemon_is_found_by_who_has_none_of_their_own", systems).needs(NEEDS_SYSTEMS),
    case("client::the_operators_config_says_where_it_is", configured),
    case("client::where_another_state_is_named_no_daemon_is_asked", other_state),
    case("client::events_and_documents_are_the_same_either_way", same),
    case("client::the_environment_is_that_of_the_caller", environment),
    case("client::an_environment_that_is_too_large_is_not_sent", too_large),
    case("client::a_daemon_that_dies_is_no_pass", dies),
    case("client::a_daemon_that_comes_back_tells_the_end", comes_back),
    case("client::who_leaves_a_joined_run_does_not_end_it", joined),
    case("client::a_daemon_that_ends_takes_no_work", draining),
    case("client::a_daemon_of_another_kind_gets_no_work", other_version),
    case("client::what_is_no_daemon_gets_no_work", no_daemon),
    dry_case("client::a_process_that_is_no_daemon_is_not_ended", bystander),
];

/// Requires root with its own mount namespace, and two system accounts.
const NEEDS_SYSTEMS: &[Needs] = &[
    Needs::Root,
    Needs::Sandbox,
    Needs::Program("setpriv"),
    Needs::Works(&["unshare", "--mount", "mount", "-t", "tmpfs", "x", "/run"]),
    Needs::Works(&["id", "-u", SERVED]),
    Needs::Works(&["id", "-u", UNKNOWN]),
];
/// An account that the system's daemon of a case serves, and one that it does not serve.
const SERVED: &str = "backup";
const UNKNOWN: &str = "mail";

/// Starts a `proctor` command with the daemon's socket as an argument.
fn start(env: &TestEnvironment, dir: &Path, words: &[&str]) -> Running {
    let mut command = env.command(dir);
    command.args(words).arg("--socket").arg(env.socket());
    Running::start(command)
}

fn ask(env: &TestEnvironment, dir: &Path, words: &[&str]) -> Finished {
    env.finish(start(env, dir, words))
}

/// Runs a `proctor` command without arguments for the socket or state directory.
fn plain(env: &TestEnvironment, dir: &Path, words: &[&str]) -> Finished {
    let mut command = env.command(dir);
    command.args(words);
    env.finish(Running::start(command))
}

const RUN: [&str; 3] = ["run", "--changeset", CHANGESET];

fn demanded(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let said = ["no daemon listens", "proctor daemon start"];
    ask(env, repo.path(), &["run", "--daemon"]).exits(6).complains(&said);
    ask(env, repo.path(), &["gate", "--daemon"]).exits(6).complains(&said);
    ask(env, repo.path(), &["doctor", "--daemon"]).exits(6).complains(&said);
    for command in [&["status"][..], &["logs", "r1"], &["cancel", "r1"], &["watch"], &["daemon", "status"]] {
        ask(env, repo.path(), command).exits(6).complains(&said);
    }
    let json = ask(env, repo.path(), &["run", "--daemon", "--format", "json"]).exits(6);
    let error: Value = serde_json::from_str(&json.stdout).expect("one document");
    assert_eq!(error["error"]["exit_code"], 6, "{json}");
}

fn absent(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    ask(env, repo.path(), &RUN).exits(0).complains(&["no daemon listens", "done without a daemon"]);
    let silent = plain(env, repo.path(), &[&RUN[..], &["--no-daemon"]].concat()).exits(0);
    assert!(!silent.stderr.contains("daemon"), "{silent}");
}

fn found(env: &TestEnvironment) {
    let runtime = env.root().join("runtime");
    std::fs::create_dir(&runtime).expect("a directory of the test");
    env.hand_over(env.root());
    env.caller_has("XDG_RUNTIME_DIR", runtime.to_str().expect("UTF-8"));
    let repo = env.repo(&Spec::of_script("true"));
    let socket = runtime.join("proctor/proctord.sock");
    plain(env, repo.path(), &["daemon", "start"]).exits(0).says(&[socket.to_str().expect("UTF-8")]);
    plain(env, repo.path(), &[&RUN[..], &["--daemon"]].concat()).exits(0);
    plain(env, repo.path(), &RUN).exits(0);
    plain(env, repo.path(), &["status"]).exits(0).says(&["passed"]);
    plain(env, repo.path(), &["daemon", "stop"]).exits(0);
}

/// Runs `proctor` as an account, in the mount namespace of a process.
fn of_account(env: &TestEnvironment, account: &str, mounts: u32, words: &[&str]) -> Finished {
    let mut command = machine::command("nsenter");
    command.arg(format!("--mount=/proc/{mounts}/ns/mnt"));
    command.args(["setpriv", &format!("--reuid={account}"), &format!("--regid={account}"), "--init-groups", "--"]);
    command.arg(binaries::for_all("proctor")).args(words).env("HOME", env.home());
    Running::start(command).wait()
}

fn systems(env: &TestEnvironment) {
    env.configure(&format!("[daemon]\nallow_users = ['{SERVED}']\n"));
    let repo = env.repo(&Spec::of_script("true"));
    machine::give_to(repo.path(), machine::uid_of(SERVED));
    // Only this daemon and the clients in its mount namespace see this `/run`.
    let apart = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /run && exec \"$@\"", "sh"];
    let mut command = env.command_of("proctord", env.root(), &apart);
    command.arg("--state-dir").arg(env.state());
    let mut daemon = Running::start(command);
    daemon.wait_for_message(LISTENS);
    let as_user = |account: &str, words: &[&str]| of_account(env, account, daemon.id(), words);
    let at = repo.path().to_str().expect("UTF-8");
    let run = as_user(SERVED, &["run", "--repo", at, "--changeset", CHANGESET]).exits(0);
    assert!(!run.stderr.contains("daemon"), "nobody is surprised: {run}");
    as_user(SERVED, &["status"]).exits(0).says(&["passed", at]);
    as_user(UNKNOWN, &["status"]).exits(6).complains(&["/run/proctor/proctord.sock"]);
    daemon.signal(Signal::TERM);
    env.finish(daemon).exits(0);
}

fn configured(env: &TestEnvironment) {
    env.configure(&format!("[daemon]\nsocket = '{}'\n", env.socket().display()));
    let repo = env.repo(&Spec::of_script("true"));
    let daemon = env.daemon();
    plain(env, repo.path(), &[&RUN[..], &["--daemon"]].concat()).exits(0);
    plain(env, repo.path(), &RUN).exits(0);
    let config = env.root().join("config/proctor/proctord.toml");
    plain(env, repo.path(), &["gate", "--changeset", CHANGESET, "--config", config.to_str().expect("UTF-8")]).exits(0);
    assert_eq!(daemon.get("/v1/runs")["runs"].as_array().map(Vec::len), Some(2));
    plain(env, repo.path(), &[&RUN[..], &["--no-daemon", "--state-dir", "../other"]].concat()).exits(0);
    assert_eq!(daemon.get("/v1/runs")["runs"].as_array().map(Vec::len), Some(2), "it was not asked");
    daemon.end().exits(0);
}

fn other_state(env: &TestEnvironment) {
    env.configure(&format!("[daemon]\nsocket = '{}'\n", env.socket().display()));
    let repo = env.repo(&Spec::of_script("true"));
    let daemon = env.daemon();
    plain(env, repo.path(), &[&RUN[..], &["--state-dir", "../other"]].concat()).exits(0);
    let config = env.root().join("other.toml");
    machine::write(&config, "allow_network = false\n");
    env.hand_over(env.root());
    let words = [&RUN[..], &["--config", config.to_str().expect("UTF-8")]].concat();
    plain(env, repo.path(), &words).exits(0);
    plain(env, repo.path(), &[&words[..], &["--daemon"]].concat()).exits(6).complains(&["no `daemon.socket`"]);
    assert_eq!(daemon.get("/v1/runs")["runs"].as_array().map(Vec::len), Some(0), "it was not asked");
    daemon.end().exits(0);
}

/// Removes the values that differ between runs.
fn steady(value: &mut Value) {
    const VARY: [&str; 15] = [
        "began_ms",
        "ended_ms",
        "run_id",
        "at",
        "duration_ms",
        "evidence_dir",
        "resources",
        "enforcement",
        "evidence",
        "started_at",
        "finished_at",
        "sha256",
        "env_names",
        "found",
        "method",
    ];
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| !VARY.contains(&name.as_str()));
            fields.values_mut().for_each(steady);
        }
        Value::Array(values) => values.iter_mut().for_each(steady),
        _ => {}
    }
}

fn same(env: &TestEnvironment) {
    let steps = [Step::sh("good", "echo fine; echo aside >&2"), Step::sh("bad", "echo broken; exit 3")];
    let repo = env.repo(&Spec::of_steps(steps));
    let daemon = env.daemon();
    let both = |words: &[&str]| {
        let way = [&RUN[..], words].concat();
        let served = ask(env, repo.path(), &way).exits(1);
        (served, repo.run_with(words).exits(1))
    };
    let (served, here) = both(&["--format", "jsonl"]);
    let [mut served, mut here] = [served, here].map(|run| documents::check_events(&run.stdout));
    served.iter_mut().chain(&mut here).for_each(steady);
    assert_eq!(served, here);
    assert_eq!(served.first().map(|event| event["event"].clone()), Some("run_started".into()));
    let (served, here) = both(&["--format", "json"]);
    let [mut served, mut here] =
        [served, here].map(|run| serde_json::from_str::<Value>(&run.stdout).expect("one document"));
    steady(&mut served);
    steady(&mut here);
    assert_eq!(served, here);
    daemon.end().exits(0);
}

fn environment(env: &TestEnvironment) {
    let step = Step::sh("it", "test \"$GIVEN\" = by-the-caller").with("env_allowlist: [GIVEN]");
    let repo = env.repo(&Spec::of_steps([step]));
    env.caller_has("GIVEN", "by-the-daemon");
    let daemon = env.daemon();
    env.caller_has("GIVEN", "by-the-caller");
    ask(env, repo.path(), &RUN).exits(0);
    daemon.end().exits(0);
}

fn too_large(env: &TestEnvironment) {
    // Two variables, because execve(2) limits the size of one. Each of their bytes takes six in JSON.
    for name in ["LARGE_A", "LARGE_B"] {
        env.caller_has(name, &"\u{1b}".repeat(100_000));
    }
    let repo = env.repo(&Spec::of_script("true"));
    let daemon = env.daemon();
    let said = "too large to be sent";
    ask(env, repo.path(), &RUN).exits(0).complains(&[said, "done without a daemon"]);
    ask(env, repo.path(), &["run", "--daemon"]).exits(2).complains(&[said]);
    assert_eq!(daemon.get("/v1/runs")["runs"].as_array().map(Vec::len), Some(0), "it was not asked");
    daemon.end().exits(0);
}

/// Creates a repository with a waiting step.
fn waiting<'e>(env: &'e TestEnvironment) -> Repo<'e> {
    env.repo(&Spec::of_steps([waiting_step(env, "it")]))
}

fn dies(env: &TestEnvironment) {
    let repo = waiting(env);
    let daemon = env.daemon();
    let mut run = start(env, repo.path(), &[&RUN[..], &["--format", "jsonl"]].concat());
    wait_for_step(env, &mut run);
    daemon.running.signal(Signal::KILL);
    let run = env.finish(run).exits(5).complains(&["is unknown", "not a pass", "proctor status"]);
    let lines: Vec<Value> = run.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let [.., error, last] = lines.as_slice() else { panic!("two lines\n{run}") };
    assert_eq!(error["error"]["exit_code"], 5, "{run}");
    assert_eq!((&last["event"], &last["verdict"]), (&"run_finished".into(), &"inconclusive".into()), "{run}");
    assert_eq!(run.stdout.matches("run_finished").count(), 1, "{run}");
}

fn comes_back(env: &TestEnvironment) {
    let repo = waiting(env);
    let daemon = env.daemon();
    let mut run = start(env, repo.path(), &RUN);
    wait_for_step(env, &mut run);
    daemon.running.signal(Signal::KILL);
    daemon.ended();
    let second = env.daemon();
    let run = env.finish(run).exits(130).says(&["inconclusive", "interrupted"]);
    assert!(!run.stdout.contains("passed:"), "{run}");
    second.end().exits(0);
}

fn joined(env: &TestEnvironment) {
    let repo = waiting(env);
    let daemon = env.daemon();
    let mut first = start(env, repo.path(), &RUN);
    let step = wait_for_step(env, &mut first);
    let mut second = start(env, repo.path(), &RUN);
    second.wait_for_message("profile pr");
    assert_eq!(daemon.get("/v1/runs")["runs"].as_array().map(Vec::len), Some(1), "it is one run");
    second.signal(Signal::INT);
    let left = second.wait().exits(130).complains(&["continues", "proctor cancel"]);
    assert!(!left.stdout.contains("passed"), "{left}");
    release(&step);
    env.finish(first).exits(0);
    daemon.end().exits(0);
}

fn draining(env: &TestEnvironment) {
    let repo = waiting(env);
    let other = env.repo_at("other", &Spec::of_script("true"));
    let mut daemon = env.daemon();
    let mut run = start(env, repo.path(), &RUN);
    let step = wait_for_step(env, &mut run);
    daemon.running.signal(Signal::TERM);
    daemon.running.wait_until(|| {
        crate::daemon::ask(&env.socket(), "GET", "/healthz", None).is_ok_and(|answer| answer.body.contains("draining"))
    });
    let here = start(env, other.path(), &["run", "--profile", "pr"]).wait();
    here.exits(0).complains(&["is shutting down", "done without a daemon"]);
    start(env, other.path(), &["run", "--daemon"]).wait().exits(6).complains(&["is shutting down"]);
    start(env, other.path(), &["daemon", "start"]).wait().exits(5).complains(&["is shutting down"]);
    release(&step);
    env.finish(run).exits(0);
    daemon.ended().exits(0);
}

/// Answers every connection at the socket of the case with the same bytes, as long as the case runs.
fn impostor(env: &TestEnvironment, answer: String) {
    let socket = env.socket();
    std::fs::create_dir_all(socket.parent().expect("a directory")).expect("a directory of the test");
    let listener = UnixListener::bind(socket).expect("a socket of the test");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
}

fn of_json(body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}")
}

fn other_version(env: &TestEnvironment) {
    let body = r#"{"status":"ok","version":"99.1.0","pid":1,"uid":0,"uptime_ms":1,"runs":{"queued":0,"running":0}}"#;
    impostor(env, of_json(body));
    let repo = env.repo(&Spec::of_script("true"));
    ask(env, repo.path(), &RUN).exits(0).complains(&["Proctor 99.1.0", "done without a daemon"]);
    ask(env, repo.path(), &["gate", "--daemon"]).exits(6).complains(&["Proctor 99.1.0"]);
    ask(env, repo.path(), &["status"]).exits(6).complains(&["Proctor 99.1.0"]);
    ask(env, repo.path(), &["daemon", "status"]).exits(0).says(&["99.1.0"]);
}

fn no_daemon(env: &TestEnvironment) {
    impostor(env, "220 mail.example.com ESMTP\r\n".to_owned());
    let repo = env.repo(&Spec::of_script("true"));
    ask(env, repo.path(), &RUN).exits(0).complains(&["does not answer", "done without a daemon"]);
    ask(env, repo.path(), &["gate", "--daemon"]).exits(6).complains(&["does not answer"]);
    ask(env, repo.path(), &["daemon", "stop"]).exits(6).complains(&["does not answer"]);
}

fn bystander(env: &TestEnvironment) {
    let mut command = machine::command("sleep");
    command.arg("300");
    let mut bystander = Running::start(command);
    let pid = bystander.id();
    let version = env!("CARGO_PKG_VERSION");
    let body = format!(
        r#"{{"status":"ok","version":"{version}","pid":{pid},"uid":0,"uptime_ms":1,"runs":{{"queued":0,"running":0}}}}"#
    );
    impostor(env, of_json(&body));
    let said = [format!("process {pid}"), "not a `proctord` here".to_owned()];
    ask(env, env.root(), &["daemon", "stop"]).exits(2).complains(&said.each_ref().map(String::as_str));
    assert!(!bystander.is_over(), "it was not asked to end");
    bystander.signal(Signal::KILL);
    bystander.wait();
}

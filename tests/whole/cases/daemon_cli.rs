//! Tests the commands of `proctor` about a daemon and its runs.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;

use rustix::process::Signal;
use serde_json::Value;

use crate::environment::{Repo, TestEnvironment, fail, release, wait_for_step, waiting_command, waiting_step};
use crate::machine;
use crate::needs::{Case, NEEDS_PYTHON, case, dry_case};
use crate::process::{Finished, Running};
use crate::spec::{Spec, Step};

pub(super) const CASES: &[Case] = &[
    dry_case("daemon_cli::a_daemon_starts_once_and_stops", starts),
    dry_case("daemon_cli::a_daemon_holds_nothing_that_its_caller_left_open", holds_nothing),
    dry_case("", not_allowed).unprivileged("daemon_cli::a_socket_that_is_not_for_this_user_is_told_from_none"),
    dry_case("daemon_cli::a_daemon_without_its_socket_is_found_by_its_lock", unreachable),
    dry_case("daemon_cli::a_daemon_that_cannot_start_says_why", cannot_start),
    case("daemon_cli::it_stops_when_its_runs_have_ended", stops),
    case("daemon_cli::status_shows_runs_and_one_of_them", status),
    case("daemon_cli::logs_are_shown_escaped", logs),
    case("daemon_cli::logs_can_be_had_as_they_are_but_not_on_a_terminal", raw_logs).needs(NEEDS_PYTHON),
    case("daemon_cli::logs_follow_a_run_to_its_end", followed_logs),
    case("daemon_cli::logs_wait_for_a_toolchain_check", logs_of_a_check),
    case("daemon_cli::a_cancelled_run_says_so_to_who_waits_for_it", cancelled),
    case("daemon_cli::watch_tells_each_step_of_a_run_on_its_way", watched),
    case("daemon_cli::watch_draws_a_list_on_a_terminal", drawn).needs(NEEDS_PYTHON),
];

/// Wrapper that executes its arguments on a new terminal, and copies their output.
pub(super) const ON_A_TERMINAL: [&str; 3] =
    ["python3", "-c", "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"];

pub(super) fn start(env: &TestEnvironment, words: &[&str]) -> Running {
    start_in(env, env.root(), words)
}

pub(super) fn start_in(env: &TestEnvironment, dir: &std::path::Path, words: &[&str]) -> Running {
    let mut command = env.command(dir);
    command.args(words).arg("--socket").arg(env.socket());
    Running::start(command)
}

pub(super) fn ask(env: &TestEnvironment, words: &[&str]) -> Finished {
    start(env, words).wait()
}

fn run(repo: &Repo<'_>, env: &TestEnvironment) -> Finished {
    start_in(env, repo.path(), &["run"]).wait()
}

/// Returns the id of the newest run.
pub(super) fn newest(env: &TestEnvironment) -> String {
    let list = ask(env, &["status", "--format", "json"]).exits(0);
    let list: Value = serde_json::from_str(&list.stdout).expect("one document");
    list["runs"][0]["id"].as_str().expect("an id").to_owned()
}

fn starts(env: &TestEnvironment) {
    let state = env.state();
    let begin = ["daemon", "start", "--state-dir", state.to_str().expect("UTF-8")];
    let socket = env.socket();
    let at = socket.to_str().expect("UTF-8");
    ask(env, &["daemon", "status"]).exits(6).complains(&["no daemon listens"]);
    ask(env, &["daemon", "stop"]).exits(0).says(&["no daemon runs"]);
    ask(env, &begin).exits(0).says(&["started", at]).complains(&["proctord.log"]);
    ask(env, &begin).exits(0).says(&["runs already", at]);
    ask(env, &["daemon", "status"]).exits(0).says(&["running", at, "0 under way, 0 waiting"]);
    let status = ask(env, &["daemon", "status", "--format", "json"]).exits(0);
    let status: Value = serde_json::from_str(&status.stdout).expect("one document");
    assert_eq!((&status["status"], &status["socket"]), (&"ok".into(), &at.into()));
    let process = status["pid"].as_u64().expect("a number");
    ask(env, &["daemon", "stop"]).exits(0).says(&["has ended", &process.to_string()]);
    ask(env, &["daemon", "status"]).exits(6);
    assert!(!socket.exists(), "it leaves no socket");
}

/// The shell passes the caller's pipe to the daemon under another number. A daemon that kept the pipe open would
/// block the reader of the pipe until the daemon exits.
fn holds_nothing(env: &TestEnvironment) {
    const LEFT_OPEN: [&str; 4] = ["sh", "-c", "exec \"$@\" 7>&1", "sh"];
    let (socket, state) = (env.socket(), env.state());
    let paths = [&socket, &state].map(|path| path.to_str().expect("UTF-8"));
    let words = ["daemon", "start", "--socket", paths[0], "--state-dir", paths[1]];
    let mut start = env.start_through(env.root(), &LEFT_OPEN, &words);
    start.wait_for_output("started a daemon");
    let status = ask(env, &["daemon", "status", "--format", "json"]).exits(0);
    let status: Value = serde_json::from_str(&status.stdout).expect("one document");
    // The daemon may use this number for a file of its own.
    let seventh = std::fs::read_link(format!("/proc/{}/fd/7", status["pid"])).unwrap_or_default();
    let stopped = ask(env, &["daemon", "stop"]);
    let is_pipe = seventh.to_string_lossy().starts_with("pipe:");
    assert!(!is_pipe, "who waits for the end of its caller's output waits for the daemon");
    start.wait().exits(0);
    stopped.exits(0);
}

fn not_allowed(env: &TestEnvironment) {
    let socket = env.socket();
    std::fs::create_dir_all(socket.parent().expect("a directory")).expect("a directory");
    let _listener = UnixListener::bind(&socket).expect("a socket");
    std::fs::set_permissions(&socket, Permissions::from_mode(0o000)).expect("a mode");
    for words in [&["daemon", "status"][..], &["daemon", "stop"], &["status"]] {
        let told = ask(env, words).exits(6);
        assert!(!told.stderr.contains("no daemon listens"), "{told}");
        told.complains(&[
            socket.to_str().expect("UTF-8"),
            "this user may not use the daemon's socket",
            "hint:",
            "allow_users",
        ]);
    }
}

/// A daemon stopped by SIGSTOP cannot notice that its socket file was removed.
fn unreachable(env: &TestEnvironment) {
    let daemon = env.daemon();
    let process = daemon.running.id().to_string();
    daemon.running.signal(Signal::STOP);
    std::fs::remove_file(env.socket()).expect("removed");
    ask(env, &["daemon", "status"]).exits(6).complains(&["holds its lock", &process, "proctor daemon stop"]);
    let mut stop = start(env, &["daemon", "stop"]);
    stop.wait_for_message("asked process");
    daemon.running.signal(Signal::CONT);
    stop.wait().exits(0).says(&["has ended", &process]);
    daemon.ended().exits(0);
    ask(env, &["daemon", "stop"]).exits(0).says(&["no daemon runs"]);
}

fn cannot_start(env: &TestEnvironment) {
    let config = env.root().join("bad.toml");
    machine::write(&config, "[daemon]\nmax_runs = 2\nmax_runs_per_caller = 3\n");
    env.hand_over(env.root());
    let state = env.state();
    let words = ["daemon", "start", "--config", config.to_str().expect("UTF-8")];
    let words = [&words[..], &["--state-dir", state.to_str().expect("UTF-8")]].concat();
    ask(env, &words).exits(2).complains(&["max_runs_per_caller"]);
    machine::write(&state, "this is no directory\n");
    env.hand_over(env.root());
    ask(env, &["daemon", "start", "--state-dir", state.to_str().expect("UTF-8")])
        .exits(5)
        .complains(&["cannot be written"]);
    machine::write(&env.root().join("run"), "nor is this\n");
    env.hand_over(env.root());
    let other = env.root().join("state2");
    let failed = ask(env, &["daemon", "start", "--state-dir", other.to_str().expect("UTF-8")]).exits(5);
    failed.complains(&["no daemon could be started", "ended at once", "it said:"]);
}

fn stops(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([waiting_step(env, "it")]));
    let daemon = env.daemon();
    let mut run = start_in(env, repo.path(), &["run"]);
    let step = wait_for_step(env, &mut run);
    let mut stop = start(env, &["daemon", "stop"]);
    stop.wait_for_message("asked process");
    release(&step);
    run.wait().exits(0);
    stop.wait().exits(0).says(&["has ended"]);
    daemon.ended().exits(0);
}

fn status(env: &TestEnvironment) {
    let daemon = env.daemon();
    ask(env, &["status"]).exits(0).says(&["no run"]);
    let good = env.repo_at("good", &Spec::of_script("true"));
    let bad = env.repo_at("bad", &Spec::of_steps([Step::sh("first", "true"), Step::sh("second", "exit 3")]));
    run(&good, env).exits(0);
    run(&bad, env).exits(1);
    let list = ask(env, &["status"]).exits(0).says(&["passed", "failed", "/good:", "exited with code 3"]);
    let lines: Vec<&str> = list.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{list}");
    assert!(lines[1].contains("/bad:"), "newest first: {list}");
    let id = newest(env);
    ask(env, &["status", &id]).exits(0).says(&["verify.it/first", "verify.it/second", "exit code   1", &id]);
    let one = ask(env, &["status", &id, "--format", "json"]).exits(0);
    let one: Value = serde_json::from_str(&one.stdout).expect("one document");
    assert_eq!((&one["verdict"], &one["exit_code"]), (&"failed".into(), &1.into()));
    let all = ask(env, &["status", "--all", "--format", "json"]).exits(0);
    let all: Value = serde_json::from_str(&all.stdout).expect("one document");
    assert_eq!((all["runs"].as_array().map(Vec::len), &all["next_cursor"]), (Some(2), &Value::Null));
    ask(env, &["status", "no-such-run"]).exits(2).complains(&["no-such-run"]);
    ask(env, &["logs", "no-such-run"]).exits(2);
    ask(env, &["cancel", "no-such-run"]).exits(2);
    daemon.end().exits(0);
}

/// A step whose output contains sequences that a terminal or a CI system would obey.
const HOSTILE: &str = r"printf '\033[2Jcleared\n::error::mine\nx ##vso[task]\n'; echo aside >&2";

fn logs(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([Step::sh("first", HOSTILE), Step::sh("second", "echo done")]));
    let daemon = env.daemon();
    run(&repo, env).exits(0);
    let id = newest(env);
    let all = ask(env, &["logs", &id]).exits(0);
    let expected = ["verify.it/first stdout", "verify.it/first stderr", "aside", "verify.it/second stdout", "done"];
    let all = all.says(&expected).says(&[r"\x1b[2Jcleared", r":\x3aerror::mine", r"x #\x23vso[task]"]);
    assert!(!all.stdout.contains('\u{1b}') && !all.stdout.contains("\n::error"), "{all}");
    let first = ask(env, &["logs", &id, "verify.it/first"]).exits(0);
    assert_eq!(first.stdout, "\\x1b[2Jcleared\n:\\x3aerror::mine\nx #\\x23vso[task]\n", "{first}");
    let aside = ask(env, &["logs", &id, "verify.it/first", "--stderr"]).exits(0);
    assert_eq!(aside.stdout, "aside\n", "{aside}");
    ask(env, &["logs", &id, "verify.it/third"]).exits(2).complains(&["no step", "verify.it/second"]);
    daemon.end().exits(0);
}

fn raw_logs(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([Step::sh("first", HOSTILE)]));
    let daemon = env.daemon();
    run(&repo, env).exits(0);
    let id = newest(env);
    let raw = ask(env, &["logs", &id, "verify.it/first", "--raw"]).exits(0);
    assert_eq!(raw.stdout, "\u{1b}[2Jcleared\n::error::mine\nx ##vso[task]\n");
    let words =
        ["logs", &id, "verify.it/first", "--raw", "--socket", env.socket().to_str().expect("UTF-8")].map(str::to_owned);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let refused = env.start_through(env.root(), &ON_A_TERMINAL, &words).wait().exits(2);
    assert!(!refused.stdout.contains("\u{1b}[2J"), "{refused}");
    daemon.end().exits(0);
}

fn followed_logs(env: &TestEnvironment) {
    let steps = [Step::sh("first", "echo early"), waiting_step(env, "wait"), Step::sh("last", "echo late")];
    let repo = env.repo(&Spec::of_steps(steps));
    let daemon = env.daemon();
    let mut run = start_in(env, repo.path(), &["run"]);
    let step = wait_for_step(env, &mut run);
    let id = newest(env);
    ask(env, &["logs", &id, "verify.it/wait"]).exits(0).complains(&["has not ended", "--follow"]);
    ask(env, &["logs", &id]).exits(0).says(&["early"]);
    let mut all = start(env, &["logs", &id, "--follow"]);
    let mut one = start(env, &["logs", &id, "verify.it/last", "-f"]);
    all.wait_for_output("early");
    assert!(!one.is_over(), "it waits for its step");
    release(&step);
    let all = all.wait().exits(0).says(&["late"]);
    assert!(all.stdout.find("early") < all.stdout.find("late"), "{all}");
    assert_eq!(one.wait().exits(0).stdout, "late\n");
    run.wait().exits(0);
    daemon.end().exits(0);
}

fn logs_of_a_check(env: &TestEnvironment) {
    let waits = serde_json::to_string(&waiting_command(env)).expect("words are JSON");
    let checks = format!("toolchains:\n  tool: {{ required: [ {{ cmd: [echo, found] }}, {{ cmd: {waits} }} ] }}");
    let repo = env.repo(&Spec::of_script("true").top(&checks));
    let daemon = env.daemon();
    let mut run = start_in(env, repo.path(), &["run"]);
    let check = wait_for_step(env, &mut run);
    let id = newest(env);
    assert_eq!(ask(env, &["logs", &id, "tool/0"]).exits(0).stdout, "found\n");
    ask(env, &["logs", &id]).exits(0).says(&["--- tool/0 stdout", "found"]);
    ask(env, &["logs", &id, "tool/1"]).exits(2).complains(&["has not ended", "--follow"]);
    let mut followed = start(env, &["logs", &id, "tool/1", "--follow"]);
    assert!(!followed.is_over(), "it waits for its check");
    release(&check);
    followed.wait().exits(0);
    run.wait().exits(0);
    ask(env, &["logs", &id, "tool/2"]).exits(2).complains(&["no step", "tool/0, tool/1, verify.it/it"]);
    daemon.end().exits(0);
}

fn cancelled(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([waiting_step(env, "it")]));
    let daemon = env.daemon();
    let mut run = start_in(env, repo.path(), &["run"]);
    wait_for_step(env, &mut run);
    let id = newest(env);
    ask(env, &["cancel", &id]).exits(0).says(&["is asked to end"]);
    env.finish(run).exits(130).says(&["inconclusive", "interrupted"]);
    ask(env, &["cancel", &id]).exits(0).says(&["has ended: inconclusive"]);
    daemon.end().exits(0);
}

fn watched(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([waiting_step(env, "it")]));
    let daemon = env.daemon();
    let mut watch = start(env, &["watch"]);
    let mut run = start_in(env, repo.path(), &["run"]);
    let step = wait_for_step(env, &mut run);
    watch.wait_for_output("running");
    fail(&step);
    run.wait().exits(1);
    watch.wait_for_output("failed");
    watch.signal(Signal::INT);
    let watch = watch.wait().exits(130);
    assert!(!watch.stdout.contains('\u{1b}'), "{watch}");
    assert!(watch.stdout.lines().all(|line| line.contains("/repo:")), "a line for each step on the way: {watch}");
    daemon.end().exits(0);
}

fn drawn(env: &TestEnvironment) {
    env.caller_has("TERM", "xterm-256color");
    let repo = env.repo(&Spec::of_script("exit 1"));
    let daemon = env.daemon();
    run(&repo, env).exits(1);
    let id = newest(env);
    let socket = env.socket();
    let words = ["watch", "--socket", socket.to_str().expect("UTF-8")];
    let mut watch = env.start_through(env.root(), &ON_A_TERMINAL, &words);
    watch.wait_for_output(&id);
    daemon.end().exits(0);
    let ended = watch.wait().exits(5);
    assert!(ended.stdout.contains("failed") && ended.stdout.contains("\u{1b}["), "{ended}");
}

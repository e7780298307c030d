//! Tests the commands of `proctor` about a daemon and its runs.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;

use rustix::process::Signal;
use serde_json::Value;

use crate::environment::{
    Repo, TestEnvironment, fail_step, release_step, wait_for_step, waiting_command, waiting_step,
};
use crate::machine;
use crate::needs::{CaseDefinition, NEEDS_PYTHON, case, dry_case};
use crate::process::{FinishedProcess, RunningProcess};
use crate::test_spec::{TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    dry_case("daemon_cli::daemon_starts_once_and_stops", starts_once_and_stops),
    dry_case("daemon_cli::daemon_closes_files_inherited_from_its_caller", closes_inherited_files),
    dry_case("", reports_forbidden_socket).unprivileged("daemon_cli::forbidden_socket_is_not_reported_as_missing"),
    dry_case("daemon_cli::daemon_without_its_socket_is_found_by_its_lock", finds_daemon_by_lock),
    dry_case("daemon_cli::failed_start_reports_the_reason", reports_failed_start),
    case("daemon_cli::daemon_stops_after_its_runs_have_ended", stops_after_runs),
    case("daemon_cli::status_shows_all_runs_or_one_run", lists_runs),
    case("daemon_cli::logs_are_shown_escaped", escapes_logs),
    case("daemon_cli::raw_logs_are_printed_except_to_a_terminal", prints_raw_logs).needs(NEEDS_PYTHON),
    case("daemon_cli::logs_follow_a_run_to_its_end", follows_logs),
    case("daemon_cli::logs_wait_for_a_toolchain_check", waits_for_check_logs),
    case("daemon_cli::waiting_client_reports_a_cancelled_run", cancels_run),
    case("daemon_cli::watch_prints_each_step_of_an_active_run", watch_prints_steps),
    case("daemon_cli::watch_draws_a_list_on_a_terminal", watch_draws_list).needs(NEEDS_PYTHON),
];

/// Wrapper that executes its arguments on a new terminal, and copies their output.
pub(super) const TERMINAL_WRAPPER: [&str; 3] =
    ["python3", "-c", "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"];

pub(super) fn start_with_socket(env: &TestEnvironment, words: &[&str]) -> RunningProcess {
    start_in_dir_with_socket(env, env.root(), words)
}

pub(super) fn start_in_dir_with_socket(env: &TestEnvironment, dir: &std::path::Path, words: &[&str]) -> RunningProcess {
    let mut command = env.command(dir);
    command.args(words).arg("--socket").arg(env.socket_path());
    RunningProcess::start(command)
}

pub(super) fn run_with_socket(env: &TestEnvironment, words: &[&str]) -> FinishedProcess {
    start_with_socket(env, words).wait()
}

fn run_profile(repo: &Repo<'_>, env: &TestEnvironment) -> FinishedProcess {
    start_in_dir_with_socket(env, repo.path(), &["run"]).wait()
}

/// Returns the id of the newest run.
pub(super) fn newest_run_id(env: &TestEnvironment) -> String {
    let list = run_with_socket(env, &["status", "--format", "json"]).exits(0);
    let list: Value = serde_json::from_str(&list.stdout).expect("one document");
    list["runs"][0]["id"].as_str().expect("an id").to_owned()
}

fn starts_once_and_stops(env: &TestEnvironment) {
    let state = env.state_dir();
    let start_command = ["daemon", "start", "--state-dir", state.to_str().expect("UTF-8")];
    let socket = env.socket_path();
    let socket_path = socket.to_str().expect("UTF-8");
    run_with_socket(env, &["daemon", "status"]).exits(6).prints_to_stderr(&["no daemon listens"]);
    run_with_socket(env, &["daemon", "stop"]).exits(0).prints(&["no daemon runs"]);
    run_with_socket(env, &start_command).exits(0).prints(&["started", socket_path]).prints_to_stderr(&["proctord.log"]);
    run_with_socket(env, &start_command).exits(0).prints(&["already running", socket_path]);
    run_with_socket(env, &["daemon", "status"]).exits(0).prints(&["running", socket_path, "0 active, 0 waiting"]);
    let status = run_with_socket(env, &["daemon", "status", "--format", "json"]).exits(0);
    let status: Value = serde_json::from_str(&status.stdout).expect("one document");
    assert_eq!((&status["status"], &status["socket"]), (&"ok".into(), &socket_path.into()));
    let process = status["pid"].as_u64().expect("a number");
    run_with_socket(env, &["daemon", "stop"]).exits(0).prints(&["has stopped", &process.to_string()]);
    run_with_socket(env, &["daemon", "status"]).exits(6);
    assert!(!socket.exists(), "it leaves no socket");
}

/// The shell passes the caller's pipe to the daemon under another number. A daemon that kept the pipe open would
/// block the reader of the pipe until the daemon exits.
fn closes_inherited_files(env: &TestEnvironment) {
    const LEAVE_PIPE_OPEN: [&str; 4] = ["sh", "-c", "exec \"$@\" 7>&1", "sh"];
    let (socket, state) = (env.socket_path(), env.state_dir());
    let paths = [&socket, &state].map(|path| path.to_str().expect("UTF-8"));
    let words = ["daemon", "start", "--socket", paths[0], "--state-dir", paths[1]];
    let mut start = env.start_through(env.root(), &LEAVE_PIPE_OPEN, &words);
    start.wait_for_stdout("started a daemon");
    let status = run_with_socket(env, &["daemon", "status", "--format", "json"]).exits(0);
    let status: Value = serde_json::from_str(&status.stdout).expect("one document");
    // The daemon may use this number for a file of its own.
    let seventh = std::fs::read_link(format!("/proc/{}/fd/7", status["pid"])).unwrap_or_default();
    let stopped = run_with_socket(env, &["daemon", "stop"]);
    let is_pipe = seventh.to_string_lossy().starts_with("pipe:");
    assert!(!is_pipe, "who waits for the end of its caller's output waits for the daemon");
    start.wait().exits(0);
    stopped.exits(0);
}

fn reports_forbidden_socket(env: &TestEnvironment) {
    let socket = env.socket_path();
    std::fs::create_dir_all(socket.parent().expect("a directory")).expect("a directory");
    let _listener = UnixListener::bind(&socket).expect("a socket");
    std::fs::set_permissions(&socket, Permissions::from_mode(0o000)).expect("a mode");
    for words in [&["daemon", "status"][..], &["daemon", "stop"], &["status"]] {
        let refused = run_with_socket(env, words).exits(6);
        assert!(!refused.stderr.contains("no daemon listens"), "{refused}");
        refused.prints_to_stderr(&[
            socket.to_str().expect("UTF-8"),
            "this user may not use the daemon's socket",
            "hint:",
            "allow_users",
        ]);
    }
}

/// A daemon stopped by SIGSTOP cannot notice that its socket file was removed.
fn finds_daemon_by_lock(env: &TestEnvironment) {
    let daemon = env.start_ready_daemon();
    let process = daemon.process.pid().to_string();
    daemon.process.signal(Signal::STOP);
    std::fs::remove_file(env.socket_path()).expect("removed");
    run_with_socket(env, &["daemon", "status"]).exits(6).prints_to_stderr(&[
        "holds its lock",
        &process,
        "proctor daemon stop",
    ]);
    let mut stop = start_with_socket(env, &["daemon", "stop"]);
    stop.wait_for_stderr("was asked to stop");
    daemon.process.signal(Signal::CONT);
    stop.wait().exits(0).prints(&["has stopped", &process]);
    daemon.wait_for_exit().exits(0);
    run_with_socket(env, &["daemon", "stop"]).exits(0).prints(&["no daemon runs"]);
}

fn reports_failed_start(env: &TestEnvironment) {
    let config = env.root().join("bad.toml");
    machine::write(&config, "[daemon]\nmax_runs = 2\nmax_runs_per_caller = 3\n");
    env.give_to_actor(env.root());
    let state = env.state_dir();
    let words = ["daemon", "start", "--config", config.to_str().expect("UTF-8")];
    let words = [&words[..], &["--state-dir", state.to_str().expect("UTF-8")]].concat();
    run_with_socket(env, &words).exits(2).prints_to_stderr(&["max_runs_per_caller"]);
    machine::write(&state, "this is no directory\n");
    env.give_to_actor(env.root());
    run_with_socket(env, &["daemon", "start", "--state-dir", state.to_str().expect("UTF-8")])
        .exits(5)
        .prints_to_stderr(&["cannot be written"]);
    machine::write(&env.root().join("run"), "nor is this\n");
    env.give_to_actor(env.root());
    let other = env.root().join("state2");
    let failed = run_with_socket(env, &["daemon", "start", "--state-dir", other.to_str().expect("UTF-8")]).exits(5);
    failed.prints_to_stderr(&["no daemon could be started", "exited immediately", "the end of its log:"]);
}

fn stops_after_runs(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([waiting_step(env, "it")]));
    let daemon = env.start_ready_daemon();
    let mut run = start_in_dir_with_socket(env, repo.path(), &["run"]);
    let step = wait_for_step(env, &mut run);
    let mut stop = start_with_socket(env, &["daemon", "stop"]);
    stop.wait_for_stderr("was asked to stop");
    release_step(&step);
    run.wait().exits(0);
    stop.wait().exits(0).prints(&["has stopped"]);
    daemon.wait_for_exit().exits(0);
}

fn lists_runs(env: &TestEnvironment) {
    let daemon = env.start_ready_daemon();
    run_with_socket(env, &["status"]).exits(0).prints(&["no run"]);
    let good = env.repo_at("good", &TestSpec::from_script("true"));
    let bad =
        env.repo_at("bad", &TestSpec::from_steps([TestStep::sh("first", "true"), TestStep::sh("second", "exit 3")]));
    run_profile(&good, env).exits(0);
    run_profile(&bad, env).exits(1);
    let list = run_with_socket(env, &["status"]).exits(0).prints(&["passed", "failed", "/good:", "exited with code 3"]);
    let lines: Vec<&str> = list.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{list}");
    assert!(lines[1].contains("/bad:"), "newest first: {list}");
    let id = newest_run_id(env);
    run_with_socket(env, &["status", &id]).exits(0).prints(&[
        "verify.it/first",
        "verify.it/second",
        "exit code   1",
        &id,
    ]);
    let one = run_with_socket(env, &["status", &id, "--format", "json"]).exits(0);
    let one: Value = serde_json::from_str(&one.stdout).expect("one document");
    assert_eq!((&one["verdict"], &one["exit_code"]), (&"failed".into(), &1.into()));
    let all = run_with_socket(env, &["status", "--all", "--format", "json"]).exits(0);
    let all: Value = serde_json::from_str(&all.stdout).expect("one document");
    assert_eq!((all["runs"].as_array().map(Vec::len), &all["next_cursor"]), (Some(2), &Value::Null));
    run_with_socket(env, &["status", "no-such-run"]).exits(2).prints_to_stderr(&["no-such-run"]);
    run_with_socket(env, &["logs", "no-such-run"]).exits(2);
    run_with_socket(env, &["cancel", "no-such-run"]).exits(2);
    daemon.stop().exits(0);
}

/// A step whose output contains sequences that a terminal or a CI system would obey.
const HOSTILE_SCRIPT: &str = r"printf '\033[2Jcleared\n::error::mine\nx ##vso[task]\n'; echo aside >&2";

fn escapes_logs(env: &TestEnvironment) {
    let repo =
        env.repo(&TestSpec::from_steps([TestStep::sh("first", HOSTILE_SCRIPT), TestStep::sh("second", "echo done")]));
    let daemon = env.start_ready_daemon();
    run_profile(&repo, env).exits(0);
    let id = newest_run_id(env);
    let all = run_with_socket(env, &["logs", &id]).exits(0);
    let expected = ["verify.it/first stdout", "verify.it/first stderr", "aside", "verify.it/second stdout", "done"];
    let all = all.prints(&expected).prints(&[r"\x1b[2Jcleared", r":\x3aerror::mine", r"x #\x23vso[task]"]);
    assert!(!all.stdout.contains('\u{1b}') && !all.stdout.contains("\n::error"), "{all}");
    let first = run_with_socket(env, &["logs", &id, "verify.it/first"]).exits(0);
    assert_eq!(first.stdout, "\\x1b[2Jcleared\n:\\x3aerror::mine\nx #\\x23vso[task]\n", "{first}");
    let aside = run_with_socket(env, &["logs", &id, "verify.it/first", "--stderr"]).exits(0);
    assert_eq!(aside.stdout, "aside\n", "{aside}");
    run_with_socket(env, &["logs", &id, "verify.it/third"]).exits(2).prints_to_stderr(&["no step", "verify.it/second"]);
    daemon.stop().exits(0);
}

fn prints_raw_logs(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([TestStep::sh("first", HOSTILE_SCRIPT)]));
    let daemon = env.start_ready_daemon();
    run_profile(&repo, env).exits(0);
    let id = newest_run_id(env);
    let raw = run_with_socket(env, &["logs", &id, "verify.it/first", "--raw"]).exits(0);
    assert_eq!(raw.stdout, "\u{1b}[2Jcleared\n::error::mine\nx ##vso[task]\n");
    let words = ["logs", &id, "verify.it/first", "--raw", "--socket", env.socket_path().to_str().expect("UTF-8")]
        .map(str::to_owned);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let refused = env.start_through(env.root(), &TERMINAL_WRAPPER, &words).wait().exits(2);
    assert!(!refused.stdout.contains("\u{1b}[2J"), "{refused}");
    daemon.stop().exits(0);
}

fn follows_logs(env: &TestEnvironment) {
    let steps = [TestStep::sh("first", "echo early"), waiting_step(env, "wait"), TestStep::sh("last", "echo late")];
    let repo = env.repo(&TestSpec::from_steps(steps));
    let daemon = env.start_ready_daemon();
    let mut run = start_in_dir_with_socket(env, repo.path(), &["run"]);
    let step = wait_for_step(env, &mut run);
    let id = newest_run_id(env);
    run_with_socket(env, &["logs", &id, "verify.it/wait"]).exits(0).prints_to_stderr(&["has not ended", "--follow"]);
    run_with_socket(env, &["logs", &id]).exits(0).prints(&["early"]);
    let mut all = start_with_socket(env, &["logs", &id, "--follow"]);
    let mut one = start_with_socket(env, &["logs", &id, "verify.it/last", "-f"]);
    all.wait_for_stdout("early");
    assert!(!one.poll_finished(), "it waits for its step");
    release_step(&step);
    let all = all.wait().exits(0).prints(&["late"]);
    assert!(all.stdout.find("early") < all.stdout.find("late"), "{all}");
    assert_eq!(one.wait().exits(0).stdout, "late\n");
    run.wait().exits(0);
    daemon.stop().exits(0);
}

fn waits_for_check_logs(env: &TestEnvironment) {
    let waits = serde_json::to_string(&waiting_command(env)).expect("words are JSON");
    let checks = format!("toolchains:\n  tool: {{ required: [ {{ cmd: [echo, found] }}, {{ cmd: {waits} }} ] }}");
    let repo = env.repo(&TestSpec::from_script("true").with_top_level(&checks));
    let daemon = env.start_ready_daemon();
    let mut run = start_in_dir_with_socket(env, repo.path(), &["run"]);
    let check = wait_for_step(env, &mut run);
    let id = newest_run_id(env);
    assert_eq!(run_with_socket(env, &["logs", &id, "tool/0"]).exits(0).stdout, "found\n");
    run_with_socket(env, &["logs", &id]).exits(0).prints(&["--- tool/0 stdout", "found"]);
    run_with_socket(env, &["logs", &id, "tool/1"]).exits(2).prints_to_stderr(&["has not ended", "--follow"]);
    let mut followed = start_with_socket(env, &["logs", &id, "tool/1", "--follow"]);
    assert!(!followed.poll_finished(), "it waits for its check");
    release_step(&check);
    followed.wait().exits(0);
    run.wait().exits(0);
    run_with_socket(env, &["logs", &id, "tool/2"])
        .exits(2)
        .prints_to_stderr(&["no step", "tool/0, tool/1, verify.it/it"]);
    daemon.stop().exits(0);
}

fn cancels_run(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([waiting_step(env, "it")]));
    let daemon = env.start_ready_daemon();
    let mut run = start_in_dir_with_socket(env, repo.path(), &["run"]);
    wait_for_step(env, &mut run);
    let id = newest_run_id(env);
    run_with_socket(env, &["cancel", &id]).exits(0).prints(&["requested the end of run"]);
    env.finish(run).exits(130).prints(&["inconclusive", "interrupted"]);
    run_with_socket(env, &["cancel", &id]).exits(0).prints(&["has ended: inconclusive"]);
    daemon.stop().exits(0);
}

fn watch_prints_steps(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([waiting_step(env, "it")]));
    let daemon = env.start_ready_daemon();
    let mut watch = start_with_socket(env, &["watch"]);
    let mut run = start_in_dir_with_socket(env, repo.path(), &["run"]);
    let step = wait_for_step(env, &mut run);
    watch.wait_for_stdout("running");
    fail_step(&step);
    run.wait().exits(1);
    watch.wait_for_stdout("failed");
    watch.signal(Signal::INT);
    let watch = watch.wait().exits(130);
    assert!(!watch.stdout.contains('\u{1b}'), "{watch}");
    assert!(watch.stdout.lines().all(|line| line.contains("/repo:")), "a line for each step on the way: {watch}");
    daemon.stop().exits(0);
}

fn watch_draws_list(env: &TestEnvironment) {
    env.set_caller_var("TERM", "xterm-256color");
    let repo = env.repo(&TestSpec::from_script("exit 1"));
    let daemon = env.start_ready_daemon();
    run_profile(&repo, env).exits(1);
    let id = newest_run_id(env);
    let socket = env.socket_path();
    let words = ["watch", "--socket", socket.to_str().expect("UTF-8")];
    let mut watch = env.start_through(env.root(), &TERMINAL_WRAPPER, &words);
    watch.wait_for_stdout(&id);
    daemon.stop().exits(0);
    let ended = watch.wait().exits(5);
    assert!(ended.stdout.contains("failed") && ended.stdout.contains("\u{1b}["), "{ended}");
}

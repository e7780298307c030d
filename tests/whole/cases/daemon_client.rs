//! Tests `proctor run` and related commands through a daemon: which daemon is used, which results are the same as
//! without one, and the messages for a daemon that is missing, exits, or is incompatible.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::daemon::READY_MESSAGE;
use crate::environment::{CHANGESET, Repo, TestEnvironment, release_step, wait_for_step, waiting_step};
use crate::needs::{CaseDefinition, Needs, case, dry_case};
use crate::process::{FinishedProcess, RunningProcess};
use crate::test_spec::{TestSpec, TestStep};
use crate::{binaries, documents, machine};

pub(super) const CASES: &[CaseDefinition] = &[
    dry_case("daemon_client::required_but_absent_daemon_is_exit_code_6", required_daemon_is_absent),
    case("daemon_client::run_falls_back_to_this_process_without_a_daemon", falls_back_without_daemon),
    case("daemon_client::users_own_daemon_is_found", finds_users_daemon)
        .unprivileged("daemon_client::users_own_daemon_is_found"),
    case("daemon_client::systems_daemon_is_found_by_users_without_their_own", finds_systems_daemon)
        .needs(NEEDS_SYSTEM_DAEMON),
    case("daemon_client::operators_config_sets_the_socket", uses_configured_socket),
    case("daemon_client::other_state_directory_or_config_avoids_the_daemon", other_state_avoids_daemon),
    case("daemon_client::events_and_documents_are_the_same_with_and_without_a_daemon", same_events_and_documents),
    case("daemon_client::run_uses_the_callers_environment", callers_environment_is_used),
    case("daemon_client::too_large_environment_is_not_sent", too_large_environment_is_not_sent),
    case("daemon_client::run_is_inconclusive_if_the_daemon_dies", daemon_dies).long(),
    case("daemon_client::restarted_daemon_reports_the_end_of_the_run", daemon_restarts),
    case("daemon_client::leaving_a_joined_run_does_not_cancel_it", leaves_joined_run),
    case("daemon_client::draining_daemon_refuses_work", draining_daemon_refuses_work),
    case("daemon_client::daemon_of_another_version_is_not_used", refuses_other_version),
    case("daemon_client::server_that_is_not_a_daemon_is_not_used", refuses_other_server),
    dry_case("daemon_client::process_that_is_not_a_daemon_is_not_stopped", does_not_stop_unrelated_process),
];

/// Requires root with its own mount namespace, and two system accounts.
const NEEDS_SYSTEM_DAEMON: &[Needs] = &[
    Needs::Root,
    Needs::Sandbox,
    Needs::Program("setpriv"),
    Needs::WorkingCommand(&["unshare", "--mount", "mount", "-t", "tmpfs", "x", "/run"]),
    Needs::WorkingCommand(&["id", "-u", SERVED_ACCOUNT]),
    Needs::WorkingCommand(&["id", "-u", UNSERVED_ACCOUNT]),
];
/// An account that the system's daemon of a case serves, and one that it does not serve.
const SERVED_ACCOUNT: &str = "backup";
const UNSERVED_ACCOUNT: &str = "mail";

/// Starts a `proctor` command with the daemon's socket as an argument.
fn start_with_socket(env: &TestEnvironment, dir: &Path, words: &[&str]) -> RunningProcess {
    let mut command = env.command(dir);
    command.args(words).arg("--socket").arg(env.socket_path());
    RunningProcess::start(command)
}

fn run_with_socket(env: &TestEnvironment, dir: &Path, words: &[&str]) -> FinishedProcess {
    env.finish(start_with_socket(env, dir, words))
}

/// Runs a `proctor` command without arguments for the socket or state directory.
fn run_without_socket(env: &TestEnvironment, dir: &Path, words: &[&str]) -> FinishedProcess {
    let mut command = env.command(dir);
    command.args(words);
    env.finish(RunningProcess::start(command))
}

const RUN_CHANGESET: [&str; 3] = ["run", "--changeset", CHANGESET];

fn required_daemon_is_absent(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let expected = ["no daemon listens", "proctor daemon start"];
    run_with_socket(env, repo.path(), &["run", "--daemon"]).exits(6).prints_to_stderr(&expected);
    run_with_socket(env, repo.path(), &["gate", "--daemon"]).exits(6).prints_to_stderr(&expected);
    run_with_socket(env, repo.path(), &["doctor", "--daemon"]).exits(6).prints_to_stderr(&expected);
    for command in [&["status"][..], &["logs", "r1"], &["cancel", "r1"], &["watch"], &["daemon", "status"]] {
        run_with_socket(env, repo.path(), command).exits(6).prints_to_stderr(&expected);
    }
    let json = run_with_socket(env, repo.path(), &["run", "--daemon", "--format", "json"]).exits(6);
    let error: Value = serde_json::from_str(&json.stdout).expect("one document");
    assert_eq!(error["error"]["exit_code"], 6, "{json}");
}

fn falls_back_without_daemon(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    run_with_socket(env, repo.path(), &RUN_CHANGESET)
        .exits(0)
        .prints_to_stderr(&["no daemon listens", "continuing without a daemon"]);
    let quiet = run_without_socket(env, repo.path(), &[&RUN_CHANGESET[..], &["--no-daemon"]].concat()).exits(0);
    assert!(!quiet.stderr.contains("daemon"), "{quiet}");
}

fn finds_users_daemon(env: &TestEnvironment) {
    let runtime = env.root().join("runtime");
    std::fs::create_dir(&runtime).expect("a directory of the test");
    env.give_to_actor(env.root());
    env.set_caller_var("XDG_RUNTIME_DIR", runtime.to_str().expect("UTF-8"));
    let repo = env.repo(&TestSpec::from_script("true"));
    let socket = runtime.join("proctor/proctord.sock");
    run_without_socket(env, repo.path(), &["daemon", "start"]).exits(0).prints(&[socket.to_str().expect("UTF-8")]);
    run_without_socket(env, repo.path(), &[&RUN_CHANGESET[..], &["--daemon"]].concat()).exits(0);
    run_without_socket(env, repo.path(), &RUN_CHANGESET).exits(0);
    run_without_socket(env, repo.path(), &["status"]).exits(0).prints(&["passed"]);
    run_without_socket(env, repo.path(), &["daemon", "stop"]).exits(0);
}

/// Runs `proctor` as an account, in the mount namespace of a process.
fn proctor_as_account(
    env: &TestEnvironment,
    account: &str,
    mount_namespace_pid: u32,
    words: &[&str],
) -> FinishedProcess {
    let mut command = machine::command("nsenter");
    command.arg(format!("--mount=/proc/{mount_namespace_pid}/ns/mnt"));
    command.args(["setpriv", &format!("--reuid={account}"), &format!("--regid={account}"), "--init-groups", "--"]);
    command.arg(binaries::public_program("proctor")).args(words).env("HOME", env.home_dir());
    RunningProcess::start(command).wait()
}

fn finds_systems_daemon(env: &TestEnvironment) {
    env.write_operator_config(&format!("[daemon]\nallow_users = ['{SERVED_ACCOUNT}']\n"));
    let repo = env.repo(&TestSpec::from_script("true"));
    machine::change_owner(repo.path(), machine::account_uid(SERVED_ACCOUNT));
    // Only this daemon and the clients in its mount namespace see this `/run`.
    let own_run_directory = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /run && exec \"$@\"", "sh"];
    let mut command = env.program_command("proctord", env.root(), &own_run_directory);
    command.arg("--state-dir").arg(env.state_dir());
    let mut daemon = RunningProcess::start(command);
    daemon.wait_for_stderr(READY_MESSAGE);
    let as_user = |account: &str, words: &[&str]| proctor_as_account(env, account, daemon.pid(), words);
    let repo_path = repo.path().to_str().expect("UTF-8");
    let run = as_user(SERVED_ACCOUNT, &["run", "--repo", repo_path, "--changeset", CHANGESET]).exits(0);
    assert!(!run.stderr.contains("daemon"), "nobody is surprised: {run}");
    as_user(SERVED_ACCOUNT, &["status"]).exits(0).prints(&["passed", repo_path]);
    as_user(UNSERVED_ACCOUNT, &["status"]).exits(6).prints_to_stderr(&["/run/proctor/proctord.sock"]);
    daemon.signal(Signal::TERM);
    env.finish(daemon).exits(0);
}

fn uses_configured_socket(env: &TestEnvironment) {
    env.write_operator_config(&format!("[daemon]\nsocket = '{}'\n", env.socket_path().display()));
    let repo = env.repo(&TestSpec::from_script("true"));
    let daemon = env.start_ready_daemon();
    run_without_socket(env, repo.path(), &[&RUN_CHANGESET[..], &["--daemon"]].concat()).exits(0);
    run_without_socket(env, repo.path(), &RUN_CHANGESET).exits(0);
    let config = env.root().join("config/proctor/proctord.toml");
    run_without_socket(
        env,
        repo.path(),
        &["gate", "--changeset", CHANGESET, "--config", config.to_str().expect("UTF-8")],
    )
    .exits(0);
    assert_eq!(daemon.get("/v1/runs")["runs"].as_array().map(Vec::len), Some(2));
    run_without_socket(env, repo.path(), &[&RUN_CHANGESET[..], &["--no-daemon", "--state-dir", "../other"]].concat())
        .exits(0);
    assert_eq!(daemon.get("/v1/runs")["runs"].as_array().map(Vec::len), Some(2), "it was not asked");
    daemon.stop().exits(0);
}

fn other_state_avoids_daemon(env: &TestEnvironment) {
    env.write_operator_config(&format!("[daemon]\nsocket = '{}'\n", env.socket_path().display()));
    let repo = env.repo(&TestSpec::from_script("true"));
    let daemon = env.start_ready_daemon();
    run_without_socket(env, repo.path(), &[&RUN_CHANGESET[..], &["--state-dir", "../other"]].concat()).exits(0);
    let config = env.root().join("other.toml");
    machine::write(&config, "allow_network = false\n");
    env.give_to_actor(env.root());
    let words = [&RUN_CHANGESET[..], &["--config", config.to_str().expect("UTF-8")]].concat();
    run_without_socket(env, repo.path(), &words).exits(0);
    run_without_socket(env, repo.path(), &[&words[..], &["--daemon"]].concat())
        .exits(6)
        .prints_to_stderr(&["no `daemon.socket`"]);
    assert_eq!(daemon.get("/v1/runs")["runs"].as_array().map(Vec::len), Some(0), "it was not asked");
    daemon.stop().exits(0);
}

/// Removes the values that differ between runs.
fn remove_varying_values(value: &mut Value) {
    const VARYING_FIELDS: [&str; 15] = [
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
            fields.retain(|name, _| !VARYING_FIELDS.contains(&name.as_str()));
            fields.values_mut().for_each(remove_varying_values);
        }
        Value::Array(values) => values.iter_mut().for_each(remove_varying_values),
        _ => {}
    }
}

fn same_events_and_documents(env: &TestEnvironment) {
    let steps = [TestStep::sh("good", "echo fine; echo aside >&2"), TestStep::sh("bad", "echo broken; exit 3")];
    let repo = env.repo(&TestSpec::from_steps(steps));
    let daemon = env.start_ready_daemon();
    let run_both_ways = |words: &[&str]| {
        // Otherwise, the second run would reuse results of the first one.
        let words = [words, &["--no-cache"]].concat();
        let arguments = [&RUN_CHANGESET[..], &words].concat();
        let with_daemon = run_with_socket(env, repo.path(), &arguments).exits(1);
        (with_daemon, repo.run_with(&words).exits(1))
    };
    let (served, without_daemon) = run_both_ways(&["--format", "jsonl"]);
    let [mut served, mut here] = [served, without_daemon].map(|run| documents::check_events(&run.stdout));
    served.iter_mut().chain(&mut here).for_each(remove_varying_values);
    assert_eq!(served, here);
    assert_eq!(served.first().map(|event| event["event"].clone()), Some("run_started".into()));
    let (served, without_daemon) = run_both_ways(&["--format", "json"]);
    let [mut served, mut here] =
        [served, without_daemon].map(|run| serde_json::from_str::<Value>(&run.stdout).expect("one document"));
    remove_varying_values(&mut served);
    remove_varying_values(&mut here);
    assert_eq!(served, here);
    daemon.stop().exits(0);
}

fn callers_environment_is_used(env: &TestEnvironment) {
    let step = TestStep::sh("it", "test \"$GIVEN\" = by-the-caller").with_field("env_allowlist: [GIVEN]");
    let repo = env.repo(&TestSpec::from_steps([step]));
    env.set_caller_var("GIVEN", "by-the-daemon");
    let daemon = env.start_ready_daemon();
    env.set_caller_var("GIVEN", "by-the-caller");
    run_with_socket(env, repo.path(), &RUN_CHANGESET).exits(0);
    daemon.stop().exits(0);
}

fn too_large_environment_is_not_sent(env: &TestEnvironment) {
    // Two variables, because execve(2) limits the size of a single variable. Each of their bytes takes six bytes in
    // JSON.
    for name in ["LARGE_A", "LARGE_B"] {
        env.set_caller_var(name, &"\u{1b}".repeat(100_000));
    }
    let repo = env.repo(&TestSpec::from_script("true"));
    let daemon = env.start_ready_daemon();
    let expected = "too large to be sent";
    run_with_socket(env, repo.path(), &RUN_CHANGESET)
        .exits(0)
        .prints_to_stderr(&[expected, "continuing without a daemon"]);
    run_with_socket(env, repo.path(), &["run", "--daemon"]).exits(2).prints_to_stderr(&[expected]);
    assert_eq!(daemon.get("/v1/runs")["runs"].as_array().map(Vec::len), Some(0), "it was not asked");
    daemon.stop().exits(0);
}

/// Creates a repository with a waiting step.
fn waiting_repo<'e>(env: &'e TestEnvironment) -> Repo<'e> {
    env.repo(&TestSpec::from_steps([waiting_step(env, "it")]))
}

fn daemon_dies(env: &TestEnvironment) {
    let repo = waiting_repo(env);
    let daemon = env.start_ready_daemon();
    let mut run = start_with_socket(env, repo.path(), &[&RUN_CHANGESET[..], &["--format", "jsonl"]].concat());
    wait_for_step(env, &mut run);
    daemon.process.signal(Signal::KILL);
    let run = env.finish(run).exits(5).prints_to_stderr(&["is unknown", "not a pass", "proctor status"]);
    let lines: Vec<Value> = run.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let [.., error, last] = lines.as_slice() else { panic!("two lines\n{run}") };
    assert_eq!(error["error"]["exit_code"], 5, "{run}");
    assert_eq!((&last["event"], &last["verdict"]), (&"run_finished".into(), &"inconclusive".into()), "{run}");
    assert_eq!(run.stdout.matches("run_finished").count(), 1, "{run}");
}

fn daemon_restarts(env: &TestEnvironment) {
    let repo = waiting_repo(env);
    let daemon = env.start_ready_daemon();
    let mut run = start_with_socket(env, repo.path(), &RUN_CHANGESET);
    wait_for_step(env, &mut run);
    daemon.process.signal(Signal::KILL);
    daemon.wait_for_exit();
    let second = env.start_ready_daemon();
    let run = env.finish(run).exits(130).prints(&["inconclusive", "interrupted"]);
    assert!(!run.stdout.contains("passed:"), "{run}");
    second.stop().exits(0);
}

fn leaves_joined_run(env: &TestEnvironment) {
    let repo = waiting_repo(env);
    let daemon = env.start_ready_daemon();
    let mut first = start_with_socket(env, repo.path(), &RUN_CHANGESET);
    let step = wait_for_step(env, &mut first);
    let mut second = start_with_socket(env, repo.path(), &RUN_CHANGESET);
    second.wait_for_stderr("profile pr");
    assert_eq!(daemon.get("/v1/runs")["runs"].as_array().map(Vec::len), Some(1), "it is one run");
    second.signal(Signal::INT);
    let left = second.wait().exits(130).prints_to_stderr(&["continues", "proctor cancel"]);
    assert!(!left.stdout.contains("passed"), "{left}");
    release_step(&step);
    env.finish(first).exits(0);
    daemon.stop().exits(0);
}

fn draining_daemon_refuses_work(env: &TestEnvironment) {
    let repo = waiting_repo(env);
    let other = env.repo_at("other", &TestSpec::from_script("true"));
    let mut daemon = env.start_ready_daemon();
    let mut run = start_with_socket(env, repo.path(), &RUN_CHANGESET);
    let step = wait_for_step(env, &mut run);
    daemon.process.signal(Signal::TERM);
    daemon.process.wait_until(|| {
        crate::daemon::send_request(&env.socket_path(), "GET", "/healthz", None)
            .is_ok_and(|answer| answer.body.contains("draining"))
    });
    let fallback = start_with_socket(env, other.path(), &["run", "--profile", "pr"]).wait();
    fallback.exits(0).prints_to_stderr(&["is shutting down", "continuing without a daemon"]);
    start_with_socket(env, other.path(), &["run", "--daemon"]).wait().exits(6).prints_to_stderr(&["is shutting down"]);
    start_with_socket(env, other.path(), &["daemon", "start"]).wait().exits(5).prints_to_stderr(&["is shutting down"]);
    release_step(&step);
    env.finish(run).exits(0);
    daemon.wait_for_exit().exits(0);
}

/// Answers every connection at the socket of the case with the same bytes, as long as the case runs.
fn start_impostor(env: &TestEnvironment, answer: String) {
    let socket = env.socket_path();
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

fn json_response(body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}")
}

fn refuses_other_version(env: &TestEnvironment) {
    let body = r#"{"status":"ok","version":"99.1.0","pid":1,"uid":0,"uptime_ms":1,"runs":{"queued":0,"running":0}}"#;
    start_impostor(env, json_response(body));
    let repo = env.repo(&TestSpec::from_script("true"));
    run_with_socket(env, repo.path(), &RUN_CHANGESET)
        .exits(0)
        .prints_to_stderr(&["Proctor 99.1.0", "continuing without a daemon"]);
    run_with_socket(env, repo.path(), &["gate", "--daemon"]).exits(6).prints_to_stderr(&["Proctor 99.1.0"]);
    run_with_socket(env, repo.path(), &["status"]).exits(6).prints_to_stderr(&["Proctor 99.1.0"]);
    run_with_socket(env, repo.path(), &["daemon", "status"]).exits(0).prints(&["99.1.0"]);
}

fn refuses_other_server(env: &TestEnvironment) {
    start_impostor(env, "220 mail.example.com ESMTP\r\n".to_owned());
    let repo = env.repo(&TestSpec::from_script("true"));
    run_with_socket(env, repo.path(), &RUN_CHANGESET)
        .exits(0)
        .prints_to_stderr(&["does not answer", "continuing without a daemon"]);
    run_with_socket(env, repo.path(), &["gate", "--daemon"]).exits(6).prints_to_stderr(&["does not answer"]);
    run_with_socket(env, repo.path(), &["daemon", "stop"]).exits(6).prints_to_stderr(&["does not answer"]);
}

fn does_not_stop_unrelated_process(env: &TestEnvironment) {
    let mut command = machine::command("sleep");
    command.arg("300");
    let mut bystander = RunningProcess::start(command);
    let pid = bystander.pid();
    let version = env!("CARGO_PKG_VERSION");
    let body = format!(
        r#"{{"status":"ok","version":"{version}","pid":{pid},"uid":0,"uptime_ms":1,"runs":{{"queued":0,"running":0}}}}"#
    );
    start_impostor(env, json_response(&body));
    let expected = [format!("process {pid}"), "not a `proctord` here".to_owned()];
    run_with_socket(env, env.root(), &["daemon", "stop"])
        .exits(2)
        .prints_to_stderr(&expected.each_ref().map(String::as_str));
    assert!(!bystander.poll_finished(), "it was not asked to end");
    bystander.signal(Signal::KILL);
    bystander.wait();
}

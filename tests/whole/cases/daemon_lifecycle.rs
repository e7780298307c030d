//! Tests the start and the end of a daemon: its socket, its config, signals, and the state after a kill.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::daemon::{self, READY_MESSAGE, TestDaemon};
use crate::environment::{Repo, TestEnvironment, release_step, wait_for_step, waiting_step};
use crate::machine;
use crate::needs::{CaseDefinition, Needs, case, dry_case};
use crate::process::RunningProcess;
use crate::test_spec::{TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    dry_case("daemon_lifecycle::socket_is_accessible_only_to_its_user", socket_is_private),
    dry_case("daemon_lifecycle::stale_socket_is_replaced", stale_socket_is_replaced),
    dry_case("daemon_lifecycle::other_files_at_the_socket_path_are_kept", other_file_at_socket_path_is_kept),
    dry_case("daemon_lifecycle::socket_of_another_user_is_kept", socket_of_other_user_is_kept).needs(&[Needs::Root]),
    dry_case("daemon_lifecycle::socket_directory_writable_by_others_is_refused", writable_socket_directory_is_refused),
    dry_case("daemon_lifecycle::concurrent_starts_leave_one_daemon_and_name_it", concurrent_starts_leave_one_daemon),
    dry_case("daemon_lifecycle::second_daemon_of_a_state_directory_is_refused", shared_state_directory_is_refused),
    dry_case("daemon_lifecycle::invalid_config_is_refused_with_its_location", invalid_config_is_located),
    dry_case("daemon_lifecycle::checks_a_config_without_starting", checks_config_without_starting),
    dry_case("daemon_lifecycle::listens_again_after_its_socket_was_removed", removed_socket_is_recreated),
    dry_case("daemon_lifecycle::reload_applies_the_whole_config_or_nothing", reload_is_atomic),
    dry_case("daemon_lifecycle::deleted_config_keeps_the_old_limits", deleted_config_keeps_limits),
    dry_case("daemon_lifecycle::idle_daemon_exits_unless_a_client_is_connected", idle_daemon_exits),
    dry_case("daemon_lifecycle::survives_too_many_connections_and_too_few_descriptors", survives_exhausted_connections)
        .needs(&[Needs::Program("prlimit")]),
    case("daemon_lifecycle::sigterm_lets_an_active_run_finish", sigterm_lets_active_run_finish),
    case("daemon_lifecycle::run_that_exceeds_the_drain_time_is_cancelled", slow_run_is_cancelled),
    case("daemon_lifecycle::second_sigterm_cancels_active_runs", second_sigterm_cancels_active_run),
    case("daemon_lifecycle::third_sigint_exits_immediately_and_leaves_no_process", third_sigint_exits_immediately),
    case(
        "daemon_lifecycle::a_killed_daemon_leaves_no_process_and_its_run_is_inconclusive",
        killed_daemon_leaves_no_process,
    ),
];

fn socket_is_private(env: &TestEnvironment) {
    let daemon = env.start_ready_daemon();
    let metadata = env.socket_path().metadata().expect("a socket");
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.mode() & 0o777, 0o600);
    assert_eq!(env.socket_path().parent().expect("a directory").metadata().expect("there").mode() & 0o777, 0o700);
    daemon.stop().exits(0);
    assert!(!env.socket_path().exists(), "the socket is removed at the end");
}

fn stale_socket_is_replaced(env: &TestEnvironment) {
    let first = env.start_ready_daemon();
    first.process.signal(Signal::KILL);
    assert_eq!(first.wait_for_exit().code, None);
    assert!(env.socket_path().exists(), "a kill leaves the socket");
    let second = env.start_ready_daemon();
    assert_eq!(second.get("/healthz")["status"], "ok");
    second.stop().exits(0);
}

/// Creates a file of some kind at the path of a socket.
type CreateAtSocketPath = fn(&Path);

fn other_file_at_socket_path_is_kept(env: &TestEnvironment) {
    let dir = env.root().join("run");
    std::fs::create_dir(&dir).expect("a directory");
    let kinds: [(&str, CreateAtSocketPath); 3] = [
        ("a file", |path| machine::write(path, "mine")),
        ("a directory", |path| std::fs::create_dir(path).expect("made")),
        ("a symbolic link", |path| std::os::unix::fs::symlink("/dev/null", path).expect("made")),
    ];
    for (kind, make) in kinds {
        make(&env.socket_path());
        let before = env.socket_path().symlink_metadata().expect("there").ino();
        env.finish(env.spawn_daemon(&[])).exits(2).prints_to_stderr(&[kind, "hint:"]);
        assert_eq!(env.socket_path().symlink_metadata().expect("still there").ino(), before, "{kind}");
        remove_file_or_directory(&env.socket_path());
    }
}

fn remove_file_or_directory(path: &Path) {
    let removed = if path.is_dir() { std::fs::remove_dir(path) } else { std::fs::remove_file(path) };
    removed.expect("removed");
}

fn socket_of_other_user_is_kept(env: &TestEnvironment) {
    std::fs::create_dir(env.root().join("run")).expect("a directory");
    drop(UnixListener::bind(env.socket_path()).expect("bound"));
    machine::change_owner(&env.socket_path(), machine::UNPRIVILEGED_ID);
    env.finish(env.spawn_daemon(&[])).exits(2).prints_to_stderr(&["user 1001"]);
    assert!(env.socket_path().exists());
}

fn writable_socket_directory_is_refused(env: &TestEnvironment) {
    let dir = env.root().join("run");
    std::fs::create_dir(&dir).expect("a directory");
    std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o777)).expect("a mode");
    env.finish(env.spawn_daemon(&[])).exits(2).prints_to_stderr(&["others can write", "hint:"]);
    let in_tmp = env.daemon_command(Path::new("/tmp/proctord-of-a-test.sock"), &env.state_dir());
    env.finish(RunningProcess::start(in_tmp)).exits(2).prints_to_stderr(&["hidden from steps"]);
}

fn concurrent_starts_leave_one_daemon(env: &TestEnvironment) {
    let start =
        |n: u32| RunningProcess::start(env.daemon_command(&env.socket_path(), &env.root().join(format!("state-{n}"))));
    let mut racing: Vec<RunningProcess> = (0..3).map(start).collect();
    let mut losers = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(60);
    // The daemon that listens continues to run; each of the other daemons has reported the process of the listening
    // one.
    while racing.len() > 1 {
        assert!(Instant::now() < deadline, "more than one continues");
        if let Some(at) = racing.iter_mut().position(RunningProcess::poll_finished) {
            losers.push(racing.remove(at).wait());
        }
    }
    let mut winner = racing.remove(0);
    winner.wait_for_stderr(READY_MESSAGE);
    for loser in losers {
        let named = format!("(process {})", winner.pid());
        loser.exits(5).prints_to_stderr(&["another daemon", &named, "hint:"]);
    }
    assert_eq!(daemon::send_request(&env.socket_path(), "GET", "/healthz", None).expect("an answer").status, 200);
    winner.signal(Signal::TERM);
    env.finish(winner).exits(0);
}

fn shared_state_directory_is_refused(env: &TestEnvironment) {
    let first = env.start_ready_daemon();
    let other = env.root().join("run/other.sock");
    let second = RunningProcess::start(env.daemon_command(&other, &env.state_dir()));
    env.finish(second).exits(5).prints_to_stderr(&["state directory", "hint:"]);
    assert!(!other.exists());
    first.stop().exits(0);
}

fn checks_config_without_starting(env: &TestEnvironment) {
    let check = |words: &[&str]| {
        let mut command = env.program_command("proctord", env.root(), &[]);
        command.arg("--check-config").args(words);
        env.finish(RunningProcess::start(command))
    };
    env.write_operator_config("[daemon]\nsokcet = '/x'\n");
    let file = env.root().join("config/proctor/proctord.toml");
    check(&[]).exits(2).prints_to_stderr(&["proctord.toml:2:1", "sokcet"]);
    check(&["--config", file.to_str().expect("UTF-8")]).exits(2).prints_to_stderr(&["proctord.toml:2:1"]);
    check(&["--config", "/absent.toml"]).exits(2).prints_to_stderr(&["/absent.toml", "hint:"]);
    env.write_operator_config("[daemon]\nmax_queued = 100\nmax_queued_per_caller = 256\n");
    check(&[]).exits(2).prints_to_stderr(&["max_queued_per_caller` (256)", "max_queued` (100)", "lower it"]);
    env.write_operator_config("[daemon]\nmax_runs = 2\nmax_queued = 100\n");
    check(&[]).exits(0).prints(&["is valid", "proctord.toml"]);
    std::fs::remove_file(&file).expect("removed");
    check(&[]).exits(0).prints(&["no config"]);
    assert!(!env.socket_path().exists(), "nothing was started");
}

fn removed_socket_is_recreated(env: &TestEnvironment) {
    let mut daemon = env.start_ready_daemon();
    let pid = daemon.get("/healthz")["pid"].clone();
    let answers =
        || daemon::send_request(&env.socket_path(), "GET", "/healthz", None).is_ok_and(|answer| answer.status == 200);
    std::fs::remove_file(env.socket_path()).expect("removed");
    daemon.process.wait_until(answers);
    std::fs::remove_dir_all(env.socket_path().parent().expect("a directory")).expect("removed");
    daemon.process.wait_until(answers);
    assert_eq!(daemon.get("/healthz")["pid"], pid, "the same daemon answers");
    env.finish(env.spawn_daemon(&[])).exits(5).prints_to_stderr(&["another daemon", &format!("(process {pid})")]);
    let ended = daemon.stop().exits(0);
    assert_eq!(ended.stderr.matches("listens at its path again").count(), 2, "{ended}");
    assert!(!env.socket_path().exists());
}

fn invalid_config_is_located(env: &TestEnvironment) {
    for (text, expected_text) in [
        ("[daemon]\nsokcet = '/x'\n", "proctord.toml:2:1"),
        ("[daemon]\nallow_users = ['no-such-account']\n", "no-such-account"),
        ("[daemon.log]\nlevel = 'loud=very'\n", "loud=very"),
    ] {
        env.write_operator_config(text);
        env.finish(env.spawn_daemon(&[])).exits(2).prints_to_stderr(&[expected_text]);
        assert!(!env.socket_path().exists());
    }
}

/// Checks whether the daemon accepts a plan whose step requests network access.
fn accepts_network_plan(daemon: &TestDaemon<'_>, repo: &Repo<'_>) -> bool {
    let request = json!({ "repo": repo.path(), "profile": "pr" });
    let answer = daemon.request("POST", "/v1/plans", Some(&request));
    assert!([200, 422].contains(&answer.status), "{answer:?}");
    answer.status == 200
}

fn reload_is_atomic(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([TestStep::sh("it", "true").with_field("network: allow")]));
    env.write_operator_config("allow_network = true\n");
    let mut daemon = env.start_ready_daemon();
    assert!(accepts_network_plan(&daemon, &repo));
    env.write_operator_config("allow_network = false\n[daemon]\nallow_users = ['no-such-account']\n");
    daemon.process.signal(Signal::HUP);
    daemon.process.wait_for_stderr("the old one remains in use");
    assert!(accepts_network_plan(&daemon, &repo), "nothing of a config that is not valid holds");
    env.write_operator_config("allow_network = false\n");
    daemon.process.signal(Signal::HUP);
    daemon.process.wait_for_stderr("is now in effect");
    assert!(!accepts_network_plan(&daemon, &repo));
    let metrics = daemon.request("GET", "/metrics", None).body;
    for line in
        ["proctor_config_reloads_total{result=\"applied\"} 1", "proctor_config_reloads_total{result=\"refused\"} 1"]
    {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    daemon.stop().exits(0).prints_to_stderr(&["no-such-account"]);
}

fn deleted_config_keeps_limits(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([TestStep::sh("it", "true").with_field("network: allow")]));
    env.write_operator_config("allow_network = false\n");
    let mut daemon = env.start_ready_daemon();
    remove_file_or_directory(&env.root().join("config/proctor/proctord.toml"));
    daemon.process.signal(Signal::HUP);
    daemon.process.wait_for_stderr("no longer exists");
    assert!(!accepts_network_plan(&daemon, &repo));
    daemon.stop().exits(0);
}

fn idle_daemon_exits(env: &TestEnvironment) {
    env.write_operator_config("[daemon]\nidle_exit_ms = 300\n");
    let mut daemon = env.start_ready_daemon();
    let connection = UnixStream::connect(env.socket_path()).expect("connects");
    let before = daemon.get("/healthz")["uptime_ms"].as_u64().expect("a number");
    // The limit has long passed, but the daemon still responds because a client is connected.
    let mut now = before;
    daemon.process.wait_until(|| {
        now = daemon::send_request(&env.socket_path(), "GET", "/healthz", None).expect("an answer").parse_json_body()["uptime_ms"]
            .as_u64()
            .unwrap_or(0);
        now > before + 900
    });
    assert!(now > before + 900);
    drop(connection);
    daemon.wait_for_exit().exits(0).prints_to_stderr(&["it was idle"]);
    assert!(!env.socket_path().exists());
}

fn survives_exhausted_connections(env: &TestEnvironment) {
    env.write_operator_config("[daemon]\nmax_connections = 1000\nrequest_timeout_ms = 60000\n");
    let limited = ["prlimit", "--nofile=96:96", "--"];
    let mut running = RunningProcess::start(env.daemon_command_through(&limited, &env.socket_path(), &env.state_dir()));
    running.wait_for_stderr(READY_MESSAGE);
    // The clients are accepted or wait in the backlog, and send nothing.
    let held: Vec<UnixStream> = (0..300).map(|_| UnixStream::connect(env.socket_path()).expect("connects")).collect();
    let answer = daemon::send_request(&env.socket_path(), "GET", "/healthz", None).expect("an answer");
    assert_eq!(answer.status, 200, "{answer:?}");
    drop(held);
    let metrics = daemon::send_request(&env.socket_path(), "GET", "/metrics", None).expect("an answer").body;
    assert!(metrics.contains("proctor_connections_refused_total{reason=\"evicted\"}"), "{metrics}");
    running.signal(Signal::TERM);
    env.finish(running).exits(0);
}

fn sigterm_lets_active_run_finish(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([waiting_step(env, "it")]));
    let mut daemon = env.start_ready_daemon();
    let id = daemon.submit(repo.path());
    let step = wait_for_step(env, &mut daemon.process);
    daemon.process.signal(Signal::TERM);
    daemon.process.wait_for_stderr("no new runs");
    let health =
        || daemon::send_request(&env.socket_path(), "GET", "/healthz", None).expect("an answer").parse_json_body();
    daemon.process.wait_until(|| health()["status"] == "draining");
    assert_eq!(health()["runs"]["running"], 1);
    let refused = daemon.request("POST", "/v1/runs", Some(&json!({ "repo": repo.path(), "profile": "pr" })));
    assert_eq!(refused.status, 503, "{refused:?}");
    release_step(&step);
    daemon.wait_for_exit().exits(0);
    assert_eq!(verdict_from_next_daemon(env, &id), json!("passed"));
}

/// Returns the verdict of a run from the next daemon.
fn verdict_from_next_daemon(env: &TestEnvironment, id: &str) -> Value {
    let next = env.start_ready_daemon();
    let run = next.get(&format!("/v1/runs/{id}"));
    assert_eq!(run["state"], "finished", "{run:#}");
    next.stop().exits(0);
    run["verdict"].clone()
}

fn slow_run_is_cancelled(env: &TestEnvironment) {
    env.write_operator_config("[daemon]\ndrain_ms = 200\n");
    let repo = env.repo(&TestSpec::from_steps([waiting_step(env, "it")]));
    let mut daemon = env.start_ready_daemon();
    let id = daemon.submit(repo.path());
    wait_for_step(env, &mut daemon.process);
    let finished = daemon.stop().exits(0);
    assert!(finished.elapsed < Duration::from_secs(60), "{finished}");
    assert_eq!(verdict_from_next_daemon(env, &id), json!("inconclusive"));
}

fn second_sigterm_cancels_active_run(env: &TestEnvironment) {
    env.write_operator_config("[daemon]\ndrain_ms = 3600000\n");
    let repo = env.repo(&TestSpec::from_steps([waiting_step(env, "it")]));
    let mut daemon = env.start_ready_daemon();
    let id = daemon.submit(repo.path());
    wait_for_step(env, &mut daemon.process);
    daemon.process.signal(Signal::TERM);
    daemon.process.wait_for_stderr("no new runs");
    daemon.process.signal(Signal::TERM);
    daemon.wait_for_exit().exits(0).prints_to_stderr(&["a second signal"]);
    assert_eq!(verdict_from_next_daemon(env, &id), json!("inconclusive"));
}

fn third_sigint_exits_immediately(env: &TestEnvironment) {
    env.write_operator_config("[daemon]\ndrain_ms = 3600000\n");
    let stubborn = format!("trap '' TERM; sh -c 'trap \"\" TERM; sleep 300; :' {}-ready & wait; wait", env.marker());
    let step = TestStep::argv("it", &["sh", "-c", &stubborn]).with_field("grace_ms: 60000");
    let repo = env.repo(&TestSpec::from_steps([step]));
    let mut daemon = env.start_ready_daemon();
    let id = daemon.submit(repo.path());
    daemon.process.wait_for_process(&format!("{}-ready", env.marker()));
    for message in ["no new runs", "a second signal", "exits without waiting"] {
        daemon.process.signal(Signal::INT);
        daemon.process.wait_for_stderr(message);
    }
    assert_eq!(daemon.process.wait().code, Some(130));
    machine::wait_for_processes_to_exit(env.marker(), Duration::from_secs(10)).expect("no process is left");
    assert_eq!(verdict_from_next_daemon(env, &id), json!("inconclusive"));
}

fn killed_daemon_leaves_no_process(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([waiting_step(env, "it")]));
    let mut daemon = env.start_ready_daemon();
    let id = daemon.submit(repo.path());
    wait_for_step(env, &mut daemon.process);
    daemon.process.signal(Signal::KILL);
    assert_eq!(daemon.process.wait().code, None);
    machine::wait_for_processes_to_exit(env.marker(), Duration::from_secs(10)).expect("no process is left");
    let next = env.start_ready_daemon();
    let run = next.get(&format!("/v1/runs/{id}"));
    assert_eq!((&run["state"], &run["verdict"]), (&json!("finished"), &json!("inconclusive")), "{run:#}");
    assert_eq!(run["exit_code"], 130);
    assert!(run["doubts"].to_string().contains("interrupted"), "{run:#}");
    next.stop().exits(0);
}

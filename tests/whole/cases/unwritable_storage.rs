//! Tests a state directory that is full or cannot be written: a reported pass must be on record.

use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::crash::assert_on_record;
use super::hostile_clients::with_health_probe;
use crate::daemon::{self, READY_MESSAGE, RawResponse, TestDaemon};
use crate::environment::{
    CHANGESET, TestEnvironment, release_step, wait_for_attempt_after, wait_for_step, waiting_step,
};
use crate::machine;
use crate::needs::{CaseDefinition, Needs, case, dry_case};
use crate::process::RunningProcess;
use crate::test_spec::{TestSpec, TestStep};

/// Requires root with its own mount namespace.
const NEEDS_MOUNTS: &[Needs] =
    &[Needs::Sandbox, Needs::Root, Needs::WorkingCommand(&["unshare", "--mount", "mount", "-t", "tmpfs", "x", "/mnt"])];

/// Also requires mounting in the namespace of another process.
const NEEDS_REMOUNTS: &[Needs] = &[
    Needs::Sandbox,
    Needs::Root,
    Needs::Program("nsenter"),
    Needs::WorkingCommand(&["unshare", "--mount", "mount", "-t", "tmpfs", "x", "/mnt"]),
];

pub(super) const CASES: &[CaseDefinition] = &[
    case("unwritable_storage::no_unrecorded_pass_on_a_full_disk", no_unrecorded_pass_on_full_disk).needs(NEEDS_MOUNTS),
    dry_case("unwritable_storage::read_only_state_directory_is_refused", read_only_state_directory_is_refused)
        .needs(NEEDS_MOUNTS),
    case(
        "unwritable_storage::run_is_inconclusive_if_the_repository_becomes_read_only",
        read_only_repository_is_inconclusive,
    )
    .needs(NEEDS_REMOUNTS),
];

/// Size of the daemon's disk.
const DISK_SIZE: &str = "16m";
/// Free space in KiB when a run is submitted. A log needs about 6 KiB, its reserve 48, and the index grows in pages
/// of 4.
const FREE_KIB: [u64; 12] = [0, 4, 8, 12, 16, 24, 32, 48, 64, 96, 160, 512];

fn send_request(env: &TestEnvironment, method: &str, path: &str, body: Option<&Value>) -> RawResponse {
    daemon::send_request(&env.socket_path(), method, path, body)
        .unwrap_or_else(|error| panic!("{method} {path}: {error}"))
}

/// Starts two daemons, one after the other, with the same tmpfs as their disk.
fn start_two_daemons(env: &TestEnvironment, options: &str) -> RunningProcess {
    let state = env.state_dir();
    std::fs::create_dir_all(&state).expect("a directory");
    let mount = format!("mount -t tmpfs -o mode=700,{options} none {} && \"$@\"; \"$@\"", state.display());
    RunningProcess::start(env.daemon_command_through(
        &["unshare", "--mount", "sh", "-c", &mount, "sh"],
        &env.socket_path(),
        &state,
    ))
}

/// Returns the process id of the responding daemon.
fn daemon_pid(env: &TestEnvironment) -> Option<u32> {
    let health = daemon::send_request(&env.socket_path(), "GET", "/healthz", None).ok()?.parse_json_body();
    u32::try_from(health["pid"].as_u64()?).ok()
}

/// Sends SIGTERM to the daemon, and returns its process id.
fn terminate_daemon(env: &TestEnvironment) -> u32 {
    let pid = daemon_pid(env).expect("a daemon");
    machine::send_signal(pid, Signal::TERM);
    pid
}

fn no_unrecorded_pass_on_full_disk(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([TestStep::sh("it", "echo said")]));
    let mut running = start_two_daemons(env, &format!("size={DISK_SIZE}"));
    running.wait_for_stderr(READY_MESSAGE);
    let disk = PathBuf::from(format!("/proc/{}/root{}", running.pid(), env.state_dir().display()));
    let filler = disk.join("filler");
    let submission = json!({ "repo": repo.path(), "profile": "pr", "changeset_id": CHANGESET, "reuse": "never" });
    let (mut runs, mut refused) = (Vec::new(), 0);
    assert_eq!(send_request(env, "GET", "/readyz", None).status, 200);
    for free in FREE_KIB {
        fill_disk(&filler, free);
        if free == 0 {
            running.wait_until(|| send_request(env, "GET", "/readyz", None).status == 503);
            let metrics = send_request(env, "GET", "/metrics", None).body;
            assert!(metrics.contains("proctor_ready 0"), "{metrics}");
        }
        with_health_probe(env, || {
            let answer = send_request(env, "POST", "/v1/runs", Some(&submission));
            match answer.status {
                202 => runs.push(finished_run(env, &answer)),
                503 => {
                    assert!(
                        answer.parse_json_body()["hint"].as_str().is_some_and(|hint| hint.contains("free space")),
                        "{answer:?}"
                    );
                    refused += 1;
                }
                _ => panic!("{free} KiB free: {answer:?}"),
            }
        });
        std::fs::remove_file(&filler).expect("removes");
        // A process that is just inspecting the directory keeps the deleted file allocated until it has finished.
        running.wait_until(|| rustix::fs::statvfs(&disk).is_ok_and(|stats| stats.f_bavail * 2 > stats.f_blocks));
        let answer = send_request(env, "POST", "/v1/runs", Some(&submission));
        let run = finished_run(env, &answer);
        assert_eq!(run["verdict"], "passed", "with room again: {run:#}");
        runs.push(run);
    }
    running.wait_until(|| send_request(env, "GET", "/readyz", None).status == 200);
    let metrics = send_request(env, "GET", "/metrics", None).body;
    let counted = format!("proctor_submissions_refused_total{{reason=\"unavailable\",code=\"503\"}} {refused}");
    assert!(metrics.contains(&counted), "{counted} in\n{metrics}");
    let passed = runs.iter().filter(|run| run["verdict"] == "passed").count();
    let in_doubt = runs.len() - passed;
    println!("room: {refused} refused, {in_doubt} inconclusive, {passed} passed");
    assert!(refused > 0 && in_doubt > 0, "no disk was full when it mattered");
    assert!(passed >= FREE_KIB.len() && runs.iter().all(|run| run["verdict"] != "failed"), "{runs:#?}");
    let first = terminate_daemon(env);
    running.wait_until(|| daemon_pid(env).is_some_and(|second| second != first));
    for run in &runs {
        let id = run["id"].as_str().expect("an id");
        let now = send_request(env, "GET", &format!("/v1/runs/{id}"), None).parse_json_body();
        assert_eq!((&now["state"], &now["verdict"]), (&run["state"], &run["verdict"]), "{now:#}");
    }
    terminate_daemon(env);
    let finished = env.finish(running).exits(0);
    finished.prints_to_stderr(&["the state directory cannot be written", "a run was rejected", "can be written again"]);
}

fn finished_run(env: &TestEnvironment, answer: &RawResponse) -> Value {
    assert_eq!(answer.status, 202, "{answer:?}");
    let id = answer.parse_json_body()["run"]["id"].as_str().expect("an id").to_owned();
    let run = send_request(env, "GET", &format!("/v1/runs/{id}?wait=50s"), None).parse_json_body();
    assert_eq!(run["state"], "finished", "{run:#}");
    run
}

/// Fills the disk except for `free` KiB.
fn fill_disk(filler: &Path, free: u64) {
    use std::io::Write as _;
    let mut file = std::fs::File::options().create(true).write(true).truncate(true).open(filler).expect("opens");
    let block = [0; 4096];
    while file.write_all(&block).is_ok() {}
    let length = file.metadata().expect("there").len() / 4096 * 4096;
    file.set_len(length.saturating_sub(free << 10)).expect("shortens");
}

fn read_only_state_directory_is_refused(env: &TestEnvironment) {
    let finished = start_two_daemons(env, "ro").wait();
    assert!(finished.code.is_some_and(|code| code != 0), "{finished}");
    assert!(finished.stderr.contains("Read-only file system"), "{finished}");
    assert!(!env.socket_path().exists(), "{finished}");
}

/// Remounts a path in the daemon's mount namespace.
fn remount_for_daemon(daemon: &TestDaemon<'_>, options: &str, path: &Path) {
    let mut command = machine::command("nsenter");
    command.args(["--mount", "--target", &daemon.process.pid().to_string(), "--", "mount", "-o"]);
    command.arg(format!("remount,bind,{options}")).arg(path);
    RunningProcess::start(command).wait().exits(0);
}

/// Asserts that a run is inconclusive because the repository cannot be written, and returns it.
fn assert_repository_unwritable(run: &Value) -> Value {
    assert_eq!((&run["verdict"], &run["exit_code"]), (&json!("inconclusive"), &json!(5)), "{run:#}");
    let text = run.to_string();
    assert!(text.contains("Read-only file system") && text.contains("writable"), "{run:#}");
    run.clone()
}

fn read_only_repository_is_inconclusive(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([waiting_step(env, "it")]));
    let path = repo.path().display();
    let mount = format!("mount --bind {path} {path} && exec \"$@\"");
    let wrapper = ["unshare", "--mount", "sh", "-c", &mount, "sh"];
    let mut running = RunningProcess::start(env.daemon_command_through(&wrapper, &env.socket_path(), &env.state_dir()));
    running.wait_for_stderr(READY_MESSAGE);
    let mut daemon = TestDaemon::from_process(env, running);
    let submission = json!({ "repo": repo.path(), "profile": "pr", "changeset_id": CHANGESET, "reuse": "never" });
    let submit = || send_request(env, "POST", "/v1/runs", Some(&submission));
    let passes = |answer: &RawResponse| {
        let run = finished_run(env, answer);
        assert_eq!(run["verdict"], "passed", "{run:#}");
        assert_on_record(&repo, &run);
    };
    let answer = submit();
    let step = wait_for_step(env, &mut daemon.process);
    release_step(&step);
    passes(&answer);

    // During the run: it has withdrawn the earlier pass, and cannot write its own result.
    let answer = submit();
    let step = wait_for_attempt_after(env, &mut daemon.process, &step);
    remount_for_daemon(&daemon, "ro", repo.path());
    release_step(&step);
    let during = assert_repository_unwritable(&with_health_probe(env, || finished_run(env, &answer)));
    assert_eq!(repo.last_run()["outcome"], "inconclusive", "the earlier pass is still valid");
    remount_for_daemon(&daemon, "rw", repo.path());
    let answer = submit();
    let step = wait_for_attempt_after(env, &mut daemon.process, &step);
    release_step(&step);
    passes(&answer);

    // Before the run: it cannot withdraw the earlier pass, and does not start.
    remount_for_daemon(&daemon, "ro", repo.path());
    let before = assert_repository_unwritable(&with_health_probe(env, || finished_run(env, &submit())));
    assert_ne!(repo.last_run()["run_id"], before["id"], "nothing was written");
    remount_for_daemon(&daemon, "rw", repo.path());
    let answer = submit();
    release_step(&wait_for_attempt_after(env, &mut daemon.process, &step));
    passes(&answer);
    for run in [during, before] {
        assert_eq!(daemon.get(&format!("/v1/runs/{}", run["id"].as_str().expect("an id"))), run);
    }
    daemon.stop().exits(0);
}

//! Tests a state directory that is full or cannot be written: a reported pass must be on record.

use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::abuse::meanwhile;
use super::crash::is_on_record;
use crate::daemon::{self, Answer, Daemon, LISTENS};
use crate::environment::{CHANGESET, TestEnvironment, release, wait_for_attempt_after, wait_for_step, waiting_step};
use crate::machine;
use crate::needs::{Case, Needs, case, dry_case};
use crate::process::Running;
use crate::spec::{Spec, Step};

/// Requires root with its own mount namespace.
const MOUNTS: &[Needs] =
    &[Needs::Sandbox, Needs::Root, Needs::Works(&["unshare", "--mount", "mount", "-t", "tmpfs", "x", "/mnt"])];

/// Also requires mounting in the namespace of another process.
const REMOUNTS: &[Needs] = &[
    Needs::Sandbox,
    Needs::Root,
    Needs::Program("nsenter"),
    Needs::Works(&["unshare", "--mount", "mount", "-t", "tmpfs", "x", "/mnt"]),
];

pub(super) const CASES: &[Case] = &[
    case("room::nothing_passes_that_a_full_disk_keeps_off_the_record", full).needs(MOUNTS),
    dry_case("room::a_state_directory_that_cannot_be_written_is_refused", read_only).needs(MOUNTS),
    case("room::a_repository_that_turns_read_only_has_no_pass", repository_read_only).needs(REMOUNTS),
];

/// Size of the daemon's disk.
const DISK: &str = "16m";
/// Free space in KiB when a run is submitted. A log needs about 6 KiB, its reserve 48, and the index grows in pages
/// of 4.
const FREE: [u64; 12] = [0, 4, 8, 12, 16, 24, 32, 48, 64, 96, 160, 512];

fn ask(env: &TestEnvironment, method: &str, path: &str, body: Option<&Value>) -> Answer {
    daemon::ask(&env.socket(), method, path, body).unwrap_or_else(|error| panic!("{method} {path}: {error}"))
}

/// Starts two daemons, one after the other, with the same tmpfs as their disk.
fn start(env: &TestEnvironment, options: &str) -> Running {
    let state = env.state();
    std::fs::create_dir_all(&state).expect("a directory");
    let mount = format!("mount -t tmpfs -o mode=700,{options} none {} && \"$@\"; \"$@\"", state.display());
    Running::start(env.daemon_through(&["unshare", "--mount", "sh", "-c", &mount, "sh"], &env.socket(), &state))
}

/// Returns the process id of the responding daemon.
fn process(env: &TestEnvironment) -> Option<u32> {
    let health = daemon::ask(&env.socket(), "GET", "/healthz", None).ok()?.json();
    u32::try_from(health["pid"].as_u64()?).ok()
}

/// Sends SIGTERM to the daemon, and returns its process id.
fn end(env: &TestEnvironment) -> u32 {
    let process = process(env).expect("a daemon");
    machine::signal(process, Signal::TERM);
    process
}

fn full(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([Step::sh("it", "echo said")]));
    let mut running = start(env, &format!("size={DISK}"));
    running.wait_for_message(LISTENS);
    let disk = PathBuf::from(format!("/proc/{}/root{}", running.id(), env.state().display()));
    let filler = disk.join("filler");
    let submission = json!({ "repo": repo.path(), "profile": "pr", "changeset_id": CHANGESET, "reuse": "never" });
    let (mut told, mut refused) = (Vec::new(), 0);
    assert_eq!(ask(env, "GET", "/readyz", None).code, 200);
    for free in FREE {
        fill(&filler, free);
        if free == 0 {
            running.wait_until(|| ask(env, "GET", "/readyz", None).code == 503);
            let metrics = ask(env, "GET", "/metrics", None).body;
            assert!(metrics.contains("proctor_ready 0"), "{metrics}");
        }
        meanwhile(env, || {
            let answer = ask(env, "POST", "/v1/runs", Some(&submission));
            match answer.code {
                202 => told.push(ended(env, &answer)),
                503 => {
                    assert!(answer.json()["hint"].as_str().is_some_and(|hint| hint.contains("room")), "{answer:?}");
                    refused += 1;
                }
                _ => panic!("{free} KiB free: {answer:?}"),
            }
        });
        std::fs::remove_file(&filler).expect("removes");
        // A process that is just inspecting the directory keeps the deleted file allocated until it has finished.
        running.wait_until(|| rustix::fs::statvfs(&disk).is_ok_and(|room| room.f_bavail * 2 > room.f_blocks));
        let answer = ask(env, "POST", "/v1/runs", Some(&submission));
        let run = ended(env, &answer);
        assert_eq!(run["verdict"], "passed", "with room again: {run:#}");
        told.push(run);
    }
    running.wait_until(|| ask(env, "GET", "/readyz", None).code == 200);
    let metrics = ask(env, "GET", "/metrics", None).body;
    let counted = format!("proctor_submissions_refused_total{{reason=\"unavailable\",code=\"503\"}} {refused}");
    assert!(metrics.contains(&counted), "{counted} in\n{metrics}");
    let passed = told.iter().filter(|run| run["verdict"] == "passed").count();
    let in_doubt = told.len() - passed;
    println!("room: {refused} refused, {in_doubt} inconclusive, {passed} passed");
    assert!(refused > 0 && in_doubt > 0, "no disk was full when it mattered");
    assert!(passed >= FREE.len() && told.iter().all(|run| run["verdict"] != "failed"), "{told:#?}");
    let first = end(env);
    running.wait_until(|| process(env).is_some_and(|second| second != first));
    for run in &told {
        let id = run["id"].as_str().expect("an id");
        let now = ask(env, "GET", &format!("/v1/runs/{id}"), None).json();
        assert_eq!((&now["state"], &now["verdict"]), (&run["state"], &run["verdict"]), "{now:#}");
    }
    end(env);
    let said = env.finish(running).exits(0);
    said.complains(&["the state directory cannot be written", "a run was not taken on", "can be written again"]);
}

fn ended(env: &TestEnvironment, answer: &Answer) -> Value {
    assert_eq!(answer.code, 202, "{answer:?}");
    let id = answer.json()["run"]["id"].as_str().expect("an id").to_owned();
    let run = ask(env, "GET", &format!("/v1/runs/{id}?wait=50s"), None).json();
    assert_eq!(run["state"], "finished", "{run:#}");
    run
}

/// Fills the disk except for `free` KiB.
fn fill(filler: &Path, free: u64) {
    use std::io::Write as _;
    let mut file = std::fs::File::options().create(true).write(true).truncate(true).open(filler).expect("opens");
    let block = [0; 4096];
    while file.write_all(&block).is_ok() {}
    let length = file.metadata().expect("there").len() / 4096 * 4096;
    file.set_len(length.saturating_sub(free << 10)).expect("shortens");
}

fn read_only(env: &TestEnvironment) {
    let finished = start(env, "ro").wait();
    assert!(finished.code.is_some_and(|code| code != 0), "{finished}");
    assert!(finished.stderr.contains("Read-only file system"), "{finished}");
    assert!(!env.socket().exists(), "{finished}");
}

/// Remounts a path in the daemon's mount namespace.
fn remount(daemon: &Daemon<'_>, options: &str, path: &Path) {
    let mut command = machine::command("nsenter");
    command.args(["--mount", "--target", &daemon.running.id().to_string(), "--", "mount", "-o"]);
    command.arg(format!("remount,bind,{options}")).arg(path);
    Running::start(command).wait().exits(0);
}

/// Asserts that a run is inconclusive because the repository cannot be written, and returns it.
fn is_inconclusive(run: &Value) -> Value {
    assert_eq!((&run["verdict"], &run["exit_code"]), (&json!("inconclusive"), &json!(5)), "{run:#}");
    let text = run.to_string();
    assert!(text.contains("Read-only file system") && text.contains("can be written"), "{run:#}");
    run.clone()
}

fn repository_read_only(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([waiting_step(env, "it")]));
    let path = repo.path().display();
    let mount = format!("mount --bind {path} {path} && exec \"$@\"");
    let through = ["unshare", "--mount", "sh", "-c", &mount, "sh"];
    let mut running = Running::start(env.daemon_through(&through, &env.socket(), &env.state()));
    running.wait_for_message(LISTENS);
    let mut daemon = Daemon::of(env, running);
    let submission = json!({ "repo": repo.path(), "profile": "pr", "changeset_id": CHANGESET, "reuse": "never" });
    let submit = || ask(env, "POST", "/v1/runs", Some(&submission));
    let passes = |answer: &Answer| {
        let run = ended(env, answer);
        assert_eq!(run["verdict"], "passed", "{run:#}");
        is_on_record(&repo, &run);
    };
    let answer = submit();
    let step = wait_for_step(env, &mut daemon.running);
    release(&step);
    passes(&answer);

    // During the run: it has withdrawn the earlier pass, and cannot write its own result.
    let answer = submit();
    let step = wait_for_attempt_after(env, &mut daemon.running, &step);
    remount(&daemon, "ro", repo.path());
    release(&step);
    let during = is_inconclusive(&meanwhile(env, || ended(env, &answer)));
    assert_eq!(repo.last_run()["outcome"], "inconclusive", "the earlier pass is still valid");
    remount(&daemon, "rw", repo.path());
    let answer = submit();
    let step = wait_for_attempt_after(env, &mut daemon.running, &step);
    release(&step);
    passes(&answer);

    // Before the run: it cannot withdraw the earlier pass, and does not start.
    remount(&daemon, "ro", repo.path());
    let before = is_inconclusive(&meanwhile(env, || ended(env, &submit())));
    assert_ne!(repo.last_run()["run_id"], before["id"], "nothing was written");
    remount(&daemon, "rw", repo.path());
    let answer = submit();
    release(&wait_for_attempt_after(env, &mut daemon.running, &step));
    passes(&answer);
    for run in [during, before] {
        assert_eq!(daemon.get(&format!("/v1/runs/{}", run["id"].as_str().expect("an id"))), run);
    }
    daemon.end().exits(0);
}

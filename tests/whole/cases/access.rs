//! Tests who can reach a daemon's socket, who is served, and as which user a run is executed.

use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::daemon::READY_MESSAGE;
use crate::environment::TestEnvironment;
use crate::machine::{self, UNPRIVILEGED_ID};
use crate::needs::{CaseDefinition, NEEDS_PYTHON, Needs, case};
use crate::process::{FinishedProcess, RunningProcess};
use crate::test_spec::{TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    case("access::step_cannot_reach_the_socket", socket_unreachable).needs(NEEDS_PYTHON),
    case("access::step_of_an_ordinary_user_cannot_reach_the_socket", socket_unreachable)
        .needs(NEEDS_PYTHON)
        .unprivileged("access::step_of_an_ordinary_user_cannot_reach_the_socket"),
    case("access::step_cannot_reach_a_socket_below_run", socket_unreachable_below_run).needs(NEEDS_ROOT),
    case("access::only_listed_users_are_served", only_listed_users_served).needs(NEEDS_ROOT),
    case("access::root_daemon_runs_steps_as_the_repository_owner", steps_run_as_owner).needs(NEEDS_ACCOUNTS),
    case("access::user_cannot_verify_the_repository_of_another_user", foreign_repository_refused).needs(NEEDS_ACCOUNTS),
    case("access::commands_of_two_users_do_not_share_a_sandbox", separate_sandboxes_per_user).needs(NEEDS_ACCOUNTS),
];

const NEEDS_ROOT: &[Needs] = &[
    Needs::Root,
    Needs::Sandbox,
    Needs::Program("python3"),
    Needs::Program("curl"),
    Needs::Program("setpriv"),
    Needs::Program("git"),
];
/// Also requires two system accounts with home directories.
const NEEDS_ACCOUNTS: &[Needs] = &[
    Needs::Root,
    Needs::Sandbox,
    Needs::Program("python3"),
    Needs::Program("curl"),
    Needs::Program("setpriv"),
    Needs::Program("git"),
    Needs::WorkingCommand(&["id", "-u", OWNER_ACCOUNT]),
    Needs::WorkingCommand(&["id", "-u", OTHER_ACCOUNT]),
];
const OWNER_ACCOUNT: &str = "backup";
const OTHER_ACCOUNT: &str = "mail";
/// Another unprivileged user.
const STRANGER_UID: u32 = UNPRIVILEGED_ID + 1;

fn uid_of(account: &str) -> u32 {
    let mut command = machine::command("id");
    command.args(["-u", account]);
    RunningProcess::start(command).wait().exits(0).stdout.trim().parse().expect("a number")
}

/// Tries to connect to the daemon through the socket path in every reachable root and working directory, through an
/// abstract name, and through the sockets that the kernel lists. Prints the successful attempts. `argv[1]` is the
/// socket.
const REACH_SOCKET_PROGRAM: &str = r#"
import glob, os, socket, sys
path, found = sys.argv[1], []
places = [path, "\0" + path, "/proc/self/root" + path] + [root + path for root in glob.glob("/proc/[0-9]*/root")]
places += [cwd + "/" + os.path.relpath(path, "/") for cwd in glob.glob("/proc/[0-9]*/cwd")]
with open("/proc/net/unix") as file:
    names = [line.split()[7] for line in file if len(line.split()) > 7]
places += ["\0" + name[1:] if name.startswith("@") else name for name in names if os.path.basename(path) in name]
directory = os.open("/", os.O_PATH)
places.append("/proc/self/fd/%d%s" % (directory, path))
for place in places:
    try:
        socket.socket(socket.AF_UNIX).connect(place)
        found.append(place)
    except (OSError, ValueError):
        pass
for beside in (os.path.dirname(path), path, path + ".lock"):
    try:
        if os.path.exists(beside) and (not os.path.isdir(beside) or os.listdir(beside)):
            found.append(beside)
    except OSError:
        pass
print(found)
sys.exit(1 if found else 0)
"#;

fn socket_reach_step(name: &str, socket: &Path) -> TestStep {
    TestStep::argv(name, &["python3", "-c", REACH_SOCKET_PROGRAM, socket.to_str().expect("UTF-8")])
}

fn socket_unreachable(env: &TestEnvironment) {
    assert_socket_unreachable(env, &env.socket_path());
}

fn socket_unreachable_below_run(env: &TestEnvironment) {
    let dir = PathBuf::from(format!("/run/proctor-{}", env.marker()));
    assert_socket_unreachable(env, &dir.join("proctord.sock"));
    std::fs::remove_dir_all(dir).expect("removed");
}

fn assert_socket_unreachable(env: &TestEnvironment, socket: &Path) {
    let mut running = RunningProcess::start(env.daemon_command(socket, &env.state_dir()));
    running.wait_for_stderr(READY_MESSAGE);
    // Outside of a sandbox the same program reaches the socket, which proves that the test is meaningful.
    let mut outside = machine::command("python3");
    outside.args(["-c", REACH_SOCKET_PROGRAM]).arg(socket);
    let outside = RunningProcess::start(outside).wait();
    assert_eq!(outside.code, Some(1), "{outside}");
    let steps =
        [socket_reach_step("denied", socket), socket_reach_step("allowed", socket).with_field("network: allow")];
    let repo = env.repo(&TestSpec::from_steps(steps));
    let request = json!({ "repo": repo.path(), "profile": "pr", "reuse": "never" });
    let uid = env.changes_user().then_some(UNPRIVILEGED_ID);
    let run = submit_and_wait(socket, &request, uid);
    assert_eq!(run["verdict"], "passed", "{run:#}\n{}", step_outputs(socket, &run, uid));
    running.signal(Signal::TERM);
    env.finish(running).exits(0);
}

fn step_outputs(socket: &Path, run: &Value, uid: Option<u32>) -> String {
    let id = run["id"].as_str().expect("an id");
    let url = |n: u32| format!("http://localhost/v1/runs/{id}/steps/{n}/stdout");
    (0..2).map(|n| curl_as(socket, uid, &[&url(n)]).stdout).collect()
}

/// Submits a run, as another user if one is given, and waits for its end.
#[track_caller]
fn submit_and_wait(socket: &Path, request: &Value, uid: Option<u32>) -> Value {
    let submitted = curl_as(socket, uid, &["-d", &request.to_string(), "http://localhost/v1/runs"]);
    let submitted: Value = serde_json::from_str(&submitted.stdout).unwrap_or_else(|_| panic!("{submitted}"));
    let id = submitted["run"]["id"].as_str().unwrap_or_else(|| panic!("not taken on: {submitted:#}"));
    let answer = curl_as(socket, uid, &[&format!("http://localhost/v1/runs/{id}?wait=50s")]);
    serde_json::from_str(&answer.stdout).unwrap_or_else(|_| panic!("{answer}"))
}

/// Runs curl as the current or another user.
fn curl_as(socket: &Path, uid: Option<u32>, words: &[&str]) -> FinishedProcess {
    let mut command = match uid {
        None => machine::command("curl"),
        Some(uid) => {
            let mut command = machine::command("setpriv");
            command.args([&format!("--reuid={uid}"), &format!("--regid={uid}"), "--clear-groups", "--", "curl"]);
            command
        }
    };
    command.args(["--silent", "--show-error", "--max-time", "60", "-H", "Content-Type: application/json"]);
    command.arg("--unix-socket").arg(socket).args(words);
    RunningProcess::start(command).wait()
}

fn health_status_code(socket: &Path, uid: u32) -> String {
    curl_as(socket, Some(uid), &["-o", "/dev/null", "-w", "%{http_code}", "http://localhost/healthz"]).stdout
}

fn only_listed_users_served(env: &TestEnvironment) {
    env.write_operator_config(&format!("[daemon]\nallow_users = [{UNPRIVILEGED_ID}]\n"));
    let mut daemon = env.start_ready_daemon();
    assert_eq!(health_status_code(&env.socket_path(), UNPRIVILEGED_ID), "200");
    assert_eq!(health_status_code(&env.socket_path(), STRANGER_UID), "403");
    assert_eq!(daemon.get("/healthz")["uid"], rustix::process::geteuid().as_raw());
    let metrics = daemon.request("GET", "/metrics", None).body;
    assert!(metrics.contains("proctor_connections_refused_total{reason=\"foreign\"} 1"), "{metrics}");
    env.write_operator_config(&format!("[daemon]\nallow_users = [{STRANGER_UID}]\n"));
    daemon.process.signal(Signal::HUP);
    daemon.process.wait_for_stderr("is now in effect");
    assert_eq!(health_status_code(&env.socket_path(), UNPRIVILEGED_ID), "403");
    assert_eq!(health_status_code(&env.socket_path(), STRANGER_UID), "200");
    env.write_operator_config("");
    daemon.process.signal(Signal::HUP);
    daemon
        .process
        .wait_until(|| curl_as(&env.socket_path(), Some(STRANGER_UID), &["http://localhost/healthz"]).code == Some(7));
    let uid = format!("uid={STRANGER_UID}");
    daemon.stop().exits(0).prints_to_stderr(&["a user without permission to use this daemon was rejected", &uid]);
}

fn steps_run_as_owner(env: &TestEnvironment) {
    let owner = uid_of(OWNER_ACCOUNT);
    env.write_operator_config(&format!("[daemon]\nallow_users = ['{OWNER_ACCOUNT}']\n"));
    let repo = env.repo(&TestSpec::from_script("id -u"));
    machine::change_owner(repo.path(), owner);
    let daemon = env.start_ready_daemon();
    let request = json!({ "repo": repo.path(), "profile": "pr", "reuse": "never", "changeset_id": "009_x" });
    for uid in [Some(owner), None] {
        let run = submit_and_wait(&env.socket_path(), &request, uid);
        assert_eq!(run["verdict"], "passed", "{run:#}");
        let path = format!("/v1/runs/{}/steps/0/stdout", run["id"].as_str().expect("an id"));
        assert_eq!(daemon.request("GET", &path, None).body.trim(), owner.to_string());
        for file in ["verify/verify.it.json", "05-status.json"] {
            use std::os::unix::fs::MetadataExt as _;
            let found = repo.changeset().join(file).metadata().expect("evidence").uid();
            assert_eq!(found, owner, "{file}");
        }
    }
    daemon.stop().exits(0);
}

fn foreign_repository_refused(env: &TestEnvironment) {
    let (owner, stranger) = (uid_of(OWNER_ACCOUNT), uid_of(OTHER_ACCOUNT));
    env.write_operator_config(&format!("[daemon]\nallow_users = ['{OWNER_ACCOUNT}', '{OTHER_ACCOUNT}']\n"));
    let repo = env.repo(&TestSpec::from_script("true"));
    machine::change_owner(repo.path(), owner);
    let daemon = env.start_ready_daemon();
    let request = json!({ "repo": repo.path(), "profile": "pr" }).to_string();
    let exec = json!({ "repo": repo.path(), "cmd": ["true"] }).to_string();
    for (operation, body) in [("runs", &request), ("plans", &request), ("gate", &request), ("exec", &exec)] {
        let words = ["-o", "/dev/null", "-w", "%{http_code}", "-d", body, &format!("http://localhost/v1/{operation}")];
        let answer = curl_as(&env.socket_path(), Some(stranger), &words).stdout;
        assert!(["403", "404", "422"].contains(&answer.as_str()), "{operation}: {answer}");
    }
    // A user does not see the runs of another user either.
    let request: Value = serde_json::from_str(&request).expect("JSON");
    let run = submit_and_wait(&env.socket_path(), &request, Some(owner));
    let url = format!("http://localhost/v1/runs/{}", run["id"].as_str().expect("an id"));
    let status_code =
        curl_as(&env.socket_path(), Some(stranger), &["-o", "/dev/null", "-w", "%{http_code}", &url]).stdout;
    assert_eq!(status_code, "404");
    let list = curl_as(&env.socket_path(), Some(stranger), &["http://localhost/v1/runs"]).stdout;
    let list: Value = serde_json::from_str(&list).expect("JSON");
    assert_eq!(list["runs"], json!([]), "{list:#}");
    daemon.stop().exits(0);
}

/// Two users run commands in turn, and each could be given a sandbox that waits for commands. Each command must run
/// as the owner of its repository, see nothing of the other user, and not be cancellable by the other user.
fn separate_sandboxes_per_user(env: &TestEnvironment) {
    let users = [OWNER_ACCOUNT, OTHER_ACCOUNT].map(uid_of);
    env.write_operator_config(&format!("[daemon]\nallow_users = ['{OWNER_ACCOUNT}', '{OTHER_ACCOUNT}']\n"));
    let repos = ["one", "two"].map(|name| env.repo_at(name, &TestSpec::from_script("true")));
    repos.iter().zip(users).for_each(|(repo, uid)| machine::change_owner(repo.path(), uid));
    let daemon = env.start_ready_daemon();
    let script = "id -u; ls -A /var/tmp; touch /var/tmp/$(id -u)";
    let exec_as = |repo_index: usize, uid: u32| {
        let body = json!({ "repo": repos[repo_index].path(), "cmd": ["sh", "-c", script] }).to_string();
        curl_as(&env.socket_path(), Some(uid), &["-d", &body, "http://localhost/v1/exec"]).stdout
    };
    for _ in 0..3 {
        for (repo_index, uid) in users.into_iter().enumerate() {
            let answer = exec_as(repo_index, uid);
            let printed = json!({ "event": "output", "stream": "stdout", "text": format!("{uid}\n") });
            let has = |wanted: &Value| {
                answer.lines().any(|line| serde_json::from_str::<Value>(line).is_ok_and(|e| e == *wanted))
            };
            assert!(has(&printed) && answer.contains("\"verdict\":\"passed\""), "{answer}");
        }
        assert!(exec_as(0, users[1]).contains("there is no repository of this user"));
    }
    daemon.stop().exits(0);
}

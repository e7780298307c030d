//! Tests who can reach a daemon's socket, who is served, and as which user a run is executed.

use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::daemon::LISTENS;
use crate::environment::TestEnvironment;
use crate::machine::{self, UNPRIVILEGED_ID};
use crate::needs::{Case, NEEDS_PYTHON, Needs, case};
use crate::process::{Finished, Running};
use crate::spec::{Spec, Step};

pub(super) const CASES: &[Case] = &[
    case("access::a_step_does_not_reach_the_socket", unreachable).needs(NEEDS_PYTHON),
    case("access::a_step_of_an_ordinary_user_does_not_reach_the_socket", unreachable)
        .needs(NEEDS_PYTHON)
        .unprivileged("access::a_step_of_an_ordinary_user_does_not_reach_the_socket"),
    case("access::a_step_does_not_reach_a_socket_below_run", unreachable_below_run).needs(NEEDS_ROOT),
    case("access::only_listed_users_are_served", listed).needs(NEEDS_ROOT),
    case("access::a_daemon_of_root_runs_steps_as_the_owner", as_owner).needs(NEEDS_ACCOUNTS),
    case("access::nobody_verifies_the_repository_of_another", not_mine).needs(NEEDS_ACCOUNTS),
    case("access::commands_of_two_users_share_no_sandbox", apart).needs(NEEDS_ACCOUNTS),
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
    Needs::Works(&["id", "-u", OWNER]),
    Needs::Works(&["id", "-u", OTHER]),
];
const OWNER: &str = "backup";
const OTHER: &str = "mail";
/// Another unprivileged user.
const STRANGER: u32 = UNPRIVILEGED_ID + 1;

fn uid_of(account: &str) -> u32 {
    let mut command = machine::command("id");
    command.args(["-u", account]);
    Running::start(command).wait().exits(0).stdout.trim().parse().expect("a number")
}

/// Tries to connect to the daemon through the socket path in every reachable root and working directory, through an
/// abstract name, and through the sockets that the kernel lists. Prints the successful attempts. `argv[1]` is the
/// socket.
const REACH: &str = r#"
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

fn reaching(name: &str, socket: &Path) -> Step {
    Step::argv(name, &["python3", "-c", REACH, socket.to_str().expect("UTF-8")])
}

fn unreachable(env: &TestEnvironment) {
    demand_unreachable(env, &env.socket());
}

fn unreachable_below_run(env: &TestEnvironment) {
    let dir = PathBuf::from(format!("/run/proctor-{}", env.marker()));
    demand_unreachable(env, &dir.join("proctord.sock"));
    std::fs::remove_dir_all(dir).expect("removed");
}

fn demand_unreachable(env: &TestEnvironment, socket: &Path) {
    let mut running = Running::start(env.daemon_at(socket, &env.state()));
    running.wait_for_message(LISTENS);
    // Outside of a sandbox the same program reaches the socket, which proves that the test is meaningful.
    let mut outside = machine::command("python3");
    outside.args(["-c", REACH]).arg(socket);
    let outside = Running::start(outside).wait();
    assert_eq!(outside.code, Some(1), "{outside}");
    let steps = [reaching("denied", socket), reaching("allowed", socket).with("network: allow")];
    let repo = env.repo(&Spec::of_steps(steps));
    let asked = json!({ "repo": repo.path(), "profile": "pr", "reuse": "never" });
    let uid = env.changes_user().then_some(UNPRIVILEGED_ID);
    let run = ask_to_end(socket, &asked, uid);
    assert_eq!(run["verdict"], "passed", "{run:#}\n{}", outputs(socket, &run, uid));
    running.signal(Signal::TERM);
    env.finish(running).exits(0);
}

fn outputs(socket: &Path, run: &Value, uid: Option<u32>) -> String {
    let id = run["id"].as_str().expect("an id");
    let url = |n: u32| format!("http://localhost/v1/runs/{id}/steps/{n}/stdout");
    (0..2).map(|n| curl(socket, uid, &[&url(n)]).stdout).collect()
}

/// Submits a run, as another user if one is given, and waits for its end.
#[track_caller]
fn ask_to_end(socket: &Path, asked: &Value, uid: Option<u32>) -> Value {
    let submitted = curl(socket, uid, &["-d", &asked.to_string(), "http://localhost/v1/runs"]);
    let submitted: Value = serde_json::from_str(&submitted.stdout).unwrap_or_else(|_| panic!("{submitted}"));
    let id = submitted["run"]["id"].as_str().unwrap_or_else(|| panic!("not taken on: {submitted:#}"));
    let answer = curl(socket, uid, &[&format!("http://localhost/v1/runs/{id}?wait=50s")]);
    serde_json::from_str(&answer.stdout).unwrap_or_else(|_| panic!("{answer}"))
}

/// Runs curl as the current or another user.
fn curl(socket: &Path, uid: Option<u32>, words: &[&str]) -> Finished {
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
    Running::start(command).wait()
}

fn status(socket: &Path, uid: u32) -> String {
    curl(socket, Some(uid), &["-o", "/dev/null", "-w", "%{http_code}", "http://localhost/healthz"]).stdout
}

fn listed(env: &TestEnvironment) {
    env.configure(&format!("[daemon]\nallow_users = [{UNPRIVILEGED_ID}]\n"));
    let mut daemon = env.daemon();
    assert_eq!(status(&env.socket(), UNPRIVILEGED_ID), "200");
    assert_eq!(status(&env.socket(), STRANGER), "403");
    assert_eq!(daemon.get("/healthz")["uid"], rustix::process::geteuid().as_raw());
    let metrics = daemon.ask("GET", "/metrics", None).body;
    assert!(metrics.contains("proctor_connections_refused_total{reason=\"foreign\"} 1"), "{metrics}");
    env.configure(&format!("[daemon]\nallow_users = [{STRANGER}]\n"));
    daemon.running.signal(Signal::HUP);
    daemon.running.wait_for_message("holds from now on");
    assert_eq!(status(&env.socket(), UNPRIVILEGED_ID), "403");
    assert_eq!(status(&env.socket(), STRANGER), "200");
    env.configure("");
    daemon.running.signal(Signal::HUP);
    daemon.running.wait_until(|| curl(&env.socket(), Some(STRANGER), &["http://localhost/healthz"]).code == Some(7));
    let uid = format!("uid={STRANGER}");
    daemon.end().exits(0).complains(&["a user who may not ask this daemon was turned away", &uid]);
}

fn as_owner(env: &TestEnvironment) {
    let owner = uid_of(OWNER);
    env.configure(&format!("[daemon]\nallow_users = ['{OWNER}']\n"));
    let repo = env.repo(&Spec::of_script("id -u"));
    machine::give_to(repo.path(), owner);
    let daemon = env.daemon();
    let asked = json!({ "repo": repo.path(), "profile": "pr", "reuse": "never", "changeset_id": "009_x" });
    for uid in [Some(owner), None] {
        let run = ask_to_end(&env.socket(), &asked, uid);
        assert_eq!(run["verdict"], "passed", "{run:#}");
        let path = format!("/v1/runs/{}/steps/0/stdout", run["id"].as_str().expect("an id"));
        assert_eq!(daemon.ask("GET", &path, None).body.trim(), owner.to_string());
        for file in ["verify/verify.it.json", "05-status.json"] {
            use std::os::unix::fs::MetadataExt as _;
            let found = repo.changeset().join(file).metadata().expect("evidence").uid();
            assert_eq!(found, owner, "{file}");
        }
    }
    daemon.end().exits(0);
}

fn not_mine(env: &TestEnvironment) {
    let (owner, stranger) = (uid_of(OWNER), uid_of(OTHER));
    env.configure(&format!("[daemon]\nallow_users = ['{OWNER}', '{OTHER}']\n"));
    let repo = env.repo(&Spec::of_script("true"));
    machine::give_to(repo.path(), owner);
    let daemon = env.daemon();
    let asked = json!({ "repo": repo.path(), "profile": "pr" }).to_string();
    let exec = json!({ "repo": repo.path(), "cmd": ["true"] }).to_string();
    for (what, body) in [("runs", &asked), ("plans", &asked), ("gate", &asked), ("exec", &exec)] {
        let words = ["-o", "/dev/null", "-w", "%{http_code}", "-d", body, &format!("http://localhost/v1/{what}")];
        let answer = curl(&env.socket(), Some(stranger), &words).stdout;
        assert!(["403", "404", "422"].contains(&answer.as_str()), "{what}: {answer}");
    }
    // A user does not see the runs of another user either.
    let asked: Value = serde_json::from_str(&asked).expect("JSON");
    let run = ask_to_end(&env.socket(), &asked, Some(owner));
    let url = format!("http://localhost/v1/runs/{}", run["id"].as_str().expect("an id"));
    let seen = curl(&env.socket(), Some(stranger), &["-o", "/dev/null", "-w", "%{http_code}", &url]).stdout;
    assert_eq!(seen, "404");
    let list = curl(&env.socket(), Some(stranger), &["http://localhost/v1/runs"]).stdout;
    let list: Value = serde_json::from_str(&list).expect("JSON");
    assert_eq!(list["runs"], json!([]), "{list:#}");
    daemon.end().exits(0);
}

/// Two users run commands in turn, and each could be given a sandbox that waits for commands. Each command must run
/// as the owner of its repository, see nothing of the other user, and not be cancellable by the other user.
fn apart(env: &TestEnvironment) {
    let users = [OWNER, OTHER].map(uid_of);
    env.configure(&format!("[daemon]\nallow_users = ['{OWNER}', '{OTHER}']\n"));
    let repos = ["one", "two"].map(|name| env.repo_at(name, &Spec::of_script("true")));
    repos.iter().zip(users).for_each(|(repo, uid)| machine::give_to(repo.path(), uid));
    let daemon = env.daemon();
    let script = "id -u; ls -A /var/tmp; touch /var/tmp/$(id -u)";
    let ask = |at: usize, by: u32| {
        let body = json!({ "repo": repos[at].path(), "cmd": ["sh", "-c", script] }).to_string();
        curl(&env.socket(), Some(by), &["-d", &body, "http://localhost/v1/exec"]).stdout
    };
    for _ in 0..3 {
        for (at, uid) in users.into_iter().enumerate() {
            let answer = ask(at, uid);
            let printed = json!({ "event": "output", "stream": "stdout", "text": format!("{uid}\n") });
            let has = |wanted: &Value| {
                answer.lines().any(|line| serde_json::from_str::<Value>(line).is_ok_and(|e| e == *wanted))
            };
            assert!(has(&printed) && answer.contains("\"verdict\":\"passed\""), "{answer}");
        }
        assert!(ask(0, users[1]).contains("there is no repository of yours"));
    }
    daemon.end().exits(0);
}

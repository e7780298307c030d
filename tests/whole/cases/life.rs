//! Tests the start and the end of a daemon: its socket, its config, signals, and the state after a kill.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::daemon::{self, Daemon, LISTENS};
use crate::environment::{Repo, TestEnvironment, release, wait_for_step, waiting_step};
use crate::machine;
use crate::needs::{Case, Needs, case, dry_case};
use crate::process::Running;
use crate::spec::{Spec, Step};

pub(super) const CASES: &[Case] = &[
    dry_case("life::the_socket_is_for_its_user_alone", socket_mode),
    dry_case("life::a_stale_socket_is_taken_over", stale_socket),
    dry_case("life::what_is_no_socket_of_ours_stays", occupied),
    dry_case("life::the_socket_of_another_user_stays", foreign_socket).needs(&[Needs::Root]),
    dry_case("life::a_directory_that_others_write_to_is_refused", open_directory),
    dry_case("life::of_two_daemons_one_wins_and_the_other_says_which", race),
    dry_case("life::two_daemons_do_not_share_a_state_directory", shared_state),
    dry_case("life::a_config_that_is_not_valid_is_refused_with_its_place", bad_config),
    dry_case("life::checks_a_config_without_starting", check_config),
    dry_case("life::listens_again_after_its_socket_was_removed", removed_socket),
    dry_case("life::a_reload_takes_all_or_nothing", reload),
    dry_case("life::a_lost_config_widens_nothing", lost_config),
    dry_case("life::an_idle_daemon_ends_and_a_connection_keeps_it", idle),
    dry_case("life::too_many_connections_and_too_few_descriptors_do_not_end_it", exhausted)
        .needs(&[Needs::Program("prlimit")]),
    case("life::a_run_under_way_may_end_in_its_time", drained),
    case("life::a_run_that_takes_longer_is_cancelled", cut_off),
    case("life::a_second_sigterm_does_not_wait", asked_twice),
    case("life::a_third_ctrl_c_leaves_at_once_and_nothing_runs_on", insisted),
    case("life::a_killed_daemon_leaves_no_process_and_its_run_is_inconclusive", killed),
];

fn socket_mode(env: &TestEnvironment) {
    let daemon = env.daemon();
    let metadata = env.socket().metadata().expect("a socket");
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.mode() & 0o777, 0o600);
    assert_eq!(env.socket().parent().expect("a directory").metadata().expect("there").mode() & 0o777, 0o700);
    daemon.end().exits(0);
    assert!(!env.socket().exists(), "the socket is removed at the end");
}

fn stale_socket(env: &TestEnvironment) {
    let first = env.daemon();
    first.running.signal(Signal::KILL);
    assert_eq!(first.ended().code, None);
    assert!(env.socket().exists(), "a kill leaves the socket");
    let second = env.daemon();
    assert_eq!(second.get("/healthz")["status"], "ok");
    second.end().exits(0);
}

/// Creates a file of some kind at the path of a socket.
type Occupant = fn(&Path);

fn occupied(env: &TestEnvironment) {
    let dir = env.root().join("run");
    std::fs::create_dir(&dir).expect("a directory");
    let kinds: [(&str, Occupant); 3] = [
        ("a file", |path| machine::write(path, "mine")),
        ("a directory", |path| std::fs::create_dir(path).expect("made")),
        ("a symbolic link", |path| std::os::unix::fs::symlink("/dev/null", path).expect("made")),
    ];
    for (kind, make) in kinds {
        make(&env.socket());
        let before = env.socket().symlink_metadata().expect("there").ino();
        env.finish(env.start_daemon(&[])).exits(2).complains(&[kind, "hint:"]);
        assert_eq!(env.socket().symlink_metadata().expect("still there").ino(), before, "{kind}");
        remove(&env.socket());
    }
}

fn remove(path: &Path) {
    let removed = if path.is_dir() { std::fs::remove_dir(path) } else { std::fs::remove_file(path) };
    removed.expect("removed");
}

fn foreign_socket(env: &TestEnvironment) {
    std::fs::create_dir(env.root().join("run")).expect("a directory");
    drop(UnixListener::bind(env.socket()).expect("bound"));
    machine::give_to(&env.socket(), machine::UNPRIVILEGED_ID);
    env.finish(env.start_daemon(&[])).exits(2).complains(&["user 1001"]);
    assert!(env.socket().exists());
}

fn open_directory(env: &TestEnvironment) {
    let dir = env.root().join("run");
    std::fs::create_dir(&dir).expect("a directory");
    std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o777)).expect("a mode");
    env.finish(env.start_daemon(&[])).exits(2).complains(&["others can write", "hint:"]);
    let in_tmp = env.daemon_at(Path::new("/tmp/proctord-of-a-test.sock"), &env.state());
    env.finish(Running::start(in_tmp)).exits(2).complains(&["hidden from steps"]);
}

fn race(env: &TestEnvironment) {
    let start = |n: u32| Running::start(env.daemon_at(&env.socket(), &env.root().join(format!("state-{n}"))));
    let mut racing: Vec<Running> = (0..3).map(start).collect();
    let mut losers = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(60);
    // The daemon that listens continues to run; each of the others has reported that process.
    while racing.len() > 1 {
        assert!(Instant::now() < deadline, "more than one continues");
        if let Some(at) = racing.iter_mut().position(Running::is_over) {
            losers.push(racing.remove(at).wait());
        }
    }
    let mut winner = racing.remove(0);
    winner.wait_for_message(LISTENS);
    for loser in losers {
        let named = format!("(process {})", winner.id());
        loser.exits(5).complains(&["another daemon", &named, "hint:"]);
    }
    assert_eq!(daemon::ask(&env.socket(), "GET", "/healthz", None).expect("an answer").code, 200);
    winner.signal(Signal::TERM);
    env.finish(winner).exits(0);
}

fn shared_state(env: &TestEnvironment) {
    let first = env.daemon();
    let other = env.root().join("run/other.sock");
    let second = Running::start(env.daemon_at(&other, &env.state()));
    env.finish(second).exits(5).complains(&["state directory", "hint:"]);
    assert!(!other.exists());
    first.end().exits(0);
}

fn check_config(env: &TestEnvironment) {
    let check = |words: &[&str]| {
        let mut command = env.command_of("proctord", env.root(), &[]);
        command.arg("--check-config").args(words);
        env.finish(Running::start(command))
    };
    env.configure("[daemon]\nsokcet = '/x'\n");
    let file = env.root().join("config/proctor/proctord.toml");
    check(&[]).exits(2).complains(&["proctord.toml:2:1", "sokcet"]);
    check(&["--config", file.to_str().expect("UTF-8")]).exits(2).complains(&["proctord.toml:2:1"]);
    check(&["--config", "/absent.toml"]).exits(2).complains(&["/absent.toml", "hint:"]);
    env.configure("[daemon]\nmax_runs = 2\n");
    check(&[]).exits(0).says(&["is valid", "proctord.toml"]);
    std::fs::remove_file(&file).expect("removed");
    check(&[]).exits(0).says(&["no config"]);
    assert!(!env.socket().exists(), "nothing was started");
}

fn removed_socket(env: &TestEnvironment) {
    let mut daemon = env.daemon();
    let pid = daemon.get("/healthz")["pid"].clone();
    let answers = || daemon::ask(&env.socket(), "GET", "/healthz", None).is_ok_and(|answer| answer.code == 200);
    std::fs::remove_file(env.socket()).expect("removed");
    daemon.running.wait_until(answers);
    std::fs::remove_dir_all(env.socket().parent().expect("a directory")).expect("removed");
    daemon.running.wait_until(answers);
    assert_eq!(daemon.get("/healthz")["pid"], pid, "the same daemon answers");
    env.finish(env.start_daemon(&[])).exits(5).complains(&["another daemon", &format!("(process {pid})")]);
    let ended = daemon.end().exits(0);
    assert_eq!(ended.stderr.matches("listens at its path again").count(), 2, "{ended}");
    assert!(!env.socket().exists());
}

fn bad_config(env: &TestEnvironment) {
    for (text, place) in [
        ("[daemon]\nsokcet = '/x'\n", "proctord.toml:2:1"),
        ("[daemon]\nallow_users = ['no-such-account']\n", "no-such-account"),
        ("[daemon.log]\nlevel = 'loud=very'\n", "loud=very"),
    ] {
        env.configure(text);
        env.finish(env.start_daemon(&[])).exits(2).complains(&[place]);
        assert!(!env.socket().exists());
    }
}

/// Checks whether the daemon accepts a plan whose step requests network access.
fn plans_network(daemon: &Daemon<'_>, repo: &Repo<'_>) -> bool {
    let asked = json!({ "repo": repo.path(), "profile": "pr" });
    let answer = daemon.ask("POST", "/v1/plans", Some(&asked));
    assert!([200, 422].contains(&answer.code), "{answer:?}");
    answer.code == 200
}

fn reload(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([Step::sh("it", "true").with("network: allow")]));
    env.configure("allow_network = true\n");
    let mut daemon = env.daemon();
    assert!(plans_network(&daemon, &repo));
    env.configure("allow_network = false\n[daemon]\nallow_users = ['no-such-account']\n");
    daemon.running.signal(Signal::HUP);
    daemon.running.wait_for_message("the old one stays");
    assert!(plans_network(&daemon, &repo), "nothing of a config that is not valid holds");
    env.configure("allow_network = false\n");
    daemon.running.signal(Signal::HUP);
    daemon.running.wait_for_message("holds from now on");
    assert!(!plans_network(&daemon, &repo));
    let metrics = daemon.ask("GET", "/metrics", None).body;
    for line in
        ["proctor_config_reloads_total{result=\"applied\"} 1", "proctor_config_reloads_total{result=\"refused\"} 1"]
    {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    daemon.end().exits(0).complains(&["no-such-account"]);
}

fn lost_config(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([Step::sh("it", "true").with("network: allow")]));
    env.configure("allow_network = false\n");
    let mut daemon = env.daemon();
    remove(&env.root().join("config/proctor/proctord.toml"));
    daemon.running.signal(Signal::HUP);
    daemon.running.wait_for_message("is gone");
    assert!(!plans_network(&daemon, &repo));
    daemon.end().exits(0);
}

fn idle(env: &TestEnvironment) {
    env.configure("[daemon]\nidle_exit_ms = 300\n");
    let mut daemon = env.daemon();
    let connection = UnixStream::connect(env.socket()).expect("connects");
    let before = daemon.get("/healthz")["uptime_ms"].as_u64().expect("a number");
    // The limit has long passed, but the daemon still responds because a client is connected.
    let mut now = before;
    daemon.running.wait_until(|| {
        now = daemon::ask(&env.socket(), "GET", "/healthz", None).expect("an answer").json()["uptime_ms"]
            .as_u64()
            .unwrap_or(0);
        now > before + 900
    });
    assert!(now > before + 900);
    drop(connection);
    daemon.ended().exits(0).complains(&["it was idle"]);
    assert!(!env.socket().exists());
}

fn exhausted(env: &TestEnvironment) {
    env.configure("[daemon]\nmax_connections = 1000\nrequest_timeout_ms = 60000\n");
    let limited = ["prlimit", "--nofile=96:96", "--"];
    let mut running = Running::start(env.daemon_through(&limited, &env.socket(), &env.state()));
    running.wait_for_message(LISTENS);
    // The clients are accepted or wait in the backlog, and send nothing.
    let held: Vec<UnixStream> = (0..300).map(|_| UnixStream::connect(env.socket()).expect("connects")).collect();
    let answer = daemon::ask(&env.socket(), "GET", "/healthz", None).expect("an answer");
    assert_eq!(answer.code, 200, "{answer:?}");
    drop(held);
    let metrics = daemon::ask(&env.socket(), "GET", "/metrics", None).expect("an answer").body;
    assert!(metrics.contains("proctor_connections_refused_total{reason=\"evicted\"}"), "{metrics}");
    running.signal(Signal::TERM);
    env.finish(running).exits(0);
}

fn drained(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([waiting_step(env, "it")]));
    let mut daemon = env.daemon();
    let id = daemon.submit(repo.path());
    let step = wait_for_step(env, &mut daemon.running);
    daemon.running.signal(Signal::TERM);
    daemon.running.wait_for_message("no new runs");
    let health = || daemon::ask(&env.socket(), "GET", "/healthz", None).expect("an answer").json();
    daemon.running.wait_until(|| health()["status"] == "draining");
    assert_eq!(health()["runs"]["running"], 1);
    let refused = daemon.ask("POST", "/v1/runs", Some(&json!({ "repo": repo.path(), "profile": "pr" })));
    assert_eq!(refused.code, 503, "{refused:?}");
    release(&step);
    daemon.ended().exits(0);
    assert_eq!(verdict(env, &id), json!("passed"));
}

/// Returns the verdict of a run from the next daemon.
fn verdict(env: &TestEnvironment, id: &str) -> Value {
    let next = env.daemon();
    let run = next.get(&format!("/v1/runs/{id}"));
    assert_eq!(run["state"], "finished", "{run:#}");
    next.end().exits(0);
    run["verdict"].clone()
}

fn cut_off(env: &TestEnvironment) {
    env.configure("[daemon]\ndrain_ms = 200\n");
    let repo = env.repo(&Spec::of_steps([waiting_step(env, "it")]));
    let mut daemon = env.daemon();
    let id = daemon.submit(repo.path());
    wait_for_step(env, &mut daemon.running);
    let finished = daemon.end().exits(0);
    assert!(finished.elapsed < Duration::from_secs(60), "{finished}");
    assert_eq!(verdict(env, &id), json!("inconclusive"));
}

fn asked_twice(env: &TestEnvironment) {
    env.configure("[daemon]\ndrain_ms = 3600000\n");
    let repo = env.repo(&Spec::of_steps([waiting_step(env, "it")]));
    let mut daemon = env.daemon();
    let id = daemon.submit(repo.path());
    wait_for_step(env, &mut daemon.running);
    daemon.running.signal(Signal::TERM);
    daemon.running.wait_for_message("no new runs");
    daemon.running.signal(Signal::TERM);
    daemon.ended().exits(0).complains(&["asked again"]);
    assert_eq!(verdict(env, &id), json!("inconclusive"));
}

fn insisted(env: &TestEnvironment) {
    env.configure("[daemon]\ndrain_ms = 3600000\n");
    let stubborn = format!("trap '' TERM; sh -c 'trap \"\" TERM; sleep 300; :' {}-ready & wait; wait", env.marker());
    let step = Step::argv("it", &["sh", "-c", &stubborn]).with("grace_ms: 60000");
    let repo = env.repo(&Spec::of_steps([step]));
    let mut daemon = env.daemon();
    let id = daemon.submit(repo.path());
    daemon.running.wait_for_process(&format!("{}-ready", env.marker()));
    for said in ["no new runs", "asked again", "leaves what is under way"] {
        daemon.running.signal(Signal::INT);
        daemon.running.wait_for_message(said);
    }
    assert_eq!(daemon.running.wait().code, Some(130));
    machine::wait_until_gone(env.marker(), Duration::from_secs(10)).expect("no process is left");
    assert_eq!(verdict(env, &id), json!("inconclusive"));
}

fn killed(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([waiting_step(env, "it")]));
    let mut daemon = env.daemon();
    let id = daemon.submit(repo.path());
    wait_for_step(env, &mut daemon.running);
    daemon.running.signal(Signal::KILL);
    assert_eq!(daemon.running.wait().code, None);
    machine::wait_until_gone(env.marker(), Duration::from_secs(10)).expect("no process is left");
    let next = env.daemon();
    let run = next.get(&format!("/v1/runs/{id}"));
    assert_eq!((&run["state"], &run["verdict"]), (&json!("finished"), &json!("inconclusive")), "{run:#}");
    assert_eq!(run["exit_code"], 130);
    assert!(run["doubts"].to_string().contains("interrupted"), "{run:#}");
    next.end().exits(0);
}

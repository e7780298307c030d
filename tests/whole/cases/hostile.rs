//! Tests attacks on a run by another process of the repository's owner: while the tree is copied, while a step waits,
//! and afterwards. Each case runs with the system's daemon, which belongs to root, and with a daemon of the user. The
//! table in `docs/security.md` lists the results.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::private_tree::waits_then;
use crate::daemon::Daemon;
use crate::environment::{CHANGESET, Repo, TestEnvironment, release, wait_for_step};
use crate::needs::{Case, Needs, case};
use crate::process::{Finished, Running};
use crate::spec::Spec;
use crate::{binaries, machine, schemas};

pub(super) const CASES: &[Case] = &[
    case("hostile::no_change_during_a_run_reaches_a_step_of_the_system", changes).needs(SYSTEM),
    case("", changes).needs(NEEDS).unprivileged("hostile::no_change_during_a_run_reaches_a_step_of_a_user"),
    case("hostile::no_race_with_the_copy_deceives_the_system", races).needs(SYSTEM),
    case("", races).needs(NEEDS).unprivileged("hostile::no_race_with_the_copy_deceives_a_user"),
    case("hostile::a_page_that_was_mapped_before_is_read_again_by_the_system", mapped_after_a_pass).needs(SYSTEM),
    case("", mapped_after_a_pass)
        .needs(NEEDS)
        .unprivileged("hostile::a_page_that_was_mapped_before_is_read_again_for_a_user"),
    case("hostile::rules_outside_of_the_tree_hide_no_file_from_the_system", rules).needs(SYSTEM),
    case("", rules).needs(NEEDS).unprivileged("hostile::rules_outside_of_the_tree_hide_no_file_for_a_user"),
    case("hostile::strict_inputs_refuse_an_ignored_file_that_was_edited_for_the_system", ignored_input).needs(SYSTEM),
    case("", ignored_input)
        .needs(NEEDS)
        .unprivileged("hostile::strict_inputs_refuse_an_ignored_file_that_was_edited_for_a_user"),
    case("hostile::a_user_reaches_neither_state_nor_processes_of_the_system", unreachable).needs(SYSTEM),
    case("", reachable).needs(NEEDS).unprivileged("hostile::a_user_reaches_the_state_of_a_daemon_of_the_users_own"),
    case("hostile::an_ignored_file_beyond_the_bound_is_left_out_by_the_system", over_the_bound).needs(SYSTEM),
    case("", over_the_bound)
        .needs(NEEDS)
        .unprivileged("hostile::an_ignored_file_beyond_the_bound_is_left_out_for_a_user"),
    case("hostile::an_editor_that_saves_during_a_run_of_the_system_changes_no_verdict", editor).needs(SYSTEM),
    case("", editor).needs(NEEDS).unprivileged("hostile::an_editor_that_saves_during_a_run_changes_no_verdict"),
];

pub(super) const NEEDS: &[Needs] = &[Needs::Sandbox, Needs::Program("python3"), Needs::Program("git")];
pub(super) const SYSTEM: &[Needs] = &[
    Needs::Root,
    Needs::Sandbox,
    Needs::Program("python3"),
    Needs::Program("git"),
    Needs::Program("setpriv"),
    Needs::Works(&["id", "-u", ACCOUNT]),
];
/// The account that uses the system's daemon: root serves no user without an account.
const ACCOUNT: &str = "backup";

/// Number of runs over a tree that changes while it is copied.
const RACES: usize = 3;

/// An attack, a check that fails on the real tree, and the acceptable exit codes of `proctor run`.
struct Attack {
    name: &'static str,
    check: &'static str,
    /// True if the check succeeds in the worktree during the attack.
    deceives: bool,
    exits: &'static [i32],
}

const GOOD: &str = "grep -q good src/lib.rs";
const GOOD_FILE: &str = "test -f src/lib.rs && test ! -L src/lib.rs && grep -q good src/lib.rs";

const fn attack(name: &'static str, check: &'static str) -> Attack {
    Attack { name, check, deceives: true, exits: &[1] }
}

/// Attacks while a step waits.
const CHANGES: [Attack; 13] = [
    attack("above_exchanged", GOOD),
    attack("above_linked", GOOD),
    attack("inside_exchanged", GOOD),
    attack("inside_linked", GOOD),
    attack("momentary_file", "test -e conftest.py"),
    attack("momentary_directory", "test -e plugins/skip/conftest.py"),
    attack("renamed_to_ignored", "test ! -e broken.py"),
    attack("switched_head", "git symbolic-ref HEAD | grep -q other || grep -q good src/lib.rs"),
    attack("mapped_page", GOOD),
    Attack {
        deceives: false,
        ..attack("overlay_attributes", "test ! -e broken.txt || test ! -e dir/broken.txt || grep -q good src/lib.rs")
    },
    attack("evidence_with_code", "sh changes/009_x/verify/helper.sh"),
    attack("hard_link", GOOD),
    attack("ignored_edit", "test -e flag.log"),
];

const fn race(name: &'static str, check: &'static str) -> Attack {
    Attack { name, check, deceives: false, exits: &[1, 5] }
}

/// Attacks while the tree is copied.
const RACING: [Attack; 7] = [
    race("fifo", GOOD_FILE),
    race("unix_socket", GOOD_FILE),
    race("device_link", GOOD_FILE),
    race("directory_link", "test ! -L src && grep -q good src/lib.rs"),
    race("growing_file", "grep -q never src/lib.rs"),
    Attack { exits: &[1], ..race("growing_ignored_file", "grep -q never grows.log") },
    // At times the tree is good, and then its run passes.
    Attack { exits: &[0, 1, 5], ..race("good_file", GOOD) },
];

/// A daemon, and a user who is admitted and owns all repositories.
pub(super) struct Stage<'e> {
    pub(super) env: &'e TestEnvironment,
    pub(super) daemon: Daemon<'e>,
    /// The user's id, if the daemon belongs to root.
    user: Option<u32>,
}

impl<'e> Stage<'e> {
    /// Starts the daemon, as root if the tests run as root and the case does not change the user.
    pub(super) fn new(env: &'e TestEnvironment) -> Self {
        let is_of_the_system = machine::is_root() && !env.changes_user();
        let user = is_of_the_system.then(|| machine::uid_of(ACCOUNT));
        user.iter().for_each(|user| env.configure(&format!("[daemon]\nallow_users = [{user}]\n")));
        Self { env, daemon: env.daemon(), user }
    }

    /// Extends the daemon's time limit.
    pub(super) fn patient(self, more: Duration) -> Self {
        Self { daemon: Daemon::of(self.env, self.daemon.running.patient(more)), ..self }
    }

    /// Creates a repository of the user, in its own directory.
    pub(super) fn repo(&self, name: &str, spec: &Spec) -> Repo<'e> {
        let repo = self.env.repo_at(&format!("{name}/above/repo"), spec);
        repo.write("src/lib.rs", "bad\n");
        repo.commit();
        self.give(name);
        repo
    }

    /// Gives the files of a repository to the user.
    pub(super) fn give(&self, name: &str) {
        if let Some(user) = self.user {
            machine::give_to(&self.env.root().join(name), user);
        }
    }

    /// Returns the command for a program, as the user.
    fn as_user(&self, program: &str) -> Command {
        let Some(id) = self.user else { return self.env.program_of_actor(program) };
        let mut command = machine::command("setpriv");
        command.args([&format!("--reuid={id}"), &format!("--regid={id}"), "--clear-groups", "--", program]);
        command
    }

    /// Starts `proctor` as the user, with the daemon's socket.
    fn start(&self, repo: &Repo<'_>, words: &[&str]) -> Running {
        let mut command = self.as_user(binaries::for_all("proctor").to_str().expect("UTF-8"));
        command.current_dir(repo.path()).env("HOME", self.env.home()).env("LANG", "C.UTF-8");
        command.args(&words[..1]).arg("--socket").arg(self.env.socket()).args(["--changeset", CHANGESET]);
        Running::start({
            command.args(&words[1..]);
            command
        })
    }

    /// Starts a run.
    pub(super) fn run(&self, repo: &Repo<'_>) -> Running {
        self.start(repo, &["run"])
    }

    /// Starts a run and waits for its step, calls `act`, releases the step, and waits for the end.
    fn run_while(&self, repo: &Repo<'_>, act: impl FnOnce(&[u32])) -> Finished {
        self.run_of_while(repo, &[], act)
    }

    /// Does the same for a run with options.
    fn run_of_while(&self, repo: &Repo<'_>, options: &[&str], act: impl FnOnce(&[u32])) -> Finished {
        let mut running = self.start(repo, &[&["run"], options].concat());
        let marker = self.env.marker();
        let mut found = None;
        running.wait_until(|| {
            let child = machine::process_called(&format!("{marker}-ready"), 0);
            found = child.and(machine::process_called(&format!("{marker}-main"), 0));
            found.is_some()
        });
        if let Some(process) = found {
            act(&ancestors(process));
            machine::signal_if_there(process, Signal::USR1);
        }
        self.env.finish(running)
    }

    /// Returns the exit code of the gate and the names of its findings.
    pub(super) fn gate(&self, repo: &Repo<'_>, more: &[&str]) -> (i32, Vec<String>) {
        let finished = self.start(repo, &[&["gate", "--format", "json"], more].concat()).wait();
        let json: Value = serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished}"));
        schemas::demand("gate", &json, &finished);
        let findings = json["findings"].as_array().expect("the schema says so").iter();
        let names = findings.map(|finding| finding["name"].as_str().expect("a word").to_owned());
        (finished.code.expect("an exit code"), names.collect())
    }

    #[track_caller]
    fn refuses(&self, repo: &Repo<'_>, what: &str) {
        let (code, findings) = self.gate(repo, &[]);
        assert!(matches!(code, 1 | 2 | 5) && !findings.is_empty(), "{what}: the gate passes: {code} {findings:?}");
    }

    /// Checks whether a check succeeds in the worktree, outside of any sandbox.
    fn holds(&self, repo: &Repo<'_>, check: &str) -> bool {
        let mut command = self.as_user("sh");
        command.args(["-c", check]).current_dir(repo.path()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().expect("a shell").success()
    }

    pub(super) fn attacker(&self, name: &str, repo: &Repo<'_>) -> Attacker {
        let mut command = self.as_user("python3");
        command.args(["-c", include_str!("../hostile.py"), name]).arg(repo.path());
        command.env("HOME", self.env.home()).env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
        Attacker::start(command)
    }
}

/// A process that attacks on request.
pub(super) struct Attacker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Attacker {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3 starts");
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, input, output }
    }

    /// Runs the next part of the attack, and returns its response.
    #[track_caller]
    pub(super) fn next(&mut self, asked: &Value) -> Value {
        let mut line = String::new();
        let sent = writeln!(self.input, "{asked}").and_then(|()| self.output.read_line(&mut line));
        sent.expect("the attacker is there");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("the attacker ended: {error}: {line:?}"))
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a process and its ancestors, except the init process.
fn ancestors(process: u32) -> Vec<u32> {
    let parent = |pid: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok();
        parent.filter(|parent: &u32| *parent > 1)
    };
    std::iter::successors(Some(process), parent).collect()
}

fn changes(env: &TestEnvironment) {
    let stage = Stage::new(env);
    for attack in &CHANGES {
        let repo = stage.repo(attack.name, &waits_then(env, attack.check));
        let mut attacker = stage.attacker(attack.name, &repo);
        attacker.next(&Value::Null);
        if attack.name != "evidence_with_code" {
            assert!(!stage.holds(&repo, attack.check), "{}: the check succeeds before", attack.name);
        }
        let run = stage.run_while(&repo, |_| {
            attacker.next(&Value::Null);
            assert_eq!(stage.holds(&repo, attack.check), attack.deceives, "{}: the attack has no effect", attack.name);
        });
        attacker.next(&Value::Null);
        judge(&stage, &repo, attack, &run);
    }
    stage.daemon.end().exits(0);
}

#[track_caller]
fn judge(stage: &Stage<'_>, repo: &Repo<'_>, attack: &Attack, run: &Finished) {
    assert!(run.code.is_some_and(|code| attack.exits.contains(&code)), "{}\n{run}", attack.name);
    assert!(!stage.holds(repo, attack.check), "{}: the check succeeds afterwards", attack.name);
    stage.refuses(repo, attack.name);
}

fn races(env: &TestEnvironment) {
    let stage = Stage::new(env);
    for attack in &RACING {
        let repo = stage.repo(attack.name, &waits_then(env, attack.check));
        for _ in 0..RACES {
            let mut attacker = stage.attacker(attack.name, &repo);
            attacker.next(&Value::Null);
            let run = stage.run_while(&repo, |_| {});
            attacker.next(&Value::Null);
            let count = attacker.next(&Value::Null);
            assert!(count.as_u64().is_some_and(|count| count > 0), "{}: nothing was changed", attack.name);
            judge(&stage, &repo, attack, &run);
        }
    }
    stage.daemon.end().exits(0);
}

/// A memory mapping outlives a run that passed, and writes to the file without changing its times.
fn mapped_after_a_pass(env: &TestEnvironment) {
    let stage = Stage::new(env);
    let repo = stage.repo("mapped", &waits_then(env, GOOD));
    let mut attacker = stage.attacker("mapped_page", &repo);
    attacker.next(&Value::Null);
    attacker.next(&Value::Null);
    // The page contains `good ` now.
    stage.run_while(&repo, |_| {}).exits(0);
    assert_eq!(stage.gate(&repo, &[]).0, 0);
    let before = std::fs::metadata(repo.file("src/lib.rs")).and_then(|found| found.modified()).expect("it is there");
    attacker.next(&Value::Null);
    let after = std::fs::metadata(repo.file("src/lib.rs")).and_then(|found| found.modified()).expect("it is there");
    assert_eq!((before, stage.holds(&repo, GOOD)), (after, false), "the mapping wrote without a new time");
    assert_eq!(stage.gate(&repo, &[]), (1, vec!["tree_changed".to_owned()]));
    stage.run_while(&repo, |_| {}).exits(1);
    stage.refuses(&repo, "after the second run");
    stage.daemon.end().exits(0);
}

/// Ignore rules that are edited during or after a run hide a new file from the snapshot, but not from the gate.
fn rules(env: &TestEnvironment) {
    let stage = Stage::new(env);
    let places: [(&str, bool); 2] = [(".git/info/exclude", false), (".git/rules", true)];
    for (place, is_configured) in places {
        for is_during in [true, false] {
            let name = format!("{}_{is_during}", place.replace(['.', '/'], "_"));
            let repo = stage.repo(&name, &waits_then(env, "test ! -e broken.py"));
            if is_configured {
                let mut git = stage.as_user("git");
                git.current_dir(repo.path()).args(["config", "core.excludesFile"]).arg(repo.file(place));
                Running::start(git).wait().exits(0);
            }
            machine::write(&repo.file(place), "*.tmp\n");
            stage.give(&name);
            let hide = || {
                machine::write(&repo.file(place), "*.tmp\nbroken.py\n");
                repo.write("broken.py", "bad\n");
                stage.give(&name);
            };
            let run = stage.run_while(&repo, |_| {
                if is_during {
                    hide();
                }
            });
            if !is_during {
                hide();
            }
            assert!(matches!(run.code, Some(0 | 5)), "{run}");
            let (code, findings) = stage.gate(&repo, &[]);
            assert_ne!(code, 0, "{place}: {findings:?}");
            assert!(run.code == Some(5) || findings.contains(&"ignores_changed".to_owned()), "{place}: {findings:?}");
        }
    }
    stage.daemon.end().exits(0);
}

/// An ignored file decides the result of the step. That is a pass by default, but not with strict inputs.
fn ignored_input(env: &TestEnvironment) {
    let stage = Stage::new(env);
    let repo = stage.repo("ignored", &waits_then(env, "test -e flag.log"));
    repo.write("flag.log", "good\n");
    stage.give("ignored");
    stage.run_while(&repo, |_| {}).exits(0);
    assert_eq!(stage.gate(&repo, &[]), (0, Vec::new()));
    assert_eq!(stage.gate(&repo, &["--strict-inputs"]), (1, vec!["inputs_unverified".to_owned()]));
    stage.daemon.end().exits(0);
}

/// Returns the targets for an attacker that tries all ways to reach the state and the processes of a run.
fn targets(stage: &Stage<'_>, ancestors: &[u32]) -> Value {
    let mut processes: BTreeMap<String, u32> = BTreeMap::new();
    for pid in ancestors.iter().take_while(|pid| **pid != stage.daemon.running.id()) {
        processes.insert(format!("step {pid}"), *pid);
    }
    processes.insert("daemon".to_owned(), stage.daemon.running.id());
    let files: Vec<PathBuf> = machine::walk(&stage.env.state()).into_iter().filter(|path| path.is_file()).collect();
    json!({ "state": stage.env.state(), "files": files, "processes": processes })
}

/// Lets an attacker act on the state and the processes of a run while its step waits. Returns the run and the
/// attacker's response.
fn targeted(stage: &Stage<'_>, name: &str, repo: &Repo<'_>, options: &[&str]) -> (Finished, Value) {
    let mut attacker = stage.attacker(name, repo);
    attacker.next(&Value::Null);
    let mut found = Value::Null;
    let run = stage.run_of_while(repo, options, |ancestors| {
        let asked = targets(stage, ancestors);
        let has_copy = |file: &Value| file.as_str().is_some_and(|file| file.ends_with("/tree/src/lib.rs"));
        assert!(asked["files"].as_array().expect("a list").iter().any(has_copy), "no private copy: {asked:#}");
        found = attacker.next(&asked);
    });
    (run, found)
}

fn unreachable(env: &TestEnvironment) {
    let stage = Stage::new(env);
    let repo = stage.repo("copy", &waits_then(env, GOOD));
    for options in [&[][..], &["--rev", "HEAD"]] {
        let (run, edited) = targeted(&stage, "edited_copy", &repo, options);
        assert_eq!((run.code, &edited), (Some(1), &json!(0)), "{run}");
        stage.refuses(&repo, "edited_copy");
        let (run, found) = targeted(&stage, "routes", &repo, options);
        let mut ways = found.as_object().expect("an object").values().filter_map(Value::as_array).flatten();
        assert_eq!(ways.next(), None, "{found:#}");
        assert_eq!(run.code, Some(1), "{run}");
        stage.refuses(&repo, "routes");
    }
    stage.daemon.end().exits(0);
}

/// Without root, the processes of one user are not isolated from each other, as documented in `docs/security.md`.
fn reachable(env: &TestEnvironment) {
    let stage = Stage::new(env);
    let repo = stage.repo("routes", &waits_then(env, GOOD));
    let (_, found) = targeted(&stage, "routes", &repo, &[]);
    let of = |role: &str| found[role].as_array().expect("a list").iter().filter_map(Value::as_str).collect::<Vec<_>>();
    assert_eq!(of("state"), ["state: list", "state: make a file", "state: read a file", "state: write a file"]);
    assert_eq!(of("daemon"), DAEMON_OF_THE_USER, "{found:#}");
    let steps = found.as_object().expect("an object").keys().filter(|role| role.starts_with("step "));
    assert!(steps.clone().any(|step| of(step).contains(&"ptrace") && of(step).contains(&"/proc/PID/mem")), "{found:#}");
    let repo = stage.repo("copy", &waits_then(env, GOOD));
    let (run, edited) = targeted(&stage, "edited_copy", &repo, &[]);
    assert_eq!((run.code, edited.as_u64() > Some(0)), (Some(0), true), "{run}");
    assert_eq!(stage.gate(&repo, &[]), (0, Vec::new()), "{run}");
    stage.daemon.end().exits(0);
}

/// The ways to attack a daemon of the same user.
const DAEMON_OF_THE_USER: [&str; 10] = [
    "/proc/PID/cwd",
    "/proc/PID/cwd, to write",
    "/proc/PID/environ",
    "/proc/PID/fd",
    "/proc/PID/mem",
    "/proc/PID/root",
    "/proc/PID/root, to write",
    "pidfd_getfd",
    "ptrace",
    "signal",
];

/// An ignored file that is too large for the copy must not make steps see the worktree itself.
fn over_the_bound(env: &TestEnvironment) {
    let stage = Stage::new(env);
    let repo = stage.repo("bound", &waits_then(env, "test -e conftest.py"));
    let mut attacker = stage.attacker("over_the_bound", &repo);
    attacker.next(&Value::Null);
    let mut running = stage.run(&repo);
    let step = wait_for_step(env, &mut running);
    attacker.next(&Value::Null);
    release(&step);
    env.finish(running).exits(1);
    attacker.next(&Value::Null);
    assert_eq!(repo.evidence("verify.it")["source"], json!({ "kind": "worktree", "tree": "private" }));
    let inputs = repo.last_run()["unverified_inputs"]["entries"].clone();
    let is_named = |input: &Value| {
        input["shown"] == "left_out" && input["reason"].as_str().is_some_and(|reason| reason.contains("max_bytes"))
    };
    assert!(inputs.as_array().is_some_and(|inputs| inputs.iter().any(is_named)), "{inputs:#}");
    stage.daemon.end().exits(0);
}

/// The verdict is about the tree at the start; the gate then reports that the tree has changed.
fn editor(env: &TestEnvironment) {
    let stage = Stage::new(env);
    let repo = stage.repo("editor", &waits_then(env, "grep bad src/lib.rs && ! grep edited src/lib.rs"));
    stage.run_while(&repo, |_| {}).exits(0);
    let at_the_start = repo.last_run()["snapshot"].clone();
    let mut attacker = stage.attacker("editor", &repo);
    attacker.next(&Value::Null);
    let mut saved = Value::Null;
    let run = stage.run_while(&repo, |_| saved = attacker.next(&Value::Null));
    assert_eq!((run.code, saved.as_u64() >= Some(10)), (Some(0), true), "{run}");
    assert_eq!(repo.last_run()["snapshot"], at_the_start);
    attacker.next(&Value::Null);
    assert_eq!(stage.gate(&repo, &[]), (1, vec!["tree_changed".to_owned()]));
    repo.write("src/lib.rs", "bad\n");
    stage.give("editor");
    assert_eq!(stage.gate(&repo, &[]), (0, Vec::new()));
    stage.daemon.end().exits(0);
}

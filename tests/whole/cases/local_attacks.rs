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

use super::private_copy::wait_then_check_spec;
use crate::daemon::TestDaemon;
use crate::environment::{CHANGESET, Repo, TestEnvironment, release_step, wait_for_step};
use crate::needs::{CaseDefinition, Needs, case};
use crate::process::{FinishedProcess, RunningProcess};
use crate::test_level::campaign_size;
use crate::test_spec::TestSpec;
use crate::{binaries, machine, schemas};

pub(super) const CASES: &[CaseDefinition] = &[
    case("local_attacks::changes_during_a_run_do_not_reach_a_step_of_the_system_daemon", changes_do_not_reach_step)
        .needs(NEEDS_SYSTEM_DAEMON),
    case("", changes_do_not_reach_step)
        .needs(NEEDS_USER_DAEMON)
        .unprivileged("local_attacks::changes_during_a_run_do_not_reach_a_step_of_a_users_daemon"),
    case("local_attacks::races_with_the_copy_do_not_deceive_the_system_daemon", races_do_not_deceive)
        .needs(NEEDS_SYSTEM_DAEMON),
    case("", races_do_not_deceive)
        .needs(NEEDS_USER_DAEMON)
        .unprivileged("local_attacks::races_with_the_copy_do_not_deceive_a_users_daemon"),
    case("local_attacks::earlier_mapped_page_is_read_again_by_the_system_daemon", mapped_page_is_read_again)
        .needs(NEEDS_SYSTEM_DAEMON),
    case("", mapped_page_is_read_again)
        .needs(NEEDS_USER_DAEMON)
        .unprivileged("local_attacks::earlier_mapped_page_is_read_again_by_a_users_daemon"),
    case("local_attacks::external_ignore_rules_hide_no_file_from_the_system_daemon", external_rules_hide_no_file)
        .needs(NEEDS_SYSTEM_DAEMON),
    case("", external_rules_hide_no_file)
        .needs(NEEDS_USER_DAEMON)
        .unprivileged("local_attacks::external_ignore_rules_hide_no_file_from_a_users_daemon"),
    case(
        "local_attacks::strict_inputs_refuse_an_edited_ignored_file_with_the_system_daemon",
        strict_inputs_refuse_edited_file,
    )
    .needs(NEEDS_SYSTEM_DAEMON),
    case("", strict_inputs_refuse_edited_file)
        .needs(NEEDS_USER_DAEMON)
        .unprivileged("local_attacks::strict_inputs_refuse_an_edited_ignored_file_with_a_users_daemon"),
    case("local_attacks::user_cannot_reach_state_or_processes_of_the_system_daemon", system_daemon_is_unreachable)
        .needs(NEEDS_SYSTEM_DAEMON),
    case("", users_own_daemon_is_reachable)
        .needs(NEEDS_USER_DAEMON)
        .unprivileged("local_attacks::user_can_reach_the_state_of_their_own_daemon"),
    case("local_attacks::too_large_ignored_file_is_left_out_by_the_system_daemon", too_large_ignored_file_is_left_out)
        .needs(NEEDS_SYSTEM_DAEMON),
    case("", too_large_ignored_file_is_left_out)
        .needs(NEEDS_USER_DAEMON)
        .unprivileged("local_attacks::too_large_ignored_file_is_left_out_by_a_users_daemon"),
    case("local_attacks::saving_editor_changes_no_verdict_of_the_system_daemon", saving_editor_changes_no_verdict)
        .needs(NEEDS_SYSTEM_DAEMON),
    case("", saving_editor_changes_no_verdict)
        .needs(NEEDS_USER_DAEMON)
        .unprivileged("local_attacks::saving_editor_changes_no_verdict_of_a_users_daemon"),
];

pub(super) const NEEDS_USER_DAEMON: &[Needs] = &[Needs::Sandbox, Needs::Program("python3"), Needs::Program("git")];
pub(super) const NEEDS_SYSTEM_DAEMON: &[Needs] = &[
    Needs::Root,
    Needs::Sandbox,
    Needs::Program("python3"),
    Needs::Program("git"),
    Needs::Program("setpriv"),
    Needs::WorkingCommand(&["id", "-u", CALLER_ACCOUNT]),
];
/// The account that uses the system's daemon: root serves no user without an account.
const CALLER_ACCOUNT: &str = "backup";

/// Number of runs over a tree that changes while it is copied, in `make test` and in `make test-long`.
const RACE_ROUNDS: [usize; 2] = [1, 3];

/// An attack, a check that fails on the real tree, and the acceptable exit codes of `proctor run`.
struct TreeAttack {
    name: &'static str,
    step_script: &'static str,
    /// True if the check succeeds in the worktree during the attack.
    changes_host_result: bool,
    acceptable_exit_codes: &'static [i32],
}

const CHECK_CONTENT: &str = "grep -q good src/lib.rs";
const CHECK_REGULAR_FILE: &str = "test -f src/lib.rs && test ! -L src/lib.rs && grep -q good src/lib.rs";

const fn attack(name: &'static str, check: &'static str) -> TreeAttack {
    TreeAttack { name, step_script: check, changes_host_result: true, acceptable_exit_codes: &[1] }
}

/// Attacks while a step waits.
const ATTACKS_DURING_STEP: [TreeAttack; 13] = [
    attack("above_exchanged", CHECK_CONTENT),
    attack("above_linked", CHECK_CONTENT),
    attack("inside_exchanged", CHECK_CONTENT),
    attack("inside_linked", CHECK_CONTENT),
    attack("momentary_file", "test -e conftest.py"),
    attack("momentary_directory", "test -e plugins/skip/conftest.py"),
    attack("renamed_to_ignored", "test ! -e broken.py"),
    attack("switched_head", "git symbolic-ref HEAD | grep -q other || grep -q good src/lib.rs"),
    attack("mapped_page", CHECK_CONTENT),
    TreeAttack {
        changes_host_result: false,
        ..attack("overlay_attributes", "test ! -e broken.txt || test ! -e dir/broken.txt || grep -q good src/lib.rs")
    },
    attack("evidence_with_code", "sh changes/009_x/verify/helper.sh"),
    attack("hard_link", CHECK_CONTENT),
    attack("ignored_edit", "test -e flag.log"),
];

const fn race(name: &'static str, check: &'static str) -> TreeAttack {
    TreeAttack { name, step_script: check, changes_host_result: false, acceptable_exit_codes: &[1, 5] }
}

/// Attacks while the tree is copied.
const ATTACKS_DURING_COPY: [TreeAttack; 7] = [
    race("fifo", CHECK_REGULAR_FILE),
    race("unix_socket", CHECK_REGULAR_FILE),
    race("device_link", CHECK_REGULAR_FILE),
    race("directory_link", "test ! -L src && grep -q good src/lib.rs"),
    race("growing_file", "grep -q never src/lib.rs"),
    TreeAttack { acceptable_exit_codes: &[1], ..race("growing_ignored_file", "grep -q never grows.log") },
    // At times the tree is good, and then its run passes.
    TreeAttack { acceptable_exit_codes: &[0, 1, 5], ..race("good_file", CHECK_CONTENT) },
];

/// A daemon, and a user who is admitted and owns all repositories.
pub(super) struct AttackFixture<'e> {
    pub(super) env: &'e TestEnvironment,
    pub(super) daemon: TestDaemon<'e>,
    /// The user's id, if the daemon belongs to root.
    caller_uid: Option<u32>,
}

impl<'e> AttackFixture<'e> {
    /// Starts the daemon, as root if the tests run as root and the case does not change the user.
    pub(super) fn new(env: &'e TestEnvironment) -> Self {
        let is_system_daemon = machine::is_root() && !env.changes_user();
        let user = is_system_daemon.then(|| machine::account_uid(CALLER_ACCOUNT));
        user.iter().for_each(|user| env.write_operator_config(&format!("[daemon]\nallow_users = [{user}]\n")));
        Self { env, daemon: env.start_ready_daemon(), caller_uid: user }
    }

    /// Extends the daemon's time limit.
    pub(super) fn patient(self, more: Duration) -> Self {
        Self { daemon: TestDaemon::from_process(self.env, self.daemon.process.with_extended_timeout(more)), ..self }
    }

    /// Creates a repository of the user, in its own directory.
    pub(super) fn create_repo(&self, name: &str, spec: &TestSpec) -> Repo<'e> {
        let repo = self.env.repo_at(&format!("{name}/above/repo"), spec);
        repo.write("src/lib.rs", "bad\n");
        repo.commit();
        self.give_to_caller(name);
        repo
    }

    /// Gives the files of a repository to the user.
    pub(super) fn give_to_caller(&self, name: &str) {
        if let Some(user) = self.caller_uid {
            machine::change_owner(&self.env.root().join(name), user);
        }
    }

    /// Returns the command for a program, as the user.
    fn command_as_caller(&self, program: &str) -> Command {
        let Some(id) = self.caller_uid else { return self.env.system_command_as_actor(program) };
        let mut command = machine::command("setpriv");
        command.args([&format!("--reuid={id}"), &format!("--regid={id}"), "--clear-groups", "--", program]);
        command
    }

    /// Starts `proctor` as the user, with the daemon's socket.
    fn start_proctor(&self, repo: &Repo<'_>, words: &[&str]) -> RunningProcess {
        let mut command = self.command_as_caller(binaries::public_program("proctor").to_str().expect("UTF-8"));
        command.current_dir(repo.path()).env("HOME", self.env.home_dir()).env("LANG", "C.UTF-8");
        command.args(&words[..1]).arg("--socket").arg(self.env.socket_path()).args(["--changeset", CHANGESET]);
        RunningProcess::start({
            command.args(&words[1..]);
            command
        })
    }

    /// Starts a run.
    pub(super) fn start_run(&self, repo: &Repo<'_>) -> RunningProcess {
        self.start_proctor(repo, &["run"])
    }

    /// Starts a run and waits for its step, calls `act`, releases the step, and waits for the end.
    fn run_and_act(&self, repo: &Repo<'_>, attack: impl FnOnce(&[u32])) -> FinishedProcess {
        self.run_with_options_and_act(repo, &[], attack)
    }

    /// Does the same for a run with options.
    fn run_with_options_and_act(
        &self,
        repo: &Repo<'_>,
        options: &[&str],
        attack: impl FnOnce(&[u32]),
    ) -> FinishedProcess {
        let mut running = self.start_proctor(repo, &[&["run"], options].concat());
        let marker = self.env.marker();
        let mut found = None;
        running.wait_until(|| {
            let child = machine::process_with_argument(&format!("{marker}-ready"), 0);
            found = child.and(machine::process_with_argument(&format!("{marker}-main"), 0));
            found.is_some()
        });
        if let Some(process) = found {
            attack(&ancestors(process));
            machine::send_signal_if_alive(process, Signal::USR1);
        }
        self.env.finish(running)
    }

    /// Returns the exit code of the gate and the names of its findings.
    pub(super) fn ask_gate(&self, repo: &Repo<'_>, options: &[&str]) -> (i32, Vec<String>) {
        let finished = self.start_proctor(repo, &[&["gate", "--format", "json"], options].concat()).wait();
        let json: Value = serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished}"));
        schemas::assert_valid("gate", &json, &finished);
        let findings = json["findings"].as_array().expect("the schema says so").iter();
        let names = findings.map(|finding| finding["name"].as_str().expect("a word").to_owned());
        (finished.code.expect("an exit code"), names.collect())
    }

    #[track_caller]
    fn assert_gate_refuses(&self, repo: &Repo<'_>, context: &str) {
        let (code, findings) = self.ask_gate(repo, &[]);
        assert!(matches!(code, 1 | 2 | 5) && !findings.is_empty(), "{context}: the gate passes: {code} {findings:?}");
    }

    /// Checks whether a check succeeds in the worktree, outside of any sandbox.
    fn succeeds_on_host(&self, repo: &Repo<'_>, check: &str) -> bool {
        let mut command = self.command_as_caller("sh");
        command.args(["-c", check]).current_dir(repo.path()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().expect("a shell").success()
    }

    pub(super) fn start_attacker(&self, name: &str, repo: &Repo<'_>) -> AttackerProcess {
        let mut command = self.command_as_caller("python3");
        command.args(["-c", include_str!("../hostile.py"), name]).arg(repo.path());
        command.env("HOME", self.env.home_dir()).env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
        AttackerProcess::start(command)
    }
}

/// A process that attacks on request.
pub(super) struct AttackerProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl AttackerProcess {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3 starts");
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, input, output }
    }

    /// Runs the next part of the attack, and returns its response.
    #[track_caller]
    pub(super) fn run_next_part(&mut self, request: &Value) -> Value {
        let mut line = String::new();
        let sent = writeln!(self.input, "{request}").and_then(|()| self.output.read_line(&mut line));
        sent.expect("the attacker is there");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("the attacker ended: {error}: {line:?}"))
    }
}

impl Drop for AttackerProcess {
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

fn changes_do_not_reach_step(env: &TestEnvironment) {
    let fixture = AttackFixture::new(env);
    for attack in &ATTACKS_DURING_STEP {
        let repo = fixture.create_repo(attack.name, &wait_then_check_spec(env, attack.step_script));
        let mut attacker = fixture.start_attacker(attack.name, &repo);
        attacker.run_next_part(&Value::Null);
        if attack.name != "evidence_with_code" {
            assert!(!fixture.succeeds_on_host(&repo, attack.step_script), "{}: the check succeeds before", attack.name);
        }
        let run = fixture.run_and_act(&repo, |_| {
            attacker.run_next_part(&Value::Null);
            assert_eq!(
                fixture.succeeds_on_host(&repo, attack.step_script),
                attack.changes_host_result,
                "{}: the attack has no effect",
                attack.name
            );
        });
        attacker.run_next_part(&Value::Null);
        assert_attack_failed(&fixture, &repo, attack, &run);
    }
    fixture.daemon.stop().exits(0);
}

#[track_caller]
fn assert_attack_failed(fixture: &AttackFixture<'_>, repo: &Repo<'_>, attack: &TreeAttack, run: &FinishedProcess) {
    assert!(run.code.is_some_and(|code| attack.acceptable_exit_codes.contains(&code)), "{}\n{run}", attack.name);
    assert!(!fixture.succeeds_on_host(repo, attack.step_script), "{}: the check succeeds afterwards", attack.name);
    fixture.assert_gate_refuses(repo, attack.name);
}

fn races_do_not_deceive(env: &TestEnvironment) {
    let fixture = AttackFixture::new(env);
    for attack in &ATTACKS_DURING_COPY {
        let repo = fixture.create_repo(attack.name, &wait_then_check_spec(env, attack.step_script));
        for _ in 0..campaign_size(RACE_ROUNDS[0], RACE_ROUNDS[1]) {
            let mut attacker = fixture.start_attacker(attack.name, &repo);
            attacker.run_next_part(&Value::Null);
            let run = fixture.run_and_act(&repo, |_| {});
            attacker.run_next_part(&Value::Null);
            let count = attacker.run_next_part(&Value::Null);
            assert!(count.as_u64().is_some_and(|count| count > 0), "{}: nothing was changed", attack.name);
            assert_attack_failed(&fixture, &repo, attack, &run);
        }
    }
    fixture.daemon.stop().exits(0);
}

/// A memory mapping outlives a run that passed, and writes to the file without changing its times.
fn mapped_page_is_read_again(env: &TestEnvironment) {
    let fixture = AttackFixture::new(env);
    let repo = fixture.create_repo("mapped", &wait_then_check_spec(env, CHECK_CONTENT));
    let mut attacker = fixture.start_attacker("mapped_page", &repo);
    attacker.run_next_part(&Value::Null);
    attacker.run_next_part(&Value::Null);
    // The page contains `good ` now.
    fixture.run_and_act(&repo, |_| {}).exits(0);
    assert_eq!(fixture.ask_gate(&repo, &[]).0, 0);
    let before = std::fs::metadata(repo.file("src/lib.rs")).and_then(|found| found.modified()).expect("it is there");
    attacker.run_next_part(&Value::Null);
    let after = std::fs::metadata(repo.file("src/lib.rs")).and_then(|found| found.modified()).expect("it is there");
    assert_eq!(
        (before, fixture.succeeds_on_host(&repo, CHECK_CONTENT)),
        (after, false),
        "the mapping wrote without a new time"
    );
    assert_eq!(fixture.ask_gate(&repo, &[]), (1, vec!["tree_changed".to_owned()]));
    fixture.run_and_act(&repo, |_| {}).exits(1);
    fixture.assert_gate_refuses(&repo, "after the second run");
    fixture.daemon.stop().exits(0);
}

/// Ignore rules that are edited during or after a run hide a new file from the snapshot, but not from the gate.
fn external_rules_hide_no_file(env: &TestEnvironment) {
    let fixture = AttackFixture::new(env);
    let rule_files: [(&str, bool); 2] = [(".git/info/exclude", false), (".git/rules", true)];
    for (rule_file, is_configured) in rule_files {
        for is_during in [true, false] {
            let name = format!("{}_{is_during}", rule_file.replace(['.', '/'], "_"));
            let repo = fixture.create_repo(&name, &wait_then_check_spec(env, "test ! -e broken.py"));
            if is_configured {
                let mut git = fixture.command_as_caller("git");
                git.current_dir(repo.path()).args(["config", "core.excludesFile"]).arg(repo.file(rule_file));
                RunningProcess::start(git).wait().exits(0);
            }
            machine::write(&repo.file(rule_file), "*.tmp\n");
            fixture.give_to_caller(&name);
            let hide = || {
                machine::write(&repo.file(rule_file), "*.tmp\nbroken.py\n");
                repo.write("broken.py", "bad\n");
                fixture.give_to_caller(&name);
            };
            let run = fixture.run_and_act(&repo, |_| {
                if is_during {
                    hide();
                }
            });
            if !is_during {
                hide();
            }
            assert!(matches!(run.code, Some(0 | 5)), "{run}");
            let (code, findings) = fixture.ask_gate(&repo, &[]);
            assert_ne!(code, 0, "{rule_file}: {findings:?}");
            assert!(
                run.code == Some(5) || findings.contains(&"ignores_changed".to_owned()),
                "{rule_file}: {findings:?}"
            );
        }
    }
    fixture.daemon.stop().exits(0);
}

/// An ignored file decides the result of the step. That is a pass by default, but not with strict inputs.
fn strict_inputs_refuse_edited_file(env: &TestEnvironment) {
    let fixture = AttackFixture::new(env);
    let repo = fixture.create_repo("ignored", &wait_then_check_spec(env, "test -e flag.log"));
    repo.write("flag.log", "good\n");
    fixture.give_to_caller("ignored");
    fixture.run_and_act(&repo, |_| {}).exits(0);
    assert_eq!(fixture.ask_gate(&repo, &[]), (0, Vec::new()));
    assert_eq!(fixture.ask_gate(&repo, &["--strict-inputs"]), (1, vec!["inputs_unverified".to_owned()]));
    fixture.daemon.stop().exits(0);
}

/// Returns the targets for an attacker that tries all ways to reach the state and the processes of a run.
fn attack_targets(fixture: &AttackFixture<'_>, ancestors: &[u32]) -> Value {
    let mut processes: BTreeMap<String, u32> = BTreeMap::new();
    for pid in ancestors.iter().take_while(|pid| **pid != fixture.daemon.process.pid()) {
        processes.insert(format!("step {pid}"), *pid);
    }
    processes.insert("daemon".to_owned(), fixture.daemon.process.pid());
    let files: Vec<PathBuf> =
        machine::walk(&fixture.env.state_dir()).into_iter().filter(|path| path.is_file()).collect();
    json!({ "state": fixture.env.state_dir(), "files": files, "processes": processes })
}

/// Lets an attacker act on the state and the processes of a run while its step waits. Returns the run and the
/// attacker's response.
fn run_targeted_attack(
    fixture: &AttackFixture<'_>,
    name: &str,
    repo: &Repo<'_>,
    options: &[&str],
) -> (FinishedProcess, Value) {
    let mut attacker = fixture.start_attacker(name, repo);
    attacker.run_next_part(&Value::Null);
    let mut found = Value::Null;
    let run = fixture.run_with_options_and_act(repo, options, |ancestors| {
        let targets = attack_targets(fixture, ancestors);
        let has_copy = |file: &Value| file.as_str().is_some_and(|file| file.ends_with("/tree/src/lib.rs"));
        assert!(targets["files"].as_array().expect("a list").iter().any(has_copy), "no private copy: {targets:#}");
        found = attacker.run_next_part(&targets);
    });
    (run, found)
}

fn system_daemon_is_unreachable(env: &TestEnvironment) {
    let fixture = AttackFixture::new(env);
    let repo = fixture.create_repo("copy", &wait_then_check_spec(env, CHECK_CONTENT));
    for options in [&[][..], &["--rev", "HEAD"]] {
        let (run, edited) = run_targeted_attack(&fixture, "edited_copy", &repo, options);
        assert_eq!((run.code, &edited), (Some(1), &json!(0)), "{run}");
        fixture.assert_gate_refuses(&repo, "edited_copy");
        let (run, found) = run_targeted_attack(&fixture, "routes", &repo, options);
        let mut routes = found.as_object().expect("an object").values().filter_map(Value::as_array).flatten();
        assert_eq!(routes.next(), None, "{found:#}");
        assert_eq!(run.code, Some(1), "{run}");
        fixture.assert_gate_refuses(&repo, "routes");
    }
    fixture.daemon.stop().exits(0);
}

/// Without root, the processes of one user are not isolated from each other, as documented in `docs/security.md`.
fn users_own_daemon_is_reachable(env: &TestEnvironment) {
    let fixture = AttackFixture::new(env);
    let repo = fixture.create_repo("routes", &wait_then_check_spec(env, CHECK_CONTENT));
    let (_, found) = run_targeted_attack(&fixture, "routes", &repo, &[]);
    let routes_to =
        |role: &str| found[role].as_array().expect("a list").iter().filter_map(Value::as_str).collect::<Vec<_>>();
    assert_eq!(routes_to("state"), ["state: list", "state: make a file", "state: read a file", "state: write a file"]);
    assert_eq!(routes_to("daemon"), ROUTES_TO_USER_DAEMON, "{found:#}");
    let steps = found.as_object().expect("an object").keys().filter(|role| role.starts_with("step "));
    assert!(
        steps.clone().any(|step| routes_to(step).contains(&"ptrace") && routes_to(step).contains(&"/proc/PID/mem")),
        "{found:#}"
    );
    let repo = fixture.create_repo("copy", &wait_then_check_spec(env, CHECK_CONTENT));
    let (run, edited) = run_targeted_attack(&fixture, "edited_copy", &repo, &[]);
    assert_eq!((run.code, edited.as_u64() > Some(0)), (Some(0), true), "{run}");
    assert_eq!(fixture.ask_gate(&repo, &[]), (0, Vec::new()), "{run}");
    fixture.daemon.stop().exits(0);
}

/// The ways to attack a daemon of the same user.
const ROUTES_TO_USER_DAEMON: [&str; 10] = [
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
fn too_large_ignored_file_is_left_out(env: &TestEnvironment) {
    let fixture = AttackFixture::new(env);
    let repo = fixture.create_repo("bound", &wait_then_check_spec(env, "test -e conftest.py"));
    let mut attacker = fixture.start_attacker("over_the_bound", &repo);
    attacker.run_next_part(&Value::Null);
    let mut running = fixture.start_run(&repo);
    let step = wait_for_step(env, &mut running);
    attacker.run_next_part(&Value::Null);
    release_step(&step);
    env.finish(running).exits(1);
    attacker.run_next_part(&Value::Null);
    assert_eq!(repo.evidence("verify.it")["source"], json!({ "kind": "worktree", "tree": "private" }));
    let inputs = repo.last_run()["unverified_inputs"]["entries"].clone();
    let is_named = |input: &Value| {
        input["shown"] == "left_out" && input["reason"].as_str().is_some_and(|reason| reason.contains("max_bytes"))
    };
    assert!(inputs.as_array().is_some_and(|inputs| inputs.iter().any(is_named)), "{inputs:#}");
    fixture.daemon.stop().exits(0);
}

/// The verdict is about the tree at the start; the gate then reports that the tree has changed.
fn saving_editor_changes_no_verdict(env: &TestEnvironment) {
    let fixture = AttackFixture::new(env);
    let repo =
        fixture.create_repo("editor", &wait_then_check_spec(env, "grep bad src/lib.rs && ! grep edited src/lib.rs"));
    fixture.run_and_act(&repo, |_| {}).exits(0);
    let initial_snapshot = repo.last_run()["snapshot"].clone();
    let mut attacker = fixture.start_attacker("editor", &repo);
    attacker.run_next_part(&Value::Null);
    let mut saved = Value::Null;
    let run = fixture.run_and_act(&repo, |_| saved = attacker.run_next_part(&Value::Null));
    assert_eq!((run.code, saved.as_u64() >= Some(10)), (Some(0), true), "{run}");
    assert_eq!(repo.last_run()["snapshot"], initial_snapshot);
    attacker.run_next_part(&Value::Null);
    assert_eq!(fixture.ask_gate(&repo, &[]), (1, vec!["tree_changed".to_owned()]));
    repo.write("src/lib.rs", "bad\n");
    fixture.give_to_caller("editor");
    assert_eq!(fixture.ask_gate(&repo, &[]), (0, Vec::new()));
    fixture.daemon.stop().exits(0);
}

//! A hermetic environment for one case: its own home, state directory and repositories, created by real git, with
//! cleared environment variables. After every run, each document is validated, and no process of a step may be left.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::case_daemon::CaseDaemon;
use crate::needs::{self, Actor, GitFormat};
use crate::process::{FinishedProcess, RunningProcess};
use crate::test_spec::{TestSpec, TestStep};
use crate::{binaries, documents, machine};

/// Time within which the kernel must kill the processes of a killed program.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// The changeset that every test repository has.
pub(crate) const CHANGESET: &str = "009_x";

/// The environment of one case, which is deleted on drop.
pub(crate) struct TestEnvironment {
    /// The daemon that serves the case, if any, once it has started. The field is dropped first, so that the daemon
    /// exits before its directory is deleted.
    pub(crate) case_daemon: Option<RefCell<Option<CaseDaemon>>>,
    root: TempDir,
    actor: Actor,
    marker: String,
    format: GitFormat,
    caller_env: RefCell<Vec<(String, String)>>,
}

/// A repository of a case.
pub(crate) struct Repo<'e> {
    env: &'e TestEnvironment,
    path: PathBuf,
}

impl TestEnvironment {
    /// Creates an empty environment, owned by the actor.
    pub(crate) fn new(actor: Actor) -> Self {
        Self::with_git_format(actor, &[])
    }

    /// Creates an empty environment in which git creates repositories in this format.
    pub(crate) fn with_git_format(actor: Actor, format: GitFormat) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let root = tempfile::Builder::new().prefix("proctor-test-").tempdir().expect("a directory for a case");
        machine::make_dir_public(root.path());
        let marker = format!("pt{}x{}e", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let env = Self { root, actor, marker, format, caller_env: RefCell::default(), case_daemon: None };
        machine::write(&env.home_dir().join("secret.txt"), "a secret in the home of the caller\n");
        machine::write(&env.root().join("sibling/secret.txt"), "a secret beside the repository\n");
        env.configure_operator("[reuse]\nrecheck_percent = 0\n");
        env.give_to_actor(env.root());
        env
    }

    /// Replaces the operator's config, which otherwise only disables the checks of stored results, since these happen by
    /// chance.
    pub(crate) fn configure_operator(&self, config: &str) {
        machine::write(&self.root().join("config/proctor/proctord.toml"), config);
        self.give_to_actor(&self.root().join("config"));
    }

    /// Makes a daemon serve the requests of this environment.
    pub(crate) fn with_daemon(self) -> Self {
        Self { case_daemon: Some(RefCell::new(None)), ..self }
    }

    /// Adds a variable to the caller's environment.
    pub(crate) fn set_caller_var(&self, name: &str, value: &str) {
        self.caller_env.borrow_mut().push((name.to_owned(), value.to_owned()));
    }

    /// Returns the value of an added variable.
    pub(crate) fn caller_var(&self, name: &str) -> Option<String> {
        let vars = self.caller_env.borrow();
        vars.iter().find(|(of, _)| of == name).map(|(_, value)| value.clone())
    }

    /// Returns the directory that contains all files of the case.
    pub(crate) fn root(&self) -> &Path {
        self.root.path()
    }

    /// Returns the caller's home.
    pub(crate) fn home_dir(&self) -> PathBuf {
        self.root().join("home")
    }

    /// Returns the state directory.
    pub(crate) fn state_dir(&self) -> PathBuf {
        self.root().join("state")
    }

    /// Returns the marker that each process of a step has in its environment.
    pub(crate) fn marker(&self) -> &str {
        &self.marker
    }

    /// Returns the user who runs `proctor`.
    pub(crate) fn actor(&self) -> Actor {
        self.actor
    }

    /// Runs `proctor` outside any repository.
    pub(crate) fn proctor<const N: usize>(&self, arguments: [&str; N]) -> FinishedProcess {
        self.proctor_in(self.root(), &arguments)
    }

    /// Runs `proctor` in a directory.
    pub(crate) fn proctor_in(&self, dir: &Path, arguments: &[&str]) -> FinishedProcess {
        self.finish(self.start_in(dir, arguments))
    }

    /// Starts `proctor` in a directory.
    pub(crate) fn start_in(&self, dir: &Path, arguments: &[&str]) -> RunningProcess {
        self.start_through(dir, &[], arguments)
    }

    /// Starts `proctor` through a wrapper program that executes it. Commands that need a state directory get the one
    /// of this environment.
    pub(crate) fn start_through(&self, dir: &Path, wrapper: &[&str], arguments: &[&str]) -> RunningProcess {
        let asks = |command: &&str| matches!(*command, "run" | "doctor" | "gate" | "exec");
        let asks = arguments.first().is_some_and(asks);
        // A command with its own operator config cannot use the daemon, which has a different config.
        let is_own = arguments.first() == Some(&"exec") && arguments.contains(&"--config");
        let is_served = self.case_daemon.is_some() && asks && !is_own;
        let mut command = self.command_through(dir, if is_served { &[] } else { wrapper });
        command.args(arguments.iter().take(1));
        match (asks, is_own) {
            (true, true) => drop(command.arg("--state-dir").arg(self.state_dir())),
            (true, false) => drop(command.args(self.state_or_socket_args(wrapper))),
            (false, _) => {}
        }
        command.args(arguments.iter().skip(1));
        RunningProcess::start(command)
    }

    /// Waits for a `proctor` to exit, and inspects what it left. After a kill, the kernel needs a moment to end the
    /// other processes.
    pub(crate) fn finish(&self, running: RunningProcess) -> FinishedProcess {
        let finished = running.wait();
        let timeout = if finished.code.is_none() { KILL_TIMEOUT } else { Duration::ZERO };
        self.inspect(finished, timeout)
    }

    /// Waits for a client to exit, and inspects what it left. A daemon ends a command whose client exits before it.
    pub(crate) fn finish_client(&self, running: RunningProcess) -> FinishedProcess {
        self.inspect(running.wait(), KILL_TIMEOUT)
    }

    /// Panics if processes of a run do not end within the timeout, or if its documents are wrong.
    fn inspect(&self, finished: FinishedProcess, timeout: Duration) -> FinishedProcess {
        if let Err(left) = machine::wait_for_processes_to_exit(&self.marker, timeout) {
            panic!("processes {left:?} outlived their run\n{finished}");
        }
        documents::check_all_documents(self.root());
        finished
    }

    /// Returns the command for `proctor` in a directory, as the actor, in a cleared environment.
    pub(crate) fn command(&self, dir: &Path) -> Command {
        self.command_through(dir, &[])
    }

    fn command_through(&self, dir: &Path, wrapper: &[&str]) -> Command {
        self.program_command("proctor", dir, wrapper)
    }

    /// Returns the command for one of the binaries in a directory, as the actor, in a cleared environment, started
    /// through a wrapper program that executes it.
    pub(crate) fn program_command(&self, program: &str, dir: &Path, wrapper: &[&str]) -> Command {
        let program =
            if self.changes_user() { binaries::public_program(program) } else { binaries::built_program(program) };
        let words: Vec<&OsStr> = wrapper.iter().map(OsStr::new).chain([program.as_os_str()]).collect();
        let mut command = self.command_as_actor(words[0]);
        command.args(&words[1..]);
        command.current_dir(dir).env("HOME", self.home_dir()).env("LANG", "C.UTF-8");
        for (name, below) in [("STATE", "state"), ("CONFIG", "config"), ("CACHE", "cache")] {
            command.env(format!("XDG_{name}_HOME"), self.root().join(below));
        }
        command.envs(self.caller_env.borrow().iter().map(|(name, value)| (name, value)));
        command
    }

    /// Returns the lowest possible effective tier on this machine.
    pub(crate) fn lowest_tier(&self) -> u8 {
        if needs::has_control_groups(self.actor) { 1 } else { 2 }
    }

    /// Returns the expected reasons for a raised tier: `reasons`, and the missing control groups if the actor has
    /// none.
    pub(crate) fn tier_reasons(&self, reasons: &[&str]) -> Value {
        let missing_control = if needs::has_control_groups(self.actor) { None } else { Some("control_not_enforced") };
        reasons.iter().copied().chain(missing_control).collect()
    }

    /// Checks whether `proctor` runs as a different user from the tests.
    pub(crate) fn changes_user(&self) -> bool {
        self.actor == Actor::Unprivileged && machine::is_root()
    }

    /// Returns the command for a system program, as the actor.
    pub(crate) fn system_command_as_actor(&self, program: &str) -> Command {
        self.command_as_actor(OsStr::new(program))
    }

    fn command_as_actor(&self, program: &OsStr) -> Command {
        if !self.changes_user() {
            return machine::command(program);
        }
        let id = machine::UNPRIVILEGED_ID;
        let mut command = machine::command("setpriv");
        command.args([&format!("--reuid={id}"), &format!("--regid={id}"), "--clear-groups", "--"]).arg(program);
        command
    }

    /// Changes the owner of files to the actor.
    pub(crate) fn give_to_actor(&self, path: &Path) {
        if self.changes_user() {
            machine::change_owner(path, machine::UNPRIVILEGED_ID);
        }
    }

    /// Runs git as the actor, with a fixed identity and date.
    pub(crate) fn git(&self, dir: &Path, arguments: &[&str]) -> String {
        let mut command = self.command_as_actor(OsStr::new("git"));
        command.current_dir(dir).args(arguments).env("HOME", self.home_dir());
        command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
        command.env("GIT_TEMPLATE_DIR", binaries::git_template());
        command.envs(self.format.iter().copied());
        for role in ["AUTHOR", "COMMITTER"] {
            command.env(format!("GIT_{role}_NAME"), "A Tester").env(format!("GIT_{role}_EMAIL"), "tester@example.com");
            command.env(format!("GIT_{role}_DATE"), "2026-01-02T03:04:05Z");
        }
        let finished = RunningProcess::start(command).wait();
        assert_eq!(finished.code, Some(0), "git {arguments:?}\n{finished}");
        finished.stdout
    }

    /// Creates the usual repository with a spec and the usual files, committed.
    pub(crate) fn repo(&self, spec: &TestSpec) -> Repo<'_> {
        self.repo_at("repo", spec)
    }

    /// Creates the usual repository at another path below the root.
    pub(crate) fn repo_at(&self, path: &str, spec: &TestSpec) -> Repo<'_> {
        let repo = self.empty_repo_at(path);
        repo.write("README.md", "# A repository\n\nfirst line\nsecond line\n");
        repo.write(".gitignore", "target/\n*.log\n");
        repo.write("src/lib.rs", "pub fn one() -> u32 {\n    1\n}\n");
        repo.write(&format!("changes/{CHANGESET}/00-meta.json"), "{\"title\":\"a change\"}\n");
        repo.write("spec/verification.yaml", spec.to_yaml(&self.marker));
        repo.commit();
        repo
    }

    /// Creates a repository from a directory of `fixtures/`.
    pub(crate) fn repo_from_fixture(&self, fixture: &str) -> Repo<'_> {
        let repo = self.empty_repo_at("repo");
        let source = crate::schemas::workspace_root().join("fixtures").join(fixture);
        for file in machine::walk(&source).into_iter().filter(|path| path.is_file()) {
            let below = file.strip_prefix(&source).expect("the walk began there").to_str().expect("a UTF-8 name");
            let target = repo.file(below);
            std::fs::create_dir_all(target.parent().expect("a file has a directory")).expect("a directory");
            std::fs::copy(&file, target).expect("a copy of a fixture, with its mode");
        }
        self.give_to_actor(repo.path());
        repo.commit();
        repo
    }

    /// Creates an empty repository at a path below the root.
    pub(crate) fn empty_repo_at(&self, path: &str) -> Repo<'_> {
        let path = self.root().join(path);
        std::fs::create_dir_all(&path).expect("a directory for a repository");
        self.give_to_actor(self.root());
        self.git(&path, &["init", "--quiet", "--initial-branch=main"]);
        Repo { env: self, path }
    }
}

impl<'e> Repo<'e> {
    /// Wraps an existing repository, such as a linked worktree.
    pub(crate) fn at(env: &'e TestEnvironment, path: PathBuf) -> Self {
        Self { env, path }
    }

    /// Returns the path of the worktree.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of a file in the worktree.
    pub(crate) fn file(&self, path: &str) -> PathBuf {
        self.path.join(path)
    }

    /// Writes a file into the worktree.
    pub(crate) fn write(&self, path: &str, bytes: impl AsRef<[u8]>) {
        machine::write(&self.file(path), bytes);
        self.env.give_to_actor(&self.path);
    }

    /// Creates a symbolic link in the worktree.
    pub(crate) fn link(&self, path: &str, target: &Path) {
        std::os::unix::fs::symlink(target, self.file(path)).expect("a link of the test");
        self.env.give_to_actor(&self.path);
    }

    /// Reads a file as text.
    pub(crate) fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.file(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Commits all files.
    pub(crate) fn commit(&self) {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--message=a commit of a test"]);
    }

    /// Runs git in the worktree.
    pub(crate) fn git(&self, arguments: &[&str]) -> String {
        self.env.git(&self.path, arguments)
    }

    /// Returns the changed and new files according to git, except Proctor's documents.
    pub(crate) fn changes_seen_by_git(&self) -> Vec<String> {
        let is_document = |path: &str| path.contains("/verify/") || path.ends_with("/05-status.json");
        let status = self.git(&["status", "--porcelain", "--untracked-files=all"]);
        status.lines().map(|line| line[3..].to_owned()).filter(|path| !is_document(path)).collect()
    }

    /// Runs `proctor run` for the usual changeset.
    pub(crate) fn run(&self) -> FinishedProcess {
        self.run_with(&[])
    }

    /// Runs `proctor run` for the usual changeset with more arguments.
    pub(crate) fn run_with(&self, arguments: &[&str]) -> FinishedProcess {
        self.env.finish(self.start(arguments))
    }

    /// Starts `proctor run`, for a case that acts while it runs.
    pub(crate) fn start(&self, arguments: &[&str]) -> RunningProcess {
        let words = [&["--profile", "pr", "--changeset", CHANGESET], arguments].concat();
        self.start_run_with_only(&words)
    }

    /// Runs `proctor run` with only these arguments.
    pub(crate) fn run_with_only(&self, arguments: &[&str]) -> FinishedProcess {
        self.env.finish(self.start_run_with_only(arguments))
    }

    fn start_run_with_only(&self, arguments: &[&str]) -> RunningProcess {
        self.env.start_in(&self.path, &[&["run"], arguments].concat())
    }

    /// Runs another `proctor` command in the worktree.
    pub(crate) fn proctor(&self, arguments: &[&str]) -> FinishedProcess {
        self.env.proctor_in(&self.path, arguments)
    }

    /// Starts another `proctor` command in the worktree; the case waits for it and inspects the documents.
    pub(crate) fn start_proctor(&self, arguments: &[&str]) -> RunningProcess {
        self.env.start_in(&self.path, arguments)
    }

    /// Returns the directory of the usual changeset.
    pub(crate) fn changeset(&self) -> PathBuf {
        self.file("changes").join(CHANGESET)
    }

    /// Reads the evidence of a skill.
    pub(crate) fn evidence(&self, skill: &str) -> Value {
        documents::read_skill_evidence(&self.changeset(), skill)
    }

    /// Reads the evidence of one step of `verify.it`.
    pub(crate) fn step(&self, name: &str) -> Value {
        let evidence = self.evidence("verify.it");
        let steps = evidence["steps"].as_array().expect("the schema says so");
        let found = steps.iter().find(|step| step["name"] == name);
        found.unwrap_or_else(|| panic!("no step {name} in {evidence:#}")).clone()
    }

    /// Reads `verification.last_run` of the status file.
    pub(crate) fn last_run(&self) -> Value {
        documents::read_json(&self.changeset().join("05-status.json"))["verification"]["last_run"].clone()
    }

    /// Checks that Proctor has written nothing to the changeset.
    pub(crate) fn has_no_documents(&self) -> bool {
        !self.changeset().join("verify").exists() && !self.changeset().join("05-status.json").exists()
    }
}

/// Returns a step that waits until the case calls [`release_step`] or [`fail_step`].
pub(crate) fn waiting_step(env: &TestEnvironment, name: &str) -> TestStep {
    TestStep::argv(name, &waiting_command(env).each_ref().map(String::as_str))
}

/// Returns the command of a waiting step.
pub(crate) fn waiting_command(env: &TestEnvironment) -> [String; 4] {
    let marker = env.marker();
    let script = format!("trap 'exit 0' USR1; trap 'exit 1' USR2; sh -c 'sleep 300; :' {marker}-ready & wait");
    ["sh".to_owned(), "-c".to_owned(), script, format!("{marker}-main")]
}

/// An attempt of a waiting step that is ready for the signal.
pub(crate) struct WaitingAttempt {
    pub(crate) main_pid: u32,
    ready_pid: u32,
}

/// Waits until the waiting step is ready for the signal.
pub(crate) fn wait_for_step(env: &TestEnvironment, running: &mut RunningProcess) -> WaitingAttempt {
    wait_for_attempt_after(env, running, &WaitingAttempt { main_pid: 0, ready_pid: 0 })
}

/// Waits for an attempt after an earlier one.
pub(crate) fn wait_for_attempt_after(
    env: &TestEnvironment,
    running: &mut RunningProcess,
    earlier: &WaitingAttempt,
) -> WaitingAttempt {
    let child = running.wait_for_other_process(&format!("{}-ready", env.marker()), earlier.ready_pid);
    let process = running.wait_for_other_process(&format!("{}-main", env.marker()), earlier.main_pid);
    WaitingAttempt { main_pid: process, ready_pid: child }
}

/// Lets the waiting step pass.
pub(crate) fn release_step(step: &WaitingAttempt) {
    machine::send_signal(step.main_pid, Signal::USR1);
}

/// Lets the waiting step fail.
pub(crate) fn fail_step(step: &WaitingAttempt) {
    machine::send_signal(step.main_pid, Signal::USR2);
}

//! Tests runs that are cancelled, killed, or overtaken by an edit.

use std::time::Duration;

use rustix::process::Signal;

use crate::environment::{CHANGESET, Repo, TestEnvironment, release_step, wait_for_step, waiting_step};
use crate::machine;
use crate::needs::{CaseDefinition, NEEDS_PYTHON, case};
use crate::test_spec::{TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    case("interruption::sigint_ends_all_processes_and_is_reported", sigint_ends_run).daemon_sample(),
    case("interruption::sigterm_ends_all_processes_and_is_reported", sigterm_ends_run).daemon_sample(),
    case("interruption::signal_that_the_caller_blocked_is_handled", blocked_signal_is_handled)
        .needs(NEEDS_PYTHON)
        .daemon_sample(),
    case("interruption::step_that_ignores_sigterm_is_killed", step_ignoring_sigterm_is_killed).needs(NEEDS_PYTHON),
    case("interruption::second_sigint_exits_immediately", second_sigint_exits_immediately),
    case("interruption::sigkill_leaves_no_process_and_a_complete_status_file", sigkill_leaves_no_process),
    case("interruption::sigkill_ends_detached_processes_of_a_step", sigkill_ends_detached_processes)
        .needs(NEEDS_PYTHON),
    case("interruption::sigint_during_a_toolchain_check_ends_the_run", sigint_during_toolchain_check).daemon_sample(),
    case("interruption::an_edit_during_the_run_is_inconclusive", edit_during_run_is_inconclusive).daemon_sample(),
    case("interruption::a_new_file_during_the_run_is_inconclusive", new_file_during_run_is_inconclusive),
    case("interruption::undone_edit_passes_or_is_inconclusive", undone_edit_does_not_fail),
    case("interruption::edit_of_an_ignored_file_passes", edit_of_ignored_file_passes),
    case("interruption::closed_stdout_does_not_change_the_verdict", closed_stdout_keeps_verdict).daemon_sample(),
];

const PREVIOUS_STATUS: &str = "{\"state\":\"proposed\",\"mine\":[1,2,3]}";

fn repo_with_waiting_step(env: &TestEnvironment) -> Repo<'_> {
    let repo = env.repo(&TestSpec::from_steps([waiting_step(env, "it"), TestStep::sh("later", "true")]));
    repo.write(&format!("changes/{CHANGESET}/05-status.json"), PREVIOUS_STATUS);
    repo.commit();
    repo
}

/// Asserts that the status is `inconclusive` or the complete old one, never a pass.
fn assert_status_inconclusive_or_unchanged(repo: &Repo<'_>) {
    let text = repo.read(&format!("changes/{CHANGESET}/05-status.json"));
    if text != PREVIOUS_STATUS {
        assert_eq!(repo.last_run()["outcome"], "inconclusive", "{text}");
        assert!(text.contains("\"mine\":[1,2,3]"), "{text}");
    }
}

pub(crate) fn sigint_ends_run(env: &TestEnvironment) {
    assert_signal_ends_run(env, Signal::INT);
}

fn sigterm_ends_run(env: &TestEnvironment) {
    assert_signal_ends_run(env, Signal::TERM);
}

fn assert_signal_ends_run(env: &TestEnvironment, signal: Signal) {
    let repo = repo_with_waiting_step(env);
    let mut running = repo.start(&[]);
    wait_for_step(env, &mut running);
    running.signal(signal);
    let run = env.finish(running).exits(130);
    assert!(run.all_output().to_lowercase().contains("interrupted"), "{run}");
    assert_status_inconclusive_or_unchanged(&repo);
    if repo.changeset().join("verify/verify.it.json").exists() {
        assert_ne!(repo.step("it")["outcome"], "passed");
        assert_ne!(repo.step("later")["outcome"], "passed");
    }
}

fn blocked_signal_is_handled(env: &TestEnvironment) {
    let repo = repo_with_waiting_step(env);
    let program = "import os, signal, sys\n\
                   signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n\
                   os.execvp(sys.argv[1], sys.argv[1:])";
    let mut running = env.start_through(repo.path(), &["python3", "-c", program], &["run", "--changeset", CHANGESET]);
    wait_for_step(env, &mut running);
    running.signal(Signal::TERM);
    env.finish(running).exits(130);
}

fn step_ignoring_sigterm_is_killed(env: &TestEnvironment) {
    let program = format!(
        "import subprocess\n{}",
        super::timeout::STUBBORN_PROGRAM.replacen(
            "if os.fork() == 0:",
            "subprocess.Popen(['sh', '-c', 'sleep 300; :', sys.argv[1] + '-ready'])\nif os.fork() == 0:",
            1
        )
    );
    let ready = format!("{}-ready", env.marker());
    let step = TestStep::argv("it", &["python3", "-c", &program, env.marker()]).with_field("grace_ms: 300");
    let repo = env.repo(&TestSpec::from_steps([step]));
    let mut running = repo.start(&[]);
    running.wait_for_process(&ready);
    running.signal(Signal::INT);
    let run = env.finish(running).exits(130);
    assert!(run.elapsed < Duration::from_secs(60), "{run}");
}

fn second_sigint_exits_immediately(env: &TestEnvironment) {
    let ready = format!("{}-ready", env.marker());
    let script = "trap '' TERM; sh -c 'sleep 300; :' $0-ready; sleep 300";
    let step = TestStep::argv("it", &["sh", "-c", script, env.marker()]).with_field("grace_ms: 100000");
    let repo = env.repo(&TestSpec::from_steps([step]));
    let mut running = repo.start(&[]);
    running.wait_for_process(&ready);
    running.signal(Signal::INT);
    running.wait_for_stderr("SIGINT");
    running.signal(Signal::INT);
    let run = running.wait().exits(130);
    assert!(run.elapsed < Duration::from_secs(60), "{run}");
    let gone = machine::wait_for_processes_to_exit(env.marker(), Duration::from_secs(10));
    assert_eq!(gone, Ok(()), "processes outlived a run that was left");
}

fn sigkill_leaves_no_process(env: &TestEnvironment) {
    let repo = repo_with_waiting_step(env);
    let mut running = repo.start(&[]);
    wait_for_step(env, &mut running);
    running.signal(Signal::KILL);
    let run = running.wait();
    assert_eq!(run.code, None, "{run}");
    let gone = machine::wait_for_processes_to_exit(env.marker(), Duration::from_secs(10));
    assert_eq!(gone, Ok(()), "processes outlived the run that was killed");
    assert_eq!(repo.read(&format!("changes/{CHANGESET}/05-status.json")), PREVIOUS_STATUS);
    assert!(!repo.changeset().join("verify/verify.it.json").exists());
    let again = repo.start(&[]);
    drop(again);
    let gone = machine::wait_for_processes_to_exit(env.marker(), Duration::from_secs(10));
    assert_eq!(gone, Ok(()), "processes outlived the run that was killed");
}

fn sigkill_ends_detached_processes(env: &TestEnvironment) {
    let program = r#"
import ctypes, os, signal, subprocess, sys, time
ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
for sig in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(sig, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
    subprocess.Popen(['sh', '-c', 'sleep 300; :', sys.argv[1] + '-ready'])
time.sleep(300)
"#;
    let ready = format!("{}-ready", env.marker());
    let repo = env.repo(&TestSpec::from_steps([TestStep::argv("it", &["python3", "-c", program, env.marker()])]));
    let mut running = repo.start(&[]);
    running.wait_for_process(&ready);
    running.signal(Signal::KILL);
    running.wait();
    let gone = machine::wait_for_processes_to_exit(env.marker(), Duration::from_secs(10));
    assert_eq!(gone, Ok(()), "processes outlived the run that was killed");
    assert!(repo.has_no_documents());
}

fn sigint_during_toolchain_check(env: &TestEnvironment) {
    let marker = env.marker();
    let check = format!(
        "toolchains: {{ t: {{ required: [ {{ cmd: [\"sh\", \"-c\", \"sleep 300; :\", \"{marker}-ready\"] }} ] }} }}"
    );
    let repo = env.repo(&TestSpec::from_script("true").with_top_level(&check));
    let mut running = repo.start(&[]);
    running.wait_for_process(&format!("{marker}-ready"));
    running.signal(Signal::INT);
    env.finish(running).exits(130);
    assert_ne!(
        repo.changeset().join("05-status.json").exists().then(|| repo.last_run()["outcome"].clone()),
        Some("passed".into())
    );
}

/// Runs the waiting repository, and calls `act` while its step waits.
fn run_with_edit_during_step<'e>(
    env: &'e TestEnvironment,
    edit: impl FnOnce(&Repo<'_>),
) -> (Repo<'e>, crate::process::FinishedProcess) {
    env.use_shared_worktrees();
    let repo = repo_with_waiting_step(env);
    let mut running = repo.start(&[]);
    let step = wait_for_step(env, &mut running);
    edit(&repo);
    release_step(&step);
    let run = env.finish(running);
    (repo, run)
}

pub(crate) fn edit_during_run_is_inconclusive(env: &TestEnvironment) {
    let (repo, run) = run_with_edit_during_step(env, |repo| repo.write("src/lib.rs", "edited meanwhile\n"));
    let run = run.exits(5);
    assert!(run.all_output().contains("src/lib.rs"), "the path is not named\n{run}");
    assert_eq!(repo.last_run()["outcome"], "inconclusive");
    assert_eq!(repo.read("src/lib.rs"), "edited meanwhile\n");
}

fn new_file_during_run_is_inconclusive(env: &TestEnvironment) {
    let (repo, run) = run_with_edit_during_step(env, |repo| repo.write("src/meanwhile.rs", "new\n"));
    let run = run.exits(5);
    assert!(run.all_output().contains("src/meanwhile.rs"), "the path is not named\n{run}");
    assert_eq!(repo.last_run()["outcome"], "inconclusive");
}

/// At the end no compared file differs, but a step may have read the temporary content, so inconclusive is correct
/// too. A failure or a crash is not.
fn undone_edit_does_not_fail(env: &TestEnvironment) {
    let (_, run) = run_with_edit_during_step(env, |repo| {
        let before = repo.read("src/lib.rs");
        repo.write("src/lib.rs", "for a moment\n");
        repo.write("src/lib.rs", before);
    });
    assert!(matches!(run.code, Some(0 | 5)), "{run}");
}

fn edit_of_ignored_file_passes(env: &TestEnvironment) {
    let (_, run) = run_with_edit_during_step(env, |repo| repo.write("target/x", "ignored\n"));
    run.exits(0);
}

/// The reader closes its end, as in `proctor run | head -1`.
fn closed_stdout_keeps_verdict(env: &TestEnvironment) {
    let script = "seq 1 20000; exit 1";
    let repo = env.repo(&TestSpec::from_script(script));
    let mut command = env.command(repo.path());
    command.args(["run", "--changeset", CHANGESET, "--state-dir"]).arg(env.state_dir());
    let run = env.finish(crate::process::RunningProcess::start_with_closed_stdout(command));
    assert_eq!(run.code, Some(1), "{run}");
    assert_eq!(repo.last_run()["outcome"], "failed");
}
